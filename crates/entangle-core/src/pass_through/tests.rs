use core::ffi::c_void;
use core::ptr::{null, null_mut};

use xla_ffi::mock::Frame;
use xla_ffi::{Traits, ffi, handle};

use crate::pass_through;

const F32: i32 = 11;

unsafe extern "C" fn handler(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    // SAFETY: a frame of the mock.
    unsafe { handle(frame, Traits::NONE, pass_through) }
}

/// An address that the handler compares and must not follow.
fn at(address: usize) -> *mut c_void {
    core::ptr::without_provenance_mut(address)
}

fn call(mut frame: Frame) -> Result<(), (i32, String)> {
    // SAFETY: the handler follows no address of a buffer, and what the tests damage is what it checks.
    unsafe { frame.call(handler) }
}

fn error(frame: Frame, wanted: &str) {
    let (_, text) = call(frame).unwrap_err();
    assert!(text.contains(wanted), "{text}\ndoes not contain\n{wanted}");
}

/// One payload leaf and one witness.
fn good() -> Frame {
    Frame::new().arg(F32, &[2, 3], at(64)).arg(F32, &[], at(128)).ret(F32, &[2, 3], at(64))
}

#[test]
fn aliased_leaves_pass_without_being_touched() {
    assert_eq!(call(good()), Ok(()));
}

#[test]
fn a_result_that_is_not_aliased_is_an_error_that_names_the_leaf() {
    let frame = Frame::new().arg(F32, &[2], at(64)).arg(F32, &[3, 4], at(128)).ret(F32, &[2], at(64)).ret(
        F32,
        &[3, 4],
        at(192),
    );
    error(frame, "payload leaf 1 of 2 (f32[3,4]) was given memory at 0xc0 for its result and 0x80");
}

#[test]
fn leaves_without_elements_need_no_alias() {
    let frame = Frame::new().arg(F32, &[3, 0], at(64)).ret(F32, &[3, 0], null_mut());
    assert_eq!(call(frame), Ok(()));
}

#[test]
fn xla_tokens_need_no_alias() {
    let frame = Frame::new().arg(17, &[], at(64)).arg(F32, &[], at(128)).ret(17, &[], at(192)).ret(F32, &[], at(128));
    assert_eq!(call(frame), Ok(()));
}

#[test]
fn a_scalar_is_one_element() {
    error(Frame::new().arg(F32, &[], at(64)).ret(F32, &[], at(128)), "payload leaf 0 of 1");
}

#[test]
fn counts_that_do_not_fit_are_errors() {
    error(Frame::new().arg(F32, &[], at(64)), "1 operands and 0 results");
    error(Frame::new().arg(F32, &[], at(64)).ret(F32, &[], at(64)).ret(F32, &[], at(64)), "1 operands and 2 results");
    error(good().tweak(|frame| frame.args.size = -1), "XLA_FFI_Args says it holds -1 buffers");
    error(good().tweak(|frame| frame.rets.size = -7), "XLA_FFI_Rets says it holds -7 buffers");
}

#[test]
fn short_structs_are_errors() {
    error(good().tweak(|frame| frame.args.struct_size = 32), "XLA_FFI_Args has 32 bytes, wanted 40 or more");
    error(good().tweak(|frame| frame.rets.struct_size = 0), "XLA_FFI_Rets has 0 bytes, wanted 40 or more");
    error(good().buffer_size(40), "XLA_FFI_Buffer has 40 bytes, wanted 48 or more");
}

#[test]
fn null_pointers_are_errors() {
    error(good().tweak(|frame| frame.args.items = null()), "XLA_FFI_Args holds 2 buffers, of types at 0x");
    error(good().tweak(|frame| frame.rets.types = null()), "XLA_FFI_Rets holds 1 buffers, of types at 0x0, at 0x");
    let items = [null_mut(); 2];
    let items = items.as_ptr();
    error(good().tweak(move |frame| frame.args.items = items), "the pointer to XLA_FFI_Buffer is 0x0");
}

/// Found by fuzzing.
#[test]
fn misaligned_pointers_are_errors() {
    fn off<T>(pointer: *const T) -> *const T {
        pointer.cast::<u8>().wrapping_add(1).cast()
    }
    error(good().tweak(|frame| frame.args.types = off(frame.args.types)), "XLA_FFI_Args holds 2 buffers, of types at");
    error(good().tweak(|frame| frame.rets.items = off(frame.rets.items)), "XLA_FFI_Rets holds 1 buffers, of types at");
    // The dimensions are read when a message names them.
    let not_aliased = Frame::new().arg(F32, &[2], at(64)).ret(F32, &[2], at(128)).tweak(|frame| {
        // SAFETY: the frame has one result, a buffer.
        let buffer = unsafe { &mut *(*frame.rets.items).cast::<ffi::Buffer>() };
        buffer.dims = off(buffer.dims);
    });
    error(not_aliased, "result 0 has rank 1 and dimensions at 0x");
}

#[test]
fn an_operand_that_is_no_buffer_is_an_error() {
    error(good().tweak(|frame| frame.args.types = [9].as_ptr()), "operand 0 has type 9, wanted 1 (a buffer)");
}

#[test]
fn ranks_and_sizes_that_cannot_be_are_errors() {
    let tweak_result = |change: fn(&mut ffi::Buffer)| {
        Frame::new().arg(F32, &[2], at(64)).ret(F32, &[2], at(128)).tweak(move |frame| {
            // SAFETY: the frame has one result, a buffer.
            change(unsafe { &mut *(*frame.rets.items).cast::<ffi::Buffer>() });
        })
    };
    error(tweak_result(|buffer| buffer.rank = -1), "result 0 has rank -1");
    error(tweak_result(|buffer| buffer.dims = null()), "result 0 has rank 1 and dimensions at 0x0");
    for (dims, text) in [(&HUGE, "[9223372036854775807, 9223372036854775807]"), (&NEGATIVE, "[3, -2]")] {
        let set_dims = move |frame: &mut ffi::CallFrame| {
            // SAFETY: the frame has one result, a buffer.
            let buffer = unsafe { &mut *(*frame.rets.items).cast::<ffi::Buffer>() };
            (buffer.rank, buffer.dims) = (2, dims.as_ptr());
        };
        error(
            Frame::new().arg(F32, &[2], at(64)).ret(F32, &[2], at(128)).tweak(set_dims),
            &format!("a buffer has dimensions {text}"),
        );
    }
}

static HUGE: [i64; 2] = [i64::MAX; 2];
static NEGATIVE: [i64; 2] = [3, -2];

#[test]
fn other_stages_are_errors() {
    for stage in [0, 1, 2, 4, 99, -1] {
        error(good().tweak(move |frame| frame.stage = stage), &format!("called in stage {stage} of the XLA FFI"));
    }
}
