//! What users choose of a network.
#![forbid(unsafe_code)]

use super::choice::Confirmation;
use std::path::PathBuf;
use std::time::Duration;

/// How a [`FabricCarrier`](super::FabricCarrier) is opened. What is not set is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricOptions {
    pub(super) provider: Option<String>,
    pub(super) address: Option<String>,
    pub(super) library: Option<PathBuf>,
    pub(super) confirmation: Option<Confirmation>,
    pub(super) patience: Duration,
    pub(super) hello: Duration,
    pub(super) message_bytes: usize,
    pub(super) inject_bytes: usize,
    pub(super) under_way: usize,
    pub(super) descriptor: bool,
    /// Uses numbers of four bytes also where there are eight, as providers have them that no test can run.
    pub(super) is_bare: bool,
}

/// Names the provider, where the program does not.
pub(super) const PROVIDER: &str = "TILEWIRE_FABRIC_PROVIDER";
/// Names the address or the interface, where the program does not.
pub(super) const ADDRESS: &str = "TILEWIRE_FABRIC_ADDRESS";

impl Default for FabricOptions {
    /// What `TILEWIRE_FABRIC_PROVIDER` and `TILEWIRE_FABRIC_ADDRESS` say, if they are set.
    fn default() -> FabricOptions {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        FabricOptions {
            provider: variable(PROVIDER),
            address: variable(ADDRESS),
            library: None,
            confirmation: None,
            patience: Duration::from_secs(30),
            hello: Duration::from_secs(30),
            message_bytes: usize::MAX,
            inject_bytes: usize::MAX,
            under_way: 512,
            descriptor: false,
            is_bare: false,
        }
    }
}

impl FabricOptions {
    /// The provider: `verbs`, `efa`, `cxi`, `tcp`, or another one that libfabric has. All ranks must have the same.
    /// `shm`, which connects processes of one host, is used only if it is named here.
    pub fn provider(mut self, name: &str) -> FabricOptions {
        self.provider = Some(name.to_string());
        self
    }

    /// The local address, or the name of the interface or device. An IP address means nothing to `efa`, `cxi` and
    /// `shm`, which ignore it.
    pub fn address(mut self, address: &str) -> FabricOptions {
        self.address = Some(address.to_string());
        self
    }

    /// The file of libfabric, instead of what `TILEWIRE_LIBFABRIC` or the dynamic linker says.
    pub fn library(mut self, file: impl Into<PathBuf>) -> FabricOptions {
        self.library = Some(file.into());
        self
    }

    /// Who confirms that bytes have arrived. By default the provider, if it can.
    pub fn confirmation(mut self, confirmation: Confirmation) -> FabricOptions {
        self.confirmation = Some(confirmation);
        self
    }

    /// How long a peer may take no writes before it is an error. 30 s by default.
    pub fn patience(mut self, patience: Duration) -> FabricOptions {
        self.patience = patience;
        self
    }

    /// How long ranks wait for each other's hello. 30 s by default.
    pub fn hello(mut self, hello: Duration) -> FabricOptions {
        self.hello = hello;
        self
    }

    /// The same, if ranks would wait for each other longer than this.
    pub(crate) fn hello_within(self, most: Duration) -> FabricOptions {
        let hello = self.hello.min(most);
        self.hello(hello)
    }

    /// Bytes of registered memory in one write of the provider at most, if that is less than what it takes.
    pub fn message_bytes(mut self, bytes: usize) -> FabricOptions {
        self.message_bytes = bytes.max(1);
        self
    }

    /// Bytes that the provider copies when it takes a write, if that is less than what it could.
    pub fn inject_bytes(mut self, bytes: usize) -> FabricOptions {
        self.inject_bytes = bytes;
        self
    }

    /// Writes of this rank that may be under way in the provider. 512 by default.
    pub fn under_way(mut self, writes: usize) -> FabricOptions {
        self.under_way = writes.max(1);
        self
    }

    /// Whether to have a descriptor to sleep on, where the provider has one. It costs a system call per arrival.
    pub fn descriptor(mut self, wanted: bool) -> FabricOptions {
        self.descriptor = wanted;
        self
    }
}
