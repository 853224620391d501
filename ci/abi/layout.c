// Prints "struct.field offset" for every field that crates/xla-ffi/src/ffi.rs mirrors, and "struct end" for where
// the last of them ends: the same lines in the same order as `cargo run -p xla-ffi --example layout`.
#include <stdio.h>

#include "xla/ffi/api/c_api.h"

#ifdef XLA_FFI_ERROR_GET_DETAILS_IS_GET_MESSAGE
#define XLA_FFI_Error_GetDetails_Args XLA_FFI_Error_GetMessage_Args
#define GET_DETAILS XLA_FFI_Error_GetMessage
#else
#define GET_DETAILS XLA_FFI_Error_GetDetails
#endif

#ifdef XLA_FFI_INVOKE_CONTEXT_IS_EXECUTION_CONTEXT
#define CONTEXT_GET XLA_FFI_ExecutionContext_Get
#define XLA_FFI_ExecutionStage_RECORD 4  // came with the same version
#else
#define CONTEXT_GET XLA_FFI_InvokeContext_Get
#endif

#define FIELD(type, field) printf("%s.%s %zu\n", name, #field, offsetof(type, field))
#define END(type, field) printf("%s %zu\n", name, offsetof(type, field) + sizeof(((type*)0)->field))
#define VALUE(value) printf("%s %lld\n", #value, (long long)(value))

