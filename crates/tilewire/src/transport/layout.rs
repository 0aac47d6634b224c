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
//!  ├ windows: READY and DONE, SIGNAL, SENT and COUNTER, by peer and set: see below
//!  ├ START        [peer][block][role][copy]  a line each   own counters     r                   nobody
//!  ├ windows: own counters, by peer and set
//!  ├ packets      [sender]   [block]         from a page   flag and data    the sender          r, as receiver
//!  └ staging      [sender]   [block]         from a page   bytes            the sender          nobody: see TAIL
//! ```
//! A line is 128 bytes: the pair of cache lines that prefetchers fetch together, and what a GPU reads in one access.
//! Everything a rank polls lies in its own segment, so that polling stays in its cache, and no two writers share a
//! line.
//!
//! READY, DONE, SENT and the counters of `direct` exist several times: in **set** 0 for launches of the transport, and
//! in the sets from 1 on ([`Geometry::window_sets`]) for a window each, so that launches through different windows
//! share no line. A window's set also has lines that only windows have:
//!
//! ```text
//!  of a window's set                                    written by      polled by
//!  ├ READY, DONE  [peer][set][block]   as above
//!  ├ SIGNAL       [peer][set][id]      for own kernels  the peer        r
//!  ├ SENT         [peer][set][block]   as above
//!  ├ COUNTER      [peer][set][id]      bytes were read  r, for a flush  r, as sender
//!  └ own counters [peer][set]: [block][role] for `direct`, [id] for SIGNAL and COUNTER; a line each; written by r
//! ```
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
    /// Windows that have control lines of their own at the same time. With 0, all windows share those of the transport.
    pub window_sets: usize,
}

/// The SIGNAL lines, and the COUNTER lines, that a window has for every peer.
pub const SIGNALS: usize = 8;

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
///     window_sets: 8,
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
    window_words: Range<usize>,
    window_signals: Range<usize>,
    window_own: Range<usize>,
    starts: Range<usize>,
    window_starts: Range<usize>,
    packets: Range<usize>,
    staging: Range<usize>,
}

