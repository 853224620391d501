//! The body of `entangle`.

use xla_ffi::{Arg, Buffer, Call, Code, DType, Error, Ret};

/// Does nothing, after checking that nothing is what has to be done.
///
/// The operands are the leaves of the payload and then those of the witnesses; the results are the
/// leaves of the payload. The program asks XLA to give each result the memory of its operand, so the
/// value is already in place. Where XLA did not, a handler that returned would hand out memory that
/// was never written: that is an error, which names the leaf. Elements are never touched.
///
/// # Errors
/// XLA did not alias a leaf, the counts are wrong, or the frame is malformed.
#[inline]
pub fn pass_through(call: &Call<'_>) -> Result<(), Error> {
    // Most calls run nothing but this comparison.
    if call.is_in_place() { Ok(()) } else { look_closer(call) }
}

/// The same once more, leaf by leaf: some need no memory, and for the others there is something to say.
#[cold]
#[inline(never)]
fn look_closer(call: &Call<'_>) -> Result<(), Error> {
    let (args, rets) = (call.args()?, call.rets()?);
    if rets.is_empty() || rets.len() > args.len() {
        return Err(Error::new(
            Code::InvalidArgument,
            format!(
                "entangle was called with {} operands and {} results: the results are the leaves of the payload and the operands begin \
                 with them, so there is at least one result and no more of them than operands",
                args.len(),
                rets.len()
            ),
        ));
    }
    for leaf in 0..rets.len() {
        let (operand, result) = (args.get(leaf)?, rets.get(leaf)?);
        if operand.data() != result.data() {
            not_aliased(leaf, rets.len(), operand, result)?;
        }
    }
    Ok(())
}

fn not_aliased(leaf: usize, leaves: usize, operand: Buffer<'_, Arg>, result: Buffer<'_, Ret>) -> Result<(), Error> {
    // Buffers without elements and XLA tokens need no memory, and XLA gives them any.
    if result.elements()? == 0 || result.dtype() == DType::TOKEN {
        return Ok(());
    }
    Err(Error::new(
        Code::Internal,
        format!(
            "payload leaf {leaf} of {leaves} ({result}) was given memory at {:p} for its result and {:p} for its operand: XLA did not alias \
             the two, so the result would be garbage. The program must ask for it (`output_operand_aliases` of the custom call); call the \
             handler through `entangle_jax.entangle` alone",
            result.data(),
            operand.data()
        ),
    ))
}

#[cfg(test)]
mod tests;
