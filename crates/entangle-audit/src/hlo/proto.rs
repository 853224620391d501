//! The parts of XLA's protobuf messages that the audit needs.
//!
//! Field numbers are those of `xla/service/hlo.proto` and `xla/xla_data.proto`
//! (<https://github.com/openxla/xla>). Every other field is skipped when reading.

use std::collections::HashMap;

/// What XLA's dump files hold.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HloProto {
    #[prost(message, optional, tag = "1")]
    pub(crate) hlo_module: Option<HloModuleProto>,
}

/// What XLA writes with `--xla_dump_hlo_snapshots`: a program and what it was called with.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HloSnapshot {
    #[prost(message, optional, tag = "1")]
    pub(crate) hlo: Option<HloProto>,
}

/// What Python's `as_serialized_hlo_module_proto()` returns.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HloModuleProto {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) computations: Vec<HloComputationProto>,
    #[prost(int64, tag = "5")]
    pub(crate) id: i64,
    #[prost(int64, tag = "6")]
    pub(crate) entry_computation_id: i64,
    #[prost(message, optional, tag = "7")]
    pub(crate) schedule: Option<HloScheduleProto>,
    #[prost(message, optional, tag = "8")]
    pub(crate) input_output_alias: Option<HloInputOutputAliasProto>,
    #[prost(message, optional, tag = "17")]
    pub(crate) stack_frame_index: Option<StackFrameIndexProto>,
    #[prost(message, optional, tag = "18")]
    pub(crate) buffer_donor: Option<HloBufferDonorProto>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HloComputationProto {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) instructions: Vec<HloInstructionProto>,
    #[prost(int64, tag = "5")]
    pub(crate) id: i64,
    #[prost(int64, tag = "6")]
    pub(crate) root_id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HloInstructionProto {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) opcode: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) shape: Option<ShapeProto>,
    #[prost(message, optional, tag = "7")]
    pub(crate) metadata: Option<OpMetadata>,
    /// A `LiteralProto`, left as bytes: two constants are compared, never computed with.
    #[prost(bytes = "vec", optional, tag = "8")]
    pub(crate) literal: Option<Vec<u8>>,
    #[prost(int64, tag = "9")]
    pub(crate) parameter_number: i64,
    #[prost(int64, tag = "13")]
    pub(crate) tuple_index: i64,
    /// Of `iota`, the dimension along which it counts.
    #[prost(int64, repeated, tag = "14")]
    pub(crate) dimensions: Vec<i64>,
    #[prost(message, repeated, tag = "17")]
    pub(crate) slice_dimensions: Vec<SliceDimensions>,
    #[prost(string, tag = "28")]
    pub(crate) custom_call_target: String,
    #[prost(int64, tag = "35")]
    pub(crate) id: i64,
    #[prost(int64, repeated, tag = "36")]
    pub(crate) operand_ids: Vec<i64>,
    #[prost(int64, repeated, tag = "37")]
    pub(crate) control_predecessor_ids: Vec<i64>,
    #[prost(int64, repeated, tag = "38")]
    pub(crate) called_computation_ids: Vec<i64>,
    #[prost(bytes = "vec", tag = "43")]
    pub(crate) backend_config: Vec<u8>,
    /// Of `send`, `recv` and what ends them.
    #[prost(bool, tag = "47")]
    pub(crate) is_host_transfer: bool,
    /// Of a collective, as `ReplicaGroup`s.
    #[prost(bytes = "vec", repeated, tag = "49")]
    pub(crate) replica_groups: Vec<Vec<u8>>,
    #[prost(string, tag = "63")]
    pub(crate) comparison_direction: String,
    #[prost(bool, tag = "65")]
    pub(crate) custom_call_has_side_effect: bool,
    #[prost(message, optional, tag = "87")]
    pub(crate) device_list: Option<CollectiveDeviceList>,
    #[prost(message, optional, tag = "93")]
    pub(crate) mesh_list: Option<MeshDeviceList>,
    #[prost(message, repeated, tag = "74")]
    pub(crate) output_operand_aliasing: Vec<OutputOperandAliasing>,
}

/// Groups of devices, listed or counted.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CollectiveDeviceList {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(crate) groups: Vec<Vec<u8>>,
    #[prost(message, optional, tag = "2")]
    pub(crate) counted: Option<CountedGroups>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CountedGroups {
    #[prost(int64, tag = "1")]
    pub(crate) groups: i64,
}

/// Groups of devices, as axes of a mesh.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MeshDeviceList {
    #[prost(message, optional, tag = "1")]
    pub(crate) mesh: Option<Mesh>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) axes: Vec<AxisOfMesh>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Mesh {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(crate) axes: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AxisOfMesh {
    /// There if only a part of the axis is meant.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(crate) part: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SliceDimensions {
    #[prost(int64, tag = "1")]
    pub(crate) start: i64,
    #[prost(int64, tag = "2")]
    pub(crate) limit: i64,
    #[prost(int64, tag = "3")]
    pub(crate) stride: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct OutputOperandAliasing {
    #[prost(int64, repeated, tag = "1")]
    pub(crate) output_shape_index: Vec<i64>,
    #[prost(int64, tag = "2")]
    pub(crate) operand_index: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ShapeProto {
    /// A `PrimitiveType`.
    #[prost(int32, tag = "2")]
    pub(crate) element_type: i32,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) dimensions: Vec<i64>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) tuple_shapes: Vec<ShapeProto>,
    #[prost(message, optional, tag = "5")]
    pub(crate) layout: Option<LayoutProto>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LayoutProto {
    #[prost(int64, repeated, tag = "1")]
    pub(crate) minor_to_major: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct OpMetadata {
    #[prost(string, tag = "2")]
    pub(crate) op_name: String,
    #[prost(string, tag = "3")]
    pub(crate) source_file: String,
    #[prost(int32, tag = "4")]
    pub(crate) source_line: i32,
    #[prost(int32, tag = "15")]
    pub(crate) stack_frame_id: i32,
}

/// The order of the instructions of each computation, by id.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HloScheduleProto {
    #[prost(map = "int64, message", tag = "1")]
    pub(crate) sequences: HashMap<i64, InstructionSequence>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct InstructionSequence {
    #[prost(int64, repeated, tag = "1")]
    pub(crate) instruction_ids: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HloInputOutputAliasProto {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<AliasEntry>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AliasEntry {
    #[prost(int64, tag = "2")]
    pub(crate) parameter_number: i64,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) parameter_shape_index: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HloBufferDonorProto {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<BufferDonorEntry>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct BufferDonorEntry {
    #[prost(int64, tag = "1")]
    pub(crate) parameter_number: i64,
    #[prost(int64, repeated, tag = "2")]
    pub(crate) parameter_shape_index: Vec<i64>,
}

/// Call stacks in flat arrays; every id is a position counted from 1, and 0 means none.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StackFrameIndexProto {
    #[prost(string, repeated, tag = "1")]
    pub(crate) file_names: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) function_names: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) file_locations: Vec<FileLocation>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) stack_frames: Vec<StackFrame>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FileLocation {
    #[prost(int32, tag = "1")]
    pub(crate) file_name_id: i32,
    #[prost(int32, tag = "2")]
    pub(crate) function_name_id: i32,
    #[prost(int32, tag = "3")]
    pub(crate) line: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StackFrame {
    #[prost(int32, tag = "1")]
    pub(crate) file_location_id: i32,
    #[prost(int32, tag = "2")]
    pub(crate) parent_frame_id: i32,
}
