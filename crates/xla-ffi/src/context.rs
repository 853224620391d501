//! What the runtime has for a call, beside its operands, results and attributes.

use core::ffi::c_void;
use core::marker::PhantomData;
use core::ptr::NonNull;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::boundary::panic_text;
use crate::call::{Call, function};
use crate::error::{Code, Error};
use crate::ffi;
use crate::handler::{Parameter, Parameters};

/// The stream on which the call runs, of the platform's own type (`CUstream`, `hipStream_t`). There is none on the host.
#[derive(Clone, Copy, Debug)]
pub struct Stream<'a>(NonNull<c_void>, PhantomData<&'a ffi::CallFrame>);

impl Stream<'_> {
    /// Its address. The stream lives at least until the handler returns.
    #[must_use]
    pub fn as_ptr(self) -> *mut c_void {
        self.0.as_ptr()
    }
}

impl<'a> Parameter<'a> for Stream<'a> {
    fn take(parameters: &mut Parameters<'a>, _: &'static str) -> Result<Self, Error> {
        parameters.call().stream().map(|stream| Self(stream, PhantomData))
    }
}

/// The device on which the call runs, counted as the runtime counts its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceOrdinal(pub i32);

impl<'a> Parameter<'a> for DeviceOrdinal {
    fn take(parameters: &mut Parameters<'a>, _: &'static str) -> Result<Self, Error> {
        let call = parameters.call();
        let mut args = ffi::DeviceOrdinalGetArgs::new();
        args.ctx = call.context();
        let get = function!(call, device_ordinal_get, "XLA_FFI_DeviceOrdinal_Get")?;
        // SAFETY: the runtime's own function, with the context that it gave.
        unsafe { call.ask(get, &raw mut args) }?;
        Ok(Self(args.device_ordinal))
    }
}

/// The number of the run of the program that the call is part of: the same for all its calls on all devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunId(pub i64);

impl<'a> Parameter<'a> for RunId {
    fn take(parameters: &mut Parameters<'a>, _: &'static str) -> Result<Self, Error> {
        let call = parameters.call();
        let mut args = ffi::RunIdGetArgs::new();
        args.ctx = call.context();
        let get = function!(call, run_id_get, "XLA_FFI_RunId_Get")?;
        // SAFETY: the runtime's own function, with the context that it gave.
        unsafe { call.ask(get, &raw mut args) }?;
        Ok(Self(args.run_id))
    }
}

/// Memory of a GPU for the time of the call. There is none on the host, where a `Vec` serves.
///
/// What was allocated is freed when this is dropped, in the order of the stream: work that the handler has enqueued still has it. That is not so for
/// work that is recorded into a CUDA or HIP graph, which is launched again later: a handler with
/// [`Traits::COMMAND_BUFFER_COMPATIBLE`](crate::Traits::COMMAND_BUFFER_COMPATIBLE) takes its memory as a result of the call instead.
pub struct Scratch<'a> {
    call: Call<'a>,
    allocated: Vec<(*mut c_void, usize)>,
}

impl Scratch<'_> {
    /// The address of device memory of that size and alignment, in bytes; it may be null if the size is 0. XLA (jaxlib 0.10 to 0.12) takes alignments
    /// up to 16, whatever is there, and refuses 64.
    ///
    /// # Errors
    /// The runtime has none left, or the call is not on a GPU.
    pub fn allocate(&mut self, bytes: usize, alignment: usize) -> Result<*mut c_void, Error> {
        let mut args = ffi::DeviceMemoryAllocateArgs::new();
        args.ctx = self.call.context();
        args.size = bytes;
        args.alignment = alignment;
        let allocate = function!(self.call, device_memory_allocate, "XLA_FFI_DeviceMemory_Allocate")?;
        // SAFETY: the runtime's own function, with the context that it gave.
        unsafe { self.call.ask(allocate, &raw mut args) }?;
        if !args.data.is_null() {
            self.allocated.push((args.data, bytes));
        } else if bytes > 0 {
            let why = format!("the runtime gave a null pointer for {bytes} bytes of device memory");
            return Err(Error::new(Code::ResourceExhausted, why));
        }
        Ok(args.data)
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let Ok(free) = function!(self.call, device_memory_free, "XLA_FFI_DeviceMemory_Free") else { return };
        for &(data, bytes) in &self.allocated {
            let mut args = ffi::DeviceMemoryFreeArgs::new();
            args.ctx = self.call.context();
            args.size = bytes;
            args.data = data;
            // What is wrong with freeing is not an error of the call.
            // SAFETY: the runtime's own function, with memory that it gave and that is freed once.
            let _ = unsafe { self.call.ask(free, &raw mut args) };
        }
    }
}

impl<'a> Parameter<'a> for Scratch<'a> {
    fn take(parameters: &mut Parameters<'a>, _: &'static str) -> Result<Self, Error> {
        Ok(Self { call: parameters.call().copy(), allocated: Vec::new() })
    }
}

/// The threads on which XLA runs programs of the host, for parts of the work of a call.
pub struct ThreadPool<'a>(Call<'a>);

/// How many parts are done, and what the first one said that panicked.
#[derive(Default)]
struct Done {
    parts: usize,
    panic: Option<String>,
}

/// What the threads of one [`ThreadPool::for_each`] share.
struct Work {
    next: AtomicUsize,
    count: usize,
    /// Lives until all parts are done; not used once `next` has reached `count`.
    part: *const (dyn Fn(usize) + Sync),
    done: Mutex<Done>,
    all_done: Condvar,
}

