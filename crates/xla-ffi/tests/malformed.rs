//! Frames that no runtime should make, given to handlers that are plain functions: what of them can be noticed is an error, and never undefined.

use core::ffi::{c_char, c_void};
use core::ptr::{null, null_mut, without_provenance_mut};

use xla_ffi::mock::{Attribute, Frame};
use xla_ffi::{Arg, Attributes, Buffer, Code, Element, Error, Handler, Operand, Output, ffi, handler};

fn call<H: Handler>(mut frame: Frame) -> Result<(), (i32, String)> {
    // SAFETY: what the tests damage is what the handlers check; all else is there, for the time of the call.
    unsafe { frame.call(H::FUNCTION) }
}

fn says<H: Handler>(frame: Frame, code: Code, wanted: &str) {
    let (found, text) = call::<H>(frame).unwrap_err();
    assert!(found == code as i32 && text.contains(wanted), "{text}\ndoes not contain\n{wanted}");
}

fn sum(x: Operand<'_, i64>, mut y: Output<'_, i64>) {
    let sum = x.iter().sum();
    y.fill_with(|_| sum);
}

handler!(Sum = sum(x, y));

const I64: i32 = i64::DTYPE.0;

fn damaged(buffer: Option<fn(&mut ffi::Buffer)>, x: *mut c_void, dims: &[i64], y: &mut i64) -> Frame {
    let frame = Frame::new().arg(I64, dims, x).ret(I64, &[], (&raw mut *y).cast());
    let Some(change) = buffer else { return frame };
    frame.tweak(move |frame| {
        // SAFETY: the frame has one operand, a buffer.
        change(unsafe { &mut *(*frame.args.items).cast::<ffi::Buffer>() });
    })
}

#[test]
fn elements_may_be_anywhere_if_there_are_none_and_dimensions_too() {
    for nowhere in [null_mut(), without_provenance_mut(1), without_provenance_mut(usize::MAX)] {
        let mut y = 7;
        assert_eq!(call::<Sum>(damaged(None, nowhere, &[3, 0], &mut y)), Ok(()));
        assert_eq!(y, 0);
        let mut x = 5_i64;
        let x: *mut c_void = (&raw mut x).cast();
        assert_eq!(call::<Sum>(damaged(Some(|x| x.dims = null()), x, &[], &mut y)), Ok(()));
        assert_eq!(call::<Sum>(damaged(Some(|x| x.dims = without_provenance_mut(3)), x, &[], &mut y)), Ok(()));
        assert_eq!(y, 5);
    }
}

#[test]
fn elements_that_cannot_be_there_are_errors() {
    let mut y = 0;
    for (at, shown) in [(0, "0x0"), (1, "0x1"), (4, "0x4")] {
        let text = format!("operand 0 (`x`), i64[2], has its elements at {shown}");
        says::<Sum>(damaged(None, without_provenance_mut(at), &[2], &mut y), Code::Internal, &text);
    }
    let all = "operand 0 (`x`) is i64[1152921504606846976], which no memory holds";
    says::<Sum>(damaged(None, without_provenance_mut(8), &[1 << 60], &mut y), Code::Internal, all);
    says::<Sum>(damaged(None, without_provenance_mut(8), &[-1], &mut y), Code::Internal, "has dimensions [-1]");
}

#[test]
fn a_rank_of_which_no_memory_holds_the_dimensions_is_an_error() {
    let mut y = 0;
    let mut x = 5_i64;
    let x: *mut c_void = (&raw mut x).cast();
    says::<Sum>(
        damaged(Some(|x| x.rank = i64::MAX), x, &[1], &mut y),
        Code::Internal,
        "operand 0 has rank 9223372036854775807",
    );
    says::<Sum>(damaged(Some(|x| x.rank = -1), x, &[1], &mut y), Code::Internal, "operand 0 has rank -1");
}

fn describe(_all: Attributes<'_>, _text: Option<&str>) {}

handler!(Describe = describe(; all, text));

/// A call with the attributes `all`, a dictionary, and `text`, a string of that many bytes at that address.
fn described(ptr: *const c_char, len: usize) -> Frame {
    Frame::new().attribute("all", Attribute::dictionary([])).attr("text", "").tweak(move |frame| {
        // SAFETY: there are two attributes, of which a string is the second.
        let value = unsafe { frame.attrs.attrs.add(1).read() };
        let span = value.cast_mut().cast::<ffi::ByteSpan>();
        // SAFETY: as above.
        unsafe { span.write(ffi::ByteSpan { ptr, len }) };
    })
}

#[test]
fn a_string_that_is_not_utf8_is_an_error_that_shows_it() {
    static LATIN: [u8; 4] = *b"k\xe4se";
    assert_eq!(call::<Describe>(described(null(), 0)), Ok(()));
    says::<Describe>(
        described(LATIN.as_ptr().cast(), 4),
        Code::InvalidArgument,
        "attribute `text` is the string \"k\u{fffd}se\", which is not UTF-8",
    );
    says::<Describe>(described(null(), 4), Code::Internal, "an attribute's name or text of 4 bytes is at 0x0");
    says::<Describe>(
        described(LATIN.as_ptr().cast(), usize::MAX),
        Code::Internal,
        "an attribute's name or text of 18446744073709551615 bytes is at 0x",
    );
}

#[test]
fn a_name_that_is_not_utf8_is_an_error() {
    static NAME: [u8; 2] = [b'x', 0xff];
    let frame = Frame::new().attr("name", "").tweak(|frame| {
        // SAFETY: there is one attribute.
        let name = unsafe { frame.attrs.names.read() };
        // SAFETY: as above.
        unsafe { name.cast_mut().write(ffi::ByteSpan { ptr: NAME.as_ptr().cast(), len: 2 }) };
    });
    says::<Describe>(frame, Code::InvalidArgument, "the name of an attribute, `x\u{fffd}`, is not UTF-8");
}

fn read_bools(x: Buffer<'_, Arg>, mut count: Output<'_, u32, 0>) -> Result<(), Error> {
    let trues = x.read::<bool>()?.into_iter().filter(|&each| each).count();
    count.write(&[u32::try_from(trues).unwrap_or(u32::MAX)])
}

handler!(ReadBools = read_bools(x, count));

#[test]
fn a_copy_of_bools_has_no_byte_that_is_none() {
    let mut count = 0_u32;
    let mut run = |mut bytes: [u8; 3]| {
        let frame = Frame::new().arg(bool::DTYPE.0, &[3], bytes.as_mut_ptr().cast());
        call::<ReadBools>(frame.ret(u32::DTYPE.0, &[], (&raw mut count).cast())).map(|()| count)
    };
    assert_eq!(run([1, 0, 1]), Ok(2));
    let (code, text) = run([1, 0, 2]).unwrap_err();
    assert_eq!(code, Code::InvalidArgument as i32);
    assert_eq!(text, "an operand is bool, and its element 2 has the byte 2, wanted 0 or 1");
}
