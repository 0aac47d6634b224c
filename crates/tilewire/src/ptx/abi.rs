//! What a launch passes to a kernel and what a kernel reports: the single definition, for `ptx` and for the launching
//! code.
//!
//! A kernel has one entry with **one parameter**, a block of bytes, all entries 8 bytes wide and aligned:
//!
//! ```text
//!   byte 0   rank                       i64
//!        8   world size                 i64
//!       16   address of the abort word  a u64 that every wait polls; not 0 ends the launch
//!       24   address of the report      10 u64, see below
//!       32   deadline                   nanoseconds a wait may take; u64::MAX: no limit
//!          busy      address of the busy word, and what a role copy adds to it (four u64; only with `Options::busy`)
//!       40   the parameters of the kernel, in order (72 with `Options::busy`):
//!              buffer, slots   one address per bank; then, if matched, one stamp per bank (see below)
//!              scalar          its bits, zero-extended
//!              queue           addresses of the ring's entries and tickets, its capacity, the target << 32; then, if
//!                              matched, one stamp
//! ```
//!
//! The **busy word** lies in device memory and is 0 while no launch of its transport runs. Every role copy of a launch
//! adds [`BusyEntry::enters`] when it begins and [`BusyEntry::LEAVES`] when it ends, and the last one to end takes back
//! what all have added. So the word is `n` entered role copies, below the copies that have ended, below the sum of
//! their launches' tags:
//!
//! ```text
//!   bit 0 … 15  entered      16 … 31  left      32 … 63  sum of the tags of the entered
//! ```
//!
//! A role copy whose tag times `n` is not the sum runs beside another launch. This is exact for the first one that
//! does: all that were there before have one other tag, and `n · (tag − other)` is not 0 modulo 2³².
//!
//! A **stamp** names the operation of the launch ([`matching`]): its number for slots, the operation's flag 0 for
//! packets.
//!
//! The **report** is all 0 before a launch. The first wait that gives up takes it (word 0: 0 → 1), fills it, sets word
//! 0 to 2, and sets the abort word to [`ABORTED_BY_TIMEOUT`] unless it is set already, so that every other wait of the
//! rank ends:
//!
//! ```text
//!   word 0 state: 0 nothing, 1 being written, 2 a wait gave up, 3 an access is out of bounds (if bounds are checked),
//!               4 the awaited signal or packet came from another operation, 5 a requirement of the kernel is not met,
//!               6 another launch of the transport was running (8: what the busy word must be, 9: what it was)
//!        1 role   2 block   3 copy   4 instruction (its number)
//!        5 parameter (beyond the last one: scratch)   6 bank   7 slot or packet number, or index, or ticket
//!        8 expected, or the largest index allowed   9 seen, or 0
//!        (for a queue: the entries that the proxy must be done with, and those that it is done with)
//!        (for a requirement: 5 the rank, 6 the number of bytes, 7 the offset, 8 the size, 9 whether it is about bytes)
//! ```
//!
//! A long wait **stalls**. After [`STALLED_AFTER`] it repeatedly writes the parameter it waits at and the time into the
//! word after the report ([`stall`] reads it). When it continues, it writes 0 there and counts that in the next word.
//! If several waits of a launch stall, the last writer's mark is there; the others write again.

use crate::ir::{Entity, Kernel, Param, ParamId, matching};

/// Byte offsets of the fixed part.
pub const RANK: u32 = 0;
/// Number of ranks.
pub const WORLD_SIZE: u32 = 8;
/// Address of the abort word.
pub const ABORT: u32 = 16;
/// Address of the report.
pub const REPORT: u32 = 24;
/// Nanoseconds that a wait may take.
pub const DEADLINE: u32 = 32;
/// Offset of the kernel's first parameter, unless launches look for each other.
const PARAMS: u32 = 40;
/// Address of the busy word, if launches look for each other.
pub const BUSY: u32 = 40;
/// The words of a [`BusyEntry`], after it.
pub const BUSY_ENTRY: u32 = 48;
/// Bytes of the address and the entry.
const BUSY_BYTES: u32 = 32;

/// The most bytes a launch passes.
pub const MOST_BYTES: u32 = 32_764;

/// Words of a report.
pub const REPORT_WORDS: usize = 10;

