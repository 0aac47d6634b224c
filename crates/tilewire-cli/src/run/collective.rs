//! The collectives of `tilewire run` and `tilewire verify`: which there are, and one prepared for any element type.

use super::case::{Case, Hook, Scaled, Transfer, Wrong, chunk, guarded, hooked, inside, untouched};
use super::data::{Data, POISON, agree};
use super::place::Wire;
use std::fmt;
use tilewire::collective::{PreparedExchange, Reducible, Reduction};
use tilewire::ir::scalar::dynamic;
use tilewire::ir::{BinaryOp, Type};
use tilewire::transport::{P2pTransport, Rank, Window};
use tilewire::{
    Algorithm, Bf16, F8E4M3, F8E5M2, F16, Primitive, ReduceOp, RunError, Scalar, Tensor, all_gather, all_reduce,
    all_to_all, broadcast, gather, reduce_scatter, scatter,
};

/// A collective by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// A ring shift.
    Sendrecv,
    /// Every rank has a chunk for every rank.
    AllToAll,
    /// Every rank gets what every rank has.
    AllGather,
    /// Every rank gets its chunk of what all have together.
    ReduceScatter,
    /// Every rank gets what all have together.
    AllReduce,
    /// Every rank gets what the last one has.
    Broadcast,
    /// The last rank gets what every rank has.
    Gather,
    /// Every rank gets its chunk of what the last one has.
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

    /// As the command line has it.
    pub fn name(self) -> &'static str {
        ["sendrecv", "all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "gather", "scatter"]
            [self as usize]
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Collective> {
        let name = name.replace('-', "_");
        Collective::ALL.into_iter().find(|collective| collective.name() == name)
    }

    /// Whether it computes something of what the ranks have.
    pub fn reduces(self) -> bool {
        matches!(self, Collective::ReduceScatter | Collective::AllReduce)
    }

    /// Why it cannot have this hook, protocol and type together, if so.
    pub fn refuses(self, case: &Case) -> Option<&'static str> {
        let Case { dtype, hook, config, .. } = case;
        match (hook, config.primitive) {
            (Hook::Quantise, Some(Primitive::Direct)) => {
                Some("what travels is not what is stored; use staged or packet")
            }
            _ if !self.reduces() => None,
            (Hook::Transpose | Hook::Quantise, _) => Some("a reduction here takes the hooks copy and scale"),
            (_, Some(Primitive::Bulk)) => Some("a reduction combines what arrives; use staged, packet or direct"),
            (Hook::Scale, Some(Primitive::Direct)) => {
                Some("peers read the input where it lies, and nobody runs the hook; use staged or packet")
            }
            _ if *dtype == Type::Bool => Some("a reduction takes numbers"),
            _ => None,
        }
    }

    /// The ways it can go, where it is not the usual one.
    pub fn algorithms(self) -> &'static [Algorithm] {
        match self {
            Collective::AllGather => &[Algorithm::OneShot, Algorithm::Ring],
            Collective::ReduceScatter => &[Algorithm::OneShot, Algorithm::Ring],
            Collective::AllReduce => &[Algorithm::OneShot, Algorithm::TwoPhase, Algorithm::Ring],
            _ => &[Algorithm::OneShot],
        }
    }
}

/// A collective with all there is to say about it. `case.len` counts the elements that one rank sends to another, those of the whole
/// tensor of an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Which.
    pub collective: Collective,
    /// What travels, and how.
    pub case: Case,
    /// What a reduction computes.
    pub op: ReduceOp,
    /// Which way it goes, where it is said.
    pub algorithm: Option<Algorithm>,
}

