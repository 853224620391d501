//! What waits for a loop, a branch, or a device.

use prost::Message as _;

use super::build::{Computation, floats, handle, module, pred, s32, schedule, tuple, unknown_condition};
use super::{audit, audit_bytes, races};
use crate::hlo::proto::{CollectiveDeviceList, HloModuleProto};
use crate::{Access, Audit, Known, Module};

fn no_races() -> Vec<String> {
    Vec::new()
}

fn race() -> Vec<String> {
    vec!["r w".into()]
}

fn compiled(computations: Vec<Computation>) -> Vec<u8> {
    schedule(module(computations)).encode_to_vec()
}

/// What a body hands on in place of its parameter's element 0, given that element and what was read before the loop.
type Change = fn(&mut Computation, i64, i64) -> i64;

fn entangled(body: &mut Computation, h: i64, r: i64) -> i64 {
    body.entangle("e", &[h, r])
}

fn passed(_: &mut Computation, h: i64, _: i64) -> i64 {
    h
}

fn copied(body: &mut Computation, h: i64, _: i64) -> i64 {
    let copy = body.op("copy", "copy", handle(), &[h]);
    let cast = body.op("bitcast", "bitcast", handle(), &[copy]);
    body.op("barrier", "opt-barrier", handle(), &[cast])
}

/// A value is computed without the read, which something else in the body uses.
fn beside(body: &mut Computation, h: i64, r: i64) -> i64 {
    body.op("used", "sine", floats(&[8]), &[r]);
    body.op("computed", "negate", handle(), &[h])
}

fn body_of(id: i64, change: Change) -> Computation {
    let mut body = Computation::new("body", id);
    let state = body.parameter(0, tuple(&[handle(), floats(&[8])]));
    let (h, r) = (body.element(state, 0), body.element(state, 1));
    let h = change(&mut body, h, r);
    body.tuple(&[h, r]);
    body
}

/// A read before a loop that may run zero times, and a write of what the loop hands on.
fn around_a_loop(body: Computation, inner: Vec<Computation>) -> Vec<Computation> {
    let condition = unknown_condition(20, &tuple(&[handle(), floats(&[8])]));
    let mut main = Computation::new("main", 21);
    let h = main.parameter(0, handle());
    let r = main.read("r", &[h]);
    let init = main.tuple(&[h, r]);
    let end = main.while_loop("loop", init, &body, &condition);
    let h = main.element(end, 0);
    main.write("w", &[h]);
    inner.into_iter().chain([body, condition, main]).collect()
}

#[test]
fn a_read_that_was_taken_out_of_a_loop_is_before_what_the_loop_computes() {
    for change in [entangled, beside] {
        assert_eq!(races(&audit_bytes(&compiled(around_a_loop(body_of(1, change), vec![])))), no_races());
        // A program as written says nothing of buffers: without a trip there is no path.
        assert_eq!(races(&audit(around_a_loop(body_of(1, change), vec![]))), race());
    }
}

#[test]
fn what_a_loop_passes_through_waits_for_nothing_in_it() {
    for change in [passed, copied] {
        assert_eq!(races(&audit_bytes(&compiled(around_a_loop(body_of(1, change), vec![])))), race());
    }
    let mut swapping = Computation::new("body", 1);
    let pair = tuple(&[handle(), handle()]);
    let state = swapping.parameter(0, pair.clone());
    let (a, b) = (swapping.element(state, 0), swapping.element(state, 1));
    swapping.tuple(&[b, a]);
    let condition = unknown_condition(2, &pair);
    let mut main = Computation::new("main", 3);
    let h = main.parameter(0, handle());
    main.read("r", &[h]);
    let init = main.tuple(&[h, h]);
    let end = main.while_loop("loop", init, &swapping, &condition);
    let h = main.element(end, 0);
    main.write("w", &[h]);
    assert_eq!(races(&audit_bytes(&compiled(vec![swapping, condition, main]))), race());
}

#[test]
fn a_loop_in_a_loop_computes_what_its_body_computes() {
    let nested = |change: Change| {
        let inner = body_of(1, change);
        let condition = unknown_condition(2, &tuple(&[handle(), floats(&[8])]));
        let mut outer = Computation::new("outer", 3);
        let state = outer.parameter(0, tuple(&[handle(), floats(&[8])]));
        outer.while_loop("inner_loop", state, &inner, &condition);
        races(&audit_bytes(&compiled(around_a_loop(outer, vec![inner, condition]))))
    };
    assert_eq!(nested(entangled), no_races());
    assert_eq!(nested(beside), no_races());
    assert_eq!(nested(passed), race());
    assert_eq!(nested(copied), race());
}

