//! The layout of a rank's segment: arithmetic only, no memory.
//!
//! ```text
//!  segment of rank r                                                       written by          polled by
//!  ├ TAIL         [sender]   [block][slot]   a line each   data is there    the sender          r, as receiver
//!  ├ HEAD         [receiver] [block][slot]   a line each   slot is free     the receiver        r, as sender
//!  ├ PACKET HEAD  [receiver] [block]         a line each   packets read     the receiver        r, as sender
//!  ├ READY        [receiver] [block]         a line each   window is free   the receiver        r, as sender
//!  ├ DONE         [sender]   [block]         a line each   window is full   the sender          r, as receiver
//!  ├ SENT         [receiver] [block]         a line each   bytes were read  r, for a flush      r, as sender
//!  ├ START        [peer][block][role][copy]  a line each   own counters     r                   nobody
//!  ├ packets      [sender]   [block]         from a page   flag and data    the sender          r, as receiver
//!  └ staging      [sender]   [block]         from a page   bytes            the sender          nobody: see TAIL
//! ```
//! A line is 128 bytes: the pair of cache lines that prefetchers fetch together, and what a GPU reads in one access.
//! Everything a rank polls lies in its own segment, so that polling stays in its cache, and no two writers share a
//! line.
//!
//! Every area is divided by **lane** first, and a lane by rank. There is one lane today ([`LANES`]). Sub-groups of
//! ranks will have lanes of their own, so that their launches share no line, counter or byte with those of the whole
//! world.
//!
//! Every area has room for all ranks, including this one, so that indexing needs no special case; a rank's parts for
//! itself stay zero. The block → region map depends only on the transport's constants, never on a launch. A launch of
//! two blocks and one of eight use the same bytes for block 0, so changing the number of blocks moves nothing that a
//! peer still uses.
#![forbid(unsafe_code)]

use std::fmt;
use std::ops::Range;

/// Bytes from one slot to the next.
pub const LINE: usize = 128;
/// Alignment of the areas that hold data.
pub const PAGE: usize = 4096;
/// Bytes of one packet; half of them are data.
pub const PACKET: usize = 16;
/// Messages that a block's packets hold at the same time: a power of two. It is a constant, so that a message's number
/// alone gives its place, whatever the launch, and the smallest messages have no geometry to compare.
pub const PACKET_DEPTH: usize = 8;

/// Sets of lines, counters, packets and staging between the same ranks. All slot and line indices are within lane 0.
pub const LANES: usize = 1;

/// The constants of a transport, the same on all its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of ranks.
    pub world_size: usize,
    /// Bytes of staging for each sender.
    pub per_peer_bytes: usize,
    /// Blocks that may communicate with one peer.
    pub max_blocks_per_peer: usize,
    /// Slots of a block: the largest pipeline depth.
    pub max_slots: usize,
    /// Copies a role may have.
    pub max_copies: usize,
    /// Bytes of packets for each sender.
    pub packet_bytes: usize,
}

/// The side of a transfer that a counter belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The role that sends.
    Send,
    /// The role that receives.
    Receive,
}

impl Side {
    /// The peer's side.
    pub const fn other(self) -> Side {
        match self {
            Side::Send => Side::Receive,
            Side::Receive => Side::Send,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Send => "send",
            Side::Receive => "receive",
        })
    }
}

/// One of the counters that a role copy keeps for itself across launches, on the line given by [`Layout::start_index`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartWord {
    /// Steps of `staged` so far.
    Step,
    /// Slot size and depth of the last launch. If a launch differs, its sender drains first.
    Geometry,
    /// The first step with that geometry.
    Since,
    /// Packet messages so far.
    Packet,
    /// Launches of `direct` so far.
    Direct,
}

impl StartWord {
    /// The index of its u64 in the line.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Where everything lies in a segment. All ranges are byte offsets from the segment's start.
///
/// ```
/// use tilewire::transport::layout::{Geometry, LINE, Layout};
/// let geometry = Geometry {
///     world_size: 2, per_peer_bytes: 1 << 16, max_blocks_per_peer: 4, max_slots: 8, max_copies: 1, packet_bytes: 4096,
/// };
/// let layout = Layout::new(geometry).unwrap();
/// // Block 1 of rank 0 writes here in the segment of any receiver, whatever the launch is:
/// assert_eq!(layout.block_staging(0, 1), layout.staging().start + (1 << 14)..layout.staging().start + (2 << 14));
/// // and its slot 3 has this TAIL:
/// assert_eq!(layout.slot_index(0, 1, 3), 11);
/// assert_eq!(layout.tails().start + 11 * LINE, 11 * LINE);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    geometry: Geometry,
    tails: Range<usize>,
    heads: Range<usize>,
    packet_heads: Range<usize>,
    ready: Range<usize>,
    done: Range<usize>,
    sent: Range<usize>,
    starts: Range<usize>,
    packets: Range<usize>,
    staging: Range<usize>,
}

