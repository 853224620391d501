//! Element types: what XLA calls them, and which Rust types have the same bits.

use core::fmt;

use crate::error::{Code, Error};

/// A value of `xla::PrimitiveType`, shown as JAX shows it: `f32`, `i8`, `c128`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DType(pub i32);

impl DType {
    /// XLA's tokens: values that are there to be depended on, and have no bytes.
    pub const TOKEN: Self = Self(17);

    /// Its name, if it is one that this crate knows.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            1 => "bool",
            30 => "i1",
            26 => "i2",
            21 => "i4",
            2 => "i8",
            3 => "i16",
            4 => "i32",
            5 => "i64",
            31 => "u1",
            27 => "u2",
            22 => "u4",
            6 => "u8",
            7 => "u16",
            8 => "u32",
            9 => "u64",
            10 => "f16",
            11 => "f32",
            12 => "f64",
            16 => "bf16",
            15 => "c64",
            18 => "c128",
            17 => "token",
            19 => "f8_e5m2",
            29 => "f8_e3m4",
            28 => "f8_e4m3",
            20 => "f8_e4m3fn",
            23 => "f8_e4m3b11fnuz",
            24 => "f8_e5m2fnuz",
            25 => "f8_e4m3fnuz",
            32 => "f4_e2m1fn",
            33 => "f8_e8m0fnu",
            _ => return None,
        })
    }
}

impl DType {
    /// The bytes of an element, if there is a Rust type for it.
    #[must_use]
    pub const fn bytes(self) -> Option<usize> {
        Some(match self.0 {
            1 | 2 | 6 | 19 | 20 | 23..=25 | 28 | 29 | 33 => 1,
            3 | 7 | 10 | 16 => 2,
            4 | 8 | 11 => 4,
            5 | 9 | 12 | 15 => 8,
            18 => 16,
            _ => return None,
        })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "type {} of xla::PrimitiveType", self.0),
        }
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A Rust type with the same bits as an XLA element type.
///
/// `bool`, the integers and floats of Rust, [`Complex`] of `f32` and `f64`, [`F16`], [`BF16`], and the types of eight bits
/// ([`F8E4M3FN`] and its like), which are bytes.
pub trait Element: Copy + Send + Sync + sealed::Element + 'static {
    /// Its element type in XLA.
    const DTYPE: DType;
}

mod sealed {
    pub trait Element {
        /// Whether a byte of 2 or more is no value of the type.
        const IS_BOOL: bool = false;
    }
}

pub(crate) use sealed::Element as Sealed;

/// An error if one of these bytes is none that a `bool` can have. `what` has them.
pub(crate) fn check_bools(what: impl fmt::Display, bytes: &[u8]) -> Result<(), Error> {
    match bytes.iter().position(|&byte| byte > 1) {
        None => Ok(()),
        Some(at) => Err(Error::new(
            Code::InvalidArgument,
            format!("{what} is bool, and its element {at} has the byte {}, wanted 0 or 1", bytes[at]),
        )),
    }
}

macro_rules! elements {
    ($($type:ty = $dtype:literal),* $(,)?) => {
        $(impl sealed::Element for $type {}
        impl Element for $type {
            const DTYPE: DType = DType($dtype);
        })*
    };
}

impl sealed::Element for bool {
    const IS_BOOL: bool = true;
}
impl Element for bool {
    const DTYPE: DType = DType(1);
}

elements! {
    i8 = 2, i16 = 3, i32 = 4, i64 = 5, u8 = 6, u16 = 7, u32 = 8, u64 = 9, f32 = 11, f64 = 12,
    Complex<f32> = 15, Complex<f64> = 18, F16 = 10, BF16 = 16,
    F8E5M2 = 19, F8E3M4 = 29, F8E4M3 = 28, F8E4M3FN = 20, F8E4M3B11FNUZ = 23, F8E5M2FNUZ = 24, F8E4M3FNUZ = 25, F8E8M0FNU = 33,
}

/// A complex number, with the layout of C's and of XLA's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Complex<T> {
    /// The real part.
    pub re: T,
    /// The imaginary part.
    pub im: T,
}

impl<T> Complex<T> {
    /// A complex number of its parts.
    pub const fn new(re: T, im: T) -> Self {
        Self { re, im }
    }
}

macro_rules! bits {
    ($($(#[$meta:meta])* $name:ident($bits:ty);)*) => {
        $($(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(
            /// The bits.
            pub $bits,
        );)*
    };
}

bits! {
    /// `float16`, IEEE's number of 16 bits, as its bits.
    F16(u16);
    /// `bfloat16`, the upper half of an `f32`, as its bits.
    BF16(u16);
    /// `float8_e5m2` as its bits.
    F8E5M2(u8);
    /// `float8_e3m4` as its bits.
    F8E3M4(u8);
    /// `float8_e4m3` as its bits.
    F8E4M3(u8);
    /// `float8_e4m3fn` as its bits.
    F8E4M3FN(u8);
    /// `float8_e4m3b11fnuz` as its bits.
    F8E4M3B11FNUZ(u8);
    /// `float8_e5m2fnuz` as its bits.
    F8E5M2FNUZ(u8);
    /// `float8_e4m3fnuz` as its bits.
    F8E4M3FNUZ(u8);
    /// `float8_e8m0fnu` as its bits.
    F8E8M0FNU(u8);
}

/// The lower half.
#[expect(clippy::cast_possible_truncation, reason = "that is what it is for")]
const fn low(bits: u32) -> u16 {
    bits as u16
}

impl BF16 {
    /// The number, exactly.
    #[must_use]
    pub const fn to_f32(self) -> f32 {
        f32::from_bits((self.0 as u32) << 16)
    }

    /// The nearest number, ties to even.
    #[must_use]
    pub const fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        if value.is_nan() {
            // A payload that lies in the lower half alone must not be lost: that would be an infinity.
            return Self(low(bits >> 16) | 0x40);
        }
        let half = 0x7fff + ((bits >> 16) & 1);
        Self(low((bits + half) >> 16))
    }
}

impl F16 {
    /// The number, exactly.
    #[must_use]
    pub fn to_f32(self) -> f32 {
        let sign = u32::from(self.0 & 0x8000) << 16;
        let (exponent, fraction) = ((self.0 >> 10) & 0x1f, u32::from(self.0 & 0x3ff));
        let magnitude = match exponent {
            0 => (f32::from(self.0 & 0x3ff) / 16_777_216.0).to_bits(), // in units of 2^-24
            0x1f => 0x7f80_0000 | fraction << 13,
            _ => (u32::from(exponent) + 112) << 23 | fraction << 13,
        };
        f32::from_bits(sign | magnitude)
    }

    /// The nearest number, ties to even; infinity beyond the largest.
    #[must_use]
    pub fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let sign = low(bits >> 16) & 0x8000;
        let magnitude = bits & 0x7fff_ffff;
        if magnitude > 0x7f80_0000 {
            return Self(sign | 0x7e00 | low(magnitude >> 13) & 0x3ff);
        }
        if magnitude >= 0x4780_0000 {
            return Self(sign | 0x7c00); // 65536 and more
        }
        if magnitude < 0x3880_0000 {
            // Below 2^-14 the result has units of 2^-24: adding 0.5 puts those where f32 rounds.
            let rounded = (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5_f32.to_bits();
            return Self(sign | low(rounded));
        }
        let half = 0xfff + ((magnitude >> 13) & 1);
        Self(sign | low((magnitude + half - (112 << 23)) >> 13))
    }
}

#[cfg(test)]
mod tests;
