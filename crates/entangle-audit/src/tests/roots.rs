//! Which handles are one object.

use super::build::{Computation, floats, handle, handles, pred, s32, tuple, unknown_condition};
use super::{audit, races};
use crate::hlo::proto::{LayoutProto, OpMetadata, OutputOperandAliasing, ShapeProto, SliceDimensions};

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

/// What races with a read of element 2 of four handles: a write of element 0 of what the operation makes of the four.
fn write_of_a_slice(operation: impl Fn(&mut Computation, i64) -> i64) -> Vec<String> {
    let mut main = Computation::new("main", 1);
    let all = main.parameter(0, handles(4));
    let third = main.slice(all, 2, 3);
    main.read("third", &[third]);
    let made = operation(&mut main, all);
    let first = main.slice(made, 0, 1);
    main.write("first", &[first]);
    races(&audit(vec![main]))
}

#[test]
fn the_place_of_an_element_that_may_have_moved_is_not_taken_for_its_old_one() {
    let one_operand =
        ["transpose", "reverse", "sort", "broadcast", "collective-permute", "reduce", "dot", "map", "new-op"];
    for opcode in one_operand {
        let found = write_of_a_slice(|main, all| main.op("moved", opcode, handles(4), &[all]));
        assert_eq!(found, ["third first"], "{opcode}");
    }
    let operands: [(&str, &[usize]); 7] = [
        ("gather", &[0, 1]),
        ("dynamic-slice", &[0, 1]),
        ("dynamic-update-slice", &[0, 1, 1]),
        ("dynamic-update-slice", &[1, 0, 1]),
        ("scatter", &[0, 1, 1]),
        ("scatter", &[1, 1, 0]),
        ("pad", &[0, 1]),
    ];
    for (opcode, operands) in operands {
        let found = write_of_a_slice(|main, all| {
            let other = main.parameter(1, s32());
            let operands: Vec<i64> = operands.iter().map(|&operand| [all, other][operand]).collect();
            main.op("moved", opcode, handles(4), &operands)
        });
        assert_eq!(found, ["third first"], "{opcode} of {operands:?}");
    }
    let places = |puts: bool| {
        let mut combine = Computation::new("combine", 2);
        let (old, new) = (combine.parameter(0, handle()), combine.parameter(1, handle()));
        if !puts {
            combine.op("sum", "add", handle(), &[old, new]);
        }
        let mut main = Computation::new("main", 1);
        let all = main.parameter(0, handles(4));
        let third = main.slice(all, 2, 3);
        main.read("third", &[third]);
        let other = main.parameter(1, handles(4));
        let made = main.calling("put", "scatter", handles(4), &[other, all, other], &[2]);
        let first = main.slice(made, 0, 1);
        main.write("first", &[first]);
        races(&audit(vec![combine, main]))
    };
    assert_eq!(places(true), no_races(), "the places at which a scatter puts elements are no handles");
    assert_eq!(places(false), ["third first"], "a scatter that adds computes");
    let tokens = write_of_a_slice(|main, all| main.write("w", &[all]));
    assert_eq!(tokens, ["third first", "third w"], "a token for four handles is a token for each");
}

#[test]
fn an_element_that_stays_at_its_place_is_still_told_from_the_others() {
    for opcode in ["copy", "convert", "reshape", "bitcast"] {
        let found = write_of_a_slice(|main, all| main.op("kept", opcode, handles(4), &[all]));
        assert_eq!(found, no_races(), "{opcode}");
    }
    let entangled = write_of_a_slice(|main, all| main.entangle("e", &[all, all]));
    assert_eq!(entangled, no_races());
    let chosen = write_of_a_slice(|main, all| {
        let p = main.parameter(1, pred());
        main.op("select", "select", handles(4), &[p, all, all])
    });
    assert_eq!(chosen, no_races());
    let with = |opcode: &'static str, number: u8, left: bool| {
        write_of_a_slice(move |main, all| {
            let constant = main.constant(number);
            let constant = main.op("all", "broadcast", handles(4), &[constant]);
            main.op("computed", opcode, handles(4), &if left { [constant, all] } else { [all, constant] })
        })
    };
    let unchanged = [("add", 0), ("or", 0), ("subtract", 0), ("shift-left", 0), ("multiply", 1), ("divide", 1)];
    for (opcode, number) in unchanged {
        assert_eq!(with(opcode, number, false), no_races(), "{opcode} {number}");
        assert_eq!(with(opcode, 2, false), ["third first"], "{opcode} 2");
    }
    assert_eq!(with("subtract", 0, true), ["third first"], "0 - x is not x");
    assert_eq!(with("divide", 1, true), ["third first"], "1 / x is not x");
    for opcode in ["negate", "add", "bitcast-convert", "maximum", "and", "power"] {
        let found = write_of_a_slice(|main, all| main.op("computed", opcode, handles(4), &[all, all]));
        assert_eq!(found, ["third first"], "{opcode}");
    }
}

