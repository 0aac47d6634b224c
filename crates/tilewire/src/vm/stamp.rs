//! How a count becomes the word of a slot, and a flag the flag of a packet: unchanged, or combined with the number of
//! an operation ([`matching`]).
#![forbid(unsafe_code)]

use crate::ir::matching::{self, COUNT_SHIFT, Look};

/// The stamp for the slots of one bank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WordStamp {
    shift: u32,
    operation: u16,
}

impl WordStamp {
    /// The stamp of a bank, given the operations of all banks.
    pub(crate) fn of(operations: Option<&[u16]>, bank: usize) -> WordStamp {
        match operations {
            None => WordStamp { shift: 0, operation: 0 },
            Some(all) => WordStamp { shift: COUNT_SHIFT, operation: all.get(bank).copied().unwrap_or(0) },
        }
    }

    /// The word that a signal of `count` stores and that a wait for `count` expects.
    #[inline(always)]
    pub(crate) fn word(self, count: u64) -> u64 {
        count << self.shift | u64::from(self.operation)
    }

    /// True if words are plain counts.
    pub(crate) fn is_bare(self) -> bool {
        self.shift == 0
    }

    /// The count in a word.
    pub(crate) fn count(self, word: u64) -> u64 {
        word >> self.shift
    }

    /// What a word means to a wait for `wanted`.
    #[inline(always)]
    pub(crate) fn look(self, seen: u64, wanted: u64) -> Look {
        match self.shift {
            _ if seen == wanted => Look::Ready,
            0 if seen > wanted => Look::Ready,
            0 => Look::Missing,
            _ => matching::look_at_word(seen, wanted),
        }
    }
}

/// The stamp for the packets of one bank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FlagStamp {
    mask: u32,
    bits: u32,
}

impl FlagStamp {
    /// The stamp of a bank, given the operations of all banks.
    pub(crate) fn of(operations: Option<&[u16]>, bank: usize) -> FlagStamp {
        match operations {
            None => FlagStamp { mask: u32::MAX, bits: 0 },
            Some(all) => {
                let operation = all.get(bank).copied().unwrap_or(0);
                FlagStamp { mask: matching::FLAG_BITS, bits: matching::flag(0, operation) }
            }
        }
    }

    /// The flag that is sent.
    #[inline(always)]
    pub(crate) fn flag(self, flag: u32) -> u32 {
        flag & self.mask | self.bits
    }

    /// How the number of a message becomes the flag that is sent, if the kernel's flag is `number | bits`: `number &
    /// mask | bits`.
    pub(crate) fn of_numbers(self, bits: u32) -> (u32, u32) {
        (self.mask, self.flag(bits))
    }

    /// The flag as the kernel sees it.
    pub(crate) fn bare(self, flag: u32) -> u32 {
        if self.bits == 0 { flag } else { flag & matching::FLAG_BITS }
    }

    /// What a packet's flag means to a wait for `wanted`.
    #[inline(always)]
    pub(crate) fn look(self, seen: u32, wanted: u32) -> Look {
        match seen == wanted {
            true => Look::Ready,
            false if self.bits == 0 => Look::Missing,
            false => matching::look_at_flag(seen, wanted),
        }
    }
}