impl Layout {
    /// The layout for these constants; `None` if it does not fit the address space.
    pub fn new(geometry: Geometry) -> Option<Layout> {
        let Geometry { world_size, per_peer_bytes, max_blocks_per_peer, max_slots, max_copies, packet_bytes, .. } =
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
        let sets = ranks.checked_mul(geometry.window_sets)?;
        let in_sets = |per_block: usize, ids: usize| {
            let of_set = max_blocks_per_peer.checked_mul(per_block)?.checked_add(ids)?;
            lines(sets.checked_mul(of_set)?)
        };
        let parts = |bytes: usize| bytes.checked_next_multiple_of(PAGE)?.checked_mul(ranks);
        Some(Layout {
            geometry,
            tails: area(slots(), LINE)?,
            heads: area(slots(), LINE)?,
            packet_heads: area(lines(blocks), LINE)?,
            ready: area(lines(blocks), LINE)?,
            done: area(lines(blocks), LINE)?,
            sent: area(lines(blocks), LINE)?,
            window_words: area(in_sets(2, 0), LINE)?,
            window_signals: area(in_sets(0, SIGNALS), LINE)?,
            window_own: area(in_sets(1, SIGNALS), LINE)?,
            starts: area(blocks.checked_mul(2).and_then(|n| lines(n.checked_mul(max_copies)?)), LINE)?,
            window_starts: area(in_sets(2, SIGNALS), LINE)?,
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
        0..self.window_own.end
    }

    /// The numbers of the lines that posts of `writer` move in the segment of any other rank, and whether their words
    /// carry an operation: TAILs, HEADs, READYs and DONEs, those of windows, and SIGNALs.
    pub fn moved_lines(&self, writer: usize) -> [(Range<u64>, bool); 6] {
        let areas = [
            (&self.tails, true),
            (&self.heads, false),
            (&self.ready, true),
            (&self.done, true),
            (&self.window_words, true),
            (&self.window_signals, false),
        ];
        areas.map(|(area, matched)| (numbers(self.of_peer(area, writer)), matched))
    }

    /// The numbers of the lines that flushes of a rank's posts to `peer` move in its own segment: SENTs, and the SENTs
    /// and COUNTERs of windows.
    pub fn flushed_lines(&self, peer: usize) -> [Range<u64>; 2] {
        [&self.sent, &self.window_own].map(|area| numbers(self.of_peer(area, peer)))
    }

    /// All start counters; indexed by [`Layout::start_index`].
    pub fn starts(&self) -> Range<usize> {
        self.starts.clone()
    }

    /// The lines of set `set` for a peer.
    ///
    /// # Panics
    /// If there is no such peer, or no such set.
    pub fn lines_of(&self, set: usize, peer: usize) -> SetLines {
        let Geometry { max_blocks_per_peer: blocks, window_sets, .. } = self.geometry;
        if set == 0 {
            let none = self.window_signals.start..self.window_signals.start;
            let of = |area| self.of_peer(area, peer);
            return SetLines {
                ready: of(&self.ready),
                done: of(&self.done),
                sent: of(&self.sent),
                starts: of(&self.starts),
                signals: none.clone(),
                counters: none.clone(),
                tallies: none,
            };
        }
        assert!(set <= window_sets, "set {set}: windows have {window_sets}");
        let of = |area| {
            let all = self.of_peer(area, peer);
            let bytes = all.len() / window_sets;
            all.start + (set - 1) * bytes..all.start + set * bytes
        };
        let cut = |range: Range<usize>, lines: usize| {
            let middle = range.start + lines * LINE;
            [range.start..middle, middle..range.end]
        };
        let [ready, done] = cut(of(&self.window_words), blocks);
        let [sent, counters] = cut(of(&self.window_own), blocks);
        let [starts, tallies] = cut(of(&self.window_starts), 2 * blocks);
        SetLines { ready, done, sent, signals: of(&self.window_signals), counters, starts, tallies }
    }

    /// A rank's own counters in all sets of windows for a peer.
    pub(crate) fn window_starts_of(&self, peer: usize) -> Range<usize> {
        self.of_peer(&self.window_starts, peer)
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

/// The control lines of one set for one peer, as byte offsets from the segment's start. Set 0 has no SIGNAL and no
/// COUNTER.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetLines {
    /// READY of every block.
    pub ready: Range<usize>,
    /// DONE of every block.
    pub done: Range<usize>,
    /// SENT of every block.
    pub sent: Range<usize>,
    /// SIGNAL of every id: the peer moves it.
    pub signals: Range<usize>,
    /// COUNTER of every id: a flush of this rank moves it.
    pub counters: Range<usize>,
    /// This rank's own counters for `direct`, by block, side and, in set 0, copy.
    pub starts: Range<usize>,
    /// This rank's own counters for SIGNAL and COUNTER, a line for every id.
    pub tallies: Range<usize>,
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
        let sizes = (1..9usize, 0..100_000usize, 1..9usize, 1..17usize, 1..4usize, 0..20_000usize, 0..5usize);
        sizes.prop_map(
            |(world_size, per_peer_bytes, max_blocks_per_peer, max_slots, max_copies, packet_bytes, window_sets)| {
                Geometry {
                    world_size,
                    per_peer_bytes,
                    max_blocks_per_peer,
                    max_slots,
                    max_copies,
                    packet_bytes,
                    window_sets,
                }
            },
        )
    }

    /// Every smallest piece that has one writer, and its alignment.
    fn pieces(layout: &Layout) -> Vec<(Range<usize>, usize)> {
        let Geometry { world_size, max_blocks_per_peer, max_slots, max_copies, window_sets, .. } = layout.geometry;
        let line = |area: &Range<usize>, index: usize| {
            let piece = area.start + index * LINE..area.start + (index + 1) * LINE;
            assert!(area.start <= piece.start && piece.end <= area.end, "{piece:?} is not inside {area:?}");
            (piece, LINE)
        };
        let mut found = Vec::new();
        for (peer, set) in (0..world_size).flat_map(|peer| (1..=window_sets).map(move |set| (peer, set))) {
            let SetLines { ready, done, sent, signals, counters, starts, tallies } = layout.lines_of(set, peer);
            for (lines, count) in [
                (ready, max_blocks_per_peer),
                (done, max_blocks_per_peer),
                (sent, max_blocks_per_peer),
                (signals, SIGNALS),
                (counters, SIGNALS),
                (starts, 2 * max_blocks_per_peer),
                (tallies, SIGNALS),
            ] {
                assert_eq!(lines.len(), count * LINE);
                found.extend((0..count).map(|index| line(&lines, index)));
            }
        }
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
                let own = layout.lines_of(0, peer);
                prop_assert_eq!(layout.ready().start + layout.block_index(peer, 0) * LINE, own.ready.start);
                prop_assert_eq!(own.done.len(), geometry.max_blocks_per_peer * LINE);
                prop_assert!(own.signals.is_empty() && own.counters.is_empty() && own.tallies.is_empty());
                let starts = layout.of_peer(&layout.starts(), peer);
                prop_assert_eq!(layout.starts().start + layout.start_index(peer, 0, Side::Send, 0) * LINE, starts.start);
            }
        }
    }

