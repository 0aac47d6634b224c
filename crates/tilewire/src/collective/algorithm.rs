//! Which way a collective takes, and what a reduction computes.

use crate::hook::{Regs, RoleCtx, Value};
use crate::ir::Type;
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
    /// The sum, divided by the number of ranks. Integers are divided once, at the end, and rounded towards zero: −3 and −4 give −3. Integers
    /// of up to 32 bits are summed in a wider type, so their sum is exact (of up to 65,537 ranks). For `i64` and `u64` there is no wider
    /// type: their sum wraps *before* it is divided, as that of [`ReduceOp::Sum`] does.
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

    /// What all ranks have, in this order, combined and as it is kept.
    pub(super) fn of_all<'t, T: Reducible>(
        self,
        r: &RoleCtx<'t>,
        all: impl ExactSizeIterator<Item = Value<'t, T>>,
    ) -> Value<'t, T> {
        match self {
            ReduceOp::Average => self.through::<T, T::Mean>(r, all),
            _ => self.through::<T, T::Partial>(r, all),
        }
    }

    fn through<'t, T: Reducible, P: Number>(
        self,
        r: &RoleCtx<'t>,
        all: impl ExactSizeIterator<Item = Value<'t, T>>,
    ) -> Value<'t, T> {
        let ranks = all.len();
        let x = all.map(|x| x.cast::<P>()).reduce(|a, b| self.combine(a, b)).expect("at least one rank");
        self.finish(r, x, ranks)
    }

    /// What all ranks have, once combined, as it is kept.
    pub(super) fn finish<'t, T: Reducible, P: Number>(
        self,
        r: &RoleCtx<'t>,
        x: Value<'t, P>,
        ranks: usize,
    ) -> Value<'t, T> {
        let whole = match self {
            ReduceOp::Average => x / r.constant(ranks as i64).cast::<P>(),
            _ => x,
        };
        whole.cast::<T>()
    }

    /// What partial results travel as.
    pub(super) fn partial<T: Reducible>(self) -> &'static [Type] {
        match self {
            ReduceOp::Average => <T::Mean as Regs>::TYPES,
            _ => <T::Partial as Regs>::TYPES,
        }
    }
}

/// Elements that can be reduced across ranks, and what partial results are: `f32` for floats narrower than that, so that the result is
/// rounded once and does not depend on the way it took; otherwise the elements' own type. The sum of an average may be larger than any of
/// its terms, so integers have the next wider type for it, where there is one.
pub trait Reducible: Number {
    /// What partial results are kept in and travel as.
    type Partial: Number;
    /// The same for [`ReduceOp::Average`].
    type Mean: Number;
}

macro_rules! reducible {
    ($($name:ident as $partial:ident, $mean:ident;)*) => {$(
        impl Reducible for $name {
            type Partial = $partial;
            type Mean = $mean;
        }
    )*};
}

reducible! {
    F16 as f32, f32;
    Bf16 as f32, f32;
    F8E4M3 as f32, f32;
    F8E5M2 as f32, f32;
    f32 as f32, f32;
    f64 as f64, f64;
    i8 as i8, i32;
    i16 as i16, i32;
    i32 as i32, i64;
    i64 as i64, i64;
    u8 as u8, u32;
    u16 as u16, u32;
    u32 as u32, u64;
    u64 as u64, u64;
}
