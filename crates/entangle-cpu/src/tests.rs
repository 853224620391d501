use core::ffi::c_void;

use entangle_slots::{Access, Op};
use xla_ffi::mock::Frame;

use crate::TARGETS;

const F32: i32 = 11;
const S32: i32 = 4;

#[test]
fn values_stay_where_they_are() {
    let mut value = [1.0_f32, f32::from_bits(0x7fa0_0001), -0.0];
    let before = value.map(f32::to_bits);
    let memory = value.as_mut_ptr().cast();
    let mut frame = Frame::new().arg(F32, &[3], memory).ret(F32, &[3], memory);
    // SAFETY: the memory is three numbers, and lives.
    assert_eq!(unsafe { frame.call(TARGETS[0].handler) }, Ok(()));
    assert_eq!(value.map(f32::to_bits), before);
}

#[test]
fn the_host_has_no_graphs() {
    assert!(TARGETS.iter().all(|target| target.in_graph.is_none()));
}

#[test]
fn a_read_sees_the_last_write_and_both_are_logged() {
    let [_, read, write] = TARGETS.map(|target| target.handler);
    let (mut slot, mut value) = (2_i32, 0.0_f32);
    let (slot, value): (*mut c_void, *mut f32) = ((&raw mut slot).cast(), &raw mut value);
    let call = |handler, frame: Frame| {
        // SAFETY: all buffers are numbers of four bytes, and live.
        assert_eq!(unsafe { { frame }.call(handler) }, Ok(()));
        // SAFETY: as above.
        unsafe { value.read() }
    };
    let reads = || Frame::new().arg(S32, &[], slot).ret(F32, &[], value.cast());
    let writes = || Frame::new().arg(S32, &[], slot).arg(F32, &[], value.cast()).ret(S32, &[], slot);

    entangle_slots::reset(1.5);
    assert_eq!(call(read, reads()).to_bits(), 1.5_f32.to_bits());
    // SAFETY: nothing else uses the number.
    unsafe { value.write(2.5) };
    call(write, writes().attr("label", "change"));
    // SAFETY: as above.
    unsafe { value.write(0.0) };
    assert_eq!(call(read, reads().attr("label", "")).to_bits(), 2.5_f32.to_bits());

    let entry = |op, value, label: Option<&str>| Access { op, slot: 2, value, label: label.map(ToOwned::to_owned) };
    assert_eq!(
        entangle_slots::log(),
        [entry(Op::Read, 1.5, None), entry(Op::Write, 2.5, Some("change")), entry(Op::Read, 2.5, Some(""))]
    );
}
