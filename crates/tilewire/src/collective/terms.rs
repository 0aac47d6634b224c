//! What every builder over a link collects besides its tensors and hooks: the link, the knobs, a window, how long to wait.

use super::RunError;
use super::config::{Choices, Config, Decision, Primitive};
use super::hooks::Shape;
use super::link::{How, Streams, judged};
use crate::ir::Type;
use crate::ir::scalar::Element;
use crate::link::{Transport, Window, check_transfer};
use crate::schedule::{BulkPlan, PacketPlan, Packing, Tiling};
use crate::tensor::{Memory, Tensor};
use crate::transport::{LinkShape, Protocol, Rank, Transfer, TransferError};
use crate::vm::Puts;
use std::time::Duration;

/// Link, knobs, window and deadline of a builder.
pub(super) struct Terms<'l> {
    pub link: &'l dyn Transport,
    pub config: Config,
    pub window: Option<WindowOf>,
    pub deadline: Option<Duration>,
    pub watched: bool,
    /// Whether ranks that have other hooks are refused.
    pub same_hooks: bool,
    /// How what is for other ranks is written, where the user says.
    pub puts: Option<Puts>,
}

/// The windows of all ranks, for `direct`.
pub(super) struct WindowOf {
    /// By rank; `None` where this rank cannot reach it.
    pub peers: Vec<Option<Memory>>,
    pub own: Memory,
    pub ty: Type,
    pub number: String,
}

/// What travels between two ranks: so many positions of these parts, in this shape.
#[derive(Clone, Copy)]
pub(super) struct Message<'s> {
    pub types: &'static [Type],
    pub len: usize,
    /// Neighbours that share the last of several parts.
    pub last_per: usize,
    pub shape: &'s Option<Shape>,
    /// Messages of this kind in a launch, each with blocks of its own.
    pub at_once: usize,
    /// The only way it can travel, and why.
    pub only: Option<(Primitive, &'static str)>,
    /// Whether a consume hook takes it.
    pub consumed: bool,
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

    /// Memory of one thread: for kernels that are traced and never launched.
    pub(super) fn rehearsed<W: Element>(of_all: &[Tensor<W>], rank: Rank) -> WindowOf {
        let peers = of_all.iter().map(|tensor| Some(tensor.memory().clone())).collect();
        let own = of_all[rank.index()].memory().clone();
        WindowOf { peers, own, ty: W::TYPE, number: "rehearsed".to_string() }
    }
}

impl<'l> Terms<'l> {
    pub(super) fn new(link: &'l dyn Transport) -> Self {
        Terms {
            link,
            config: Config::default(),
            window: None,
            deadline: link.deadline(),
            watched: true,
            same_hooks: false,
            puts: None,
        }
    }

    /// The constants of the links to peers, which are all alike.
    pub(super) fn shape(&self) -> LinkShape {
        self.link.link(self.link.rank())
    }

    pub(super) fn how(&self, streams: Streams) -> How {
        let streams = Streams { puts: self.puts.unwrap_or(streams.puts), ..streams };
        How { deadline: self.deadline, streams, watched: self.watched }
    }

    /// Decides how a message travels, and whether the transport can do it. `reached`: what may be written of the window. Without a peer it
    /// goes nowhere: it is the rank's own.
    pub(super) fn settle(
        &self,
        peer: Option<Rank>,
        message: Message<'_>,
        reached: Option<usize>,
    ) -> Result<(Decision, Tiling), RunError> {
        self.settle_by(self.config, peer, message, reached)
    }

