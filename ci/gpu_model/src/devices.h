// Devices, and the context of each: the thread's current one is where its calls go.
#pragma once

#include <cuda.h>

struct CUstream_st;

// Each device has its primary context and no other.
struct CUctx_st {
  int device = 0;
  int uses = 0;
  CUstream_st* null_stream = nullptr;
};

namespace model {

constexpr int MOST_DEVICES = 16;
int devices();
CUcontext context_of(int device);
CUcontext current_context();  // null: none

}  // namespace model
