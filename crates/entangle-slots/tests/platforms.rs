//! What is true of the handlers on every platform, or on every GPU, run for each of what a platform registers. What is true
//! of one platform alone is tested in its crate.

use core::ffi::c_void;

use entangle_core::Target;
use xla_ffi::mock::{Frame, metadata};
use xla_ffi::{Traits, ffi};

/// A platform under test.
struct Platform {
    targets: [Target; 3],
    /// Opens the driver.
    open: fn() -> Result<(), String>,
}

const CPU: Platform = Platform { targets: entangle_cpu::TARGETS, open: || Ok(()) };
const CUDA: Platform = Platform { targets: entangle_cuda::TARGETS, open: entangle_cuda::open };
const ROCM: Platform = Platform { targets: entangle_rocm::TARGETS, open: entangle_rocm::open };

/// Makes each of these functions a test of each of these platforms.
macro_rules! run {
    ($on:ident: $($platform:ident = $is:ident),*; $tests:tt) => {
        mod $on {
            $(run!(@ $platform = $is; $tests);)*
        }
    };
    (@ $platform:ident = $is:ident; { $($test:ident)* }) => {
        mod $platform {
            $(#[test]
            fn $test() {
                crate::$test(&crate::$is);
            })*
        }
    };
}

run! { on_each_platform: cpu = CPU, cuda = CUDA, rocm = ROCM; {
    all_is_registered_for_one_platform_under_the_names_that_programs_call
    a_handler_says_whether_it_may_be_recorded_into_a_graph
    a_result_that_is_not_aliased_is_an_error_that_names_the_leaf
    other_stages_are_errors_recording_included
    slots_take_scalars_of_their_types_alone
} }

run! { on_each_gpu: cuda = CUDA, rocm = ROCM; {
    entangle_takes_the_stream_once_and_touches_nothing
    a_runtime_without_a_stream_is_the_wrong_platform
    what_the_runtime_says_about_the_stream_is_in_the_error
    slots_need_a_stream_too
    without_a_driver_slots_say_what_is_missing
} }

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

fn call(frame: &mut Frame, handler: ffi::Handler) -> Result<(), (i32, String)> {
    // SAFETY: the tests give no handler that follows addresses a frame without an error in it.
    unsafe { frame.call(handler) }
}

fn fails(mut frame: Frame, handler: ffi::Handler, code: i32, wanted: &str) -> Frame {
    let (found, text) = call(&mut frame, handler).unwrap_err();
    assert!(text.contains(wanted), "{text}\ndoes not contain\n{wanted}");
    assert_eq!(found, code, "{text}");
    frame
}

impl Platform {
    /// `entangle`, in both forms where there are two; likewise `read` and `write`.
    fn entangle(&self) -> impl Iterator<Item = ffi::Handler> {
        forms(self.targets[0])
    }

    fn read(&self) -> impl Iterator<Item = ffi::Handler> {
        forms(self.targets[1])
    }

    fn write(&self) -> impl Iterator<Item = ffi::Handler> {
        forms(self.targets[2])
    }

    /// Calls of the slots that are in order.
    fn slots(&self) -> impl Iterator<Item = (ffi::Handler, Frame)> {
        let token = || Frame::new().arg(S32, &[], at(64)).stream(at(4096));
        let reads = self.read().map(move |read| (read, token().ret(F32, &[], at(128))));
        reads.chain(self.write().map(move |write| (write, token().arg(F32, &[], at(192)).ret(S32, &[], at(128)))))
    }
}

fn forms(target: Target) -> impl Iterator<Item = ffi::Handler> {
    core::iter::once(target.handler).chain(target.in_graph)
}

fn all_is_registered_for_one_platform_under_the_names_that_programs_call(platform: &Platform) {
    let names = platform.targets.map(|target| target.name);
    assert_eq!(names, ["entangle", "entangle_testing_read", "entangle_testing_write"]);
    assert!(platform.targets.iter().all(|target| target.platform == platform.targets[0].platform));
}

