//! Notices on the wire: 32 bits that travel with every write, which the receiver counts.
//!
//! ```text
//!                31 ── 12        11 ── 10     9 ───────────────────────── 0
//!   small step   control line    parts − 1    0 │ 9 bits: delta               the slot's count grows by `delta`
//!   large step   control line    parts − 1    1 │ 1 bit: long │ 8 bits: low   the slot's word grows by `low`, and by
//!   digit        control line    3            3 bits: index │ 7 bits: digit   2 digits or, if `long`, by 8
//! ```
//! All parts of one delivery carry the same notice. The receiver counts them, and moves the slot of the line when
//! `parts` of them have arrived, in any order. A *large step* is a jump of more than [`MOST_DELTA`], or one to
//! another operation's word. Each of its digits travels with an empty write of its own, beside the parts, and the slot
//! moves when all parts and all digits have arrived. Digit k has bits 8 + 7k to 14 + 7k of the step, and no write of
//! the delivery has the same notice as a digit. Nothing depends on the order of a carrier, and nothing on the sender's
//! address.
//!
//! **Nothing is overwritten.** A word travels in notices alone. A carrier keeps every notice until the receiver has
//! taken it, so a sender need not know when that was. A word in the receiver's memory would need a confirmation by the
//! receiver before its place could be used again. A sender that waits for such a confirmation would wait until the
//! peer's proxy is driven, and so for the peer's kernels. A held post must wait for the carrier alone (`mod.rs`).
//!
//! A sender has at most one delivery per line under way, so one count per line is enough. The receiver may still learn
//! of several deliveries in one poll: the sender may be told that a delivery is complete, and start the next one,
//! before the receiver polls. The poll then reports all writes of the first delivery before those of the second
//! ([`Carrier`](super::Carrier)): parts and digits are delivered before the next delivery of their line starts. If a
//! carrier breaks this rule and the two notices differ, the receiver finds out. If they are equal, the order makes no
//! difference: parts of the second are sent only when the first is complete in memory.

use super::error::ProxyError;
use crate::sync::{AtomicU64, Ordering};
use crate::tensor::{COUNT_SHIFT, Memory};
use crate::transport::layout::LINE;
use std::collections::HashMap;
use std::ops::Range;

/// The number of control lines that a notice can name. The last number of 20 bits is left out, so that no notice has
/// all bits set: carriers use that number for themselves (`fabric/number.rs`).
pub(crate) const MOST_LINES: usize = (1 << 20) - 1;
/// The largest jump that fits into one notice.
const MOST_DELTA: u64 = (1 << 9) - 1;
/// The code in place of the parts that marks a digit.
const DIGIT: u32 = 3;
/// The bit of a large step.
const LARGE: u32 = 1 << 9;
/// The bit of a large step with 8 digits.
const LONG: u32 = 1 << 8;
/// The number of bits of a large step that its parts carry.
const LOW_BITS: u32 = 8;
/// The number of bits in a digit.
const DIGIT_BITS: u32 = 7;
/// The number of digits of a large step that is not long. This is enough for a jump of a few counts to the word of any
/// other operation, and for a jump of four million counts where there are no operations.
const FEW_DIGITS: u8 = 2;
/// The number of digits of a long step: all 64 bits.
const ALL_DIGITS: u8 = 8;

/// Control lines of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    /// The numbers of the lines in a segment.
    pub numbers: Range<u64>,
    /// True if the words of the lines carry an operation below the count.
    pub matched: bool,
}

impl Lines {
    /// The lowest bit of the count in the lines' words.
    fn shift(&self) -> u32 {
        if self.matched { COUNT_SHIFT } else { 0 }
    }

    pub(super) fn find(all: &[Lines], line: u64) -> Option<&Lines> {
        all.iter().find(|lines| lines.numbers.contains(&line))
    }
}

/// The announcements of one sender to one peer.
#[derive(Default)]
pub(super) struct Announced {
    /// The last word of each line.
    words: HashMap<u64, u64>,
}

