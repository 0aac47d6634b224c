//! tilewire: write what happens to one tile, tilewire sends it.

pub mod check;
pub mod ir;
pub mod tensor;

pub use tensor::{Arg, Memory, Scalar, Tensor};
