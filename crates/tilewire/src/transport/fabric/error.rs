//! The errors of the network.
#![forbid(unsafe_code)]

use tilewire_fabric::FabricError;

/// A carrier that could not be opened or connected, or memory that it refuses.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetworkError {
    /// libfabric is absent, or one of its calls failed.
    Fabric(FabricError),
    /// No provider passed its trial.
    NoProvider {
        /// The providers that were tried, each with the reason why it failed.
        tried: Vec<(String, String)>,
    },
    /// Ranks chose different providers.
    Differ {
        /// This rank, and the network that it chose.
        own: (usize, String),
        /// The other rank, and the network that it chose.
        other: (usize, String),
    },
    /// A rank's description of itself or of its memory is malformed.
    Card {
        /// The rank.
        rank: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// Some ranks did not say hello, or did not confirm this rank's hello, in time.
    Silent {
        /// The ranks whose hello did not arrive.
        unheard: Vec<usize>,
        /// The ranks that did not confirm this rank's hello.
        unconfirmed: Vec<usize>,
        /// How long this rank waited, in milliseconds.
        waited: u64,
        /// The provider and its device.
        provider: String,
    },
    /// The network to a rank failed while it was connected.
    Failed {
        /// The rank, if it is known.
        peer: Option<usize>,
        /// The message of the provider.
        what: String,
    },
    /// The rank is not connected.
    Unconnected {
        /// The rank.
        peer: usize,
    },
    /// Memory that the host cannot reach.
    Device,
    /// Memory of a device that could not be registered.
    DeviceMemory {
        /// The number of bytes.
        bytes: usize,
        /// Why.
        what: String,
    },
    /// The system gives no random numbers.
    Random {
        /// The message of the system.
        what: String,
    },
}

errors! {
    enum NetworkError {
        Fabric(error) => "{error}",
        NoProvider { tried } => { |f| {
            f.write_str("no provider of libfabric passed its trial:")?;
            tried.iter().try_for_each(|(name, what)| write!(f, "\n  {name}: {what}"))?;
            f.write_str("\n(choose one with TILEWIRE_FABRIC_PROVIDER, and its address with TILEWIRE_FABRIC_ADDRESS)")
        } },
        Differ { own: (own, a), other: (other, b) } => { |f| {
            write!(f, "rank {own} chose the network {a}, and rank {other} chose {b}: ")?;
            match layered(a, b) {
                Some(name) => write!(f, "libfabric 1.18 and newer have both. Set TILEWIRE_FABRIC_PROVIDER={name:?} on all \
                    hosts, or install the same version of libfabric on all hosts"),
                None => f.write_str("set TILEWIRE_FABRIC_PROVIDER to one that all hosts have, or mend the host that lacks \
                    the faster one"),
            }
        } },
        Card { rank, what } => "the network description of rank {rank} is malformed ({what}): do all ranks run the same \
             version?",
        Silent { unheard, unconfirmed, waited, provider } => { |f| {
            write!(f, "no connection after {:.1} s over {provider}:", *waited as f64 / 1e3)?;
            if !unheard.is_empty() {
                write!(f, " ranks {unheard:?} were not heard;")?;
            }
            if !unconfirmed.is_empty() {
                write!(f, " ranks {unconfirmed:?} did not confirm;")?;
            }
            f.write_str(" can the hosts reach each other at these addresses? TILEWIRE_FABRIC_ADDRESS chooses others")
        } },
        Failed { peer: Some(peer), what } => "the network to rank {peer} failed: {what}",
        Failed { peer: None, what } => "the network failed: {what}",
        Unconnected { peer } => "rank {peer} is not connected over the network",
        Device => "memory that only a device reaches cannot be registered with the network: use memory that the host reaches",
        DeviceMemory { bytes, what } => "{bytes} bytes of the device's memory cannot be registered with the network: \
             {what}",
        Random { what } => "the system gives no random numbers: {what}",
    }
    from { FabricError => Fabric }
}

/// The name of the layered provider, if one rank chose `tcp` (say) and the other the same provider below a layer, such
/// as `tcp;ofi_rxm`. Older versions of libfabric have the second one alone, and the two do not understand each other.
fn layered<'n>(a: &'n str, b: &'n str) -> Option<&'n str> {
    let [a, b] = [a, b].map(|text| text.split_once(' ').map_or(text, |(name, _)| name));
    let is_below = |name: &str, layered: &str| layered.strip_prefix(name).is_some_and(|rest| rest.starts_with(';'));
    if is_below(a, b) { Some(b) } else { is_below(b, a).then_some(a) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_with_libraries_of_two_ages_are_told_the_provider_that_both_have() {
        let said = |own: &str, other: &str| {
            NetworkError::Differ { own: (0, own.to_string()), other: (3, other.to_string()) }.to_string()
        };
        let (old, new) = ("tcp;ofi_rxm on eth0, libfabric 1.17", "tcp with numbers of 8 bytes");
        for said in [said(old, new), said(new, old)] {
            assert!(said.contains("TILEWIRE_FABRIC_PROVIDER=\"tcp;ofi_rxm\" on all hosts"), "{said}");
        }
        assert!(said("verbs;ofi_rxm on mlx5_0", "tcp on eth0").contains("one that all hosts have"));
        assert!(said("tcp on eth0", "tcp with numbers of 4 bytes").contains("one that all hosts have"));
    }
}
