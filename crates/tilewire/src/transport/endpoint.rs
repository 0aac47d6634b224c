//! The connection between this rank and one peer: the kind and size of the link, and the memories a kernel binds to use
//! it.
#![forbid(unsafe_code)]

use super::layout::{Geometry, LINE, Layout, SetLines, block_share};
use super::rank::Rank;
use crate::tensor::{Between, Memory, Part, Purpose, Queue};
use std::fmt;
use std::ops::Range;

/// The constants of the link to one peer. They are the same on both sides and in all launches, so schedules are planned
/// from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkShape {
    /// What connects the two ranks.
    pub kind: LinkKind,
    /// Bytes of staging that a sender has at the receiver.
    pub staging_bytes: usize,
    /// Blocks that may communicate with the peer in one launch.
    pub max_blocks: usize,
    /// Slots of a block: the largest pipeline depth.
    pub max_slots: usize,
    /// Bytes of packets that a sender has at the receiver; 0 if this link carries no packets.
    pub packet_bytes: usize,
    /// Copies of a role that take the slots of `staged` in turn. One number for the whole world, because each copy
    /// keeps counters.
    pub copies: u32,
}

impl LinkShape {
    /// A link of this kind in a transport with this geometry.
    pub fn of(geometry: &Geometry, kind: LinkKind, copies: u32) -> LinkShape {
        let &Geometry { per_peer_bytes, max_blocks_per_peer, max_slots, packet_bytes, .. } = geometry;
        LinkShape {
            kind,
            staging_bytes: per_peer_bytes,
            max_blocks: max_blocks_per_peer,
            max_slots,
            packet_bytes,
            copies,
        }
    }

    /// Bytes of staging of one block. The mapping from blocks to bytes is the same in all launches.
    pub fn block_bytes(&self) -> usize {
        block_share(self.staging_bytes, self.max_blocks)
    }

    /// Bytes of packets of one block.
    pub fn block_packet_bytes(&self) -> usize {
        block_share(self.packet_bytes, self.max_blocks)
    }
}

/// What connects two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkKind {
    /// Nothing: they are on the same device, or are the same rank.
    SameDevice,
    /// A link between GPUs that carries loads and stores.
    Nvlink,
    /// Shared memory of one machine.
    Shm,
    /// A network.
    Fabric,
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkKind::SameDevice => "same device",
            LinkKind::Nvlink => "NVLink",
            LinkKind::Shm => "shared memory",
            LinkKind::Fabric => "fabric",
        })
    }
}

/// The memories between this rank and one peer, resolved on the host: what a kernel binds to communicate with that
/// peer.
///
/// ```text
///            this rank, as sender                                        the peer, as receiver
///  put ─────────────────── bytes ────────────────▶ there.staging ═ its ═ here.staging ──▶ get
///  signal ──────────────── step + 1 ─────────────▶ there.tail    ═ its ═ here.tail ─────▶ wait
///  wait ◀── here.head ═ its ═ there.head ◀──────── step + 1 ───────────────────── signal_credit
///
///  "A ═ its ═ B": A here and B in the peer's endpoint for this rank are the same memory.
/// ```
/// Everything in `here` lies in this rank's memory; the peer writes it and this rank polls it. Everything in `there`
/// lies in the peer's memory; this rank writes it and the peer polls it. `starts` belongs to this rank alone.
///
/// Slots are [`PeerEndpoint::SLOT_STRIDE`] bytes apart. Slot `s` of block `b` has index `b * max_slots + s` in `tail`
/// and `head`. Block `b` has index `b` in `packet_head`, `ready` and `done`.
#[derive(Clone, Debug)]
pub struct PeerEndpoint {
    /// Written by the peer, in this rank's memory.
    pub here: PeerMemory,
    /// Written by this rank, in the peer's memory.
    pub there: There,
    /// This rank's own counters for the peer, kept across launches: one line per (block, side, copy).
    /// [`StartWord`](super::layout::StartWord) lists the words of a line.
    pub starts: Memory,
    /// What only windows have.
    pub window: WindowLines,
}

