//! Calls a handler that many times, for callgrind to count: `instructions floor|entangle LEAVES CALLS`.

use core::hint::black_box;

use entangle_bench::{HANDLERS, frame};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [name, leaves, calls] = &words[..] else { panic!("usage: instructions floor|entangle LEAVES CALLS") };
    let (_, handler) = HANDLERS.into_iter().find(|(known, _)| known == name).expect("a handler of that name");
    let calls: usize = calls.parse().expect("a number of calls");
    frame(leaves.parse().expect("a number of leaves")).with_frame(|frame| {
        for _ in 0..calls {
            // SAFETY: a frame of the mock, alive until `with_frame` returns.
            let error = unsafe { black_box(handler)(frame) };
            assert!(error.is_null());
        }
    });
}
