//! Checks what was read: every reference must lead somewhere, and nothing may be cyclic.

use std::collections::{HashMap, HashSet};

use super::module::{Comparison, Computation, Instruction, Module, Steps};
use super::opcode::Opcode;
use super::proto::{HloComputationProto, HloInstructionProto, HloModuleProto};
use super::shape::Shape;
use super::tpu;
use crate::error::Error;

impl Module {
    pub(super) fn check(proto: HloModuleProto) -> Result<Self, Error> {
        let mut positions = HashMap::with_capacity(proto.computations.len());
        for (position, computation) in proto.computations.iter().enumerate() {
            if positions.insert(computation.id, position).is_some() {
                return Err(malformed(&computation.name, format!("two computations have the id {}", computation.id)));
            }
        }
        let entry = *positions.get(&proto.entry_computation_id).ok_or_else(|| {
            malformed(
                "the module",
                format!("its entry computation has the id {}, which no computation has", proto.entry_computation_id),
            )
        })?;

        let mut instructions = Vec::with_capacity(proto.computations.iter().map(|c| c.instructions.len()).sum());
        let mut computations = Vec::with_capacity(proto.computations.len());
        let sequences = proto.schedule.unwrap_or_default().sequences;
        let mut schedule = Vec::new();
        for computation in proto.computations {
            if !sequences.is_empty() {
                let sequence = sequences.get(&computation.id).map(|s| s.instruction_ids.as_slice()).unwrap_or_default();
                let order: HashMap<i64, usize> = sequence.iter().copied().zip(0..).collect();
                // Fused computations are not scheduled: they run as one.
                schedule.extend(computation.instructions.iter().map(|i| order.get(&i.id).copied().unwrap_or(0)));
            }
            computations.push(check_computation(computation, &positions, &mut instructions)?);
        }
        let callees_first = callees_first(&computations, &instructions)?;

        let mut module = Self {
            name: proto.name,
            id: proto.id,
            computations,
            instructions,
            entry,
            schedule,
            callees_first,
            donated: HashSet::new(),
            frames: proto.stack_frame_index.unwrap_or_default(),
        };
        let aliased = proto.input_output_alias.unwrap_or_default().entries;
        let donors = proto.buffer_donor.unwrap_or_default().entries;
        let donated: Vec<_> = aliased
            .into_iter()
            .map(|entry| (entry.parameter_number, entry.parameter_shape_index))
            .chain(donors.into_iter().map(|entry| (entry.parameter_number, entry.parameter_shape_index)))
            .collect();
        for instruction in &module.instructions[module.computations[entry].instructions.clone()] {
            if instruction.opcode == Opcode::Parameter {
                for (number, index) in &donated {
                    if usize::try_from(*number).is_ok_and(|number| number == instruction.number)
                        && let Some(leaf) = instruction.shape.leaf_at(index)
                    {
                        module.donated.insert((instruction.number, leaf));
                    }
                }
            }
        }
        Ok(module)
    }
}

fn malformed(place: &str, problem: String) -> Error {
    Error::Malformed { place: place.to_owned(), problem }
}

fn check_computation(
    proto: HloComputationProto,
    computations: &HashMap<i64, usize>,
    instructions: &mut Vec<Instruction>,
) -> Result<Computation, Error> {
    let first = instructions.len();
    let name = proto.name;
    let mut positions = HashMap::with_capacity(proto.instructions.len());
    let ids: Vec<i64> = proto.instructions.iter().map(|instruction| instruction.id).collect();
    let mut numbers = HashSet::new();
    for (position, instruction) in proto.instructions.into_iter().enumerate() {
        let id = instruction.id;
        let place = |name_of: &str| format!("instruction {name_of:?} of computation {name:?}");
        let find = |id: &i64, what: &str, name_of: &str| {
            positions.get(id).copied().ok_or_else(|| {
                let problem = if ids.contains(id) {
                    format!("its {what} has the id {id}, which is listed at or after it: a cycle, or not in dependency order")
                } else {
                    format!("its {what} has the id {id}, which no instruction of the computation has")
                };
                malformed(&place(name_of), problem)
            })
        };
        let checked = check_instruction(instruction, find, computations, place)?;
        if checked.opcode == Opcode::Parameter && !numbers.insert(checked.number) {
            return Err(malformed(
                &format!("computation {name:?}"),
                format!("two parameters have the number {}", checked.number),
            ));
        }
        if positions.insert(id, position).is_some() {
            return Err(malformed(&format!("computation {name:?}"), format!("two instructions have the id {id}")));
        }
        instructions.push(checked);
    }
    tpu::find_callbacks(&mut instructions[first..]);
    if let Some(missing) = (0..numbers.len()).find(|number| !numbers.contains(number)) {
        return Err(malformed(
            &format!("computation {name:?}"),
            format!("it has {} parameters, and none has the number {missing}", numbers.len()),
        ));
    }
    let root = *positions.get(&proto.root_id).ok_or_else(|| {
        malformed(
            &format!("computation {name:?}"),
            format!("its root has the id {}, which no instruction of the computation has", proto.root_id),
        )
    })?;
    Ok(Computation { name, instructions: first..instructions.len(), root, parameters: numbers.len() })
}

