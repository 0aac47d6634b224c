//! The short way of a launch that sends or receives one small message. To interpret it takes half as long as a cache line takes to the
//! other core, so what its code does is found once, by walking it with the number of the message unknown and all else known
//! ([`walk`]), and is then done at once: for messages in [`packets`], and for messages that are one [`row`] of a slot.
//!
//! It is gone to the end or not at all: where something is missing, or is to be done that comes seldom, nothing was written that the code
//! would not write again, and the code runs as if there were no short way. Waiting, deadlines and errors are left to the code. Registers are
//! not written: no launch reads one that it has not written before, but for inputs and constants.

mod packets;
mod row;
#[cfg(test)]
mod tests;
mod walk;

use super::machine::Machine;
use packets::Packets;
use row::{Geometry, Row};
use walk::{Slot, walk};

/// What a whole launch does.
pub(crate) struct Shortcut {
    /// The counter, a word of the rank's own, and how far it goes on.
    number: *mut u64,
    by: u64,
    way: Way,
}

enum Way {
    SendPackets(Packets),
    ReceivePackets(Packets),
    SendRow(Row, Geometry),
    /// And what is waited for.
    ReceiveRow(Row, Slot),
}

impl Shortcut {
    /// The short way of a machine's code, if it has one.
    pub(crate) fn of(m: &Machine) -> Option<Shortcut> {
        let often = walk(m, true)?;
        let way = match row::of(m, &often) {
            Some(way) => way,
            None => packets::of(&often, &walk(m, false)?)?,
        };
        Some(Shortcut { number: often.number, by: often.by, way })
    }

    /// Runs the launch to its end, if that can be done at once; tells whether it was.
    ///
    /// # Safety
    /// It is the short way of `m`, whose memory is alive, and no other thread runs `m` or uses its counter.
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
