//! The reference evaluator: the living definition of the language, element by element and obviously right.
//!
//! - **In**: verified kernels of one or more ranks, and a [`Binding`] of each that maps parameters onto model memory
//!   ([`Memories`]). Two parameters, or two ranks, share bytes by naming the same [`MemoryId`].
//! - **Out**: the bytes afterwards, or an [`EvalError`] that names the source line, rank, block, role and copy.
//! - **How**: every (rank, block, role, copy) is an [`Instance`]: a state machine that does one op per
//!   [`step`](Instance::step) and returns [`Step::Blocked`] where it would wait, so that a scheduler decides every
//!   interleaving. An [`Observer`] sees each access, signal and wait: the checker is an observer with vector clocks.
//! - **Invariants**: a blocked step changes nothing that another instance can see and can be repeated; a run depends on
//!   nothing but its arguments (schedules and element orders come from printed seeds).
//! - **Must not know**: devices, engines, transports. It is judged against them, so it shares no code with them but
//!   [`crate::ir::scalar`].
//!
//! | file | holds |
//! |---|---|
//! | `run.rs` | [`run`], [`run_world`], [`launch`]: schedulers, deadlock, step limit |
//! | `snapshot.rs` | [`evaluate`]: the same for host tensors, without touching them |
//! | `memory.rs` | [`Memories`], [`Binding`]: what parameters are bound to |
//! | `network.rs` | [`Network`]: when the proxy behind a queue delivers |
//! | `observer.rs` | [`Observer`], [`Actor`]: what a checker sees |
//! | `error.rs` | [`EvalError`] |
//! | `eval/` | [`Instance`]: control flow, value ops, memory ops, `each` |
#![forbid(unsafe_code)]

mod error;
mod eval;
mod fixed;
mod memory;
mod model;
mod network;
mod observer;
mod random;
mod report;
mod run;
mod snapshot;
mod verify;
mod world;

pub use error::{EvalError, Location, Stuck};
pub use eval::{Awaited, Blocked, BulkTiming, ElementOrder, Instance, InstanceOptions, Step};
pub use memory::{Bank, Binding, Bound, Memories, MemoryId, PeerRoute, World};
pub use network::{AtOnce, Descriptor, Network};
pub use model::Conflict;
pub use observer::{Access, AccessKind, Actor, Observer, SlotRef, Unobserved};
pub use run::{Options, Schedule, instances, launch, run, run_world};
pub use report::{Certainty, Event, Fault, Found, Moment, Report, Waiter};
pub use snapshot::evaluate;
pub use verify::{Settings, verify_world};
pub use world::Plan;
