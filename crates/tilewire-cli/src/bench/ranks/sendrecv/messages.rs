//! Messages between two ranks: their contents and directions.
#![forbid(unsafe_code)]

use crate::bench::ranks::side::Run;
use anyhow::{Result, bail};
use tilewire::Tensor;

/// The direction of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// From rank 0 to rank 1, one after the other.
    Stream,
    /// There and back; the time is half of a round trip.
    PingPong,
    /// From each to the other at the same time.
    Both,
}

impl Pattern {
    /// Its name in reports and in the peer's commands.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Stream => "stream",
            Pattern::PingPong => "pingpong",
            Pattern::Both => "both",
        }
    }

    /// Messages one after the other in one step.
    pub fn hops(self) -> f64 {
        if self == Pattern::PingPong { 2.0 } else { 1.0 }
    }

    /// Messages at the same time.
    pub fn directions(self) -> usize {
        if self == Pattern::Both { 2 } else { 1 }
    }
}

/// The memory that a rank sends from and receives into.
#[derive(Clone)]
pub struct Payload {
    /// The sent message.
    pub source: Tensor<u64>,
    /// The received message.
    pub target: Tensor<u64>,
}

impl Payload {
    /// Bytes of a message.
    pub fn bytes(&self) -> usize {
        self.source.len() * 8
    }

    /// Makes the message differ from the last one: its first and last words become its number.
    #[inline]
    fn stamp(&self, number: u64) {
        self.source.set(0, number);
        self.source.set(self.source.len() - 1, number);
    }

    /// Checks that message `number` is in the target, by its first and last words.
    #[inline]
    fn expect(&self, number: u64) -> Result<()> {
        let (first, last) = (self.target.get(0), self.target.get(self.target.len() - 1));
        if first == number && last == number { Ok(()) } else { wrong(number, first, last) }
    }

    fn fill(&self, rank: usize) {
        (0..self.source.len()).for_each(|k| self.source.set(k, word(rank, k)));
        self.target.fill(u64::MAX);
    }

    /// Checks the whole target; with `fills` it is the number of the message everywhere.
    fn verify(&self, from: usize, number: u64, fills: bool) -> Result<()> {
        let last = self.target.len() - 1;
        for (k, got) in self.target.to_vec().into_iter().enumerate() {
            let sent = if fills || k == 0 || k == last { number } else { word(from, k) };
            if got != sent {
                bail!("the message is wrong: its word {k} is {got:#x} where {sent:#x} was sent");
            }
        }
        Ok(())
    }
}

#[cold]
fn wrong(number: u64, first: u64, last: u64) -> Result<()> {
    bail!("message {number} is wrong: it begins with {first} and ends with {last}")
}

fn word(rank: usize, k: usize) -> u64 {
    (k as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ rank as u64
}

/// One rank's half of a way to move messages. Message k is sent, and received, by the k-th call, from 1 on.
pub trait Half {
    /// Sends the source; when it returns, the source may be written again.
    fn send(&mut self, number: u64) -> Result<()>;

    /// Receives into the target.
    fn receive(&mut self, number: u64) -> Result<()>;

    /// Sends and receives simultaneously, while the other rank calls it too.
    fn exchange(&mut self, number: u64) -> Result<()>;

    /// True if it does not read the source, and writes the number of the message instead.
    fn fills(&self) -> bool {
        false
    }
}

/// A half that runs a pattern. Generic, so that a message costs no indirect call.
pub struct Patterned<H> {
    half: H,
    pattern: Pattern,
    rank: usize,
    payload: Payload,
    number: u64,
}

impl<H: Half> Patterned<H> {
    /// Messages from and to `payload`, moved by `half`.
    pub fn new(half: H, pattern: Pattern, rank: usize, payload: Payload) -> Patterned<H> {
        Patterned { half, pattern, rank, payload, number: 0 }
    }

    #[inline]
    fn send(&mut self) -> Result<()> {
        self.payload.stamp(self.number);
        self.half.send(self.number)
    }

    #[inline]
    fn receive(&mut self) -> Result<()> {
        self.half.receive(self.number)?;
        self.payload.expect(self.number)
    }
}

impl<H: Half> Run for Patterned<H> {
    fn run(&mut self, steps: u64) -> Result<()> {
        for _ in 0..steps {
            self.number += 1;
            match (self.pattern, self.rank) {
                (Pattern::Stream, 0) => self.send()?,
                (Pattern::Stream, _) => self.receive()?,
                (Pattern::PingPong, 0) => {
                    self.send()?;
                    self.receive()?;
                }
                (Pattern::PingPong, _) => {
                    self.receive()?;
                    self.send()?;
                }
                (Pattern::Both, _) => {
                    self.payload.stamp(self.number);
                    self.half.exchange(self.number)?;
                    self.payload.expect(self.number)?;
                }
            }
        }
        Ok(())
    }

    fn fill(&mut self) {
        self.payload.fill(self.rank);
    }

    fn verify(&mut self) -> Result<()> {
        if self.pattern == Pattern::Stream && self.rank == 0 {
            return Ok(());
        }
        self.payload.verify(1 - self.rank, self.number, self.half.fills())
    }
}
