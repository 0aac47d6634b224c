//! A message that is one row of a slot.
//!
//! ```text
//!   number := counter                                                  number := counter
//!   same geometry, and no credit to ask for?                           TAIL[number mod depth] ≥ number + 1?
//!   copy to slot number mod depth                                      copy from slot number mod depth
//!   TAIL[number mod depth] := number + 1                               HEAD[number mod depth] := number + 1
//!   counter := number + 1                                              counter := number + 1
//! ```
//! A sender that has to ask for credit, once in a group of steps, or whose slots were others in its last launch leaves it to the code, and so
//! does a receiver whose message does not come for a while.

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
    /// This rank's end.
    own: *mut u8,
    /// The slots' rows.
    rows: Ring,
    bytes: usize,
    /// What is told the peer.
    tell: Slot,
}

/// What a sender asks first: a word that must be the one that was, and bits of the number that are zero where a credit is due.
pub(super) struct Geometry {
    at: *mut u64,
    word: u64,
    seldom: u64,
}

impl Geometry {
    /// # Safety
    /// As for [`Shortcut::run`](super::Shortcut::run), with what its counter says.
    #[inline(always)]
    pub(super) unsafe fn holds(&self, number: u64) -> bool {
        // SAFETY: it is a word of an entry, which is alive.
        number & self.seldom != 0 && unsafe { self.at.read_unaligned() } == self.word
    }
}

/// The way of code that was walked where no credit is due.
pub(super) fn of(m: &Machine, often: &Walked) -> Option<Way> {
    // What is streamed is fenced, and what overlaps is moved with care: both by the code.
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
    /// As for [`Shortcut::run`](super::Shortcut::run), with what its counter says and will say.
    #[inline(always)]
    pub(super) unsafe fn send(&self, m: &Machine, number: u64, next: u64) {
        let Row { own, rows, bytes, tell } = self;
        // SAFETY: the walk found all places in their banks for every number; the launch checked the alignment of slots. Rows are apart from what is
        // sent, and nobody but the peer, who knows by the signal, uses them. What is streamed is
        // fenced before it, and no launch leaves such behind.
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
                // As `FetchSlot`; the row is there for every number.
                copy::prefetch_all_for_write(rows.at(next), *bytes);
            }
        }
    }

    /// # Safety
    /// As for [`send`](Row::send).
    #[inline(always)]
    pub(super) unsafe fn receive(&self, m: &Machine, tail: Slot, number: u64, next: u64) -> bool {
        let Row { own, rows, bytes, tell } = self;
        // SAFETY: as for `send`, with what is received; the peer does not write a row before it is told that it was read.
        unsafe {
            let (word, wanted) = (tail.word(number), tail.words.word(next));
            let is_there = || tail.words.look(word.load(Ordering::Acquire), wanted) == Look::Ready;
            if !is_there() {
                // The hints of `Wait`: what will be told, or what is waited for next.
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
