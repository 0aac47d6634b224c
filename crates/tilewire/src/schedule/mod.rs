//! Schedules: how tiles travel from one rank to another, written in the hook language.
//!
//! ```text
//!   hook ──▶ send_tiles ──▶ ops: put, signal ══════ link ══════▶ ops: wait, get ──▶ recv_tiles ──▶ hook
//!                 │  which elements, in which step: tiling                │
//!                 └─ where in a slot: packing        counters across launches: start lines
//! ```
//! - **In**: a role of a kernel, a [`Peer`], a [`Tiling`], a closure for one element. **Out**: the IR of one leg
//!   of a transfer.
//! - **Invariants**: both sides of a transfer run the same number of steps, so counters never travel: each side adds
//!   its steps to its own counter, and stores the sum last. A slot is written only after its last content was credited.
//!   Nothing here differs between engines.
//! - **Must not know**: devices and wires. Everything specific to a link is behind [`Reach`].
//!
//! Your own schedule can use the same parts: `examples/05_ring_all_gather.rs` forwards tiles round a ring, and
//! `examples/06_own_kernel_from_raw_ops.rs` needs only the memories of an endpoint.
//!
//! | file | holds |
//! |---|---|
//! | `peer.rs` | [`Peer`], a peer as a kernel reaches it; [`Reach`], how a transport does that; [`LoadStore`] |
//! | `posted.rs` | [`PostedReach`]: by posts to a network proxy |
//! | `tiling.rs` | [`Tiling`]: a chunk in tiles, for blocks; [`Spot`]: an element; [`Position`]: where a hook runs |
//! | `packing.rs` | [`Packing`]: where the parts of an element lie in a slot |
//! | `counters.rs` | the counters a role keeps across launches |
//! | `staged.rs` | steps through slots of staging: [`StagedSend`], [`StagedRecv`], [`send_tiles`], [`recv_tiles`] |
//! | `bulk.rs` | the same with asynchronous copies through scratch: [`send_bulk`], [`recv_bulk`] |
//! | `packet.rs` | messages with flags beside the data: [`send_packets`], [`share_packets`], [`recv_packets`] |
//! | `ring.rs` | tiles that go on from rank to rank: [`ring_gather`], [`ring_reduce`] |
//! | `relay.rs` | tiles of far ranks that go on to near ranks: [`relay_tiles`], [`recv_relayed`] |
//! | `reduce.rs` | tiles of all peers combined in one pass: [`reduce_tiles`], [`reduce_packets`], [`swap_and_reduce`] |
//! | | the same over windows: [`reduce_windows`], [`reduce_whole_windows`] |
//! | `direct.rs` | one hop into the receiver's window: [`send_direct`], [`post_direct`], [`recv_direct`] |
//! | `window/` | [`WindowOps`]: puts, signals and counters of windows, for kernels of your own |
#![forbid(unsafe_code)]

mod bulk;
mod counters;
mod direct;
mod packet;
mod packing;
mod peer;
mod posted;
mod reduce;
mod relay;
mod ring;
mod staged;
mod tiling;
mod window;

pub use bulk::{BulkPlan, recv_bulk, send_bulk};
pub(crate) use bulk::{recv_bulk_any, send_bulk_any};
pub(crate) use direct::{DirectTo, send_direct_any};
pub use direct::{post_direct, recv_direct, send_direct};
pub(crate) use packet::recv_packets_any;
pub(crate) use relay::{recv_relayed_any, relay_tiles_any};
pub(crate) use ring::ring_gather_any;
pub(crate) use staged::{recv_tiles_any, send_tiles_any};

pub use packet::{Expected, PacketPlan, Sent, expect_packets, recv_packets, send_packets, share_packets};
pub use packing::Packing;
pub use peer::{LoadStore, Peer, Reach, Span, Spans, Word};
pub use posted::{PostedReach, PostedWindow};

pub use reduce::{
    WindowPeer, reduce_packets, reduce_tiles, reduce_whole_windows, reduce_windows, swap_and_reduce, swapped,
};
pub use relay::{Relay, recv_relayed, relay_tiles};
pub use ring::{Ring, RingReduce, ring_gather, ring_reduce};
pub use staged::{SlotAt, StagedPlan, StagedRecv, StagedSend, recv_tiles, send_tiles};
pub use tiling::{Position, Spot, Tile, Tiling};
pub(crate) use window::take_all_signals;
pub use window::{Put, PutTo, Source, WINDOW_IDS, WindowAt, WindowOps, WindowReach, WindowWorld};
