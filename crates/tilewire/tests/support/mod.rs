//! What the test crates share: short ways to write kernels, and random programs.
//!
//! | file | holds |
//! |---|---|
//! | `code.rs` | [`Code`]: a builder with short names |
//! | `programs.rs` | [`Program`]: a random kernel with its arguments, for any engine |
//! | `sections.rs`, `exchanges.rs` | the patterns random programs are put together from |
//! | `expression.rs` | random expressions, under the discipline for NaN |
//! | `data.rs` | random numbers, and initial data full of special values |
#![allow(dead_code)] // every test crate uses a part of it

pub mod code;
pub mod data;
pub mod exchanges;
pub mod expression;
pub mod programs;
pub mod sections;

pub use code::Code;
pub use data::Random;
pub use programs::{BufferSpec, ParamSpec, Program};
