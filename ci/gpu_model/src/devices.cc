// Devices and contexts, and what a device says about itself: an H100, as far as XLA asks.
#include "devices.h"

#include <cstdio>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include <dlfcn.h>

#include "memory.h"
#include "model.h"

#undef cuDeviceTotalMem

namespace model {
namespace {

thread_local std::vector<CUcontext> current;

const char* error_name(CUresult error) {
  switch (error) {
    case CUDA_SUCCESS: return "CUDA_SUCCESS";
    case CUDA_ERROR_INVALID_VALUE: return "CUDA_ERROR_INVALID_VALUE";
    case CUDA_ERROR_OUT_OF_MEMORY: return "CUDA_ERROR_OUT_OF_MEMORY";
    case CUDA_ERROR_NOT_INITIALIZED: return "CUDA_ERROR_NOT_INITIALIZED";
    case CUDA_ERROR_INVALID_DEVICE: return "CUDA_ERROR_INVALID_DEVICE";
    case CUDA_ERROR_INVALID_CONTEXT: return "CUDA_ERROR_INVALID_CONTEXT";
    case CUDA_ERROR_INVALID_HANDLE: return "CUDA_ERROR_INVALID_HANDLE";
    case CUDA_ERROR_ILLEGAL_STATE: return "CUDA_ERROR_ILLEGAL_STATE";
    case CUDA_ERROR_NOT_FOUND: return "CUDA_ERROR_NOT_FOUND";
    case CUDA_ERROR_NOT_READY: return "CUDA_ERROR_NOT_READY";
    case CUDA_ERROR_NOT_SUPPORTED: return "CUDA_ERROR_NOT_SUPPORTED";
    case CUDA_ERROR_LAUNCH_FAILED: return "CUDA_ERROR_LAUNCH_FAILED";
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: return "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: return "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
    case CUDA_ERROR_STREAM_CAPTURE_MERGE: return "CUDA_ERROR_STREAM_CAPTURE_MERGE";
    case CUDA_ERROR_STREAM_CAPTURE_UNJOINED: return "CUDA_ERROR_STREAM_CAPTURE_UNJOINED";
    case CUDA_ERROR_STREAM_CAPTURE_ISOLATION: return "CUDA_ERROR_STREAM_CAPTURE_ISOLATION";
    case CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE: return "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE";
    default: return "CUDA_ERROR_UNKNOWN";
  }
}

int attribute(CUdevice_attribute which, int device) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return 0;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 49152;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return 232448;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return 233472;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return 65536;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return 65536;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1980000;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return 2619000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return 5120;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 132;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return 2048;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return 32;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return 52428800;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 3;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return device + 1;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: return 1;
    default: return 0;  // what XLA would use if it were there
  }
}

CUresult uuid(CUuuid* out, CUdevice device) {
  memset(out, 0, sizeof *out);
  out->bytes[0] = 0x4d;
  out->bytes[15] = static_cast<char>(device);
  return CUDA_SUCCESS;
}

}  // namespace

int devices() {
  static int count = static_cast<int>(option("GPU_MODEL_DEVICES", 1));
  return count;
}

CUcontext context_of(int device) {
  static CUctx_st* contexts = [] {
    auto* made = new CUctx_st[MOST_DEVICES];
    for (int i = 0; i < MOST_DEVICES; i++) made[i].device = i;
    return made;
  }();
  return &contexts[device];
}

CUcontext current_context() { return current.empty() ? nullptr : current.back(); }

}  // namespace model

using namespace model;

DRIVER cuInit(unsigned) { ENTER(); return CUDA_SUCCESS; }
DRIVER cuDriverGetVersion(int* version) { ENTER(); *version = static_cast<int>(option("GPU_MODEL_VERSION", 12090)); return CUDA_SUCCESS; }
DRIVER cuGetExportTable(const void** table, const CUuuid*) { ENTER(); *table = nullptr; return CUDA_ERROR_NOT_FOUND; }
DRIVER cuGetErrorName(CUresult error, const char** text) { *text = error_name(error); return CUDA_SUCCESS; }
DRIVER cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS ? "no error" : error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "an error of the model of the driver";
  return CUDA_SUCCESS;
}

