// A pool of environments behind a handle, as simulators have them: `send` advances every environment by an action,
// `recv` gives what they look like now. An environment is a counter, so that the right answer can be computed.
// The handle is the pool's address as eight bytes.

#include <cstdint>
#include <cstring>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

struct Pool {
  std::vector<std::int32_t> states;
};

static Pool* PoolOf(const ffi::BufferR1<ffi::U8>& handle) {
  Pool* pool;
  std::memcpy(&pool, handle.typed_data(), sizeof pool);
  return pool;
}

static ffi::Error Send(ffi::BufferR1<ffi::U8> handle, ffi::BufferR1<ffi::S32> actions,
                       ffi::ResultBufferR0<ffi::S32> count) {
  Pool* pool = PoolOf(handle);
  for (std::size_t i = 0; i < pool->states.size(); ++i) pool->states[i] += actions.typed_data()[i];
  *count->typed_data() = static_cast<std::int32_t>(pool->states.size());
  return ffi::Error::Success();
}

static ffi::Error Recv(ffi::BufferR1<ffi::U8> handle, ffi::ResultBufferR2<ffi::F32> observations,
                       ffi::ResultBufferR1<ffi::F32> rewards, ffi::ResultBufferR1<ffi::PRED> done,
                       ffi::ResultBufferR1<ffi::S32> ids) {
  const Pool* pool = PoolOf(handle);
  for (std::size_t i = 0; i < pool->states.size(); ++i) {
    const std::int32_t state = pool->states[i];
    observations->typed_data()[2 * i] = static_cast<float>(state);
    observations->typed_data()[2 * i + 1] = static_cast<float>(i);
    rewards->typed_data()[i] = static_cast<float>(state % 3);
    done->typed_data()[i] = state >= 10;
    ids->typed_data()[i] = static_cast<std::int32_t>(i);
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(pool_send, Send,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR1<ffi::U8>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Ret<ffi::BufferR0<ffi::S32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(pool_recv, Recv,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR1<ffi::U8>>()
                                  .Ret<ffi::BufferR2<ffi::F32>>()
                                  .Ret<ffi::BufferR1<ffi::F32>>()
                                  .Ret<ffi::BufferR1<ffi::PRED>>()
                                  .Ret<ffi::BufferR1<ffi::S32>>());

extern "C" void* pool_new(int size, int first) {
  auto* pool = new Pool;
  for (int i = 0; i < size; ++i) pool->states.push_back(first + i);
  return pool;
}

extern "C" void pool_delete(void* pool) { delete static_cast<Pool*>(pool); }
