//! Attributes: what a program says to a handler when it is compiled.

use core::ffi::{c_int, c_void};
use core::fmt;

use crate::call::{bad_pointer, bytes, can_be_read, open, too_short};
use crate::element::{DType, Element, Sealed, check_bools};
use crate::error::{Code, Error};
use crate::ffi;

/// Attributes by name: those of a call, or a dictionary among them.
#[derive(Clone, Copy)]
pub struct Attributes<'a> {
    len: usize,
    types: *const c_int,
    names: *const *const ffi::ByteSpan,
    values: *const *const c_void,
    frame: core::marker::PhantomData<&'a ffi::CallFrame>,
}

/// The value of an attribute.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Value<'a> {
    /// A number or a `bool`.
    Scalar(Array<'a>),
    /// Numbers or `bool`s of one type.
    Array(Array<'a>),
    /// A string.
    String(&'a str),
    /// Attributes by name.
    Dictionary(Attributes<'a>),
}

/// The elements of a scalar or an array.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    dtype: DType,
    len: usize,
    data: *const c_void,
    frame: core::marker::PhantomData<&'a ffi::CallFrame>,
}

impl<'a> Attributes<'a> {
    /// # Safety
    /// If their size is positive, the lists are null or misaligned or point to that many entries, as the C interface has them, for `'a`.
    pub(crate) unsafe fn open(attrs: &ffi::Attrs) -> Result<Self, Error> {
        let ffi::Attrs { struct_size, size, types, names, attrs: values, .. } = *attrs;
        let len = usize::try_from(size).map_err(|_| Error::frame(format_args!("{size} attributes")))?;
        if struct_size < ffi::Attrs::END {
            return Err(too_short("XLA_FFI_Attrs", struct_size, ffi::Attrs::END));
        }
        if len > 0 && !(can_be_read(types) && can_be_read(names) && can_be_read(values)) {
            return Err(Error::frame(format_args!(
                "XLA_FFI_Attrs holds {len} attributes, of types at {types:p}, with names at {names:p}, at {values:p}"
            )));
        }
        Ok(Self { len, types, names, values, frame: core::marker::PhantomData })
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

    fn name(&self, index: usize) -> Result<&'a str, Error> {
        debug_assert!(index < self.len);
        // SAFETY: the list can be read and has that many names (`open`).
        let name = unsafe { bytes(*self.names.add(index)) }?;
        core::str::from_utf8(name).map_err(|_| {
            invalid(format!("the name of an attribute, `{}`, is not UTF-8", String::from_utf8_lossy(name)))
        })
    }

    /// The names.
    ///
    /// # Errors
    /// The frame is malformed.
    pub fn names(&self) -> Result<Vec<&'a str>, Error> {
        (0..self.len).map(|index| self.name(index)).collect()
    }

    /// The value of that name, or `None` if there is none.
    ///
    /// # Errors
    /// The frame is malformed.
    pub fn value(&self, name: &str) -> Result<Option<Value<'a>>, Error> {
        for index in 0..self.len {
            if self.name(index)? == name {
                return self.value_at(index).map(Some);
            }
        }
        Ok(None)
    }

    /// The value of that name as a Rust type.
    ///
    /// # Errors
    /// It is missing and may not be, it is of another type, or the frame is malformed.
    pub fn get<T: Attribute<'a>>(&self, name: &str) -> Result<T, Error> {
        self.get_at(name, name)
    }

    /// The same, called `path` in messages.
    pub(crate) fn get_at<T: Attribute<'a>>(&self, path: &str, name: &str) -> Result<T, Error> {
        match self.value(name)? {
            Some(value) => T::read(path, value),
            None => T::absent().ok_or_else(|| {
                let names = self.names().map_or_else(|error| error.to_string(), |names| list(&names));
                invalid(format!("attribute `{path}` is missing, wanted {}; there are {names}", T::wanted()))
            }),
        }
    }

    /// An error unless these are all.
    pub(crate) fn only(&self, path: &str, known: &[&str]) -> Result<(), Error> {
        for name in self.names()? {
            if !known.contains(&name) {
                return Err(invalid(format!("attribute `{path}{name}` is unknown; the handler takes {}", list(known))));
            }
        }
        Ok(())
    }

    fn value_at(&self, index: usize) -> Result<Value<'a>, Error> {
        // SAFETY: the list can be read and has that many types (`open`).
        let kind = unsafe { *self.types.add(index) };
        // SAFETY: and as many values.
        let value = unsafe { *self.values.add(index) };
        match kind {
            ffi::ATTR_STRING => {
                // SAFETY: a value of this type is a byte span.
                let text = unsafe { bytes(value.cast()) }?;
                core::str::from_utf8(text).map(Value::String).map_err(|_| {
                    let (name, text) = (self.name(index).unwrap_or_default(), String::from_utf8_lossy(text));
                    invalid(format!("attribute `{name}` is the string {text:?}, which is not UTF-8"))
                })
            }
            ffi::ATTR_SCALAR => {
                // SAFETY: a value of this type is a scalar.
                let scalar = unsafe { plain::<ffi::Scalar>(value.cast(), "XLA_FFI_Scalar") }?;
                Array::new(scalar.dtype, 1, scalar.value).map(Value::Scalar)
            }
            ffi::ATTR_ARRAY => {
                // SAFETY: a value of this type is an array.
                let array = unsafe { plain::<ffi::Array>(value.cast(), "XLA_FFI_Array") }?;
                Array::new(array.dtype, array.size, array.data).map(Value::Array)
            }
            ffi::ATTR_DICTIONARY => {
                // SAFETY: a value of this type is a list of attributes.
                let attrs = unsafe { open::<ffi::Attrs>(value.cast()) }?;
                // SAFETY: as the C interface has it.
                unsafe { Attributes::open(attrs) }.map(Value::Dictionary)
            }
            _ => Err(Error::frame(format_args!("an attribute has type {kind} of XLA_FFI_AttrType"))),
        }
    }
}

