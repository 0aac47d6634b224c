//! How large a transport is where its options do not say: as large as is fast, and smaller where there are many ranks.
//!
//! Every rank has room for every other, so what a machine spends grows with the square of its ranks. The usual sizes are halved, one
//! after the other, until all segments together stay within [`DEFAULT_TOTAL`]:
//!
//! ```text
//!  1  packets that no choice of ours needs
//!  2  blocks, each with its staging, packets and lines: what one block has stays, and with it how fast it is
//!  3  whatever takes most: staging, packets or slots
//! ```
#![forbid(unsafe_code)]

use super::layout::{Geometry, LINE, Layout};
use super::mapping::Mapping;

/// Bytes that the segments of all ranks of a machine take together, at most, where no option of a transport says otherwise.
pub const DEFAULT_TOTAL: usize = 1 << 30;

/// The sizes of a kind of transport, from what is usual down to what is of use.
pub(crate) struct Sizes {
    /// Blocks for one peer.
    pub(crate) blocks: usize,
    pub(crate) least_blocks: usize,
    /// Staging of a block.
    pub(crate) staging: usize,
    pub(crate) least_staging: usize,
    /// Packets of a block; how many are enough for every message that we choose packets for.
    pub(crate) packets: usize,
    pub(crate) enough_packets: usize,
    pub(crate) least_packets: usize,
    /// Slots of a block.
    pub(crate) slots: usize,
    pub(crate) least_slots: usize,
    /// Copies of a role.
    pub(crate) copies: usize,
}

impl Sizes {
    /// What a world of `world_size` ranks has.
    pub(crate) fn of_world(&self, world_size: usize) -> Geometry {
        let mut now = Block { blocks: self.blocks, staging: self.staging, packets: self.packets, slots: self.slots };
        loop {
            let geometry = now.geometry(world_size, self.copies);
            match self.smaller(now).filter(|_| !fits(geometry)) {
                Some(smaller) => now = smaller,
                None => return geometry,
            }
        }
    }

    /// The next smaller sizes; `None` when there are none of use.
    fn smaller(&self, now: Block) -> Option<Block> {
        if now.packets > self.enough_packets {
            return Some(Block { packets: now.packets / 2, ..now });
        }
        if now.blocks > self.least_blocks {
            return Some(Block { blocks: now.blocks / 2, ..now });
        }
        let lines = 2 * now.slots * LINE;
        let halves = [
            (now.staging, self.least_staging, now.staging, Block { staging: now.staging / 2, ..now }),
            (now.packets, self.least_packets, now.packets, Block { packets: now.packets / 2, ..now }),
            (now.slots, self.least_slots, lines, Block { slots: now.slots / 2, ..now }),
        ];
        // Of equal ones the first.
        let may = halves.into_iter().rev().filter(|(is, least, ..)| is > least);
        may.max_by_key(|(_, _, bytes, _)| *bytes).map(|(.., smaller)| smaller)
    }
}

/// What one block has, and how many there are.
#[derive(Clone, Copy)]
struct Block {
    blocks: usize,
    staging: usize,
    packets: usize,
    slots: usize,
}

impl Block {
    fn geometry(self, world_size: usize, max_copies: usize) -> Geometry {
        Geometry {
            world_size,
            per_peer_bytes: self.blocks * self.staging,
            max_blocks_per_peer: self.blocks,
            max_slots: self.slots,
            max_copies,
            packet_bytes: self.blocks * self.packets,
        }
    }
}

/// Whether all segments together are within the bound.
fn fits(geometry: Geometry) -> bool {
    let total = Layout::new(geometry).and_then(|layout| Mapping::total(layout.bytes()));
    total.and_then(|total| total.checked_mul(geometry.world_size)).is_some_and(|all| all <= DEFAULT_TOTAL)
}
