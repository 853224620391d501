//! Whatever the bytes are, the answer is an answer or an error.

use proptest::prelude::*;
use prost::Message as _;

use super::build::{Computation, bytes, floats, handle, handles, module, pred, s32, tuple, unknown_condition};
use super::known;
use crate::hlo::proto::{ShapeProto, SliceDimensions};
use crate::{Audit, Error, Module, lost};

fn follow(bytes: &[u8]) -> Result<Audit, Error> {
    let audit = Audit::new(Module::parse(bytes)?, &known())?;
    let _ = (audit.races(), audit.costs(), audit.graph(), lost(&audit, &audit));
    if !audit.calls().is_empty() {
        let _ = (audit.order(0, audit.calls().len() - 1), audit.order_in_later_iterations(0, 0));
    }
    Ok(audit)
}

fn message(bytes: &[u8]) -> String {
    follow(bytes).expect_err("the bytes are bad").to_string()
}

/// Something of everything.
fn sample() -> Vec<Computation> {
    let carried = tuple(&[handle(), s32()]);
    let mut body = Computation::new("body", 1);
    let state = body.parameter(0, carried.clone());
    let h = body.element(state, 0);
    let w = body.write("w", &[h]);
    let h = body.entangle("e", &[h, w]);
    body.tuple(&[h, w]);
    let condition = unknown_condition(2, &carried);
    let mut branch = Computation::new("branch", 3);
    let h = branch.parameter(0, handle());
    branch.read("r", &[h]);
    let mut main = Computation::new("main", 4);
    let all = main.parameter(0, handles(4));
    let h = main.slice(all, 0, 1);
    let t = main.constant(3);
    main.last().shape = Some(s32());
    let init = main.tuple(&[h, t]);
    let end = main.while_loop("loop", init, &body, &condition);
    let h = main.element(end, 0);
    let p = main.op("p", "rng", pred(), &[]);
    main.calling("choice", "conditional", floats(&[8]), &[p, h, h], &[3, 3]);
    vec![body, condition, branch, main]
}

#[test]
fn no_bytes_are_not_taken_for_an_empty_program() {
    assert_eq!(message(b""), Error::Empty.to_string());
}

#[test]
fn the_text_form_is_refused_with_the_flag_that_writes_the_other() {
    assert!(message(b"HloModule jit_f, is_scheduled=true\n").contains("--xla_dump_hlo_as_proto"));
}

#[test]
fn another_protobuf_is_not_taken_for_an_empty_program() {
    // A string in field 1, a number in field 2.
    assert!(message(b"\x0a\x05hello\x10\x07").contains("neither an HloModuleProto nor an HloProto"));
    // An HloModuleProto without a single instruction.
    assert!(message(&module(Vec::new()).encode_to_vec()).contains("no computation with an instruction"));
}

#[test]
fn every_truncation_is_an_error_or_a_smaller_module() {
    let whole = bytes(sample());
    assert!(follow(&whole).is_ok());
    for end in 0..whole.len() {
        let _ = follow(&whole[..end]);
    }
    // Cut before the entry's id, the program has no entry.
    assert!(follow(&whole[..whole.len() - 2]).is_err());
}

fn broken(change: impl FnOnce(&mut crate::hlo::proto::HloModuleProto)) -> String {
    let mut module = module(sample());
    change(&mut module);
    message(&module.encode_to_vec())
}

#[test]
fn dangling_ids_are_named() {
    assert!(broken(|m| m.computations[3].instructions[1].operand_ids = vec![77]).contains("operand has the id 77"));
    assert!(broken(|m| m.computations[3].root_id = 77).contains("root has the id 77"));
    assert!(broken(|m| m.entry_computation_id = 77).contains("entry computation has the id 77"));
    assert!(broken(|m| m.computations[3].instructions[4].called_computation_ids = vec![77, 2]).contains("id 77"));
    assert!(broken(|m| m.computations[3].instructions[4].control_predecessor_ids = vec![77]).contains("predecessor"));
}

#[test]
fn cycles_end_in_an_error() {
    let own = |m: &mut crate::hlo::proto::HloModuleProto| {
        let id = m.computations[3].instructions[1].id;
        m.computations[3].instructions[1].operand_ids = vec![id];
    };
    assert!(broken(own).contains("a cycle"));
    let message = broken(|m| {
        m.computations[1].instructions[1].called_computation_ids = vec![1];
        m.computations[0].instructions[2].called_computation_ids = vec![2];
    });
    assert!(message.contains("calls itself"), "{message}");
}

#[test]
fn shapes_that_lie_are_found() {
    assert!(broken(|m| m.computations[3].instructions[3].shape = Some(s32())).contains("arrays"));
    assert!(broken(|m| m.computations[3].instructions[5].tuple_index = 9).contains("no tuple element 9"));
    assert!(broken(|m| m.computations[3].instructions[5].tuple_index = -1).contains("-1"));
    assert!(broken(|m| m.computations[3].instructions[5].shape = None).contains("no shape"));
    assert!(broken(|m| m.computations[0].instructions[0].parameter_number = 1).contains("none has the number 0"));
    assert!(broken(|m| m.computations[3].instructions[7].operand_ids.truncate(2)).contains("predicate"));
    assert!(broken(|m| m.computations[3].instructions[4].called_computation_ids.truncate(1)).contains("condition"));
    let twice = |m: &mut crate::hlo::proto::HloModuleProto| m.computations[0].id = 2;
    assert!(broken(twice).contains("two computations have the id 2"));
}

