//! What posts may touch beside staging and outboxes: the windows of far peers, and memory that is read where it is. It
//! comes and goes while the transport lives.
//!
//! ```text
//!   Window::allocate (collective)                          PostedRegion: on every rank, the same number k
//!     sender's proxy     region k of peer p has n bytes    ─┐ both until the rank drops its last handle
//!     receiver's carrier writes to k go to this memory     ─┘
//!   build of a collective                                  PostedSource: on this rank alone
//!     sender's proxy     posts may read these bytes          until the collective is dropped
//! ```
//! **Removal.** A table changes only under the lock of the proxy, so no thread of this rank is then between its check
//! of a post and the carrier. A post that was held meanwhile is checked again before it goes. The receiver's carrier
//! refuses writes to a region that its rank has removed, and a removal returns when none is under way
//! ([`Carrier::close`](super::Carrier::close)). So a late post gives a typed error, and never a stray write. A carrier
//! that still reads a source which is removed keeps its bytes alive.
//!
//! **Numbers.** A number is given to a new window only when no rank has it: [`Proxy::regions`] is compared by all
//! ranks. A rank may keep a handle longer than the others. Its posts then name a region that nobody else has taken.
#![forbid(unsafe_code)]

use super::{Proxy, ProxyError, Registered, State};
use crate::sync::Arc;
use crate::tensor::{Memory, Queue};
use crate::transport::Rank;
use std::fmt;

/// The windows of all far peers, as this rank posts to them: one region number for all.
#[derive(Clone)]
pub struct PostedRegion {
    queue: Queue,
    /// By rank: bytes of its window; `None` where it is not reached by posts.
    bytes: Vec<Option<usize>>,
    /// Removes the region when it is dropped.
    guard: Option<Arc<RegionGuard>>,
}

/// Memory that posts may read.
#[derive(Clone)]
pub struct PostedSource {
    memory: Memory,
    /// Removes the memory from the proxy's table when it is dropped.
    #[expect(dead_code, reason = "dropped with the last handle")]
    guard: Option<Arc<SourceGuard>>,
}

struct RegionGuard {
    proxy: Arc<Proxy>,
    number: u16,
}

struct SourceGuard {
    proxy: Arc<Proxy>,
    id: u64,
}

impl PostedRegion {
    /// Registers a region with this rank's proxy: `own` is this rank's memory that far peers may write, and `bytes` has
    /// by rank how many this rank may write there. `queue` posts to region 0.
    pub(crate) fn register(
        proxy: &Arc<Proxy>,
        queue: &Queue,
        number: u16,
        own: &Memory,
        bytes: Vec<Option<usize>>,
    ) -> Result<PostedRegion, ProxyError> {
        proxy.add_region(number, own, &bytes)?;
        let guard = Some(Arc::new(RegionGuard { proxy: proxy.clone(), number }));
        Ok(PostedRegion { queue: queue.clone().for_region(number), bytes, guard })
    }

    /// A region that no proxy knows, for kernels that are traced and never launched.
    pub fn unregistered(queue: Queue, bytes: Vec<Option<usize>>) -> PostedRegion {
        PostedRegion { queue, bytes, guard: None }
    }

    /// What the other ranks' proxies need to write to it, for their [`reach`](PostedRegion::reach). Empty if they need
    /// nothing.
    pub(crate) fn place(&self) -> Result<Vec<u8>, ProxyError> {
        let Some(guard) = &self.guard else { return Ok(Vec::new()) };
        Ok(guard.proxy.enter()?.carrier.place(guard.number))
    }

    /// Takes what `place` returned on every rank.
    pub(crate) fn reach(&self, places: &[Vec<u8>]) -> Result<(), ProxyError> {
        let Some(guard) = &self.guard else { return Ok(()) };
        let mut state = guard.proxy.enter()?;
        let State { peers, carrier, .. } = &mut *state;
        for (peer, place) in places.iter().enumerate() {
            if peers.get(peer).is_some_and(Option::is_some) {
                carrier.reach(peer, guard.number, place)?;
            }
        }
        Ok(())
    }

