//! Loops: the body is written out once for any iteration and, if it holds native calls, once for any later one.

use super::super::waits::Origin;
use super::super::{Edge, LoopSite, Node, Part, Rule};
use super::{Expansion, LaterCursor, Pending, Span};
use crate::error::Error;
use crate::hlo::{Comparison, Instruction, Opcode, literal};

pub(super) struct Loop {
    site: u32,
    stage: Stage,
    /// Whether the body is written out a second time.
    twice: bool,
    /// The guard of the whole loop.
    outer: Option<Node>,
    header: Span,
    condition: Span,
    guard: Option<Node>,
    out: Span,
    later_header: Span,
    later_condition: Span,
}

enum Stage {
    Condition,
    Body,
    LaterCondition,
    LaterBody,
}

impl Expansion<'_> {
    pub(super) fn start_loop(&mut self, operands: &[Span]) -> Result<(), Error> {
        let instruction = self.here();
        if instruction.called.len() != 2 || operands.len() != 1 {
            return Err(self.malformed(format!(
                "it has {} operands and {} computations: wanted one operand, a body and a condition",
                operands.len(),
                instruction.called.len()
            )));
        }
        self.expect_leaves(operands[0].count as usize)?;
        let site = u32::try_from(self.out.loops.len()).expect("sites are fewer than nodes");
        let calls = self.call_count();
        let instruction_position = self.position();
        self.out.loops.push(LoopSite { instruction: instruction_position, calls: calls..calls, body: calls..calls });
        let outer = self.guard_here()?;
        let header = self.header(operands[0])?;
        let state = Loop {
            site,
            stage: Stage::Condition,
            twice: self.later.is_none() && instruction.called.iter().any(|&callee| self.native[callee]),
            outer,
            header,
            condition: Span::default(),
            guard: None,
            out: Span::default(),
            later_header: Span::default(),
            later_condition: Span::default(),
        };
        let condition = instruction.called[1];
        self.enter_with(condition, Part::Condition, vec![header], outer, Pending::Loop(Box::new(state)))
    }

    /// Takes up a loop after its condition or body was written out, in the order of [`Stage`].
    pub(super) fn resume_loop(&mut self, mut state: Box<Loop>, root: Span) -> Result<(), Error> {
        let instruction = self.here();
        let (body, condition) = (instruction.called[0], instruction.called[1]);
        let site = state.site as usize;
        match state.stage {
            Stage::Condition => {
                state.stage = Stage::Body;
                state.condition = root;
                // A runtime that knows the number of iterations does not look at the condition.
                let decides = if instruction.runs_at_least_once { Span::default() } else { root };
                state.guard = self.guard(state.outer, decides)?;
                let start = self.call_count();
                self.out.loops[site].body = start..start;
                let (header, guard) = (state.header, state.guard);
                self.enter_with(body, Part::Body, vec![header], guard, Pending::Loop(state))
            }
            Stage::Body => {
                state.out = root;
                self.back_edges(root, state.header)?;
                let end = self.call_count();
                self.out.loops[site].body.end = end;
                self.out.loops[site].calls.end = end;
                if !state.twice {
                    return self.leave_loop(&state);
                }
                state.stage = Stage::LaterCondition;
                state.later_header = self.header(root)?;
                let next_call = self.out.loops[site].calls.start;
                self.later = Some(LaterCursor { site: state.site, next_call });
                let (header, guard) = (state.later_header, state.guard);
                self.enter_with(condition, Part::Condition, vec![header], guard, Pending::Loop(state))
            }
            Stage::LaterCondition => {
                state.stage = Stage::LaterBody;
                state.later_condition = root;
                let decides = if instruction.runs_at_least_once { Span::default() } else { root };
                let guard = self.guard(state.guard, decides)?;
                let header = state.later_header;
                self.enter_with(body, Part::Body, vec![header], guard, Pending::Loop(state))
            }
            Stage::LaterBody => {
                self.later = None;
                self.back_edges(root, state.later_header)?;
                self.leave_loop(&state)
            }
        }
    }

    fn leave_loop(&mut self, state: &Loop) -> Result<(), Error> {
        let instruction = self.here();
        let [body, condition] = instruction.called[..] else { unreachable!("checked when the loop started") };
        let runs = instruction.runs_at_least_once || self.first_iteration_runs(condition);
        // What a condition calls in its last evaluation runs after the body.
        let base = if runs && !self.native[condition] { state.out } else { state.header };
        // That the loop ended is known only from its condition, unless a runtime knows the number of iterations.
        let (end, later_end) = if instruction.runs_at_least_once {
            (None, None)
        } else {
            (self.guard(None, state.condition)?, self.guard(None, state.later_condition)?)
        };
        let used = self.used_by_loop()?;
        // A loop ends when all in its last iteration has ended, and each iteration starts when all in the one before has. As written
        // nothing is known of that: XLA may unroll the loop.
        let calls = self.out.loops[state.site as usize].body.clone();
        let ran = if self.module.is_scheduled() { self.calls_that_ran(calls)? } else { None };
        let mut nodes = Vec::with_capacity(base.count as usize);
        for leaf in 0..base.count as usize {
            let computed = self.waits[body].results.get(leaf) == Some(&Origin::Computed);
            let (end, later_end) = if computed { (end, later_end) } else { (None, None) };
            let node = self.node(leaf, Rule::Exit(state.site))?;
            if let Some(used) = used.filter(|_| computed) {
                self.edge(used, node, Edge::Guard)?;
            }
            if let Some(ran) = ran.filter(|_| computed) {
                self.edge(ran, node, Edge::Inside)?;
            }
            self.edge(self.nodes(base)[leaf], node, Edge::Operand(0))?;
            if state.twice {
                self.edge(self.nodes(state.later_header)[leaf], node, Edge::Inside)?;
            }
            if let Some(end) = end {
                self.edge(end, node, Edge::Guard)?;
            }
            if let Some(end) = later_end {
                self.edge(end, node, Edge::Inside)?;
            }
            nodes.push(node);
        }
        let value = self.span(&nodes)?;
        self.finish(value)
    }

    /// What the current loop waits for before it starts, in a compiled program: see [`Waits`].
    fn used_by_loop(&mut self) -> Result<Option<Node>, Error> {
        let instruction = self.here();
        let init = self.top().values[instruction.operands[0]];
        let used = |leaf| instruction.called.iter().any(|&callee| self.waits[callee].uses(0, leaf));
        let used: Vec<usize> = (0..init.count as usize).filter(|&leaf| used(leaf)).collect();
        self.all_of(used.into_iter().map(|leaf| (init, leaf)).collect())
    }

    /// Whether the condition compares a counter that starts at a constant with a larger constant: what `lax.scan` and `fori_loop`
    /// write before optimization, when the number of iterations is not noted yet.
    fn first_iteration_runs(&self, condition: usize) -> bool {
        let range = self.module.instructions_of(condition);
        let root = &range[self.module.computations[condition].root];
        if root.opcode != Opcode::Compare || root.comparison != Comparison::Less || root.operands.len() != 2 {
            return false;
        }
        let (counter, limit) = (&range[root.operands[0]], &range[root.operands[1]]);
        if counter.opcode != Opcode::GetTupleElement {
            return false;
        }
        let start = self.here().operands.first().and_then(|&operand| {
            let init = &self.module.instructions_of(self.top().computation)[operand];
            let leaves = init.shape.element_leaves(counter.number)?;
            let node = *self.nodes(self.top().values[operand]).get(leaves.start)?;
            Some(self.out.instruction(self.module, node))
        });
        let value = |instruction: &Instruction| {
            if instruction.opcode == Opcode::Constant { literal::integer(&instruction.literal) } else { None }
        };
        match (start.and_then(value), value(limit)) {
            (Some(start), Some(limit)) => start < limit,
            _ => false,
        }
    }

    fn header(&mut self, init: Span) -> Result<Span, Error> {
        let mut nodes = Vec::with_capacity(init.count as usize);
        for leaf in 0..init.count as usize {
            let node = self.node(leaf, Rule::Header)?;
            self.edge(self.nodes(init)[leaf], node, Edge::Init)?;
            nodes.push(node);
        }
        self.span(&nodes)
    }

    fn back_edges(&mut self, out: Span, header: Span) -> Result<(), Error> {
        self.expect_leaves(out.count as usize)?;
        for leaf in 0..header.count as usize {
            self.edge(self.nodes(out)[leaf], self.nodes(header)[leaf], Edge::Back)?;
        }
        Ok(())
    }
}