/// This rank's own lines for a peer that only windows have, a line for every id. Empty in the transport's own set.
#[derive(Clone, Debug)]
pub struct WindowLines {
    /// COUNTER: posted bytes have been read where they were. Flushes of this rank move it.
    pub counters: Memory,
    /// This rank's own counters for SIGNAL and COUNTER, kept across launches.
    pub tallies: Memory,
}

/// How this rank reaches the peer's memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum There {
    /// By loads and stores: the peer's memory is mapped here.
    Mapped(PeerMemory),
    /// By posting: a proxy carries the contents of an outbox.
    Posted(PostedPeer),
}

/// One rank's share of the memory between two ranks: bytes and signals that the other rank writes.
#[derive(Clone, Debug)]
pub struct PeerMemory {
    /// Staging for the data that the other rank sends.
    pub staging: Memory,
    /// Packets that the other rank sends.
    pub packets: Memory,
    /// Slots that the other rank signals.
    pub signals: Signals,
}

/// A peer that a proxy carries bytes to.
#[derive(Clone, Debug)]
pub struct PostedPeer {
    /// Its number.
    pub peer: u32,
    /// Where kernels append descriptors; its region is the peer's staging for this rank. Its notices are bare words.
    /// For the peer's slots, bind [`queue_for`](Self::queue_for).
    pub queue: Queue,
    /// Where puts go until they are posted, at the offsets they will have in the peer's staging.
    pub outbox: Memory,
    /// The peer's slots that this rank moves.
    pub lines: PostedLines,
    /// SENT of every block, for `direct` from where the bytes are: what was posted to the peer has been read. In this
    /// rank's memory, where its own proxy writes and it polls.
    pub sent: Memory,
}

/// The numbers of the first control lines of the slots that this rank moves in the peer's segment, and of those that
/// its flushes move in its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedLines {
    /// TAILs.
    pub tail: u64,
    /// HEADs.
    pub head: u64,
    /// READYs.
    pub ready: u64,
    /// DONEs.
    pub done: u64,
    /// SENTs, in this rank's own segment.
    pub sent: u64,
    /// SIGNALs of a window.
    pub signal: u64,
    /// COUNTERs of a window, in this rank's own segment.
    pub counter: u64,
}

impl PostedLines {
    /// The lines that `writer` moves in the segment of any other rank, and in its own for what it posts to `peer`, of
    /// this set.
    ///
    /// # Panics
    /// If there is no such rank or no such set.
    pub fn of(layout: &Layout, set: usize, writer: Rank, peer: Rank) -> PostedLines {
        let first = |lines: Range<usize>| (lines.start / LINE) as u64;
        let area = |area: Range<usize>| first(layout.of_peer(&area, writer.index()));
        let (there, own) = (layout.lines_of(set, writer.index()), layout.lines_of(set, peer.index()));
        PostedLines {
            tail: area(layout.tails()),
            head: area(layout.heads()),
            ready: first(there.ready),
            done: first(there.done),
            sent: first(own.sent),
            signal: first(there.signals),
            counter: first(own.counters),
        }
    }
}

impl PeerEndpoint {
    /// Bytes from one slot to the next.
    pub const SLOT_STRIDE: u32 = LINE as u32;

    /// Operation numbers for your own kernels are below this. The others belong to the library's transfers and
    /// collectives.
    pub const OWN_OPERATIONS: u16 = Between::OWN;

    /// The peer's memory, if it is mapped here.
    pub fn mapped(&self) -> Option<&PeerMemory> {
        match &self.there {
            There::Mapped(memory) => Some(memory),
            There::Posted(_) => None,
        }
    }

    /// The same memories for a kernel of your own that is operation `operation` of this pair, counted from 0. Both
    /// ranks pass the same number to launches that belong together. A launch that meets a launch with another number
    /// ends with an error on both ranks, instead of taking its data. Kernels that specify nothing are operation 0.
    ///
    /// # Panics
    /// If `operation` is [`OWN_OPERATIONS`](Self::OWN_OPERATIONS) or more.
    pub fn operation(self, operation: u16) -> PeerEndpoint {
        assert!(operation < Self::OWN_OPERATIONS, "operation {operation}: the largest is {}", Self::OWN_OPERATIONS - 1);
        let there = match self.there {
            There::Mapped(memory) => There::Mapped(memory.numbered(operation)),
            There::Posted(peer) => {
                There::Posted(PostedPeer { queue: peer.queue.clone().for_operation(operation), ..peer })
            }
        };
        PeerEndpoint { here: self.here.numbered(operation), there, starts: self.starts, window: self.window }
    }

