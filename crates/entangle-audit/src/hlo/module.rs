//! A module that was read and checked: every reference resolved, nothing cyclic.

use std::collections::{BTreeSet, HashSet};
use std::hash::Hash;
use std::ops::Range;

use prost::Message as _;

use super::opcode::Opcode;
use super::proto::{HloModuleProto, HloProto, HloSnapshot, StackFrameIndexProto};
use super::shape::Shape;
use crate::error::Error;

/// Call stacks deeper than this are cut, so that a cyclic one ends.
const MAX_FRAMES: usize = 256;

/// A checked XLA module, before or after optimization, of any backend.
#[derive(Debug)]
pub struct Module {
    pub(crate) name: String,
    pub(super) id: i64,
    pub(crate) computations: Vec<Computation>,
    /// The instructions of all computations, one computation after the other.
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) entry: usize,
    /// When each instruction runs within its computation; empty if the module is not scheduled.
    pub(crate) schedule: Vec<usize>,
    /// The computations in an order in which callees come before their callers.
    pub(crate) callees_first: Vec<usize>,
    /// The leaves of entry parameters whose buffers the program may reuse: (parameter, leaf).
    pub(crate) donated: HashSet<(usize, usize)>,
    pub(super) frames: StackFrameIndexProto,
}

#[derive(Debug)]
pub(crate) struct Computation {
    pub(crate) name: String,
    /// Where its instructions stand in [`Module::instructions`]; operands come before their users.
    pub(crate) instructions: Range<usize>,
    /// Position of the root within the computation.
    pub(crate) root: usize,
    /// How many parameters it has.
    pub(crate) parameters: usize,
}

#[derive(Debug)]
pub(crate) struct Instruction {
    pub(crate) name: String,
    /// Before optimization, instructions of one computation are numbered in the order in which they were traced.
    pub(crate) id: i64,
    pub(crate) opcode: Opcode,
    pub(crate) shape: Shape,
    /// Positions within the same computation, all before this one.
    pub(crate) operands: Vec<usize>,
    /// Positions within the same computation, all before this one.
    pub(crate) control_predecessors: Vec<usize>,
    /// Positions in [`Module::computations`].
    pub(crate) called: Vec<usize>,
    /// The parameter's number, or the tuple element's.
    pub(crate) number: usize,
    /// Of a slice, one for each dimension.
    pub(crate) slice: Vec<Steps>,
    /// Of an `iota`, the dimension along which it counts.
    pub(crate) counts_along: Option<usize>,
    /// The constant's `LiteralProto`.
    pub(crate) literal: Vec<u8>,
    pub(crate) target: String,
    /// Of a native call, its `backend_config`.
    pub(crate) attributes: Vec<u8>,
    /// (result leaf, operand) pairs that share one buffer.
    pub(crate) aliases: Vec<(usize, usize)>,
    /// The loop's body is known to run at least once.
    pub(crate) runs_at_least_once: bool,
    /// Of a `compare`.
    pub(crate) comparison: Comparison,
    /// Of a collective: it is known to be among all devices of the program.
    pub(crate) among_all_devices: bool,
    /// Of a native call: it is kept even if nothing needs its result.
    pub(crate) has_side_effect: bool,
    pub(crate) op_name: String,
    pub(super) source: (String, u32),
    pub(super) stack_frame: usize,
}

/// What a `compare` asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Less,
    Equal,
    Other,
}

/// The places `start`, `start + stride`, and so on, below `limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Steps {
    pub(crate) start: i64,
    pub(crate) limit: i64,
    pub(crate) stride: i64,
}

impl Instruction {
    /// What its lines are made of: equal for instructions from the same lines.
    pub(crate) fn line(&self) -> impl Eq + Hash + use<> {
        (self.stack_frame, if self.stack_frame == 0 { self.source.clone() } else { Default::default() })
    }
}

/// A line of the user's program.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source {
    /// The file, as Python named it.
    pub file: String,
    /// The line, counted from 1.
    pub line: u32,
    /// The function, where the module says it; empty otherwise.
    pub function: String,
}

