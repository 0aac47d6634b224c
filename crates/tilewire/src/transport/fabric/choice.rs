//! Chooses a provider. Each candidate must pass a trial, because some providers report abilities that they do not have.
#![forbid(unsafe_code)]

use super::error::NetworkError;
use super::options::FabricOptions;
use super::trial::Trial;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use tilewire_fabric::{Domain, Endpoint, EndpointOptions, FabricError, Library, Provider, Query};

/// The providers that are tried, in this order, when the user names none. `shm` is not one of them, because ranks of
/// one host share memory without it.
const CANDIDATES: [&str; 4] = ["verbs", "efa", "cxi", "tcp"];
/// Providers that do not use IP addresses.
const WITHOUT_IP: [&str; 3] = ["efa", "cxi", "shm"];

/// The side that confirms that the bytes of a write are in the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Confirmation {
    /// The provider confirms it (`FI_DELIVERY_COMPLETE`).
    Provider,
    /// The peer's carrier confirms it by sending every number back. This needs numbers of 8 bytes, which identify their
    /// sender.
    Echo,
}

/// The number that travels beside the bytes of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Numbers {
    /// A notice, and a secret of this pair of ranks, so that numbers of strangers are dropped.
    Guarded,
    /// A notice alone. Any host that can reach this rank can send notices, so the network must be private.
    Bare,
}

/// The provider of a carrier, and the reason for its choice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The name of the provider, for example `tcp;ofi_rxm`.
    pub provider: String,
    /// The interface or device.
    pub device: String,
    /// Everything about the provider in one line.
    pub description: String,
    /// The version of libfabric: major, minor.
    pub library: (u32, u32),
    /// The side that confirms writes.
    pub confirmation: Confirmation,
    /// The kind of number that travels beside the bytes.
    pub numbers: Numbers,
    /// True if the user named the provider.
    pub named: bool,
    /// The candidates that failed before this one passed, each with its reason.
    pub passed_over: Vec<(String, String)>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { provider, device, library: (major, minor), .. } = self;
        write!(f, "{provider} on {device}, libfabric {major}.{minor}")?;
        if self.numbers == Numbers::Bare {
            f.write_str(", for private networks only")?;
        }
        match self.named {
            true => f.write_str(" (as named)"),
            false if self.passed_over.is_empty() => Ok(()),
            false => {
                let names: Vec<&str> = self.passed_over.iter().map(|(name, _)| name.as_str()).collect();
                write!(f, " (after {} failed)", names.join(", "))
            }
        }
    }
}

/// Opens the first candidate that passes its trial.
pub(super) fn choose(options: &FabricOptions) -> Result<(Endpoint, Choice), NetworkError> {
    let library = match &options.library {
        Some(file) => Library::open_at(file)?,
        None => Library::open()?,
    };
    let candidates: Vec<&str> = match &options.provider {
        Some(name) => vec![name],
        None => CANDIDATES.to_vec(),
    };
    let mut tried = Vec::new();
    for name in candidates {
        match open(library, name, options) {
            Ok((endpoint, confirmation, numbers)) => {
                let provider = endpoint.provider();
                let choice = Choice {
                    provider: provider.name(),
                    device: provider.device(),
                    description: provider.to_string(),
                    library: library.version(),
                    confirmation,
                    numbers,
                    named: options.provider.is_some(),
                    passed_over: tried,
                };
                return Ok((endpoint, choice));
            }
            Err(what) => tried.push((name.to_string(), what)),
        }
    }
    Err(NetworkError::NoProvider { tried })
}

/// Opens an endpoint of a provider and tries it. The error is text for the user.
fn open(library: Library, name: &str, options: &FabricOptions) -> Result<(Endpoint, Confirmation, Numbers), String> {
    let text = |error: FabricError| error.to_string();
    // An IP address is passed to the provider. Any other text is a name, which is compared with those of its devices.
    let is_ip = options.address.as_ref().is_some_and(|address| address.parse::<IpAddr>().is_ok());
    let device = options.address.as_ref().filter(|_| !is_ip);
    let address = options.address.clone().filter(|_| is_ip && !WITHOUT_IP.contains(&name));
    let query = Query { provider: Some(name.to_string()), address, ordered: false };
    let all = Provider::list(library, &query).map_err(text)?;
    let devices: Vec<String> = all.iter().map(Provider::device).collect();
    let fits = |provider: &Provider| device.is_none_or(|device| provider.device() == *device);
    let provider = all.into_iter().find(fits).ok_or_else(|| {
        format!("it has no device {:?}; it has {devices:?}", device.map_or("", |device| device.as_str()))
    })?;
    let numbers = match provider.data_bytes() {
        8.. if !options.is_bare => Numbers::Guarded,
        4.. => Numbers::Bare,
        few => return Err(format!("numbers of {few} bytes beside a write: at least 4 are needed")),
    };
    let provider = Arc::new(provider);
    let confirmations = [Confirmation::Provider, Confirmation::Echo];
    let wanted = |confirmation: &Confirmation| options.confirmation.is_none_or(|wanted| wanted == *confirmation);
    let mut why = String::new();
    for confirmation in confirmations.into_iter().filter(wanted) {
        let is_possible = match confirmation {
            Confirmation::Provider => provider.confirms_delivery(),
            Confirmation::Echo => numbers == Numbers::Guarded,
        };
        if !is_possible {
            why += match confirmation {
                Confirmation::Provider => "it does not confirm delivery; ",
                Confirmation::Echo => "its numbers have no room for a confirmation by the peer; ",
            };
            continue;
        }
        let EndpointOptions { queue, .. } = EndpointOptions::default();
        let wanted = EndpointOptions { under_way: options.under_way, queue, descriptor: options.descriptor };
        let domain = Domain::open(provider.clone()).map_err(text)?;
        let mut endpoint = Endpoint::open(&domain, &wanted).map_err(text)?;
        match Trial::run(&mut endpoint, confirmation, numbers) {
            Ok(()) => return Ok((endpoint, confirmation, numbers)),
            Err(what) => why += &format!("confirmed by {confirmation:?}, {what}; "),
        }
    }
    Err(why.trim_end_matches("; ").to_string())
}
