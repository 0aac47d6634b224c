//! What a transport gives to whoever sends to one peer and receives from one.
#![forbid(unsafe_code)]

use super::abort::Cause;
use super::layout::{LINE, Layout, block_share};
use super::rank::Rank;
use crate::tensor::{Between, Memory};
use std::fmt;
use std::ops::Range;

/// Memory and signals between each two ranks of a world.
///
/// Implement it for a transport of your own: schedules, hooks and [`check_transfer`](super::check_transfer) see nothing else of
/// it. The one of this crate for ranks on one machine is [`ShmTransport`](super::ShmTransport).
pub trait P2pTransport {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Ranks in the world.
    fn world_size(&self) -> usize;

    /// Bytes of staging that each sender has at each receiver.
    fn per_peer_bytes(&self) -> usize;

    /// Blocks that may talk to one peer in one launch.
    fn max_blocks_per_peer(&self) -> usize;

    /// What lies between this rank and a peer.
    fn link_kind(&self, peer: Rank) -> LinkKind;

    /// The memories of this rank and a peer, one for the other.
    ///
    /// # Panics
    /// When there is no such peer; [`check_transfer`](super::check_transfer) says so without.
    fn endpoint(&self, peer: Rank) -> PeerEndpoint;

    /// Slots of a block: the largest depth of a pipeline. 2 unless the transport says more.
    fn max_slots(&self) -> usize {
        2
    }

    /// Whether kernels of this rank can be bound to a peer.
    fn reaches(&self, _peer: Rank) -> bool {
        true
    }

    /// Copies of a role that take the slots of `staged` in turn: the same in all launches, since each keeps counters. 1 unless the
    /// transport says more.
    fn copies(&self) -> u32 {
        1
    }

    /// Bytes of packets that each sender has at each receiver; 0: this transport carries no packets.
    fn packet_bytes(&self) -> usize {
        0
    }

    /// Bytes of staging of one block: a constant of the transport, so that the map from blocks to bytes is the same in all launches.
    fn block_bytes(&self) -> usize {
        block_share(self.per_peer_bytes(), self.max_blocks_per_peer())
    }

    /// Bytes of packets of one block.
    fn block_packet_bytes(&self) -> usize {
        block_share(self.packet_bytes(), self.max_blocks_per_peer())
    }

    /// Why the transport can no longer be used, if so.
    fn broken(&self) -> Option<Cause> {
        None
    }
}

/// What lies between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkKind {
    /// Nothing: the same device, or the same rank.
    SameDevice,
    /// A link between GPUs that loads and stores go over.
    Nvlink,
    /// Memory of one machine.
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

/// The memories between this rank and one peer, resolved on the host: what a kernel binds to talk to that peer.
///
/// ```text
///            this rank, as sender                                   the peer, as receiver
///  put ──────────────── bytes ───────────────▶ send_dst   ═ its ═   recv_src ──▶ get
///  signal ───────────── step + 1 ────────────▶ send.tail  ═ its ═   recv.tail ──▶ wait
///  wait ◀── send.head   ═ its ═   recv.head ◀─────────── step + 1 ─────────────── signal_credit
///
///  "A ═ its ═ B": A here and B in the peer's endpoint for this rank are the same memory.
/// ```
/// | memory | lies at | written by | polled by |
/// |---|---|---|---|
/// | `send_dst`, `send_packets` | the peer | this rank | the peer (packets) |
/// | `send.tail`, `send.done` | the peer | this rank | the peer |
/// | `send.head`, `send.packet_head`, `send.ready` | this rank | the peer | this rank |
/// | `recv_src`, `recv_packets` | this rank | the peer | this rank (packets) |
/// | `recv.tail`, `recv.done` | this rank | the peer | this rank |
/// | `recv.head`, `recv.packet_head`, `recv.ready` | the peer | this rank | the peer |
/// | `starts` | this rank | this rank | nobody |
///
/// Slots are [`PeerEndpoint::SLOT_STRIDE`] bytes apart; slot
/// `s` of block `b` is number `b * max_slots + s` of `tail` and `head`, and block `b` number `b` of `packet_head`, `ready`
/// and `done`.
#[derive(Clone, Debug)]
pub struct PeerEndpoint {
    /// My part of the peer's staging: I write.
    pub send_dst: Memory,
    /// The peer's part of my staging: I read.
    pub recv_src: Memory,
    /// My part of the peer's packets: I write.
    pub send_packets: Memory,
    /// The peer's part of my packets: I read.
    pub recv_packets: Memory,
    /// Signals of what I send to the peer.
    pub send: Signals,
    /// Signals of what the peer sends to me.
    pub recv: Signals,
    /// My own counters for this peer, kept across launches: a line per (block, side, copy), its words as
    /// [`StartWord`](super::layout::StartWord) says.
    pub starts: Memory,
}

