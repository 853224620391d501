//! Prints the layout of the mirrored C structs; `ci/abi` compares it with what a C compiler makes of the real header.

use xla_ffi::{
    BF16, Code, Complex, DType, Element, F8E3M4, F8E4M3, F8E4M3B11FNUZ, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ,
    F8E8M0FNU, F16, ffi,
};

fn main() {
    for (name, offset) in ffi::LAYOUT {
        println!("{name} {offset}");
    }
    println!("XLA_FFI_CallFrame.future {}", ffi::FUTURE_OFFSET);
    println!("sizeof(XLA_FFI_ByteSpan) {}", size_of::<ffi::ByteSpan>());
    println!("XLA_FFI_ByteSpan.len {}", core::mem::offset_of!(ffi::ByteSpan, len));
    println!("sizeof(XLA_FFI_TypeId) {}", size_of::<ffi::TypeId>());
    println!("sizeof(XLA_FFI_Scalar) {}", size_of::<ffi::Scalar>());
    println!("XLA_FFI_Scalar.value {}", core::mem::offset_of!(ffi::Scalar, value));
    println!("sizeof(XLA_FFI_Array) {}", size_of::<ffi::Array>());
    println!("XLA_FFI_Array.size {}", core::mem::offset_of!(ffi::Array, size));
    println!("XLA_FFI_Array.data {}", core::mem::offset_of!(ffi::Array, data));
    println!("XLA_FFI_Extension_Metadata {}", ffi::EXTENSION_METADATA);
    println!("XLA_FFI_ExecutionStage_INSTANTIATE {}", ffi::STAGE_INSTANTIATE);
    println!("XLA_FFI_ExecutionStage_PREPARE {}", ffi::STAGE_PREPARE);
    println!("XLA_FFI_ExecutionStage_INITIALIZE {}", ffi::STAGE_INITIALIZE);
    println!("XLA_FFI_ExecutionStage_EXECUTE {}", ffi::STAGE_EXECUTE);
    println!("XLA_FFI_ExecutionStage_RECORD {}", ffi::STAGE_RECORD);
    println!("XLA_FFI_ArgType_BUFFER {}", ffi::ARG_BUFFER);
    println!("XLA_FFI_RetType_BUFFER {}", ffi::ARG_BUFFER);
    println!("XLA_FFI_AttrType_ARRAY {}", ffi::ATTR_ARRAY);
    println!("XLA_FFI_AttrType_DICTIONARY {}", ffi::ATTR_DICTIONARY);
    println!("XLA_FFI_AttrType_SCALAR {}", ffi::ATTR_SCALAR);
    println!("XLA_FFI_AttrType_STRING {}", ffi::ATTR_STRING);
    println!("XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE {}", ffi::TRAIT_COMMAND_BUFFER_COMPATIBLE);
    println!("XLA_FFI_API_MAJOR {}", ffi::API_VERSION.0);
    for code in Code::ALL {
        println!("XLA_FFI_Error_Code_{} {}", name_in_c(code), code as i32);
    }
    let types = [
        ("PRED", bool::DTYPE),
        ("S8", i8::DTYPE),
        ("S16", i16::DTYPE),
        ("S32", i32::DTYPE),
        ("S64", i64::DTYPE),
        ("U8", u8::DTYPE),
        ("U16", u16::DTYPE),
        ("U32", u32::DTYPE),
        ("U64", u64::DTYPE),
        ("F16", F16::DTYPE),
        ("F32", f32::DTYPE),
        ("F64", f64::DTYPE),
        ("BF16", BF16::DTYPE),
        ("C64", Complex::<f32>::DTYPE),
        ("C128", Complex::<f64>::DTYPE),
        ("F8E5M2", F8E5M2::DTYPE),
        ("F8E3M4", F8E3M4::DTYPE),
        ("F8E4M3", F8E4M3::DTYPE),
        ("F8E4M3FN", F8E4M3FN::DTYPE),
        ("F8E4M3B11FNUZ", F8E4M3B11FNUZ::DTYPE),
        ("F8E5M2FNUZ", F8E5M2FNUZ::DTYPE),
        ("F8E4M3FNUZ", F8E4M3FNUZ::DTYPE),
        ("F8E8M0FNU", F8E8M0FNU::DTYPE),
        ("TOKEN", DType::TOKEN),
    ];
    for (name, dtype) in types {
        println!("XLA_FFI_DataType_{name} {}", dtype.0);
    }
}

/// `INVALID_ARGUMENT` for [`Code::InvalidArgument`].
fn name_in_c(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}
