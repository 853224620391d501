// Device memory is host memory. Every allocation is known by its address, also after it was freed: addresses are not used twice.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace model {

struct Block {
  CUdeviceptr from = 0;
  size_t bytes = 0;
  int device = 0;
  bool host = false;  // pinned memory of the host
  bool freed = false;
  CUdeviceptr end() const { return from + bytes; }
};

// The memory that an address belongs to, freed or not. None: memory of the process that the driver does not know.
std::optional<Block> block_at(CUdeviceptr address);

// Allocates on the current context's device, or pinned.
CUresult allocate(CUdeviceptr* address, size_t bytes, bool host);
CUresult release(CUdeviceptr address);
size_t device_memory();  // how much a device has: GPU_MODEL_MEMORY_MIB

// Writes `count` values of `width` bytes each.
void fill(CUdeviceptr to, unsigned value, unsigned width, size_t count);

struct Range {
  CUdeviceptr from, to;
};

// What a piece of work read and wrote.
class Accesses {
 public:
  void read(CUdeviceptr from, size_t bytes) { reads_.push_back({from, from + bytes}); }
  void write(CUdeviceptr from, size_t bytes) { writes_.push_back({from, from + bytes}); }
  void add(const Accesses& other);
  const std::vector<Range>& reads() const { return reads_; }
  const std::vector<Range>& writes() const { return writes_; }
  // Sorts and merges the ranges, leaves out what no block of the driver holds, and reports the use of freed memory.
  void settle(const std::string& by);

 private:
  std::vector<Range> reads_, writes_;
};

}  // namespace model
