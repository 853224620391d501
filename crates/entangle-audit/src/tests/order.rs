//! Data paths through everything that XLA nests.

use prost::Message as _;

use super::build::{Computation, bytes, donate, floats, handle, module, pred, s32, schedule, tuple, unknown_condition};
use super::{audit, audit_bytes, order, races};
use crate::hlo::proto::{OpMetadata, ShapeProto};
use crate::{Access, Audit, Calls, Known, MAX_RACES, Module, Object, Order, Unproven};

fn no_races() -> Vec<String> {
    Vec::new()
}

#[test]
fn a_read_and_a_write_without_a_path_are_not_called_ordered() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    main.read("r", &[h]);
    main.write("w", &[h]);
    assert_eq!(races(&audit(vec![main])), ["r w"]);
}

#[test]
fn entangled_calls_are_not_called_a_race() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    let r = main.read("r", &[h]);
    let h = main.entangle("e", &[h, r]);
    main.write("w", &[h]);
    let audit = audit(vec![main]);
    assert_eq!(races(&audit), no_races());
    assert_eq!(order(&audit, "r", "w"), Order::DataPath(vec!["r".into(), "e".into(), "w".into()]));
    assert_eq!(order(&audit, "w", "r"), Order::Unordered);
}

#[test]
fn reads_among_themselves_are_not_called_a_race() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    main.read("a", &[h]);
    main.read("b", &[h]);
    assert_eq!(races(&audit(vec![main])), no_races());
}

#[test]
fn each_pair_is_counted_once_however_many_are_not_listed() {
    const WRITES: usize = 150; // more pairs than are listed
    let carried = tuple(&[handle()]);
    let mut body = Computation::new("body", 1);
    let state = body.parameter(0, carried.clone());
    let h = body.element(state, 0);
    for _ in 0..WRITES {
        body.write("w", &[h]);
    }
    body.tuple(&[h]);
    let condition = unknown_condition(2, &carried);
    let mut main = Computation::new("main", 3);
    let h = main.parameter(0, handle());
    let init = main.tuple(&[h]);
    main.while_loop("loop", init, &body, &condition);
    let races = audit(vec![body, condition, main]).races();
    // Every two of them, and each with itself in a later iteration.
    assert_eq!(races.list.len() + races.more, WRITES * (WRITES + 1) / 2);
    assert_eq!(races.list.len(), MAX_RACES);
    assert!(races.list.iter().all(|race| race.later_iteration_of.is_none()));
}

#[test]
fn a_schedule_is_not_taken_for_a_proof() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    main.read("r", &[h]);
    main.write("w", &[h]);
    let audit = audit_bytes(&schedule(module(vec![main])).encode_to_vec());
    assert_eq!(races(&audit), ["r w"]);
    assert_eq!(audit.races().list[0].unproven, Some(Unproven::Schedule));
    assert_eq!(order(&audit, "r", "w"), Order::ScheduleOnly(Unproven::Schedule));
    assert_eq!(order(&audit, "w", "r"), Order::Unordered);
}

#[test]
fn a_control_edge_is_not_taken_for_a_proof() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    let r = main.read("r", &[h]);
    main.write("w", &[h]);
    main.last().control_predecessor_ids = vec![r];
    let audit = audit(vec![main]);
    assert_eq!(races(&audit), ["r w"]);
    assert_eq!(audit.races().list[0].unproven, Some(Unproven::ControlEdge));
    assert_eq!(order(&audit, "r", "w"), Order::ScheduleOnly(Unproven::ControlEdge));
}

#[test]
fn a_barrier_is_not_taken_for_a_data_path() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    let r = main.read("r", &[h]);
    let both = main.tuple(&[h, r]);
    let tied = main.op("barrier", "opt-barrier", tuple(&[handle(), floats(&[8])]), &[both]);
    let h = main.element(tied, 0);
    main.write("w", &[h]);
    assert_eq!(races(&audit(vec![main])), ["r w"]);
}

