//! Two copies: into a slot of a ring at the receiver, and out of it, at the same time for different slots.
//!
//! ```text
//!   sender:    wait tail - head < slots │ copy into slot tail │ tail += 1
//!   receiver:  wait head < tail         │ copy out of slot head │ head += 1
//! ```
//! Each rank reads the other's counter only if the value it last saw does not suffice.

use crate::bench::ranks::copy::Copy;
use crate::bench::ranks::sendrecv::messages::{Half, Payload};
use crate::bench::ranks::words::{Word, until};
use anyhow::Result;
use std::sync::atomic::Ordering::{Acquire, Release};
use tilewire::Memory;
use tilewire::link::{ShmTransport, Transport, Window};
use tilewire::transport::Rank;

/// The counters of the ring to one rank.
pub struct Signals<'l> {
    /// Slots ever filled.
    pub tail: Word<'l>,
    /// Slots ever emptied.
    pub head: Word<'l>,
}

/// One rank's half.
pub struct Ring<'l> {
    link: &'l ShmTransport,
    slot: usize,
    slots: u64,
    copy_in: Copy,
    copy_out: Copy,
    payload: Payload,
    out: End<'l>,
    inp: End<'l>,
}

/// One end of a ring.
struct End<'l> {
    signals: Signals<'l>,
    memory: Memory,
    /// This end's own counter.
    own: u64,
    /// The other end's, as last seen.
    seen: u64,
}

impl<'l> Ring<'l> {
    /// `words[r]` are the counters of the ring to rank r, which lies in its window of `staging`.
    pub fn new(
        link: &'l ShmTransport,
        words: [Signals<'l>; 2],
        staging: &Window<u64>,
        (slot, slots): (usize, usize),
        (copy_in, copy_out): (Copy, Copy),
        payload: Payload,
    ) -> Ring<'l> {
        let end = |signals, rank| End {
            signals,
            memory: staging.peer(rank).expect("ranks of one machine reach each other").clone(),
            own: 0,
            seen: 0,
        };
        let (own, peer) = (link.rank(), Rank::new(1 - link.rank().number()));
        let [zero, one] = words;
        let (out, inp) = if own.index() == 0 { (one, zero) } else { (zero, one) };
        let (out, inp) = (end(out, peer), end(inp, own));
        Ring { link, slot, slots: slots as u64, copy_in, copy_out, payload, out, inp }
    }

    /// Sends the chunk that starts at `at`, if there is a free slot; returns the start of the next one.
    #[inline]
    fn try_send(&mut self, at: usize) -> Option<usize> {
        let end = &mut self.out;
        if end.own - end.seen == self.slots {
            end.seen = end.signals.head.load(Acquire);
            if end.own - end.seen == self.slots {
                return None;
            }
        }
        let (bytes, source) = (self.slot.min(self.payload.bytes() - at), self.payload.source.memory());
        let offset = (end.own % self.slots) as usize * self.slot;
        // SAFETY: the receiver has emptied the slot, and does not touch it before `tail` marks it as full; the source
        // is ours.
        unsafe { self.copy_in.run(&end.memory, offset, source, at, bytes) };
        end.own += 1;
        end.signals.tail.store(end.own, Release);
        Some(at + bytes)
    }

    /// Receives the chunk that starts at `at`, if it has arrived; returns the start of the next one.
    #[inline]
    fn try_receive(&mut self, at: usize) -> Option<usize> {
        let end = &mut self.inp;
        if end.own == end.seen {
            end.seen = end.signals.tail.load(Acquire);
            if end.own == end.seen {
                return None;
            }
        }
        let (bytes, target) = (self.slot.min(self.payload.bytes() - at), self.payload.target.memory());
        let offset = (end.own % self.slots) as usize * self.slot;
        // SAFETY: the sender has filled the slot, and does not touch it before `head` marks it as free; the target is
        // ours.
        unsafe { self.copy_out.run(target, at, &end.memory, offset, bytes) };
        end.own += 1;
        end.signals.head.store(end.own, Release);
        Some(at + bytes)
    }
}

impl Half for Ring<'_> {
    #[inline]
    fn send(&mut self, _number: u64) -> Result<()> {
        let (link, bytes, mut at) = (self.link, self.payload.bytes(), 0);
        until(link, || {
            while at < bytes
                && let Some(next) = self.try_send(at)
            {
                at = next;
            }
            at == bytes
        })
    }

    #[inline]
    fn receive(&mut self, _number: u64) -> Result<()> {
        let (link, bytes, mut at) = (self.link, self.payload.bytes(), 0);
        until(link, || {
            while at < bytes
                && let Some(next) = self.try_receive(at)
            {
                at = next;
            }
            at == bytes
        })
    }

    fn exchange(&mut self, _number: u64) -> Result<()> {
        let (link, bytes) = (self.link, self.payload.bytes());
        let (mut sent, mut received) = (0, 0);
        until(link, || {
            // Alternating, one chunk each: a rank that only sent would fill the ring while the other does the same.
            if sent < bytes {
                sent = self.try_send(sent).unwrap_or(sent);
            }
            if received < bytes {
                received = self.try_receive(received).unwrap_or(received);
            }
            sent == bytes && received == bytes
        })
    }
}
