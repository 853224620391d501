//! The functions of the runtime.

use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use crate::{Code, ffi};

/// What the runtime of a frame answers when it is asked for the stream.
pub(super) enum Stream {
    Missing,
    Fails(String),
    Is(*mut c_void),
}

/// What `ctx` of a frame points to.
pub(super) struct Context {
    pub(super) stream: Stream,
    pub(super) asked: usize,
    /// By stage and type, with what frees it.
    pub(super) states: HashMap<(c_int, i64), (*mut c_void, Deleter)>,
    /// Device memory that is not freed yet.
    pub(super) allocated: HashMap<usize, Vec<u128>>,
}

type Deleter = unsafe extern "C" fn(*mut c_void);

impl Context {
    pub(super) fn new() -> Self {
        Self { stream: Stream::Missing, asked: 0, states: HashMap::new(), allocated: HashMap::new() }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        for (state, deleter) in self.states.values() {
            // SAFETY: a state that was handed over with this function, and is freed once.
            unsafe { deleter(*state) };
        }
    }
}

/// What an `XLA_FFI_Error` of this runtime points to.
pub(super) struct Error {
    pub(super) code: c_int,
    pub(super) message: CString,
}

fn error(code: Code, message: &str) -> *mut ffi::Error {
    let message = CString::new(message).unwrap_or_default();
    Box::into_raw(Box::new(Error { code: code.as_c(), message })).cast()
}

/// The API table, with the functions that a handler may use.
#[must_use]
pub fn api() -> ffi::Api {
    let mut api = ffi::Api::new();
    api.api_version.minor_version = 5;
    api.error_create = Some(error_create);
    api.error_get_details = Some(error_get_details);
    api.error_destroy = Some(error_destroy);
    api.stream_get = Some(stream_get);
    api.type_register = Some(type_register);
    api.state_set = Some(state_set);
    api.state_get = Some(state_get);
    api.device_memory_allocate = Some(device_memory_allocate);
    api.device_memory_free = Some(device_memory_free);
    api.thread_pool_schedule = Some(thread_pool_schedule);
    api.thread_pool_num_threads = Some(thread_pool_num_threads);
    api.future_create = Some(future_create);
    api.future_set_available = Some(future_set_available);
    api.future_set_error = Some(future_set_error);
    api.run_id_get = Some(run_id_get);
    api.device_ordinal_get = Some(device_ordinal_get);
    api
}

/// The table of all frames: what is registered with a runtime is known by the place of its table.
pub(super) fn shared_api() -> &'static ffi::Api {
    struct Table(ffi::Api);
    // SAFETY: nothing writes to it, and its functions may be called from any thread.
    unsafe impl Send for Table {}
    // SAFETY: as above.
    unsafe impl Sync for Table {}

    static TABLE: OnceLock<Table> = OnceLock::new();
    &TABLE.get_or_init(|| Table(api())).0
}

// Arguments are complete structs, with a context of a frame and objects of this runtime: that is what each function below may take
// for granted. Fields that it writes may be unset, so they are written in place and no reference is made.

unsafe extern "C" fn error_create(args: *mut ffi::ErrorCreateArgs) -> *mut ffi::Error {
    // SAFETY: see above; the message is null-terminated.
    let (message, code) = unsafe { (CStr::from_ptr((*args).message).to_owned(), (*args).code) };
    Box::into_raw(Box::new(Error { code, message })).cast()
}

unsafe extern "C" fn error_get_details(args: *mut ffi::ErrorGetDetailsArgs) {
    // SAFETY: see above.
    let error = unsafe { &*(*args).error.cast::<Error>() };
    // SAFETY: see above.
    unsafe { (*args).message = error.message.as_ptr() };
    // SAFETY: see above.
    if unsafe { (*args).struct_size } >= ffi::ErrorGetDetailsArgs::END + size_of::<c_int>() {
        // SAFETY: the struct has room for what FFI API 0.5 added behind the message.
        unsafe { args.byte_add(ffi::ErrorGetDetailsArgs::END).cast::<c_int>().write(error.code) };
    }
}

