//! Handlers as plain functions, called by the mock: right values, and what is said of wrong ones. There is no unsafe code here.
#![forbid(unsafe_code)]
#![allow(clippy::needless_pass_by_value, reason = "handlers are given their parameters")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use xla_ffi::mock::{Attribute, CallSite, Failure, Invocation, Results};
use xla_ffi::{
    Arg, Attributes, BF16, Buffer, Code, Complex, Device, DeviceOrdinal, Element, Error, F16, Future, Handler, InPlace,
    NewState, Operand, Output, Prepared, Ret, RunId, Scratch, State, Stream, ThreadPool, Token, Traits, attributes,
    handler,
};

fn run<H: Handler>(call: Invocation) -> Result<Results, Failure> {
    CallSite::new().run::<H>(call)
}

/// The text of an error of that code.
fn fails<H: Handler>(call: Invocation, code: Code) -> String {
    let (found, text) = run::<H>(call).map(|_| ()).unwrap_err();
    assert_eq!(found, code as i32, "{text}");
    text
}

fn says<H: Handler>(call: Invocation, wanted: &str) {
    assert_eq!(fails::<H>(call, Code::InvalidArgument), wanted);
}

// Operands and results.

fn scale(x: Operand<'_, f64, 1>, mut y: Output<'_, f64, 1>, factor: f64) {
    y.fill_with(|index| factor * x[index]);
}

handler!(Scale = scale(x, y; factor));

#[test]
fn a_handler_computes_its_result_from_operands_and_attributes() {
    let call = Invocation::new().operand(&[3], &[1.0_f64, 2.0, -0.5]).result::<f64>(&[3]).scalar("factor", 2.0_f64);
    assert_eq!(run::<Scale>(call).unwrap().get::<f64>(0), [2.0, 4.0, -1.0]);
}

#[test]
fn wrong_counts_types_and_ranks_say_what_there_was_and_what_was_wanted() {
    let call = || Invocation::new().scalar("factor", 2.0_f64);
    says::<Scale>(call(), "operand 0 (`x`) is missing: the call has 0");
    says::<Scale>(call().operand(&[1], &[1.0_f64]), "result 0 (`y`) is missing: the call has 0");
    let right = || call().operand(&[1], &[1.0_f64]).result::<f64>(&[1]);
    says::<Scale>(right().operand(&[], &[1.0_f64]), "the call has 2 operands, wanted 1");
    says::<Scale>(right().result::<f64>(&[]), "the call has 2 results, wanted 1");
    let float = call().operand(&[3, 4], &[0.0_f32; 12]).result::<f64>(&[1]);
    says::<Scale>(float, "operand 0 (`x`) is f32[3,4], wanted f64[_]");
    let matrix = call().operand(&[1], &[1.0_f64]).result::<f64>(&[2, 2]);
    says::<Scale>(matrix, "result 0 (`y`) is f64[2,2], wanted f64[_]");
}

#[test]
fn missing_wrong_and_unknown_attributes_say_so() {
    let call = || Invocation::new().operand(&[1], &[1.0_f64]).result::<f64>(&[1]);
    says::<Scale>(call(), "attribute `factor` is missing, wanted a scalar of type f64; there are none");
    says::<Scale>(
        call().scalar("scale", 1_i32),
        "attribute `factor` is missing, wanted a scalar of type f64; there are `scale`",
    );
    let single = call().scalar("factor", 2.0_f32);
    says::<Scale>(single, "attribute `factor` is a scalar of type f32, wanted a scalar of type f64");
    let text = call().attribute("factor", Attribute::string("two"));
    says::<Scale>(text, "attribute `factor` is the string \"two\", wanted a scalar of type f64");
    let other = call().scalar("factor", 2.0_f64).scalar("offset", 1.0_f64);
    says::<Scale>(other, "attribute `offset` is unknown; the handler takes `factor`");
}

fn identity<T: Element>(x: Operand<'_, T>, mut y: Output<'_, T>) -> Result<(), Error> {
    y.write(&x)
}

