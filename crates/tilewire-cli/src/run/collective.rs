//! The collectives of `tilewire run` and `tilewire verify`: their list, and one prepared for any element type.

use super::case::{Case, Transfer, Wrong, chunk, guarded, inside, prepare_output, untouched};
use super::data::Data;
use super::hook::{Hook, Leg};
use super::library::{Given, Sample, cast_exchange, cast_reduction};
use std::fmt;
use tilewire::collective::{Exchange, PreparedExchange, Reduction};
use tilewire::ir::scalar::dynamic;
use tilewire::ir::{BinaryOp, Type};
use tilewire::link::Transport;
use tilewire::link::{AnyTransport, Tensors, Window};
use tilewire::tensor::AccessError;
use tilewire::transport::Rank;
use tilewire::{
    Algorithm, Bf16, F8E4M3, F8E5M2, F16, Primitive, ReduceOp, RunError, Tensor, all_gather, all_reduce, all_to_all,
    broadcast, gather, reduce_scatter, scatter,
};

/// A collective by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// A ring shift.
    Sendrecv,
    /// Every rank has a chunk for every rank.
    AllToAll,
    /// Every rank gets the data of every rank.
    AllGather,
    /// Every rank gets its chunk of the reduction of all data.
    ReduceScatter,
    /// Every rank gets the reduction of all data.
    AllReduce,
    /// Every rank gets the data of the last one.
    Broadcast,
    /// The last rank gets the data of every rank.
    Gather,
    /// Every rank gets its chunk of the last one's data.
    Scatter,
}

impl Collective {
    /// All, in the order of the help text.
    pub const ALL: [Collective; 8] = [
        Collective::Sendrecv,
        Collective::AllToAll,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::Gather,
        Collective::Scatter,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        ["sendrecv", "all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "gather", "scatter"]
            [self as usize]
    }

    /// The collective with this name.
    pub fn named(name: &str) -> Option<Collective> {
        let name = name.replace('-', "_");
        Collective::ALL.into_iter().find(|collective| collective.name() == name)
    }

    /// Chunks of every rank's input and of its output.
    pub fn chunks(self, ranks: usize) -> (usize, usize) {
        match self {
            Collective::AllToAll => (ranks, ranks),
            Collective::AllGather | Collective::Gather => (1, ranks),
            Collective::ReduceScatter | Collective::Scatter => (ranks, 1),
            Collective::AllReduce | Collective::Broadcast | Collective::Sendrecv => (1, 1),
        }
    }

    /// True if it combines the ranks' data.
    pub fn reduces(self) -> bool {
        matches!(self, Collective::ReduceScatter | Collective::AllReduce)
    }

    /// Why it cannot have this hook, protocol and type together, if so: the combinations missing from README's table of
    /// collectives.
    pub fn refuses(self, case: &Case) -> Option<&'static str> {
        let Case { dtype, hook, config, .. } = case;
        if !self.reduces() {
            return hook.refused_by_exchange(config.primitive);
        }
        match (hook.leg(), config.primitive) {
            (Leg::Both, _) => Some("a reduction combines values of one type; use a hook of one leg"),
            (_, Some(Primitive::Bulk)) => Some("a reduction combines what arrives; use staged, packet or direct"),
            (Leg::Send, Some(Primitive::Direct)) => {
                Some("peers read the input where it lies, and nobody runs the hook; use staged or packet")
            }
            _ if *dtype == Type::Bool && *hook != Hook::Cast => Some("a reduction takes numbers"),
            _ => None,
        }
    }

    /// The algorithms of the collective. Two levels are for worlds of several domains.
    pub fn algorithms(self) -> &'static [Algorithm] {
        match self {
            Collective::AllGather => &[Algorithm::OneShot, Algorithm::Ring, Algorithm::TwoLevel],
            Collective::Broadcast => &[Algorithm::OneShot, Algorithm::TwoLevel],
            Collective::ReduceScatter => &[Algorithm::OneShot, Algorithm::Ring],
            Collective::AllReduce => &[Algorithm::OneShot, Algorithm::TwoPhase, Algorithm::Ring],
            _ => &[Algorithm::OneShot],
        }
    }
}

/// A collective with all its settings. `case.len` counts the elements that one rank sends to another; for an all-reduce
/// those of the whole tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The collective.
    pub collective: Collective,
    /// The data and the protocol.
    pub case: Case,
    /// The reduction.
    pub op: ReduceOp,
    /// The algorithm, if given.
    pub algorithm: Option<Algorithm>,
}