#[test]
fn an_element_of_a_tuple_is_not_taken_for_the_whole_tuple() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    let r = main.read("r", &[h]);
    let both = main.tuple(&[h, r]);
    let nested = main.tuple(&[both, h]);
    let inner = main.element(nested, 0);
    let h = main.element(inner, 0);
    main.write("w", &[h]);
    let r = main.element(inner, 1);
    main.write("after", &[h, r]);
    assert_eq!(races(&audit(vec![main])), ["r w", "w after"]);
}

#[test]
fn every_result_of_a_native_call_depends_on_all_its_operands() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    let r = main.read("r", &[h]);
    let both = main.call("two_results", "other", tuple(&[handle(), handle()]), &[h, r]);
    let second = main.element(both, 1);
    main.write("w", &[h, second]);
    assert_eq!(races(&audit(vec![main])), no_races());
}

/// `jit` inside `jit`: a function that is called twice, with a result that depends only on its first argument.
fn first_of_two(id: i64) -> Computation {
    let mut function = Computation::new("first_of_two", id);
    let a = function.parameter(0, s32());
    function.parameter(1, s32());
    function.op("negate", "negate", s32(), &[a]);
    function
}

#[test]
fn one_call_of_a_function_is_not_mixed_up_with_another() {
    let mut main = Computation::new("main", 2);
    let h = main.parameter(0, handle());
    let x = main.parameter(1, s32());
    let w = main.write("w1", &[h]);
    // w1 enters the first call and does not leave by the second.
    main.calling("call.1", "call", s32(), &[w, x], &[1]);
    let y = main.calling("call.2", "call", s32(), &[x, x], &[1]);
    main.write("w2", &[h, y]);
    assert_eq!(races(&audit(vec![first_of_two(1), main])), ["w1 w2"]);
}

#[test]
fn an_argument_that_a_function_ignores_is_no_path() {
    let build = |swapped: bool| {
        let mut main = Computation::new("main", 2);
        let h = main.parameter(0, handle());
        let x = main.parameter(1, s32());
        let w = main.write("w1", &[h]);
        let arguments = if swapped { [x, w] } else { [w, x] };
        let y = main.calling("fusion", "fusion", s32(), &arguments, &[1]);
        main.write("w2", &[h, y]);
        audit(vec![first_of_two(1), main])
    };
    assert_eq!(races(&build(false)), no_races());
    assert_eq!(races(&build(true)), ["w1 w2"]);
}

#[test]
fn a_native_call_inside_a_function_is_not_overlooked() {
    let mut function = Computation::new("function", 1);
    let h = function.parameter(0, handle());
    function.write("inner", &[h]);
    let mut main = Computation::new("main", 2);
    let h = main.parameter(0, handle());
    let token = main.calling("call", "call", s32(), &[h], &[1]);
    main.write("unordered", &[h]);
    main.read("after", &[h, token]);
    let audit = audit(vec![function, main]);
    assert_eq!(races(&audit), ["inner unordered", "unordered after"]);
    assert_eq!(*audit.calls()[0].place, ["main".to_owned(), "call".to_owned()]);
}

#[test]
fn an_asynchronous_call_hands_on_what_it_computes() {
    let mut function = Computation::new("function", 1);
    let h = function.parameter(0, handle());
    function.write("inner", &[h]);
    let mut main = Computation::new("main", 2);
    let h = main.parameter(0, handle());
    let shape = tuple(&[tuple(&[handle()]), s32(), s32()]);
    let start = main.calling("start", "async-start", shape, &[h], &[1]);
    let done = main.op("done", "async-done", s32(), &[start]);
    main.read("between", &[h]);
    main.read("after", &[h, done]);
    assert_eq!(races(&audit(vec![function, main])), ["inner between"]);
}

