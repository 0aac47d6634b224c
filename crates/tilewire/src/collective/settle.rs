//! Decides how one message between two ranks travels, and checks that the transport can carry it.

use super::config::{Config, Knobs, Primitive};
use super::decide::Way;
use super::error::RunError;
use super::facts::WorldFacts;
use super::hooks::Shape;
use super::launch::judged;
use crate::ir::Type;
use crate::link::{Transport, check_transfer};
use crate::schedule::{BulkPlan, PacketPlan, Packing, Tiling};
use crate::transport::{LinkKind, LinkShape, Protocol, Rank, Transfer, TransferError};

/// A message between two ranks.
#[derive(Clone, Copy)]
pub(super) struct Message<'s> {
    /// The user's settings for it.
    pub config: Config,
    /// The other rank. `None` if the message is the rank's own and goes nowhere.
    pub peer: Option<Rank>,
    /// The parts of each position.
    pub types: &'static [Type],
    pub len: usize,
    /// Number of neighbours that share the last of several parts.
    pub last_per: usize,
    pub shape: Option<&'s Shape>,
    /// Number of such messages in the launch, each with its own blocks.
    pub at_once: usize,
    /// The only way it can travel, and why.
    pub only: Option<(Primitive, &'static str)>,
    /// True if a consume hook handles it.
    pub consumed: bool,
    /// Number of bytes of a window that may be written.
    pub window_bytes: Option<usize>,
}

impl Message<'_> {
    /// The user's knobs for it.
    pub(super) fn knobs(&self, link: &dyn Transport) -> Knobs {
        self.config.knobs(self.over(link).kind)
    }

    /// The constants of the link it uses. A peer that does not exist is refused later; until then, the constants are
    /// those of the rank itself.
    fn over(&self, link: &dyn Transport) -> LinkShape {
        let exists = |peer: &Rank| peer.index() < link.world_size();
        link.link(self.peer.filter(exists).unwrap_or(link.rank()))
    }

    /// Decides how the message travels, and checks that the transport can carry it.
    pub(super) fn settle(&self, link: &dyn Transport, facts: &WorldFacts) -> Result<(Way, Tiling), RunError> {
        let Message { peer, types, len, last_per, only, at_once, consumed, window_bytes, .. } = *self;
        let (said, over) = (self.knobs(link), self.over(link));
        // Packets go only to peers whose memory is mapped, and windows need peers that can reach them. Other messages
        // go through slots. A plan that has only one way is refused below if that way is impossible.
        let is_posted = over.kind == LinkKind::Fabric;
        let may = |primitive: Primitive| match primitive {
            Primitive::Packet if is_posted => Primitive::Staged,
            Primitive::Direct if is_posted && window_bytes.is_none() => Primitive::Staged,
            primitive => primitive,
        };
        let knobs = Knobs { primitive: said.primitive.map(may).or(only.map(|(way, _)| way)), ..said };
        let decide = |knobs: Knobs| knobs.decide(facts, &over, types, (len, last_per), window_bytes, at_once);
        let cut = |way: &Way| way.tiling(len, self.shape, &knobs);
        let mut way = decide(knobs);
        if let Some((only, why)) = only
            && knobs.primitive != Some(only)
        {
            return Err(TransferError::Unable { protocol: way.protocol, why }.into());
        }
        if knobs.primitive.is_none()
            && way.protocol == Protocol::Packet
            && self.check_packets(&over, &cut(&way)).is_err()
        {
            // A block gets whole rows or groups, which may be more than its equal share.
            way = decide(Knobs { primitive: Some(Primitive::Staged), ..knobs });
        }
        let Way { protocol, blocks, .. } = way;
        if matches!(protocol, Protocol::Direct { .. }) && (consumed || window_bytes.is_none()) {
            // The hook is checked first, so that no user allocates a window that does not help.
            let why = match consumed {
                true => "nobody runs a consume hook when the sender writes the output: use staged or packet",
                false => "it writes a window: allocate one and pass it with window(&window), or use staged",
            };
            return Err(TransferError::Unable { protocol, why }.into());
        }
        let tiling = cut(&way);
        match peer {
            Some(peer) => {
                // The transport sees several parts as bytes.
                let (dtype, bytes) = match types {
                    [ty] => (*ty, len * ty.size()),
                    _ => (Type::U8, len * types.iter().map(|ty| ty.size()).sum::<usize>()),
                };
                let transfer = Transfer { peer, bytes, dtype, blocks, protocol };
                check_transfer(link, &transfer, &[]).map_err(|error| judged(link, error.into()))?;
                self.check_room(&over, protocol, &tiling)?;
            }
            None => {
                let max = over.max_blocks;
                if blocks == 0 || blocks > max {
                    return Err(TransferError::Blocks { blocks, max }.into());
                }
            }
        }
        Ok((way, tiling))
    }

    /// Checks that the parts of every element fit packets or slots.
    fn check_room(&self, link: &LinkShape, protocol: Protocol, tiling: &Tiling) -> Result<(), TransferError> {
        let Message { types, last_per, .. } = *self;
        let unable = |why| Err(TransferError::Unable { protocol, why });
        match protocol {
            Protocol::Direct { .. } => Ok(()),
            Protocol::Packet => self.check_packets(link, tiling),
            Protocol::Bulk { slot_bytes, .. } if slot_bytes > BulkPlan::LARGEST_SLOT => {
                unable("its tiles go through scratch: use slots of at most 32 KiB, or staged")
            }
            Protocol::Bulk { slot_bytes, .. } if !slot_bytes.is_multiple_of(BulkPlan::ALIGN) => {
                unable("its copies begin on 16 bytes: use slots of a multiple of 16, or staged")
            }
            Protocol::Staged { slot_bytes, depth } | Protocol::Bulk { slot_bytes, depth } => {
                if !depth.is_multiple_of(link.copies as usize) {
                    return unable(
                        "its slots are divided among the copies of a role: use a depth that is a multiple of the copies",
                    );
                }
                if types.len() > 1 && !slot_bytes.is_multiple_of(Packing::ALIGN) {
                    return unable("the parts of a slot begin on 64 bytes: use slots of a multiple of 64");
                }
                let last_per = if matches!(protocol, Protocol::Bulk { .. }) { 1 } else { last_per };
                if Packing::fitting_shared(types, last_per, slot_bytes).is_none() {
                    return unable(
                        "not one element fits a slot, with those that share its last value: use larger slots, and raise \
                         per_peer_bytes at the rendezvous if those do not fit",
                    );
                }
                // If a value travels once per group, every row of a tile must start at a group boundary.
                let (group, tile) = (last_per, tiling.tile_cols());
                let one_row = tiling.tile_rows() == 1 && tile >= tiling.cols();
                if types.len() > 1 && !one_row && !tile.is_multiple_of(group) {
                    return Err(torn(link, (group, tile), protocol, (types, last_per)));
                }
                Ok(())
            }
        }
    }

    /// Checks that the part of every block fits its packets.
    fn check_packets(&self, link: &LinkShape, tiling: &Tiling) -> Result<(), TransferError> {
        let (protocol, blocks) = (Protocol::Packet, tiling.blocks());
        let room = PacketPlan::new(link, blocks).message_packets();
        let needed = PacketPlan::packets(self.types, tiling.tile_len().min(tiling.len()));
        if needed <= room {
            return Ok(());
        }
        Err(TransferError::TooLarge { protocol, bytes: needed * 8 * blocks, region: room * 8 * blocks })
    }
}

