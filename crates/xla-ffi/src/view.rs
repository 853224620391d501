//! Operands and results as typed views.

use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::Deref;

use crate::call::{Arg, Buffer, Ret};
use crate::element::{DType, Element, Sealed, check_bools};
use crate::error::{Code, Error};
use crate::handler::{Listed, Parameter, Parameters, Place};

/// The rank of a view that takes any.
pub const ANY: usize = usize::MAX;

/// Of views: the elements are in memory of the process, for a handler that is registered for the host.
#[derive(Clone, Copy, Debug)]
pub enum Host {}

/// Of views: the elements are in memory of a device, for a handler that is registered for a GPU. Only their address is at hand.
#[derive(Clone, Copy, Debug)]
pub enum Device {}

/// Where the elements of a view are: [`Host`] or [`Device`].
pub trait Memory: sealed::Memory {}
impl Memory for Host {}
impl Memory for Device {}

mod sealed {
    pub trait Memory {
        const IS_HOST: bool;
    }
    impl Memory for super::Host {
        const IS_HOST: bool = true;
    }
    impl Memory for super::Device {
        const IS_HOST: bool = false;
    }
}

/// Dimensions and address of a buffer whose type and rank were checked.
struct View<'a, T, const RANK: usize, M> {
    dims: &'a [i64],
    data: *mut T,
    len: usize,
    memory: PhantomData<M>,
}

impl<T, const RANK: usize, M> Clone for View<'_, T, RANK, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, const RANK: usize, M> Copy for View<'_, T, RANK, M> {}

impl<T, const RANK: usize, M> View<'_, T, RANK, M> {
    fn shape(&self) -> [usize; RANK] {
        const { assert!(RANK != ANY, "the rank is not known when the handler is compiled: use `dims`") };
        // The elements were counted, so no dimension is negative.
        core::array::from_fn(|axis| usize::try_from(self.dims[axis]).unwrap_or(0))
    }
}

/// An operand: its elements can be read.
///
/// `T` is the element type and `RANK` the number of dimensions, [`ANY`] if it is left out. On the host it is a slice, in row-major order,
/// without a copy.
pub struct Operand<'a, T, const RANK: usize = ANY, M = Host>(View<'a, T, RANK, M>);

/// A result: its elements are to be written, all of them.
///
/// On the host it has no elements to read before they are written, and it shares no memory with an [`Operand`]: where the
/// program asks XLA for that, the parameter is an [`InPlace`].
pub struct Output<'a, T, const RANK: usize = ANY, M = Host>(View<'a, T, RANK, M>);

/// An operand and the result in its memory, by `input_output_aliases` of `jax.ffi.ffi_call`: the elements can be read and changed.
///
/// It takes the place of one operand and of one result.
pub struct InPlace<'a, T, const RANK: usize = ANY, M = Host>(View<'a, T, RANK, M>);

// Of what is only read there may be many views.
impl<T, const RANK: usize, M> Clone for Operand<'_, T, RANK, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, const RANK: usize, M> Copy for Operand<'_, T, RANK, M> {}

macro_rules! views {
    ($($name:ident)*) => {
        $(impl<'a, T: Element, const RANK: usize, M: Memory> $name<'a, T, RANK, M> {
            /// The dimensions.
            #[must_use]
            pub fn dims(&self) -> &'a [i64] {
                self.0.dims
            }

            /// The dimensions of a view with a rank.
            #[must_use]
            pub fn shape(&self) -> [usize; RANK] {
                self.0.shape()
            }

            /// How many elements there are.
            #[must_use]
            pub fn len(&self) -> usize {
                self.0.len
            }

            /// Whether there is none.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.0.len == 0
            }

            /// Where the elements are. Without elements it may be null.
            #[must_use]
            pub fn as_ptr(&self) -> *const T {
                self.0.data
            }

            /// A view that was there before, of its dimensions and its address.
            ///
            /// # Safety
            /// They are those of such a view of the same call, whose elements are there for `'a`, and which is not used meanwhile.
            pub(crate) unsafe fn of_parts(dims: &'a [i64], data: *mut T) -> Self {
                let len = dims.iter().map(|&dim| usize::try_from(dim).unwrap_or(0)).product();
                Self(View { dims, data, len, memory: PhantomData })
            }
        }

        impl<T: Element, const RANK: usize, M> fmt::Debug for $name<'_, T, RANK, M> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{} at {:p}", T::DTYPE, Dims(self.0.dims), self.0.data)
            }
        })*
    };
}

