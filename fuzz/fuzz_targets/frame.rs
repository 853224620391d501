//! Call frames with anything wrong in them that a reader can notice: sizes, counts, types, ranks, dimensions, null and
//! misaligned pointers, missing functions. Every handler answers or returns an error; it reads nothing that is not
//! there (each struct and list is an allocation of its own size, watched by AddressSanitizer), and a payload keeps its bytes.
//!
//! Kept out: what a reader has to believe (a list is as long as its count, a struct as long as its size says), and
//! frames that cannot even carry an error, for which handlers end the process on purpose.
#![no_main]

use core::ffi::{CStr, c_int, c_void};
use core::mem::{offset_of, size_of};
use core::ptr::null_mut;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::{Mutex, Once};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use xla_ffi::{
    Arg, Array, Attributes, BF16, Code, Complex, Device, DeviceOrdinal, Element, Error, F8E3M4, F8E4M3, F8E4M3B11FNUZ, F8E4M3FN, F8E4M3FNUZ,
    F8E5M2, F8E5M2FNUZ, F8E8M0FNU, F16, Future, Handler, InPlace, NewState, Operand, Output, Prepared, Ret, RunId, Scratch, Stage, State,
    ThreadPool, Token, Value, attributes, ffi, handler,
};

/// Calls a macro with each element type.
macro_rules! each_type {
    ($call:ident($($with:tt)*)) => {
        $call!(($($with)*) bool i8 i16 i32 i64 u8 u16 u32 u64 F16 BF16 f32 f64 Complex<f32> Complex<f64> F8E5M2 F8E3M4 F8E4M3 F8E4M3FN
            F8E4M3B11FNUZ F8E5M2FNUZ F8E4M3FNUZ F8E8M0FNU)
    };
}

/// Reads all that typed views and attributes can have, and writes its results.
fn typed(
    x: Operand<'_, f32>,
    flags: Option<Operand<'_, bool, 1>>,
    z: Option<Operand<'_, Complex<f64>, 2>>,
    rest: Vec<xla_ffi::Buffer<'_, Arg>>,
    mut y: Output<'_, f32>,
    mut more: Option<Output<'_, i64, 1, Device>>,
    all: Attributes<'_>,
) {
    let sum = x.iter().sum::<f32>() + z.map_or(0.0, |z| z.iter().map(|z| z.re as f32).sum());
    let flags = flags.map_or(0, |flags| flags.iter().filter(|&&flag| flag).count());
    let elements: usize = rest.iter().map(|each| each.elements().unwrap_or(0).min(1 << 20)).sum();
    y.fill_with(|index| sum + index as f32 + flags as f32 + elements as f32);
    std::hint::black_box(more.as_mut().map(Output::as_mut_ptr));
    look_at(&all, 0);
}

fn look_at(attributes: &Attributes<'_>, depth: usize) {
    for name in attributes.names().unwrap_or_default() {
        match attributes.value(name) {
            Ok(Some(Value::Scalar(it) | Value::Array(it))) => look_at_elements(&it),
            Ok(Some(Value::String(text))) => assert!(text.len() < 1 << 20),
            Ok(Some(Value::Dictionary(more))) if depth < 4 => look_at(&more, depth + 1),
            _ => {}
        }
    }
}

/// Every byte of elements of any type, in the way in which Rust sees them.
fn look_at_elements(array: &Array<'_>) {
    macro_rules! look {
        (() $($of:ident $(<$part:ident>)?)*) => {
            $(if let Ok(Some(all)) = array.elements::<$of $(<$part>)?>() {
                assert_eq!(all.len(), array.len());
                std::hint::black_box(all.to_vec());
            })*
        };
    }
    each_type!(look());
}

handler!(Typed = typed(x, flags, z, rest, y, more; all, ..));

/// Copies operands of any type, each as the type that it has, and is told of results by type.
fn copies(
    all: Vec<xla_ffi::Buffer<'_, Arg>>,
    tokens: Vec<Token<Ret>>,
    first: Option<Output<'_, F8E4M3FN>>,
    second: Option<Output<'_, Complex<f32>, 1>>,
    flags: Option<Output<'_, bool, 0>>,
    rest: Vec<Output<'_, u16>>,
) -> Result<(), Error> {
    for each in &all {
        let mut read = 0;
        macro_rules! copy {
            (() $($of:ident $(<$part:ident>)?)*) => {
                $(match each.read::<$of $(<$part>)?>() {
                    Ok(all) => {
                        assert_eq!(each.dtype(), <$of $(<$part>)?>::DTYPE);
                        std::hint::black_box(all);
                        read += 1;
                    }
                    Err(error) => assert!(matches!(error.code(), Code::InvalidArgument | Code::Internal)),
                })*
            };
        }
        each_type!(copy());
        assert!(read <= 1);
    }
    if let Some(mut first) = first {
        first.zeroed();
    }
    if let Some(mut second) = second {
        second.write(&vec![Complex::new(1.0, 2.0); second.len()])?;
    }
    if let Some(mut flags) = flags {
        flags.fill_with(|_| true);
    }
    for mut each in rest {
        each.fill_with(|index| index as u16);
    }
    std::hint::black_box(tokens);
    Ok(())
}

handler!(Copies = copies(all, tokens, first, second, flags, rest; ..));

