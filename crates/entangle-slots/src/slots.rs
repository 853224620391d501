//! The slots of the process and their log.

use std::collections::HashMap;
use std::fmt;
use std::sync::PoisonError;
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{Mutex, MutexGuard};

/// What was done to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// The slot's value was taken.
    Read,
    /// The slot's value was replaced.
    Write,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// One native access to a slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Access {
    /// What was done.
    pub op: Op,
    /// To which slot.
    pub slot: i32,
    /// The value that was read or written.
    pub value: f32,
    /// The name that the caller gave to this call, if any.
    pub label: Option<String>,
}

/// The slots of this process and their log.
struct Slots {
    /// Slots that were written since the last reset.
    values: HashMap<i32, f32>,
    /// The value of all others.
    initial: f32,
    log: Vec<Access>,
}

#[cfg(not(all(test, loom)))]
static SLOTS: Mutex<Option<Slots>> = Mutex::new(None);
#[cfg(all(test, loom))]
loom::lazy_static! {
    static ref SLOTS: Mutex<Option<Slots>> = Mutex::new(None);
}

fn with_slots<R>(use_slots: impl FnOnce(&mut Slots) -> R) -> R {
    // Nothing under the lock leaves the state half changed, so a poisoned lock is as good as any.
    let mut slots: MutexGuard<'_, _> = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
    use_slots(slots.get_or_insert_with(|| Slots { values: HashMap::new(), initial: 0.0, log: Vec::new() }))
}

/// Takes the value of a slot.
pub(crate) fn read(slot: i32, label: Option<&str>) -> f32 {
    with_slots(|slots| {
        let value = slots.values.get(&slot).copied().unwrap_or(slots.initial);
        slots.log.push(Access { op: Op::Read, slot, value, label: label.map(Into::into) });
        value
    })
}

/// Replaces the value of a slot.
pub(crate) fn write(slot: i32, value: f32, label: Option<&str>) {
    with_slots(|slots| {
        slots.values.insert(slot, value);
        slots.log.push(Access { op: Op::Write, slot, value, label: label.map(Into::into) });
    });
}

/// Gives every slot this value and empties the log.
pub fn reset(value: f32) {
    with_slots(|slots| {
        slots.values.clear();
        slots.initial = value;
        slots.log.clear();
    });
}

/// What ran since the last reset, in the order in which it ran.
#[must_use]
pub fn log() -> Vec<Access> {
    with_slots(|slots| slots.log.clone())
}

/// The slots belong to the process: tests take turns.
#[cfg(all(test, not(loom)))]
pub(crate) static ALONE: Mutex<()> = Mutex::new(());

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{ALONE, Access, Op, log, read, reset, write};

    #[test]
    fn the_log_tells_what_ran_in_the_order_in_which_it_ran() {
        let _alone = ALONE.lock().unwrap();
        reset(7.0);
        assert_eq!(read(3, Some("first")).to_bits(), 7.0_f32.to_bits());
        write(3, 8.0, None);
        assert_eq!(read(3, None).to_bits(), 8.0_f32.to_bits());
        assert_eq!(read(4, None).to_bits(), 7.0_f32.to_bits(), "another slot has its own value");
        let entry = |op, slot, value, label: Option<&str>| Access { op, slot, value, label: label.map(Into::into) };
        assert_eq!(
            log(),
            [
                entry(Op::Read, 3, 7.0, Some("first")),
                entry(Op::Write, 3, 8.0, None),
                entry(Op::Read, 3, 8.0, None),
                entry(Op::Read, 4, 7.0, None)
            ]
        );

        // Many threads: each sees a value that some thread wrote, and the log agrees with what was seen.
        reset(0.0);
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                scope.spawn(move || {
                    for _ in 0..250 {
                        write(0, f32::from(thread), None);
                        read(0, None);
                    }
                });
            }
        });
        let accesses = log();
        assert_eq!(accesses.len(), 2000);
        let mut current = 0.0_f32;
        for access in accesses {
            match access.op {
                Op::Write => current = access.value,
                Op::Read => assert_eq!(access.value.to_bits(), current.to_bits()),
            }
        }
        reset(0.0);
        assert_eq!(log(), []);
    }
}
