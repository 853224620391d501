//! A call frame, read safely: every size, count, rank and pointer is checked before it is used.

use core::ffi::{CStr, c_int, c_void};
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::attribute::Attributes;
use crate::element::{DType, Element, Sealed, check_bools};
use crate::error::{Code, Error};
use crate::ffi::{self, Mirror, SetByRuntime};
use crate::view::Dims;

/// A function of the runtime by its field in [`ffi::Api`], or an error that names it.
macro_rules! function {
    ($call:expr, $field:ident, $name:literal) => {
        // SAFETY: offset and type are those of one field.
        unsafe { $call.function_at(core::mem::offset_of!($crate::ffi::Api, $field), |api| api.$field, $name) }
    };
}
pub(crate) use function;

/// Whether a value can stand there at all: neither null nor misaligned.
pub(crate) fn can_be_read<T>(ptr: *const T) -> bool {
    !ptr.is_null() && ptr.is_aligned()
}

/// 0 if something that is aligned to eight bytes can stand at each of these addresses; not so for addresses in the upper half, where no process
/// has any.
#[inline]
fn misplaced<const COUNT: usize>(addresses: [usize; COUNT]) -> usize {
    // Null has the uppermost bit in this, and what is misaligned some of the lowest three.
    let all = addresses.into_iter().fold(0, |all, address| all | address.wrapping_sub(8));
    all.rotate_left(1) & 0b1111
}

/// Whether both pointers can be read, with a register less. `false` for two addresses without a common bit, which a process has hardly ever,
/// since its memory lies together.
#[inline]
fn both_can_be_read<T>(one: *const T, other: *const T) -> bool {
    one.addr() & other.addr() != 0 && (one.addr() | other.addr()).is_multiple_of(align_of::<T>())
}

/// Whether a call is one of the stage EXECUTE in which [`Call::is_in_place`] holds, before anything else is done with its frame: a handler that
/// has nothing to do then returns at once.
///
/// `false` says only that something may not be as it should be; [`handle`](crate::handle) finds out what.
///
/// # Safety
/// As for [`handle`](crate::handle).
#[must_use]
#[inline]
pub unsafe fn is_in_place(frame: *mut ffi::CallFrame) -> bool {
    if misplaced([frame.addr()]) != 0 {
        return false;
    }
    // SAFETY: a frame starts with its size.
    if unsafe { frame.cast::<usize>().read() } < ffi::CallFrame::END {
        return false;
    }
    // SAFETY: not null, aligned and long enough, and what it points to is as the C interface says.
    let call = Call { frame: unsafe { NonNull::new_unchecked(frame) }, lifetime: PhantomData };
    if call.frame().stage != ffi::STAGE_EXECUTE {
        return false;
    }
    call.is_in_place()
}

/// An error unless the pointer and the size of a mirrored struct allow to use its fields. Reads nothing but the size.
///
/// # Safety
/// `ptr` is null, or misaligned, or points to a readable `usize`.
#[inline]
pub(crate) unsafe fn check<T: Mirror>(ptr: *const T) -> Result<(), Error> {
    if !can_be_read(ptr) {
        return Err(bad_pointer(T::NAME, ptr.cast()));
    }
    // SAFETY: every `Mirror` starts with its `struct_size`, and the caller says that it can be read.
    let struct_size = unsafe { ptr.cast::<usize>().read() };
    if struct_size < T::END {
        return Err(too_short(T::NAME, struct_size, T::END));
    }
    Ok(())
}

// The messages of `check` are made out of line, so that a call in which all is right keeps nothing at hand for them.

#[cold]
#[inline(never)]
pub(crate) fn bad_pointer(name: &str, ptr: *const ()) -> Error {
    Error::frame(format_args!("the pointer to {name} is {ptr:p}"))
}

#[cold]
#[inline(never)]
pub(crate) fn too_short(name: &str, struct_size: usize, end: usize) -> Error {
    Error::frame(format_args!("{name} has {struct_size} bytes, wanted {end} or more"))
}

