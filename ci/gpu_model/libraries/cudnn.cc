// cuDNN is there, and can do nothing: XLA wants to know its version.
#include "beside.h"

EXPORT int cudnnCreate(void** handle) {
  static int it;
  *handle = &it;
  return 0;
}
EXPORT int cudnnDestroy(void*) { return 0; }
EXPORT int cudnnSetStream(void*, void*) { return 0; }
EXPORT size_t cudnnGetVersion() { return 91200; }
EXPORT size_t cudnnGetCudartVersion() { return CUDART; }
EXPORT int cudnnGetProperty(int part, int* value) {
  const int version[] = {9, 12, 0};
  *value = version[part];
  return 0;
}
EXPORT const char* cudnnGetErrorString(int) { return "a status of the model of the driver"; }
