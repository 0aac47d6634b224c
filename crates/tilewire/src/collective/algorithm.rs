//! Which way a collective takes, and what a reduction computes.

use crate::hook::{RoleCtx, Value};
use crate::ir::scalar::{Bf16, F8E4M3, F8E5M2, F16, Number};

/// Which way a collective takes. The results are the same, to the bit.
///
/// | | [`all_gather`](super::all_gather) | [`reduce_scatter`](super::reduce_scatter) | [`all_reduce`](super::all_reduce) |
/// |---|---|---|---|
/// | `OneShot` | yes | yes | small tensors: everything in packets to everybody |
/// | `TwoPhase` | | | large tensors: a shard to each rank, the sums to everybody |
/// | `Ring` | yes | yes | yes |
///
/// All other collectives are `OneShot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Every rank sends straight to every rank that it concerns.
    OneShot,
    /// Every rank gets its shard of all inputs, combines them, and sends the result to all.
    TwoPhase,
    /// Every rank sends to the next one alone, and what arrives goes on: read once, written twice.
    Ring,
}

impl Algorithm {
    pub(super) fn name(self) -> &'static str {
        match self {
            Algorithm::OneShot => "one-shot",
            Algorithm::TwoPhase => "two-phase",
            Algorithm::Ring => "ring",
        }
    }
}

/// What a reduction makes of what the ranks have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum; integers wrap.
    Sum,
    /// The smallest; NaN loses, −0 < +0.
    Min,
    /// The largest; NaN loses, −0 < +0.
    Max,
    /// The product; integers wrap.
    Product,
    /// The sum, divided by the number of ranks; integers truncate.
    Average,
}

impl ReduceOp {
    /// All of them.
    pub const ALL: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product, ReduceOp::Average];

    /// Its name in messages and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Product => "product",
            ReduceOp::Average => "average",
        }
    }

    /// What two ranks have, combined.
    pub(super) fn combine<'t, P: Number>(self, a: Value<'t, P>, b: Value<'t, P>) -> Value<'t, P> {
        match self {
            ReduceOp::Sum | ReduceOp::Average => a + b,
            ReduceOp::Min => a.min(b),
            ReduceOp::Max => a.max(b),
            ReduceOp::Product => a * b,
        }
    }

    /// What all ranks have, once combined, as it is kept.
    pub(super) fn finish<'t, T: Reducible>(
        self,
        r: &RoleCtx<'t>,
        x: Value<'t, T::Partial>,
        ranks: usize,
    ) -> Value<'t, T> {
        let whole = match self {
            ReduceOp::Average => x / r.constant(ranks as i64).cast::<T::Partial>(),
            _ => x,
        };
        whole.cast::<T>()
    }
}

/// Elements that can be reduced across ranks, and what partial results are: `f32` for floats narrower than that, so that the result is
/// rounded once and does not depend on the way it took; otherwise the elements' own type.
pub trait Reducible: Number {
    /// What partial results are kept in and travel as.
    type Partial: Number;
}

macro_rules! reducible {
    ($($name:ident as $partial:ident)*) => {$(
        impl Reducible for $name {
            type Partial = $partial;
        }
    )*};
}

reducible!(F16 as f32 Bf16 as f32 F8E4M3 as f32 F8E5M2 as f32 f32 as f32 f64 as f64);
reducible!(i8 as i8 i16 as i16 i32 as i32 i64 as i64 u8 as u8 u16 as u16 u32 as u32 u64 as u64);
