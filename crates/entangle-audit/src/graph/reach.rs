//! Which values depend on which native calls, in every run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use petgraph::Direction::{Incoming, Outgoing};
use petgraph::visit::EdgeRef as _;

use super::{Dependence, Edge, NONE, Node, Rule};

/// How many native calls are followed at once: one bit each. Few in the tests, whose programs are small, so that they fill several blocks.
pub(crate) const BLOCK: usize = if cfg!(test) { 3 } else { 64 };

/// At most [`BLOCK`] calls, in ascending order.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a>(pub(crate) &'a [u32]);

impl Block<'_> {
    /// The bits of the calls in this range.
    pub(crate) fn mask(self, range: &Range<u32>) -> u64 {
        let low = self.0.partition_point(|&call| call < range.start);
        let high = self.0.partition_point(|&call| call < range.end);
        if low >= high { 0 } else { (u64::MAX >> (64 - (high - low))) << low }
    }

    /// The bits of the calls of which this holds.
    pub(crate) fn bits_of(self, holds: impl Fn(u32) -> bool) -> u64 {
        self.0.iter().enumerate().filter(|&(_, &call)| holds(call)).fold(0, |bits, (position, _)| bits | 1 << position)
    }

    fn bit(self, call: u32) -> u64 {
        if call == NONE { 0 } else { self.0.binary_search(&call).map_or(0, |position| 1 << position) }
    }
}

/// For each node of a stretch, the calls of a block that it depends on in every run; for the node of a call, itself too.
pub(crate) struct Reached {
    start: usize,
    values: Vec<u64>,
}

impl Reached {
    /// Those of one node: none before the stretch, where nothing depends on the block. Not to be asked of what comes after it.
    pub(crate) fn at(&self, node: Node) -> u64 {
        node.index().checked_sub(self.start).map_or(0, |position| self.values[position])
    }
}

/// What depends on a block of calls, from the first of them to the node `last`, which no loop may surround that starts in between.
///
/// Nodes are numbered so that only the edge from the end of a loop's body back to its start leads to a lower number. The first pass
/// takes for granted that those hold; the rest of the work takes back what does not. Every bit is taken back at most once, so the time is
/// bounded by the number of edges; in practice it is little more than one pass.
pub(crate) fn reached(dependence: &Dependence, block: Block<'_>, last: Node, with_control: bool) -> Reached {
    Reaching { dependence, block, with_control, alone: None }.run(last)
}

/// What depends on a block of calls on *every* device of the program, where the calls `alone` run on one of them only: what that device made
/// of them, which is `here`, leads to the others by a collective and by nothing else.
pub(crate) fn reached_everywhere(
    dependence: &Dependence,
    block: Block<'_>,
    last: Node,
    here: &Reached,
    alone: u64,
) -> Reached {
    Reaching { dependence, block, with_control: false, alone: Some((here, alone)) }.run(last)
}

struct Reaching<'a> {
    dependence: &'a Dependence,
    block: Block<'a>,
    with_control: bool,
    alone: Option<(&'a Reached, u64)>,
}

impl Reaching<'_> {
    fn run(&self, last: Node) -> Reached {
        let Self { dependence, block, .. } = *self;
        let graph = &dependence.graph;
        let start = block.0.first().map_or(0, |&first| dependence.calls[first as usize].node.index());
        let mut reached = Reached { start, values: vec![0; (last.index() + 1).saturating_sub(start)] };
        let mut pending = BinaryHeap::new();
        for position in 0..reached.values.len() {
            let node = Node::new(start + position);
            let value = self.evaluate(&reached, node, true);
            reached.values[position] = value;
            if graph[node].rule == Rule::Header && value != 0 {
                pending.push(Reverse(position));
            }
        }
        let mut queued = vec![false; reached.values.len()];
        while let Some(Reverse(position)) = pending.pop() {
            queued[position] = false;
            let node = Node::new(start + position);
            let value = self.evaluate(&reached, node, false);
            if value == reached.values[position] {
                continue;
            }
            reached.values[position] = value;
            for user in graph.neighbors_directed(node, Outgoing) {
                let Some(position) = user.index().checked_sub(start) else { continue };
                if queued.get_mut(position).is_some_and(|queued| !std::mem::replace(queued, true)) {
                    pending.push(Reverse(position));
                }
            }
        }
        reached
    }

    fn evaluate(&self, reached: &Reached, node: Node, first_pass: bool) -> u64 {
        let Self { dependence, block, with_control, alone } = *self;
        let graph = &dependence.graph;
        let value = graph[node];
        let (mut any, mut all, mut inside) = (0, u64::MAX, 0);
        for edge in graph.edges_directed(node, Incoming) {
            if *edge.weight() == Edge::Back && first_pass {
                continue;
            }
            let source = reached.at(edge.source());
            match *edge.weight() {
                Edge::Operand(_) | Edge::Guard => any |= source,
                Edge::Ran => any |= block.bit(graph[edge.source()].call) & !alone.map_or(0, |(_, alone)| alone),
                Edge::Control if with_control => any |= source,
                Edge::Control => {}
                Edge::Init | Edge::Back => all &= source,
                Edge::Inside => inside |= source,
                Edge::Branch(branch) => all &= source | taken_elsewhere(dependence, block, value.rule, branch),
            }
            if let Some((here, alone)) = alone
                && value.gathers
                && matches!(*edge.weight(), Edge::Operand(_))
            {
                any |= here.at(edge.source()) & alone;
            }
        }
        let itself = block.bit(value.call) & !alone.map_or(0, |(_, alone)| alone);
        itself
            | match value.rule {
                Rule::Any | Rule::Leaf => any,
                Rule::Header | Rule::Branches(_) => any | all,
                Rule::Exit(site) => {
                    // What the body left proves something of its calls in the last iteration alone, so for them `inside` decides, which
                    // holds in all later iterations.
                    let body = block.mask(&dependence.loops[site as usize].body);
                    (any & !body) | (inside & body)
                }
            }
    }
}

/// The calls in the other branches: if one of them ran, this branch did not, and owes nothing.
fn taken_elsewhere(dependence: &Dependence, block: Block<'_>, rule: Rule, branch: u32) -> u64 {
    let Rule::Branches(site) = rule else { return 0 };
    let branches = &dependence.branches[site as usize].branches;
    let (Some(first), Some(last)) = (branches.first(), branches.last()) else { return 0 };
    block.mask(&(first.start..last.end)) & !block.mask(&branches[branch as usize])
}

/// One path from a call to a node that depends on it, the call first.
pub(crate) fn path(dependence: &Dependence, call: u32, to: Node, reached: &Reached, with_control: bool) -> Vec<Node> {
    let from = dependence.calls[call as usize].node;
    let mut path = vec![to];
    let mut node = to;
    while node != from {
        // Back edges are left out, so that every step leads to a lower number and the walk ends.
        let source = dependence
            .graph
            .edges_directed(node, Incoming)
            .filter(|edge| *edge.weight() != Edge::Back && (with_control || *edge.weight() != Edge::Control))
            .filter(|edge| *edge.weight() != Edge::Ran || edge.source() == from)
            .map(|edge| edge.source())
            .filter(|source| source.index() < node.index() && reached.at(*source) != 0)
            .max();
        let Some(source) = source else { break };
        path.push(source);
        node = source;
    }
    path.reverse();
    path
}
