//! One handler for each thing that a handler can have, for `typed.py` to call from JAX, right and wrong.
//!
//! ```text
//! cargo build -p xla-ffi --example typed          # a shared library for Python to open
//! python crates/xla-ffi/examples/typed.py         # registers the handlers, calls them from jit, checks values and messages
//! ```
#![expect(clippy::needless_pass_by_value, reason = "handlers are given their parameters")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use xla_ffi::{
    Arg, Attributes, BF16, Buffer, Code, Complex, DeviceOrdinal, Element, Error, F8E3M4, F8E4M3, F8E4M3B11FNUZ,
    F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0FNU, F16, Future, Handler, InPlace, Initialized, Kept, NewState,
    Operand, Output, Prepared, Promise, Ret, RunId, Scratch, State, Stream, ThreadPool, Token, Traits, attributes,
    export, handler,
};

// A counter with a step: state that is made once for each call site.

struct Counter {
    calls: AtomicU64,
    step: f64,
}

fn new_counter(step: f64) -> Result<NewState<Counter>, Error> {
    if step == 0.0 {
        return Err(Error::new(Code::InvalidArgument, "a counter with a step of 0 does not count"));
    }
    Ok(NewState(Counter { calls: AtomicU64::new(0), step }))
}

fn count(
    counter: State<'_, Counter>,
    mut total: Output<'_, f64, 0>,
    mut calls: Output<'_, u32, 1>,
) -> Result<(), Error> {
    let before = counter.calls.fetch_add(1, Ordering::Relaxed);
    let before = u32::try_from(before).map_err(|_| Error::new(Code::OutOfRange, "too many calls"))?;
    total.write(&[f64::from(before + 1) * counter.step])?;
    calls.write(&[before])
}