impl Plan {
    /// True if the protocol supports the algorithm.
    pub fn is_possible(&self) -> bool {
        match (self.collective, self.algorithm, self.case.config.primitive) {
            (_, Some(Algorithm::Ring | Algorithm::TwoLevel), primitive) => {
                matches!(primitive, None | Some(Primitive::Staged))
            }
            // In two phases through windows peers write the output, and nobody runs a consume hook.
            (_, Some(Algorithm::TwoPhase), Some(Primitive::Direct)) => self.case.hook.leg() != Leg::Receive,
            (_, Some(Algorithm::TwoPhase), primitive) => matches!(primitive, None | Some(Primitive::Staged)),
            (Collective::AllReduce, Some(Algorithm::OneShot), primitive) => {
                matches!(primitive, Some(Primitive::Packet | Primitive::Direct))
            }
            _ => true,
        }
    }
}

impl Plan {
    /// The least host memory that a run with `ranks` ranks takes, in bytes, without the segments between the ranks:
    /// inputs and outputs unless they are `on_device`, and the copies that the check compares.
    pub fn host_bytes(&self, ranks: usize, on_device: bool) -> u64 {
        let (sent, received) = self.collective.chunks(ranks);
        let chunk = (self.case.len as u64).saturating_mul(self.case.dtype.size() as u64);
        let tensors = if on_device { 0 } else { sent * self.case.hook.inputs() + received };
        // A copy of the output, and a chunk as sent, as received and as stored. A reduction has the chunks of all
        // ranks.
        let compared = received + 3 + if self.collective.reduces() { ranks } else { 0 };
        chunk.saturating_mul((tensors + compared) as u64).saturating_mul(ranks as u64)
    }

    /// True if this many ranks must refuse it for its size alone: a shard of an all-reduce would begin within a group
    /// of neighbours.
    pub fn tears_groups(&self, ranks: usize) -> bool {
        let (len, share) = (self.case.len, self.case.len.div_ceil(ranks));
        let torn = |group| share < len && !share.is_multiple_of(group);
        self.collective == Collective::AllReduce && self.case.hook.group(len).is_some_and(torn)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.collective.name(), self.case)?;
        if self.collective.reduces() {
            write!(f, ", {}", self.op.name())?;
        }
        self.algorithm.map_or(Ok(()), |algorithm| write!(f, ", {algorithm:?}"))
    }
}

/// Prepares a collective other than `sendrecv`. All ranks call it.
pub fn prepare_all<'l>(link: &'l AnyTransport, plan: &Plan, seed: u64) -> Result<Box<dyn Transfer + 'l>, RunError> {
    match plan.case.dtype {
        Type::Bool => typed::<bool>(link, plan, seed),
        Type::I8 => typed::<i8>(link, plan, seed),
        Type::I16 => typed::<i16>(link, plan, seed),
        Type::I32 => typed::<i32>(link, plan, seed),
        Type::I64 => typed::<i64>(link, plan, seed),
        Type::U8 => typed::<u8>(link, plan, seed),
        Type::U16 => typed::<u16>(link, plan, seed),
        Type::U32 => typed::<u32>(link, plan, seed),
        Type::U64 => typed::<u64>(link, plan, seed),
        Type::F16 => typed::<F16>(link, plan, seed),
        Type::BF16 => typed::<Bf16>(link, plan, seed),
        Type::F32 => typed::<f32>(link, plan, seed),
        Type::F64 => typed::<f64>(link, plan, seed),
        Type::F8E4M3 => typed::<F8E4M3>(link, plan, seed),
        Type::F8E5M2 => typed::<F8E5M2>(link, plan, seed),
    }
}

fn typed<'l, T: Sample>(link: &'l AnyTransport, plan: &Plan, seed: u64) -> Result<Box<dyn Transfer + 'l>, RunError> {
    let given = Given { link, case: &plan.case };
    match plan.case.hook {
        Hook::Cast => collective::<T, T::Other>(link, plan, seed, cast_exchange::<T>, cast_reduction::<T>),
        _ => collective::<T, T>(link, plan, seed, |e| T::exchange(e, &given), |r| T::reduction(r, &given)),
    }
}

