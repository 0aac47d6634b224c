//! The CPU engine. A verified kernel and its arguments go in, the effects of running it come out.
//!
//! ```text
//!  IR ──lower──▶ bytecode ──verify──▶ program ──▶ machines (one per block and role) ──launch──▶ threads
//! ```
//! Uniform ops work on 64-bit registers, one or two nanoseconds each. The elements of an `each` are cut into strips
//! that stay in L1, and each lane op runs over a whole strip in a loop that the compiler vectorises (`lane/`). It reads
//! and writes tensors directly where the lowering can show that nobody else touches those bytes meanwhile. A wait that
//! is not ready stops its machine, and the thread runs another one.
//!
//! Invariants: no machine runs bytecode that `verify.rs` did not pass; every address is checked against its buffer
//! before it is used; a launch allocates nothing. The engine must not know about transports: signals are slots in
//! memory, whoever else writes them, and a [`WaitHost`], whoever implements it, ends waits and wakes sleepers.

mod address;
mod clock;
mod code;
mod control;
pub(crate) mod copy;
mod error;
mod handlers;
mod lane;
mod launch;
mod level;
mod lower;
mod machine;
mod pace;
mod pool;
mod rounding;
mod scalar_op;
mod shortcut;
mod stall;
mod stamp;
mod stores;
pub(crate) mod transpose;
mod uniform;
mod verify;
mod waits;

pub use error::{LaunchError, PrepareError, Who};
pub(crate) use launch::QUEUE_ROOM;
pub use launch::{Prepared, Settings};
pub use level::Level;
#[cfg(any(test, fuzzing))]
pub(crate) use machine::tests::fuzz;
pub use pace::Puts;
pub use stores::StorePolicy;
pub(crate) use stores::{Kept, Traffic};
pub use waits::{Awaited, Bell, WaitHost, Waits};