impl Module {
    /// Reads a serialized `HloModuleProto`, `HloProto` or `HloSnapshot`, told apart by their structure.
    ///
    /// # Errors
    /// The bytes are something else, cut short, or refer to what is not there.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.is_empty() {
            return Err(Error::Empty);
        }
        if bytes.starts_with(b"HloModule ") {
            return Err(Error::Text);
        }
        let error = match HloModuleProto::decode(bytes) {
            Ok(module) if has_instructions(&module) => return Self::check(module),
            Ok(_) => None,
            Err(error) => Some(error),
        };
        let snapshot = || HloSnapshot::decode(bytes).ok().and_then(|snapshot| snapshot.hlo);
        let modules = HloProto::decode(bytes).ok().into_iter().chain(snapshot()).filter_map(|proto| proto.hlo_module);
        match modules.into_iter().find(has_instructions) {
            Some(module) => Self::check(module),
            None => Err(Error::NotAModule {
                reason: error
                    .map_or_else(|| "no computation with an instruction in it".into(), |error| error.to_string()),
            }),
        }
    }

    /// The module's name, such as `jit_step`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// XLA's number for it, which it keeps through compilation; not known of every module, which is 0 then.
    #[must_use]
    pub fn id(&self) -> i64 {
        self.id
    }

    /// The targets of all its native calls, in alphabetical order.
    #[must_use]
    pub fn targets(&self) -> BTreeSet<&str> {
        let calls = self.instructions.iter().filter(|instruction| instruction.opcode == Opcode::CustomCall);
        calls.map(|instruction| instruction.target.as_str()).collect()
    }

    /// JAX's names of the program's arguments, by their numbers; empty where there is none.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let mut names = vec![String::new(); self.computations[self.entry].parameters];
        for instruction in self.instructions_of(self.entry) {
            if instruction.opcode == Opcode::Parameter {
                names[instruction.number].clone_from(&instruction.op_name);
            }
        }
        names
    }

    /// How many instructions all computations have together.
    #[must_use]
    pub fn len(&self) -> usize {
        self.instructions.len()
    }

    /// Whether there is no instruction: never, in a module that was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.instructions.is_empty()
    }

    /// Whether the module lists the order in which its instructions run: the last step of a compilation.
    #[must_use]
    pub fn is_scheduled(&self) -> bool {
        !self.schedule.is_empty()
    }

    /// Where an instruction comes from: the innermost line first.
    pub(crate) fn sources(&self, instruction: &Instruction) -> Vec<Source> {
        let mut sources = Vec::new();
        let mut id = instruction.stack_frame;
        while let Some(frame) = id.checked_sub(1).and_then(|position| self.frames.stack_frames.get(position)) {
            let location = one_based(&self.frames.file_locations, frame.file_location_id);
            if let Some(location) = location {
                sources.push(Source {
                    file: one_based(&self.frames.file_names, location.file_name_id).cloned().unwrap_or_default(),
                    line: location.line.try_into().unwrap_or(0),
                    function: one_based(&self.frames.function_names, location.function_name_id)
                        .cloned()
                        .unwrap_or_default(),
                });
            }
            if sources.len() >= MAX_FRAMES || location.is_none() {
                break;
            }
            id = frame.parent_frame_id.try_into().unwrap_or(0);
        }
        if sources.is_empty() && !instruction.source.0.is_empty() {
            let (file, line) = instruction.source.clone();
            sources.push(Source { file, line, function: String::new() });
        }
        sources
    }

    /// The computation that holds the instruction at this position of [`Self::instructions`].
    pub(crate) fn computation_of(&self, instruction: usize) -> usize {
        self.computations.partition_point(|computation| computation.instructions.end <= instruction)
    }

    pub(crate) fn instructions_of(&self, computation: usize) -> &[Instruction] {
        &self.instructions[self.computations[computation].instructions.clone()]
    }
}

fn one_based<T>(values: &[T], id: i32) -> Option<&T> {
    values.get(usize::try_from(id).ok()?.checked_sub(1)?)
}

fn has_instructions(module: &HloModuleProto) -> bool {
    let mut instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    instructions.any(|instruction| !instruction.opcode.is_empty())
}
