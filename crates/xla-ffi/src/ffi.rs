//! The XLA FFI C interface: the prefix that a handler needs.
//!
//! Source: `xla/ffi/api/c_api.h` of <https://github.com/openxla/xla>, shipped in jaxlib under
//! `jax.ffi.include_dir()`. Every struct starts with its own size, so a reader can tell which fields
//! the writer knew. The layouts below are the same in FFI API 0.1, 0.2, 0.3 and 0.5; later versions
//! only append. `ci/abi` compares [`LAYOUT`] with the headers of the jaxlib versions supported.
//!
//! The structs are `non_exhaustive`, so that a field that XLA appends can be mirrored without breaking code that uses
//! them. Code outside of this crate makes one with `new` and sets the fields that it needs.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;

/// The FFI API version that the handlers report: they use nothing that is newer.
pub const API_VERSION: (c_int, c_int) = (0, 1);

/// `XLA_FFI_Error`: owned by the runtime, made by [`Api::error_create`].
#[repr(C)]
pub struct Error {
    _opaque: [u8; 0],
}

/// `XLA_FFI_ExecutionContext`, from 0.5 on `XLA_FFI_InvokeContext`: opaque.
#[repr(C)]
pub struct Context {
    _opaque: [u8; 0],
}

/// `XLA_FFI_Future`: owned by the runtime, made by [`Api::future_create`].
#[repr(C)]
pub struct Future {
    _opaque: [u8; 0],
}

/// A C struct that starts with its own size.
///
/// # Safety
/// The type is `repr(C)`, its first field is the `usize` named `struct_size` (or a `Mirror` that starts
/// with it), and every bit pattern of its fields is a value of their types.
pub(crate) unsafe trait Mirror {
    /// Its C name, for messages.
    const NAME: &'static str;
    /// Where the last mirrored field ends.
    const END: usize;
}

/// A [`Mirror`] to which a handler may hold a reference: the runtime sets all its fields before the handler gets it.
///
/// Structs with fields that the other side writes later are none ([`Metadata`], and the arguments of functions): those fields
/// may be unset memory, to which Rust allows no reference. They are reached through raw pointers.
///
/// # Safety
/// The C interface says that all mirrored fields are set.
pub(crate) unsafe trait SetByRuntime: Mirror {}

// SAFETY: what a call frame is made of; it has no field for the handler to write.
unsafe impl SetByRuntime for CallFrame {}
// SAFETY: as above.
unsafe impl SetByRuntime for Buffer {}
// SAFETY: as above.
unsafe impl SetByRuntime for Attrs {}
// SAFETY: the handler writes to the `Metadata` that the second one points to, not to the extension.
unsafe impl SetByRuntime for Extension {}
// SAFETY: as above.
unsafe impl SetByRuntime for MetadataExtension {}

/// The value of a field that is not set: zero, null, or a struct that holds nothing but its size.
trait Unset {
    const UNSET: Self;
}

macro_rules! unset {
    ($(<$($of:ident),*> $type:ty = $value:expr;)*) => {
        $(impl<$($of),*> Unset for $type {
            const UNSET: Self = $value;
        })*
    };
}

unset! {
    <> c_int = 0;
    <> u32 = 0;
    <> i64 = 0;
    <> TypeId = TypeId { type_id: 0 };
    <> ByteSpan = ByteSpan { ptr: ptr::null(), len: 0 };
    <> usize = 0;
    <T> *const T = ptr::null();
    <T> *mut T = ptr::null_mut();
    <A> Option<unsafe extern "C" fn(*mut A)> = None;
    <A, R> Option<unsafe extern "C" fn(*mut A) -> *mut R> = None;
}

