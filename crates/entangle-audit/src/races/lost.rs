//! What became of the native calls of the program as written: which are gone from the optimized one, and which run elsewhere.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use petgraph::Direction::Incoming;
use petgraph::visit::EdgeRef as _;

use crate::audit::Audit;
use crate::graph::{Edge, Part, Rule};
use crate::hlo::{Instruction, Opcode, Source};

/// A native call that optimization removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The call, by position in the calls of the program as written.
    pub call: usize,
    /// A call with the same target whose operands are computed alike, in whose result it was merged; `None` if it was dropped.
    pub merged_with: Option<usize>,
    /// It was dropped although it has a side effect: it stands in a branch that is never taken, or in a loop that never runs. Otherwise
    /// nothing needed its result.
    pub never_runs: bool,
}

/// A native call that runs less often than the program as written says: once before a loop instead of in each of its iterations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// The call, by position in the calls of the program as written.
    pub call: usize,
    /// The call that it became, by position in the calls of the optimized program.
    pub to: usize,
    /// Where the innermost loop comes from that it is not in any more, the innermost line first.
    pub out_of: Vec<Source>,
}

/// The native calls of `before` that `after`, the same program optimized with the same targets, lacks.
///
/// Calls are matched as by [`counterparts`]. Where a line has several calls of one target and some are gone, the last ones are named.
#[must_use]
pub fn lost(before: &Audit, after: &Audit) -> Vec<Lost> {
    let gone = Matched::new(before, after).before;
    let mut twins: HashMap<u64, Vec<usize>> = HashMap::new();
    let signatures = if gone.is_empty() { Vec::new() } else { signatures(before) };
    let signature = |call: usize| signatures[before.dependence.calls[call].node.index()];
    if !gone.is_empty() {
        for call in 0..before.calls.len() {
            twins.entry(signature(call)).or_default().push(call);
        }
    }
    gone.iter()
        .map(|&call| {
            let kept = twins[&signature(call)].iter().copied().find(|other| gone.binary_search(other).is_err());
            let never_runs = before.module.instructions[before.dependence.calls[call].instruction].has_side_effect;
            Lost { call, merged_with: kept, never_runs: kept.is_none() && never_runs }
        })
        .collect()
}

/// For each native call of `after`, the call of `before` that it was before optimization.
///
/// Calls are matched by target and source lines: first those with equal call stacks, then those whose innermost lines agree. One that
/// optimization made several calls of, as of a loop that it unrolled, is found for each of them.
#[must_use]
pub fn counterparts(before: &Audit, after: &Audit) -> Vec<Option<usize>> {
    let matched = Matched::new(before, after);
    let mut counterparts = vec![None; after.calls.len()];
    for &(of, call) in &matched.pairs {
        counterparts[call] = Some(of);
    }
    for part in [whole, innermost] {
        let mut of: HashMap<_, usize> = HashMap::new();
        for call in 0..before.calls.len() {
            of.entry(key(before, call, part)).or_insert(call);
        }
        for &call in &matched.after {
            counterparts[call] = counterparts[call].or_else(|| of.get(&key(after, call, part)).copied());
        }
    }
    counterparts
}

/// The native calls of `before` that `after` took out of a loop that it still has.
#[must_use]
pub fn moved(before: &Audit, after: &Audit) -> Vec<Moved> {
    let instructions = after.module.instructions.iter();
    let loops: HashSet<_> =
        instructions.filter(|one| one.opcode == Opcode::While).map(|one| loop_key(after, one)).collect();
    let mut moved: Vec<Moved> = Matched::new(before, after)
        .pairs
        .into_iter()
        .filter_map(|(call, to)| {
            let (were, are) = (loops_around(before, call), loops_around(after, to));
            // A loop that is gone was unrolled, or runs once: its calls run as often as they did.
            let out_of = were.iter().take(were.len().saturating_sub(are.len())).find(|&&(instruction, _)| {
                loops.contains(&loop_key(before, &before.module.instructions[instruction]))
            })?;
            Some(Moved { call, to, out_of: before.sources(out_of.0, out_of.1) })
        })
        .collect();
    moved.sort_unstable_by_key(|moved| moved.call);
    moved
}

/// The loops around a call, the innermost first: their instructions, and the contexts these are in.
fn loops_around(audit: &Audit, call: usize) -> Vec<(usize, u32)> {
    let mut loops = Vec::new();
    let mut context = audit.dependence.contexts[audit.dependence.calls[call].context as usize];
    while context.part != Part::Entry {
        if matches!(context.part, Part::Body | Part::Condition) {
            loops.push((context.caller, context.parent));
        }
        context = audit.dependence.contexts[context.parent as usize];
    }
    loops
}

