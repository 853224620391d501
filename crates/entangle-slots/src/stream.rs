//! What an access enqueues on the stream of its call.
//!
//! Nothing here waits for a GPU. A call enqueues, on the stream that it was given: asynchronous copies of
//! its operands to the host, a host function that accesses the slot, and an asynchronous copy of the
//! result back. So an access happens when the stream gets there, and the log, which is made under the
//! same lock as the access, holds what really ran in the order in which it ran. All of it can be
//! recorded into a CUDA or HIP graph, and then happens whenever the graph is launched.

use core::ffi::c_void;
use core::mem::offset_of;
use core::ptr::NonNull;
use std::sync::PoisonError;

use crate::slots::{self, Mutex, MutexGuard, Op};

/// What a platform's driver does on one stream. The host is a stream that does everything at once.
///
/// # Safety
/// The operations of a stream run in the order in which they were enqueued, each after the one before it is
/// done; so do the launches of a graph into which they were recorded. Memory of [`Stream::allocate`] is aligned for
/// any number and never freed. What is not an `Err` was enqueued.
pub unsafe trait Stream {
    /// The staging memory of the platform.
    fn pool() -> &'static Pool
    where
        Self: Sized;

    /// Host memory that the device can copy to and from asynchronously.
    ///
    /// # Errors
    /// What the driver says.
    fn allocate(&self, bytes: usize) -> Result<NonNull<c_void>, String>;

    /// Enqueues a copy from device memory to the host.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// Both have that many bytes until the copy is done; `to` is memory of [`Stream::allocate`].
    unsafe fn copy_to_host(&self, to: NonNull<c_void>, from: *const c_void, bytes: usize) -> Result<(), String>;

    /// Enqueues a copy from the host to device memory.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// Both have that many bytes until the copy is done; `from` is memory of [`Stream::allocate`].
    unsafe fn copy_to_device(&self, to: *mut c_void, from: NonNull<c_void>, bytes: usize) -> Result<(), String>;

    /// Enqueues a call of a function on the host. The function makes no call of the driver.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The function may be called with `data`, on any thread, as often as the stream or a graph runs it.
    unsafe fn call(&self, function: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> Result<(), String>;

    /// Whether what is enqueued is recorded into a graph instead of run.
    ///
    /// # Errors
    /// What the driver says.
    fn is_captured(&self) -> Result<bool, String>;
}

/// The part of a call that the device copies to and from.
#[repr(C)]
pub(crate) struct Staging {
    token: i32,
    value: f32,
}

/// Staging memory of one driver that no call is using.
pub struct Pool {
    free: Mutex<Vec<Address>>,
}

/// Where a [`Staging`] is.
struct Address(NonNull<Staging>);

// SAFETY: no call uses an address that is in a pool, and each is handed to one call at a time.
unsafe impl Send for Address {}

impl Pool {
    /// Calls for which memory is allocated at once: drivers give out whole pages.
    const AT_ONCE: usize = 512;

    /// A pool that allocates when it is first used.
    #[must_use]
    #[cfg(not(all(test, loom)))]
    pub const fn new() -> Self {
        Self { free: Mutex::new(Vec::new()) }
    }

    /// The same with a lock that is watched, which cannot be made before the program runs.
    #[cfg(all(test, loom))]
    pub fn new() -> Self {
        Self { free: Mutex::new(Vec::new()) }
    }

    pub(crate) fn take(&self, stream: &dyn Stream) -> Result<NonNull<Staging>, String> {
        if let Some(Address(staging)) = self.free().pop() {
            return Ok(staging);
        }
        // The lock is not held here: the driver may wait for work of the device before it allocates, and `release`,
        // which is such work, needs the lock. Threads that get here together allocate more than they need.
        let first = stream.allocate(Self::AT_ONCE * size_of::<Staging>())?.cast::<Staging>();
        // SAFETY: the memory has room for that many.
        self.free().extend((1..Self::AT_ONCE).map(|i| Address(unsafe { first.add(i) })));
        Ok(first)
    }

    pub(crate) fn give_back(&self, staging: NonNull<Staging>) {
        self.free().push(Address(staging));
    }

