//! The transports that users hold, and the one trait they implement.
//!
//! ```text
//!            transport/ (segments, doors, pairing)     cuda/ (devices, streams)      schedule/ (how a peer is reached)
//!                     └──────────────┬──────────────────────┴───────────────┬──────────────┘
//!   World ──rendezvous──▶  ShmTransport   NvlTransport   a user's own  ──▶ dyn Transport, AnyTransport ──▶ collective/
//!                                          └── Window: a tensor that peers write
//! ```
//! - **In**: a [`World`](crate::transport::World), and for GPUs a device. **Out**: a [`Transport`], which collectives,
//!   schedules and launches take; memory for its kernels ([`Tensors`]); [`Window`]s.
//! - **Invariants**: one collective call makes a transport, the user holds it, and dropping it releases everything. A
//!   peer that cannot be reached has no endpoint and no window; this rank's own memory never stands in for it.
//! - **Must not know**: what a kernel contains, collectives, anything about schedules but how they reach a peer
//!   and the numbers of a staged one.
//!
//! | file | holds |
//! |---|---|
//! | `contract.rs` | [`Transport`], the trait; [`Tensors`]: memory for its kernels |
//! | `any.rs` | [`AnyTransport`]: a transport whose type is chosen at run time |
//! | `shm.rs` | [`ShmTransport`]: ranks on CPUs of one machine |
//! | `nvl.rs` | [`NvlTransport`]: ranks on GPUs that load and store in each other's memory |
//! | `nvl/watcher.rs` | the thread that passes aborts on to the device, and finds waits that never end |
//! | `mesh.rs` | [`MeshTransport`]: domains of ranks that share memory, joined by posts |
//! | `mesh/domains.rs`, `mesh/agreement.rs` | which ranks are near each other; what all ranks of a mesh must agree on |
//! | `mesh/near.rs`, `mesh/far.rs` | the transport within domains; the memory of posts |
//! | `mesh/half.rs`, `mesh/network.rs` | joining the domains of one process; joining processes by a network |
//! | `mesh/windows.rs` | windows of far ranks |
//! | `fabric.rs` | [`FabricTransport`]: ranks that reach each other by a network alone |
//! | `machine.rs` | [`Machine`]: what ranks tell each other about their machines, for choices that all make alike |
//! | `network_device.rs` | a GPU as the network sees it: its memory as dma-bufs, the flush of what cards wrote there |
//! | `gpu_memory.rs` | device memory of every rank, mapped by all that can reach it |
//! | `window.rs`, `line_set.rs` | [`Window`]; [`LineSet`]: which control lines a window has |
//! | `puts.rs` | [`Puts`]: the operations on a window, for kernels of one's own |
//! | `registered.rs` | [`WindowRegistry`]: which memory of a rank is a window |
//! | `staged.rs` | [`Staged`]: the numbers of a staged pipeline, for schedules of one's own |
//! | `fitness.rs` | [`check_transfer`]: whether a transport can do a transfer |
#![forbid(unsafe_code)]

mod any;
mod contract;
#[cfg(all(test, feature = "cuda"))]
mod default_sizes;
#[cfg(feature = "fabric")]
mod fabric;
mod fitness;
#[cfg(feature = "cuda")]
mod gpu_memory;
mod line_set;
mod machine;
mod mesh;
#[cfg(all(feature = "cuda", feature = "fabric"))]
mod network_device;
#[cfg(feature = "cuda")]
mod nvl;
mod puts;
mod registered;
mod shm;
mod staged;
mod window;

pub use crate::processor::Processor;
#[cfg(feature = "fabric")]
pub use crate::transport::fabric::FabricOptions as NetworkOptions;
pub use any::AnyTransport;
pub use contract::{PostFrom, Tensors, Transport, WindowPart};
#[cfg(feature = "fabric")]
pub use fabric::{FabricOptions, FabricTransport, IbTransport, ib_rendezvous};
pub use fitness::check_transfer;
pub use line_set::LineSet;
pub use machine::{Machine, NoMachine};
pub use mesh::{MeshOptions, MeshTransport};
#[cfg(all(feature = "cuda", feature = "fabric"))]
pub use network_device::network_of;
#[cfg(feature = "cuda")]
pub use nvl::{NvlOptions, NvlTransport};
pub use puts::{PutSource, Puts, PutsOptions};
pub use registered::{Known, MemoryView, PeerView, Registered, WindowRegistry};
pub use shm::{PeerTable, ShmOptions, ShmTransport};
pub use staged::{Staged, StagedLeg, StagedReceiver, StagedSender};
pub use window::{Registration, Window, WindowCall, WindowParts};