/// Opens a mirrored struct if its pointer and its size allow.
///
/// # Safety
/// `ptr` is null, or misaligned, or points to `struct_size` readable bytes that stay unchanged for `'a`,
/// where `struct_size` is the `usize` at `ptr`.
#[inline]
pub(crate) unsafe fn open<'a, T: SetByRuntime>(ptr: *const T) -> Result<&'a T, Error> {
    // SAFETY: the caller's contract.
    unsafe { check(ptr) }?;
    // SAFETY: not null, aligned, and long enough; the caller vouches for the bytes and the lifetime, and the fields are
    // set (`SetByRuntime`). A struct that ends in padding is padded in C too, so the reference stays within the C object.
    Ok(unsafe { &*ptr })
}

/// The stages in which XLA calls a target's handlers. A target may have a handler for each; most have one, for EXECUTE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// Once for each call site, when the program is compiled or loaded.
    Instantiate = ffi::STAGE_INSTANTIATE as isize,
    /// Before each run of the program: says what the call needs.
    Prepare = ffi::STAGE_PREPARE as isize,
    /// Before each run of the program, when that is there.
    Initialize = ffi::STAGE_INITIALIZE as isize,
    /// The one in which buffers hold data.
    Execute = ffi::STAGE_EXECUTE as isize,
    /// When a GPU's runtime records commands of the call into a CUDA or HIP graph, since FFI API 0.5.
    ///
    /// jax 0.12.0.1 has it for handlers of its own: XLA does not call one that is registered from Python, and records what the handler of EXECUTE
    /// enqueues (see [`Traits`](crate::Traits)).
    Record = ffi::STAGE_RECORD as isize,
}

impl Stage {
    const ALL: [Self; 5] = [Self::Instantiate, Self::Prepare, Self::Initialize, Self::Execute, Self::Record];

    /// Its name in XLA, in lower case, as `jax.ffi.register_ffi_target` takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Instantiate => "instantiate",
            Self::Prepare => "prepare",
            Self::Initialize => "initialize",
            Self::Execute => "execute",
            Self::Record => "record",
        }
    }

    #[inline]
    pub(crate) const fn as_c(self) -> c_int {
        self as c_int
    }
}

/// One call of a handler by XLA.
pub struct Call<'a> {
    frame: NonNull<ffi::CallFrame>,
    lifetime: PhantomData<&'a ffi::CallFrame>,
}

impl<'a> Call<'a> {
    /// # Safety
    /// As for [`open`]; and everything that the frame points to is as the C interface says, for `'a`.
    #[inline]
    pub(crate) unsafe fn open(frame: *mut ffi::CallFrame) -> Result<Self, Error> {
        // SAFETY: the same contract.
        unsafe { check(frame.cast_const()) }?;
        // SAFETY: just checked.
        Ok(Self { frame: unsafe { NonNull::new_unchecked(frame) }, lifetime: PhantomData })
    }

