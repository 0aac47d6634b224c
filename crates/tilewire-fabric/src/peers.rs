//! Address vectors: the peers of an endpoint.

use crate::domain::{Domain, close};
use crate::error::FabricError;
use crate::shared_files;
use crate::sys;
use std::ptr::null_mut;

/// The most bytes of an address.
pub(crate) const MOST_ADDRESS: usize = 512;

/// The peers that an endpoint knows.
pub struct AddressVector {
    vector: *mut sys::FidAv,
    /// The size of this end's own address in bytes.
    own: usize,
    /// The addresses of all peers, if they are texts.
    texts: Vec<Vec<u8>>,
    domain: Domain,
}

/// A peer in the address vector of one endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Peer {
    addr: sys::Addr,
    /// The address vector that it is in.
    vector: usize,
}

impl AddressVector {
    pub(crate) fn open(domain: &Domain) -> Result<AddressVector, FabricError> {
        let mut attr = sys::Roomy::new(sys::AvAttr {
            av_type: 0,
            rx_ctx_bits: 0,
            count: 0,
            ep_per_node: 0,
            name: std::ptr::null(),
            map_addr: null_mut(),
            flags: 0,
        });
        let mut vector = null_mut();
        // SAFETY: the domain is open, and kept by the vector. The structure has room behind it.
        let result = unsafe {
            let open = domain.0.domain;
            ((*(*open).ops).av_open)(open, attr.as_mut_ptr(), &mut vector, null_mut())
        };
        domain.provider().check("fi_av_open", result)?;
        Ok(AddressVector { vector, own: 0, texts: Vec::new(), domain: domain.clone() })
    }

    pub(crate) fn set_own(&mut self, bytes: usize) {
        self.own = bytes;
    }

    pub(crate) fn fid(&self) -> *mut sys::Fid {
        // SAFETY: the vector is open.
        unsafe { &raw mut (*self.vector).fid }
    }

    /// Adds a peer, by the [address](crate::Endpoint::address) of its endpoint.
    ///
    /// # Errors
    /// If the bytes cannot be an address of this provider, or the provider reports an error.
    pub fn insert(&mut self, address: &[u8]) -> Result<Peer, FabricError> {
        let provider = self.domain.provider();
        let bad = || FabricError::Address { provider: provider.name(), bytes: address.len() };
        let is_long = address.is_empty() || address.len() > MOST_ADDRESS;
        if is_long || !provider.has_text_addresses() && address.len() != self.own {
            return Err(bad());
        }
        // The provider reads as many bytes as its own addresses have, or up to a zero byte. So a zero byte follows the
        // address.
        let mut padded = [0u8; 2 * MOST_ADDRESS];
        padded[..address.len()].copy_from_slice(address);
        let mut addr = sys::ADDR_UNSPEC;
        // SAFETY: the vector is open, and the address is longer than what the provider reads.
        let inserted =
            unsafe { ((*(*self.vector).ops).insert)(self.vector, padded.as_ptr().cast(), 1, &mut addr, 0, null_mut()) };
        if provider.has_text_addresses() {
            self.texts.push(address.to_vec());
        }
        match inserted {
            1 => Ok(Peer { addr, vector: self.vector as usize }),
            0 => Err(bad()),
            code => Err(provider.failed("fi_av_insert", code.saturating_neg())),
        }
    }

    pub(crate) fn addr(&self, peer: Peer) -> Result<sys::Addr, FabricError> {
        match peer.vector == self.vector as usize {
            true => Ok(peer.addr),
            false => Err(FabricError::Foreign),
        }
    }
}

impl Drop for AddressVector {
    fn drop(&mut self) {
        // SAFETY: its endpoint is closed, or was never bound to it.
        if !unsafe { close(self.fid()) } {
            std::mem::forget(self.domain.clone());
        }
        // A peer that was killed cannot remove its file, and the provider does not.
        self.texts.iter().for_each(|address| shared_files::remove_of_dead(address));
    }
}
