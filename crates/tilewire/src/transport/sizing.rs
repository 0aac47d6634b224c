//! How large a transport is if its options do not specify it: as large as is fast, and smaller if there are many ranks.
//!
//! Every rank has room for every other, so a machine's memory use grows with the square of its ranks. The usual sizes
//! are halved, in this order, until all segments together stay within [`DEFAULT_TOTAL`]:
//!
//! ```text
//!  1  packets beyond what our own choices need
//!  2  blocks, each with its staging, packets and lines: the size of one block stays, and with it its speed
//!  3  whatever takes the most memory: staging, packets or slots
//! ```
//! The control lines of windows take what room is left then: programs without windows have the sizes that they would
//! have without them.
#![forbid(unsafe_code)]

use super::layout::{Geometry, LINE, Layout};
use super::mapping::Mapping;

/// The most bytes that the segments of all ranks of a machine take together, unless an option of the transport
/// specifies otherwise.
pub const DEFAULT_TOTAL: usize = 1 << 30;

/// The sizes of one kind of transport, from the usual ones down to the smallest useful ones.
pub(crate) struct Sizes {
    /// Blocks for one peer.
    pub(crate) blocks: usize,
    pub(crate) least_blocks: usize,
    /// Staging of a block.
    pub(crate) staging: usize,
    pub(crate) least_staging: usize,
    /// Packets of a block; `enough_packets` suffice for every message that we choose packets for.
    pub(crate) packets: usize,
    pub(crate) enough_packets: usize,
    pub(crate) least_packets: usize,
    /// Slots of a block.
    pub(crate) slots: usize,
    pub(crate) least_slots: usize,
    /// Copies of a role.
    pub(crate) copies: usize,
}

/// Windows that have control lines of their own. A set takes memory for every peer, whatever the blocks: with many
/// ranks there are fewer.
fn window_sets(world_size: usize) -> usize {
    match world_size {
        0..=16 => 8,
        17..=32 => 4,
        _ => 2,
    }
}

impl Sizes {
    /// The geometry for a world of `world_size` ranks.
    pub(crate) fn of_world(&self, world_size: usize) -> Geometry {
        let mut now = Block { blocks: self.blocks, staging: self.staging, packets: self.packets, slots: self.slots };
        loop {
            let geometry = now.geometry(world_size, self.copies);
            match self.smaller(now).filter(|_| !fits(geometry)) {
                Some(smaller) => now = smaller,
                None => return with_sets(geometry),
            }
        }
    }

    /// The next smaller sizes; `None` if no smaller ones are useful.
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
        // Of equal ones, take the first.
        let may = halves.into_iter().rev().filter(|(is, least, ..)| is > least);
        may.max_by_key(|(_, _, bytes, _)| *bytes).map(|(.., smaller)| smaller)
    }
}

/// The size of one block, and how many there are.
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
            window_sets: 0,
        }
    }
}

/// The same with control lines for windows: as many sets as there is room for. If there is too little room anyway, the
/// usual number.
fn with_sets(geometry: Geometry) -> Geometry {
    let usual = window_sets(geometry.world_size);
    let of = |window_sets: usize| Geometry { window_sets, ..geometry };
    (0..=usual).rev().map(of).find(|&geometry| fits(geometry)).unwrap_or(of(usual))
}

/// Whether all segments together are within the bound.
fn fits(geometry: Geometry) -> bool {
    let total = Layout::new(geometry).and_then(|layout| Mapping::total(layout.bytes()));
    total.and_then(|total| total.checked_mul(geometry.world_size)).is_some_and(|all| all <= DEFAULT_TOTAL)
}
