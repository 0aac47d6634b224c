//! The effect of one op on one element: the single definition of the arithmetic that every engine must reproduce bit
//! for bit.
//!
//! - **In**: elements of the fifteen [`Type`](super::Type)s, either as Rust values (the CPU engine instantiates its
//!   loops over [`Number`], [`Integer`], [`Float`] and [`CastTo`]) or as zero-extended bits with a `Type` at run time
//!   (the constant folder and the reference evaluator call [`dynamic`]).
//! - **Out**: the result that the documentation of [`UnaryOp`](super::UnaryOp), [`BinaryOp`](super::BinaryOp),
//!   [`CompareOp`](super::CompareOp) and `Op::Cast` promises. There is one implementation: `dynamic` only dispatches.
//! - **Invariants**: every function is total and never panics on a value: integer division by zero, shifts beyond the
//!   width and NaN all have a defined result. Every float op rounds to nearest even and keeps denormals. Every
//!   conversion rounds once. No function calls a maths library whose result differs between machines. Only the sign and
//!   payload of a NaN made by arithmetic are unspecified; [`dynamic::canonical_nan`] hides them.
//! - **Must not know**: instructions, memory, engines, shapes.
//!
//! The code uses selects instead of branches, and `inline(always)`, so that loops over it become vector code.
//!
//! | file | holds |
//! |---|---|
//! | `narrow.rs` | the float types Rust does not have: [`F16`], [`Bf16`], [`F8E4M3`], [`F8E5M2`] |
//! | `element.rs` | [`Element`]: the Rust type of each `Type` |
//! | `arith.rs` | [`Number`], [`Integer`], [`Float`]: the ops of one, two and three operands |
//! | `cast.rs` | [`CastTo`]: conversions between all pairs of types |
//! | `math.rs` | [`math`]: exp, log and tanh as expansions into exact ops, over any arithmetic |
//! | `dynamic.rs` | [`dynamic`]: all of it on bits, by `Type` |

mod arith;
mod cast;
pub mod dynamic;
mod element;
pub mod math;
mod narrow;
#[cfg(test)]
mod tests;

pub use arith::{Arithmetic, Float, Integer, Number};
pub use cast::CastTo;
pub use element::{AnyBits, Element};
pub use narrow::{Bf16, F8E4M3, F8E5M2, F16};
