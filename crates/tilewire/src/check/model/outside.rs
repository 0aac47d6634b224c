//! What takes a program out of the monotone fragment, and why running every schedule may not be enough.

use std::fmt;

/// Why one run does not decide: an op whose effect on its party depends on the schedule, or a counter that is changed
/// by something other than a signal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outside {
    /// A test gives a counter's value to the program.
    Test,
    /// An atomic gives its old value to the program.
    UsedAtomic,
    /// An atomic acquires from whichever came before it.
    AcquiringAtomic,
    /// An atomic changes a counter.
    AtomicOnSlot,
    /// A plain write changes a counter.
    WriteOnSlot,
    /// A signal shows less than one before it in its counter, and a wait for that one may find it instead.
    ShowsLess,
}

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outside::Test => "a test",
            Outside::UsedAtomic => "an atomic whose result is used",
            Outside::AcquiringAtomic => "an atomic that acquires",
            Outside::AtomicOnSlot => "an atomic on a slot",
            Outside::WriteOnSlot => "a plain write to a slot",
            Outside::ShowsLess => "a signal that shows less than one before it in its slot",
        })
    }
}

/// Why the schedules that are run are not all there are, even if no budget cut them short.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Incomplete {
    /// The network delivers whenever it chooses; runs deliver immediately.
    Posts,
    /// Elements of an `each` run their atomics in any order; runs do all of one role copy in one step.
    Elements,
    /// Tests and results of atomics may be older than in any interleaving.
    WeakMemory,
    /// A party that polled very often was made to let others run.
    Patience,
}
