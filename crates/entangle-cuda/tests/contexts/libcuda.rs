//! What the slots use of CUDA's driver, as strict about contexts as CUDA may be: the stream at an address belongs to the context
//! at that address, and nothing is enqueued on it with another one current. What is enqueued is done at once.
#![allow(unsafe_op_in_unsafe_fn, reason = "all of it is called as CUDA's driver is, by a test")]

use std::alloc::{Layout, alloc};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::{copy, null_mut};

type Pointer = *mut c_void;

const SUCCESS: c_int = 0;
const INVALID_CONTEXT: c_int = 201;

thread_local!(static CONTEXTS: RefCell<Vec<Pointer>> = const { RefCell::new(Vec::new()) });

fn current() -> Pointer {
    CONTEXTS.with_borrow(|contexts| contexts.last().copied().unwrap_or(null_mut()))
}

fn on(stream: Pointer, work: impl FnOnce()) -> c_int {
    if stream != current() {
        return INVALID_CONTEXT;
    }
    work();
    SUCCESS
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) $body:block)*) => {
        $(#[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int $body)*
    };
}

functions! {
    cuStreamGetCtx(stream: Pointer, context: *mut Pointer) {
        *context = stream;
        SUCCESS
    }
    cuCtxGetCurrent(context: *mut Pointer) {
        *context = current();
        SUCCESS
    }
    cuCtxSetCurrent(context: Pointer) {
        CONTEXTS.with_borrow_mut(|contexts| {
            contexts.pop();
            contexts.extend((!context.is_null()).then_some(context));
        });
        SUCCESS
    }
    cuCtxPushCurrent_v2(context: Pointer) {
        CONTEXTS.with_borrow_mut(|contexts| contexts.push(context));
        SUCCESS
    }
    cuCtxPopCurrent_v2(context: *mut Pointer) {
        match CONTEXTS.with_borrow_mut(Vec::pop) {
            Some(popped) => { *context = popped; SUCCESS }
            None => INVALID_CONTEXT,
        }
    }
    cuThreadExchangeStreamCaptureMode(_mode: *mut c_uint) { SUCCESS }
    cuStreamIsCapturing(stream: Pointer, status: *mut c_uint) { on(stream, || *status = 0) }
    cuMemHostAlloc(memory: *mut Pointer, bytes: usize, _flags: c_uint) {
        if current().is_null() {
            return INVALID_CONTEXT;
        }
        *memory = alloc(Layout::from_size_align(bytes, 4096).unwrap()).cast();
        SUCCESS
    }
    cuMemcpyDtoHAsync_v2(to: Pointer, from: Pointer, bytes: usize, stream: Pointer) {
        on(stream, || copy(from.cast::<u8>(), to.cast(), bytes))
    }
    cuMemcpyHtoDAsync_v2(to: Pointer, from: Pointer, bytes: usize, stream: Pointer) {
        on(stream, || copy(from.cast::<u8>(), to.cast(), bytes))
    }
    cuLaunchHostFunc(stream: Pointer, function: unsafe extern "C" fn(Pointer), data: Pointer) {
        on(stream, || function(data))
    }
    cuGetErrorName(_error: c_int, text: *mut *const c_char) {
        *text = c"CUDA_ERROR_INVALID_CONTEXT".as_ptr();
        SUCCESS
    }
    cuGetErrorString(_error: c_int, text: *mut *const c_char) {
        *text = c"invalid device context".as_ptr();
        SUCCESS
    }
}
