//! Windows of far ranks.
#![forbid(unsafe_code)]

use super::MeshTransport;
use crate::link::Transport;
use crate::link::window::WindowParts;
use crate::tensor::Memory;
use crate::transport::proxy::PostedRegion;
use crate::transport::rendezvous::{Parameters, Shared};
use crate::transport::{Rank, TransportError};

impl MeshTransport {
    /// Registers a window with this rank's proxy and carrier, under a number that is the same on all ranks. Collective.
    pub(super) fn region(&self, world: &Shared, parts: &WindowParts) -> Result<PostedRegion, TransportError> {
        let (proxy, deadline) = (self.proxy(), world.deadline());
        // The new number is one that no rank uses, neither for a window of its own nor for posts to one.
        let mine = proxy.regions().map_err(TransportError::from);
        let list = |used: &[u16]| used.iter().map(u16::to_string).collect::<Vec<_>>().join(" ");
        let said = Parameters::new("window regions")
            .with("used", mine.as_deref().map(list).unwrap_or_default())
            .object(mine.err())
            .agree(world, &["used"], deadline)?;
        let used = said.iter().filter_map(|values| values.last()).flat_map(|used| used.split(' '));
        let used: Vec<u16> = used.filter_map(|number| number.parse().ok()).collect();
        let number = (1..=u16::MAX).find(|number| !used.contains(number)).ok_or(TransportError::TooManyWindows);
        let far =
            |(rank, memory): (Rank, &Option<Memory>)| memory.as_ref().filter(|_| self.is_far(rank)).map(Memory::bytes);
        let bytes = Rank::all(self.world_size()).zip(&parts.peers).map(far).collect();
        let own = parts.peers[self.rank().index()].as_ref().expect("a rank reaches itself");
        let region = number.and_then(|number| Ok(PostedRegion::register(proxy, &self.queue, number, own, bytes)?));
        // This is also a barrier: no rank posts to a peer that does not have the region yet.
        let region = world.all_have("window regions", region, deadline)?;
        let place = region.place()?;
        // All carriers of a world are of one kind, so either all need places or none does.
        if !place.is_empty() {
            let hex = place.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let said = Parameters::new("window places").with("place", hex).agree(world, &[], deadline)?;
            let byte = |hex: &str, at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
            let bytes = |hex: &String| (0..hex.len()).step_by(2).map(|at| byte(hex, at)).collect::<Option<Vec<u8>>>();
            // A malformed place becomes empty here, and the carrier refuses it.
            let places: Vec<Vec<u8>> =
                said.iter().map(|said| said.last().and_then(bytes).unwrap_or_default()).collect();
            region.reach(&places)?;
        }
        Ok(region)
    }
}
