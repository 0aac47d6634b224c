//! The parts of libfabric's C interface that this crate uses: types, tables of functions, and constants, written by
//! hand.
//!
//! Each type has only the fields up to the last one that is used. All of these types grow only at their end, so the
//! layouts here fit every library from 1.11 on. The library itself allocates the types of which it also reads later
//! fields ([`Info`] and everything that it points to). For other types the *caller* provides the memory and the library
//! decides how much it reads or writes ([`MrAttr`], [`CqErrEntry`], [`CqAttr`], [`AvAttr`]). These have zeroed spare
//! room behind the fields: `Roomy`.
//!
//! Names are those of the C headers without `fi_` and `fid_`.

use std::ffi::{c_char, c_int, c_void};

/// `fi_addr_t`.
pub type Addr = u64;
/// An address that no peer has.
pub const ADDR_UNSPEC: Addr = u64::MAX;

pub const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

// ---- capabilities and flags ----------------------------------------------------------------------------------------

pub const MSG: u64 = 1 << 1;
pub const RMA: u64 = 1 << 2;
pub const READ: u64 = 1 << 8;
pub const WRITE: u64 = 1 << 9;
pub const RECV: u64 = 1 << 10;
pub const TRANSMIT: u64 = 1 << 11;
pub const REMOTE_READ: u64 = 1 << 12;
pub const REMOTE_WRITE: u64 = 1 << 13;
pub const REMOTE_CQ_DATA: u64 = 1 << 17;
pub const COMPLETION: u64 = 1 << 24;
pub const INJECT: u64 = 1 << 25;
pub const DELIVERY_COMPLETE: u64 = 1 << 28;
/// Memory of devices. The flag [`MR_DMABUF`] is newer.
pub const HMEM: u64 = 1 << 47;
pub const SOURCE: u64 = 1 << 57;

/// Modes in which the caller lends memory with every operation.
pub const CONTEXT: u64 = 1 << 59;
pub const CONTEXT2: u64 = 1 << 52;

pub const ORDER_WAW: u64 = 1 << 4;
pub const ORDER_RMA_WAW: u64 = 1 << 35;

pub const MR_LOCAL: c_int = 1 << 2;
pub const MR_VIRT_ADDR: c_int = 1 << 4;
pub const MR_ALLOCATED: c_int = 1 << 5;
pub const MR_PROV_KEY: c_int = 1 << 6;
pub const MR_ENDPOINT: c_int = 1 << 9;
pub const MR_HMEM: c_int = 1 << 10;

/// A flag of registrations, from interface 1.20 on: [`MrAttr::mr_iov`] is a pointer to [`MrDmabuf`].
pub const MR_DMABUF: u64 = 1 << 40;
/// `FI_HMEM_CUDA`, for [`MrAttr::iface`].
pub const HMEM_CUDA: c_int = 1;

/// The formats of addresses that are socket addresses.
pub const SOCKADDR: u32 = 1;
pub const SOCKADDR_IN: u32 = 2;
pub const SOCKADDR_IN6: u32 = 3;
/// The format of addresses that are texts.
pub const ADDR_STR: u32 = 9;

pub const PROGRESS_MANUAL: c_int = 2;
pub const THREAD_SAFE: c_int = 1;
pub const EP_RDM: c_int = 3;
pub const CQ_FORMAT_DATA: c_int = 3;
pub const WAIT_NONE: c_int = 0;
pub const WAIT_FD: c_int = 3;

/// Commands of [`Ops::control`].
pub const GETWAIT: c_int = 5;
pub const ENABLE: c_int = 6;

// ---- error numbers, as positive numbers -----------------------------------------------------------------------------

pub const EAGAIN: i32 = libc::EAGAIN;
/// `FI_ENOKEY`: another region has the key. It is no number of the system.
pub const ENOKEY: i32 = 256 + 10;

/// Options of endpoints. Their values are C's `bool`, unless they say otherwise.
pub const OPT_ENDPOINT: c_int = 0;
/// An option whose value is an `int`.
pub const OPT_HMEM_P2P: c_int = 8;
/// Cards read and write memory of devices directly, or refuse.
pub const HMEM_P2P_REQUIRED: c_int = 1;
pub const OPT_CUDA_API_PERMITTED: c_int = 10;
pub const OPT_SHARED_MEMORY_PERMITTED: c_int = 11;
pub const EAVAIL: i32 = 259;

// ---- descriptions of providers: allocated and freed by the library -------------------------------------------------

#[repr(C)]
pub struct Info {
    pub next: *mut Info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut Fid,
    pub tx_attr: *mut TxAttr,
    pub rx_attr: *mut c_void,
    pub ep_attr: *mut EpAttr,
    pub domain_attr: *mut DomainAttr,
    pub fabric_attr: *mut FabricAttr,
}

#[repr(C)]
pub struct TxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
}

#[repr(C)]
pub struct EpAttr {
    pub ep_type: c_int,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
}