    /// The memories between two ranks whose segments have this `layout`: `mine` is the segment of `rank`, `theirs` that
    /// of `peer`.
    ///
    /// # Panics
    /// If there is no such rank, or a segment is smaller than its layout.
    pub fn between(layout: &Layout, mine: (Rank, &Memory), theirs: (Rank, &Memory)) -> PeerEndpoint {
        PeerEndpoint::between_in(layout, 0, mine, theirs)
    }

    /// The same with the control lines of a window's set.
    ///
    /// # Panics
    /// As [`between`](Self::between), or if there is no such set.
    pub fn between_in(
        layout: &Layout,
        set: usize,
        (rank, mine): (Rank, &Memory),
        (peer, theirs): (Rank, &Memory),
    ) -> PeerEndpoint {
        let part = |range: Range<usize>| mine.part(range.start, range.len());
        let SetLines { starts, tallies, .. } = layout.lines_of(set, peer.index());
        PeerEndpoint {
            here: PeerMemory::of(layout, set, (rank, mine), peer),
            there: There::Mapped(PeerMemory::of(layout, set, (peer, theirs), rank)),
            starts: part(starts).for_purpose(Purpose::Starts { peer: peer.number() }),
            window: WindowLines::of(layout, set, (rank, mine), peer, part(tallies)),
        }
    }
}

impl WindowLines {
    fn of(layout: &Layout, set: usize, (rank, lines): (Rank, &Memory), peer: Rank, tallies: Memory) -> WindowLines {
        let counters = layout.lines_of(set, peer.index()).counters;
        let purpose = Purpose::Transfer { part: Part::Counter, from: rank.number(), to: peer.number() };
        WindowLines {
            counters: lines.part(counters.start, counters.len()).for_purpose(purpose),
            tallies: tallies.for_purpose(Purpose::Starts { peer: peer.number() }),
        }
    }
}

impl PostedPeer {
    /// A peer that `rank`, whose segment is `mine`, posts to through a queue and an outbox, with the control lines of a
    /// set.
    ///
    /// # Panics
    /// As [`PeerEndpoint::between_in`].
    pub fn of(
        layout: &Layout,
        set: usize,
        (rank, mine): (Rank, &Memory),
        peer: Rank,
        (queue, outbox): (Queue, Memory),
    ) -> PostedPeer {
        let sent = layout.lines_of(set, peer.index()).sent;
        let purpose = Purpose::Transfer { part: Part::Sent, from: rank.number(), to: peer.number() };
        PostedPeer {
            peer: peer.number(),
            queue,
            outbox,
            lines: PostedLines::of(layout, set, rank, peer),
            sent: mine.part(sent.start, sent.len()).for_purpose(purpose),
        }
    }

    /// The queue for notices that move this part of the peer's slots. The peer waits for counts in TAIL, READY and
    /// DONE, whose words also carry the operation; the notices of this queue do, too.
    pub fn queue_for(&self, part: Part) -> Queue {
        let to_peer = self.sent.purpose().with_part(part);
        // The receiver of a transfer permits and credits it: READY and HEAD travel against the data.
        let is_answer = matches!(part, Part::Ready | Part::Head | Part::PacketHead);
        self.queue.clone().for_purpose(if is_answer { to_peer.turned() } else { to_peer })
    }
}

impl PeerEndpoint {
    /// As [`between_in`](Self::between_in), for a peer whose memory is not mapped here.
    ///
    /// # Panics
    /// As [`between_in`](Self::between_in).
    pub fn posted(layout: &Layout, set: usize, (rank, mine): (Rank, &Memory), peer: PostedPeer) -> PeerEndpoint {
        let part = |range: Range<usize>| mine.part(range.start, range.len());
        let other = peer.peer as usize;
        let SetLines { starts, tallies, .. } = layout.lines_of(set, other);
        let here = PostedHere {
            lines: part(layout.lines()),
            staging: part(layout.peer_staging(other)),
            starts: part(starts),
            tallies: part(tallies),
        };
        PeerEndpoint::posted_in(layout, set, rank, here, peer)
    }

