//! tilewire: write what happens to one tile, tilewire sends it.

pub mod check;
pub mod ir;
pub mod tensor;
pub mod vm;

pub use tensor::{Arg, Memory, Scalar, Tensor};
pub use vm::Level;
