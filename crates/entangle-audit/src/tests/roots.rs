//! Which handles are one object.

use super::build::{Computation, floats, handle, handles, pred, s32, tuple, unknown_condition};
use super::{audit, races};
use crate::proto::OpMetadata;

fn no_races() -> Vec<String> {
    Vec::new()
}

#[test]
fn two_arguments_are_not_called_one_handle() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    let g = main.parameter(1, handle());
    main.write("h", &[h]);
    main.write("g", &[g]);
    assert_eq!(races(&audit(vec![main])), no_races());
}

#[test]
fn the_token_and_the_fence_of_one_handle_are_one_object() {
    let mut main = Computation::new("main", 1);
    for (number, name) in
        ["state[0].token['id']", "state[0].fence['id']", "state[1].fence['id']", "h.fence"].iter().enumerate()
    {
        let parameter = main.parameter(i64::try_from(number).unwrap(), handle());
        main.last().metadata = Some(OpMetadata { op_name: (*name).into(), ..OpMetadata::default() });
        main.write(&format!("w{number}"), &[parameter]);
    }
    let audit = audit(vec![main]);
    assert_eq!(races(&audit), ["w0 w1"]);
    assert_eq!(audit.races().list[0].handle, "argument 0 (state[0].token['id'])");
}

#[test]
fn equal_constants_are_one_handle_and_different_ones_are_not() {
    let mut main = Computation::new("main", 1);
    let one = main.constant(1);
    let again = main.constant(1);
    let two = main.constant(2);
    main.write("a", &[one]);
    main.write("b", &[again]);
    main.write("c", &[two]);
    let audit = audit(vec![main]);
    assert_eq!(races(&audit), ["a b"]);
    assert_eq!(audit.races().list[0].handle, "the constant 1");
}

#[test]
fn a_handle_is_recognised_behind_copies_bitcasts_and_arithmetic() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    let zero = main.constant(0);
    let sum = main.op("sum", "add", handle(), &[h, zero]);
    let copy = main.op("copy", "copy", handle(), &[sum]);
    let bitcast = main.op("bitcast", "bitcast", handle(), &[copy]);
    main.write("a", &[h]);
    main.write("b", &[bitcast]);
    assert_eq!(races(&audit(vec![main])), ["a b"]);
}

#[test]
fn a_token_result_stands_for_the_handle_that_was_written() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    let token = main.write("a", &[h]);
    main.write("b", &[token]);
    main.write("c", &[token]);
    assert_eq!(races(&audit(vec![main])), ["b c"]);
}

#[test]
fn slices_at_different_places_are_not_one_handle_and_overlapping_ones_are() {
    let mut main = Computation::new("main", 1);
    let all = main.parameter(0, handles(4));
    let first = main.slice(all, 0, 1);
    let second = main.slice(all, 1, 2);
    let two = main.slice(all, 0, 2);
    main.write("first", &[first]);
    main.write("second", &[second]);
    let other = main.slice(all, 2, 3);
    main.write("other", &[other]);
    main.read("two", &[two]);
    assert_eq!(races(&audit(vec![main])), ["first two", "second two"]);
}

#[test]
fn slices_of_arrays_of_different_lengths_may_be_one_handle() {
    let mut main = Computation::new("main", 1);
    let all = main.parameter(0, handles(2));
    let first = main.slice(all, 0, 1);
    let doubled = main.op("doubled", "concatenate", handles(4), &[all, all]);
    let third = main.slice(doubled, 2, 3);
    main.write("first", &[first]);
    main.write("third", &[third]);
    assert_eq!(races(&audit(vec![main])), ["first third"]);
}

#[test]
fn a_slice_at_an_unknown_place_may_be_any_element() {
    let mut main = Computation::new("main", 1);
    let all = main.parameter(0, handles(4));
    let i = main.parameter(1, s32());
    let j = main.parameter(2, s32());
    let at_i = main.op("at_i", "dynamic-slice", handles(1), &[all, i]);
    let at_j = main.op("at_j", "dynamic-slice", handles(1), &[all, j]);
    let first = main.slice(all, 0, 1);
    main.write("i", &[at_i]);
    main.write("j", &[at_j]);
    main.write("first", &[first]);
    assert_eq!(races(&audit(vec![main])), ["i first", "i j", "j first"]);
}

