#include "race.h"

#include <algorithm>
#include <mutex>

#include "model.h"

namespace model {
namespace {

struct Access {
  uint64_t stream = 0, time = 0;
  std::string kind;
};

// Who last touched a range of memory: the last write, and the reads since.
struct Touched {
  CUdeviceptr to = 0;
  Access write;
  std::map<uint64_t, Access> reads;
};

struct Shadow {
  std::mutex mutex;
  std::map<CUdeviceptr, Touched> ranges;  // by where they begin; they do not overlap
};

Shadow& shadow() {
  static Shadow& it = *new Shadow;
  return it;
}

// Makes a range begin at `address` if one covers it.
void split(std::map<CUdeviceptr, Touched>& ranges, CUdeviceptr address) {
  auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return;
  auto& [from, touched] = *std::prev(after);
  if (from == address || touched.to <= address) return;
  Touched rest = touched;
  touched.to = address;
  ranges.emplace(address, std::move(rest));
}

// Calls `visit` for each known part of a range, after filling its gaps with parts that nothing has touched.
template <class Visit>
void each_part(std::map<CUdeviceptr, Touched>& ranges, Range range, Visit visit) {
  split(ranges, range.from);
  split(ranges, range.to);
  CUdeviceptr at = range.from;
  for (auto part = ranges.lower_bound(range.from); at < range.to; ++part) {
    CUdeviceptr next = part == ranges.end() ? range.to : std::min(part->first, range.to);
    if (at < next) part = ranges.emplace(at, Touched{next, {}, {}}).first;
    visit(part->second);
    at = part->second.to;
  }
}

bool concurrent(const Access& earlier, uint64_t stream, const Clock& known) {
  return earlier.time && earlier.stream != stream && earlier.time > known.at(earlier.stream);
}

void report(const Access& earlier, const std::string& kind, uint64_t stream, Range range) {
  violation("race: '%s' on stream %llu and '%s' on stream %llu use %llx..%llx and nothing puts them in order", earlier.kind.c_str(),
            static_cast<unsigned long long>(earlier.stream), kind.c_str(), static_cast<unsigned long long>(stream), range.from, range.to);
}

struct Edge {
  CUdeviceptr from, to;
  size_t node;
  bool write;
};

}  // namespace

void check_between_streams(const Accesses& accesses, uint64_t stream, uint64_t time, const Clock& known, const std::string& kind) {
  Shadow& s = shadow();
  std::lock_guard lock(s.mutex);
  for (Range range : accesses.reads()) {
    const Access* race = nullptr;
    each_part(s.ranges, range, [&](Touched& part) {
      if (concurrent(part.write, stream, known)) race = &part.write;
      part.reads[stream] = {stream, time, kind};
    });
    if (race) report(*race, kind, stream, range);
  }
  for (Range range : accesses.writes()) {
    Access race;
    each_part(s.ranges, range, [&](Touched& part) {
      if (concurrent(part.write, stream, known)) race = part.write;
      for (auto& [_, read] : part.reads)
        if (concurrent(read, stream, known)) race = read;
      part.write = {stream, time, kind};
      part.reads.clear();
    });
    if (race.time) report(race, kind, stream, range);
  }
}

void forget_accesses(Range range) {
  Shadow& s = shadow();
  std::lock_guard lock(s.mutex);
  split(s.ranges, range.from);
  split(s.ranges, range.to);
  s.ranges.erase(s.ranges.lower_bound(range.from), s.ranges.lower_bound(range.to));
}

void check_within_graph(const std::vector<NodeAccesses>& nodes) {
  // before[n][m]: node m has ended before node n begins, because edges say so.
  std::vector<std::vector<bool>> before(nodes.size(), std::vector<bool>(nodes.size()));
  for (size_t n = 0; n < nodes.size(); n++)
    for (size_t need : nodes[n].needs) {
      before[n][need] = true;
      for (size_t m = 0; m < nodes.size(); m++)
        if (before[need][m]) before[n][m] = true;
    }

  std::vector<Edge> ranges;
  for (size_t n = 0; n < nodes.size(); n++) {
    for (Range range : nodes[n].accesses.reads()) ranges.push_back({range.from, range.to, n, false});
    for (Range range : nodes[n].accesses.writes()) ranges.push_back({range.from, range.to, n, true});
  }
  std::sort(ranges.begin(), ranges.end(), [](auto& a, auto& b) { return a.from < b.from; });
  std::vector<Edge> open;  // those that may reach what comes
  for (auto& range : ranges) {
    std::erase_if(open, [&](auto& other) { return other.to <= range.from; });
    for (auto& other : open) {
      if (other.node == range.node || !(other.write || range.write)) continue;
      if (before[other.node][range.node] || before[range.node][other.node]) continue;
      violation("race: '%s' (node %zu) and '%s' (node %zu) of a graph use %llx and no edge puts them in order", nodes[other.node].kind.c_str(),
                other.node, nodes[range.node].kind.c_str(), range.node, range.from);
      return;  // one is enough
    }
    open.push_back(range);
  }
}

}  // namespace model
