//! One connection as the store sees it: bytes in, [`Event`]s out; answers in, bytes out. No sockets, no clock.
//!
//! ```text
//!   Stranger ──proof──▶ Proven ──join──▶ Member(rank)
//!      at most PROOF bytes kept │ one join message │ one message of the limits' size
//! ```
//!
//! A violation ends the connection: there is no way to resynchronize with a peer that breaks the protocol.
#![forbid(unsafe_code)]

use super::secret::{End, Nonce, Secret};
use super::store::Bytes;
use super::wire::{self, HEADER, MAGIC, PROOF, Question, Reply, VERSION, Verdict};
use super::{BootstrapError, Limits};
use crate::transport::Rank;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::time::Instant;

/// Most bytes to read from one connection at a time, so that none keeps the others waiting.
const PORTION: usize = 64 << 10;
/// With more pieces than this to write, nothing is read: a peer that does not read answers cannot keep asking.
const BACKLOG: usize = 64;

pub(super) struct Connection {
    stage: Stage,
    nonce: Nonce,
    input: Vec<u8>,
    output: VecDeque<Bytes>,
    /// Bytes of the first piece of `output` that are already written.
    written: usize,
    /// True if the connection ends as soon as `output` is written.
    closing: bool,
    pub(super) opened: Instant,
    /// When a message in progress, in either direction, last advanced.
    pub(super) moved: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Stranger,
    Proven,
    Member(Rank),
}

/// A complete message, with its number.
pub(super) type Event = (u64, Question);

/// The connection must be closed.
#[derive(Debug)]
pub(super) struct Closed;

impl Connection {
    pub(super) fn new(now: Instant) -> Result<Connection, BootstrapError> {
        let nonce = super::secret::nonce()?;
        let output = VecDeque::from([Bytes::from(wire::challenge(&nonce))]);
        Ok(Connection {
            stage: Stage::Stranger,
            nonce,
            input: Vec::new(),
            output,
            written: 0,
            closing: false,
            opened: now,
            moved: now,
        })
    }

    /// True until the peer has proven that it knows the secret.
    pub(super) fn is_stranger(&self) -> bool {
        self.stage == Stage::Stranger
    }

    pub(super) fn member(&self) -> Option<Rank> {
        if let Stage::Member(rank) = self.stage { Some(rank) } else { None }
    }

    /// Records that the rank has joined.
    pub(super) fn admit(&mut self, rank: Rank) {
        self.stage = Stage::Member(rank);
    }

    pub(super) fn reply(&mut self, number: u64, reply: &Reply) {
        self.output.extend(reply.encode(number).into_iter().filter(|piece| !piece.is_empty()));
    }

    /// Closes the connection once all pending output is written.
    pub(super) fn close_when_written(&mut self) {
        self.closing = true;
    }

    pub(super) fn wants_to_read(&self) -> bool {
        !self.closing && self.output.len() <= BACKLOG
    }

    pub(super) fn wants_to_write(&self) -> bool {
        !self.output.is_empty()
    }

    /// True if a message is in progress; if not, silence is not a fault.
    pub(super) fn is_amid(&self) -> bool {
        !self.input.is_empty() || self.wants_to_write()
    }

    /// Reads one portion and returns the messages that are now complete.
    pub(super) fn read(
        &mut self,
        source: &mut impl Read,
        secret: &Secret,
        limits: &Limits,
        now: Instant,
    ) -> Result<Vec<Event>, Closed> {
        let mut portion = [0; PORTION];
        // From a peer that has not joined we read no more than it may send, so any excess stays in the kernel.
        let room = match self.stage {
            Stage::Stranger => PROOF - self.input.len(),
            Stage::Proven => HEADER + wire::longest_question(limits, false) - self.input.len(),
            Stage::Member(_) => PORTION,
        };
        let count = match source.read(&mut portion[..room]) {
            Ok(0) => return Err(Closed),
            Ok(count) => count,
            Err(error) if is_for_later(&error) => return Ok(Vec::new()),
            Err(_) => return Err(Closed),
        };
        self.moved = now;
        self.input.extend(&portion[..count]);
        if self.stage == Stage::Stranger {
            self.judge(secret)?;
            return Ok(Vec::new());
        }
        self.messages(limits)
    }

    /// Writes as much as possible without waiting.
    pub(super) fn write(&mut self, sink: &mut impl Write, now: Instant) -> Result<(), Closed> {
        while let Some(piece) = self.output.front() {
            match sink.write(&piece[self.written..]) {
                Ok(0) => return Err(Closed),
                Ok(count) => {
                    self.moved = now;
                    self.written += count;
                    if self.written == piece.len() {
                        self.output.pop_front();
                        self.written = 0;
                    }
                }
                Err(error) if is_for_later(&error) => return Ok(()),
                Err(_) => return Err(Closed),
            }
        }
        if self.closing { Err(Closed) } else { Ok(()) }
    }

    /// Checks a stranger's proof, as far as it has arrived.
    fn judge(&mut self, secret: &Secret) -> Result<(), Closed> {
        let seen = self.input.len().min(MAGIC.len());
        if self.input[..seen] != MAGIC[..seen] {
            return Err(Closed);
        }
        // Another version's message may have another length, so only its version is checked.
        if self.input.get(MAGIC.len()).is_some_and(|version| *version != VERSION) {
            self.output.push_back(wire::verdict(Verdict::WrongVersion, &[0; 32]).into());
            self.close_when_written();
            return Ok(());
        }
        if self.input.len() < PROOF {
            return Ok(());
        }
        let (nonce, proof) = self.input[MAGIC.len() + 1..].split_at(32);
        let (nonce, proof) = (nonce.try_into().expect("32 bytes"), proof.try_into().expect("32 bytes"));
        if secret.proves(End::Rank, &self.nonce, &nonce, &proof) {
            let own = secret.proof(End::Store, &self.nonce, &nonce);
            self.output.push_back(wire::verdict(Verdict::Welcome, &own).into());
            self.stage = Stage::Proven;
        } else {
            self.output.push_back(wire::verdict(Verdict::WrongSecret, &[0; 32]).into());
            self.close_when_written();
        }
        self.input.clear();
        Ok(())
    }

    fn messages(&mut self, limits: &Limits) -> Result<Vec<Event>, Closed> {
        let longest = wire::longest_question(limits, self.member().is_some());
        let (mut events, mut at) = (Vec::new(), 0);
        while let Some(head) = self.input[at..].first_chunk::<HEADER>() {
            let (kind, number, length) = wire::header(head);
            if length > longest {
                return Err(Closed);
            }
            let Some(body) = self.input.get(at + HEADER..at + HEADER + length) else { break };
            events.push((number, Question::decode(kind, body).ok_or(Closed)?));
            at += HEADER + length;
        }
        self.input.drain(..at);
        if self.input.is_empty() && self.input.capacity() > PORTION {
            self.input = Vec::new();
        }
        Ok(events)
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