/// What a loop keeps through optimization.
fn loop_key(audit: &Audit, instruction: &Instruction) -> (String, Option<Source>) {
    (instruction.op_name.clone(), audit.module.sources(instruction).into_iter().next())
}

/// Which calls of two programs are the same.
struct Matched {
    /// Positions in the calls of both.
    pairs: Vec<(usize, usize)>,
    /// Those of the first that have no counterpart, in ascending order.
    before: Vec<usize>,
    /// Likewise of the second.
    after: Vec<usize>,
}

/// What a call is known by: its target, and a part of its call stack.
type Key<'a> = (&'a str, &'a [Source]);

impl Matched {
    fn new(before: &Audit, after: &Audit) -> Self {
        let mut matched = Self {
            pairs: Vec::new(),
            before: (0..before.calls.len()).collect(),
            after: (0..after.calls.len()).collect(),
        };
        matched.pair_up(before, after, whole);
        matched.pair_up(before, after, innermost);
        matched
    }

    /// Pairs the calls that agree in target and in the given part of their call stacks.
    fn pair_up(&mut self, before: &Audit, after: &Audit, part: fn(&[Source]) -> &[Source]) {
        let mut left: HashMap<Key, Vec<usize>> = HashMap::new();
        for &call in self.after.iter().rev() {
            left.entry(key(after, call, part)).or_default().push(call);
        }
        let pairs = &mut self.pairs;
        self.before.retain(|&call| match left.get_mut(&key(before, call, part)).and_then(Vec::pop) {
            Some(counterpart) => {
                pairs.push((call, counterpart));
                false
            }
            None => true,
        });
        self.after = left.into_values().flatten().collect();
        self.after.sort_unstable();
    }
}

fn key(audit: &Audit, call: usize, part: fn(&[Source]) -> &[Source]) -> Key<'_> {
    (&audit.calls[call].target, part(&audit.calls[call].source))
}

fn whole(sources: &[Source]) -> &[Source] {
    sources
}

fn innermost(sources: &[Source]) -> &[Source] {
    &sources[..sources.len().min(1)]
}

/// For each value what it is computed from and how, as a number that is equal for values that are computed alike: also in two loops, and in
/// a loop and outside of it if no iteration changes it.
fn signatures(audit: &Audit) -> Vec<u64> {
    /// So often what a loop hands to its next iteration is looked at, to tell loops apart that begin alike.
    const ROUNDS: usize = 3;
    let graph = &audit.dependence.graph;
    let contexts = &audit.dependence.contexts;
    let mut in_branch: Vec<bool> = Vec::with_capacity(contexts.len());
    for context in contexts {
        let around = context.part != Part::Entry && in_branch[context.parent as usize];
        in_branch.push(around || matches!(context.part, Part::Branch { .. }));
    }
    let mut signatures = vec![0; graph.node_count()];
    for _ in 0..ROUNDS {
        for node in graph.node_indices() {
            let value = graph[node];
            // That a loop may not run does not tell a call in it from one outside; that a branch is not taken does.
            let matters =
                |edge: Edge| edge != Edge::Control && (edge != Edge::Guard || in_branch[value.context as usize]);
            let mut sources: Vec<(String, u64)> = graph
                .edges_directed(node, Incoming)
                .filter(|edge| matters(*edge.weight()) && edge.source() != node)
                .map(|edge| (format!("{:?}", edge.weight()), signatures[edge.source().index()]))
                .collect();
            sources.sort_unstable();
            let instruction = audit.dependence.instruction(&audit.module, node);
            let hands_on = value.rule == Rule::Header
                || matches!(
                    instruction.opcode,
                    Opcode::Parameter | Opcode::GetTupleElement | Opcode::Tuple | Opcode::Call
                );
            if let ([(_, source)], true) = (&sources[..], hands_on) {
                signatures[node.index()] = *source;
                continue;
            }
            let mut hash = DefaultHasher::new();
            (std::mem::discriminant(&instruction.opcode), std::mem::discriminant(&value.rule), value.leaf)
                .hash(&mut hash);
            (&instruction.target, &instruction.attributes, &instruction.literal, instruction.number).hash(&mut hash);
            (&instruction.slice, instruction.counts_along).hash(&mut hash);
            // Of an operation that is not told apart, JAX's name for it.
            if instruction.opcode != Opcode::CustomCall {
                instruction.op_name.rsplit('/').next().hash(&mut hash);
            }
            format!("{:?}", instruction.shape.leaf(value.leaf as usize)).hash(&mut hash);
            sources.hash(&mut hash);
            signatures[node.index()] = hash.finish();
        }
    }
    signatures
}
