//! That following calls only to their horizons finds a race if and only if following all of them to the end does.

use std::cell::Cell;
use std::ops::ControlFlow;

use proptest::prelude::*;

use super::audit;
use super::build::{Computation, handle, pred, tuple, unknown_condition};
use crate::Order;

const HANDLES: usize = 2;

/// One step of a program on two handles; `tied` if what follows waits for it.
#[derive(Debug, Clone)]
enum Step {
    Read {
        handle: usize,
        tied: bool,
    },
    Write {
        handle: usize,
        tied: bool,
    },
    Swap,
    /// A handle made in place, by the program or by a native call, is read or written; the first handle waits for it if `tied`.
    Local {
        native: bool,
        write: bool,
        tied: bool,
    },
    /// Go on with the handle as it was when the function started.
    Forget(usize),
    Call(Vec<Step>),
    Loop(Vec<Step>),
    Choice(Vec<Step>, Vec<Step>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // From programs of a few steps, where a race stands alone, to long ones with hardly a mistake.
    prop_oneof![steps_with(0.8, 4), steps_with(0.95, 8), steps_with(0.995, 16)]
}

fn steps_with(tied: f64, length: usize) -> impl Strategy<Value = Vec<Step>> {
    let access = (0..HANDLES, prop::bool::weighted(tied));
    let local = (prop::bool::ANY, prop::bool::ANY, prop::bool::weighted(tied))
        .prop_map(|(native, write, tied)| Step::Local { native, write, tied });
    let leaf = prop_oneof![
        30 => access.clone().prop_map(|(handle, tied)| Step::Read { handle, tied }),
        40 => access.prop_map(|(handle, tied)| Step::Write { handle, tied }),
        10 => Just(Step::Swap),
        5 => local.clone(),
        5 => prop::collection::vec(local, 1..3).prop_map(Step::Loop),
        1 => (0..HANDLES).prop_map(Step::Forget),
    ];
    let several = |step: BoxedStrategy<Step>| prop::collection::vec(step, 0..6);
    let step = leaf.prop_recursive(3, 40, 6, move |inner| {
        prop_oneof![
            several(inner.clone()).prop_map(Step::Call),
            several(inner.clone()).prop_map(Step::Loop),
            (several(inner.clone()), several(inner)).prop_map(|(a, b)| Step::Choice(a, b)),
        ]
    });
    prop::collection::vec(step, 0..length)
}

/// Writes programs; computations that are called stand before their callers.
struct Writer {
    done: Vec<Computation>,
    next: i64,
}

impl Writer {
    fn computation(&mut self, name: &str) -> Computation {
        self.next += 1;
        Computation::new(name, self.next)
    }

    /// A computation from handles to handles, in a tuple, and its id.
    fn function(&mut self, name: &str, steps: &[Step]) -> i64 {
        let mut function = self.computation(name);
        let state = function.parameter(0, tuple(&[handle(), handle()]));
        let handles = std::array::from_fn(|index| function.element(state, i64::try_from(index).unwrap_or_default()));
        let handles = self.steps(&mut function, steps, handles);
        function.tuple(&handles);
        let id = function.proto.id;
        self.done.push(function);
        id
    }

    fn steps(&mut self, here: &mut Computation, steps: &[Step], mut handles: [i64; HANDLES]) -> [i64; HANDLES] {
        let carried = tuple(&[handle(), handle()]);
        let at_start = handles;
        for step in steps {
            let (access, tied, at) = match *step {
                Step::Read { handle, tied } => (here.read("r", &[handles[handle]]), tied, handle),
                Step::Write { handle, tied } => (here.write("w", &[handles[handle]]), tied, handle),
                Step::Swap => {
                    handles.swap(0, 1);
                    continue;
                }
                Step::Local { native, write, tied } => {
                    let local =
                        if native { here.call("m", "make", handle(), &[]) } else { here.op("m", "rng", handle(), &[]) };
                    (if write { here.write("lw", &[local]) } else { here.read("lr", &[local]) }, tied, 0)
                }
                Step::Forget(handle) => {
                    handles[handle] = at_start[handle];
                    continue;
                }
                Step::Call(ref steps) => {
                    let function = self.function("function", steps);
                    let state = here.tuple(&handles);
                    let result = here.calling("call", "call", carried.clone(), &[state], &[function]);
                    handles = [here.element(result, 0), here.element(result, 1)];
                    continue;
                }
                Step::Loop(ref steps) => {
                    let body = self.function("body", steps);
                    self.next += 1;
                    let condition = unknown_condition(self.next, &carried);
                    let condition_id = condition.proto.id;
                    self.done.push(condition);
                    let state = here.tuple(&handles);
                    let result = here.calling("loop", "while", carried.clone(), &[state], &[body, condition_id]);
                    handles = [here.element(result, 0), here.element(result, 1)];
                    continue;
                }
                Step::Choice(ref one, ref other) => {
                    let branches = [self.function("one", one), self.function("other", other)];
                    let state = here.tuple(&handles);
                    let which = here.op("which", "rng", pred(), &[]);
                    let operands = [which, state, state];
                    let result = here.calling("choice", "conditional", carried.clone(), &operands, &branches);
                    handles = [here.element(result, 0), here.element(result, 1)];
                    continue;
                }
            };
            if tied {
                handles[at] = here.entangle("e", &[handles[at], access]);
            }
        }
        handles
    }

