//! The knobs of a transfer, and what is chosen where the user says nothing.

use crate::ir::Type;
use crate::schedule::{PacketPlan, Packing};
use crate::transport::layout::LINE;
use crate::transport::{P2pTransport, Protocol};

/// How bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Primitive {
    /// The flag travels with the data: for small messages.
    Packet,
    /// Step by step through the receiver's staging: any size, any buffers, both hooks.
    Staged,
    /// In one hop into the receiver's window: produce hook only.
    Direct,
}

/// What a user may say about how a transfer runs; both sides must come to the same. What is `None` is chosen by the size of the message
/// and the constants of the transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// How bytes travel.
    pub primitive: Option<Primitive>,
    /// Blocks that share the message.
    pub blocks: Option<usize>,
    /// Bytes of a slot of staging.
    pub slot_bytes: Option<usize>,
    /// Slots of a block.
    pub depth: Option<usize>,
    /// Groups of so many neighbours stay in one tile. 64 unless said, and 1024 where tiles are large.
    pub granule: Option<usize>,
}

/// One leg of a transfer, decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub protocol: Protocol,
    pub blocks: usize,
    /// Positions of a tile, at most.
    pub tile: usize,
    pub granule: usize,
}

/// Messages up to so many bytes go in packets: beyond, carrying a flag with every 8 bytes costs one way more than a signal does (1 KiB: 0.58
/// against 0.54 µs between cores, 0.26 against 0.20 within one, before waits paused between looks). Both ways packets are ahead for longer, having one role for both legs.
const PACKETS_UP_TO: usize = 512;
/// Steps a block's share is cut into where it is large: fewer, larger steps then.
const STEPS: usize = 64;
/// A smaller step costs more in signals than it hides; one size for all smaller messages also means that no launch drains the slots of
/// the one before.
const LEAST_SLOT: usize = 32 << 10;
/// Larger steps leave the second-level cache before the receiver has read them.
const LARGEST_SLOT: usize = 64 << 10;
const DEPTH: usize = 8;
const GRANULE: usize = 64;

impl Config {
    /// Decides how `len` elements of these parts travel. Never fails: what cannot be is refused by `check_transfer`.
    pub(super) fn decide(
        &self,
        transport: &impl P2pTransport,
        types: &'static [Type],
        len: usize,
        window_bytes: Option<usize>,
    ) -> Decision {
        let blocks = self.blocks.unwrap_or(1);
        let bytes = types.iter().map(|ty| ty.size()).sum::<usize>().saturating_mul(len);
        let granule = self.granule.unwrap_or(GRANULE).max(1);
        let share = len.div_ceil(blocks.max(1));
        let primitive = self.primitive.unwrap_or_else(|| {
            let packets = PacketPlan::new(transport, blocks).message_packets();
            match window_bytes {
                Some(_) => Primitive::Direct,
                None if bytes <= PACKETS_UP_TO && PacketPlan::packets(types, share) <= packets => Primitive::Packet,
                None => Primitive::Staged,
            }
        });
        let protocol = match primitive {
            Primitive::Packet => Protocol::Packet,
            Primitive::Direct => Protocol::Direct { window_bytes: window_bytes.unwrap_or(0) },
            Primitive::Staged => {
                let lines = transport.block_bytes() / LINE;
                let depth = self.depth.unwrap_or(DEPTH.min(transport.max_slots()).min(lines).max(2));
                let room = transport.block_bytes() / depth.max(1);
                // Slots begin on lines where there is room for that, and on the largest element in any case.
                let room = if room < LINE { room / 8 * 8 } else { room / LINE * LINE };
                let slot_bytes = self.slot_bytes.unwrap_or_else(|| {
                    let wanted = (bytes / blocks.max(1) / STEPS).checked_next_power_of_two().unwrap_or(LARGEST_SLOT);
                    wanted.clamp(LEAST_SLOT, LARGEST_SLOT).min(room)
                });
                Protocol::Staged { slot_bytes, depth }
            }
        };
        let tile = match protocol {
            Protocol::Staged { slot_bytes, .. } => {
                let most = Packing::fitting(types, slot_bytes).map_or(1, |packing| packing.elements());
                // A granule the user asks for must divide the tile.
                if self.granule.is_some() && most >= granule { most / granule * granule } else { most }
            }
            _ => share.next_multiple_of(if blocks > 1 { granule } else { 1 }).max(1),
        };
        Decision { protocol, blocks, tile, granule }
    }
}