#[test]
fn a_call_in_a_loop_computes_what_the_called_function_computes() {
    let calling = |change: Change| {
        let callee = body_of(1, change);
        let mut body = Computation::new("body", 2);
        let carried = tuple(&[handle(), floats(&[8])]);
        let state = body.parameter(0, carried.clone());
        body.calling("call", "call", carried, &[state], &[1]);
        races(&audit_bytes(&compiled(around_a_loop(body, vec![callee]))))
    };
    assert_eq!([entangled as Change, beside, passed, copied].map(calling), [no_races(), no_races(), race(), race()]);
}

/// A read, a conditional that is given it, and a write of what the conditional hands on.
fn around_branches(changes: &[Change], predicate: impl Fn(&mut Computation, i64) -> i64) -> Vec<Computation> {
    let mut computations: Vec<Computation> = (1..).zip(changes).map(|(id, change)| body_of(id, *change)).collect();
    let mut main = Computation::new("main", 20);
    let h = main.parameter(0, handle());
    let r = main.read("r", &[h]);
    let operand = main.tuple(&[h, r]);
    let predicate = predicate(&mut main, r);
    let operands: Vec<i64> = std::iter::once(predicate).chain(changes.iter().map(|_| operand)).collect();
    let called: Vec<i64> = computations.iter().map(|branch| branch.proto.id).collect();
    let shape = tuple(&[handle(), floats(&[8])]);
    let end = main.calling("choice", "conditional", shape, &operands, &called);
    let h = main.element(end, 0);
    main.write("w", &[h]);
    computations.push(main);
    computations
}

fn argument(main: &mut Computation, _: i64) -> i64 {
    main.parameter(1, pred())
}

fn of_the_read(main: &mut Computation, r: i64) -> i64 {
    main.op("positive", "compare", pred(), &[r, r])
}

#[test]
fn a_conditional_waits_for_what_its_branches_use_only_if_each_computes() {
    let with = |changes: &[Change]| races(&audit_bytes(&compiled(around_branches(changes, argument))));
    assert_eq!(with(&[entangled, entangled]), no_races());
    assert_eq!(with(&[beside, entangled]), no_races());
    assert_eq!(with(&[beside, beside]), no_races());
    assert_eq!(with(&[beside, passed]), race());
    assert_eq!(with(&[copied, entangled]), race());
    assert_eq!(with(&[passed, passed]), race());
}

/// A conditional with calls in its branches, and a read after it that waits for what the conditional hands on.
fn calls_in_branches(changes: &[Change], calls_in: &[bool], form: fn(Vec<Computation>) -> Vec<u8>) -> Vec<String> {
    let mut computations = around_branches(changes, argument);
    for (branch, _) in calls_in.iter().enumerate().filter(|(_, calls)| **calls) {
        let body = &mut computations[branch];
        let (root, h) = (body.proto.root_id, body.proto.instructions[1].id);
        body.write("inside", &[h]);
        body.proto.root_id = root;
    }
    let main = computations.last_mut().expect("the entry");
    main.last().custom_call_target = "read".into();
    races(&audit_bytes(&form(computations)))
}

#[test]
fn what_a_conditional_computes_waits_for_the_calls_in_the_branch_that_ran() {
    let race = "inside w".to_owned();
    let both = [entangled as Change, beside, copied, passed].map(|change| [change, change]);
    let ordered = both.map(|changes| calls_in_branches(&changes, &[false, true], compiled).contains(&race));
    assert_eq!(ordered, [false, false, true, true]);
    assert!(
        calls_in_branches(&[passed, beside], &[false, true], compiled).contains(&race),
        "not every branch computes"
    );
    assert!(!calls_in_branches(&[beside, beside], &[true, true], compiled).contains(&race));
}

