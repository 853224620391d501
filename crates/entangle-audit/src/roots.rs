//! What a handle is: where its value came from, followed backwards.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use petgraph::Direction::Incoming;
use petgraph::visit::EdgeRef as _;

use crate::dependence::{Dependence, Edge, Node, Rule};
use crate::literal;
use crate::module::{Instruction, Module, Opcode, Shape, Steps};

/// A handle that may be more objects than this is taken for any of them.
const MAX_ROOTS: usize = 32;
/// Slices of slices deeper than this are taken for the whole.
const MAX_SLICES: usize = 4;
/// Handles that still change after so many passes over the loops are taken for any object.
const MAX_PASSES: usize = 64;
/// The numbers in a constant with more of them are not looked at.
const MAX_VALUES: usize = 1 << 16;
/// So many of them are named.
const MAX_NAMED: usize = 4;

/// Where a handle's value came from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Root {
    /// It cannot be told: it may be any object.
    Anything,
    Parameter {
        number: u32,
        leaf: u32,
    },
    /// These numbers, each at its place; if `anywhere`, each at any place. If there is only one, it is at all places.
    Constant {
        values: Arc<[i64]>,
        anywhere: bool,
    },
    /// Numbers that are not looked at, or that the program computes from constants.
    SomeConstant,
    /// A fixed part of another root, whose shape was `of_shape` when it was taken.
    Slice {
        of: u32,
        of_shape: Vec<i64>,
        steps: Vec<Steps>,
        depth: usize,
    },
    /// Elements of another root, not known which, or not at their places.
    Elements {
        of: u32,
    },
    /// Made by this node: a native call that is neither read nor write, or a random number.
    Made(Node),
}

/// The roots of all handles in a program.
pub(crate) struct Roots {
    list: Vec<Root>,
    names: Vec<String>,
    ids: HashMap<Root, u32>,
}

const ANYTHING: u32 = 0;

/// Which operands of a native call are followed: those of its results that are not aliased to an operand.
pub(crate) type Handles<'a> = dyn Fn(&Instruction) -> Option<Vec<usize>> + 'a;

impl Roots {
    /// Finds the roots of each of the given nodes. `handles` says which operands of a custom call its results stand for.
    pub(crate) fn find(
        module: &Module,
        dependence: &Dependence,
        handles: &Handles<'_>,
        wanted: impl IntoIterator<Item = Node>,
    ) -> (Self, HashMap<Node, Vec<u32>>) {
        let mut roots = Self { list: Vec::new(), names: Vec::new(), ids: HashMap::new() };
        roots.id(Root::Anything, || "an unknown handle".into());

        // Everything the wanted nodes come from, in an order in which only loops lead back.
        let mut needed: BTreeSet<Node> = BTreeSet::new();
        let mut origins: HashMap<Node, Vec<Node>> = HashMap::new();
        let mut open: Vec<Node> = wanted.into_iter().collect();
        while let Some(node) = open.pop() {
            if needed.insert(node) {
                let from = origins_of(module, dependence, handles, node);
                open.extend(&from);
                origins.insert(node, from);
            }
        }

        // Arguments come first, by their numbers, so that a race is named after the same one before and after optimization.
        let mut arguments: Vec<(usize, Node)> = needed
            .iter()
            .map(|&node| (dependence.instruction(module, node), node))
            .filter(|(instruction, _)| instruction.opcode == Opcode::Parameter)
            .map(|(instruction, node)| (instruction.number, node))
            .collect();
        arguments.sort_unstable();

        let mut sets: HashMap<Node, Vec<u32>> = HashMap::with_capacity(needed.len());
        for (_, node) in arguments {
            let set = roots.evaluate(module, dependence, node, &[], &sets);
            sets.insert(node, set);
        }
        for pass in 0.. {
            let mut changed = false;
            for &node in &needed {
                let mut set = roots.evaluate(module, dependence, node, &origins[&node], &sets);
                if sets.get(&node) != Some(&set) {
                    if pass > MAX_PASSES {
                        set = vec![ANYTHING];
                    }
                    changed |= sets.insert(node, set.clone()) != Some(set);
                }
            }
            let loops = needed.iter().any(|&node| dependence.graph[node].rule == Rule::Header);
            if !changed || !loops {
                return (roots, sets);
            }
        }
        unreachable!("every set grows to `Anything` at most")
    }

