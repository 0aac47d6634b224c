//! A rank's part of a mesh before the domains are joined, and how they are joined.
#![forbid(unsafe_code)]

use super::far::{FarMemory, flushed_lines, lines_of};
use super::{Joint, MeshOptions, MeshTransport, Near};
use crate::tensor::Memory;
use crate::transport::proxy::{
    Carrier, Event, LoopCarrier, LoopEnd, PostedTo, Proxy, ProxyError, ProxyParts, ProxyThread, ThreadWork, Write,
};
use crate::transport::rendezvous::Shared;
use crate::transport::{Rank, TransportError};
use std::sync::Arc;

/// The parts of a transport that a rank makes before the domains are joined.
pub(super) struct Half {
    pub(super) near: Near,
    pub(super) domains: Vec<Vec<u32>>,
    pub(super) far: FarMemory,
}

impl Half {
    pub(super) fn rank(&self) -> Rank {
        self.near.transport().rank()
    }

    pub(super) fn end(&self) -> LoopEnd {
        LoopEnd::new(self.far.targets(), self.far.bell.clone())
    }

    /// Joins the domains. Collective.
    pub(super) fn meet<S>(self, world: &Shared, options: &MeshOptions<S>) -> Result<MeshTransport, TransportError> {
        if !world.are_threads() || options.is_over_network() {
            if self.domains.len() == 1 {
                return self.join(world, Box::new(Nowhere), Joint::None, false);
            }
            #[cfg(feature = "fabric")]
            return super::network::join(self, world, &options.network);
            #[cfg(not(feature = "fabric"))]
            return Err(TransportError::NoNetwork);
        }
        let ends = world.show("mesh", Arc::new(self.end()), world.deadline())?.expect("ranks are threads");
        let carrier = LoopCarrier::new(self.rank().index(), ends.clone(), options.seed);
        self.join(world, Box::new(carrier), Joint::Loop(ends), options.thread)
    }

    /// Makes the transport over a carrier, as [`over`](Self::over) does. Collective: if a rank cannot, all get an
    /// error.
    pub(super) fn join(
        self,
        world: &Shared,
        carrier: Box<dyn Carrier>,
        joint: Joint,
        relieves: bool,
    ) -> Result<MeshTransport, TransportError> {
        world.all_have("mesh/driven", self.over(carrier, joint, relieves), world.deadline())
    }

    /// Makes the transport over a carrier. If this rank has far peers, its proxy has a thread. On a CPU, `relieves`
    /// says whether that thread also takes over from waiting threads that sleep.
    pub(super) fn over(
        self,
        carrier: Box<dyn Carrier>,
        joint: Joint,
        relieves: bool,
    ) -> Result<MeshTransport, TransportError> {
        let (me, Half { near, domains, far }) = (self.rank(), self);
        let (layout, control, ranks) = (near.layout(), near.control(), near.transport().world_size());
        let is_far = |peer: Rank| far.peers[peer.index()].is_some();
        let (queue, sources, segment) = (far.ring.queue(0), far.outboxes(), far.lines.clone());
        let to = |peer: Rank| {
            let regions = vec![Some(layout.geometry().per_peer_bytes as u64)];
            is_far(peer).then(|| PostedTo {
                regions,
                lines: lines_of(layout, me),
                flushed: flushed_lines(layout, peer),
            })
        };
        let proxy = Proxy::new(ProxyParts {
            rank: me.index(),
            carrier,
            peers: Rank::all(ranks).map(to).collect(),
            sources,
            segment,
            inbound: Rank::all(ranks).filter(|&peer| is_far(peer)).flat_map(|peer| lines_of(layout, peer)).collect(),
            doorbell: far.bell.clone(),
            aborts: control.aborts(),
            ring: far.ring,
        });
        let door = near.transport().door().expect("both have a door").clone();
        let departures = door.departures().filter(|_| !matches!(joint, Joint::Loop(_))).cloned();
        let proxy = Arc::new(match departures {
            Some(departures) => proxy.with_departures(departures),
            None => proxy,
        });
        let (on_gpu, has_far) = (near.transport().seat().is_some(), far.peers.iter().any(Option::is_some));
        #[cfg(feature = "cuda")]
        if let Near::Nvl(near) = &near {
            near.post_by(&proxy);
        }
        let work = match (&joint, relieves || on_gpu) {
            (Joint::Loop(_), false) => ThreadWork::Computing,
            (Joint::Loop(_), true) => ThreadWork::Sleeping,
            // Arrivals from a network ring no bell, so the thread polls.
            _ => ThreadWork::Polling,
        };
        // On a CPU, waiting threads sleep on the rank's doorbell. The proxy's thread must not sleep there, because each
        // signal of a near peer would wake it.
        let bell = on_gpu.then_some(far.bell);
        let thread = match has_far {
            true => Some(ProxyThread::start(&proxy, bell, work)?),
            false => None,
        };
        let door = door.with_proxy(proxy);
        Ok(MeshTransport { thread, near, domains, far: far.peers, lines: far.lines, queue, door, joint })
    }
}

/// The carrier of ranks that have no far peers.
struct Nowhere;

impl Carrier for Nowhere {
    fn write(&mut self, write: &Write<'_>) -> Result<bool, ProxyError> {
        Err(ProxyError::Peer { peer: write.peer })
    }

    fn open(&mut self, _: u16, _: &Memory, _: &[usize]) -> Result<(), ProxyError> {
        Ok(())
    }

    fn close(&mut self, _: u16) {}

    fn place(&self, _: u16) -> Vec<u8> {
        Vec::new()
    }

    fn reach(&mut self, _: usize, _: u16, _: &[u8]) -> Result<(), ProxyError> {
        Ok(())
    }

    fn reads(&self, _: &Memory) -> bool {
        false
    }

    fn lend(&mut self, _: &Memory) -> Result<(), ProxyError> {
        Ok(())
    }

    fn give_back(&mut self, _: &Memory) {}

    fn unconfirmed(&mut self, _: usize) -> Result<usize, ProxyError> {
        Ok(0)
    }

    fn flush_arrivals(&mut self) -> Result<(), ProxyError> {
        Ok(())
    }

    fn poll(&mut self, _: &mut Vec<Event>) -> Result<(), ProxyError> {
        Ok(())
    }
}