// The newest form of a function that the model has.
DRIVER cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t, CUdriverProcAddressQueryResult* status) {
  ENTER();
  static void* self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  *function = dlsym(self, (std::string(name) + "_v2").c_str());
  if (!*function) *function = dlsym(self, name);
  log("  %s -> %p", name, *function);
  if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
#undef cuGetProcAddress
DRIVER cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

DRIVER cuDeviceGetCount(int* count) { ENTER(); *count = devices(); return CUDA_SUCCESS; }
DRIVER cuDeviceGet(CUdevice* device, int index) {
  ENTER();
  if (index < 0 || index >= devices()) return CUDA_ERROR_INVALID_DEVICE;
  *device = index;
  return CUDA_SUCCESS;
}
DRIVER cuDeviceGetName(char* name, int bytes, CUdevice) { ENTER(); snprintf(name, bytes, "Model of a GPU"); return CUDA_SUCCESS; }
DRIVER cuDeviceGetUuid(CUuuid* out, CUdevice device) { ENTER(); return uuid(out, device); }
DRIVER cuDeviceGetUuid_v2(CUuuid* out, CUdevice device) { ENTER(); return uuid(out, device); }
DRIVER cuDeviceTotalMem_v2(size_t* bytes, CUdevice) { ENTER(); *bytes = device_memory(); return CUDA_SUCCESS; }
DRIVER cuDeviceComputeCapability(int* major, int* minor, CUdevice) { ENTER(); *major = 9; *minor = 0; return CUDA_SUCCESS; }
DRIVER cuDeviceGetPCIBusId(char* text, int bytes, CUdevice device) { ENTER(); snprintf(text, bytes, "0000:%02x:00.0", device + 1); return CUDA_SUCCESS; }
DRIVER cuDeviceCanAccessPeer(int* can, CUdevice, CUdevice) { ENTER(); *can = 1; return CUDA_SUCCESS; }
DRIVER cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute, CUdevice, CUdevice) { ENTER(); *value = 0; return CUDA_SUCCESS; }
DRIVER cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) { ENTER(); *value = attribute(which, device); return CUDA_SUCCESS; }
DRIVER cuDeviceGraphMemTrim(CUdevice) { ENTER(); return CUDA_SUCCESS; }

DRIVER cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  ENTER();
  if (device < 0 || device >= devices()) return CUDA_ERROR_INVALID_DEVICE;
  *context = context_of(device);
  (*context)->uses++;
  return CUDA_SUCCESS;
}
DRIVER cuDevicePrimaryCtxRelease_v2(CUdevice device) { ENTER(); context_of(device)->uses--; return CUDA_SUCCESS; }
DRIVER cuDevicePrimaryCtxSetFlags_v2(CUdevice, unsigned) { ENTER(); return CUDA_SUCCESS; }
DRIVER cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  ENTER();
  *flags = 0;
  *active = context_of(device)->uses > 0;
  return CUDA_SUCCESS;
}

DRIVER cuCtxGetCurrent(CUcontext* context) { ENTER(); *context = current_context(); return CUDA_SUCCESS; }
DRIVER cuCtxSetCurrent(CUcontext context) {
  ENTER();
  if (!current.empty()) current.pop_back();
  if (context) current.push_back(context);
  return CUDA_SUCCESS;
}
DRIVER cuCtxPushCurrent_v2(CUcontext context) {
  ENTER();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  current.push_back(context);
  return CUDA_SUCCESS;
}
DRIVER cuCtxPopCurrent_v2(CUcontext* context) {
  ENTER();
  if (current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) *context = current.back();
  current.pop_back();
  return CUDA_SUCCESS;
}
DRIVER cuCtxGetDevice(CUdevice* device) {
  ENTER();
  if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current_context()->device;
  return CUDA_SUCCESS;
}
DRIVER cuCtxGetApiVersion(CUcontext, unsigned* version) { ENTER(); *version = 12090; return CUDA_SUCCESS; }
DRIVER cuCtxGetId(CUcontext context, unsigned long long* id) {
  ENTER();
  if (!context) context = current_context();
  *id = context ? context->device + 1 : 0;
  return CUDA_SUCCESS;
}
DRIVER cuCtxGetStreamPriorityRange(int* least, int* most) { ENTER(); *least = 0; *most = -5; return CUDA_SUCCESS; }
DRIVER cuCtxEnablePeerAccess(CUcontext, unsigned) { ENTER(); return CUDA_SUCCESS; }
DRIVER cuCtxDisablePeerAccess(CUcontext) { ENTER(); return CUDA_SUCCESS; }
DRIVER cuCtxGetSharedMemConfig(CUsharedconfig* config) { ENTER(); *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE; return CUDA_SUCCESS; }
DRIVER cuCtxSetLimit(CUlimit, size_t) { ENTER(); return CUDA_SUCCESS; }
DRIVER cuCtxGetLimit(size_t* value, CUlimit) { ENTER(); *value = 1024; return CUDA_SUCCESS; }