unsafe extern "C" fn error_destroy(args: *mut ffi::ErrorDestroyArgs) {
    // SAFETY: see above; the error is not freed yet.
    drop(unsafe { Box::from_raw((*args).error.cast::<Error>()) });
}

unsafe extern "C" fn stream_get(args: *mut ffi::StreamGetArgs) -> *mut ffi::Error {
    // SAFETY: see above.
    let context = unsafe { &mut *(*args).ctx.cast::<Context>() };
    context.asked += 1;
    match &context.stream {
        Stream::Missing => {}
        // SAFETY: see above.
        Stream::Is(stream) => unsafe { (*args).stream = *stream },
        Stream::Fails(message) => return error(Code::FailedPrecondition, message),
    }
    null_mut()
}

/// The types of the process, with what frees their objects: a type's number is its position, counted from 1.
static TYPES: Mutex<Vec<Option<Deleter>>> = Mutex::new(Vec::new());

unsafe extern "C" fn type_register(args: *mut ffi::TypeRegisterArgs) -> *mut ffi::Error {
    // SAFETY: see above.
    let deleter = unsafe { (*(*args).type_info).deleter };
    let mut types = TYPES.lock().unwrap_or_else(PoisonError::into_inner);
    types.push(deleter);
    // SAFETY: see above.
    unsafe { (*(*args).type_id).type_id = super::c_len(types.len()) };
    null_mut()
}

fn deleter_of(type_id: i64) -> Option<Deleter> {
    let types = TYPES.lock().unwrap_or_else(PoisonError::into_inner);
    *types.get(usize::try_from(type_id).ok()?.checked_sub(1)?)?
}

unsafe extern "C" fn state_set(args: *mut ffi::StateSetArgs) -> *mut ffi::Error {
    // SAFETY: see above.
    let context = unsafe { &mut *(*args).ctx.cast::<Context>() };
    // SAFETY: see above.
    let (stage, type_id, object) = unsafe { ((*args).stage, (*(*args).type_id).type_id, (*args).state) };
    let Some(deleter) = deleter_of(type_id) else { return error(Code::InvalidArgument, "no such type") };
    if context.states.keys().any(|&(other, _)| other == stage) {
        return error(Code::FailedPrecondition, "there is a state already");
    }
    context.states.insert((stage, type_id), (object, deleter));
    null_mut()
}

unsafe extern "C" fn state_get(args: *mut ffi::StateGetArgs) -> *mut ffi::Error {
    // SAFETY: see above.
    let context = unsafe { &*(*args).ctx.cast::<Context>() };
    // SAFETY: see above.
    let key = unsafe { ((*args).stage, (*(*args).type_id).type_id) };
    match context.states.get(&key) {
        // SAFETY: see above.
        Some(&(state, _)) => unsafe { (*args).state = state },
        None => return error(Code::NotFound, "State is not set"),
    }
    null_mut()
}

unsafe extern "C" fn device_memory_allocate(args: *mut ffi::DeviceMemoryAllocateArgs) -> *mut ffi::Error {
    // SAFETY: see above.
    let context = unsafe { &mut *(*args).ctx.cast::<Context>() };
    // SAFETY: see above.
    let (size, alignment) = unsafe { ((*args).size, (*args).alignment) };
    if alignment > align_of::<u128>() || size > 1 << 20 {
        return error(Code::ResourceExhausted, "out of device memory");
    }
    let mut memory = vec![0_u128; size.div_ceil(size_of::<u128>()).max(1)];
    let data: *mut c_void = memory.as_mut_ptr().cast();
    context.allocated.insert(data.addr(), memory);
    // SAFETY: see above.
    unsafe { (*args).data = data };
    null_mut()
}

