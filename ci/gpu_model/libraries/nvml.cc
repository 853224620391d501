// The little of NVML that XLA asks for.
#include <cstdio>

#include "beside.h"

static void* handle_of(unsigned long index) { return reinterpret_cast<void*>(index + 1); }

EXPORT int nvmlInit() { return 0; }
EXPORT int nvmlInit_v2() { return 0; }
EXPORT int nvmlInitWithFlags(unsigned) { return 0; }
EXPORT int nvmlShutdown() { return 0; }
EXPORT const char* nvmlErrorString(int error) { return error ? "not in the model of the driver" : "success"; }
EXPORT int nvmlSystemGetDriverVersion(char* text, unsigned bytes) {
  snprintf(text, bytes, "580.65.06");
  return 0;
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int* version) { return cuDriverGetVersion(version); }
EXPORT int nvmlDeviceGetCount_v2(unsigned* count) { return cuDeviceGetCount(reinterpret_cast<int*>(count)); }
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = handle_of(index);
  return 0;
}
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
  unsigned domain, number = 1;
  sscanf(bus, "%x:%x", &domain, &number);
  *device = handle_of(number - 1);
  return 0;
}
