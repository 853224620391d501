use core::ffi::c_void;

use entangle_core::mock::{Frame, metadata};
use entangle_core::{Call, Traits, ffi, handle};

use crate::slots::{read, read_in_graph, write, write_in_graph};
use crate::{driver, entangle, entangle_in_graph, stream};

const F32: i32 = 11;
const S32: i32 = 4;
const RECORD: i32 = 4;

/// An address that the handlers pass on and must not follow.
fn at(address: usize) -> *mut c_void {
    core::ptr::without_provenance_mut(address)
}

/// One payload leaf and one witness.
fn good() -> Frame {
    Frame::new().arg(F32, &[2, 3], at(64)).arg(F32, &[], at(128)).ret(F32, &[2, 3], at(64)).stream(at(4096))
}

fn fails(mut frame: Frame, handler: ffi::Handler, code: i32, wanted: &str) -> Frame {
    let (found, text) = frame.call(handler).unwrap_err();
    assert!(text.contains(wanted), "{text}\ndoes not contain\n{wanted}");
    assert_eq!(found, code, "{text}");
    frame
}

#[test]
fn a_handler_says_whether_it_may_be_recorded_into_a_graph() {
    for (plain, recorded) in
        [(entangle as ffi::Handler, entangle_in_graph as ffi::Handler), (read, read_in_graph), (write, write_in_graph)]
    {
        assert_eq!(metadata(plain), ((0, 1), Traits::NONE));
        assert_eq!(metadata(recorded), ((0, 1), Traits::COMMAND_BUFFER_COMPATIBLE));
    }
}

#[test]
fn entangle_takes_the_stream_once_and_touches_nothing() {
    for handler in [entangle as ffi::Handler, entangle_in_graph] {
        let mut frame = good();
        assert_eq!(frame.call(handler), Ok(()));
        assert_eq!(frame.stream_asked(), 1);
    }
}

#[test]
fn a_runtime_without_a_stream_is_the_wrong_platform() {
    let wrong_platform = "there is none (the runtime gave a null stream): it was registered for the wrong platform";
    for handler in [entangle as ffi::Handler, entangle_in_graph] {
        fails(good().stream(at(0)), handler, 9, wrong_platform);
    }
}

#[test]
fn what_the_runtime_says_about_the_stream_is_in_the_error() {
    for handler in [entangle as ffi::Handler, entangle_in_graph] {
        let frame = fails(good().stream_fails("no stream on the host"), handler, 9, "(no stream on the host)");
        assert_eq!(frame.stream_asked(), 1);
    }
}

#[test]
fn a_result_that_is_not_aliased_is_an_error_that_names_the_leaf() {
    let frame = Frame::new()
        .arg(F32, &[2], at(64))
        .arg(F32, &[3, 4], at(128))
        .ret(F32, &[2], at(64))
        .ret(F32, &[3, 4], at(192))
        .stream(at(4096));
    fails(frame, entangle_in_graph, 13, "payload leaf 1 of 2 (type 11 of xla::PrimitiveType, dimensions [3, 4])");
}

#[test]
fn other_stages_are_errors_recording_included() {
    for handler in [entangle as ffi::Handler, entangle_in_graph, read, read_in_graph, write, write_in_graph] {
        for stage in [0, 1, 2, RECORD] {
            let frame = good().tweak(move |frame| frame.stage = stage);
            let frame = fails(frame, handler, 12, &format!("called in stage {stage} of the XLA FFI"));
            assert_eq!(frame.stream_asked(), 0);
        }
    }
}

#[test]
fn a_panic_after_the_stream_was_taken_becomes_an_error() {
    unsafe extern "C" fn panics(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
        let body = |call: &Call<'_>| {
            stream(call)?;
            panic!("stream overboard")
        };
        // SAFETY: a frame of the mock.
        unsafe { handle(frame, Traits::COMMAND_BUFFER_COMPATIBLE, body) }
    }
    let frame = fails(good(), panics, 13, "the handler panicked: stream overboard");
    assert_eq!(frame.stream_asked(), 1);
}

/// A read and a write of a slot.
fn slots() -> [(ffi::Handler, Frame); 2] {
    let token = || Frame::new().arg(S32, &[], at(64)).stream(at(4096));
    [(read, token().ret(F32, &[], at(128))), (write, token().arg(F32, &[], at(192)).ret(S32, &[], at(128)))]
}

#[test]
fn slots_take_scalars_of_their_types_alone() {
    let stream = || Frame::new().stream(at(4096));
    let vector = stream().arg(S32, &[2], at(64)).ret(F32, &[], at(128));
    fails(
        vector,
        read,
        3,
        "operand 0 is type 4 of xla::PrimitiveType, dimensions [2] at 0x40, wanted a scalar of type 4 (i32)",
    );
    let float = stream().arg(F32, &[], at(64)).ret(F32, &[], at(128));
    fails(float, read, 3, "operand 0 is type 11");
    let result = stream().arg(S32, &[], at(64)).ret(S32, &[], at(128));
    fails(result, read, 3, "the result is type 4");
    let value = stream().arg(S32, &[], at(64)).arg(S32, &[], at(64)).ret(S32, &[], at(128));
    fails(value, write, 3, "operand 1 is type 4");
    let null = stream().arg(S32, &[], at(0)).ret(F32, &[], at(128));
    fails(null, read, 3, "at 0x0");
}

#[test]
fn slots_need_a_stream_too() {
    for (handler, frame) in slots() {
        fails(frame.stream(at(0)), handler, 9, "it was registered for the wrong platform");
    }
}

#[test]
fn without_a_driver_slots_say_what_is_missing() {
    // Where there is a driver, this stream is none of its own, so there is nothing to call it with.
    let Err(missing) = driver::open() else { return };
    assert!(missing.contains("could not be opened (tried lib") || missing.contains(" it is older than "), "{missing}");
    for (handler, frame) in slots() {
        fails(frame, handler, 14, &missing);
    }
}
