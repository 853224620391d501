// Capture: what is enqueued on a stream becomes nodes of a graph.
#include <algorithm>
#include <mutex>
#include <set>

#include "graphs.h"
#include "model.h"
#include "streams.h"

using namespace model;

namespace {

struct Captures {
  std::mutex mutex;
  std::set<CUstream> origins;
};
Captures& captures() {
  static Captures& it = *new Captures;
  return it;
}

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
thread_local std::vector<CUstream> begun_here;  // captures that this thread has begun

CUresult begin(CUstream stream, CUgraph graph, std::vector<CUgraphNode> tails, CUstreamCaptureMode mode) {
  stream = actual(stream);
  if (!stream) return CUDA_ERROR_INVALID_CONTEXT;
  if (stream->captured) return CUDA_ERROR_ILLEGAL_STATE;
  std::lock_guard lock(captures().mutex);
  stream->captured = graph;
  stream->tails = std::move(tails);
  stream->mode = mode;
  stream->origin = true;
  stream->invalid = false;
  captures().origins.insert(stream);
  begun_here.push_back(stream);
  return CUDA_SUCCESS;
}

// All that `tails` come after, and they themselves.
std::set<CUgraphNode> up_to(std::vector<CUgraphNode> tails) {
  std::set<CUgraphNode> found;
  while (!tails.empty()) {
    CUgraphNode node = tails.back();
    tails.pop_back();
    if (found.insert(node).second) tails.insert(tails.end(), node->needs.begin(), node->needs.end());
  }
  return found;
}

void invalidate(CUstream stream) { stream->invalid = true; }

}  // namespace

namespace model {

bool is_captured(CUstream stream) {
  stream = actual(stream);
  return stream && stream->captured;
}

CUresult record(CUstream stream, const Work& work) {
  CUgraphNode node;
  if (CUresult error = add_node(stream->captured, stream->tails, work, &node)) return error;
  stream->tails = {node};
  return CUDA_SUCCESS;
}

CUresult join_capture(CUstream stream, CUgraph graph, const std::vector<CUgraphNode>& tails) {
  if (stream->captured && stream->captured != graph) return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  if (!stream->captured) {
    stream->captured = graph;
    stream->tails.clear();
  }
  for (CUgraphNode tail : tails)
    if (std::find(stream->tails.begin(), stream->tails.end(), tail) == stream->tails.end()) stream->tails.push_back(tail);
  return CUDA_SUCCESS;
}

CUresult forbidden_in_capture(const char* function) {
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  std::lock_guard lock(captures().mutex);
  for (CUstream stream : captures().origins) {
    bool own = std::find(begun_here.begin(), begun_here.end(), stream) != begun_here.end();
    bool forbids = own ? stream->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                       : stream->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!forbids) continue;
    invalidate(stream);
    violation("%s while %s is captured", function, own ? "a stream of this thread" : "a stream of another thread");
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return CUDA_SUCCESS;
}

}  // namespace model

DRIVER cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) { ENTER(); return begin(stream, new CUgraph_st, {}, mode); }
DRIVER cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* needs, const CUgraphEdgeData*, size_t count, CUstreamCaptureMode mode) {
  ENTER();
  return begin(stream, graph, {needs, needs + count}, mode);
}
DRIVER cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  ENTER();
  stream = actual(stream);
  if (!stream || !stream->captured || !stream->origin) return CUDA_ERROR_ILLEGAL_STATE;
  CUgraph captured = stream->captured;
  auto joined = up_to(stream->tails);
  bool unjoined = false;
  for (CUstream other : all_streams()) {
    if (other == stream || other->captured != captured) continue;
    for (CUgraphNode tail : other->tails) unjoined |= !joined.count(tail);
    other->captured = nullptr;
    other->tails.clear();
  }
  std::lock_guard lock(captures().mutex);
  captures().origins.erase(stream);
  std::erase(begun_here, stream);
  stream->origin = false;
  stream->captured = nullptr;
  stream->tails.clear();
  *graph = stream->invalid || unjoined ? nullptr : captured;
  if (stream->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  return unjoined ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED : CUDA_SUCCESS;
}
DRIVER cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  ENTER();
  stream = actual(stream);
  if (!stream) return CUDA_ERROR_INVALID_CONTEXT;
  *status = !stream->captured ? CU_STREAM_CAPTURE_STATUS_NONE : stream->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}
DRIVER cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** tails, size_t* count) {
  ENTER();
  stream = actual(stream);
  if (!stream) return CUDA_ERROR_INVALID_CONTEXT;
  *status = stream->captured ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  if (!stream->captured) return CUDA_SUCCESS;
  if (id) *id = reinterpret_cast<cuuint64_t>(stream->captured);
  if (graph) *graph = stream->captured;
  if (tails) *tails = stream->tails.data();
  if (count) *count = stream->tails.size();
  return CUDA_SUCCESS;
}
DRIVER cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* nodes, size_t count, unsigned flags) {
  ENTER();
  stream = actual(stream);
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream->tails.clear();
  stream->tails.insert(stream->tails.end(), nodes, nodes + count);
  return CUDA_SUCCESS;
}
DRIVER cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) { ENTER(); std::swap(*mode, thread_mode); return CUDA_SUCCESS; }
