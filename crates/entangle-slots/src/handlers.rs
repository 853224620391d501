//! Native calls that read and change slots, and the list of all that a platform registers.
//!
//! Operand 0 is always the token: an `int32` scalar, the number of the slot. A string attribute
//! `label` names the call in the log.

use core::ffi::c_void;

use entangle_core::{OfCall, Target, entangle, traits};
use xla_ffi::{Buffer, Call, Code, Element, Error, Role, ffi, handle};

use crate::stream::{self, Pool, Stream};

/// What a platform registers: `entangle`, and the slots to test order with.
#[must_use]
pub const fn targets<S: OfCall + Stream>(platform: &'static str, has_graphs: bool) -> [Target; 3] {
    [
        target(platform, "entangle", entangle::<S, false>, has_graphs, entangle::<S, true>),
        target(platform, "entangle_testing_read", read::<S, false>, has_graphs, read::<S, true>),
        target(platform, "entangle_testing_write", write::<S, false>, has_graphs, write::<S, true>),
    ]
}

const fn target(
    platform: &'static str,
    name: &'static str,
    handler: ffi::Handler,
    has_graphs: bool,
    in_graph: ffi::Handler,
) -> Target {
    Target { platform, name, handler, in_graph: if has_graphs { Some(in_graph) } else { None } }
}

/// Takes the value of a slot: the result is a `float32` scalar. Operands after the token are ignored.
///
/// # Safety
/// As for [`handle`]: XLA calls it.
pub unsafe extern "C" fn read<S: OfCall + Stream, const IN_GRAPH: bool>(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    let body = |call: &Call<'_>| enqueue_read(call, &S::of(call)?, S::pool());
    // SAFETY: the same contract.
    unsafe { handle(frame, traits(IN_GRAPH), body) }
}

/// Replaces the value of a slot by operand 1, a `float32` scalar: the result is the token.
///
/// # Safety
/// As for [`handle`]: XLA calls it.
pub unsafe extern "C" fn write<S: OfCall + Stream, const IN_GRAPH: bool>(
    frame: *mut ffi::CallFrame,
) -> *mut ffi::Error {
    let body = |call: &Call<'_>| enqueue_write(call, &S::of(call)?, S::pool());
    // SAFETY: the same contract.
    unsafe { handle(frame, traits(IN_GRAPH), body) }
}

fn enqueue_read(call: &Call<'_>, stream: &dyn Stream, pool: &'static Pool) -> Result<(), Error> {
    let token = scalar::<i32>("operand 0", call.args()?.get(0)?)?;
    let result = scalar::<f32>("the result", call.rets()?.get(0)?)?;
    let label = call.attributes()?.get("label")?;
    // SAFETY: addresses of scalars of 4 bytes on the platform; XLA keeps them until its stream has passed this call.
    unsafe { stream::read(stream, pool, token, result, label) }.map_err(unavailable)
}

fn enqueue_write(call: &Call<'_>, stream: &dyn Stream, pool: &'static Pool) -> Result<(), Error> {
    let (args, rets) = (call.args()?, call.rets()?);
    let token = scalar::<i32>("operand 0", args.get(0)?)?;
    let value = scalar::<f32>("operand 1", args.get(1)?)?;
    let result = scalar::<i32>("the result", rets.get(0)?)?;
    let label = call.attributes()?.get("label")?;
    // SAFETY: as above.
    unsafe { stream::write(stream, pool, token, value, result, label) }.map_err(unavailable)
}

/// The address of a scalar of that type.
fn scalar<T: Element>(what: &str, buffer: Buffer<'_, impl Role>) -> Result<*mut c_void, Error> {
    let data = buffer.data();
    let can_be_there = !data.is_null() && data.cast::<T>().is_aligned();
    if buffer.dtype() == T::DTYPE && buffer.dims().is_empty() && can_be_there {
        return Ok(data);
    }
    Err(Error::new(Code::InvalidArgument, format!("{what} is {buffer} at {data:p}, wanted {}[]", T::DTYPE)))
}

fn unavailable(driver: String) -> Error {
    Error::new(Code::Unavailable, driver)
}