#[test]
fn a_handle_chosen_at_run_time_may_be_either() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    let g = main.parameter(1, handle());
    let p = main.parameter(2, pred());
    let chosen = main.op("select", "select", handle(), &[p, h, g]);
    main.write("h", &[h]);
    main.write("g", &[g]);
    main.write("chosen", &[chosen]);
    assert_eq!(races(&audit(vec![main])), ["g chosen", "h chosen"]);
}

#[test]
fn a_handle_that_two_loops_swap_may_be_either() {
    let carried = tuple(&[handle(), handle()]);
    let mut body = Computation::new("body", 1);
    let state = body.parameter(0, carried.clone());
    let a = body.element(state, 0);
    let b = body.element(state, 1);
    body.tuple(&[b, a]);
    let condition = unknown_condition(2, &carried);
    let mut main = Computation::new("main", 3);
    let h = main.parameter(0, handle());
    let g = main.parameter(1, handle());
    let init = main.tuple(&[h, g]);
    let end = main.while_loop("loop", init, &body, &condition);
    let a = main.element(end, 0);
    main.write("h", &[h]);
    main.write("either", &[a]);
    assert_eq!(races(&audit(vec![body, condition, main])), ["h either"]);
}

#[test]
fn a_handle_made_in_each_iteration_is_not_the_next_iterations() {
    let build = |carried_on: bool| {
        let carried = tuple(&[handle()]);
        let mut body = Computation::new("body", 1);
        let state = body.parameter(0, carried.clone());
        let old = body.element(state, 0);
        let new = body.call("make", "make", handle(), &[]);
        body.write("w", &[if carried_on { old } else { new }]);
        body.tuple(&[new]);
        let condition = unknown_condition(2, &carried);
        let mut main = Computation::new("main", 3);
        let h = main.parameter(0, handle());
        let init = main.tuple(&[h]);
        main.while_loop("loop", init, &body, &condition);
        audit(vec![body, condition, main])
    };
    assert_eq!(races(&build(false)), no_races());
    // What the last iteration made cannot be told from what this one got: said as a race, not passed over.
    assert_eq!(races(&build(true)), ["w w@loop"]);
}

#[test]
fn a_made_handle_is_not_its_arguments() {
    let mut main = Computation::new("main", 1);
    let x = main.parameter(0, floats(&[8]));
    let a = main.call("make.1", "make", handle(), &[x]);
    let b = main.call("make.2", "make", handle(), &[x]);
    main.write("a", &[a]);
    main.write("b", &[b]);
    main.read("a2", &[a]);
    assert_eq!(races(&audit(vec![main])), ["a a2"]);
}

#[test]
fn an_operand_other_than_the_first_can_be_the_handle() {
    use crate::{Audit, Error, Module, Target, Targets};
    let build = |operand: usize| {
        let mut main = Computation::new("main", 1);
        let x = main.parameter(0, handle());
        let h = main.parameter(1, handle());
        main.write("a", &[x, h]);
        main.write("b", &[h, h]);
        let module = Module::parse(&super::build::bytes(vec![main])).expect("well formed");
        let writes = vec![Target { name: "write".into(), operands: vec![operand] }];
        Audit::new(module, &Targets { writes, ..Targets::default() })
    };
    assert_eq!(races(&build(0).expect("both have operand 0")), no_races());
    assert_eq!(races(&build(1).expect("both have operand 1")), ["a b"]);
    let error = build(2).expect_err("no call has operand 2");
    assert!(matches!(error, Error::NoSuchOperand { operand: 2, operands: 2, .. }));
    assert!(error.to_string().contains("Name the operand that holds the handle"), "{error}");
}

#[test]
fn a_target_with_a_colon_in_its_name_keeps_it() {
    use crate::Target;
    assert_eq!(Target::parse("lib::write"), Target::new("lib::write"));
    assert_eq!(Target::parse("write:2"), Target { name: "write".into(), operands: vec![2] });
    assert_eq!(Target::parse("write:0,2"), Target { name: "write".into(), operands: vec![0, 2] });
}
