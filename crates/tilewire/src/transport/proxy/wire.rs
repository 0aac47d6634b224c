//! Notices on the wire: 32 bits that travel with every write, which the receiver counts.
//!
//! ```text
//!   31 ── control line ── 12 │ 11 ── parts − 1 ── 10 │ 9 ── delta ── 0
//! ```
//! All writes of one delivery carry the same notice. The receiver counts them, and moves the slot of the line by
//! `delta` when `parts` writes have arrived, in any order. A jump of more than [`MOST_DELTA`], or to another
//! operation's word, has `delta` 0. The new word then travels as one more counted part, the *mail*, which is written to
//! the line itself. Nothing depends on the order of a carrier, and nothing on the sender's address.
//!
//! A sender has at most one delivery per line under way, so one count per line is enough. The receiver may still learn
//! of several deliveries in one poll: the sender may be told that a delivery is complete, and start the next one,
//! before the receiver polls. The poll then reports all parts of the first delivery before those of the second
//! ([`Carrier`](super::Carrier)). If a carrier breaks this rule and the two notices differ, the receiver finds out. If
//! they are equal, the order makes no difference: parts of the second are sent only when the first is complete in
//! memory.
//!
//! Mail has one place per line, and a sender does not learn when the receiver has read it. So the next word may be
//! mailed only after the receiver has answered the previous mail. All schedules wait for that answer: they reuse a slot
//! after its credit, and credit it after it was filled again. A kernel that does not wait is caught, because each mail
//! is sealed with its number.

use super::error::ProxyError;
use crate::sync::{AtomicU64, Ordering};
use crate::tensor::{COUNT_SHIFT, Memory};
use crate::transport::layout::LINE;
use std::collections::HashMap;
use std::ops::Range;

/// The number of control lines that a notice can name.
pub(crate) const MOST_LINES: usize = 1 << 20;
/// The largest jump that fits into a notice.
const MOST_DELTA: u64 = (1 << 10) - 1;
/// The offset of the mail in a line. The slot is at byte 0, on another cache line.
const MAIL: usize = 64;
/// The size of mail in bytes: the word, and its seal.
pub(super) const MAIL_BYTES: usize = 16;

/// The seal of the n-th mail on a line. No earlier or later mail has the same seal, and neither has a torn one.
fn seal(word: u64, number: u64) -> u64 {
    !word.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Control lines of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    /// The numbers of the lines in a segment.
    pub numbers: Range<u64>,
    /// True if the words of the lines carry an operation below the count.
    pub matched: bool,
}

impl Lines {
    pub(super) fn find(all: &[Lines], line: u64) -> Option<&Lines> {
        all.iter().find(|lines| lines.numbers.contains(&line))
    }
}

/// The announcements of one sender to one peer.
#[derive(Default)]
pub(super) struct Announced {
    /// The last word of each line, and the number of mails on it.
    words: HashMap<u64, (u64, u64)>,
}

/// How a word travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Announcement {
    /// The notice that every write of the delivery carries.
    pub notice: u32,
    /// The mail, if there is any, and its offset in the peer's segment.
    pub mail: Option<(u64, [u8; MAIL_BYTES])>,
}

impl Announced {
    /// The announcement of a new word of a line, in a delivery of `parts` parts. Words only grow.
    pub(super) fn next(
        &mut self,
        lines: &[Lines],
        (peer, line): (usize, u64),
        word: u64,
        parts: u8,
    ) -> Result<Announcement, ProxyError> {
        let kind = Lines::find(lines, line).ok_or(ProxyError::Line { peer, line })?;
        let (last, mails) = self.words.entry(line).or_default();
        let shift = if kind.matched { COUNT_SHIFT } else { 0 };
        if word >> shift <= *last >> shift {
            return Err(ProxyError::Backwards { peer, line, word, last: *last });
        }
        let delta = (word >> shift) - (*last >> shift);
        let same = word ^ *last;
        let is_small = delta <= MOST_DELTA && same & ((1 << shift) - 1) == 0;
        *last = word;
        let notice = |parts: u8, delta: u64| (line as u32) << 12 | u32::from(parts - 1) << 10 | delta as u32;
        Ok(match is_small {
            true => Announcement { notice: notice(parts, delta), mail: None },
            false => {
                let mut mail = [0; MAIL_BYTES];
                mail[..8].copy_from_slice(&word.to_le_bytes());
                *mails += 1;
                mail[8..].copy_from_slice(&seal(word, *mails).to_le_bytes());
                Announcement { notice: notice(parts + 1, 0), mail: Some((line * LINE as u64 + MAIL as u64, mail)) }
            }
        })
    }
}

