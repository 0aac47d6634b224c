//! Memory that posts may touch beside staging and outboxes: the windows of far peers, and sources that are read in
//! place. This memory is registered and removed while the transport lives.
//!
//! ```text
//!   Window::allocate (collective)                          PostedRegion: on every rank, the same number k
//!     sender's proxy     region k of peer p has n bytes    ─┐ both until the rank drops its last handle
//!     receiver's carrier writes to k go to this memory     ─┘
//!   build of a collective                                  PostedSource: on this rank alone
//!     sender's proxy     posts may read these bytes          until the collective is dropped
//! ```
//! **Removal.** A table changes only under the lock of the proxy, so no thread of this rank is then between its check
//! of a post and the carrier. A held post is checked again before it goes. The receiver's carrier refuses writes to a
//! region that its rank has removed. A write that was under way may arrive after the removal
//! ([`Carrier::close`](super::Carrier::close)), and the carrier keeps the memory until none can. So a late post gives a
//! typed error, and never a write to memory that has another owner. A carrier also keeps the bytes of a removed source
//! alive while it still reads them.
//!
//! **Numbers.** A new window gets a number that no rank uses: all ranks exchange their [`Proxy::regions`]. A rank may
//! keep a handle longer than the others. Its posts then name a region whose number has not been given to another
//! window.
#![forbid(unsafe_code)]

use super::{Proxy, ProxyError, Registered, State};
use crate::sync::Arc;
use crate::tensor::{Memory, Queue};
use crate::transport::Rank;
use std::fmt;

/// The windows of all far peers, as this rank posts to them. They all have the same region number.
#[derive(Clone)]
pub struct PostedRegion {
    queue: Queue,
    /// The size of each rank's window in bytes; `None` for ranks that are not reached by posts.
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
    /// Registers a region with this rank's proxy. `own` is this rank's memory, which far peers may write. `bytes` says
    /// for each rank how many bytes this rank may write there. `queue` posts to region 0.
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

    /// A region that is registered with no proxy, for kernels that are traced and never launched.
    pub fn unregistered(queue: Queue, bytes: Vec<Option<usize>>) -> PostedRegion {
        PostedRegion { queue, bytes, guard: None }
    }

    /// The bytes that the other ranks' proxies need to write to this region, for their
    /// [`reach`](PostedRegion::reach). They are empty if the proxies need nothing.
    pub(crate) fn place(&self) -> Result<Vec<u8>, ProxyError> {
        let Some(guard) = &self.guard else { return Ok(Vec::new()) };
        Ok(guard.proxy.enter()?.carrier.place(guard.number))
    }

    /// Takes the bytes that `place` returned on every rank.
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

    /// The queue that kernels bind to post to this region.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The size of a peer's window in bytes; `None` if the peer is not reached by posts.
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

    /// Memory that is registered with no proxy, for kernels that are traced and never launched.
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
    /// The numbers of the regions that this rank has, apart from staging.
    pub(crate) fn regions(&self) -> Result<Vec<u16>, ProxyError> {
        let state = self.enter()?;
        let tables = || state.peers.iter().flatten().map(|peer| &peer.to.regions);
        let most = tables().map(Vec::len).max().unwrap_or(0);
        let is_used =
            |number: &u16| tables().any(|regions| regions.get(usize::from(*number)).is_some_and(Option::is_some));
        Ok((1..=u16::MAX).take(most.saturating_sub(1)).filter(is_used).collect())
    }

    /// True if the carrier can read these bytes in place.
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
        // A proxy that panicked moves nothing any more, so there is nothing to protect.
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

    /// Stops all movement for good: after this call no thread of this rank reads or writes for posts. It is called for
    /// a launch that failed with posts under way, because the caller may overwrite their sources.
    pub(crate) fn halt(&self) {
        if let Ok(mut state) = self.enter() {
            state.is_halted = true;
        }
    }
}
