// Modules and kernels. A kernel that comes as PTX is interpreted; one that comes as machine code is not run, and its launch is an
// error that says so.
#pragma once

#include <cuda.h>

#include <memory>

#include "streams.h"

namespace model {

// The work of one launch. Takes a copy of the arguments. An error if the kernel cannot be run.
CUresult make_launch(const CUDA_KERNEL_NODE_PARAMS& params, Work* work);

}  // namespace model
