//! Which memory of a rank is a window, and since when.
//!
//! A registration is counted: a tensor that is registered again gives a second handle to the same window. It lives as
//! long as a handle, or something built with it, and it ends for both when all its handles were deregistered.

use super::window::WindowParts;
use crate::tensor::Memory;
use crate::transport::{Rank, TransportError};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A window of this rank, as all its handles and the calls that use it share it.
#[derive(Debug)]
pub struct Registered {
    own: Memory,
    parts: WindowParts,
    /// Handles that neither were dropped nor deregistered.
    handles: AtomicUsize,
    is_over: AtomicBool,
}

/// The windows of a rank of a transport, by address. It holds none of them: an entry ends with the window's last
/// handle, and the address is then free for other memory.
#[derive(Debug, Default)]
pub struct WindowRegistry(Mutex<Vec<Weak<Registered>>>);

/// What a registry knows about memory that is to be registered.
#[derive(Clone, Debug)]
pub enum Known {
    /// Nothing.
    New,
    /// It is this window.
    Again(Arc<Registered>),
    /// It shares some bytes with this window, and not all.
    Overlaps(Arc<Registered>),
}

/// Memory as those who copy see it: a window, or a buffer of this rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryView {
    /// The first byte, where this rank's kernels run.
    pub address: u64,
    /// Its size.
    pub bytes: usize,
    /// Its number on this rank: a window's [`number`](Registered::number), or a buffer's handle. Never 0.
    pub handle: u64,
    /// The same memory at every rank, by rank. Empty for a buffer, which only this rank has.
    pub peers: Vec<PeerView>,
}

/// A rank's part of a [`MemoryView`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerView {
    /// Where kernels of this rank load and store; 0 if they cannot.
    pub address: u64,
    /// Its size; 0 if this rank does not reach it.
    pub bytes: usize,
    /// The region that posts name; 0 if it is reached by loads and stores, or not at all.
    pub key: u64,
}

impl Registered {
    pub(super) fn new(own: Memory, parts: WindowParts) -> Arc<Registered> {
        Arc::new(Registered { own, parts, handles: AtomicUsize::new(1), is_over: AtomicBool::new(false) })
    }

    /// This rank's memory.
    pub fn own(&self) -> &Memory {
        &self.own
    }

    /// The windows of all ranks.
    pub fn parts(&self) -> &WindowParts {
        &self.parts
    }

    /// Names it on all ranks.
    pub fn number(&self) -> &str {
        &self.parts.number
    }

    /// True once it was deregistered.
    #[inline]
    pub fn is_over(&self) -> bool {
        // Relaxed: it says nothing about other memory.
        self.is_over.load(Ordering::Relaxed)
    }

    /// Where a rank's window is mapped here; 0 if this rank's kernels cannot load and store in it.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn address(&self, rank: Rank) -> u64 {
        self.parts.peers[rank.index()].as_ref().map_or(0, |memory| memory.start().addr().get() as u64)
    }

    /// The window of all ranks, as this rank reaches them.
    pub fn view(&self) -> MemoryView {
        let WindowParts { peers, posted, number, .. } = &self.parts;
        let peer = |(rank, mapped): (Rank, &Option<Memory>)| match (mapped, posted.as_ref()) {
            (Some(memory), _) => PeerView { address: self.address(rank), bytes: memory.bytes(), key: 0 },
            (None, Some(posted)) => posted.bytes(rank).map_or_else(PeerView::default, |bytes| PeerView {
                address: 0,
                bytes,
                key: u64::from(posted.queue().target()),
            }),
            (None, None) => PeerView::default(),
        };
        MemoryView {
            address: self.own.start().addr().get() as u64,
            bytes: self.own.bytes(),
            // Numbers count from 0.
            handle: number.parse().map_or(u64::MAX, |number: u64| number + 1),
            peers: Rank::all(peers.len()).zip(peers).map(peer).collect(),
        }
    }

    /// One more handle.
    pub(super) fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// One handle less. With the last one that is deregistered, the window is over.
    pub(super) fn remove_handle(&self, is_deregistered: bool) {
        if self.handles.fetch_sub(1, Ordering::Relaxed) == 1 && is_deregistered {
            self.is_over.store(true, Ordering::Relaxed);
        }
    }

    /// The error if it was deregistered.
    pub(crate) fn check(&self) -> Result<(), TransportError> {
        if self.is_over() { Err(TransportError::Deregistered { number: self.number().to_string() }) } else { Ok(()) }
    }
}

impl WindowRegistry {
    fn windows(&self) -> Vec<Arc<Registered>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|window| window.strong_count() > 0);
        let live = all.iter().filter_map(Weak::upgrade);
        live.filter(|window| window.handles.load(Ordering::Relaxed) > 0).collect()
    }

    /// What is known about this memory.
    pub fn find(&self, memory: &Memory) -> Known {
        let windows = self.windows();
        let same = windows.iter().find(|window| window.own.is(memory)).cloned().map(Known::Again);
        let other = || windows.iter().find(|window| window.own.overlaps(memory)).cloned().map(Known::Overlaps);
        same.or_else(other).unwrap_or(Known::New)
    }

    /// The window that has all bytes of this memory.
    pub fn window_of(&self, memory: &Memory) -> Option<Arc<Registered>> {
        self.windows().into_iter().find(|window| window.own.offset_of(memory).is_some() && memory.covered() > 0)
    }

    pub(super) fn add(&self, window: &Arc<Registered>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(window));
    }
}
