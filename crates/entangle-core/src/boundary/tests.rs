use core::ptr::{null, null_mut};

use super::{Traits, Unreportable, answer, handle};
use crate::mock::{Frame, metadata};
use crate::{Call, Code, Error, ffi};

unsafe extern "C" fn succeeds(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    // SAFETY: a frame of the mock.
    unsafe { handle(frame, Traits::NONE, |_| Ok(())) }
}

unsafe extern "C" fn fails(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    // SAFETY: a frame of the mock.
    unsafe {
        handle(frame, Traits::COMMAND_BUFFER_COMPATIBLE, |_| Err(Error::new(Code::Unavailable, "gone\0 fishing")))
    }
}

unsafe extern "C" fn panics(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    // SAFETY: a frame of the mock.
    unsafe { handle(frame, Traits::NONE, |_| panic!("stepped on {}", "a rake")) }
}

unsafe extern "C" fn panics_with_a_bomb(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("thrown while being dropped");
        }
    }
    // SAFETY: a frame of the mock.
    unsafe { handle(frame, Traits::NONE, |_| std::panic::panic_any(Bomb)) }
}

#[test]
fn metadata_reports_the_oldest_version_and_the_traits() {
    assert_eq!(metadata(succeeds), ((0, 1), Traits::NONE));
    assert_eq!(metadata(fails), ((0, 1), Traits::COMMAND_BUFFER_COMPATIBLE));
}

#[test]
fn a_metadata_query_never_runs_the_body() {
    assert_eq!(metadata(panics), ((0, 1), Traits::NONE));
}

#[test]
fn an_unknown_extension_is_no_metadata_query() {
    let mut extension = ffi::Extension { struct_size: ffi::Extension::END, kind: 77, next: null_mut() };
    let start = &raw mut extension;
    let call = Frame::new().tweak(move |frame| frame.extension_start = start).call(fails);
    assert_eq!(call.unwrap_err().0, 14);
}

#[test]
fn an_error_keeps_its_code_and_text_and_survives_a_null_byte() {
    assert_eq!(Frame::new().call(fails), Err((14, "gone\u{fffd} fishing".into())));
}

#[test]
fn a_panic_becomes_an_error() {
    assert_eq!(Frame::new().call(panics), Err((13, "the handler panicked: stepped on a rake".into())));
    assert_eq!(Frame::new().call(panics_with_a_bomb), Err((13, "the handler panicked: no message".into())));
}

#[test]
fn a_short_frame_that_has_an_api_table_is_an_error() {
    let (code, text) = Frame::new().tweak(|frame| frame.struct_size = 48).call(succeeds).unwrap_err();
    assert_eq!(code, 13);
    assert!(text.contains("XLA_FFI_CallFrame has 48 bytes, wanted 168 or more"), "{text}");
}

/// What cannot be reported must not be taken for success.
#[test]
fn a_frame_that_cannot_carry_an_error_is_not_a_success() {
    let outcome = |frame: *mut ffi::CallFrame| {
        // SAFETY: null, or a frame of the mock.
        unsafe { answer(frame, Traits::NONE, |_: &Call<'_>| Err(Error::new(Code::Internal, "lost"))) }
    };
    let unreportable = |frame: Frame| matches!({ frame }.with_frame(outcome), Err(Unreportable(_)));
    assert!(matches!(outcome(null_mut()), Err(Unreportable(_))));
    assert!(unreportable(Frame::new().tweak(|frame| frame.struct_size = 8)));
    assert!(unreportable(Frame::new().tweak(|frame| frame.api = null())));
    let mut api = crate::mock::api();
    api.struct_size = 48;
    assert!(unreportable(Frame::new().tweak(move |frame| frame.api = &raw const api)));
    let mut api = crate::mock::api();
    api.error_create = None;
    assert!(unreportable(Frame::new().tweak(move |frame| frame.api = &raw const api)));
}

/// The child process of `an_unreportable_error_ends_the_process`.
#[test]
fn ends_the_process_when_asked_to() {
    if std::env::var_os("ENTANGLE_TEST_ABORT").is_some() {
        // SAFETY: null is allowed.
        unsafe { succeeds(null_mut()) };
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn an_unreportable_error_ends_the_process() {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "boundary::tests::ends_the_process_when_asked_to", "--nocapture"])
        .env("ENTANGLE_TEST_ABORT", "1")
        .output()
        .unwrap();
    assert!(!child.status.success());
    let text = String::from_utf8_lossy(&child.stderr);
    assert!(text.contains("the pointer to XLA_FFI_CallFrame is 0x0"), "{text}");
    assert!(text.contains("the call frame has no way to report it"), "{text}");
}
