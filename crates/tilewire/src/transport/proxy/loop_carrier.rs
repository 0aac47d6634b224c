//! A carrier between ranks of one process, which copies bytes. With a seed it also delays, reorders and refuses writes
//! and delays confirmations, as far as the rules of posts allow. So code that depends on more fails here.
//!
//! ```text
//!   rank a: write ──▶ pending (shuffled, delayed) ──poll──▶ copy ──▶ inbox of b, then b's doorbell
//!             └─▶ refused, for a few writes                   └────▶ delivered (shuffled, delayed) ──poll──▶ Delivered
//!   rank b: poll ──▶ Arrived
//! ```
//! The sender's thread copies the bytes before it locks the receiver's inbox, and the receiver reads the inbox under
//! the same lock. So the bytes are in place when the notice arrives.
//!
//! A confirmation comes after the notice is in the receiver's inbox, however long it is delayed. So a write that starts
//! after the confirmation is behind the notice, as [`Carrier`] demands. Every refusal ends after a few attempts, and
//! every delay after a few polls, because a carrier must complete every write.

use super::carrier::{Carrier, Event, Source, Write};
use super::error::ProxyError;
use crate::sync::{Arc, Mutex, PoisonError};
use crate::tensor::Memory;
use crate::transport::doorbell::Doorbell;
use std::collections::HashMap;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// One rank's end of the carrier, which all other ranks write to.
pub(crate) struct LoopEnd {
    /// The memory that each sender may write, by sender and target. A copying thread holds the lock for reading, so a
    /// removal waits until the copy is done.
    regions: RwLock<HashMap<(usize, u16), Memory>>,
    inbox: Mutex<Vec<u32>>,
    doorbell: Doorbell,
    /// The number of bytes that have arrived, for tests and measurements.
    bytes: AtomicU64,
}

impl LoopEnd {
    pub(crate) fn new(regions: HashMap<(usize, u16), Memory>, doorbell: Doorbell) -> LoopEnd {
        LoopEnd { regions: RwLock::new(regions), inbox: Mutex::new(Vec::new()), doorbell, bytes: AtomicU64::new(0) }
    }

    /// The number of bytes that have arrived here so far, not counting notices.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// The carrier of one rank of a process.
pub(crate) struct LoopCarrier {
    rank: usize,
    ends: Vec<Arc<LoopEnd>>,
    pending: Vec<Pending>,
    /// The writes that are delivered and not confirmed, and the number of polls until they are.
    delivered: Vec<(u64, u64)>,
    /// The number of attempts to write that are still refused.
    refusals: u64,
    /// The state of the random delays; `None` if everything is delivered immediately and in order.
    random: Option<u64>,
}

/// A write that was taken and not yet delivered.
struct Pending {
    id: u64,
    peer: usize,
    from: Bytes,
    target: u16,
    offset: usize,
    notice: Option<u32>,
    /// The number of polls until it is delivered.
    polls: u64,
}

enum Bytes {
    Memory(Memory),
    Inline(Vec<u8>),
}

/// The longest delay, in polls.
const LONGEST: u64 = 6;
/// One in this many attempts to write begins a row of refusals.
const REFUSED: u64 = 5;
/// The most attempts that are refused in a row.
const MOST_REFUSALS: u64 = 4;

impl LoopCarrier {
    pub(crate) fn new(rank: usize, ends: Vec<Arc<LoopEnd>>, seed: Option<u64>) -> LoopCarrier {
        // Every rank gets its own delays.
        let random = seed.map(|seed| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (rank as u64 + 1) << 32 | 1);
        LoopCarrier { rank, ends, pending: Vec::new(), delivered: Vec::new(), refusals: 0, random }
    }

    fn below(&mut self, n: u64) -> u64 {
        let Some(state) = &mut self.random else { return 0 };
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state % n
    }

    /// True if a write is not taken now.
    fn refuses(&mut self) -> bool {
        if self.random.is_some() && self.refusals == 0 && self.below(REFUSED) == 0 {
            self.refusals = 1 + self.below(MOST_REFUSALS);
            // The attempt after the last refusal is taken.
            return true;
        }
        self.refusals = self.refusals.saturating_sub(1);
        self.refusals > 0
    }

