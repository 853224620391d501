//! Streams of several devices on one thread, with a model of the driver in the place of CUDA's.
#![cfg(all(target_os = "linux", not(miri)))]

use core::ffi::c_void;
use core::ptr::null_mut;
use std::path::Path;
use std::process::Command;

use cudarc::driver::{result::ctx, sys};
use entangle_cuda::TARGETS;
use xla_ffi::mock::Frame;

const F32: i32 = 11;
const S32: i32 = 4;

fn at(address: usize) -> *mut c_void {
    core::ptr::without_provenance_mut(address)
}

/// Builds the model where it is found before CUDA's own driver, in a process that has it from the start.
#[test]
fn a_call_is_made_in_the_context_of_its_stream_and_leaves_the_threads_own_current() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contexts/libcuda.rs");
    let built = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
        .args(["--edition=2024", "--crate-type=cdylib", "-o"])
        .args([&folder.join("libcuda.so"), &source])
        .status();
    assert!(built.unwrap().success());
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "with_the_model", "--ignored", "--nocapture"])
        .env("LD_LIBRARY_PATH", folder)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&child.stderr));
}

/// The child process of the test above.
#[test]
#[ignore = "needs the model of the driver"]
fn with_the_model() {
    let [_, read, write] = TARGETS.map(|target| target.handler);
    let (mut token, mut value, mut result) = (7_i32, 2.5_f32, 0.0_f32);
    for own in [null_mut(), at(0x3000)] {
        // SAFETY: the model takes any context.
        unsafe { ctx::set_current(own.cast()) }.unwrap();
        for stream in [at(0x1000), at(0x2000)] {
            value += 1.0;
            let token = (&raw mut token).cast();
            let frame = || Frame::new().stream(stream).arg(S32, &[], token);
            let mut writes = frame().arg(F32, &[], (&raw mut value).cast()).ret(S32, &[], token);
            // SAFETY: all buffers are numbers of four bytes, and live; the model takes any stream.
            assert_eq!(unsafe { writes.call(write) }, Ok(()));
            // SAFETY: as above.
            assert_eq!(unsafe { frame().ret(F32, &[], (&raw mut result).cast()).call(read) }, Ok(()));
            assert_eq!(result.to_bits(), value.to_bits());
            let mut current: sys::CUcontext = null_mut();
            // SAFETY: the pointer is to a context.
            unsafe { sys::cuCtxGetCurrent(&raw mut current) }.result().unwrap();
            assert_eq!(current.cast(), own);
        }
    }
}
