//! Writes the dependence graph of a module.
//!
//! Computations are written out at each of their callers, so that a path cannot enter one call of a function and leave by another.
//! A loop's body is written out twice: once for any iteration and once for any later one.

mod branches;
mod loops;

use std::ops::Range;

use branches::Branches;
use loops::Loop;

use super::waits::Waits;
use super::{CallSite, Context, Dependence, Edge, Later, NONE, Node, Part, Rule, Value};
use crate::error::Error;
use crate::hlo::{Instruction, Module, Opcode};

/// After writing out nested computations a program has at most this many values, operands and instructions.
/// A program of a few calls that double at each level would otherwise fill the memory.
/// The tests, which are not optimized, stop earlier.
const MAX_SIZE: usize = if cfg!(test) { 1 << 21 } else { 1 << 24 };

/// A run of nodes in [`Expansion::arrays`]: the arrays of one value.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    first: u32,
    count: u32,
}

/// The copy of a loop body that stands for later iterations is being written; its calls are met in the same order as before.
struct LaterCursor {
    site: u32,
    next_call: u32,
}

/// A computation being written out.
struct Frame {
    computation: usize,
    context: u32,
    position: usize,
    /// The value of each instruction so far.
    values: Vec<Span>,
    /// How many calls had been met before the first instruction, and after each one.
    first_call: u32,
    calls_after: Vec<u32>,
    arguments: Vec<Span>,
    /// What must be known before anything in here starts.
    guard: Option<Node>,
    /// The caller in this frame that waits for the frame above.
    pending: Option<Pending>,
}

enum Pending {
    Call,
    Async,
    Branches(Branches),
    Loop(Box<Loop>),
}

struct Expansion<'m> {
    module: &'m Module,
    watched: Vec<bool>,
    /// Whether a computation holds a watched call, itself or further down.
    native: Vec<bool>,
    waits: Vec<Waits>,
    out: Dependence,
    arrays: Vec<Node>,
    frames: Vec<Frame>,
    later: Option<LaterCursor>,
    size: usize,
}

impl Dependence {
    /// Writes out the module; `watched` picks the native calls whose order is asked for.
    pub(crate) fn new(module: &Module, watched: impl Fn(&Instruction) -> bool) -> Result<Self, Error> {
        let watched: Vec<bool> =
            module.instructions.iter().map(|i| i.opcode == Opcode::CustomCall && watched(i)).collect();
        let mut native = vec![false; module.computations.len()];
        for &computation in &module.callees_first {
            let range = module.computations[computation].instructions.clone();
            native[computation] = range.into_iter().any(|position| {
                watched[position] || module.instructions[position].called.iter().any(|&callee| native[callee])
            });
        }
        let mut expansion = Expansion {
            module,
            watched,
            native,
            waits: Vec::new(),
            out: Self::default(),
            arrays: Vec::new(),
            frames: Vec::new(),
            later: None,
            size: 0,
        };
        expansion.run()?;
        Ok(expansion.out)
    }
}