/// Checks that values of a type go through a handler as they are.
fn goes_through<H: Handler, T: Element + PartialEq + std::fmt::Debug>(values: &[T]) {
    let len = i64::try_from(values.len()).unwrap();
    for dims in [vec![len], vec![1, len, 1]] {
        let call = Invocation::new().operand(&dims, values).result::<T>(&dims);
        assert_eq!(run::<H>(call).unwrap().get::<T>(0), values);
    }
    let empty = Invocation::new().operand::<T>(&[3, 0], &[]).result::<T>(&[0]);
    assert_eq!(run::<H>(empty).unwrap().get::<T>(0), []);
}

macro_rules! element_types {
    ($($name:ident $handler:ident: $type:ty = $values:expr;)*) => {
        $(handler!($handler = $name(x, y));
        fn $name(x: Operand<'_, $type>, y: Output<'_, $type>) -> Result<(), Error> {
            identity(x, y)
        })*

        #[test]
        fn every_element_type_comes_and_goes_as_it_is() {
            $(goes_through::<$handler, $type>(&$values);)*
        }
    };
}

element_types! {
    of_bool Bool: bool = [true, false];
    of_i8 I8: i8 = [i8::MIN, -1, 7];
    of_i16 I16: i16 = [i16::MIN, 7];
    of_i32 I32: i32 = [i32::MIN, 7];
    of_i64 I64: i64 = [i64::MIN, 7];
    of_u8 U8: u8 = [255, 7];
    of_u16 U16: u16 = [u16::MAX, 7];
    of_u32 U32: u32 = [u32::MAX, 7];
    of_u64 U64: u64 = [u64::MAX, 7];
    of_f16 Half: F16 = [F16::from_f32(1.5), F16(0xfbff)];
    of_bf16 Brain: BF16 = [BF16::from_f32(1.5), BF16(0xff7f)];
    of_f32 F32: f32 = [1.5, f32::INFINITY, f32::MIN_POSITIVE / 2.0];
    of_f64 F64: f64 = [1.5, -f64::INFINITY];
    of_c64 C64: Complex<f32> = [Complex::new(1.0, -2.0)];
    of_c128 C128: Complex<f64> = [Complex::new(1.0, -2.0), Complex::new(0.0, 3.0)];
    of_f8 F8: xla_ffi::F8E4M3FN = [xla_ffi::F8E4M3FN(0x7e)];
    of_f8_e5m2 F8E5M2: xla_ffi::F8E5M2 = [xla_ffi::F8E5M2(0x01)];
}

fn sum_and_norms(
    x: Operand<'_, Complex<f64>, 2>,
    mut norms: Output<'_, f64, 2>,
    mut sum: Output<'_, Complex<f64>, 0>,
) -> Result<(), Error> {
    let [rows, columns] = x.shape();
    assert_eq!((x.dims(), norms.shape()), (&[2, 3][..], [rows, columns]));
    for (norm, x) in norms.zeroed().iter_mut().zip(x.iter()) {
        *norm = x.re.hypot(x.im);
    }
    sum.write(&[x.iter().fold(Complex::new(0.0, 0.0), |sum, x| Complex::new(sum.re + x.re, sum.im + x.im))])
}

handler!(SumAndNorms = sum_and_norms(x, norms, sum));

#[test]
fn two_results_of_different_rank_and_type() {
    let x = [(3.0, 4.0), (0.0, 1.0), (5.0, 12.0), (0.0, 0.0), (-1.0, 0.0), (8.0, 15.0)]
        .map(|(re, im)| Complex::new(re, im));
    let call = Invocation::new().operand(&[2, 3], &x).result::<f64>(&[2, 3]).result::<Complex<f64>>(&[]);
    let results = run::<SumAndNorms>(call).unwrap();
    assert_eq!(results.get::<f64>(0), [5.0, 1.0, 13.0, 0.0, 1.0, 17.0]);
    assert_eq!(results.get::<Complex<f64>>(1), [Complex::new(15.0, 32.0)]);
}

fn weighted(
    first: Operand<'_, f32, 1>,
    weight: Option<Operand<'_, f32, 0>>,
    rest: Vec<Operand<'_, f32, 1>>,
    mut total: Output<'_, f32, 0>,
    count: Option<Output<'_, i32, 0>>,
) -> Result<(), Error> {
    let weight = weight.map_or(1.0, |weight| weight[0]);
    let all: f32 = first.iter().chain(rest.iter().flat_map(|more| more.iter())).sum();
    if let Some(mut count) = count {
        count.write(&[1 + i32::try_from(rest.len()).unwrap()])?;
    }
    total.write(&[weight * all])
}

