//! The options of a network.
#![forbid(unsafe_code)]

use super::choice::Confirmation;
use crate::transport::Deadline;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The options with which a [`FabricCarrier`](super::FabricCarrier) is opened. If the provider and the address are not
/// set, the carrier chooses them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricOptions {
    pub(super) provider: Option<String>,
    pub(super) address: Option<String>,
    pub(super) library: Option<PathBuf>,
    pub(super) confirmation: Option<Confirmation>,
    pub(super) near: Option<IpAddr>,
    pub(super) patience: Option<Duration>,
    pub(super) hello: Option<Duration>,
    pub(super) message_bytes: usize,
    pub(super) inject_bytes: usize,
    pub(super) under_way: usize,
    pub(super) descriptor: bool,
    /// Uses numbers of four bytes even if the provider has eight, to test the path of providers that no test can run.
    pub(super) is_bare: bool,
}

/// The variable that names the provider if the program does not.
pub(super) const PROVIDER: &str = "TILEWIRE_FABRIC_PROVIDER";
/// The variable that names the address or the interface if the program does not.
pub(super) const ADDRESS: &str = "TILEWIRE_FABRIC_ADDRESS";

impl Default for FabricOptions {
    /// Takes the provider and the address from `TILEWIRE_FABRIC_PROVIDER` and `TILEWIRE_FABRIC_ADDRESS`, if they are
    /// set.
    fn default() -> FabricOptions {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        FabricOptions {
            provider: variable(PROVIDER),
            address: variable(ADDRESS),
            library: None,
            confirmation: None,
            near: None,
            patience: None,
            hello: None,
            message_bytes: usize::MAX,
            inject_bytes: usize::MAX,
            under_way: 512,
            descriptor: false,
            is_bare: false,
        }
    }
}

impl FabricOptions {
    /// Sets the provider: `verbs`, `efa`, `cxi`, `tcp`, or another one that libfabric has. It must be the same on all
    /// ranks. `shm`, which connects processes of one host, is used only if it is named here.
    pub fn provider(mut self, name: &str) -> FabricOptions {
        self.provider = Some(name.to_string());
        self
    }

    /// Sets the local address, or the name of the interface or device. `efa`, `cxi` and `shm` ignore IP addresses. By
    /// default, a device with the address at which this rank reaches the store is tried first.
    pub fn address(mut self, address: &str) -> FabricOptions {
        self.address = Some(address.to_string());
        self
    }

    /// Sets the file of libfabric. By default, `TILEWIRE_LIBFABRIC` or else the dynamic linker chooses it.
    pub fn library(mut self, file: impl Into<PathBuf>) -> FabricOptions {
        self.library = Some(file.into());
        self
    }

    /// Sets the side that confirms the arrival of bytes. By default, the provider confirms if it can.
    pub fn confirmation(mut self, confirmation: Confirmation) -> FabricOptions {
        self.confirmation = Some(confirmation);
        self
    }

    /// Sets how long a peer may take no writes before the carrier reports an error. By default that is the deadline of
    /// the world, so that a peer that is merely slow is never given up before its deadline. A carrier without a world
    /// waits for 30 s.
    pub fn patience(mut self, patience: Duration) -> FabricOptions {
        self.patience = Some(patience);
        self
    }

    /// Sets how long ranks wait for each other's hello, at most the time that is left until the world's deadline. By
    /// default they wait until that deadline, or for 30 s if there is none.
    pub fn hello(mut self, hello: Duration) -> FabricOptions {
        self.hello = Some(hello);
        self
    }

    /// Derives the limits that are not set from the world's: waits last for `length`, or forever, and `left` of the
    /// rendezvous is left.
    pub(crate) fn within(self, length: Option<Duration>, left: Option<Duration>) -> FabricOptions {
        let patience = self.patience.unwrap_or(length.unwrap_or(Duration::MAX));
        let hello = match (self.hello, left) {
            (Some(hello), Some(left)) => hello.min(left),
            (hello, left) => hello.or(left).unwrap_or(Deadline::DEFAULT),
        };
        self.patience(patience).hello(hello)
    }

    /// Prefers devices with this address, if the user names neither an address nor a device.
    pub(crate) fn near(mut self, address: Option<IpAddr>) -> FabricOptions {
        self.near = address;
        self
    }

    pub(super) fn patience_or_default(&self) -> Duration {
        self.patience.unwrap_or(Deadline::DEFAULT)
    }

    pub(super) fn hello_or_default(&self) -> Duration {
        self.hello.unwrap_or(Deadline::DEFAULT)
    }

    /// Limits the bytes of registered memory in one write. By default, only the provider limits them.
    pub fn message_bytes(mut self, bytes: usize) -> FabricOptions {
        self.message_bytes = bytes.max(1);
        self
    }

    /// Limits the bytes that the provider copies when it takes a write. By default, only the provider limits them.
    pub fn inject_bytes(mut self, bytes: usize) -> FabricOptions {
        self.inject_bytes = bytes;
        self
    }

    /// Sets how many writes of this rank may be under way in the provider. The default is 512.
    pub fn under_way(mut self, writes: usize) -> FabricOptions {
        self.under_way = writes.max(1);
        self
    }

    /// If true, the carrier has a descriptor to sleep on, where the provider has one. It costs a system call per
    /// arrival.
    pub fn descriptor(mut self, wanted: bool) -> FabricOptions {
        self.descriptor = wanted;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_are_not_set_are_those_of_the_world() {
        let seconds = Duration::from_secs;
        let of = |options: FabricOptions| (options.patience_or_default(), options.hello_or_default());
        let within = |options: FabricOptions, length, left| of(options.within(length, left));
        assert_eq!(of(FabricOptions::default()), (seconds(30), seconds(30)));
        let unset = FabricOptions::default;
        assert_eq!(within(unset(), Some(seconds(300)), Some(seconds(299))), (seconds(300), seconds(299)));
        assert_eq!(within(unset(), Some(seconds(2)), Some(seconds(1))), (seconds(2), seconds(1)));
        assert_eq!(within(unset(), None, None), (Duration::MAX, seconds(30)));
        let set = unset().patience(seconds(7)).hello(seconds(9));
        assert_eq!(within(set.clone(), Some(seconds(60)), Some(seconds(59))), (seconds(7), seconds(9)));
        assert_eq!(within(set.clone(), Some(seconds(60)), Some(seconds(3))), (seconds(7), seconds(3)));
        assert_eq!(within(set, None, None), (seconds(7), seconds(9)));
    }
}
