//! The protocol between a rank and the store, in bytes. All numbers are little-endian.
//!
//! ```text
//!   challenge   store → rank   magic 8 │ version 1 │ nonce 32
//!   proof       rank → store   magic 8 │ version 1 │ nonce 32 │ proof 32
//!   verdict     store → rank   verdict 1 │ version 1 │ proof 32
//!   message     both ways      kind 1 │ number 8 │ length 4 │ body
//! ```
//!
//! An answer carries the number of its question. In the bodies below, a *name* is its length (4) and its bytes:
//!
//! | question | body | answer | body |
//! |---|---|---|---|
//! | join | rank 4, world size 4 | joined | key bytes 4, value bytes 4, total bytes 8 |
//! | set | name, value | done | |
//! | get, take | milliseconds 8, name | value | bytes |
//! | barrier | milliseconds 8, name | done | |
//! | all_gather | milliseconds 8, name, value | values | count 4, then length 4 and bytes of each |
//! | leave | | none | |
//! | abort | reason | none | |
//!
//! The answer may also be a refusal with its details. Milliseconds are the time left until the deadline, all ones for
//! never. The reader never trusts a length. It compares a message's length with a cap before it reads the body, and a
//! field that reaches beyond its message makes the message malformed ([`None`]).
#![forbid(unsafe_code)]

use super::secret::{Nonce, Proof};
use super::store::{Answer, Bytes, Refusal, Request};
use super::{Departure, Limit, Limits, Operation};
use crate::transport::Rank;
use std::time::Duration;

pub(super) const MAGIC: [u8; 8] = *b"tilewire";
pub(super) const VERSION: u8 = 2;
pub(super) const CHALLENGE: usize = 8 + 1 + 32;
pub(super) const PROOF: usize = 8 + 1 + 32 + 32;
pub(super) const VERDICT: usize = 1 + 1 + 32;
pub(super) const HEADER: usize = 1 + 8 + 4;
/// Room in an answer for what it holds besides values: fixed fields, and a list of ranks or a reason.
const SLACK: usize = 64 << 10;
/// Longest reason of an abort in bytes; a longer one is cut.
const REASON: usize = 4 << 10;

/// The first byte of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Verdict {
    Welcome = 0,
    WrongSecret = 1,
    WrongVersion = 2,
}

/// What a rank sends after the proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Join { rank: Rank, world_size: usize },
    Ask { request: Request, left: Option<Duration> },
    Leave,
    Abort { reason: String },
}

/// What the store sends after the verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Joined(Limits),
    NotJoined(NotJoined),
    Answer(Answer),
}

/// Why a rank may not join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotJoined {
    WorldSize(usize),
    Taken,
    OutOfRange,
}

pub(super) fn challenge(nonce: &Nonce) -> Vec<u8> {
    [&MAGIC[..], &[VERSION], nonce].concat()
}

pub(super) fn proof(nonce: &Nonce, proof: &Proof) -> Vec<u8> {
    [&MAGIC[..], &[VERSION], nonce, proof].concat()
}

pub(super) fn verdict(verdict: Verdict, proof: &Proof) -> Vec<u8> {
    [&[verdict as u8, VERSION], &proof[..]].concat()
}

/// The longest body of a question under these limits. Before a rank has joined, `join` is the only question.
pub(super) fn longest_question(limits: &Limits, joined: bool) -> usize {
    if joined { 12 + REASON + limits.key_bytes + limits.value_bytes } else { 8 }
}

/// The longest body of an answer under these limits.
pub(super) fn longest_answer(limits: &Limits, world_size: usize) -> usize {
    SLACK + 8 * world_size + limits.total_bytes
}

/// The kind, number and length of a message.
pub(super) fn header(bytes: &[u8; HEADER]) -> (u8, u64, usize) {
    let mut fields = Fields(bytes);
    let read = (|| Some((fields.u8()?, fields.u64()?, fields.u32()? as usize)))();
    read.expect("a header has room for its fields")
}

fn message(kind: u8, number: u64, body: &[&[u8]]) -> Vec<u8> {
    let length: usize = body.iter().map(|part| part.len()).sum();
    let mut bytes = Vec::with_capacity(HEADER + length);
    bytes.push(kind);
    bytes.extend(number.to_le_bytes());
    bytes.extend(word(length));
    body.iter().for_each(|part| bytes.extend(*part));
    bytes
}

