//! Builds small modules, so that no binary file is needed.

use std::collections::HashMap;

use prost::Message as _;

use crate::hlo::proto::{
    AliasEntry, HloComputationProto, HloInputOutputAliasProto, HloInstructionProto, HloModuleProto, HloScheduleProto,
    InstructionSequence, LayoutProto, OpMetadata, OutputOperandAliasing, ShapeProto, SliceDimensions,
};

/// A computation being built; instructions are known by their ids.
pub(crate) struct Computation {
    pub(crate) proto: HloComputationProto,
    next: i64,
}

pub(crate) fn pred() -> ShapeProto {
    ShapeProto { element_type: 1, ..ShapeProto::default() }
}

pub(crate) fn s32() -> ShapeProto {
    ShapeProto { element_type: 4, ..ShapeProto::default() }
}

pub(crate) fn handle() -> ShapeProto {
    ShapeProto { element_type: 9, ..ShapeProto::default() }
}

pub(crate) fn floats(dimensions: &[i64]) -> ShapeProto {
    let rank = i64::try_from(dimensions.len()).expect("small");
    let minor_to_major = (0..rank).rev().collect();
    ShapeProto {
        element_type: 11,
        dimensions: dimensions.to_vec(),
        layout: Some(LayoutProto { minor_to_major }),
        ..ShapeProto::default()
    }
}

pub(crate) fn handles(count: i64) -> ShapeProto {
    ShapeProto { element_type: 9, dimensions: vec![count], ..ShapeProto::default() }
}

pub(crate) fn tuple(elements: &[ShapeProto]) -> ShapeProto {
    ShapeProto { element_type: 13, tuple_shapes: elements.to_vec(), ..ShapeProto::default() }
}

impl Computation {
    /// Ids are 64 bits wide, with the computation in the upper half, as XLA writes them.
    pub(crate) fn new(name: &str, id: i64) -> Self {
        let proto = HloComputationProto { name: name.into(), id, ..HloComputationProto::default() };
        Self { proto, next: id << 32 }
    }

    pub(crate) fn push(&mut self, mut instruction: HloInstructionProto) -> i64 {
        instruction.id = self.next;
        self.next += 1;
        self.proto.root_id = instruction.id;
        self.proto.instructions.push(instruction);
        self.proto.root_id
    }

    pub(crate) fn op(&mut self, name: &str, opcode: &str, shape: ShapeProto, operands: &[i64]) -> i64 {
        self.push(HloInstructionProto {
            name: name.into(),
            opcode: opcode.into(),
            shape: Some(shape),
            operand_ids: operands.to_vec(),
            ..HloInstructionProto::default()
        })
    }

    pub(crate) fn last(&mut self) -> &mut HloInstructionProto {
        self.proto.instructions.last_mut().expect("an instruction was pushed")
    }

    pub(crate) fn get(&mut self, id: i64) -> &mut HloInstructionProto {
        self.proto
            .instructions
            .iter_mut()
            .find(|instruction| instruction.id == id)
            .expect("the id is from this computation")
    }

    pub(crate) fn parameter(&mut self, number: i64, shape: ShapeProto) -> i64 {
        let id = self.op(&format!("p{number}"), "parameter", shape, &[]);
        self.last().parameter_number = number;
        id
    }

    /// A constant s32 or u64; both are written as varints.
    pub(crate) fn constant(&mut self, value: u8) -> i64 {
        let id = self.op(&format!("constant.{value}"), "constant", handle(), &[]);
        // u64s = 7, one varint.
        self.last().literal = Some(vec![7 << 3 | 2, 1, value]);
        id
    }

    /// A constant u64[n].
    pub(crate) fn table(&mut self, values: &[u8]) -> i64 {
        let count = u8::try_from(values.len()).expect("small");
        let id = self.op("table", "constant", handles(count.into()), &[]);
        self.last().literal = Some([&[7 << 3 | 2, count], values].concat());
        id
    }

    pub(crate) fn call(&mut self, name: &str, target: &str, shape: ShapeProto, operands: &[i64]) -> i64 {
        let id = self.op(name, "custom-call", shape, operands);
        self.last().custom_call_target = target.into();
        self.last().metadata =
            Some(OpMetadata { source_file: "user.py".into(), source_line: 1, ..OpMetadata::default() });
        id
    }

