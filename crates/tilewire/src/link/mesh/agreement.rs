//! What all ranks of a mesh agree on before they make anything.
#![forbid(unsafe_code)]

use super::MeshOptions;
use super::domains::{self, check, found};
#[cfg(feature = "cuda")]
use crate::cuda::Device;
use crate::transport::layout::{Geometry, LINE, Layout};
use crate::transport::proxy::MOST_LINES;
use crate::transport::rendezvous::{Parameters, Shared};
use crate::transport::{Rank, TransportError};
use std::fmt;
#[cfg(feature = "cuda")]
use std::sync::Arc;

/// The most descriptors of a ring, which then has 64 MiB.
const MOST_DESCRIPTORS: usize = 1 << 20;

/// Agrees on the options, and on the domains if they are given or must be found. `finds` has the number and name of
/// this rank's device, and a closure that says whether this rank's kernels reach another rank's memory. Collective.
pub(super) fn agreed<S: fmt::Debug>(
    world: &Shared,
    options: &MeshOptions<S>,
    engine: &'static str,
    geometry: Geometry,
    finds: Option<((String, String), impl Fn(&domains::Place, &domains::Place) -> Result<bool, TransportError>)>,
) -> Result<Vec<Vec<u32>>, TransportError> {
    let ranks = world.size();
    let objection = (options.domains.as_ref().and_then(|given| check(given, ranks).err()))
        .or_else(|| (!world.are_threads() && engine == "gpu").then(not_threads))
        .or_else(|| objections(options, geometry));
    Parameters::new("mesh")
        .with("engine", engine)
        .with("domains", format!("{:?}", options.domains))
        .with("ring", format!("{:?}", options.ring))
        .with("seed", format!("{:?}", options.seed))
        .with("network", if options.is_over_network() { "also among threads" } else { "among processes" })
        .object(objection)
        .agree(world, &[], world.deadline())?;
    match (&options.domains, finds) {
        (Some(given), _) => Ok(given.clone()),
        (None, Some((device, reaches))) => found(world, device, reaches),
        (None, None) => Ok(Vec::new()),
    }
}

pub(super) fn objections<S>(options: &MeshOptions<S>, geometry: Geometry) -> Option<TransportError> {
    too_many_lines(geometry).or_else(|| options.ring.and_then(bad_ring))
}

fn not_threads() -> TransportError {
    let what = "a mesh of GPU ranks works only among threads of one process: use World::threads".to_string();
    TransportError::Peer { rank: Rank::new(0), what }
}

fn bad_ring(ring: usize) -> Option<TransportError> {
    let expected = format!("1 to {MOST_DESCRIPTORS} descriptors");
    let is_good = (1..=MOST_DESCRIPTORS).contains(&ring);
    (!is_good).then_some(TransportError::BadOption { option: "ring", value: ring, expected })
}

/// The error for a geometry with more control lines than a notice can name in its 20 bits.
fn too_many_lines(geometry: Geometry) -> Option<TransportError> {
    let layout = Layout::new(geometry)?;
    let lines = layout.lines().len() / LINE;
    (lines > MOST_LINES).then(|| TransportError::BadOption {
        option: "max_slots",
        value: geometry.max_slots,
        expected: format!(
            "so small (or max_blocks_per_peer or window_sets so small) that a rank has at most {MOST_LINES} control lines; it has {lines}"
        ),
    })
}

/// True if kernels of a device reach the memory of a rank at this place.
#[cfg(feature = "cuda")]
pub(super) fn reaches_place(device: &Arc<Device>, other: &domains::Place) -> Result<bool, TransportError> {
    if other.device == device.uuid() {
        return Ok(true);
    }
    // This path, for several devices of one process, has never been run.
    let ordinal = other.ordinal.parse().ok().filter(|_| other.is_in_this_process());
    let peer = ordinal.map(Device::open).transpose()?;
    Ok(peer.map(|peer| device.reaches(&peer)).transpose()?.unwrap_or(false))
}