/// How a word travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Announcement {
    /// The notice of every write of the delivery that is not a digit.
    pub notice: u32,
    /// The number of digits.
    pub digits: u8,
    /// The growth of the word, if it is a large step.
    step: u64,
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
        let kind = Lines::find(lines, line).filter(|_| line < MOST_LINES as u64);
        let kind = kind.ok_or(ProxyError::Line { peer, line })?;
        let last = self.words.entry(line).or_default();
        let shift = kind.shift();
        if word >> shift <= *last >> shift {
            return Err(ProxyError::Backwards { peer, line, word, last: *last });
        }
        let (delta, step) = ((word >> shift) - (*last >> shift), word - *last);
        let same_operation = step & ((1 << shift) - 1) == 0;
        *last = word;
        let place = (line as u32) << 12 | u32::from(parts - 1) << 10;
        if delta <= MOST_DELTA && same_operation {
            return Ok(Announcement { notice: place | delta as u32, digits: 0, step });
        }
        let is_long = step >> (LOW_BITS + DIGIT_BITS * u32::from(FEW_DIGITS)) != 0;
        let (digits, long) = if is_long { (ALL_DIGITS, LONG) } else { (FEW_DIGITS, 0) };
        Ok(Announcement { notice: place | LARGE | long | step as u32 & (LONG - 1), digits, step })
    }
}

impl Announcement {
    /// The notice of a digit.
    pub(super) fn digit(&self, index: u8) -> u32 {
        let digit = (self.step >> digit_shift(index)) as u32 & ((1 << DIGIT_BITS) - 1);
        self.notice >> 12 << 12 | DIGIT << 10 | u32::from(index) << DIGIT_BITS | digit
    }
}

/// The lowest bit of a step that a digit carries.
fn digit_shift(index: u8) -> u32 {
    LOW_BITS + DIGIT_BITS * u32::from(index)
}

/// The receiver's end, which counts the parts of deliveries and moves this rank's slots.
pub(super) struct Arrivals {
    segment: Memory,
    /// The lines that posts of other ranks may move.
    lines: Vec<Lines>,
    /// The delivery under way for each line.
    under_way: HashMap<u64, Arriving>,
}

/// The writes of a delivery that have arrived.
#[derive(Clone, Copy, Default)]
struct Arriving {
    /// The notice of its parts, once one has arrived.
    notice: Option<u32>,
    /// The number of parts that have arrived.
    parts: u8,
    /// A bit for each digit that has arrived.
    digits: u8,
    /// The bits of the step that the digits carry.
    high: u64,
}

impl Arriving {
    /// Counts a write. Returns true if the delivery is complete, and `None` if the write does not belong to it.
    fn takes(&mut self, notice: u32) -> Option<bool> {
        if notice >> 10 & 3 == DIGIT {
            let index = (notice >> DIGIT_BITS & 7) as u8;
            let is_known = self.digits & 1 << index != 0;
            self.digits |= 1 << index;
            self.high |= u64::from(notice & ((1 << DIGIT_BITS) - 1)) << digit_shift(index);
            if is_known {
                return None;
            }
        } else {
            self.parts += 1;
            if *self.notice.get_or_insert(notice) != notice || self.parts > (notice >> 10 & 3) as u8 + 1 {
                return None;
            }
        }
        let Some(notice) = self.notice else { return Some(false) };
        let expected = match (notice & LARGE != 0, notice & LONG != 0) {
            (false, _) => 0,
            (true, false) => (1 << FEW_DIGITS) - 1,
            (true, true) => u8::MAX,
        };
        let is_complete = self.digits == expected && self.parts == (notice >> 10 & 3) as u8 + 1;
        (self.digits & !expected == 0).then_some(is_complete)
    }

    /// The growth of the word, once the delivery is complete.
    fn step(&self, shift: u32) -> u64 {
        let notice = self.notice.unwrap_or_default();
        match notice & LARGE != 0 {
            true => self.high | u64::from(notice & (LONG - 1)),
            false => u64::from(notice & (LARGE - 1)) << shift,
        }
    }
}

