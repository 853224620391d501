// A stream is a queue with a thread of its own: what is enqueued runs in that order, beside the host and the other streams.
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "memory.h"
#include "race.h"

namespace model {

// One piece of work: on a stream, or a node of a graph. It does it, and says what memory it touched.
struct Work {
  std::string kind;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  std::function<void(Accesses&)> run;
  std::function<void(CUgraphNode)> describe = nullptr;  // what a node is to remember beside that
};

// Puts work on a stream; or into a graph, while the stream is captured.
CUresult enqueue(CUstream stream, Work work);

// What this thread is doing: which piece of work on a stream, and in that, if it is a launch of a graph, which node. A node has the
// same number in every launch, on every device. 0: none.
struct Turn {
  uint64_t work = 0, node = 0;
};
Turn& turn();

// Runs a host function, which may not call the driver.
void call_host(CUhostFn function, void* data);

// Waits until a stream has done all that was enqueued so far; all streams of a context, or of all contexts.
CUresult wait_for(CUstream stream);
void wait_for_all(CUcontext context);

// The stream itself, or the one that stands for null.
CUstream actual(CUstream stream);

// Makes a stream wait for what another one has been given so far.
void wait_on(CUstream stream, CUstream other, uint64_t ticket, const Clock& clock);

// ---- capture.cc
bool is_captured(CUstream stream);
// An error, and a violation, if this thread may not call that function because of a capture.
CUresult forbidden_in_capture(const char* function);

}  // namespace model

struct CUstream_st {
  CUstream_st(CUcontext context, unsigned flags);

  // Runs `work` after all that came before; returns how many were given, which is a ticket to wait with.
  uint64_t push(std::function<void()> work);
  void wait(uint64_t ticket);
  bool reached(uint64_t ticket);
  void stop();

  const CUcontext context;
  const unsigned flags;
  const uint64_t id;
  model::Clock clock;  // what the last work that was enqueued comes after; under the mutex of all clocks

  // While it is captured (capture.cc).
  CUgraph captured = nullptr;
  std::vector<CUgraphNode> tails;  // what the next node comes after
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  bool origin = false;   // the capture began here
  bool invalid = false;  // something forbidden was done

  std::atomic<uint64_t> given{0};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  uint64_t done_ = 0;
  bool stopped_ = false;
};

struct CUevent_st {
  std::mutex mutex;
  // Where it was recorded last: on a stream, or in a capture.
  CUstream stream = nullptr;
  uint64_t ticket = 0;
  model::Clock clock;
  CUgraph captured = nullptr;
  std::vector<CUgraphNode> tails;
  double at_ms = 0;
};

namespace model {
// All streams that live. Streams and events are never freed: what was enqueued may need them.
std::vector<CUstream> all_streams();
}  // namespace model
