//! What each `entangle` call cost in the compiled program.

use petgraph::Direction::{Incoming, Outgoing};
use petgraph::visit::EdgeRef as _;

use crate::audit::{Audit, Kind};
use crate::graph::{Edge, Node, Rule};
use crate::hlo::{Instruction, Opcode};

/// What one `entangle` call cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    /// The call, by position in [`Audit::calls`].
    pub call: usize,
    /// The bytes of all payload leaves together.
    pub payload_bytes: u64,
    /// One for every payload leaf.
    pub payload: Vec<PayloadLeaf>,
    /// How many witnesses the call has.
    pub witnesses: usize,
    /// Witnesses that order nothing, counted among all operands: they are constants in the compiled program, or have no elements.
    pub dropped_witnesses: Vec<usize>,
    /// The transposes right before and after the call with their lines, copies that change the layout among them.
    pub transposes: Vec<String>,
    /// The collectives right before and after the call, with their lines.
    pub collectives: Vec<String>,
}

impl Cost {
    /// The bytes that were copied for this call.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        let copied = self.payload.iter().filter(|leaf| matches!(leaf.fate, Fate::Copied { .. }));
        copied.map(|leaf| leaf.bytes).sum()
    }
}

/// One payload leaf of an `entangle` call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadLeaf {
    /// Its bytes, without padding.
    pub bytes: u64,
    /// What became of it.
    pub fate: Fate,
}

/// What became of a payload leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It was handed through without a copy.
    InPlace,
    /// It was copied.
    Copied {
        /// The copy's name in the module.
        by: String,
        /// Why.
        why: CopyReason,
    },
    /// It has no elements, so the call does not order it.
    NoElements,
}

/// Why a payload leaf was copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyReason {
    /// It is an argument of the program that is not donated.
    NotDonated {
        /// The argument's name.
        argument: String,
    },
    /// It was passed to the call twice, as payload or as a witness too.
    PassedTwice,
    /// Its value from before the call is used elsewhere.
    StillUsed {
        /// One operation that uses it, with its line; `the result` if the program returns it.
        by: String,
    },
    /// It is a constant, which must not be written over.
    Constant,
    /// The copy changes its layout.
    Layout,
    /// None of these.
    Unknown,
}

impl Audit {
    /// What every `entangle` call cost. Only a compiled program has copies; in one as written each payload is in place.
    #[must_use]
    pub fn costs(&self) -> Vec<Cost> {
        (0..self.calls.len())
            .filter(|&call| self.calls[call].kind == Kind::Entangle)
            .map(|call| self.cost(call))
            .collect()
    }

    fn cost(&self, call: usize) -> Cost {
        let site = &self.dependence.calls[call];
        let instruction = &self.module.instructions[site.instruction];
        let operands = self.dependence.operands(site.node);
        let results = instruction.shape.leaves();
        let mut payload_operands = Vec::with_capacity(results);
        let mut payload = Vec::with_capacity(results);
        for leaf in 0..results {
            let shape = instruction.shape.leaf(leaf).unwrap_or(&instruction.shape);
            let aliased = instruction.aliases.iter().find(|(result, _)| *result == leaf);
            let operand = aliased.map_or(leaf, |&(_, operand)| operand);
            let fate = if shape.has_no_elements() {
                Fate::NoElements
            } else {
                operands
                    .iter()
                    .find(|(number, _)| *number == operand)
                    .map_or(Fate::InPlace, |&(_, node)| self.fate(site.node, operand, node))
            };
            payload_operands.push(operand);
            payload.push(PayloadLeaf { bytes: shape.bytes(), fate });
        }
        let witnesses: Vec<_> = operands.iter().filter(|(number, _)| !payload_operands.contains(number)).collect();
        let dropped_witnesses = witnesses
            .iter()
            .filter(|(_, node)| {
                let source = self.dependence.instruction(&self.module, self.through(*node));
                source.opcode == Opcode::Constant || (!source.shape.is_tuple() && source.shape.has_no_elements())
            })
            .map(|(number, _)| *number)
            .collect();
        let mut around: Vec<Node> = operands.iter().map(|&(_, node)| self.through(node)).collect();
        around.extend(self.users(site.node));
        let names = |wanted: &dyn Fn(Node) -> bool| {
            let mut names: Vec<String> =
                around.iter().copied().filter(|&n| wanted(n)).map(|n| self.described(n)).collect();
            names.sort_unstable();
            names.dedup();
            names
        };
        Cost {
            call,
            payload_bytes: payload.iter().map(|leaf| leaf.bytes).sum(),
            payload,
            witnesses: witnesses.len(),
            dropped_witnesses,
            transposes: names(&|node| self.opcode(node) == Opcode::Transpose || self.changes_layout(node)),
            collectives: names(&|node| self.opcode(node).is_collective()),
        }
    }

    fn fate(&self, call: Node, operand: usize, node: Node) -> Fate {
        let copy = self.through(node);
        if !self.is_copy(copy) {
            return Fate::InPlace;
        }
        let source = self.through(self.first_operand(copy).unwrap_or(copy));
        Fate::Copied { by: self.name(copy), why: self.why(call, operand, copy, source) }
    }