    fn free(&self) -> MutexGuard<'_, Vec<Address>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

/// One call on its way through a stream.
struct Call {
    op: Op,
    label: Option<String>,
    staging: NonNull<Staging>,
    pool: &'static Pool,
}

/// Enqueues a read of the slot whose number is at `token`; its value, a `float32`, goes to `result`.
///
/// # Errors
/// What the driver says. Then `result` is not written.
///
/// # Safety
/// `token` and `result` are device addresses of 4 bytes, valid until the stream has passed this call.
pub(crate) unsafe fn read(
    stream: &dyn Stream,
    pool: &'static Pool,
    token: *const c_void,
    result: *mut c_void,
    label: Option<&str>,
) -> Result<(), String> {
    // SAFETY: the caller's contract.
    unsafe { enqueue(stream, pool, Op::Read, token, None, result, label) }
}

/// Enqueues a write of `value`, a `float32`, to the slot whose number is at `token`; that number goes to `result`.
///
/// # Errors
/// What the driver says. Then `result` is not written.
///
/// # Safety
/// `token`, `value` and `result` are device addresses of 4 bytes, valid until the stream has passed this call.
pub(crate) unsafe fn write(
    stream: &dyn Stream,
    pool: &'static Pool,
    token: *const c_void,
    value: *const c_void,
    result: *mut c_void,
    label: Option<&str>,
) -> Result<(), String> {
    // SAFETY: the caller's contract.
    unsafe { enqueue(stream, pool, Op::Write, token, Some(value), result, label) }
}

/// # Safety
/// As for [`read`] and [`write`].
unsafe fn enqueue(
    stream: &dyn Stream,
    pool: &'static Pool,
    op: Op,
    token: *const c_void,
    value: Option<*const c_void>,
    result: *mut c_void,
    label: Option<&str>,
) -> Result<(), String> {
    let captured = stream.is_captured()?;
    let staging = pool.take(stream)?;
    // It may be unset yet, so there are addresses here and in `access`, and no references.
    // SAFETY: memory of the pool holds a whole `Staging`.
    let staged_token = unsafe { staging.byte_add(offset_of!(Staging, token)) }.cast();
    // SAFETY: as above.
    let staged_value = unsafe { staging.byte_add(offset_of!(Staging, value)) }.cast();
    // After an error below this is never freed: what was enqueued before still uses it.
    let call: *mut Call = Box::into_raw(Box::new(Call { op, label: label.map(Into::into), staging, pool }));

    // SAFETY: 4 bytes here and, says the caller, there; both stay.
    unsafe { stream.copy_to_host(staged_token, token, 4) }?;
    if let Some(value) = value {
        // SAFETY: as above.
        unsafe { stream.copy_to_host(staged_value, value, 4) }?;
    }
    // SAFETY: `access` takes a call; it stays until `release`, which the stream runs later, or forever.
    unsafe { stream.call(access, call.cast()) }?;
    let answer = if op == Op::Read { staged_value } else { staged_token };
    // SAFETY: as for the copies above.
    unsafe { stream.copy_to_device(result, answer, 4) }?;
    if captured {
        // The graph may be launched at any time, as often as its owner likes, and nothing says when it is gone: each
        // recording keeps its `Call` and its `Staging` for good, and a runtime may record a call many times.
        return Ok(());
    }
    // SAFETY: `release` takes a call, and the stream runs it once, after all other uses.
    unsafe { stream.call(release, call.cast()) }
}

/// Accesses the slot: called by the driver where the call stands in its stream.
///
/// # Safety
/// `call` is a [`Call`] whose token and value have been copied to the host, and which nothing else uses meanwhile.
unsafe extern "C" fn access(call: *mut c_void) {
    // SAFETY: the caller's contract.
    let call = unsafe { &*call.cast::<Call>() };
    let (staging, label) = (call.staging.as_ptr(), call.label.as_deref());
    // SAFETY: the copy to it is done, and the copy from it has not begun.
    let token = unsafe { (&raw const (*staging).token).read() };
    match call.op {
        // SAFETY: as above.
        Op::Read => unsafe { (&raw mut (*staging).value).write(slots::read(token, label)) },
        // SAFETY: as above; a write copies its value too.
        Op::Write => slots::write(token, unsafe { (&raw const (*staging).value).read() }, label),
    }
}

/// Frees what a call used.
///
/// # Safety
/// `call` is a [`Call`] that is used no more.
unsafe extern "C" fn release(call: *mut c_void) {
    // SAFETY: the caller's contract; `enqueue` made it from a box.
    let call = unsafe { Box::from_raw(call.cast::<Call>()) };
    call.pool.give_back(call.staging);
}

#[cfg(all(test, not(loom)))]
mod tests;