impl Arrivals {
    pub(super) fn new(segment: Memory, lines: Vec<Lines>) -> Arrivals {
        Arrivals { segment, lines, under_way: HashMap::new() }
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
        let (line, wrong) = (u64::from(notice >> 12), ProxyError::Notice { notice });
        let Some(kind) = Lines::find(&self.lines, line) else { return Err(wrong) };
        let arriving = self.under_way.entry(line).or_default();
        match arriving.takes(notice) {
            Some(true) => {}
            Some(false) => return Ok(false),
            None => return Err(wrong),
        }
        let (shift, step) = (kind.shift(), arriving.step(kind.shift()));
        self.under_way.remove(&line);
        let slot = word(&self.segment, line as usize * LINE);
        // Relaxed: only this proxy writes the slot.
        let before = slot.load(Ordering::Relaxed);
        let after = before.checked_add(step).filter(|after| after >> shift > before >> shift).ok_or(wrong)?;
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

    fn matched(count: u64, operation: u64) -> u64 {
        count << COUNT_SHIFT | operation
    }

    /// The notices of all writes of a delivery.
    fn writes(told: &Announcement, parts: u8) -> Vec<u32> {
        let digits = (0..told.digits).map(|index| told.digit(index));
        digits.chain((0..parts).map(|_| told.notice)).collect()
    }

    fn rig() -> (Memory, Announced, Arrivals) {
        let segment = Memory::zeroed_shared(8 * LINE);
        (segment.clone(), Announced::default(), Arrivals::new(segment, lines()))
    }

    #[test]
    fn small_and_large_steps_arrive_as_they_were_sent_in_whatever_order() {
        // Each order of the writes: forward, backward, and from the middle.
        for order in 0..3 {
            let (segment, mut sent, mut arrivals) = rig();
            let of = |line: u64| word(&segment, line as usize * LINE).load(Ordering::Relaxed);
            for (line, x, parts, digits) in [
                (0, matched(1, 0), 1, 0),
                (0, matched(2, 0), 3, 0),
                (0, matched(513, 0), 2, 0),
                (0, matched(3000, 0), 2, 8),
                (0, matched(3001, 7), 1, 2),
                (0, matched(3002, 7), 3, 0),
                (0, matched(3003, 0xffff), 3, 2),
                (0, matched(3004, 0), 1, 2),
                (0, matched(1 << 47, 0xffff), 2, 8),
                (5, 1, 1, 0),
                (5, 512, 1, 0),
                (5, 1024, 1, 2),
                (5, 3024, 2, 2),
                (5, 3024 + (1 << 22), 1, 8),
                (5, 1 << 40, 1, 8),
                (5, (1 << 40) + 511, 1, 0),
                (5, u64::MAX, 3, 8),
            ] {
                let told = sent.next(&lines(), (1, line), x, parts).unwrap();
                assert_eq!(told.digits, digits, "{x:#x}");
                let mut all = writes(&told, parts);
                match order {
                    0 => {}
                    1 => all.reverse(),
                    _ => all.rotate_left(parts.into()),
                }
                let last = all.len() - 1;
                let moved: Vec<bool> = all.into_iter().map(|notice| arrivals.arrived(notice).unwrap()).collect();
                assert_eq!(moved.iter().position(|moved| *moved), Some(last), "{x:#x}");
                assert_eq!(of(line), x);
            }
        }
    }

    #[test]
    fn lines_do_not_disturb_each_other_and_mixed_deliveries_are_refused() {
        let (segment, mut sent, mut arrivals) = rig();
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
    fn digits_and_parts_that_no_delivery_has_are_refused() {
        let refused = |notices: &[u32]| {
            let (.., mut arrivals) = rig();
            notices.iter().any(|&notice| arrivals.arrived(notice).is_err())
        };
        let (_, mut sent, _) = rig();
        let small = sent.next(&lines(), (1, 4), 1, 2).unwrap();
        let few = sent.next(&lines(), (1, 4), 2000, 1).unwrap();
        let all = sent.next(&lines(), (1, 4), 1 << 40, 2).unwrap();
        assert!(refused(&[few.digit(0), few.digit(0)]), "twice");
        assert!(refused(&[few.digit(0), small.notice]), "a digit of a small step");
        assert!(refused(&[few.notice, all.digit(2)]), "a third digit of two");
        assert!(refused(&[all.digit(2), few.notice]), "the same, the other way round");
        assert!(refused(&[all.notice, all.notice, all.notice]), "more parts than there are");
        assert!(refused(&[small.notice & !0x3ff, small.notice & !0x3ff]), "a step of zero");
        let nothing = few.notice & !(LONG - 1);
        assert!(refused(&[nothing, few.digit(0) & !0x7f, few.digit(1) & !0x7f]), "a large step of zero");
        assert!(!refused(&writes(&all, 2)));
    }

    #[test]
    fn no_notice_has_all_bits_set() {
        let all = [Lines { numbers: 0..1 << 20, matched: false }];
        let (mut sent, last) = (Announced::default(), MOST_LINES as u64);
        assert_eq!(sent.next(&all, (1, last), u64::MAX, 3), Err(ProxyError::Line { peer: 1, line: last }));
        let told = sent.next(&all, (1, last - 1), u64::MAX, 3).unwrap();
        assert_eq!((told.digits, told.digit(7)), (8, u32::MAX - (1 << 12)));
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