views!(Operand Output InPlace);

impl<T: Element, const RANK: usize, M: Memory> Output<'_, T, RANK, M> {
    /// Where the elements go. Without elements it may be null.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.0.data
    }
}

impl<T: Element, const RANK: usize, M: Memory> InPlace<'_, T, RANK, M> {
    /// Where the elements are. Without elements it may be null.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.0.data
    }
}

impl<'a, T: Element, const RANK: usize> Operand<'a, T, RANK, Host> {
    /// The elements, in row-major order.
    #[must_use]
    pub fn as_slice(&self) -> &'a [T] {
        if self.0.len == 0 {
            return &[];
        }
        // SAFETY: type, rank, alignment and count were checked; the handler is registered for the host (`handle`), where the
        // runtime says that this many elements stand there until the handler returns; nothing that this crate hands out
        // writes to them (`Parameters::claim`), and bytes of a `bool` were looked at.
        unsafe { core::slice::from_raw_parts(self.0.data, self.0.len) }
    }
}

impl<T: Element, const RANK: usize> Deref for Operand<'_, T, RANK, Host> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.as_slice()
    }
}

impl<T: Element, const RANK: usize> Output<'_, T, RANK, Host> {
    /// The elements before they are written, in row-major order.
    pub fn as_uninit(&mut self) -> &mut [MaybeUninit<T>] {
        if self.0.len == 0 {
            return &mut [];
        }
        // SAFETY: as for `Operand::as_slice`, of a result, which the runtime lets its handler write; it shares no memory with any
        // other view (`Parameters::claim`), and this one is borrowed. Elements that may be unset need no value.
        unsafe { core::slice::from_raw_parts_mut(self.0.data.cast(), self.0.len) }
    }

    /// The elements, in row-major order, after setting all of them to zero.
    pub fn zeroed(&mut self) -> &mut [T] {
        let elements = self.as_uninit();
        // SAFETY: the memory of that slice. Zero is a value of every element type.
        unsafe { core::ptr::write_bytes(elements.as_mut_ptr(), 0, elements.len()) };
        // SAFETY: all of it was just set.
        unsafe { core::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), elements.len()) }
    }

    /// Writes all elements, each by its index.
    pub fn fill_with(&mut self, mut value: impl FnMut(usize) -> T) {
        for (index, element) in self.as_uninit().iter_mut().enumerate() {
            element.write(value(index));
        }
    }

    /// Writes all elements.
    ///
    /// # Errors
    /// There are more or fewer values than elements.
    pub fn write(&mut self, values: &[T]) -> Result<(), Error> {
        if values.len() != self.0.len {
            return Err(Error::new(
                Code::InvalidArgument,
                format!("the handler has {} values for a result of {self:?}, wanted {}", values.len(), self.0.len),
            ));
        }
        self.fill_with(|index| values[index]);
        Ok(())
    }
}

impl<T: Element, const RANK: usize> Deref for InPlace<'_, T, RANK, Host> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        if self.0.len == 0 {
            return &[];
        }
        // SAFETY: as for `Operand::as_slice`; no other view is in that memory (`Parameters::claim`), and this one is borrowed.
        unsafe { core::slice::from_raw_parts(self.0.data, self.0.len) }
    }
}

impl<T: Element, const RANK: usize> core::ops::DerefMut for InPlace<'_, T, RANK, Host> {
    fn deref_mut(&mut self) -> &mut [T] {
        if self.0.len == 0 {
            return &mut [];
        }
        // SAFETY: as above; the result has this memory, so the runtime lets its handler write it.
        unsafe { core::slice::from_raw_parts_mut(self.0.data, self.0.len) }
    }
}

