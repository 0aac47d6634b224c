//! Bytes and signals between ranks.
//!
//! - **In**: how many ranks there are and how they were started (threads of this process, or processes of a launcher).
//!   **Out**: a [`World`]: this rank's number, and a [`Bootstrap`] through which the ranks find each other. What moves data
//!   is set up over it.
//! - **Invariants**: every wait has a [`Deadline`], and ends early when a rank it needs is gone. An error names the ranks it
//!   is about. Nothing read from a socket is believed before the job's secret is proven, and nothing makes the store hold
//!   more than its [`Limits`].
//! - **Must not know**: the contents of the IR. A transport sees bytes, never a kernel.
//!
//! | file | holds |
//! |---|---|
//! | `world.rs` | [`World`]: what a rank knows; ranks as threads |
//! | `launcher.rs` | [`Placement`]: what each launcher says in the environment |
//! | `bootstrap/` | [`Bootstrap`]: set, get, barrier, all-gather; in process and over TCP |
//! | `rank.rs` | [`Rank`] |
//! | `deadline.rs` | [`Deadline`] |

pub mod bootstrap;
mod deadline;
mod launcher;
mod rank;
mod world;

pub use bootstrap::{Bootstrap, BootstrapError, Limits, LocalBootstrap, Secret, StoreServer, TcpBootstrap};
pub use deadline::Deadline;
pub use launcher::{Launcher, Placement, StorePlace};
pub use rank::Rank;
pub use world::{RankError, Threads, World, WorldError};
