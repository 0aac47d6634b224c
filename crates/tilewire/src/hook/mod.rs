//! The staged language: closures become kernels.
//!
//! - **In**: a closure over a [`Block`], run while tracing. **Out**: an [`ir::Kernel`] and the arguments its launches
//!   bind ([`Traced`]), or all misuses of the language together, each with the user's line ([`BuildError`]).
//! - **Invariants**: a [`Value`] belongs to one build (its brand `'t` is invariant). A traced kernel passes
//!   `ir::verify`. The closure may run any number of times and must be pure (debug builds run it twice and compare).
//! - **Must not know**: engines, devices, transports, schedules.
//!
//! | file | holds |
//! |---|---|
//! | `value.rs` | [`Value`], and the types that convert to one: [`IntoValue`], [`IntoIndex`] |
//! | `ops.rs` | arithmetic |
//! | `view.rs` | memory: [`View`], [`View2`], captured tensors |
//! | `block.rs` | [`Block`]: parameters and roles |
//! | `role.rs` | [`RoleCtx`]: `each`, control flow, variables, scratch |
//! | `require.rs` | conditions that must hold when the kernel runs |
//! | `wire.rs` | regions, slots, packets, bulk copies, posts |
//! | `ctx.rs` | [`Ctx`]: the argument of a collective's hook |
//! | `regs.rs` | [`Regs`]: the payload from `produce` to `consume` |
//! | `legs.rs` | the memory that `produce` and `consume` may touch |
//! | `trace.rs` | the kernel under construction, scopes, misuse |
//! | `error.rs` | [`BuildError`], [`Misuse`] |
//!
//! ```
//! use tilewire::{Scalar, Tensor, kernel, prelude::*};
//!
//! let (x, y) = (Tensor::<f32>::zeros(1024), Tensor::<f32>::zeros(1024));
//! let scale = Scalar::new(0.5f32);
//! let traced = kernel("scale and clamp", |k| {
//!     k.blocks(4);
//!     let (x, y) = (k.input(&x), k.output(&y));
//!     k.main(|r| {
//!         r.for_step(r.block() * 256, x.len(), r.blocks() * 256, |start| {
//!             r.each(256, |i| {
//!                 let i = start + i;
//!                 y.store(i, (x.load(i) * &scale).max(0.0));
//!             });
//!         });
//!     });
//! })?;
//! assert_eq!(traced.args.len(), 3);
//! # Ok::<(), tilewire::BuildError>(())
//! ```
#![forbid(unsafe_code)]

mod block;
mod ctx;
mod error;
mod legs;
mod ops;
mod regs;
mod require;
mod role;
mod trace;
mod value;
mod view;
mod wire;

pub use block::{Block, RoleBuilder};
pub(crate) use ctx::{AnyCtx, AnyCtxBuilder, Several};
pub use ctx::{Chunk, Ctx, CtxBuilder, Tile};
pub use error::{BuildError, Misuse, MisuseKind, ScopeKind};
pub use ops::Bits;
pub use regs::{Payload, Regs};
pub use role::{IntoRange, RoleCtx, Var};
pub(crate) use trace::Lines;
pub(crate) use value::Known;
pub use value::{AnyValue, IntoIndex, IntoValue, Value};
pub use view::{Atomic, Captured, View, View2};
pub use wire::{Banks, Queue, Region, Slot, Slots};

pub(crate) use legs::{Holds, HookLeg, Overlap};

use crate::ir::{self, Entity, SourceLine};
use crate::tensor::Arg;
use std::panic::{AssertUnwindSafe, catch_unwind};
use trace::{Outcome, Trace};

/// A traced kernel and the arguments its launches bind.
#[derive(Clone, Debug)]
pub struct Traced {
    /// The kernel.
    pub kernel: ir::Kernel,
    /// One per parameter, in order; they keep the tensors alive.
    pub args: Vec<Arg>,
}

