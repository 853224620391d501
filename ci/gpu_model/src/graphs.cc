// Graphs: their nodes, their launches, and the updates of those that are instantiated.
#include "graphs.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <set>

#include "model.h"

using namespace model;

namespace {

struct Conditions {
  std::mutex mutex;
  std::unordered_map<CUgraphConditionalHandle, unsigned> values;
};
Conditions& conditions() {
  static Conditions& it = *new Conditions;
  return it;
}

unsigned condition(CUgraphConditionalHandle handle) {
  std::lock_guard lock(conditions().mutex);
  return conditions().values[handle];
}

size_t choose(size_t ready) {
  switch (order()) {
    case Order::FIRST: return 0;
    case Order::LAST: return ready - 1;
    default: return pick(ready);
  }
}

void run_conditional(const CUgraphNode_st& node, Accesses& accesses) {
  auto body = [&](size_t index) {
    if (index < node.bodies.size()) run_graph(*node.bodies[index], accesses);
  };
  switch (node.condition_type) {
    case CU_GRAPH_COND_TYPE_WHILE:
      while (condition(node.condition)) body(0);
      break;
    case CU_GRAPH_COND_TYPE_IF: body(condition(node.condition) ? 0 : 1); break;
    default: body(condition(node.condition)); break;
  }
}

Accesses run_node(const CUgraphNode_st& node) {
  Accesses accesses;
  if (node.work.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    run_conditional(node, accesses);
  } else if (node.child) {
    run_graph(*node.child, accesses);
  } else if (node.work.run) {
    log("  node: %s", node.work.kind.c_str());
    count(node.work.kind);
    node.work.run(accesses);
  }
  accesses.settle(node.work.kind);
  return accesses;
}

// Work of nodes that are described, not captured.
Work copy_work(const CUDA_MEMCPY3D& what) {
  return {"copy", CU_GRAPH_NODE_TYPE_MEMCPY, [what](Accesses& accesses) {
            auto base = [](CUmemorytype type, CUdeviceptr device, const void* host) { return type == CU_MEMORYTYPE_HOST ? reinterpret_cast<CUdeviceptr>(host) : device; };
            CUdeviceptr to = base(what.dstMemoryType, what.dstDevice, what.dstHost), from = base(what.srcMemoryType, what.srcDevice, what.srcHost);
            for (size_t z = 0; z < std::max<size_t>(1, what.Depth); z++)
              for (size_t y = 0; y < std::max<size_t>(1, what.Height); y++) {
                CUdeviceptr row_to = to + what.dstXInBytes + (what.dstY + y + (what.dstZ + z) * what.dstHeight) * what.dstPitch;
                CUdeviceptr row_from = from + what.srcXInBytes + (what.srcY + y + (what.srcZ + z) * what.srcHeight) * what.srcPitch;
                accesses.read(row_from, what.WidthInBytes);
                accesses.write(row_to, what.WidthInBytes);
                memmove(reinterpret_cast<void*>(row_to), reinterpret_cast<void*>(row_from), what.WidthInBytes);
              }
          }};
}
Work set_work(const CUDA_MEMSET_NODE_PARAMS& what) {
  return {"set", CU_GRAPH_NODE_TYPE_MEMSET, [what](Accesses& accesses) {
            for (size_t y = 0; y < std::max<size_t>(1, what.height); y++) {
              accesses.write(what.dst + y * what.pitch, what.elementSize * what.width);
              fill(what.dst + y * what.pitch, what.value, what.elementSize, what.width);
            }
          }};
}
Work host_work(CUhostFn function, void* data) {
  return {"host function", CU_GRAPH_NODE_TYPE_HOST, [=](Accesses&) { call_host(function, data); }};
}

CUresult check_graph(CUgraph graph, const char* function) {
  if (!graph->destroyed) return CUDA_SUCCESS;
  violation("%s with a graph that was destroyed", function);
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult child_work(CUgraph child, Work* work) {
  if (child->nodes.empty()) violation("a child graph is empty");
  *work = {"child graph", CU_GRAPH_NODE_TYPE_GRAPH, nullptr, [child](CUgraphNode node) { node->child = child; }};
  return CUDA_SUCCESS;
}

CUDA_KERNEL_NODE_PARAMS older(const CUDA_KERNEL_NODE_PARAMS_v3& from) {
  CUDA_KERNEL_NODE_PARAMS to{};
  to.func = from.func ? from.func : reinterpret_cast<CUfunction>(from.kern);
  to.gridDimX = from.gridDimX, to.gridDimY = from.gridDimY, to.gridDimZ = from.gridDimZ;
  to.blockDimX = from.blockDimX, to.blockDimY = from.blockDimY, to.blockDimZ = from.blockDimZ;
  to.sharedMemBytes = from.sharedMemBytes;
  to.kernelParams = from.kernelParams;
  to.extra = from.extra;
  return to;
}

// An array that the driver owns and the caller reads.
CUgraph* for_the_caller(const std::vector<CUgraph>& graphs) {
  auto* array = new CUgraph[graphs.size()];
  std::copy(graphs.begin(), graphs.end(), array);
  return array;
}

CUresult conditional_work(CUDA_CONDITIONAL_NODE_PARAMS& params, Work* work) {
  std::vector<CUgraph> bodies;
  for (unsigned i = 0; i < params.size; i++) bodies.push_back(new CUgraph_st);
  params.phGraph_out = for_the_caller(bodies);
  auto handle = params.handle;
  auto type = params.type;
  *work = {"conditional", CU_GRAPH_NODE_TYPE_CONDITIONAL, nullptr, [=](CUgraphNode node) {
             node->condition = handle;
             node->condition_type = type;
             node->bodies = bodies;
           }};
  return CUDA_SUCCESS;
}

CUresult work_of(CUgraphNodeParams* params, Work* work) {
  switch (params->type) {
    case CU_GRAPH_NODE_TYPE_EMPTY: *work = {"empty", CU_GRAPH_NODE_TYPE_EMPTY, nullptr}; return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_KERNEL: return make_launch(older(params->kernel), work);
    case CU_GRAPH_NODE_TYPE_MEMCPY: *work = copy_work(params->memcpy.copyParams); return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto& m = params->memset;
      *work = set_work({m.dst, m.pitch, m.value, m.elementSize, m.width, m.height});
      return CUDA_SUCCESS;
    }
    case CU_GRAPH_NODE_TYPE_HOST: *work = host_work(params->host.fn, params->host.userData); return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return conditional_work(params->conditional, work);
    case CU_GRAPH_NODE_TYPE_GRAPH: {
      bool moved = params->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
      return child_work(moved ? params->graph.graph : copy_graph(*params->graph.graph), work);
    }
    default: unsupported("a graph node of type " + std::to_string(params->type)); return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult add_any(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, size_t count, CUgraphNodeParams* params) {
  Work work;
  if (CUresult error = work_of(params, &work)) return error;
  return add_node(graph, {needs, needs + count}, work, out);
}

// Gives a node of an instantiated graph other work of its type.
CUresult update(CUgraphExec exec, CUgraphNode original, const Work& work) {
  std::lock_guard lock(exec->mutex);
  auto at = exec->copy_of.find(original);
  if (at == exec->copy_of.end() || at->second->work.type != work.type) {
    violation("an update of a node (%s) that the instantiated graph does not have", work.kind.c_str());
    return CUDA_ERROR_INVALID_VALUE;
  }
  at->second->work = work;
  if (work.describe) work.describe(at->second);
  return CUDA_SUCCESS;
}

bool same_shape(const CUgraph_st& a, const CUgraph_st& b) {
  if (a.nodes.size() != b.nodes.size()) return false;
  std::map<CUgraphNode, size_t> at_a, at_b;
  for (size_t i = 0; i < a.nodes.size(); i++) at_a[a.nodes[i]] = at_b[b.nodes[i]] = i;
  for (size_t i = 0; i < a.nodes.size(); i++) {
    const auto &x = *a.nodes[i], &y = *b.nodes[i];
    if (x.work.type != y.work.type || x.needs.size() != y.needs.size()) return false;
    for (size_t j = 0; j < x.needs.size(); j++)
      if (at_a[x.needs[j]] != at_b[y.needs[j]]) return false;
  }
  return true;
}

CUresult update_child(CUgraphExec exec, CUgraphNode original, CUgraph child) {
  std::lock_guard lock(exec->mutex);
  auto at = exec->copy_of.find(original);
  if (at == exec->copy_of.end() || !at->second->child) {
    violation("an update of a child graph that the instantiated graph does not have");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!same_shape(*at->second->child, *child)) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  at->second->child = copy_graph(*child);
  return CUDA_SUCCESS;
}

void log_nodes(const CUgraph_st& graph, const std::string& indent) {
  if (!logging()) return;
  std::map<CUgraphNode, size_t> number;
  for (CUgraphNode node : graph.nodes) {
    std::string needs;
    for (CUgraphNode need : node->needs) needs += " " + std::to_string(number[need]);
    log("%snode %zu: %s%s%s", indent.c_str(), number.size(), node->work.kind.c_str(), needs.empty() ? "" : " after", needs.c_str());
    number.emplace(node, number.size());
    if (node->child) log_nodes(*node->child, indent + "  ");
    for (CUgraph body : node->bodies) log_nodes(*body, indent + "  ");
  }
}

// Gives the caller as many as it has room for, and says how many there are.
template <class Wanted>
CUresult list(const std::vector<CUgraphNode>& nodes, CUgraphNode* out, size_t* count, Wanted wanted) {
  size_t found = 0;
  for (CUgraphNode node : nodes) {
    if (!wanted(node)) continue;
    if (out && found < *count) out[found] = node;
    found++;
  }
  *count = found;
  return CUDA_SUCCESS;
}
bool any(CUgraphNode) { return true; }

}  // namespace

namespace model {

CUgraph copy_graph(const CUgraph_st& graph, std::unordered_map<CUgraphNode, CUgraphNode>* copy_of) {
  auto* copy = new CUgraph_st;
  std::unordered_map<CUgraphNode, CUgraphNode> here;
  for (CUgraphNode node : graph.nodes) {
    auto* twin = new CUgraphNode_st(*node);
    twin->owner = copy;
    for (CUgraphNode& need : twin->needs) need = here.at(need);
    if (twin->child) twin->child = copy_graph(*twin->child, copy_of);
    for (CUgraph& body : twin->bodies) body = copy_graph(*body, copy_of);
    here[node] = twin;
    copy->nodes.push_back(twin);
  }
  if (copy_of) copy_of->insert(here.begin(), here.end());
  return copy;
}

static void free_graph(CUgraph graph) {
  for (CUgraphNode node : graph->nodes) {
    if (node->child) free_graph(node->child);
    for (CUgraph body : node->bodies) free_graph(body);
    delete node;
  }
  delete graph;
}

std::shared_ptr<CUgraph_st> snapshot(const CUgraph_st& graph) { return {copy_graph(graph), free_graph}; }

CUresult add_node(CUgraph graph, std::vector<CUgraphNode> needs, Work work, CUgraphNode* out) {
  if (CUresult error = check_graph(graph, "a node is added")) return error;
  for (CUgraphNode need : needs)
    if (need->owner != graph) {
      violation("a node is to come after a node of another graph");
      return CUDA_ERROR_INVALID_VALUE;
    }
  auto* node = new CUgraphNode_st;
  node->owner = graph;
  node->needs = std::move(needs);
  if (work.describe) work.describe(node);
  node->work = std::move(work);
  graph->nodes.push_back(node);
  *out = node;
  return CUDA_SUCCESS;
}

void run_graph(const CUgraph_st& graph, Accesses& all) {
  std::map<CUgraphNode, size_t> number;
  for (size_t i = 0; i < graph.nodes.size(); i++) number[graph.nodes[i]] = i;
  std::vector<NodeAccesses> nodes(graph.nodes.size());
  std::vector<std::vector<size_t>> then(graph.nodes.size());
  std::vector<size_t> waits_for(graph.nodes.size()), ready;
  for (size_t i = 0; i < graph.nodes.size(); i++) {
    std::set<size_t> needs;
    for (CUgraphNode need : graph.nodes[i]->needs) needs.insert(number.at(need));
    for (size_t need : needs) then[need].push_back(i);
    waits_for[i] = needs.size();
    if (needs.empty()) ready.push_back(i);
    nodes[i] = {graph.nodes[i]->work.kind, {}, {needs.begin(), needs.end()}};
  }
  while (!ready.empty()) {
    size_t at = choose(ready.size()), now = ready[at];
    ready.erase(ready.begin() + static_cast<long>(at));
    uint64_t outer = turn().node;
    turn().node = outer * (graph.nodes.size() + 1) + now + 1;
    nodes[now].accesses = run_node(*graph.nodes[now]);
    turn().node = outer;
    all.add(nodes[now].accesses);
    for (size_t next : then[now])
      if (--waits_for[next] == 0) ready.push_back(next);
  }
  check_within_graph(nodes);
}

void remember(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS& params) { node->kernel = params; }

void set_condition(CUgraphConditionalHandle handle, unsigned value) {
  std::lock_guard lock(conditions().mutex);
  conditions().values[handle] = value;
}

}  // namespace model

// --------------------------------------------------------------------------------------------------- graphs and nodes
// Graphs and nodes are never freed, so that the use of one that was destroyed is seen.
DRIVER cuGraphCreate(CUgraph* graph, unsigned) { ENTER(); *graph = new CUgraph_st; return CUDA_SUCCESS; }
DRIVER cuGraphDestroy(CUgraph graph) { ENTER(); graph->destroyed = true; return CUDA_SUCCESS; }
DRIVER cuGraphClone(CUgraph* out, CUgraph graph) { ENTER(); *out = copy_graph(*graph); return CUDA_SUCCESS; }
DRIVER cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, size_t count) {
  ENTER();
  return add_node(graph, {needs, needs + count}, {"empty", CU_GRAPH_NODE_TYPE_EMPTY, nullptr}, out);
}
DRIVER cuGraphAddKernelNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, size_t count, const CUDA_KERNEL_NODE_PARAMS* params) {
  ENTER();
  Work work;
  if (CUresult error = make_launch(*params, &work)) return error;
  return add_node(graph, {needs, needs + count}, work, out);
}
DRIVER cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, size_t count, const CUDA_MEMCPY3D* what, CUcontext) {
  ENTER();
  return add_node(graph, {needs, needs + count}, copy_work(*what), out);
}
DRIVER cuGraphAddMemsetNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, size_t count, const CUDA_MEMSET_NODE_PARAMS* what, CUcontext) {
  ENTER();
  return add_node(graph, {needs, needs + count}, set_work(*what), out);
}
DRIVER cuGraphAddHostNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, size_t count, const CUDA_HOST_NODE_PARAMS* what) {
  ENTER();
  return add_node(graph, {needs, needs + count}, host_work(what->fn, what->userData), out);
}
DRIVER cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, size_t count, CUgraph child) {
  ENTER();
  Work work;
  if (CUresult error = child_work(copy_graph(*child), &work)) return error;
  return add_node(graph, {needs, needs + count}, work, out);
}
DRIVER cuGraphAddNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, size_t count, CUgraphNodeParams* params) {
  ENTER();
  return add_any(out, graph, needs, count, params);
}
DRIVER cuGraphAddNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, const CUgraphEdgeData*, size_t count, CUgraphNodeParams* params) {
  ENTER();
  return add_any(out, graph, needs, count, params);
}
DRIVER cuGraphConditionalHandleCreate(CUgraphConditionalHandle* handle, CUgraph, CUcontext, unsigned value, unsigned) {
  ENTER();
  static std::atomic<unsigned long long> next{1};
  *handle = next++;
  set_condition(*handle, value);
  return CUDA_SUCCESS;
}
DRIVER cuGraphGetRootNodes(CUgraph graph, CUgraphNode* out, size_t* count) {
  ENTER();
  return list(graph->nodes, out, count, [](CUgraphNode node) { return node->needs.empty(); });
}
DRIVER cuGraphGetNodes(CUgraph graph, CUgraphNode* out, size_t* count) { ENTER(); return list(graph->nodes, out, count, any); }
DRIVER cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* out, size_t* count) { ENTER(); return list(node->needs, out, count, any); }
DRIVER cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) { ENTER(); *type = node->work.type; return CUDA_SUCCESS; }
DRIVER cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) { ENTER(); *graph = node->child; return CUDA_SUCCESS; }
DRIVER cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) { ENTER(); *params = node->kernel; return CUDA_SUCCESS; }
DRIVER cuGraphKernelNodeSetAttribute(CUgraphNode, CUkernelNodeAttrID, const CUkernelNodeAttrValue*) { ENTER(); return CUDA_SUCCESS; }
DRIVER cuGraphDebugDotPrint(CUgraph, const char*, unsigned) { ENTER(); return CUDA_SUCCESS; }

