//! Providers: the library's ways to write into memory of other processes, and the abilities of each.

use crate::error::FabricError;
use crate::library::{DMA_BUFS, Library, text};
use crate::signals::Handlers;
use crate::sys;
use std::collections::HashSet;
use std::ffi::CString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::null_mut;

/// A query for providers. The default matches all providers on all interfaces.
#[derive(Clone, Default, Debug)]
pub struct Query {
    /// The name of the provider, for example `tcp`, `verbs;ofi_rxm` or `shm`.
    pub provider: Option<String>,
    /// The local address to use: a number or a host name.
    pub address: Option<String>,
    /// If true, only providers that keep the order of writes to one place match. This order may make a provider slower.
    pub ordered: bool,
    /// If true, only providers match that can register memory of devices by dma-bufs, as [`Endpoint::register_dma_buf`]
    /// does. The library must be [new enough](Library::knows_dma_bufs).
    ///
    /// [`Endpoint::register_dma_buf`]: crate::Endpoint::register_dma_buf
    pub device_memory: bool,
}

/// One way to write to other processes: a provider on a device. Endpoints are of the kind `FI_EP_RDM`: reliable, and
/// connected to any number of peers.
pub struct Provider {
    library: Library,
    info: *mut sys::Info,
    delivery: bool,
}

// SAFETY: the description belongs to its owner alone, and nothing changes it after `list`. The library reads copies of
// it under its own locks.
unsafe impl Send for Provider {}
// SAFETY: as above: through a shared reference it is only read.
unsafe impl Sync for Provider {}

impl Provider {
    /// Lists all providers that match. The library orders them, with the ones that it considers best first.
    ///
    /// The first call in a process loads all providers, which takes up to half a second.
    ///
    /// # Errors
    /// If no provider matches, or the library is too old for what is asked.
    pub fn list(library: Library, query: &Query) -> Result<Vec<Provider>, FabricError> {
        let found = Infos::get(library, query, 0)?;
        // The second query is for providers that can confirm that bytes are in the peer's memory.
        let confirming: HashSet<[String; 3]> = match Infos::get(library, query, sys::DELIVERY_COMPLETE) {
            Ok(infos) => infos.each().map(names).collect(),
            Err(_) => HashSet::new(),
        };
        let provider = |info: &sys::Info| {
            // SAFETY: it copies a description that is valid while `found` is; the copy is this provider's.
            let copy = unsafe { (library.functions().dup_info)(info) };
            (!copy.is_null()).then(|| Provider { library, info: copy, delivery: confirming.contains(&names(info)) })
        };
        let mut all: Vec<Provider> = Vec::new();
        for provider in found.each().filter_map(provider) {
            // Some providers are listed several times.
            let is_known = |known: &Provider| {
                let is_same_place = known.fabric() == provider.fabric() && known.address() == provider.address();
                is_same_place && known.to_string() == provider.to_string()
            };
            if !all.iter().any(is_known) {
                all.push(provider);
            }
        }
        Ok(all)
    }

    /// The library that the provider belongs to.
    pub fn library(&self) -> Library {
        self.library
    }

    /// The name: `tcp`, or `tcp;ofi_rxm` for two providers on top of each other.
    pub fn name(&self) -> String {
        // SAFETY: a string of the description.
        unsafe { text(self.fabric_attr().prov_name) }
    }

    /// The version of the provider.
    pub fn version(&self) -> (u32, u32) {
        let version = self.fabric_attr().prov_version;
        (version >> 16, version & 0xffff)
    }

    /// The network: a subnet, or a name that only the provider understands.
    pub fn fabric(&self) -> String {
        // SAFETY: a string of the description.
        unsafe { text(self.fabric_attr().name) }
    }

    /// The device: a network interface or a NIC.
    pub fn device(&self) -> String {
        // SAFETY: a string of the description.
        unsafe { text(self.domain_attr().name) }
    }

    /// The local address of the device, if it has an IP address. A device with several addresses is listed several
    /// times.
    pub fn address(&self) -> Option<IpAddr> {
        let info = self.info();
        let bytes = match info.src_addr.is_null() {
            true => return None,
            // SAFETY: the description has an address of this size, which lives as long as the description.
            false => unsafe { std::slice::from_raw_parts(info.src_addr.cast::<u8>(), info.src_addrlen) },
        };
        ip_address(info.addr_format, bytes)
    }

    /// The capabilities, as in `fi_getinfo(3)`.
    pub fn caps(&self) -> u64 {
        self.info().caps
    }

    /// The size in bytes of the number that a write can carry to the receiver's queue; 0 if it can carry none.
    pub fn data_bytes(&self) -> usize {
        self.domain_attr().cq_data_size
    }

    /// The most bytes that the provider copies while a write is posted.
    pub fn inject_bytes(&self) -> usize {
        self.tx_attr().inject_size
    }

    /// The most bytes of one write.
    pub fn message_bytes(&self) -> usize {
        self.ep_attr().max_msg_size
    }