/// Limits keep every length and count below 2³².
fn word(number: usize) -> [u8; 4] {
    u32::try_from(number).expect("lengths and counts are capped").to_le_bytes()
}

impl Question {
    pub(super) fn encode(&self, number: u64) -> Vec<u8> {
        match self {
            Question::Join { rank, world_size } => {
                message(1, number, &[&rank.number().to_le_bytes(), &word(*world_size)])
            }
            Question::Ask { request: Request { operation, name, value }, left } => {
                let left = left.map_or(u64::MAX, milliseconds).to_le_bytes();
                let (name_length, name) = (word(name.len()), name.as_bytes());
                match operation {
                    Operation::Set => message(2, number, &[&name_length, name, value]),
                    Operation::Get => message(3, number, &[&left, &name_length, name]),
                    Operation::Take => message(4, number, &[&left, &name_length, name]),
                    Operation::Barrier => message(5, number, &[&left, &name_length, name]),
                    Operation::AllGather => message(6, number, &[&left, &name_length, name, value]),
                    Operation::Join => unreachable!("joining is a question of its own"),
                }
            }
            Question::Leave => message(7, number, &[]),
            Question::Abort { reason } => message(8, number, &[cut(reason).as_bytes()]),
        }
    }

    pub(super) fn decode(kind: u8, body: &[u8]) -> Option<Question> {
        let mut fields = Fields(body);
        let operation = match kind {
            1 => {
                let (rank, world_size) = (Rank::new(fields.u32()?), fields.u32()? as usize);
                return fields.end(Question::Join { rank, world_size });
            }
            2 => Operation::Set,
            3 => Operation::Get,
            4 => Operation::Take,
            5 => Operation::Barrier,
            6 => Operation::AllGather,
            7 => return fields.end(Question::Leave),
            8 => return Some(Question::Abort { reason: cut(std::str::from_utf8(body).ok()?).to_string() }),
            _ => return None,
        };
        let left = if operation == Operation::Set { u64::MAX } else { fields.u64()? };
        let left = (left != u64::MAX).then(|| Duration::from_millis(left));
        let name = fields.text()?;
        let carries = matches!(operation, Operation::Set | Operation::AllGather);
        let value = if carries { std::mem::take(&mut fields.0).into() } else { Bytes::default() };
        fields.end(Question::Ask { request: Request { operation, name, value }, left })
    }
}

impl Reply {
    /// Encodes in parts, so that a value in transit to many ranks is in memory only once.
    pub(super) fn encode(&self, number: u64) -> Vec<Bytes> {
        let whole = |kind, body: &[&[u8]]| vec![Bytes::from(message(kind, number, body))];
        match self {
            Reply::Joined(limits) => {
                let total = (limits.total_bytes as u64).to_le_bytes();
                whole(1, &[&word(limits.key_bytes), &word(limits.value_bytes), &total])
            }
            Reply::NotJoined(NotJoined::WorldSize(size)) => whole(2, &[&word(*size)]),
            Reply::NotJoined(NotJoined::Taken) => whole(3, &[]),
            Reply::NotJoined(NotJoined::OutOfRange) => whole(4, &[]),
            Reply::Answer(Answer::Done) => whole(5, &[]),
            Reply::Answer(Answer::Value(value)) => {
                let mut head = message(6, number, &[]);
                head[HEADER - 4..].copy_from_slice(&word(value.len()));
                vec![head.into(), value.clone()]
            }
            Reply::Answer(Answer::Values(values)) => {
                let length = 4 + values.iter().map(|value| 4 + value.len()).sum::<usize>();
                let mut head = message(7, number, &[&word(values.len())]);
                head[HEADER - 4..HEADER].copy_from_slice(&word(length));
                let values = values.iter().flat_map(|value| [Bytes::from(word(value.len())), value.clone()]);
                std::iter::once(head.into()).chain(values).collect()
            }
            Reply::Answer(Answer::Refused(refusal)) => match refusal {
                Refusal::Late { late, absent } => whole(16, &[&ranks(late), &ranks(absent)]),
                Refusal::NotSet { absent } => whole(17, &[&ranks(absent)]),
                Refusal::Gone { peer, departure } => {
                    let (how, reason) = match departure {
                        Departure::Left => (0, ""),
                        Departure::Lost => (1, ""),
                        Departure::Failed(reason) => (2, cut(reason)),
                    };
                    whole(18, &[&peer.number().to_le_bytes(), &[how], &word(reason.len()), reason.as_bytes()])
                }
                Refusal::KeyTaken => whole(19, &[]),
                Refusal::AlreadyWaiting => whole(20, &[]),
                Refusal::TooLarge { what, size, limit } => {
                    whole(21, &[&[*what as u8], &(*size as u64).to_le_bytes(), &(*limit as u64).to_le_bytes()])
                }
                Refusal::Full { what, limit } => whole(22, &[&[*what as u8], &(*limit as u64).to_le_bytes()]),
            },
        }
    }