impl<'m> Expansion<'m> {
    /// Walks the program with a stack of its own: computations may nest deeper than the machine's stack.
    fn run(&mut self) -> Result<(), Error> {
        let entry = self.module.entry;
        let module = self.module;
        self.waits = Waits::of_all(module, |amount| self.spend(amount))?;
        self.out.contexts.push(Context { parent: 0, caller: 0, part: Part::Entry });
        let mut arguments = vec![Span::default(); self.module.computations[entry].parameters];
        for position in self.module.computations[entry].instructions.clone() {
            let instruction = &self.module.instructions[position];
            if instruction.opcode == Opcode::Parameter {
                let mut nodes = Vec::with_capacity(instruction.shape.leaves());
                for leaf in 0..instruction.shape.leaves() {
                    nodes.push(self.node_of(position, 0, leaf, Rule::Any)?);
                }
                arguments[instruction.number] = self.span(&nodes)?;
            }
        }
        self.frames.push(Frame::new(self.module, entry, 0, 0, arguments, None));
        while let Some(frame) = self.frames.last() {
            if frame.position < self.module.computations[frame.computation].instructions.len() {
                self.spend(1)?;
                self.step()?;
            } else {
                let root = frame.values[self.module.computations[frame.computation].root];
                self.frames.pop();
                if self.frames.is_empty() {
                    self.out.outputs = self.nodes(root).to_vec();
                } else {
                    self.resume(root)?;
                }
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), Error> {
        let instruction = self.here();
        let predecessors = if instruction.called.is_empty() { self.control_predecessors()? } else { Vec::new() };
        let first_node = self.out.graph.node_count();
        let operands: Vec<Span> = {
            let frame = self.top();
            instruction.operands.iter().map(|&operand| frame.values[operand]).collect()
        };
        let value = match instruction.opcode {
            Opcode::Parameter => {
                let arguments = &self.top().arguments;
                let argument = arguments.get(instruction.number).copied();
                argument.ok_or_else(|| self.malformed("it is a parameter that its caller does not pass".into()))?
            }
            Opcode::Tuple => {
                let leaves: usize = operands.iter().map(|operand| operand.count as usize).sum();
                self.expect_leaves(leaves)?;
                let nodes: Vec<Node> = operands.iter().flat_map(|&operand| self.nodes(operand)).copied().collect();
                self.span(&nodes)?
            }
            Opcode::GetTupleElement => self.element(&operands, instruction.number)?,
            Opcode::AsyncDone => self.element(&operands, 1)?,
            Opcode::PassThrough | Opcode::AsyncUpdate => self.operand(&operands, 0)?,
            Opcode::CustomCall => self.custom_call(&operands)?,
            Opcode::Copy if operands.len() == 1 && operands[0].count as usize == instruction.shape.leaves() => {
                self.copy(operands[0])?
            }
            Opcode::Call | Opcode::Fusion if !instruction.called.is_empty() => {
                return self.enter(instruction.called[0], Part::Whole, operands, Pending::Call);
            }
            Opcode::AsyncStart if !instruction.called.is_empty() => {
                return self.enter(instruction.called[0], Part::Whole, operands, Pending::Async);
            }
            Opcode::While => return self.start_loop(&operands),
            Opcode::Conditional => return self.start_branches(&operands),
            _ => self.plain(&operands)?,
        };
        for predecessor in predecessors {
            for node in first_node..self.out.graph.node_count() {
                self.edge(predecessor, Node::new(node), Edge::Control)?;
            }
        }
        self.finish(value)
    }

    /// One node for the whole result: each of its arrays depends on every operand.
    fn plain(&mut self, operands: &[Span]) -> Result<Span, Error> {
        self.refuse_native_callees()?;
        let leaves = self.here().shape.leaves();
        if leaves == 0 {
            return Ok(Span::default());
        }
        let node = self.node(0, Rule::Any)?;
        self.operand_edges(operands, node)?;
        self.span(&vec![node; leaves])
    }

    fn copy(&mut self, operand: Span) -> Result<Span, Error> {
        let mut nodes = Vec::with_capacity(operand.count as usize);
        for leaf in 0..operand.count as usize {
            let node = self.node(leaf, Rule::Any)?;
            self.edge(self.nodes(operand)[leaf], node, Edge::Operand(0))?;
            nodes.push(node);
        }
        self.span(&nodes)
    }

    fn custom_call(&mut self, operands: &[Span]) -> Result<Span, Error> {
        self.refuse_native_callees()?;
        let instruction = self.here();
        let position = self.position();
        let call = self.node(0, Rule::Any)?;
        self.operand_edges(operands, call)?;
        if self.watched[position] {
            if let Some(guard) = self.top().guard {
                self.edge(guard, call, Edge::Guard)?;
            }
            if let Some(later) = &mut self.later {
                self.out.later.push(Later { call: later.next_call, site: later.site, node: call });
                later.next_call += 1;
            } else {
                self.out.graph[call].call = self.call_count();
                let context = self.top().context;
                self.out.calls.push(CallSite { instruction: position, context, node: call });
            }
        }
        if !instruction.shape.is_tuple() {
            return self.span(&[call]);
        }
        let mut nodes = Vec::with_capacity(instruction.shape.leaves());
        for leaf in 0..instruction.shape.leaves() {
            let node = self.node(leaf, Rule::Leaf)?;
            self.edge(call, node, Edge::Operand(0))?;
            nodes.push(node);
        }
        self.span(&nodes)
    }

    /// One node for all of these arrays, in a compiled program: XLA may still change what another one uses where.
    fn all_of(&mut self, arrays: Vec<(Span, usize)>) -> Result<Option<Node>, Error> {
        if arrays.is_empty() || !self.module.is_scheduled() {
            return Ok(None);
        }
        let node = self.node(0, Rule::Any)?;
        for (span, leaf) in arrays {
            self.edge(self.nodes(span)[leaf], node, Edge::Guard)?;
        }
        Ok(Some(node))
    }

    /// One node that stands for those of these calls that ran, and for nothing that they wait for.
    fn calls_that_ran(&mut self, calls: Range<u32>) -> Result<Option<Node>, Error> {
        if calls.is_empty() {
            return Ok(None);
        }
        let node = self.node(0, Rule::Any)?;
        for call in calls {
            self.edge(self.out.calls[call as usize].node, node, Edge::Ran)?;
        }
        Ok(Some(node))
    }

    /// Takes up the instruction that waited for a computation whose result is `root`.
    fn resume(&mut self, root: Span) -> Result<(), Error> {
        let pending = self.frames.last_mut().and_then(|frame| frame.pending.take());
        match pending.expect("a frame below another waits for it") {
            Pending::Call => self.finish(root),
            Pending::Async => self.finish_async(root),
            Pending::Loop(state) => self.resume_loop(state, root),
            Pending::Branches(state) => self.resume_branches(state, root),
        }
    }

    /// The value of an `async-start` is a tuple of its operands, its result, and what the backend adds.
    fn finish_async(&mut self, root: Span) -> Result<(), Error> {
        let instruction = self.here();
        let frame = self.top();
        let operands: Vec<Span> = instruction.operands.iter().map(|&operand| frame.values[operand]).collect();
        let mut nodes: Vec<Node> = operands.iter().flat_map(|&operand| self.nodes(operand)).copied().collect();
        nodes.extend_from_slice(self.nodes(root));
        if nodes.len() < instruction.shape.leaves() {
            let rest = self.node(0, Rule::Any)?;
            self.operand_edges(&operands, rest)?;
            nodes.resize(instruction.shape.leaves(), rest);
        }
        let value = self.span(&nodes)?;
        self.finish(value)
    }

    /// Notes the value of the current instruction and goes on to the next.
    fn finish(&mut self, value: Span) -> Result<(), Error> {
        self.expect_leaves(value.count as usize)?;
        let calls = self.call_count();
        let frame = self.frames.last_mut().expect("an instruction is in a frame");
        frame.values.push(value);
        frame.calls_after.push(calls);
        frame.position += 1;
        Ok(())
    }

    fn enter(&mut self, computation: usize, part: Part, arguments: Vec<Span>, pending: Pending) -> Result<(), Error> {
        let guard = self.guard_here()?;
        self.enter_with(computation, part, arguments, guard, pending)
    }

    fn enter_with(
        &mut self,
        computation: usize,
        part: Part,
        arguments: Vec<Span>,
        guard: Option<Node>,
        pending: Pending,
    ) -> Result<(), Error> {
        let wanted = self.module.computations[computation].parameters;
        if arguments.len() != wanted {
            let name = &self.module.computations[computation].name;
            return Err(
                self.malformed(format!("it passes {} arguments to {name:?}, which has {wanted}", arguments.len()))
            );
        }
        let caller = self.position();
        let parent = self.top().context;
        let context = u32::try_from(self.out.contexts.len()).expect("contexts are fewer than nodes");
        self.out.contexts.push(Context { parent, caller, part });
        self.frames.last_mut().expect("a caller is in a frame").pending = Some(pending);
        let first_call = self.call_count();
        self.frames.push(Frame::new(self.module, computation, context, first_call, arguments, guard));
        self.spend(1)
    }

    /// What must be known before the current instruction starts, with what it was asked to wait for.
    fn guard_here(&mut self) -> Result<Option<Node>, Error> {
        let guard = self.top().guard;
        let predecessors = self.control_predecessors()?;
        if predecessors.is_empty() {
            return Ok(guard);
        }
        let node = self.node(0, Rule::Any)?;
        if let Some(guard) = guard {
            self.edge(guard, node, Edge::Guard)?;
        }
        for predecessor in predecessors {
            self.edge(predecessor, node, Edge::Control)?;
        }
        Ok(Some(node))
    }

    fn guard(&mut self, outer: Option<Node>, decides: Span) -> Result<Option<Node>, Error> {
        if decides.count == 0 {
            return Ok(outer);
        }
        let node = self.node(0, Rule::Any)?;
        if let Some(outer) = outer {
            self.edge(outer, node, Edge::Guard)?;
        }
        for index in 0..decides.count as usize {
            self.edge(self.nodes(decides)[index], node, Edge::Guard)?;
        }
        Ok(Some(node))
    }

    /// One node for the end of each control predecessor of the current instruction.
    fn control_predecessors(&mut self) -> Result<Vec<Node>, Error> {
        let mut ends = Vec::new();
        for &predecessor in &self.here().control_predecessors {
            self.out.has_control_edges = true;
            let frame = self.top();
            let value = frame.values[predecessor];
            let first = if predecessor == 0 { frame.first_call } else { frame.calls_after[predecessor - 1] };
            let calls = first..frame.calls_after[predecessor];
            let end = self.node(0, Rule::Any)?;
            for index in 0..value.count as usize {
                self.edge(self.nodes(value)[index], end, Edge::Control)?;
            }
            for call in calls {
                self.edge(self.out.calls[call as usize].node, end, Edge::Control)?;
            }
            ends.push(end);
        }
        Ok(ends)
    }

    fn operand(&self, operands: &[Span], index: usize) -> Result<Span, Error> {
        operands.get(index).copied().ok_or_else(|| self.malformed(format!("it has no operand {index}")))
    }

    fn element(&self, operands: &[Span], number: usize) -> Result<Span, Error> {
        let tuple = self.operand(operands, 0)?;
        let instruction = self.here();
        let shape = &self.module.instructions_of(self.top().computation)[instruction.operands[0]].shape;
        let leaves = shape.element_leaves(number);
        let leaves = leaves.ok_or_else(|| self.malformed(format!("its operand has no tuple element {number}")))?;
        let narrow = |value: usize| u32::try_from(value).expect("checked against the operand's arrays");
        Ok(Span { first: tuple.first + narrow(leaves.start), count: narrow(leaves.len()) })
    }

    fn operand_edges(&mut self, operands: &[Span], node: Node) -> Result<(), Error> {
        for (index, &operand) in (0..).zip(operands) {
            let mut last = None;
            for position in 0..operand.count as usize {
                let source = self.nodes(operand)[position];
                if last != Some(source) {
                    self.edge(source, node, Edge::Operand(index))?;
                    last = Some(source);
                }
            }
        }
        Ok(())
    }

    fn refuse_native_callees(&self) -> Result<(), Error> {
        match self.here().called.iter().find(|&&callee| self.native[callee]) {
            Some(&callee) => Err(Error::Unsupported {
                place: self.place(),
                problem: format!(
                    "it calls {:?}, which holds a native call, an unknown number of times",
                    self.module.computations[callee].name
                ),
            }),
            None => Ok(()),
        }
    }

    fn expect_leaves(&self, found: usize) -> Result<(), Error> {
        let wanted = self.here().shape.leaves();
        if found == wanted {
            return Ok(());
        }
        Err(self.malformed(format!("its shape has {wanted} arrays and its value has {found}")))
    }

    fn node(&mut self, leaf: usize, rule: Rule) -> Result<Node, Error> {
        let (position, context) = (self.position(), self.top().context);
        self.node_of(position, context, leaf, rule)
    }

    fn node_of(&mut self, instruction: usize, context: u32, leaf: usize, rule: Rule) -> Result<Node, Error> {
        self.spend(1)?;
        Ok(self.out.graph.add_node(Value {
            instruction: u32::try_from(instruction).map_err(|_| Error::TooLarge { limit: MAX_SIZE })?,
            context,
            leaf: u32::try_from(leaf).map_err(|_| Error::TooLarge { limit: MAX_SIZE })?,
            call: NONE,
            rule,
            gathers: matches!(
                self.module.instructions[instruction].opcode,
                Opcode::CollectiveMove | Opcode::CollectiveReduce
            ) && self.module.instructions[instruction].among_all_devices,
        }))
    }

    fn edge(&mut self, from: Node, to: Node, edge: Edge) -> Result<(), Error> {
        debug_assert!(from < to || edge == Edge::Back, "only a loop leads back: one pass in order must do elsewhere");
        self.spend(1)?;
        self.out.graph.add_edge(from, to, edge);
        Ok(())
    }

    fn span(&mut self, nodes: &[Node]) -> Result<Span, Error> {
        self.spend(nodes.len())?;
        let narrow = |value: usize| u32::try_from(value).expect("MAX_SIZE fits");
        let span = Span { first: narrow(self.arrays.len()), count: narrow(nodes.len()) };
        self.arrays.extend_from_slice(nodes);
        Ok(span)
    }

    fn spend(&mut self, amount: usize) -> Result<(), Error> {
        self.size = self.size.saturating_add(amount);
        if self.size > MAX_SIZE { Err(Error::TooLarge { limit: MAX_SIZE }) } else { Ok(()) }
    }

    fn nodes(&self, span: Span) -> &[Node] {
        &self.arrays[span.first as usize..][..span.count as usize]
    }

    fn top(&self) -> &Frame {
        self.frames.last().expect("a computation is being written out")
    }

    fn position(&self) -> usize {
        let frame = self.top();
        self.module.computations[frame.computation].instructions.start + frame.position
    }

    fn here(&self) -> &'m Instruction {
        &self.module.instructions[self.position()]
    }

    fn call_count(&self) -> u32 {
        u32::try_from(self.out.calls.len()).expect("calls are fewer than nodes")
    }

    fn place(&self) -> String {
        let computation = &self.module.computations[self.top().computation].name;
        format!("instruction {:?} of computation {computation:?}", self.here().name)
    }

    fn malformed(&self, problem: String) -> Error {
        Error::Malformed { place: self.place(), problem }
    }
}

impl Frame {
    fn new(
        module: &Module,
        computation: usize,
        context: u32,
        first_call: u32,
        arguments: Vec<Span>,
        guard: Option<Node>,
    ) -> Self {
        let count = module.computations[computation].instructions.len();
        Self {
            computation,
            context,
            position: 0,
            values: Vec::with_capacity(count),
            first_call,
            calls_after: Vec::with_capacity(count),
            arguments,
            guard,
            pending: None,
        }
    }
}
