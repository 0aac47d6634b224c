//! Device memory of every rank, mapped by all that can reach it.

use crate::cuda::{Buffer, Device};
use crate::tensor::Memory;
use crate::transport::rendezvous::Shared;
use crate::transport::{SegmentOptions, SegmentSet, TransportError};
use std::sync::Arc;

/// The ranks that share memory.
pub(super) struct Sharing<'a> {
    pub(super) device: &'a Arc<Device>,
    /// Every rank's device number in its process.
    pub(super) ordinals: &'a [u32],
    /// Every rank's device name, valid in all processes.
    pub(super) devices: &'a [String],
    /// The purpose, as part of the names under which the ranks meet.
    pub(super) what: &'static str,
}

/// Gives every rank `bytes` bytes of zeroed memory on its device. Returns the memory of all ranks, `None` where kernels
/// of this rank cannot reach it. Collective. If ranks are processes, `control` has the sockets to the other ranks.
pub(super) fn share(
    world: &Shared,
    control: Option<&mut SegmentSet>,
    sharing: &Sharing<'_>,
    bytes: usize,
) -> Result<Vec<Option<Memory>>, TransportError> {
    let Sharing { device, ordinals, devices, what } = *sharing;
    // A rank that has no memory says so before another rank waits for it.
    let own = own_memory(device, ordinals, world.are_threads(), bytes);
    let own = world.all_have(&format!("{what}/memory"), own, world.deadline())?;
    if world.are_threads() {
        let all = world.show(what, own, world.deadline())?.expect("threads show each other");
        let reach = |buffer: &Arc<Buffer>| Ok(device.reaches(buffer.device())?.then(|| buffer.memory()));
        return all.iter().map(reach).collect();
    }
    let handed = hand_over(world, control, &own)?;
    let rank = world.rank().index();
    let map = |(peer, handed): (usize, Option<Handed>)| match handed {
        None => Ok(Some(own.memory())),
        Some(descriptor) => match import(device, bytes, &descriptor) {
            Ok(buffer) => Ok(Some(Arc::new(buffer).memory())),
            // A different device, to which this one has no link.
            Err(_) if devices[peer] != devices[rank] => Ok(None),
            Err(error) => Err(error),
        },
    };
    handed.into_iter().enumerate().map(map).collect()
}

/// Zeroed memory of this rank, which can be exported. If ranks are threads of this process, kernels of the ranks whose
/// devices can reach it may use it.
pub(super) fn own_memory(
    device: &Arc<Device>,
    ordinals: &[u32],
    are_threads: bool,
    bytes: usize,
) -> Result<Arc<Buffer>, TransportError> {
    let mut peers = Vec::new();
    for &ordinal in ordinals.iter().filter(|_| are_threads) {
        let peer = Device::open(ordinal)?;
        if peer.reaches(device)? {
            peers.push(peer);
        }
    }
    Ok(Arc::new(Buffer::shareable(device, bytes, &peers)?))
}

#[cfg(target_os = "linux")]
type Handed = std::os::fd::OwnedFd;
#[cfg(not(target_os = "linux"))]
type Handed = ();

#[cfg(target_os = "linux")]
fn import(device: &Arc<Device>, bytes: usize, descriptor: &Handed) -> Result<Buffer, TransportError> {
    use std::os::fd::AsFd;
    Ok(Buffer::import(device, bytes, descriptor.as_fd())?)
}

/// Passes a buffer's descriptor to every other process, and takes theirs. Indexed by rank; `None` for this rank.
#[cfg(target_os = "linux")]
fn hand_over(
    world: &Shared,
    control: Option<&mut SegmentSet>,
    own: &Buffer,
) -> Result<Vec<Option<Handed>>, TransportError> {
    use std::os::fd::AsFd;
    let descriptor = own.export().expect("a shareable buffer can be exported")?;
    let deadline = world.deadline();
    match control {
        Some(control) => Ok(control.swap_descriptors(descriptor.as_fd(), deadline)?),
        None => {
            // The transport's sockets belong to its monitor, so open others for this one exchange.
            let mut control = world.segments("gpu memory", 0, SegmentOptions::default(), deadline)?;
            Ok(control.swap_descriptors(descriptor.as_fd(), deadline)?)
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn import(_: &Arc<Device>, _: usize, (): &Handed) -> Result<Buffer, TransportError> {
    Err(crate::transport::SegmentError::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn hand_over(_: &Shared, _: Option<&mut SegmentSet>, _: &Buffer) -> Result<Vec<Option<Handed>>, TransportError> {
    Err(crate::transport::SegmentError::Unsupported.into())
}
