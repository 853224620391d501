// The little of the CUDA runtime that XLA asks for, on the model of the driver.
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "beside.h"

namespace {

using Error = int;
constexpr Error INVALID_SYMBOL = 13, INVALID_FUNCTION = 98;

// Kernels that were compiled into the plugin. They are machine code, so they cannot be run: the driver says so.
struct Registered {
  void* binary;
  std::string name;
  CUfunction function = nullptr;
};
std::map<const void*, Registered>& registered() {
  static auto& it = *new std::map<const void*, Registered>;
  return it;
}
std::mutex registered_mutex;

thread_local int device = 0;

void need_context() {
  CUcontext context;
  cuCtxGetCurrent(&context);
  if (context) return;
  cuDevicePrimaryCtxRetain(&context, device);
  cuCtxSetCurrent(context);
}

CUfunction function_of(const void* symbol) {
  std::lock_guard lock(registered_mutex);
  auto at = registered().find(symbol);
  if (at == registered().end()) return nullptr;
  Registered& kernel = at->second;
  if (!kernel.function) {
    CUmodule module;
    cuModuleLoadFatBinary(&module, kernel.binary);
    cuModuleGetFunction(&kernel.function, module, kernel.name.c_str());
  }
  return kernel.function;
}

struct Size {
  unsigned x, y, z;
};

}  // namespace

EXPORT void** __cudaRegisterFatBinary(void* binary) { return new void*(binary); }
EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
EXPORT void __cudaUnregisterFatBinary(void**) {}
EXPORT void __cudaRegisterFunction(void** binary, const char* symbol, char*, const char* name, int, void*, void*, void*, void*, int*) {
  std::lock_guard lock(registered_mutex);
  registered()[symbol] = {*binary, name};
}
EXPORT void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
EXPORT char __cudaInitModule(void**) { return 1; }

EXPORT Error cudaRuntimeGetVersion(int* version) {
  *version = CUDART;
  return 0;
}
EXPORT Error cudaDriverGetVersion(int* version) { return cuDriverGetVersion(version); }
EXPORT Error cudaGetDeviceCount(int* count) { return cuDeviceGetCount(count); }
EXPORT Error cudaGetDevice(int* out) {
  CUcontext context;
  cuCtxGetCurrent(&context);
  *out = device;
  return context ? cuCtxGetDevice(out) : 0;
}
EXPORT Error cudaSetDevice(int wanted) {
  device = wanted;
  CUcontext context;
  if (Error error = cuDevicePrimaryCtxRetain(&context, wanted)) return error;
  return cuCtxSetCurrent(context);
}
EXPORT Error cudaGetLastError() { return 0; }
EXPORT Error cudaPeekAtLastError() { return 0; }
EXPORT const char* cudaGetErrorString(Error error) {
  const char* text;
  cuGetErrorString(static_cast<CUresult>(error), &text);
  return text;
}
EXPORT const char* cudaGetErrorName(Error error) {
  const char* text;
  cuGetErrorName(static_cast<CUresult>(error), &text);
  return text;
}
EXPORT Error cudaDeviceGetAttribute(int* value, int which, int of) { return cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(which), of); }
EXPORT Error cudaMalloc(void** address, size_t bytes) {
  need_context();
  return cuMemAlloc(reinterpret_cast<CUdeviceptr*>(address), bytes);
}
EXPORT Error cudaFree(void* address) {
  need_context();
  return address ? cuMemFree(reinterpret_cast<CUdeviceptr>(address)) : 0;
}
EXPORT Error cudaGetFuncBySymbol(CUfunction* function, const void* symbol) {
  need_context();
  *function = function_of(symbol);
  return *function ? 0 : INVALID_FUNCTION;
}
EXPORT Error cudaGetSymbolAddress(void**, const void*) {
  gpu_model_missing("cudaGetSymbolAddress");
  return INVALID_SYMBOL;
}
EXPORT Error cudaFuncGetAttributes(void* attributes, const void*) {
  memset(attributes, 0, 144);
  return 0;
}
EXPORT Error cudaFuncSetAttribute(const void*, int, int) { return 0; }
EXPORT Error cudaLaunchKernel(const void* symbol, Size grid, Size block, void** arguments, size_t shared, CUstream stream) {
  need_context();
  CUfunction function = function_of(symbol);
  if (!function) return INVALID_FUNCTION;
  return cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, static_cast<unsigned>(shared), stream, arguments, nullptr);
}
EXPORT Error cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, CUstream stream) {
  need_context();
  return cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes, stream);
}
EXPORT Error cudaMemcpy(void* to, const void* from, size_t bytes, int) {
  need_context();
  return cuMemcpy(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes);
}
EXPORT Error cudaMemsetAsync(void* to, int value, size_t bytes, CUstream stream) {
  need_context();
  return cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(to), static_cast<unsigned char>(value), bytes, stream);
}
EXPORT Error cudaLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  need_context();
  return cuLaunchHostFunc(stream, function, data);
}
EXPORT Error cudaStreamSynchronize(CUstream stream) { return cuStreamSynchronize(stream); }
EXPORT Error cudaStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) { return cuStreamIsCapturing(stream, status); }
