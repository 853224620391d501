// NCCL, and RCCL by the same names: the devices of one process meet, each on a stream of its own, as on a GPU. What a group of
// calls asks of one device is one piece of work there.
#include <algorithm>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "beside.h"

namespace {

enum { SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum Type { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2 };
enum Reduction { SUM, PRODUCT, MAX, MIN, AVERAGE };
constexpr int VERSION = 22800;

size_t bytes_of(int type) {
  const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return bytes[type];
}

// What one device asks for.
struct Asked {
  enum Kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST, SEND, RECEIVE } kind;
  const char* from;
  char* to;
  size_t count;
  int type, reduction = SUM, peer = 0;
  size_t bytes() const { return count * bytes_of(type); }
};

// What devices meet for. Outside of graphs: how many collectives the device has enqueued before. In a graph: the how many-th launch
// with collectives it is, the node, and how often it ran in this launch. Not when it was recorded: a device that has its memory
// elsewhere this time records again, and the others do not.
struct Number {
  bool in_graph;
  uint64_t first, node, time, index;
  auto operator<=>(const Number&) const = default;
};

// A launch of a graph on one device.
struct Launch {
  uint64_t work = 0, number = 0;
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> times;  // by node, and by which of its collectives it is
};

// Devices that belong together. What has the same number on each of them belongs together.
struct Clique {
  explicit Clique(int size) : size(size), launches(static_cast<size_t>(size)) {}
  const int size;
  std::vector<Launch> launches;  // the last of each device
  std::mutex mutex;
  std::condition_variable changed;
  struct Meeting {
    std::vector<Asked> asked;
    int arrived = 0, gone = 0;
    bool done = false;
  };
  std::map<Number, Meeting> meetings;
  std::map<std::pair<int, int>, std::deque<std::vector<char>>> sent;  // by who and to whom
  bool aborted = false;
};

struct Communicator {
  std::shared_ptr<Clique> clique;
  int rank, device;
  uint64_t met = 0;     // meetings of this device so far, but for those in graphs
  uint64_t splits = 0;  // and how often it was split
};

template <class T>
T reduced(int how, T a, T b) {
  switch (how) {
    case PRODUCT: return static_cast<T>(a * b);
    case MAX: return std::max(a, b);
    case MIN: return std::min(a, b);
    default: return static_cast<T>(a + b);
  }
}

template <class T>
void reduce(const std::vector<Asked>& asked, size_t first, size_t count, std::vector<char>& out) {
  for (size_t i = 0; i < count; i++) {
    auto element = [&](const Asked& each) {
      T value;
      memcpy(&value, each.from + (first + i) * sizeof(T), sizeof(T));
      return value;
    };
    T sum = element(asked[0]);
    for (size_t rank = 1; rank < asked.size(); rank++) sum = reduced(asked[0].reduction, sum, element(asked[rank]));
    if (asked[0].reduction == AVERAGE) sum = static_cast<T>(sum / static_cast<T>(asked.size()));
    memcpy(&out[i * sizeof(T)], &sum, sizeof(T));
  }
}

// Whether it is known how to reduce that type.
bool reduce(const std::vector<Asked>& asked, size_t first, size_t count, std::vector<char>& out) {
  switch (asked[0].type) {
    case INT8: return reduce<int8_t>(asked, first, count, out), true;
    case UINT8: return reduce<uint8_t>(asked, first, count, out), true;
    case INT32: return reduce<int32_t>(asked, first, count, out), true;
    case UINT32: return reduce<uint32_t>(asked, first, count, out), true;
    case INT64: return reduce<int64_t>(asked, first, count, out), true;
    case UINT64: return reduce<uint64_t>(asked, first, count, out), true;
    case FLOAT32: return reduce<float>(asked, first, count, out), true;
    case FLOAT64: return reduce<double>(asked, first, count, out), true;
    default: return false;
  }
}

// All are here: computes what each is to get. Results are put in place after all is read, since they may be where operands are.
void compute(const std::vector<Asked>& asked) {
  const Asked& any = asked[0];
  size_t size = asked.size(), share = any.bytes();
  std::vector<std::vector<char>> results(size);
  for (size_t rank = 0; rank < size; rank++) {
    std::vector<char>& result = results[rank];
    switch (any.kind) {
      case Asked::ALL_REDUCE:
      case Asked::REDUCE_SCATTER:
        result.resize(share);
        reduce(asked, any.kind == Asked::ALL_REDUCE ? 0 : rank * any.count, any.count, result);
        break;
      case Asked::ALL_GATHER:
        for (const Asked& each : asked) result.insert(result.end(), each.from, each.from + share);
        break;
      case Asked::ALL_TO_ALL:
        for (const Asked& each : asked) result.insert(result.end(), each.from + rank * share, each.from + (rank + 1) * share);
        break;
      default: {
        const Asked& root = asked[static_cast<size_t>(any.peer)];
        result.assign(root.from, root.from + share);
      }
    }
  }
  for (size_t rank = 0; rank < size; rank++) memcpy(asked[rank].to, results[rank].data(), results[rank].size());
}

// Runs in the turn of one device's stream: waits until all devices are here.
void meet(Clique& clique, int rank, Number number, const Asked& asked) {
  std::unique_lock lock(clique.mutex);
  if (number.in_graph) {
    uint64_t work;
    gpu_model_turn(&work, &number.node);
    Launch& launch = clique.launches[static_cast<size_t>(rank)];
    if (launch.work != work) launch = {work, launch.number + 1, {}};
    number.first = launch.number;
    number.time = launch.times[{number.node, number.index}]++;
  }
  auto& meeting = clique.meetings[number];
  meeting.asked.resize(static_cast<size_t>(clique.size));
  meeting.asked[static_cast<size_t>(rank)] = asked;
  if (++meeting.arrived == clique.size) {
    compute(meeting.asked);
    meeting.done = true;
    clique.changed.notify_all();
  }
  clique.changed.wait(lock, [&] { return meeting.done || clique.aborted; });
  if (++meeting.gone == clique.size) clique.meetings.erase(number);
}

void send(Clique& clique, int rank, const Asked& asked) {
  std::lock_guard lock(clique.mutex);
  clique.sent[{rank, asked.peer}].emplace_back(asked.from, asked.from + asked.bytes());
  clique.changed.notify_all();
}

void receive(Clique& clique, int rank, const Asked& asked) {
  std::unique_lock lock(clique.mutex);
  auto& sent = clique.sent[{asked.peer, rank}];
  clique.changed.wait(lock, [&] { return !sent.empty() || clique.aborted; });
  if (sent.empty()) return;
  memcpy(asked.to, sent.front().data(), std::min(sent.front().size(), asked.bytes()));
  sent.pop_front();
}

std::vector<Memory> reads(const Asked& asked, size_t size) {
  size_t shares = asked.kind == Asked::REDUCE_SCATTER || asked.kind == Asked::ALL_TO_ALL ? size : 1;
  return asked.kind == Asked::RECEIVE ? std::vector<Memory>{} : std::vector<Memory>{{asked.from, shares * asked.bytes()}};
}

std::vector<Memory> writes(const Asked& asked, size_t size) {
  size_t shares = asked.kind == Asked::ALL_GATHER || asked.kind == Asked::ALL_TO_ALL ? size : 1;
  return asked.kind == Asked::SEND ? std::vector<Memory>{} : std::vector<Memory>{{asked.to, shares * asked.bytes()}};
}

// One piece of work on a device's stream: all that a group asks of it. It sends before it waits.
struct Batch {
  Communicator* communicator;
  CUstream stream;
  std::vector<Asked> all;
};

int start(Batch batch) {
  auto& clique = batch.communicator->clique;
  std::vector<Memory> read, written;
  for (const Asked& asked : batch.all) {
    auto r = reads(asked, static_cast<size_t>(clique->size)), w = writes(asked, static_cast<size_t>(clique->size));
    read.insert(read.end(), r.begin(), r.end());
    written.insert(written.end(), w.begin(), w.end());
  }
  int rank = batch.communicator->rank;
  uint64_t first = batch.communicator->met;
  CUstreamCaptureStatus capture;
  if (cuStreamIsCapturing(batch.stream, &capture)) return UNHANDLED_CUDA_ERROR;
  bool in_graph = capture != CU_STREAM_CAPTURE_STATUS_NONE;
  for (const Asked& asked : batch.all) batch.communicator->met += !in_graph && asked.kind < Asked::SEND;
  auto run = [=, all = std::move(batch.all)] {
    for (const Asked& asked : all)
      if (asked.kind == Asked::SEND) send(*clique, rank, asked);
    uint64_t index = 0;
    for (const Asked& asked : all)
      if (asked.kind < Asked::SEND) meet(*clique, rank, {in_graph, first, 0, 0, index++}, asked);
    for (const Asked& asked : all)
      if (asked.kind == Asked::RECEIVE) receive(*clique, rank, asked);
  };
  CUcontext context, popped;
  if (cuStreamGetCtx(batch.stream, &context) || cuCtxPushCurrent(context)) return UNHANDLED_CUDA_ERROR;
  int error = in_turn(batch.stream, "collective", read, written, run);
  return cuCtxPopCurrent(&popped) || error ? UNHANDLED_CUDA_ERROR : SUCCESS;
}

thread_local int group_depth = 0;
thread_local std::vector<Batch> grouped;

int ask(Communicator* communicator, CUstream stream, Asked asked) {
  if (!communicator) return INVALID_ARGUMENT;
  bool reduces = asked.kind == Asked::ALL_REDUCE || asked.kind == Asked::REDUCE_SCATTER;
  if (std::vector<char> none; reduces && !reduce({asked}, 0, 0, none)) {
    gpu_model_missing("NCCL: a reduction of other types than integers, float32 and float64");
    return INVALID_ARGUMENT;
  }
  if (!group_depth) return start({communicator, stream, {asked}});
  for (Batch& batch : grouped)
    if (batch.communicator == communicator && batch.stream == stream) return batch.all.push_back(asked), SUCCESS;
  grouped.push_back({communicator, stream, {asked}});
  return SUCCESS;
}

// --------------------------------------------------------------------------------------------------------- who belongs together
struct Id {
  char text[128];
};

struct Cliques {
  std::mutex mutex;
  uint64_t next = 1;
  std::map<std::string, std::weak_ptr<Clique>> by_name;
};
Cliques& cliques() {
  static Cliques& it = *new Cliques;
  return it;
}

int join(Communicator** out, const std::string& name, int size, int rank) {
  auto& all = cliques();
  std::lock_guard lock(all.mutex);
  auto clique = all.by_name[name].lock();
  if (!clique) all.by_name[name] = clique = std::make_shared<Clique>(size);
  int device = 0;
  cuCtxGetDevice(&device);
  *out = new Communicator{clique, rank, device};
  return SUCCESS;
}

// Each member says its color and its key; then those of one color belong together, in the order of their keys.
struct Split {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::pair<int, int>> said;  // by rank
  int count = 0;
};

int split(Communicator* parent, int color, int key, Communicator** out) {
  static std::mutex mutex;
  static std::map<std::pair<Clique*, uint64_t>, std::shared_ptr<Split>> splits;
  uint64_t number = parent->splits++;
  std::shared_ptr<Split> mine;
  {
    std::lock_guard lock(mutex);
    auto& found = splits[{parent->clique.get(), number}];
    if (!found) found = std::make_shared<Split>();
    mine = found;
  }
  std::unique_lock lock(mine->mutex);
  mine->said.resize(static_cast<size_t>(parent->clique->size));
  mine->said[static_cast<size_t>(parent->rank)] = {color, key};
  if (++mine->count == parent->clique->size) mine->changed.notify_all();
  mine->changed.wait(lock, [&] { return mine->count == parent->clique->size; });
  *out = nullptr;
  if (color < 0) return SUCCESS;
  int size = 0, rank = 0;
  for (int other = 0; other < parent->clique->size; other++) {
    auto [its_color, its_key] = mine->said[static_cast<size_t>(other)];
    if (its_color != color) continue;
    size++;
    rank += std::pair(its_key, other) < std::pair(key, parent->rank);
  }
  std::string name = "split " + std::to_string(reinterpret_cast<uintptr_t>(mine.get())) + " " + std::to_string(color);
  return join(out, name, size, rank);
}

}  // namespace

