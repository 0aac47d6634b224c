//! Chooses a provider. Each candidate must pass a trial, because some providers report abilities that they do not have.
#![forbid(unsafe_code)]

use super::devices::{self, Carries, DeviceMemory, NetworkDevice};
use super::error::NetworkError;
use super::options::FabricOptions;
use super::trial::Trial;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tilewire_fabric::{Domain, Endpoint, EndpointOptions, FabricError, Library, Provider, Query};

/// The providers that are tried, in this order, when the user names none. `shm` is not one of them, because ranks of
/// one host share memory without it.
const CANDIDATES: [&str; 4] = ["verbs", "efa", "cxi", "tcp"];
/// Providers that do not use IP addresses.
const WITHOUT_IP: [&str; 3] = ["efa", "cxi", "shm"];

/// How long to wait until the library lists the interface at which this rank reaches the store, and between two looks.
const LISTED: Duration = Duration::from_millis(1500);
const LOOK: Duration = Duration::from_millis(100);

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
    /// True if this rank counts its numbers, so that small writes need no confirmation. The provider keeps the order of
    /// writes.
    pub counted: bool,
    /// True if the user named the provider.
    pub named: bool,
    /// The candidates that failed before this one passed, each with its reason.
    pub passed_over: Vec<(String, String)>,
    /// Whether memory of this rank's device is registered, and why not. `None` for ranks on CPUs.
    pub device_memory: Option<DeviceMemory>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { provider, device, library: (major, minor), .. } = self;
        write!(f, "{provider} on {device}, libfabric {major}.{minor}")?;
        if self.numbers == Numbers::Bare {
            f.write_str(", for private networks only")?;
        }
        match self.named {
            true => f.write_str(" (as named)")?,
            false if self.passed_over.is_empty() => {}
            false => {
                let names: Vec<&str> = self.passed_over.iter().map(|(name, _)| name.as_str()).collect();
                write!(f, " (after {} failed)", names.join(", "))?;
            }
        }
        self.device_memory.iter().try_for_each(|memory| write!(f, "; {memory}"))
    }
}

/// Opens the first candidate that passes its trial. If the rank is on a device, the candidate is then asked for memory
/// of devices, and taken without it if it has no access.
pub(super) fn choose(
    options: &FabricOptions,
    own: Option<&Arc<dyn NetworkDevice>>,
) -> Result<(Endpoint, Choice), NetworkError> {
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
        let devices = match devices(library, name, options) {
            Ok(devices) => devices,
            Err(what) => {
                tried.push((name.to_string(), what));
                continue;
            }
        };
        for provider in devices {
            let provider = Arc::new(provider);
            let (device, description) = (provider.device(), provider.to_string());
            match open(&provider, options) {
                Ok((endpoint, confirmation, numbers)) => {
                    let (mut endpoint, kind) = (endpoint, (confirmation, numbers));
                    let device_memory = own.map(|own| {
                        let name = provider.name();
                        let (version, has_dma_bufs) = (library.version(), library.knows_dma_bufs());
                        let carries = Carries { provider: &name, library: version, has_dma_bufs };
                        devices::decide(carries, own.abilities(), || {
                            endpoint = open_for(library, &provider, options, kind, &**own)?;
                            Ok(())
                        })
                    });
                    let choice = Choice {
                        provider: provider.name(),
                        device,
                        description,
                        library: library.version(),
                        confirmation,
                        numbers,
                        counted: counts(&provider, confirmation, numbers),
                        named: options.provider.is_some(),
                        passed_over: tried,
                        device_memory,
                    };
                    return Ok((endpoint, choice));
                }
                Err(what) => {
                    let at = provider.address().map_or(String::new(), |address| format!(" at {address}"));
                    tried.push((format!("{name} on {device}{at}"), what));
                }
            }
        }
    }
    Err(NetworkError::NoProvider { tried })
}

/// True if the numbers over a provider are counted. Elsewhere than over one connection of `tcp`, that was never tried.
fn counts(provider: &Provider, confirmation: Confirmation, numbers: Numbers) -> bool {
    let is_tcp = matches!(provider.name().as_str(), "tcp" | "tcp;ofi_rxm");
    let is_confirmed = confirmation == Confirmation::Provider && numbers == Numbers::Guarded;
    is_tcp && is_confirmed && provider.keeps_write_order()
}

/// The devices of a provider that fit the options, with the preferred ones first. The error is text for the user.
fn devices(library: Library, name: &str, options: &FabricOptions) -> Result<Vec<Provider>, String> {
    // An IP address is passed to the provider. Any other text is a name, which is compared with those of its devices.
    let is_ip = options.address.as_ref().is_some_and(|address| address.parse::<IpAddr>().is_ok());
    let device = options.address.as_ref().filter(|_| !is_ip);
    let address = options.address.clone().filter(|_| is_ip && !WITHOUT_IP.contains(&name));
    let query = Query { provider: Some(name.to_string()), address, ..Query::default() };
    let since = Instant::now();
    let mut all = loop {
        let all = Provider::list(library, &query).map_err(|error| error.to_string())?;
        // The library lists an interface only some time after it came up. Packets may also be forwarded to this host,
        // so that no interface has the address.
        let missing = options.near.filter(|near| {
            let is_listed = all.iter().any(|provider| provider.address() == Some(*near));
            options.address.is_none() && !WITHOUT_IP.contains(&name) && !near.is_loopback() && !is_listed
        });
        if missing.is_none() || since.elapsed() > LISTED {
            break all;
        }
        std::thread::sleep(LOOK);
    };
    let names: Vec<String> = all.iter().map(Provider::device).collect();
    all.retain(|provider| device.is_none_or(|device| provider.device() == *device));
    if all.is_empty() {
        let device = device.map_or("", |device| device.as_str());
        return Err(format!("it has no device {device:?}; it has {names:?}"));
    }
    // A stable sort: devices that are equally good keep the library's order.
    all.sort_by_key(|provider| preference(provider.address(), options.near));
    Ok(all)
}