    /// The same where what the peer's posts write does not lie beside this rank's own counters: on a GPU the first is
    /// the host's memory, the second the device's.
    ///
    /// # Panics
    /// If there is no such rank or no such set, or a memory is smaller than its part of the layout.
    pub fn posted_in(layout: &Layout, set: usize, rank: Rank, here: PostedHere, peer: PostedPeer) -> PeerEndpoint {
        let (other, PostedHere { lines, staging, starts, tallies }) = (Rank::new(peer.peer), here);
        PeerEndpoint {
            here: PeerMemory::with(layout, set, (rank, &lines), other, (staging.part(0, 0), staging)),
            there: There::Posted(peer),
            starts: starts.for_purpose(Purpose::Starts { peer: other.number() }),
            window: WindowLines::of(layout, set, (rank, &lines), other, tallies),
        }
    }
}

/// What lies at a rank for a peer that posts.
#[derive(Clone, Debug)]
pub struct PostedHere {
    /// The control lines of the rank's segment: [`Layout::lines`].
    pub lines: Memory,
    /// What the peer's posts fill.
    pub staging: Memory,
    /// The rank's own counters for the peer, of the set.
    pub starts: Memory,
    /// Those for SIGNAL and COUNTER.
    pub tallies: Memory,
}

impl PeerMemory {
    /// The part of `owner`'s segment that `writer` writes. It is indexed by the writer's number.
    fn of(layout: &Layout, set: usize, (owner, segment): (Rank, &Memory), writer: Rank) -> PeerMemory {
        let at = |range: Range<usize>| segment.part(range.start, range.len());
        let bytes = (at(layout.peer_packets(writer.index())), at(layout.peer_staging(writer.index())));
        Self::with(layout, set, (owner, segment), writer, bytes)
    }

    /// The same with packets and staging elsewhere than behind the control lines.
    fn with(
        layout: &Layout,
        set: usize,
        (owner, lines): (Rank, &Memory),
        writer: Rank,
        (packets, staging): (Memory, Memory),
    ) -> PeerMemory {
        let (own, other) = (owner.number(), writer.number());
        let part = |part: Range<usize>| lines.part(part.start, part.len());
        let slots = |area: Range<usize>| part(layout.of_peer(&area, writer.index()));
        let of_set = layout.lines_of(set, writer.index());
        // The writer sends what arrives here, and receives what this rank may send.
        let arrives = |part, memory: Memory| memory.for_purpose(Purpose::Transfer { part, from: other, to: own });
        let permits = |part, memory: Memory| memory.for_purpose(Purpose::Transfer { part, from: own, to: other });
        PeerMemory {
            staging: arrives(Part::Staging, staging),
            packets: arrives(Part::Packets, packets),
            signals: Signals {
                tail: arrives(Part::Tail, slots(layout.tails())),
                head: permits(Part::Head, slots(layout.heads())),
                packet_head: permits(Part::PacketHead, slots(layout.packet_heads())),
                ready: permits(Part::Ready, part(of_set.ready)),
                done: arrives(Part::Done, part(of_set.done)),
                signals: arrives(Part::Signal, part(of_set.signals)),
            },
        }
    }

    fn numbered(self, operation: u16) -> PeerMemory {
        let of = |memory: Memory| memory.for_operation(operation);
        let Signals { tail, ready, done, .. } = self.signals.clone();
        let signals = Signals { tail: of(tail), ready: of(ready), done: of(done), ..self.signals };
        PeerMemory { staging: self.staging, packets: of(self.packets), signals }
    }
}

/// The slots at one rank that one other rank signals. Each slot has exactly one writer.
#[derive(Clone, Debug)]
pub struct Signals {
    /// TAIL of every (block, slot): data has arrived in the staging here.
    pub tail: Memory,
    /// HEAD of every (block, slot): the slot at the other rank is free again.
    pub head: Memory,
    /// One per block: the other rank has read the packets.
    pub packet_head: Memory,
    /// READY of every block, for `direct`: the other rank's window may be written.
    pub ready: Memory,
    /// DONE of every block, for `direct`: the window here has been written.
    pub done: Memory,
    /// SIGNAL of every id, for kernels of your own. Empty in the transport's own set: only windows have them.
    pub signals: Memory,
}