fn collective<'l, In: Sample, Out: Sample>(
    link: &'l AnyTransport,
    plan: &Plan,
    seed: u64,
    exchange: impl FnOnce(Exchange<'_, 'l, In, Out>) -> Result<PreparedExchange<'l>, RunError>,
    reduction: impl FnOnce(Reduction<'_, 'l, In, Out>) -> Result<PreparedExchange<'l>, RunError>,
) -> Result<Box<dyn Transfer + 'l>, RunError> {
    let (ranks, len) = (link.world_size(), plan.case.len);
    let root = Rank::new(ranks as u32 - 1);
    let (sent, received) = plan.collective.chunks(ranks);
    let direct = plan.case.config.primitive == Some(Primitive::Direct);
    // A reduction reads its peers' inputs; only a reduce-scatter keeps its output private.
    let is_read = direct && plan.collective.reduces();
    let is_written = direct && plan.collective != Collective::ReduceScatter;
    let sent_len = sent * len * plan.case.hook.inputs();
    let input_window = is_read.then(|| Window::<In>::allocate(link, sent_len)).transpose()?;
    let window = is_written.then(|| Window::<Out>::allocate(link, received * len)).transpose()?;
    let (around, guard) = guarded(link, window.as_ref(), received * len)?;
    let out = around.slice(guard..guard + received * len);
    let inp = input_window.as_ref().map_or_else(|| link.zeros(sent_len), |window| Ok(window.tensor().clone()))?;
    let moved = |builder: Exchange<'_, 'l, In, Out>| {
        let builder = window.iter().fold(builder.config(plan.case.config), |builder, w| builder.window(w));
        let builder = plan.case.rounds.into_iter().fold(builder, |builder, rounds| builder.rounds(rounds));
        exchange(plan.algorithm.into_iter().fold(builder, |builder, way| builder.algorithm(way)))
    };
    let combined = |builder: Reduction<'_, 'l, In, Out>| {
        let builder = input_window.iter().fold(builder.op(plan.op).config(plan.case.config), |b, w| b.window(w));
        let builder = window.iter().fold(builder, |builder, w| builder.window(w));
        let builder = plan.case.rounds.into_iter().fold(builder, |builder, rounds| builder.rounds(rounds));
        reduction(plan.algorithm.into_iter().fold(builder, |builder, way| builder.algorithm(way)))
    };
    let op = match plan.collective {
        Collective::AllToAll => moved(all_to_all(link, &out, &inp))?,
        Collective::AllGather => moved(all_gather(link, &out, &inp))?,
        Collective::Broadcast => moved(broadcast(link, &out, &inp, root))?,
        Collective::Gather => moved(gather(link, &out, &inp, root))?,
        Collective::Scatter => moved(scatter(link, &out, &inp, root))?,
        Collective::ReduceScatter => combined(reduce_scatter(link, &out, &inp))?,
        Collective::AllReduce => combined(all_reduce(link, &out, &inp))?,
        Collective::Sendrecv => unreachable!("a ring shift is prepared elsewhere"),
    };
    let chunks = [sent, received];
    Ok(Box::new(Typed::<In, Out> { plan: *plan, seed, me: link.rank(), ranks, root, op, inp, around, guard, chunks }))
}

struct Typed<'l, In: Sample, Out: Sample> {
    plan: Plan,
    seed: u64,
    me: Rank,
    ranks: usize,
    root: Rank,
    op: PreparedExchange<'l>,
    inp: Tensor<In>,
    /// The output with its guards.
    around: Tensor<Out>,
    guard: usize,
    /// Chunks of the input and of the output.
    chunks: [usize; 2],
}

impl<In: Sample, Out: Sample> Typed<'_, In, Out> {
    /// Chunk `k` of a rank's data in this turn.
    fn data(&self, turn: u64, rank: usize, k: usize) -> Data {
        Data::new(self.plan.case, self.seed, turn, rank * self.ranks + k)
    }

    /// Checks that the output has chunk `k` of every rank, one after the other.
    fn has_of_all(&self, out: &[Out], turn: u64, k: usize) -> Result<(), Wrong> {
        let len = self.plan.case.len;
        (0..self.ranks).try_for_each(|rank| {
            let start = rank * len;
            chunk::<In, Out>("element", start, &out[start..start + len], self.data(turn, rank, k))
        })
    }

    /// Checks that the output is the reduction of the chunks `k` of all ranks; `shard` returns the shard of a position.
    fn has_reduced(&self, out: &[Out], turn: u64, k: usize, shard: impl Fn(usize) -> usize) -> Result<(), Wrong> {
        let of_ranks: Vec<Vec<Out>> =
            (0..self.ranks).map(|rank| self.data(turn, rank, k).arrives::<In, Out>()).collect();
        let whole = |at| Out::from_bits(self.reduced(shard(at), |rank| of_ranks[rank][at].to_bits()));
        let differs = self.data(turn, 0, k).differs(out, (0..out.len()).map(whole).collect(), false);
        differs.map_or(Ok(()), |(at, must)| Err(Wrong::Bits { what: "element", at, is: out[at].to_bits(), must }))
    }

    /// The reduction for a position of shard `s`: in the order `s + 1`, …, `s`, narrow floats in f32.
    fn reduced(&self, s: usize, of: impl Fn(usize) -> u64) -> u64 {
        if self.plan.op == ReduceOp::Average && !Out::TYPE.is_float() {
            return integer_mean(Out::TYPE, (0..self.ranks).map(of));
        }
        let wide = if Out::TYPE.is_float() && Out::TYPE.size() < 4 { Type::F32 } else { Out::TYPE };
        let op = match self.plan.op {
            ReduceOp::Min => BinaryOp::Min,
            ReduceOp::Max => BinaryOp::Max,
            ReduceOp::Product => BinaryOp::Mul,
            _ => BinaryOp::Add,
        };
        let order = (1..=self.ranks).map(|k| dynamic::cast(Out::TYPE, wide, of((s + k) % self.ranks)));
        let sum = order.reduce(|a, b| dynamic::binary(op, wide, a, b)).expect("at least one rank");
        let whole = match self.plan.op {
            ReduceOp::Average => {
                dynamic::binary(BinaryOp::Div, wide, sum, dynamic::cast(Type::I64, wide, self.ranks as u64))
            }
            _ => sum,
        };
        dynamic::cast(wide, Out::TYPE, whole)
    }
}

