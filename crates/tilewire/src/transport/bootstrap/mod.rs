//! How ranks find each other: a small store of keys, barriers and all-gathers.
//!
//! - **In**: a rank's number and the world's size; for processes an address and the job's [`Secret`].
//!   **Out**: a [`Bootstrap`], the same for threads ([`LocalBootstrap`]) and processes ([`TcpBootstrap`]).
//! - **Invariants**: what set, get, barrier and all-gather mean is said once, in `store.rs`, which knows neither sockets nor
//!   clocks; both implementations drive it. A wait ends by its answer, by its deadline, or by the loss of a rank.
//! - **Must not know**: what the bytes are for.
//!
//! | file | holds |
//! |---|---|
//! | `store.rs` | the state, and what each request does to it |
//! | `local.rs` | [`LocalBootstrap`]: ranks are threads |
//! | `client.rs` | [`TcpBootstrap`]: a rank's connection |
//! | `server.rs` | [`StoreServer`]: the thread that serves them |
//! | `lingering.rs` | stores whose rank has left while other ranks still need them |
//! | `connection.rs` | one connection as the server sees it: bytes in, bytes out |
//! | `wire.rs` | the bytes of the protocol |
//! | `secret.rs` | [`Secret`], and what it protects |
//! | `limits.rs` | [`Limits`] |
//! | `poll.rs` | `poll(2)` |
//! | `error.rs` | [`BootstrapError`] |

mod client;
mod connection;
mod error;
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

/// What ranks agree through before any transport exists.
///
/// Every call may wait and takes a [`Deadline`]. A wait that another rank can no longer satisfy fails at once with
/// [`BootstrapError::PeerGone`]. Several threads of a rank may call at the same time.
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

    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// Sets a key, once: a value that is there is never replaced, since a rank may have read it already. Setting the same
    /// value again is no error.
    fn set(&self, key: &str, value: &[u8], deadline: Deadline) -> Result<(), BootstrapError>;

    /// The value of a key; waits until some rank sets it.
    fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>, BootstrapError>;

    /// As [`get`](Bootstrap::get), and removes the key: exactly one taker has it, and the store does not grow. The way to
    /// pass a message from one rank to one other.
    fn take(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>, BootstrapError>;

    /// As [`take`](Bootstrap::take), for who looks now and then and does something else in between: waits for the key until `look`. A store that does
    /// not answer is held for gone only after `patience`, since on a machine with more ranks than processors an answer may take seconds.
    fn look(&self, key: &str, look: Deadline, patience: Deadline) -> Result<Vec<u8>, BootstrapError> {
        let _ = patience;
        self.take(key, look)
    }

    /// Returns when all ranks have come to the barrier of this name. A name may be used again.
    fn barrier(&self, name: &str, deadline: Deadline) -> Result<(), BootstrapError>;

    /// The values all ranks bring, by rank; waits for all. A name may be used again.
    fn all_gather(&self, name: &str, value: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>, BootstrapError>;

    /// Tells all ranks that this one has failed: their waits end at once, and later ones that would block fail.
    fn abort(&self, reason: &str);

    /// Notes that the job has failed, here or on another rank. A rank that hosts the store then waits only a moment for the
    /// others to leave: the one that has failed may never do so.
    fn note_failure(&self) {}

    /// A rank that a call on this bootstrap found lost.
    fn lost(&self) -> Option<Rank> {
        None
    }
}