#[test]
fn a_bitcast_that_transposes_is_not_taken_for_a_reshape() {
    let shape = |dimensions: &[i64], minor_to_major: &[i64]| {
        let layout = Some(LayoutProto { minor_to_major: minor_to_major.to_vec() });
        ShapeProto { dimensions: dimensions.to_vec(), layout, ..handle() }
    };
    let build = |to: ShapeProto| {
        let mut main = Computation::new("main", 1);
        let all = main.parameter(0, shape(&[2, 2], &[1, 0]));
        let cast = main.op("cast", "bitcast", to, &[all]);
        let mut at = |name: &str, of: i64, row: i64, column: i64| {
            let element = main.op("element", "slice", shape(&[1, 1], &[1, 0]), &[of]);
            let steps = |start| SliceDimensions { start, limit: start + 1, stride: 1 };
            main.last().slice_dimensions = vec![steps(row), steps(column)];
            main.write(name, &[element]);
        };
        at("a", all, 0, 1);
        at("b", cast, 1, 0);
        races(&audit(vec![main]))
    };
    assert_eq!(build(shape(&[2, 2], &[1, 0])), no_races());
    assert_eq!(build(shape(&[2, 2], &[0, 1])), ["a b"]);
}

#[test]
fn the_elements_of_one_handle_that_fills_an_array_are_that_handle() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    let all = main.op("all", "broadcast", handles(4), &[h]);
    let (first, second) = (main.slice(all, 0, 1), main.slice(all, 1, 2));
    main.write("first", &[first]);
    main.write("second", &[second]);
    let audit = audit(vec![main]);
    assert_eq!(races(&audit), ["first second"]);
    assert_eq!(audit.races().list[0].handle, "argument 0 (p0)");
}

/// The races of a write of the constant 9 with a read of a handle made so.
fn with_constant_9(other: impl Fn(&mut Computation) -> i64) -> bool {
    let mut main = Computation::new("main", 1);
    let nine = main.constant(9);
    main.write("nine", &[nine]);
    let other = other(&mut main);
    main.read("other", &[other]);
    !races(&audit(vec![main])).is_empty()
}

#[test]
fn an_element_of_a_constant_table_is_the_equal_constant_and_no_other() {
    let at_run_time = |values: &'static [u8]| {
        with_constant_9(move |main| {
            let table = main.table(values);
            let i = main.parameter(0, s32());
            main.op("element", "dynamic-slice", handles(1), &[table, i])
        })
    };
    assert!(at_run_time(&[7, 9, 11]));
    assert!(!at_run_time(&[7, 8, 11]));
    let at = |place: i64, moved: bool| {
        with_constant_9(|main| {
            let table = main.table(&[7, 9, 11]);
            let table = if moved { main.op("moved", "reverse", handles(3), &[table]) } else { table };
            main.slice(table, place, place + 1)
        })
    };
    assert_eq!([0, 1, 2].map(|place| at(place, false)), [false, true, false]);
    assert_eq!([0, 1, 2].map(|place| at(place, true)), [true; 3]);
    let iota = |along: i64, row: i64| {
        with_constant_9(|main| {
            let all = main.op("iota", "iota", ShapeProto { dimensions: vec![12, 10], ..handle() }, &[]);
            main.last().dimensions = vec![along];
            let part = main.op("part", "slice", ShapeProto { dimensions: vec![1, 5], ..handle() }, &[all]);
            main.last().slice_dimensions = vec![
                SliceDimensions { start: row, limit: row + 1, stride: 1 },
                SliceDimensions { start: 0, limit: 10, stride: 2 },
            ];
            part
        })
    };
    // Along the rows; then along the columns, of which those with even numbers are taken.
    assert_eq!([(0, 8), (0, 9), (1, 8)].map(|(along, row)| iota(along, row)), [false, true, false]);
}