    proptest! {
        /// What a rank's posts may move is exactly what it signals, in every set, and nothing that others signal.
        #[test]
        fn notices_name_the_lines_of_their_writer_alone(geometry in geometries()) {
            let layout = Layout::new(geometry).unwrap();
            let ranks = 0..geometry.world_size;
            let moved = |rank: usize| layout.moved_lines(rank);
            let within = |ranges: &[Range<u64>], lines: &Range<usize>| {
                numbers(lines.clone()).all(|line| ranges.iter().filter(|range| range.contains(&line)).count() == 1)
            };
            for rank in ranks.clone() {
                let own = layout.flushed_lines(rank);
                for set in 0..=geometry.window_sets {
                    let SetLines { ready, done, sent, signals, counters, starts, tallies } = layout.lines_of(set, rank);
                    let [matched, bare] = [true, false].map(|which| {
                        moved(rank).into_iter().filter(|of| of.1 == which).map(|of| of.0).collect::<Vec<_>>()
                    });
                    prop_assert!(within(&matched, &ready) && within(&matched, &done) && within(&bare, &signals));
                    prop_assert!(within(&own, &sent) && within(&own, &counters));
                    let all = [ready, done, sent, signals, counters];
                    prop_assert!(all.iter().all(|lines| lines.end <= layout.lines().end));
                    prop_assert!([starts, tallies].iter().all(|own| own.is_empty() || own.start >= layout.lines().end));
                }
                let total: u64 = moved(rank).iter().map(|(of, _)| of.end - of.start).sum();
                let Geometry { max_blocks_per_peer: blocks, max_slots, window_sets, .. } = geometry;
                prop_assert_eq!(total as usize, blocks * (2 * max_slots + 2) + window_sets * (2 * blocks + SIGNALS));
                for (mine, theirs) in ranks.clone().filter(|&other| other != rank).flat_map(|other| {
                    moved(rank).into_iter().flat_map(move |(mine, _)| {
                        layout_moved(geometry, other).into_iter().map(move |theirs| (mine.clone(), theirs))
                    })
                }) {
                    prop_assert!(mine.end <= theirs.start || theirs.end <= mine.start);
                }
            }
        }
    }

    fn layout_moved(geometry: Geometry, writer: usize) -> Vec<Range<u64>> {
        Layout::new(geometry).unwrap().moved_lines(writer).map(|(numbers, _)| numbers).into()
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
            window_sets: 1,
        };
        assert!(Layout::new(small).is_some());
        for wrong in [
            Geometry { per_peer_bytes: usize::MAX, ..small },
            Geometry { per_peer_bytes: usize::MAX / 4, ..small },
            Geometry { max_slots: usize::MAX / 2, ..small },
            Geometry { max_blocks_per_peer: usize::MAX / 2 + 1, ..small },
            Geometry { packet_bytes: usize::MAX - 1, ..small },
            Geometry { window_sets: usize::MAX / 8, ..small },
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