impl Plan {
    /// Whether the protocol can go the way that is asked for.
    pub fn is_possible(&self) -> bool {
        match (self.collective, self.algorithm, self.case.config.primitive) {
            (_, Some(Algorithm::Ring), primitive) => matches!(primitive, None | Some(Primitive::Staged)),
            (_, Some(Algorithm::TwoPhase), primitive) => {
                matches!(primitive, None | Some(Primitive::Staged | Primitive::Direct))
            }
            (Collective::AllReduce, Some(Algorithm::OneShot), primitive) => primitive == Some(Primitive::Packet),
            _ => true,
        }
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
pub fn prepare_all<'l>(link: &'l Wire, plan: &Plan, seed: u64) -> Result<Box<dyn Transfer + 'l>, RunError> {
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

fn typed<'l, T: Reduced>(link: &'l Wire, plan: &Plan, seed: u64) -> Result<Box<dyn Transfer + 'l>, RunError> {
    let (ranks, len) = (link.world_size(), plan.case.len);
    let root = Rank::new(ranks as u32 - 1);
    let chunks = |many: bool| if many { len * ranks } else { len };
    let (sent, received) = match plan.collective {
        Collective::AllToAll => (chunks(true), chunks(true)),
        Collective::AllGather | Collective::Gather => (len, chunks(true)),
        Collective::ReduceScatter | Collective::Scatter => (chunks(true), len),
        Collective::AllReduce | Collective::Broadcast | Collective::Sendrecv => (len, len),
    };
    let direct = plan.case.config.primitive == Some(Primitive::Direct);
    let window_if = |wanted: bool, len| (direct && wanted).then(|| link.window::<T>(len)).transpose();
    // A reduction reads its peers' inputs; only a reduce-scatter keeps what it has to itself.
    let input_window = window_if(plan.collective.reduces(), sent)?;
    let window = window_if(plan.collective != Collective::ReduceScatter, received)?;
    let (around, guard) = guarded(link, window.as_ref(), received)?;
    let out = around.slice(guard..guard + received);
    let inp = input_window.as_ref().map_or_else(|| link.zeros(sent), |window| Ok(window.tensor().clone()))?;
    let exchange = match plan.collective {
        Collective::AllToAll => Some(all_to_all(link, &out, &inp)),
        Collective::AllGather => Some(all_gather(link, &out, &inp)),
        Collective::Broadcast => Some(broadcast(link, &out, &inp, root)),
        Collective::Gather => Some(gather(link, &out, &inp, root)),
        Collective::Scatter => Some(scatter(link, &out, &inp, root)),
        Collective::ReduceScatter | Collective::AllReduce | Collective::Sendrecv => None,
    };
    let op = match exchange {
        Some(exchange) => {
            let exchange = window.iter().fold(exchange.config(plan.case.config), |exchange, w| exchange.window(w));
            let exchange = plan.algorithm.into_iter().fold(exchange, |exchange, way| exchange.algorithm(way));
            hooked(exchange, &plan.case)?
        }
        None => T::reduced(link, &out, &inp, [&input_window, &window], plan)?,
    };
    Ok(Box::new(Typed { plan: *plan, seed, me: link.rank(), ranks, root, op, inp, around, guard }))
}

/// Elements that can be reduced; `bool` stands here only so that there is one list of types.
trait Reduced: Scaled {
    fn reduced<'l>(
        link: &'l Wire,
        out: &Tensor<Self>,
        inp: &Tensor<Self>,
        windows: [&Option<Window<Self>>; 2],
        plan: &Plan,
    ) -> Result<PreparedExchange<'l, Wire>, RunError>;
}

macro_rules! reduced {
    ($($number:ty)*) => {$(
        impl Reduced for $number {
            fn reduced<'l>(
                link: &'l Wire,
                out: &Tensor<Self>,
                inp: &Tensor<Self>,
                windows: [&Option<Window<Self>>; 2],
                plan: &Plan,
            ) -> Result<PreparedExchange<'l, Wire>, RunError> {
                let reduction = match plan.collective {
                    Collective::ReduceScatter => reduce_scatter(link, out, inp),
                    _ => all_reduce(link, out, inp),
                };
                build(windows.into_iter().flatten().fold(reduction, |reduction, window| reduction.window(window)), plan)
            }
        }
    )*};
}

reduced!(i8 i16 i32 i64 u8 u16 u32 u64 F16 Bf16 f32 f64 F8E4M3 F8E5M2);

impl Reduced for bool {
    fn reduced<'l>(
        _: &'l Wire,
        _: &Tensor<bool>,
        _: &Tensor<bool>,
        _: [&Option<Window<bool>>; 2],
        plan: &Plan,
    ) -> Result<PreparedExchange<'l, Wire>, RunError> {
        unreachable!("{} does not take bool, and whoever makes a plan asks", plan.collective.name())
    }
}

fn build<'l, T: Reducible + Scaled>(
    reduction: Reduction<'_, 'l, Wire, T, T>,
    plan: &Plan,
) -> Result<PreparedExchange<'l, Wire>, RunError> {
    let reduction = reduction.op(plan.op).config(plan.case.config);
    let reduction = plan.case.rounds.into_iter().fold(reduction, |reduction, rounds| reduction.rounds(rounds));
    let reduction = plan.algorithm.into_iter().fold(reduction, |reduction, way| reduction.algorithm(way));
    match plan.case.hook {
        Hook::Scale => {
            let factor = Scalar::new(Data::factor::<T>());
            reduction.produce(move |c| T::scaled(c.input.load(c.pos()), &factor)).build()
        }
        _ => reduction.build(),
    }
}

