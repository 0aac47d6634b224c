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
//! | `exchange.rs` | [`send`], [`recv`], [`sendrecv`]: what they are asked for, checked |
//! | `legs.rs` | their kernel: a schedule for each leg, with the hooks in it |
//! | `launch_exchange.rs` | [`PreparedExchange`]: compared with the peers, then launched |
//! | `pair.rs` | what the two sides of a transfer tell each other |
//! | `config.rs` | [`Config`]: the knobs, and what is chosen without |
//! | `hooks.rs` | hooks and shapes, as builders collect them |
//! | `link.rs` | [`Link`]: a transport that kernels can be bound to; [`Launch`]: a kernel over transports |
//! | `prepare.rs` | [`prepare`]: a traced kernel, ready to launch |
//! | `wait_host.rs` | [`waits_over`]: launches that sleep on a rank's doorbell and end with its abort word |
//! | `error.rs` | [`RunError`] |
#![forbid(unsafe_code)]

mod config;
mod error;
mod exchange;
mod hooks;
mod launch_exchange;
mod legs;
mod link;
mod map;
mod pair;
mod prepare;
mod wait_host;

pub use config::{Config, Primitive};
pub use error::{Mismatch, RunError, Timeout};
pub use exchange::{Exchange, recv, send, sendrecv};
pub use launch_exchange::PreparedExchange;
pub use link::{Host, Launch, Link};
pub use map::{Map, map};
pub use prepare::prepare;
pub use wait_host::{waits_over, waits_over_all};
