//! The factors of one matrix, of one element type.

use core::ops::{AddAssign, Mul};

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::mat::MatMut;
use faer::sparse::SparseColMatRef;
use faer::sparse::linalg::LuError;
use faer::sparse::linalg::lu::{LuRef, NumericLu};
use faer::traits::ComplexField;
use faer::{Conj, Par, Spec, c32, c64};
use xla_ffi::{Code, Complex, Element, Error};

use crate::pattern::Pattern;

/// An element type of matrices: as XLA has it, and as faer does.
pub(crate) trait Scalar: ComplexField + Copy + AddAssign + Mul<Output = Self> {
    type Xla: Element;
    fn from_xla(value: Self::Xla) -> Self;
    fn into_xla(self) -> Self::Xla;
    fn one(sign: bool) -> Self;
    fn magnitude(self) -> f64;
}

macro_rules! real {
    ($($type:ty)*) => {
        $(impl Scalar for $type {
            type Xla = $type;
            fn from_xla(value: $type) -> $type {
                value
            }
            fn into_xla(self) -> $type {
                self
            }
            fn one(sign: bool) -> $type {
                if sign { 1.0 } else { -1.0 }
            }
            fn magnitude(self) -> f64 {
                self.abs().into()
            }
        })*
    };
}

macro_rules! complex {
    ($($type:ident = $part:ty;)*) => {
        $(impl Scalar for $type {
            type Xla = Complex<$part>;
            fn from_xla(value: Complex<$part>) -> $type {
                $type::new(value.re, value.im)
            }
            fn into_xla(self) -> Complex<$part> {
                Complex::new(self.re, self.im)
            }
            fn one(sign: bool) -> $type {
                $type::new(<$part>::one(sign), 0.0)
            }
            fn magnitude(self) -> f64 {
                f64::from(self.re).hypot(self.im.into())
            }
        })*
    };
}

real!(f32 f64);
complex! { c32 = f32; c64 = f64; }

/// What the factors are factors of.
enum Content {
    Nothing,
    Matrix,
    /// The last `refactor` failed, for this reason.
    Failed(Error),
}

/// The factors of a matrix, and the memory to compute them again.
pub(crate) struct Lu<T> {
    values: Vec<T>,
    numeric: NumericLu<u32, T>,
    scratch: Option<MemBuffer>,
    content: Content,
}

impl<T: Scalar> Lu<T> {
    pub(crate) fn new() -> Self {
        Self { values: Vec::new(), numeric: NumericLu::new(), scratch: None, content: Content::Nothing }
    }

    /// Factorises the matrix with these values, in the memory of the factors before.
    pub(crate) fn refactor(&mut self, pattern: &Pattern, values: &[T::Xla]) -> Result<(), Error> {
        self.content = Content::Nothing; // also if this panics
        let outcome = self.try_refactor(pattern, values);
        self.content = match &outcome {
            Ok(()) => Content::Matrix,
            Err(error) => Content::Failed(error.clone()),
        };
        outcome
    }

    fn try_refactor(&mut self, pattern: &Pattern, values: &[T::Xla]) -> Result<(), Error> {
        if values.len() != pattern.nnz() {
            let (got, wanted) = (values.len(), pattern.nnz());
            return Err(invalid(format!("there are {got} values, and the pattern has {wanted} elements")));
        }
        self.values.clear();
        self.values.resize(pattern.matrix.row_idx().len(), T::zero_impl());
        for (index, (&value, &place)) in values.iter().zip(&pattern.places).enumerate() {
            let value = T::from_xla(value);
            if !value.magnitude().is_finite() {
                return Err(invalid(format!("value {index} is not finite")));
            }
            self.values[place as usize] += value;
        }
        let settings = Spec::default();
        let scratch = match &mut self.scratch {
            Some(scratch) => scratch,
            none => {
                let needed = pattern.symbolic.factorize_numeric_lu_scratch::<T>(Par::Seq, settings);
                none.insert(memory(MemBuffer::try_new(needed))?)
            }
        };
        let matrix = SparseColMatRef::new(pattern.matrix.as_ref(), &self.values);
        let stack = MemStack::new(scratch);
        match pattern.symbolic.factorize_numeric_lu(&mut self.numeric, matrix, Par::Seq, stack, settings) {
            Ok(_) => self.check(pattern),
            Err(LuError::SymbolicSingular { index }) => {
                Err(singular(format!("there is no pivot in step {index} of {}", pattern.n())))
            }
            Err(LuError::Generic(error)) => Err(Error::new(Code::ResourceExhausted, format!("sparse_lu: {error}"))),
        }
    }

