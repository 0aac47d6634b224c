//! Host entry points: arguments → checks → schedule → launch.
//!
//! - **In**: tensors, hooks and (for all but [`map`]) a transport. **Out**: a prepared kernel, or the error of the stage that
//!   failed ([`RunError`]).
//! - **Invariants**: building traces, verifies and compiles; running only launches. A prepared kernel keeps its tensors alive.
//! - **Must not know**: code generation. It calls `vm` to prepare and launch, and looks at nothing inside.
//!
//! Files in the order in which they use each other (a test holds them to it: no file uses one below it):
//!
//! | file | holds |
//! |---|---|
//! | `call.rs` | [`Call`]: the user's call that an operation comes from |
//! | `error.rs`, `failure.rs` | [`RunError`]; a peer's failure and a timeout, however they were noticed, as the two of it |
//! | `wait_host.rs` | [`waits_over`]: launches that sleep on a rank's doorbell and end with its abort word |
//! | `launch.rs` | [`Launch`]: a kernel over transports |
//! | | **what is asked for** |
//! | `algorithm.rs` | [`Algorithm`], [`ReduceOp`], [`Reducible`] |
//! | `pattern.rs`, `operation.rs` | which chunk goes where, in rounds; what a collective is |
//! | `rounds.rs` | [`Rounds`]: legs as roles, or as blocks |
//! | `config.rs` | [`Config`], [`Knobs`] |
//! | `hooks.rs` | hooks and shapes, as builders collect them |
//! | `request.rs` | all of it together, with types as values |
//! | | **the plan** |
//! | `facts.rs` | what decisions may depend on of the machines of a world |
//! | `itinerary.rs` | the plan: what one rank will do, as plain data |
//! | `decide.rs`, `settle.rs` | how one message travels: chosen, and checked against the transport |
//! | `exchange_plan.rs`, `reduction_plan.rs` | the plan of an exchange, of a reduction |
//! | | **the kernel** |
//! | `flow.rs` | from whose inputs to whose outputs a value goes: what hooks see as `peer`, `recv_peer` and `shard` |
//! | `scene.rs` | where a hook is called: what its context says |
//! | `exchange_kernel.rs`, `reduction_kernel.rs` | a schedule for each leg or shard, with the hooks in it |
//! | `map_kernel.rs` | plan and kernel of [`map`] |
//! | | **the launch** |
//! | `agreement.rs` | what ranks tell each other before the first launch |
//! | `prepared.rs` | [`PreparedExchange`]: compared with the peers, then launched |
//! | `build.rs` | from a request to all of these |
//! | | **what users call** |
//! | `builder.rs` | [`Collective`]: [`Exchange`], [`Reduction`], [`Map`] |
//! | `exchanges.rs` | [`send`], [`recv`], [`sendrecv`], [`all_to_all`], [`all_gather`], [`broadcast`], [`gather`], [`scatter`], [`barrier`] |
//! | `reductions.rs` | [`reduce_scatter`], [`all_reduce`] |
//! | `map.rs` | [`map`]: a collective of one rank; [`prepare`] |
#![forbid(unsafe_code)]

mod agreement;
mod algorithm;
mod build;
mod builder;
mod call;
mod config;
mod decide;
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
mod operation;
mod pattern;
mod prepared;
mod reduction_kernel;
mod reduction_plan;
mod reductions;
mod request;
mod rounds;
mod scene;
mod settle;
mod wait_host;

pub use algorithm::{Algorithm, ReduceOp, Reducible};
pub use builder::{Carries, CarriesTuples, Collective, Combining, Exchange, Map, Mapping, Moving, Reduction, Travels};
pub use call::Call;
pub use config::{Config, Knobs, Primitive};
pub use error::{During, Mismatch, RunError, Stage, Timeout};
pub use exchanges::{Barrier, all_gather, all_to_all, barrier, broadcast, gather, recv, scatter, send, sendrecv};
pub use launch::Launch;
pub use map::{map, prepare};
pub use prepared::PreparedExchange;
pub use reductions::{all_reduce, reduce_scatter};
pub use rounds::Rounds;
pub use wait_host::{waits_over, waits_over_all};