    pub(crate) fn read(&mut self, name: &str, operands: &[i64]) -> i64 {
        self.call(name, "read", floats(&[8]), operands)
    }

    pub(crate) fn write(&mut self, name: &str, operands: &[i64]) -> i64 {
        self.call(name, "write", s32(), operands)
    }

    /// One payload leaf, the first operand; the rest are witnesses.
    pub(crate) fn entangle(&mut self, name: &str, operands: &[i64]) -> i64 {
        let shape = self.get(operands[0]).shape.clone().expect("every instruction here has a shape");
        let id = self.call(name, "entangle", shape, operands);
        self.last().output_operand_aliasing = vec![OutputOperandAliasing::default()];
        id
    }

    /// What stands for `entangle` on TPU.
    pub(crate) fn kernel(&mut self, name: &str, operands: &[i64]) -> i64 {
        let id = self.entangle(name, operands);
        self.last().custom_call_target = "tpu_custom_call".into();
        self.last().metadata = Some(OpMetadata { op_name: "jit(f)/entangle".into(), ..OpMetadata::default() });
        id
    }

    pub(crate) fn tuple(&mut self, operands: &[i64]) -> i64 {
        let shapes: Vec<ShapeProto> =
            operands.iter().map(|&id| self.get(id).shape.clone().unwrap_or_default()).collect();
        self.op("tuple", "tuple", tuple(&shapes), operands)
    }

    pub(crate) fn element(&mut self, of: i64, index: i64) -> i64 {
        let shape = self.get(of).shape.clone().unwrap_or_default();
        let element = shape.tuple_shapes[usize::try_from(index).expect("small")].clone();
        let id = self.op(&format!("element.{index}"), "get-tuple-element", element, &[of]);
        self.last().tuple_index = index;
        id
    }

    pub(crate) fn slice(&mut self, of: i64, start: i64, limit: i64) -> i64 {
        let id = self.op("slice", "slice", handles(limit - start), &[of]);
        self.last().slice_dimensions = vec![SliceDimensions { start, limit, stride: 1 }];
        id
    }

    pub(crate) fn calling(
        &mut self,
        name: &str,
        opcode: &str,
        shape: ShapeProto,
        operands: &[i64],
        called: &[i64],
    ) -> i64 {
        let id = self.op(name, opcode, shape, operands);
        self.last().called_computation_ids = called.to_vec();
        id
    }

    pub(crate) fn while_loop(&mut self, name: &str, init: i64, body: &Computation, condition: &Computation) -> i64 {
        let shape = self.get(init).shape.clone().unwrap_or_default();
        self.calling(name, "while", shape, &[init], &[body.proto.id, condition.proto.id])
    }
}

/// A condition that only asks a value that nobody computes.
pub(crate) fn unknown_condition(id: i64, carried: &ShapeProto) -> Computation {
    let mut condition = Computation::new("condition", id);
    condition.parameter(0, carried.clone());
    condition.op("more", "rng", pred(), &[]);
    condition
}

/// The last computation is the entry.
pub(crate) fn module(computations: Vec<Computation>) -> HloModuleProto {
    let entry = computations.last().map_or(0, |computation| computation.proto.id);
    HloModuleProto {
        name: "jit_f".into(),
        computations: computations.into_iter().map(|computation| computation.proto).collect(),
        entry_computation_id: entry,
        ..HloModuleProto::default()
    }
}

pub(crate) fn bytes(computations: Vec<Computation>) -> Vec<u8> {
    module(computations).encode_to_vec()
}

/// Lists the instructions in the order in which they were built.
pub(crate) fn schedule(mut module: HloModuleProto) -> HloModuleProto {
    let sequences: HashMap<i64, InstructionSequence> = module
        .computations
        .iter()
        .map(|computation| {
            let instruction_ids = computation.instructions.iter().map(|instruction| instruction.id).collect();
            (computation.id, InstructionSequence { instruction_ids })
        })
        .collect();
    module.schedule = Some(HloScheduleProto { sequences });
    module
}

pub(crate) fn donate(mut module: HloModuleProto, parameter: i64) -> HloModuleProto {
    let entry = AliasEntry { parameter_number: parameter, parameter_shape_index: Vec::new() };
    module.input_output_alias = Some(HloInputOutputAliasProto { entries: vec![entry] });
    module
}
