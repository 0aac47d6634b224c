//! The simplifier: a kernel in, a smaller kernel with the same effects out.
//!
//! Results are the same bit for bit, except the sign and payload of a NaN made by arithmetic, which the language leaves
//! open. Stores, signals, waits, atomics, packets, bulk copies and posts are the same in number and order.
//!
//! One forward walk rebuilds the kernel. An op arrives with operands that are already simple; it is then
//!
//! 1. folded ([`fold`]) or, as a division by a constant, expanded ([`divide`]), else
//! 2. given a region to stand in: before the loops in which it does not change ([`hoist`]), and
//! 3. shared with an equal op that is visible there ([`share`]).
//!
//! Regions around the walk's position stay open, so "before the loop" is simply the end of an outer region. A backward
//! mark and a copy then drop code that no effect needs ([`dead`]). Each step is linear in the number of instructions.
//!
//! In: a verified kernel. Must not know: engines, devices.

mod dead;
mod divide;
mod fold;
mod hoist;
mod rewrite;
mod share;

use super::kernel::Kernel;

/// Most rounds of the walk. One does nearly all; a second sees new opportunities after dead code is gone.
const ROUNDS: usize = 4;

/// The same kernel, simpler. The input must be verified. Parameters, variables and scratch keep their numbers.
///
/// ```
/// use tilewire::ir::{simplify, *};
/// let at = SourceLine::caller();
/// let mut b = Builder::new("sum", 1);
/// let out = b.param(Param::Buffer {
///     name: "out".into(), ty: Type::I64, len: 1, banks: 1, access: Access::Out, align: 8,
/// });
/// b.open_role("role", 1, 1, &at);
/// let (two, index) = (b.constant(Type::I64, 2, &at), b.constant(Type::I64, 0, &at));
/// let x = b.value(Op::Binary { op: BinaryOp::Add, a: two, b: two }, &at);
/// b.push(Op::Store { at: Place { base: Base::Param(out), bank: None, index }, x, mask: None }, &at);
/// b.close();
///
/// let simple = simplify(&b.finish());
/// assert_eq!(simple.insts.len(), 3, "two constants and the store");
/// ```
pub fn simplify(kernel: &Kernel) -> Kernel {
    let (walked, mut changed) = rewrite::rewrite(kernel);
    let mut simple = dead::compact(walked);
    for _ in 1..ROUNDS {
        if !changed {
            break;
        }
        let walked;
        (walked, changed) = rewrite::rewrite(&simple);
        if changed {
            simple = dead::compact(walked);
        }
    }
    simple
}