/// # Safety
/// `ptr` is null, or misaligned, or points to a `T`, for `'a`.
unsafe fn plain<'a, T>(ptr: *const T, name: &str) -> Result<&'a T, Error> {
    if !can_be_read(ptr) {
        return Err(bad_pointer(name, ptr.cast()));
    }
    // SAFETY: not null and aligned; the caller vouches for the rest.
    Ok(unsafe { &*ptr })
}

impl<'a> Array<'a> {
    fn new(dtype: c_int, len: usize, data: *mut c_void) -> Result<Self, Error> {
        if len > 0 && data.is_null() {
            return Err(Error::frame("the elements of an attribute are at a null pointer"));
        }
        Ok(Self { dtype: DType(dtype), len, data, frame: core::marker::PhantomData })
    }

    /// Their element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
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

    /// The elements, or `None` if they are of another type.
    ///
    /// # Errors
    /// The frame is malformed.
    pub fn elements<T: Element>(&self) -> Result<Option<&'a [T]>, Error> {
        if self.dtype != T::DTYPE {
            return Ok(None);
        }
        if self.len == 0 {
            return Ok(Some(&[]));
        }
        let data = self.data.cast::<T>();
        let bytes = self.len.checked_mul(size_of::<T>());
        if !data.is_aligned() || bytes.is_none_or(|bytes| bytes > isize::MAX.cast_unsigned()) {
            return Err(Error::frame(format_args!("{} elements of an attribute are at {data:p}", self.len)));
        }
        if <T as Sealed>::IS_BOOL {
            // SAFETY: as below, of bytes, which have any value.
            check_bools("an attribute", unsafe { core::slice::from_raw_parts(data.cast::<u8>(), self.len) })?;
        }
        // SAFETY: not null (`new`) and aligned, and no larger than memory can be; the runtime says that this many elements of
        // this type stand there while the handler runs, and never changes them.
        Ok(Some(unsafe { core::slice::from_raw_parts(data, self.len) }))
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.dtype, self.len)
    }
}

impl fmt::Debug for Attributes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().map_or_else(|error| error.to_string(), |names| list(&names)))
    }
}

/// What it is, for messages.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scalar(scalar) => write!(f, "a scalar of type {}", scalar.dtype),
            Self::Array(array) => write!(f, "an array of type {}[{}]", array.dtype, array.len),
            Self::String(text) => write!(f, "the string {text:?}"),
            Self::Dictionary(attributes) => write!(f, "a dictionary of {attributes:?}"),
        }
    }
}

/// A Rust type as which an attribute can be read.
///
/// Scalars are any [`Element`], arrays a slice or a `Vec` of one, strings a `&str` or a `String`, dictionaries [`Attributes`] or a struct made
/// by [`attributes!`](crate::attributes!). An `Option` may be missing. Types are never converted: in Python, `numpy.float32(0.5)` is an
/// `f32`; numbers of Python are `i64` and `f64`.
pub trait Attribute<'a>: Sized {
    /// What a value must be, for messages.
    fn wanted() -> String;

    /// Reads a value. `path` is its name in messages.
    ///
    /// # Errors
    /// It is of another type, or the frame is malformed.
    fn read(path: &str, value: Value<'a>) -> Result<Self, Error>;

    /// What stands for an attribute that is missing, if it may be.
    #[must_use]
    fn absent() -> Option<Self> {
        None
    }
}

/// An error about an attribute that is no `T`.
fn misfit<'a, T: Attribute<'a>>(path: &str, value: Value<'a>) -> Error {
    invalid(format!("attribute `{path}` is {value}, wanted {}", T::wanted()))
}

impl<'a, T: Element> Attribute<'a> for T {
    fn wanted() -> String {
        format!("a scalar of type {}", T::DTYPE)
    }

    fn read(path: &str, value: Value<'a>) -> Result<Self, Error> {
        if let Value::Scalar(scalar) = value
            && let Some(&[element]) = scalar.elements::<T>()?
        {
            return Ok(element);
        }
        Err(misfit::<Self>(path, value))
    }
}

