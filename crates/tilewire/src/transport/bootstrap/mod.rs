//! How ranks find each other: a small store of keys, barriers and all-gathers.
//!
//! - **In**: a rank's number and the world's size; for processes also an address and the job's [`Secret`]. **Out**: a
//!   [`Bootstrap`], with the same interface for threads ([`LocalBootstrap`]) and processes ([`TcpBootstrap`]).
//! - **Invariants**: `store.rs` alone defines what set, get, barrier and all-gather mean. It knows neither sockets nor
//!   clocks; both implementations drive it. A wait ends with its answer, at its deadline, or when a rank is lost.
//! - **Must not know**: what the bytes are for.
//!
//! | file | holds |
//! |---|---|
//! | `store.rs` | the state, and what each request does to it |
//! | `local.rs` | [`LocalBootstrap`]: ranks are threads |
//! | `client.rs` | [`TcpBootstrap`]: a rank's connection |
//! | `server.rs` | [`StoreServer`]: the thread that serves the ranks |
//! | `lingering.rs` | stores that other ranks still need after the hosting rank has left |
//! | `connection.rs` | one connection as the server sees it: bytes in, bytes out |
//! | `wire.rs` | the bytes of the protocol |
//! | `secret.rs` | [`Secret`], and what it protects |
//! | `limits.rs` | [`Limits`] |
//! | `keepalive.rs` | how a connection ends when the other host is cut off |
//! | `poll.rs` | `poll(2)` |
//! | `error.rs` | [`BootstrapError`] |

mod client;
mod connection;
mod error;
mod keepalive;
mod limits;
mod lingering;
mod local;
mod poll;
mod secret;
mod server;
mod store;
mod wire;

#[cfg(any(test, fuzzing))]
pub(crate) use wire::fuzz;

pub use client::TcpBootstrap;
pub use error::{BootstrapError, Departure, Operation};
pub use limits::{Limit, Limits};
pub use local::LocalBootstrap;
pub use secret::Secret;
pub use server::StoreServer;

use super::{Deadline, Rank};
use std::net::IpAddr;

/// How ranks exchange data and synchronize before any transport exists.
///
/// Every call may wait and takes a [`Deadline`]. A wait that cannot succeed because a rank is gone fails immediately
/// with [`BootstrapError::PeerGone`]. Several threads of a rank may call simultaneously.
///
/// ```
/// use std::time::Duration;
/// use tilewire::transport::{Bootstrap, Deadline, LocalBootstrap};
///
/// let soon = || Deadline::after(Duration::from_secs(10));
/// let ranks = LocalBootstrap::world(2);
/// std::thread::scope(|scope| {
///     for rank in &ranks {
///         scope.spawn(move || {
///             let number = [rank.rank().number() as u8];
///             let all = rank.all_gather("numbers", &number, soon()).unwrap();
///             assert_eq!(all, [[0], [1]]);
///             if number == [0] {
///                 rank.set("port", b"4791", soon()).unwrap();
///             }
///             assert_eq!(rank.get("port", soon()).unwrap(), b"4791");
///             rank.barrier("done", soon()).unwrap();
///         });
///     }
/// });
/// ```
pub trait Bootstrap: Send + Sync {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Number of ranks.
    fn world_size(&self) -> usize;

    /// Sets a key, once: its value is never replaced, since a rank may already have read it. Setting the same value
    /// again is not an error.
    fn set(&self, key: &str, value: &[u8], deadline: Deadline) -> Result<(), BootstrapError>;

    /// Returns the value of a key; waits until some rank sets it.
    fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>, BootstrapError>;

    /// Like [`get`](Bootstrap::get), but also removes the key: exactly one caller gets the value, and the store does
    /// not grow. Use it to pass a message from one rank to another.
    fn take(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>, BootstrapError>;

    /// Like [`take`](Bootstrap::take), for callers that poll and do other work in between: waits for the key until
    /// `look`. A store that does not answer counts as gone only after `patience`, since an answer may take seconds on a
    /// machine with more ranks than processors.
    fn look(&self, key: &str, look: Deadline, patience: Deadline) -> Result<Vec<u8>, BootstrapError> {
        let _ = patience;
        self.take(key, look)
    }

    /// Returns when all ranks have reached the barrier of this name. Names may be reused.
    fn barrier(&self, name: &str, deadline: Deadline) -> Result<(), BootstrapError>;

    /// Returns the values of all ranks, in rank order; waits for all of them. Names may be reused.
    fn all_gather(&self, name: &str, value: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>, BootstrapError>;

    /// Tells all ranks that this one has failed: their waits end immediately, and later calls that would block fail.
    fn abort(&self, reason: &str);

    /// Records that the job has failed, here or on another rank. A rank that hosts the store then waits only briefly
    /// for the others to leave: the failed rank may never do so.
    fn note_failure(&self) {}

    /// The IP addresses at the two ends of the connection to the store: this rank's and the store's. `None` if there is
    /// no such connection. A network between the ranks is looked for at the same address.
    fn addresses(&self) -> Option<[IpAddr; 2]> {
        None
    }

    /// A rank that a call on this bootstrap found to be lost.
    fn lost(&self) -> Option<Rank> {
        None
    }
}
