//! tilewire: write what happens to one tile, tilewire sends it.

pub mod check;
pub mod collective;
pub mod hook;
pub mod ir;
pub mod tensor;
pub mod vm;

pub use collective::map;
pub use hook::{BuildError, Traced, Value, View, kernel};
pub use ir::scalar::{Bf16, F8E4M3, F8E5M2, F16};
pub use tensor::{Arg, Memory, Scalar, Tensor};
pub use vm::Level;

/// What kernels and hooks are written with: `use tilewire::prelude::*`.
pub mod prelude {
    pub use crate::collective::map;
    pub use crate::hook::{Block, Captured, Ctx, RoleCtx, Value, Var, View, View2, kernel};
    pub use crate::ir::scalar::{Bf16, F8E4M3, F8E5M2, F16};
    pub use crate::tensor::{Scalar, Tensor};
}
