//! The transports of a contest.
#![forbid(unsafe_code)]

use crate::run::Mesh;
use anyhow::Result;
use tilewire::link::{MeshTransport, ShmOptions, ShmTransport, Transport};
use tilewire::transport::fabric::Choice;
use tilewire::transport::{Cause, World};

/// Limits go through shared memory, and ours through shared memory or a mesh.
pub struct Links {
    /// Shared memory.
    pub shm: ShmTransport,
    mesh: Option<MeshTransport>,
}

impl Links {
    /// All ranks of the world call it.
    pub fn rendezvous(world: &World, mesh: Option<&Mesh>, options: ShmOptions) -> Result<Links> {
        let shm = ShmTransport::rendezvous(world, options)?;
        Ok(Links { shm, mesh: mesh.map(|mesh| mesh.transport(world, options)).transpose()? })
    }

    /// The transport of our sides.
    pub fn ours(&self) -> &dyn Transport {
        self.mesh().unwrap_or(&self.shm)
    }

    /// The transport of our sides, if it is another than that of the limits.
    pub fn mesh(&self) -> Option<&dyn Transport> {
        self.mesh.as_ref().map(|mesh| mesh as &dyn Transport)
    }

    /// The network of our sides, if they have one.
    pub fn network(&self) -> Option<&Choice> {
        self.mesh.as_ref().and_then(MeshTransport::network)
    }

    /// True if some ranks share memory and others post to each other.
    pub fn have_two_levels(&self) -> bool {
        let near = |mesh: &MeshTransport| mesh.domains().iter().any(|domain| domain.len() > 1);
        self.has_far() && self.mesh.as_ref().is_some_and(near)
    }

    /// True if ranks post to each other: packets and windows then become slots.
    pub fn has_far(&self) -> bool {
        self.mesh.as_ref().is_some_and(|mesh| mesh.domains().len() > 1)
    }

    /// Ends them, when all ranks have come to do so.
    pub fn close(self) -> Result<()> {
        self.mesh.map_or(Ok(()), MeshTransport::close)?;
        Ok(self.shm.close()?)
    }

    /// Tells all ranks that this one has failed.
    pub fn mark_broken(&self, cause: Cause) {
        self.shm.mark_broken(cause);
        if let Some(mesh) = &self.mesh {
            mesh.fail(cause);
        }
    }
}