/// The receiver's end, which counts the parts of deliveries and moves this rank's slots.
pub(super) struct Arrivals {
    segment: Memory,
    /// The lines that posts of other ranks may move.
    lines: Vec<Lines>,
    /// The lines that flushes of this rank may move.
    flushed: Vec<Lines>,
    /// For each line, the notice of the delivery under way and the number of its parts that have arrived.
    counts: HashMap<u64, (u32, u8)>,
    /// For each line, the number of mails that have arrived.
    mails: HashMap<u64, u64>,
}

impl Arrivals {
    pub(super) fn new(segment: Memory, lines: Vec<Lines>, flushed: Vec<Lines>) -> Arrivals {
        Arrivals { segment, lines, flushed, counts: HashMap::new(), mails: HashMap::new() }
    }

    /// True if flushes may move this line.
    pub(super) fn may_flush(&self, line: u64) -> bool {
        Lines::find(&self.flushed, line).is_some()
    }

    /// Moves a slot of this rank for a flush of its posts to a peer. The caller has checked the line, and that the
    /// sources of the posts have been read.
    pub(super) fn flush(&self, peer: usize, line: u64, word: u64) -> Result<(), ProxyError> {
        let slot = self::word(&self.segment, line as usize * LINE);
        // Relaxed: only this proxy writes the slot.
        let last = slot.load(Ordering::Relaxed);
        if word <= last {
            return Err(ProxyError::Backwards { peer, line, word, last });
        }
        // Release: the role that waits for this value overwrites the sources after the carrier has read them.
        slot.store(word, Ordering::Release);
        Ok(())
    }

    /// Counts a write that has arrived with this notice. Returns true if the write completed its delivery and a slot
    /// has moved.
    pub(super) fn arrived(&mut self, notice: u32) -> Result<bool, ProxyError> {
        let (line, parts, delta) = (u64::from(notice >> 12), (notice >> 10 & 3) as u8 + 1, u64::from(notice & 0x3ff));
        let kind = Lines::find(&self.lines, line).ok_or(ProxyError::Notice { notice })?;
        let (known, count) = self.counts.entry(line).or_insert((notice, 0));
        if *known != notice {
            return Err(ProxyError::Notice { notice });
        }
        *count += 1;
        if *count < parts {
            return Ok(false);
        }
        self.counts.remove(&line);
        let shift = if kind.matched { COUNT_SHIFT } else { 0 };
        let at = line as usize * LINE;
        let slot = word(&self.segment, at);
        // Relaxed: only this proxy writes the slot.
        let before = slot.load(Ordering::Relaxed);
        let after = match delta {
            0 => {
                let mail = [0, 8].map(|byte| word(&self.segment, at + MAIL + byte).load(Ordering::Relaxed));
                let number = self.mails.entry(line).or_insert(0);
                *number += 1;
                (mail[1] == seal(mail[0], *number)).then_some(mail[0])
            }
            delta => before.checked_add(delta << shift),
        };
        let after = after.filter(|after| after >> shift > before >> shift).ok_or(ProxyError::Notice { notice })?;
        // Release: a thread that waits for this value sees the bytes of the delivery, which the carrier has put in
        // place before it reported the last part.
        slot.store(after, Ordering::Release);
        Ok(true)
    }
}