#[repr(C)]
pub struct DomainAttr {
    pub domain: *mut FidDomain,
    pub name: *mut c_char,
    pub threading: c_int,
    pub control_progress: c_int,
    pub data_progress: c_int,
    pub resource_mgmt: c_int,
    pub av_type: c_int,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
}

#[repr(C)]
pub struct FabricAttr {
    pub fabric: *mut FidFabric,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

// ---- what the caller provides --------------------------------------------------------------------------------------

/// A structure of the caller with zeroed room behind it, for fields that newer libraries know.
#[repr(C)]
pub struct Roomy<T> {
    pub known: T,
    room: [u64; 32],
}

impl<T> Roomy<T> {
    pub fn new(known: T) -> Roomy<T> {
        Roomy { known, room: [0; 32] }
    }

    /// A pointer for the library, which may also use the room behind the fields.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        (&raw mut *self).cast()
    }
}

#[repr(C)]
pub struct MrAttr {
    pub mr_iov: *const libc::iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub iface: c_int,
    pub device: u64,
}

/// `fi_mr_dmabuf`, from interface 1.20 on.
#[repr(C)]
pub struct MrDmabuf {
    pub fd: c_int,
    pub offset: u64,
    pub len: usize,
    pub base_addr: *mut c_void,
}

#[repr(C)]
pub struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: c_int,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_cond: c_int,
    pub wait_set: *mut c_void,
}

#[repr(C)]
pub struct AvAttr {
    pub av_type: c_int,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CqDataEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct CqErrEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

#[repr(C)]
pub struct RmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

/// A fixed part of the binary interface: the library reads no further fields.
#[repr(C)]
pub struct MsgRma {
    pub msg_iov: *const libc::iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: Addr,
    pub rma_iov: *const RmaIov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

/// `fi_context2`. It belongs to the provider from the post to the completion.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Context {
    pub internal: [*mut c_void; 8],
}

// ---- objects and their tables --------------------------------------------------------------------------------------
//
// A table begins with its size, and functions that an older library does not know are behind its end. All functions
// used here are older than 1.11, so every table has them. Providers fill in functions that return ENOSYS for those that
// they do not support.

#[repr(C)]
pub struct Fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *const Ops,
}