/// A conditional as written, decided by this, each branch of which makes its result anew beside a call.
fn as_written(change: Change, branches: usize, predicate: fn(&mut Computation, i64) -> i64) -> bool {
    let mut computations = around_branches(&vec![change; branches], predicate);
    let body = &mut computations[branches - 1];
    let (root, h) = (body.proto.root_id, body.proto.instructions[1].id);
    body.write("inside", &[h]);
    body.proto.root_id = root;
    computations.last_mut().expect("the entry").last().custom_call_target = "read".into();
    !races(&audit_bytes(&super::build::bytes(computations))).contains(&"inside w".to_owned())
}

#[test]
fn as_written_only_what_calls_make_waits_for_the_calls_in_the_branch() {
    fn of_xla(body: &mut Computation, h: i64, r: i64) -> i64 {
        let computed = beside(body, h, r);
        body.call("placed", "Sharding", handle(), &[computed])
    }
    fn of_others(body: &mut Computation, h: i64, r: i64) -> i64 {
        let computed = beside(body, h, r);
        body.call("other", "TopK", handle(), &[computed])
    }
    assert!(as_written(entangled, 2, argument));
    assert!(!as_written(beside, 2, argument), "XLA may simplify it to what is passed on");
    assert!(!as_written(of_xla, 2, argument), "it only says where a value lies");
    assert!(!as_written(of_others, 2, argument), "XLA knows what it computes");
}

#[test]
fn as_written_a_conditional_that_xla_may_remove_makes_nothing_wait() {
    fn entangled_predicate(main: &mut Computation, r: i64) -> i64 {
        let truth = main.op("truth", "constant", pred(), &[]);
        let unknown = main.entangle("unknown", &[truth, r]);
        main.op("index", "convert", s32(), &[unknown])
    }
    fn folded(main: &mut Computation, r: i64) -> i64 {
        let p = argument(main, r);
        main.op("same", "compare", pred(), &[p, p])
    }
    fn of_a_loop(main: &mut Computation, _: i64) -> i64 {
        main.op("more", "rng", pred(), &[])
    }
    assert!(as_written(entangled, 2, entangled_predicate));
    assert!(as_written(entangled, 3, argument));
    assert!(!as_written(entangled, 2, folded), "always true");
    assert!(!as_written(entangled, 2, of_a_loop), "nothing is known of it");
    assert!(!as_written(entangled, 1, argument), "there is no choice");
}

#[test]
fn what_a_loop_computes_waits_for_the_calls_in_its_body() {
    let with = |change: Change| {
        let mut body = body_of(1, change);
        let (root, h) = (body.proto.root_id, body.proto.instructions[1].id);
        body.write("inside", &[h]);
        body.proto.root_id = root;
        let mut computations = around_a_loop(body, vec![]);
        computations.last_mut().expect("the entry").last().custom_call_target = "read".into();
        races(&audit_bytes(&compiled(computations))).contains(&"inside w".to_owned())
    };
    assert_eq!([entangled as Change, beside, copied, passed].map(with), [false, false, true, true]);
}

/// What a call in a branch waits for is not waited for where the branch is not taken.
#[test]
fn a_branch_that_is_not_taken_waits_for_nothing_that_only_its_calls_wait_for() {
    let mut taken = body_of(1, beside);
    let (root, h, r) = (taken.proto.root_id, taken.proto.instructions[1].id, taken.proto.instructions[2].id);
    let e = taken.entangle("tied", &[h, r]);
    taken.write("inside", &[e]);
    taken.proto.root_id = root;
    // As written the conditional's own use of the read counts for nothing.
    let mut computations = around_branches(&[entangled, entangled], argument);
    computations[0] = taken;
    assert!(races(&audit_bytes(&super::build::bytes(computations))).contains(&"r w".to_owned()));
}

#[test]
fn what_every_branch_hands_on_does_not_wait_for_what_decides() {
    for form in [compiled, super::build::bytes] {
        let with = |changes: &[Change]| races(&audit_bytes(&form(around_branches(changes, of_the_read))));
        assert_eq!(with(&[passed, passed]), race());
        assert_eq!(with(&[copied, passed]), race());
        assert_eq!(with(&[beside, passed]), no_races(), "which of the two it is can only be known afterwards");
        assert_eq!(with(&[beside, beside]), no_races());
    }
}

