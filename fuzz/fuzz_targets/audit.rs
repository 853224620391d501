//! Whatever the bytes are: an answer or an error, never a panic, never a hang.
#![no_main]

use entangle_audit::{Audit, Module, Target, Targets, lost};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(module) = Module::parse(bytes) else { return };
    let targets = Targets { reads: vec![Target::new("rd")], writes: vec![Target::new("wr")], ..Targets::default() };
    let Ok(audit) = Audit::new(module, &targets) else { return };
    let calls = audit.calls().len();
    let _ = (audit.races(), audit.costs(), audit.graph(), lost(&audit, &audit));
    for call in 0..calls.min(4) {
        let _ = (audit.order(call, calls - 1), audit.order_in_later_iterations(calls - 1, call));
    }
});