    #[inline]
    fn frame(&self) -> &'a ffi::CallFrame {
        // SAFETY: `open` checked it, and was promised that it stays for `'a`; a frame's fields are set (`SetByRuntime`).
        unsafe { self.frame.as_ref() }
    }

    /// The stage of this call, or `None` if it is one that came after this crate.
    #[must_use]
    pub fn stage(&self) -> Option<Stage> {
        Stage::ALL.into_iter().find(|stage| stage.as_c() == self.frame().stage)
    }

    /// An error unless this call is in one of these stages.
    #[inline]
    pub(crate) fn check_stage(&self, stages: &[Stage]) -> Result<(), Error> {
        let is_one = stages.iter().any(|stage| stage.as_c() == self.frame().stage);
        if is_one { Ok(()) } else { Err(wrong_stage(self.frame(), stages)) }
    }

    /// Whether each result has the memory of the operand with its index, as it has if the program asked XLA for it
    /// (`input_output_aliases` of `jax.ffi.ffi_call`) for all of them.
    ///
    /// It is as quick as can be: `false` says only that something is not as it should be, a malformed frame included, and
    /// [`args`](Self::args) and [`rets`](Self::rets) say what.
    #[must_use]
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call of it would cost as much as a third of it")]
    pub fn is_in_place(&self) -> bool {
        let ffi::CallFrame { args, rets, .. } = self.frame();
        if args.struct_size < ffi::Args::END || rets.struct_size < ffi::Rets::END {
            return false;
        }
        // Most calls have one result, and then there is nothing to count.
        if rets.size == 1 {
            return args.size >= 1 && self.first_are_in_place(1);
        }
        let has_operands = 0 < rets.size && rets.size <= args.size;
        has_operands && self.first_are_in_place(usize::try_from(rets.size).unwrap_or(1))
    }

    /// The same for the first ones, of which there is at least one.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call of it would cost as much as a quarter of it")]
    fn first_are_in_place(&self, count: usize) -> bool {
        let ffi::CallFrame { extension_start, args, rets, .. } = *self.frame();
        let lists = [args.types.addr(), rets.types.addr(), args.items.addr(), rets.items.addr()];
        if misplaced(lists) | extension_start.addr() != 0 {
            return false;
        }
        let mut left = count;
        // From the last to the first takes no other counter.
        loop {
            let index = left - 1;
            // SAFETY: both lists can be read and have more than `index` types.
            let types = unsafe { (*args.types.add(index), *rets.types.add(index)) };
            // SAFETY: and as many entries.
            let items = unsafe { (*args.items.add(index), *rets.items.add(index)) };
            let (operand, result) = (items.0.cast::<ffi::Buffer>(), items.1.cast::<ffi::Buffer>());
            if types != (ffi::ARG_BUFFER, ffi::ARG_BUFFER) || !both_can_be_read(operand, result) {
                return false;
            }
            // SAFETY: entries of this type point to buffers, which start with their size.
            let sizes = unsafe { ((*operand).struct_size, (*result).struct_size) };
            if sizes.0 < ffi::Buffer::END || sizes.1 < ffi::Buffer::END {
                return false;
            }
            // SAFETY: they are long enough to have `data`.
            if unsafe { (*operand).data != (*result).data } {
                return false;
            }
            left -= 1;
            if left == 0 {
                return true;
            }
        }
    }

    /// The operands.
    ///
    /// # Errors
    /// The frame is malformed.
    pub fn args(&self) -> Result<Buffers<'a, Arg>, Error> {
        let ffi::Args { struct_size, size, types, items, .. } = self.frame().args;
        // SAFETY: `Call::open` was promised that the frame holds what the C interface says.
        unsafe { Buffers::open(struct_size, size, types, items) }
    }

    /// The results.
    ///
    /// # Errors
    /// The frame is malformed.
    pub fn rets(&self) -> Result<Buffers<'a, Ret>, Error> {
        let ffi::Rets { struct_size, size, types, items, .. } = self.frame().rets;
        // SAFETY: `Call::open` was promised that the frame holds what the C interface says.
        unsafe { Buffers::open(struct_size, size, types, items) }
    }

    /// The attributes.
    ///
    /// # Errors
    /// The frame is malformed.
    pub fn attributes(&self) -> Result<Attributes<'a>, Error> {
        // SAFETY: `Call::open` was promised that the frame holds what the C interface says.
        unsafe { Attributes::open(&self.frame().attrs) }
    }

    /// The stream on which the call runs, of the platform's own type. There is none on the host.
    ///
    /// # Errors
    /// There is none: the handler was registered for a platform without streams.
    pub fn stream(&self) -> Result<NonNull<c_void>, Error> {
        let wrong_platform = |why: &str| {
            Error::new(
                Code::FailedPrecondition,
                format!(
                    "this handler needs a GPU stream and there is none ({why}): it was registered for the wrong platform"
                ),
            )
        };
        let get = function!(self, stream_get, "XLA_FFI_Stream_Get").map_err(|error| match error.code() {
            Code::Unimplemented => wrong_platform(error.message()),
            _ => error,
        })?;
        let mut args = ffi::StreamGetArgs::new();
        args.ctx = self.frame().ctx;
        // SAFETY: the runtime's own function, with the context that it gave.
        unsafe { self.ask(get, &raw mut args) }.map_err(|error| wrong_platform(error.message()))?;
        NonNull::new(args.stream).ok_or_else(|| wrong_platform("the runtime gave a null stream"))
    }

    pub(crate) fn copy(&self) -> Self {
        Self { frame: self.frame, lifetime: PhantomData }
    }

    pub(crate) fn context(&self) -> *mut ffi::Context {
        self.frame().ctx
    }

    /// Sets what the results of the call wait for.
    ///
    /// # Safety
    /// It is a future that the runtime of the call has made for it.
    pub(crate) unsafe fn set_future(&self, future: NonNull<ffi::Future>) {
        // SAFETY: a runtime that makes futures has a place for one behind the fields that a frame's size counts (`FUTURE_OFFSET`), for the
        // handler to write. No reference to the frame reaches as far.
        unsafe { self.frame.as_ptr().byte_add(ffi::FUTURE_OFFSET).cast::<*mut ffi::Future>().write(future.as_ptr()) };
    }

    pub(crate) fn stage_number(&self) -> c_int {
        self.frame().stage
    }

    /// Which runtime it is.
    pub(crate) fn api_address(&self) -> usize {
        self.frame().api.addr()
    }

    /// A function of the runtime's table, which may be shorter than this crate's.
    ///
    /// # Safety
    /// `offset` is where [`ffi::Api`] has a field of that type.
    pub(crate) unsafe fn function_at<F: Copy>(
        &self,
        offset: usize,
        _: fn(&ffi::Api) -> Option<F>,
        name: &str,
    ) -> Result<F, Error> {
        let api = self.frame().api;
        if !can_be_read(api) {
            return Err(bad_pointer("XLA_FFI_Api", api.cast()));
        }
        // SAFETY: a table starts with its size.
        let size = unsafe { (&raw const (*api).struct_size).read() };
        let function = if size < offset + size_of::<usize>() {
            None
        } else {
            // SAFETY: the table is long enough to have it, and it is of that type, says the caller.
            unsafe { api.byte_add(offset).cast::<Option<F>>().read() }
        };
        function.ok_or_else(|| Error::new(Code::Unimplemented, format!("the runtime has no {name}")))
    }

    /// Calls a function of the runtime.
    ///
    /// # Errors
    /// What the runtime reports.
    ///
    /// # Safety
    /// The function is of the runtime of this call, and takes these arguments.
    pub(crate) unsafe fn ask<A>(
        &self,
        function: unsafe extern "C" fn(*mut A) -> *mut ffi::Error,
        args: *mut A,
    ) -> Result<(), Error> {
        // SAFETY: the caller's contract.
        let error = unsafe { function(args) };
        // SAFETY: an error was just made by this runtime and is owned here.
        if error.is_null() { Ok(()) } else { Err(unsafe { self.take_error(error) }) }
    }

    /// An error that the runtime returned, which is freed.
    ///
    /// # Safety
    /// It was made by the runtime of this call and belongs to the caller.
    unsafe fn take_error(&self, error: *mut ffi::Error) -> Error {
        let mut taken = Error::new(Code::Internal, "no message");
        if let Ok(details) = function!(self, error_get_details, "XLA_FFI_Error_GetDetails") {
            /// With room for what FFI API 0.5 added: the error's code.
            #[repr(C)]
            struct Args {
                known: ffi::ErrorGetDetailsArgs,
                code: c_int,
            }
            let mut args = Args { known: ffi::ErrorGetDetailsArgs::new(), code: 0 };
            args.known.struct_size = size_of::<Args>();
            args.known.error = error;
            // SAFETY: the runtime's own function, with its own error.
            unsafe { details((&raw mut args).cast()) };
            let message = args.known.message;
            if !message.is_null() {
                // SAFETY: null-terminated, and alive until the error is destroyed below.
                let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
                taken = Error::new(Code::from_c(args.code).unwrap_or(Code::Internal), message);
            }
        }
        if let Ok(destroy) = function!(self, error_destroy, "XLA_FFI_Error_Destroy") {
            let mut args = ffi::ErrorDestroyArgs::new();
            args.error = error;
            // SAFETY: the runtime's own function; the error is not used after it.
            unsafe { destroy(&raw mut args) };
        }
        taken
    }
}

