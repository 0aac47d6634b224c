//! A request for one side of a transfer, and whether the transport can carry it out.
//!
//! Everything refused here would otherwise hang or silently corrupt the next peer's region.
#![forbid(unsafe_code)]

use super::abort::Cause;
use super::endpoint::LinkShape;
use super::layout::LINE;
use super::rank::Rank;
use crate::tensor::{Axis, Type};
use std::fmt;

/// What one side wants to send to a peer, or receive from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The other side.
    pub peer: Rank,
    /// Bytes of the message.
    pub bytes: usize,
    /// Type of its elements.
    pub dtype: Type,
    /// Blocks that share the message.
    pub blocks: usize,
    /// How the bytes travel.
    pub protocol: Protocol,
}

/// How the bytes of a message travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// In packets that carry their flag. The packet area holds the whole message, with room for
    /// [`PACKET_DEPTH`](super::layout::PACKET_DEPTH) such messages.
    Packet,
    /// Step by step through slots of the receiver's staging; a message may have any size.
    Staged {
        /// Bytes of a slot.
        slot_bytes: usize,
        /// Slots of a block: at least 2, so that one is filled while another is emptied.
        depth: usize,
    },
    /// Through the same slots, by asynchronous copies from and to scratch memory.
    Bulk {
        /// Bytes of a slot.
        slot_bytes: usize,
        /// Slots of a block, at least 2.
        depth: usize,
    },
    /// Into the peer's window, in one hop.
    Direct {
        /// Bytes of the window.
        window_bytes: usize,
    },
}

messages! {
    enum Protocol {
        Packet => "packet",
        Staged { .. } => "staged",
        Bulk { .. } => "bulk",
        Direct { .. } => "direct",
    }
}

/// Checks that the slots of a pipeline fit the staging of a block.
pub(crate) fn check_slots(
    shape: &LinkShape,
    protocol: Protocol,
    slot_bytes: usize,
    depth: usize,
) -> Result<(), TransferError> {
    let (min, max) = (2, shape.max_slots);
    if !(min..=max).contains(&depth) {
        return Err(TransferError::Depth { protocol, depth, min, max });
    }
    if slot_bytes == 0 {
        return Err(TransferError::EmptySlot);
    }
    let block_bytes = shape.block_bytes();
    if slot_bytes.checked_mul(depth).is_none_or(|all| all > block_bytes) {
        let per_peer_bytes = shape.staging_bytes;
        return Err(TransferError::SlotTooLarge { slot_bytes, depth, block_bytes, per_peer_bytes });
    }
    Ok(())
}