/// Traces a closure into a kernel.
///
/// The closure declares parameters and roles on the [`Block`] it gets. It may run more than once, so it must be pure. A
/// panic in it is an error of this build.
///
/// ```
/// use tilewire::{Tensor, kernel};
/// let (x, y) = (Tensor::<f32>::zeros(8), Tensor::<f32>::zeros(8));
/// let traced = kernel("copy", |k| {
///     let (x, y) = (k.input(&x), k.output(&y));
///     k.main(|r| r.each(x.len(), |i| y.store(i, x.load(i))));
/// })?;
/// println!("{}", traced.kernel);
///
/// // All misuse is reported together, each with its line.
/// let error = kernel("wrong", |k| {
///     let x = k.input(&x);
///     k.main(|r| r.each(x.len(), |i| x.store(i, 0.0)));
/// })
/// .unwrap_err();
/// assert!(error.to_string().contains("which is an input"));
/// # Ok::<(), tilewire::BuildError>(())
/// ```
#[track_caller]
pub fn kernel(name: &str, body: impl for<'t> Fn(&Block<'t>)) -> Result<Traced, BuildError> {
    kernel_at(name, SourceLine::caller(), body)
}

/// As [`kernel`], on behalf of a user's call at another line, which errors name.
pub(crate) fn kernel_at(name: &str, at: SourceLine, body: impl for<'t> Fn(&Block<'t>)) -> Result<Traced, BuildError> {
    let first = run(name, &body, &at)?;
    if cfg!(debug_assertions) {
        compare(&first.kernel, &run(name, &body, &at)?.kernel, &at)?;
    }
    Ok(first)
}

fn run(name: &str, body: &dyn for<'t> Fn(&Block<'t>), at: &SourceLine) -> Result<Traced, BuildError> {
    let trace = Trace::new(name);
    let panic = catch_unwind(AssertUnwindSafe(|| body(&Block::new(&trace)))).err();
    let Outcome { kernel, args, mut errors } = trace.finish();
    let name = name.to_string();
    if let Some(panic) = panic {
        let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let message = text.unwrap_or_else(|| "(a panic without a message)".to_string());
        return Err(BuildError::Panicked { kernel: name, message, at: at.clone(), earlier: errors });
    }
    if kernel.roles.is_empty() {
        errors.push(Misuse { at: at.clone(), kind: MisuseKind::NoRole });
    }
    if !errors.is_empty() {
        return Err(BuildError::Misuse { kernel: name, built_at: at.clone(), errors });
    }
    match ir::verify(&kernel) {
        Ok(()) => Ok(Traced { kernel, args }),
        Err(errors) => Err(BuildError::Verify { kernel: name, built_at: at.clone(), errors }),
    }
}

/// Finds the first difference between two traces of one closure.
fn compare(first: &ir::Kernel, second: &ir::Kernel, at: &SourceLine) -> Result<(), BuildError> {
    let differ = |line: &SourceLine, difference: String| {
        Err(BuildError::NotPure { kernel: first.name.clone(), built_at: at.clone(), at: line.clone(), difference })
    };
    for (id, inst) in first.insts.iter() {
        match second.insts.get(id) {
            Some(other) if other.op == inst.op && first.line(id) == second.line(id) => {}
            Some(_) => {
                let [is, becomes] = [first, second].map(|kernel| ir::inst_text(kernel, id));
                return differ(first.line(id), format!("'{is}' became '{becomes}'"));
            }
            None => {
                return differ(first.line(id), format!("'{}' is missing the second time", ir::inst_text(first, id)));
            }
        }
    }
    if let Some(id) = second.insts.keys().nth(first.insts.len()) {
        return differ(second.line(id), format!("'{}' is new the second time", ir::inst_text(second, id)));
    }
    let shell = |kernel: &ir::Kernel| {
        let roles: Vec<_> =
            kernel.roles.values().map(|r| (r.name.clone(), r.warps, r.copies, r.body.index())).collect();
        let scratches: Vec<_> = kernel.scratches.values().map(|s| (s.ty, s.len)).collect();
        (kernel.blocks, roles, scratches)
    };
    if first.params != second.params || first.regions != second.regions || shell(first) != shell(second) {
        return differ(at, "parameters, roles, blocks or scratch differ".to_string());
    }
    Ok(())
}
