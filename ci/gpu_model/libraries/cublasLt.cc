// The little of cuBLASLt that XLA asks for: products of float32 matrices without an epilogue.
#include <cstring>

#include "beside.h"

namespace {

constexpr int NOT_SUPPORTED = 15, INVALID_VALUE = 7, EXECUTION_FAILED = 13;

// Descriptions are attributes by number, each as wide as a pointer.
struct Attributes {
  long long of[64] = {};
};
struct Description : Attributes {};
struct Layout : Attributes {};
enum { TYPE, ORDER, ROWS, COLUMNS, LEADING, BATCH, STRIDE };
enum { POINTER_MODE = 2, TRANSPOSE_A, TRANSPOSE_B, TRANSPOSE_C, FILL, EPILOGUE };
constexpr long long NO_EPILOGUE = 1;

int set(Attributes* attributes, int number, const void* value, size_t bytes) {
  if (number < 0 || number >= 64 || bytes > 8) return 0;  // pointers to scales and the like
  attributes->of[number] = 0;
  memcpy(&attributes->of[number], value, bytes);
  return 0;
}
int get(const Attributes* attributes, int number, void* value, size_t bytes, size_t* written) {
  if (number < 0 || number >= 64) return NOT_SUPPORTED;
  memcpy(value, &attributes->of[number], bytes < 8 ? bytes : 8);
  if (written) *written = bytes;
  return 0;
}

struct Heuristic {
  unsigned long long algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

template <class T>
Matrix<T> matrix(T* from, const Layout& layout, bool transposed, long long batch) {
  long long down = layout.of[ORDER] ? layout.of[LEADING] : 1, right = layout.of[ORDER] ? 1 : layout.of[LEADING];
  from += batch * layout.of[STRIDE];
  return transposed ? Matrix<T>{from, right, down} : Matrix<T>{from, down, right};
}

Memory extent(const void* from, const Layout& layout) {
  long long lines = layout.of[ORDER] ? layout.of[ROWS] : layout.of[COLUMNS], within = layout.of[ORDER] ? layout.of[COLUMNS] : layout.of[ROWS];
  return {from, sizeof(float) * static_cast<size_t>((layout.of[BATCH] - 1) * layout.of[STRIDE] + (lines - 1) * layout.of[LEADING] + within)};
}

}  // namespace

EXPORT int cublasLtCreate(void** handle) {
  static int it;
  *handle = &it;
  return 0;
}
EXPORT int cublasLtDestroy(void*) { return 0; }
EXPORT size_t cublasLtGetVersion() { return CUDART * 10; }
EXPORT int cublasLtMatmulDescCreate(Description** d, int, int) {
  *d = new Description;
  (*d)->of[EPILOGUE] = NO_EPILOGUE;
  return 0;
}
EXPORT int cublasLtMatmulDescDestroy(Description* d) {
  delete d;
  return 0;
}
EXPORT int cublasLtMatmulDescSetAttribute(Description* d, int number, const void* value, size_t bytes) { return set(d, number, value, bytes); }
EXPORT int cublasLtMatmulDescGetAttribute(Description* d, int number, void* value, size_t bytes, size_t* written) { return get(d, number, value, bytes, written); }
EXPORT int cublasLtMatrixLayoutCreate(Layout** layout, int type, unsigned long long rows, unsigned long long columns, long long leading) {
  *layout = new Layout;
  auto& of = (*layout)->of;
  of[TYPE] = type;
  of[ROWS] = static_cast<long long>(rows);
  of[COLUMNS] = static_cast<long long>(columns);
  of[LEADING] = leading;
  of[BATCH] = 1;
  return 0;
}
EXPORT int cublasLtMatrixLayoutDestroy(Layout* layout) {
  delete layout;
  return 0;
}
EXPORT int cublasLtMatrixLayoutSetAttribute(Layout* layout, int number, const void* value, size_t bytes) { return set(layout, number, value, bytes); }
EXPORT int cublasLtMatrixLayoutGetAttribute(Layout* layout, int number, void* value, size_t bytes, size_t* written) { return get(layout, number, value, bytes, written); }
EXPORT int cublasLtMatmulPreferenceCreate(Layout** preference) {
  *preference = new Layout;
  return 0;
}
EXPORT int cublasLtMatmulPreferenceDestroy(Layout* preference) {
  delete preference;
  return 0;
}
EXPORT int cublasLtMatmulPreferenceSetAttribute(Layout*, int, const void*, size_t) { return 0; }
EXPORT int cublasLtMatmulAlgoGetHeuristic(void*, Description*, Layout*, Layout*, Layout*, Layout*, Layout*, int wanted, Heuristic* out, int* found) {
  if (wanted < 1) return INVALID_VALUE;
  *out = {};
  out->algorithm[0] = 1;
  out->waves = 1;
  *found = 1;
  return 0;
}
EXPORT int cublasLtMatmulAlgoCheck(void*, Description*, Layout*, Layout*, Layout*, Layout*, const void*, Heuristic* out) {
  *out = {};
  out->waves = 1;
  return 0;
}
EXPORT int cublasLtMatmul(void*, Description* d, const void* alpha, const void* a, Layout* la, const void* b, Layout* lb, const void* beta, const void* c, Layout* lc, void* to, Layout* ld, const void*, void*, size_t,
                          CUstream stream) {
  bool known = !la->of[TYPE] && !lb->of[TYPE] && !lc->of[TYPE] && !ld->of[TYPE] && d->of[EPILOGUE] == NO_EPILOGUE && !d->of[POINTER_MODE];
  if (!known) {
    gpu_model_missing("cuBLASLt: a product of other types than float32, with an epilogue, or with factors on the device");
    return NOT_SUPPORTED;
  }
  float x = *static_cast<const float*>(alpha), y = *static_cast<const float*>(beta);
  bool ta = d->of[TRANSPOSE_A], tb = d->of[TRANSPOSE_B];
  Layout A = *la, B = *lb, C = *lc, D = *ld;
  auto run = [=] {
    for (long long i = 0; i < D.of[BATCH]; i++)
      multiply<float>(D.of[ROWS], D.of[COLUMNS], ta ? A.of[ROWS] : A.of[COLUMNS], x, matrix(static_cast<const float*>(a), A, ta, i), matrix(static_cast<const float*>(b), B, tb, i), y,
                      matrix(static_cast<const float*>(c), C, false, i), matrix(static_cast<float*>(to), D, false, i));
  };
  if (y != 0) return in_turn(stream, "product", {extent(a, A), extent(b, B), extent(c, C)}, {extent(to, D)}, run) ? EXECUTION_FAILED : 0;
  return in_turn(stream, "product", {extent(a, A), extent(b, B)}, {extent(to, D)}, run) ? EXECUTION_FAILED : 0;
}
