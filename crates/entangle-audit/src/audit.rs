//! The audit of one module: which native calls it has, and what each of them touches.

use std::collections::HashMap;
use std::sync::Arc;

use petgraph::Direction::Incoming;
use petgraph::visit::EdgeRef as _;

use crate::dependence::{Dependence, Edge, Node, Part};
use crate::error::Error;
use crate::module::{Instruction, Module, Source};
use crate::roots::Roots;

/// A path of computations longer than this is shortened.
const MAX_PLACES: usize = 32;

/// A native call target and the operands that hold the handles it touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The name it is registered under.
    pub name: String,
    /// The operands that hold handles, counted from 0.
    pub operands: Vec<usize>,
}

impl Target {
    /// A target whose operand 0 is the handle.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), operands: vec![0] }
    }

    /// Reads `TARGET`, `TARGET:2` or `TARGET:0,2`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if let Some((name, numbers)) = text.rsplit_once(':')
            && let Ok(operands) = numbers.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()
        {
            return Self { name: name.to_owned(), operands };
        }
        Self::new(text)
    }
}

/// Which native calls to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Targets {
    /// Those that only read what a handle stands for.
    pub reads: Vec<Target>,
    /// Those that change it.
    pub writes: Vec<Target>,
    /// The targets of `entangle` itself.
    pub entangles: Vec<String>,
    /// Others whose order will be asked for.
    pub others: Vec<String>,
}

impl Default for Targets {
    fn default() -> Self {
        Self { reads: Vec::new(), writes: Vec::new(), entangles: vec!["entangle".into()], others: Vec::new() }
    }
}

/// What a native call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only reads.
    Read,
    /// Writes, and perhaps reads.
    Write,
    /// Ties values together.
    Entangle,
    /// Unknown.
    Other,
}

/// A native call, in one place of the program. A function called twice counts twice; a loop's body once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The instruction's name in the module.
    pub name: String,
    /// The target it calls.
    pub target: String,
    /// What it does.
    pub kind: Kind,
    /// The computations around it, the entry computation first. Shared by all calls there.
    pub place: Arc<[String]>,
    /// Where it comes from, the innermost line first; empty where the module does not say. Shared by all calls from there.
    pub source: Arc<[Source]>,
    /// JAX's name for it, such as `jit(step)/ffi_call`.
    pub op_name: String,
    /// The handles that it touches.
    pub handles: Vec<String>,
}

/// What a target's calls touch.
#[derive(Debug, Clone, Default)]
struct Roles {
    reads: Vec<usize>,
    writes: Vec<usize>,
    entangle: bool,
}

impl Roles {
    fn kind(&self) -> Kind {
        match self {
            Self { writes, .. } if !writes.is_empty() => Kind::Write,
            Self { reads, .. } if !reads.is_empty() => Kind::Read,
            Self { entangle: true, .. } => Kind::Entangle,
            _ => Kind::Other,
        }
    }
}

/// The roots that a call reads and writes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access {
    pub(crate) reads: Vec<u32>,
    pub(crate) writes: Vec<u32>,
}

impl Access {
    /// All that it touches.
    pub(crate) fn roots(&self) -> impl Iterator<Item = u32> {
        self.reads.iter().chain(&self.writes).copied()
    }
}

/// A module with its dependences followed: ask it for [`Audit::races`], [`Audit::order`], [`Audit::costs`] and [`Audit::graph`].
pub struct Audit {
    pub(crate) module: Module,
    pub(crate) dependence: Dependence,
    pub(crate) calls: Vec<Call>,
    pub(crate) roots: Roots,
    /// One for every call.
    pub(crate) accesses: Vec<Access>,
    /// One for every call of [`Dependence::later`].
    pub(crate) later_accesses: Vec<Access>,
}