/// Declares `repr(C)` structs, and for each the names by which [`LAYOUT`] lists its size and offsets.
macro_rules! mirror {
    ($($(#[$meta:meta])* $c_name:literal $name:ident { $($(#[$field_meta:meta])* $c_field:literal $field:ident: $type:ty,)* })*) => {
        $($(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        })*

        /// Offset of every mirrored field by its C name (`struct.field`), and under the bare name of
        /// the struct where the mirrored prefix ends.
        pub const LAYOUT: &[(&str, usize)] = &[
            $($((concat!($c_name, ".", $c_field), core::mem::offset_of!($name, $field)),)*
            ($c_name, $name::END),)*
        ];

        $(impl $name {
            /// Where the last mirrored field ends: the least `struct_size` that a usable struct has.
            pub const END: usize = {
                let mut end = 0;
                $({
                    let field_end = core::mem::offset_of!($name, $field) + size_of::<$type>();
                    if field_end > end { end = field_end; }
                })*
                end
            };

            /// A struct of this size ([`END`](Self::END), and so has each struct in it), with zero or null in every other field.
            #[must_use]
            pub const fn new() -> Self {
                let mut unset = Self { $($field: <$type as Unset>::UNSET,)* };
                // SAFETY: every mirrored struct starts with its size.
                unsafe { (&raw mut unset).cast::<usize>().write(Self::END) };
                unset
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }

        impl Unset for $name {
            const UNSET: Self = Self::new();
        }

        // SAFETY: the struct is `repr(C)`, made of integers and pointers, and starts with its `struct_size`.
        unsafe impl Mirror for $name {
            const NAME: &'static str = $c_name;
            const END: usize = $name::END;
        })*
    };
}

mirror! {
    /// ```c
    /// struct XLA_FFI_InternalExtension {  // XLA_FFI_Extension_Base before 0.5
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension_Type type;
    ///   struct XLA_FFI_InternalExtension* next;
    /// };
    /// ```
    "XLA_FFI_InternalExtension" Extension {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// [`EXTENSION_METADATA`] is the only known value.
        "type" kind: c_int,
        /// The next extension, or null.
        "next" next: *mut Extension,
    }

    /// ```c
    /// struct XLA_FFI_Api_Version {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   int major_version;  // out
    ///   int minor_version;  // out
    /// };
    /// ```
    "XLA_FFI_Api_Version" ApiVersion {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// Written by the handler.
        "major_version" major_version: c_int,
        /// Written by the handler.
        "minor_version" minor_version: c_int,
    }

    /// ```c
    /// struct XLA_FFI_Metadata {
    ///   size_t struct_size;
    ///   XLA_FFI_Api_Version api_version;
    ///   XLA_FFI_Handler_Traits traits;  // uint32_t
    ///   // later: XLA_FFI_TypeId state_type_id;
    /// };
    /// ```
    "XLA_FFI_Metadata" Metadata {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// The version that the handler was written against.
        "api_version" api_version: ApiVersion,
        /// Bits of `XLA_FFI_Handler_TraitsBits`.
        "traits" traits: u32,
    }

    /// ```c
    /// struct XLA_FFI_Metadata_Extension {
    ///   XLA_FFI_InternalExtension extension_base;
    ///   XLA_FFI_Metadata* metadata;
    /// };
    /// ```
    "XLA_FFI_Metadata_Extension" MetadataExtension {
        /// What every extension starts with.
        "extension_base" base: Extension,
        /// Filled in by the handler.
        "metadata" metadata: *mut Metadata,
    }

    /// ```c
    /// struct XLA_FFI_Error_Create_Args {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   const char* message;
    ///   XLA_FFI_Error_Code errc;
    /// };
    /// ```
    "XLA_FFI_Error_Create_Args" ErrorCreateArgs {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// Null-terminated; copied by the runtime.
        "message" message: *const c_char,
        /// An absl status code.
        "errc" code: c_int,
    }

    /// ```c
    /// struct XLA_FFI_Error_GetDetails_Args {  // XLA_FFI_Error_GetMessage_Args before 0.5
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   XLA_FFI_Error* error;
    ///   const char* message;  // out
    ///   // since 0.5: XLA_FFI_Error_Code errc;  // out, for which a caller has to leave room
    /// };
    /// ```
    "XLA_FFI_Error_GetDetails_Args" ErrorGetDetailsArgs {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// The error asked about.
        "error" error: *mut Error,
        /// Written by the runtime; lives as long as the error.
        "message" message: *const c_char,
    }

    /// ```c
    /// struct XLA_FFI_Error_Destroy_Args {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   XLA_FFI_Error* error;
    /// };
    /// ```
    "XLA_FFI_Error_Destroy_Args" ErrorDestroyArgs {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// The error to free.
        "error" error: *mut Error,
    }

    /// ```c
    /// struct XLA_FFI_Stream_Get_Args {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   XLA_FFI_InvokeContext* ctx;
    ///   void* stream;  // out
    /// };
    /// ```
    "XLA_FFI_Stream_Get_Args" StreamGetArgs {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// The context of the call.
        "ctx" ctx: *mut Context,
        /// Written by the runtime: `CUstream`, `hipStream_t`.
        "stream" stream: *mut c_void,
    }

    /// ```c
    /// struct XLA_FFI_TypeInfo {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   void (*deleter)(void* object);
    /// };
    /// ```
    "XLA_FFI_TypeInfo" TypeInfo {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// Frees an object of the type.
        "deleter" deleter: Option<unsafe extern "C" fn(*mut c_void)>,
    }

    /// ```c
    /// struct XLA_FFI_Type_Register_Args {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   XLA_FFI_ByteSpan name;
    ///   XLA_FFI_TypeId* type_id;  // in-out
    ///   const XLA_FFI_TypeInfo* type_info;
    /// };
    /// ```
    "XLA_FFI_Type_Register_Args" TypeRegisterArgs {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// Different for each type of the process.
        "name" name: ByteSpan,
        /// 0 asks the runtime for a number.
        "type_id" type_id: *mut TypeId,
        /// What the runtime can do with objects of the type.
        "type_info" type_info: *const TypeInfo,
    }

    /// ```c
    /// struct XLA_FFI_State_Set_Args {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   XLA_FFI_InvokeContext* ctx;
    ///   XLA_FFI_ExecutionStage stage;
    ///   XLA_FFI_TypeId* type_id;
    ///   void* state;
    /// };
    /// ```
    "XLA_FFI_State_Set_Args" StateSetArgs {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// The context of the call.
        "ctx" ctx: *mut Context,
        /// The stage of the call.
        "stage" stage: c_int,
        /// The type of the state.
        "type_id" type_id: *mut TypeId,
        /// Taken by the runtime.
        "state" state: *mut c_void,
    }

    /// ```c
    /// struct XLA_FFI_State_Get_Args {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   XLA_FFI_InvokeContext* ctx;
    ///   XLA_FFI_ExecutionStage stage;
    ///   XLA_FFI_TypeId* type_id;
    ///   void* state;  // out
    /// };
    /// ```
    "XLA_FFI_State_Get_Args" StateGetArgs {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// The context of the call.
        "ctx" ctx: *mut Context,
        /// The stage in which the state was made.
        "stage" stage: c_int,
        /// The type of the state.
        "type_id" type_id: *mut TypeId,
        /// Written by the runtime, which keeps it.
        "state" state: *mut c_void,
    }

    /// ```c
    /// struct XLA_FFI_DeviceMemory_Allocate_Args {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   XLA_FFI_InvokeContext* ctx;
    ///   size_t size;
    ///   size_t alignment;
    ///   void* data;  // out
    /// };
    /// ```
    "XLA_FFI_DeviceMemory_Allocate_Args" DeviceMemoryAllocateArgs {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// The context of the call.
        "ctx" ctx: *mut Context,
        /// In bytes.
        "size" size: usize,
        /// In bytes.
        "alignment" alignment: usize,
        /// Written by the runtime.
        "data" data: *mut c_void,
    }

    /// ```c
    /// struct XLA_FFI_DeviceMemory_Free_Args {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   XLA_FFI_InvokeContext* ctx;
    ///   size_t size;
    ///   void* data;
    /// };
    /// ```
    "XLA_FFI_DeviceMemory_Free_Args" DeviceMemoryFreeArgs {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// The context of the call.
        "ctx" ctx: *mut Context,
        /// As it was allocated.
        "size" size: usize,
        /// As it was allocated.
        "data" data: *mut c_void,
    }

    /// ```c
    /// struct XLA_FFI_ThreadPool_Schedule_Args {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   XLA_FFI_InvokeContext* ctx;
    ///   XLA_FFI_Task* task;  // void (void* data)
    ///   void* data;
    /// };
    /// ```
    "XLA_FFI_ThreadPool_Schedule_Args" ThreadPoolScheduleArgs {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// The context of the call.
        "ctx" ctx: *mut Context,
        /// Run once, with `data`.
        "task" task: Option<unsafe extern "C" fn(*mut c_void)>,
        /// Handed to the task.
        "data" data: *mut c_void,
    }

    /// ```c
    /// struct XLA_FFI_ThreadPool_NumThreads_Args {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   XLA_FFI_InvokeContext* ctx;
    ///   int64_t* num_threads;  // out
    /// };
    /// ```
    "XLA_FFI_ThreadPool_NumThreads_Args" ThreadPoolNumThreadsArgs {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// The context of the call.
        "ctx" ctx: *mut Context,
        /// Where the runtime writes the number.
        "num_threads" num_threads: *mut i64,
    }

    /// ```c
    /// struct XLA_FFI_Future_Create_Args {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   XLA_FFI_Future* future;  // out
    /// };
    /// ```
    "XLA_FFI_Future_Create_Args" FutureCreateArgs {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// Written by the runtime.
        "future" future: *mut Future,
    }

    /// ```c
    /// struct XLA_FFI_Future_SetAvailable_Args {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   XLA_FFI_Future* future;
    /// };
    /// ```
    "XLA_FFI_Future_SetAvailable_Args" FutureSetAvailableArgs {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// Completed by this.
        "future" future: *mut Future,
    }

    /// ```c
    /// struct XLA_FFI_Future_SetError_Args {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   XLA_FFI_Future* future;
    ///   XLA_FFI_Error* error;  // ownership is transferred to the XLA runtime
    /// };
    /// ```
    "XLA_FFI_Future_SetError_Args" FutureSetErrorArgs {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// Completed by this.
        "future" future: *mut Future,
        /// Taken by the runtime.
        "error" error: *mut Error,
    }

    /// ```c
    /// struct XLA_FFI_RunId_Get_Args {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   XLA_FFI_InvokeContext* ctx;
    ///   int64_t run_id;  // out
    /// };
    /// ```
    "XLA_FFI_RunId_Get_Args" RunIdGetArgs {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// The context of the call.
        "ctx" ctx: *mut Context,
        /// Written by the runtime.
        "run_id" run_id: i64,
    }

    /// ```c
    /// struct XLA_FFI_DeviceOrdinal_Get_Args {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   XLA_FFI_InvokeContext* ctx;
    ///   int32_t device_ordinal;  // out
    /// };
    /// ```
    "XLA_FFI_DeviceOrdinal_Get_Args" DeviceOrdinalGetArgs {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// The context of the call.
        "ctx" ctx: *mut Context,
        /// Written by the runtime.
        "device_ordinal" device_ordinal: i32,
    }

    /// ```c
    /// struct XLA_FFI_Buffer {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   XLA_FFI_DataType dtype;
    ///   void* data;
    ///   int64_t rank;
    ///   int64_t* dims;  // length == rank
    /// };
    /// ```
    "XLA_FFI_Buffer" Buffer {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// A value of `xla::PrimitiveType`.
        "dtype" dtype: c_int,
        /// The elements.
        "data" data: *mut c_void,
        /// Number of dimensions.
        "rank" rank: i64,
        /// `rank` sizes.
        "dims" dims: *const i64,
    }

    /// ```c
    /// struct XLA_FFI_Args {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   int64_t size;
    ///   XLA_FFI_ArgType* types;  // length == size
    ///   void** args;             // length == size
    /// };
    /// ```
    "XLA_FFI_Args" Args {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// Number of operands.
        "size" size: i64,
        /// [`ARG_BUFFER`] is the only known value.
        "types" types: *const c_int,
        /// Pointers to [`Buffer`]s.
        "args" items: *const *mut c_void,
    }

    /// ```c
    /// struct XLA_FFI_Rets {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   int64_t size;
    ///   XLA_FFI_RetType* types;  // length == size
    ///   void** rets;             // length == size
    /// };
    /// ```
    "XLA_FFI_Rets" Rets {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// Number of results.
        "size" size: i64,
        /// [`ARG_BUFFER`] is the only known value.
        "types" types: *const c_int,
        /// Pointers to [`Buffer`]s.
        "rets" items: *const *mut c_void,
    }

    /// ```c
    /// struct XLA_FFI_Attrs {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   int64_t size;
    ///   XLA_FFI_AttrType* types;   // length == size
    ///   XLA_FFI_ByteSpan** names;  // length == size
    ///   void** attrs;              // length == size
    /// };
    /// ```
    "XLA_FFI_Attrs" Attrs {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// Number of attributes.
        "size" size: i64,
        /// [`ATTR_STRING`] and its like.
        "types" types: *const c_int,
        /// Sorted.
        "names" names: *const *const ByteSpan,
        /// A [`ByteSpan`] for a string, a [`Scalar`], an [`Array`], or [`Attrs`] for a dictionary.
        "attrs" attrs: *const *const c_void,
    }

    /// ```c
    /// struct XLA_FFI_CallFrame {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   const XLA_FFI_Api* api;
    ///   XLA_FFI_InvokeContext* ctx;
    ///   XLA_FFI_ExecutionStage stage;
    ///   XLA_FFI_Args args;
    ///   XLA_FFI_Rets rets;
    ///   XLA_FFI_Attrs attrs;
    ///   // later: XLA_FFI_Future* future;
    /// };
    /// ```
    "XLA_FFI_CallFrame" CallFrame {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// The metadata query, or null.
        "extension_start" extension_start: *mut Extension,
        /// Functions of the runtime.
        "api" api: *const Api,
        /// Opaque, handed back to the runtime.
        "ctx" ctx: *mut Context,
        /// [`STAGE_EXECUTE`] is the one in which handlers work.
        "stage" stage: c_int,
        /// Operands.
        "args" args: Args,
        /// Results.
        "rets" rets: Rets,
        /// Attributes.
        "attrs" attrs: Attrs,
    }

    /// ```c
    /// struct XLA_FFI_Api {
    ///   size_t struct_size;
    ///   XLA_FFI_InternalExtension* extension_start;
    ///   XLA_FFI_Api_Version api_version;
    ///   const XLA_FFI_InternalApi* internal_api;
    ///   XLA_FFI_Error_Create* XLA_FFI_Error_Create;
    ///   XLA_FFI_Error_GetDetails* XLA_FFI_Error_GetDetails;
    ///   XLA_FFI_Error_Destroy* XLA_FFI_Error_Destroy;
    ///   XLA_FFI_Handler_Register* XLA_FFI_Handler_Register;
    ///   XLA_FFI_Stream_Get* XLA_FFI_Stream_Get;
    ///   XLA_FFI_Type_Register* XLA_FFI_Type_Register;
    ///   XLA_FFI_InvokeContext_Get* XLA_FFI_InvokeContext_Get;
    ///   XLA_FFI_State_Set* XLA_FFI_State_Set;
    ///   XLA_FFI_State_Get* XLA_FFI_State_Get;
    ///   XLA_FFI_DeviceMemory_Allocate* XLA_FFI_DeviceMemory_Allocate;
    ///   XLA_FFI_DeviceMemory_Free* XLA_FFI_DeviceMemory_Free;
    ///   XLA_FFI_ThreadPool_Schedule* XLA_FFI_ThreadPool_Schedule;
    ///   XLA_FFI_ThreadPool_NumThreads* XLA_FFI_ThreadPool_NumThreads;
    ///   XLA_FFI_Future_Create* XLA_FFI_Future_Create;
    ///   XLA_FFI_Future_SetAvailable* XLA_FFI_Future_SetAvailable;
    ///   XLA_FFI_Future_SetError* XLA_FFI_Future_SetError;
    ///   XLA_FFI_RunId_Get* XLA_FFI_RunId_Get;
    ///   XLA_FFI_DeviceOrdinal_Get* XLA_FFI_DeviceOrdinal_Get;
    ///   // later: more
    /// };
    /// ```
    ///
    /// A runtime's table may be shorter: handlers take from it what is there.
    "XLA_FFI_Api" Api {
        /// Size of this struct as its writer knew it.
        "struct_size" struct_size: usize,
        /// Unused.
        "extension_start" extension_start: *mut Extension,
        /// The version that the runtime speaks.
        "api_version" api_version: ApiVersion,
        /// Opaque.
        "internal_api" internal_api: *const c_void,
        /// Makes an error that the handler returns.
        "XLA_FFI_Error_Create" error_create: Option<unsafe extern "C" fn(*mut ErrorCreateArgs) -> *mut Error>,
        /// Reads an error that the runtime returned.
        "XLA_FFI_Error_GetDetails" error_get_details: Option<unsafe extern "C" fn(*mut ErrorGetDetailsArgs)>,
        /// Frees an error that the runtime returned.
        "XLA_FFI_Error_Destroy" error_destroy: Option<unsafe extern "C" fn(*mut ErrorDestroyArgs)>,
        /// Not used here.
        "XLA_FFI_Handler_Register" handler_register: *const c_void,
        /// Gives the stream on which the call runs.
        "XLA_FFI_Stream_Get" stream_get: Option<unsafe extern "C" fn(*mut StreamGetArgs) -> *mut Error>,
        /// Gives a type a number.
        "XLA_FFI_Type_Register" type_register: Option<unsafe extern "C" fn(*mut TypeRegisterArgs) -> *mut Error>,
        /// Not used here. `XLA_FFI_ExecutionContext_Get` before 0.5.
        "XLA_FFI_InvokeContext_Get" invoke_context_get: *const c_void,
        /// Keeps a state for a call site, or for a run.
        "XLA_FFI_State_Set" state_set: Option<unsafe extern "C" fn(*mut StateSetArgs) -> *mut Error>,
        /// Gives it back.
        "XLA_FFI_State_Get" state_get: Option<unsafe extern "C" fn(*mut StateGetArgs) -> *mut Error>,
        /// Gives device memory for the time of the call.
        "XLA_FFI_DeviceMemory_Allocate" device_memory_allocate: Option<unsafe extern "C" fn(*mut DeviceMemoryAllocateArgs) -> *mut Error>,
        /// Takes it back.
        "XLA_FFI_DeviceMemory_Free" device_memory_free: Option<unsafe extern "C" fn(*mut DeviceMemoryFreeArgs) -> *mut Error>,
        /// Runs a task on a thread of the host.
        "XLA_FFI_ThreadPool_Schedule" thread_pool_schedule: Option<unsafe extern "C" fn(*mut ThreadPoolScheduleArgs) -> *mut Error>,
        /// Counts those threads.
        "XLA_FFI_ThreadPool_NumThreads" thread_pool_num_threads: Option<unsafe extern "C" fn(*mut ThreadPoolNumThreadsArgs) -> *mut Error>,
        /// Makes a future.
        "XLA_FFI_Future_Create" future_create: Option<unsafe extern "C" fn(*mut FutureCreateArgs) -> *mut Error>,
        /// Completes one.
        "XLA_FFI_Future_SetAvailable" future_set_available: Option<unsafe extern "C" fn(*mut FutureSetAvailableArgs) -> *mut Error>,
        /// Completes one with an error.
        "XLA_FFI_Future_SetError" future_set_error: Option<unsafe extern "C" fn(*mut FutureSetErrorArgs) -> *mut Error>,
        /// Gives the number of the run.
        "XLA_FFI_RunId_Get" run_id_get: Option<unsafe extern "C" fn(*mut RunIdGetArgs) -> *mut Error>,
        /// Gives the number of the device.
        "XLA_FFI_DeviceOrdinal_Get" device_ordinal_get: Option<unsafe extern "C" fn(*mut DeviceOrdinalGetArgs) -> *mut Error>,
    }
}

/// ```c
/// typedef struct XLA_FFI_ByteSpan { const char* ptr; size_t len; } XLA_FFI_ByteSpan;
/// ```
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ByteSpan {
    /// Not null-terminated.
    pub ptr: *const c_char,
    /// Number of bytes.
    pub len: usize,
}

/// ```c
/// typedef struct XLA_FFI_Scalar { XLA_FFI_DataType dtype; void* value; } XLA_FFI_Scalar;
/// ```
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Scalar {
    /// A value of `xla::PrimitiveType`.
    pub dtype: c_int,
    /// One element.
    pub value: *mut c_void,
}

/// ```c
/// typedef struct XLA_FFI_Array { XLA_FFI_DataType dtype; size_t size; void* data; } XLA_FFI_Array;
/// ```
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Array {
    /// A value of `xla::PrimitiveType`.
    pub dtype: c_int,
    /// Number of elements.
    pub size: usize,
    /// The elements.
    pub data: *mut c_void,
}

/// ```c
/// typedef struct XLA_FFI_TypeId { int64_t type_id; } XLA_FFI_TypeId;
/// ```
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TypeId {
    /// 0 is unknown.
    pub type_id: i64,
}

/// Where a call frame has its `XLA_FFI_Future* future`, which the handler writes: null unless the results come later.
///
/// The header's own size of a frame ends before it (`XLA_FFI_DEFINE_STRUCT_TRAITS(XLA_FFI_CallFrame, attrs)`), so `struct_size` does not tell
/// whether it is there. It came together with [`Api::future_create`]: where the table has that, the frame has this.
pub const FUTURE_OFFSET: usize = CallFrame::END;

/// The type of a handler.
pub type Handler = unsafe extern "C" fn(*mut CallFrame) -> *mut Error;

/// `XLA_FFI_Extension_Metadata`.
pub const EXTENSION_METADATA: c_int = 1;
/// `XLA_FFI_ExecutionStage_INSTANTIATE`.
pub const STAGE_INSTANTIATE: c_int = 0;
/// `XLA_FFI_ExecutionStage_PREPARE`.
pub const STAGE_PREPARE: c_int = 1;
/// `XLA_FFI_ExecutionStage_INITIALIZE`.
pub const STAGE_INITIALIZE: c_int = 2;
/// `XLA_FFI_ExecutionStage_EXECUTE`.
pub const STAGE_EXECUTE: c_int = 3;
/// `XLA_FFI_ExecutionStage_RECORD`, since FFI API 0.5.
pub const STAGE_RECORD: c_int = 4;
/// `XLA_FFI_ArgType_BUFFER` and `XLA_FFI_RetType_BUFFER`.
pub const ARG_BUFFER: c_int = 1;
/// `XLA_FFI_AttrType_ARRAY`.
pub const ATTR_ARRAY: c_int = 1;
/// `XLA_FFI_AttrType_DICTIONARY`.
pub const ATTR_DICTIONARY: c_int = 2;
/// `XLA_FFI_AttrType_SCALAR`.
pub const ATTR_SCALAR: c_int = 3;
/// `XLA_FFI_AttrType_STRING`.
pub const ATTR_STRING: c_int = 4;
/// `XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE`.
pub const TRAIT_COMMAND_BUFFER_COMPATIBLE: u32 = 1 << 0;

// A call frame holds its args, rets and attrs by value: their sizes can never change without moving what
// follows, so the mirror is checked here for the 64-bit targets that jaxlib has.
const _: () = {
    assert!(size_of::<usize>() == 8, "jaxlib exists for 64-bit targets only");
    assert!(size_of::<Args>() == 40);
    assert!(size_of::<Rets>() == 40);
    assert!(size_of::<Attrs>() == 48);
    assert!(core::mem::offset_of!(CallFrame, args) == 40);
    assert!(CallFrame::END == 168);
    assert!(Buffer::END == 48);
    assert!(core::mem::offset_of!(Api, error_create) == 48);
    assert!(core::mem::offset_of!(Api, stream_get) == 80);
    assert!(Metadata::END == 36);
    assert!(core::mem::offset_of!(Api, device_ordinal_get) == 184);
    assert!(size_of::<ByteSpan>() == 16);
    assert!(size_of::<Scalar>() == 16);
    assert!(size_of::<Array>() == 24);
    assert!(size_of::<TypeId>() == 8);
};