impl Way {
    /// The tiles of a message: tiles that fit a slot, or one part per block.
    fn tiling(&self, len: usize, shape: Option<&Shape>, knobs: &Knobs) -> Tiling {
        let Way { protocol, blocks, tile, granule, .. } = *self;
        let tiling = match shape {
            Some(shape) => {
                let cut = if shape.is_of_tensor { Tiling::in_rows } else { Tiling::shaped_by };
                cut(shape.rows, shape.cols, tile, blocks, knobs.granule.unwrap_or(1))
            }
            None => Tiling::flat(len, tile, blocks),
        };
        if matches!(protocol, Protocol::Staged { .. } | Protocol::Bulk { .. }) { tiling } else { tiling.bands(granule) }
    }
}

/// The error for groups that tiles split, with advice on how to avoid it. `types` are the types of the parts, and
/// `last_per` the number of neighbours that share the last part.
pub(super) fn torn(
    link: &LinkShape,
    (group, tile): (usize, usize),
    protocol: Protocol,
    (types, last_per): (&'static [Type], usize),
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
    // A granule cuts tiles at group boundaries, but only if a slot holds a whole group.
    let mut needed = slot_bytes.max(Packing::ALIGN).next_power_of_two();
    while !holds(needed) && needed < usize::MAX / 4 {
        needed *= 2;
    }
    let depth = 2.max(link.copies as usize);
    let staging = needed.saturating_mul(depth);
    let all = staging.saturating_mul(link.max_blocks);
    let per_peer_bytes = (staging > link.block_bytes()).then_some(all);
    TransferError::GroupTooLarge { group, slot_bytes, needed, depth, per_peer_bytes }
}
