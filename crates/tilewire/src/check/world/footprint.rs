//! The memory that a party's next step touches, as far as its order among the steps of others can matter beyond what
//! vector clocks see.

use super::plan::{Span, meets};
use crate::check::eval::Instance;
use crate::ir::Op;

/// Slots, packets and atomics of one step. Plain accesses do not count: if they meet unordered, that is a race in
/// either order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Footprint {
    /// None.
    Nothing,
    /// Some of these bytes.
    Bytes {
        /// The bytes.
        spans: Vec<Span>,
        /// True if they are written.
        writes: bool,
    },
    /// Unknown.
    Anything,
}

impl Footprint {
    /// The footprint of a role copy's next step.
    pub fn of(instance: &Instance<'_>) -> Footprint {
        let Some(inst) = instance.next_inst() else { return Footprint::Nothing };
        let op = &instance.kernel().insts[inst].op;
        if !is_visible(op) {
            return Footprint::Nothing;
        }
        match instance.shared_spans(inst) {
            Some(spans) => Footprint::Bytes {
                spans,
                writes: !matches!(op, Op::Wait { .. } | Op::Test { .. } | Op::PacketGet { .. }),
            },
            None => Footprint::Anything,
        }
    }

    /// True if two steps of two parties can run in either order with the same effect: neither writes what the other
    /// touches.
    pub fn is_independent(&self, other: &Footprint) -> bool {
        match (self, other) {
            (Footprint::Nothing, _) | (_, Footprint::Nothing) => true,
            (Footprint::Bytes { spans: a, writes: w }, Footprint::Bytes { spans: b, writes: v }) => {
                !(*w || *v) || !a.iter().any(|a| b.iter().any(|b| meets(a, b)))
            }
            _ => false,
        }
    }
}

/// True if the order of this op among those of other parties can matter beyond what vector clocks see.
pub fn is_visible(op: &Op) -> bool {
    matches!(
        op,
        Op::Signal { .. }
            | Op::SignalCredit { .. }
            | Op::Wait { .. }
            | Op::Test { .. }
            | Op::AtomicAdd { .. }
            | Op::PacketPut { .. }
            | Op::PacketGet { .. }
            | Op::Post { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::memory::MemoryId;

    fn bytes(memory: u32, bytes: std::ops::Range<u64>, writes: bool) -> Footprint {
        Footprint::Bytes { spans: vec![(MemoryId(memory), bytes)], writes }
    }

    #[test]
    fn steps_that_meet_and_write_depend_on_each_other() {
        let write = bytes(0, 0..8, true);
        assert!(!write.is_independent(&bytes(0, 0..8, false)));
        assert!(!write.is_independent(&bytes(0, 4..12, true)));
        assert!(!write.is_independent(&Footprint::Anything));
        assert!(write.is_independent(&bytes(0, 8..16, true)) && write.is_independent(&bytes(1, 0..8, true)));
        assert!(bytes(0, 0..8, false).is_independent(&bytes(0, 0..8, false)));
        assert!(Footprint::Nothing.is_independent(&Footprint::Anything));
    }
}
