//! Bytes and signals between ranks.
//!
//! ```text
//!  rank, size, an all-gather ──segment──▶ memory of every rank, mapped here ──▶ kernels (as banks)
//!                               │  header of each: abort word, doorbell
//!                               └──control sockets──▶ monitor: a peer's death ──▶ abort word, doorbell
//! ```
//! In: who the ranks are and a way to exchange small byte strings among them. Out: [`Memory`](crate::tensor::Memory) of
//! every rank, and what keeps waits from hanging: [`Abort`], [`Doorbell`], [`Monitor`].
//!
//! Invariants: nothing has a name in the file system, so nothing stays behind after a crash; every socket operation has a
//! deadline; no locks live in shared memory; what a peer sends is checked before it is used. Must not know what kernels do
//! with the bytes.

mod abort;
mod doorbell;
mod error;
mod futex;
mod mapping;
mod segment;

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

pub use abort::{Abort, AbortCode, Cause, PanicGuard};
pub use doorbell::Doorbell;
pub use error::SegmentError;
#[cfg(target_os = "linux")]
pub use monitor::{GoodbyeError, Monitor};
#[cfg(target_os = "linux")]
pub use segment::ControlSockets;
pub use segment::{Exchange, SegmentOptions, SegmentSet};
