//! Which way a collective takes, and what a reduction computes.

use crate::hook::{AnyValue, RoleCtx};
use crate::ir::scalar::Number;
use crate::ir::{BinaryOp, Type};

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
    pub(super) fn combine<'t>(self, a: AnyValue<'t>, b: AnyValue<'t>) -> AnyValue<'t> {
        let op = match self {
            ReduceOp::Sum | ReduceOp::Average => BinaryOp::Add,
            ReduceOp::Min => BinaryOp::Min,
            ReduceOp::Max => BinaryOp::Max,
            ReduceOp::Product => BinaryOp::Mul,
        };
        a.binary(op, b)
    }

    /// What all ranks have of type `ty`, in this order, combined and as it is kept.
    pub(super) fn of_all<'t>(
        self,
        r: &RoleCtx<'t>,
        ty: Type,
        all: impl ExactSizeIterator<Item = AnyValue<'t>>,
    ) -> AnyValue<'t> {
        let (ranks, partial) = (all.len(), self.partial(ty));
        let x = all.map(|x| x.cast(partial)).reduce(|a, b| self.combine(a, b)).expect("at least one rank");
        self.finish(r, ty, x, ranks)
    }

    /// What all ranks have, once combined, as it is kept: of type `ty`.
    pub(super) fn finish<'t>(self, r: &RoleCtx<'t>, ty: Type, x: AnyValue<'t>, ranks: usize) -> AnyValue<'t> {
        let whole = match self {
            ReduceOp::Average => {
                let ranks = AnyValue::from(r.constant(ranks as i64)).cast(x.ty());
                x.binary(BinaryOp::Div, ranks)
            }
            _ => x,
        };
        whole.cast(ty)
    }

    /// What partial results of values of type `ty` are kept in and travel as: `f32` for floats narrower than that, so that the result is
    /// rounded once and does not depend on the way it took; otherwise the elements' own type. The sum of an average may be larger than
    /// any of its terms, so integers have the next wider type for it, where there is one.
    pub(super) fn partial(self, ty: Type) -> Type {
        match (ty, self) {
            (Type::F16 | Type::BF16 | Type::F8E4M3 | Type::F8E5M2, _) => Type::F32,
            (Type::I8 | Type::I16, ReduceOp::Average) => Type::I32,
            (Type::U8 | Type::U16, ReduceOp::Average) => Type::U32,
            (Type::I32, ReduceOp::Average) => Type::I64,
            (Type::U32, ReduceOp::Average) => Type::U64,
            _ => ty,
        }
    }
}

/// Elements that can be reduced across ranks: all numbers. `bool` is none.
pub trait Reducible: Number {}

impl<T: Number> Reducible for T {}
