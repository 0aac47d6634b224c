//! The simplifier: a kernel in, a smaller kernel with the same effects out.
//!
//! Results are the same bit for bit (the sign and payload of a NaN made by arithmetic excepted, which the language leaves
//! open), and stores, signals, waits, atomics, packets, bulk copies and posts are the same in number and order.
//!
//! One forward walk rebuilds the kernel. An op arrives with operands that are already simple; it is then
//!
//! 1. folded ([`fold`]) or, as a division by a constant, expanded ([`divide`]), else
//! 2. given a region to stand in: before the loops in which it does not change ([`hoist`]), and
//! 3. shared with an equal op that is visible there ([`share`]).
//!
//! Regions around the walk's position stay open, so "before the loop" is simply the end of an outer region. A backward
//! mark and a copy then drop what no effect needs ([`dead`]). Each step is linear in the number of instructions.
//!
//! In: a verified kernel. Must not know: engines, devices.

mod dead;
mod divide;
mod fold;
mod hoist;
mod rewrite;
mod share;

use super::kernel::Kernel;

/// Most rounds of the walk. One does nearly all; a second sees what dropping code made possible.
const ROUNDS: usize = 4;

/// The same kernel, simpler. The input must be verified.
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
