// Two accesses to the same memory, one of them a write, must be put in order by the program: by a stream, by an event, by the host
// that waits for one before it enqueues the other, or by the edges of a graph. If nothing does, that is a race, also where this
// run went well.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "memory.h"

namespace model {

// How far in each stream something has waited: vector clocks, one number a stream.
class Clock {
 public:
  uint64_t at(uint64_t stream) const { return stream < times_.size() ? times_[stream] : 0; }
  void set(uint64_t stream, uint64_t time) {
    if (stream >= times_.size()) times_.resize(stream + 1);
    times_[stream] = time;
  }
  void join(const Clock& other) {
    for (uint64_t stream = 0; stream < other.times_.size(); stream++)
      if (other.times_[stream] > at(stream)) set(stream, other.times_[stream]);
  }

 private:
  std::vector<uint64_t> times_;
};

// Work number `time` of a stream touched memory, after all that `known` says.
void check_between_streams(const Accesses& accesses, uint64_t stream, uint64_t time, const Clock& known, const std::string& kind);

// The nodes of a graph: what each touched, and the earlier nodes (by number) that it needs.
struct NodeAccesses {
  std::string kind;
  Accesses accesses;
  std::vector<size_t> needs;
};
void check_within_graph(const std::vector<NodeAccesses>& nodes);

// What was there is freed: a new owner of the memory has nothing to wait for.
void forget_accesses(Range range);

}  // namespace model
