//! How far calls have to be followed to see whether there is a race at all.
//!
//! Say a call A touches an object, and S, further down in the same computation, writes it. S runs whenever A does. If A is ordered
//! before S, then it is ordered before all that S is ordered before, and whatever touches the object after S must be ordered after S: that
//! is looked at where S has its turn. So A need not be followed beyond S. In a chain of accesses each block of calls is followed to the
//! next writes alone, and the time for all of them grows as the program does.

use std::collections::HashMap;

use crate::audit::Audit;
use crate::graph::{Node, Part};

pub(crate) struct Horizons {
    /// By computation and object, the calls that write it, in ascending order.
    writers: HashMap<(u32, u32), Vec<u32>>,
    /// For each object, what touches it or what overlaps it last.
    last: Vec<LastTouch>,
    /// For each context, the nearest one around it that does not run whenever its caller does.
    contexts: Vec<u32>,
}

#[derive(Clone, Copy)]
enum LastTouch {
    /// This call; for a object that nothing touches, any.
    Call(u32),
    /// In a later iteration of a loop.
    Later,
}

impl Horizons {
    pub(crate) fn new(audit: &Audit, touching: &[u32], overlapping: &[Vec<u32>]) -> Self {
        let dependence = &audit.dependence;
        let mut contexts: Vec<u32> = Vec::with_capacity(dependence.contexts.len());
        for (position, context) in (0..).zip(&dependence.contexts) {
            contexts.push(if context.part == Part::Whole { contexts[context.parent as usize] } else { position });
        }
        let mut writers: HashMap<(u32, u32), Vec<u32>> = HashMap::new();
        let mut last_touch = vec![LastTouch::Call(0); audit.objects.len()];
        for &call in touching {
            let touched = &audit.touched[call as usize];
            let context = contexts[dependence.calls[call as usize].context as usize];
            for &object in &touched.writes {
                writers.entry((context, object)).or_default().push(call);
            }
            for object in touched.objects() {
                last_touch[object as usize] = LastTouch::Call(call);
            }
        }
        for touched in &audit.touched_later {
            for object in touched.objects() {
                last_touch[object as usize] = LastTouch::Later;
            }
        }
        let last_of = |others: &Vec<u32>| {
            others.iter().fold(LastTouch::Call(0), |last, &object| match (last, last_touch[object as usize]) {
                (LastTouch::Call(a), LastTouch::Call(b)) => LastTouch::Call(a.max(b)),
                _ => LastTouch::Later,
            })
        };
        Self { writers, last: overlapping.iter().map(last_of).collect(), contexts }
    }

    /// The last node that a block has to be followed to, `end` if there is no better one.
    pub(crate) fn of(&self, audit: &Audit, calls: &[u32], end: Node) -> Node {
        let contexts = &audit.dependence.contexts;
        let context_of = |call: u32| self.contexts[audit.dependence.calls[call as usize].context as usize];
        let last_call = calls[calls.len() - 1];
        // The innermost context around all of them. A context has a higher number than its parent.
        let context = calls.iter().map(|&call| context_of(call)).fold(context_of(last_call), |mut a, mut b| {
            while a != b {
                let outward = if a > b { &mut a } else { &mut b };
                *outward = self.contexts[contexts[*outward as usize].parent as usize];
            }
            a
        });
        let mut horizon = last_call;
        for touched in calls.iter().map(|&call| &audit.touched[call as usize]) {
            for object in touched.objects() {
                let next_write = self
                    .writers
                    .get(&(context, object))
                    .and_then(|writers| writers.get(writers.partition_point(|&call| call <= last_call)));
                horizon = match (next_write, self.last[object as usize]) {
                    (Some(&call), _) => horizon.max(call),
                    (None, LastTouch::Call(call)) if call <= last_call => horizon,
                    (None, LastTouch::Call(call)) if context_of(call) == context => horizon.max(call),
                    (None, _) => return end,
                }
            }
        }
        // No loop may start between the first of the calls and the horizon. One that the calls have in common starts before them; one
        // around the last call alone is where a handle made in each iteration is used, which no other iteration touches.
        if context_of(horizon) == context { audit.dependence.calls[horizon as usize].node } else { end }
    }
}
