//! How one native call stands to another.

use std::collections::{HashMap, HashSet};

use super::after::After;
use crate::audit::Audit;
use crate::graph::{BLOCK, Block, Node, Part, path, reached};

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

/// What puts one call before another where there is no data path, and proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unproven {
    /// A control edge.
    ControlEdge,
    /// The order in which the module lists its instructions.
    Schedule,
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
        let order = self.order_of_nodes(first, id(second), to, first != second);
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
                let mut order = self.order_of_nodes(first, id(second), later.node, true);
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
            let after = After::new(self, block, self.dependence.last()?);
            let all = u64::MAX >> (u64::BITS as usize - calls.len());
            let ordered = |first: u64, call: u32, node: Node| after.at(call, node) & first == first;
            let open = if later_iteration {
                let later = self.dependence.later.iter().filter(|later| wanted.contains(&later.call));
                later
                    .map(|later| (block.mask(&self.dependence.loops[later.site as usize].calls), later))
                    .filter(|(first, _)| *first != 0)
                    .inspect(|_| pairs = true)
                    .any(|(first, later)| !ordered(first, later.call, later.node))
            } else {
                pairs |= !wanted.is_empty();
                // No call comes after itself in one run.
                let comes_after = |second: u32| {
                    let node = self.dependence.calls[second as usize].node;
                    block.mask(&(second..second + 1)) == 0 && ordered(all, second, node)
                };
                wanted.iter().any(|&second| !comes_after(second))
            };
            if open {
                return Some(false);
            }
        }
        pairs.then_some(true)
    }

    /// Of each of these calls, in ascending order, which others of them come before it by data in every run, by their positions in the
    /// list. What [`Self::order`] says of each pair, without the paths.
    ///
    /// # Panics
    /// There is no such call.
    #[must_use]
    pub fn before_each(&self, calls: &[usize]) -> Vec<Vec<usize>> {
        let mut before = vec![Vec::new(); calls.len()];
        let calls: Vec<u32> = calls.iter().map(|&call| id(call)).collect();
        let Some(last) = self.dependence.last() else { return before };
        for (number, chunk) in calls.chunks(BLOCK).enumerate() {
            let after = After::new(self, Block(chunk), last);
            for (&call, before) in calls.iter().zip(&mut before) {
                let bits = after.at(call, self.dependence.calls[call as usize].node);
                let others = (0..chunk.len()).filter(|&bit| bits >> bit & 1 == 1 && chunk[bit] != call);
                before.extend(others.map(|bit| number * BLOCK + bit));
            }
        }
        before
    }

    fn order_of_nodes(&self, first: usize, second: u32, to: Node, different: bool) -> Order {
        let calls = [id(first)];
        let block = Block(&calls);
        let last = self.dependence.last().unwrap_or(to);
        let names = |with_control: bool| {
            let values = reached(&self.dependence, block, last, with_control);
            let proven = with_control || After::new(self, block, last).at(second, to) != 0;
            (different && proven && values.at(to) != 0).then(|| {
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

    /// Whether the module lists `first` before `second`, in the innermost computation around both.
    pub(super) fn scheduled_before(&self, first: usize, second: usize) -> bool {
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

    pub(super) fn loop_name(&self, site: u32) -> String {
        self.module.instructions[self.dependence.loops[site as usize].instruction].name.clone()
    }
}

pub(super) fn id(call: usize) -> u32 {
    u32::try_from(call).expect("a position in the list of calls")
}
