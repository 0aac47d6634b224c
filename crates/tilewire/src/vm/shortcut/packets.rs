//! A message in packets.
//!
//! ```text
//!   number := counter                                                  number := counter
//!   now and then: credit ≥ the count needed for room?                  get packets number mod depth
//!   put packets number mod depth                                       now and then: credit := number + 1
//!   counter := number + 1                                              counter := number + 1
//! ```
//! If a packet or a credit is missing, or a receiver reaches a number where flags repeat, the launch is left to the
//! code.

use super::Way;
use super::walk::{Effect, Guard, Message, Ring, Slot, Walked};
use crate::vm::copy;
use crate::vm::lane::packet::{read_row, write_row};
use crate::vm::machine::Machine;
use std::sync::atomic::Ordering;

/// The packets of a launch.
pub(super) struct Packets {
    /// The words at this rank's end.
    words: *mut u64,
    count: usize,
    packets: Ring,
    /// The flag of a message is `number & mask | bits`.
    mask: u32,
    bits: u32,
    /// The entry of the packets, whose bell is rung.
    entry: usize,
    credit: Credit,
}

/// What to do now and then, at numbers that have none of the bits `seldom`. (A receiver goes by the next number.)
struct Credit {
    seldom: u64,
    slot: Slot,
    /// Flags repeat at numbers that have none of these bits.
    wrap: u64,
    /// At other numbers, how far the credit may be behind a sender.
    behind: u64,
}

/// The fast path for code that was walked twice: where no credit is due, and where one is.
pub(super) fn of(often: &Walked, now_and_then: &Walked) -> Option<Way> {
    let by = often.by;
    let (way, message, credit): (fn(Packets) -> Way, Message, Credit) = match (often.steps(), now_and_then.steps()) {
        (
            (&[Effect::Send(message), Effect::Count], &[Guard::Bits { add: 0, bits: seldom }]),
            (
                &[Effect::WaitBehind { slot, wrap, behind }, Effect::Send(same), Effect::Count],
                &[Guard::Bits { add: 0, bits: guard }],
            ),
        ) if message == same && seldom == guard => (Way::SendPackets, message, Credit { seldom, slot, wrap, behind }),
        (
            (&[Effect::Receive(message), Effect::Count], &[Guard::Bits { add, bits: seldom }]),
            (
                &[Effect::Receive(same), Effect::Signal(slot), Effect::Count],
                &[Guard::Bits { add: added, bits: guard }, Guard::Bits { add: again, bits: wrap }],
            ),
        ) if message == same && seldom == guard && [add, added, again] == [by; 3] => {
            (Way::ReceivePackets, message, Credit { seldom, slot, wrap, behind: 0 })
        }
        _ => return None,
    };
    let Message { words, packets, count, flag, stamp, entry } = message;
    // If we give up in mid-message, the code reads the number and the packets again, so they must not be overwritten.
    let number = Ring::word(often.number);
    let are_apart =
        number.is_apart(8, words.cast(), 8 * count) && packets.is_apart(16 * count, words.cast(), 8 * count);
    let count = usize::try_from(count).ok()?;
    // Credits are bare: they carry no operation.
    let is_bare = credit.slot.words.is_bare();
    (are_apart && now_and_then.by == by && is_bare).then(|| {
        let (mask, bits) = stamp.of_numbers(flag as u32);
        way(Packets { words, count, packets, mask, bits, entry, credit })
    })
}

impl Packets {
    /// # Safety
    /// As for [`Shortcut::run`](super::Shortcut::run); `number` is the value of its counter.
    #[inline(always)]
    pub(super) unsafe fn send(&self, m: &Machine, number: u64) -> bool {
        let Packets { words, packets, mask, bits, entry, credit, .. } = self;
        // SAFETY: the walk found all places in their banks for every number; the launch checked the alignment of
        // packets and slots. Peers access them concurrently, so they are written and read as `PacketSend` and `Wait`
        // do.
        unsafe {
            if number & credit.seldom == 0 {
                let needed = if number & credit.wrap == 0 { number } else { number.max(credit.behind) - credit.behind };
                if credit.slot.word(number).load(Ordering::Acquire) < needed {
                    return false;
                }
            }
            let (to, flag) = (packets.at(number).cast(), number as u32 & mask | bits);
            match self.count {
                // A single packet needs no loop.
                1 => write_row(m, to, *words, 1, flag),
                count => write_row(m, to, *words, count, flag),
            }
            m.ring(*entry);
        }
        true
    }

    /// # Safety
    /// As for [`send`](Packets::send); `next` is the counter's next value.
    #[inline(always)]
    pub(super) unsafe fn receive(&self, m: &Machine, number: u64, next: u64) -> bool {
        let Packets { words, packets, mask, bits, credit, .. } = self;
        if next & credit.wrap == 0 {
            return false;
        }
        // SAFETY: as for `send`, with `PacketReceive` and `Signal`. If a packet does not arrive in time, the words
        // before it are read again.
        unsafe {
            let is_due = next & credit.seldom == 0;
            if is_due {
                // This line is in the sender's cache and travels while the packets do; see `Wait`.
                copy::prefetch_for_write(credit.slot.at.at(number));
            }
            let (from, flag) = (packets.at(number).cast(), number as u32 & mask | bits);
            let came = match self.count {
                1 => read_row(m, from, *words, 1, flag),
                count => read_row(m, from, *words, count, flag),
            };
            if came.is_err() {
                return false;
            }
            if is_due {
                credit.slot.tell_bare(m, number, next);
            }
        }
        true
    }
}
