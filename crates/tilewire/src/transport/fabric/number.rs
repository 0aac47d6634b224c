//! Numbers that travel beside writes and are reported by the receiver's queue.
//!
//! ```text
//!  guarded, 64 bits   │ 63 ── cookie: who ── 41 │ 40 ─ cookie, count ─ 35 │ 34 ─ kind ─ 32 │ 31 ── value ── 0 │
//!  bare, 32 bits                                                                           │ 31 ── notice ── 0 │
//! ```
//! The cookie identifies the sender of a number and proves that it is a rank of this job. Each receiver chooses 29
//! random bits for each sender, and sends them over the authenticated bootstrap. A bare number has no room for a
//! cookie, so the network must be private. The only bare number that is not a notice is [`HELLO`].
//!
//! **Counted numbers.** Over a provider that keeps the order of writes, a sender counts its guarded numbers to each
//! receiver, and adds the lowest bits of the count to the lowest bits of the cookie (exclusive or). The receiver counts
//! as well. If a number does not continue the count, numbers before it are lost, or have been overtaken, and the
//! receiver reports an error before it acts on the number. So a number that arrives shows that all earlier numbers of
//! its sender have arrived, with their bytes, and small writes need no confirmation (`posts.rs`). A sender has fewer
//! than [`COUNTS`] numbers under way that the provider may not have brought to the peer, so a loss cannot look like
//! none. For the same reason the receiver stops at the first number that does not continue the count: if it went on, a
//! number 64 later could continue it. A stranger that guesses the identity of any sender therefore ends the job.
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
    /// A question whether all earlier numbers have arrived. The value names the question.
    Count,
    /// The receiver's answer to a question with this value: it has accepted the question, and all earlier numbers.
    CountEcho,
}

const KINDS: [Kind; 1 << KIND_BITS] = [
    Kind::Notice,
    Kind::Silent,
    Kind::NoticeEcho,
    Kind::SilentEcho,
    Kind::Hello,
    Kind::HelloEcho,
    Kind::Count,
    Kind::CountEcho,
];
/// The number of bits beside a cookie that hold the kind.
const KIND_BITS: u32 = 3;
/// The number of a cookie's bits that a count is added to.
const COUNT_BITS: u32 = 6;
/// Counts of numbers are known modulo this.
pub(super) const COUNTS: u64 = 1 << COUNT_BITS;
/// The bare number of a hello. No notice has all bits set, because no control line has that number (`proxy/wire.rs`).
const HELLO: u64 = u32::MAX as u64;

impl Kind {
    /// The kind by which a receiver confirms this one; `None` for confirmations.
    pub fn echo(self) -> Option<Kind> {
        match self {
            Kind::Notice => Some(Kind::NoticeEcho),
            Kind::Silent => Some(Kind::SilentEcho),
            Kind::Hello => Some(Kind::HelloEcho),
            Kind::Count => Some(Kind::CountEcho),
            Kind::NoticeEcho | Kind::SilentEcho | Kind::HelloEcho | Kind::CountEcho => None,
        }
    }

    /// True for questions and answers about the count, whose failure nobody waits for.
    pub fn is_background(self) -> bool {
        matches!(self, Kind::Count | Kind::CountEcho)
    }

    /// The kind that this one confirms; `None` if it is not a confirmation.
    pub fn confirms(self) -> Option<Kind> {
        KINDS.into_iter().find(|kind| kind.echo() == Some(self))
    }
}

/// The number for a peer that knows this rank by `cookie`. `count` is the number of earlier numbers to the peer, or 0
/// if they are not counted.
pub(super) fn number(numbers: Numbers, cookie: u32, count: u64, kind: Kind, value: u32) -> u64 {
    match (numbers, kind) {
        (Numbers::Guarded, kind) => u64::from(cookie ^ counted(count) | kind as u32) << 32 | u64::from(value),
        (Numbers::Bare, Kind::Hello) => HELLO,
        (Numbers::Bare, _) => u64::from(value),
    }
}

/// Makes a cookie from random bits.
pub(super) fn cookie(bits: u32) -> u32 {
    bits >> KIND_BITS << KIND_BITS
}

/// The part of a cookie that identifies its sender. It must differ among the cookies of one receiver.
pub(super) fn identity(cookie: u32) -> u32 {
    cookie >> (KIND_BITS + COUNT_BITS)
}

/// The bits that a count changes in a cookie.
fn counted(count: u64) -> u32 {
    ((count % COUNTS) as u32) << KIND_BITS
}

