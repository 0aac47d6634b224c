//! PTX → running kernels: the GPU engine, over the CUDA driver, which is opened at run time.
//!
//! - **In**: kernels ([`Program::load`] writes and assembles their PTX) and device memory. **Out**: launches on streams, their
//!   errors, and results. [`evaluate`] is the short way for host tensors: it copies them to the device and back.
//! - **Invariants**: without the library, with an old driver or without a device there is a typed error, never a panic. A
//!   program is assembled and loaded when it is made, so no launch loads code while another one spins. Handles keep what
//!   they name alive. Nothing checks what kernels do with addresses: that their parameters fit their memory is checked when a
//!   launch is made, as on the CPU, and indices are not checked at all.
//! - **Must not know**: schedules, transports, ranks beyond a number.
//!
//! | file | holds |
//! |---|---|
//! | `device.rs` | [`Device`]: the driver, a GPU, its context |
//! | `buffer.rs` | [`Buffer`]: device memory |
//! | `stream.rs` | [`Stream`]: an order of launches |
//! | `program.rs` | [`Program`]: a kernel assembled and loaded |
//! | `launch.rs` | [`Launch`]: a program with its arguments; reports of waits that gave up |
//! | `copied.rs` | [`evaluate`], [`evaluate_world`]: launches on a device copy of host tensors |
//! | `error.rs` | [`CudaError`] |

mod buffer;
mod copied;
mod device;
mod error;
mod launch;
mod program;
mod stream;

pub use buffer::Buffer;
pub use copied::{RankLaunch, evaluate, evaluate_world};
pub use device::Device;
pub use error::{CudaError, Stopped};
pub use launch::{Bound, Launch, Settings};
pub use program::Program;
pub use stream::Stream;
