// Allocation, virtual memory, pointers; copies and fills.
#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

#include "devices.h"
#include "model.h"
#include "race.h"
#include "streams.h"

namespace model {
namespace {

constexpr size_t PAGE = 4096;
size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

struct Memory {
  std::mutex mutex;
  std::map<CUdeviceptr, Block> blocks;
  size_t used[MOST_DEVICES] = {};
};

Memory& memory() {
  static Memory& it = *new Memory;
  return it;
}

void settle_one(std::vector<Range>& ranges, const char* verb, const std::string& by) {
  std::sort(ranges.begin(), ranges.end(), [](auto& a, auto& b) { return a.from < b.from; });
  std::vector<Range> merged;
  for (auto& range : ranges) {
    if (range.from == range.to) continue;
    if (!merged.empty() && range.from <= merged.back().to)
      merged.back().to = std::max(merged.back().to, range.to);
    else
      merged.push_back(range);
  }
  ranges.clear();
  for (auto& range : merged) {
    auto block = block_at(range.from);
    if (!block) continue;  // pageable memory: the process looks after it itself
    if (block->freed) violation("%s %s memory that was freed (%llx)", by.c_str(), verb, range.from);
    ranges.push_back(range);
  }
}

}  // namespace

size_t device_memory() {
  static size_t bytes = static_cast<size_t>(option("GPU_MODEL_MEMORY_MIB", 8192)) << 20;
  return bytes;
}

std::optional<Block> block_at(CUdeviceptr address) {
  Memory& m = memory();
  std::lock_guard lock(m.mutex);
  auto after = m.blocks.upper_bound(address);
  if (after == m.blocks.begin()) return {};
  const Block& block = std::prev(after)->second;
  if (address >= block.end()) return {};
  return block;
}

CUresult allocate(CUdeviceptr* address, size_t bytes, bool host) {
  CUcontext context = current_context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  Memory& m = memory();
  std::lock_guard lock(m.mutex);
  size_t& used = m.used[context->device];
  if (!host && used + bytes > device_memory()) return CUDA_ERROR_OUT_OF_MEMORY;
  void* at = mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(at);
  m.blocks[*address] = {*address, bytes, context->device, host};
  if (!host) used += bytes;
  log("  %zu bytes at %llx", bytes, *address);
  return CUDA_SUCCESS;
}

CUresult release(CUdeviceptr address) {
  if (!address) return CUDA_SUCCESS;
  Memory& m = memory();
  {
    std::lock_guard lock(m.mutex);
    auto at = m.blocks.find(address);
    if (at != m.blocks.end() && !at->second.freed) {
      Block& block = at->second;
      if (!block.host) m.used[block.device] -= block.bytes;
      block.freed = true;
      // The address stays taken, so that a later use is seen; what was there is gone.
      madvise(reinterpret_cast<void*>(address), whole_pages(block.bytes), MADV_DONTNEED);
      forget_accesses({block.from, block.end()});
      return CUDA_SUCCESS;
    }
  }
  violation("free of %llx, which is not allocated", address);
  return CUDA_ERROR_INVALID_VALUE;
}

void Accesses::add(const Accesses& other) {
  reads_.insert(reads_.end(), other.reads_.begin(), other.reads_.end());
  writes_.insert(writes_.end(), other.writes_.begin(), other.writes_.end());
}

void Accesses::settle(const std::string& by) {
  settle_one(reads_, "reads", by);
  settle_one(writes_, "writes", by);
}

namespace {

CUresult pointer_attribute(void* out, CUpointer_attribute which, CUdeviceptr address) {
  auto block = block_at(address);
  if (!block || block->freed) return CUDA_ERROR_INVALID_VALUE;
  switch (which) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *static_cast<unsigned*>(out) = block->host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_CONTEXT: *static_cast<CUcontext*>(out) = context_of(block->device); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(out) = block->device; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: *static_cast<CUdeviceptr*>(out) = address; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *static_cast<CUdeviceptr*>(out) = block->from; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<size_t*>(out) = block->bytes; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<unsigned*>(out) = 0; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

size_t attribute_bytes(CUpointer_attribute which) {
  bool small = which == CU_POINTER_ATTRIBUTE_MEMORY_TYPE || which == CU_POINTER_ATTRIBUTE_IS_MANAGED || which == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
  return small ? 4 : 8;
}

bool is_pageable(CUdeviceptr address) { return !block_at(address); }

// As the driver does: memory that is not pinned is read before the call returns, or written before it returns.
CUresult copy(const char* kind, CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  std::vector<char> staged;
  bool captured = is_captured(stream);
  bool stage = !captured && is_pageable(from);
  if (stage) staged.assign(reinterpret_cast<char*>(from), reinterpret_cast<char*>(from) + bytes);
  Work work{kind, CU_GRAPH_NODE_TYPE_MEMCPY, [=](Accesses& accesses) {
              accesses.read(from, bytes);
              accesses.write(to, bytes);
              memmove(reinterpret_cast<void*>(to), stage ? staged.data() : reinterpret_cast<const char*>(from), bytes);
            }};
  if (CUresult error = enqueue(stream, work)) return error;
  if (!captured && is_pageable(to)) wait_for(stream);
  return CUDA_SUCCESS;
}

CUresult copy_and_wait(const char* function, const char* kind, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  if (CUresult error = forbidden_in_capture(function)) return error;
  if (CUresult error = copy(kind, nullptr, to, from, bytes)) return error;
  return wait_for(nullptr);
}

CUresult set(CUstream stream, CUdeviceptr to, unsigned value, unsigned width, size_t count) {
  return enqueue(stream, {"set", CU_GRAPH_NODE_TYPE_MEMSET, [=](Accesses& accesses) {
                            accesses.write(to, width * count);
                            fill(to, value, width, count);
                          }});
}

CUresult set_and_wait(CUdeviceptr to, unsigned value, unsigned width, size_t count) {
  if (CUresult error = set(nullptr, to, value, width, count)) return error;
  return wait_for(nullptr);
}

// Virtual memory: a handle is a file in memory, which is mapped where it is wanted.
struct Physical {
  int file;
  int device;
};
struct Virtual {
  std::mutex mutex;
  std::map<CUmemGenericAllocationHandle, Physical> handles;
  std::map<CUdeviceptr, CUmemGenericAllocationHandle> mapped;
  CUmemGenericAllocationHandle next = 1;
};
Virtual& virtual_memory() {
  static Virtual& it = *new Virtual;
  return it;
}

}  // namespace

void fill(CUdeviceptr to, unsigned value, unsigned width, size_t count) {
  if (width == 1) memset(reinterpret_cast<void*>(to), static_cast<int>(value), count);
  if (width == 2) std::fill_n(reinterpret_cast<uint16_t*>(to), count, static_cast<uint16_t>(value));
  if (width == 4) std::fill_n(reinterpret_cast<uint32_t*>(to), count, value);
}

}  // namespace model

using namespace model;

// ---------------------------------------------------------------------------------------------------------- allocation
DRIVER cuMemGetInfo_v2(size_t* free, size_t* total) {
  ENTER();
  if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
  *total = device_memory();
  *free = device_memory() - memory().used[current_context()->device];
  return CUDA_SUCCESS;
}
DRIVER cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  ENTER();
  if (CUresult error = forbidden_in_capture(__func__)) return error;
  return allocate(address, bytes, false);
}
DRIVER cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned) { ENTER(); return allocate(address, bytes, false); }
DRIVER cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream) { ENTER(); return allocate(address, bytes, false); }
DRIVER cuMemFree_v2(CUdeviceptr address) {
  ENTER();
  if (CUresult error = forbidden_in_capture(__func__)) return error;
  if (current_context()) wait_for_all(current_context());  // the driver waits for what runs on the device
  return release(address);
}
DRIVER cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  ENTER();
  return enqueue(stream, {"free", CU_GRAPH_NODE_TYPE_MEM_FREE, [=](Accesses&) { release(address); }});
}
DRIVER cuMemAllocHost_v2(void** address, size_t bytes) {
  ENTER();
  if (CUresult error = forbidden_in_capture(__func__)) return error;
  return allocate(reinterpret_cast<CUdeviceptr*>(address), bytes, true);
}
DRIVER cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  ENTER();
  if (CUresult error = forbidden_in_capture(__func__)) return error;
  return allocate(reinterpret_cast<CUdeviceptr*>(address), bytes, true);
}
DRIVER cuMemFreeHost(void* address) {
  ENTER();
  return release(reinterpret_cast<CUdeviceptr>(address));
}
DRIVER cuMemHostRegister_v2(void*, size_t, unsigned) { ENTER(); return CUDA_SUCCESS; }
DRIVER cuMemHostUnregister(void*) { ENTER(); return CUDA_SUCCESS; }
DRIVER cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* host, unsigned) {
  ENTER();
  *device = reinterpret_cast<CUdeviceptr>(host);
  return CUDA_SUCCESS;
}

