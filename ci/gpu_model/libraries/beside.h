// What the libraries beside the driver have in common.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" void gpu_model_missing(const char* name);
extern "C" int gpu_model_enter(const char* function, void* caller);
extern "C" void gpu_model_leave();
extern "C" int gpu_model_enqueue(CUstream, const char* kind, void (*run)(void*), void (*destroy)(void*), void* data, const CUdeviceptr* reads,
                                 const CUdeviceptr* writes, const size_t* counts);

// Which piece of work runs in this thread, and which node of a graph.
extern "C" void gpu_model_turn(uint64_t* work, uint64_t* node);

struct Memory {
  const void* from;
  size_t bytes;
};

// Computes in the stream's turn, and says what memory that reads and writes. Returns the driver's error.
inline int in_turn(CUstream stream, const char* kind, const std::vector<Memory>& reads, const std::vector<Memory>& writes, std::function<void()> run) {
  auto flat = [](const std::vector<Memory>& all) {
    std::vector<CUdeviceptr> pairs;
    for (Memory each : all) pairs.insert(pairs.end(), {reinterpret_cast<CUdeviceptr>(each.from), each.bytes});
    return pairs;
  };
  auto r = flat(reads), w = flat(writes);
  size_t counts[] = {reads.size(), writes.size()};
  using Run = std::function<void()>;
  return gpu_model_enqueue(
      stream, kind, [](void* data) { (*static_cast<Run*>(data))(); }, [](void* data) { delete static_cast<Run*>(data); }, new Run(std::move(run)), r.data(), w.data(), counts);
}

// A matrix in memory: its element (i, j) is at `from[i * down + j * right]`.
template <class T>
struct Matrix {
  T* from;
  long long down, right;
  T& at(long long i, long long j) const { return from[i * down + j * right]; }
};

// to = alpha * a * b + beta * c, of m by k and k by n.
template <class T>
void multiply(long long m, long long n, long long k, T alpha, Matrix<const T> a, Matrix<const T> b, T beta, Matrix<const T> c, Matrix<T> to) {
  std::vector<T> left(static_cast<size_t>(m * k)), sum(static_cast<size_t>(m));
  for (long long l = 0; l < k; l++)
    for (long long i = 0; i < m; i++) left[static_cast<size_t>(l * m + i)] = a.at(i, l);
  for (long long j = 0; j < n; j++) {
    std::fill(sum.begin(), sum.end(), T(0));
    for (long long l = 0; l < k; l++) {
      const T factor = b.at(l, j);
      const T* column = &left[static_cast<size_t>(l * m)];
      for (long long i = 0; i < m; i++) sum[static_cast<size_t>(i)] += column[i] * factor;
    }
    for (long long i = 0; i < m; i++) to.at(i, j) = alpha * sum[static_cast<size_t>(i)] + (beta == T(0) ? T(0) : beta * c.at(i, j));
  }
}
