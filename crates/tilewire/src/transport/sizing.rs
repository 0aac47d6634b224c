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
pub(super) struct Sizes {
    /// Blocks for one peer.
    pub(super) blocks: usize,
    pub(super) least_blocks: usize,
    /// Staging of a block.
    pub(super) staging: usize,
    pub(super) least_staging: usize,
    /// Packets of a block; how many are enough for every message that we choose packets for.
    pub(super) packets: usize,
    pub(super) enough_packets: usize,
    pub(super) least_packets: usize,
    /// Slots of a block.
    pub(super) slots: usize,
    pub(super) least_slots: usize,
    /// Copies of a role.
    pub(super) copies: usize,
}

impl Sizes {
    /// What a world of `world_size` ranks has.
    pub(super) fn of_world(&self, world_size: usize) -> Geometry {
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

#[cfg(test)]
mod tests {
    use super::super::{NvlOptions, ShmOptions};
    use super::*;

    fn all(geometry: Geometry) -> usize {
        Mapping::total(Layout::new(geometry).unwrap().bytes()).unwrap() * geometry.world_size
    }

    #[test]
    fn all_segments_of_a_machine_stay_within_the_bound() {
        // Of more, each has the least that is of use.
        for ranks in 1..=100 {
            let cpu = all(ShmOptions::default().geometry(ranks));
            assert!(cpu <= DEFAULT_TOTAL, "{ranks} ranks take {cpu} bytes");
        }
        for ranks in 1..=64 {
            let gpu = all(NvlOptions::default().geometry(ranks));
            assert!(gpu <= DEFAULT_TOTAL, "{ranks} ranks on GPUs take {gpu} bytes");
        }
    }

    #[test]
    fn few_ranks_have_what_is_fast() {
        for ranks in 1..=7 {
            let Geometry { per_peer_bytes, max_blocks_per_peer, max_slots, packet_bytes, .. } =
                ShmOptions::default().geometry(ranks);
            assert_eq!((per_peer_bytes, max_blocks_per_peer, max_slots, packet_bytes), (16 << 20, 8, 64, 256 << 10));
        }
        for ranks in 1..=4 {
            let Geometry { per_peer_bytes, max_blocks_per_peer, max_slots, .. } = NvlOptions::default().geometry(ranks);
            assert_eq!((per_peer_bytes, max_blocks_per_peer, max_slots), (32 << 20, 32, 8), "{ranks} ranks");
        }
    }

    #[test]
    fn more_ranks_never_have_more_and_every_world_has_what_is_of_use() {
        let shm = (1..=300).map(|ranks| ShmOptions::default().geometry(ranks));
        let nvl = (1..=300).map(|ranks| NvlOptions::default().geometry(ranks));
        for all in [shm.collect::<Vec<_>>(), nvl.collect()] {
            for pair in all.windows(2) {
                let of = |g: Geometry| [g.per_peer_bytes, g.max_blocks_per_peer, g.max_slots, g.packet_bytes];
                assert!(of(pair[0]).iter().zip(of(pair[1])).all(|(more, less)| *more >= less), "{pair:?}");
            }
            let last = all[299];
            assert!(last.per_peer_bytes >= 8 << 10 && last.packet_bytes >= 8 << 10 && last.max_slots >= 8, "{last:?}");
        }
    }

    #[test]
    fn what_is_said_stays() {
        let said = ShmOptions { max_slots: Some(5), packet_bytes: Some(0), ..Default::default() }.geometry(64);
        let usual = ShmOptions::default().geometry(64);
        assert_eq!((said.max_slots, said.packet_bytes), (5, 0));
        assert_eq!((said.per_peer_bytes, said.max_blocks_per_peer), (usual.per_peer_bytes, usual.max_blocks_per_peer));
    }
}
