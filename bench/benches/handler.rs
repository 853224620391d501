//! The time that one call of a handler takes, without XLA around it.

use core::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use entangle_bench::{HANDLERS, frame};

fn handlers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("handler");
    for (name, handler) in HANDLERS {
        for leaves in [1, 10, 100] {
            group.bench_function(BenchmarkId::new(name, leaves), |bencher| {
                frame(leaves).with_frame(|frame| {
                    // SAFETY: a frame of the mock, alive until `with_frame` returns.
                    bencher.iter(|| unsafe { black_box(handler)(frame) });
                });
            });
        }
    }
}

criterion_group!(benches, handlers);
criterion_main!(benches);
