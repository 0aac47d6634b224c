//! The windows that a collective is given, with their element types as values, and those that its plan uses.

use crate::ir::Type;
use crate::ir::scalar::Element;
use crate::link::{LineSet, Registered, Window};
use crate::tensor::Memory;
use crate::transport::Rank;
use crate::transport::TransportError;
use crate::transport::layout::Side;
use crate::transport::proxy::PostedRegion;
use std::sync::Arc;

/// The windows of all ranks.
#[derive(Clone)]
pub(super) struct WindowOf {
    /// By rank; `None` if this rank cannot load and store in the window.
    pub peers: Vec<Option<Memory>>,
    /// Those that it reaches by posts.
    pub posted: Option<PostedRegion>,
    pub own: Memory,
    pub ty: Type,
    /// Its control lines.
    pub lines: LineSet,
    pub number: String,
    /// `None` if it stands for a tensor that is in no window.
    registered: Option<Arc<Registered>>,
    /// True if the handle that was given had been deregistered.
    is_over: bool,
    /// The only legs that use it: those that send, or those that receive. `None`: all.
    pub only: Option<Side>,
}

impl WindowOf {
    pub(super) fn of<W: Element>(window: &Window<W>) -> WindowOf {
        let (peers, own) = (window.peers().to_vec(), window.tensor().memory().clone());
        let (posted, number) = (window.posted().cloned(), window.number().to_string());
        let (lines, registered) = (window.lines().clone(), Some(window.registered().clone()));
        let is_over = window.is_over();
        WindowOf { peers, posted, own, ty: W::TYPE, lines, number, only: None, registered, is_over }
    }

    /// The error if it was deregistered.
    pub(super) fn check(&self) -> Result<(), TransportError> {
        if self.is_over {
            return Err(TransportError::Deregistered { number: self.number.clone() });
        }
        self.registered.as_ref().map_or(Ok(()), |registered| registered.check())
    }

    /// Stands for tensors of all ranks that are in no window.
    pub(super) fn of_tensors(peers: Vec<Option<Memory>>, own: Memory, ty: Type) -> WindowOf {
        let (lines, number) = (LineSet::default(), "one hop".to_string());
        WindowOf { peers, posted: None, own, ty, lines, number, registered: None, is_over: false, only: None }
    }

    /// The same for legs of this side alone; `None`: for all.
    pub(super) fn only_for(self, only: Option<Side>) -> WindowOf {
        WindowOf { only, ..self }
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
    /// True if there are any.
    pub(super) fn are_some(&self) -> bool {
        self.of.iter().any(Option::is_some)
    }

    /// True if one of them was deregistered.
    pub(super) fn are_over(&self) -> bool {
        self.of.iter().flatten().filter_map(|window| window.registered.as_ref()).any(|registered| registered.is_over())
    }

    /// The error if one of them was deregistered.
    pub(super) fn check(&self) -> Result<(), TransportError> {
        self.of.iter().flatten().try_for_each(WindowOf::check)
    }

    /// The control lines of a launch: those of the input's window, or else of the output's. Ranks that use the same
    /// windows use the same lines.
    pub(super) fn lines(&self) -> LineSet {
        let [out, inp] = &self.of;
        inp.as_ref().or(out.as_ref()).map_or_else(LineSet::default, |window| window.lines.clone())
    }

    /// A name, the same on all ranks.
    pub(super) fn name(&self) -> String {
        let [out, inp] = &self.of;
        let numbers: Vec<&str> = inp.iter().chain(out).map(|window| window.number.as_str()).collect();
        if numbers.is_empty() { "none".to_string() } else { numbers.join(" and ") + self.along }
    }
}
