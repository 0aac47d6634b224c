//! Windows of far ranks.
#![forbid(unsafe_code)]

use super::{Joint, MeshTransport};
use crate::link::Transport;
use crate::link::window::WindowParts;
use crate::transport::proxy::PostedRegion;
use crate::transport::rendezvous::{Parameters, Shared};
use crate::transport::{Rank, TransportError};

impl MeshTransport {
    /// Registers a window with this rank's proxy and carrier, under a number that is the same on all ranks. Collective.
    pub(super) fn region(&self, world: &Shared, parts: &WindowParts) -> Result<PostedRegion, TransportError> {
        let (proxy, deadline) = (self.proxy(), world.deadline());
        // The new number is one that no rank uses, neither for a window of its own nor for posts to one.
        let mine = proxy.regions().map_err(TransportError::from);
        let own = parts.peers[self.rank().index()].as_ref().expect("a rank reaches itself");
        let list = |used: &[u16]| used.iter().map(u16::to_string).collect::<Vec<_>>().join(" ");
        let said = Parameters::new("window regions")
            .with("used", mine.as_deref().map(list).unwrap_or_default())
            .with("bytes", own.bytes())
            .object(mine.err())
            .agree(world, &["used", "bytes"], deadline)?;
        // The first value is the version.
        let used = said.iter().filter_map(|values| values.get(1)).flat_map(|used| used.split(' '));
        let used: Vec<u16> = used.filter_map(|number| number.parse().ok()).collect();
        let number = (1..=u16::MAX).find(|number| !used.contains(number)).ok_or(TransportError::TooManyWindows);
        // The memory of a far rank that is a process is not mapped here, so its size is told.
        let far = |(rank, values): (Rank, &Vec<String>)| {
            let bytes = values.get(2).and_then(|bytes| bytes.parse::<usize>().ok());
            let what = || format!("it announced a window of {:?} bytes", values.get(2));
            let bytes = bytes.ok_or_else(|| TransportError::Peer { rank, what: what() })?;
            Ok(self.is_far(rank).then_some(bytes))
        };
        let bytes = Rank::all(self.world_size()).zip(&said).map(far).collect::<Result<_, TransportError>>();
        let region = number
            .and_then(|number| Ok(PostedRegion::register(proxy, &self.queue, number, own, bytes?)?))
            .and_then(|region| Ok((region.place()?, region)));
        // This is also a barrier: no rank posts to a peer that does not have the region yet.
        let (place, region) = world.all_have("window regions", region, deadline)?;
        if let Joint::Loop(_) = self.joint {
            return Ok(region);
        }
        let places = world.gather("window places", &place, deadline)?;
        let reached = region.reach(&places).map_err(TransportError::from);
        world.all_have("window places", reached.map(|()| region), deadline)
    }
}