handler!(Weighted = weighted(first, weight, rest, total, count));

#[test]
fn operands_and_results_may_be_left_out_and_may_be_many() {
    let one = || Invocation::new().operand(&[2], &[1.0_f32, 2.0]);
    assert_eq!(run::<Weighted>(one().result::<f32>(&[])).unwrap().get::<f32>(0), [3.0]);
    let weight = || one().operand(&[], &[10.0_f32]);
    assert_eq!(run::<Weighted>(weight().result::<f32>(&[])).unwrap().get::<f32>(0), [30.0]);
    let many = weight().operand(&[1], &[1.0_f32]).operand(&[1], &[2.0_f32]).result::<f32>(&[]).result::<i32>(&[]);
    let results = run::<Weighted>(many).unwrap();
    assert_eq!((results.get::<f32>(0), results.get::<i32>(1)), (vec![60.0], vec![3]));
    says::<Weighted>(
        weight().operand(&[1], &[1_i32]).result::<f32>(&[]),
        "operand 2 (`rest`) is i32[1], wanted f32[_]",
    );
}

fn double(mut x: InPlace<'_, f32, 1>) {
    x.iter_mut().for_each(|x| *x *= 2.0);
}

handler!(Double = double(x));

fn add(x: Operand<'_, f32>, mut y: Output<'_, f32>) {
    y.fill_with(|index| x[index] + 1.0);
}

handler!(Add = add(x, y));

#[test]
fn an_operand_is_changed_in_place_where_the_program_asked_for_it() {
    let call = Invocation::new().operand(&[2], &[1.0_f32, 3.0]);
    assert_eq!(run::<Double>(call.in_place(0)).unwrap().get::<f32>(0), [2.0, 6.0]);
    let apart = Invocation::new().operand(&[2], &[1.0_f32, 3.0]).result::<f32>(&[2]);
    let text = fails::<Double>(apart, Code::InvalidArgument);
    assert!(text.starts_with("operand 0 and result 0 (`x`) are f32[2] at 0x"), "{text}");
    assert!(text.ends_with("(`input_output_aliases={0: 0}` of jax.ffi.ffi_call)"), "{text}");
}

#[test]
fn a_slice_to_read_and_one_to_write_never_share_memory() {
    says::<Add>(
        Invocation::new().operand(&[2], &[1.0_f32, 3.0]).in_place(0),
        "operand 0 (`x`) and result 0 (`y`) share memory, and one of them is written: a parameter of the type `InPlace` takes an operand and the \
         result in its memory",
    );
}

fn any(x: Buffer<'_, Arg>, mut rank: Output<'_, u32, 0>) -> Result<(), Error> {
    rank.write(&[u32::try_from(x.dims().len()).unwrap()])
}

handler!(AnyType = any(x, rank));

#[test]
fn an_operand_of_any_type_may_be_asked_for() {
    let call = Invocation::new().operand(&[1, 1], &[F16::from_f32(0.0)]).result::<u32>(&[]);
    assert_eq!(run::<AnyType>(call).unwrap().get::<u32>(0), [2]);
}

fn after(_: Token<Arg>, x: Operand<'_, u8, 0>, mut y: Output<'_, u8, 0>) -> Result<(), Error> {
    y.write(&x)
}

handler!(After = after(token, x, y));

fn token_result(_: Token<Ret>) {}

handler!(TokenResult = token_result(token));

#[test]
fn xla_tokens_are_operands_and_results() {
    let call = Invocation::new().token().operand(&[], &[9_u8]).result::<u8>(&[]);
    assert_eq!(run::<After>(call).unwrap().get::<u8>(0), [9]);
    let call = Invocation::new().operand(&[], &[9_u8]).operand(&[], &[9_u8]).result::<u8>(&[]);
    says::<After>(call, "operand 0 (`token`) is u8[], wanted an XLA token");
    says::<TokenResult>(Invocation::new().result::<u8>(&[]), "result 0 (`token`) is u8[], wanted an XLA token");
}

#[test]
fn a_bool_that_is_none_is_refused_before_rust_sees_it() {
    // The mock makes no such operand of bools, but one of bytes that says that it is.
    let call = Invocation::new().operand_as(bool::DTYPE, &[2], &[1_u8, 2]).result::<bool>(&[2]);
    says::<Bool>(call, "operand 0 (`x`) is bool, and its element 1 has the byte 2, wanted 0 or 1");
}