/// The rank of an address among those of a provider's devices, the best one first. `near` is the address at which this
/// rank reaches the others' store, if that is known.
fn preference(address: Option<IpAddr>, near: Option<IpAddr>) -> u8 {
    // Addresses of one link only. Without the link's name they mean nothing on another host.
    let is_local = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    match (address, near) {
        (Some(address), Some(near)) if address == near => 0,
        (Some(address), _) if is_local(address) => 3,
        (Some(address), Some(near)) => {
            let is_alike = address.is_ipv4() == near.is_ipv4() && address.is_loopback() == near.is_loopback();
            if is_alike { 1 } else { 2 }
        }
        (Some(address), None) if address.is_loopback() => 2,
        _ => 1,
    }
}

/// Opens an endpoint of a device and tries it. The error is text for the user.
fn open(provider: &Arc<Provider>, options: &FabricOptions) -> Result<(Endpoint, Confirmation, Numbers), String> {
    let text = |error: FabricError| error.to_string();
    let numbers = match provider.data_bytes() {
        8.. if !options.is_bare => Numbers::Guarded,
        4.. => Numbers::Bare,
        few => return Err(format!("numbers of {few} bytes beside a write: at least 4 are needed")),
    };
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
        let wanted = wanted_of(options);
        let domain = Domain::open(provider.clone()).map_err(text)?;
        let mut tried = Endpoint::open(&domain, &wanted).map_err(text)?;
        let trial = Trial::run(&mut tried, confirmation, numbers, options.inject_bytes, None);
        // Its connection to itself would be looked at by every poll: two more descriptors over tcp.
        drop(tried);
        match trial {
            Ok(_) => return Ok((Endpoint::open(&domain, &wanted).map_err(text)?, confirmation, numbers)),
            Err(what) => why += &format!("confirmed by {confirmation:?}, {what}; "),
        }
    }
    Err(why.trim_end_matches("; ").to_string())
}

fn wanted_of(options: &FabricOptions) -> EndpointOptions {
    let EndpointOptions { queue, .. } = EndpointOptions::default();
    EndpointOptions { under_way: options.under_way, queue, descriptor: options.descriptor }
}

/// Opens an endpoint of a device of a provider that passed its trial, now with access to memory of devices, and tries
/// it: with memory of the host as before, and with memory of the device as the target. The error is text for the user.
fn open_for(
    library: Library,
    provider: &Provider,
    options: &FabricOptions,
    (confirmation, numbers): (Confirmation, Numbers),
    device: &dyn NetworkDevice,
) -> Result<Endpoint, String> {
    let text = |error: FabricError| error.to_string();
    let provider = devices::same_with_device_memory(library, provider)?;
    if confirmation == Confirmation::Provider && !provider.confirms_delivery() {
        return Err("with FI_HMEM it does not confirm delivery".to_string());
    }
    let (domain, wanted) = (Domain::open(provider).map_err(text)?, wanted_of(options));
    for device in [None, Some(device)] {
        let mut tried = Endpoint::open(&domain, &wanted).map_err(text)?;
        let where_to = if device.is_some() { "into memory of the device" } else { "with FI_HMEM" };
        let trial = Trial::run(&mut tried, confirmation, numbers, options.inject_bytes, device);
        trial.map_err(|what| format!("{where_to}, {what}"))?;
    }
    Endpoint::open(&domain, &wanted).map_err(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_the_store_comes_first_and_those_of_one_link_last() {
        let sorted = |near: Option<&str>, all: &[&str]| -> Vec<String> {
            let near = near.map(|near| near.parse().unwrap());
            let mut all: Vec<IpAddr> = all.iter().map(|address| address.parse().unwrap()).collect();
            all.sort_by_key(|address| preference(Some(*address), near));
            all.iter().map(IpAddr::to_string).collect()
        };
        let all = ["127.0.0.1", "fe80::1", "10.0.0.7", "192.168.1.7", "fd00::7", "::1"];
        let near = |address| sorted(Some(address), &all);
        assert_eq!(near("192.168.1.7"), ["192.168.1.7", "10.0.0.7", "127.0.0.1", "fd00::7", "::1", "fe80::1"]);
        assert_eq!(near("fd00::7"), ["fd00::7", "127.0.0.1", "10.0.0.7", "192.168.1.7", "::1", "fe80::1"]);
        assert_eq!(near("fe80::1")[0], "fe80::1");
        assert_eq!(near("::1")[..2], ["::1", "127.0.0.1"]);
        // An address that no device has, because packets to it are forwarded to this host.
        assert_eq!(near("10.9.9.9")[..2], ["10.0.0.7", "192.168.1.7"]);
        assert_eq!(sorted(None, &all), ["10.0.0.7", "192.168.1.7", "fd00::7", "127.0.0.1", "::1", "fe80::1"]);
        assert!(preference(None, None) < 2, "a device without addresses");
    }
}
