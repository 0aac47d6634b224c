//! Memory of devices: whether a network registers it, and why not.
//!
//! ```text
//!   the rank's device (link) ──abilities──▶ decide ◀── the provider, its library, a trial
//!                                             │
//!              Registered: windows are registered by dma-bufs, and arrivals are flushed where the device needs it
//!              HostMemory: everything as without it: staging in host memory that the device maps
//! ```
//! This path was written, and never run with a card and a device.
#![forbid(unsafe_code)]

use crate::tensor::Memory;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tilewire_fabric::{Library, Provider, Query};

/// The providers whose cards themselves write memory of devices. The others have the processor copy, and such a copy
/// would wait for the kernel that waits for it.
const CARDS: [&str; 3] = ["verbs", "efa", "cxi"];

/// The device of a rank, as a network sees it.
pub(crate) trait NetworkDevice: Send + Sync {
    /// What the driver says about writes of network cards.
    fn abilities(&self) -> Abilities;

    /// Exports memory of the device.
    fn dma_buf(&self, memory: &Memory) -> Result<Exported, String>;

    /// Makes everything that cards have written into the device's memory before the call visible to its kernels.
    fn flush(&self) -> Result<(), String>;

    /// Zeroed memory of the device for a trial, made as windows are made.
    fn sample(&self, bytes: usize) -> Result<Memory, String>;

    /// A copy of the bytes of such memory.
    fn read(&self, memory: &Memory) -> Result<Vec<u8>, String>;
}

/// Exported memory of a device.
pub(crate) struct Exported {
    pub descriptor: OwnedFd,
    /// The address of the dma-buf's first byte on the device.
    pub base: u64,
    /// The offset of the memory's first byte.
    pub offset: u64,
    /// The number of the device.
    pub device: i32,
}

/// What a device's driver says about writes of network cards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Abilities {
    /// Memory can be exported as dma-bufs.
    pub dma_bufs: bool,
    /// Kernels of the device may see such writes late, so they must be flushed.
    pub needs_flush: bool,
    /// The processor can flush them.
    pub host_flushes: bool,
}

/// Whether a network registers memory of this rank's device.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceMemory {
    /// Windows in the memory of the device are registered.
    Registered {
        /// True if this rank flushes what a card has written before a slot moves for it.
        flushed: bool,
    },
    /// Only host memory that the device maps is registered.
    HostMemory {
        /// Why.
        why: String,
    },
}

impl fmt::Display for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceMemory::Registered { flushed } => {
                let flushed = if *flushed { "flushed before slots move" } else { "ordered by the device" };
                write!(f, "memory of the device registered by dma-bufs, {flushed}")
            }
            DeviceMemory::HostMemory { why } => write!(f, "through host memory, because {why}"),
        }
    }
}

/// What is known of a provider before it is asked for memory of devices.
#[derive(Clone, Copy)]
pub(super) struct Carries<'p> {
    /// Its name, for example `verbs;ofi_rxm`.
    pub provider: &'p str,
    pub library: (u32, u32),
    /// True if the library has dma-bufs.
    pub has_dma_bufs: bool,
}

/// Decides whether memory of a device may be registered. `asks` asks the provider for it, after everything else.
pub(super) fn decide(
    carries: Carries<'_>,
    driver: Abilities,
    asks: impl FnOnce() -> Result<(), String>,
) -> DeviceMemory {
    let Carries { provider, library: (major, minor), has_dma_bufs } = carries;
    let is_card = provider.split(';').any(|part| CARDS.contains(&part));
    let why = match driver {
        _ if !is_card => format!("{provider} is no network card that could write it"),
        _ if !has_dma_bufs => format!("libfabric {major}.{minor} has no dma-bufs: 1.20 has"),
        Abilities { dma_bufs: false, .. } => "the driver exports no dma-bufs of this device".to_string(),
        Abilities { needs_flush: true, host_flushes: false, .. } => {
            "kernels may see writes of a card late, and the host cannot flush them".to_string()
        }
        Abilities { needs_flush, .. } => match asks() {
            Ok(()) => return DeviceMemory::Registered { flushed: needs_flush },
            Err(why) => why,
        },
    };
    DeviceMemory::HostMemory { why }
}

/// The same device of a provider as before, opened for memory of devices.
pub(super) fn same_with_device_memory(library: Library, provider: &Provider) -> Result<Arc<Provider>, String> {
    let query = Query {
        provider: Some(provider.name()),
        address: provider.address().map(|address| address.to_string()),
        device_memory: true,
        ..Query::default()
    };
    let is_same = |other: &Provider| {
        let names = |it: &Provider| (it.name(), it.fabric(), it.device(), it.address(), it.data_bytes());
        names(other) == names(provider)
    };
    let mut all = Provider::list(library, &query).map_err(|error| format!("it has no FI_HMEM: {error}"))?;
    all.retain(|other| is_same(other) && other.registers_device_memory());
    let found = all.into_iter().next().map(Arc::new);
    found.ok_or_else(|| format!("{} on {} has no FI_HMEM", provider.name(), provider.device()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The decision for every combination of what it depends on.
    #[test]
    fn memory_of_a_device_is_registered_only_if_all_agree() {
        let mut registered = Vec::new();
        for bits in 0..1 << 6 {
            let [is_card, has_dma_bufs, dma_bufs, needs_flush, host_flushes, agrees] =
                [0, 1, 2, 3, 4, 5].map(|bit| bits >> bit & 1 == 1);
            let provider = if is_card { "verbs;ofi_rxm" } else { "tcp;ofi_rxm" };
            let library = if has_dma_bufs { (1, 20) } else { (1, 17) };
            let mut asked = false;
            let asks = || {
                asked = true;
                if agrees { Ok(()) } else { Err("it has no FI_HMEM".to_string()) }
            };
            let carries = Carries { provider, library, has_dma_bufs };
            let decision = decide(carries, Abilities { dma_bufs, needs_flush, host_flushes }, asks);
            let may_flush = !needs_flush || host_flushes;
            assert_eq!(asked, is_card && has_dma_bufs && dma_bufs && may_flush, "asked last: {bits:06b}");
            let words = match &decision {
                DeviceMemory::Registered { flushed } => {
                    assert!(asked && agrees && *flushed == needs_flush, "{bits:06b}");
                    registered.push(bits);
                    continue;
                }
                DeviceMemory::HostMemory { why } => why,
            };
            let expected = match () {
                () if !is_card => "tcp;ofi_rxm is no network card",
                () if !has_dma_bufs => "libfabric 1.17 has no dma-bufs",
                () if !dma_bufs => "the driver exports no dma-bufs",
                () if !may_flush => "the host cannot flush them",
                () => "it has no FI_HMEM",
            };
            assert!(words.contains(expected) && !(asked && agrees), "{bits:06b}: {words}");
        }
        // Without a flush, whether or not the host could; and with one.
        assert_eq!(registered, [0b100111, 0b110111, 0b111111]);
    }

    #[test]
    fn the_decision_is_said_in_words() {
        let said = |memory: DeviceMemory| memory.to_string();
        let registered = said(DeviceMemory::Registered { flushed: true });
        assert_eq!(registered, "memory of the device registered by dma-bufs, flushed before slots move");
        let ordered = said(DeviceMemory::Registered { flushed: false });
        assert_eq!(ordered, "memory of the device registered by dma-bufs, ordered by the device");
        let host = said(DeviceMemory::HostMemory { why: "it has no FI_HMEM".to_string() });
        assert_eq!(host, "through host memory, because it has no FI_HMEM");
    }
}