#[cold]
#[inline(never)]
fn wrong_stage(frame: &ffi::CallFrame, stages: &[Stage]) -> Error {
    let found = frame.stage;
    let wanted = |show: fn(&Stage) -> String| stages.iter().map(show).collect::<Vec<_>>().join(" or ");
    Error::new(
        Code::Unimplemented,
        format!(
            "called in stage {found} of the XLA FFI, but this handler is for stage {} alone; register it as the {} handler",
            wanted(|stage| format!("{} ({})", stage.as_c(), stage.name().to_ascii_uppercase())),
            wanted(|stage| format!("\"{}\"", stage.name())),
        ),
    )
}

/// The bytes of a byte span.
///
/// # Safety
/// `span` is null, or misaligned, or points to a byte span whose bytes can be read for `'a`.
pub(crate) unsafe fn bytes<'a>(span: *const ffi::ByteSpan) -> Result<&'a [u8], Error> {
    if !can_be_read(span) {
        return Err(Error::frame(format_args!("an attribute's name or text is at {span:p}")));
    }
    // SAFETY: not null and aligned; the caller vouches for the rest.
    let ffi::ByteSpan { ptr, len } = unsafe { *span };
    if len == 0 {
        return Ok(&[]);
    }
    if ptr.is_null() || len > isize::MAX.cast_unsigned() {
        return Err(Error::frame(format_args!("an attribute's name or text of {len} bytes is at {ptr:p}")));
    }
    // SAFETY: not null, and no larger than memory can be; the runtime says that `len` bytes stand at `ptr`.
    Ok(unsafe { core::slice::from_raw_parts(ptr.cast::<u8>(), len) })
}

