//! The algorithms of collectives, and the operators of reductions.

use crate::hook::{AnyValue, RoleCtx};
use crate::ir::scalar::Number;
use crate::ir::{BinaryOp, Type};

/// The algorithm of a collective. All algorithms give bit-identical results.
///
/// | | [`all_gather`] | [`broadcast`] | [`reduce_scatter`] | [`all_reduce`] |
/// |---|---|---|---|---|
/// | `OneShot` | yes | yes | yes | small tensors |
/// | `TwoPhase` | | | | large tensors |
/// | `Ring` | yes | | yes | yes |
/// | `TwoLevel` | over domains | over domains | | |
///
/// All other collectives are `OneShot`. In a one-shot all-reduce each rank sends its whole input to all ranks, in
/// packets, or reads the inputs of all ranks in windows. In two phases each rank combines one shard and sends the
/// result to all ranks.
///
/// [`all_gather`]: super::all_gather
/// [`broadcast`]: super::broadcast
/// [`reduce_scatter`]: super::reduce_scatter
/// [`all_reduce`]: super::all_reduce
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Every rank sends straight to every rank that needs its data.
    OneShot,
    /// Every rank receives its shard of all inputs, combines them, and sends the result to all ranks.
    TwoPhase,
    /// Every rank sends only to the next one, which passes the data on. When gathering, a rank reads arriving data once
    /// and writes it twice: to its output and to the next rank.
    Ring,
    /// In a world of several domains, as of a [`MeshTransport`](crate::link::MeshTransport): every rank sends to its
    /// near peers and to one rank of every other domain, which passes the data on to its own near peers. So the data
    /// crosses the network once per other domain. The default there, unless the caller gives an algorithm, a primitive
    /// or a window.
    TwoLevel,
}

impl Algorithm {
    pub(super) fn name(self) -> &'static str {
        match self {
            Algorithm::OneShot => "one-shot",
            Algorithm::TwoPhase => "two-phase",
            Algorithm::Ring => "ring",
            Algorithm::TwoLevel => "two-level",
        }
    }
}

/// The operator that a reduction applies to the ranks' values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum; integers wrap.
    Sum,
    /// The minimum; NaN loses, −0 < +0.
    Min,
    /// The maximum; NaN loses, −0 < +0.
    Max,
    /// The product; integers wrap.
    Product,
    /// The sum, divided by the number of ranks. Integers are divided once, at the end, and rounded towards zero: −3 and
    /// −4 give −3. Integers of up to 32 bits are summed in a wider type, so their sum is exact (for up to 65,537
    /// ranks). For `i64` and `u64` there is no wider type: their sum wraps *before* the division, as in
    /// [`ReduceOp::Sum`].
    Average,
}

impl ReduceOp {
    /// All operators.
    pub const ALL: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product, ReduceOp::Average];

    /// The name of the operator in messages and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Product => "product",
            ReduceOp::Average => "average",
        }
    }

    /// Combines the values of two ranks.
    pub(super) fn combine<'t>(self, a: AnyValue<'t>, b: AnyValue<'t>) -> AnyValue<'t> {
        let op = match self {
            ReduceOp::Sum | ReduceOp::Average => BinaryOp::Add,
            ReduceOp::Min => BinaryOp::Min,
            ReduceOp::Max => BinaryOp::Max,
            ReduceOp::Product => BinaryOp::Mul,
        };
        a.binary(op, b)
    }

    /// Combines the values of all ranks, in this order, into a final result of type `ty`.
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

    /// Turns the combined value of all ranks into the final result of type `ty`.
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

    /// The type in which partial results of values of type `ty` are held and sent. Floats narrower than `f32` use
    /// `f32`, so that the result is rounded once and does not depend on the algorithm. Other elements use their own
    /// type. The sum for an average may be larger than any of its terms, so integers use the next wider type for it, if
    /// there is one.
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

/// Elements that can be reduced across ranks: all numbers, but not `bool`.
pub trait Reducible: Number {}

impl<T: Number> Reducible for T {}