// Attributes.

attributes! {
    /// Of a solver.
    struct Options {
        tolerance: f64,
        steps: Option<i64>,
        inner: Option<Inner>,
    }
    struct Inner {
        name: String,
        weights: Vec<f32>,
    }
}

#[expect(clippy::too_many_arguments, reason = "one of each kind")]
fn all_kinds(
    mut y: Output<'_, i64, 1>,
    flag: bool,
    small: i8,
    half: F16,
    complex: Complex<f64>,
    text: &str,
    shape: &[i64],
    options: Options,
    more: Attributes<'_>,
    maybe: Option<u16>,
) -> Result<(), Error> {
    let inner = options.inner.map_or(0, |inner| inner.name.len() + inner.weights.len());
    #[expect(clippy::cast_possible_truncation, reason = "small numbers")]
    y.write(&[
        i64::from(flag),
        i64::from(small),
        half.to_f32() as i64,
        complex.im as i64,
        i64::try_from(text.len()).unwrap(),
        shape.iter().sum(),
        options.tolerance as i64,
        options.steps.unwrap_or(-1),
        i64::try_from(inner).unwrap(),
        i64::try_from(more.len()).unwrap() + more.get::<i64>("a")?,
        maybe.map_or(-1, i64::from),
    ])
}

handler!(AllKinds = all_kinds(y; flag, small, half, complex, text, shape, options, more, maybe));

fn every_kind() -> Invocation {
    Invocation::new()
        .result::<i64>(&[11])
        .scalar("flag", true)
        .scalar("small", -7_i8)
        .scalar("half", F16::from_f32(3.0))
        .scalar("complex", Complex::new(1.0_f64, 5.0))
        .attribute("text", Attribute::string("käse"))
        .attribute("shape", Attribute::array(&[2_i64, 3]))
        .attribute("more", Attribute::dictionary([("a", Attribute::scalar(40_i64)), ("b", Attribute::string(""))]))
}

#[test]
fn attributes_of_every_kind_are_read() {
    let inner =
        Attribute::dictionary([("weights", Attribute::array(&[1.0_f32, 2.0])), ("name", Attribute::string("abc"))]);
    let options = [("tolerance", Attribute::scalar(2.5_f64)), ("steps", Attribute::scalar(8_i64)), ("inner", inner)];
    let call = every_kind().attribute("options", Attribute::dictionary(options)).scalar("maybe", 6_u16);
    assert_eq!(run::<AllKinds>(call).unwrap().get::<i64>(0), [1, -7, 3, 5, 5, 5, 2, 8, 5, 42, 6]);
    let least = every_kind().attribute("options", Attribute::dictionary([("tolerance", Attribute::scalar(2.5_f64))]));
    assert_eq!(run::<AllKinds>(least).unwrap().get::<i64>(0), [1, -7, 3, 5, 5, 5, 2, -1, 0, 42, -1]);
}

#[test]
fn what_is_wrong_in_a_dictionary_is_named_by_its_path() {
    let call = |entries: [(&str, Attribute); 2]| every_kind().attribute("options", Attribute::dictionary(entries));
    let tolerance = || ("tolerance", Attribute::scalar(1.0_f64));
    says::<AllKinds>(
        call([tolerance(), ("step", Attribute::scalar(1_i64))]),
        "attribute `options.step` is unknown; the handler takes `tolerance`, `steps`, `inner`",
    );
    says::<AllKinds>(
        call([tolerance(), ("steps", Attribute::array(&[1_i64]))]),
        "attribute `options.steps` is an array of type i64[1], wanted a scalar of type i64",
    );
    let inner = Attribute::dictionary([("name", Attribute::string("x"))]);
    says::<AllKinds>(
        call([tolerance(), ("inner", inner)]),
        "attribute `options.inner.weights` is missing, wanted an array of type f32; there are `name`",
    );
    says::<AllKinds>(
        every_kind().scalar("options", 1_i32),
        "attribute `options` is a scalar of type i32, wanted a dictionary of `tolerance` (a scalar of type f64), `steps` (a scalar of type i64), \
         `inner` (a dictionary of `name` (a string), `weights` (an array of type f32))",
    );
}

// Context.