impl Layout {
    /// The layout for these constants; `None` if it does not fit the address space.
    pub fn new(geometry: Geometry) -> Option<Layout> {
        let Geometry { world_size, per_peer_bytes, max_blocks_per_peer, max_slots, max_copies, packet_bytes } =
            geometry;
        let ranks = world_size.checked_mul(LANES)?;
        let blocks = ranks.checked_mul(max_blocks_per_peer)?;
        let mut end = 0usize;
        let mut area = |bytes: Option<usize>, align: usize| {
            let start = end.checked_next_multiple_of(align)?;
            end = start.checked_add(bytes?)?;
            (end <= isize::MAX as usize).then_some(start..end)
        };
        let lines = |count: usize| count.checked_mul(LINE);
        let slots = || lines(blocks.checked_mul(max_slots)?);
        let parts = |bytes: usize| bytes.checked_next_multiple_of(PAGE)?.checked_mul(ranks);
        Some(Layout {
            geometry,
            tails: area(slots(), LINE)?,
            heads: area(slots(), LINE)?,
            packet_heads: area(lines(blocks), LINE)?,
            ready: area(lines(blocks), LINE)?,
            done: area(lines(blocks), LINE)?,
            sent: area(lines(blocks), LINE)?,
            starts: area(blocks.checked_mul(2).and_then(|n| lines(n.checked_mul(max_copies)?)), LINE)?,
            packets: area(parts(packet_bytes), PAGE)?,
            staging: area(parts(per_peer_bytes), PAGE)?,
        })
    }

    /// The constants.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Bytes of a segment.
    pub fn bytes(&self) -> usize {
        self.staging.end
    }

    // ---- whole areas: each a bank of a kernel ---------------------------------------------------------------------

    /// All TAILs; indexed by [`Layout::slot_index`] with the sender as peer.
    pub fn tails(&self) -> Range<usize> {
        self.tails.clone()
    }

    /// All HEADs; indexed by [`Layout::slot_index`] with the receiver as peer.
    pub fn heads(&self) -> Range<usize> {
        self.heads.clone()
    }

    /// All packet credits; indexed by [`Layout::block_index`] with the receiver as peer.
    pub fn packet_heads(&self) -> Range<usize> {
        self.packet_heads.clone()
    }

    /// All READY slots; indexed by [`Layout::block_index`] with the receiver as peer.
    pub fn ready(&self) -> Range<usize> {
        self.ready.clone()
    }

    /// All DONE slots; indexed by [`Layout::block_index`] with the sender as peer.
    pub fn done(&self) -> Range<usize> {
        self.done.clone()
    }

    /// All SENT slots; indexed by [`Layout::block_index`] with the receiver as peer. Only posts use them: this rank's
    /// own proxy moves them when posted bytes have been read.
    pub fn sent(&self) -> Range<usize> {
        self.sent.clone()
    }

    /// All control lines that slots lie on: those of the areas above.
    pub fn lines(&self) -> Range<usize> {
        0..self.sent.end
    }

    /// The numbers of the lines that posts of `writer` move in the segment of any other rank, and whether their words
    /// carry an operation: TAILs, HEADs, READYs and DONEs.
    pub fn moved_lines(&self, writer: usize) -> [(Range<u64>, bool); 4] {
        let areas = [(self.tails(), true), (self.heads(), false), (self.ready(), true), (self.done(), true)];
        areas.map(|(area, matched)| (numbers(self.of_peer(&area, writer)), matched))
    }

    /// The numbers of the lines that flushes of a rank's posts to `peer` move in its own segment: SENTs.
    pub fn flushed_lines(&self, peer: usize) -> Range<u64> {
        numbers(self.of_peer(&self.sent(), peer))
    }

    /// All start counters; indexed by [`Layout::start_index`].
    pub fn starts(&self) -> Range<usize> {
        self.starts.clone()
    }

    /// All packets.
    pub fn packets(&self) -> Range<usize> {
        self.packets.clone()
    }

    /// All staging.
    pub fn staging(&self) -> Range<usize> {
        self.staging.clone()
    }

    // ---- parts of an area -----------------------------------------------------------------------------------------

    /// The part of one of the areas above that belongs to a peer, in lane 0.
    ///
    /// # Panics
    /// If there is no such peer.
    pub fn of_peer(&self, area: &Range<usize>, peer: usize) -> Range<usize> {
        self.of_lane(area, 0, peer)
    }