    fn evaluate(
        &mut self,
        module: &Module,
        dependence: &Dependence,
        node: Node,
        origins: &[Node],
        sets: &HashMap<Node, Vec<u32>>,
    ) -> Vec<u32> {
        let instruction = dependence.instruction(module, node);
        let value = dependence.graph[node];
        if matches!(value.rule, Rule::Header | Rule::Branches(_) | Rule::Exit(_)) {
            return bounded(origins.iter().filter_map(|origin| sets.get(origin)).flatten().copied().collect());
        }
        let shape = shape_of(module, dependence, node);
        if origins.is_empty() {
            return vec![self.source(module, instruction, node, value.leaf, shape)];
        }
        let mut set: Vec<u32> = Vec::new();
        for &origin in origins {
            let from = shape_of(module, dependence, origin);
            let keeps = from.zip(shape).is_some_and(|(from, to)| keeps_places(instruction.opcode, from, to));
            let single = from.is_some_and(|from| from.count() == 1);
            for &root in sets.get(&origin).into_iter().flatten() {
                set.push(if keeps { root } else { self.elements(root, single) });
            }
        }
        if value.rule == Rule::Any {
            self.compute(instruction.opcode, shape, &mut set);
        }
        if instruction.opcode == Opcode::Slice && value.rule == Rule::Any {
            let shape = operand_shape(module, dependence, node);
            for root in &mut set {
                *root = self.slice(*root, &shape, &instruction.slice);
            }
        }
        bounded(set)
    }

    /// The root of a node that carries on no other handle.
    fn source(
        &mut self,
        module: &Module,
        instruction: &Instruction,
        node: Node,
        leaf: u32,
        shape: Option<&Shape>,
    ) -> u32 {
        let values = match instruction.opcode {
            Opcode::Parameter => {
                let token = token_of(module, instruction);
                let number = u32::try_from(token.number).unwrap_or(u32::MAX);
                return self.id(Root::Parameter { number, leaf }, || describe_parameter(token, leaf));
            }
            Opcode::Constant => literal::values(&instruction.literal, MAX_VALUES)
                .filter(|values| shape.is_some_and(|shape| shape.count() == values.len())),
            Opcode::Iota => shape.and_then(|shape| counted(shape, instruction.counts_along?)),
            Opcode::DeviceNumber => None,
            _ => return self.id(Root::Made(node), || format!("the result of {}", instruction.name)),
        };
        match values {
            Some(values) => self.constant(values, false),
            None => self.some_constant(),
        }
    }

    fn constant(&mut self, mut values: Vec<i64>, anywhere: bool) -> u32 {
        if values.iter().all(|value| *value == values[0]) {
            values.truncate(1);
        }
        if anywhere {
            values.sort_unstable();
            values.dedup();
        }
        let name = || {
            let named: Vec<_> = values.iter().take(MAX_NAMED).map(i64::to_string).collect();
            let (several, more) = (if values.len() == 1 { "" } else { "s" }, values.len() > MAX_NAMED);
            format!("the constant{several} {}{}", named.join(", "), if more { ", ..." } else { "" })
        };
        self.id(Root::Constant { values: values.as_slice().into(), anywhere: anywhere && values.len() > 1 }, name)
    }

    fn some_constant(&mut self) -> u32 {
        self.id(Root::SomeConstant, || "a number that is computed from constants".into())
    }

    /// What an operation that computes makes of its operands' roots.
    fn compute(&mut self, opcode: Opcode, shape: Option<&Shape>, set: &mut Vec<u32>) {
        let same_in_all_types = |value: &i64| (0..=127).contains(value);
        let converts = opcode == Opcode::Convert && shape.is_some_and(Shape::holds_numbers_of_a_byte);
        let kept = |roots: &Self, root: u32| match &roots.list[root as usize] {
            Root::Constant { values, .. } => converts && values.iter().all(same_in_all_types),
            root => *root != Root::SomeConstant,
        };
        match opcode {
            Opcode::Convert | Opcode::Elementwise | Opcode::Compare | Opcode::Other => {}
            _ => return,
        }
        // What is computed from a handle and constants is that handle: `handle + 0`.
        let before = set.len();
        set.retain(|&root| kept(self, root));
        if set.is_empty() && before > 0 {
            set.push(self.some_constant());
        }
    }