/// Of operands: they may be read, and never written. XLA may have put them into read-only memory, or use them elsewhere.
#[derive(Clone, Copy)]
pub enum Arg {}

/// Of results: they may be written, and not read. Nobody has written them yet, unless they are aliased, and then the
/// operand can be read.
#[derive(Clone, Copy)]
pub enum Ret {}

/// [`Arg`] or [`Ret`].
pub trait Role: Copy + sealed::Role {}

impl Role for Arg {}
impl Role for Ret {}

/// No memory holds more dimensions: they have eight bytes each.
const MAX_RANK: i64 = i64::MAX / 8;

/// The operands or the results of a call.
#[derive(Clone, Copy)]
pub struct Buffers<'a, R> {
    len: usize,
    types: *const c_int,
    items: *const *mut c_void,
    what: PhantomData<(&'a ffi::CallFrame, R)>,
}

impl<'a, R: Role> Buffers<'a, R> {
    /// # Safety
    /// If `size` is positive, `types` and `items` are null or point to that many entries, each entry of
    /// `items` fit for [`open`], all for `'a`.
    unsafe fn open(
        struct_size: usize,
        size: i64,
        types: *const c_int,
        items: *const *mut c_void,
    ) -> Result<Self, Error> {
        let list = R::LIST;
        if struct_size < R::LIST_END {
            return Err(too_short(list, struct_size, R::LIST_END));
        }
        let len =
            usize::try_from(size).map_err(|_| Error::frame(format_args!("{list} says it holds {size} buffers")))?;
        if len > 0 && !(can_be_read(types) && can_be_read(items)) {
            return Err(Error::frame(format_args!("{list} holds {len} buffers, of types at {types:p}, at {items:p}")));
        }
        Ok(Self { len, types, items, what: PhantomData })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The buffer at that index.
    ///
    /// # Errors
    /// There is none, it is no buffer, or the frame is malformed.
    pub fn get(&self, index: usize) -> Result<Buffer<'a, R>, Error> {
        let buffer = self.open_at(index)?;
        if !(0..=MAX_RANK).contains(&buffer.rank) || (buffer.rank > 0 && !can_be_read(buffer.dims)) {
            return Err(Error::frame(format_args!(
                "{} {index} has rank {} and dimensions at {:p}",
                R::NAME,
                buffer.rank,
                buffer.dims
            )));
        }
        Ok(Buffer { buffer, role: PhantomData })
    }

