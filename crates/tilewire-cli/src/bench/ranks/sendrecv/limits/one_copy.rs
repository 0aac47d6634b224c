//! One copy: written directly into the receiver's memory, then a signal.
//!
//! ```text
//!   receiver:  ready k ────────────▶ │            │ wait done k
//!   sender:    wait ready k │ copy ──┼──▶ done k ─┘
//! ```
//! `ready` keeps a fast sender from overwriting message k - 1 while it is still being read. If each copies half, the
//! sender signals `go` (the message may be read) and waits for `taken` (it may be changed again).

use crate::bench::ranks::copy::Copy;
use crate::bench::ranks::sendrecv::messages::{Half, Payload};
use crate::bench::ranks::words::Word;
use anyhow::Result;
use std::fmt;
use std::sync::atomic::Ordering::Release;
use tilewire::Memory;

/// The rank that copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// The sender, all of it.
    Sender,
    /// Each rank one half.
    Halves,
    /// Neither: the sender stores the number of the message instead, and reads nothing.
    Nobody,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Share::Sender => "sender",
            Share::Halves => "half each",
            Share::Nobody => "stores",
        })
    }
}

/// Signals of the messages to one rank.
pub struct Signals<'l> {
    pub ready: Word<'l>,
    pub go: Word<'l>,
    pub done: Word<'l>,
    pub taken: Word<'l>,
}

/// One of the other rank's windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    Source,
    Target,
}

/// One rank's half.
pub struct OneCopy<'l> {
    out: Signals<'l>,
    inp: Signals<'l>,
    copy: Copy,
    share: Share,
    payload: Payload,
    peer_source: Memory,
    peer_target: Memory,
}

impl<'l> OneCopy<'l> {
    /// `words[r]` are the signals of messages to rank r; `peer` returns the other rank's windows.
    pub fn new(
        rank: usize,
        words: [Signals<'l>; 2],
        (copy, share): (Copy, Share),
        payload: Payload,
        peer: impl Fn(Of) -> Memory,
    ) -> OneCopy<'l> {
        let [zero, one] = words;
        let (out, inp) = if rank == 0 { (one, zero) } else { (zero, one) };
        let (peer_source, peer_target) = (peer(Of::Source), peer(Of::Target));
        OneCopy { out, inp, copy, share, payload, peer_source, peer_target }
    }

    /// Start of the receiver's half: on a page, so that streamed stores are aligned.
    fn middle(&self) -> usize {
        self.payload.bytes() / 2 / 4096 * 4096
    }
}

impl Half for OneCopy<'_> {
    #[inline]
    fn send(&mut self, number: u64) -> Result<()> {
        let (source, bytes) = (self.payload.source.memory(), self.payload.bytes());
        self.out.ready.wait(number)?;
        if self.share == Share::Halves {
            self.out.go.store(number, Release);
            // SAFETY: the receiver has allowed this message and touches only the other half of its target; it only
            // reads our source.
            unsafe { self.copy.run(&self.peer_target, 0, source, 0, self.middle()) };
            self.out.done.store(number, Release);
            return self.out.taken.wait(number);
        }
        // SAFETY: the receiver has allowed this message, and does not touch its target before `done`; our source is
        // ours.
        unsafe {
            match self.share {
                Share::Nobody => self.copy.fill(&self.peer_target, 0, bytes, number),
                _ => self.copy.run(&self.peer_target, 0, source, 0, bytes),
            }
        }
        self.out.done.store(number, Release);
        Ok(())
    }

    #[inline]
    fn receive(&mut self, number: u64) -> Result<()> {
        self.inp.ready.store(number, Release);
        if self.share == Share::Halves {
            self.inp.go.wait(number)?;
            let (middle, target) = (self.middle(), self.payload.target.memory());
            // SAFETY: the sender leaves its source unchanged until `taken`, and writes only the other half of our
            // target.
            unsafe { self.copy.run(target, middle, &self.peer_source, middle, self.payload.bytes() - middle) };
            self.inp.taken.store(number, Release);
        }
        self.inp.done.wait(number)
    }

    fn exchange(&mut self, number: u64) -> Result<()> {
        self.inp.ready.store(number, Release);
        self.send(number)?;
        self.inp.done.wait(number)
    }

    fn fills(&self) -> bool {
        self.share == Share::Nobody
    }
}