#[test]
fn a_number_computed_from_constants_may_equal_any_constant_and_no_argument() {
    let sum = |main: &mut Computation| {
        let four = main.constant(4);
        let five = main.constant(5);
        main.op("sum", "add", handle(), &[four, five])
    };
    assert!(with_constant_9(sum));
    assert!(with_constant_9(|main| main.op("device", "partition-id", handle(), &[])));
    assert!(!with_constant_9(|main| main.parameter(0, handle())));
    assert!(with_constant_9(|main| main.op("random", "rng", handle(), &[])));
    assert!(with_constant_9(|main| {
        let x = main.parameter(0, handle());
        main.op("shorter", "convert", ShapeProto { element_type: 2, ..ShapeProto::default() }, &[x])
    }));
    assert!(with_constant_9(|main| main.call("callback", "unknown", handle(), &[])));
    let converted = |value: u8| {
        with_constant_9(move |main| {
            let constant = main.constant(value);
            main.op("convert", "convert", s32(), &[constant])
        })
    };
    assert_eq!([8, 9].map(converted), [false, true]);
}

#[test]
fn constants_of_every_type_are_compared_by_their_values() {
    const BYTE: u8 = 3;
    const S32: u8 = 4;
    const F32: u8 = 8;
    const F64: u8 = 9;
    const C64: u8 = 12;
    let typed = |field: u8, content: &'static [u8]| {
        with_constant_9(move |main| {
            let id = main.op("constant", "constant", handle(), &[]);
            let length = u8::try_from(content.len()).expect("short");
            main.last().literal = Some([&[field << 3 | 2, length], content].concat());
            id
        })
    };
    assert_eq!([typed(BYTE, &[9]), typed(BYTE, &[8])], [true, false]);
    assert_eq!(
        [typed(S32, &[9]), typed(S32, &[8]), typed(S32, &[0xff; 9])],
        [true, false, true],
        "the last is cut short"
    );
    assert_eq!([typed(F32, &[0, 0, 0x10, 0x41]), typed(F32, &[0, 0, 0, 0x41])], [true, false], "9.0 and 8.0");
    assert!(typed(F32, &[0, 0, 0x08, 0x41]), "what 8.5 stands for is not known");
    assert!(!typed(F64, &[0, 0, 0, 0, 0, 0, 0x20, 0x40]), "8.0");
    assert!(typed(C64, &[0; 8]), "numbers of this type are not looked at");
    assert!(typed(BYTE, &[8, 8]), "more numbers than places");
}

#[test]
fn a_control_edge_on_a_call_with_two_results_does_not_hide_its_handle() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    let g = main.parameter(1, handle());
    let x = main.op("sine", "sine", floats(&[8]), &[h]);
    main.read("r", &[h]);
    let e = main.call("e", "entangle", tuple(&[handle(), handle()]), &[h, g, x]);
    main.last().output_operand_aliasing =
        (0..2).map(|i| OutputOperandAliasing { output_shape_index: vec![i], operand_index: i }).collect();
    main.last().control_predecessor_ids = vec![x];
    let h = main.element(e, 0);
    main.write("w", &[h]);
    let audit = audit(vec![main]);
    let objects = audit.objects();
    let names: Vec<_> = audit.calls()[2].writes.iter().map(|&object| objects[object].name.as_str()).collect();
    assert_eq!(names, ["argument 0 (p0)"]);
    assert_eq!(races(&audit), ["r w"]);
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
fn a_race_on_one_of_two_arguments_is_named_alike_however_they_are_listed() {
    for numbers in [[0, 1], [1, 0]] {
        let mut main = Computation::new("main", 1);
        let arguments = numbers.map(|number| main.parameter(number, handle()));
        let p = main.parameter(2, pred());
        let chosen = main.op("select", "select", handle(), &[p, arguments[0], arguments[1]]);
        main.read("r", &[chosen]);
        main.write("w", &[chosen]);
        assert_eq!(audit(vec![main]).races().list[0].handle, "argument 0 (p0)");
    }
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
fn what_an_unknown_call_returns_may_be_any_object() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    let a = main.call("look up.1", "look up", handle(), &[h]);
    let b = main.call("look up.2", "look up", handle(), &[h]);
    main.write("a", &[a]);
    main.write("b", &[b]);
    main.read("h", &[h]);
    assert_eq!(races(&audit(vec![main])), ["a b", "a h", "b h"]);
}

