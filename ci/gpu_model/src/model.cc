// The log, the counters, the violations, the faults that a test asks for; and all of that for Python, by ctypes.
#include "model.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <vector>

namespace model {
namespace {

struct Fault {
  std::string function, caller;
  long nth = 0;
  CUresult answer = CUDA_SUCCESS;
};

// Never destroyed: streams run until the process is gone.
struct State {
  std::mutex mutex;
  FILE* log = nullptr;
  std::map<std::string, long> did;
  std::vector<std::string> violations;
  std::map<std::string, long> missing;
  Function* functions = nullptr;
  std::map<std::string, Function*> by_name;
  Fault fault;
  long faults_answered = 0;
  std::string fault_caller;  // the library that the last of these calls came from
  std::mt19937 dice{static_cast<unsigned>(option("GPU_MODEL_SEED", 1))};
};

State& state() {
  static State& it = *new State;
  return it;
}

std::atomic<bool> fault_wanted{false};
std::atomic<int> chosen_order{static_cast<int>(option("GPU_MODEL_ORDER", 1))};
std::atomic<long> chosen_jitter{option("GPU_MODEL_JITTER_US", 0)};
std::atomic<bool> skips{option("GPU_MODEL_SKIP_KERNELS", 0) != 0};
thread_local int depth = 0;             // of calls that the driver makes of itself
thread_local bool in_host_function = false;

FILE* open_as_named(const char* variable) {
  const char* name = getenv(variable);
  if (!name) return nullptr;
  if (!strcmp(name, "-")) return stderr;
  std::string path = name;
  if (auto at = path.find("%p"); at != std::string::npos) path.replace(at, 2, std::to_string(getpid()));
  return fopen(path.c_str(), "a");
}

// Calls, work and violations, a line each: "call NAME N", "did N KIND", "missing N WHAT", "violation TEXT".
std::string report() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  std::string text;
  for (Function* f = s.functions; f; f = f->next)
    if (f->calls) text += std::string("call ") + f->name + " " + std::to_string(f->calls) + "\n";
  for (auto& [kind, times] : s.did) text += "did " + std::to_string(times) + " " + kind + "\n";
  for (auto& [what, times] : s.missing) text += "missing " + std::to_string(times) + " " + what + "\n";
  for (auto& violation : s.violations) text += "violation " + violation + "\n";
  return text;
}

void at_exit() {
  if (FILE* out = open_as_named("GPU_MODEL_REPORT")) {
    fputs(report().c_str(), out);
    fflush(out);
  }
  if (state().violations.empty() || !option("GPU_MODEL_STRICT", 1)) return;
  fprintf(stderr, "gpu-model: %zu violations\n", state().violations.size());
  fflush(nullptr);
  _exit(70);
}

struct Start {
  Start() {
    state().log = open_as_named("GPU_MODEL_LOG");
    atexit(at_exit);
  }
} start;

bool called_from(void* caller, const std::string& library) {
  Dl_info where;
  return library.empty() || (dladdr(caller, &where) && where.dli_fname && strstr(where.dli_fname, library.c_str()));
}

CUresult fault_for(const char* function, void* caller) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  Fault& wanted = s.fault;
  if (wanted.function != function || !called_from(caller, wanted.caller)) return CUDA_SUCCESS;
  if (wanted.nth > 1) {
    wanted.nth--;
    return CUDA_SUCCESS;
  }
  s.faults_answered++;
  Dl_info where;
  s.fault_caller = dladdr(caller, &where) && where.dli_fname ? where.dli_fname : "";
  fprintf(stderr, "gpu-model: a call of %s fails as asked, in %s\n", function, s.fault_caller.c_str());
  if (wanted.nth == 1) fault_wanted = false;  // that one call; 0 is every call
  return wanted.answer;
}

}  // namespace

long option(const char* name, long otherwise) {
  const char* value = getenv(name);
  return value ? atol(value) : otherwise;
}

bool logging() { return state().log; }

