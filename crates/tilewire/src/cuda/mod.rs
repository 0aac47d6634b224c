//! PTX → running kernels: the GPU engine, over the CUDA driver, which is opened at run time.
//!
//! - **In**: kernels ([`Program::load`] writes and assembles their PTX) and device memory. **Out**: launches on
//!   streams, and their errors.
//! - **Invariants**: without the library, with an old driver or without a device there is a typed error, never a panic.
//!   A program is assembled and loaded when it is made. In the driver, loading, unloading and freeing block while
//!   anything runs. So launches of ranks that share a device start only when all launches that they wait for have
//!   arrived. No allocation or copy waits for a launch of another thread. Handles keep alive what they name, and
//!   launches what they use until they are done. Kernels' use of addresses is unchecked: that their parameters fit
//!   their memory is checked when a launch is made, as on the CPU, and indices are not checked at all.
//! - **Must not know**: schedules, transports, ranks beyond a number.
//!
//! | file | holds |
//! |---|---|
//! | `device.rs` | [`Device`]: the driver, a GPU, its context |
//! | `buffer.rs` | [`Buffer`]: device memory, and tensors in it |
//! | `adopted.rs` | device memory of others as tensors |
//! | `pinned.rs` | host memory that kernels reach |
//! | `cards.rs` | what network cards need to write device memory |
//! | `mapped.rs` | device memory that other devices and processes can map |
//! | `stream.rs` | [`Stream`]: an order of launches |
//! | `foreign_stream.rs` | [`ForeignStream`]: streams of others, and their captures |
//! | `busy.rs` | [`BusyWord`]: how launches find that they overlap |
//! | `graph.rs` | [`Graph`]: recorded launches, to be replayed |
//! | `program.rs` | [`Program`]: a kernel assembled and loaded |
//! | `launch.rs` | [`Launch`]: a program with its arguments |
//! | `replaced.rs` | arguments of launches in flight that were rebound |
//! | `gang.rs` | ranks of one process that share a device start together |
//! | `report.rs` | the reports of launches that gave up |
//! | `residency.rs` | how many blocks run simultaneously |
//! | `event.rs` | [`Event`]: times on a stream |
//! | `foreign.rs` | [`Foreign`]: hand-written kernels, to compare with |
//! | `error.rs` | [`CudaError`] |
//! | `absent.rs` | this folder without the feature `cuda`: what the rest of the library names of it |

mod adopted;
mod buffer;
mod busy;
#[cfg(feature = "fabric")]
mod cards;
mod device;
mod error;
mod event;
mod foreign;
mod foreign_stream;
mod gang;
mod graph;
mod launch;
mod mapped;
mod pinned;
mod program;
mod replaced;
mod report;
mod residency;
mod stall;
mod stream;

pub use buffer::Buffer;
pub use busy::BusyWord;
pub use device::Device;
pub use error::{CudaError, Stopped, UnmetRequirement};
pub use event::Event;
pub use foreign::{Foreign, ForeignEntry, Grid};
pub(crate) use foreign_stream::BesideCaptures;
pub use foreign_stream::ForeignStream;
pub use graph::Graph;
pub use launch::{AbortWord, Launch, Seat, Settings};
pub use program::Program;
pub use residency::{Need, all_resident};
pub use stall::{Launches, Stalled};
pub use stream::{Gang, Stream};
