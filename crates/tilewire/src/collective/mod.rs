//! Host entry points: arguments → checks → schedule → launch.
//!
//! In: tensors, hooks and (for all but `map`) a transport. Out: prepared kernels. Must not know code generation.
#![forbid(unsafe_code)]

mod map;

pub use map::{Map, map};