/// An XLA token as an operand or a result: a value that is there to be depended on, and has no bytes.
#[derive(Clone, Copy, Debug)]
pub struct Token<R>(PhantomData<R>);

/// Dimensions as JAX shows them.
pub(crate) struct Dims<'a>(pub(crate) &'a [i64]);

impl fmt::Display for Dims<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (axis, dim) in self.0.iter().enumerate() {
            write!(f, "{}{dim}", if axis == 0 { "" } else { "," })?;
        }
        f.write_str("]")
    }
}

/// What was wanted of a buffer: `f32[_,_]`, or `f32[...]` of any rank.
struct Wanted(DType, usize);

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            ANY => write!(f, "{}[...]", self.0),
            rank => write!(f, "{}[{}]", self.0, vec!["_"; rank].join(",")),
        }
    }
}

/// What takes the next operand or the next result, with its index.
type Next<'a, R> = fn(&mut Parameters<'a>, &str) -> Result<(usize, Buffer<'a, R>), Error>;

/// The next operand or the next result, as a view of that type and rank, and its index.
fn take_view<'a, T: Element, R: crate::Role, const RANK: usize, M: Memory>(
    parameters: &mut Parameters<'a>,
    next: Next<'a, R>,
    name: &str,
) -> Result<(usize, View<'a, T, RANK, M>), Error> {
    if M::IS_HOST {
        parameters.check_elements(name)?;
    }
    let (index, buffer) = next(parameters, name)?;
    let dims = buffer.dims();
    if buffer.dtype() != T::DTYPE || (RANK != ANY && dims.len() != RANK) {
        let wanted = Wanted(T::DTYPE, RANK);
        return Err(Error::new(
            Code::InvalidArgument,
            format!("{} {index} (`{name}`) is {buffer}, wanted {wanted}", R::NAME),
        ));
    }
    let (len, data) = (buffer.elements()?, buffer.data().cast::<T>());
    if len > 0 && (data.is_null() || !data.is_aligned()) {
        return Err(Error::frame(format_args!(
            "{} {index} (`{name}`), {buffer}, has its elements at {data:p}",
            R::NAME
        )));
    }
    if len.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX.cast_unsigned()) {
        return Err(Error::frame(format_args!("{} {index} (`{name}`) is {buffer}, which no memory holds", R::NAME)));
    }
    Ok((index, View { dims, data, len, memory: PhantomData }))
}

/// An error unless each byte of a `bool` operand is one of the two that a `bool` can have.
fn check_values<T: Element, const RANK: usize, M: Memory>(
    view: &View<'_, T, RANK, M>,
    index: usize,
    name: &str,
) -> Result<(), Error> {
    if !<T as Sealed>::IS_BOOL || !M::IS_HOST || view.len == 0 {
        return Ok(());
    }
    // SAFETY: as for `Operand::as_slice`, of bytes, which have any value.
    let bytes = unsafe { core::slice::from_raw_parts(view.data.cast::<u8>(), view.len) };
    check_bools(format_args!("operand {index} (`{name}`)"), bytes)
}

impl<T, const RANK: usize, M: Memory> View<'_, T, RANK, M> {
    /// The memory of the host that the elements are in.
    fn place(&self, is_written: bool, role: &'static str, index: usize, name: &'static str) -> Place {
        let bytes = if M::IS_HOST { self.len * size_of::<T>() } else { 0 };
        Place { start: self.data.addr(), bytes, is_written, role, index, name }
    }
}

impl<'a, T: Element, const RANK: usize, M: Memory> Parameter<'a> for Operand<'a, T, RANK, M> {
    fn take(parameters: &mut Parameters<'a>, name: &'static str) -> Result<Self, Error> {
        let (index, view) = take_view(parameters, Parameters::operand, name)?;
        check_values(&view, index, name)?;
        parameters.claim(view.place(false, "operand", index, name))?;
        Ok(Self(view))
    }
}