#[test]
fn a_constant_is_written_only_where_it_is_copied() {
    fn constant(body: &mut Computation, _: i64, r: i64) -> i64 {
        body.op("used", "sine", floats(&[8]), &[r]);
        body.constant(3)
    }
    fn copy_of_a_constant(body: &mut Computation, h: i64, r: i64) -> i64 {
        let constant = constant(body, h, r);
        body.op("copy", "copy", handle(), &[constant])
    }
    let with = |change: Change| {
        let mut computations = around_branches(&[change, change], argument);
        // The witness of the write, whose handle is the argument.
        let main = computations.last_mut().expect("the entry");
        let (h, chosen) = (main.proto.instructions[0].id, main.proto.instructions.len() - 2);
        let chosen = main.proto.instructions[chosen].id;
        main.proto.instructions.pop();
        let e = main.entangle("e", &[h, chosen]);
        main.write("w", &[e]);
        races(&audit_bytes(&compiled(computations)))
    };
    assert_eq!(with(constant), race());
    assert_eq!(with(copy_of_a_constant), no_races());
}

#[test]
fn a_branch_that_a_constant_rules_out_does_not_run() {
    fn writes(body: &mut Computation, h: i64, _: i64) -> i64 {
        body.call("in branch", "write", handle(), &[h])
    }
    let with = |value: u8, of_type: i32| {
        let program = around_branches(&[writes, entangled], |main, _| {
            let constant = main.constant(value);
            main.last().shape.as_mut().expect("it has one").element_type = of_type;
            constant
        });
        races(&audit_bytes(&compiled(program)))
    };
    let (truth, number) = (1, 4);
    let taken = vec!["r in branch".to_owned(), "r w".to_owned()];
    assert_eq!([with(1, truth), with(0, truth)], [taken.clone(), no_races()], "the first is taken if it is true");
    assert_eq!([with(0, number), with(1, number), with(9, number)], [taken, no_races(), no_races()]);
}

/// A callback on the device 0, and a write on each device that waits for what is made of its result.
fn on_one_device(bring: Option<&str>, change: impl Fn(&mut HloModuleProto)) -> Vec<String> {
    let mut there = Computation::new("there", 1);
    let h = there.parameter(0, handle());
    let r = there.call("r", "xla_ffi_python_cpu_callback", floats(&[8]), &[h]);
    there.tuple(&[r]);
    let mut elsewhere = Computation::new("elsewhere", 2);
    elsewhere.parameter(0, handle());
    let zero = elsewhere.op("zero", "constant", floats(&[8]), &[]);
    elsewhere.tuple(&[zero]);
    let mut main = Computation::new("main", 3);
    let h = main.parameter(0, handle());
    let device = main.op("device", "partition-id", s32(), &[]);
    let zero = main.constant(0);
    let here = main.op("here", "compare", pred(), &[device, zero]);
    main.last().comparison_direction = "EQ".into();
    let end = main.calling("choice", "conditional", tuple(&[floats(&[8])]), &[here, h, h], &[1, 2]);
    let mut r = main.element(end, 0);
    if let Some(opcode) = bring {
        r = main.op("brought", opcode, floats(&[8]), &[r]);
    }
    let e = main.entangle("e", &[h, r]);
    main.write("w", &[e]);
    let mut module = schedule(module(vec![there, elsewhere, main]));
    change(&mut module);
    let log = |access: Access| access.in_resource("log");
    let known = vec![log(Access::read("xla_ffi_python_cpu_callback")), log(Access::write("write"))];
    let module = Module::parse(&module.encode_to_vec()).expect("well formed");
    races(&Audit::new(module, &Known::accesses(known)).expect("followed"))
}

#[test]
fn a_result_on_one_device_proves_something_for_others_only_where_it_was_brought() {
    let nothing = |_: &mut HloModuleProto| {};
    assert_eq!(on_one_device(None, nothing), race());
    assert_eq!(on_one_device(Some("sine"), nothing), race());
    assert_eq!(on_one_device(Some("all-reduce"), nothing), no_races());
    assert_eq!(on_one_device(Some("all-gather"), nothing), no_races());
    assert_eq!(on_one_device(Some("collective-permute"), nothing), race(), "it reaches some of them");
    let groups = |groups: usize| {
        on_one_device(Some("all-reduce"), |module| {
            let entry = module.computations.last_mut().expect("the entry");
            for instruction in &mut entry.instructions {
                let groups = vec![Vec::new(); groups];
                instruction.device_list = Some(CollectiveDeviceList { groups, counted: None });
            }
        })
    };
    assert_eq!([groups(1), groups(2)], [no_races(), race()]);
}