// SAFETY: the function may be called from any thread, and is there for as long as there are parts left (`run`).
unsafe impl Send for Work {}
// SAFETY: as above.
unsafe impl Sync for Work {}

impl Work {
    /// Does parts until there are none left.
    fn run(&self) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.count {
                return;
            }
            // SAFETY: this part is not done, so `for_each` has not returned, and the function is there.
            let part = unsafe { &*self.part };
            // A thread that stopped here would leave others with a function that is gone, so nothing below panics: `panic_text` drops nothing
            // that was thrown.
            let panic = catch_unwind(AssertUnwindSafe(|| part(index))).err().map(panic_text);
            let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
            done.parts += 1;
            done.panic = done.panic.take().or(panic);
            if done.parts == self.count {
                self.all_done.notify_all();
            }
        }
    }
}

unsafe extern "C" fn run_work(data: *mut c_void) {
    // SAFETY: made from an `Arc` by `for_each`, once for each task.
    let work = unsafe { Arc::from_raw(data.cast::<Work>().cast_const()) };
    work.run();
}

/// A task of [`ThreadPool::spawn`].
struct Task(Box<dyn FnOnce() + Send>);

unsafe extern "C" fn run_task(data: *mut c_void) {
    // SAFETY: made by `spawn`, once for each task.
    let task = unsafe { Box::from_raw(data.cast::<Task>()) };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(task.0)) {
        drop(panic_text(panic));
    }
}

impl ThreadPool<'_> {
    /// How many threads there are.
    ///
    /// # Errors
    /// The runtime does not say.
    pub fn threads(&self) -> Result<usize, Error> {
        let mut threads = 0_i64;
        let mut args = ffi::ThreadPoolNumThreadsArgs::new();
        args.ctx = self.0.context();
        args.num_threads = &raw mut threads;
        let get = function!(self.0, thread_pool_num_threads, "XLA_FFI_ThreadPool_NumThreads")?;
        // SAFETY: the runtime's own function, with the context that it gave, and a place for the answer.
        unsafe { self.0.ask(get, &raw mut args) }?;
        Ok(usize::try_from(threads).unwrap_or(0))
    }

    /// Calls `part` with each number below `count`, on this thread and on those of the pool at once, and waits for all of them.
    ///
    /// It needs no thread of the pool to be free: this thread goes on alone where the others are busy.
    ///
    /// # Errors
    /// A part panicked.
    pub fn for_each(&self, count: usize, part: impl Fn(usize) + Sync) -> Result<(), Error> {
        let part: &(dyn Fn(usize) + Sync) = &part;
        // SAFETY: only the lifetime changes. It is not used after this function returns: see `Work`.
        let part: *const (dyn Fn(usize) + Sync) =
            unsafe { core::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(part) };
        let work =
            Arc::new(Work { next: AtomicUsize::new(0), count, part, done: Mutex::default(), all_done: Condvar::new() });
        for _ in 1..count.min(self.threads().unwrap_or(1)) {
            if self.schedule_work(&work).is_err() {
                break; // this thread does all that no other one does
            }
        }
        work.run();
        let mut done = work.done.lock().unwrap_or_else(PoisonError::into_inner);
        while done.parts < count {
            done = work.all_done.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
        match done.panic.take() {
            None => Ok(()),
            Some(text) => Err(Error::new(Code::Internal, format!("the handler panicked: {text}"))),
        }
    }

    /// Calls `task` on a thread of the pool, some time, and goes on meanwhile; on this thread if the runtime has no other. It is what the work
    /// of a [`Future`](crate::Future) can run on. If it panics, the panic goes no further.
    pub fn spawn(&self, task: impl FnOnce() + Send + 'static) {
        let data = Box::into_raw(Box::new(Task(Box::new(task))));
        // SAFETY: `run_task` takes what is made here, once.
        if unsafe { self.schedule(run_task, data.cast()) }.is_err() {
            // SAFETY: not taken by a task.
            unsafe { run_task(data.cast()) };
        }
    }

    fn schedule_work(&self, work: &Arc<Work>) -> Result<(), Error> {
        let data = Arc::into_raw(work.clone());
        // SAFETY: `run_work` takes what is made here, once.
        let scheduled = unsafe { self.schedule(run_work, data.cast_mut().cast()) };
        if scheduled.is_err() {
            // SAFETY: made above, and not taken by a task.
            drop(unsafe { Arc::from_raw(data) });
        }
        scheduled
    }

    /// # Safety
    /// The task may be called with that data, once, on any thread.
    unsafe fn schedule(&self, task: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> Result<(), Error> {
        let mut args = ffi::ThreadPoolScheduleArgs::new();
        args.ctx = self.0.context();
        args.task = Some(task);
        args.data = data;
        let schedule = function!(self.0, thread_pool_schedule, "XLA_FFI_ThreadPool_Schedule")?;
        // SAFETY: the runtime's own function, with the context that it gave; it runs the task once, unless it returns an error.
        unsafe { self.0.ask(schedule, &raw mut args) }
    }
}

impl<'a> Parameter<'a> for ThreadPool<'a> {
    fn take(parameters: &mut Parameters<'a>, _: &'static str) -> Result<Self, Error> {
        Ok(Self(parameters.call().copy()))
    }
}
