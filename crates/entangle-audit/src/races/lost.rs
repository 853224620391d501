//! Native calls that the program as written has and the optimized one has not.

use std::collections::HashMap;

use crate::audit::Audit;
use crate::graph::Node;
use crate::hlo::Source;

/// A native call that optimization removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The call, by position in the calls of the program as written.
    pub call: usize,
    /// A call with the same target and the same operands, in whose result it may have been merged; `None` if it was dropped because
    /// nothing needed its result.
    pub merged_with: Option<usize>,
}

/// The native calls of `before` that `after`, the same program optimized with the same targets, lacks.
///
/// Calls are matched by target and source lines: first those with equal call stacks, then those whose innermost lines agree.
/// Where a line has several calls of one target and some are gone, the last ones are named.
#[must_use]
pub fn lost(before: &Audit, after: &Audit) -> Vec<Lost> {
    let mut unmatched_before: Vec<usize> = (0..before.calls.len()).collect();
    let mut unmatched_after: Vec<usize> = (0..after.calls.len()).collect();
    match_up(before, after, &mut unmatched_before, &mut unmatched_after, |sources| sources);
    match_up(before, after, &mut unmatched_before, &mut unmatched_after, |sources| &sources[..sources.len().min(1)]);
    if unmatched_before.is_empty() {
        return Vec::new();
    }
    let gone = unmatched_before;
    let mut twins: HashMap<(&str, Operands), Vec<usize>> = HashMap::new();
    for call in 0..before.calls.len() {
        twins.entry((&before.calls[call].target, operands(before, call))).or_default().push(call);
    }
    gone.iter()
        .map(|&call| {
            let same = &twins[&(before.calls[call].target.as_str(), operands(before, call))];
            let kept = same.iter().copied().find(|other| gone.binary_search(other).is_err());
            Lost { call, merged_with: kept }
        })
        .collect()
}

/// Takes out the pairs of calls that agree in target and in the given part of their call stacks.
fn match_up(
    before: &Audit,
    after: &Audit,
    unmatched_before: &mut Vec<usize>,
    unmatched_after: &mut Vec<usize>,
    part: fn(&[Source]) -> &[Source],
) {
    fn key(audit: &Audit, call: usize, part: fn(&[Source]) -> &[Source]) -> (&str, &[Source]) {
        (&audit.calls[call].target, part(&audit.calls[call].source))
    }
    let mut left: HashMap<_, Vec<usize>> = HashMap::new();
    for &call in unmatched_after.iter().rev() {
        left.entry(key(after, call, part)).or_default().push(call);
    }
    unmatched_before.retain(|&call| left.get_mut(&key(before, call, part)).and_then(Vec::pop).is_none());
    *unmatched_after = left.into_values().flatten().collect();
    unmatched_after.sort_unstable();
}

/// Each operand's number and value.
type Operands = Vec<(usize, Node)>;

fn operands(audit: &Audit, call: usize) -> Operands {
    audit.dependence.operands(audit.dependence.calls[call].node)
}
