//! Numbers that travel beside writes and are reported by the receiver's queue.
//!
//! ```text
//!  guarded, 64 bits   │ 63 ── cookie of this sender at this receiver ── 35 │ 34 ─ kind ─ 32 │ 31 ── value ── 0 │
//!  bare, 32 bits                                                                            │ 31 ── notice ── 0 │
//! ```
//! The cookie identifies the sender of a number and proves that it is a rank of this job. Each receiver chooses 29
//! random bits for each sender, and sends them over the authenticated bootstrap. A bare number has no room for a
//! cookie, so the network must be private. The only bare number that is not a notice is [`HELLO`].
#![forbid(unsafe_code)]

use super::choice::Numbers;
use std::collections::HashMap;

/// The kind of a number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Kind {
    /// A write with a notice of the proxy, which is the value.
    Notice,
    /// A write without a notice. The value tells writes of one sender apart.
    Silent,
    /// The receiver's confirmation of a write with this notice.
    NoticeEcho,
    /// The receiver's confirmation of a write without a notice.
    SilentEcho,
    /// The first number of a sender.
    Hello,
    /// The receiver's confirmation of a hello.
    HelloEcho,
}

const KINDS: [Kind; 6] = [Kind::Notice, Kind::Silent, Kind::NoticeEcho, Kind::SilentEcho, Kind::Hello, Kind::HelloEcho];
/// The number of bits beside a cookie that hold the kind.
const KIND_BITS: u32 = 3;
/// The bare number of a hello. No notice has all bits set, because no control line has that number (`proxy/wire.rs`).
const HELLO: u64 = u32::MAX as u64;

impl Kind {
    /// The kind by which a receiver confirms this one; `None` for confirmations.
    pub fn echo(self) -> Option<Kind> {
        match self {
            Kind::Notice => Some(Kind::NoticeEcho),
            Kind::Silent => Some(Kind::SilentEcho),
            Kind::Hello => Some(Kind::HelloEcho),
            Kind::NoticeEcho | Kind::SilentEcho | Kind::HelloEcho => None,
        }
    }

    /// The kind that this one confirms; `None` if it is not a confirmation.
    pub fn confirms(self) -> Option<Kind> {
        KINDS.into_iter().find(|kind| kind.echo() == Some(self))
    }
}

/// The number for a peer that knows this rank by `cookie`.
pub(super) fn number(numbers: Numbers, cookie: u32, kind: Kind, value: u32) -> u64 {
    match (numbers, kind) {
        (Numbers::Guarded, kind) => u64::from(cookie | kind as u32) << 32 | u64::from(value),
        (Numbers::Bare, Kind::Hello) => HELLO,
        (Numbers::Bare, _) => u64::from(value),
    }
}

/// Makes a cookie from random bits.
pub(super) fn cookie(bits: u32) -> u32 {
    bits >> KIND_BITS << KIND_BITS
}

/// Reads numbers that arrive at this rank.
pub(super) struct Reader {
    numbers: Numbers,
    /// The sender, by its cookie.
    senders: HashMap<u32, usize>,
}

/// A number that was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Read {
    /// The sender; `None` for bare numbers, which do not say.
    pub sender: Option<usize>,
    pub kind: Kind,
    pub value: u32,
}

impl Reader {
    pub fn new(numbers: Numbers, cookies: &[u32]) -> Reader {
        Reader { numbers, senders: cookies.iter().enumerate().map(|(rank, &cookie)| (cookie, rank)).collect() }
    }

    /// Reads a number. `None` if it comes from a stranger.
    pub fn read(&self, number: u64) -> Option<Read> {
        match self.numbers {
            Numbers::Guarded => {
                let (head, value) = ((number >> 32) as u32, number as u32);
                let kind = *KINDS.get((head & ((1 << KIND_BITS) - 1)) as usize)?;
                let sender = *self.senders.get(&cookie(head))?;
                Some(Read { sender: Some(sender), kind, value })
            }
            Numbers::Bare if number == HELLO => Some(Read { sender: None, kind: Kind::Hello, value: 0 }),
            Numbers::Bare => Some(Read { sender: None, kind: Kind::Notice, value: u32::try_from(number).ok()? }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_those_of_strangers_do_not() {
        let cookies = [0xdead_beef, 0x1234_5678, 0].map(cookie);
        let reader = Reader::new(Numbers::Guarded, &cookies);
        for (sender, &own) in cookies.iter().enumerate() {
            for kind in KINDS {
                for value in [0, 1, u32::MAX] {
                    let number = number(Numbers::Guarded, own, kind, value);
                    assert_eq!(reader.read(number), Some(Read { sender: Some(sender), kind, value }));
                    // One bit of the cookie is wrong, or the kind is none.
                    assert_eq!(reader.read(number ^ 1 << 40), None);
                    assert_eq!(reader.read(number | 7 << 32), None);
                }
            }
        }
        let reader = Reader::new(Numbers::Bare, &cookies);
        let read = |kind, value| reader.read(number(Numbers::Bare, cookies[0], kind, value)).unwrap();
        assert_eq!(read(Kind::Notice, 77), Read { sender: None, kind: Kind::Notice, value: 77 });
        assert_eq!(read(Kind::Hello, 5).kind, Kind::Hello);
        assert_eq!(reader.read(1 << 32), None);
    }

    #[test]
    fn every_echo_confirms_its_kind() {
        for kind in KINDS {
            assert_eq!(kind.echo().and_then(Kind::confirms), kind.echo().map(|_| kind));
        }
    }
}
