//! Ranks that reach each other by a network alone.

use super::{MeshOptions, MeshTransport, NetworkOptions, ShmOptions, Transport};
use crate::transport::fabric::Choice;
use crate::transport::{TransportError, World};
use std::fmt;

/// How large a [`FabricTransport`] is, and which network it goes over. The sizes are the same on all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricOptions {
    /// Sizes of staging and slots.
    pub sizes: ShmOptions,
    /// Descriptors that the ring of posts holds; 1024 by default.
    pub ring: Option<usize>,
    /// The provider, its address, and its limits. The default asks `TILEWIRE_FABRIC_PROVIDER` and
    /// `TILEWIRE_FABRIC_ADDRESS`.
    pub network: NetworkOptions,
}

impl FabricOptions {
    /// The usual sizes over this provider of libfabric.
    pub fn provider(name: &str) -> FabricOptions {
        FabricOptions { network: NetworkOptions::default().provider(name), ..FabricOptions::default() }
    }
}

/// Ranks that are processes, on one or several hosts, and post everything to each other over a network that libfabric
/// reaches: a [`MeshTransport`] in which every rank is a domain of its own. Where several ranks share a host, a
/// `MeshTransport` is faster.
///
/// The providers verbs, efa, cxi and tcp are tried in this order, and the first one that passes a trial is taken, on
/// all ranks alike. `Display` says which one that is, and why.
///
/// ```no_run
/// use tilewire::link::{FabricOptions, FabricTransport};
/// use tilewire::{Tensor, World, all_reduce};
///
/// // On every host: torchrun, mpirun, srun or `tilewire launch --hosts a,b -n 4 -- program`.
/// let world = World::from_env()?;
/// let link = FabricTransport::rendezvous(&world, FabricOptions::default())?;
/// eprintln!("rank {} over {link}", world.rank());
/// let (inp, out) = (Tensor::from_slice(&[1.0f32; 1000]), Tensor::<f32>::zeros(1000));
/// all_reduce(&link, &out, &inp).run()?;
/// assert_eq!(out.get(0), world.size() as f32);
/// link.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FabricTransport(MeshTransport);

/// A [`FabricTransport`] over InfiniBand or RoCE: see [`ib_rendezvous`].
pub type IbTransport = FabricTransport;

/// Makes a [`FabricTransport`] over the provider `verbs`, or fails: nothing slower is ever chosen instead. Collective.
pub fn ib_rendezvous(world: &World, options: FabricOptions) -> Result<IbTransport, TransportError> {
    let network = options.network.clone().provider("verbs");
    FabricTransport::rendezvous(world, FabricOptions { network, ..options })
}

impl FabricTransport {
    /// Makes a transport. Collective: every rank of the world calls it, with the same sizes. If ranks are threads,
    /// posts are copied within the process.
    pub fn rendezvous(world: &World, options: FabricOptions) -> Result<FabricTransport, TransportError> {
        let FabricOptions { sizes, ring, network } = options;
        let options = MeshOptions { sizes, ring, network, ..MeshOptions::alone(world.size()) };
        Ok(FabricTransport(MeshTransport::rendezvous(world, options)?))
    }

    /// The network, unless the world is one rank or ranks are threads.
    pub fn network(&self) -> Option<&Choice> {
        self.0.network()
    }

    /// Bytes that this rank has sent.
    pub fn carried_bytes(&self) -> u64 {
        self.0.carried_bytes()
    }

    /// Ends it, when all ranks have come to do so. Collective, as [`MeshTransport::close`].
    pub fn close(self) -> Result<(), TransportError> {
        self.0.close()
    }

    pub(super) fn inside(&self) -> &MeshTransport {
        &self.0
    }
}

impl fmt::Display for FabricTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network() {
            Some(choice) => choice.fmt(f),
            None => f.write_str("copies within the process"),
        }
    }
}

impl fmt::Debug for FabricTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FabricTransport(rank {} of {}, over {self})", self.0.rank(), self.0.world_size())
    }
}