    /// The buffer at that index as C knows it: its rank and dimensions are not checked.
    fn open_at(&self, index: usize) -> Result<&'a ffi::Buffer, Error> {
        let (what, len) = (R::NAME, self.len);
        if index >= len {
            return Err(Error::new(
                Code::InvalidArgument,
                format!(
                    "{what} {index} was asked for, but the call has {len}: the handler and the lowering do not fit each other"
                ),
            ));
        }
        // SAFETY: `index` is below `len`, and a list with entries can be read (both checked).
        let kind = unsafe { *self.types.add(index) };
        if kind != ffi::ARG_BUFFER {
            return Err(Error::frame(format_args!(
                "{what} {index} has type {kind}, wanted {} (a buffer)",
                ffi::ARG_BUFFER
            )));
        }
        // SAFETY: as above.
        let item = unsafe { *self.items.add(index) };
        // SAFETY: an entry of type buffer points to a buffer (`Buffers::open`).
        unsafe { open(item.cast_const().cast::<ffi::Buffer>()) }
    }
}

/// One operand or result. Operands are read and results are written, which the types see to:
///
/// ```
/// # use xla_ffi::{Call, Error};
/// fn negate(call: &Call<'_>) -> Result<(), Error> {
///     let values: Vec<f32> = call.args()?.get(0)?.read()?;
///     call.rets()?.get(0)?.write(&values.iter().map(|value| -value).collect::<Vec<f32>>())
/// }
/// ```
///
/// ```compile_fail,E0599
/// # use xla_ffi::{Call, Error};
/// fn scribble(call: &Call<'_>) -> Result<(), Error> {
///     call.args()?.get(0)?.write(&[1.0_f32])
/// }
/// ```
///
/// ```compile_fail,E0599
/// # use xla_ffi::{Call, Error};
/// fn guess(call: &Call<'_>) -> Result<Vec<f32>, Error> {
///     call.rets()?.get(0)?.read()
/// }
/// ```
#[derive(Clone, Copy)]
pub struct Buffer<'a, R> {
    buffer: &'a ffi::Buffer,
    role: PhantomData<R>,
}

