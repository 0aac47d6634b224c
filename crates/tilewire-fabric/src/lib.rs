//! libfabric, opened at run time: endpoints that write into registered memory of other processes.
//!
//! ```text
//!  libfabric.so.1 ──Library──▶ Provider::list ──▶ Provider ──Domain::open──▶ Domain ──Endpoint::open──▶ Endpoint
//!                                                                                            │ register ──▶ Region
//!   address, keys ◀── carried to the peer by the caller ──▶ AddressVector::insert ──▶ Peer   │
//!                                                                                            ▼
//!                   write · writedata · write_delivered · inject_writedata  ──▶  poll ──▶ Completion
//! ```
//! - **In**: the library's file, if it exists. Building this crate needs neither headers nor a C compiler. Six
//!   functions are looked up by name; all others are in the tables of the objects that they return (`sys.rs`). **Out**:
//!   writes with a number for the receiver's queue, and their completions.
//! - **Versions** from 1.11 to 2.x work: this crate asks for the interface of 1.17 at most (of 1.20 for memory of
//!   devices, if the library has it), the library allocates
//!   descriptions, and structures that the library fills have room to spare.
//! - **Invariants**: memory that the provider reads or writes outlives its use, because an operation under way keeps
//!   its region and its context. Objects are closed in the order that providers demand, and an object that cannot be
//!   closed stays alive. Loading and opening leave the user's signal handlers as they were, and dropping leaves nothing
//!   in `/dev/shm`.
//! - **Order**: the number of a write arrives after the bytes of the same write. No other order is promised.
//! - **Trust**: any process that can reach the endpoint may send numbers, and if it knows a key, it can write into the
//!   region. Choose keys at random, carry them over an authenticated connection, and check the numbers.
//! - **Must not know**: its users.
//!
//! ```no_run
//! use tilewire_fabric::{Domain, Endpoint, EndpointOptions, Library, Provider, Query};
//!
//! let library = Library::open()?;
//! let providers = Provider::list(library, &Query { provider: Some("tcp".into()), ..Query::default() })?;
//! let first = providers.into_iter().next().expect("an empty list is an error");
//! println!("{first}");
//! let endpoint = Endpoint::open(&Domain::open(first.into())?, &EndpointOptions::default())?;
//! println!("peers reach it at {:?}", endpoint.address());
//! # Ok::<(), tilewire_fabric::FabricError>(())
//! ```

mod domain;
mod endpoint;
mod error;
mod library;
mod peers;
mod plain;
mod provider;
mod queue;
mod shared_files;
mod signals;
mod sys;

pub use domain::{DmaBuf, Domain, Region};
pub use endpoint::{Completion, Endpoint, EndpointOptions, Posted, Remote, Source};
pub use error::{CompletionError, FabricError};
pub use library::{FILE, Library, VARIABLE};
pub use peers::{AddressVector, Peer};
pub use plain::{Plain, PlainError};
pub use provider::{Provider, Query};
pub use shared_files::left_behind;
