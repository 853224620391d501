//! Races among all native calls.

use std::collections::HashMap;
use std::ops::ControlFlow;

use super::after::After;
use super::horizon::Horizons;
use super::order::Unproven;
use crate::audit::Audit;
use crate::graph::{BLOCK, Block, Node, Part, Reached, reached};
use crate::hlo::Source;
use crate::objects::Touched;

/// More races than this are counted and not listed.
pub const MAX_RACES: usize = 10_000;

/// Two native calls, at least one of which writes, that touch one handle and have no data path either way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Race {
    /// The call that is listed first, by position in [`Audit::calls`].
    pub first: usize,
    /// The other call; equal to `first` for a write that races with itself in the next iteration of a loop.
    pub second: usize,
    /// The handle that both touch.
    pub handle: String,
    /// The loop in whose later iteration `second` races with `first`; `None` if they race in one and the same run of everything around.
    pub later_iteration_of: Option<String>,
    /// Where that loop comes from, the innermost line first.
    pub loop_source: Vec<Source>,
    /// What orders them without proof.
    pub unproven: Option<Unproven>,
}

/// All races of a module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Races {
    /// The first [`MAX_RACES`] of them.
    pub list: Vec<Race>,
    /// How many more there are.
    pub more: usize,
}

impl Audit {
    /// Every pair of native calls that touch one handle, at least one of them writing, without a data path either way.
    #[must_use]
    pub fn races(&self) -> Races {
        // Most programs have none, which takes far fewer pairs to see.
        if self.each_open(true, |_| ControlFlow::Break(())).is_break() { self.all_races() } else { Races::default() }
    }

    pub(crate) fn all_races(&self) -> Races {
        let (mut same_run, mut later_run) = (Vec::new(), Vec::new());
        // A pair is told once, and where it races in one run: two calls that race in one iteration race in the next one too. That they
        // race in one run is found first, at the block of the one that is listed first.
        let mut told = Pairs::default();
        let _ = self.each_open(false, |open| {
            if told.insert(open.first, open.second) {
                let list = if open.later_iteration_of.is_some() { &mut later_run } else { &mut same_run };
                if list.len() < MAX_RACES {
                    list.push(open);
                }
            }
            ControlFlow::Continue(())
        });
        let list: Vec<Race> = same_run.iter().chain(&later_run).take(MAX_RACES).map(|open| self.race(open)).collect();
        Races { more: told.count - list.len(), list }
    }

    /// Calls `found` with every pair that must be ordered and is not; or, if `implied` pairs may be left out, with at least one if there
    /// is one: see [`Horizons`].
    pub(crate) fn each_open(&self, implied: bool, mut found: impl FnMut(Open) -> ControlFlow<()>) -> ControlFlow<()> {
        let touching: Vec<u32> =
            (0..).zip(&self.touched).filter(|(_, touched)| touched.is_something()).map(|(call, _)| call).collect();
        let overlapping = self.objects.overlapping();
        let horizons = implied.then(|| Horizons::new(self, &touching, &overlapping));
        let Some(end) = self.dependence.last() else { return ControlFlow::Continue(()) };
        let mut masks = Masks::new(self.objects.len());
        for calls in touching.chunks(BLOCK) {
            let block = Block(calls);
            let last = horizons.as_ref().map_or(end, |horizons| horizons.of(self, calls, end));
            let after = After::new(self, block, last);
            let mut with_control: Option<Reached> = None;
            masks.fill(calls, &self.touched);
            let mut each = |open: u64, second: u32, node: Node, later_iteration_of: Option<u32>| {
                for (bit, first) in bits(open, calls) {
                    let control = self.dependence.has_control_edges
                        && with_control.get_or_insert_with(|| reached(&self.dependence, block, last, true)).at(node)
                            & bit
                            != 0;
                    let unproven = if self.module.is_scheduled() {
                        Some(Unproven::Schedule)
                    } else {
                        control.then_some(Unproven::ControlEdge)
                    };
                    found(Open { first, second, later_iteration_of, unproven })?;
                }
                ControlFlow::Continue(())
            };
            for &second in &touching[touching.partition_point(|&call| call <= calls[0])..] {
                let node = self.dependence.calls[second as usize].node;
                if node > last {
                    break;
                }
                let conflicts = masks.conflicts(&self.touched[second as usize], &overlapping);
                let mut open = conflicts & block.mask(&(0..second)) & !after.at(second, node);
                if open != 0 {
                    open &= !self.exclusive(block, second as usize);
                }
                each(open, second, node, None)?;
            }
            let first_node = self.dependence.calls[calls[0] as usize].node;
            let later = &self.dependence.later;
            let soon = later.partition_point(|later| later.node < first_node)
                ..later.partition_point(|later| later.node <= last);
            for (later, touched) in later[soon.clone()].iter().zip(&self.touched_later[soon]) {
                let inside = block.mask(&self.dependence.loops[later.site as usize].calls);
                if inside == 0 || !touched.is_something() {
                    continue;
                }
                let open = masks.conflicts(touched, &overlapping) & inside & !after.at(later.call, later.node);
                each(open, later.call, later.node, Some(later.site))?;
            }
        }
        ControlFlow::Continue(())
    }