// ----------------------------------------------------------------------------------------------------- instantiated
DRIVER cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long) {
  ENTER();
  if (CUresult error = check_graph(graph, __func__)) return error;
  *exec = new CUgraphExec_st;
  (*exec)->graph = copy_graph(*graph, &(*exec)->copy_of);
  log_nodes(*graph, "  ");
  return CUDA_SUCCESS;
}
DRIVER cuGraphExecDestroy(CUgraphExec exec) { ENTER(); exec->destroyed = true; return CUDA_SUCCESS; }
DRIVER cuGraphUpload(CUgraphExec, CUstream) { ENTER(); return CUDA_SUCCESS; }
DRIVER cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  ENTER();
  if (exec->destroyed) {
    violation("a launch of an instantiated graph that was destroyed");
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<CUgraph_st> now;  // later updates are for later launches
  {
    std::lock_guard lock(exec->mutex);
    now = snapshot(*exec->graph);
  }
  return enqueue(stream, {"graph", CU_GRAPH_NODE_TYPE_GRAPH, [=](Accesses& accesses) { run_graph(*now, accesses); }});
}
DRIVER cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  ENTER();
  Work work;
  if (CUresult error = make_launch(*params, &work)) return error;
  return update(exec, node, work);
}
DRIVER cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* what, CUcontext) { ENTER(); return update(exec, node, copy_work(*what)); }
DRIVER cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* what, CUcontext) { ENTER(); return update(exec, node, set_work(*what)); }
DRIVER cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) { ENTER(); return update_child(exec, node, child); }
DRIVER cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* params) {
  ENTER();
  if (params->type == CU_GRAPH_NODE_TYPE_GRAPH) return update_child(exec, node, params->graph.graph);
  Work work;
  if (params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    unsupported("an update of a conditional node");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (CUresult error = work_of(params, &work)) return error;
  return update(exec, node, work);
}
DRIVER cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* result) {
  ENTER();
  if (CUresult error = check_graph(graph, __func__)) return error;
  std::lock_guard lock(exec->mutex);
  bool same = same_shape(*exec->graph, *graph);
  if (result) result->result = same ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  if (!same) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  exec->copy_of.clear();
  exec->graph = copy_graph(*graph, &exec->copy_of);
  return CUDA_SUCCESS;
}