fn context(ordinal: DeviceOrdinal, run: RunId, mut y: Output<'_, i64, 1>) -> Result<(), Error> {
    y.write(&[ordinal.0.into(), run.0])
}

handler!(Context = context(ordinal, run, y));

#[test]
fn the_device_and_the_run_have_numbers() {
    assert_eq!(run::<Context>(Invocation::new().result::<i64>(&[2])).unwrap().get::<i64>(0), [3, 77]);
}

fn on_gpu(stream: Stream<'_>, x: Operand<'_, f32, 1, Device>, mut y: Output<'_, f32, 1, Device>) {
    assert!(!stream.as_ptr().is_null() && !x.as_ptr().is_null() && !y.as_mut_ptr().is_null());
}

handler!(OnGpu = on_gpu(stream, x, y), traits = Traits::COMMAND_BUFFER_COMPATIBLE);

#[test]
fn a_handler_of_a_gpu_gets_the_stream_and_addresses() {
    let call = || Invocation::new().operand(&[2], &[1.0_f32, 2.0]).result::<f32>(&[2]);
    run::<OnGpu>(call().stream(4096)).unwrap();
    // Device memory is the business of the device: there is no slice of it that could overlap.
    run::<OnGpu>(Invocation::new().operand(&[2], &[1.0_f32, 2.0]).in_place(0).stream(4096)).unwrap();
    let text = fails::<OnGpu>(call(), Code::FailedPrecondition);
    assert!(text.contains("it was registered for the wrong platform"), "{text}");
}

fn nothing() {}

handler!(Combined = nothing(), traits = Traits::COMMAND_BUFFER_COMPATIBLE.and(Traits::from_bits(1 << 7)));

#[test]
fn traits_combine() {
    assert_eq!(Combined::TRAITS, Traits::from_bits(1 << 7) | Traits::COMMAND_BUFFER_COMPATIBLE);
    assert_eq!(Combined::TRAITS.bits(), 0b1000_0001);
    assert!(Combined::TRAITS.contains(Traits::COMMAND_BUFFER_COMPATIBLE) && Combined::TRAITS.contains(Traits::NONE));
    assert!(!Traits::NONE.contains(Traits::COMMAND_BUFFER_COMPATIBLE));
}

fn scratch(mut scratch: Scratch<'_>, bytes: u64) -> Result<(), Error> {
    let first = scratch.allocate(64, 16)?;
    let second = scratch.allocate(usize::try_from(bytes).unwrap(), 16)?;
    assert_ne!(first, second);
    Ok(())
}

handler!(Scratches = scratch(memory; bytes));

#[test]
fn scratch_memory_is_there_for_the_call_and_freed_after_it() {
    let mut site = CallSite::new();
    site.run::<Scratches>(Invocation::new().scalar("bytes", 32_u64)).map(|_| ()).unwrap();
    let (code, text) = site.run::<Scratches>(Invocation::new().scalar("bytes", u64::MAX)).map(|_| ()).unwrap_err();
    assert_eq!((code, &text[..]), (Code::ResourceExhausted as i32, "out of device memory"));
    assert_eq!(site.allocated(), 0);
}

fn parallel(
    pool: ThreadPool<'_>,
    x: Operand<'_, f64, 1>,
    mut y: Output<'_, f64, 1>,
    fail_at: i64,
) -> Result<(), Error> {
    assert_eq!(pool.threads()?, 4);
    let x = x.as_slice();
    let parts: Vec<_> = y.zeroed().chunks_mut(10).map(Mutex::new).collect();
    pool.for_each(parts.len(), |index| {
        assert_ne!(i64::try_from(index).unwrap(), fail_at, "part {index} fails");
        let mut part = parts[index].lock().unwrap();
        for (y, x) in part.iter_mut().zip(&x[10 * index..]) {
            *y = x.sqrt();
        }
    })
}

handler!(Parallel = parallel(pool, x, y; fail_at));

#[test]
fn the_threads_of_the_host_do_each_part_once() {
    let x: Vec<f64> = (0..995_i32).map(f64::from).collect();
    let call = |fail_at: i64| Invocation::new().operand(&[995], &x).result::<f64>(&[995]).scalar("fail_at", fail_at);
    let y = run::<Parallel>(call(-1)).unwrap().get::<f64>(0);
    assert!(y.iter().zip(&x).all(|(y, x)| y.to_bits() == x.sqrt().to_bits()));
    let text = fails::<Parallel>(call(7), Code::Internal);
    assert!(text.starts_with("the handler panicked: ") && text.contains("part 7 fails"), "{text}");
}