/// The same types as they are, in place, left out or many.
fn views(
    half: Option<Operand<'_, F16, 1>>,
    eight: Option<Operand<'_, F8E5M2>>,
    long: Vec<Operand<'_, u64>>,
    mut y: Output<'_, Complex<f32>>,
    all: Option<&[Complex<f32>]>,
    label: Option<&[F8E5M2]>,
    factor: Option<BF16>,
) {
    let sum = long.iter().flat_map(|each| each.iter()).fold(0_u64, |sum, each| sum.wrapping_add(*each));
    std::hint::black_box((half.map(|half| half.to_vec()), eight.map(|eight| eight.to_vec()), label.map(<[F8E5M2]>::to_vec), factor));
    y.fill_with(|index| all.and_then(|all| all.get(index).copied()).unwrap_or(Complex::new(sum as f32, 0.0)));
}

handler!(Views = views(half, eight, long, y; all, label, factor, ..));

fn change(mut x: InPlace<'_, f32>, others: Vec<InPlace<'_, u8>>, _label: Option<&str>, _factor: Option<f64>) {
    x.iter_mut().for_each(|x| *x += 1.0);
    for mut other in others {
        other.fill(7);
    }
}

handler!(Change = change(x, others; label, factor));

attributes! {
    struct Options {
        label: Option<String>,
        factor: Option<f64>,
        all: Option<Inner>,
    }
    struct Inner {
        factor: Option<Vec<i32>>,
        label: Option<F16>,
    }
}

/// Attributes as all kinds of Rust types, by the names that the input has.
fn options(y: Option<Output<'_, u8>>, all: Option<Options>, label: Option<&[bool]>, factor: Option<Complex<f32>>) {
    if let Some(mut y) = y {
        y.zeroed();
    }
    let inner = all.and_then(|all| all.all);
    std::hint::black_box((inner.and_then(|inner| inner.factor).map(|factor| factor.len()), label.map(<[bool]>::len), factor));
}

handler!(ReadOptions = options(y; all, label, factor));

#[derive(Debug)]
/// What a state is made of, of which more than one handler has a reference.
struct Numbers(Vec<u64>);

fn make(label: Option<String>) -> Result<NewState<Numbers>, Error> {
    Ok(NewState(Numbers(label.unwrap_or_default().bytes().map(u64::from).collect())))
}

handler!(Make = make(; label), stage = Instantiate);

fn find(numbers: State<'_, Numbers>, y: Option<Output<'_, u64>>) {
    if let Some(mut y) = y {
        y.fill_with(|index| numbers.0.get(index).copied().unwrap_or_default());
    }
}

handler!(Find = find(numbers, y; ..));

fn find_prepared(numbers: Prepared<'_, Numbers>) {
    std::hint::black_box(numbers.0.iter().sum::<u64>());
}

handler!(FindPrepared = find_prepared(numbers; ..));

fn context(device: DeviceOrdinal, run: RunId, mut memory: Scratch<'_>, pool: ThreadPool<'_>, _: Option<Token<Arg>>) -> Result<(), Error> {
    std::hint::black_box((device, run, memory.allocate(64, 16)?));
    std::hint::black_box(memory.allocate(1, 1)).ok();
    let sum = std::sync::atomic::AtomicUsize::new(0);
    pool.for_each(5, |index| {
        sum.fetch_add(index, std::sync::atomic::Ordering::Relaxed);
    })?;
    assert_eq!(sum.into_inner(), 10);
    Ok(())
}

handler!(Context = context(device, run, memory, pool, token; ..));

fn later<'a>(
    pool: ThreadPool<'a>,
    x: Operand<'a, BF16>,
    rest: Vec<Operand<'a, i16, 1>>,
    y: Output<'a, BF16>,
    change: Option<InPlace<'a, u32>>,
    factor: Option<f64>,
) -> Future<'a> {
    Future::new((x, rest, (y, change)), move |mut promise| {
        let (x, ..) = promise.parameters();
        if factor.is_some() && x.is_empty() {
            return; // and drops the promise
        }
        pool.spawn(move || {
            promise.fulfil(|(x, rest, (mut y, change))| {
                assert!(rest.len() < 2, "a panic is an error");
                if let Some(mut change) = change {
                    change.iter_mut().for_each(|each| *each = !*each);
                }
                y.fill_with(|index| x.get(index).copied().unwrap_or_default());
                Ok(())
            });
        });
    })
}

handler!(Later = later(pool, x, rest, y, change; factor, ..));

/// A handler that is called, and what it needs.
struct Called {
    name: &'static str,
    handler: ffi::Handler,
    on_gpu: bool,
    stage: Stage,
}

const HANDLERS: usize = 17;