    fn race(&self, open: &Open) -> Race {
        let (first, second) = (open.first as usize, open.second as usize);
        let (of_first, of_second) = (&self.touched[first], &self.touched[second]);
        // A read and a read share nothing that matters.
        let meet = |a: u32| {
            let others =
                if of_first.writes.contains(&a) { of_second.objects().collect() } else { of_second.writes.clone() };
            let same = others.into_iter().find(|&b| self.objects.may_be_same(a, b));
            same.map(|b| self.objects.less_precise(a, b))
        };
        let shared = of_first.objects().find_map(meet);
        let (first, second) = if open.later_iteration_of.is_none() && self.scheduled_before(second, first) {
            (second, first)
        } else {
            (first, second)
        };
        Race {
            first,
            second,
            handle: shared.map(|object| self.objects.name(object)).unwrap_or_default(),
            later_iteration_of: open.later_iteration_of.map(|site| self.loop_name(site)),
            loop_source: open.later_iteration_of.map_or_else(Vec::new, |site| self.loop_source(site, open.second)),
            unproven: open.unproven,
        }
    }
}

impl Audit {
    /// Where a loop around a call comes from.
    fn loop_source(&self, site: u32, call: u32) -> Vec<Source> {
        let instruction = self.dependence.loops[site as usize].instruction;
        let mut context = self.dependence.contexts[self.dependence.calls[call as usize].context as usize];
        while context.part != Part::Entry {
            if context.caller == instruction {
                return self.sources(instruction, context.parent);
            }
            context = self.dependence.contexts[context.parent as usize];
        }
        Vec::new()
    }
}

/// Two calls that must be ordered and are not.
pub(crate) struct Open {
    first: u32,
    second: u32,
    later_iteration_of: Option<u32>,
    unproven: Option<Unproven>,
}

/// Pairs of calls, in either order. Races come in crowds, so there is one word for as many neighbours as it has bits.
#[derive(Default)]
struct Pairs {
    words: HashMap<(u32, u32), u64>,
    count: usize,
}

impl Pairs {
    /// Whether the pair is new.
    fn insert(&mut self, a: u32, b: u32) -> bool {
        let (low, high) = (a.min(b), a.max(b));
        let word = self.words.entry((low / u64::BITS, high)).or_default();
        let bit = 1 << (low % u64::BITS);
        let new = *word & bit == 0;
        *word |= bit;
        self.count += usize::from(new);
        new
    }
}

/// Which calls of a block read and write each object.
struct Masks {
    reads: Vec<u64>,
    writes: Vec<u64>,
    filled: Vec<u32>,
}

impl Masks {
    fn new(objects: usize) -> Self {
        Self { reads: vec![0; objects], writes: vec![0; objects], filled: Vec::new() }
    }

    fn fill(&mut self, calls: &[u32], touched: &[Touched]) {
        for object in self.filled.drain(..) {
            self.reads[object as usize] = 0;
            self.writes[object as usize] = 0;
        }
        for (position, &call) in calls.iter().enumerate() {
            let touched = &touched[call as usize];
            for &object in &touched.reads {
                self.reads[object as usize] |= 1 << position;
                self.filled.push(object);
            }
            for &object in &touched.writes {
                self.writes[object as usize] |= 1 << position;
                self.filled.push(object);
            }
        }
    }

    /// The calls of the block that an access must be ordered with.
    fn conflicts(&self, touched: &Touched, overlapping: &[Vec<u32>]) -> u64 {
        let over = |objects: &[u32], mask: &dyn Fn(usize) -> u64| {
            let others = objects.iter().flat_map(|&object| &overlapping[object as usize]);
            others.fold(0, |all, &object| all | mask(object as usize))
        };
        over(&touched.reads, &|object| self.writes[object])
            | over(&touched.writes, &|object| self.reads[object] | self.writes[object])
    }
}

fn bits(mask: u64, calls: &[u32]) -> impl Iterator<Item = (u64, u32)> {
    calls.iter().enumerate().map(|(position, &call)| (1 << position, call)).filter(move |(bit, _)| mask & bit != 0)
}