    /// The part of one of the areas above that belongs to a peer in a lane. Areas are divided by lane and rank into
    /// parts of one size.
    ///
    /// # Panics
    /// If there is no such lane or peer.
    pub fn of_lane(&self, area: &Range<usize>, lane: usize, peer: usize) -> Range<usize> {
        let Geometry { world_size, .. } = self.geometry;
        assert!(peer < world_size && lane < LANES, "rank {peer} of {world_size}, lane {lane} of {LANES}");
        let (bytes, part) = (area.len() / (world_size * LANES), lane * world_size + peer);
        area.start + part * bytes..area.start + (part + 1) * bytes
    }

    /// Staging of one sender: exactly [`Geometry::per_peer_bytes`].
    pub fn peer_staging(&self, sender: usize) -> Range<usize> {
        let part = self.of_peer(&self.staging, sender);
        part.start..part.start + self.geometry.per_peer_bytes
    }

    /// Packets of one sender: exactly [`Geometry::packet_bytes`].
    pub fn peer_packets(&self, sender: usize) -> Range<usize> {
        let part = self.of_peer(&self.packets, sender);
        part.start..part.start + self.geometry.packet_bytes
    }

    /// Staging of one block of a sender.
    pub fn block_staging(&self, sender: usize, block: usize) -> Range<usize> {
        self.block(self.peer_staging(sender).start, block, self.block_bytes())
    }

    /// Packets of one block of a sender.
    pub fn block_packets(&self, sender: usize, block: usize) -> Range<usize> {
        self.block(self.peer_packets(sender).start, block, self.block_packet_bytes())
    }

    /// Bytes of staging of a block, a multiple of a line: an equal part of a peer's staging, whatever the launch.
    pub fn block_bytes(&self) -> usize {
        block_share(self.geometry.per_peer_bytes, self.geometry.max_blocks_per_peer)
    }

    /// Bytes of packets of a block.
    pub fn block_packet_bytes(&self) -> usize {
        block_share(self.geometry.packet_bytes, self.geometry.max_blocks_per_peer)
    }

    fn block(&self, start: usize, block: usize, bytes: usize) -> Range<usize> {
        self.check_block(block);
        start + block * bytes..start + (block + 1) * bytes
    }

    // ---- indices of slots, for kernels and hosts alike ------------------------------------------------------------

    /// Index of (peer, block, slot) among all TAILs or HEADs, one line each.
    pub fn slot_index(&self, peer: usize, block: usize, slot: usize) -> usize {
        assert!(slot < self.geometry.max_slots, "slot {slot} of {}", self.geometry.max_slots);
        self.block_index(peer, block) * self.geometry.max_slots + slot
    }

    /// Index of (peer, block) among the READY slots, DONE slots or packet credits, one line each.
    pub fn block_index(&self, peer: usize, block: usize) -> usize {
        self.check_block(block);
        assert!(peer < self.geometry.world_size, "rank {peer} of {}", self.geometry.world_size);
        peer * self.geometry.max_blocks_per_peer + block
    }

    /// Index of the line of (peer, block, side, copy) among the start counters; its words are [`StartWord`]s.
    pub fn start_index(&self, peer: usize, block: usize, side: Side, copy: usize) -> usize {
        assert!(copy < self.geometry.max_copies, "copy {copy} of {}", self.geometry.max_copies);
        (self.block_index(peer, block) * 2 + side as usize) * self.geometry.max_copies + copy
    }

    fn check_block(&self, block: usize) {
        let blocks = self.geometry.max_blocks_per_peer;
        assert!(block < blocks, "block {block} of {blocks}");
    }
}

/// The share of each of `blocks` blocks in a peer's `bytes`: equal parts, each a multiple of a line.
///
/// ```
/// use tilewire::transport::layout::block_share;
/// assert_eq!((block_share(1 << 20, 8), block_share(1000, 3), block_share(100, 0)), (1 << 17, 256, 0));
/// ```
pub fn block_share(bytes: usize, blocks: usize) -> usize {
    bytes.checked_div(blocks).unwrap_or(0) / LINE * LINE
}

