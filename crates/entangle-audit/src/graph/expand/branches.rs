//! Conditionals: each branch is written out, and a result needs all of them.

use petgraph::Direction::Incoming;

use super::super::waits::Origin;
use super::super::{BranchSite, Device, Edge, NONE, Node, Part, Rule};
use super::{Expansion, Pending, Span};
use crate::error::Error;
use crate::hlo::{Comparison, Instruction, Opcode, literal};

/// A conditional whose branches are being written out.
pub(super) struct Branches {
    site: u32,
    predicate: Span,
    guard: Option<Node>,
    /// The results of the branches so far.
    roots: Vec<Span>,
}

/// Whether a conditional writes an array of its result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    /// No branch does, for all that is known.
    Never,
    /// Which value it is depends on the branch that is taken.
    Sometimes,
    /// Each branch does.
    Always,
}

impl Expansion<'_> {
    pub(super) fn start_branches(&mut self, operands: &[Span]) -> Result<(), Error> {
        let instruction = self.here();
        if instruction.called.is_empty() || operands.len() != instruction.called.len() + 1 {
            return Err(self.malformed(format!(
                "it has {} operands and {} branches: wanted a predicate and one operand a branch",
                operands.len(),
                instruction.called.len()
            )));
        }
        let predicate = operands[0];
        if let Some(branch) = self.constant_branch(predicate) {
            return self.enter(instruction.called[branch], Part::Whole, vec![operands[branch + 1]], Pending::Call);
        }
        let site = u32::try_from(self.out.branches.len()).expect("sites are fewer than nodes");
        let device = self.device(predicate, site);
        self.out.has_devices |= device.is_some();
        self.out.branches.push(BranchSite { branches: Vec::new(), device });
        let outer = self.guard_here()?;
        let guard = self.guard(outer, predicate)?;
        self.enter_branch(Branches { site, predicate, guard, roots: Vec::new() })
    }

    /// The branch that the current conditional takes in every run, if its predicate is a constant.
    fn constant_branch(&self, predicate: Span) -> Option<usize> {
        let &[predicate] = self.nodes(predicate) else { return None };
        let instruction = self.out.instruction(self.module, predicate);
        if instruction.opcode != Opcode::Constant || self.out.graph[predicate].rule != Rule::Any {
            return None;
        }
        let [value] = literal::values(&instruction.literal, 1)?[..] else { return None };
        let last = self.here().called.len() - 1;
        if instruction.shape.elements_type().is_truth() {
            // The first of the two is taken if it is true.
            return (last == 1).then_some(usize::from(value == 0));
        }
        // Any other number than that of a branch takes the last.
        Some(usize::try_from(value).ok().filter(|&branch| branch < last).unwrap_or(last))
    }

    /// What a conditional's predicate says of the devices, if it is made of the device's number and constants alone.
    fn device(&self, predicate: Span, site: u32) -> Option<Device> {
        /// More operations than these are not looked at.
        const MAX_DEPTH: usize = 64;
        let &[predicate] = self.nodes(predicate) else { return None };
        let mut seen = vec![predicate];
        let mut position = 0;
        let mut of_device = false;
        while let Some(&node) = seen.get(position) {
            position += 1;
            match self.out.instruction(self.module, node).opcode {
                Opcode::DeviceNumber => of_device = true,
                Opcode::Parameter | Opcode::CustomCall => return None,
                _ if self.out.graph[node].rule != Rule::Any || seen.len() > MAX_DEPTH => return None,
                _ => seen.extend(self.out.graph.neighbors_directed(node, Incoming)),
            }
        }
        if !of_device {
            return None;
        }
        // XLA asks a callback's own device alone: `compare(partition-id, constant)`.
        let compare = self.out.instruction(self.module, predicate);
        let operands: Vec<&Instruction> =
            self.out.operands(predicate).into_iter().map(|(_, node)| self.out.instruction(self.module, node)).collect();
        let number = match operands[..] {
            [device, number] if compare.comparison == Comparison::Equal && device.opcode == Opcode::DeviceNumber => {
                literal::integer(&number.literal).filter(|number| *number >= 0)
            }
            _ => None,
        };
        Some(Device { choice: number.unwrap_or(-1 - i64::from(site)), branch: 0 })
    }

    fn enter_branch(&mut self, state: Branches) -> Result<(), Error> {
        let branch = state.roots.len();
        let instruction = self.here();
        let argument = self.top().values[instruction.operands[branch + 1]];
        let start = self.call_count();
        self.out.branches[state.site as usize].branches.push(start..start);
        let part = Part::Branch { site: state.site, branch: u32::try_from(branch).unwrap_or(NONE) };
        let guard = state.guard;
        self.enter_with(instruction.called[branch], part, vec![argument], guard, Pending::Branches(state))
    }

    /// Likewise of the current conditional; its predicate is not among it.
    fn used_by_branches(&mut self) -> Result<Option<Node>, Error> {
        let instruction = self.here();
        let mut used = Vec::new();
        for (branch, &callee) in instruction.called.iter().enumerate() {
            let argument = self.top().values[instruction.operands[branch + 1]];
            let leaves = (0..argument.count as usize).filter(|&leaf| self.waits[callee].uses(0, leaf));
            used.extend(leaves.map(|leaf| (argument, leaf)));
        }
        self.all_of(used)
    }

    /// Which branches of the current conditional write this array of its result.
    fn written_by_branches(&self, leaf: usize) -> Written {
        let instruction = self.here();
        let mut passed = Vec::new();
        let mut computed = 0;
        for (branch, &callee) in instruction.called.iter().enumerate() {
            match self.waits[callee].results.get(leaf) {
                Some(Origin::Computed) => computed += 1,
                Some(&Origin::Passed(from)) => {
                    let argument = self.top().values[instruction.operands[branch + 1]];
                    passed.push(self.nodes(argument).get(from as usize).map(|&node| self.unmoved(node)));
                }
                _ => passed.push(None),
            }
        }
        if computed == instruction.called.len() {
            return Written::Always;
        }
        // If each branch hands on the same array, it may lie where it lay.
        let same = passed.first().is_some_and(|first| first.is_some() && passed.iter().all(|other| other == first));
        if computed == 0 && same { Written::Never } else { Written::Sometimes }
    }

    /// Whether a user of this array of the current conditional's result, which each branch computes, waits for all calls in the branch
    /// that ran, also for those that the array is not computed from: runtimes run a branch as a whole, and end it when all in it has ended.
    ///
    /// In a program as written, this holds only if XLA can change nothing of it: each branch makes the array by a watched call, not by
    /// something that may be simplified to what is passed on, and what decides is unknown, so that the conditional stays.
    fn waits_for_calls(&self, predicate: Span, roots: &[Span], leaf: usize) -> bool {
        let watched = |node: Node| self.watched[self.out.graph[node].instruction as usize];
        self.module.is_scheduled()
            || roots.len() > 1
                && roots.iter().all(|&root| watched(self.nodes(root)[leaf]))
                && self.nodes(predicate).iter().all(|&node| self.is_unknown(node))
    }

    /// Whether a value is what a watched call or an argument gave, of which XLA knows nothing. Arithmetic on it may have a known result.
    fn is_unknown(&self, node: Node) -> bool {
        let node = self.source(node, &[Opcode::Copy, Opcode::Bitcast, Opcode::Reshape, Opcode::Convert]);
        let value = self.out.graph[node];
        let instruction = value.instruction as usize;
        self.watched[instruction]
            || value.context == 0 && self.module.instructions[instruction].opcode == Opcode::Parameter
    }

    /// The value that a node is, seen through what XLA may remove.
    fn unmoved(&self, node: Node) -> Node {
        self.source(node, &[Opcode::Copy, Opcode::Bitcast, Opcode::Reshape])
    }

    /// What a node is made from by these operations alone.
    fn source(&self, mut node: Node, through: &[Opcode]) -> Node {
        while through.contains(&self.out.instruction(self.module, node).opcode)
            && self.out.graph[node].rule == Rule::Any
        {
            let mut sources = self.out.graph.neighbors_directed(node, Incoming);
            match (sources.next(), sources.next()) {
                (Some(source), None) => node = source,
                _ => break,
            }
        }
        node
    }

    /// Takes up a conditional after one of its branches was written out, with the branch's result.
    pub(super) fn resume_branches(&mut self, mut state: Branches, root: Span) -> Result<(), Error> {
        self.expect_leaves(root.count as usize)?;
        state.roots.push(root);
        let end = self.call_count();
        if let Some(range) = self.out.branches[state.site as usize].branches.last_mut() {
            range.end = end;
        }
        if state.roots.len() < self.here().called.len() {
            return self.enter_branch(state);
        }
        let Branches { site, predicate, roots, .. } = state;
        let used = self.used_by_branches()?;
        let branches = &self.out.branches[site as usize].branches;
        let ran = self.calls_that_ran(branches[0].start..end)?;
        let mut nodes = Vec::with_capacity(root.count as usize);
        for leaf in 0..root.count as usize {
            let written = self.written_by_branches(leaf);
            let node = self.node(leaf, Rule::Branches(site))?;
            for index in 0..predicate.count as usize {
                if written != Written::Never {
                    self.edge(self.nodes(predicate)[index], node, Edge::Guard)?;
                }
            }
            if let Some(used) = used.filter(|_| written == Written::Always) {
                self.edge(used, node, Edge::Guard)?;
            }
            if let Some(ran) =
                ran.filter(|_| written == Written::Always && self.waits_for_calls(predicate, &roots, leaf))
            {
                self.edge(ran, node, Edge::Guard)?;
            }
            for (branch, &root) in (0..).zip(&roots) {
                self.edge(self.nodes(root)[leaf], node, Edge::Branch(branch))?;
            }
            nodes.push(node);
        }
        let value = self.span(&nodes)?;
        self.finish(value)
    }
}