impl<'a, T: Element> Attribute<'a> for &'a [T] {
    fn wanted() -> String {
        format!("an array of type {}", T::DTYPE)
    }

    fn read(path: &str, value: Value<'a>) -> Result<Self, Error> {
        if let Value::Array(array) = value
            && let Some(elements) = array.elements::<T>()?
        {
            return Ok(elements);
        }
        Err(misfit::<Self>(path, value))
    }
}

impl<'a, T: Element> Attribute<'a> for Vec<T> {
    fn wanted() -> String {
        <&'a [T]>::wanted()
    }

    fn read(path: &str, value: Value<'a>) -> Result<Self, Error> {
        <&'a [T]>::read(path, value).map(<[T]>::to_vec)
    }
}

impl<'a> Attribute<'a> for &'a str {
    fn wanted() -> String {
        "a string".into()
    }

    fn read(path: &str, value: Value<'a>) -> Result<Self, Error> {
        match value {
            Value::String(text) => Ok(text),
            _ => Err(misfit::<Self>(path, value)),
        }
    }
}

impl<'a> Attribute<'a> for String {
    fn wanted() -> String {
        <&'a str>::wanted()
    }

    fn read(path: &str, value: Value<'a>) -> Result<Self, Error> {
        <&'a str>::read(path, value).map(Into::into)
    }
}

impl<'a> Attribute<'a> for Attributes<'a> {
    fn wanted() -> String {
        "a dictionary".into()
    }

    fn read(path: &str, value: Value<'a>) -> Result<Self, Error> {
        match value {
            Value::Dictionary(attributes) => Ok(attributes),
            _ => Err(misfit::<Self>(path, value)),
        }
    }
}

impl<'a, T: Attribute<'a>> Attribute<'a> for Option<T> {
    fn wanted() -> String {
        T::wanted()
    }

    fn read(path: &str, value: Value<'a>) -> Result<Self, Error> {
        T::read(path, value).map(Some)
    }

    fn absent() -> Option<Self> {
        Some(None)
    }
}

/// Declares structs that are read from dictionaries, field by field.
///
/// ```
/// use xla_ffi::{Error, Output, attributes, handler};
///
/// attributes! {
///     /// How to solve.
///     pub struct Options {
///         /// The largest residual.
///         pub tolerance: f64,
///         /// How often to try, 10 times if it is left out.
///         pub steps: Option<i64>,
///     }
/// }
///
/// fn solve(mut y: Output<'_, f64, 0>, options: Options) -> Result<(), Error> {
///     y.write(&[options.tolerance * options.steps.unwrap_or(10) as f64])
/// }
///
/// handler!(Solve = solve(y; options));
/// ```
///
/// In Python: `ffi_call(...)(options={"tolerance": 1e-9})`. A key that is no field is an error.
#[macro_export]
macro_rules! attributes {
    ($($(#[$meta:meta])* $visibility:vis struct $name:ident {
        $($(#[$field_meta:meta])* $field_visibility:vis $field:ident: $type:ty),* $(,)?
    })*) => {
        $($(#[$meta])*
        #[derive(Clone, Debug)]
        $visibility struct $name {
            $($(#[$field_meta])* $field_visibility $field: $type,)*
        }

        impl<'a> $crate::Attribute<'a> for $name {
            fn wanted() -> ::std::string::String {
                let fields: &[(&str, ::std::string::String)] =
                    &[$((stringify!($field), <$type as $crate::Attribute<'a>>::wanted())),*];
                $crate::__private::wanted_dictionary(fields)
            }

            fn read(path: &str, value: $crate::Value<'a>) -> ::core::result::Result<Self, $crate::Error> {
                let fields = $crate::__private::Fields::open::<Self>(path, value, &[$(stringify!($field)),*])?;
                ::core::result::Result::Ok(Self { $($field: fields.get(stringify!($field))?,)* })
            }
        })*
    };
}

/// A dictionary that is read into a struct.
#[doc(hidden)]
pub struct Fields<'p, 'a> {
    path: &'p str,
    attributes: Attributes<'a>,
}

impl<'p, 'a> Fields<'p, 'a> {
    /// # Errors
    /// The value is no dictionary, or has keys that are no fields.
    pub fn open<T: Attribute<'a>>(path: &'p str, value: Value<'a>, names: &[&str]) -> Result<Self, Error> {
        let Value::Dictionary(attributes) = value else { return Err(misfit::<T>(path, value)) };
        attributes.only(&format!("{path}."), names)?;
        Ok(Self { path, attributes })
    }

    /// # Errors
    /// As for [`Attributes::get`].
    pub fn get<T: Attribute<'a>>(&self, name: &str) -> Result<T, Error> {
        self.attributes.get_at(&format!("{}.{name}", self.path), name)
    }
}

#[doc(hidden)]
#[must_use]
pub fn wanted_dictionary(fields: &[(&str, String)]) -> String {
    let fields: Vec<_> = fields.iter().map(|(name, wanted)| format!("`{name}` ({wanted})")).collect();
    format!("a dictionary of {}", fields.join(", "))
}

fn invalid(message: String) -> Error {
    Error::new(Code::InvalidArgument, message)
}

/// Names in a message.
pub(crate) fn list(names: &[&str]) -> String {
    match names {
        [] => "none".into(),
        _ => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}
