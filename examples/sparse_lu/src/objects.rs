//! All factors of the process, each under a token: a number that is never used again, so that a stale token is always found out.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use faer::{c32, c64};
use xla_ffi::{Code, Element, Error};

use crate::factors::{Lu, Scalar};
use crate::pattern::Pattern;

#[derive(Default)]
struct Objects {
    made: i32,
    by_token: HashMap<i32, Arc<Object>>,
}

static OBJECTS: LazyLock<RwLock<Objects>> = LazyLock::new(RwLock::default);

/// The factors of a matrix, with their lock: solves run side by side, a refactorisation alone.
pub(crate) struct Object {
    pub(crate) pattern: Arc<Pattern>,
    /// Another number after each refactorisation, and never zero. It changes under the lock.
    version: AtomicI32,
    numeric: Numeric,
}

enum Numeric {
    F32(RwLock<Lu<f32>>),
    F64(RwLock<Lu<f64>>),
    C64(RwLock<Lu<c32>>),
    C128(RwLock<Lu<c64>>),
}

/// An element type that an [`Object`] can have.
pub(crate) trait Stored: Scalar {
    fn stored(object: &Object) -> Option<&RwLock<Lu<Self>>>;
}

macro_rules! stored {
    ($($type:ty = $kind:ident;)*) => {
        $(impl Stored for $type {
            fn stored(object: &Object) -> Option<&RwLock<Lu<Self>>> {
                match &object.numeric {
                    Numeric::$kind(lu) => Some(lu),
                    _ => None,
                }
            }
        })*
    };
}

stored! { f32 = F32; f64 = F64; c32 = C64; c64 = C128; }

impl Object {
    /// Without values; `None` if the type is none of the four.
    pub(crate) fn new(pattern: Arc<Pattern>, dtype: &str) -> Option<Self> {
        let numeric = match dtype {
            "float32" => Numeric::F32(RwLock::new(Lu::new())),
            "float64" => Numeric::F64(RwLock::new(Lu::new())),
            "complex64" => Numeric::C64(RwLock::new(Lu::new())),
            "complex128" => Numeric::C128(RwLock::new(Lu::new())),
            _ => return None,
        };
        Some(Self { pattern, version: AtomicI32::new(1), numeric })
    }

    pub(crate) fn version(&self) -> i32 {
        self.version.load(Ordering::Relaxed)
    }

    /// For a refactorisation, which holds the lock.
    pub(crate) fn next_version(&self) {
        self.version.store(self.version().checked_add(1).unwrap_or(1), Ordering::Relaxed);
    }

    /// The factors, if they are of that type.
    pub(crate) fn lu<T: Stored>(&self) -> Result<&RwLock<Lu<T>>, Error> {
        let is = match &self.numeric {
            Numeric::F32(_) => "f32",
            Numeric::F64(_) => "f64",
            Numeric::C64(_) => "c64",
            Numeric::C128(_) => "c128",
        };
        T::stored(self).ok_or_else(|| {
            let wanted = T::Xla::DTYPE;
            Error::new(Code::InvalidArgument, format!("sparse_lu: the factors are {is}, the other operand is {wanted}"))
        })
    }
}

/// Keeps an object, and gives its token; `None` if all of them are used up.
pub(crate) fn insert(object: Object) -> Option<i32> {
    let mut objects = OBJECTS.write().unwrap_or_else(PoisonError::into_inner);
    objects.made = objects.made.checked_add(1)?;
    let token = objects.made;
    objects.by_token.insert(token, Arc::new(object));
    Some(token)
}

/// The object of a token.
pub(crate) fn find(token: i32) -> Result<Arc<Object>, Error> {
    let objects = OBJECTS.read().unwrap_or_else(PoisonError::into_inner);
    objects.by_token.get(&token).cloned().ok_or_else(|| unknown(token, objects.made))
}

/// Takes the object of a token away. Its memory is freed when no call uses it any more.
pub(crate) fn remove(token: i32) -> Result<Arc<Object>, Error> {
    let mut objects = OBJECTS.write().unwrap_or_else(PoisonError::into_inner);
    let made = objects.made;
    objects.by_token.remove(&token).ok_or_else(|| unknown(token, made))
}

pub(crate) fn live() -> usize {
    OBJECTS.read().unwrap_or_else(PoisonError::into_inner).by_token.len()
}

fn unknown(token: i32, made: i32) -> Error {
    let what = if (1..=made).contains(&token) {
        format!(
            "the factors of token {token} have been freed; keep the `Factors` for as long as programs use the token"
        )
    } else {
        format!("there is no token {token}: `factor` has not made it in this process")
    };
    Error::new(Code::NotFound, format!("sparse_lu: {what}"))
}
