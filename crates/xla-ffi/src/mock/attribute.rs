//! Attributes as C has them.

use core::ffi::{c_int, c_void};
use core::marker::PhantomData;

use crate::{Element, ffi};

/// An attribute of a call of the mock.
#[derive(Clone, Debug)]
pub struct Attribute(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Scalar(c_int, Elements),
    Array(c_int, usize, Elements),
    String(String),
    Dictionary(Vec<(String, Attribute)>),
}

/// Elements of any type, in memory that is aligned for all of them.
#[derive(Clone, Debug)]
pub(super) struct Elements(Vec<u128>);

impl Elements {
    pub(super) fn new<T: Element>(values: &[T]) -> Self {
        let mut words = vec![0_u128; size_of_val(values).div_ceil(size_of::<u128>())];
        // SAFETY: there is room for them, and fresh memory overlaps with nothing.
        unsafe { core::ptr::copy_nonoverlapping(values.as_ptr(), words.as_mut_ptr().cast(), values.len()) };
        Self(words)
    }

    pub(super) fn unset(bytes: usize) -> Self {
        Self(vec![u128::MAX; bytes.div_ceil(size_of::<u128>())])
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    pub(super) fn as_ptr(&self) -> *const c_void {
        self.0.as_ptr().cast()
    }
}

impl Attribute {
    /// A scalar.
    #[must_use]
    pub fn scalar<T: Element>(value: T) -> Self {
        Self(Kind::Scalar(T::DTYPE.0, Elements::new(&[value])))
    }

    /// An array.
    #[must_use]
    pub fn array<T: Element>(values: &[T]) -> Self {
        Self(Kind::Array(T::DTYPE.0, values.len(), Elements::new(values)))
    }

    /// A string.
    #[must_use]
    pub fn string(text: &str) -> Self {
        Self(Kind::String(text.into()))
    }

    /// A dictionary.
    #[must_use]
    pub fn dictionary<const N: usize>(entries: [(&str, Self); N]) -> Self {
        Self(Kind::Dictionary(entries.map(|(name, value)| (name.into(), value)).into()))
    }
}

/// Attributes as C structs. Moving it moves none of them.
pub(super) struct Built<'a> {
    types: Vec<c_int>,
    names: Vec<ffi::ByteSpan>,
    values: Vec<Value<'a>>,
    name_items: Vec<*const ffi::ByteSpan>,
    value_items: Vec<*const c_void>,
    /// What the structs point into.
    attributes: PhantomData<&'a mut [(String, Attribute)]>,
}

enum Value<'a> {
    Scalar(Box<ffi::Scalar>),
    Array(Box<ffi::Array>),
    String(Box<ffi::ByteSpan>),
    Dictionary(Box<ffi::Attrs>, #[expect(dead_code, reason = "what the struct points to")] Box<Built<'a>>),
}

impl<'a> Built<'a> {
    pub(super) fn new(attributes: &'a mut [(String, Attribute)]) -> Self {
        // A runtime sorts them.
        attributes.sort_by(|one, other| one.0.cmp(&other.0));
        let mut built = Self {
            types: Vec::new(),
            names: Vec::new(),
            values: Vec::new(),
            name_items: Vec::new(),
            value_items: Vec::new(),
            attributes: PhantomData,
        };
        for (name, Attribute(kind)) in attributes {
            built.names.push(span(name));
            let (kind, value) = match kind {
                Kind::Scalar(dtype, elements) => (
                    ffi::ATTR_SCALAR,
                    Value::Scalar(Box::new(ffi::Scalar { dtype: *dtype, value: elements.as_mut_ptr() })),
                ),
                Kind::Array(dtype, size, elements) => {
                    let array = ffi::Array { dtype: *dtype, size: *size, data: elements.as_mut_ptr() };
                    (ffi::ATTR_ARRAY, Value::Array(Box::new(array)))
                }
                Kind::String(text) => (ffi::ATTR_STRING, Value::String(Box::new(span(text)))),
                Kind::Dictionary(entries) => {
                    let entries = Box::new(Built::new(entries));
                    (ffi::ATTR_DICTIONARY, Value::Dictionary(Box::new(entries.attrs()), entries))
                }
            };
            built.types.push(kind);
            built.values.push(value);
        }
        built.name_items = built.names.iter().map(|name| &raw const *name).collect();
        built.value_items = built
            .values
            .iter()
            .map(|value| match value {
                Value::Scalar(it) => (&raw const **it).cast(),
                Value::Array(it) => (&raw const **it).cast(),
                Value::String(it) => (&raw const **it).cast(),
                Value::Dictionary(it, _) => (&raw const **it).cast(),
            })
            .collect();
        built
    }

    pub(super) fn attrs(&self) -> ffi::Attrs {
        let mut attrs = ffi::Attrs::new();
        attrs.size = super::c_len(self.types.len());
        attrs.types = self.types.as_ptr();
        attrs.names = self.name_items.as_ptr();
        attrs.attrs = self.value_items.as_ptr();
        attrs
    }
}

pub(super) fn span(text: &str) -> ffi::ByteSpan {
    ffi::ByteSpan { ptr: text.as_ptr().cast(), len: text.len() }
}
