//! Prints the layout of the mirrored C structs; `ci/abi` compares it with what a C compiler makes of the real header.

use xla_ffi::{Code, Element, ffi};

fn main() {
    for (name, offset) in ffi::LAYOUT {
        println!("{name} {offset}");
    }
    println!("sizeof(XLA_FFI_ByteSpan) {}", size_of::<ffi::ByteSpan>());
    println!("XLA_FFI_ByteSpan.len {}", core::mem::offset_of!(ffi::ByteSpan, len));
    println!("XLA_FFI_Extension_Metadata {}", ffi::EXTENSION_METADATA);
    println!("XLA_FFI_ExecutionStage_EXECUTE {}", ffi::STAGE_EXECUTE);
    println!("XLA_FFI_ArgType_BUFFER {}", ffi::ARG_BUFFER);
    println!("XLA_FFI_RetType_BUFFER {}", ffi::ARG_BUFFER);
    println!("XLA_FFI_AttrType_STRING {}", ffi::ATTR_STRING);
    println!("XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE {}", ffi::TRAIT_COMMAND_BUFFER_COMPATIBLE);
    println!("XLA_FFI_API_MAJOR {}", ffi::API_VERSION.0);
    println!("XLA_FFI_Error_Code_INVALID_ARGUMENT {}", Code::InvalidArgument as i32);
    println!("XLA_FFI_Error_Code_FAILED_PRECONDITION {}", Code::FailedPrecondition as i32);
    println!("XLA_FFI_Error_Code_UNIMPLEMENTED {}", Code::Unimplemented as i32);
    println!("XLA_FFI_Error_Code_INTERNAL {}", Code::Internal as i32);
    println!("XLA_FFI_Error_Code_UNAVAILABLE {}", Code::Unavailable as i32);
    println!("XLA_FFI_DataType_S32 {}", i32::DTYPE);
    println!("XLA_FFI_DataType_F32 {}", f32::DTYPE);
}
