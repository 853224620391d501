// Streams, events and host functions.
#include "streams.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "devices.h"
#include "graphs.h"
#include "model.h"

using namespace model;

namespace {

struct Streams {
  std::mutex mutex;
  std::set<CUstream> alive;
  std::atomic<uint64_t> next_id{1};
  // What the host has waited for. There is one for all its threads: how they wait for each other cannot be seen from here.
  std::mutex clocks_mutex;
  Clock host;
};

Streams& streams() {
  static Streams& it = *new Streams;
  return it;
}

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

CUresult create(CUstream* stream, unsigned flags) {
  if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
  *stream = new CUstream_st(current_context(), flags);
  std::lock_guard lock(streams().mutex);
  streams().alive.insert(*stream);
  return CUDA_SUCCESS;
}

bool is_null(CUstream stream) { return stream == stream->context->null_stream; }

// What a stream was given so far: a ticket to wait with, and what is known then.
std::pair<uint64_t, Clock> given_to(CUstream stream) {
  std::lock_guard lock(streams().clocks_mutex);
  return {stream->given, stream->clock};
}

// Streams that do not opt out wait for the null stream, and it waits for them.
void wait_for_null_stream(CUstream stream) {
  std::vector<CUstream> others;
  for (CUstream other : all_streams())
    if (other != stream && other->context == stream->context && (is_null(stream) ? !(other->flags & CU_STREAM_NON_BLOCKING) : is_null(other))) others.push_back(other);
  if (!is_null(stream) && (stream->flags & CU_STREAM_NON_BLOCKING)) return;
  for (CUstream other : others) {
    auto [ticket, clock] = given_to(other);
    if (!other->captured && !other->reached(ticket)) wait_on(stream, other, ticket, clock);
    std::lock_guard lock(streams().clocks_mutex);
    stream->clock.join(clock);
  }
}

void host_has_waited_for(const Clock& clock) {
  std::lock_guard lock(streams().clocks_mutex);
  streams().host.join(clock);
}

}  // namespace

CUstream_st::CUstream_st(CUcontext context, unsigned flags) : context(context), flags(flags), id(streams().next_id++) {
  std::thread([this] {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopped_ || !queue_.empty(); });
      if (queue_.empty()) return;
      auto work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
      done_++;
      changed_.notify_all();
    }
  }).detach();
}

uint64_t CUstream_st::push(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(work));
  changed_.notify_all();
  return ++given;
}

void CUstream_st::wait(uint64_t ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= ticket; });
}

bool CUstream_st::reached(uint64_t ticket) {
  std::lock_guard lock(mutex_);
  return done_ >= ticket;
}

void CUstream_st::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