/// Index of the mark of a stalled wait: the word after the report.
pub const STALL: usize = REPORT_WORDS;
/// Index of the count of stalled waits that continued. A reader of several launches' marks compares it before and after
/// to know that all of them were set at the same time.
pub const LIFTS: usize = STALL + 1;
/// Nanoseconds after which a wait sets its mark.
pub const STALLED_AFTER: u64 = 2_000_000;
/// Bits of a mark below the parameter's number, which counts from 1.
pub const STALL_SHIFT: u32 = 48;

/// The parameter that a mark names; `None` if no wait is stalled.
pub fn stall(mark: u64) -> Option<usize> {
    (mark >> STALL_SHIFT).checked_sub(1).map(|param| param as usize)
}

/// Report state: a wait gave up.
pub const GAVE_UP: u64 = 2;

/// Report state: an access was out of bounds.
pub const OUTSIDE: u64 = 3;

/// Report state: a wait found a signal or packet of another operation.
pub const OTHER_OPERATION: u64 = 4;

/// Report state: a requirement of the kernel does not hold.
pub const REQUIRED: u64 = 5;

/// Report state: another launch of the transport was running.
pub const OVERLAPPED: u64 = 6;

/// Value that a wait that gives up writes to the abort word.
pub const ABORTED_BY_TIMEOUT: u64 = 1 << 63;

/// Value of the abort word when the host panics while a launch runs.
pub const ABORTED_BY_PANIC: u64 = 1 << 62;

/// What the role copies of a launch do to the busy word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BusyEntry {
    tag: u16,
    role_copies: u16,
}

impl BusyEntry {
    /// The most role copies of a launch, over all its blocks.
    pub const MOST_ROLE_COPIES: u64 = u16::MAX as u64;
    /// What a role copy adds when it ends.
    pub const LEAVES: u64 = 1 << 16;

    /// For a launch with this tag, which differs from those of all launches that could run beside it, and this many
    /// role copies in all blocks together.
    pub fn new(tag: u16, role_copies: u16) -> Self {
        BusyEntry { tag, role_copies }
    }

    /// What a role copy adds when it begins.
    pub fn enters(self) -> u64 {
        u64::from(self.tag) << 32 | 1
    }

    /// The words of the parameter block: what a role copy adds when it begins, the number of role copies that the last
    /// one finds to have left, and what it then adds.
    pub fn words(self) -> [u64; 3] {
        let all = (self.enters() + Self::LEAVES).wrapping_mul(self.role_copies.into());
        [self.enters(), u64::from(self.role_copies).saturating_sub(1), all.wrapping_neg()]
    }
}

/// The offset of each parameter of a kernel in the parameter block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParamBlock {
    offsets: Vec<u32>,
    /// Offset of the stamps of a parameter, if it is matched.
    stamps: Vec<Option<u32>>,
    bytes: u64,
}

impl ParamBlock {
    /// The layout for a kernel, whose launches look for each other if `busy`.
    pub fn new(kernel: &Kernel, busy: bool) -> Self {
        let first = PARAMS + if busy { BUSY_BYTES } else { 0 };
        let (mut offsets, mut stamps, mut bytes) = (Vec::new(), Vec::new(), u64::from(first));
        let offset = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        for (id, param) in kernel.params.iter() {
            offsets.push(offset(bytes));
            let (entries, banks) = match param {
                Param::Buffer { banks, .. } | Param::Slots { banks, .. } => (u64::from(*banks), u64::from(*banks)),
                Param::Scalar { .. } => (1, 1),
                Param::Queue { .. } => (4, 1),
            };
            bytes += 8 * entries;
            let is_matched = kernel.is_matched(id);
            stamps.push(is_matched.then(|| offset(bytes)));
            bytes += if is_matched { 8 * banks } else { 0 };
        }
        ParamBlock { offsets, stamps, bytes }
    }

    /// Byte offset of the stamp of a parameter's first bank, if it is matched.
    pub fn stamp_offset(&self, param: ParamId) -> Option<u32> {
        self.stamps[param.index()]
    }

    /// Byte offset of a parameter's first entry.
    pub fn offset(&self, param: ParamId) -> u32 {
        self.offsets[param.index()]
    }

    /// Size of the block.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The stamp of a bank of a matched parameter, for an operation.
pub fn stamp(param: &Param, operation: u16) -> u64 {
    match param {
        Param::Buffer { .. } => matching::flag(0, operation).into(),
        _ => operation.into(),
    }
}