    fn program(steps: &[Step]) -> Vec<Computation> {
        let mut writer = Self { done: Vec::new(), next: 0 };
        let mut main = writer.computation("main");
        let handles = [main.parameter(0, handle()), main.parameter(1, handle())];
        let handles = writer.steps(&mut main, steps, handles);
        main.tuple(&handles);
        writer.done.push(main);
        writer.done
    }
}

#[test]
fn a_race_beyond_a_horizon_is_not_overlooked() {
    let with_races = Cell::new(0);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 1_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    runner
        .run(&steps(), |steps| {
            let audit = audit(Writer::program(&steps));
            let found = audit.each_open(true, |_| ControlFlow::Break(())).is_break();
            prop_assert_eq!(found, !audit.all_races().list.is_empty());
            with_races.set(with_races.get() + usize::from(found));
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
    let with_races = with_races.get();
    assert!((200..800).contains(&with_races), "{with_races} of 1,000 programs have a race: too few of one kind");
}

#[test]
fn what_is_said_of_many_pairs_at_once_is_what_is_said_of_each() {
    let said: [Cell<usize>; 3] = Default::default();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let some = |calls: usize| prop::collection::vec(0..calls.max(1), 1..3);
    let programs = steps().prop_flat_map(move |steps| {
        let calls = audit(Writer::program(&steps)).calls().len();
        (Just(steps), some(calls), some(calls))
    });
    runner
        .run(&programs, |(steps, firsts, seconds)| {
            let audit = audit(Writer::program(&steps));
            let named = |calls: &[usize]| calls.iter().copied().filter(|&call| call < audit.calls().len()).collect();
            let (firsts, seconds): (Vec<usize>, Vec<usize>) = (named(&firsts), named(&seconds));
            for later in [false, true] {
                let orders: Vec<Order> = firsts
                    .iter()
                    .flat_map(|&first| seconds.iter().map(move |&second| (first, second)))
                    .flat_map(|(first, second)| {
                        let in_later =
                            audit.order_in_later_iterations(first, second).into_iter().map(|(_, order)| order);
                        if later { in_later.collect() } else { vec![audit.order(first, second)] }
                    })
                    .collect();
                let all = orders.iter().all(|order| matches!(order, Order::DataPath(_)));
                let wanted = (!orders.is_empty()).then_some(all);
                prop_assert_eq!(audit.all_ordered(&firsts, &seconds, later), wanted);
                let kind = &said[wanted.map_or(2, usize::from)];
                kind.set(kind.get() + 1);
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(said.iter().all(|kind| kind.get() > 10), "too few of one kind: {said:?}");
}

#[test]
fn the_calls_before_each_are_those_of_which_the_order_is_proven() {
    let said: [Cell<usize>; 2] = Default::default();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    // Of every second call, or third, or fourth: what comes of a list is said by the positions in it.
    runner
        .run(&(steps(), 2..5_usize), |(steps, step)| {
            let audit = audit(Writer::program(&steps));
            let calls: Vec<usize> = (0..audit.calls().len()).step_by(step).collect();
            let proven = |first: usize, second: usize| {
                let proven = first != second && matches!(audit.order(first, second), Order::DataPath(_));
                said[usize::from(proven)].set(said[usize::from(proven)].get() + 1);
                proven
            };
            let wanted: Vec<Vec<usize>> = calls
                .iter()
                .map(|&second| (0..calls.len()).filter(|&first| proven(calls[first], second)).collect())
                .collect();
            prop_assert_eq!(audit.before_each(&calls), wanted);
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(said.iter().all(|kind| kind.get() > 100), "too few of one kind: {said:?}");
}
