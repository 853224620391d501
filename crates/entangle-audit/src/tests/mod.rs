//! Each test is named after the wrong answer that it would take for right.

#![allow(
    clippy::many_single_char_names,
    reason = "h, r, w: a handle, its read, its write; anything longer hides the program"
)]

mod bad_input;
mod build;
mod cost;
mod horizon;
mod lost;
mod order;
mod roots;
mod size;
mod waits;

use crate::{Access, Audit, Known, Module, Order};

fn known() -> Known {
    Known::accesses(vec![Access::read("read"), Access::write("write")])
}

fn audit(computations: Vec<build::Computation>) -> Audit {
    audit_bytes(&build::bytes(computations))
}

fn audit_bytes(bytes: &[u8]) -> Audit {
    let module = Module::parse(bytes).expect("the module is well formed");
    Audit::new(module, &known()).expect("the module can be followed")
}

/// Each race as `first second`, with `@loop` if it is with a later iteration.
fn races(audit: &Audit) -> Vec<String> {
    let mut races: Vec<String> = audit
        .races()
        .list
        .into_iter()
        .map(|race| {
            let at = race.later_iteration_of.map(|name| format!("@{name}")).unwrap_or_default();
            let (first, second) = (&audit.calls()[race.first].name, &audit.calls()[race.second].name);
            format!("{first} {second}{at}")
        })
        .collect();
    races.sort();
    races
}

fn position(audit: &Audit, name: &str) -> usize {
    audit.calls().iter().position(|call| call.name == name).expect("the call is in the module")
}

fn order(audit: &Audit, first: &str, second: &str) -> Order {
    audit.order(position(audit, first), position(audit, second))
}