impl<'a, T: Element, const RANK: usize, M: Memory> Parameter<'a> for Output<'a, T, RANK, M> {
    fn take(parameters: &mut Parameters<'a>, name: &'static str) -> Result<Self, Error> {
        let (index, view) = take_view(parameters, Parameters::result, name)?;
        parameters.claim(view.place(true, "result", index, name))?;
        Ok(Self(view))
    }
}

impl<'a, T: Element, const RANK: usize, M: Memory> Parameter<'a> for InPlace<'a, T, RANK, M> {
    fn take(parameters: &mut Parameters<'a>, name: &'static str) -> Result<Self, Error> {
        let (index, operand) = take_view::<T, Arg, RANK, M>(parameters, Parameters::operand, name)?;
        let (result_index, result) = take_view::<T, Ret, RANK, M>(parameters, Parameters::result, name)?;
        if operand.dims != result.dims || (operand.data != result.data && operand.len > 0) {
            return Err(Error::new(
                Code::InvalidArgument,
                format!(
                    "operand {index} and result {result_index} (`{name}`) are {}{} at {:p} and {} at {:p}, wanted the same memory: the program \
                     has to ask for it (`input_output_aliases={{{index}: {result_index}}}` of jax.ffi.ffi_call)",
                    T::DTYPE,
                    Dims(operand.dims),
                    operand.data,
                    Dims(result.dims),
                    result.data
                ),
            ));
        }
        check_values(&operand, index, name)?;
        parameters.claim(operand.place(true, "operand", index, name))?;
        Ok(Self(operand))
    }
}

/// An operand of any element type, to look at: its elements are copied when they are read.
impl<'a> Parameter<'a> for Buffer<'a, Arg> {
    fn take(parameters: &mut Parameters<'a>, name: &'static str) -> Result<Self, Error> {
        parameters.check_elements(name)?;
        let (index, buffer) = parameters.operand(name)?;
        // A type without a size has no Rust type, so nothing reads its elements.
        let bytes = buffer.elements()?.saturating_mul(buffer.dtype().bytes().unwrap_or(0));
        let start = buffer.data().addr();
        parameters.claim(Place { start, bytes, is_written: false, role: "operand", index, name })?;
        Ok(buffer)
    }
}

fn is_token<R: crate::Role>((index, buffer): (usize, Buffer<'_, R>), name: &str) -> Result<Token<R>, Error> {
    if buffer.dtype() == DType::TOKEN {
        return Ok(Token(PhantomData));
    }
    Err(Error::new(Code::InvalidArgument, format!("{} {index} (`{name}`) is {buffer}, wanted an XLA token", R::NAME)))
}

impl<'a> Parameter<'a> for Token<Arg> {
    fn take(parameters: &mut Parameters<'a>, name: &'static str) -> Result<Self, Error> {
        is_token(parameters.operand(name)?, name)
    }
}

impl<'a> Parameter<'a> for Token<Ret> {
    fn take(parameters: &mut Parameters<'a>, name: &'static str) -> Result<Self, Error> {
        is_token(parameters.result(name)?, name)
    }
}

/// Where each parameter is listed.
macro_rules! listed {
    ($([$($generic:tt)*] $parameter:ty: $($has_more:ident)&&+;)*) => {
        $(impl<'a, $($generic)*> Listed<'a> for $parameter {
            fn has_more(parameters: &Parameters<'a>) -> bool {
                $(parameters.$has_more())&&+
            }
        })*
    };
}

listed! {
    [T: Element, const RANK: usize, M: Memory] Operand<'a, T, RANK, M>: has_operands;
    [T: Element, const RANK: usize, M: Memory] Output<'a, T, RANK, M>: has_results;
    [T: Element, const RANK: usize, M: Memory] InPlace<'a, T, RANK, M>: has_operands && has_results;
    [] Buffer<'a, Arg>: has_operands;
    [] Token<Arg>: has_operands;
    [] Token<Ret>: has_results;
}