    /// The root of a part at known places.
    fn slice(&mut self, of: u32, of_shape: &[i64], steps: &[Steps]) -> u32 {
        let whole = steps
            .iter()
            .zip(of_shape)
            .all(|(steps, &size)| (steps.start, steps.stride) == (0, 1) && steps.limit == size);
        let depth = match &self.list[of as usize] {
            _ if whole => return of,
            Root::Anything | Root::SomeConstant | Root::Elements { .. } | Root::Slice { depth: MAX_SLICES, .. } => {
                return of;
            }
            Root::Constant { anywhere, values } if *anywhere || values.len() == 1 => return of,
            Root::Constant { values, .. } => {
                return match picked(values, of_shape, steps) {
                    Some(values) => self.constant(values, false),
                    None => self.elements(of, false),
                };
            }
            Root::Slice { depth, .. } => depth + 1,
            Root::Parameter { .. } | Root::Made(_) => 1,
        };
        let place = |steps: &Steps| match *steps {
            Steps { start, limit, .. } if start + 1 == limit => start.to_string(),
            Steps { start, limit, stride: 1 } => format!("{start}:{limit}"),
            Steps { start, limit, stride } => format!("{start}:{limit}:{stride}"),
        };
        let places: Vec<_> = steps.iter().map(place).collect();
        let name = format!("element {} of {}", places.join(","), self.names[of as usize]);
        self.id(Root::Slice { of, of_shape: of_shape.to_vec(), steps: steps.to_vec(), depth }, || name)
    }

    /// The root of parts at unknown places; of all of it if it is only a `single` element.
    fn elements(&mut self, of: u32, single: bool) -> u32 {
        match &self.list[of as usize] {
            Root::Anything | Root::SomeConstant | Root::Elements { .. } => of,
            Root::Constant { values, anywhere } if *anywhere || values.len() == 1 => of,
            Root::Constant { values, .. } => self.constant(values.to_vec(), true),
            Root::Parameter { .. } | Root::Slice { .. } | Root::Made(_) => {
                let name = &self.names[of as usize];
                let name = if single { name.clone() } else { format!("an element of {name}") };
                self.id(Root::Elements { of }, || name)
            }
        }
    }

    fn id(&mut self, root: Root, name: impl FnOnce() -> String) -> u32 {
        if let Some(&id) = self.ids.get(&root) {
            return id;
        }
        let id = u32::try_from(self.list.len()).expect("roots are fewer than nodes");
        self.ids.insert(root.clone(), id);
        self.list.push(root);
        self.names.push(name());
        id
    }

    /// How many roots there are.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn name(&self, root: u32) -> &str {
        &self.names[root as usize]
    }

    /// What two roots that overlap have in common, but for `Anything`.
    pub(crate) fn base(&self, root: u32) -> u32 {
        const CONSTANTS: u32 = u32::MAX;
        let whole = self.chain(root)[0];
        match self.list[whole as usize] {
            Root::Constant { .. } | Root::SomeConstant => CONSTANTS,
            _ => whole,
        }
    }

    /// The first and the last place of a part of an array of one dimension, and the array's length; for a constant the least and the
    /// largest value. `None` for everything else.
    pub(crate) fn extent(&self, root: u32) -> Option<((i64, i64), i64)> {
        let chain = self.chain(root);
        match &self.list[chain[chain.len().min(2) - 1] as usize] {
            Root::Slice { of_shape, steps, .. } => match (&of_shape[..], &steps[..]) {
                (&[length], &[Steps { start, limit, .. }]) => Some(((start, limit.saturating_sub(1)), length)),
                _ => None,
            },
            Root::Constant { values, .. } => Some(((*values.iter().min()?, *values.iter().max()?), 0)),
            _ => None,
        }
    }

    /// The root's slices, the whole first.
    fn chain(&self, root: u32) -> Vec<u32> {
        let mut root = if let Root::Elements { of } = self.list[root as usize] { of } else { root };
        let mut chain = vec![root];
        while let Root::Slice { of, .. } = &self.list[root as usize] {
            root = *of;
            chain.push(root);
        }
        chain.reverse();
        chain
    }

    /// Whether two handles may be one object.
    pub(crate) fn overlap(&self, a: u32, b: u32) -> bool {
        if a == b || a == ANYTHING || b == ANYTHING {
            return true;
        }
        match (&self.list[a as usize], &self.list[b as usize]) {
            (Root::Constant { values: a, .. }, Root::Constant { values: b, .. }) => {
                let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
                let short: HashSet<&i64> = short.iter().collect();
                return long.iter().any(|value| short.contains(value));
            }
            (Root::Constant { .. }, Root::SomeConstant) | (Root::SomeConstant, Root::Constant { .. }) => return true,
            _ => {}
        }
        let (a, b) = (self.chain(a), self.chain(b));
        if a[0] != b[0] {
            return false;
        }
        match a.iter().zip(&b).find(|(a, b)| a != b) {
            // One is a part of the other.
            None => true,
            Some((&a, &b)) => match (&self.list[a as usize], &self.list[b as usize]) {
                (
                    Root::Slice { of_shape: shape_a, steps: steps_a, .. },
                    Root::Slice { of_shape: shape_b, steps: steps_b, .. },
                ) => {
                    // Places in arrays of different shapes cannot be compared.
                    shape_a != shape_b
                        || steps_a.iter().zip(steps_b).all(|(a, b)| a.start < b.limit && b.start < a.limit)
                }
                _ => true,
            },
        }
    }
}

