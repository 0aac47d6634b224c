//! A message that is one row of a slot.
//!
//! ```text
//!   number := counter                                                  number := counter
//!   same geometry, and no credit to ask for?                           TAIL[number mod depth] ≥ number + 1?
//!   copy to slot number mod depth                                      copy from slot number mod depth
//!   TAIL[number mod depth] := number + 1                               HEAD[number mod depth] := number + 1
//!   counter := number + 1                                              counter := number + 1
//! ```
//! A sender leaves the launch to the code if it has to ask for credit (once per group of steps), or if its slots had
//! another geometry in its last launch. So does a receiver whose message does not arrive for a while.

use super::Way;
use super::walk::{Copied, Effect, Guard, Ring, Slot, Walked};
use crate::ir::matching::Look;
use crate::vm::copy::{self, Stores};
use crate::vm::lane::rows::FETCHED;
use crate::vm::machine::Machine;
use crate::vm::pace::AROUND_FROM;
use std::sync::atomic::Ordering;

/// The row of a launch.
pub(super) struct Row {
    /// The row at this rank's end.
    own: *mut u8,
    /// The slots' rows.
    rows: Ring,
    bytes: usize,
    /// The slot that tells the peer.
    tell: Slot,
}

/// What a sender checks first: that a word is unchanged, and that no credit is due. A credit is due at numbers that
/// have none of the bits `seldom`.
pub(super) struct Geometry {
    at: *mut u64,
    word: u64,
    seldom: u64,
}

impl Geometry {
    /// # Safety
    /// As for [`Shortcut::run`](super::Shortcut::run); `number` is the value of its counter.
    #[inline(always)]
    pub(super) unsafe fn holds(&self, number: u64) -> bool {
        // SAFETY: `at` is a word of an entry, whose memory is alive.
        number & self.seldom != 0 && unsafe { self.at.read_unaligned() } == self.word
    }
}

/// The fast path for code that was walked where no credit is due.
pub(super) fn of(m: &Machine, often: &Walked) -> Option<Way> {
    // Streamed rows need a fence and overlapping ones a careful copy; both are left to the code.
    let row = |Copied { own, rows, bytes }: Copied, tell: Slot| {
        let is_plain = rows.is_apart(bytes, own, bytes) && bytes < m.stream_from as u64;
        is_plain.then_some(Row { own, rows, bytes: bytes as usize, tell })
    };
    match often.steps() {
        (
            &[Effect::CopyTo(copied), Effect::Signal(tell), Effect::Count],
            &[Guard::Same { at, word }, Guard::Bits { add: 0, bits: seldom }],
        ) => Some(Way::SendRow(row(copied, tell)?, Geometry { at, word, seldom })),
        (&[Effect::WaitNext(tail), Effect::CopyFrom(copied), Effect::Signal(tell), Effect::Count], &[]) => {
            Some(Way::ReceiveRow(row(copied, tell)?, tail))
        }
        _ => None,
    }
}

impl Row {
    /// # Safety
    /// As for [`Shortcut::run`](super::Shortcut::run); `number` and `next` are the counter's value and next value.
    #[inline(always)]
    pub(super) unsafe fn send(&self, m: &Machine, number: u64, next: u64) {
        let Row { own, rows, bytes, tell } = self;
        // SAFETY: the walk found all places in their banks for every number, and the launch checked the alignment of
        // slots. Rows do not overlap the data that is sent, and only the peer uses them, once the signal tells it to.
        // Streamed stores are fenced before the signal, and no launch leaves unfenced ones behind.
        unsafe {
            let timed = *bytes as u64 >= m.pace.from();
            let around = timed && m.pace.begin(*bytes as u64) && *bytes >= AROUND_FROM;
            let stores = if around { Stores::Streamed } else { Stores::Cached };
            if copy::copy(rows.at(number), *own, *bytes, stores, m.level) {
                copy::fence();
            }
            if timed {
                m.pace.end();
            }
            tell.tell(m, number, next);
            if *bytes <= FETCHED {
                // As `FetchSlot` does; every number has a row.
                copy::prefetch_all_for_write(rows.at(next), *bytes);
            }
        }
    }

    /// # Safety
    /// As for [`send`](Row::send).
    #[inline(always)]
    pub(super) unsafe fn receive(&self, m: &Machine, tail: Slot, number: u64, next: u64) -> bool {
        let Row { own, rows, bytes, tell } = self;
        // SAFETY: as for `send`, in the other direction; the peer writes a row only after it is told that the row was
        // read.
        unsafe {
            let (word, wanted) = (tail.word(number), tail.words.word(next));
            let is_there = || tail.words.look(word.load(Ordering::Acquire), wanted) == Look::Ready;
            if !is_there() {
                // The hints of `Wait`: here the slot to be signalled, below the slot of the next wait.
                copy::prefetch_for_write(tell.at.at(number));
                let mut looks = m.looks;
                loop {
                    if looks == 0 {
                        return false;
                    }
                    std::hint::spin_loop();
                    if is_there() {
                        break;
                    }
                    looks -= 1;
                }
            } else {
                copy::prefetch(tail.at.at(next));
            }
            copy::copy(*own, rows.at(number), *bytes, Stores::Cached, m.level);
            tell.tell(m, number, next);
        }
        true
    }
}