/// A word of this rank's segment.
fn word(segment: &Memory, byte: usize) -> &AtomicU64 {
    assert!(byte + 8 <= segment.bytes() && byte.is_multiple_of(8), "byte {byte} of {}", segment.bytes());
    // SAFETY: the word is inside the segment and aligned, since segments begin on a page. The words of control lines
    // are only touched by atomics, and the memory lives as long as the handle.
    unsafe { AtomicU64::from_ptr(segment.start().as_ptr().add(byte).cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Vec<Lines> {
        vec![Lines { numbers: 0..4, matched: true }, Lines { numbers: 4..8, matched: false }]
    }

    /// Applies an announcement as a carrier would, with the mail among the parts in a given place.
    fn apply(arrivals: &mut Arrivals, segment: &Memory, told: &Announcement, parts: u8) -> bool {
        if let Some((byte, mail)) = told.mail {
            for half in [0, 8] {
                let x = u64::from_le_bytes(mail[half..half + 8].try_into().unwrap());
                word(segment, byte as usize + half).store(x, Ordering::Relaxed);
            }
        }
        let all = parts + u8::from(told.mail.is_some());
        (1..=all).all(|part| arrivals.arrived(told.notice).unwrap() == (part == all))
    }

    #[test]
    fn small_steps_large_jumps_and_other_operations_arrive_as_they_were_sent() {
        let segment = Memory::zeroed_shared(8 * LINE);
        let (mut sent, mut arrivals) = (Announced::default(), Arrivals::new(segment.clone(), lines(), Vec::new()));
        let matched = |count: u64, operation: u64| count << COUNT_SHIFT | operation;
        let of = |line: u64| word(&segment, line as usize * LINE).load(Ordering::Relaxed);
        for (line, x, parts, mailed) in [
            (0, matched(1, 0), 1, false),
            (0, matched(2, 0), 3, false),
            (0, matched(1025, 0), 2, false),
            (0, matched(3000, 0), 2, true),
            (0, matched(3001, 7), 1, true),
            (0, matched(3002, 7), 3, false),
            (5, 1, 1, false),
            (5, 1024, 1, false),
            (5, 1 << 40, 1, true),
            (5, (1 << 40) + 1023, 1, false),
        ] {
            let told = sent.next(&lines(), (1, line), x, parts).unwrap();
            assert_eq!(told.mail.is_some(), mailed, "{x:#x}");
            assert!(apply(&mut arrivals, &segment, &told, parts));
            assert_eq!(of(line), x);
        }
    }

    #[test]
    fn lines_do_not_disturb_each_other_and_mixed_deliveries_are_refused() {
        let segment = Memory::zeroed_shared(8 * LINE);
        let (mut sent, mut arrivals) = (Announced::default(), Arrivals::new(segment.clone(), lines(), Vec::new()));
        let of = |line: u64| word(&segment, line as usize * LINE).load(Ordering::Relaxed);
        let a = sent.next(&lines(), (1, 4), 1, 2).unwrap().notice;
        let b = sent.next(&lines(), (1, 5), 9, 2).unwrap().notice;
        assert_eq!([a, b, b].map(|notice| arrivals.arrived(notice).unwrap()), [false, false, true]);
        assert_eq!((of(4), of(5)), (0, 9));
        // A second delivery for the line of `a`, which is not complete.
        let other = sent.next(&lines(), (1, 4), 2, 1).unwrap().notice;
        assert!(matches!(arrivals.arrived(other), Err(ProxyError::Notice { .. })));
        assert!(matches!(arrivals.arrived(u32::MAX), Err(ProxyError::Notice { .. })), "no such line");
    }

    #[test]
    fn words_that_do_not_grow_and_lines_of_others_are_refused() {
        let mut sent = Announced::default();
        sent.next(&lines(), (1, 4), 5, 1).unwrap();
        for x in [5, 4, 0] {
            let refused = sent.next(&lines(), (1, 4), x, 1);
            assert_eq!(refused, Err(ProxyError::Backwards { peer: 1, line: 4, word: x, last: 5 }));
        }
        assert_eq!(sent.next(&lines(), (1, 8), 1, 1), Err(ProxyError::Line { peer: 1, line: 8 }));
    }
}
