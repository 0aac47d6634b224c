//! The transport of ranks that reach each other only by a network.

#[cfg(feature = "cuda")]
use super::NvlOptions;
use super::{MeshOptions, MeshTransport, NetworkOptions, ShmOptions, Transport};
#[cfg(feature = "cuda")]
use crate::cuda::Device;
use crate::transport::fabric::Choice;
use crate::transport::{TransportError, World};
use std::fmt;
#[cfg(feature = "cuda")]
use std::sync::Arc;

/// The sizes of a [`FabricTransport`], and its network. The sizes must be the same on all ranks: [`ShmOptions`] on
/// CPUs, `NvlOptions` on GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricOptions<S = ShmOptions> {
    /// The sizes of staging and slots.
    pub sizes: S,
    /// The number of descriptors that the ring of posts holds. The default is 1024.
    pub ring: Option<usize>,
    /// The provider, its address, and its limits. The default reads `TILEWIRE_FABRIC_PROVIDER` and
    /// `TILEWIRE_FABRIC_ADDRESS`.
    pub network: NetworkOptions,
}

impl FabricOptions {
    /// The default sizes over this provider of libfabric.
    pub fn provider(name: &str) -> FabricOptions {
        FabricOptions { network: NetworkOptions::default().provider(name), ..FabricOptions::default() }
    }
}

impl<S: Default> FabricOptions<S> {
    fn of_mesh(self, ranks: usize) -> MeshOptions<S> {
        let FabricOptions { sizes, ring, network } = self;
        MeshOptions { sizes, ring, network, over_network: true, ..MeshOptions::alone(ranks) }
    }
}

/// The transport of ranks that post everything to each other over a network of libfabric: processes on one or several
/// hosts, or threads, which run on CPUs or GPUs. It is a [`MeshTransport`] in which every rank is a domain of its own.
/// Where several ranks share a host, a `MeshTransport` is faster.
///
/// Each rank tries the providers verbs, efa, cxi and tcp in this order, and takes the first one that passes a trial.
/// All ranks must come to the same provider. `Display` says which one that is, and why.
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

/// Makes a [`FabricTransport`] over the provider `verbs`. It fails rather than choose a slower provider. Collective.
pub fn ib_rendezvous(world: &World, options: FabricOptions) -> Result<IbTransport, TransportError> {
    let network = options.network.clone().provider("verbs");
    FabricTransport::rendezvous(world, FabricOptions { network, ..options })
}

impl FabricTransport {
    /// Makes a transport. Collective: every rank of the world calls it, with the same sizes.
    pub fn rendezvous(world: &World, options: FabricOptions) -> Result<FabricTransport, TransportError> {
        Ok(FabricTransport(MeshTransport::rendezvous(world, options.of_mesh(world.size()))?))
    }

    /// Makes a transport of ranks on GPUs, which are threads of one process. Collective, as
    /// [`rendezvous`](Self::rendezvous).
    #[cfg(feature = "cuda")]
    pub fn rendezvous_on(
        world: &World,
        device: &Arc<Device>,
        options: FabricOptions<NvlOptions>,
    ) -> Result<FabricTransport, TransportError> {
        Ok(FabricTransport(MeshTransport::rendezvous_on(world, device, options.of_mesh(world.size()))?))
    }

    /// The network. `None` if the world is one rank.
    pub fn network(&self) -> Option<&Choice> {
        self.0.network()
    }

    /// The number of bytes that this rank has sent.
    pub fn carried_bytes(&self) -> u64 {
        self.0.carried_bytes()
    }

    /// Closes the transport, when all ranks have called this. Collective, as [`MeshTransport::close`].
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
            None => f.write_str("no network: there is one rank"),
        }
    }
}

impl fmt::Debug for FabricTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FabricTransport(rank {} of {}, over {self})", self.0.rank(), self.0.world_size())
    }
}