impl<'a, R: Role> Buffer<'a, R> {
    /// Its element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        DType(self.buffer.dtype)
    }

    /// Its dimensions.
    #[must_use]
    pub fn dims(&self) -> &'a [i64] {
        let rank = usize::try_from(self.buffer.rank).unwrap_or(0);
        if rank == 0 {
            return &[];
        }
        // SAFETY: `Buffers::get` checked that the rank is one that memory can hold and the pointer can be read; the runtime says that `rank`
        // sizes stand there.
        unsafe { core::slice::from_raw_parts(self.buffer.dims, rank) }
    }

    /// How many elements it has.
    ///
    /// # Errors
    /// A dimension is negative, or the product does not fit into memory.
    pub fn elements(&self) -> Result<usize, Error> {
        self.dims()
            .iter()
            .try_fold(1_usize, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?))
            .ok_or_else(|| Error::frame(format_args!("a buffer has dimensions {:?}", self.dims())))
    }

    /// Where the elements are: on the device for which the handler is registered.
    #[must_use]
    pub fn data(&self) -> *mut c_void {
        self.buffer.data
    }

    /// Where elements in host memory are, if they are of that type and can be there.
    fn host_elements<T: Element>(&self) -> Result<*mut T, Error> {
        if self.dtype() != T::DTYPE {
            return Err(Error::new(
                Code::InvalidArgument,
                format!("a buffer is {self}, wanted elements of type {}", T::DTYPE),
            ));
        }
        let data = self.buffer.data.cast::<T>();
        // XLA may give null for a buffer without elements; copying none of them needs an aligned pointer all the same.
        if data.is_null() && self.elements()? == 0 {
            return Ok(NonNull::dangling().as_ptr());
        }
        if !can_be_read(data) {
            return Err(Error::frame(format_args!("{self} has its elements at {data:p}")));
        }
        Ok(data)
    }
}

impl Buffer<'_, Arg> {
    /// A copy of the elements, which are in host memory: [`handle`](crate::handle) was promised that.
    ///
    /// # Errors
    /// The element type is not `T`, or the frame is malformed.
    pub fn read<T: Element>(&self) -> Result<Vec<T>, Error> {
        let source = self.host_elements::<T>()?;
        let count = self.elements()?;
        let mut copy = Vec::with_capacity(count);
        if <T as Sealed>::IS_BOOL {
            // SAFETY: as below, of bytes, which have any value.
            check_bools("an operand", unsafe { core::slice::from_raw_parts(source.cast::<u8>(), count) })?;
        }
        // SAFETY: `host_elements` checked type, pointer and alignment; the runtime says that the `count` elements
        // of an operand stand there, and a fresh vector overlaps with nothing.
        unsafe { core::ptr::copy_nonoverlapping(source, copy.as_mut_ptr(), count) };
        // SAFETY: `count` elements were just written, and the capacity is as large.
        unsafe { copy.set_len(count) };
        Ok(copy)
    }
}

impl Buffer<'_, Ret> {
    /// Fills the result, which is in host memory ([`handle`](crate::handle) was promised that) and has as many elements as
    /// `values`.
    ///
    /// # Errors
    /// The element type is not `T`, the number of elements differs, or the frame is malformed.
    pub fn write<T: Element>(&self, values: &[T]) -> Result<(), Error> {
        let target = self.host_elements::<T>()?;
        let count = self.elements()?;
        if count != values.len() {
            return Err(Error::new(
                Code::InvalidArgument,
                format!("the handler has {} values for a result of {self}, wanted {count}", values.len()),
            ));
        }
        // SAFETY: as in `read`; a result is memory that the runtime lets its handler write, and no slice of the
        // handler's overlaps with it, because this crate hands out none.
        unsafe { core::ptr::copy_nonoverlapping(values.as_ptr(), target, count) };
        Ok(())
    }
}

impl<R: Role> fmt::Display for Buffer<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype(), Dims(self.dims()))
    }
}

mod sealed {
    use crate::ffi;

    pub trait Role {
        /// For messages: what each is, and the C struct that lists them.
        const NAME: &str;
        const LIST: &str;
        const LIST_END: usize;
    }

    impl Role for super::Arg {
        const NAME: &str = "operand";
        const LIST: &str = "XLA_FFI_Args";
        const LIST_END: usize = ffi::Args::END;
    }

    impl Role for super::Ret {
        const NAME: &str = "result";
        const LIST: &str = "XLA_FFI_Rets";
        const LIST_END: usize = ffi::Rets::END;
    }
}
