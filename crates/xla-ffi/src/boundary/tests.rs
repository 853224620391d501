use core::mem::MaybeUninit;
use core::ptr::{null, null_mut};

use super::{Traits, Unreportable, answer, handle, handle_stages};
use crate::mock::{Frame, metadata};
use crate::{Call, Code, Error, Stage, ffi};

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

fn call(mut frame: Frame, handler: ffi::Handler) -> Result<(), (i32, String)> {
    // SAFETY: the handlers of these tests look at no buffer, and what the tests damage is what is checked.
    unsafe { frame.call(handler) }
}

fn metadata_of(handler: ffi::Handler) -> ((i32, i32), Traits) {
    // SAFETY: as above.
    unsafe { metadata(handler) }
}

#[test]
fn metadata_reports_the_oldest_version_and_the_traits() {
    assert_eq!(metadata_of(succeeds), ((0, 1), Traits::NONE));
    assert_eq!(metadata_of(fails), ((0, 1), Traits::COMMAND_BUFFER_COMPATIBLE));
}

#[test]
fn a_metadata_query_never_runs_the_body() {
    assert_eq!(metadata_of(panics), ((0, 1), Traits::NONE));
}

/// A runtime may leave unset what the handler is to write: no reference may be made to it, only raw pointers.
#[test]
fn fields_of_metadata_that_are_unset_are_written_through_a_raw_pointer() {
    let mut metadata = MaybeUninit::<ffi::Metadata>::uninit();
    let start = metadata.as_mut_ptr();
    // SAFETY: the memory of a `Metadata`; all but the sizes stays unset.
    unsafe { (&raw mut (*start).struct_size).write(ffi::Metadata::END) };
    let mut extension = ffi::MetadataExtension::new();
    extension.base.struct_size = ffi::MetadataExtension::END;
    extension.base.kind = ffi::EXTENSION_METADATA;
    extension.metadata = start;
    let extension = (&raw mut extension).cast();
    let frame = Frame::new().tweak(move |frame| frame.extension_start = extension);
    assert_eq!(call(frame, fails), Ok(()));
    // SAFETY: the handler has written it.
    let (version, traits) = unsafe { (&raw const (*start).api_version.minor_version, &raw const (*start).traits) };
    // SAFETY: as above.
    assert_eq!(unsafe { (version.read(), traits.read()) }, (1, 1));
}

/// The other half of the test above: what `open` makes references to. This does not compile if `open` takes `Metadata`, since
/// then there are two `ANSWER`s to choose from.
#[test]
fn no_reference_is_made_to_structs_that_the_other_side_fills_in() {
    trait Opened<Ambiguous> {
        const ANSWER: bool = false;
    }
    impl<T> Opened<()> for T {}
    struct ByReference;
    impl<T: crate::ffi::SetByRuntime> Opened<ByReference> for T {}

    const { assert!(!<ffi::Metadata as Opened<_>>::ANSWER) };
    const { assert!(!<ffi::ErrorGetDetailsArgs as Opened<_>>::ANSWER) };
    const { assert!(!<ffi::StreamGetArgs as Opened<_>>::ANSWER) };
}

#[test]
fn a_call_in_another_stage_is_refused_before_the_body_runs() {
    for stage in [0, 1, 2, 4, 99, -1] {
        let (code, text) = call(Frame::new().tweak(move |frame| frame.stage = stage), panics).unwrap_err();
        assert_eq!(code, 12);
        let wanted = format!(
            "called in stage {stage} of the XLA FFI, but this handler is for stage 3 (EXECUTE) alone; register it as the \"execute\" handler"
        );
        assert_eq!(text, wanted);
    }
}

#[test]
fn a_handler_for_other_stages_is_called_in_those_and_told_which() {
    unsafe extern "C" fn early(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
        let body = |call: &Call<'_>| Err(Error::new(Code::Unavailable, format!("{:?}", call.stage())));
        // SAFETY: a frame of the mock.
        unsafe { handle_stages(frame, Traits::NONE, &[Stage::Instantiate, Stage::Prepare], body) }
    }
    let outcome = |stage| call(Frame::new().tweak(move |frame| frame.stage = stage), early).unwrap_err();
    assert_eq!(outcome(0), (14, "Some(Instantiate)".into()));
    assert_eq!(outcome(1), (14, "Some(Prepare)".into()));
    let (code, text) = outcome(3);
    assert_eq!(code, 12);
    let wanted =
        "for stage 0 (INSTANTIATE) or 1 (PREPARE) alone; register it as the \"instantiate\" or \"prepare\" handler";
    assert!(text.ends_with(wanted), "{text}");
}

#[test]
fn a_panic_after_the_stream_was_taken_becomes_an_error() {
    unsafe extern "C" fn overboard(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
        let body = |call: &Call<'_>| {
            call.stream()?;
            panic!("stream overboard")
        };
        // SAFETY: a frame of the mock.
        unsafe { handle(frame, Traits::COMMAND_BUFFER_COMPATIBLE, body) }
    }
    let mut frame = Frame::new().stream(core::ptr::without_provenance_mut(4096));
    // SAFETY: the handler only passes the stream on.
    assert_eq!(unsafe { frame.call(overboard) }, Err((13, "the handler panicked: stream overboard".into())));
    assert_eq!(frame.stream_asked(), 1);
}

#[test]
fn an_unknown_extension_is_no_metadata_query() {
    let mut extension = ffi::Extension { struct_size: ffi::Extension::END, kind: 77, next: null_mut() };
    let start = &raw mut extension;
    let frame = Frame::new().tweak(move |frame| frame.extension_start = start);
    assert_eq!(call(frame, fails).unwrap_err().0, 14);
}

#[test]
fn an_error_keeps_its_code_and_text_and_survives_a_null_byte() {
    assert_eq!(call(Frame::new(), fails), Err((14, "gone\u{fffd} fishing".into())));
}

#[test]
fn a_panic_becomes_an_error() {
    assert_eq!(call(Frame::new(), panics), Err((13, "the handler panicked: stepped on a rake".into())));
    assert_eq!(call(Frame::new(), panics_with_a_bomb), Err((13, "the handler panicked: no message".into())));
}

#[test]
fn a_short_frame_that_has_an_api_table_is_an_error() {
    let frame = Frame::new().tweak(|frame| frame.struct_size = 48);
    let (code, text) = call(frame, succeeds).unwrap_err();
    assert_eq!(code, 13);
    assert!(text.contains("XLA_FFI_CallFrame has 48 bytes, wanted 168 or more"), "{text}");
}

/// What cannot be reported must not be taken for success.
#[test]
fn a_frame_that_cannot_carry_an_error_is_not_a_success() {
    let outcome = |frame: *mut ffi::CallFrame| {
        // SAFETY: null, or a frame of the mock.
        unsafe {
            answer(frame, Traits::NONE, &[Stage::Execute], |_: &Call<'_>| Err(Error::new(Code::Internal, "lost")))
        }
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
