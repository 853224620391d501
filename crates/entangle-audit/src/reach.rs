//! Which values depend on which native calls, in every run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use petgraph::Direction::{Incoming, Outgoing};
use petgraph::visit::EdgeRef as _;

use crate::dependence::{Dependence, Edge, NONE, Node, Rule};

/// How many native calls are followed at once: one bit each.
pub(crate) const BLOCK: usize = 64;

/// At most [`BLOCK`] calls, in ascending order.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a>(pub(crate) &'a [u32]);

impl Block<'_> {
    /// The bits of the calls in this range.
    pub(crate) fn mask(self, range: &Range<u32>) -> u64 {
        let low = self.0.partition_point(|&call| call < range.start);
        let high = self.0.partition_point(|&call| call < range.end);
        if low >= high { 0 } else { (u64::MAX >> (BLOCK - (high - low))) << low }
    }

    fn bit(self, call: u32) -> u64 {
        if call == NONE { 0 } else { self.0.binary_search(&call).map_or(0, |position| 1 << position) }
    }
}

/// For every node, the calls of the block that it depends on in every run; for the node of a call, itself too.
///
/// Nodes are numbered so that only the edge from the end of a loop's body back to its start leads to a lower number. The first pass
/// takes for granted that those hold; the rest of the work takes back what does not. Every bit is taken back at most once, so the time is
/// bounded by the number of edges; in practice it is little more than one pass.
pub(crate) fn reached(dependence: &Dependence, block: Block<'_>, with_control: bool) -> Vec<u64> {
    let graph = &dependence.graph;
    let mut values = vec![0_u64; graph.node_count()];
    let Some(&first) = block.0.first() else { return values };
    // Nothing before the first call depends on it.
    let start = dependence.calls[first as usize].node.index();
    let mut headers = BinaryHeap::new();
    for index in start..graph.node_count() {
        let node = Node::new(index);
        values[index] = evaluate(dependence, block, &values, node, with_control, true);
        if graph[node].rule == Rule::Header && values[index] != 0 {
            headers.push(Reverse(index));
        }
    }
    let mut pending = headers;
    let mut queued = vec![false; graph.node_count()];
    while let Some(Reverse(index)) = pending.pop() {
        queued[index] = false;
        let value = evaluate(dependence, block, &values, Node::new(index), with_control, false);
        if value == values[index] {
            continue;
        }
        values[index] = value;
        for user in graph.neighbors_directed(Node::new(index), Outgoing) {
            if user.index() >= start && !std::mem::replace(&mut queued[user.index()], true) {
                pending.push(Reverse(user.index()));
            }
        }
    }
    values
}

fn evaluate(
    dependence: &Dependence,
    block: Block<'_>,
    values: &[u64],
    node: Node,
    with_control: bool,
    first_pass: bool,
) -> u64 {
    let graph = &dependence.graph;
    let value = graph[node];
    let (mut any, mut all, mut inside) = (0, u64::MAX, 0);
    for edge in graph.edges_directed(node, Incoming) {
        let source = values[edge.source().index()];
        match *edge.weight() {
            Edge::Operand(_) | Edge::Guard => any |= source,
            Edge::Control if with_control => any |= source,
            Edge::Control => {}
            Edge::Back if first_pass => {}
            Edge::Init | Edge::Back => all &= source,
            Edge::Inside => inside |= source,
            Edge::Branch(branch) => all &= source | taken_elsewhere(dependence, block, value.rule, branch),
        }
    }
    block.bit(value.call)
        | match value.rule {
            Rule::Any | Rule::Leaf => any,
            Rule::Header | Rule::Branches(_) => any | all,
            Rule::Exit(site) => any | (inside & block.mask(&dependence.loops[site as usize].body)),
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
pub(crate) fn path(dependence: &Dependence, call: u32, to: Node, values: &[u64], with_control: bool) -> Vec<Node> {
    let from = dependence.calls[call as usize].node;
    let mut path = vec![to];
    let mut node = to;
    while node != from {
        // Back edges are left out, so that every step leads to a lower number and the walk ends.
        let source = dependence
            .graph
            .edges_directed(node, Incoming)
            .filter(|edge| *edge.weight() != Edge::Back && (with_control || *edge.weight() != Edge::Control))
            .map(|edge| edge.source())
            .filter(|source| source.index() < node.index() && values[source.index()] != 0)
            .max();
        let Some(source) = source else { break };
        path.push(source);
        node = source;
    }
    path.reverse();
    path
}