#[repr(C)]
pub struct Ops {
    pub size: usize,
    pub close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct FidFabric {
    pub fid: Fid,
    pub ops: *const OpsFabric,
}

#[repr(C)]
pub struct OpsFabric {
    pub size: usize,
    pub domain: unsafe extern "C" fn(*mut FidFabric, *mut Info, *mut *mut FidDomain, *mut c_void) -> c_int,
    passive_ep: usize,
    eq_open: usize,
    wait_open: usize,
    pub trywait: unsafe extern "C" fn(*mut FidFabric, *mut *mut Fid, c_int) -> c_int,
}

#[repr(C)]
pub struct FidDomain {
    pub fid: Fid,
    pub ops: *const OpsDomain,
    pub mr: *const OpsMr,
}

#[repr(C)]
pub struct OpsDomain {
    pub size: usize,
    pub av_open: unsafe extern "C" fn(*mut FidDomain, *mut AvAttr, *mut *mut FidAv, *mut c_void) -> c_int,
    pub cq_open: unsafe extern "C" fn(*mut FidDomain, *mut CqAttr, *mut *mut FidCq, *mut c_void) -> c_int,
    pub endpoint: unsafe extern "C" fn(*mut FidDomain, *mut Info, *mut *mut FidEp, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct OpsMr {
    pub size: usize,
    reg: usize,
    regv: usize,
    pub regattr: unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, *mut *mut FidMr) -> c_int,
}

#[repr(C)]
pub struct FidMr {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

#[repr(C)]
pub struct FidEp {
    pub fid: Fid,
    pub ops: *const OpsEp,
    pub cm: *const OpsCm,
    msg: usize,
    pub rma: *const OpsRma,
}

#[repr(C)]
pub struct OpsEp {
    pub size: usize,
    cancel: usize,
    getopt: usize,
    pub setopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, *const c_void, usize) -> c_int,
}

#[repr(C)]
pub struct OpsCm {
    pub size: usize,
    setname: usize,
    pub getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
}

#[repr(C)]
pub struct OpsRma {
    pub size: usize,
    read: usize,
    readv: usize,
    readmsg: usize,
    pub write: unsafe extern "C" fn(
        ep: *mut FidEp,
        buf: *const c_void,
        len: usize,
        desc: *mut c_void,
        dest: Addr,
        addr: u64,
        key: u64,
        context: *mut c_void,
    ) -> isize,
    writev: usize,
    pub writemsg: unsafe extern "C" fn(*mut FidEp, *const MsgRma, u64) -> isize,
    pub inject:
        unsafe extern "C" fn(ep: *mut FidEp, buf: *const c_void, len: usize, dest: Addr, addr: u64, key: u64) -> isize,
    pub writedata: unsafe extern "C" fn(
        ep: *mut FidEp,
        buf: *const c_void,
        len: usize,
        desc: *mut c_void,
        data: u64,
        dest: Addr,
        addr: u64,
        key: u64,
        context: *mut c_void,
    ) -> isize,
    pub injectdata: unsafe extern "C" fn(
        ep: *mut FidEp,
        buf: *const c_void,
        len: usize,
        data: u64,
        dest: Addr,
        addr: u64,
        key: u64,
    ) -> isize,
}

#[repr(C)]
pub struct FidCq {
    pub fid: Fid,
    pub ops: *const OpsCq,
}

#[repr(C)]
pub struct OpsCq {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut FidCq, *mut c_void, usize) -> isize,
    readfrom: usize,
    pub readerr: unsafe extern "C" fn(*mut FidCq, *mut CqErrEntry, u64) -> isize,
    sread: usize,
    sreadfrom: usize,
    signal: usize,
    pub strerror: unsafe extern "C" fn(*mut FidCq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

#[repr(C)]
pub struct FidAv {
    pub fid: Fid,
    pub ops: *const OpsAv,
}

#[repr(C)]
pub struct OpsAv {
    pub size: usize,
    pub insert: unsafe extern "C" fn(*mut FidAv, *const c_void, usize, *mut Addr, u64, *mut c_void) -> c_int,
}

// ---- the symbols of the library ------------------------------------------------------------------------------------

pub type GetInfo = unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const Info, *mut *mut Info) -> c_int;
pub type FreeInfo = unsafe extern "C" fn(*mut Info);
pub type DupInfo = unsafe extern "C" fn(*const Info) -> *mut Info;
pub type OpenFabric = unsafe extern "C" fn(*mut FabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int;
pub type Version = unsafe extern "C" fn() -> u32;
pub type StrError = unsafe extern "C" fn(c_int) -> *const c_char;

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    /// The expected numbers are those of a C compiler for the headers of 1.17.
    #[test]
    fn layouts_are_those_of_the_c_headers() {
        assert_eq!([offset_of!(Info, src_addr), offset_of!(Info, tx_attr)], [48, 72]);
        assert_eq!(offset_of!(Info, fabric_attr), 104);
        assert_eq!([offset_of!(TxAttr, inject_size), offset_of!(TxAttr, size)], [40, 48]);
        assert_eq!([offset_of!(EpAttr, max_msg_size), offset_of!(EpAttr, max_order_waw_size)], [16, 48]);
        assert_eq!(offset_of!(DomainAttr, mr_mode), 36);
        assert_eq!([offset_of!(DomainAttr, mr_key_size), offset_of!(DomainAttr, cq_data_size)], [40, 48]);
        assert_eq!(offset_of!(FabricAttr, api_version), 28);
        assert_eq!([size_of::<MrAttr>(), offset_of!(MrAttr, requested_key)], [80, 32]);
        assert_eq!([size_of::<CqAttr>(), size_of::<AvAttr>()], [40, 48]);
        assert_eq!([size_of::<CqDataEntry>(), size_of::<CqErrEntry>()], [40, 80]);
        assert_eq!([offset_of!(CqErrEntry, err), offset_of!(CqErrEntry, err_data_size)], [56, 72]);
        assert_eq!([size_of::<MsgRma>(), size_of::<RmaIov>(), size_of::<Context>()], [64, 24, 64]);
        assert_eq!([size_of::<Fid>(), offset_of!(FidFabric, ops), offset_of!(FidDomain, mr)], [24, 24, 32]);
        assert_eq!([offset_of!(FidEp, cm), offset_of!(FidEp, rma), size_of::<FidMr>()], [32, 48, 40]);
        assert_eq!([offset_of!(FidEp, ops), offset_of!(OpsEp, setopt)], [24, 24]);
        assert_eq!([offset_of!(OpsRma, writemsg), offset_of!(OpsRma, injectdata)], [48, 72]);
        assert_eq!([offset_of!(OpsCq, readerr), offset_of!(OpsCq, strerror)], [24, 56]);
        assert_eq!([offset_of!(OpsCm, getname), offset_of!(OpsMr, regattr)], [16, 24]);
        assert_eq!([offset_of!(OpsFabric, trywait), offset_of!(OpsDomain, endpoint)], [40, 24]);
    }

    /// As above, for the structures of 1.20. The pointer to a dma-buf takes the place of the one to the bytes.
    #[test]
    fn layouts_of_dma_bufs_are_those_of_the_c_headers_of_1_20() {
        assert_eq!([offset_of!(MrDmabuf, offset), offset_of!(MrDmabuf, len)], [8, 16]);
        assert_eq!([offset_of!(MrDmabuf, base_addr), size_of::<MrDmabuf>()], [24, 32]);
        assert_eq!([offset_of!(MrAttr, mr_iov), offset_of!(MrAttr, iface), offset_of!(MrAttr, device)], [0, 64, 72]);
        // What 1.20 knows beyond has 32 bytes: a pointer, a size, a pointer and a size.
        assert!(size_of::<Roomy<MrAttr>>() >= size_of::<MrAttr>() + 32);
    }
}