fn count_otherwise(_counter: State<'_, u64>) {}

fn new_too_late() -> NewState<u64> {
    NewState(0)
}

handler!(NewCounter = new_counter(; step), stage = Instantiate);
handler!(Count = count(counter, total, calls; ..));
handler!(CountOtherwise = count_otherwise(counter; ..));
handler!(NewTooLate = new_too_late());

// All stages.

fn instantiate(base: i32) -> NewState<i32> {
    NewState(base)
}

fn prepare(base: State<'_, i32>) -> NewState<[i32; 2]> {
    NewState([*base, 1])
}

fn initialize(prepared: Prepared<'_, [i32; 2]>) -> NewState<Vec<i32>> {
    NewState([&prepared[..], &[2]].concat())
}

fn execute(
    base: State<'_, i32>,
    prepared: Prepared<'_, [i32; 2]>,
    initialized: Initialized<'_, Vec<i32>>,
    mut y: Output<'_, i32, 1>,
) -> Result<(), Error> {
    y.write(&[&[*base], &prepared[..], &initialized[..]].concat())
}

handler!(Instantiate = instantiate(; base), stage = Instantiate);
handler!(Prepare = prepare(base; ..), stage = Prepare);
handler!(Initialize = initialize(prepared; ..), stage = Initialize);
handler!(Execute = execute(base, prepared, initialized, y; ..));

// A kernel of complex numbers with two results of different rank.

fn normalize(
    x: Operand<'_, Complex<f64>, 2>,
    mut y: Output<'_, Complex<f64>, 2>,
    mut norm: Output<'_, f64, 0>,
) -> Result<(), Error> {
    let length = x.iter().map(|x| x.re * x.re + x.im * x.im).sum::<f64>().sqrt();
    y.fill_with(|index| Complex::new(x[index].re / length, x[index].im / length));
    norm.write(&[length])
}

handler!(Normalize = normalize(x, y, norm));

// Every element type, as it comes.

macro_rules! identities {
    ($($name:ident $handler:ident $type:ty;)*) => {
        $(fn $name(x: Operand<'_, $type>, y: Output<'_, $type>) -> Result<(), Error> {
            copy(x, y)
        }
        handler!($handler = $name(x, y));)*
        export! { $($handler as $name,)* }
    };
}

fn copy<T: Element>(x: Operand<'_, T>, mut y: Output<'_, T>) -> Result<(), Error> {
    y.write(&x)
}

identities! {
    same_bool SameBool bool;
    same_int8 SameI8 i8;
    same_int16 SameI16 i16;
    same_int32 SameI32 i32;
    same_int64 SameI64 i64;
    same_uint8 SameU8 u8;
    same_uint16 SameU16 u16;
    same_uint32 SameU32 u32;
    same_uint64 SameU64 u64;
    same_float16 SameF16 F16;
    same_bfloat16 SameBF16 BF16;
    same_float32 SameF32 f32;
    same_float64 SameF64 f64;
    same_complex64 SameC64 Complex<f32>;
    same_complex128 SameC128 Complex<f64>;
    same_float8_e5m2 SameF8E5M2 F8E5M2;
    same_float8_e3m4 SameF8E3M4 F8E3M4;
    same_float8_e4m3 SameF8E4M3 F8E4M3;
    same_float8_e4m3fn SameF8E4M3FN F8E4M3FN;
    same_float8_e4m3b11fnuz SameF8E4M3B11FNUZ F8E4M3B11FNUZ;
    same_float8_e5m2fnuz SameF8E5M2FNUZ F8E5M2FNUZ;
    same_float8_e4m3fnuz SameF8E4M3FNUZ F8E4M3FNUZ;
    same_float8_e8m0fnu SameF8E8M0FNU F8E8M0FNU;
}

// A scalar and an array of each type that jax has for attributes.

macro_rules! numbers {
    ($($name:ident $handler:ident $type:ty;)*) => {
        $(fn $name(mut y: Output<'_, $type, 1>, one: $type, more: &[$type]) -> Result<(), Error> {
            y.write(&[&[one], more].concat())
        }
        handler!($handler = $name(y; one, more));)*
        export! { $($handler as $name,)* }
    };
}

numbers! {
    numbers_int8 NumbersI8 i8;
    numbers_int16 NumbersI16 i16;
    numbers_int32 NumbersI32 i32;
    numbers_int64 NumbersI64 i64;
    numbers_uint8 NumbersU8 u8;
    numbers_uint16 NumbersU16 u16;
    numbers_uint32 NumbersU32 u32;
    numbers_uint64 NumbersU64 u64;
    numbers_float32 NumbersF32 f32;
    numbers_float64 NumbersF64 f64;
}

// Operands that may be left out or be many, changes in place, tokens.

fn total(
    first: Operand<'_, f32, 1>,
    rest: Vec<Operand<'_, f32, 1>>,
    mut y: Output<'_, f32, 0>,
    count: Option<Output<'_, i32, 0>>,
) -> Result<(), Error> {
    if let Some(mut count) = count {
        count.fill_with(|_| i32::try_from(1 + rest.len()).unwrap_or(i32::MAX));
    }
    y.write(&[first.iter().chain(rest.iter().flat_map(Operand::as_slice)).sum()])
}

/// The ranks of operands of any type.
fn ranks(all: Vec<Buffer<'_, Arg>>, mut y: Output<'_, u32, 1>) -> Result<(), Error> {
    y.write(&all.iter().map(|x| u32::try_from(x.dims().len()).unwrap_or(0)).collect::<Vec<_>>())
}

/// How long the names in a dictionary are, whatever they are.
fn names(mut y: Output<'_, u32, 0>, all: Attributes<'_>) -> Result<(), Error> {
    y.write(&[u32::try_from(all.names()?.concat().len()).unwrap_or(0)])
}

fn double(mut x: InPlace<'_, f32>) {
    x.iter_mut().for_each(|x| *x *= 2.0);
}

/// What may be left out, and all that is left: of the operands, of both, of the results.
fn left(factor: Option<Operand<'_, f64, 0>>, changed: Vec<InPlace<'_, i16, 1>>, factors: Vec<Output<'_, f64, 0>>) {
    let factor = factor.map_or(1.0, |factor| factor[0]);
    for mut each in changed {
        each.iter_mut().for_each(|each| *each = -*each);
    }
    for mut each in factors {
        each.fill_with(|_| factor);
    }
}

fn token(_: Token<Arg>, _: Token<Ret>) {}

handler!(Total = total(first, rest, y, count));
handler!(Ranks = ranks(all, y));
handler!(Names = names(y; all, ..));
handler!(Double = double(x));
handler!(Left = left(factor, changed, factors));
handler!(PassToken = token(before, after));

// Attributes of every kind.

attributes! {
    struct Options {
        tolerance: f64,
        steps: Option<i64>,
        inner: Option<Inner>,
    }
    struct Inner {
        name: String,
    }
}

#[expect(clippy::too_many_arguments, reason = "one of each kind")]
fn attributes(
    mut y: Output<'_, f64, 1>,
    flag: bool,
    byte: u8,
    single: f32,
    text: &str,
    shape: &[i64],
    weights: Vec<f64>,
    options: Options,
    maybe: Option<i32>,
) -> Result<(), Error> {
    let text = f64::from(u32::try_from(text.chars().count()).unwrap_or(0));
    let name = options.inner.map_or(0, |inner| inner.name.len());
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    y.write(&[
        f64::from(u8::from(flag)),
        byte.into(),
        single.into(),
        text,
        shape.iter().product::<i64>() as f64,
        weights.iter().sum(),
        options.tolerance,
        options.steps.unwrap_or(-1) as f64,
        name as f64,
        maybe.map_or(-1.0, f64::from),
    ])
}

handler!(AllAttributes = attributes(y; flag, byte, single, text, shape, weights, options, maybe));

// What the runtime has.

fn flags(mut y: Output<'_, bool, 1>, all: &[bool]) -> Result<(), Error> {
    y.write(all)
}

handler!(Flags = flags(y; all));

fn context(device: DeviceOrdinal, run: RunId, mut y: Output<'_, i64, 1>) -> Result<(), Error> {
    y.write(&[device.0.into(), run.0])
}

fn roots(pool: ThreadPool<'_>, x: Operand<'_, f64, 1>, mut y: Output<'_, f64, 1>) -> Result<(), Error> {
    let x = x.as_slice();
    let parts: Vec<_> = y.zeroed().chunks_mut(1000).map(Mutex::new).collect();
    pool.for_each(parts.len(), |index| {
        if let Ok(mut part) = parts[index].lock() {
            part.iter_mut().zip(&x[1000 * index..]).for_each(|(y, x)| *y = x.sqrt());
        }
    })
}

fn scratch(mut memory: Scratch<'_>, mut y: Output<'_, i32, 0>) -> Result<(), Error> {
    memory.allocate(64, 64)?;
    y.write(&[1])
}

fn threads(pool: ThreadPool<'_>, mut y: Output<'_, u64, 0>) -> Result<(), Error> {
    y.write(&[pool.threads()? as u64])
}

fn fail_at(pool: ThreadPool<'_>, part: u64) -> Result<(), Error> {
    pool.for_each(100, |index| assert_ne!(index as u64, part, "part {part} fails"))
}

fn on_stream(stream: Stream<'_>) {
    assert!(!stream.as_ptr().is_null());
}

handler!(Threads = threads(pool, y));
handler!(FailAt = fail_at(pool; part));
handler!(OnStream = on_stream(stream), traits = Traits::COMMAND_BUFFER_COMPATIBLE);

// The same before there is a run, a device or a stream.

fn early_device(device: DeviceOrdinal) -> NewState<i32> {
    NewState(device.0)
}

fn early_run(run: RunId) -> NewState<i64> {
    NewState(run.0)
}

fn early_pool(pool: ThreadPool<'_>) -> Result<NewState<usize>, Error> {
    pool.for_each(10, |_| ())?;
    pool.threads().map(NewState)
}

fn early_scratch(mut memory: Scratch<'_>) -> Result<(), Error> {
    memory.allocate(64, 64).map(drop)
}

fn early_state(_state: State<'_, u8>) {}

fn early_future() -> Future<'static> {
    Future::new((), |promise| promise.complete(Ok(())))
}

fn early_elements(_x: Vec<Operand<'_, f32>>) {}

handler!(EarlyDevice = early_device(device), stage = Instantiate);
handler!(EarlyRun = early_run(run), stage = Instantiate);
handler!(EarlyPool = early_pool(pool), stage = Instantiate);
handler!(EarlyScratch = early_scratch(memory), stage = Instantiate);
handler!(EarlyStream = on_stream(stream), stage = Instantiate);
handler!(EarlyState = early_state(state), stage = Instantiate);
handler!(EarlyFuture = early_future(), stage = Instantiate);
handler!(EarlyElements = early_elements(x), stage = Instantiate);
export! {
    EarlyDevice as early_device, EarlyRun as early_run, EarlyPool as early_pool, EarlyScratch as early_scratch, EarlyStream as early_stream,
    EarlyState as early_state, EarlyFuture as early_future, EarlyElements as early_elements, Nothing as nothing,
}

fn nothing() {}

handler!(Nothing = nothing());
handler!(Context = context(device, run, y));
handler!(Roots = roots(pool, x, y));
handler!(UseScratch = scratch(memory, y));

// Results that come later.

fn square_later<'a>(x: Operand<'a, f64, 1>, y: Output<'a, f64, 1>, milliseconds: u64) -> Future<'a> {
    Future::new((x, y), move |promise| {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(milliseconds));
            promise.fulfil(|(x, mut y)| {
                y.fill_with(|index| x[index] * x[index]);
                Ok(())
            });
        });
    })
}

