use core::cell::{Cell, RefCell};
use core::ffi::c_void;
use core::ptr::NonNull;
use std::collections::{HashSet, VecDeque};
use std::sync::mpsc;
use std::time::Duration;

use super::{Pool, Stream, read, write};
use crate::slots::{ALONE, log, reset};

/// A stream on which nothing happens until `run` is called; device memory is memory of the host.
#[derive(Default)]
struct Queue {
    work: RefCell<VecDeque<Box<dyn Fn()>>>,
    captured: bool,
    /// Whether it allocates only when all that was enqueued is done, as CUDA may.
    waits_to_allocate: bool,
    /// Which operation fails, counted down.
    fails_at: Cell<Option<usize>>,
    allocated: Cell<usize>,
}

impl Queue {
    fn run(&self) {
        for step in self.work.borrow_mut().drain(..) {
            step();
        }
    }

    fn run_on_a_thread_of_the_driver(&self) -> Result<(), String> {
        struct Steps(VecDeque<Box<dyn Fn()>>);
        // SAFETY: the thread that made them waits for them, or fails the test.
        unsafe impl Send for Steps {}

        let steps = Steps(self.work.take());
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            let Steps(steps) = { steps };
            for step in steps {
                step();
            }
            done.send(())
        });
        is_done.recv_timeout(Duration::from_secs(10)).map_err(|_| "the driver's thread is blocked".into())
    }

    fn launch_again(&self) {
        for step in self.work.borrow().iter() {
            step();
        }
    }

    fn push(&self, step: impl Fn() + 'static) -> Result<(), String> {
        match self.fails_at.get() {
            Some(0) => return Err("out of cheese".into()),
            Some(left) => self.fails_at.set(Some(left - 1)),
            None => {}
        }
        self.work.borrow_mut().push_back(Box::new(step));
        Ok(())
    }
}

// SAFETY: a queue runs its steps in order, and leaks what it allocates.
unsafe impl Stream for Queue {
    fn pool() -> &'static Pool {
        unreachable!("each test has a pool of its own")
    }

    fn allocate(&self, bytes: usize) -> Result<NonNull<c_void>, String> {
        self.allocated.set(self.allocated.get() + 1);
        if self.waits_to_allocate {
            self.run_on_a_thread_of_the_driver()?;
        }
        let memory = Box::leak(vec![0_u64; bytes.div_ceil(8)].into_boxed_slice());
        Ok(NonNull::from(memory).cast())
    }

    unsafe fn copy_to_host(&self, to: NonNull<c_void>, from: *const c_void, bytes: usize) -> Result<(), String> {
        // SAFETY: valid, says the caller, until the queue has run.
        self.push(move || unsafe { core::ptr::copy(from.cast::<u8>(), to.as_ptr().cast(), bytes) })
    }

    unsafe fn copy_to_device(&self, to: *mut c_void, from: NonNull<c_void>, bytes: usize) -> Result<(), String> {
        // SAFETY: valid, says the caller, until the queue has run.
        self.push(move || unsafe { core::ptr::copy(from.as_ptr().cast::<u8>(), to.cast(), bytes) })
    }

    unsafe fn call(&self, function: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> Result<(), String> {
        // SAFETY: the caller says that it may be called.
        self.push(move || unsafe { function(data) })
    }

    fn is_captured(&self) -> Result<bool, String> {
        Ok(self.captured)
    }
}

/// What a call reads and writes on the device. Cells, because the queue writes to it through pointers.
struct Memory {
    token: Cell<i32>,
    value: Cell<f32>,
    result: Cell<u32>,
}

impl Memory {
    fn new(token: i32, value: f32) -> Self {
        Self { token: Cell::new(token), value: Cell::new(value), result: Cell::new(0) }
    }

    fn read(&self, queue: &Queue, pool: &'static Pool, label: &str) -> Result<(), String> {
        // SAFETY: the tests keep the memory until the queue has run.
        unsafe { read(queue, pool, self.token.as_ptr().cast(), self.result.as_ptr().cast(), Some(label)) }
    }

    fn write(&self, queue: &Queue, pool: &'static Pool) -> Result<(), String> {
        let (token, value) = (self.token.as_ptr().cast(), self.value.as_ptr().cast());
        // SAFETY: as above.
        unsafe { write(queue, pool, token, value, self.result.as_ptr().cast(), None) }
    }
}

fn labels() -> Vec<String> {
    log().into_iter().map(|access| access.label.unwrap_or_else(|| access.op.to_string())).collect()
}