impl Audit {
    /// Follows the dependences of a module.
    ///
    /// # Errors
    /// The module's values do not fit together, it is too large, or a target's operand does not exist.
    pub fn new(module: Module, targets: &Targets) -> Result<Self, Error> {
        let roles = roles(targets);
        let role = |instruction: &Instruction| roles.get(instruction.target.as_str());
        let dependence = Dependence::new(&module, |instruction| role(instruction).is_some())?;

        for call in &dependence.calls {
            let instruction = &module.instructions[call.instruction];
            let Some(roles) = role(instruction) else { continue };
            if let Some(&operand) = roles.reads.iter().chain(&roles.writes).find(|&&o| o >= instruction.operands.len())
            {
                return Err(Error::NoSuchOperand {
                    target: instruction.target.clone(),
                    call: instruction.name.clone(),
                    operand,
                    operands: instruction.operands.len(),
                });
            }
        }
        // A result that is not aliased to an operand stands for the handle that the call touches: a token.
        let handles = |instruction: &Instruction| {
            role(instruction).map(|roles| roles.writes.iter().chain(&roles.reads).copied().collect())
        };
        let nodes: Vec<Node> =
            dependence.calls.iter().map(|call| call.node).chain(dependence.later.iter().map(|l| l.node)).collect();
        let operands_of = |node: Node, operands: &[usize]| -> Vec<Node> {
            let edges = dependence.graph.edges_directed(node, Incoming);
            let wanted = |edge: Edge| matches!(edge, Edge::Operand(index) if operands.contains(&(index as usize)));
            edges.filter(|edge| wanted(*edge.weight())).map(|edge| edge.source()).collect()
        };
        let handle_nodes: Vec<(Vec<Node>, Vec<Node>)> = nodes
            .iter()
            .map(|&node| {
                let roles = role(dependence.instruction(&module, node)).cloned().unwrap_or_default();
                (operands_of(node, &roles.reads), operands_of(node, &roles.writes))
            })
            .collect();
        let wanted = handle_nodes.iter().flat_map(|(reads, writes)| reads.iter().chain(writes)).copied();
        let (roots, sets) = Roots::find(&module, &dependence, &handles, wanted);
        let union = |nodes: &[Node]| {
            let mut union: Vec<u32> = nodes.iter().filter_map(|node| sets.get(node)).flatten().copied().collect();
            union.sort_unstable();
            union.dedup();
            union
        };
        let mut accesses: Vec<Access> =
            handle_nodes.iter().map(|(reads, writes)| Access { reads: union(reads), writes: union(writes) }).collect();
        let later_accesses = accesses.split_off(dependence.calls.len());

        let mut audit = Self { module, dependence, calls: Vec::new(), roots, accesses, later_accesses };
        // Thousands of calls come from a few lines.
        let mut places: HashMap<u32, Arc<[String]>> = HashMap::new();
        let mut sources: HashMap<_, Arc<[Source]>> = HashMap::new();
        audit.calls = (0..audit.dependence.calls.len())
            .map(|call| {
                let site = &audit.dependence.calls[call];
                let instruction = &audit.module.instructions[site.instruction];
                let access = &audit.accesses[call];
                let mut handles: Vec<u32> = access.roots().collect();
                handles.sort_unstable();
                handles.dedup();
                Call {
                    name: instruction.name.clone(),
                    target: instruction.target.clone(),
                    kind: roles.get(instruction.target.as_str()).map_or(Kind::Other, Roles::kind),
                    place: places.entry(site.context).or_insert_with(|| audit.place(site.context).into()).clone(),
                    source: sources
                        .entry((site.context, instruction.line()))
                        .or_insert_with(|| audit.sources(site.instruction, site.context).into())
                        .clone(),
                    op_name: instruction.op_name.clone(),
                    handles: handles.into_iter().map(|root| audit.roots.name(root).to_owned()).collect(),
                }
            })
            .collect();
        Ok(audit)
    }

    /// The native calls of the given targets. All other answers name them by their position in this list.
    #[must_use]
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// The module.
    #[must_use]
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// The lines of an instruction and of the calls around it. Before optimization a function's instructions know only the lines inside it.
    fn sources(&self, instruction: usize, context: u32) -> Vec<Source> {
        let mut sources = self.module.sources(&self.module.instructions[instruction]);
        let mut context = self.dependence.contexts[context as usize];
        while context.part != Part::Entry && sources.len() < MAX_PLACES {
            let around = self.module.sources(&self.module.instructions[context.caller]);
            if sources.last() != around.last() {
                sources.extend(around);
            }
            context = self.dependence.contexts[context.parent as usize];
        }
        sources
    }

    fn place(&self, context: u32) -> Vec<String> {
        let mut place = Vec::new();
        let mut context = self.dependence.contexts[context as usize];
        while context.part != Part::Entry {
            if place.len() == MAX_PLACES {
                place.push("...".into());
                break;
            }
            let caller = &self.module.instructions[context.caller].name;
            place.push(match context.part {
                Part::Entry | Part::Whole => caller.clone(),
                Part::Condition => format!("condition of {caller}"),
                Part::Body => format!("body of {caller}"),
                Part::Branch { branch, .. } => format!("branch {branch} of {caller}"),
            });
            context = self.dependence.contexts[context.parent as usize];
        }
        place.push(self.module.computations[self.module.entry].name.clone());
        place.reverse();
        place
    }
}

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Audit")
            .field("module", &self.module.name)
            .field("calls", &self.calls.len())
            .finish_non_exhaustive()
    }
}

fn roles(targets: &Targets) -> HashMap<&str, Roles> {
    let mut roles: HashMap<&str, Roles> = HashMap::new();
    for target in &targets.reads {
        roles.entry(&target.name).or_default().reads.extend(&target.operands);
    }
    for target in &targets.writes {
        roles.entry(&target.name).or_default().writes.extend(&target.operands);
    }
    for name in &targets.entangles {
        roles.entry(name).or_default().entangle = true;
    }
    for name in &targets.others {
        roles.entry(name).or_default();
    }
    roles
}
