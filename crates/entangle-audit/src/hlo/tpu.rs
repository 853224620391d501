//! What stands in programs for TPU for the native calls of other platforms: kernels, and transfers to and from the host.
//!
//! JAX's callback there is a chain of transfers that is held together by tokens: it sends each operand, the last of which starts the
//! function on the host, and receives each result. What received the first result comes after the function, and after all that was sent:
//! so the first receive stands for the call. A callback without results is its last send. When it is done the operand has arrived, and the
//! function may not have run: nothing that follows is ordered by that, and nothing follows in JAX's programs.

use super::module::Instruction;
use super::opcode::Opcode;

/// The target that a call of the host gets, as there is none in the program.
pub const HOST_CALLBACK: &str = "xla_python_host_callback";

/// The target by which a kernel is known: that of `entangle`, if it stands for that.
pub(super) fn target(target: String, op_name: &str) -> String {
    let is_entangle = target == "tpu_custom_call" && op_name.rsplit('/').next() == Some("entangle");
    if is_entangle { "entangle".into() } else { target }
}

/// Makes native calls of the calls of the host in a computation. Operands are positions in this list.
pub(super) fn find_callbacks(instructions: &mut [Instruction]) {
    let is = |position: usize, opcode: Opcode| instructions[position].opcode == opcode;
    let mut goes_on = vec![false; instructions.len()];
    let mut calls = Vec::new();
    for (position, instruction) in instructions.iter().enumerate() {
        if !matches!(instruction.opcode, Opcode::Send | Opcode::Receive) {
            continue;
        }
        for &done in instruction.operands.iter().filter(|&&operand| is(operand, Opcode::SendDone)) {
            instructions[done].operands.iter().for_each(|&sent| goes_on[sent] = true);
            if instruction.opcode == Opcode::Receive {
                calls.push(position);
            }
        }
    }
    calls.extend((0..instructions.len()).filter(|&position| is(position, Opcode::Send) && !goes_on[position]));
    for position in calls {
        instructions[position].opcode = Opcode::CustomCall;
        instructions[position].target = HOST_CALLBACK.into();
    }
}
