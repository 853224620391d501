//! Native calls that read and change slots: what `entangle` puts in order.
//!
//! Operand 0 is always the token: an `int32` scalar, the number of the slot. A string attribute
//! `label` names the call in the log.

use entangle_core::{Call, Error, Traits, ffi, handle};

/// Takes the value of a slot: the result is a `float32` scalar. Operands after the token are ignored.
///
/// # Safety
/// As for [`handle`]: XLA calls it.
pub unsafe extern "C" fn read(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    // SAFETY: the same contract.
    unsafe {
        handle(frame, Traits::NONE, |call| {
            let value = entangle_slots::read(slot(call)?, call.attr_str("label")?);
            call.rets()?.get(0)?.write(&[value])
        })
    }
}

/// Replaces the value of a slot by operand 1, a `float32` scalar: the result is the token.
///
/// # Safety
/// As for [`handle`]: XLA calls it.
pub unsafe extern "C" fn write(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    // SAFETY: the same contract.
    unsafe {
        handle(frame, Traits::NONE, |call| {
            let slot = slot(call)?;
            let value = scalar::<f32>(call, 1)?;
            entangle_slots::write(slot, value, call.attr_str("label")?);
            call.rets()?.get(0)?.write(&[slot])
        })
    }
}

fn slot(call: &Call<'_>) -> Result<i32, Error> {
    call.expect_execute()?;
    scalar(call, 0)
}

fn scalar<T: entangle_core::Element>(call: &Call<'_>, index: usize) -> Result<T, Error> {
    let operand = call.args()?.get(index)?;
    match operand.read::<T>()?[..] {
        [value] => Ok(value),
        _ => Err(Error::new(
            entangle_core::Code::InvalidArgument,
            format!("operand {index} is {operand}, wanted a scalar"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use entangle_core::ffi;
    use entangle_core::mock::Frame;

    use super::{read, write};

    fn call(
        handler: ffi::Handler,
        slot: &mut [i32],
        value: &mut f32,
        label: Option<&str>,
    ) -> Result<(), (i32, String)> {
        let dims: &[i64] = if slot.len() == 1 { &[] } else { &[2] };
        let frame = Frame::new().arg(4, dims, slot.as_mut_ptr().cast());
        let value = (&raw mut *value).cast();
        let frame = if handler as usize == read as *const () as usize {
            frame.ret(11, &[], value)
        } else {
            frame.arg(11, &[], value).ret(4, dims, slot.as_mut_ptr().cast())
        };
        match label {
            Some(label) => frame.attr("label", label),
            None => frame,
        }
        .call(handler)
    }

    #[test]
    fn a_read_sees_the_last_write_and_both_are_logged() {
        entangle_slots::reset(1.5);
        let (mut slot, mut value) = ([2], 0.0);
        call(read, &mut slot, &mut value, None).unwrap();
        assert_eq!(value.to_bits(), 1.5_f32.to_bits());
        value = 2.5;
        call(write, &mut slot, &mut value, Some("change")).unwrap();
        value = 0.0;
        call(read, &mut slot, &mut value, Some("")).unwrap();
        assert_eq!(value.to_bits(), 2.5_f32.to_bits());
        let labels: Vec<_> =
            entangle_slots::log().into_iter().map(|access| (access.op.to_string(), access.label)).collect();
        let entry = |op: &str, label: Option<&str>| (op.to_owned(), label.map(ToOwned::to_owned));
        assert_eq!(labels, [entry("read", None), entry("write", Some("change")), entry("read", Some(""))]);

        let (_, text) = call(read, &mut [1, 2], &mut value, None).unwrap_err();
        assert!(text.contains("operand 0 is type 4 of xla::PrimitiveType, dimensions [2], wanted a scalar"), "{text}");
    }
}
