//! The user's request, as a builder collects it: everything that a plan needs, with element types as run-time values.

use super::config::Config;
use super::facts::WorldFacts;
use super::hooks::Hooks;
use super::operation::Operation;
use super::rounds::Rounds;
use crate::ir::Type;
use crate::ir::scalar::Element;
use crate::link::{Transport, Window};
use crate::tensor::{AnyTensor, Memory};
use crate::transport::proxy::PostedRegion;
use crate::transport::{Rank, TransferError};
use crate::vm::Puts;
use std::time::Duration;

/// A requested collective, transfer or `map`.
pub(super) struct Request<'h, 'l> {
    pub operation: Operation,
    pub out: AnyTensor,
    pub inp: AnyTensor,
    pub hooks: Hooks<'h>,
    pub config: Config,
    /// Number of positions to send, if the user specified it.
    pub send_len: Option<usize>,
    /// The parts of the input and the output that peers can reach.
    pub windows: Vec<WindowOf>,
    /// True if this rank's own chunk is stored while another is sent, wherever the kernel can do that, for any size and
    /// processor.
    pub keeps: bool,
    /// `None` for a `map`.
    link: Option<&'l dyn Transport>,
    pub deadline: Option<Duration>,
    pub watched: bool,
    /// True if ranks with different hooks are refused.
    pub same_hooks: bool,
    /// How data for other ranks is written, if the user specified it.
    pub puts: Option<Puts>,
}

/// The windows of all ranks.
pub(super) struct WindowOf {
    /// By rank; `None` if this rank cannot load and store in the window.
    pub peers: Vec<Option<Memory>>,
    /// Those that it reaches by posts.
    pub posted: Option<PostedRegion>,
    pub own: Memory,
    pub ty: Type,
    pub number: String,
}

impl WindowOf {
    pub(super) fn of<W: Element>(window: &Window<W>) -> WindowOf {
        let (peers, own) = (window.peers().to_vec(), window.tensor().memory().clone());
        let (posted, number) = (window.posted().cloned(), window.number().to_string());
        WindowOf { peers, posted, own, ty: W::TYPE, number }
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

impl<'h, 'l> Request<'h, 'l> {
    pub(super) fn new(
        operation: Operation,
        link: Option<&'l dyn Transport>,
        out: AnyTensor,
        inp: AnyTensor,
        hooks: Hooks<'h>,
    ) -> Self {
        Request {
            operation,
            out,
            inp,
            hooks,
            config: Config::default(),
            send_len: None,
            windows: Vec::new(),
            keeps: false,
            link,
            deadline: link.and_then(|link| link.deadline()),
            watched: true,
            same_hooks: false,
            puts: None,
        }
    }

    /// The transport.
    ///
    /// # Panics
    /// For a `map`, which has none.
    pub(super) fn link(&self) -> &'l dyn Transport {
        self.link.expect("all but a map have a transport")
    }

    /// The error for an algorithm that this collective does not support.
    pub(super) fn refused_algorithm(&self) -> Option<TransferError> {
        let algorithm = self.config.algorithm.filter(|&algorithm| !self.operation.takes(algorithm))?;
        Some(TransferError::NoAlgorithm { algorithm: algorithm.name(), collective: self.operation.name() })
    }

    /// How the rounds share the launch: as the user specified, or depending on the links between the ranks.
    pub(super) fn layout(&self, facts: &WorldFacts) -> Rounds {
        // Legs to near and far peers have different numbers of blocks on a GPU.
        let as_roles = facts.in_memory && !facts.is_gpu_mesh();
        self.config.rounds.unwrap_or(if as_roles { Rounds::Roles } else { Rounds::Blocks })
    }
}
