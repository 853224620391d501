//! Sparse LU factorisations behind handles, for JAX.
//!
//! `pattern` and `factors` do the linear algebra, `objects` finds the factors of a token, `handlers` is what XLA calls, and this
//! file is what Python calls.

mod factors;
mod handlers;
mod objects;
mod pattern;

use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use objects::Object;

/// The structure of a matrix, and what can be computed from that alone.
#[pyclass(frozen, module = "sparse_lu._native")]
struct Pattern(Arc<pattern::Pattern>);

#[pymethods]
impl Pattern {
    /// Analyses a matrix of `n` rows and columns, whose elements are at `(rows[i], columns[i])`.
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "made of Python objects")]
    fn new(py: Python<'_>, rows: PyBuffer<i32>, columns: PyBuffer<i32>, n: i64) -> PyResult<Self> {
        let (rows, columns) = (rows.to_vec(py)?, columns.to_vec(py)?);
        match py.detach(|| pattern::Pattern::new(rows, columns, n)) {
            Ok(pattern) => Ok(Self(Arc::new(pattern))),
            Err(error) => Err(PyValueError::new_err(format!("sparse_lu.analyze: {error}"))),
        }
    }

    /// How many rows and columns there are.
    #[getter]
    fn n(&self) -> usize {
        self.0.n()
    }

    /// How many elements there are.
    #[getter]
    fn nnz(&self) -> usize {
        self.0.nnz()
    }
}

/// Owns factors: they are freed with it.
#[pyclass(frozen, module = "sparse_lu._native")]
struct Factors(Vec<i32>);

#[pymethods]
impl Factors {
    /// Makes factors without values, `count` of them, for matrices of one pattern.
    #[new]
    fn new(py: Python<'_>, pattern: &Pattern, dtype: &str, count: usize) -> PyResult<Self> {
        py.detach(|| {
            // If a later one fails, dropping `owner` frees those before it.
            let mut owner = Self(Vec::new());
            for _ in 0..count {
                let object = Object::new(pattern.0.clone(), dtype)
                    .ok_or_else(|| PyTypeError::new_err(format!("sparse_lu: there are no factors of {dtype}")))?;
                let token = objects::insert(object)
                    .ok_or_else(|| PyOverflowError::new_err("sparse_lu: there are no tokens left"))?;
                owner.0.push(token);
            }
            Ok(owner)
        })
    }

    /// The token of each.
    #[getter]
    fn tokens(&self) -> Vec<i32> {
        self.0.clone()
    }

    /// Frees them. Calls that are running keep theirs until they return.
    fn free(&self, py: Python<'_>) {
        py.detach(|| self.remove());
    }
}

impl Factors {
    fn remove(&self) {
        for &token in &self.0 {
            drop(objects::remove(token));
        }
    }
}

impl Drop for Factors {
    fn drop(&mut self) {
        self.remove();
    }
}

/// How many factors there are in the process.
#[pyfunction]
fn live() -> usize {
    objects::live()
}

/// The module needs no global interpreter lock: it changes no Python objects.
#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Pattern>()?;
    module.add_class::<Factors>()?;
    module.add_function(wrap_pyfunction!(live, module)?)
}
