//! Checks whether a transport can do one side of a transfer.
//!
//! Everything refused here would otherwise silently corrupt the next peer's region, or hang.

use super::Transport;
use crate::tensor::Memory;
use crate::transport::layout::{LINE, PACKET, PACKET_DEPTH};
use crate::transport::proxy::MOST_LINES;
use crate::transport::{
    LinkKind, LinkShape, PeerMemory, PostedLines, PostedPeer, Protocol, Rank, Signals, There, Transfer, TransferError,
    check_slots,
};

/// Checks that this transport can do this transfer with these buffers (input or output, whichever the caller has).
///
/// ```
/// use tilewire::ir::Type;
/// use tilewire::link::{ShmOptions, ShmTransport, check_transfer};
/// use tilewire::transport::{Protocol, Transfer, TransferError};
/// use tilewire::{Tensor, World};
///
/// World::threads(2).run(|world| {
///     let options = ShmOptions { per_peer_bytes: Some(1 << 16), ..Default::default() };
///     let transport = ShmTransport::rendezvous(&world, options)?;
///     let x = Tensor::<f32>::zeros(1 << 20);
///     let transfer = Transfer {
///         peer: world.next(),
///         bytes: 4 << 20,
///         dtype: Type::F32,
///         blocks: 1,
///         protocol: Protocol::Staged { slot_bytes: 4096, depth: 2 },
///     };
///     check_transfer(&transport, &transfer, &[x.memory()])?; // larger than the staging: it goes step by step
///
///     let myself = Transfer { peer: world.rank(), ..transfer };
///     let error = check_transfer(&transport, &myself, &[x.memory()]).unwrap_err();
///     assert_eq!(error, TransferError::SelfTransfer { rank: world.rank() });
///     Ok(transport.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
pub fn check_transfer(
    transport: &dyn Transport,
    transfer: &Transfer,
    buffers: &[&Memory],
) -> Result<(), TransferError> {
    let &Transfer { peer, bytes, dtype, blocks, protocol } = transfer;
    if let Some(cause) = transport.broken() {
        return Err(TransferError::Broken { cause });
    }
    let (rank, world_size) = (transport.rank(), transport.world_size());
    if peer.index() >= world_size {
        return Err(TransferError::NoSuchPeer { peer, world_size });
    }
    if peer == rank {
        return Err(TransferError::SelfTransfer { rank });
    }
    let Some(endpoint) = transport.endpoint(peer) else {
        return Err(TransferError::Unreachable { rank, peer });
    };
    let shape = transport.link(peer);
    if let There::Posted(posted) = &endpoint.there {
        check_posted(peer, &shape, &endpoint.here, posted)?;
        if let Protocol::Direct { .. } = protocol {
            check_sent(peer, &shape, posted)?;
        }
    }
    let is_posted = shape.kind == LinkKind::Fabric;
    if is_posted && protocol == Protocol::Packet {
        let why = "the peer is reached by posts, which carry no packets: use staged, or direct into a window";
        return Err(TransferError::Unable { protocol, why });
    }
    if matches!((&endpoint.there, protocol), (There::Posted(_), Protocol::Direct { .. })) && !transport.posts_windows()
    {
        let why = "the peer is reached by posts, and this transport posts into no windows: use staged";
        return Err(TransferError::Unable { protocol, why });
    }
    let max = shape.max_blocks;
    if blocks == 0 || blocks > max {
        return Err(TransferError::Blocks { blocks, max });
    }
    let size = dtype.size();
    let of_elements = |what: &'static str, bytes: usize| {
        if bytes.is_multiple_of(size) { Ok(()) } else { Err(TransferError::NotElements { what, bytes, dtype }) }
    };
    of_elements("message", bytes)?;
    for buffer in buffers {
        let address = buffer.start().as_ptr() as usize;
        if !address.is_multiple_of(size) {
            return Err(TransferError::Unaligned { address, dtype });
        }
        if buffer.bytes() < bytes {
            return Err(TransferError::BufferTooSmall { bytes, buffer: buffer.bytes() });
        }
    }
    let fits = |region: usize| {
        if bytes <= region { Ok(()) } else { Err(TransferError::TooLarge { protocol, bytes, region }) }
    };
    match protocol {
        Protocol::Packet => {
            // Blocks get equal parts of the packets, so the capacity of one block bounds them all.
            let packets = shape.block_packet_bytes() / PACKET / PACKET_DEPTH;
            fits(packets.saturating_mul(PACKET / 2).saturating_mul(blocks))
        }
        Protocol::Staged { slot_bytes, depth } | Protocol::Bulk { slot_bytes, depth } => {
            check_slots(&shape, protocol, slot_bytes, depth)?;
            of_elements("slot", slot_bytes)
        }
        Protocol::Direct { window_bytes } => {
            of_elements("window", window_bytes)?;
            fits(window_bytes)
        }
    }
}

/// The same for the lines that tell what was read of an input that is posted in place.
fn check_sent(peer: Rank, shape: &LinkShape, posted: &PostedPeer) -> Result<(), TransferError> {
    let (bytes, needed) = (posted.sent.bytes(), shape.max_blocks.saturating_mul(LINE));
    let what = "the area of SENTs";
    if bytes < needed { Err(TransferError::PostedRoom { what, peer, bytes, needed }) } else { Ok(()) }
}

/// Checks that what lies between this rank and a peer that it posts to is as large as the link says. Kernels address it
/// by the constants of the link alone, and a notice has 20 bits for a control line.
fn check_posted(peer: Rank, shape: &LinkShape, here: &PeerMemory, posted: &PostedPeer) -> Result<(), TransferError> {
    let &LinkShape { staging_bytes, max_blocks, max_slots, .. } = shape;
    let slots = max_blocks.saturating_mul(max_slots);
    let Signals { tail, head, .. } = &here.signals;
    let room = [
        ("the outbox", &posted.outbox, staging_bytes),
        ("the staging", &here.staging, staging_bytes),
        ("the area of TAILs", tail, slots.saturating_mul(LINE)),
        ("the area of HEADs", head, slots.saturating_mul(LINE)),
    ];
    for (what, memory, needed) in room {
        let bytes = memory.bytes();
        if bytes < needed {
            return Err(TransferError::PostedRoom { what, peer, bytes, needed });
        }
    }
    let PostedLines { tail, head, ready, done, .. } = posted.lines;
    let lines = [(tail, slots), (head, slots), (ready, max_blocks), (done, max_blocks)];
    let lines = lines.map(|(first, count)| first.saturating_add(count as u64)).into_iter().max().unwrap_or(0);
    if lines > MOST_LINES as u64 {
        return Err(TransferError::ControlLines { peer, lines, max: MOST_LINES });
    }
    Ok(())
}
