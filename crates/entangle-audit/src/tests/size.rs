//! Large modules. Their time and its growth are measured in `ci/bench`; work that grows faster than the module would not end here.

use super::build::{Computation, bytes, floats, handle, tuple, unknown_condition};
use super::{audit_bytes, races};

/// A chain of this many instructions with this many writes on one handle along it, each tied to the next.
fn chain(instructions: usize, writes: usize) -> Vec<u8> {
    let mut main = Computation::new("main", 1);
    let mut h = main.parameter(0, handle());
    let mut x = main.parameter(1, floats(&[8]));
    for number in 0..instructions {
        x = main.op("sine", "sine", floats(&[8]), &[x]);
        if number % (instructions / writes) == 0 {
            let w = main.write("w", &[h, x]);
            h = main.entangle("e", &[h, w]);
        }
    }
    bytes(vec![main])
}

#[test]
fn a_large_module_is_no_different() {
    let audit = audit_bytes(&chain(20_000, 1_000));
    assert_eq!(audit.races().list, []);
    assert_eq!(audit.costs().len(), 1_000);
}

#[test]
fn a_loop_that_shifts_many_carried_values_ends_soon() {
    // Value i becomes value i + 1: what enters needs as many iterations as there are values to get through.
    const WIDTH: usize = 300;
    let carried = tuple(&vec![handle(); WIDTH]);
    let mut body = Computation::new("body", 1);
    let state = body.parameter(0, carried.clone());
    let elements: Vec<i64> = (0..).take(WIDTH).map(|i| body.element(state, i)).collect();
    let first = body.entangle("e", &[elements[WIDTH - 1], elements[0]]);
    let mut shifted = vec![first];
    shifted.extend(&elements[..WIDTH - 1]);
    body.tuple(&shifted);
    let condition = unknown_condition(2, &carried);
    let mut main = Computation::new("main", 3);
    let h = main.parameter(0, handle());
    let w = main.write("w", &[h]);
    let tied = main.entangle("e", &[h, w]);
    let mut init = vec![tied];
    init.resize(WIDTH, h);
    let init = main.tuple(&init);
    let end = main.while_loop("loop", init, &body, &condition);
    let last = main.element(end, i64::try_from(WIDTH - 1).expect("small"));
    main.read("r", &[last]);
    assert_eq!(races(&audit_bytes(&bytes(vec![body, condition, main]))), ["w r"]);
}

#[test]
fn thousands_of_handles_in_one_array_are_told_apart_soon() {
    const HANDLES: i64 = 2_000;
    let mut main = Computation::new("main", 1);
    let all = main.parameter(0, super::build::handles(HANDLES));
    for at in 0..HANDLES {
        let h = main.slice(all, at, at + 1);
        main.write("w", &[h]);
    }
    assert_eq!(audit_bytes(&bytes(vec![main])).races().list, []);
}
