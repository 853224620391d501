// The little of cuBLAS that XLA asks for: products of matrices of float32 and float64.
#include <cstddef>

#include "beside.h"

namespace {

constexpr int NOT_SUPPORTED = 15, EXECUTION_FAILED = 13;
enum { R_32F = 0, R_64F = 1 };  // cudaDataType

struct Handle {
  CUstream stream;
  int pointer_mode, math_mode;
};

// Matrices lie column by column; a batch of them `stride` elements apart.
struct Given {
  int transposed;
  const void* from;
  int leading;
  long long stride;
};

template <class T>
int products(Handle* h, int m, int n, int k, const void* alpha, Given a, Given b, const void* beta, Given c, int batch) {
  T x = *static_cast<const T*>(alpha), y = *static_cast<const T*>(beta);
  auto matrix = [](const Given& given, int i) {
    auto* from = static_cast<const T*>(given.from) + i * given.stride;
    return given.transposed ? Matrix<const T>{from, given.leading, 1} : Matrix<const T>{from, 1, given.leading};
  };
  auto extent = [=](const Given& given, int rows, int columns) {
    int last = given.transposed ? rows : columns, within = given.transposed ? columns : rows;
    size_t one = static_cast<size_t>(last - 1) * static_cast<size_t>(given.leading) + static_cast<size_t>(within);
    return Memory{given.from, sizeof(T) * (static_cast<size_t>(batch - 1) * static_cast<size_t>(given.stride) + one)};
  };
  auto run = [=] {
    for (int i = 0; i < batch; i++) {
      auto old = matrix(c, i);
      multiply<T>(m, n, k, x, matrix(a, i), matrix(b, i), y, old, {const_cast<T*>(old.from), old.down, old.right});
    }
  };
  return in_turn(h->stream, "product", {extent(a, m, k), extent(b, k, n)}, {extent(c, m, n)}, run) ? EXECUTION_FAILED : 0;
}

int products(Handle* h, int type, int m, int n, int k, const void* alpha, Given a, Given b, const void* beta, Given c, int batch) {
  if (type == R_32F) return products<float>(h, m, n, k, alpha, a, b, beta, c, batch);
  if (type == R_64F) return products<double>(h, m, n, k, alpha, a, b, beta, c, batch);
  gpu_model_missing("cuBLAS: a product of other types than float32 and float64");
  return NOT_SUPPORTED;
}

}  // namespace

EXPORT int cublasCreate_v2(Handle** h) {
  *h = new Handle{};
  return 0;
}
EXPORT int cublasDestroy_v2(Handle* h) {
  delete h;
  return 0;
}
EXPORT int cublasSetStream_v2(Handle* h, CUstream stream) {
  h->stream = stream;
  return 0;
}
EXPORT int cublasGetStream_v2(Handle* h, CUstream* stream) {
  *stream = h->stream;
  return 0;
}
EXPORT int cublasSetWorkspace_v2(Handle*, void*, size_t) { return 0; }
EXPORT int cublasSetMathMode(Handle* h, int mode) {
  h->math_mode = mode;
  return 0;
}
EXPORT int cublasGetMathMode(Handle* h, int* mode) {
  *mode = h->math_mode;
  return 0;
}
EXPORT int cublasSetPointerMode_v2(Handle* h, int mode) {
  h->pointer_mode = mode;
  return 0;
}
EXPORT int cublasGetPointerMode_v2(Handle* h, int* mode) {
  *mode = h->pointer_mode;
  return 0;
}
EXPORT int cublasSetAtomicsMode(Handle*, int) { return 0; }
EXPORT int cublasGetVersion_v2(Handle*, int* version) {
  *version = CUDART * 10;
  return 0;
}
EXPORT int cublasGetProperty(int part, int* value) {
  const int version[] = {CUDART / 1000, CUDART % 1000 / 10, 0};
  *value = version[part];
  return 0;
}
EXPORT const char* cublasGetStatusString(int) { return "a status of the model of the driver"; }
EXPORT const char* cublasGetStatusName(int) { return "CUBLAS_STATUS"; }

EXPORT int cublasSgemm_v2(Handle* h, int ta, int tb, int m, int n, int k, const float* alpha, const float* a, int lda, const float* b, int ldb, const float* beta, float* c, int ldc) {
  return products(h, R_32F, m, n, k, alpha, {ta, a, lda, 0}, {tb, b, ldb, 0}, beta, {0, c, ldc, 0}, 1);
}
EXPORT int cublasDgemm_v2(Handle* h, int ta, int tb, int m, int n, int k, const double* alpha, const double* a, int lda, const double* b, int ldb, const double* beta, double* c, int ldc) {
  return products(h, R_64F, m, n, k, alpha, {ta, a, lda, 0}, {tb, b, ldb, 0}, beta, {0, c, ldc, 0}, 1);
}
EXPORT int cublasSgemmStridedBatched(Handle* h, int ta, int tb, int m, int n, int k, const float* alpha, const float* a, int lda, long long sa, const float* b, int ldb, long long sb, const float* beta, float* c,
                                     int ldc, long long sc, int batch) {
  return products(h, R_32F, m, n, k, alpha, {ta, a, lda, sa}, {tb, b, ldb, sb}, beta, {0, c, ldc, sc}, batch);
}
EXPORT int cublasGemmStridedBatchedEx(Handle* h, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int at, int lda, long long sa, const void* b, int bt, int ldb, long long sb, const void* beta,
                                      void* c, int ct, int ldc, long long sc, int batch, int, int) {
  return products(h, at == bt && at == ct ? at : -1, m, n, k, alpha, {ta, a, lda, sa}, {tb, b, ldb, sb}, beta, {0, c, ldc, sc}, batch);
}
EXPORT int cublasGemmEx(Handle* h, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int at, int lda, const void* b, int bt, int ldb, const void* beta, void* c, int ct, int ldc, int, int) {
  return products(h, at == bt && at == ct ? at : -1, m, n, k, alpha, {ta, a, lda, 0}, {tb, b, ldb, 0}, beta, {0, c, ldc, 0}, 1);
}
