//! Code that tilewire's tests share with each other, with the program and with the fuzz targets. It is compiled once
//! and never published.
//!
//! - **In**: the public API of `tilewire`. **Out**: programs, plans and data for testing it.
//! - **Invariants**: everything random comes from a seed, and a seed gives the same on every machine.
//! - **Must not know**: private parts of the library. Unit tests inside the library may use only [`random`],
//!   [`mutations`] and [`libfabric`]. For them, the types of `tilewire` that other modules name are types of another
//!   crate.
//!
//! | module | holds |
//! |---|---|
//! | [`random`] | [`random::Random`]: numbers from a seed |
//! | [`mutations`] | inputs for a fuzz target where there is no fuzzer |
//! | [`programs`] | random programs of one rank, with what they must compute |
//! | [`code`], [`kernels`] | a short way to write kernels, and kernels that use every op |
//! | [`malformed`] | kernels broken by bytes |
//! | [`hook_samples`] | every hook of the library, with its expected results |
//! | [`fields`] | the fields of a hook's context, with their expected values |
//! | [`ptx_machine`], [`simulated`] | a machine that runs PTX, and programs on it |
//! | [`shipped`] | plans that check every schedule of the library |
//! | [`copied`] | launches on a GPU, on a copy of host tensors |
//! | [`libfabric`] | libfabric, fetched where it is not installed |
//! | [`ptxas`], [`numpy`] | NVIDIA's assembler and a library of Python, fetched where they are not installed |
//! | [`skip`] | a visible line for a test that cannot run here |
//! | [`job`], [`ranks`] | tests whose ranks are processes |
// Only authors of tests read this crate, as source. So an item has documentation only if its name does not say enough.
#![allow(missing_docs)]

pub mod code;
#[cfg(feature = "cuda")]
pub mod copied;
pub mod fields;
pub mod hook_samples;
#[cfg(unix)]
pub mod job;
pub mod kernels;
pub mod libfabric;
pub mod malformed;
pub mod mutations;
pub mod numpy;
pub mod programs;
pub mod ptx_machine;
pub mod ptxas;
pub mod random;
#[cfg(unix)]
pub mod ranks;
#[cfg(feature = "check")]
pub mod shipped;
#[cfg(feature = "check")]
pub mod simulated;
pub mod skip;
