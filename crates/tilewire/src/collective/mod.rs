//! Host entry points: arguments → checks → schedule → launch.
//!
//! - **In**: tensors, hooks and (for all but [`map`]) a transport. **Out**: a prepared kernel, or the error of the
//!   stage that failed ([`RunError`]).
//! - **Invariants**: building traces, verifies and compiles; running only launches. A prepared kernel keeps its tensors
//!   alive.
//! - **Must not know**: code generation. This module calls `vm` to prepare and launch, and does not look inside it.
//!
//! The files, in dependency order. No file uses one listed below it; a test enforces this.
//!
//! | file | holds |
//! |---|---|
//! | `call.rs` | [`Call`]: the user's call that an operation comes from |
//! | `rebind.rs` | [`RebindError`]: other tensors for a prepared kernel, or why not |
//! | `error.rs`, `failure.rs` | [`RunError`]; the mapping of peer failures and timeouts to their two variants |
//! | `wait_host.rs` | [`waits_over`]: launches that sleep on a rank's doorbell and end with its abort word |
//! | `launch.rs` | [`Launch`]: a kernel over transports |
//! | | **the request** |
//! | `algorithm.rs` | [`Algorithm`], [`ReduceOp`], [`Reducible`] |
//! | `pattern.rs`, `operation.rs` | which chunk goes where, in rounds; the operation of a collective |
//! | `domains.rs` | which ranks reach each other by loads and stores |
//! | `rounds.rs` | [`Rounds`]: whether legs become roles or get blocks of their own |
//! | `config.rs` | [`Config`], [`Knobs`] |
//! | `hooks.rs` | hooks and shapes, as builders collect them |
//! | `windows.rs` | the windows that are given, and those that a plan uses |
//! | `request.rs` | all of the above together, with element types as run-time values |
//! | | **the plan** |
//! | `facts.rs` | the facts about a world's machines that decisions may depend on |
//! | `itinerary.rs` | the plan: what one rank will do, as plain data |
//! | `decide.rs`, `settle.rs` | choose how one message travels, and check that the transport can do it |
//! | `two_level.rs` | routes and decisions of algorithms in two levels |
//! | `exchange_plan.rs`, `reduction_plan.rs` | the plans of exchanges and of reductions |
//! | | **the kernel** |
//! | `flow.rs` | `peer`, `recv_peer` and `shard` of hooks: from whose inputs to whose outputs a value goes |
//! | `scene.rs` | the place where a hook is called: the content of its context |
//! | `exchange_kernel.rs`, `reduction_kernel.rs` | a schedule for each leg or shard, including the hooks |
//! | `map_kernel.rs` | plan and kernel of [`map`] |
//! | | **the launch** |
//! | `agreement.rs` | what ranks tell each other before the first launch |
//! | `one_hop.rs` | a second kernel for ranks that reach each other's tensors, and how they agree on it |
//! | `prepared.rs` | [`PreparedExchange`]: compares itself with the peers, then launches |
//! | `build.rs` | turns a request into a prepared kernel |
//! | | **the user's calls** |
//! | `builder.rs` | [`Collective`]: [`Exchange`], [`Reduction`], [`Map`] |
//! | `exchanges.rs` | [`send`], [`recv`], [`sendrecv`], [`barrier`], and [`all_to_all`] and others that move tensors |
//! | `reductions.rs` | [`reduce_scatter`], [`all_reduce`] |
//! | `map.rs` | [`map`]: a collective of one rank; [`prepare`] |
#![forbid(unsafe_code)]

mod agreement;
mod algorithm;
mod build;
mod builder;
mod call;
#[cfg(test)]
mod carriers;
mod config;
mod decide;
mod domains;
mod error;
mod exchange_kernel;
mod exchange_plan;
mod exchanges;
mod facts;
mod failure;
mod flow;
mod hooks;
mod itinerary;
mod launch;
mod map;
mod map_kernel;
mod one_hop;
mod operation;
mod pattern;
mod prepared;
mod rebind;
mod reduction_kernel;
mod reduction_plan;
mod reductions;
mod request;
mod rounds;
mod scene;
mod settle;
mod two_level;
mod wait_host;
mod windows;

pub use algorithm::{Algorithm, ReduceOp, Reducible};
pub use builder::{Carries, CarriesTuples, Collective, Combining, Exchange, Map, Mapping, Moving, Reduction, Travels};
pub use call::Call;
pub use config::{Config, Knobs, Primitive};
pub use error::{During, Mismatch, Requirement, RunError, Stage, Timeout};
pub use exchanges::{Barrier, all_gather, all_to_all, barrier, broadcast, gather, recv, scatter, send, sendrecv};
pub use launch::Launch;
pub use map::{map, prepare};
pub use prepared::PreparedExchange;
pub use rebind::RebindError;
pub use reductions::{all_reduce, reduce_scatter};
pub use rounds::Rounds;
pub use wait_host::{waits_over, waits_over_all};