fn a_handler_says_whether_it_may_be_recorded_into_a_graph(platform: &Platform) {
    for target in platform.targets {
        // SAFETY: the handlers take what a runtime gives.
        assert_eq!(unsafe { metadata(target.handler) }, ((0, 1), Traits::NONE));
        if let Some(in_graph) = target.in_graph {
            // SAFETY: as above.
            assert_eq!(unsafe { metadata(in_graph) }, ((0, 1), Traits::COMMAND_BUFFER_COMPATIBLE));
        }
    }
}

fn a_result_that_is_not_aliased_is_an_error_that_names_the_leaf(platform: &Platform) {
    for entangle in platform.entangle() {
        let frame = Frame::new()
            .arg(F32, &[2], at(64))
            .arg(F32, &[3, 4], at(128))
            .ret(F32, &[2], at(64))
            .ret(F32, &[3, 4], at(192))
            .stream(at(4096));
        fails(frame, entangle, 13, "payload leaf 1 of 2 (f32[3,4])");
    }
}

fn other_stages_are_errors_recording_included(platform: &Platform) {
    for handler in platform.targets.into_iter().flat_map(forms) {
        for stage in [0, 1, 2, RECORD] {
            let frame = good().tweak(move |frame| frame.stage = stage);
            let frame = fails(frame, handler, 12, &format!("called in stage {stage} of the XLA FFI"));
            assert_eq!(frame.stream_asked(), 0);
        }
    }
}

fn slots_take_scalars_of_their_types_alone(platform: &Platform) {
    let stream = || Frame::new().stream(at(4096));
    for read in platform.read() {
        let vector = stream().arg(S32, &[2], at(64)).ret(F32, &[], at(128));
        fails(vector, read, 3, "operand 0 is i32[2] at 0x40, wanted i32[]");
        let float = stream().arg(F32, &[], at(64)).ret(F32, &[], at(128));
        fails(float, read, 3, "operand 0 is f32[] at");
        let result = stream().arg(S32, &[], at(64)).ret(S32, &[], at(128));
        fails(result, read, 3, "the result is i32[] at");
        let null = stream().arg(S32, &[], at(0)).ret(F32, &[], at(128));
        fails(null, read, 3, "at 0x0");
        let misaligned = stream().arg(S32, &[], at(66)).ret(F32, &[], at(128));
        fails(misaligned, read, 3, "at 0x42");
    }
    for write in platform.write() {
        let value = stream().arg(S32, &[], at(64)).arg(S32, &[], at(64)).ret(S32, &[], at(128));
        fails(value, write, 3, "operand 1 is i32[] at");
    }
}

fn entangle_takes_the_stream_once_and_touches_nothing(platform: &Platform) {
    for entangle in platform.entangle() {
        let mut frame = good();
        assert_eq!(call(&mut frame, entangle), Ok(()));
        assert_eq!(frame.stream_asked(), 1);
    }
}

fn a_runtime_without_a_stream_is_the_wrong_platform(platform: &Platform) {
    let wrong_platform = "there is none (the runtime gave a null stream): it was registered for the wrong platform";
    for entangle in platform.entangle() {
        fails(good().stream(at(0)), entangle, 9, wrong_platform);
    }
}

fn what_the_runtime_says_about_the_stream_is_in_the_error(platform: &Platform) {
    for entangle in platform.entangle() {
        let frame = fails(good().stream_fails("no stream on the host"), entangle, 9, "(no stream on the host)");
        assert_eq!(frame.stream_asked(), 1);
    }
}

fn slots_need_a_stream_too(platform: &Platform) {
    for (handler, frame) in platform.slots() {
        fails(frame.stream(at(0)), handler, 9, "it was registered for the wrong platform");
    }
}

fn without_a_driver_slots_say_what_is_missing(platform: &Platform) {
    // Where there is a driver, this stream is none of its own, so there is nothing to call it with.
    let Err(missing) = (platform.open)() else { return };
    for (handler, frame) in platform.slots() {
        fails(frame, handler, 14, &missing);
    }
}
