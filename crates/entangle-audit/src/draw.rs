//! What to draw: native calls, and the data paths between them.

use crate::audit::Audit;
use crate::graph::{BLOCK, Block};
use crate::races::After;

/// More native calls than this are not drawn: nobody could read it.
pub const MAX_DRAWN: usize = 1_000;

/// Native calls and the data paths between them, without those that others imply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Graph {
    /// Positions in [`Audit::calls`].
    pub nodes: Vec<usize>,
    /// From a call to one that depends on it in every run, with none of the others between.
    pub edges: Vec<(usize, usize)>,
    /// How many calls were left out.
    pub more: usize,
}

impl Audit {
    /// The picture of the first [`MAX_DRAWN`] native calls.
    #[must_use]
    pub fn graph(&self) -> Graph {
        let count = self.calls.len().min(MAX_DRAWN);
        let words = count.div_ceil(BLOCK);
        // For each call, the calls it depends on.
        let mut before = vec![vec![0_u64; words]; count];
        let calls: Vec<u32> = (0..).take(count).collect();
        for (word, calls) in calls.chunks(BLOCK).enumerate() {
            let Some(last) = self.dependence.last() else { break };
            let after = After::new(self, Block(calls), last);
            for ((before, site), call) in before.iter_mut().zip(&self.dependence.calls).zip(0..) {
                before[word] = after.at(call, site.node);
            }
        }
        let has = |set: &[u64], call: usize| set[call / BLOCK] >> (call % BLOCK) & 1 == 1;
        let mut edges = Vec::new();
        for to in 0..count {
            let mut implied = vec![0_u64; words];
            // The nearest call comes last: what it depends on needs no arrow of its own.
            for from in (0..to).rev() {
                if has(&before[to], from) && !has(&implied, from) {
                    edges.push((from, to));
                    implied.iter_mut().zip(&before[from]).for_each(|(implied, before)| *implied |= before);
                }
            }
        }
        edges.sort_unstable();
        Graph { nodes: (0..count).collect(), edges, more: self.calls.len() - count }
    }
}