fn square_on_pool<'a>(pool: ThreadPool<'a>, x: Operand<'a, f64, 1>, y: Output<'a, f64, 1>) -> Future<'a> {
    Future::new((x, y), move |promise| {
        pool.spawn(|| {
            promise.fulfil(|(x, mut y)| {
                y.fill_with(|index| x[index] * x[index]);
                Ok(())
            });
        });
    })
}

/// How a promise is not kept.
fn fail_later<'a>(y: Output<'a, f64, 0>, how: &str) -> Result<Future<'a>, Error> {
    if how == "at once" {
        return Err(Error::new(Code::Unavailable, "the handler did not even start"));
    }
    let how = how.to_owned();
    Ok(Future::new(y, move |promise| {
        assert_ne!(how, "panic at once", "the work does not start");
        std::thread::spawn(move || match &how[..] {
            "error" => promise.complete(Err(Error::new(Code::DataLoss, "the work failed"))),
            "panic" => promise.fulfil(|_| panic!("the work panicked")),
            _ => drop(promise),
        });
    }))
}

/// A promise that another call completes, with the number of it.
static WAITING: Mutex<Option<Promise<Kept<Output<'static, f64, 0>>>>> = Mutex::new(None);

fn wait(y: Output<'_, f64, 0>) -> Future<'_> {
    Future::new(y, |promise| {
        *WAITING.lock().unwrap_or_else(PoisonError::into_inner) = Some(promise);
    })
}

fn release(mut released: Output<'_, bool, 0>, value: f64) -> Result<(), Error> {
    let promise = WAITING.lock().unwrap_or_else(PoisonError::into_inner).take();
    released.write(&[promise.is_some()])?;
    if let Some(promise) = promise {
        promise.fulfil(|mut y| y.write(&[value]));
    }
    Ok(())
}

handler!(SquareLater = square_later(x, y; milliseconds));
handler!(SquareOnPool = square_on_pool(pool, x, y));
handler!(FailLater = fail_later(y; how));
handler!(Wait = wait(y));
handler!(Release = release(released; value));

// Errors.

fn fail(_y: Output<'_, i32>, code: i64) -> Result<(), Error> {
    match usize::try_from(code).ok().and_then(|code| Code::ALL.get(code.wrapping_sub(1))) {
        Some(&code) => Err(Error::new(code, format!("this is {code:?}"))),
        None => panic!("there is no code {code}"),
    }
}

handler!(Fail = fail(y; code));

export! {
    NewCounter as counter_instantiate, Count as counter_execute, CountOtherwise as counter_otherwise, NewTooLate as new_too_late,
    Left as left_over, Flags as flags_of, Threads as threads_of, FailAt as fail_at_part, OnStream as on_stream,
    Instantiate as stages_instantiate, Prepare as stages_prepare, Initialize as stages_initialize, Execute as stages_execute,
    Normalize as normalize_c128, Total as total_of, Ranks as ranks_of, Names as names_of, Double as double_in_place, PassToken as pass_token,
    AllAttributes as all_attributes, Context as context_of, Roots as roots_of, UseScratch as use_scratch, Fail as fail_with,
    SquareLater as square_later, SquareOnPool as square_on_pool, FailLater as fail_later, Wait as wait_for_release, Release as release,
}

// What the macro makes can be used without a symbol too, in a capsule.
const _: xla_ffi::ffi::Handler = Count::FUNCTION;