/// Thrown by a part; to drop it panics once more.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("thrown while being dropped");
    }
}

fn explode(pool: ThreadPool<'_>) -> Result<(), Error> {
    pool.for_each(50, |_| std::panic::panic_any(Bomb))
}

handler!(Explode = explode(pool));

#[test]
fn all_parts_are_done_or_given_up_before_the_call_ends_whatever_they_throw() {
    assert_eq!(fails::<Explode>(Invocation::new(), Code::Internal), "the handler panicked: no message");
}

// State and stages.

static DROPPED: AtomicU64 = AtomicU64::new(0);

struct Counter(AtomicU64);

impl Drop for Counter {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

fn start(from: u64) -> Result<NewState<Counter>, Error> {
    if from == 13 {
        return Err(Error::new(Code::OutOfRange, "13 is no number to start from"));
    }
    Ok(NewState(Counter(AtomicU64::new(from))))
}

fn prepare(counter: State<'_, Counter>) -> NewState<u64> {
    NewState(counter.0.load(Ordering::Relaxed) * 100)
}

fn count(counter: State<'_, Counter>, prepared: Prepared<'_, u64>, mut y: Output<'_, u64, 1>) -> Result<(), Error> {
    y.write(&[counter.0.fetch_add(1, Ordering::Relaxed), *prepared])
}

handler!(Start = start(; from), stage = Instantiate);
handler!(Prepare = prepare(counter; ..), stage = Prepare);
handler!(Count = count(counter, prepared, y; ..));

#[test]
fn state_is_made_once_for_a_call_site_found_in_every_call_and_dropped_with_it() {
    let from = |from: u64| Invocation::new().scalar("from", from).stream(4096);
    let (mut one, mut other) = (CallSite::new(), CallSite::new());
    one.run::<Start>(from(5)).map(|_| ()).unwrap();
    one.run::<Prepare>(from(5)).map(|_| ()).unwrap();
    other.run::<Start>(from(70)).map(|_| ()).unwrap();
    other.run::<Prepare>(from(70)).map(|_| ()).unwrap();
    let count =
        |site: &mut CallSite, first: u64| site.run::<Count>(from(first).result::<u64>(&[2])).unwrap().get::<u64>(0);
    assert_eq!(count(&mut one, 5), [5, 500]);
    assert_eq!(count(&mut one, 5), [6, 500]);
    assert_eq!(count(&mut other, 70), [70, 7000]);
    assert_eq!(count(&mut one, 5), [7, 500]);
    let dropped = DROPPED.load(Ordering::Relaxed);
    drop(one);
    assert_eq!(DROPPED.load(Ordering::Relaxed), dropped + 1);
}

#[test]
fn a_state_that_is_missing_or_cannot_be_made_is_an_error() {
    let (code, text) = CallSite::new().run::<Count>(Invocation::new().result::<u64>(&[2])).map(|_| ()).unwrap_err();
    assert_eq!(code, Code::FailedPrecondition as i32);
    assert!(text.starts_with("the state `counter` (typed::Counter) is missing: State is not set; "), "{text}");
    assert!(text.contains("has to be registered for the stage \"instantiate\" of the same target"), "{text}");
    let mut on_host = CallSite::new();
    on_host.run::<Start>(Invocation::new().scalar("from", 5_u64)).map(|_| ()).unwrap();
    let call = Invocation::new().result::<u64>(&[2]).scalar("from", 5_u64);
    let (_, text) = on_host.run::<Count>(call).map(|_| ()).unwrap_err();
    assert!(
        text.starts_with("the state `prepared` (u64) is missing: on the host there are no handlers for that stage"),
        "{text}"
    );
    let text = fails::<Start>(Invocation::new().scalar("from", 13_u64), Code::OutOfRange);
    assert_eq!(text, "13 is no number to start from");
}

fn record(calls: State<'_, Counter>, mut y: Output<'_, u64, 0, Device>) {
    calls.0.fetch_add(1, Ordering::Relaxed);
    assert!(!y.as_mut_ptr().is_null());
}

handler!(Record = record(calls, y; ..), stage = Record);

fn prepare_with(x: Operand<'_, f32, 1>) {
    assert!(x.is_empty());
}

fn prepare_at(x: Operand<'_, f32, 1, Device>, y: Option<Output<'_, f32, 1, Device>>) {
    assert_eq!((x.len(), y.map(|y| y.len())), (2, Some(3)));
}

handler!(PrepareWithout = prepare(counter; ..), stage = Prepare);
handler!(PrepareWith = prepare_with(x), stage = Prepare);
handler!(PrepareAt = prepare_at(x, y), stage = Prepare);

#[test]
fn operands_have_no_elements_before_they_hold_data_and_may_be_left_out() {
    let call = || Invocation::new().operand(&[2], &[1.0_f32, 2.0]).result::<f32>(&[3]);
    let mut site = CallSite::new();
    site.run::<Start>(Invocation::new().scalar("from", 5_u64)).map(|_| ()).unwrap();
    site.run::<PrepareWithout>(call()).map(|_| ()).unwrap();
    run::<PrepareAt>(call()).map(|_| ()).unwrap();
    let text = fails::<PrepareWith>(call(), Code::FailedPrecondition);
    assert!(text.starts_with("`x` has no elements before the stage \"execute\""), "{text}");
}

#[test]
fn a_handler_may_be_for_the_stage_in_which_graphs_are_recorded() {
    let mut site = CallSite::new();
    site.run::<Start>(Invocation::new().scalar("from", 5_u64)).map(|_| ()).unwrap();
    site.run::<Record>(Invocation::new().result::<u64>(&[])).map(|_| ()).unwrap();
    let (_, text) = site.run_in::<Record>(3, Invocation::new()).map(|_| ()).unwrap_err();
    assert!(text.contains("register it as the \"record\" handler"), "{text}");
}

#[test]
fn a_handler_is_not_called_in_a_stage_that_it_is_not_for() {
    let call = Invocation::new().scalar("from", 5_u64);
    let (code, text) = CallSite::new().run_in::<Start>(3, call).map(|_| ()).unwrap_err();
    assert_eq!(code, Code::Unimplemented as i32);
    assert!(text.contains("this handler is for stage 0 (INSTANTIATE) alone"), "{text}");
}

fn too_late() -> NewState<u8> {
    NewState(1)
}

handler!(TooLate = too_late());

fn mark() -> NewState<()> {
    NewState(())
}

fn find_mark(_mark: State<'_, ()>) {}

fn find_other(_mark: State<'_, [u8; 0]>) {}

handler!(Mark = mark(), stage = Instantiate);
handler!(FindMark = find_mark(mark));
handler!(FindOther = find_other(mark));

#[test]
fn a_state_may_have_no_bytes_is_found_by_its_type_and_is_not_made_by_the_call_itself() {
    let mut site = CallSite::new();
    site.run::<Mark>(Invocation::new()).map(|_| ()).unwrap();
    site.run::<FindMark>(Invocation::new()).map(|_| ()).unwrap();
    let (code, text) = site.run::<FindOther>(Invocation::new()).map(|_| ()).unwrap_err();
    assert!(code == Code::FailedPrecondition as i32 && text.contains("([u8; 0]) is missing"), "{text}");
    let text = fails::<TooLate>(Invocation::new(), Code::Unimplemented);
    assert_eq!(text, "only in the stages before \"execute\" may a handler return a state");
}

// Results that come later.

fn later<'a>(x: Operand<'a, f64, 1>, y: Output<'a, f64, 1>, how: i64) -> Result<Future<'a>, Error> {
    if how < 0 {
        return Err(Error::new(Code::OutOfRange, "not even a future"));
    }
    Ok(Future::new((x, y), move |mut promise| {
        assert_ne!(how, 5, "it does not start");
        if how == 0 {
            let (x, mut y) = promise.parameters();
            y.fill_with(|index| -x[index]);
            return promise.complete(Ok(()));
        }
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            match how {
                1 => promise.fulfil(|(x, mut y)| {
                    assert_eq!((x.dims(), y.dims()), (&[2][..], &[2][..]));
                    y.fill_with(|index| 2.0 * x[index]);
                    Ok(())
                }),
                2 => promise.fulfil(|(_, mut y)| y.write(&[1.0])),
                3 => promise.fulfil(|_| panic!("no luck")),
                _ => drop(promise),
            }
        });
    }))
}

handler!(Later = later(x, y; how));

#[test]
fn results_that_come_later_are_there_when_the_call_is_done() {
    let call = |how: i64| Invocation::new().operand(&[2], &[1.0_f64, 3.0]).result::<f64>(&[2]).scalar("how", how);
    assert_eq!(run::<Later>(call(0)).unwrap().get::<f64>(0), [-1.0, -3.0]);
    assert_eq!(run::<Later>(call(1)).unwrap().get::<f64>(0), [2.0, 6.0]);
    assert_eq!(fails::<Later>(call(-1), Code::OutOfRange), "not even a future");
    let text = fails::<Later>(call(2), Code::InvalidArgument);
    assert!(text.starts_with("the handler has 1 values for a result of f64[2]"), "{text}");
    assert_eq!(fails::<Later>(call(3), Code::Internal), "the handler panicked: no luck");
    let dropped = fails::<Later>(call(4), Code::Aborted);
    assert_eq!(
        dropped,
        "the results of the call never came: the handler's promise was dropped before it was completed"
    );
    let dropped = fails::<Later>(call(5), Code::Aborted);
    assert!(dropped.ends_with("dropped by a panic before it was completed"), "{dropped}");
}

fn all_later<'a>(
    first: Operand<'a, i32, 0>,
    others: Vec<Operand<'a, i32, 1>>,
    sum: Output<'a, i32, 0>,
    count: Option<Output<'a, u8, 0>>,
    pool: ThreadPool<'a>,
) -> Future<'a> {
    Future::new((first, others, (sum, count)), move |promise| {
        pool.spawn(move || {
            promise.fulfil(|(first, others, (mut sum, count))| {
                if let Some(mut count) = count {
                    count.write(&[u8::try_from(others.len()).unwrap()])?;
                }
                sum.write(&[first[0] + others.iter().flat_map(|other| other.iter()).sum::<i32>()])
            });
        });
    })
}

