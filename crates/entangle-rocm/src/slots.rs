//! Native calls that read and change slots, with operands and results in the memory of a GPU.
//!
//! Operand 0 is always the token: an `int32` scalar, the number of the slot. A string attribute
//! `label` names the call in the log. See [`entangle_slots::device`] for what a call enqueues.

use core::ffi::c_void;

use entangle_core::{Buffer, Call, Code, Element, Error, Role, Traits, ffi, handle};
use entangle_slots::device::{self, Pool};

use crate::stream;

static POOL: Pool = Pool::new();

/// Takes the value of a slot: the result is a `float32` scalar. Operands after the token are ignored.
///
/// # Safety
/// As for [`handle`]: XLA calls it.
pub unsafe extern "C" fn read(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    // SAFETY: the same contract.
    unsafe { handle(frame, Traits::NONE, enqueue_read) }
}

/// The same, recorded into graphs.
///
/// # Safety
/// As for [`handle`]: XLA calls it.
pub unsafe extern "C" fn read_in_graph(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    // SAFETY: the same contract.
    unsafe { handle(frame, Traits::COMMAND_BUFFER_COMPATIBLE, enqueue_read) }
}

/// Replaces the value of a slot by operand 1, a `float32` scalar: the result is the token.
///
/// # Safety
/// As for [`handle`]: XLA calls it.
pub unsafe extern "C" fn write(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    // SAFETY: the same contract.
    unsafe { handle(frame, Traits::NONE, enqueue_write) }
}

/// The same, recorded into graphs.
///
/// # Safety
/// As for [`handle`]: XLA calls it.
pub unsafe extern "C" fn write_in_graph(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    // SAFETY: the same contract.
    unsafe { handle(frame, Traits::COMMAND_BUFFER_COMPATIBLE, enqueue_write) }
}

fn enqueue_read(call: &Call<'_>) -> Result<(), Error> {
    call.expect_execute()?;
    let token = scalar::<i32>("operand 0", call.args()?.get(0)?)?;
    let result = scalar::<f32>("the result", call.rets()?.get(0)?)?;
    let (stream, label) = (stream(call)?, call.attr_str("label")?);
    // SAFETY: device addresses of scalars of 4 bytes; XLA keeps them until its stream has passed this call.
    unsafe { device::read(&stream, &POOL, token, result, label) }.map_err(unavailable)
}

fn enqueue_write(call: &Call<'_>) -> Result<(), Error> {
    call.expect_execute()?;
    let (args, rets) = (call.args()?, call.rets()?);
    let token = scalar::<i32>("operand 0", args.get(0)?)?;
    let value = scalar::<f32>("operand 1", args.get(1)?)?;
    let result = scalar::<i32>("the result", rets.get(0)?)?;
    let (stream, label) = (stream(call)?, call.attr_str("label")?);
    // SAFETY: as above.
    unsafe { device::write(&stream, &POOL, token, value, result, label) }.map_err(unavailable)
}

/// The address of a scalar of that type.
fn scalar<T: Element>(what: &str, buffer: Buffer<'_, impl Role>) -> Result<*mut c_void, Error> {
    if buffer.dtype() == T::DTYPE && buffer.dims().is_empty() && !buffer.data().is_null() {
        return Ok(buffer.data());
    }
    let wanted = core::any::type_name::<T>();
    Err(Error::new(
        Code::InvalidArgument,
        format!("{what} is {buffer} at {:p}, wanted a scalar of type {} ({wanted})", buffer.data(), T::DTYPE),
    ))
}

fn unavailable(driver: String) -> Error {
    Error::new(Code::Unavailable, driver)
}