/// The slots of GPUs are not among them: they would pass the stream on to a driver.
fn handlers() -> [Called; HANDLERS] {
    const fn called(name: &'static str, handler: ffi::Handler, on_gpu: bool) -> Called {
        Called { name, handler, on_gpu, stage: Stage::Execute }
    }
    fn typed<H: Handler>(name: &'static str) -> Called {
        Called { name, handler: H::FUNCTION, on_gpu: false, stage: H::STAGE }
    }
    let [entangle, read, write] = entangle_cpu::TARGETS.map(|target| target.handler);
    let [cuda, rocm] = [entangle_cuda::TARGETS, entangle_rocm::TARGETS].map(|[entangle, ..]| entangle);
    [
        called("entangle", entangle, false),
        called("entangle on CUDA", cuda.handler, true),
        called("entangle in a CUDA graph", cuda.in_graph.unwrap(), true),
        called("entangle on ROCm", rocm.handler, true),
        called("entangle in a HIP graph", rocm.in_graph.unwrap(), true),
        called("read", read, false),
        called("write", write, false),
        typed::<Typed>("views and attributes"),
        typed::<Copies>("copies of every type"),
        typed::<Views>("views that may be left out"),
        typed::<Change>("in place"),
        typed::<ReadOptions>("dictionaries"),
        typed::<Make>("new state"),
        typed::<Find>("state"),
        typed::<FindPrepared>("prepared state"),
        typed::<Context>("context"),
        typed::<Later>("future"),
    ]
}

/// How often each handler has had a success, an error of its own and one for its frame; and futures that were fulfilled, that failed, and that
/// were completed after the handler had returned; and states that were made, found, and freed.
static REACHED: [[AtomicUsize; 3]; HANDLERS] = [const { [const { AtomicUsize::new(0) }; 3] }; HANDLERS];
static FUTURES: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
static STATES: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

fn count(what: &AtomicUsize) {
    what.fetch_add(1, Ordering::Relaxed);
}

/// Says at the end what was reached.
extern "C" fn tell() {
    let numbers = |all: &[AtomicUsize]| all.iter().map(|each| each.load(Ordering::Relaxed).to_string()).collect::<Vec<_>>().join(" ");
    for (called, reached) in handlers().iter().zip(&REACHED) {
        eprintln!("reached: {} (answers, errors, malformed frames): {}", called.name, numbers(reached));
    }
    eprintln!("reached: futures (fulfilled, failed, after the return): {}", numbers(&FUTURES));
    eprintln!("reached: states (made, found, freed): {}", numbers(&STATES));
}

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
}

static TOLD: Once = Once::new();

/// The first of them that are `entangle`.
const PASS_THROUGH: usize = 5;

/// What may be wrong with a pointer.
#[derive(Arbitrary, Clone, Copy, Debug, PartialEq)]
enum Pointer {
    Good,
    Fine,
    Null,
    Misaligned,
}

#[derive(Arbitrary, Debug)]
enum Stream {
    Missing,
    Fails,
    FailsWithoutWords,
    NoFunction,
    Is(u16),
}

/// What a function of the runtime does.
#[derive(Arbitrary, Clone, Copy, Debug, PartialEq)]
enum Answer {
    Right,
    Fine,
    Fails,
    /// It gives a null pointer, or a number that cannot be.
    Nothing,
    Missing,
}

/// What the context of a call points to.
#[derive(Debug)]
struct Runtime {
    stream: Stream,
    answer: Answer,
    /// The state that a handler has set, and the number of its type.
    state: Option<(*mut c_void, usize)>,
    allocated: usize,
    /// Whether tasks wait until the handler has returned.
    defers: bool,
    tasks: Vec<(unsafe extern "C" fn(*mut c_void), *mut c_void)>,
}

impl Runtime {
    fn free_state(&mut self) {
        if let Some((state, id)) = self.state.take() {
            let deleter = TYPES.lock().unwrap()[id - 1];
            // SAFETY: the handler has set it to be freed by this.
            unsafe { deleter(state) };
            count(&STATES[2]);
        }
    }
}

#[derive(Arbitrary, Debug)]
enum Extension {
    Unknown { size: u8, kind: i8 },
    Metadata { base_size: u8, size: u8 },
}

#[derive(Arbitrary, Debug)]
struct Buffer {
    kind: i8,
    pointer: Pointer,
    size: u8,
    dtype: i8,
    /// Small sizes as they are, others stand for large and negative ones.
    dims: Vec<u8>,
    rank: Option<i8>,
    dims_pointer: Pointer,
    data: Pointer,
    /// A result that lies where this operand does.
    alias: bool,
}

impl Buffer {
    /// Its element type: often one of those that the handlers take.
    fn dtype(&self) -> i8 {
        const TAKEN: [i8; 8] = [11, 16, 6, 1, 18, 3, 8, 9];
        if self.dtype >= 64 { TAKEN[usize::from(self.dtype.unsigned_abs()) % 8] } else { self.dtype }
    }
}

#[derive(Arbitrary, Debug)]
struct List {
    size_of_struct: u8,
    negative: bool,
    buffers: Vec<Buffer>,
    types_pointer: Pointer,
    items_pointer: Pointer,
}

#[derive(Arbitrary, Debug)]
enum AttributeValue {
    Text(Vec<u8>),
    Scalar { dtype: i8, bytes: [u8; 16] },
    Array { dtype: i8, elements: Vec<u8> },
    Dictionary { size: u8, negative: bool, entries: Vec<Attribute> },
    Other(i8),
}

#[derive(Arbitrary, Debug)]
struct Attribute {
    value: AttributeValue,
    known: u8,
    name: Vec<u8>,
    pointers: [Pointer; 4],
}