    /// As [`settle`](Self::settle), with other knobs than the user's.
    pub(super) fn settle_by(
        &self,
        config: Config,
        peer: Option<Rank>,
        message: Message<'_>,
        reached: Option<usize>,
    ) -> Result<(Decision, Tiling), RunError> {
        let (link, Message { types, len, last_per, only, at_once, consumed, .. }) = (self.link, message);
        let config = Config { primitive: config.primitive.or(only.map(|(way, _)| way)), ..config };
        let decide = |config: Config| config.decide(Choices::of(link), link, types, (len, last_per), reached, at_once);
        let mut decision = decide(config);
        if let Some((way, why)) = only
            && config.primitive != Some(way)
        {
            return Err(TransferError::Unable { protocol: decision.protocol, why }.into());
        }
        if config.primitive.is_none()
            && decision.protocol == Protocol::Packet
            && self.check_packets(types, &self.tiling(&decision, message)).is_err()
        {
            // Whole rows, or groups, may give a block more than its equal share.
            decision = decide(Config { primitive: Some(Primitive::Staged), ..config });
        }
        let Decision { protocol, blocks, .. } = decision;
        if matches!(protocol, Protocol::Direct { .. }) && (consumed || reached.is_none()) {
            // Nobody is to allocate a window in vain.
            let why = match consumed {
                true => "nobody runs a consume hook when the sender writes the output: use staged or packet",
                false => "it writes a window: allocate one and say window(&window), or use staged",
            };
            return Err(TransferError::Unable { protocol, why }.into());
        }
        match peer {
            Some(peer) => {
                // Several parts are bytes to the transport.
                let (dtype, bytes) = match types {
                    [ty] => (*ty, len * ty.size()),
                    _ => (Type::U8, len * types.iter().map(|ty| ty.size()).sum::<usize>()),
                };
                let transfer = Transfer { peer, bytes, dtype, blocks, protocol };
                check_transfer(link, &transfer, &[]).map_err(|error| judged(link, error.into()))?;
            }
            None => {
                let max = self.shape().max_blocks;
                if blocks == 0 || blocks > max {
                    return Err(TransferError::Blocks { blocks, max }.into());
                }
            }
        }
        let tiling = self.tiling(&decision, message);
        if peer.is_some() {
            self.check_room(message, protocol, &tiling)?;
        }
        Ok((decision, tiling))
    }

    /// Whether the parts of every element fit packets or slots.
    fn check_room(&self, message: Message<'_>, protocol: Protocol, tiling: &Tiling) -> Result<(), TransferError> {
        let Message { types, last_per, .. } = message;
        let unable = |why| Err(TransferError::Unable { protocol, why });
        match protocol {
            Protocol::Direct { .. } => Ok(()),
            Protocol::Packet => self.check_packets(types, tiling),
            Protocol::Bulk { slot_bytes, .. } if slot_bytes > BulkPlan::LARGEST_SLOT => {
                unable("its tiles go through scratch: use slots of at most 32 KiB, or staged")
            }
            Protocol::Bulk { slot_bytes, .. } if !slot_bytes.is_multiple_of(BulkPlan::ALIGN) => {
                unable("its copies begin on 16 bytes: use slots of a multiple of 16, or staged")
            }
            Protocol::Staged { slot_bytes, depth } | Protocol::Bulk { slot_bytes, depth } => {
                if !depth.is_multiple_of(self.link.copies() as usize) {
                    return unable(
                        "its slots are shared out to copies of a role: use a depth that is a multiple of the copies",
                    );
                }
                if types.len() > 1 && !slot_bytes.is_multiple_of(Packing::ALIGN) {
                    return unable("the parts of a slot begin on 64 bytes: use slots of a multiple of 64");
                }
                let last_per = if matches!(protocol, Protocol::Bulk { .. }) { 1 } else { last_per };
                if Packing::fitting_shared(types, last_per, slot_bytes).is_none() {
                    return unable(
                        "not one element fits a slot, with those that share its last value: use larger slots, and ask for more per_peer_bytes at the \
                         rendezvous where those do not fit",
                    );
                }
                // Where a value travels once for a group, every row of a tile begins with a group.
                let (group, tile) = (last_per, tiling.tile_cols());
                let one_row = tiling.tile_rows() == 1 && tile >= tiling.cols();
                if types.len() > 1 && !one_row && !tile.is_multiple_of(group) {
                    return Err(self.torn(group, tile, protocol, types, last_per));
                }
                Ok(())
            }
        }
    }

    /// What to say of groups that tiles tear apart, so that they no longer do.
    pub(super) fn torn(
        &self,
        group: usize,
        tile: usize,
        protocol: Protocol,
        types: &'static [Type],
        last_per: usize,
    ) -> TransferError {
        let (Protocol::Staged { slot_bytes, .. } | Protocol::Bulk { slot_bytes, .. }) = protocol else {
            return TransferError::TornGroup { group, tile };
        };
        let last_per = if matches!(protocol, Protocol::Bulk { .. }) { 1 } else { last_per };
        let holds = |bytes: usize| {
            Packing::fitting_shared(types, last_per, bytes).is_some_and(|packing| packing.elements() >= group)
        };
        if holds(slot_bytes) {
            return TransferError::TornGroup { group, tile };
        }
        // A granule cuts tiles at groups, but only where a slot holds one.
        let mut needed = slot_bytes.max(Packing::ALIGN).next_power_of_two();
        while !holds(needed) && needed < usize::MAX / 4 {
            needed *= 2;
        }
        let depth = 2.max(self.link.copies() as usize);
        let staging = needed.saturating_mul(depth);
        let all = staging.saturating_mul(self.shape().max_blocks);
        let per_peer_bytes = (staging > self.shape().block_bytes()).then_some(all);
        TransferError::GroupTooLarge { group, slot_bytes, needed, depth, per_peer_bytes }
    }