// ------------------------------------------------------------------------------------------------------------ pointers
DRIVER cuMemGetAddressRange_v2(CUdeviceptr* from, size_t* bytes, CUdeviceptr address) {
  ENTER();
  auto block = block_at(address);
  if (!block || block->freed) return CUDA_ERROR_NOT_FOUND;
  if (from) *from = block->from;
  if (bytes) *bytes = block->bytes;
  return CUDA_SUCCESS;
}
DRIVER cuPointerGetAttribute(void* out, CUpointer_attribute which, CUdeviceptr address) { ENTER(); return pointer_attribute(out, which, address); }
DRIVER cuPointerGetAttributes(unsigned count, CUpointer_attribute* which, void** out, CUdeviceptr address) {
  ENTER();
  for (unsigned i = 0; i < count; i++)
    if (pointer_attribute(out[i], which[i], address)) memset(out[i], 0, attribute_bytes(which[i]));
  return CUDA_SUCCESS;
}

// ------------------------------------------------------------------------------------------------------ virtual memory
DRIVER cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  ENTER();
  *bytes = 2 << 20;
  return CUDA_SUCCESS;
}
DRIVER cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  ENTER();
  void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(at);
  return CUDA_SUCCESS;
}
DRIVER cuMemAddressFree(CUdeviceptr, size_t) { ENTER(); return CUDA_SUCCESS; }  // addresses are not used twice
DRIVER cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* what, unsigned long long) {
  ENTER();
  int file = memfd_create("gpu-model", 0);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
  Virtual& v = virtual_memory();
  std::lock_guard lock(v.mutex);
  *handle = v.next++;
  v.handles[*handle] = {file, what->location.id};
  return CUDA_SUCCESS;
}
DRIVER cuMemRelease(CUmemGenericAllocationHandle handle) {
  ENTER();
  Virtual& v = virtual_memory();
  std::lock_guard lock(v.mutex);
  auto at = v.handles.find(handle);
  if (at == v.handles.end()) return CUDA_ERROR_INVALID_VALUE;
  close(at->second.file);
  v.handles.erase(at);
  return CUDA_SUCCESS;
}
DRIVER cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long) {
  ENTER();
  Virtual& v = virtual_memory();
  std::lock_guard lock(v.mutex);
  auto at = v.handles.find(handle);
  if (at == v.handles.end()) return CUDA_ERROR_INVALID_VALUE;
  void* mapped = mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, at->second.file, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return CUDA_ERROR_INVALID_VALUE;
  v.mapped[address] = handle;
  std::lock_guard blocks_lock(memory().mutex);
  memory().blocks[address] = {address, bytes, at->second.device};
  return CUDA_SUCCESS;
}
DRIVER cuMemUnmap(CUdeviceptr address, size_t bytes) {
  ENTER();
  mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  Virtual& v = virtual_memory();
  std::lock_guard lock(v.mutex);
  v.mapped.erase(address);
  std::lock_guard blocks_lock(memory().mutex);
  memory().blocks[address].freed = true;
  forget_accesses({address, address + bytes});
  return CUDA_SUCCESS;
}
DRIVER cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { ENTER(); return CUDA_SUCCESS; }
DRIVER cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  ENTER();
  Virtual& v = virtual_memory();
  std::lock_guard lock(v.mutex);
  auto after = v.mapped.upper_bound(reinterpret_cast<CUdeviceptr>(address));
  if (after == v.mapped.begin()) return CUDA_ERROR_INVALID_VALUE;
  *handle = std::prev(after)->second;
  return CUDA_SUCCESS;
}