#[test]
fn a_slice_of_a_constant_that_a_caller_calls_larger_is_not_written_out() {
    const HUGE: i64 = 1 << 40;
    for shape in [vec![HUGE], vec![HUGE, 0], vec![0, HUGE], vec![-1, HUGE], vec![HUGE, HUGE]] {
        let shape = ShapeProto { dimensions: shape, ..handle() };
        let mut branch = Computation::new("branch", 1);
        branch.parameter(0, s32());
        branch.table(&[7, 9, 11]);
        let mut main = Computation::new("main", 2);
        let p = main.parameter(0, pred());
        let x = main.parameter(1, s32());
        let chosen = main.calling("choice", "conditional", shape.clone(), &[p, x, x], &[1, 1]);
        let part = main.op("part", "slice", shape.clone(), &[chosen]);
        main.last().slice_dimensions =
            shape.dimensions.iter().map(|&size| SliceDimensions { start: 0, limit: size - 1, stride: 1 }).collect();
        let count = main.op("count", "iota", shape, &[]);
        main.write("a", &[part]);
        main.write("b", &[count]);
        follow(&bytes(vec![branch, main])).expect("each array may be one");
    }
}

#[test]
fn a_native_call_that_cannot_be_placed_is_not_passed_over() {
    let mut reducer = Computation::new("reducer", 1);
    let a = reducer.parameter(0, s32());
    reducer.parameter(1, s32());
    reducer.write("w", &[a]);
    let mut main = Computation::new("main", 2);
    let x = main.parameter(0, s32());
    main.calling("reduce", "reduce", s32(), &[x, x], &[1]);
    assert!(message(&bytes(vec![reducer, main])).contains("Move the native call out of it"));
}

fn nested(depth: i64, opcode: &str) -> Vec<u8> {
    let mut innermost = Computation::new("innermost", 1);
    let h = innermost.parameter(0, handle());
    let w = innermost.write("w", &[h]);
    innermost.entangle("e", &[h, w]);
    let mut computations = vec![innermost];
    for id in 2..=depth {
        let mut computation = Computation::new("level", id);
        let h = computation.parameter(0, handle());
        let operands = if opcode == "conditional" { vec![h, h] } else { vec![h] };
        computation.calling("call", opcode, handle(), &operands, &[id - 1]);
        computations.push(computation);
    }
    bytes(computations)
}

#[test]
fn ten_thousand_nested_computations_do_not_overflow_the_stack() {
    for opcode in ["call", "conditional", "fusion"] {
        let audit = follow(&nested(10_000, opcode)).expect("deep, not large");
        assert_eq!(audit.calls().len(), 2, "{opcode}");
    }
}

#[test]
fn calls_that_double_at_each_level_end_in_an_error() {
    let mut computations = vec![Computation::new("leaf", 1)];
    let h = computations[0].parameter(0, handle());
    computations[0].entangle("e", &[h, h]);
    for id in 2..=64 {
        let mut computation = Computation::new("level", id);
        let h = computation.parameter(0, handle());
        let h = computation.calling("a", "call", handle(), &[h], &[id - 1]);
        computation.calling("b", "call", handle(), &[h], &[id - 1]);
        computations.push(computation);
    }
    assert!(message(&bytes(computations)).contains("too large to audit"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = follow(&bytes);
    }

    #[test]
    fn damaged_modules_never_panic(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut whole = bytes(sample());
        for (at, byte) in changes {
            let at = at.index(whole.len());
            whole[at] = byte;
        }
        let _ = follow(&whole);
    }

    #[test]
    fn damaged_references_never_panic(
        changes in proptest::collection::vec((0..4_usize, any::<prop::sample::Index>(), 0..8_usize, 0..6_i64), 1..4),
    ) {
        let mut module = module(sample());
        for (computation, at, what, value) in changes {
            let id = module.computations[computation].id;
            let instructions = &mut module.computations[computation].instructions;
            let at = at.index(instructions.len());
            let instruction = &mut instructions[at];
            match what {
                0 => instruction.operand_ids = vec![id << 32 | value],
                1 => instruction.operand_ids.push(id << 32 | value),
                2 => instruction.called_computation_ids = vec![value],
                3 => instruction.control_predecessor_ids.push(id << 32 | value),
                4 => instruction.tuple_index = value,
                5 => instruction.opcode = ["while", "conditional", "call", "tuple", "copy", "async-done"][usize::try_from(value).expect("small")].into(),
                6 => instruction.shape = Some([pred(), tuple(&[]), tuple(&[handle()]), tuple(&[handle(), s32()]), handles(0), floats(&[-1])][usize::try_from(value).expect("small")].clone()),
                _ => instruction.parameter_number = value,
            }
        }
        let _ = follow(&module.encode_to_vec());
    }
}
