//! What a handle is: where its value came from, followed backwards.
//!
//! It is one of three: an argument, or a fixed element of it, that was passed on unchanged; constants that were passed on unchanged; or
//! anything. Whatever computes gives anything, but for what it computes from constants alone, which is any constant.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use petgraph::Direction::Incoming;
use petgraph::visit::EdgeRef as _;

use super::arguments::Arguments;
use crate::graph::{Dependence, Edge, Node, Rule};
use crate::hlo::{Attribute, Instruction, Module, Opcode, Shape, Steps, hands_on, literal};

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
    /// What an attribute of a native call says.
    Attribute(String),
}

/// The roots of all handles in a program.
pub(crate) struct Roots {
    list: Vec<Root>,
    names: Vec<String>,
    ids: HashMap<Root, u32>,
}

/// The root of a handle that may be any object.
pub(crate) const ANYTHING: u32 = 0;

/// What is known from outside of the program.
pub(crate) struct Known<'a> {
    /// The operands of a native call that hold the handles it touches: none if it is not known.
    pub(crate) handles: &'a dyn Fn(&Instruction) -> Vec<usize>,
    pub(crate) arguments: &'a Arguments,
}

impl Roots {
    /// Finds the roots of each of the given nodes.
    pub(crate) fn find(
        module: &Module,
        dependence: &Dependence,
        known: &Known<'_>,
        wanted: impl IntoIterator<Item = Node>,
    ) -> (Self, HashMap<Node, Vec<u32>>) {
        let mut roots = Self { list: Vec::new(), names: Vec::new(), ids: HashMap::new() };
        roots.id(Root::Anything, || "a handle that may be any object".into());

        // Everything the wanted nodes come from, in an order in which only loops lead back.
        let mut needed: BTreeSet<Node> = BTreeSet::new();
        let mut origins: HashMap<Node, Vec<Origin>> = HashMap::new();
        let mut open: Vec<Node> = wanted.into_iter().collect();
        while let Some(node) = open.pop() {
            if needed.insert(node) {
                let from = origins_of(module, dependence, known.handles, node);
                open.extend(from.iter().map(|origin| origin.node));
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
            let set = roots.evaluate(module, dependence, known, node, &[], &sets);
            sets.insert(node, set);
        }
        for pass in 0.. {
            let mut changed = false;
            for &node in &needed {
                let mut set = roots.evaluate(module, dependence, known, node, &origins[&node], &sets);
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
        known: &Known<'_>,
        node: Node,
        origins: &[Origin],
        sets: &HashMap<Node, Vec<u32>>,
    ) -> Vec<u32> {
        let instruction = dependence.instruction(module, node);
        let value = dependence.graph[node];
        let unknown = Vec::new();
        let set_of = |origin: &Origin| sets.get(&origin.node).unwrap_or(&unknown);
        if matches!(value.rule, Rule::Header | Rule::Branches(_) | Rule::Exit(_)) {
            return bounded(origins.iter().flat_map(set_of).copied().collect());
        }
        let shape = dependence.shape(module, node);
        let opcode = instruction.opcode;
        let source = match opcode {
            Opcode::Parameter => Some(known.arguments.root(self, instruction, value.leaf)),
            Opcode::Constant => {
                let values = literal::values(&instruction.literal, MAX_VALUES);
                let values = values.filter(|values| shape.is_some_and(|shape| shape.count() == values.len()));
                Some(self.constant_or_some(values))
            }
            Opcode::Iota => {
                let values = shape.zip(instruction.counts_along).and_then(|(shape, along)| counted(shape, along));
                Some(self.constant_or_some(values))
            }
            Opcode::DeviceNumber => Some(self.some_constant()),
            _ if origins.is_empty() => Some(ANYTHING),
            _ => None,
        };
        if let Some(source) = source {
            return vec![source];
        }
        if computes(module, instruction) {
            return self.computed(opcode, shape, origins, &set_of);
        }
        let mut set: Vec<u32> = Vec::new();
        for origin in origins {
            let from = dependence.shape(module, origin.node);
            let keeps = from.zip(shape).is_some_and(|(from, to)| keeps_places(opcode, from, to));
            let single = from.is_some_and(|from| from.count() == 1);
            for &root in set_of(origin) {
                let root = if keeps { root } else { self.elements(root, single) };
                set.push(match opcode {
                    Opcode::Convert => self.converted(root, from, shape),
                    // Another type sees other numbers in the same bits.
                    _ if !instruction.shape.is_tuple()
                        && from.map(Shape::elements_type) != shape.map(Shape::elements_type) =>
                    {
                        ANYTHING
                    }
                    _ => root,
                });
            }
        }
        if opcode == Opcode::CollectivePermute {
            set.push(self.constant(vec![0], false));
        }
        if opcode == Opcode::Slice && value.rule == Rule::Any {
            let shape = origins.first().and_then(|origin| dependence.shape(module, origin.node));
            for root in &mut set {
                *root = self.slice(*root, shape.map_or(&[], |shape| &shape.dimensions), &instruction.slice);
            }
        }
        bounded(set)
    }

    /// What a conversion makes of a root: the same, if it keeps each value.
    fn converted(&mut self, root: u32, from: Option<&Shape>, to: Option<&Shape>) -> u32 {
        let Some((from, to)) = from.map(Shape::elements_type).zip(to.map(Shape::elements_type)) else {
            return ANYTHING;
        };
        match &self.list[root as usize] {
            Root::Constant { values, .. } if values.iter().all(|&value| from.keeps(value, to)) => root,
            Root::Constant { .. } | Root::SomeConstant => self.some_constant(),
            _ if from.fits_into(to) => root,
            _ => ANYTHING,
        }
    }

    /// What an operation that computes makes of its operands.
    fn computed<'a>(
        &mut self,
        opcode: Opcode,
        shape: Option<&Shape>,
        origins: &[Origin],
        set_of: &dyn Fn(&Origin) -> &'a Vec<u32>,
    ) -> Vec<u32> {
        let is = |roots: &Self, origin: &Origin, number: i64| match set_of(origin)[..] {
            [root] => matches!(&roots.list[root as usize], Root::Constant { values, .. } if **values == [number]),
            _ => false,
        };
        if let [left, right] = origins {
            // x + 0, x - 0, x * 1 and x / 1 are x, and 0 * x is 0 if no number is infinite.
            let unchanged = match opcode {
                Opcode::Sum if is(self, left, 0) => Some(right),
                Opcode::Sum | Opcode::Difference if is(self, right, 0) => Some(left),
                Opcode::Product if is(self, left, 1) => Some(right),
                Opcode::Product | Opcode::Quotient if is(self, right, 1) => Some(left),
                Opcode::Product if shape.is_some_and(|shape| shape.elements_type().is_integer()) => {
                    [left, right].into_iter().find(|origin| is(self, origin, 0))
                }
                _ => None,
            };
            if let Some(origin) = unchanged {
                return set_of(origin).clone();
            }
        }
        let constant = |&root: &u32| matches!(self.list[root as usize], Root::Constant { .. } | Root::SomeConstant);
        if origins.iter().flat_map(set_of).all(constant) { vec![self.some_constant()] } else { vec![ANYTHING] }
    }

    fn constant_or_some(&mut self, values: Option<Vec<i64>>) -> u32 {
        match values.filter(|values| !values.is_empty()) {
            Some(values) => self.constant(values, false),
            None => self.some_constant(),
        }
    }

    pub(super) fn argument(&mut self, number: usize, leaf: u32, name: impl FnOnce() -> String) -> u32 {
        self.id(Root::Parameter { number: number.try_into().unwrap_or(u32::MAX), leaf }, name)
    }

    /// The object that an attribute of a call names. A number is the equal constant.
    pub(super) fn attribute(&mut self, name: &str, value: Attribute) -> u32 {
        match value {
            Attribute::Integer(number) => self.constant(vec![number], false),
            Attribute::Text(text) => {
                let named = format!("{name} = {text}");
                self.id(Root::Attribute(text), || named)
            }
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
            Root::Parameter { .. } | Root::Attribute(_) => 1,
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
            Root::Parameter { .. } | Root::Slice { .. } | Root::Attribute(_) => {
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

    pub(super) fn name(&self, root: u32) -> &str {
        &self.names[root as usize]
    }

    /// What two roots that overlap have in common. `None` for one that may overlap roots of any kind.
    pub(super) fn base(&self, root: u32) -> Option<u32> {
        const CONSTANTS: u32 = u32::MAX;
        let whole = self.chain(root)[0];
        match self.list[whole as usize] {
            Root::Anything | Root::Attribute(_) => None,
            Root::Constant { .. } | Root::SomeConstant => Some(CONSTANTS),
            _ => Some(whole),
        }
    }

    /// The first and the last place of a part of an array of one dimension, and the array's length; for a constant the least and the
    /// largest value. `None` for everything else.
    pub(super) fn extent(&self, root: u32) -> Option<((i64, i64), i64)> {
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
    pub(super) fn overlap(&self, a: u32, b: u32) -> bool {
        if a == b || a == ANYTHING || b == ANYTHING {
            return true;
        }
        match (&self.list[a as usize], &self.list[b as usize]) {
            (Root::Constant { values: a, .. }, Root::Constant { values: b, .. }) => {
                let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
                let short: HashSet<&i64> = short.iter().collect();
                return long.iter().any(|value| short.contains(value));
            }
            // Two texts can be compared; a text and a value cannot.
            (Root::Attribute(a), Root::Attribute(b)) => return a == b,
            (Root::Constant { .. }, Root::SomeConstant)
            | (Root::SomeConstant, Root::Constant { .. })
            | (Root::Attribute(_), _)
            | (_, Root::Attribute(_)) => return true,
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

/// Whether an instruction computes other values than its operands hold, or may.
fn computes(module: &Module, instruction: &Instruction) -> bool {
    match instruction.opcode {
        Opcode::CustomCall
        | Opcode::Copy
        | Opcode::CopyStart
        | Opcode::Bitcast
        | Opcode::Reshape
        | Opcode::Transpose
        | Opcode::Slice
        | Opcode::Pick
        | Opcode::Update
        | Opcode::Move
        | Opcode::Select
        | Opcode::Convert
        | Opcode::CollectiveMove
        | Opcode::CollectivePermute => false,
        Opcode::Scatter => !puts(module, instruction),
        _ => true,
    }
}

/// Whether a scatter puts its updates where they belong, and does not combine them with what was there.
fn puts(module: &Module, instruction: &Instruction) -> bool {
    let [combine] = instruction.called[..] else { return false };
    let instructions = module.instructions_of(combine);
    let arrays = instruction.operands.len() / 2;
    let is_update = |position: usize, of: usize| {
        instructions[position].opcode == Opcode::Parameter && instructions[position].number == arrays + of
    };
    let root = &instructions[module.computations[combine].root];
    match root.opcode {
        Opcode::Tuple => root.operands.iter().enumerate().all(|(of, &position)| is_update(position, of)),
        _ => arrays == 1 && is_update(module.computations[combine].root, 0),
    }
}

/// Whether each element stays at its place, counted through the whole array, on its way from an operand to the result.
fn keeps_places(opcode: Opcode, from: &Shape, to: &Shape) -> bool {
    if from.count() == 1 && to.count() == 1 && !matches!(opcode, Opcode::CollectiveMove | Opcode::CollectivePermute) {
        return true;
    }
    let same_shape = from.dimensions == to.dimensions;
    match opcode {
        // What becomes of them is said elsewhere.
        Opcode::Slice => true,
        Opcode::Copy | Opcode::CopyStart | Opcode::CustomCall | Opcode::Select | Opcode::Convert => same_shape,
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

/// A node whose handle another one carries on.
pub(super) struct Origin {
    node: Node,
}

/// The nodes whose handle this node carries on or is computed from, by the numbers of the operands; none if it is made here.
fn origins_of(
    module: &Module,
    dependence: &Dependence,
    handles: &dyn Fn(&Instruction) -> Vec<usize>,
    node: Node,
) -> Vec<Origin> {
    let value = dependence.graph[node];
    let instruction = dependence.instruction(module, node);
    let from = |wanted: &dyn Fn(Edge) -> bool| -> Vec<Origin> {
        let edges = dependence.graph.edges_directed(node, Incoming);
        edges.filter(|edge| wanted(*edge.weight())).map(|edge| Origin { node: edge.source() }).collect()
    };
    let operands = |of: Node, wanted: &dyn Fn(usize) -> bool| -> Vec<Origin> {
        let all = dependence.operands(of).into_iter();
        all.filter(|(number, _)| wanted(*number)).map(|(_, node)| Origin { node }).collect()
    };
    match value.rule {
        Rule::Header => return from(&|edge| matches!(edge, Edge::Init | Edge::Back)),
        Rule::Branches(_) => return from(&|edge| matches!(edge, Edge::Branch(_))),
        Rule::Exit(_) => return from(&|edge| matches!(edge, Edge::Operand(_))),
        Rule::Any | Rule::Leaf => {}
    }
    match instruction.opcode {
        Opcode::Parameter | Opcode::Constant | Opcode::Iota | Opcode::DeviceNumber => Vec::new(),
        Opcode::CustomCall => {
            let call = if value.rule == Rule::Leaf { operands(node, &|_| true).remove(0).node } else { node };
            let leaf = value.leaf as usize;
            let carried = carried_by_call(instruction, leaf, &handles(instruction));
            let mut origins = operands(call, &|number| carried.contains(&number));
            if !hands_on(&instruction.target) {
                // A result of another type is no token of what was touched.
                let shape = dependence.shape(module, node);
                let alike = |origin: &Origin| {
                    let from = dependence.shape(module, origin.node);
                    from.zip(shape).is_some_and(|(from, to)| {
                        from.elements_type() == to.elements_type() && from.dimensions == to.dimensions
                    })
                };
                origins.retain(alike);
            }
            origins
        }
        Opcode::Pick => operands(node, &|number| number == 0),
        Opcode::Update => operands(node, &|number| number <= 1),
        Opcode::Select => operands(node, &|number| number == 1 || number == 2),
        Opcode::Scatter if !computes(module, instruction) => {
            let places = instruction.operands.len() / 2;
            operands(node, &|number| number != places)
        }
        _ => operands(node, &|_| true),
    }
}

/// The operands of a native call that one of its results stands for.
fn carried_by_call(instruction: &Instruction, leaf: usize, handles: &[usize]) -> Vec<usize> {
    if hands_on(&instruction.target) {
        return vec![leaf];
    }
    let aliased = instruction.aliases.iter().find(|(result, _)| *result == leaf).map(|&(_, operand)| operand);
    match aliased {
        // What a call may have written over is no longer known, unless it is known to be a token.
        Some(operand) if handles.contains(&operand) => vec![operand],
        Some(_) => Vec::new(),
        None => handles.to_vec(),
    }
}