    /// The most writes that may be under way.
    pub fn queue_length(&self) -> usize {
        self.tx_attr().size
    }

    /// The size of a key in bytes.
    pub fn key_bytes(&self) -> usize {
        self.domain_attr().mr_key_size
    }

    /// The requirements for registered memory, as in `fi_mr(3)`.
    pub fn mr_mode(&self) -> i32 {
        self.domain_attr().mr_mode
    }

    /// True if the owner of memory chooses its key.
    pub fn has_chosen_keys(&self) -> bool {
        self.mr_mode() & sys::MR_PROV_KEY == 0
    }

    /// True if peers name bytes of a region by their address at the owner, and not by their offset.
    pub fn has_virtual_addresses(&self) -> bool {
        self.mr_mode() & sys::MR_VIRT_ADDR != 0
    }

    /// True if the source of a write must be registered as well.
    pub fn needs_local_regions(&self) -> bool {
        self.mr_mode() & sys::MR_LOCAL != 0
    }

    /// The order of messages that the provider promises, as in `fi_endpoint(3)`.
    pub fn message_order(&self) -> u64 {
        self.tx_attr().msg_order
    }

    /// True if two writes to one place take effect in order, so that the bytes of the second one remain.
    pub fn keeps_write_order(&self) -> bool {
        self.message_order() & (sys::ORDER_WAW | sys::ORDER_RMA_WAW) != 0 && self.ep_attr().max_order_waw_size > 0
    }

    /// True if a completion can mean that the bytes are in the peer's memory.
    pub fn confirms_delivery(&self) -> bool {
        self.delivery
    }

    /// True if memory of devices can be registered by dma-bufs. Only providers that were
    /// [asked for it](Query::device_memory) say so.
    pub fn registers_device_memory(&self) -> bool {
        let (major, minor) = DMA_BUFS;
        self.caps() & sys::HMEM != 0 && self.fabric_attr().api_version >= sys::version(major, minor)
    }

    pub(crate) fn has_text_addresses(&self) -> bool {
        self.info().addr_format == sys::ADDR_STR
    }

    pub(crate) fn info_ptr(&self) -> *mut sys::Info {
        self.info
    }

    pub(crate) fn check(&self, call: &'static str, result: i32) -> Result<(), FabricError> {
        match result {
            0 => Ok(()),
            _ => self.library.check(call, &self.name(), result),
        }
    }

    pub(crate) fn failed(&self, call: &'static str, code: i32) -> FabricError {
        self.library.failed(call, &self.name(), code)
    }

    fn info(&self) -> &sys::Info {
        // SAFETY: allocated by the library for this provider, freed when it is dropped.
        unsafe { &*self.info }
    }

    fn tx_attr(&self) -> &sys::TxAttr {
        // SAFETY: the library allocates a description with all its parts.
        unsafe { &*self.info().tx_attr }
    }

    fn ep_attr(&self) -> &sys::EpAttr {
        // SAFETY: as above.
        unsafe { &*self.info().ep_attr }
    }

    fn domain_attr(&self) -> &sys::DomainAttr {
        // SAFETY: as above.
        unsafe { &*self.info().domain_attr }
    }

    fn fabric_attr(&self) -> &sys::FabricAttr {
        // SAFETY: as above.
        unsafe { &*self.info().fabric_attr }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        // SAFETY: it is this provider's, and nothing borrows it: domains keep the provider.
        unsafe { (self.library.functions().free_info)(self.info) };
    }
}

/// Writes one line: name, device, and the abilities that decide how the provider is used.
impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.name(), self.device())?;
        write!(f, ": numbers of {} bytes, injects {}", self.data_bytes(), self.inject_bytes())?;
        write!(f, ", {} keys", if self.has_chosen_keys() { "chosen" } else { "given" })?;
        write!(f, ", {}", if self.has_virtual_addresses() { "addresses" } else { "offsets" })?;
        write!(f, ", {}", if self.keeps_write_order() { "ordered" } else { "unordered" })?;
        f.write_str(if self.confirms_delivery() { ", confirms delivery" } else { "" })
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The identity of a described provider: its name, its fabric and its device.
fn names(info: &sys::Info) -> [String; 3] {
    // SAFETY: the library allocates a description with all its parts, and their strings are null or end with a zero
    // byte.
    unsafe {
        let (fabric, domain) = (&*info.fabric_attr, &*info.domain_attr);
        [text(fabric.prov_name), text(fabric.name), text(domain.name)]
    }
}

/// The IP address in an address of this format. `None` if the format is another one, or the address is unspecified.
fn ip_address(format: u32, bytes: &[u8]) -> Option<IpAddr> {
    if !matches!(format, sys::SOCKADDR | sys::SOCKADDR_IN | sys::SOCKADDR_IN6) {
        return None;
    }
    let family = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
    let ip = match libc::c_int::from(family) {
        // struct sockaddr_in: family, port, address.
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(4..8)?).ok()?)),
        // struct sockaddr_in6: family, port, flow label, address.
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(8..24)?).ok()?)),
        _ => return None,
    };
    (!ip.is_unspecified()).then_some(ip)
}

