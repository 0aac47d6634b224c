//! *Write what happens to one tile. tilewire sends it.*
//!
//! tilewire is a framework for **customised collectives**: communication kernels with the user's own computation fused
//! into the transfer. The kernel's author writes a **hook**, a closure that says what happens to one element; tilewire
//! traces it into a small language, checks it, compiles it and runs it.
//!
//! ```text
//!  closure ──hook──▶ IR ──┬── check   what a kernel means, element by element; races and deadlocks of all ranks
//!                         ├── vm      CPU engine: bytecode over strips, vectorised ──▶ launch
//!                         └── ptx     code for NVIDIA GPUs ──▶ cuda   driver, streams
//!
//!             tensor: the memory that arguments name       collective: entry points for host code
//!             transport: ranks, and how they find each other       link: the transports that users hold
//! ```
//!
//! # A custom map
//!
//! [`map`] is the collective of one rank: no wire, both hooks. Its hooks work in every other collective, too.
//!
//! ```
//! use tilewire::{Tensor, map};
//!
//! let inp = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
//! let out = Tensor::<f32>::zeros(6);
//! map(&out, &inp)
//!     .chunk_shape(2, 3)                                // a [2, 3] chunk
//!     .output_shape(3, 2)                               // becomes a [3, 2] chunk
//!     .produce(|c| c.input.at(c.col(), c.row()) * 10.0) // it arrives transposed, and scaled
//!     .run()?;
//! assert_eq!(out.to_vec(), [10.0, 40.0, 20.0, 50.0, 30.0, 60.0]);
//! # Ok::<(), tilewire::RunError>(())
//! ```
//!
//! # A kernel of your own
//!
//! [`kernel`] traces any kernel; [`prepare`] compiles it. Tensors and scalars captured by the closure become arguments.
//!
//! ```
//! use tilewire::{Prepared, Scalar, Tensor, check, kernel};
//!
//! let x = Tensor::from_fn(1000, |i| i as f32);
//! let y = Tensor::<f32>::zeros(1000);
//! let limit = Scalar::new(500.0f32);
//! let traced = kernel("clamp", |k| {
//!     k.blocks(2);
//!     let (x, y) = (k.input(&x), k.output(&y));
//!     k.main(|r| {
//!         let start = r.block() * 500;
//!         r.each(500, |i| y.store(start + i, x.load(start + i).min(&limit)));
//!     });
//! })?;
//!
//! // The text of the IR, and what it means by definition: `evaluate` works on a copy of the tensors.
//! println!("{}", traced.kernel);
//! let bytes = check::evaluate(&traced.kernel, &traced.args, (0, 1), check::Options::default())?;
//! assert_eq!(y.get(999), 0.0);
//!
//! // The CPU engine gives the same bytes.
//! Prepared::new(&traced.kernel, &traced.args)?.run()?;
//! assert_eq!(y.get(999), 500.0);
//! assert_eq!(bytes[1][0], tilewire::tensor::bytes_of(y.memory())?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to look
//!
//! | to … | see |
//! |---|---|
//! | apply hooks to a tensor | [`map`], [`hook::Ctx`] |
//! | use ready-made hooks, or begin with one | [`hooks`] |
//! | write a kernel | [`kernel`], [`hook::Block`], [`hook::RoleCtx`] |
//! | know what an op means, and its ordering | [`ir::Op`] |
//! | compile and launch | [`prepare`], [`Prepared`] |
//! | find races and deadlocks of kernels of several ranks | [`check`], [`check::Plan`], [`rehearsal`] |
//! | start ranks as threads or processes | [`World`], [`transport`] |
//! | exchange tensors between two ranks, with hooks | [`send`], [`recv`], [`sendrecv`] |
//! | exchange tensors among all ranks | [`all_to_all`], [`all_gather`], [`broadcast`], [`gather`], [`scatter`] |
//! | reduce tensors of all ranks; wait for all ranks | [`reduce_scatter`], [`all_reduce`]; [`barrier`] |
//! | write a schedule of your own | [`schedule`], `examples/05_ring_all_gather.rs` |
//! | put, get, signal and wait by hand | [`transport::PeerEndpoint`], `examples/06_own_kernel_from_raw_ops.rs` |
//! | write a transport of your own | [`link::Transport`], [`schedule::Reach`], `crates/outside-transport` |
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `check` | on | [`check`] and [`rehearsal`] |
//! | `cuda` | on | ranks on GPUs: [`link::NvlTransport`], [`cuda`]; builds `cudarc` |
//! | `fabric` | on | networks: [`link::FabricTransport`], [`link::MeshTransport`] of processes |
//! | `dlpack` | off | tensors to and from other libraries by DLPack: `tensor::dlpack` |
//! | `ndarray` | off | arrays of `ndarray` as tensors, in place |
//!
//! The CUDA driver and libfabric are opened at run time, so no feature needs them at build time.
//!
//! In the repository, docs/ has a guide and a list of the examples. ARCHITECTURE.md describes the internals, the
//! invariants and the memory model.
#![warn(missing_docs)]
// Parts of `transport` and `tensor` serve GPUs or networks alone, so only builds with all of these features warn about
// dead code.
#![cfg_attr(not(all(feature = "check", feature = "cuda", feature = "fabric")), allow(dead_code, unused_imports))]

// First, since its macros are used everywhere.
#[macro_use]
mod error;

#[cfg(feature = "check")]
pub mod check;
pub mod collective;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "cuda/absent.rs"]
pub mod cuda;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod hook;
pub mod hooks;
pub mod ir;
pub mod link;
mod processor;
pub mod ptx;
#[cfg(feature = "check")]
pub mod rehearsal;
pub mod schedule;
mod sync;
pub mod tensor;
pub mod transport;
pub mod vm;

pub use collective::{
    Algorithm, Config, Knobs, Primitive, ReduceOp, RunError, all_gather, all_reduce, all_to_all, barrier, broadcast,
    gather, map, prepare, recv, reduce_scatter, scatter, send, sendrecv,
};
pub use hook::{BuildError, Traced, Value, View, kernel};
pub use ir::scalar::{Bf16, F8E4M3, F8E5M2, F16};
pub use tensor::{Arg, Memory, Scalar, Tensor};
pub use transport::{Rank, World};
pub use vm::{LaunchError, Level, PrepareError, Prepared};

/// The names needed to write kernels and hooks: `use tilewire::prelude::*`.
pub mod prelude {
    pub use crate::collective::{map, prepare};
    pub use crate::hook::{Block, Captured, Ctx, RoleCtx, Value, Var, View, View2, kernel};
    pub use crate::ir::scalar::{Bf16, F8E4M3, F8E5M2, F16};
    pub use crate::tensor::{Scalar, Tensor};
}

/// The README's code, compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// The code of the guide in docs/, likewise.
#[cfg(doctest)]
mod guide {
    macro_rules! pages {
        ($($name:ident: $file:literal;)*) => {$(
            #[doc = include_str!(concat!("../../../docs/guide/", $file))]
            pub struct $name;
        )*};
    }

    pages! {
        MentalModel: "mental_model.md";
        FourLayers: "four_layers.md";
        Tensors: "tensors.md";
        MemoryModel: "memory_model.md";
        Hooks: "hooks.md";
        Tuning: "tuning.md";
        Troubleshooting: "troubleshooting.md";
        Launching: "launching.md";
        Hosts: "hosts.md";
        Gpus: "gpus.md";
        Checking: "checking.md";
        Environment: "environment.md";
    }
}
