//! tilewire: write what happens to one tile, tilewire sends it.

pub mod ir;
pub mod tensor;
mod vm;

pub use vm::level::Level;
