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
//! | `prepare.rs` | [`prepare`]: a traced kernel, ready to launch |
//! | `wait_host.rs` | [`waits_over`]: launches that sleep on a rank's doorbell and end with its abort word |
//! | `error.rs` | [`RunError`] |
#![forbid(unsafe_code)]

mod error;
mod map;
mod prepare;
mod wait_host;

pub use error::RunError;
pub use map::{Map, map};
pub use prepare::prepare;
pub use wait_host::waits_over;
