//! Bytes and signals between ranks.
//!
//! ```text
//!  launcher's variables, or n threads ──world──▶ rank, size, bootstrap store
//!                                                      │ an all-gather of small strings
//!                                                      ▼
//!                      segment ──▶ memory of every rank, mapped here ──▶ kernels (as banks)
//!                         │  header of each: abort word, doorbell          ▲
//!                         ├──layout──▶ endpoint of each peer: staging, slots ─┘
//!                         ├──▶ door: whom to wake, whose waits to end
//!                         └──control sockets──▶ monitor: a peer's death ──▶ abort word, doorbell
//!             ranks of other domains ◀──bootstrap store──▶ herald: the same, between domains
//! ```
//! - **In**: how many ranks there are and how they were started (threads of this process, or processes of a launcher).
//!   **Out**: a [`World`] with this rank's number and a [`Bootstrap`] through which the ranks find each other. On top
//!   of it: [`SegmentSet`], [`Memory`](crate::tensor::Memory) of every rank; [`Abort`], [`Doorbell`], `Monitor` and
//!   [`Door`], which keep waits from hanging; and [`PeerEndpoint`], the connection between two ranks. The transports
//!   themselves are in `link`.
//! - **Invariants**: every wait and every socket operation has a [`Deadline`], and ends early when a rank it needs is
//!   gone. An error names the ranks it is about. Nothing read from a socket is trusted before the sender has proved the
//!   job's secret, and nothing makes the store hold more than its [`Limits`]. Nothing has a name in the file system, so
//!   a crash leaves nothing behind. No locks live in shared memory.
//! - **Must not know**: the contents of the IR, and GPUs. A transport sees bytes, never a kernel.

mod abort;
pub mod bootstrap;
mod deadline;
mod departures;
mod descriptors;
pub(crate) mod desk;
pub(crate) mod domains;
mod door;
mod doorbell;
mod endpoint;
mod error;
#[cfg(feature = "fabric")]
pub mod fabric;
mod futex;
mod gathering;
mod herald;
mod launcher;
pub mod layout;
pub(crate) mod loans;
pub(crate) mod local_buffer;
mod mapping;
pub(crate) mod meeting;
pub(crate) mod offer;
pub(crate) mod pairing;
pub mod proxy;
mod rank;
pub(crate) mod rendezvous;
mod segment;
pub(crate) mod sizing;
mod status;
mod threads;
mod transfer;
pub(crate) mod watch;
mod world;

#[cfg(target_os = "linux")]
mod handover;
#[cfg(target_os = "linux")]
mod memfd;
#[cfg(target_os = "linux")]
mod message;
#[cfg(target_os = "linux")]
mod monitor;
#[cfg(target_os = "linux")]
mod socket;

/// Names this machine, as far as shared memory and its sockets reach, on all its processes and on no other machine.
pub(crate) fn host_name() -> String {
    #[cfg(target_os = "linux")]
    return message::host().iter().map(|byte| format!("{byte:02x}")).collect();
    // Ranks are threads of one process there.
    #[cfg(not(target_os = "linux"))]
    format!("process {}", std::process::id())
}

pub use abort::{Abort, AbortCode, Cause, PanicGuard};
pub use bootstrap::{Bootstrap, BootstrapError, Limits, LocalBootstrap, Secret, StoreServer, TcpBootstrap};
pub use deadline::Deadline;
pub use departures::Departures;
pub use descriptors::{DescriptorLimit, reserve_descriptors};
pub use domains::Domains;
pub use door::Door;
pub use doorbell::Doorbell;
pub use endpoint::{
    LinkKind, LinkShape, PeerEndpoint, PeerMemory, PostedHere, PostedLines, PostedPeer, Signals, There, WindowLines,
};
pub use error::SegmentError;
pub use launcher::{Launcher, Placement, StorePlace};
pub use local_buffer::{LocalBuffer, LocalBufferError, LocalBuffers};
#[cfg(target_os = "linux")]
pub use monitor::{GoodbyeError, Monitor};
pub use offer::Offer;
pub use pairing::{Pairing, Ticket};
pub use rank::Rank;
pub use rendezvous::TransportError;
#[cfg(target_os = "linux")]
pub use segment::ControlSockets;
pub use segment::{Exchange, SegmentOptions, SegmentSet};
pub use sizing::DEFAULT_TOTAL;
pub use status::{
    Crossing, Dealings, DeviceWait, Difference, Kind as WaitKind, Operations, Status, Unmet, Verdict, Waiting,
};
pub(crate) use status::{Found, deadlock, mismatch, other_operation, required};
pub use threads::start_thread;
pub(crate) use transfer::check_slots;
pub use transfer::{Protocol, Transfer, TransferError};
pub use world::{RankError, Threads, World, WorldError};