#[derive(Arbitrary, Debug)]
struct Input {
    handler: u8,
    frame_size: u8,
    stage: u8,
    api_size: u16,
    stream: Stream,
    answer: Answer,
    is_tidy: bool,
    defers: bool,
    has_state: bool,
    extensions: Vec<Extension>,
    args: List,
    rets: List,
    attributes: Vec<Attribute>,
    attributes_size: u8,
    attributes_negative: bool,
    attribute_pointers: [Pointer; 3],
}

/// Every allocation of one frame.
#[derive(Default)]
struct Memory(Vec<(*mut u8, Layout)>);

impl Memory {
    fn bytes(&mut self, size: usize, align: usize) -> *mut u8 {
        let layout = Layout::from_size_align(size.max(1), align).unwrap();
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        assert!(!start.is_null());
        self.0.push((start, layout));
        start
    }

    /// `value`, of which at most `size` bytes are there, and never less than the size that it starts with.
    fn partly<T: Copy>(&mut self, value: T, size: usize) -> *mut T {
        let size = size.clamp(size_of::<usize>(), size_of::<T>());
        let start = self.bytes(size, align_of::<T>());
        // SAFETY: `start` has `size` bytes, and `T` at least as many.
        unsafe { core::ptr::copy_nonoverlapping((&raw const value).cast(), start, size) };
        start.cast()
    }

    fn list<T: Copy>(&mut self, values: &[T]) -> *mut T {
        let start = self.bytes(size_of_val(values), align_of::<T>());
        // SAFETY: there is room for exactly these.
        unsafe { core::ptr::copy_nonoverlapping(values.as_ptr().cast(), start, size_of_val(values)) };
        start.cast()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for &(start, layout) in &self.0 {
            // SAFETY: allocated above with that layout.
            unsafe { dealloc(start, layout) };
        }
    }
}

fn damaged<T>(pointer: *mut T, damage: Pointer) -> *mut T {
    match damage {
        Pointer::Good | Pointer::Fine => pointer,
        Pointer::Null => null_mut(),
        Pointer::Misaligned => pointer.cast::<u8>().wrapping_add(1).cast(),
    }
}

/// A size near the one that a struct has; `end` is the least that suffices.
fn size_near(byte: u8, end: usize) -> usize {
    match byte {
        0..160 => end,
        160..192 => end + 8 * usize::from(byte - 159),
        192..248 => end.saturating_sub(usize::from(byte - 191)),
        248..255 => usize::from(byte - 248),
        255 => usize::MAX,
    }
}

fn dimension(byte: u8) -> i64 {
    match byte {
        0..250 => i64::from(byte % 5),
        250 => i64::MAX,
        251 => i64::MIN,
        252 => -1,
        253 => 1 << 32,
        254 => (1 << 31) + 1,
        255 => 1 << 62,
    }
}

/// How many bytes a buffer has whose elements must be there: `None` if there are too many to be had, or none.
fn bytes_of(buffer: &Buffer, dims: &[i64]) -> Option<usize> {
    let width = width_of(buffer.dtype());
    let count = dims.iter().try_fold(1_usize, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?))?;
    count.checked_mul(width).filter(|&bytes| bytes <= 4096)
}

/// `XLA_FFI_DataType_TOKEN`: XLA gives tokens any memory, and nobody reads it.
const TOKEN: i8 = 17;

struct Data {
    start: *mut u8,
    bytes: usize,
    is_token: bool,
}

fn buffer(memory: &mut Memory, elements: &mut Memory, from: &Buffer, place_of: Option<&Data>) -> (*mut c_void, Data) {
    let dims: Vec<i64> = from.dims.iter().take(6).map(|&byte| dimension(byte)).collect();
    let bytes = bytes_of(from, &dims);
    let is_token = from.dtype() == TOKEN;
    let data = match place_of {
        Some(data) if from.alias && bytes.is_some_and(|bytes| bytes <= data.bytes) => {
            Data { start: data.start, bytes: data.bytes, is_token }
        }
        _ => match (bytes, from.data) {
            (Some(bytes), Pointer::Good | Pointer::Fine) => Data { start: elements.bytes(bytes, 64), bytes, is_token },
            // Bytes are aligned everywhere, so they must be there.
            (Some(bytes), Pointer::Misaligned) => Data { start: elements.bytes(bytes + 1, 64).wrapping_add(1), bytes: 0, is_token },
            (None, Pointer::Misaligned) if width_of(from.dtype()) > 1 => {
                Data { start: elements.bytes(1, 64).wrapping_add(1), bytes: 0, is_token }
            }
            _ => Data { start: null_mut(), bytes: 0, is_token },
        },
    };
    for i in 0..data.bytes {
        // SAFETY: there are that many bytes.
        unsafe { data.start.add(i).write(i as u8 ^ 0xa5) };
    }
    let rank = match from.rank {
        Some(rank) if rank < 0 => i64::from(rank) << 40,
        _ => dims.len() as i64,
    };
    let list = memory.list(&dims);
    let struct_size = size_near(from.size, ffi::Buffer::END);
    let mut value = ffi::Buffer::new();
    value.struct_size = struct_size;
    value.dtype = from.dtype().into();
    value.data = data.start.cast();
    value.rank = rank;
    value.dims = damaged(list, from.dims_pointer);
    let item = memory.partly(value, struct_size);
    (damaged(item, from.pointer).cast(), data)
}