/// Carries (handle, token); the body writes, with or without `entangle`.
fn writing_loop(entangled: bool) -> Vec<Computation> {
    let carried = tuple(&[handle(), s32()]);
    let mut body = Computation::new("body", 1);
    let state = body.parameter(0, carried.clone());
    let h = body.element(state, 0);
    let w = body.write("w", &[h]);
    let h = if entangled { body.entangle("e", &[h, w]) } else { h };
    let zero = body.op("zero", "rng", s32(), &[]);
    body.tuple(&[h, zero]);
    let condition = unknown_condition(2, &carried);
    let mut main = Computation::new("main", 3);
    let h = main.parameter(0, handle());
    let zero = main.parameter(1, s32());
    main.read("before", &[h]);
    let init = main.tuple(&[h, zero]);
    let end = main.while_loop("loop", init, &body, &condition);
    let h = main.element(end, 0);
    main.read("after", &[h]);
    vec![body, condition, main]
}

#[test]
fn a_write_in_a_loop_is_not_called_ordered_with_what_stands_around_the_loop() {
    assert_eq!(races(&audit(writing_loop(false))), ["before w", "w after", "w w@loop"]);
}

#[test]
fn a_handle_carried_through_a_loop_with_entangle_inside_is_no_false_alarm() {
    // Only the read before the loop, whose result nobody needs, is left.
    assert_eq!(races(&audit(writing_loop(true))), ["before w"]);
}