/// A list of descriptions that the library has allocated.
struct Infos {
    library: Library,
    first: *mut sys::Info,
}

impl Infos {
    fn get(library: Library, query: &Query, op_flags: u64) -> Result<Infos, FabricError> {
        let string = |name: &str| CString::new(name).map_err(|_| FabricError::Name { name: name.to_string() });
        // No newer interface is asked for than is needed, and none that the library does not know.
        let interface = match query.device_memory {
            true if library.knows_dma_bufs() => sys::version(DMA_BUFS.0, DMA_BUFS.1),
            true => return Err(FabricError::NoDmaBufs { version: library.version() }),
            false => library.interface(),
        };
        let name = query.provider.as_deref().map(string).transpose()?;
        let address = query.address.as_deref().map(string).transpose()?;
        let hints = Infos::empty(library);
        if hints.first.is_null() {
            return Err(library.failed("fi_dupinfo", "any", libc::ENOMEM));
        }
        // SAFETY: the library allocates a description with all its parts, zeroed; they are the owner's until it is
        // freed. The name is allocated as the library does it, which frees it.
        unsafe {
            let info = &mut *hints.first;
            info.caps = sys::MSG | sys::RMA;
            info.mode = sys::CONTEXT | sys::CONTEXT2;
            (*info.ep_attr).ep_type = sys::EP_RDM;
            let domain = &mut *info.domain_attr;
            domain.threading = sys::THREAD_SAFE;
            domain.data_progress = sys::PROGRESS_MANUAL;
            domain.mr_mode =
                sys::MR_LOCAL | sys::MR_VIRT_ADDR | sys::MR_ALLOCATED | sys::MR_PROV_KEY | sys::MR_ENDPOINT;
            if query.device_memory {
                info.caps |= sys::HMEM;
                domain.mr_mode |= sys::MR_HMEM;
            }
            let tx = &mut *info.tx_attr;
            tx.op_flags = op_flags;
            if query.ordered {
                tx.msg_order = sys::ORDER_WAW | sys::ORDER_RMA_WAW;
            }
            if let Some(name) = &name {
                (*info.fabric_attr).prov_name = libc::strdup(name.as_ptr());
            }
        }
        let mut first = null_mut();
        let flags = if address.is_some() { sys::SOURCE } else { 0 };
        let node = address.as_ref().map_or(std::ptr::null(), |address| address.as_ptr());
        // The first call loads providers.
        let handlers = Handlers::keep();
        // SAFETY: all pointers are valid for the call; the list that it returns is the caller's.
        let result = unsafe {
            (library.functions().get_info)(interface, node, std::ptr::null(), flags, hints.first, &mut first)
        };
        drop(handlers);
        match result {
            0 => Ok(Infos { library, first }),
            _ => {
                let provider = query.provider.as_deref().unwrap_or("writes with numbers");
                let at = query.address.as_deref().map_or(String::new(), |address| format!(" at {address}"));
                let code = result.saturating_neg();
                Err(FabricError::NoProvider { asked: provider.to_string() + &at, code, words: library.words(code) })
            }
        }
    }

    /// A description without content.
    fn empty(library: Library) -> Infos {
        // SAFETY: for null it allocates one.
        Infos { library, first: unsafe { (library.functions().dup_info)(std::ptr::null()) } }
    }

    fn each(&self) -> impl Iterator<Item = &sys::Info> {
        // SAFETY: elements of a list that lives as long as `self`; the last one has no next one.
        let (first, next) = unsafe { (self.first.as_ref(), |info: &&sys::Info| info.next.as_ref()) };
        std::iter::successors(first, next)
    }
}

impl Drop for Infos {
    fn drop(&mut self) {
        if !self.first.is_null() {
            // SAFETY: the owner's own, and nothing borrows it any more.
            unsafe { (self.library.functions().free_info)(self.first) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_where_they_are_ip_addresses() {
        let v4 = [&(libc::AF_INET as u16).to_ne_bytes()[..], &[0, 80, 10, 0, 0, 7], &[0; 8]].concat();
        assert_eq!(ip_address(sys::SOCKADDR_IN, &v4), Some("10.0.0.7".parse().unwrap()));
        let v6 = [&(libc::AF_INET6 as u16).to_ne_bytes()[..], &[0; 6], &[0xfd], &[0; 14], &[9], &[0; 4]].concat();
        assert_eq!(ip_address(sys::SOCKADDR_IN6, &v6), Some("fd00::9".parse().unwrap()));
        for other in [&v4[..7], &v6[..23], &[], &[1]] {
            assert_eq!(ip_address(sys::SOCKADDR, other), None);
        }
        assert_eq!(ip_address(sys::ADDR_STR, &v4), None);
        assert_eq!(ip_address(sys::SOCKADDR, &[&v4[..4], &[0; 12]].concat()), None, "unspecified");
    }
}