#[test]
fn a_result_of_another_type_than_the_handle_is_no_token() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    let g = main.parameter(1, handle());
    let token = main.call("a", "write", handle(), &[h]);
    let number = main.call("b", "read", s32(), &[h]);
    main.write("c", &[token]);
    main.write("d", &[number]);
    main.read("e", &[g]);
    assert_eq!(races(&audit(vec![main])), ["a b", "a d", "b c", "c d", "d e"]);
}

#[test]
fn calls_of_one_resource_are_one_object_whatever_their_operands() {
    use crate::{Access, Audit, Known, Module, Object};
    let build = |accesses: Vec<Access>| {
        let mut main = Computation::new("main", 1);
        let h = main.parameter(0, handle());
        let g = main.parameter(1, handle());
        main.call("render", "render", floats(&[8]), &[h]);
        main.call("refit", "refit", floats(&[8]), &[g]);
        main.call("pull", "pull", floats(&[8]), &[]);
        for name in ["a", "b"] {
            main.call(name, "attribute", floats(&[8]), &[]);
            main.last().backend_config = format!("{{scene = {name:?}, number = 3 : i64}}").into_bytes();
        }
        let module = Module::parse(&super::build::bytes(vec![main])).expect("well formed");
        Audit::new(module, &Known::accesses(accesses)).expect("all that is named is there")
    };
    let plain = build(vec![Access::read("render"), Access::write("refit"), Access::read("pull")]);
    assert_eq!(races(&plain), ["refit pull"], "what a call without operands touches may be anything");
    let objects: Vec<_> = plain.objects().into_iter().map(|object| (object.name, object.may_be)).collect();
    let anything = "a handle that may be any object".to_owned();
    assert_eq!(
        objects,
        [("argument 0 (p0)".into(), vec![2]), ("argument 1 (p1)".into(), vec![2]), (anything, vec![0, 1])]
    );

    let scene = |access: Access| access.in_resource("scene");
    let one = build(vec![scene(Access::read("render")), scene(Access::write("refit")), Access::read("pull")]);
    assert_eq!(races(&one), ["render refit"]);
    assert_eq!(one.races().list[0].handle, "scene");
    let operand = Object::Operands(vec![0]);
    let told_apart =
        build(vec![scene(Access::read("render").on(operand.clone())), scene(Access::write("refit").on(operand))]);
    assert_eq!(races(&told_apart), no_races());

    let named = |attribute: &str| build(vec![Access::write("attribute").on(Object::Attribute(attribute.into()))]);
    assert_eq!((races(&named("scene")), races(&named("number"))), (no_races(), vec!["a b".to_owned()]));
    let with_handle =
        build(vec![Access::write("attribute").on(Object::Attribute("scene".into())), Access::read("render")]);
    assert_eq!(races(&with_handle), ["render a", "render b"], "a text and a handle cannot be compared");
}

#[test]
fn calls_are_known_by_what_jax_calls_them_and_by_their_own_names() {
    use crate::{Access, Audit, Calls, Known, Module, Object};
    let mut main = Computation::new("main", 1);
    for (name, op_name) in [("a", "jit(f)/jit(solve[reads db])/ffi_call"), ("b", "jit(f)/ffi_call"), ("c", "")] {
        main.call(name, "t", floats(&[8]), &[]);
        main.last().metadata = Some(OpMetadata { op_name: op_name.into(), ..OpMetadata::default() });
    }
    let access =
        |writes: bool, calls: Calls| Access { calls, writes, resource: Some("db".into()), object: Object::Default };
    let module = Module::parse(&super::build::bytes(vec![main])).expect("well formed");
    let accesses = vec![
        access(false, Calls { op_name: Some("[reads db]".into()), ..Calls::default() }),
        access(true, Calls { name: Some("c".into()), target: Some("t".into()), ..Calls::default() }),
        access(true, Calls { name: Some("b".into()), target: Some("other".into()), ..Calls::default() }),
        access(true, Calls::default()),
    ];
    let audit = Audit::new(module, &Known::accesses(accesses)).expect("followed");
    assert_eq!(audit.calls().len(), 2, "b has another target, and an access of no calls is none of all calls");
    assert_eq!(races(&audit), ["a c"]);
}

