//! Order of two native calls, and races among all of them.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use crate::audit::{Access, Audit};
use crate::dependence::{Node, Part};
use crate::horizon::Horizons;
use crate::reach::{BLOCK, Block, Reached, path, reached};

/// More races than this are counted and not listed.
pub const MAX_RACES: usize = 10_000;

/// How a native call `first` stands to another, `second`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// `second` depends on `first` by data, in every run: the names of the instructions on one path, `first` and `second` included.
    DataPath(Vec<String>),
    /// They stand in different branches of one conditional: no run has both.
    NeverBoth,
    /// Nothing but the listed schedule or a control edge puts `first` before `second`. No proof: a CPU runtime goes by data alone, and on a
    /// GPU this holds only on one stream.
    ScheduleOnly(Unproven),
    /// Nothing puts `first` before `second`.
    Unordered,
}

/// What is left where there is no data path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unproven {
    /// Nothing at all.
    Nothing,
    /// A control edge.
    ControlEdge,
    /// The order in which the module lists its instructions.
    Schedule,
}

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
    /// What orders them without proof.
    pub unproven: Unproven,
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
    /// Whether a data path leads from the call `first` to the call `second`, both by position in [`Audit::calls`].
    ///
    /// Calls in a loop are taken in one and the same iteration; see [`Self::order_in_later_iterations`].
    ///
    /// # Panics
    /// There is no such call.
    #[must_use]
    pub fn order(&self, first: usize, second: usize) -> Order {
        let to = self.dependence.calls[second].node;
        let order = self.order_of_nodes(first, to, first != second);
        if order == Order::Unordered && first != second {
            if self.exclusive(Block(&[id(first)]), second) != 0 {
                return Order::NeverBoth;
            }
            if self.scheduled_before(first, second) {
                return Order::ScheduleOnly(Unproven::Schedule);
            }
        }
        order
    }

    /// For each loop around both calls, the innermost last: the loop's name, and whether a data path leads from `first` in any iteration
    /// to `second` in every later one.
    ///
    /// # Panics
    /// There is no such call.
    #[must_use]
    pub fn order_in_later_iterations(&self, first: usize, second: usize) -> Vec<(String, Order)> {
        let later = self.dependence.later.iter().filter(|later| later.call == id(second));
        let mut orders: Vec<(u32, Order)> = later
            .filter(|later| self.dependence.loops[later.site as usize].calls.contains(&id(first)))
            .map(|later| {
                let mut order = self.order_of_nodes(first, later.node, true);
                if order == Order::Unordered && self.module.is_scheduled() {
                    order = Order::ScheduleOnly(Unproven::Schedule);
                }
                (later.site, order)
            })
            .collect();
        orders.sort_by_key(|(site, _)| *site);
        orders.into_iter().map(|(site, order)| (self.loop_name(site), order)).collect()
    }

    /// Whether a data path leads from each call of `firsts` to each of `seconds`, in any number of them: what [`Self::order`] says of each
    /// pair, and [`Self::order_in_later_iterations`] if `later_iteration`, without the paths. `None` if there is no such pair: none with a
    /// loop around both.
    ///
    /// # Panics
    /// There is no such call.
    #[must_use]
    pub fn all_ordered(&self, firsts: &[usize], seconds: &[usize], later_iteration: bool) -> Option<bool> {
        let mut firsts: Vec<u32> = firsts.iter().map(|&call| id(call)).collect();
        firsts.sort_unstable();
        firsts.dedup();
        let wanted: HashSet<u32> = seconds.iter().map(|&call| id(call)).collect();
        let mut pairs = false;
        for calls in firsts.chunks(BLOCK) {
            let block = Block(calls);
            let values = reached(&self.dependence, block, self.dependence.last()?, false);
            let all = u64::MAX >> (u64::BITS as usize - calls.len());
            let ordered = |first: u64, second: Node| values.at(second) & first == first;
            let open = if later_iteration {
                let later = self.dependence.later.iter().filter(|later| wanted.contains(&later.call));
                later
                    .map(|later| (block.mask(&self.dependence.loops[later.site as usize].calls), later.node))
                    .filter(|(first, _)| *first != 0)
                    .inspect(|_| pairs = true)
                    .any(|(first, second)| !ordered(first, second))
            } else {
                pairs |= !wanted.is_empty();
                // No call comes after itself in one run.
                let after = |second: u32| {
                    block.mask(&(second..second + 1)) == 0 && ordered(all, self.dependence.calls[second as usize].node)
                };
                wanted.iter().any(|&second| !after(second))
            };
            if open {
                return Some(false);
            }
        }
        pairs.then_some(true)
    }

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
        let touching: Vec<u32> = (0..).zip(&self.accesses).filter(|(_, a)| a.touches()).map(|(call, _)| call).collect();
        let overlapping = self.overlapping_roots();
        let horizons = implied.then(|| Horizons::new(self, &touching, &overlapping));
        let Some(end) = self.dependence.last() else { return ControlFlow::Continue(()) };
        let mut masks = Masks::new(self.roots.len());
        for calls in touching.chunks(BLOCK) {
            let block = Block(calls);
            let last = horizons.as_ref().map_or(end, |horizons| horizons.of(self, calls, end));
            let values = reached(&self.dependence, block, last, false);
            let mut with_control: Option<Reached> = None;
            masks.fill(calls, &self.accesses);
            let mut each = |open: u64, second: u32, node: Node, later_iteration_of: Option<u32>| {
                for (bit, first) in bits(open, calls) {
                    let control = self.dependence.has_control_edges
                        && with_control.get_or_insert_with(|| reached(&self.dependence, block, last, true)).at(node)
                            & bit
                            != 0;
                    let unproven = match () {
                        () if self.module.is_scheduled() => Unproven::Schedule,
                        () if control => Unproven::ControlEdge,
                        () => Unproven::Nothing,
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
                let conflicts = masks.conflicts(&self.accesses[second as usize], &overlapping);
                let mut open = conflicts & block.mask(&(0..second)) & !values.at(node);
                if open != 0 {
                    open &= !self.exclusive(block, second as usize);
                }
                each(open, second, node, None)?;
            }
            let first_node = self.dependence.calls[calls[0] as usize].node;
            let later = &self.dependence.later;
            let soon = later.partition_point(|later| later.node < first_node)
                ..later.partition_point(|later| later.node <= last);
            for (later, access) in later[soon.clone()].iter().zip(&self.later_accesses[soon]) {
                let inside = block.mask(&self.dependence.loops[later.site as usize].calls);
                if inside == 0 || !access.touches() {
                    continue;
                }
                let open = masks.conflicts(access, &overlapping) & inside & !values.at(later.node);
                each(open, later.call, later.node, Some(later.site))?;
            }
        }
        ControlFlow::Continue(())
    }

    fn race(&self, open: &Open) -> Race {
        let (first, second) = (open.first as usize, open.second as usize);
        let roots = |call: usize| self.accesses[call].roots();
        // The less precise of the two roots names both: an array and its element meet in the array.
        let shared = roots(first).find_map(|a| roots(second).find(|&b| self.roots.overlap(a, b)).map(|b| a.min(b)));
        let (first, second) = if open.later_iteration_of.is_none() && self.scheduled_before(second, first) {
            (second, first)
        } else {
            (first, second)
        };
        Race {
            first,
            second,
            handle: shared.map(|root| self.roots.name(root).to_owned()).unwrap_or_default(),
            later_iteration_of: open.later_iteration_of.map(|site| self.loop_name(site)),
            unproven: open.unproven,
        }
    }

    fn order_of_nodes(&self, first: usize, to: Node, different: bool) -> Order {
        let calls = [id(first)];
        let block = Block(&calls);
        let names = |with_control: bool| {
            let values = reached(&self.dependence, block, self.dependence.last().unwrap_or(to), with_control);
            (different && values.at(to) != 0).then(|| {
                let mut names: Vec<String> = path(&self.dependence, id(first), to, &values, with_control)
                    .into_iter()
                    .map(|node| self.dependence.instruction(&self.module, node).name.clone())
                    .collect();
                names.dedup();
                names
            })
        };
        if let Some(names) = names(false) {
            return Order::DataPath(names);
        }
        if self.dependence.has_control_edges && names(true).is_some() {
            return Order::ScheduleOnly(Unproven::ControlEdge);
        }
        Order::Unordered
    }

    /// The calls of the block that stand in another branch of a conditional around `call`.
    fn exclusive(&self, block: Block<'_>, call: usize) -> u64 {
        let mut exclusive = 0;
        let mut context = self.dependence.contexts[self.dependence.calls[call].context as usize];
        while context.part != Part::Entry {
            if let Part::Branch { site, branch } = context.part {
                let branches = &self.dependence.branches[site as usize].branches;
                let (start, end) = (branches[0].start, branches[branches.len() - 1].end);
                exclusive |= block.mask(&(start..end)) & !block.mask(&branches[branch as usize]);
            }
            context = self.dependence.contexts[context.parent as usize];
        }
        exclusive
    }

    /// Whether the module lists `first` before `second`, in the innermost computation around both.
    fn scheduled_before(&self, first: usize, second: usize) -> bool {
        if !self.module.is_scheduled() {
            return false;
        }
        let contexts = &self.dependence.contexts;
        let chain = |call: usize| {
            let site = &self.dependence.calls[call];
            let mut chain = vec![(site.context, site.instruction)];
            let mut context = site.context;
            while contexts[context as usize].part != Part::Entry {
                let Some(&(_, _)) = chain.last() else { break };
                let caller = contexts[context as usize].caller;
                context = contexts[context as usize].parent;
                chain.push((context, caller));
            }
            chain
        };
        let around_first: HashMap<u32, usize> = chain(first).into_iter().collect();
        for (context, at_second) in chain(second) {
            if let Some(&at_first) = around_first.get(&context) {
                let schedule = &self.module.schedule;
                return (schedule[at_first], first) < (schedule[at_second], second);
            }
        }
        false
    }

    fn loop_name(&self, site: u32) -> String {
        self.module.instructions[self.dependence.loops[site as usize].instruction].name.clone()
    }

    /// For every root that a call touches, the touched roots that may be the same object.
    fn overlapping_roots(&self) -> Vec<Vec<u32>> {
        let mut touched: Vec<u32> = self.accesses.iter().chain(&self.later_accesses).flat_map(Access::roots).collect();
        touched.sort_unstable();
        touched.dedup();
        let mut by_base: HashMap<u32, Vec<u32>> = HashMap::new();
        for &root in &touched {
            by_base.entry(self.roots.base(root)).or_default().push(root);
        }
        let mut overlapping: Vec<Vec<u32>> = vec![Vec::new(); self.roots.len()];
        for group in by_base.into_values() {
            // Sorted by where they start, a part is compared only with those that start before it ends, and a constant with those
            // whose values reach into its own. Places in arrays of different lengths cannot be compared: then each is with each.
            let extents: Vec<_> = group.iter().map(|&root| self.roots.extent(root)).collect();
            let mut lengths = extents.iter().flatten().map(|(_, length)| length);
            let first_length = lengths.next();
            let comparable = lengths.all(|length| Some(length) == first_length);
            let everywhere = (i64::MIN, i64::MAX);
            let mut parts: Vec<((i64, i64), u32)> = extents
                .iter()
                .zip(&group)
                .map(|(extent, &root)| (extent.filter(|_| comparable).map_or(everywhere, |(range, _)| range), root))
                .collect();
            parts.sort_unstable();
            for (position, &((_, end), a)) in parts.iter().enumerate() {
                overlapping[a as usize].push(a);
                for &(_, b) in parts[position + 1..].iter().take_while(|((start, _), _)| *start <= end) {
                    if self.roots.overlap(a, b) {
                        overlapping[a as usize].push(b);
                        overlapping[b as usize].push(a);
                    }
                }
            }
        }
        if let Some(&anything) = touched.first().filter(|&&root| root == Audit::ANYTHING) {
            for &root in &touched {
                if root != anything {
                    overlapping[root as usize].push(anything);
                }
            }
            overlapping[anything as usize] = touched;
        }
        overlapping
    }

    /// The root of a handle that may be any object.
    const ANYTHING: u32 = 0;
}