// ---------------------------------------------------------------------------------------------------- copies and fills
static CUdeviceptr address(const void* host) { return reinterpret_cast<CUdeviceptr>(host); }

DRIVER cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) { ENTER(); return copy("copy to device", stream, to, address(from), bytes); }
DRIVER cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) { ENTER(); return copy("copy to host", stream, address(to), from, bytes); }
DRIVER cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) { ENTER(); return copy("copy on device", stream, to, from, bytes); }
DRIVER cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) { ENTER(); return copy("copy", stream, to, from, bytes); }
DRIVER cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes, CUstream stream) { ENTER(); return copy("copy between devices", stream, to, from, bytes); }
DRIVER cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) { ENTER(); return copy_and_wait(__func__, "copy to device", to, address(from), bytes); }
DRIVER cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) { ENTER(); return copy_and_wait(__func__, "copy to host", address(to), from, bytes); }
DRIVER cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) { ENTER(); return copy_and_wait(__func__, "copy on device", to, from, bytes); }
DRIVER cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) { ENTER(); return copy_and_wait(__func__, "copy", to, from, bytes); }
DRIVER cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) { ENTER(); return set(stream, to, value, 1, count); }
DRIVER cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) { ENTER(); return set(stream, to, value, 2, count); }
DRIVER cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) { ENTER(); return set(stream, to, value, 4, count); }
DRIVER cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) { ENTER(); return set_and_wait(to, value, 1, count); }
DRIVER cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) { ENTER(); return set_and_wait(to, value, 4, count); }
