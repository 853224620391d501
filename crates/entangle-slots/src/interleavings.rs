//! Every order in which threads can get at the slots and at staging memory, tried one by one.

use core::ffi::c_void;
use core::ptr::NonNull;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::slots::{Op, log, read, reset, write};
use crate::stream::{Pool, Staging, Stream};

/// Runs these at once.
fn together<const N: usize>(threads: [Box<dyn FnOnce() + Send>; N]) {
    let threads = threads.map(thread::spawn);
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn the_log_holds_what_ran_in_the_order_in_which_it_ran() {
    loom::model(|| {
        reset(0.0);
        together([
            Box::new(|| {
                write(0, 1.0, None);
                assert!(read(0, None) > 0.0, "what was written before is gone");
            }),
            Box::new(|| write(0, 2.0, None)),
            Box::new(|| assert!([0.0, 1.0, 2.0].contains(&read(0, None)))),
        ]);
        let mut current = 0.0_f32;
        let accesses = log();
        assert_eq!(accesses.len(), 4);
        for access in accesses {
            match access.op {
                Op::Write => current = access.value,
                Op::Read => assert_eq!(access.value.to_bits(), current.to_bits(), "the log tells of another order"),
            }
        }
    });
}

/// Memory of the host, as a driver would give it out.
struct Host;

// SAFETY: the memory is never freed, and nothing else is ever enqueued.
unsafe impl Stream for Host {
    fn pool() -> &'static Pool {
        unreachable!()
    }

    fn allocate(&self, bytes: usize) -> Result<NonNull<c_void>, String> {
        let words = vec![0_u64; bytes.div_ceil(8)].leak();
        Ok(NonNull::from(&mut words[0]).cast())
    }

    unsafe fn copy_to_host(&self, _: NonNull<c_void>, _: *const c_void, _: usize) -> Result<(), String> {
        unreachable!()
    }

    unsafe fn copy_to_device(&self, _: *mut c_void, _: NonNull<c_void>, _: usize) -> Result<(), String> {
        unreachable!()
    }

    unsafe fn call(&self, _: unsafe extern "C" fn(*mut c_void), _: *mut c_void) -> Result<(), String> {
        unreachable!()
    }

    fn is_captured(&self) -> Result<bool, String> {
        Ok(false)
    }
}

/// What stands for the memory at each of the first addresses that the pool has given out: a cell that notices if two use it.
type Uses = Arc<loom::sync::Mutex<Vec<(NonNull<Staging>, Arc<UnsafeCell<()>>)>>>;

#[test]
fn staging_memory_is_never_used_by_two_calls() {
    struct Known(Uses);
    // SAFETY: the addresses in it are compared, and not used.
    unsafe impl Send for Known {}

    loom::model(|| {
        let pool = Arc::new(Pool::new());
        let uses = Uses::default();
        together([(); 2].map(|()| -> Box<dyn FnOnce() + Send> {
            let (pool, known) = (pool.clone(), Known(uses.clone()));
            Box::new(move || {
                let known = known;
                for _ in 0..2 {
                    let staging = pool.take(&Host).unwrap();
                    let use_of = {
                        let mut uses = known.0.lock().unwrap();
                        match uses.iter().find(|(address, _)| *address == staging) {
                            Some((_, cell)) => cell.clone(),
                            None => {
                                uses.push((staging, Arc::default()));
                                uses[uses.len() - 1].1.clone()
                            }
                        }
                    };
                    use_of.with_mut(|_| thread::yield_now());
                    pool.give_back(staging);
                }
            })
        }));
    });
}
