//! Whatever the bytes are: an answer or an error, never a panic, never a hang.
#![no_main]

use entangle_audit::{Access, Audit, Known, Module, Object, lost};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let accesses = vec![
        Access::read("rd"),
        Access::write("wr"),
        Access::write("ps").in_resource("r").on(Object::Whole),
        Access::read("ps").in_resource("r").on(Object::Attribute("a".into())),
    ];
    let known = Known { accesses, same: vec![vec![0, 2]], ..Known::default() };
    let Ok(module) = Module::parse(bytes) else { return };
    let _ = (module.arguments(), module.targets());
    let Ok(audit) = Audit::new(module, &known) else { return };
    let calls = audit.calls().len();
    let _ = (audit.races(), audit.costs(), audit.graph(), audit.objects(), lost(&audit, &audit));
    for call in 0..calls.min(4) {
        let _ = (audit.order(call, calls - 1), audit.order_in_later_iterations(calls - 1, call));
        let _ = (audit.all_ordered(&[call], &[calls - 1], false), audit.all_ordered(&[call], &[calls - 1], true));
    }
});
