//! Words and flags that carry the number of an operation: the meaning of
//! [`Kernel::is_matched`](super::Kernel::is_matched), for all engines.
//!
//! ```text
//!   slot      63 ──────────── count ──────────── 16 │ 15: in step │ 14 ── operation ── 0
//!   packet    31: 1 │ 30 ── operation ── 16 │ 15 ── the flag's low bits, the message's number ── 0
//! ```
//! Both ends of a transfer agree on the operation when they are built, and pass it to their launches as an argument. A
//! launch may find the right count or message number from another operation. Then its peer made a different launch:
//! that is an error, never data. The program sees none of this: it computes with counts and flags only.

/// Bits of a word below its count.
pub const COUNT_SHIFT: u32 = 16;
/// The bits of a flag for its message's number, and the bit that every matched flag has.
pub const FLAG_BITS: u32 = 0x8000_ffff;
/// The bit that every matched flag has.
const IS_FLAG: u32 = 1 << 31;
/// A bit beside the operation, for words that never run ahead of their waiter: then a larger count than awaited also
/// comes from another launch. The TAILs of staged transfers are such words, since a slot is filled again only after its
/// reader has given it back. Other words may be signalled again before anybody has polled them.
pub const IN_STEP: u16 = 1 << 15;

/// The result of polling a word or a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// The awaited signal or packet has not arrived.
    Missing,
    /// It has arrived.
    Ready,
    /// It has arrived, but from another operation than this launch's.
    Other,
}

/// The word of a count; the operation may include the bit [`IN_STEP`].
pub const fn word(count: u64, operation: u16) -> u64 {
    count << COUNT_SHIFT | operation as u64
}

/// Judges a word for a launch that waits for `wanted`, a [`word`]. A count of 0 is reached from the beginning, in any
/// operation.
pub const fn look_at_word(seen: u64, wanted: u64) -> Look {
    let (count, least) = (seen >> COUNT_SHIFT, wanted >> COUNT_SHIFT);
    let same = seen as u16 == wanted as u16;
    if count < least {
        return Look::Missing;
    }
    let ahead = count > least && wanted as u16 & IN_STEP == 0;
    if same || ahead || least == 0 { Look::Ready } else { Look::Other }
}

/// The flag on the wire of a packet to which the kernel gives the flag `flag`.
pub const fn flag(flag: u32, operation: u16) -> u32 {
    flag & FLAG_BITS | IS_FLAG | (operation as u32) << 16
}

/// Judges a packet's flag for a launch that waits for `wanted`, a [`flag`].
pub const fn look_at_flag(seen: u32, wanted: u32) -> Look {
    match seen == wanted {
        true => Look::Ready,
        false if (seen ^ wanted) & FLAG_BITS == 0 => Look::Other,
        false => Look::Missing,
    }
}

/// The operation that a word carries.
pub const fn operation_of_word(word: u64) -> u16 {
    word as u16 & !IN_STEP
}

/// The operation that a flag carries.
pub const fn operation_of_flag(flag: u32) -> u16 {
    (flag >> 16) as u16 & 0x7fff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_ready_by_its_count_and_operation_and_only_those_that_are_not_in_step_run_ahead() {
        for (own, ahead) in [(300, Look::Ready), (IN_STEP | 300, Look::Other)] {
            let wanted = word(7, own);
            assert_eq!(look_at_word(wanted, wanted), Look::Ready);
            assert_eq!(look_at_word(word(8, own), wanted), Look::Ready);
            for other in [0, 299, 301, 0x7fff].map(|other| other | own & IN_STEP) {
                assert_eq!(look_at_word(word(7, other), wanted), Look::Other);
                assert_eq!(look_at_word(word(6, other), wanted), Look::Missing);
                assert_eq!(look_at_word(word(8, other), wanted), ahead);
            }
            assert_eq!(look_at_word(0, wanted), Look::Missing);
            assert_eq!(look_at_word(0, word(0, own)), Look::Ready, "nothing is waited for");
        }
    }

    #[test]
    fn a_flag_is_of_another_operation_only_where_the_message_is_the_same() {
        let wanted = flag(0x8000_0009, 5);
        assert_eq!(wanted, 0x8005_0009);
        assert_eq!(look_at_flag(wanted, wanted), Look::Ready);
        assert_eq!(look_at_flag(flag(9, 6), wanted), Look::Other);
        for missing in [0, flag(8, 5), flag(1, 6), 9] {
            assert_eq!(look_at_flag(missing, wanted), Look::Missing, "{missing:#x}");
        }
    }

    #[test]
    fn no_flag_is_zero_and_the_number_of_a_message_beyond_sixteen_bits_changes_none_of_the_operation() {
        assert_ne!(flag(0, 0), 0);
        assert_eq!(flag(0x8001_0003, 1), flag(3, 1));
    }
}
