// What every part of the model uses: the way into a function of the driver, the log, the counters, the violations, the options.
#pragma once

#include <cuda.h>

#include <atomic>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))
#define DRIVER EXPORT CUresult

namespace model {

// A number from the environment.
long option(const char* name, long otherwise);

// GPU_MODEL_LOG names a file ("-": stderr; "%p" becomes the process id) that gets a line for each call and each piece of work.
bool logging();
void log(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Counts what the device did, by kind: "kernel: fusion_1", "copy to host", "graph", ...
void count(const std::string& kind);

// What no program may do. A process with a violation ends with status 70.
void violation(const char* format, ...) __attribute__((format(printf, 1, 2)));

// What the model cannot do: said once, and counted.
void unsupported(const std::string& what);

// Random numbers: the order of a graph's nodes, and how late work starts. Seeded by GPU_MODEL_SEED.
size_t pick(size_t choices);

// The order in which a graph runs the nodes that are ready.
enum class Order { FIRST = 0, RANDOM = 1, LAST = 2 };
Order order();

// Work on a stream starts late by up to so many microseconds.
long jitter();

// Whether a kernel that cannot be run is left out. Else its launch is an error.
bool skips_kernels();

// One function of the driver, and how often it was called.
struct Function {
  explicit Function(const char* name);
  const char* name;
  std::atomic<long> calls{0};
  Function* next;
};

// The function with that name, for those that are known only at run time.
Function& function_named(const char* name);

// One call of a function of the driver. A call that the driver makes of itself counts as part of the outer one.
class Call {
 public:
  Call(Function& function, void* caller) : fault(begin(function, caller)) {}
  ~Call() { end(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  const CUresult fault;  // what a test wants this call to answer

  static CUresult begin(Function& function, void* caller);
  static void end();
};

// While it lives, this thread runs a host function, which may not call the driver.
class HostFunction {
 public:
  HostFunction();
  ~HostFunction();
};

}  // namespace model

// The first line of each function of the driver.
#define ENTER()                                                  \
  static ::model::Function function_{__func__};                  \
  ::model::Call call_{function_, __builtin_return_address(0)};   \
  if (call_.fault) return call_.fault