/// Why a transport cannot carry out a transfer.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransferError {
    /// The transport is already broken.
    Broken {
        /// Why.
        cause: Cause,
    },
    /// A peer that is not in the world.
    NoSuchPeer {
        /// The peer.
        peer: Rank,
        /// Ranks in the world.
        world_size: usize,
    },
    /// A transfer of a rank to itself.
    SelfTransfer {
        /// That rank.
        rank: Rank,
    },
    /// A peer whose memory this rank's kernels cannot access.
    Unreachable {
        /// This rank.
        rank: Rank,
        /// The peer.
        peer: Rank,
    },
    /// Memory of a link by posts that is shorter than the link says.
    PostedRoom {
        /// What is too short.
        what: &'static str,
        /// The peer.
        peer: Rank,
        /// Its bytes.
        bytes: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// More control lines than notices can name.
    ControlLines {
        /// The peer, whose lines they are.
        peer: Rank,
        /// Lines up to the last one that posts to the peer move.
        lines: u64,
        /// The most there may be.
        max: usize,
    },
    /// No blocks, or more than the transport has room for.
    Blocks {
        /// The requested number of blocks.
        blocks: usize,
        /// The number of blocks that there is room for.
        max: usize,
    },
    /// A pipeline that is too short, or longer than the number of slots.
    Depth {
        /// How the bytes were to travel.
        protocol: Protocol,
        /// The requested depth.
        depth: usize,
        /// The smallest allowed.
        min: usize,
        /// The largest that the transport has room for.
        max: usize,
    },
    /// A message larger than the room of a protocol that holds whole messages.
    TooLarge {
        /// How the bytes were to travel.
        protocol: Protocol,
        /// Bytes of the message.
        bytes: usize,
        /// Bytes there is room for.
        region: usize,
    },
    /// A window too short for the data written to it.
    WindowTooShort {
        /// The window's rank.
        rank: Rank,
        /// Its size in bytes.
        bytes: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// A one-shot all-reduce larger than the room for packets.
    OneShot {
        /// Bytes of the message.
        bytes: usize,
        /// Bytes there is room for.
        region: usize,
    },
    /// The slots of a block do not fit its staging.
    SlotTooLarge {
        /// Bytes of a slot.
        slot_bytes: usize,
        /// Slots of a block.
        depth: usize,
        /// Bytes of staging of a block.
        block_bytes: usize,
        /// Bytes of staging of all blocks.
        per_peer_bytes: usize,
    },
    /// A slot of no bytes.
    EmptySlot,
    /// A size that is not a multiple of the element size.
    NotElements {
        /// What has this size.
        what: &'static str,
        /// The size.
        bytes: usize,
        /// The element.
        dtype: Type,
    },
    /// A buffer that is not aligned for its elements.
    Unaligned {
        /// Where it begins.
        address: usize,
        /// The element.
        dtype: Type,
    },
    /// A protocol that cannot run what was asked of it.
    Unable {
        /// How the bytes were to travel.
        protocol: Protocol,
        /// What it cannot do, and what can.
        why: &'static str,
    },
    /// Groups of neighbours that tiles would split.
    TornGroup {
        /// Elements of a group.
        group: usize,
        /// Elements of a tile along the same axis.
        tile: usize,
    },
    /// A group of neighbours that fits no slot.
    GroupTooLarge {
        /// Elements of a group.
        group: usize,
        /// Bytes of a slot.
        slot_bytes: usize,
        /// Bytes of a slot that holds a group.
        needed: usize,
        /// Slots of a block, at least.
        depth: usize,
        /// Bytes of staging per peer to ask for first, if such slots do not fit the current staging.
        per_peer_bytes: Option<usize>,
    },
    /// Groups of neighbours that the shards of a reduction would split.
    TornShard {
        /// Elements of a group.
        group: usize,
        /// Elements of a shard.
        shard: usize,
        /// A tensor length that puts whole groups into every shard.
        padded: usize,
    },
    /// The output overlaps memory that is read meanwhile.
    Overlap {
        /// What is read: the input, or a tensor that a hook captures, with its position.
        what: String,
        /// The size of the memory that is read, in bytes.
        bytes: usize,
    },
    /// A tensor that does not split into one equal chunk for each rank.
    Uneven {
        /// The tensor.
        what: &'static str,
        /// Its number of elements.
        len: usize,
        /// Ranks in the world.
        ranks: usize,
    },
    /// A tensor of several rows, of which one axis does not split into one equal part for each rank.
    UnevenAxis {
        /// The tensor.
        what: &'static str,
        /// The axis that chunks divide.
        axis: Axis,
        /// Its extent.
        extent: usize,
        /// Ranks in the world.
        ranks: usize,
    },
    /// An algorithm of two levels in a world of one level, or with settings that leave no room for it.
    NotTwoLevel {
        /// The collective.
        collective: &'static str,
        /// What is missing, and what to do.
        why: &'static str,
    },
    /// An algorithm that does not exist for this collective.
    NoAlgorithm {
        /// The algorithm.
        algorithm: &'static str,
        /// The collective.
        collective: &'static str,
    },
    /// A buffer smaller than the message.
    BufferTooSmall {
        /// Bytes of the message.
        bytes: usize,
        /// Bytes of the buffer.
        buffer: usize,
    },
}

errors! {
    enum TransferError {
        Broken { cause } => "the transport is broken: {cause}; only a new rendezvous of all ranks recovers",
        NoSuchPeer { peer, world_size } => "rank {peer} is not in this world: there are {world_size} ranks, from 0",
        Unreachable { rank, peer } =>
            "kernels of rank {rank} cannot load and store in the memory of rank {peer}: use another transport",
        PostedRoom { what, peer, bytes, needed } =>
            "{what} for rank {peer} has {bytes} bytes, and the constants of the link need {needed}: make it that long, or \
             let the transport's link(peer) say less staging_bytes, max_blocks or max_slots",
        ControlLines { peer, lines, max } =>
            "posts to rank {peer} move slots on up to {lines} control lines, and a notice names one of {max}: ask for \
             fewer max_blocks_per_peer or max_slots at the rendezvous",
        SelfTransfer { rank } => "rank {rank} cannot send to itself: copy, or name another peer",
        Blocks { blocks, max } => { |f|
            write!(f, "{blocks} blocks: this transport takes 1 to {max} per peer")?;
            let ask = |f: &mut fmt::Formatter<'_>| {
                write!(f, ": use fewer, or ask for max_blocks_per_peer: {blocks} at the rendezvous")
            };
            if blocks > max { ask(f) } else { write!(f, ": use at least one") }
        },
        Depth { protocol, depth, min, max } => { |f|
            write!(f, "a depth of {depth}: {protocol} takes {min} to {max} on this transport")?;
            let ask = |f: &mut fmt::Formatter<'_>| {
                write!(f, ": use less, or ask for max_slots: {depth} at the rendezvous")
            };
            if depth > max { ask(f) } else { write!(f, ": use at least {min}") }
        },
        TooLarge { protocol, bytes, region } => { |f|
            let room = match protocol {
                Protocol::Direct { .. } => "the window has",
                _ => "there is room for",
            };
            write!(
                f,
                "a message of {bytes} bytes: {protocol} holds the whole message, and {room} {region}; use staged, which goes step by step, or "
            )?;
            match (protocol, region) {
                (Protocol::Direct { .. }, _) => write!(f, "a window of {bytes} bytes"),
                (_, 0) => write!(f, "ask for packet_bytes at the rendezvous"),
                _ => write!(f, "ask for {} times the packet_bytes at the rendezvous", bytes.div_ceil(*region)),
            }
        },
        WindowTooShort { rank, bytes, needed } =>
            "the window of rank {rank} has {bytes} bytes, and {needed} are needed: allocate windows of one length on \
             all ranks, that of the longest output",
        OneShot { bytes, region } =>
            "a one-shot all-reduce of {bytes} bytes: it goes in packets, and there is room for {region}; use \
             two-phase, or ask for more packet_bytes at the rendezvous",
        SlotTooLarge { slot_bytes, depth, block_bytes, per_peer_bytes } => { |f|
            let needed = slot_bytes.saturating_mul(*depth).checked_next_multiple_of(LINE).unwrap_or(usize::MAX);
            let blocks = per_peer_bytes.checked_div(*block_bytes).unwrap_or(1);
            write!(
                f,
                "{depth} slots of {slot_bytes} bytes do not fit the {block_bytes} bytes of staging of a block (of \
                 {per_peer_bytes} per peer): use smaller slots, or ask for per_peer_bytes: {} at the rendezvous",
                needed.saturating_mul(blocks)
            )
        },
        EmptySlot => "a slot of 0 bytes carries nothing: give it at least one element",
        NotElements { what, bytes, dtype } =>
            "a {what} of {bytes} bytes is not a whole number of elements of type {dtype}",
        Unaligned { address, dtype } => "a buffer at {address:#x} is not aligned for elements of type {dtype}",
        Unable { protocol, why } => "{protocol} cannot do this: {why}",
        TornGroup { group, tile } =>
            "groups of {group} elements do not fit tiles of {tile}: say granule({group}) on both sides, or use groups \
             whose size divides the tile",
        GroupTooLarge { group, slot_bytes, needed, depth, per_peer_bytes } => { |f|
            write!(f, "no slot of {slot_bytes} bytes holds a group of {group} elements: ")?;
            if let Some(bytes) = per_peer_bytes {
                write!(f, "ask for per_peer_bytes = {bytes} at the rendezvous, and ")?;
            }
            write!(f, "use staged with slot_bytes = {needed}, depth = {depth} and granule({group})")
        },
        TornShard { group, shard, padded } =>
            "shards of {shard} elements, one for each rank, are not a whole number of groups of {group}: pad the \
             tensor to {padded}",
        Overlap { what, bytes } =>
            "the output lies over {what} ({bytes} bytes), which would be overwritten before all of it is read: use \
             two tensors (in place, a hook reads only the position that it writes)",
        Uneven { what, len, ranks } => (
            "{what} has {len} elements, which do not make {ranks} equal chunks, one for each rank: pad it to {}",
            len.next_multiple_of((*ranks).max(1))
        ),
        UnevenAxis { what, axis, extent, ranks } => (
            "{what} has {extent} {axis}, which do not make {ranks} equal chunks, one for each rank: pad them to {}, or \
             say along(..) for the other axis",
            extent.next_multiple_of((*ranks).max(1))
        ),
        NotTwoLevel { collective, why } =>
            "a two-level {collective} is not possible here: {why}; or use one-shot, or leave the algorithm out",
        NoAlgorithm { algorithm, collective } =>
            "there is no {algorithm} {collective}: leave the algorithm out, or see Algorithm for what there is",
        BufferTooSmall { bytes, buffer } => "a message of {bytes} bytes does not fit a buffer of {buffer} bytes",
    }
}