unsafe extern "C" fn device_memory_free(args: *mut ffi::DeviceMemoryFreeArgs) -> *mut ffi::Error {
    // SAFETY: see above.
    let context = unsafe { &mut *(*args).ctx.cast::<Context>() };
    // SAFETY: see above.
    let data = unsafe { (*args).data };
    match context.allocated.remove(&data.addr()) {
        Some(_) => null_mut(),
        None => error(Code::InvalidArgument, "no such memory"),
    }
}

unsafe extern "C" fn thread_pool_schedule(args: *mut ffi::ThreadPoolScheduleArgs) -> *mut ffi::Error {
    struct Data(*mut c_void);
    // SAFETY: a task may run on any thread.
    unsafe impl Send for Data {}

    // SAFETY: see above.
    let (task, data) = unsafe { ((*args).task, Data((*args).data)) };
    let Some(task) = task else { return error(Code::InvalidArgument, "no task") };
    std::thread::spawn(move || {
        let data = data;
        // SAFETY: the task is run once, with its data.
        unsafe { task(data.0) };
    });
    null_mut()
}

unsafe extern "C" fn thread_pool_num_threads(args: *mut ffi::ThreadPoolNumThreadsArgs) -> *mut ffi::Error {
    // SAFETY: see above.
    unsafe { (*args).num_threads.write(4) };
    null_mut()
}

/// What an `XLA_FFI_Future` of this runtime points to: one reference is of who completes it, one of who waits for it.
struct Future {
    /// The error, or null, once it is complete.
    outcome: Mutex<Option<usize>>,
    completed: Condvar,
}

unsafe extern "C" fn future_create(args: *mut ffi::FutureCreateArgs) -> *mut ffi::Error {
    let future = Arc::new(Future { outcome: Mutex::new(None), completed: Condvar::new() });
    // SAFETY: see above.
    unsafe { (*args).future = Arc::into_raw(future.clone()).cast_mut().cast() };
    core::mem::forget(future); // for `wait_for`
    null_mut()
}

/// # Safety
/// The future is of this runtime, and not completed yet.
unsafe fn complete(future: *mut ffi::Future, error: *mut ffi::Error) {
    // SAFETY: made by `future_create`; this is the reference of who completes it.
    let future = unsafe { Arc::from_raw(future.cast::<Future>().cast_const()) };
    *future.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.expose_provenance());
    future.completed.notify_all();
}

unsafe extern "C" fn future_set_available(args: *mut ffi::FutureSetAvailableArgs) -> *mut ffi::Error {
    // SAFETY: see above.
    unsafe { complete((*args).future, null_mut()) };
    null_mut()
}

unsafe extern "C" fn future_set_error(args: *mut ffi::FutureSetErrorArgs) -> *mut ffi::Error {
    // SAFETY: see above.
    unsafe { complete((*args).future, (*args).error) };
    null_mut()
}

/// Waits until a future is completed, and returns the error, or null.
///
/// # Safety
/// It is null, or of this runtime, and was not waited for yet.
pub(super) unsafe fn wait_for(future: *mut ffi::Future) -> *mut ffi::Error {
    if future.is_null() {
        return null_mut();
    }
    // SAFETY: made by `future_create`; this is the reference of who waits.
    let future = unsafe { Arc::from_raw(future.cast::<Future>().cast_const()) };
    let mut outcome = future.outcome.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(error) = *outcome {
            return core::ptr::with_exposed_provenance_mut(error);
        }
        outcome = future.completed.wait(outcome).unwrap_or_else(PoisonError::into_inner);
    }
}

unsafe extern "C" fn run_id_get(args: *mut ffi::RunIdGetArgs) -> *mut ffi::Error {
    // SAFETY: see above.
    unsafe { (*args).run_id = 77 };
    null_mut()
}

unsafe extern "C" fn device_ordinal_get(args: *mut ffi::DeviceOrdinalGetArgs) -> *mut ffi::Error {
    // SAFETY: see above.
    unsafe { (*args).device_ordinal = 3 };
    null_mut()
}