    /// What kernels bind to post to it.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Bytes of a peer's window. `None` if it is not reached by posts.
    pub fn bytes(&self, peer: Rank) -> Option<usize> {
        self.bytes.get(peer.index()).copied().flatten()
    }
}

impl PostedSource {
    /// Lets posts of this rank read this memory.
    pub(crate) fn register(proxy: &Arc<Proxy>, memory: &Memory) -> Result<PostedSource, ProxyError> {
        let guard = Some(Arc::new(SourceGuard { proxy: proxy.clone(), id: proxy.add_source(memory)? }));
        Ok(PostedSource { memory: memory.clone(), guard })
    }

    /// Memory that no proxy knows, for kernels that are traced and never launched.
    pub fn unregistered(memory: Memory) -> PostedSource {
        PostedSource { memory, guard: None }
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl Drop for RegionGuard {
    fn drop(&mut self) {
        self.proxy.remove_region(self.number);
    }
}

impl Drop for SourceGuard {
    fn drop(&mut self) {
        self.proxy.remove_source(self.id);
    }
}

impl fmt::Debug for PostedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostedRegion({} of {:?} bytes)", self.queue.target(), self.bytes)
    }
}

impl fmt::Debug for PostedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostedSource({} bytes)", self.memory.bytes())
    }
}

impl Proxy {
    /// The numbers of the regions that this rank has, without staging.
    pub(crate) fn regions(&self) -> Result<Vec<u16>, ProxyError> {
        let state = self.enter()?;
        let tables = || state.peers.iter().flatten().map(|peer| &peer.to.regions);
        let most = tables().map(Vec::len).max().unwrap_or(0);
        let is_used =
            |number: &u16| tables().any(|regions| regions.get(usize::from(*number)).is_some_and(Option::is_some));
        Ok((1..=u16::MAX).take(most.saturating_sub(1)).filter(is_used).collect())
    }

    /// True if the carrier can read these bytes where they are.
    pub(crate) fn reads_in_place(&self, memory: &Memory) -> bool {
        self.enter().is_ok_and(|state| state.carrier.reads(memory))
    }

    pub(super) fn add_region(&self, number: u16, own: &Memory, bytes: &[Option<usize>]) -> Result<(), ProxyError> {
        let mut state = self.enter()?;
        let State { peers, carrier, .. } = &mut *state;
        let far: Vec<usize> = (0..peers.len()).filter(|&peer| peers[peer].is_some()).collect();
        carrier.open(number, own, &far)?;
        for (peer, bytes) in peers.iter_mut().zip(bytes) {
            let Some(peer) = peer else { continue };
            let place = usize::from(number);
            if peer.to.regions.len() <= place {
                peer.to.regions.resize(place + 1, None);
            }
            peer.to.regions[place] = bytes.map(|bytes| bytes as u64);
        }
        Ok(())
    }

    pub(super) fn remove_region(&self, number: u16) {
        // Nothing is left to protect in a proxy that panicked: it moves nothing any more.
        let Ok(mut state) = self.enter() else { return };
        for peer in state.peers.iter_mut().flatten() {
            if let Some(bytes) = peer.to.regions.get_mut(usize::from(number)) {
                *bytes = None;
            }
        }
        state.carrier.close(number);
    }

    pub(super) fn add_source(&self, memory: &Memory) -> Result<u64, ProxyError> {
        let mut state = self.enter()?;
        state.carrier.lend(memory)?;
        let id = state.next_source;
        state.next_source += 1;
        state.sources.push(Registered { id: Some(id), memory: memory.clone() });
        Ok(id)
    }

    pub(super) fn remove_source(&self, id: u64) {
        let Ok(mut state) = self.enter() else { return };
        let State { sources, carrier, .. } = &mut *state;
        let is_it = |source: &mut Registered| source.id == Some(id);
        sources.extract_if(.., is_it).for_each(|source| carrier.give_back(&source.memory));
    }

    /// Moves nothing any more: when it returns, no thread of this rank reads or writes for posts, nor will one. For a
    /// launch that failed with posts under way, whose sources its caller may overwrite.
    pub(crate) fn halt(&self) {
        if let Ok(mut state) = self.enter() {
            state.is_halted = true;
        }
    }
}
