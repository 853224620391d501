//! The dependence graph: which value is computed from which, one node for every array of every instruction.
//!
//! All paths in the graph are meant to hold in *every* run, so where runs differ (a branch not taken, a loop that runs zero times) a node
//! asks for all its sources: see [`Rule`].

mod expand;
mod reach;
mod waits;

use std::ops::Range;

use petgraph::Direction::Incoming;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef as _;

use crate::hlo::{Instruction, Module, Shape};
pub(crate) use reach::{BLOCK, Block, Reached, path, reached, reached_everywhere};

/// No call, in [`Value::call`].
pub(crate) const NONE: u32 = u32::MAX;

pub(crate) type Node = NodeIndex<u32>;

/// One array, or what starts or ends a piece of the program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Value {
    /// The instruction that computes it.
    pub(crate) instruction: u32,
    /// Where the instruction's computation was called from.
    pub(crate) context: u32,
    /// Which array of the instruction's result.
    pub(crate) leaf: u32,
    /// The watched native call that this node starts, or [`NONE`].
    pub(crate) call: u32,
    pub(crate) rule: Rule,
    /// It is the result of a collective: each device has a part in it.
    pub(crate) gathers: bool,
}

/// When a value depends on a native call A, given which of its sources do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Any source does.
    Any,
    /// As `Any`; one array of a custom call with several.
    Leaf,
    /// A loop's carried value when an iteration starts: it comes from outside and from the last iteration, and both must do.
    Header,
    /// The result of a conditional: every branch must do, but those not taken because A ran in another one.
    Branches(u32),
    /// The result of a loop. For A in the body: what the body left after that iteration and all later ones. For any other A: what the
    /// body left if it is known to run, else what came in.
    Exit(u32),
}

/// Why one value depends on another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edge {
    /// It is this operand.
    Operand(u32),
    /// It decides whether the other is computed at all.
    Guard,
    /// It enters a loop.
    Init,
    /// It is carried to the next iteration.
    Back,
    /// It is the result of this branch.
    Branch(u32),
    /// It leaves a loop whose body ran.
    Inside,
    /// It was only asked to be earlier: no runtime that goes by data sees this.
    Control,
    /// It is a call that the other waits for if it ran, whatever its result is for: see [`Rule::Branches`] and `Waits`. It may not have
    /// run, so what it waits for itself is not handed on.
    Ran,
}

/// A native call to watch, in one context.
#[derive(Debug)]
pub(crate) struct CallSite {
    pub(crate) instruction: usize,
    pub(crate) context: u32,
    pub(crate) node: Node,
}

/// One conditional in one context. Calls are numbered in the order they are met, so those inside are a range.
#[derive(Debug)]
pub(crate) struct BranchSite {
    pub(crate) branches: Vec<Range<u32>>,
    /// Which devices take which branch, if nothing but a device's number decides it.
    pub(crate) device: Option<Device>,
}

/// The devices that take one branch of a conditional.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Device {
    /// What decides it: equal for two conditionals that are known to choose alike.
    pub(crate) choice: i64,
    pub(crate) branch: u32,
}

/// One loop in one context.
#[derive(Debug)]
pub(crate) struct LoopSite {
    pub(crate) instruction: usize,
    /// The calls in condition and body.
    pub(crate) calls: Range<u32>,
    pub(crate) body: Range<u32>,
}

/// A watched call as it runs in a later iteration of a loop.
#[derive(Debug)]
pub(crate) struct Later {
    pub(crate) call: u32,
    pub(crate) site: u32,
    pub(crate) node: Node,
}

/// Where a computation was called from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context {
    pub(crate) parent: u32,
    /// The calling instruction; meaningless in the first context, which is the entry computation.
    pub(crate) caller: usize,
    pub(crate) part: Part,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Entry,
    Whole,
    Condition,
    Body,
    Branch { site: u32, branch: u32 },
}

#[derive(Debug, Default)]
pub(crate) struct Dependence {
    pub(crate) graph: DiGraph<Value, Edge>,
    pub(crate) calls: Vec<CallSite>,
    pub(crate) branches: Vec<BranchSite>,
    pub(crate) loops: Vec<LoopSite>,
    pub(crate) later: Vec<Later>,
    pub(crate) contexts: Vec<Context>,
    /// The program's results.
    pub(crate) outputs: Vec<Node>,
    pub(crate) has_control_edges: bool,
    /// There is a conditional whose branch is chosen by the device's number.
    pub(crate) has_devices: bool,
}

impl Dependence {
    /// The node with the highest number.
    pub(crate) fn last(&self) -> Option<Node> {
        self.graph.node_indices().next_back()
    }

    pub(crate) fn instruction<'m>(&self, module: &'m Module, node: Node) -> &'m Instruction {
        &module.instructions[self.graph[node].instruction as usize]
    }

    /// The operands of a node's instruction: their numbers and their nodes, in ascending order.
    pub(crate) fn operands(&self, node: Node) -> Vec<(usize, Node)> {
        let edges = self.graph.edges_directed(node, Incoming);
        let mut operands: Vec<_> = edges
            .filter_map(|edge| match *edge.weight() {
                Edge::Operand(number) => Some((number as usize, edge.source())),
                _ => None,
            })
            .collect();
        operands.sort_unstable();
        operands
    }

    /// The shape of one array.
    pub(crate) fn shape<'m>(&self, module: &'m Module, node: Node) -> Option<&'m Shape> {
        self.instruction(module, node).shape.leaf(self.graph[node].leaf as usize)
    }
}