/// The lists of types and items, their claimed length, and the memory of the buffers.
fn buffers(
    memory: &mut Memory,
    elements: &mut Memory,
    from: &List,
    places: &[Data],
) -> (i64, *const c_int, *const *mut c_void, Vec<Data>) {
    let (mut items, mut data) = (Vec::new(), Vec::new());
    for (i, each) in from.buffers.iter().take(8).enumerate() {
        let (item, its_data) = buffer(memory, elements, each, places.get(i));
        items.push(item);
        data.push(its_data);
    }
    let types: Vec<c_int> = from.buffers.iter().take(8).map(|each| if each.kind < 100 { 1 } else { each.kind.into() }).collect();
    let len = if from.negative { -(items.len() as i64) - 1 } else { items.len() as i64 };
    let types = memory.list(&types);
    let items = memory.list(&items);
    (len, damaged(types, from.types_pointer), damaged(items, from.items_pointer), data)
}

fn span(memory: &mut Memory, text: &[u8], at: Pointer, text_at: Pointer) -> *const ffi::ByteSpan {
    let bytes = memory.list(text);
    // A misaligned text is none the worse for it; one byte less of it is there.
    let len = text.len().saturating_sub(usize::from(text_at == Pointer::Misaligned));
    let span = memory.list(&[ffi::ByteSpan { ptr: damaged(bytes, text_at).cast(), len }]);
    damaged(span, at)
}

