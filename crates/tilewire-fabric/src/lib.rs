//! libfabric, opened at run time: endpoints that write into registered memory of other processes.
//!
//! ```text
//!  libfabric.so.1 ──Library──▶ Provider::list ──▶ Provider ──Domain::open──▶ Domain ──Endpoint::open──▶ Endpoint
//!                                                                                            │ register ──▶ Region
//!   address, keys ◀── carried to the peer by the caller ──▶ AddressVector::insert ──▶ Peer   │
//!                                                                                            ▼
//!                   write · writedata · write_delivered · inject_writedata  ──▶  poll ──▶ Completion
//! ```
//! - **In**: the library's file, if it is there: no header and no C compiler is needed to build this crate. Six
//!   functions are looked up by name; all others are in the tables of the objects that they return (`sys.rs`). **Out**:
//!   writes with a number for the receiver's queue, and what became of them.
//! - **Versions** from 1.11 to 2.x: at most the interface of 1.17 is asked for, descriptions are allocated by the
//!   library, and structures that it fills have room to spare.
//! - **Invariants**: what the provider reads or writes outlives its use, because what is under way keeps its region and
//!   its context. Everything is closed in the order that providers demand, and what cannot be closed stays. Loading and
//!   opening leave the user's signal handlers as they were, and dropping leaves nothing in `/dev/shm`.
//! - **Order**: none is promised. The number of a write arrives after its own bytes; nothing else follows from it.
//! - **Trust**: whoever can reach the endpoint and knows a key writes into the region, and whoever can reach it may
//!   send numbers. Choose keys at random, carry them over an authenticated connection, and check the numbers.
//! - **Must not know**: who uses it.
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

pub use domain::{Domain, Region};
pub use endpoint::{Completion, Endpoint, EndpointOptions, Posted, Remote, Source};
pub use error::{CompletionError, FabricError};
pub use library::{FILE, Library, VARIABLE};
pub use peers::{AddressVector, Peer};
pub use plain::{Plain, PlainError};
pub use provider::{Provider, Query};
pub use shared_files::left_behind;
