//! What entangle calls cost.

use prost::Message as _;

use super::build::{Computation, donate, floats, handle, module, tuple};
use super::{audit, audit_bytes};
use crate::hlo::proto::{LayoutProto, OutputOperandAliasing, ShapeProto};
use crate::{CopyReason, Fate};

/// A payload that is an argument, copied before the call.
fn copied_argument() -> Computation {
    let mut main = Computation::new("main", 1);
    let x = main.parameter(0, floats(&[1000]));
    let h = main.parameter(1, handle());
    let w = main.write("w", &[h]);
    let copy = main.op("copy.1", "copy", floats(&[1000]), &[x]);
    main.entangle("e", &[copy, w]);
    main
}

#[test]
fn a_copy_of_an_argument_that_is_not_donated_is_not_passed_over() {
    let cost = audit(vec![copied_argument()]).costs().remove(0);
    assert_eq!((cost.payload_bytes, cost.copied_bytes(), cost.witnesses), (4000, 4000, 1));
    let why = CopyReason::NotDonated { argument: "p0".into() };
    assert_eq!(cost.payload[0].fate, Fate::Copied { by: "copy.1".into(), why });
}

#[test]
fn a_copy_of_a_donated_argument_has_another_reason() {
    let mut main = copied_argument();
    let x = main.proto.instructions[0].id;
    let e = main.proto.root_id;
    let sine = main.op("sine", "sine", floats(&[1000]), &[x]);
    main.tuple(&[e, sine]);
    let cost = audit_bytes(&donate(module(vec![main]), 0).encode_to_vec()).costs().remove(0);
    let why = CopyReason::StillUsed { by: "sine".into() };
    assert_eq!(cost.payload[0].fate, Fate::Copied { by: "copy.1".into(), why });
}

#[test]
fn a_payload_passed_twice_is_told_from_one_still_used() {
    let mut main = Computation::new("main", 1);
    let x = main.parameter(0, floats(&[10]));
    let y = main.op("sine", "sine", floats(&[10]), &[x]);
    let copy = main.op("copy", "copy", floats(&[10]), &[y]);
    main.call("e", "entangle", tuple(&[floats(&[10]), floats(&[10])]), &[y, copy]);
    main.last().output_operand_aliasing =
        (0..2).map(|i| OutputOperandAliasing { output_shape_index: vec![i], operand_index: i }).collect();
    let cost = audit(vec![main]).costs().remove(0);
    assert_eq!(cost.payload[0].fate, Fate::InPlace);
    assert_eq!(cost.payload[1].fate, Fate::Copied { by: "copy".into(), why: CopyReason::PassedTwice });
}

#[test]
fn a_value_that_is_also_returned_is_told_as_still_used() {
    let mut main = Computation::new("main", 1);
    let x = main.parameter(0, floats(&[10]));
    let y = main.op("sine", "sine", floats(&[10]), &[x]);
    let copy = main.op("copy", "copy", floats(&[10]), &[y]);
    let h = main.parameter(1, handle());
    let w = main.write("w", &[h]);
    let e = main.entangle("e", &[copy, w]);
    main.tuple(&[e, y]);
    let cost = audit(vec![main]).costs().remove(0);
    let why = CopyReason::StillUsed { by: "the result".into() };
    assert_eq!(cost.payload[0].fate, Fate::Copied { by: "copy".into(), why });
}

#[test]
fn a_computed_payload_is_not_called_copied() {
    let mut main = Computation::new("main", 1);
    let x = main.parameter(0, floats(&[10]));
    let y = main.op("sine", "sine", floats(&[10]), &[x]);
    let h = main.parameter(1, handle());
    let w = main.write("w", &[h]);
    main.entangle("e", &[y, w]);
    let cost = audit(vec![main]).costs().remove(0);
    assert_eq!((cost.copied_bytes(), cost.transposes.len(), cost.collectives.len()), (0, 0, 0));
}

#[test]
fn transposes_and_collectives_around_a_call_are_named() {
    let mut main = Computation::new("main", 1);
    let x = main.parameter(0, floats(&[10, 10]));
    let gathered = main.op("gather", "all-gather", floats(&[10, 10]), &[x]);
    let turned = ShapeProto { layout: Some(LayoutProto { minor_to_major: vec![0, 1] }), ..floats(&[10, 10]) };
    let copy = main.op("copy", "copy", turned, &[x]);
    let e = main.entangle("e", &[copy, gathered]);
    let bitcast = main.op("bitcast", "bitcast", floats(&[10, 10]), &[e]);
    main.op("transpose", "transpose", floats(&[10, 10]), &[bitcast]);
    let cost = audit(vec![main]).costs().remove(0);
    assert_eq!(cost.transposes, ["copy", "transpose"]);
    assert_eq!(cost.collectives, ["gather"]);
}

#[test]
fn what_only_waits_for_a_value_does_not_count_as_its_user() {
    let mut main = Computation::new("main", 1);
    let x = main.parameter(0, floats(&[10]));
    let y = main.op("sine", "sine", floats(&[10]), &[x]);
    let copy = main.op("copy", "copy", floats(&[10]), &[y]);
    let e = main.entangle("e", &[copy, x]);
    main.op("transpose", "transpose", floats(&[10]), &[x]);
    main.last().control_predecessor_ids = vec![y, e];
    let cost = audit(vec![main]).costs().remove(0);
    assert_eq!(cost.payload[0].fate, Fate::Copied { by: "copy".into(), why: CopyReason::Unknown });
    assert_eq!(cost.transposes, Vec::<String>::new());
}

#[test]
fn leaves_that_order_nothing_are_named() {
    let mut main = Computation::new("main", 1);
    let x = main.parameter(0, floats(&[0]));
    let constant = main.constant(1);
    main.entangle("e", &[x, constant]);
    let cost = audit(vec![main]).costs().remove(0);
    assert_eq!(cost.payload[0].fate, Fate::NoElements);
    assert_eq!(cost.dropped_witnesses, [1]);
}