void log(const char* format, ...) {
  if (!logging()) return;
  std::lock_guard lock(state().mutex);
  FILE* out = state().log;
  fprintf(out, "[%d] ", gettid());
  va_list rest;
  va_start(rest, format);
  vfprintf(out, format, rest);
  va_end(rest);
  fputc('\n', out);
  fflush(out);
}

void count(const std::string& kind) {
  std::lock_guard lock(state().mutex);
  state().did[kind]++;
}

void violation(const char* format, ...) {
  char text[1024];
  va_list rest;
  va_start(rest, format);
  vsnprintf(text, sizeof text, format, rest);
  va_end(rest);
  log("VIOLATION %s", text);
  std::lock_guard lock(state().mutex);
  auto& all = state().violations;
  if (all.size() < 20) fprintf(stderr, "gpu-model: violation: %s\n", text);
  if (all.size() < 1000) all.push_back(text);
}

void unsupported(const std::string& what) {
  log("not supported: %s", what.c_str());
  std::lock_guard lock(state().mutex);
  if (state().missing[what]++ == 0) fprintf(stderr, "gpu-model: not in the model: %s\n", what.c_str());
}

size_t pick(size_t choices) {
  std::lock_guard lock(state().mutex);
  return state().dice() % choices;
}

Order order() { return static_cast<Order>(chosen_order.load()); }
bool skips_kernels() { return skips; }
long jitter() { return chosen_jitter; }

Function::Function(const char* name) : name(name) {
  std::lock_guard lock(state().mutex);
  next = state().functions;
  state().functions = this;
}

Function& function_named(const char* name) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  Function*& found = state().by_name[name];
  if (!found) found = new Function(strdup(name));
  return *found;
}

CUresult Call::begin(Function& function, void* caller) {
  if (depth++) return CUDA_SUCCESS;
  function.calls++;
  if (logging()) log("%s", function.name);
  if (in_host_function) violation("%s is called by a host function", function.name);
  return fault_wanted ? fault_for(function.name, caller) : CUDA_SUCCESS;
}

void Call::end() { depth--; }

HostFunction::HostFunction() { in_host_function = true; }
HostFunction::~HostFunction() { in_host_function = false; }

}  // namespace model

// ------------------------------------------------------------------------------------------------------------------ for Python
using namespace model;

// What happened so far, as `report` writes it. The text lives until the next call.
EXPORT const char* gpu_model_report() {
  static std::string text;
  text = report();
  return text.c_str();
}

// Forgets the violations: a test has seen what it wanted to see.
EXPORT void gpu_model_forgive() {
  std::lock_guard lock(state().mutex);
  state().violations.clear();
}

// The `nth` next call of a function (0: each one) that is made by code of that library ("": any) answers so.
EXPORT void gpu_model_fail(const char* function, long nth, int answer, const char* caller) {
  std::lock_guard lock(state().mutex);
  state().fault = {function, caller, nth, static_cast<CUresult>(answer)};
  state().faults_answered = 0;
  fault_wanted = *function != 0;
}

// How many calls were answered so.
EXPORT long gpu_model_failed() {
  std::lock_guard lock(state().mutex);
  return state().faults_answered;
}

// The library that made the last one.
EXPORT const char* gpu_model_failed_caller() {
  static std::string text;
  std::lock_guard lock(state().mutex);
  text = state().fault_caller;
  return text.c_str();
}

EXPORT void gpu_model_order(int order, unsigned seed, long jitter_us) {
  std::lock_guard lock(state().mutex);
  chosen_order = order;
  chosen_jitter = jitter_us;
  state().dice.seed(seed);
}

// Kernels that cannot be run are counted and left out, where a test does not ask for what they compute.
EXPORT void gpu_model_skip_kernels(int skip) { skips = skip; }

// For another driver on top of this one: its functions are those that are called.
EXPORT int gpu_model_enter(const char* function, void* caller) { return Call::begin(function_named(function), caller); }
EXPORT void gpu_model_leave() { Call::end(); }

// Functions that the model does not have: generated, they say that they were asked.
EXPORT void gpu_model_missing(const char* name) {
  Call call(function_named(name), __builtin_return_address(0));
  unsupported(name);
}