/// A list of attributes. What a value points to is there, or the pointer shows that it is not.
fn attributes(
    memory: &mut Memory,
    from: &[Attribute],
    struct_size: usize,
    negative: bool,
    damage: [Pointer; 3],
) -> ffi::Attrs {
    let (mut kinds, mut names, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for each in from.iter().take(4) {
        let name = match each.known {
            0..64 => b"label".as_slice(),
            64..96 => b"factor",
            96..128 => b"all",
            _ => &each.name[..],
        };
        names.push(span(memory, name, each.pointers[0], each.pointers[1]));
        let (kind, value): (c_int, *const c_void) = match &each.value {
            AttributeValue::Text(text) => {
                (ffi::ATTR_STRING, span(memory, text, each.pointers[2], each.pointers[3]).cast())
            }
            AttributeValue::Scalar { dtype, bytes } => {
                let data = memory.bytes(16, 16);
                // SAFETY: there are 16 bytes.
                unsafe { data.copy_from_nonoverlapping(bytes.as_ptr(), 16) };
                let value = damaged(data, each.pointers[3]).cast();
                let scalar = memory.list(&[ffi::Scalar { dtype: (*dtype).into(), value }]);
                (ffi::ATTR_SCALAR, damaged(scalar, each.pointers[2]).cast_const().cast())
            }
            AttributeValue::Array { dtype, elements } => {
                let data = memory.bytes(elements.len(), 16);
                // SAFETY: there are as many bytes.
                unsafe { data.copy_from_nonoverlapping(elements.as_ptr(), elements.len()) };
                let width = width_of(*dtype);
                let array =
                    ffi::Array { dtype: (*dtype).into(), size: elements.len() / width, data: damaged(data, each.pointers[3]).cast() };
                let array = memory.list(&[array]);
                (ffi::ATTR_ARRAY, damaged(array, each.pointers[2]).cast_const().cast())
            }
            AttributeValue::Dictionary { size, negative, entries } => {
                let struct_size = size_near(*size, ffi::Attrs::END);
                let inner = attributes(memory, entries, struct_size, *negative, [each.pointers[3]; 3]);
                let inner = memory.partly(inner, struct_size);
                (ffi::ATTR_DICTIONARY, damaged(inner, each.pointers[2]).cast_const().cast())
            }
            AttributeValue::Other(kind) => {
                let kind = c_int::from(*kind);
                (if (1..=4).contains(&kind) { 5 } else { kind }, null_mut::<c_void>().cast_const())
            }
        };
        kinds.push(kind);
        values.push(value);
    }
    let mut attrs = ffi::Attrs::new();
    attrs.struct_size = struct_size;
    attrs.size = if negative { -1 } else { names.len() as i64 };
    attrs.types = damaged(memory.list(&kinds), damage[0]);
    attrs.names = damaged(memory.list(&names), damage[1]);
    attrs.attrs = damaged(memory.list(&values), damage[2]);
    attrs
}

/// The bytes of an element.
fn width_of(dtype: i8) -> usize {
    xla_ffi::DType(dtype.into()).bytes().unwrap_or(8)
}

// The runtime: its errors are numbers.

/// Whether the last error was one of the frame.
static MALFORMED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn error_create(args: *mut ffi::ErrorCreateArgs) -> *mut ffi::Error {
    // SAFETY: the handler passes a complete struct with a null-terminated message.
    let (code, message) = unsafe { ((*args).code, CStr::from_ptr((*args).message)) };
    assert!((1..=16).contains(&code), "{code} is no status code");
    assert!(!message.to_bytes().is_empty());
    let text = std::str::from_utf8(message.to_bytes()).expect("a message is UTF-8");
    MALFORMED.store(text.starts_with("malformed"), Ordering::Relaxed);
    16 as *mut ffi::Error
}

unsafe extern "C" fn error_get_details(args: *mut ffi::ErrorGetDetailsArgs) {
    // SAFETY: the handler passes a complete struct.
    if unsafe { (*args).error } as usize == 24 {
        // SAFETY: as above.
        unsafe { (*args).message = c"the runtime cannot".as_ptr() };
    }
}

unsafe extern "C" fn error_destroy(args: *mut ffi::ErrorDestroyArgs) {
    // SAFETY: the handler passes a complete struct.
    let error = unsafe { (*args).error };
    assert!([24, 32].contains(&(error as usize)));
}

unsafe extern "C" fn stream_get(args: *mut ffi::StreamGetArgs) -> *mut ffi::Error {
    // SAFETY: the handler passes a complete struct, with the context.
    match unsafe { &(*(*args).ctx.cast::<Runtime>()).stream } {
        Stream::Missing | Stream::NoFunction => {}
        // SAFETY: as above.
        Stream::Is(stream) => unsafe { (*args).stream = usize::from(*stream) as *mut c_void },
        Stream::Fails => return 24 as *mut ffi::Error,
        Stream::FailsWithoutWords => return 32 as *mut ffi::Error,
    }
    null_mut()
}

/// Declares functions of the runtime that do what the input says: an error, or what `right` does, which is told whether to give nothing.
macro_rules! answers {
    ($($name:ident($args:ident: $type:ident, $runtime:ident, $nothing:ident) $right:block)*) => {
        $(unsafe extern "C" fn $name($args: *mut ffi::$type) -> *mut ffi::Error {
            // SAFETY: the handler passes a complete struct, with the context.
            let $runtime = unsafe { &mut *(*$args).ctx.cast::<Runtime>() };
            if $runtime.answer == Answer::Fails {
                return 24 as *mut ffi::Error;
            }
            let $nothing = $runtime.answer == Answer::Nothing;
            $right
            null_mut()
        })*
    };
}

/// What frees the objects of each type: its number is the position, counted from 1.
static TYPES: Mutex<Vec<unsafe extern "C" fn(*mut c_void)>> = Mutex::new(Vec::new());

unsafe extern "C" fn type_register(args: *mut ffi::TypeRegisterArgs) -> *mut ffi::Error {
    let mut types = TYPES.lock().unwrap();
    // SAFETY: the handler passes complete structs; a type that it registers has a function that frees it.
    types.push(unsafe { (*(*args).type_info).deleter }.unwrap());
    // SAFETY: as above.
    unsafe { (*(*args).type_id).type_id = types.len() as i64 };
    null_mut()
}

answers! {
    state_set(args: StateSetArgs, runtime, _nothing) {
        if runtime.state.is_some() {
            return 24 as *mut ffi::Error;
        }
        // SAFETY: the handler passes complete structs.
        let (id, state) = unsafe { ((*(*args).type_id).type_id, (*args).state) };
        runtime.state = Some((state, id as usize));
        count(&STATES[0]);
    }
    state_get(args: StateGetArgs, runtime, nothing) {
        // SAFETY: as above.
        let id = unsafe { (*(*args).type_id).type_id } as usize;
        match runtime.state {
            Some((state, of)) if of == id && !nothing => {
                // SAFETY: as above.
                unsafe { (*args).state = state };
                count(&STATES[1]);
            }
            Some(_) => {}
            None => return 24 as *mut ffi::Error,
        }
    }
    device_memory_allocate(args: DeviceMemoryAllocateArgs, runtime, nothing) {
        if nothing {
            return null_mut();
        }
        runtime.allocated += 1;
        // SAFETY: as above.
        unsafe { (*args).data = (64 * runtime.allocated) as *mut c_void };
    }
    device_memory_free(args: DeviceMemoryFreeArgs, runtime, _nothing) {
        // SAFETY: as above.
        assert!(unsafe { (*args).data } as usize <= 128);
        runtime.allocated -= 1;
    }
    thread_pool_schedule(args: ThreadPoolScheduleArgs, runtime, _nothing) {
        // SAFETY: as above.
        let (task, data) = unsafe { ((*args).task.unwrap(), (*args).data) };
        if runtime.defers {
            runtime.tasks.push((task, data));
        } else {
            // SAFETY: the handler says that the task can be called with this, once.
            unsafe { task(data) };
        }
    }
    thread_pool_num_threads(args: ThreadPoolNumThreadsArgs, _runtime, nothing) {
        // SAFETY: as above.
        unsafe { *(*args).num_threads = if nothing { -3 } else { 2 } };
    }
    run_id_get(args: RunIdGetArgs, _runtime, _nothing) {
        // SAFETY: as above.
        unsafe { (*args).run_id = 9 };
    }
    device_ordinal_get(args: DeviceOrdinalGetArgs, _runtime, _nothing) {
        // SAFETY: as above.
        unsafe { (*args).device_ordinal = -1 };
    }
}

const FUTURE: usize = 40;

/// How many futures were completed.
static COMPLETED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn future_create(args: *mut ffi::FutureCreateArgs) -> *mut ffi::Error {
    // SAFETY: the handler passes a complete struct.
    unsafe { (*args).future = FUTURE as *mut ffi::Future };
    null_mut()
}

unsafe extern "C" fn no_future(_: *mut ffi::FutureCreateArgs) -> *mut ffi::Error {
    null_mut()
}

unsafe extern "C" fn future_fails(_: *mut ffi::FutureCreateArgs) -> *mut ffi::Error {
    24 as *mut ffi::Error
}

unsafe extern "C" fn future_set_available(args: *mut ffi::FutureSetAvailableArgs) -> *mut ffi::Error {
    // SAFETY: the handler passes a complete struct.
    assert_eq!(unsafe { (*args).future } as usize, FUTURE);
    COMPLETED.fetch_add(1, Ordering::Relaxed);
    count(&FUTURES[0]);
    null_mut()
}

unsafe extern "C" fn future_set_error(args: *mut ffi::FutureSetErrorArgs) -> *mut ffi::Error {
    // SAFETY: the handler passes a complete struct, with an error that it has made.
    assert_eq!(unsafe { ((*args).future as usize, (*args).error as usize) }, (FUTURE, 16));
    COMPLETED.fetch_add(1, Ordering::Relaxed);
    count(&FUTURES[1]);
    null_mut()
}

fn extension_of(struct_size: usize, kind: c_int, next: *mut ffi::Extension) -> ffi::Extension {
    let mut extension = ffi::Extension::new();
    extension.struct_size = struct_size;
    extension.kind = kind;
    extension.next = next;
    extension
}

/// Takes out most of what may be wrong, so that handlers get on to what they do with a right frame.
fn tidy(input: &mut Input) {
    (input.frame_size, input.stage, input.attributes_size) = (0, 0, 0);
    (input.attributes_negative, input.attribute_pointers) = (false, [Pointer::Good; 3]);
    input.extensions.clear();
    for list in [&mut input.args, &mut input.rets] {
        (list.size_of_struct, list.negative) = (0, false);
        (list.types_pointer, list.items_pointer) = (Pointer::Good, Pointer::Good);
        for each in &mut list.buffers {
            (each.kind, each.size, each.rank) = (1, 0, None);
            (each.pointer, each.dims_pointer, each.data) = (Pointer::Good, Pointer::Good, Pointer::Good);
            for dim in &mut each.dims {
                *dim %= 250;
            }
        }
    }
}

fuzz_target!(|input: Input| {
    let mut input = input;
    if input.is_tidy {
        tidy(&mut input);
    }
    TOLD.call_once(|| {
        // SAFETY: the function only prints.
        assert_eq!(unsafe { atexit(tell) }, 0);
    });
    let (mut memory, mut elements) = (Memory::default(), Memory::default());
    let handlers = handlers();
    let which = usize::from(input.handler) % handlers.len();
    let Called { handler, on_gpu, stage: right_stage, .. } = handlers[which];

    let (args_len, arg_types, arg_items, operands) = buffers(&mut memory, &mut elements, &input.args, &[]);
    let (rets_len, ret_types, ret_items, results) = buffers(&mut memory, &mut elements, &input.rets, &operands);

    let attributes = attributes(
        &mut memory,
        &input.attributes,
        size_near(input.attributes_size, ffi::Attrs::END),
        input.attributes_negative,
        input.attribute_pointers,
    );

    // The list of extensions, from its end. A query that is found must be one that can be answered.
    let mut extension: *mut ffi::Extension = null_mut();
    let mut metadata: *mut ffi::Metadata = null_mut();
    for each in input.extensions.iter().take(3) {
        match each {
            Extension::Unknown { size, kind } => {
                let struct_size = size_near(*size, ffi::Extension::END);
                let kind = if *kind == 1 { 2 } else { (*kind).into() };
                extension = memory.partly(extension_of(struct_size, kind, extension), struct_size);
            }
            Extension::Metadata { base_size, size } => {
                let of_metadata = size_near(*size, ffi::Metadata::END).max(ffi::Metadata::END);
                let mut answer = ffi::Metadata::new();
                answer.struct_size = of_metadata;
                answer.traits = u32::MAX;
                metadata = memory.partly(answer, of_metadata);
                let struct_size = size_near(*base_size, ffi::MetadataExtension::END);
                let mut query = ffi::MetadataExtension::new();
                query.base = extension_of(struct_size, ffi::EXTENSION_METADATA, extension);
                query.metadata = metadata;
                extension = memory.partly(query, struct_size).cast();
            }
        }
    }

    // An API table and a frame that are at least long enough to return an error with.
    let least = offset_of!(ffi::Api, error_create) + size_of::<usize>();
    let api_size =
        if input.is_tidy { size_of::<ffi::Api>() } else { least + usize::from(input.api_size) % (size_of::<ffi::Api>() + 64 - least) };
    let mut api = ffi::Api::new();
    api.struct_size = api_size;
    api.error_create = Some(error_create);
    api.error_get_details = Some(error_get_details);
    api.error_destroy = Some(error_destroy);
    api.stream_get = (!matches!(input.stream, Stream::NoFunction)).then_some(stream_get);
    let answer = input.answer;
    if answer != Answer::Missing {
        api.type_register = Some(type_register);
        api.state_set = Some(state_set);
        api.state_get = Some(state_get);
        api.device_memory_allocate = Some(device_memory_allocate);
        api.device_memory_free = Some(device_memory_free);
        api.thread_pool_schedule = Some(thread_pool_schedule);
        api.thread_pool_num_threads = Some(thread_pool_num_threads);
        api.run_id_get = Some(run_id_get);
        api.device_ordinal_get = Some(device_ordinal_get);
        api.future_set_available = Some(future_set_available);
        api.future_set_error = Some(future_set_error);
        api.future_create = Some(match answer {
            Answer::Fails => future_fails,
            Answer::Nothing => no_future,
            _ => future_create,
        });
    }
    let has_futures = api_size >= offset_of!(ffi::Api, future_create) + size_of::<usize>();
    let api = memory.partly(api, api_size);
    let mut runtime = Runtime { stream: input.stream, answer, state: None, allocated: 0, defers: input.defers, tasks: Vec::new() };
    let frame_size =
        size_near(input.frame_size, ffi::CallFrame::END).max(offset_of!(ffi::CallFrame, api) + size_of::<usize>());
    let stage = if input.stage < 200 { right_stage as c_int } else { c_int::from(input.stage % 8) - 2 };
    let mut frame = ffi::CallFrame::new();
    frame.struct_size = frame_size;
    frame.extension_start = extension;
    frame.api = api;
    frame.ctx = (&raw mut runtime).cast();
    frame.stage = stage;
    frame.args.struct_size = size_near(input.args.size_of_struct, ffi::Args::END);
    frame.args.size = args_len;
    frame.args.types = arg_types;
    frame.args.items = arg_items;
    frame.rets.struct_size = size_near(input.rets.size_of_struct, ffi::Rets::END);
    frame.rets.size = rets_len;
    frame.rets.types = ret_types;
    frame.rets.items = ret_items;
    frame.attrs = attributes;
    // The place of the future is behind what the size counts, where the runtime makes futures.
    let frame = if has_futures {
        let start = memory.bytes(frame_size.clamp(ffi::FUTURE_OFFSET, size_of::<ffi::CallFrame>()) + size_of::<usize>(), 8);
        // SAFETY: there are as many bytes, and the future, which is null, behind them.
        unsafe { core::ptr::copy_nonoverlapping((&raw const frame).cast(), start, frame_size.min(size_of::<ffi::CallFrame>())) };
        start.cast()
    } else {
        memory.partly(frame, frame_size)
    };
    COMPLETED.store(0, Ordering::Relaxed);
    if input.has_state && answer != Answer::Missing && api_size >= size_of::<ffi::Api>() {
        // The call site has a state already, which the handler for it has made, in a frame without faults.
        let mut first = ffi::CallFrame::new();
        first.api = api;
        first.ctx = (&raw mut runtime).cast();
        first.stage = ffi::STAGE_INSTANTIATE;
        // SAFETY: there is nothing in the frame to be followed but the table and the context. It returns no future.
        let error = unsafe { Make::FUNCTION(&raw mut first) };
        assert_eq!(error.is_null(), runtime.state.is_some());
    }

    // SAFETY: each struct is as long as its size says or as long as it can be, each list as its count says; only the frames
    // that the handlers may end the process for are left out.
    let error = unsafe { handler(frame) };

    // SAFETY: see above.
    let future: *mut ffi::Future = if has_futures { unsafe { frame.byte_add(ffi::FUTURE_OFFSET).cast::<*mut ffi::Future>().read() } } else { null_mut() };
    let future = future as usize;
    assert!(future == 0 || (future == FUTURE && error.is_null()));
    // SAFETY: none of the handlers frees it.
    let answered = !metadata.is_null() && unsafe { (*metadata).traits } != u32::MAX;
    if answered {
        // SAFETY: as above.
        let version = unsafe { (*metadata).api_version };
        assert_eq!((version.major_version, version.minor_version), ffi::API_VERSION);
    } else {
        let how = if error.is_null() { 0 } else { 1 + usize::from(MALFORMED.load(Ordering::Relaxed)) };
        count(&REACHED[which][how]);
    }
    // Of the frame, nothing but the elements is promised to those who come later.
    drop(memory);
    let before = COMPLETED.load(Ordering::Relaxed);
    for (task, data) in core::mem::take(&mut runtime.tasks) {
        // SAFETY: the handler says that the task can be called with this, once.
        unsafe { task(data) };
    }
    if COMPLETED.load(Ordering::Relaxed) > before {
        count(&FUTURES[2]);
    }
    assert_eq!(COMPLETED.load(Ordering::Relaxed), future / FUTURE, "a future is completed once");
    runtime.free_state();
    if answer != Answer::Fails {
        assert_eq!(runtime.allocated, 0, "scratch memory is freed");
    }

    if which < PASS_THROUGH {
        if error.is_null() && !answered {
            // Success says that the results are in place: then everything must have been in order.
            assert_eq!(stage, ffi::STAGE_EXECUTE);
            assert!(0 < rets_len && rets_len <= args_len);
            assert!(!on_gpu || matches!(runtime.stream, Stream::Is(1..)));
            for (operand, result) in operands.iter().zip(&results) {
                assert!(operand.start == result.start || result.bytes == 0 || result.is_token);
            }
        }
        for data in operands.iter().chain(&results) {
            for i in 0..data.bytes {
                // SAFETY: there are that many bytes.
                assert_eq!(unsafe { data.start.add(i).read() }, i as u8 ^ 0xa5, "the payload was touched");
            }
        }
    }
    if which >= PASS_THROUGH {
        entangle_slots::reset(0.0);
    }
});