int main(void) {
  const char* name;

  name = "XLA_FFI_InternalExtension";
  FIELD(XLA_FFI_InternalExtension, struct_size);
  FIELD(XLA_FFI_InternalExtension, type);
  FIELD(XLA_FFI_InternalExtension, next);
  END(XLA_FFI_InternalExtension, next);

  name = "XLA_FFI_Api_Version";
  FIELD(XLA_FFI_Api_Version, struct_size);
  FIELD(XLA_FFI_Api_Version, extension_start);
  FIELD(XLA_FFI_Api_Version, major_version);
  FIELD(XLA_FFI_Api_Version, minor_version);
  END(XLA_FFI_Api_Version, minor_version);

  name = "XLA_FFI_Metadata";
  FIELD(XLA_FFI_Metadata, struct_size);
  FIELD(XLA_FFI_Metadata, api_version);
  FIELD(XLA_FFI_Metadata, traits);
  END(XLA_FFI_Metadata, traits);

  name = "XLA_FFI_Metadata_Extension";
  FIELD(XLA_FFI_Metadata_Extension, extension_base);
  FIELD(XLA_FFI_Metadata_Extension, metadata);
  END(XLA_FFI_Metadata_Extension, metadata);

  name = "XLA_FFI_Error_Create_Args";
  FIELD(XLA_FFI_Error_Create_Args, struct_size);
  FIELD(XLA_FFI_Error_Create_Args, extension_start);
  FIELD(XLA_FFI_Error_Create_Args, message);
  FIELD(XLA_FFI_Error_Create_Args, errc);
  END(XLA_FFI_Error_Create_Args, errc);

  name = "XLA_FFI_Error_GetDetails_Args";
  FIELD(XLA_FFI_Error_GetDetails_Args, struct_size);
  FIELD(XLA_FFI_Error_GetDetails_Args, extension_start);
  FIELD(XLA_FFI_Error_GetDetails_Args, error);
  FIELD(XLA_FFI_Error_GetDetails_Args, message);
  END(XLA_FFI_Error_GetDetails_Args, message);

  name = "XLA_FFI_Error_Destroy_Args";
  FIELD(XLA_FFI_Error_Destroy_Args, struct_size);
  FIELD(XLA_FFI_Error_Destroy_Args, extension_start);
  FIELD(XLA_FFI_Error_Destroy_Args, error);
  END(XLA_FFI_Error_Destroy_Args, error);

  name = "XLA_FFI_Stream_Get_Args";
  FIELD(XLA_FFI_Stream_Get_Args, struct_size);
  FIELD(XLA_FFI_Stream_Get_Args, extension_start);
  FIELD(XLA_FFI_Stream_Get_Args, ctx);
  FIELD(XLA_FFI_Stream_Get_Args, stream);
  END(XLA_FFI_Stream_Get_Args, stream);

  name = "XLA_FFI_TypeInfo";
  FIELD(XLA_FFI_TypeInfo, struct_size);
  FIELD(XLA_FFI_TypeInfo, extension_start);
  FIELD(XLA_FFI_TypeInfo, deleter);
  END(XLA_FFI_TypeInfo, deleter);

  name = "XLA_FFI_Type_Register_Args";
  FIELD(XLA_FFI_Type_Register_Args, struct_size);
  FIELD(XLA_FFI_Type_Register_Args, extension_start);
  FIELD(XLA_FFI_Type_Register_Args, name);
  FIELD(XLA_FFI_Type_Register_Args, type_id);
  FIELD(XLA_FFI_Type_Register_Args, type_info);
  END(XLA_FFI_Type_Register_Args, type_info);

  name = "XLA_FFI_State_Set_Args";
  FIELD(XLA_FFI_State_Set_Args, struct_size);
  FIELD(XLA_FFI_State_Set_Args, extension_start);
  FIELD(XLA_FFI_State_Set_Args, ctx);
  FIELD(XLA_FFI_State_Set_Args, stage);
  FIELD(XLA_FFI_State_Set_Args, type_id);
  FIELD(XLA_FFI_State_Set_Args, state);
  END(XLA_FFI_State_Set_Args, state);

  name = "XLA_FFI_State_Get_Args";
  FIELD(XLA_FFI_State_Get_Args, struct_size);
  FIELD(XLA_FFI_State_Get_Args, extension_start);
  FIELD(XLA_FFI_State_Get_Args, ctx);
  FIELD(XLA_FFI_State_Get_Args, stage);
  FIELD(XLA_FFI_State_Get_Args, type_id);
  FIELD(XLA_FFI_State_Get_Args, state);
  END(XLA_FFI_State_Get_Args, state);

  name = "XLA_FFI_DeviceMemory_Allocate_Args";
  FIELD(XLA_FFI_DeviceMemory_Allocate_Args, struct_size);
  FIELD(XLA_FFI_DeviceMemory_Allocate_Args, extension_start);
  FIELD(XLA_FFI_DeviceMemory_Allocate_Args, ctx);
  FIELD(XLA_FFI_DeviceMemory_Allocate_Args, size);
  FIELD(XLA_FFI_DeviceMemory_Allocate_Args, alignment);
  FIELD(XLA_FFI_DeviceMemory_Allocate_Args, data);
  END(XLA_FFI_DeviceMemory_Allocate_Args, data);

  name = "XLA_FFI_DeviceMemory_Free_Args";
  FIELD(XLA_FFI_DeviceMemory_Free_Args, struct_size);
  FIELD(XLA_FFI_DeviceMemory_Free_Args, extension_start);
  FIELD(XLA_FFI_DeviceMemory_Free_Args, ctx);
  FIELD(XLA_FFI_DeviceMemory_Free_Args, size);
  FIELD(XLA_FFI_DeviceMemory_Free_Args, data);
  END(XLA_FFI_DeviceMemory_Free_Args, data);

  name = "XLA_FFI_ThreadPool_Schedule_Args";
  FIELD(XLA_FFI_ThreadPool_Schedule_Args, struct_size);
  FIELD(XLA_FFI_ThreadPool_Schedule_Args, extension_start);
  FIELD(XLA_FFI_ThreadPool_Schedule_Args, ctx);
  FIELD(XLA_FFI_ThreadPool_Schedule_Args, task);
  FIELD(XLA_FFI_ThreadPool_Schedule_Args, data);
  END(XLA_FFI_ThreadPool_Schedule_Args, data);

  name = "XLA_FFI_ThreadPool_NumThreads_Args";
  FIELD(XLA_FFI_ThreadPool_NumThreads_Args, struct_size);
  FIELD(XLA_FFI_ThreadPool_NumThreads_Args, extension_start);
  FIELD(XLA_FFI_ThreadPool_NumThreads_Args, ctx);
  FIELD(XLA_FFI_ThreadPool_NumThreads_Args, num_threads);
  END(XLA_FFI_ThreadPool_NumThreads_Args, num_threads);

  name = "XLA_FFI_Future_Create_Args";
  FIELD(XLA_FFI_Future_Create_Args, struct_size);
  FIELD(XLA_FFI_Future_Create_Args, extension_start);
  FIELD(XLA_FFI_Future_Create_Args, future);
  END(XLA_FFI_Future_Create_Args, future);

  name = "XLA_FFI_Future_SetAvailable_Args";
  FIELD(XLA_FFI_Future_SetAvailable_Args, struct_size);
  FIELD(XLA_FFI_Future_SetAvailable_Args, extension_start);
  FIELD(XLA_FFI_Future_SetAvailable_Args, future);
  END(XLA_FFI_Future_SetAvailable_Args, future);

  name = "XLA_FFI_Future_SetError_Args";
  FIELD(XLA_FFI_Future_SetError_Args, struct_size);
  FIELD(XLA_FFI_Future_SetError_Args, extension_start);
  FIELD(XLA_FFI_Future_SetError_Args, future);
  FIELD(XLA_FFI_Future_SetError_Args, error);
  END(XLA_FFI_Future_SetError_Args, error);

  name = "XLA_FFI_RunId_Get_Args";
  FIELD(XLA_FFI_RunId_Get_Args, struct_size);
  FIELD(XLA_FFI_RunId_Get_Args, extension_start);
  FIELD(XLA_FFI_RunId_Get_Args, ctx);
  FIELD(XLA_FFI_RunId_Get_Args, run_id);
  END(XLA_FFI_RunId_Get_Args, run_id);

  name = "XLA_FFI_DeviceOrdinal_Get_Args";
  FIELD(XLA_FFI_DeviceOrdinal_Get_Args, struct_size);
  FIELD(XLA_FFI_DeviceOrdinal_Get_Args, extension_start);
  FIELD(XLA_FFI_DeviceOrdinal_Get_Args, ctx);
  FIELD(XLA_FFI_DeviceOrdinal_Get_Args, device_ordinal);
  END(XLA_FFI_DeviceOrdinal_Get_Args, device_ordinal);

  name = "XLA_FFI_Buffer";
  FIELD(XLA_FFI_Buffer, struct_size);
  FIELD(XLA_FFI_Buffer, extension_start);
  FIELD(XLA_FFI_Buffer, dtype);
  FIELD(XLA_FFI_Buffer, data);
  FIELD(XLA_FFI_Buffer, rank);
  FIELD(XLA_FFI_Buffer, dims);
  END(XLA_FFI_Buffer, dims);

  name = "XLA_FFI_Args";
  FIELD(XLA_FFI_Args, struct_size);
  FIELD(XLA_FFI_Args, extension_start);
  FIELD(XLA_FFI_Args, size);
  FIELD(XLA_FFI_Args, types);
  FIELD(XLA_FFI_Args, args);
  END(XLA_FFI_Args, args);

  name = "XLA_FFI_Rets";
  FIELD(XLA_FFI_Rets, struct_size);
  FIELD(XLA_FFI_Rets, extension_start);
  FIELD(XLA_FFI_Rets, size);
  FIELD(XLA_FFI_Rets, types);
  FIELD(XLA_FFI_Rets, rets);
  END(XLA_FFI_Rets, rets);

  name = "XLA_FFI_Attrs";
  FIELD(XLA_FFI_Attrs, struct_size);
  FIELD(XLA_FFI_Attrs, extension_start);
  FIELD(XLA_FFI_Attrs, size);
  FIELD(XLA_FFI_Attrs, types);
  FIELD(XLA_FFI_Attrs, names);
  FIELD(XLA_FFI_Attrs, attrs);
  END(XLA_FFI_Attrs, attrs);

  name = "XLA_FFI_CallFrame";
  FIELD(XLA_FFI_CallFrame, struct_size);
  FIELD(XLA_FFI_CallFrame, extension_start);
  FIELD(XLA_FFI_CallFrame, api);
  FIELD(XLA_FFI_CallFrame, ctx);
  FIELD(XLA_FFI_CallFrame, stage);
  FIELD(XLA_FFI_CallFrame, args);
  FIELD(XLA_FFI_CallFrame, rets);
  FIELD(XLA_FFI_CallFrame, attrs);
  END(XLA_FFI_CallFrame, attrs);

  name = "XLA_FFI_Api";
  FIELD(XLA_FFI_Api, struct_size);
  FIELD(XLA_FFI_Api, extension_start);
  FIELD(XLA_FFI_Api, api_version);
  FIELD(XLA_FFI_Api, internal_api);
  FIELD(XLA_FFI_Api, XLA_FFI_Error_Create);
  printf("%s.XLA_FFI_Error_GetDetails %zu\n", name, offsetof(XLA_FFI_Api, GET_DETAILS));
  FIELD(XLA_FFI_Api, XLA_FFI_Error_Destroy);
  FIELD(XLA_FFI_Api, XLA_FFI_Handler_Register);
  FIELD(XLA_FFI_Api, XLA_FFI_Stream_Get);
  FIELD(XLA_FFI_Api, XLA_FFI_Type_Register);
  printf("%s.XLA_FFI_InvokeContext_Get %zu\n", name, offsetof(XLA_FFI_Api, CONTEXT_GET));
  FIELD(XLA_FFI_Api, XLA_FFI_State_Set);
  FIELD(XLA_FFI_Api, XLA_FFI_State_Get);
  FIELD(XLA_FFI_Api, XLA_FFI_DeviceMemory_Allocate);
  FIELD(XLA_FFI_Api, XLA_FFI_DeviceMemory_Free);
  FIELD(XLA_FFI_Api, XLA_FFI_ThreadPool_Schedule);
  FIELD(XLA_FFI_Api, XLA_FFI_ThreadPool_NumThreads);
  FIELD(XLA_FFI_Api, XLA_FFI_Future_Create);
  FIELD(XLA_FFI_Api, XLA_FFI_Future_SetAvailable);
  FIELD(XLA_FFI_Api, XLA_FFI_Future_SetError);
  FIELD(XLA_FFI_Api, XLA_FFI_RunId_Get);
  FIELD(XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get);
  END(XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get);

  printf("XLA_FFI_CallFrame.future %zu\n", offsetof(XLA_FFI_CallFrame, future));
  printf("sizeof(XLA_FFI_ByteSpan) %zu\n", sizeof(XLA_FFI_ByteSpan));
  printf("XLA_FFI_ByteSpan.len %zu\n", offsetof(XLA_FFI_ByteSpan, len));
  printf("sizeof(XLA_FFI_TypeId) %zu\n", sizeof(XLA_FFI_TypeId));
  printf("sizeof(XLA_FFI_Scalar) %zu\n", sizeof(XLA_FFI_Scalar));
  printf("XLA_FFI_Scalar.value %zu\n", offsetof(XLA_FFI_Scalar, value));
  printf("sizeof(XLA_FFI_Array) %zu\n", sizeof(XLA_FFI_Array));
  printf("XLA_FFI_Array.size %zu\n", offsetof(XLA_FFI_Array, size));
  printf("XLA_FFI_Array.data %zu\n", offsetof(XLA_FFI_Array, data));
  VALUE(XLA_FFI_Extension_Metadata);
  VALUE(XLA_FFI_ExecutionStage_INSTANTIATE);
  VALUE(XLA_FFI_ExecutionStage_PREPARE);
  VALUE(XLA_FFI_ExecutionStage_INITIALIZE);
  VALUE(XLA_FFI_ExecutionStage_EXECUTE);
  printf("XLA_FFI_ExecutionStage_RECORD %d\n", XLA_FFI_ExecutionStage_RECORD);
  VALUE(XLA_FFI_ArgType_BUFFER);
  VALUE(XLA_FFI_RetType_BUFFER);
  VALUE(XLA_FFI_AttrType_ARRAY);
  VALUE(XLA_FFI_AttrType_DICTIONARY);
  VALUE(XLA_FFI_AttrType_SCALAR);
  VALUE(XLA_FFI_AttrType_STRING);
  VALUE(XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);
  VALUE(XLA_FFI_API_MAJOR);
  VALUE(XLA_FFI_Error_Code_CANCELLED);
  VALUE(XLA_FFI_Error_Code_UNKNOWN);
  VALUE(XLA_FFI_Error_Code_INVALID_ARGUMENT);
  VALUE(XLA_FFI_Error_Code_DEADLINE_EXCEEDED);
  VALUE(XLA_FFI_Error_Code_NOT_FOUND);
  VALUE(XLA_FFI_Error_Code_ALREADY_EXISTS);
  VALUE(XLA_FFI_Error_Code_PERMISSION_DENIED);
  VALUE(XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
  VALUE(XLA_FFI_Error_Code_FAILED_PRECONDITION);
  VALUE(XLA_FFI_Error_Code_ABORTED);
  VALUE(XLA_FFI_Error_Code_OUT_OF_RANGE);
  VALUE(XLA_FFI_Error_Code_UNIMPLEMENTED);
  VALUE(XLA_FFI_Error_Code_INTERNAL);
  VALUE(XLA_FFI_Error_Code_UNAVAILABLE);
  VALUE(XLA_FFI_Error_Code_DATA_LOSS);
  VALUE(XLA_FFI_Error_Code_UNAUTHENTICATED);
  VALUE(XLA_FFI_DataType_PRED);
  VALUE(XLA_FFI_DataType_S8);
  VALUE(XLA_FFI_DataType_S16);
  VALUE(XLA_FFI_DataType_S32);
  VALUE(XLA_FFI_DataType_S64);
  VALUE(XLA_FFI_DataType_U8);
  VALUE(XLA_FFI_DataType_U16);
  VALUE(XLA_FFI_DataType_U32);
  VALUE(XLA_FFI_DataType_U64);
  VALUE(XLA_FFI_DataType_F16);
  VALUE(XLA_FFI_DataType_F32);
  VALUE(XLA_FFI_DataType_F64);
  VALUE(XLA_FFI_DataType_BF16);
  VALUE(XLA_FFI_DataType_C64);
  VALUE(XLA_FFI_DataType_C128);
  VALUE(XLA_FFI_DataType_F8E5M2);
  VALUE(XLA_FFI_DataType_F8E3M4);
  VALUE(XLA_FFI_DataType_F8E4M3);
  VALUE(XLA_FFI_DataType_F8E4M3FN);
  VALUE(XLA_FFI_DataType_F8E4M3B11FNUZ);
  VALUE(XLA_FFI_DataType_F8E5M2FNUZ);
  VALUE(XLA_FFI_DataType_F8E4M3FNUZ);
  VALUE(XLA_FFI_DataType_F8E8M0FNU);
  VALUE(XLA_FFI_DataType_TOKEN);
  return 0;
}