fn check_instruction(
    proto: HloInstructionProto,
    find: impl Fn(&i64, &str, &str) -> Result<usize, Error>,
    computations: &HashMap<i64, usize>,
    place: impl Fn(&str) -> String,
) -> Result<Instruction, Error> {
    let opcode =
        if proto.is_host_transfer { Opcode::of_host_transfer(&proto.opcode) } else { Opcode::parse(&proto.opcode) };
    let among_all_devices = opcode.is_collective() && among_all(&proto);
    let name = proto.name;
    if proto.opcode.is_empty() {
        return Err(malformed(&place(&name), "it has no opcode".into()));
    }
    let shape = Shape::new(proto.shape.ok_or_else(|| malformed(&place(&name), "it has no shape".into()))?);
    let number = if opcode == Opcode::Parameter { proto.parameter_number } else { proto.tuple_index };
    let number = usize::try_from(number)
        .map_err(|_| malformed(&place(&name), format!("its parameter number or tuple index is {number}")))?;
    let operands = proto.operand_ids.iter().map(|id| find(id, "operand", &name)).collect::<Result<Vec<_>, _>>()?;
    let control_predecessors = proto
        .control_predecessor_ids
        .iter()
        .map(|id| find(id, "control predecessor", &name))
        .collect::<Result<Vec<_>, _>>()?;
    let called = proto
        .called_computation_ids
        .iter()
        .map(|id| {
            computations.get(id).copied().ok_or_else(|| {
                malformed(
                    &place(&name),
                    format!("it calls the computation with the id {id}, which is not in the module"),
                )
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let aliases = proto
        .output_operand_aliasing
        .iter()
        .filter_map(|alias| {
            Some((shape.leaf_at(&alias.output_shape_index)?, usize::try_from(alias.operand_index).ok()?))
        })
        .collect();
    let metadata = proto.metadata.unwrap_or_default();
    Ok(Instruction {
        id: proto.id,
        opcode,
        operands,
        control_predecessors,
        called,
        number,
        slice: proto
            .slice_dimensions
            .iter()
            .map(|d| Steps { start: d.start, limit: d.limit, stride: d.stride.max(1) })
            .collect(),
        counts_along: proto.dimensions.first().and_then(|&dimension| dimension.try_into().ok()),
        literal: proto.literal.unwrap_or_default(),
        target: tpu::target(proto.custom_call_target, &metadata.op_name),
        aliases,
        runs_at_least_once: opcode == Opcode::While && known_trip_count(&proto.backend_config).is_some_and(|n| n > 0),
        attributes: if opcode == Opcode::CustomCall { proto.backend_config } else { Vec::new() },
        comparison: match proto.comparison_direction.as_str() {
            "LT" => Comparison::Less,
            "EQ" => Comparison::Equal,
            _ => Comparison::Other,
        },
        among_all_devices,
        has_side_effect: proto.custom_call_has_side_effect,
        op_name: metadata.op_name,
        source: (metadata.source_file, metadata.source_line.try_into().unwrap_or(0)),
        stack_frame: metadata.stack_frame_id.try_into().unwrap_or(0),
        name,
        shape,
    })
}

/// Whether a collective is known to be among all devices: it says nothing else, or names one group.
fn among_all(proto: &HloInstructionProto) -> bool {
    let listed = proto
        .device_list
        .as_ref()
        .is_none_or(|list| list.groups.len() <= 1 && list.counted.as_ref().is_none_or(|counted| counted.groups <= 1));
    let of_mesh = proto.mesh_list.as_ref().is_none_or(|list| {
        let axes = list.mesh.as_ref().map_or(0, |mesh| mesh.axes.len());
        list.axes.len() == axes && list.axes.iter().all(|axis| axis.part.is_none())
    });
    proto.replica_groups.len() <= 1 && listed && of_mesh
}

/// What optimization found out about a loop, as it stands in the JSON of `backend_config`.
fn known_trip_count(backend_config: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(backend_config).ok()?;
    let (_, rest) = text.split_once("\"known_trip_count\"")?;
    let (_, rest) = rest.split_once("\"n\"")?;
    let digits = rest.trim_start_matches([':', ' ', '"']);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// Sorts the computations so that callees come before callers, without recursion: a module may nest 10,000 deep.
fn callees_first(computations: &[Computation], instructions: &[Instruction]) -> Result<Vec<usize>, Error> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        New,
        Open,
        Done,
    }
    let callees: Vec<Vec<usize>> = computations
        .iter()
        .map(|c| instructions[c.instructions.clone()].iter().flat_map(|i| i.called.iter().copied()).collect())
        .collect();
    let mut states = vec![State::New; computations.len()];
    let mut order = Vec::with_capacity(computations.len());
    for start in 0..computations.len() {
        if states[start] != State::New {
            continue;
        }
        states[start] = State::Open;
        let mut stack = vec![(start, 0)];
        while let Some((computation, next)) = stack.last_mut() {
            let Some(&callee) = callees[*computation].get(*next) else {
                states[*computation] = State::Done;
                order.push(*computation);
                stack.pop();
                continue;
            };
            *next += 1;
            match states[callee] {
                State::Done => {}
                State::New => {
                    states[callee] = State::Open;
                    stack.push((callee, 0));
                }
                State::Open => {
                    return Err(malformed(
                        &format!("computation {:?}", computations[callee].name),
                        "it calls itself, directly or through others".into(),
                    ));
                }
            }
        }
    }
    Ok(order)
}
