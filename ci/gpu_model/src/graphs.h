// A graph is a set of nodes and edges. A launch runs the nodes one by one, in an order that the edges allow: a random one, unless
// GPU_MODEL_ORDER says otherwise. A missing edge thus shows in a few launches.
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "modules.h"
#include "streams.h"

struct CUgraphNode_st {
  CUgraph owner = nullptr;
  std::vector<CUgraphNode> needs;
  model::Work work;
  // A node of that type has:
  CUgraph child = nullptr;
  CUDA_KERNEL_NODE_PARAMS kernel{};
  CUgraphConditionalHandle condition = 0;
  CUgraphConditionalNodeType condition_type{};
  std::vector<CUgraph> bodies;
};

struct CUgraph_st {
  std::vector<CUgraphNode> nodes;  // each after those that it needs
  bool destroyed = false;
};

struct CUgraphExec_st {
  std::mutex mutex;
  CUgraph graph = nullptr;
  std::unordered_map<CUgraphNode, CUgraphNode> copy_of;  // of the nodes of the graph that it was made from
  bool destroyed = false;
};

namespace model {

CUgraph copy_graph(const CUgraph_st& graph, std::unordered_map<CUgraphNode, CUgraphNode>* copy_of = nullptr);
// A copy for one launch, which goes with it.
std::shared_ptr<CUgraph_st> snapshot(const CUgraph_st& graph);
CUresult add_node(CUgraph graph, std::vector<CUgraphNode> needs, Work work, CUgraphNode* out);
void run_graph(const CUgraph_st& graph, Accesses& all);

// A kernel sets the condition of a node.
void set_condition(CUgraphConditionalHandle handle, unsigned value);

// ---- capture.cc
CUresult record(CUstream stream, const Work& work);
CUresult join_capture(CUstream stream, CUgraph graph, const std::vector<CUgraphNode>& tails);

}  // namespace model