    pub(super) fn decode(kind: u8, body: &[u8]) -> Option<Reply> {
        let mut fields = Fields(body);
        let reply = match kind {
            1 => {
                let (key_bytes, value_bytes) = (fields.u32()? as usize, fields.u32()? as usize);
                let total_bytes = usize::try_from(fields.u64()?).ok()?;
                Reply::Joined(Limits { key_bytes, value_bytes, total_bytes, ..Limits::default() }.clamped())
            }
            2 => Reply::NotJoined(NotJoined::WorldSize(fields.u32()? as usize)),
            3 => Reply::NotJoined(NotJoined::Taken),
            4 => Reply::NotJoined(NotJoined::OutOfRange),
            5 => Reply::Answer(Answer::Done),
            6 => Reply::Answer(Answer::Value(std::mem::take(&mut fields.0).into())),
            7 => {
                // Grows with the data that is there, not with what the count claims.
                let values: Option<Vec<Bytes>> = (0..fields.u32()?)
                    .map(|_| fields.u32().and_then(|length| fields.take(length as usize)).map(Bytes::from))
                    .collect();
                Reply::Answer(Answer::Values(values?.into()))
            }
            16..=22 => Reply::Answer(Answer::Refused(refusal(kind, &mut fields)?)),
            _ => return None,
        };
        fields.end(reply)
    }
}

fn refusal(kind: u8, fields: &mut Fields) -> Option<Refusal> {
    Some(match kind {
        16 => Refusal::Late { late: fields.ranks()?, absent: fields.ranks()? },
        17 => Refusal::NotSet { absent: fields.ranks()? },
        18 => {
            let (peer, how, reason) = (Rank::new(fields.u32()?), fields.u8()?, fields.text()?);
            let departure = match how {
                0 => Departure::Left,
                1 => Departure::Lost,
                2 => Departure::Failed(reason),
                _ => return None,
            };
            Refusal::Gone { peer, departure }
        }
        19 => Refusal::KeyTaken,
        20 => Refusal::AlreadyWaiting,
        21 => Refusal::TooLarge { what: fields.limit()?, size: fields.u64()? as usize, limit: fields.u64()? as usize },
        22 => Refusal::Full { what: fields.limit()?, limit: fields.u64()? as usize },
        _ => return None,
    })
}

/// Rounded up, so that the store's clock does not end a wait before the rank's does.
fn milliseconds(length: Duration) -> u64 {
    u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn ranks(ranks: &[Rank]) -> Vec<u8> {
    let numbers = ranks.iter().flat_map(|rank| rank.number().to_le_bytes());
    word(ranks.len()).into_iter().chain(numbers).collect()
}

/// The beginning of a reason, up to the last whole character that fits.
fn cut(reason: &str) -> &str {
    let fits = (0..=REASON.min(reason.len())).rev().find(|at| reason.is_char_boundary(*at));
    &reason[..fits.unwrap_or(0)]
}

/// The rest of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(field)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N).map(|field| field.try_into().expect("it was cut to this length"))
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<String> {
        let length = self.u32()? as usize;
        Some(std::str::from_utf8(self.take(length)?).ok()?.to_string())
    }

    fn ranks(&mut self) -> Option<Vec<Rank>> {
        (0..self.u32()?).map(|_| self.u32().map(Rank::new)).collect()
    }

    fn limit(&mut self) -> Option<Limit> {
        let all = [Limit::KeyBytes, Limit::ValueBytes, Limit::Keys, Limit::TotalBytes, Limit::Waiting];
        let number = self.u8()?;
        all.into_iter().find(|limit| *limit as u8 == number)
    }

    /// Returns `read` if nothing is left over.
    fn end<T>(self, read: T) -> Option<T> {
        self.0.is_empty().then_some(read)
    }
}