/// Reads numbers that arrive at this rank.
pub(super) struct Reader {
    numbers: Numbers,
    /// The senders, by the identity in their cookies.
    senders: HashMap<u32, Sender>,
}

/// What a receiver knows about the numbers of a sender.
struct Sender {
    rank: usize,
    cookie: u32,
    /// The number of numbers that have arrived, if the sender counts them.
    count: Option<u64>,
}

/// A number that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    Read(Read),
    /// It is not from a rank of this job.
    Stranger,
    /// Numbers of this sender are missing before it.
    Lost {
        sender: usize,
    },
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
        let sender = |(rank, &cookie): (usize, &u32)| (identity(cookie), Sender { rank, cookie, count: None });
        Reader { numbers, senders: cookies.iter().enumerate().map(sender).collect() }
    }

    /// Expects that a sender counts its numbers. None has arrived yet.
    pub fn counts(&mut self, rank: usize) {
        self.senders.values_mut().filter(|sender| sender.rank == rank).for_each(|sender| sender.count = Some(0));
    }

    /// Reads a number.
    pub fn read(&mut self, number: u64) -> Heard {
        match self.numbers {
            Numbers::Guarded => {
                let (head, value) = ((number >> 32) as u32, number as u32);
                let kind = KINDS[(head & ((1 << KIND_BITS) - 1)) as usize];
                let Some(sender) = self.senders.get_mut(&identity(head)) else { return Heard::Stranger };
                if cookie(head) != sender.cookie ^ counted(sender.count.unwrap_or(0)) {
                    // A stranger that guessed an identity ends the job here. It does not change a byte.
                    return sender.count.map_or(Heard::Stranger, |_| Heard::Lost { sender: sender.rank });
                }
                sender.count = sender.count.map(|count| count + 1);
                Heard::Read(Read { sender: Some(sender.rank), kind, value })
            }
            Numbers::Bare if number == HELLO => Heard::Read(Read { sender: None, kind: Kind::Hello, value: 0 }),
            Numbers::Bare => match u32::try_from(number) {
                Ok(value) => Heard::Read(Read { sender: None, kind: Kind::Notice, value }),
                Err(_) => Heard::Stranger,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_those_of_strangers_do_not() {
        let cookies = [0xdead_beef, 0x1234_5678, 0].map(cookie);
        let mut reader = Reader::new(Numbers::Guarded, &cookies);
        for (sender, &own) in cookies.iter().enumerate() {
            for kind in KINDS {
                for value in [0, 1, u32::MAX] {
                    let number = number(Numbers::Guarded, own, 0, kind, value);
                    assert_eq!(reader.read(number), Heard::Read(Read { sender: Some(sender), kind, value }));
                    // One bit of the cookie is wrong.
                    for bit in [35, 40, 41, 63] {
                        assert_eq!(reader.read(number ^ 1 << bit), Heard::Stranger, "bit {bit}");
                    }
                }
            }
        }
        let mut reader = Reader::new(Numbers::Bare, &cookies);
        let mut read = |kind, value| reader.read(number(Numbers::Bare, cookies[0], 0, kind, value));
        assert_eq!(read(Kind::Notice, 77), Heard::Read(Read { sender: None, kind: Kind::Notice, value: 77 }));
        assert_eq!(read(Kind::Hello, 5), Heard::Read(Read { sender: None, kind: Kind::Hello, value: 0 }));
        assert_eq!(reader.read(1 << 32), Heard::Stranger);
    }

    #[test]
    fn a_count_shows_what_is_lost() {
        let cookies = [0xdead_beef, 0x1234_5678].map(cookie);
        let of = |sender: usize, count| number(Numbers::Guarded, cookies[sender], count, Kind::Notice, 9);
        let read = |sender: usize| Heard::Read(Read { sender: Some(sender), kind: Kind::Notice, value: 9 });
        let mut reader = Reader::new(Numbers::Guarded, &cookies);
        reader.counts(1);
        for count in 0..3 * COUNTS {
            for lost in 1..COUNTS {
                assert_eq!(reader.read(of(1, count + lost)), Heard::Lost { sender: 1 });
            }
            assert_eq!(reader.read(of(1, count)), read(1));
            // The other sender does not count.
            assert_eq!(reader.read(of(0, 0)), read(0));
        }
        assert_eq!(reader.read(of(1, 0) ^ 1 << 63), Heard::Stranger);
    }

    #[test]
    fn every_echo_confirms_its_kind() {
        for kind in KINDS {
            assert_eq!(kind.echo().and_then(Kind::confirms), kind.echo().map(|_| kind));
        }
    }
}