namespace model {

std::vector<CUstream> all_streams() {
  std::lock_guard lock(streams().mutex);
  return {streams().alive.begin(), streams().alive.end()};
}

CUstream actual(CUstream stream) {
  if (stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD) return stream;
  CUcontext context = current_context();
  if (!context) return nullptr;
  std::lock_guard lock(streams().mutex);
  if (!context->null_stream) {
    context->null_stream = new CUstream_st(context, 0);
    streams().alive.insert(context->null_stream);
  }
  return context->null_stream;
}

void wait_on(CUstream stream, CUstream other, uint64_t ticket, const Clock& clock) {
  if (other == stream) return;
  stream->push([=] { other->wait(ticket); });
  std::lock_guard lock(streams().clocks_mutex);
  stream->clock.join(clock);
}

CUresult wait_for(CUstream stream) {
  stream = actual(stream);
  if (!stream) return CUDA_ERROR_INVALID_CONTEXT;
  auto [ticket, clock] = given_to(stream);
  stream->wait(ticket);
  host_has_waited_for(clock);
  return CUDA_SUCCESS;
}

void wait_for_all(CUcontext context) {
  for (CUstream stream : all_streams())
    if ((!context || stream->context == context) && !stream->captured) wait_for(stream);
}

CUresult enqueue(CUstream stream, Work work) {
  stream = actual(stream);
  if (!stream) return CUDA_ERROR_INVALID_CONTEXT;
  if (stream->context != current_context()) {
    violation("%s on a stream of device %d while the context of device %d is current", work.kind.c_str(), stream->context->device,
              current_context() ? current_context()->device : -1);
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (stream->captured) return record(stream, work);

  wait_for_null_stream(stream);
  std::lock_guard lock(streams().clocks_mutex);
  stream->clock.join(streams().host);
  uint64_t time = stream->clock.at(stream->id) + 1;
  stream->clock.set(stream->id, time);
  Clock known = stream->clock;
  stream->push([=, work = std::move(work)] {
    if (long late = jitter()) usleep(static_cast<useconds_t>(pick(late)));
    log("  stream %llu of device %d: %s", static_cast<unsigned long long>(stream->id), stream->context->device, work.kind.c_str());
    count(work.kind);
    // A host function may tell the host that all before it is done.
    if (work.type == CU_GRAPH_NODE_TYPE_HOST) host_has_waited_for(known);
    Accesses accesses;
    turn() = {(stream->id << 40) + time, 0};
    work.run(accesses);
    turn() = {};
    accesses.settle(work.kind);
    check_between_streams(accesses, stream->id, time, known, work.kind);
  });
  return CUDA_SUCCESS;
}

Turn& turn() {
  thread_local Turn now;
  return now;
}

void call_host(CUhostFn function, void* data) {
  HostFunction here;
  function(data);
}

}  // namespace model

// ------------------------------------------------------------------------------------------------------------- streams
DRIVER cuStreamCreate(CUstream* stream, unsigned flags) { ENTER(); return create(stream, flags); }
DRIVER cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int) { ENTER(); return create(stream, flags); }
DRIVER cuStreamDestroy_v2(CUstream stream) {
  ENTER();
  {
    std::lock_guard lock(streams().mutex);
    streams().alive.erase(stream);
  }
  stream->stop();
  return CUDA_SUCCESS;
}
DRIVER cuStreamSynchronize(CUstream stream) {
  ENTER();
  stream = actual(stream);
  if (!stream) return CUDA_ERROR_INVALID_CONTEXT;
  if (stream->captured) {
    violation("%s of a stream that is captured", __func__);
    stream->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (CUresult error = forbidden_in_capture(__func__)) return error;
  return wait_for(stream);
}
DRIVER cuStreamQuery(CUstream stream) {
  ENTER();
  stream = actual(stream);
  if (!stream) return CUDA_ERROR_INVALID_CONTEXT;
  if (stream->captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  auto [ticket, clock] = given_to(stream);  // not what another thread gives it meanwhile: that may wait for this one
  if (!stream->reached(ticket)) return CUDA_ERROR_NOT_READY;
  host_has_waited_for(clock);
  return CUDA_SUCCESS;
}
DRIVER cuStreamGetCtx(CUstream stream, CUcontext* context) {
  ENTER();
  stream = actual(stream);
  if (!stream) return CUDA_ERROR_INVALID_CONTEXT;
  *context = stream->context;
  return CUDA_SUCCESS;
}
DRIVER cuStreamGetPriority(CUstream, int* priority) { ENTER(); *priority = 0; return CUDA_SUCCESS; }
DRIVER cuStreamGetFlags(CUstream stream, unsigned* flags) { ENTER(); *flags = actual(stream)->flags; return CUDA_SUCCESS; }
DRIVER cuStreamGetId(CUstream stream, unsigned long long* id) { ENTER(); *id = actual(stream)->id; return CUDA_SUCCESS; }
DRIVER cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  ENTER();
  return enqueue(stream, {"host function", CU_GRAPH_NODE_TYPE_HOST, [=](Accesses&) { call_host(function, data); }});
}
DRIVER cuStreamAddCallback(CUstream stream, CUstreamCallback function, void* data, unsigned) {
  ENTER();
  return enqueue(stream, {"host function", CU_GRAPH_NODE_TYPE_HOST, [=](Accesses&) {
                            HostFunction here;
                            function(stream, CUDA_SUCCESS, data);
                          }});
}
DRIVER cuCtxSynchronize() {
  ENTER();
  if (CUresult error = forbidden_in_capture(__func__)) return error;
  if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
  wait_for_all(current_context());
  return CUDA_SUCCESS;
}

// -------------------------------------------------------------------------------------------------------------- events
DRIVER cuEventCreate(CUevent* event, unsigned) {
  ENTER();
  if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
  *event = new CUevent_st;
  return CUDA_SUCCESS;
}
DRIVER cuEventDestroy_v2(CUevent) { ENTER(); return CUDA_SUCCESS; }
DRIVER cuEventRecord(CUevent event, CUstream stream) {
  ENTER();
  stream = actual(stream);
  if (!stream) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(event->mutex);
  event->captured = stream->captured;
  event->tails = stream->tails;
  if (stream->captured) return CUDA_SUCCESS;
  event->stream = stream;
  event->ticket = stream->push([=] {
    std::lock_guard lock(event->mutex);
    event->at_ms = now_ms();
  });
  std::lock_guard clocks_lock(streams().clocks_mutex);
  event->clock = stream->clock;
  return CUDA_SUCCESS;
}
DRIVER cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned) { ENTER(); return cuEventRecord(event, stream); }
DRIVER cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  ENTER();
  stream = actual(stream);
  if (!stream) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(event->mutex);
  if (event->captured) return join_capture(stream, event->captured, event->tails);
  if (stream->captured) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  if (event->stream) wait_on(stream, event->stream, event->ticket, event->clock);
  return CUDA_SUCCESS;
}
static CUresult after_event(CUevent event, bool wait) {
  CUstream stream;
  uint64_t ticket;
  Clock clock;
  {
    std::lock_guard lock(event->mutex);
    if (event->captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream = event->stream;
    ticket = event->ticket;
    clock = event->clock;
  }
  if (!stream) return CUDA_SUCCESS;  // never recorded
  if (!wait && !stream->reached(ticket)) return CUDA_ERROR_NOT_READY;
  stream->wait(ticket);
  host_has_waited_for(clock);
  return CUDA_SUCCESS;
}
DRIVER cuEventQuery(CUevent event) {
  ENTER();
  if (CUresult error = forbidden_in_capture(__func__)) return error;
  return after_event(event, false);
}
DRIVER cuEventSynchronize(CUevent event) {
  ENTER();
  if (CUresult error = forbidden_in_capture(__func__)) return error;
  return after_event(event, true);
}
DRIVER cuEventElapsedTime_v2(float* ms, CUevent from, CUevent to) {
  ENTER();
  std::scoped_lock lock(from->mutex, to->mutex);
  *ms = std::max(0.001f, static_cast<float>(to->at_ms - from->at_ms));
  return CUDA_SUCCESS;
}
#undef cuEventElapsedTime
DRIVER cuEventElapsedTime(float* ms, CUevent from, CUevent to) { return cuEventElapsedTime_v2(ms, from, to); }