struct Typed<'l, T: Scaled> {
    plan: Plan,
    seed: u64,
    me: Rank,
    ranks: usize,
    root: Rank,
    op: PreparedExchange<'l, Wire>,
    inp: Tensor<T>,
    /// The output with its guards.
    around: Tensor<T>,
    guard: usize,
}

impl<T: Scaled> Typed<'_, T> {
    /// Chunk `k` of what a rank has in this turn.
    fn data(&self, turn: u64, rank: usize, k: usize) -> Data {
        Data::new(self.plan.case, self.seed, turn, rank * self.ranks + k)
    }

    /// The output must have chunk `k` of every rank, one after the other.
    fn has_of_all(&self, out: &[T], turn: u64, k: usize) -> Result<(), Wrong> {
        let len = self.plan.case.len;
        (0..self.ranks).try_for_each(|rank| {
            let start = rank * len;
            chunk("element", start, &out[start..start + len], self.data(turn, rank, k))
        })
    }

    /// The output must have what the chunks `k` of all ranks come to; `shard` says to which shard a position belongs.
    fn has_reduced(&self, out: &[T], turn: u64, k: usize, shard: impl Fn(usize) -> usize) -> Result<(), Wrong> {
        let arrive = |rank: usize| {
            let mut all = Vec::with_capacity(out.len());
            self.data(turn, rank, k).arrive::<T, ()>(|_, x| {
                all.push(x.to_bits());
                None
            });
            all
        };
        let of_ranks: Vec<_> = (0..self.ranks).map(arrive).collect();
        for (at, x) in out.iter().enumerate() {
            let must = T::from_bits(self.reduced(shard(at), |rank| of_ranks[rank][at]));
            if !agree(false, *x, must) {
                return Err(Wrong { what: "element", at, is: x.to_bits(), must: must.to_bits() });
            }
        }
        Ok(())
    }

    /// What the ranks have for a position of shard `s`: in the order `s + 1`, …, `s`, narrow floats in f32.
    fn reduced(&self, s: usize, of: impl Fn(usize) -> u64) -> u64 {
        let wide = if T::TYPE.is_float() && T::TYPE.size() < 4 { Type::F32 } else { T::TYPE };
        let op = match self.plan.op {
            ReduceOp::Min => BinaryOp::Min,
            ReduceOp::Max => BinaryOp::Max,
            ReduceOp::Product => BinaryOp::Mul,
            _ => BinaryOp::Add,
        };
        let order = (1..=self.ranks).map(|k| dynamic::cast(T::TYPE, wide, of((s + k) % self.ranks)));
        let sum = order.reduce(|a, b| dynamic::binary(op, wide, a, b)).expect("at least one rank");
        let whole = match self.plan.op {
            ReduceOp::Average => {
                dynamic::binary(BinaryOp::Div, wide, sum, dynamic::cast(Type::I64, wide, self.ranks as u64))
            }
            _ => sum,
        };
        dynamic::cast(wide, T::TYPE, whole)
    }
}

impl<T: Scaled> Transfer for Typed<'_, T> {
    fn fill(&self, turn: u64) {
        // In one piece: memory of a device is written by a copy, and a copy for each element takes minutes.
        let mut sent = Vec::with_capacity(self.inp.len());
        let chunks = self.inp.len() / self.plan.case.len.max(1);
        (0..chunks).for_each(|k| sent.extend(self.data(turn, self.me.index(), k).sent::<T>()));
        self.inp.copy_from(&sent);
        self.around.fill(T::from_bits(POISON));
    }

    fn launch(&mut self) -> Result<(), RunError> {
        self.op.run()?;
        self.op.sync()
    }

    fn check(&self, turn: u64) -> Result<(), Wrong> {
        let around = self.around.to_vec();
        let out = inside(&around, self.guard)?;
        let (me, root, len) = (self.me.index(), self.root.index(), self.plan.case.len);
        match self.plan.collective {
            Collective::AllToAll => self.has_of_all(out, turn, me),
            Collective::Gather if me != root => untouched("element of an output nobody writes", out),
            Collective::AllGather | Collective::Gather => self.has_of_all(out, turn, 0),
            Collective::Broadcast => chunk("element", 0, out, self.data(turn, root, 0)),
            Collective::Scatter => chunk("element", 0, out, self.data(turn, root, me)),
            Collective::ReduceScatter => self.has_reduced(out, turn, me, |_| me),
            Collective::AllReduce => {
                let share = len.div_ceil(self.ranks).max(1);
                self.has_reduced(out, turn, 0, |at| at / share)
            }
            Collective::Sendrecv => unreachable!("a ring shift is prepared elsewhere"),
        }
    }
}