/// Two calls that must be ordered and are not.
pub(crate) struct Open {
    first: u32,
    second: u32,
    later_iteration_of: Option<u32>,
    unproven: Unproven,
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

/// Which calls of a block read and write each root.
struct Masks {
    reads: Vec<u64>,
    writes: Vec<u64>,
    filled: Vec<u32>,
}

impl Masks {
    fn new(roots: usize) -> Self {
        Self { reads: vec![0; roots], writes: vec![0; roots], filled: Vec::new() }
    }

    fn fill(&mut self, calls: &[u32], accesses: &[Access]) {
        for root in self.filled.drain(..) {
            self.reads[root as usize] = 0;
            self.writes[root as usize] = 0;
        }
        for (position, &call) in calls.iter().enumerate() {
            let access = &accesses[call as usize];
            for &root in &access.reads {
                self.reads[root as usize] |= 1 << position;
                self.filled.push(root);
            }
            for &root in &access.writes {
                self.writes[root as usize] |= 1 << position;
                self.filled.push(root);
            }
        }
    }

    /// The calls of the block that an access must be ordered with.
    fn conflicts(&self, access: &Access, overlapping: &[Vec<u32>]) -> u64 {
        let over = |roots: &[u32], mask: &dyn Fn(usize) -> u64| {
            roots.iter().flat_map(|&root| &overlapping[root as usize]).fold(0, |all, &root| all | mask(root as usize))
        };
        over(&access.reads, &|root| self.writes[root])
            | over(&access.writes, &|root| self.reads[root] | self.writes[root])
    }
}

impl Access {
    fn touches(&self) -> bool {
        !self.reads.is_empty() || !self.writes.is_empty()
    }
}

fn bits(mask: u64, calls: &[u32]) -> impl Iterator<Item = (u64, u32)> {
    calls.iter().enumerate().map(|(position, &call)| (1 << position, call)).filter(move |(bit, _)| mask & bit != 0)
}

fn id(call: usize) -> u32 {
    u32::try_from(call).expect("a position in the list of calls")
}
