//! The windows that a collective is given, with their element types as values, and those that its plan uses.

use crate::ir::Type;
use crate::ir::scalar::Element;
use crate::link::Window;
use crate::tensor::Memory;
use crate::transport::Rank;
use crate::transport::layout::Side;
use crate::transport::proxy::PostedRegion;

/// The windows of all ranks.
#[derive(Clone)]
pub(super) struct WindowOf {
    /// By rank; `None` if this rank cannot load and store in the window.
    pub peers: Vec<Option<Memory>>,
    /// Those that it reaches by posts.
    pub posted: Option<PostedRegion>,
    pub own: Memory,
    pub ty: Type,
    pub number: String,
    /// The only legs that use it: those that send, or those that receive. `None`: all.
    pub only: Option<Side>,
}

impl WindowOf {
    pub(super) fn of<W: Element>(window: &Window<W>) -> WindowOf {
        let (peers, own) = (window.peers().to_vec(), window.tensor().memory().clone());
        let (posted, number) = (window.posted().cloned(), window.number().to_string());
        WindowOf { peers, posted, own, ty: W::TYPE, number, only: None }
    }

    /// True if this rank loads and stores in a rank's window.
    pub(super) fn is_mapped(&self, rank: Rank) -> bool {
        self.peers.get(rank.index()).is_some_and(Option::is_some)
    }

    /// Number of bytes of a rank's window that this rank can reach.
    pub(super) fn bytes_of(&self, rank: Rank) -> usize {
        let mapped = self.peers.get(rank.index()).and_then(Option::as_ref).map(Memory::bytes);
        mapped.or(self.posted_bytes_of(rank)).unwrap_or(0)
    }

    /// The same, if it reaches it by posts.
    pub(super) fn posted_bytes_of(&self, rank: Rank) -> Option<usize> {
        self.posted.as_ref()?.bytes(rank)
    }

    /// A part of a rank's window. The transfer to that rank must already have been checked against the window.
    pub(super) fn part_of(&self, rank: Rank, first: usize, bytes: usize) -> Memory {
        let window = self.peers[rank.index()].as_ref();
        window.unwrap_or_else(|| panic!("the window of rank {rank} is out of reach")).part(first, bytes)
    }
}

/// The windows that a plan uses.
#[derive(Clone, Default)]
pub(super) struct UsedWindows {
    /// Of the output, and of the input.
    pub of: [Option<WindowOf>; 2],
    /// How chunks are cut in them, in words, unless along rows. Ranks that cut their outputs along different axes would
    /// write each other's chunks.
    pub along: &'static str,
    /// True if the output is in a window that was given, and the plan needs none for it: peers do not reach it.
    pub spare_output: bool,
}

impl UsedWindows {
    /// A name, the same on all ranks.
    pub(super) fn name(&self) -> String {
        let [out, inp] = &self.of;
        let numbers: Vec<&str> = inp.iter().chain(out).map(|window| window.number.as_str()).collect();
        if numbers.is_empty() { "none".to_string() } else { numbers.join(" and ") + self.along }
    }
}