    fn deliver(&mut self, Pending { id, peer, from, target, offset, notice, .. }: Pending) -> Result<(), ProxyError> {
        let end = self.ends[peer].clone();
        let (source, bytes) = match &from {
            Bytes::Memory(memory) => (memory.start().as_ptr().cast_const(), memory.bytes()),
            Bytes::Inline(bytes) => (bytes.as_ptr(), bytes.len()),
        };
        {
            // The lock is held until the bytes are copied. The region may have been removed since the write was taken.
            let regions = end.regions.read().unwrap_or_else(PoisonError::into_inner);
            let to = self.place(&regions, (peer, target), offset, bytes)?;
            // SAFETY: both ranges have `bytes` bytes, inside memory that the handles keep alive. They may overlap only
            // if a kernel posts from one window into another that shares its bytes, which `copy` allows. The receiver
            // reads the bytes only after the notice, and the sender changes them only after the receiver's credit or a
            // flush; a kernel that breaks this gets unspecified bytes, as with any race (ARCHITECTURE, Races). No host
            // code touches them plainly meanwhile: sources and destinations are shared memory, or an input of the
            // running launch, which returns after its last post was delivered (`Proxy::drain`) or the proxy has stopped
            // (`Proxy::halt`).
            unsafe { std::ptr::copy(source, to.start().as_ptr(), bytes) };
        }
        end.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if let Some(notice) = notice {
            end.inbox.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
            end.doorbell.ring();
        }
        let polls = self.below(LONGEST);
        self.delivered.push((polls, id));
        Ok(())
    }

    /// The bytes at a receiver that a write goes to.
    fn place(
        &self,
        regions: &HashMap<(usize, u16), Memory>,
        (peer, target): (usize, u16),
        offset: usize,
        bytes: usize,
    ) -> Result<Memory, ProxyError> {
        let refused = |what: &str| ProxyError::Carrier { peer: Some(peer), what: what.to_string() };
        let region = regions.get(&(self.rank, target)).ok_or(ProxyError::Region { peer, target })?;
        if offset.checked_add(bytes).is_none_or(|end| end > region.bytes()) {
            return Err(refused("the bytes are outside of its region"));
        }
        Ok(region.part(offset, bytes))
    }
}

impl Carrier for LoopCarrier {
    fn write(&mut self, write: &Write<'_>) -> Result<bool, ProxyError> {
        let &Write { id, peer, source, target, offset, notice } = write;
        let Some(end) = self.ends.get(peer) else {
            return Err(ProxyError::Carrier { peer: Some(peer), what: "there is no such rank".to_string() });
        };
        let (bytes, offset) = (source.bytes(), usize::try_from(offset).unwrap_or(usize::MAX));
        let regions = end.regions.read().unwrap_or_else(PoisonError::into_inner);
        self.place(&regions, (peer, target), offset, bytes)?;
        drop(regions);
        if self.refuses() {
            return Ok(false);
        }
        let polls = self.below(LONGEST);
        let from = match source {
            Source::Memory(memory) => Bytes::Memory(memory.clone()),
            Source::Inline(bytes) => Bytes::Inline(bytes.to_vec()),
        };
        let pending = Pending { id, peer, from, target, offset, notice, polls };
        match self.random {
            None => self.deliver(pending)?,
            Some(_) => self.pending.push(pending),
        }
        Ok(true)
    }

    fn open(&mut self, region: u16, memory: &Memory, senders: &[usize]) -> Result<(), ProxyError> {
        let mut regions = self.ends[self.rank].regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.extend(senders.iter().map(|&sender| ((sender, region), memory.clone())));
        Ok(())
    }

    fn close(&mut self, region: u16) {
        let mut regions = self.ends[self.rank].regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.retain(|&(_, target), _| target != region);
    }

    /// Peers look the region up in this rank's end.
    fn place(&self, _: u16) -> Vec<u8> {
        Vec::new()
    }

    fn reach(&mut self, _: usize, _: u16, _: &[u8]) -> Result<(), ProxyError> {
        Ok(())
    }

    fn reads(&self, memory: &Memory) -> bool {
        memory.reachable_from().host
    }

    fn lend(&mut self, _: &Memory) -> Result<(), ProxyError> {
        Ok(())
    }

    fn give_back(&mut self, _: &Memory) {}

    fn unconfirmed(&mut self, _: usize) -> Result<usize, ProxyError> {
        Ok(0)
    }

    fn flush_arrivals(&mut self) -> Result<(), ProxyError> {
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), ProxyError> {
        // Writes that are due are delivered in a random order, and confirmed in another one.
        self.pending.iter_mut().for_each(|pending| pending.polls = pending.polls.saturating_sub(1));
        let mut due: Vec<Pending> = self.pending.extract_if(.., |pending| pending.polls == 0).collect();
        while !due.is_empty() {
            let next = self.below(due.len() as u64) as usize;
            let pending = due.swap_remove(next);
            self.deliver(pending)?;
        }
        self.delivered.iter_mut().for_each(|(polls, _)| *polls = polls.saturating_sub(1));
        let confirmed = self.delivered.extract_if(.., |(polls, _)| *polls == 0);
        events.extend(confirmed.map(|(_, id)| Event::Delivered { id }));
        let mut inbox = self.ends[self.rank].inbox.lock().unwrap_or_else(PoisonError::into_inner);
        events.extend(inbox.drain(..).map(|notice| Event::Arrived { notice }));
        Ok(())
    }
}