impl PeerEndpoint {
    /// Bytes from one slot to the next.
    pub const SLOT_STRIDE: u32 = LINE as u32;

    /// Numbers of operations for kernels of your own. The others are the collectives'.
    pub const OWN_OPERATIONS: u16 = Between::OWN;

    /// What this rank waits at for the peer: it lies here, and nobody but the peer signals there.
    pub fn waited(&self) -> [&Memory; 6] {
        let PeerEndpoint { send, recv, recv_packets, .. } = self;
        [&send.head, &send.packet_head, &send.ready, &recv.tail, &recv.done, recv_packets]
    }

    /// The same memories for a kernel of your own that is operation `operation` of this pair, from 0; both ranks give the same number to
    /// launches that belong together. A launch that meets one of another number ends with an error on both, instead of taking its data.
    /// Kernels that say nothing are operation 0.
    ///
    /// # Panics
    /// From [`OWN_OPERATIONS`](Self::OWN_OPERATIONS) on.
    pub fn operation(self, operation: u16) -> PeerEndpoint {
        assert!(operation < Self::OWN_OPERATIONS, "operation {operation}: the largest is {}", Self::OWN_OPERATIONS - 1);
        self.numbered(operation)
    }

    fn numbered(self, operation: u16) -> PeerEndpoint {
        let of = |memory: Memory| memory.for_operation(operation);
        let signals = |Signals { tail, head, packet_head, ready, done }: Signals| Signals {
            tail: of(tail),
            head,
            packet_head,
            ready: of(ready),
            done: of(done),
        };
        PeerEndpoint {
            send_packets: of(self.send_packets),
            recv_packets: of(self.recv_packets),
            send: signals(self.send),
            recv: signals(self.recv),
            ..self
        }
    }

    /// The memories between two ranks whose segments are cut as `layout` says: `mine` is that of `rank`, `theirs` that of `peer`.
    ///
    /// # Panics
    /// When there is no such rank, or a segment is smaller than its layout.
    pub fn between(layout: &Layout, (rank, mine): (Rank, &Memory), (peer, theirs): (Rank, &Memory)) -> PeerEndpoint {
        let (me, peer) = (rank.index(), peer.index());
        let at = |memory: &Memory, range: Range<usize>| memory.part(range.start, range.len());
        // In a segment, what a rank writes or is waited for by stands under that rank's number.
        let here = |area: Range<usize>| at(mine, layout.of_peer(&area, peer));
        let there = |area: Range<usize>| at(theirs, layout.of_peer(&area, me));
        // What says that something of a launch is there says of which operation it is. Credits are older than the launch.
        let (from, to) = (me as u32, peer as u32);
        let of = |from, to, operation, in_step| {
            move |memory: Memory| memory.crossing(Between { from, to, operation, in_step })
        };
        let (sent, received) = (of(from, to, Some(0), false), of(to, from, Some(0), false));
        let (filled, arrived) = (of(from, to, Some(0), true), of(to, from, Some(0), true));
        let (credit, given) = (of(from, to, None, false), of(to, from, None, false));
        PeerEndpoint {
            send_dst: at(theirs, layout.peer_staging(me)),
            recv_src: at(mine, layout.peer_staging(peer)),
            send_packets: sent(at(theirs, layout.peer_packets(me))),
            recv_packets: received(at(mine, layout.peer_packets(peer))),
            send: Signals {
                tail: filled(there(layout.tails())),
                head: credit(here(layout.heads())),
                packet_head: credit(here(layout.packet_heads())),
                ready: sent(here(layout.ready())),
                done: sent(there(layout.done())),
            },
            recv: Signals {
                tail: arrived(here(layout.tails())),
                head: given(there(layout.heads())),
                packet_head: given(there(layout.packet_heads())),
                ready: received(there(layout.ready())),
                done: received(here(layout.done())),
            },
            starts: here(layout.starts()),
        }
    }
}

/// The slots of one direction between two ranks. Each has exactly one writer.
#[derive(Clone, Debug)]
pub struct Signals {
    /// TAIL of every (block, slot): data is there. The sender writes.
    pub tail: Memory,
    /// HEAD of every (block, slot): the slot is free again. The receiver writes.
    pub head: Memory,
    /// Of every block: packets are read. The receiver writes.
    pub packet_head: Memory,
    /// READY of every block, for `direct`: the window may be written. The receiver writes.
    pub ready: Memory,
    /// DONE of every block, for `direct`: the window has been written. The sender writes.
    pub done: Memory,
}
