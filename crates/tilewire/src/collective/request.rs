//! What a user asks for, as a builder collects it: everything that a plan is made of, with types as values.

use super::config::Config;
use super::hooks::Hooks;
use super::operation::Operation;
use super::rounds::Rounds;
use crate::ir::Type;
use crate::ir::scalar::Element;
use crate::link::{Transport, Window};
use crate::tensor::{AnyTensor, Memory};
use crate::transport::{Rank, TransferError};
use crate::vm::Puts;
use std::time::Duration;

/// A collective, a transfer or a `map`, asked for.
pub(super) struct Request<'h, 'l> {
    pub operation: Operation,
    pub out: AnyTensor,
    pub inp: AnyTensor,
    pub hooks: Hooks<'h>,
    pub config: Config,
    /// Positions sent, where the user says so.
    pub send_len: Option<usize>,
    /// What peers reach of the input and the output.
    pub windows: Vec<WindowOf>,
    /// Whether the own chunk is kept while another is sent wherever the kernel can, whatever its size and the processor: for rehearsals.
    pub keeps: bool,
    /// None of a `map`.
    link: Option<&'l dyn Transport>,
    pub deadline: Option<Duration>,
    pub watched: bool,
    /// Whether ranks that have other hooks are refused.
    pub same_hooks: bool,
    /// How what is for other ranks is written, where the user says.
    pub puts: Option<Puts>,
}

/// The windows of all ranks.
pub(super) struct WindowOf {
    /// By rank; `None` where this rank cannot reach it.
    pub peers: Vec<Option<Memory>>,
    pub own: Memory,
    pub ty: Type,
    pub number: String,
}

impl WindowOf {
    pub(super) fn of<W: Element>(window: &Window<W>) -> WindowOf {
        let (peers, own) = (window.peers().to_vec(), window.tensor().memory().clone());
        WindowOf { peers, own, ty: W::TYPE, number: window.number().to_string() }
    }

    /// Bytes of a rank's window that this rank can reach.
    pub(super) fn bytes_of(&self, rank: Rank) -> usize {
        self.peers.get(rank.index()).and_then(Option::as_ref).map_or(0, Memory::bytes)
    }

    /// A part of a rank's window, which a transfer to that rank has been checked against.
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
    /// Of a `map`, which has none.
    pub(super) fn link(&self) -> &'l dyn Transport {
        self.link.expect("all but a map have a transport")
    }

    /// What no kernel of this collective allows.
    pub(super) fn refused_algorithm(&self) -> Option<TransferError> {
        let algorithm = self.config.algorithm.filter(|&algorithm| !self.operation.takes(algorithm))?;
        Some(TransferError::NoAlgorithm { algorithm: algorithm.name(), collective: self.operation.name() })
    }

    /// How rounds share the launch: as the user says, or by what lies between the ranks.
    pub(super) fn layout(&self, in_memory: bool) -> Rounds {
        self.config.rounds.unwrap_or(if in_memory { Rounds::Roles } else { Rounds::Blocks })
    }
}