impl<In: Sample, Out: Sample> Transfer for Typed<'_, In, Out> {
    fn fill(&self, turn: u64) -> Result<(), AccessError> {
        // In one piece: device memory is written by a copy, and a copy per element would take minutes.
        let mut sent = Vec::with_capacity(self.inp.len());
        let [chunks, received] = self.chunks;
        (0..chunks).for_each(|k| sent.extend(self.data(turn, self.me.index(), k).sent::<In>()));
        self.inp.try_copy_from(&sent)?;
        // If a rank receives nothing, there is nothing to add to.
        let writes = self.plan.collective != Collective::Gather || self.me == self.root;
        prepare_output(&self.around, self.guard, self.data(turn, 0, 0), if writes { received } else { 0 })
    }

    fn launch(&mut self) -> Result<(), RunError> {
        self.op.run()?;
        self.op.sync()
    }

    fn prepared(&self) -> Option<&PreparedExchange<'_>> {
        Some(&self.op)
    }

    fn check(&self, turn: u64) -> Result<(), Wrong> {
        let around = self.around.try_to_vec()?;
        let out = inside(&around, self.guard)?;
        let (me, root, len) = (self.me.index(), self.root.index(), self.plan.case.len);
        match self.plan.collective {
            Collective::AllToAll => self.has_of_all(out, turn, me),
            Collective::Gather if me != root => untouched("element of an output nobody writes", out),
            Collective::AllGather | Collective::Gather => self.has_of_all(out, turn, 0),
            Collective::Broadcast => chunk::<In, Out>("element", 0, out, self.data(turn, root, 0)),
            Collective::Scatter => chunk::<In, Out>("element", 0, out, self.data(turn, root, me)),
            Collective::ReduceScatter => self.has_reduced(out, turn, me, |_| me),
            Collective::AllReduce => {
                let share = len.div_ceil(self.ranks).max(1);
                self.has_reduced(out, turn, 0, |at| at / share)
            }
            Collective::Sendrecv => unreachable!("a ring shift is prepared elsewhere"),
        }
    }
}

/// The average of integers, computed in numbers that hold every sum; that of 64 bits wraps before it is divided.
fn integer_mean(ty: Type, bits: impl ExactSizeIterator<Item = u64>) -> u64 {
    let ranks = bits.len() as i128;
    let signed = matches!(ty, Type::I8 | Type::I16 | Type::I32 | Type::I64);
    let unused = 128 - 8 * ty.size() as u32;
    let number =
        |bits: i128| if signed { bits << unused >> unused } else { ((bits as u128) << unused >> unused) as i128 };
    let sum: i128 = bits.map(|bits| number(i128::from(bits))).sum();
    let mean = if ty.size() == 8 { number(sum) / ranks } else { sum / ranks };
    mean as u64 & (u64::MAX >> (64 - 8 * ty.size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_integers_is_that_of_whole_numbers_cut_off_towards_zero() {
        let mean = |ty, numbers: &[i64]| integer_mean(ty, numbers.iter().map(|&x| x as u64));
        assert_eq!(mean(Type::U8, &[200, 200]), 200);
        assert_eq!(mean(Type::I8, &[-128, -127]) as i8, -127);
        assert_eq!(mean(Type::I32, &[i64::from(i32::MIN); 3]) as i32, i32::MIN);
        assert_eq!(mean(Type::U64, &[i64::MIN, i64::MIN, 6]), 2);
        assert_eq!(mean(Type::I64, &[i64::MAX, i64::MAX, -1]) as i64, -1);
    }
}
