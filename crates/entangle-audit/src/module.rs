//! A module that was read and checked: every reference resolved, nothing cyclic.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::ops::Range;

use prost::Message as _;

use crate::error::Error;
use crate::proto::{
    HloComputationProto, HloInstructionProto, HloModuleProto, HloProto, ShapeProto, StackFrameIndexProto,
};

/// `TUPLE` of XLA's `PrimitiveType`.
const TUPLE: i32 = 13;

/// Call stacks deeper than this are cut, so that a cyclic one ends.
const MAX_FRAMES: usize = 256;

/// A checked XLA module, before or after optimization, of any backend.
#[derive(Debug)]
pub struct Module {
    pub(crate) name: String,
    id: i64,
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
    frames: StackFrameIndexProto,
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
    /// (result leaf, operand) pairs that share one buffer.
    pub(crate) aliases: Vec<(usize, usize)>,
    /// The loop's body is known to run at least once.
    pub(crate) runs_at_least_once: bool,
    pub(crate) is_less_than: bool,
    pub(crate) op_name: String,
    source: (String, u32),
    stack_frame: usize,
}

/// The places `start`, `start + stride`, and so on, below `limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Steps {
    pub(crate) start: i64,
    pub(crate) limit: i64,
    pub(crate) stride: i64,
}

/// What the audit tells apart. Every operation not named here is `Other`: each of its results depends on all its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opcode {
    Parameter,
    Constant,
    Tuple,
    GetTupleElement,
    While,
    Conditional,
    /// `call` and `fusion`: operand i is parameter i.
    Call,
    AsyncStart,
    AsyncUpdate,
    AsyncDone,
    /// Leaf i of the result is leaf i of operand 0: `opt-barrier`, `domain`, `add-dependency`.
    PassThrough,
    CustomCall,
    Copy,
    CopyStart,
    Bitcast,
    /// The elements stay in their order.
    Reshape,
    Transpose,
    Slice,
    /// `dynamic-slice` and `gather`: the result is picked out of operand 0.
    Pick,
    /// `dynamic-update-slice`: operand 0 with operand 1 put into it.
    Update,
    /// As `Update`, with operands of which one is the places.
    Scatter,
    /// Elements of the operands at other places: `reverse`, `broadcast`, `pad`, `concatenate`, `sort`.
    Move,
    /// 0, 1, 2 and so on.
    Iota,
    /// The number of the device.
    DeviceNumber,
    Select,
    Convert,
    /// Element by element.
    Elementwise,
    Compare,
    Collective,
    Other,
}

/// Operations that compute each element of the result from the elements at its place alone.
const ELEMENTWISE: [&str; 45] = [
    "abs",
    "add",
    "and",
    "atan2",
    "bitcast-convert",
    "cbrt",
    "ceil",
    "clamp",
    "complex",
    "cosine",
    "count-leading-zeros",
    "divide",
    "erf",
    "exponential",
    "exponential-minus-one",
    "floor",
    "imag",
    "is-finite",
    "log",
    "log-plus-one",
    "logistic",
    "maximum",
    "minimum",
    "multiply",
    "negate",
    "not",
    "or",
    "popcnt",
    "power",
    "real",
    "reduce-precision",
    "remainder",
    "round-nearest-afz",
    "round-nearest-even",
    "rsqrt",
    "shift-left",
    "shift-right-arithmetic",
    "shift-right-logical",
    "sign",
    "sine",
    "sqrt",
    "subtract",
    "tan",
    "tanh",
    "xor",
];