    /// How a message is cut: in tiles that fit a slot, or in one part for each block.
    fn tiling(&self, decision: &Decision, message: Message<'_>) -> Tiling {
        let Decision { protocol, blocks, tile, granule } = *decision;
        let tiling = match message.shape {
            Some(shape) => Tiling::shaped_by(shape.rows, shape.cols, tile, blocks, self.config.granule.unwrap_or(1)),
            None => Tiling::flat(message.len, tile, blocks),
        };
        if matches!(protocol, Protocol::Staged { .. } | Protocol::Bulk { .. }) { tiling } else { tiling.bands(granule) }
    }

    /// Whether the part of every block fits its packets.
    fn check_packets(&self, types: &'static [Type], tiling: &Tiling) -> Result<(), TransferError> {
        let (protocol, blocks) = (Protocol::Packet, tiling.blocks());
        let room = PacketPlan::new(&self.shape(), blocks).message_packets();
        let needed = PacketPlan::packets(types, tiling.tile_len().min(tiling.len()));
        if needed <= room {
            return Ok(());
        }
        Err(TransferError::TooLarge { protocol, bytes: needed * 8 * blocks, region: room * 8 * blocks })
    }
}

/// The methods of a typed builder over one that has `terms: Terms<'l>`.
macro_rules! terms_methods {
    () => {
        /// How it runs. What the configuration leaves out stays as it was said before, and is chosen by the size otherwise: this and the
        /// methods for single knobs combine in any order, and what is said last about a knob holds.
        pub fn config(mut self, config: Config) -> Self {
            self.any.terms.config = config.or(self.any.terms.config);
            self
        }

        /// How bytes travel; chosen by the size unless said.
        pub fn primitive(mut self, primitive: Primitive) -> Self {
            self.any.terms.config.primitive = Some(primitive);
            self
        }

        /// Blocks that share the work for one peer; 1 unless said. With several, idle worker threads of the process help.
        pub fn blocks(mut self, blocks: usize) -> Self {
            self.any.terms.config.blocks = Some(blocks);
            self
        }

        /// Bytes of a slot of staging; chosen by the size unless said.
        pub fn slot_bytes(mut self, bytes: usize) -> Self {
            self.any.terms.config.slot_bytes = Some(bytes);
            self
        }

        /// Slots of a block; chosen by the size unless said.
        pub fn depth(mut self, slots: usize) -> Self {
            self.any.terms.config.depth = Some(slots);
            self
        }

        /// Warps of one copy of a role, on a GPU; see [`Config::warps`].
        pub fn warps(mut self, warps: u32) -> Self {
            self.any.terms.config.warps = Some(warps);
            self
        }

        /// Keeps groups of so many neighbours in one tile, for hooks that reduce over groups.
        pub fn granule(mut self, elements: usize) -> Self {
            self.any.terms.config.granule = Some(elements);
            self
        }

        /// How long a wait may last without progress; the world's deadline unless said, `None`: without end.
        pub fn deadline(mut self, deadline: impl Into<Option<Duration>>) -> Self {
            self.any.terms.deadline = deadline.into();
            self
        }

        /// How a CPU writes what is for other ranks. Unless said, staging is written the way that is found to be faster, and windows through the cache.
        pub fn puts(mut self, puts: Puts) -> Self {
            self.any.terms.puts = Some(puts);
            self
        }

        /// Makes it an error if another rank has other hooks: the first launch compares their hashes, and nothing is sent. Hooks may differ
        /// unless this is said: a constant that depends on the rank is legal. Say it on all ranks.
        pub fn same_hooks(mut self) -> Self {
            self.any.terms.same_hooks = true;
            self
        }

        /// For measuring what watching costs: launches that neither see a peer's failure nor sleep. Only their deadline ends a wait then.
        pub fn unwatched(mut self) -> Self {
            self.any.terms.watched = false;
            self
        }
    };
}
pub(super) use terms_methods;
