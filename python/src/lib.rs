//! The native module `entangle_jax._native`: hands out the handlers, the log of the slots, and the audit.
//!
//! Registration with jax is the Python package's part; see `entangle_jax/_registration.py`.

mod audit;
mod picture;

use core::ffi::{CStr, c_void};
use core::ptr::NonNull;

use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use xla_ffi::ffi;

/// The name of every capsule. jaxlib asks a capsule for its own name, so any will do.
const CAPSULE: &CStr = c"XLA_FFI_Handler";

/// `{platform: {target: (capsule, capsule of the handler that may be recorded into graphs, or None)}}`.
#[pyfunction]
fn targets(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let platforms = PyDict::new(py);
    for target in [entangle_cpu::TARGETS, entangle_cuda::TARGETS, entangle_rocm::TARGETS].into_iter().flatten() {
        if !platforms.contains(target.platform)? {
            platforms.set_item(target.platform, PyDict::new(py))?;
        }
        let targets = platforms.as_any().get_item(target.platform)?;
        let in_graph = target.in_graph.map(|handler| capsule(py, handler)).transpose()?;
        targets.set_item(target.name, (capsule(py, target.handler)?, in_graph))?;
    }
    Ok(platforms)
}

fn capsule(py: Python<'_>, handler: ffi::Handler) -> PyResult<Bound<'_, PyCapsule>> {
    let pointer = NonNull::new(handler as *mut c_void).expect("a function is not null");
    // SAFETY: the pointer is to a function, which lives as long as the process; the capsule frees nothing.
    unsafe { PyCapsule::new_with_pointer(py, pointer, CAPSULE) }
}

/// Gives every slot this value and empties the log.
#[pyfunction]
fn slots_reset(value: f32) {
    entangle_slots::reset(value);
}

/// `(op, slot, value, label)` of every access since the last reset, in the order in which they ran.
#[pyfunction]
fn slots_log() -> Vec<(String, i32, f32, Option<String>)> {
    let accesses = entangle_slots::log();
    accesses.into_iter().map(|access| (access.op.to_string(), access.slot, access.value, access.label)).collect()
}

/// Nothing here touches Python objects of others, so the module needs no global interpreter lock.
#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("FFI_API_VERSION", ffi::API_VERSION)?;
    module.add_function(wrap_pyfunction!(targets, module)?)?;
    module.add_function(wrap_pyfunction!(slots_reset, module)?)?;
    module.add_function(wrap_pyfunction!(slots_log, module)?)?;
    audit::add_classes(module)?;
    module.add_function(wrap_pyfunction!(picture::draw, module)?)
}