#[test]
fn an_access_happens_when_its_stream_gets_there_not_when_it_is_enqueued() {
    static POOL: Pool = Pool::new();
    let _alone = ALONE.lock().unwrap();
    reset(1.5);
    let (first, second) = (Queue::default(), Queue::default());
    let (early, change, late) = (Memory::new(3, 0.0), Memory::new(3, 2.5), Memory::new(3, 0.0));
    late.read(&first, &POOL, "late").unwrap();
    early.read(&second, &POOL, "early").unwrap();
    change.write(&second, &POOL).unwrap();
    assert_eq!(log(), [], "nothing waits for the device, and nothing runs ahead of it");
    second.run();
    first.run();
    assert_eq!(labels(), ["early", "write", "late"]);
    assert_eq!(early.result.get(), 1.5_f32.to_bits());
    assert_eq!(change.result.get(), 3, "a write gives its token back");
    assert_eq!(late.result.get(), 2.5_f32.to_bits());
}

#[test]
fn operands_are_taken_when_the_call_runs() {
    static POOL: Pool = Pool::new();
    let _alone = ALONE.lock().unwrap();
    reset(0.0);
    let queue = Queue::default();
    let change = Memory::new(1, 1.0);
    change.write(&queue, &POOL).unwrap();
    change.token.set(7);
    change.value.set(4.0);
    queue.run();
    let access = &log()[0];
    assert_eq!((access.slot, access.value.to_bits()), (7, 4.0_f32.to_bits()));
}

#[test]
fn a_graph_keeps_its_calls_and_can_be_launched_again() {
    static POOL: Pool = Pool::new();
    let _alone = ALONE.lock().unwrap();
    reset(0.0);
    let graph = Queue { captured: true, ..Queue::default() };
    let (change, after) = (Memory::new(0, 1.0), Memory::new(0, 0.0));
    change.write(&graph, &POOL).unwrap();
    after.read(&graph, &POOL, "after").unwrap();
    // Other calls meanwhile must not get memory that the graph uses.
    let other = Queue::default();
    let elsewhere = Memory::new(9, 5.0);
    elsewhere.write(&other, &POOL).unwrap();
    other.run();
    graph.launch_again();
    change.value.set(2.0);
    graph.launch_again();
    assert_eq!(labels(), ["write", "write", "after", "write", "after"]);
    assert_eq!(after.result.get(), 2.0_f32.to_bits());
}

/// What `docs/gpu.md` says about memory.
#[test]
#[cfg(target_pointer_width = "64")]
fn each_recording_keeps_56_bytes_and_its_label() {
    static POOL: Pool = Pool::new();
    let _alone = ALONE.lock().unwrap();
    assert_eq!(size_of::<super::Call>() + size_of::<super::Staging>(), 56);
    let memory = Memory::new(0, 0.0);
    let mut staging = HashSet::new();
    for _ in 0..3 {
        let graph = Queue { captured: true, ..Queue::default() };
        memory.read(&graph, &POOL, "recorded anew").unwrap();
        graph.run();
        staging.insert(POOL.take(&graph).unwrap());
    }
    assert_eq!(staging.len(), 3);
}

#[test]
fn memory_is_used_again_once_a_call_is_done() {
    static POOL: Pool = Pool::new();
    let _alone = ALONE.lock().unwrap();
    reset(0.0);
    let queue = Queue::default();
    let memory = Memory::new(0, 0.0);
    for _ in 0..3 * Pool::AT_ONCE {
        memory.read(&queue, &POOL, "again").unwrap();
        queue.run();
    }
    assert_eq!(queue.allocated.get(), 1);
    for _ in 0..=Pool::AT_ONCE {
        memory.read(&queue, &POOL, "at once").unwrap();
    }
    assert_eq!(queue.allocated.get(), 2);
    queue.run();
}

#[test]
fn a_driver_that_waits_for_the_device_before_it_allocates_is_not_waited_for_by_the_device() {
    static POOL: Pool = Pool::new();
    let _alone = ALONE.lock().unwrap();
    reset(0.0);
    let queue = Queue { waits_to_allocate: true, ..Queue::default() };
    let memory = Memory::new(0, 0.0);
    // The last call finds the pool empty, and all the calls before it give their memory back meanwhile.
    for _ in 0..=Pool::AT_ONCE {
        memory.read(&queue, &POOL, "read").unwrap();
    }
    assert_eq!(log().len(), Pool::AT_ONCE);
    queue.run();
    assert_eq!(queue.allocated.get(), 2);
}

#[test]
fn what_the_driver_says_is_the_error_and_what_was_enqueued_stays_sound() {
    static POOL: Pool = Pool::new();
    let _alone = ALONE.lock().unwrap();
    reset(0.0);
    for fails_at in 0..5 {
        let queue = Queue { fails_at: Cell::new(Some(fails_at)), ..Queue::default() };
        let change = Memory::new(0, 1.0);
        assert_eq!(change.write(&queue, &POOL), Err("out of cheese".into()));
        queue.run();
    }
}
