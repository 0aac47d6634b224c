//! The user's request, as a builder collects it: everything that a plan needs, with element types as run-time values.

use super::config::Config;
use super::facts::WorldFacts;
use super::hooks::{ChunkForm, Hooks};
use super::operation::{Kind, Operation};
use super::pattern::{Part, Pattern};
use super::rounds::Rounds;
use super::windows::WindowOf;
use crate::link::Transport;
use crate::tensor::{AnyTensor, Axis, Grid};
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
    /// The axes along which the input and the output are cut into chunks.
    pub axes: [Axis; 2],
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

impl<'h, 'l> Request<'h, 'l> {
    pub(super) fn new(
        operation: Operation,
        link: Option<&'l dyn Transport>,
        out: AnyTensor,
        inp: AnyTensor,
        hooks: Hooks<'h>,
    ) -> Self {
        let mut request = Request {
            axes: [Axis::Rows; 2],
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
        };
        request.shape_chunks();
        request
    }

    /// Settles the shapes of the chunks. To be called again when something that decides them has changed.
    pub(super) fn shape_chunks(&mut self) {
        let chunks = self.chunks();
        self.hooks.shape_chunks(chunks);
    }

    /// The chunks of the input and of the output, as far as this rank has them.
    fn chunks(&self) -> [Option<ChunkForm>; 2] {
        let (me, ranks) = self.link.map_or((Rank::new(0), 1), |link| (link.rank(), link.world_size()));
        let (all, chunk) = (Part::All, Part::Chunk(0));
        let at = |root: Rank, part: Part| if root == me { part } else { Part::Absent };
        let parts = match self.operation {
            Operation::Map => [all, all],
            Operation::Exchange(pattern) => match pattern {
                Pattern::Pair { to, from } => [to, from].map(|peer| if peer.is_some() { all } else { Part::Absent }),
                Pattern::AllToAll => [chunk, chunk],
                Pattern::AllGather | Pattern::Barrier => [all, chunk],
                Pattern::Broadcast { root } => [at(root, all), all],
                Pattern::Gather { root } => [all, at(root, chunk)],
                Pattern::Scatter { root } => [at(root, chunk), all],
            },
            Operation::Reduction(Kind::ReduceScatter, _) => [chunk, all],
            Operation::Reduction(Kind::AllReduce, _) => [all, all],
        };
        let form = |part: Part, tensor: &AnyTensor, axis: Axis| {
            let (len, grid) = (tensor.len(), tensor.grid());
            let Grid { rows, cols, stride } = grid;
            let several = (rows > 1).then_some(grid);
            Some(match (part, axis) {
                (Part::Absent, _) => return None,
                (Part::All, _) => ChunkForm { len, grid: several },
                (Part::Chunk(_), axis) => {
                    let [rows, cols] = match axis {
                        Axis::Rows => [rows / ranks, cols],
                        Axis::Cols => [rows, cols / ranks],
                    };
                    ChunkForm { len: len / ranks, grid: several.map(|_| Grid { rows, cols, stride }) }
                }
            })
        };
        let [inp, out] = [(parts[0], &self.inp, self.axes[0]), (parts[1], &self.out, self.axes[1])]
            .map(|(part, tensor, axis)| form(part, tensor, axis));
        // A hook that gathers may send another number of positions.
        let inp_shapes = !(out.is_none() && self.send_len.is_some());
        [inp.map(|inp| ChunkForm { grid: inp.grid.filter(|_| inp_shapes), ..inp }), out]
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