handler!(AllLater = all_later(first, others, sum, count, pool));

#[test]
fn what_is_left_out_or_many_can_be_used_later_on_the_threads_of_the_host() {
    let call = || Invocation::new().operand(&[], &[5_i32]).result::<i32>(&[]);
    assert_eq!(run::<AllLater>(call()).unwrap().get::<i32>(0), [5]);
    let call = call().operand(&[2], &[1_i32, 2]).operand(&[1], &[4_i32]).result::<u8>(&[]);
    let results = run::<AllLater>(call).unwrap();
    assert_eq!((results.get::<i32>(0), results.get::<u8>(1)), (vec![12], vec![2]));
}

fn double_later(x: InPlace<'_, f32>) -> Future<'_> {
    Future::new(x, |promise| {
        std::thread::spawn(|| {
            promise.fulfil(|mut x| {
                x.iter_mut().for_each(|x| *x *= 2.0);
                Ok(())
            });
        });
    })
}

handler!(DoubleLater = double_later(x));

fn too_early() -> Future<'static> {
    Future::new((), |_| {})
}

handler!(TooEarly = too_early(), stage = Initialize);

#[test]
fn a_future_is_for_a_change_in_place_too_and_for_the_last_stage_alone() {
    let call = Invocation::new().operand(&[2], &[1.0_f32, 3.0]).in_place(0);
    assert_eq!(run::<DoubleLater>(call).unwrap().get::<f32>(0), [2.0, 6.0]);
    let text = fails::<TooEarly>(Invocation::new(), Code::Unimplemented);
    assert_eq!(text, "only in the stage \"execute\" may a handler return a future");
}

// Errors.

fn fail(code: i64) -> Result<(), Error> {
    let code = Code::ALL[usize::try_from(code).unwrap() - 1];
    Err(Error::new(code, format!("{code:?}")))
}

handler!(Fail = fail(; code));

#[test]
fn all_sixteen_codes_arrive() {
    for number in 1..=16 {
        let (code, text) = run::<Fail>(Invocation::new().scalar("code", number)).map(|_| ()).unwrap_err();
        assert_eq!((i64::from(code), text), (number, format!("{:?}", Code::ALL[usize::try_from(number).unwrap() - 1])));
    }
    let text = fails::<Fail>(Invocation::new().scalar("code", 99_i64), Code::Internal);
    assert!(text.starts_with("the handler panicked: index out of bounds"), "{text}");
}
