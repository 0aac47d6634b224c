//! A carrier between ranks of one process: it copies. From a seed it also delays and reorders everything that the rules
//! of posts allow, so that code which depends on an order fails here.
//!
//! ```text
//!   rank a: write ──▶ pending (shuffled, delayed) ──poll──▶ copy ──▶ inbox of b, then b's doorbell
//!                                                              └──▶ Delivered, for a
//!   rank b: poll ──▶ Arrived
//! ```
//! The bytes are copied by the sender's thread before it locks the receiver's inbox, and the receiver reads the inbox
//! under the same lock: so they are there when the notice is.

use super::carrier::{Carrier, Event, Source, Target, Write};
use super::error::ProxyError;
use crate::sync::{Arc, Mutex, PoisonError};
use crate::tensor::Memory;
use crate::transport::doorbell::Doorbell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// One rank's end: what others write to, and how they reach it.
pub(crate) struct LoopEnd {
    /// By sender and target.
    regions: HashMap<(usize, Target), Memory>,
    inbox: Mutex<Vec<u32>>,
    doorbell: Doorbell,
    /// Bytes that arrived, for tests and measurements.
    bytes: AtomicU64,
}

impl LoopEnd {
    pub(crate) fn new(regions: HashMap<(usize, Target), Memory>, doorbell: Doorbell) -> LoopEnd {
        LoopEnd { regions, inbox: Mutex::new(Vec::new()), doorbell, bytes: AtomicU64::new(0) }
    }

    /// Bytes that have arrived here so far, without notices.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// The carrier of one rank of a process.
pub(crate) struct LoopCarrier {
    rank: usize,
    ends: Vec<Arc<LoopEnd>>,
    pending: Vec<Pending>,
    delivered: Vec<u64>,
    /// The state of the random delays; `None`: everything is delivered immediately and in order.
    random: Option<u64>,
}

/// A write that was taken and not yet delivered.
struct Pending {
    id: u64,
    peer: usize,
    from: Bytes,
    to: Memory,
    notice: Option<u32>,
    /// Polls that it still waits for.
    polls: u64,
}

enum Bytes {
    Memory(Memory),
    Inline(Vec<u8>),
}

/// The longest delay, in polls.
const LONGEST: u64 = 6;

impl LoopCarrier {
    pub(crate) fn new(rank: usize, ends: Vec<Arc<LoopEnd>>, seed: Option<u64>) -> LoopCarrier {
        // Every rank gets delays of its own.
        let random = seed.map(|seed| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (rank as u64 + 1) << 32 | 1);
        LoopCarrier { rank, ends, pending: Vec::new(), delivered: Vec::new(), random }
    }

    fn below(&mut self, n: u64) -> u64 {
        let Some(state) = &mut self.random else { return 0 };
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state % n
    }

    fn deliver(&mut self, Pending { id, peer, from, to, notice, .. }: Pending) {
        let end = &self.ends[peer];
        let source = match &from {
            Bytes::Memory(memory) => memory.start().as_ptr().cast_const(),
            Bytes::Inline(bytes) => bytes.as_ptr(),
        };
        // SAFETY: `write` made both ranges equally long, inside memory that the handles keep alive. They do not overlap:
        // one is the sender's outbox or this carrier's own copy, the other the receiver's. The receiver reads the bytes
        // only after the notice, and the sender changes them only after the receiver's credit; a kernel that breaks
        // this gets unspecified bytes, as with any race (ARCHITECTURE, Races).
        unsafe { std::ptr::copy_nonoverlapping(source, to.start().as_ptr(), to.bytes()) };
        end.bytes.fetch_add(to.bytes() as u64, Ordering::Relaxed);
        if let Some(notice) = notice {
            end.inbox.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
            end.doorbell.ring();
        }
        self.delivered.push(id);
    }
}

impl Carrier for LoopCarrier {
    fn write(&mut self, write: &Write<'_>) -> Result<bool, ProxyError> {
        let &Write { id, peer, source, target, offset, notice } = write;
        let refused = |what: &str| ProxyError::Carrier { peer: Some(peer), what: what.to_string() };
        let region = self.ends.get(peer).and_then(|end| end.regions.get(&(self.rank, target)));
        let region = region.ok_or_else(|| refused("it has no such region"))?;
        let (bytes, offset) = (source.bytes(), usize::try_from(offset).unwrap_or(usize::MAX));
        if offset.checked_add(bytes).is_none_or(|end| end > region.bytes()) {
            return Err(refused("the bytes are outside of its region"));
        }
        let (to, polls) = (region.part(offset, bytes), self.below(LONGEST));
        let from = match source {
            Source::Memory(memory) => Bytes::Memory(memory.clone()),
            Source::Inline(bytes) => Bytes::Inline(bytes.to_vec()),
        };
        let pending = Pending { id, peer, from, to, notice, polls };
        match self.random {
            None => self.deliver(pending),
            Some(_) => self.pending.push(pending),
        }
        Ok(true)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), ProxyError> {
        // Those that are due, in any order.
        for pending in &mut self.pending {
            pending.polls = pending.polls.saturating_sub(1);
        }
        let (mut due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.pending).into_iter().partition(|pending| pending.polls == 0);
        self.pending = later;
        while !due.is_empty() {
            let next = self.below(due.len() as u64) as usize;
            let pending = due.swap_remove(next);
            self.deliver(pending);
        }
        events.extend(self.delivered.drain(..).map(|id| Event::Delivered { id }));
        let mut inbox = self.ends[self.rank].inbox.lock().unwrap_or_else(PoisonError::into_inner);
        events.extend(inbox.drain(..).map(|notice| Event::Arrived { notice }));
        Ok(())
    }
}
