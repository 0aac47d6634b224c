//! Ready-made hooks for the most common uses of `produce` and `consume`, each a few lines of the public language.
//!
//! - **In**: constants, scalars, tensors and small closures. **Out**: closures that `produce`, `produce2` and `consume`
//!   take.
//! - **Invariants**: nothing here uses more than a user's crate could, so each hook is a template for your own. If a
//!   hook computes, its result is defined to the bit.
//! - **Must not know**: engines, schedules, collectives.
//!
//! | file | hooks of the send leg | hooks of the receive leg |
//! |---|---|---|
//! | `place.rs` | [`copy`], [`transpose`], [`permute`] | |
//! | | [`gather`], [`gather_by`], [`mask`] | [`scatter`], [`scatter_by`], [`keep`] |
//! | `number.rs` | [`scale`], [`bias`], [`cast`] | [`store`], [`accumulate`] |
//! | `activation.rs` | [`swiglu`], [`rms_norm`]; functions of a value: [`gelu`], [`silu`] | |
//! | `quantise.rs` | [`quantise`] (two values: `produce2`) | [`dequantise`] |
//! | `operand.rs` | the argument of `scale`, `bias` and `mask`: a number, a scalar, a tensor ([`Operand`]) | |
//! | `compose.rs` | [`Compose`]: `hook.then(\|x\| ..)` | |
//!
//! A hook of the send leg is called for every position of the *output* chunk and returns the value to send for it. A
//! hook of the receive leg is called for the same position with the value that arrived.
//!
//! ```
//! use tilewire::hooks::{self, Compose};
//! use tilewire::{F8E4M3, Tensor, map};
//!
//! let (out, inp) = (Tensor::<f32>::zeros(64), Tensor::from_fn(64, |i| i as f32));
//! let bias = Tensor::from_fn(16, |i| i as f32);
//!
//! map(&out, &inp).produce(hooks::scale(2.0)).run()?;
//! map(&out, &inp).chunk_shape(4, 16).output_shape(16, 4).produce(hooks::transpose()).run()?;
//! map(&out, &inp).produce2(hooks::quantise(F8E4M3::MAX, 32)).consume(hooks::dequantise()).run()?;
//!
//! // Where an element comes from, then what becomes of it.
//! map(&out, &inp).produce(hooks::gather(|c| 63 - c.pos()).then(|x| x * 0.5)).run()?;
//! assert_eq!(out.get(0), 31.5);
//!
//! // Bias and activation while sending: no separate pass.
//! let hook = hooks::bias(hooks::per_col(&bias)).then(hooks::gelu);
//! map(&out, &inp).chunk_shape(4, 16).produce(hook).run()?;
//! # Ok::<(), tilewire::RunError>(())
//! ```
#![forbid(unsafe_code)]

mod activation;
mod compose;
mod number;
mod operand;
mod place;
mod quantise;

pub use activation::{gelu, rms_norm, silu, swiglu};
pub use compose::Compose;
pub use number::{Accumulates, accumulate, bias, cast, scale, store};
pub use operand::{Operand, PerCol, PerElement, PerRow, per_col, per_element, per_row};
pub use place::{copy, gather, gather_by, keep, mask, permute, scatter, scatter_by, transpose};
pub use quantise::{Quantised, Scaled, dequantise, quantise};