EXPORT int ncclGetVersion(int* version) { return *version = VERSION, SUCCESS; }
EXPORT const char* ncclGetErrorString(int error) { return error ? "not in the model of the driver" : "success"; }
EXPORT const char* ncclGetLastError(Communicator*) { return "an error of the model of the driver"; }
EXPORT int ncclGetUniqueId(Id* id) {
  std::lock_guard lock(cliques().mutex);
  memset(id, 0, sizeof *id);
  std::string name = "clique " + std::to_string(cliques().next++);
  memcpy(id->text, name.data(), name.size());
  return SUCCESS;
}

EXPORT int ncclCommInitRankConfig(Communicator** out, int size, Id id, int rank, void*) { return join(out, id.text, size, rank); }
EXPORT int ncclCommInitRank(Communicator** out, int size, Id id, int rank) { return join(out, id.text, size, rank); }
EXPORT int ncclCommInitRankScalable(Communicator** out, int size, int rank, int, Id* ids, void*) { return join(out, ids->text, size, rank); }
EXPORT int ncclCommSplit(Communicator* parent, int color, int key, Communicator** out, void*) { return split(parent, color, key, out); }
EXPORT int ncclCommFinalize(Communicator*) { return SUCCESS; }
EXPORT int ncclCommDestroy(Communicator* communicator) { return delete communicator, SUCCESS; }
EXPORT int ncclCommAbort(Communicator* communicator) {
  {
    std::lock_guard lock(communicator->clique->mutex);
    communicator->clique->aborted = true;
    communicator->clique->changed.notify_all();
  }
  return delete communicator, SUCCESS;
}
EXPORT int ncclCommGetAsyncError(Communicator*, int* error) { return *error = SUCCESS, SUCCESS; }
EXPORT int ncclCommCount(Communicator* communicator, int* size) { return *size = communicator->clique->size, SUCCESS; }
EXPORT int ncclCommUserRank(Communicator* communicator, int* rank) { return *rank = communicator->rank, SUCCESS; }
EXPORT int ncclCommCuDevice(Communicator* communicator, int* device) { return *device = communicator->device, SUCCESS; }
EXPORT int ncclCommRegister(Communicator*, void*, size_t, void** handle) { return *handle = nullptr, SUCCESS; }
EXPORT int ncclCommDeregister(Communicator*, void*) { return SUCCESS; }
EXPORT int ncclMemAlloc(void** memory, size_t bytes) { return cuMemAlloc(reinterpret_cast<CUdeviceptr*>(memory), bytes) ? UNHANDLED_CUDA_ERROR : SUCCESS; }
EXPORT int ncclMemFree(void* memory) { return cuMemFree(reinterpret_cast<CUdeviceptr>(memory)) ? UNHANDLED_CUDA_ERROR : SUCCESS; }

