//! Host entry points: arguments → checks → schedule → launch.
//!
//! - **In**: tensors, hooks and (for all but [`map`]) a transport. **Out**: a prepared kernel, or the error of the stage that
//!   failed ([`RunError`]).
//! - **Invariants**: building traces, verifies and compiles; running only launches. A prepared kernel keeps its tensors alive.
//! - **Must not know**: code generation. It calls `vm` to prepare and launch, and looks at nothing inside.
//!
//! | file | holds |
//! |---|---|
//! | `map.rs` | [`map`]: a collective of one rank |
//! | `exchange.rs` | [`send`], [`recv`], [`sendrecv`]; [`Exchange`]: the builder of all that moves chunks |
//! | `exchanges.rs` | [`all_to_all`], [`all_gather`], [`broadcast`], [`gather`], [`scatter`], [`barrier`] |
//! | `pattern.rs` | which chunk goes where, in rounds |
//! | `leg.rs` | every route with its tensors, tiles and protocol, checked |
//! | `legs.rs` | their kernel: a schedule for each leg, with the hooks in it |
//! | `rounds.rs` | [`Rounds`]: legs as roles, or as blocks |
//! | `flow.rs` | from whose inputs to whose outputs a value goes: what hooks see as `peer`, `recv_peer` and `shard` |
//! | `scene.rs` | where a hook is called: what its context says |
//! | `reduction.rs` | [`reduce_scatter`], [`all_reduce`]: what they are asked for, checked |
//! | `reduction_windows.rs` | the windows they may go through |
//! | `reduction_kernel.rs` | their kernels |
//! | `algorithm.rs` | [`Algorithm`], [`ReduceOp`], [`Reducible`] |
//! | `launch_exchange.rs` | [`PreparedExchange`]: compared with the peers, then launched |
//! | `pair.rs` | what ranks tell each other before the first launch |
//! | `terms.rs` | link, knobs, window and deadline, as builders collect them |
//! | `config.rs` | [`Config`]: the knobs, and what is chosen without |
//! | `hooks.rs` | hooks and shapes, as builders collect them |
//! | `link.rs` | [`Launch`]: a kernel over transports |
//! | `prepare.rs` | [`prepare`]: a traced kernel, ready to launch |
//! | `wait_host.rs` | [`waits_over`]: launches that sleep on a rank's doorbell and end with its abort word |
//! | `call.rs` | [`Call`]: the user's call that an operation comes from |
//! | `error.rs` | [`RunError`] |
//! | `failure.rs` | a peer's failure and a timeout, however they were noticed, as the two of [`RunError`] |
#![forbid(unsafe_code)]

mod algorithm;
mod call;
mod config;
mod error;
mod exchange;
mod exchanges;
mod failure;
mod flow;
mod hooks;
mod launch_exchange;
mod leg;
mod legs;
mod link;
mod map;
mod pair;
mod pattern;
mod prepare;
mod reduction;
mod reduction_kernel;
mod reduction_windows;
mod rounds;
mod scene;
mod terms;
mod wait_host;

pub use algorithm::{Algorithm, ReduceOp, Reducible};
pub use call::Call;
pub use config::{Config, Primitive};
pub use error::{During, Mismatch, RunError, Stage, Timeout};
pub use exchange::{Exchange, recv, send, sendrecv};
pub use exchanges::{all_gather, all_to_all, barrier, broadcast, gather, scatter};
pub use launch_exchange::PreparedExchange;
pub use link::Launch;
pub use map::{Map, map};
pub use prepare::prepare;
pub use reduction::{Reduction, all_reduce, reduce_scatter};
pub use rounds::Rounds;
pub use wait_host::{waits_over, waits_over_all};
