//! What a handle is: where its value came from, followed backwards.

use std::collections::{BTreeSet, HashMap};

use petgraph::Direction::Incoming;
use petgraph::visit::EdgeRef as _;

use crate::dependence::{Dependence, Edge, Node, Rule};
use crate::literal;
use crate::module::{Instruction, Module, Opcode};

/// A handle that may be more objects than this is taken for any of them.
const MAX_ROOTS: usize = 32;
/// Slices of slices deeper than this are taken for the whole.
const MAX_SLICES: usize = 4;
/// Handles that still change after so many passes over the loops are taken for any object.
const MAX_PASSES: usize = 64;

/// Where a handle's value came from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Root {
    /// It cannot be told: it may be any object.
    Anything,
    Parameter {
        number: u32,
        leaf: u32,
    },
    Constant(Vec<u8>),
    /// A fixed part of another root, whose shape was `of_shape` when it was taken.
    Slice {
        of: u32,
        of_shape: Vec<i64>,
        ranges: Vec<(i64, i64)>,
        depth: usize,
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

        let mut sets: HashMap<Node, Vec<u32>> = HashMap::with_capacity(needed.len());
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
        if origins.is_empty() {
            let (root, name) = match instruction.opcode {
                Opcode::Parameter => {
                    let token = token_of(module, instruction);
                    let number = u32::try_from(token.number).unwrap_or(u32::MAX);
                    (Root::Parameter { number, leaf: value.leaf }, describe_parameter(token, value.leaf))
                }
                Opcode::Constant => match literal::values(&instruction.literal) {
                    Some(values) => (Root::Constant(values), describe_constant(instruction)),
                    None => (Root::Made(node), describe_constant(instruction)),
                },
                _ => (Root::Made(node), format!("the result of {}", instruction.name)),
            };
            return vec![self.id(root, || name)];
        }
        let mut set: Vec<u32> = origins.iter().filter_map(|origin| sets.get(origin)).flatten().copied().collect();
        set.sort_unstable();
        set.dedup();
        // What is computed from a handle and constants is that handle: `handle + 0`.
        let computed = matches!(instruction.opcode, Opcode::Other | Opcode::Collective) && value.rule == Rule::Any;
        if computed && set.iter().any(|&root| !matches!(self.list[root as usize], Root::Constant(_))) {
            set.retain(|&root| !matches!(self.list[root as usize], Root::Constant(_)));
        }
        if instruction.opcode == Opcode::Slice && value.rule == Rule::Any {
            let shape = operand_shape(module, dependence, node);
            for root in &mut set {
                *root = self.slice(*root, &shape, &instruction.slice);
            }
            set.sort_unstable();
            set.dedup();
        }
        if set.len() > MAX_ROOTS || set.contains(&ANYTHING) { vec![ANYTHING] } else { set }
    }

    fn slice(&mut self, of: u32, of_shape: &[i64], ranges: &[(i64, i64)]) -> u32 {
        let depth = if let Root::Slice { depth, .. } = &self.list[of as usize] { depth + 1 } else { 1 };
        let whole = ranges.iter().zip(of_shape).all(|(&(start, limit), &size)| start == 0 && limit == size);
        if of == ANYTHING || whole || depth > MAX_SLICES {
            return of;
        }
        let name = format!(
            "element {} of {}",
            ranges
                .iter()
                .map(|(start, limit)| if start + 1 == *limit { start.to_string() } else { format!("{start}:{limit}") })
                .collect::<Vec<_>>()
                .join(","),
            self.names[of as usize]
        );
        self.id(Root::Slice { of, of_shape: of_shape.to_vec(), ranges: ranges.to_vec(), depth }, || name)
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

    /// The root without any slicing.
    pub(crate) fn base(&self, root: u32) -> u32 {
        self.chain(root)[0]
    }

    /// From where to where a slice of an array of one dimension reaches, and the array's length; `None` for everything else.
    pub(crate) fn extent(&self, root: u32) -> Option<((i64, i64), i64)> {
        match self.chain(root).get(1).map(|&part| &self.list[part as usize]) {
            Some(Root::Slice { of_shape, ranges, .. }) if ranges.len() == 1 => match of_shape[..] {
                [length] => Some((ranges[0], length)),
                _ => None,
            },
            _ => None,
        }
    }

    /// The root's slices, the whole first.
    fn chain(&self, root: u32) -> Vec<u32> {
        let mut chain = vec![root];
        let mut root = root;
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
        let (a, b) = (self.chain(a), self.chain(b));
        if a[0] != b[0] {
            return false;
        }
        match a.iter().zip(&b).find(|(a, b)| a != b) {
            // One is a part of the other.
            None => true,
            Some((&a, &b)) => match (&self.list[a as usize], &self.list[b as usize]) {
                (
                    Root::Slice { of_shape: shape_a, ranges: ranges_a, .. },
                    Root::Slice { of_shape: shape_b, ranges: ranges_b, .. },
                ) => {
                    // Places in arrays of different shapes cannot be compared.
                    shape_a != shape_b || ranges_a.iter().zip(ranges_b).all(|(a, b)| a.0 < b.1 && b.0 < a.1)
                }
                _ => true,
            },
        }
    }
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
        Opcode::Parameter | Opcode::Constant => Vec::new(),
        Opcode::CustomCall => {
            let call = if value.rule == Rule::Leaf { from(node, &|_| true)[0] } else { node };
            let aliased = instruction.aliases.iter().find(|(leaf, _)| *leaf == value.leaf as usize);
            let operands = match aliased {
                Some(&(_, operand)) => vec![operand],
                None => handles(instruction).unwrap_or_default(),
            };
            let operands: Vec<u32> = operands.into_iter().filter_map(|operand| operand.try_into().ok()).collect();
            from(call, &|edge| operand(edge, &operands))
        }
        Opcode::Slice | Opcode::Pick => from(node, &|edge| operand(edge, &[0])),
        Opcode::Update => from(node, &|edge| operand(edge, &[0, 1])),
        Opcode::Select => from(node, &|edge| operand(edge, &[1, 2])),
        _ => from(node, &|edge| matches!(edge, Edge::Operand(_))),
    }
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

fn describe_constant(instruction: &Instruction) -> String {
    match literal::integer(&instruction.literal) {
        Some(value) => format!("the constant {value}"),
        None => format!("the constant {}", instruction.name),
    }
}