/// A fuzz target: the bytes are messages, one after another. Decoding them must not panic, whatever they are, and each
/// decoded message must survive being encoded and decoded again. Returns the number of decoded messages.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(mut data: &[u8]) -> usize {
    let mut read = 0;
    while let Some((head, rest)) = data.split_first_chunk::<HEADER>() {
        let (kind, number, length) = header(head);
        let (body, rest) = rest.split_at(length.min(rest.len()));
        data = rest;
        // Encoding cuts a long reason, so we compare the encoded bytes, not the decoded question.
        if let Some(question) = Question::decode(kind, body) {
            let written = question.encode(number);
            let again = Question::decode(written[0], &written[HEADER..]).expect("what is written can be read");
            assert_eq!(again.encode(number), written);
            read += 1;
        }
        if let Some(reply) = Reply::decode(kind, body) {
            let written = reply.encode(number).concat();
            let again = Reply::decode(written[0], &written[HEADER..]).expect("what is written can be read");
            assert_eq!(again, reply);
            read += 1;
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let request = |operation, value: &[u8]| Request { operation, name: "näme".into(), value: value.into() };
        let left = Some(Duration::from_millis(1500));
        for question in [
            Question::Join { rank: Rank::new(3), world_size: 4 },
            Question::Ask { request: request(Operation::Set, b"value"), left: None },
            Question::Ask { request: request(Operation::Get, b""), left },
            Question::Ask { request: request(Operation::Take, b""), left: None },
            Question::Ask { request: request(Operation::Barrier, b""), left },
            Question::Ask { request: request(Operation::AllGather, b"mine"), left },
            Question::Leave,
            Question::Abort { reason: "no memory".into() },
        ] {
            let bytes = question.encode(7);
            let (kind, number, length) = header(bytes[..HEADER].try_into().unwrap());
            assert_eq!((number, length), (7, bytes.len() - HEADER));
            assert_eq!(Question::decode(kind, &bytes[HEADER..]), Some(question.clone()));
            every_cut_is_refused(&bytes, |kind, body| Question::decode(kind, body).is_none_or(|q| q != question));
        }
    }

    #[test]
    fn what_is_answered_is_read() {
        let two = vec![Rank::new(1), Rank::new(9)];
        let (peer, how) = (Rank::new(2), Departure::Failed("it rained".into()));
        for answer in [
            Answer::Done,
            Answer::Value(b"value"[..].into()),
            Answer::Values([b"a"[..].into(), b""[..].into(), b"ccc"[..].into()].into()),
            Answer::Refused(Refusal::Late { late: two.clone(), absent: vec![] }),
            Answer::Refused(Refusal::NotSet { absent: two }),
            Answer::Refused(Refusal::Gone { peer, departure: how }),
            Answer::Refused(Refusal::Gone { peer, departure: Departure::Lost }),
            Answer::Refused(Refusal::KeyTaken),
            Answer::Refused(Refusal::AlreadyWaiting),
            Answer::Refused(Refusal::TooLarge { what: Limit::ValueBytes, size: 9, limit: 8 }),
            Answer::Refused(Refusal::Full { what: Limit::Waiting, limit: 8 }),
        ] {
            let reply = Reply::Answer(answer);
            let bytes = reply.encode(1 << 40).concat();
            let (kind, number, length) = header(bytes[..HEADER].try_into().unwrap());
            assert_eq!((number, length), (1 << 40, bytes.len() - HEADER));
            assert_eq!(Reply::decode(kind, &bytes[HEADER..]), Some(reply.clone()));
            every_cut_is_refused(&bytes, |kind, body| Reply::decode(kind, body).is_none_or(|r| r != reply));
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let long = "ä".repeat(REASON);
        for reason in [long.clone(), format!("x{long}")] {
            assert!(cut(&reason).len() >= REASON - 1 && reason.starts_with(cut(&reason)));
        }
    }

    fn every_cut_is_refused(bytes: &[u8], refused: impl Fn(u8, &[u8]) -> bool) {
        for end in HEADER..bytes.len() {
            assert!(refused(bytes[0], &bytes[HEADER..end]), "{bytes:?} cut at {end}");
        }
    }
}