EXPORT int ncclGroupStart() { return group_depth++, SUCCESS; }
EXPORT int ncclGroupEnd() {
  if (!group_depth) return INVALID_USAGE;
  if (--group_depth) return SUCCESS;
  int error = SUCCESS;
  for (Batch& batch : std::exchange(grouped, {}))
    if (int found = start(std::move(batch))) error = found;
  return error;
}

EXPORT int ncclAllReduce(const char* from, char* to, size_t count, int type, int reduction, Communicator* communicator, CUstream stream) {
  return ask(communicator, stream, {Asked::ALL_REDUCE, from, to, count, type, reduction});
}
EXPORT int ncclReduceScatter(const char* from, char* to, size_t count, int type, int reduction, Communicator* communicator, CUstream stream) {
  return ask(communicator, stream, {Asked::REDUCE_SCATTER, from, to, count, type, reduction});
}
EXPORT int ncclAllGather(const char* from, char* to, size_t count, int type, Communicator* communicator, CUstream stream) {
  return ask(communicator, stream, {Asked::ALL_GATHER, from, to, count, type});
}
EXPORT int ncclAlltoAll(const char* from, char* to, size_t count, int type, Communicator* communicator, CUstream stream) {
  return ask(communicator, stream, {Asked::ALL_TO_ALL, from, to, count, type});
}
EXPORT int ncclBroadcast(const char* from, char* to, size_t count, int type, int root, Communicator* communicator, CUstream stream) {
  return ask(communicator, stream, {Asked::BROADCAST, from, to, count, type, SUM, root});
}
EXPORT int ncclSend(const char* from, size_t count, int type, int peer, Communicator* communicator, CUstream stream) {
  return ask(communicator, stream, {Asked::SEND, from, nullptr, count, type, SUM, peer});
}
EXPORT int ncclRecv(char* to, size_t count, int type, int peer, Communicator* communicator, CUstream stream) {
  return ask(communicator, stream, {Asked::RECEIVE, nullptr, to, count, type, SUM, peer});
}