#[test]
fn a_loop_that_may_run_zero_times_does_not_order_what_it_only_ties_inside() {
    let build = |trips: &str| {
        let carried = tuple(&[handle(), floats(&[8])]);
        let mut body = Computation::new("body", 1);
        let state = body.parameter(0, carried.clone());
        let h = body.element(state, 0);
        let r = body.element(state, 1);
        let h = body.entangle("e", &[h, r]);
        body.tuple(&[h, r]);
        let condition = unknown_condition(2, &carried);
        let mut main = Computation::new("main", 3);
        let h = main.parameter(0, handle());
        let r = main.read("r", &[h]);
        let init = main.tuple(&[h, r]);
        let end = main.while_loop("loop", init, &body, &condition);
        main.get(end).backend_config = trips.into();
        let h = main.element(end, 0);
        main.write("w", &[h]);
        audit(vec![body, condition, main])
    };
    assert_eq!(races(&build("")), ["r w"]);
    assert_eq!(races(&build(r#"{"known_trip_count":{"n":"0"}}"#)), ["r w"]);
    assert_eq!(races(&build(r#"{"known_trip_count":{"n":"5"}}"#)), no_races());
}

#[test]
fn what_the_last_iteration_leaves_is_not_taken_for_all_of_them() {
    // The body reads, and leaves the result; the write waits for what the loop leaves.
    let build = |kept: bool| {
        let carried = tuple(&[handle(), floats(&[8])]);
        let mut body = Computation::new("body", 1);
        let state = body.parameter(0, carried.clone());
        let h = body.element(state, 0);
        let before = body.element(state, 1);
        let r = body.read("r", &[h]);
        let r = if kept { body.op("sum", "add", floats(&[8]), &[before, r]) } else { r };
        body.tuple(&[h, r]);
        let condition = unknown_condition(2, &carried);
        let mut main = Computation::new("main", 3);
        let h = main.parameter(0, handle());
        let zero = main.parameter(1, floats(&[8]));
        let init = main.tuple(&[h, zero]);
        let end = main.while_loop("loop", init, &body, &condition);
        main.get(end).backend_config = r#"{"known_trip_count":{"n":"5"}}"#.into();
        let r = main.element(end, 1);
        let h = main.entangle("e", &[h, r]);
        main.write("w", &[h]);
        audit(vec![body, condition, main])
    };
    assert_eq!(races(&build(false)), ["r w"]);
    assert_eq!(races(&build(true)), no_races());
}

#[test]
fn a_scan_before_optimization_is_known_to_run() {
    let carried = tuple(&[s32(), handle(), floats(&[8])]);
    let mut body = Computation::new("body", 1);
    let state = body.parameter(0, carried.clone());
    let i = body.element(state, 0);
    let h = body.element(state, 1);
    let r = body.element(state, 2);
    let h = body.entangle("e", &[h, r]);
    body.tuple(&[i, h, r]);
    let mut condition = Computation::new("condition", 2);
    let state = condition.parameter(0, carried);
    let i = condition.element(state, 0);
    let limit = condition.constant(5);
    condition.op("less", "compare", pred(), &[i, limit]);
    condition.last().comparison_direction = "LT".into();
    let mut main = Computation::new("main", 3);
    let h = main.parameter(0, handle());
    let r = main.read("r", &[h]);
    let zero = main.constant(0);
    main.last().shape = Some(s32());
    let init = main.tuple(&[zero, h, r]);
    let end = main.while_loop("loop", init, &body, &condition);
    let h = main.element(end, 1);
    main.write("w", &[h]);
    assert_eq!(races(&audit(vec![body, condition, main])), no_races());
}

#[test]
fn iterations_that_carry_only_the_last_token_are_not_called_ordered() {
    // t' = write(h), without t: each iteration is free to overtake the last one.
    let build = |chained: bool| {
        let carried = tuple(&[handle(), s32()]);
        let mut body = Computation::new("body", 1);
        let state = body.parameter(0, carried.clone());
        let h = body.element(state, 0);
        let t = body.element(state, 1);
        let t = if chained { body.write("w", &[h, t]) } else { body.write("w", &[h]) };
        body.tuple(&[h, t]);
        let condition = unknown_condition(2, &carried);
        let mut main = Computation::new("main", 3);
        let h = main.parameter(0, handle());
        let t = main.parameter(1, s32());
        let init = main.tuple(&[h, t]);
        let end = main.while_loop("loop", init, &body, &condition);
        let t = main.element(end, 1);
        main.read("after", &[h, t]);
        audit(vec![body, condition, main])
    };
    assert_eq!(races(&build(true)), no_races());
    // The token that leaves the loop is the last iteration's; the earlier ones may still be running.
    assert_eq!(races(&build(false)), ["w after", "w w@loop"]);
}

#[test]
fn a_read_is_not_called_ordered_with_the_next_iterations_write() {
    // Within an iteration the write comes before the read; nothing holds the next write until the read is done.
    let carried = tuple(&[handle(), s32()]);
    let mut body = Computation::new("body", 1);
    let state = body.parameter(0, carried.clone());
    let h = body.element(state, 0);
    let t = body.element(state, 1);
    let w = body.write("w", &[h, t]);
    body.read("r", &[h, w]);
    body.tuple(&[h, w]);
    let condition = unknown_condition(2, &carried);
    let mut main = Computation::new("main", 3);
    let h = main.parameter(0, handle());
    let t = main.parameter(1, s32());
    let init = main.tuple(&[h, t]);
    main.while_loop("loop", init, &body, &condition);
    let audit = audit(vec![body, condition, main]);
    assert_eq!(races(&audit), ["r w@loop"]);
    let (r, w) = (super::position(&audit, "r"), super::position(&audit, "w"));
    assert_eq!(audit.order_in_later_iterations(r, w), [("loop".to_owned(), Order::Unordered)]);
    assert!(matches!(audit.order_in_later_iterations(w, r)[0].1, Order::DataPath(_)));
}

#[test]
fn a_token_that_skips_an_iteration_is_not_called_a_path_to_the_next() {
    // (a, b) becomes (write, a): iteration i waits for i - 2.
    let carried = tuple(&[handle(), s32(), s32()]);
    let mut body = Computation::new("body", 1);
    let state = body.parameter(0, carried.clone());
    let h = body.element(state, 0);
    let a = body.element(state, 1);
    let b = body.element(state, 2);
    let w = body.write("w", &[h, b]);
    body.tuple(&[h, w, a]);
    let condition = unknown_condition(2, &carried);
    let mut main = Computation::new("main", 3);
    let h = main.parameter(0, handle());
    let t = main.parameter(1, s32());
    let init = main.tuple(&[h, t, t]);
    main.while_loop("loop", init, &body, &condition);
    assert_eq!(races(&audit(vec![body, condition, main])), ["w w@loop"]);
}

#[test]
fn an_inner_loop_is_followed_across_iterations_of_the_outer_one() {
    let build = |entangled: bool| {
        let carried = tuple(&[handle()]);
        let mut inner = Computation::new("inner", 1);
        let state = inner.parameter(0, carried.clone());
        let h = inner.element(state, 0);
        let w = inner.write("w", &[h]);
        let h = inner.entangle("e", &[h, w]);
        inner.tuple(&[h]);
        let condition = unknown_condition(2, &carried);
        let mut outer = Computation::new("outer", 3);
        let state = outer.parameter(0, carried.clone());
        let end = outer.while_loop("inner_loop", state, &inner, &condition);
        let h = outer.element(if entangled { end } else { state }, 0);
        outer.tuple(&[h]);
        let outer_condition = unknown_condition(4, &carried);
        let mut main = Computation::new("main", 5);
        let h = main.parameter(0, handle());
        let init = main.tuple(&[h]);
        main.while_loop("outer_loop", init, &outer, &outer_condition);
        audit(vec![inner, condition, outer, outer_condition, main])
    };
    assert_eq!(races(&build(true)), no_races());
    assert_eq!(races(&build(false)), ["w w@outer_loop"]);
}

#[test]
fn a_loop_whose_condition_needs_the_last_write_orders_its_iterations() {
    let build = |trips: &str, passed_on: bool| {
        let carried = tuple(&[handle(), pred()]);
        let mut body = Computation::new("body", 1);
        let state = body.parameter(0, carried.clone());
        let h = body.element(state, 0);
        body.call("w", "write", pred(), &[h]);
        let w = body.proto.root_id;
        let h = if passed_on { h } else { body.op("computed", "negate", handle(), &[h]) };
        body.tuple(&[h, w]);
        let mut condition = Computation::new("condition", 2);
        let state = condition.parameter(0, carried);
        condition.element(state, 1);
        let mut main = Computation::new("main", 3);
        let h = main.parameter(0, handle());
        let t = main.parameter(1, pred());
        let init = main.tuple(&[h, t]);
        let end = main.while_loop("loop", init, &body, &condition);
        main.get(end).backend_config = trips.into();
        let h = main.element(end, 0);
        main.read("after", &[h]);
        audit(vec![body, condition, main])
    };
    assert_eq!(races(&build("", false)), no_races());
    // The handle lies where it lay before the loop, so nothing waits for the loop's end.
    assert_eq!(races(&build("", true)), ["w after"]);
    // A runtime that knows the count does not wait for the condition.
    assert_eq!(races(&build(r#"{"known_trip_count":{"n":"5"}}"#, true)), ["w after", "w w@loop"]);
}

/// A conditional on (handle, token): each branch returns a handle.
fn choice(predicate: i64, main: &mut Computation, operand: i64, branches: &[&Computation]) -> i64 {
    let mut operands = vec![predicate];
    operands.extend(branches.iter().map(|_| operand));
    let called: Vec<i64> = branches.iter().map(|branch| branch.proto.id).collect();
    main.calling("choice", "conditional", handle(), &operands, &called)
}

fn branch(id: i64, entangled: bool, write: Option<&str>) -> Computation {
    let mut branch = Computation::new("branch", id);
    let state = branch.parameter(0, tuple(&[handle(), floats(&[8])]));
    let mut h = branch.element(state, 0);
    let r = branch.element(state, 1);
    if entangled {
        h = branch.entangle("e", &[h, r]);
    }
    if let Some(name) = write {
        let w = branch.write(name, &[h]);
        branch.entangle("e", &[h, w]);
    } else if !entangled {
        branch.op("same", "copy", handle(), &[h]);
    }
    branch
}

#[test]
fn a_branch_that_may_not_be_taken_orders_nothing_after_the_conditional() {
    let build = |both: bool| {
        let (a, b) = (branch(1, true, None), branch(2, both, None));
        let mut main = Computation::new("main", 3);
        let h = main.parameter(0, handle());
        let p = main.parameter(1, pred());
        let r = main.read("r", &[h]);
        let operand = main.tuple(&[h, r]);
        let h = choice(p, &mut main, operand, &[&a, &b]);
        main.write("w", &[h]);
        audit(vec![a, b, main])
    };
    assert_eq!(races(&build(true)), no_races());
    assert_eq!(races(&build(false)), ["r w"]);
}

#[test]
fn a_race_hidden_in_one_branch_is_found() {
    let (a, b) = (branch(1, true, Some("w1")), branch(2, false, Some("w2")));
    let mut main = Computation::new("main", 3);
    let h = main.parameter(0, handle());
    let p = main.parameter(1, pred());
    let r = main.read("r", &[h]);
    let operand = main.tuple(&[h, r]);
    let h = choice(p, &mut main, operand, &[&a, &b]);
    main.read("after", &[h]);
    let audit = audit(vec![a, b, main]);
    assert_eq!(races(&audit), ["r w2"]);
    assert_eq!(order(&audit, "w1", "w2"), Order::NeverBoth);
}

#[test]
fn branches_of_one_conditional_race_across_iterations() {
    let (a, b) = (branch(1, false, Some("w1")), branch(2, false, None));
    let carried = tuple(&[handle(), floats(&[8])]);
    let mut body = Computation::new("body", 3);
    let state = body.parameter(0, carried.clone());
    let p = body.op("p", "rng", pred(), &[]);
    choice(p, &mut body, state, &[&a, &b]);
    let x = body.element(state, 1);
    let h = body.element(state, 0);
    body.tuple(&[h, x]);
    let condition = unknown_condition(4, &carried);
    let mut main = Computation::new("main", 5);
    let h = main.parameter(0, handle());
    let x = main.parameter(1, floats(&[8]));
    let init = main.tuple(&[h, x]);
    main.while_loop("loop", init, &body, &condition);
    assert_eq!(races(&audit(vec![a, b, body, condition, main])), ["w1 w1@loop"]);
}

#[test]
fn a_branch_waits_for_what_its_predicate_needs() {
    let (a, b) = (branch(1, false, Some("w")), branch(2, false, None));
    let mut main = Computation::new("main", 3);
    let h = main.parameter(0, handle());
    let x = main.parameter(1, floats(&[8]));
    let r = main.read("r", &[h]);
    let p = main.op("positive", "compare", pred(), &[r, x]);
    let operand = main.tuple(&[h, x]);
    choice(p, &mut main, operand, &[&a, &b]);
    assert_eq!(races(&audit(vec![a, b, main])), no_races());
}

#[test]
fn a_control_edge_into_a_loop_is_told_apart_from_nothing() {
    let mut computations = writing_loop(true);
    let main = computations.last_mut().expect("the entry");
    let before = main.proto.instructions.iter().find(|i| i.name == "before").map_or(0, |i| i.id);
    let at = main.proto.instructions.iter_mut().find(|i| i.name == "loop").expect("the loop");
    at.control_predecessor_ids = vec![before];
    let audit = audit(computations);
    assert_eq!(races(&audit), ["before w"]);
    assert_eq!(audit.races().list[0].unproven, Some(Unproven::ControlEdge));
}

#[test]
fn donation_is_no_false_alarm() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    let w = main.write("w", &[h]);
    let h = main.entangle("e", &[h, w]);
    main.read("r", &[h]);
    let audit = audit_bytes(&donate(module(vec![main]), 0).encode_to_vec());
    assert_eq!(races(&audit), no_races());
}

#[test]
fn a_module_inside_an_hlo_proto_is_read_the_same() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    main.read("r", &[h]);
    main.write("w", &[h]);
    let inner = bytes(vec![main]);
    let mut outer = vec![1 << 3 | 2];
    prost::encoding::encode_varint(inner.len() as u64, &mut outer);
    outer.extend(&inner);
    assert_eq!(races(&audit_bytes(&outer)), ["r w"]);
}

#[test]
fn the_picture_leaves_out_only_what_other_arrows_imply() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    let r = main.read("r", &[h]);
    let h = main.entangle("e", &[h, r]);
    let w = main.write("w", &[h, r]);
    main.read("after", &[h, w]);
    let audit = audit(vec![main]);
    assert_eq!(audit.graph().edges, [(0, 1), (1, 2), (2, 3)]);
}

/// A callback on TPU, which sends its operands and receives its results, and the token that its last transfer leaves.
fn callback(main: &mut Computation, name: &str, operands: &[i64], results: usize) -> (Vec<i64>, i64) {
    let token = ShapeProto { element_type: 17, ..ShapeProto::default() };
    let mut transfer = |opcode: &str, shape: ShapeProto, operands: &[i64]| {
        let id = main.op(&format!("{name}.{opcode}"), opcode, shape, operands);
        main.last().is_host_transfer = true;
        main.last().metadata = Some(OpMetadata { op_name: format!("jit(f)/{name}/callback"), ..OpMetadata::default() });
        id
    };
    let mut last = transfer("after-all", token.clone(), &[]);
    for &operand in operands {
        let sent = transfer("send", tuple(&[s32(), s32(), token.clone()]), &[operand, last]);
        last = transfer("send-done", token.clone(), &[sent]);
    }
    let mut received = Vec::new();
    for _ in 0..results {
        let receiving = transfer("recv", tuple(&[s32(), s32(), token.clone()]), &[last]);
        let both = transfer("recv-done", tuple(&[s32(), token.clone()]), &[receiving]);
        received.push(both);
        last = both;
    }
    let received = received.into_iter().map(|both| main.element(both, 0)).collect();
    (received, last)
}

fn audit_of_callbacks(main: Computation) -> Audit {
    let of = |op_name: &str, writes: bool| Access {
        writes,
        resource: None,
        object: Object::Default,
        calls: Calls { op_name: Some(op_name.into()), ..Calls::default() },
    };
    let module = Module::parse(&bytes(vec![main])).expect("the module is well formed");
    Audit::new(module, &Known::accesses(vec![of("reader", false), of("writer", true)])).expect("it can be followed")
}

#[test]
fn callbacks_on_a_tpu_without_a_path_are_not_called_ordered() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, s32());
    callback(&mut main, "reader", &[h], 1);
    callback(&mut main, "writer", &[h, h], 2);
    let audit = audit_of_callbacks(main);
    assert_eq!(audit.calls().len(), 2, "one for each callback, however much it transfers");
    assert_eq!(races(&audit), ["reader.recv writer.recv"]);
}

#[test]
fn callbacks_on_a_tpu_are_ordered_by_what_any_operand_waits_for() {
    for place in 0..2 {
        let mut main = Computation::new("main", 1);
        let h = main.parameter(0, s32());
        let (read, _) = callback(&mut main, "reader", &[h], 1);
        let tied = main.kernel("e", &[h, read[0]]);
        let mut operands = [h, h];
        operands[place] = tied;
        let (written, _) = callback(&mut main, "writer", &operands, 1);
        let tied = main.kernel("e2", &[tied, written[0]]);
        callback(&mut main, "reader", &[tied], 1);
        let audit = audit_of_callbacks(main);
        assert_eq!(audit.calls().len(), 5);
        assert_eq!(races(&audit), no_races());
    }
}

#[test]
fn a_callback_without_results_is_not_called_done_once_its_operand_has_arrived() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, s32());
    callback(&mut main, "writer", &[h], 0);
    callback(&mut main, "reader", &[h], 1);
    assert_eq!(races(&audit_of_callbacks(main)), ["writer.send reader.recv"]);
}

#[test]
fn transfers_between_devices_are_not_taken_for_callbacks() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, s32());
    main.op("send", "send", s32(), &[h]);
    main.last().metadata = Some(OpMetadata { op_name: "writer".into(), ..OpMetadata::default() });
    assert!(audit_of_callbacks(main).calls().is_empty());
}