#[test]
fn a_target_is_read_from_text_or_refused() {
    use crate::{Access, Object};
    let read = |text: &str| Access::parse(text, true);
    assert_eq!(read("lib::write"), Ok(Access::write("lib::write")));
    assert_eq!(read("write:2"), Ok(Access::write("write").on(Object::Operands(vec![2]))));
    assert_eq!(read("write:0,2"), Ok(Access::write("write").on(Object::Operands(vec![0, 2]))));
    assert_eq!(read("write:*"), Ok(Access::write("write").on(Object::Whole)));
    assert_eq!(read("write:@id"), Ok(Access::write("write").on(Object::Attribute("id".into()))));
    assert_eq!(read("db=write:1"), Ok(Access::write("write").in_resource("db").on(Object::Operands(vec![1]))));
    for text in ["", ":1", "=write", "write:@", "write:99999999999999999999", "write:1,"] {
        let error = read(text).expect_err(text).to_string();
        assert!(error.contains("Wanted [RESOURCE=]TARGET"), "{error}");
    }
}

#[test]
fn arguments_that_are_said_to_be_one_object_are() {
    use crate::{Audit, Known, Module};
    let mut main = Computation::new("main", 1);
    for number in 0..4 {
        let parameter = main.parameter(number, handle());
        main.write(&format!("w{number}"), &[parameter]);
    }
    let bytes = super::build::bytes(vec![main]);
    let with = |same: Vec<Vec<usize>>| {
        let module = Module::parse(&bytes).expect("well formed");
        races(&Audit::new(module, &Known { same, ..super::known() }).expect("followed"))
    };
    assert_eq!(with(vec![]), no_races());
    assert_eq!(with(vec![vec![0, 2]]), ["w0 w2"]);
    assert_eq!(with(vec![vec![3, 2], vec![1, 2]]), ["w1 w2", "w1 w3", "w2 w3"]);
    assert_eq!(with(vec![vec![0, 99]]), no_races());
}

#[test]
fn a_handle_is_recognised_behind_what_says_where_it_lies() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    let g = main.parameter(1, handles(4));
    let there = main.call("there", "Sharding", handle(), &[h]);
    main.write("a", &[h]);
    main.read("b", &[there]);
    let parts = main.call("parts", "xla.sdy.GlobalToLocalShape", tuple(&[handle(), handles(2)]), &[h, g]);
    let (h, g) = (main.element(parts, 0), main.element(parts, 1));
    main.read("c", &[h]);
    let first = main.slice(g, 0, 1);
    main.write("d", &[first]);
    assert_eq!(races(&audit(vec![main])), ["a b", "a c"]);
}

#[test]
fn an_operand_other_than_the_first_can_be_the_handle() {
    use crate::{Access, Audit, Error, Known, Module, Object};
    let build = |operand: usize| {
        let mut main = Computation::new("main", 1);
        let x = main.parameter(0, handle());
        let h = main.parameter(1, handle());
        main.write("a", &[x, h]);
        main.write("b", &[h, h]);
        let module = Module::parse(&super::build::bytes(vec![main])).expect("well formed");
        Audit::new(module, &Known::accesses(vec![Access::write("write").on(Object::Operands(vec![operand]))]))
    };
    assert_eq!(races(&build(0).expect("both have operand 0")), no_races());
    assert_eq!(races(&build(1).expect("both have operand 1")), ["a b"]);
    let error = build(2).expect_err("no call has operand 2");
    assert!(matches!(error, Error::NoSuchOperand { operand: 2, operands: 2, .. }));
    assert!(error.to_string().contains("Name the operand that holds the handle, or name the resource"), "{error}");
}