/// The set in order, or `Anything` if it is large.
fn bounded(mut set: Vec<u32>) -> Vec<u32> {
    set.sort_unstable();
    set.dedup();
    if set.len() > MAX_ROOTS || set.contains(&ANYTHING) { vec![ANYTHING] } else { set }
}

/// Whether each element stays at its place, counted through the whole array, on its way from an operand to the result.
fn keeps_places(opcode: Opcode, from: &Shape, to: &Shape) -> bool {
    if from.count() == 1 && to.count() == 1 {
        return true;
    }
    let same_shape = from.dimensions == to.dimensions;
    match opcode {
        // What becomes of them is said elsewhere.
        Opcode::Slice => true,
        Opcode::Copy
        | Opcode::CopyStart
        | Opcode::CustomCall
        | Opcode::Select
        | Opcode::Convert
        | Opcode::Elementwise
        | Opcode::Compare => same_shape,
        Opcode::Reshape => from.count() == to.count(),
        Opcode::Bitcast if same_shape && from.minor_to_major == to.minor_to_major => true,
        Opcode::Bitcast => from.count() == to.count() && from.is_row_major() && to.is_row_major(),
        _ => false,
    }
}

/// The values of an `iota`.
fn counted(shape: &Shape, along: usize) -> Option<Vec<i64>> {
    let size = *shape.dimensions.get(along)?;
    let inner: i64 = shape.dimensions[along + 1..].iter().try_fold(1, |count: i64, size| count.checked_mul(*size))?;
    let count = i64::try_from(shape.count()).ok()?;
    (shape.count() <= MAX_VALUES).then(|| (0..count).map(|place| place / inner % size).collect())
}

/// The elements at some places of an array; `None` if they are not all in it.
fn picked(values: &[i64], shape: &[i64], steps: &[Steps]) -> Option<Vec<i64>> {
    let count = shape.iter().try_fold(1_usize, |count, &size| count.checked_mul(size.try_into().ok()?))?;
    if shape.len() != steps.len() || count != values.len() || count == 0 {
        return None;
    }
    let mut places = vec![0_i64];
    for (&size, steps) in shape.iter().zip(steps) {
        if steps.start < 0 || steps.limit > size {
            return None;
        }
        let stride = usize::try_from(steps.stride).ok()?;
        places = places
            .into_iter()
            .flat_map(|place| (steps.start..steps.limit).step_by(stride).map(move |at| place * size + at))
            .collect();
    }
    places.into_iter().map(|place| values.get(usize::try_from(place).ok()?).copied()).collect()
}

