//! A fast path for a launch that sends or receives one small message. Interpreting such a launch takes half as long as
//! a cache line takes to reach the other core. So we find out once what its code does, by walking it with the message
//! number unknown and everything else known ([`walk`]). Each launch then does that directly, for messages in
//! [`packets`] and for messages that are one [`row`] of a slot.
//!
//! The fast path runs to the end or not at all. If something is missing, or a rare step is due, it has written nothing
//! that the code would not write again, and the code runs as if there were no fast path. Waiting, deadlines and errors
//! are left to the code. Registers are not written: apart from inputs and constants, no launch reads a register before
//! writing it.

mod packets;
mod row;
#[cfg(test)]
mod tests;
mod walk;

use super::machine::Machine;
use packets::Packets;
use row::{Geometry, Row};
use walk::{Slot, walk};

/// The effect of a whole launch.
pub(crate) struct Shortcut {
    /// The counter, a word in this rank's own memory, and its increment.
    number: *mut u64,
    by: u64,
    way: Way,
}

enum Way {
    SendPackets(Packets),
    ReceivePackets(Packets),
    SendRow(Row, Geometry),
    /// The row, and the slot to wait for.
    ReceiveRow(Row, Slot),
}

impl Shortcut {
    /// The fast path for a machine's code, if it has one.
    pub(crate) fn of(m: &Machine) -> Option<Shortcut> {
        let often = walk(m, true)?;
        let way = match row::of(m, &often) {
            Some(way) => way,
            None => packets::of(&often, &walk(m, false)?)?,
        };
        Some(Shortcut { number: often.number, by: often.by, way })
    }

    /// Runs the launch to its end if that is possible immediately. Returns whether it did.
    ///
    /// # Safety
    /// This is the fast path of `m`, whose memory is alive, and no other thread runs `m` or uses its counter.
    #[inline(always)]
    pub(crate) unsafe fn run(&self, m: &Machine) -> bool {
        // SAFETY: the caller's promise; the counter is a word of an entry.
        unsafe {
            let number = self.number.read_unaligned();
            let next = number.wrapping_add(self.by);
            let done = match &self.way {
                Way::SendPackets(packets) => packets.send(m, number),
                Way::ReceivePackets(packets) => packets.receive(m, number, next),
                Way::SendRow(row, geometry) => {
                    let holds = geometry.holds(number);
                    if holds {
                        row.send(m, number, next);
                    }
                    holds
                }
                Way::ReceiveRow(row, tail) => row.receive(m, *tail, number, next),
            };
            if done {
                self.number.write_unaligned(next);
            }
            done
        }
    }
}