    /// Solves one system and looks at the residual, because factorising a singular matrix ends like any other one.
    fn check(&self, pattern: &Pattern) -> Result<(), Error> {
        // Signs without a period, so that no pattern of a matrix is orthogonal to them by construction.
        let sign = |index: usize| T::one(index.wrapping_mul(0x9E37_79B9) & 0x8000_0000 != 0);
        let mut solution: Vec<T> = (0..pattern.n()).map(sign).collect();
        self.solve_factored(pattern, &mut solution, false)?;
        let mut product = vec![T::zero_impl(); pattern.n()];
        let (starts, rows) = (pattern.matrix.col_ptr(), pattern.matrix.row_idx());
        for (column, &x) in solution.iter().enumerate() {
            for place in starts[column] as usize..starts[column + 1] as usize {
                product[rows[place] as usize] += self.values[place] * x;
            }
        }
        let mut worst = 0.0_f64;
        for (index, mut difference) in product.into_iter().enumerate() {
            difference += sign(index) * T::one(false);
            let size = difference.magnitude();
            worst = if size.is_finite() { worst.max(size) } else { f64::INFINITY };
        }
        if worst > 0.1 {
            return Err(singular(format!("the residual of a test system is {worst:.1e} times its right-hand side")));
        }
        Ok(())
    }

    /// Replaces right-hand sides, one after the other in `sides`, by the solutions.
    pub(crate) fn solve(&self, pattern: &Pattern, sides: &mut [T], transposed: bool) -> Result<(), Error> {
        match &self.content {
            Content::Matrix => self.solve_factored(pattern, sides, transposed),
            Content::Nothing => {
                Err(Error::new(Code::FailedPrecondition, "sparse_lu: nothing has been factorised under this token"))
            }
            Content::Failed(error) => Err(Error::new(
                Code::FailedPrecondition,
                format!(
                    "sparse_lu: the last refactorisation failed ({}), so there is nothing to solve with",
                    error.message()
                ),
            )),
        }
    }

    fn solve_factored(&self, pattern: &Pattern, sides: &mut [T], transposed: bool) -> Result<(), Error> {
        let n = pattern.n();
        let count = sides.len() / n;
        let needed = pattern.symbolic.solve_in_place_scratch::<T>(count, Par::Seq);
        let mut scratch = memory(MemBuffer::try_new(needed))?;
        let stack = MemStack::new(&mut scratch);
        let lu = LuRef::new_unchecked(&pattern.symbolic, &self.numeric);
        let sides = MatMut::from_column_major_slice_mut(sides, n, count);
        if transposed {
            lu.solve_transpose_in_place_with_conj(Conj::No, sides, Par::Seq, stack);
        } else {
            lu.solve_in_place_with_conj(Conj::No, sides, Par::Seq, stack);
        }
        Ok(())
    }
}

pub(crate) fn invalid(what: impl core::fmt::Display) -> Error {
    Error::new(Code::InvalidArgument, format!("sparse_lu: {what}"))
}

fn singular(why: impl core::fmt::Display) -> Error {
    invalid(format!("the matrix is singular to working precision: {why}"))
}

fn memory<T, E>(allocated: Result<T, E>) -> Result<T, Error> {
    allocated.map_err(|_| Error::new(Code::ResourceExhausted, "sparse_lu: there is not enough memory"))
}
