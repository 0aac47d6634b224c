//! The memory of posts at one rank: the memory that far peers' posts write, the memory that this rank's posts read, and
//! the ring.
//!
//! ```text
//!                 written by            read by            a CPU rank             a GPU rank
//!  control lines  this rank's proxy     its kernels        its segment            host memory, mapped by the device
//!  staging        far peers' carriers   its kernels        its segment            host memory
//!  outboxes       its kernels           its carrier        memory of its own      host memory
//!  ring: entries  its kernels           its proxy          memory of its own      host memory
//!  ring: tickets  its kernels           its kernels        memory of its own      device memory
//!  starts         its kernels           its kernels        its segment            device memory: its segment
//! ```
//! Kernels of a GPU poll control lines and read staging across the bus. In return the carrier needs no access to the
//! device. Either way the bytes of a slot cross the bus once.
#![forbid(unsafe_code)]

#[cfg(feature = "cuda")]
use crate::link::NvlTransport;
use crate::link::ShmTransport;
use crate::link::Transport;
use crate::tensor::{Memory, Ring};
use crate::transport::layout::{Layout, SetLines};
use crate::transport::proxy::Lines;
use crate::transport::{Doorbell, PostedHere, Rank, TransportError};
use std::collections::HashMap;
use std::ops::Range;

/// The memory of posts at this rank.
pub(super) struct FarMemory {
    /// The control lines of all peers.
    pub lines: Memory,
    /// The memory for each rank; `None` for near peers.
    pub peers: Vec<Option<FarPeer>>,
    pub ring: Ring,
    /// The bell that arrivals ring.
    pub bell: Doorbell,
}

/// The memory of posts between this rank and one far peer.
#[derive(Clone)]
pub(super) struct FarPeer {
    /// The memory where the peer's posts arrive.
    pub staging: Memory,
    /// The memory that kernels fill for the peer before they post it.
    pub outbox: Memory,
    /// The counters of this rank alone.
    starts: Memory,
    /// Those of windows, in all sets.
    window_starts: Memory,
}

impl FarMemory {
    /// Makes the memory for a rank on a CPU.
    pub fn of_cpu(near: &ShmTransport, is_far: impl Fn(Rank) -> bool, capacity: usize) -> FarMemory {
        let (layout, segments, me) = (near.layout(), near.segments(), near.rank().index());
        let segment = segments.segment(me);
        let part = |range: Range<usize>| segment.part(range.start, range.len());
        let peer = |peer: Rank| FarPeer {
            staging: part(layout.peer_staging(peer.index())),
            outbox: Memory::zeroed_shared(layout.geometry().per_peer_bytes),
            starts: part(layout.of_peer(&layout.starts(), peer.index())),
            window_starts: part(layout.window_starts_of(peer.index())),
        };
        FarMemory {
            lines: part(layout.lines()),
            peers: Rank::all(near.world_size()).map(|rank| is_far(rank).then(|| peer(rank))).collect(),
            ring: Ring::new(capacity),
            // The rank's waiting threads sleep on this bell, and drive the proxy.
            bell: segments.doorbell(me),
        }
    }

    /// Makes the memory for a rank on a GPU.
    #[cfg(feature = "cuda")]
    pub fn of_gpu(
        near: &NvlTransport,
        is_far: impl Fn(Rank) -> bool,
        capacity: usize,
    ) -> Result<FarMemory, TransportError> {
        use crate::cuda::Buffer;
        use crate::transport::SegmentError;
        use crate::transport::layout::PAGE;
        let (layout, device, own) = (near.layout(), near.device(), near.own_segment());
        let (bytes, capacity) = (layout.geometry().per_peer_bytes, capacity.max(1).next_power_of_two());
        let (lines, entries) = (layout.lines().len(), Ring::bytes_of_entries(capacity));
        let far = Rank::all(near.world_size()).filter(|&rank| is_far(rank)).count();
        // Everything is allocated in one piece, because the driver allocates pinned memory slowly.
        let sizes = [lines, entries].into_iter().chain((0..2 * far).map(|_| bytes));
        let all = sizes.map(|bytes| bytes.next_multiple_of(PAGE)).sum();
        let all = device.host_memory(all)?;
        let mut next = 0;
        let mut take = |bytes: usize| {
            let part = all.part(next, bytes);
            next += bytes.next_multiple_of(PAGE);
            part
        };
        let (lines, entries) = (take(lines), take(entries));
        let mut peer = |peer: Rank| {
            let part = |range: Range<usize>| own.part(range.start, range.len());
            let starts = part(layout.of_peer(&layout.starts(), peer.index()));
            let window_starts = part(layout.window_starts_of(peer.index()));
            FarPeer { staging: take(bytes), outbox: take(bytes), starts, window_starts }
        };
        let peers = Rank::all(near.world_size()).map(|rank| is_far(rank).then(|| peer(rank))).collect();
        let tickets = std::sync::Arc::new(Buffer::zeroed(device, Ring::BYTES_OF_TICKETS)?).memory();
        let ring = Ring::over(entries, tickets).expect("memory of the right size");
        // This is not the rank's doorbell, where the thread that watches the kernels sleeps. Kernels themselves never
        // sleep.
        let no_memory = SegmentError::NoMemory { bytes: PAGE, shortage: None };
        let bell = Doorbell::alone().ok_or(no_memory)?;
        Ok(FarMemory { lines, peers, ring, bell })
    }

    /// The memory that each sender may write here.
    pub fn targets(&self) -> HashMap<(usize, u16), Memory> {
        let of = |(sender, peer): (usize, &Option<FarPeer>)| Some(((sender, 0), peer.as_ref()?.staging.clone()));
        self.peers.iter().enumerate().filter_map(of).collect()
    }

    /// The memory that posts may read.
    pub fn outboxes(&self) -> Vec<Memory> {
        self.peers.iter().flatten().map(|peer| peer.outbox.clone()).collect()
    }
}

impl FarPeer {
    /// This rank's side of the memory for a peer, for its kernels, with the lines of a set.
    pub fn here(&self, layout: &Layout, set: usize, lines: &Memory, peer: Rank) -> PostedHere {
        let SetLines { starts, tallies, .. } = layout.lines_of(set, peer.index());
        let first = layout.window_starts_of(peer.index()).start;
        let part = |range: Range<usize>| self.window_starts.part(range.start - first, range.len());
        let (starts, tallies) = match set {
            0 => (self.starts.clone(), self.starts.part(0, 0)),
            _ => (part(starts), part(tallies)),
        };
        PostedHere { lines: lines.clone(), staging: self.staging.clone(), starts, tallies }
    }
}

/// The control lines that a rank moves in any other rank's segment.
pub(super) fn lines_of(layout: &Layout, writer: Rank) -> Vec<Lines> {
    layout.moved_lines(writer.index()).map(|(numbers, matched)| Lines { numbers, matched }).into()
}

/// The control lines of a rank's own segment that flushes of its posts to a peer move.
pub(super) fn flushed_lines(layout: &Layout, peer: Rank) -> Vec<Lines> {
    layout.flushed_lines(peer.index()).map(|numbers| Lines { numbers, matched: false }).into()
}