/// The nodes whose handle this node carries on; none if it is a root itself.
fn origins_of(module: &Module, dependence: &Dependence, handles: &Handles<'_>, node: Node) -> Vec<Node> {
    let value = dependence.graph[node];
    let instruction = dependence.instruction(module, node);
    let from = |node: Node, wanted: &dyn Fn(Edge) -> bool| -> Vec<Node> {
        let edges = dependence.graph.edges_directed(node, Incoming);
        edges.filter(|edge| wanted(*edge.weight())).map(|edge| edge.source()).collect()
    };
    let operand = |edge: Edge, wanted: &[u32]| matches!(edge, Edge::Operand(index) if wanted.contains(&index));
    match value.rule {
        Rule::Header => return from(node, &|edge| matches!(edge, Edge::Init | Edge::Back)),
        Rule::Branches(_) => return from(node, &|edge| matches!(edge, Edge::Branch(_))),
        Rule::Exit(_) => return from(node, &|edge| matches!(edge, Edge::Operand(_))),
        Rule::Any | Rule::Leaf => {}
    }
    match instruction.opcode {
        Opcode::Parameter | Opcode::Constant | Opcode::Iota | Opcode::DeviceNumber => Vec::new(),
        Opcode::CustomCall => {
            let of_call = |edge: Edge| matches!(edge, Edge::Operand(_));
            let call = if value.rule == Rule::Leaf { from(node, &of_call)[0] } else { node };
            let aliased = instruction.aliases.iter().find(|(leaf, _)| *leaf == value.leaf as usize);
            let operands = match aliased {
                Some(&(_, operand)) => vec![operand],
                None => handles(instruction).unwrap_or_else(|| {
                    if hands_on(&instruction.target) { vec![value.leaf as usize] } else { Vec::new() }
                }),
            };
            let operands: Vec<u32> = operands.into_iter().filter_map(|operand| operand.try_into().ok()).collect();
            from(call, &|edge| operand(edge, &operands))
        }
        Opcode::Slice | Opcode::Pick => from(node, &|edge| operand(edge, &[0])),
        Opcode::Update => from(node, &|edge| operand(edge, &[0, 1])),
        Opcode::Select => from(node, &|edge| operand(edge, &[1, 2])),
        Opcode::Scatter => {
            let places = instruction.operands.len() / 2;
            from(node, &|edge| matches!(edge, Edge::Operand(index) if index as usize != places))
        }
        _ => from(node, &|edge| matches!(edge, Edge::Operand(_))),
    }
}

/// XLA's own calls that only say where a value lies: result i is operand i, or a device's part of it. Only programs as written have them.
fn hands_on(target: &str) -> bool {
    target.starts_with("xla.sdy.")
        || matches!(
            target,
            "Sharding"
                | "SPMDFullToShardShape"
                | "SPMDShardToFullShape"
                | "annotate_device_placement"
                | "MoveToHost"
                | "MoveToDevice"
        )
}

/// The shape of one array.
fn shape_of<'m>(module: &'m Module, dependence: &Dependence, node: Node) -> Option<&'m Shape> {
    dependence.instruction(module, node).shape.leaf(dependence.graph[node].leaf as usize)
}

fn operand_shape(module: &Module, dependence: &Dependence, node: Node) -> Vec<i64> {
    let instruction = dependence.instruction(module, node);
    let siblings = module.instructions_of(module.computation_of(dependence.graph[node].instruction as usize));
    instruction.operands.first().map(|&operand| siblings[operand].shape.dimensions.clone()).unwrap_or_default()
}

/// An argument that is a `Handle` of `entangle_jax` comes as two parameters, which stand for one object: its token, and its
/// fence, known by its name.
fn token_of<'a>(module: &'a Module, parameter: &'a Instruction) -> &'a Instruction {
    let entry = &module.instructions[module.computations[module.entry].instructions.clone()];
    let fence = &parameter.op_name;
    fence
        .match_indices(".fence")
        .map(|(start, word)| format!("{}.token{}", &fence[..start], &fence[start + word.len()..]))
        .find_map(|name| entry.iter().find(|other| other.opcode == Opcode::Parameter && other.op_name == name))
        .unwrap_or(parameter)
}

fn describe_parameter(instruction: &Instruction, leaf: u32) -> String {
    let name = if instruction.op_name.is_empty() { &instruction.name } else { &instruction.op_name };
    if instruction.shape.is_tuple() {
        format!("argument {} ({name}), element {leaf}", instruction.number)
    } else {
        format!("argument {} ({name})", instruction.number)
    }
}