/// The numbers of the lines in a range of bytes.
fn numbers(bytes: Range<usize>) -> Range<u64> {
    (bytes.start / LINE) as u64..(bytes.end / LINE) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn geometries() -> impl Strategy<Value = Geometry> {
        let sizes = (1..9usize, 0..100_000usize, 1..9usize, 1..17usize, 1..4usize, 0..20_000usize);
        sizes.prop_map(|(world_size, per_peer_bytes, max_blocks_per_peer, max_slots, max_copies, packet_bytes)| {
            Geometry { world_size, per_peer_bytes, max_blocks_per_peer, max_slots, max_copies, packet_bytes }
        })
    }

    /// Every smallest piece that has one writer, and its alignment.
    fn pieces(layout: &Layout) -> Vec<(Range<usize>, usize)> {
        let Geometry { world_size, max_blocks_per_peer, max_slots, max_copies, .. } = layout.geometry;
        let line = |area: &Range<usize>, index: usize| {
            let piece = area.start + index * LINE..area.start + (index + 1) * LINE;
            assert!(area.start <= piece.start && piece.end <= area.end, "{piece:?} is not inside {area:?}");
            (piece, LINE)
        };
        let mut found = Vec::new();
        for peer in 0..world_size {
            for block in 0..max_blocks_per_peer {
                for slot in 0..max_slots {
                    let index = layout.slot_index(peer, block, slot);
                    found.extend([line(&layout.tails, index), line(&layout.heads, index)]);
                }
                let index = layout.block_index(peer, block);
                found.extend(
                    [&layout.packet_heads, &layout.ready, &layout.done, &layout.sent].map(|area| line(area, index)),
                );
                for (side, copy) in
                    [Side::Send, Side::Receive].iter().flat_map(|&s| (0..max_copies).map(move |c| (s, c)))
                {
                    found.push(line(&layout.starts, layout.start_index(peer, block, side, copy)));
                }
                found.push((layout.block_packets(peer, block), LINE));
                found.push((layout.block_staging(peer, block), LINE));
            }
        }
        found
    }

    proptest! {
        #[test]
        fn no_two_pieces_overlap_and_all_are_inside(geometry in geometries()) {
            let layout = Layout::new(geometry).unwrap();
            let mut pieces = pieces(&layout);
            pieces.sort_by_key(|(piece, _)| (piece.start, piece.end));
            for (piece, align) in &pieces {
                prop_assert!(piece.end <= layout.bytes());
                prop_assert!(piece.start.is_multiple_of(*align), "{:?} is not aligned to {}", piece, align);
            }
            let filled = pieces.iter().filter(|(piece, _)| !piece.is_empty()).collect::<Vec<_>>();
            for pair in filled.windows(2) {
                prop_assert!(pair[0].0.end <= pair[1].0.start, "{:?} and {:?}", pair[0], pair[1]);
            }
        }

        #[test]
        fn data_begins_on_pages_and_blocks_stay_in_their_peer(geometry in geometries()) {
            let layout = Layout::new(geometry).unwrap();
            for peer in 0..geometry.world_size {
                let (staging, packets) = (layout.peer_staging(peer), layout.peer_packets(peer));
                prop_assert_eq!(staging.len(), geometry.per_peer_bytes);
                prop_assert_eq!(packets.len(), geometry.packet_bytes);
                prop_assert!(staging.start.is_multiple_of(PAGE) && packets.start.is_multiple_of(PAGE));
                let last = geometry.max_blocks_per_peer - 1;
                prop_assert!(layout.block_staging(peer, last).end <= staging.end);
                prop_assert!(layout.block_packets(peer, last).end <= packets.end);
            }
        }

        #[test]
        fn a_part_of_a_peer_holds_exactly_the_slots_of_the_peer(geometry in geometries()) {
            let layout = Layout::new(geometry).unwrap();
            for peer in 0..geometry.world_size {
                let tails = layout.of_peer(&layout.tails(), peer);
                prop_assert_eq!(layout.tails().start + layout.slot_index(peer, 0, 0) * LINE, tails.start);
                prop_assert_eq!(tails.len(), geometry.max_blocks_per_peer * geometry.max_slots * LINE);
                let starts = layout.of_peer(&layout.starts(), peer);
                prop_assert_eq!(layout.starts().start + layout.start_index(peer, 0, Side::Send, 0) * LINE, starts.start);
            }
        }
    }

    #[test]
    fn what_does_not_fit_the_address_space_is_none() {
        let small = Geometry {
            world_size: 2,
            per_peer_bytes: 1,
            max_blocks_per_peer: 1,
            max_slots: 2,
            max_copies: 1,
            packet_bytes: 0,
        };
        assert!(Layout::new(small).is_some());
        for wrong in [
            Geometry { per_peer_bytes: usize::MAX, ..small },
            Geometry { per_peer_bytes: usize::MAX / 4, ..small },
            Geometry { max_slots: usize::MAX / 2, ..small },
            Geometry { max_blocks_per_peer: usize::MAX / 2 + 1, ..small },
            Geometry { packet_bytes: usize::MAX - 1, ..small },
        ] {
            assert_eq!(Layout::new(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_words_of_a_start_line_fit_it() {
        assert!((StartWord::Direct.index() + 1) * 8 <= LINE);
        assert_eq!(StartWord::Step.index(), 0);
    }
}