impl Opcode {
    fn parse(opcode: &str) -> Self {
        match opcode {
            "parameter" => Self::Parameter,
            "constant" => Self::Constant,
            "tuple" => Self::Tuple,
            "get-tuple-element" => Self::GetTupleElement,
            "while" => Self::While,
            "conditional" => Self::Conditional,
            "call" | "fusion" => Self::Call,
            "async-start" => Self::AsyncStart,
            "async-update" => Self::AsyncUpdate,
            "async-done" => Self::AsyncDone,
            "opt-barrier" | "optimization-barrier" | "domain" | "add-dependency" => Self::PassThrough,
            "custom-call" => Self::CustomCall,
            "copy" | "copy-done" => Self::Copy,
            "copy-start" => Self::CopyStart,
            "bitcast" => Self::Bitcast,
            "reshape" => Self::Reshape,
            "transpose" => Self::Transpose,
            "slice" => Self::Slice,
            "dynamic-slice" | "gather" => Self::Pick,
            "dynamic-update-slice" => Self::Update,
            "scatter" => Self::Scatter,
            "reverse" | "broadcast" | "pad" | "concatenate" | "sort" => Self::Move,
            "iota" => Self::Iota,
            "partition-id" | "replica-id" => Self::DeviceNumber,
            "select" => Self::Select,
            "convert" => Self::Convert,
            "compare" => Self::Compare,
            _ if ELEMENTWISE.contains(&opcode) => Self::Elementwise,
            _ if ["all-", "collective-", "reduce-scatter", "ragged-all-to-all"]
                .iter()
                .any(|start| opcode.starts_with(start)) =>
            {
                Self::Collective
            }
            _ => Self::Other,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Shape {
    element_type: i32,
    pub(crate) dimensions: Vec<i64>,
    pub(crate) minor_to_major: Vec<i64>,
    pub(crate) elements: Vec<Shape>,
    leaves: usize,
}

impl Shape {
    /// The depth of the recursion is bounded: prost reads no message nested deeper than 100.
    fn new(proto: ShapeProto) -> Self {
        let elements: Vec<Self> = proto.tuple_shapes.into_iter().map(Self::new).collect();
        let is_tuple = proto.element_type == TUPLE;
        Self {
            element_type: proto.element_type,
            dimensions: proto.dimensions,
            minor_to_major: proto.layout.map(|layout| layout.minor_to_major).unwrap_or_default(),
            leaves: if is_tuple { elements.iter().map(|element| element.leaves).sum() } else { 1 },
            elements,
        }
    }

    /// How many arrays, tokens and opaque values it holds.
    pub(crate) fn leaves(&self) -> usize {
        self.leaves
    }

    pub(crate) fn is_tuple(&self) -> bool {
        self.element_type == TUPLE
    }

    /// The leaf at this position, counted through all nested tuples.
    pub(crate) fn leaf(&self, position: usize) -> Option<&Self> {
        if !self.is_tuple() {
            return (position == 0).then_some(self);
        }
        let mut first = 0;
        for element in &self.elements {
            if position < first + element.leaves {
                return element.leaf(position - first);
            }
            first += element.leaves;
        }
        None
    }

    /// The leaf that a shape index such as `{1, 0}` names.
    fn leaf_at(&self, index: &[i64]) -> Option<usize> {
        let mut shape = self;
        let mut first = 0;
        for &step in index {
            let step = usize::try_from(step).ok()?;
            first += shape.elements.get(..step)?.iter().map(Self::leaves).sum::<usize>();
            shape = shape.elements.get(step)?;
        }
        Some(first)
    }

    /// The leaves of a tuple's element.
    pub(crate) fn element_leaves(&self, element: usize) -> Option<Range<usize>> {
        let count = self.elements.get(element)?.leaves;
        let first = self.elements[..element].iter().map(Self::leaves).sum::<usize>();
        Some(first..first + count)
    }

    /// No element: XLA puts a constant in its place before the program runs.
    pub(crate) fn has_no_elements(&self) -> bool {
        self.dimensions.contains(&0)
    }

    /// Whether the elements' type holds each integer from 0 to 127.
    pub(crate) fn holds_numbers_of_a_byte(&self) -> bool {
        // Of XLA's `PrimitiveType`: s8 to s64, u8 to u64, f16, f32, f64.
        (2..=12).contains(&self.element_type)
    }

    /// How many elements an array has.
    pub(crate) fn count(&self) -> usize {
        self.dimensions.iter().fold(1, |count: usize, &size| count.saturating_mul(size.try_into().unwrap_or(0)))
    }

    /// Whether the elements lie in memory in the order of their places.
    pub(crate) fn is_row_major(&self) -> bool {
        let long = |dimension: &&i64| {
            let size = usize::try_from(**dimension).ok().and_then(|dimension| self.dimensions.get(dimension));
            size != Some(&1)
        };
        self.minor_to_major.iter().filter(long).is_sorted_by(|a, b| a > b)
    }

    /// The bytes of all leaves, without padding.
    pub(crate) fn bytes(&self) -> u64 {
        if self.is_tuple() {
            return self.elements.iter().fold(0, |sum, element| sum.saturating_add(element.bytes()));
        }
        let elements =
            self.dimensions.iter().fold(1_u64, |product, &size| product.saturating_mul(size.try_into().unwrap_or(0)));
        // By XLA's `PrimitiveType`; types narrower than a byte are counted as a byte each.
        let bytes = match self.element_type {
            1 | 2 | 6 | 19..=33 => 1, // pred, s8, u8, every 8-bit float and everything narrower
            3 | 7 | 10 | 16 => 2,     // s16, u16, f16, bf16
            4 | 8 | 11 => 4,          // s32, u32, f32
            5 | 9 | 12 | 15 => 8,     // s64, u64, f64, c64
            18 => 16,                 // c128
            _ => 0,                   // tokens and opaque values
        };
        elements.saturating_mul(bytes)
    }
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
    /// Reads a serialized `HloModuleProto` or `HloProto`, told apart by their structure.
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
        match HloProto::decode(bytes) {
            Ok(HloProto { hlo_module: Some(module) }) if has_instructions(&module) => Self::check(module),
            _ => Err(Error::NotAModule {
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

    fn check(proto: HloModuleProto) -> Result<Self, Error> {
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
    let opcode = Opcode::parse(&proto.opcode);
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
        target: proto.custom_call_target,
        aliases,
        runs_at_least_once: opcode == Opcode::While && known_trip_count(&proto.backend_config).is_some_and(|n| n > 0),
        is_less_than: proto.comparison_direction == "LT",
        op_name: metadata.op_name,
        source: (metadata.source_file, metadata.source_line.try_into().unwrap_or(0)),
        stack_frame: metadata.stack_frame_id.try_into().unwrap_or(0),
        name,
        shape,
    })
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
