//! The native module `entangle_jax._native`: hands out the handlers, the log of the slots, and the audit.
//!
//! Registration with jax is the Python package's part; see `entangle_jax/_registration.py`.

mod audit;

use core::ffi::{CStr, c_void};
use core::ptr::NonNull;

use entangle_core::ffi::Handler;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

/// The name of every capsule. jaxlib asks a capsule for its own name, so any will do.
const CAPSULE: &CStr = c"XLA_FFI_Handler";

/// Platform as jax registers it, target name, handler, and the handler that may be recorded into graphs.
type Target = (&'static str, &'static str, Handler, Option<Handler>);

#[rustfmt::skip] // a table
const TARGETS: &[Target] = &[
    ("cpu", "entangle", entangle_cpu::entangle, None),
    ("cpu", "entangle_testing_read", entangle_cpu::slots::read, None),
    ("cpu", "entangle_testing_write", entangle_cpu::slots::write, None),
    ("CUDA", "entangle", entangle_cuda::entangle, Some(entangle_cuda::entangle_in_graph)),
    ("CUDA", "entangle_testing_read", entangle_cuda::slots::read, Some(entangle_cuda::slots::read_in_graph)),
    ("CUDA", "entangle_testing_write", entangle_cuda::slots::write, Some(entangle_cuda::slots::write_in_graph)),
    ("ROCM", "entangle", entangle_rocm::entangle, Some(entangle_rocm::entangle_in_graph)),
    ("ROCM", "entangle_testing_read", entangle_rocm::slots::read, Some(entangle_rocm::slots::read_in_graph)),
    ("ROCM", "entangle_testing_write", entangle_rocm::slots::write, Some(entangle_rocm::slots::write_in_graph)),
];

/// `{platform: {target: (capsule, capsule of the handler that may be recorded into graphs, or None)}}`.
#[pyfunction]
fn targets(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let platforms = PyDict::new(py);
    for &(platform, target, plain, in_graph) in TARGETS {
        if !platforms.contains(platform)? {
            platforms.set_item(platform, PyDict::new(py))?;
        }
        let targets = platforms.as_any().get_item(platform)?;
        let in_graph = in_graph.map(|handler| capsule(py, handler)).transpose()?;
        targets.set_item(target, (capsule(py, plain)?, in_graph))?;
    }
    Ok(platforms)
}

fn capsule(py: Python<'_>, handler: Handler) -> PyResult<Bound<'_, PyCapsule>> {
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
    module.add("FFI_API_VERSION", entangle_core::ffi::API_VERSION)?;
    module.add_function(wrap_pyfunction!(targets, module)?)?;
    module.add_function(wrap_pyfunction!(slots_reset, module)?)?;
    module.add_function(wrap_pyfunction!(slots_log, module)?)?;
    audit::add_classes(module)?;
    module.add_function(wrap_pyfunction!(audit::draw, module)?)
}