    fn why(&self, call: Node, operand: usize, copy: Node, source: Node) -> CopyReason {
        let instruction = self.dependence.instruction(&self.module, source);
        let origin = |node: Node| {
            let node = self.through(node);
            if self.is_copy(node) { self.through(self.first_operand(node).unwrap_or(node)) } else { node }
        };
        if self.dependence.operands(call).iter().any(|&(number, node)| number != operand && origin(node) == source) {
            return CopyReason::PassedTwice;
        }
        let value = self.dependence.graph[source];
        if instruction.opcode == Opcode::Parameter
            && !self.module.donated.contains(&(instruction.number, value.leaf as usize))
        {
            let argument = if instruction.op_name.is_empty() { &instruction.name } else { &instruction.op_name };
            return CopyReason::NotDonated { argument: argument.clone() };
        }
        if instruction.opcode == Opcode::Constant {
            return CopyReason::Constant;
        }
        if self.dependence.outputs.contains(&source) {
            return CopyReason::StillUsed { by: "the result".into() };
        }
        let other = self.users_of(source);
        if let Some(user) = other.filter(|&user| user != copy && !self.leads_only_to(user, copy)).last() {
            return CopyReason::StillUsed { by: self.described(user) };
        }
        if self.changes_layout(copy) { CopyReason::Layout } else { CopyReason::Unknown }
    }

    /// A bitcast or the start of the copy itself.
    fn leads_only_to(&self, user: Node, copy: Node) -> bool {
        matches!(self.opcode(user), Opcode::Bitcast | Opcode::CopyStart) && self.users_of(user).all(|next| next == copy)
    }

    /// Follows a value back to the instruction that filled its buffer.
    fn through(&self, node: Node) -> Node {
        let mut node = node;
        loop {
            let value = self.dependence.graph[node];
            let wanted = |edge: Edge| match value.rule {
                Rule::Header => edge == Edge::Init,
                Rule::Any => matches!(edge, Edge::Operand(0)) && self.opcode(node) == Opcode::Bitcast,
                Rule::Leaf | Rule::Branches(_) | Rule::Exit(_) => false,
            };
            match self.dependence.graph.edges_directed(node, Incoming).find(|edge| wanted(*edge.weight())) {
                Some(edge) => node = edge.source(),
                None => return node,
            }
        }
    }

    /// The nodes that use a value, without those that were only asked to wait for it.
    fn users_of(&self, node: Node) -> impl Iterator<Item = Node> + '_ {
        let edges = self.dependence.graph.edges_directed(node, Outgoing);
        edges.filter(|edge| !matches!(edge.weight(), Edge::Control | Edge::Ran)).map(|edge| edge.target())
    }

    /// The instructions that use what a call returns.
    fn users(&self, call: Node) -> Vec<Node> {
        let graph = &self.dependence.graph;
        let mut users = Vec::new();
        let mut open: Vec<Node> = self.users_of(call).collect();
        while let Some(node) = open.pop() {
            if graph[node].rule == Rule::Leaf || self.opcode(node) == Opcode::Bitcast {
                open.extend(self.users_of(node));
            } else {
                users.push(node);
            }
        }
        users
    }

    /// A copy as an instruction of its own. A copy inside a larger fusion is only how that fusion writes its result.
    fn is_copy(&self, node: Node) -> bool {
        let context = self.dependence.graph[node].context;
        self.opcode(node) == Opcode::Copy
            && self.dependence.graph[node].rule == Rule::Any
            && self.first_operand(node).is_some_and(|operand| {
                let whole = self.dependence.contexts[context as usize].part == crate::graph::Part::Whole;
                !whole || self.dependence.graph[operand].context != context || self.opcode(operand) == Opcode::CopyStart
            })
    }

    fn changes_layout(&self, node: Node) -> bool {
        if self.opcode(node) != Opcode::Copy {
            return false;
        }
        let instruction = self.dependence.instruction(&self.module, node);
        let siblings =
            self.module.instructions_of(self.module.computation_of(self.dependence.graph[node].instruction as usize));
        let operand = instruction.operands.first().map(|&operand| &siblings[operand].shape);
        operand.is_some_and(|operand| {
            !operand.is_tuple()
                && operand.minor_to_major.len() == instruction.shape.minor_to_major.len()
                && operand.minor_to_major != instruction.shape.minor_to_major
        })
    }

    fn first_operand(&self, node: Node) -> Option<Node> {
        let mut edges = self.dependence.graph.edges_directed(node, Incoming);
        let operand = edges.find(|edge| *edge.weight() == Edge::Operand(0))?.source();
        // A copy that runs on its own has a start and an end.
        if self.opcode(operand) == Opcode::CopyStart { self.first_operand(operand) } else { Some(operand) }
    }

    fn opcode(&self, node: Node) -> Opcode {
        self.dependence.instruction(&self.module, node).opcode
    }

    /// What it is and which line it comes from; the instruction's name where the module does not say.
    fn described(&self, node: Node) -> String {
        let value = self.dependence.graph[node];
        let instruction = self.dependence.instruction(&self.module, node);
        let what = instruction.op_name.rsplit('/').next().unwrap_or_default();
        match self.sources(value.instruction as usize, value.context).first() {
            Some(line) if !what.is_empty() => format!("{what} at {}:{}", line.file, line.line),
            _ => instruction.name.clone(),
        }
    }

    fn name(&self, node: Node) -> String {
        let instruction: &Instruction = self.dependence.instruction(&self.module, node);
        instruction.name.clone()
    }
}
