//! Random programs of several prepared operations. One rank launches some of them in another order. The result is right
//! bytes, or an error on all ranks.

use super::{OPTIONS, outcomes};
use crate::case::{LONG, seed};
use tilewire::collective::PreparedExchange;
use tilewire::link::{ShmTransport, Transport, Window};
use tilewire::transport::{Rank, RankError, World};
use tilewire::{
    Algorithm, Knobs, Primitive, RunError, Tensor, all_gather, all_reduce, all_to_all, broadcast, recv, reduce_scatter,
    send, sendrecv,
};
use tilewire_testkit::random::Random;
use tilewire_testkit::ranks::in_worlds;

/// The number of random programs: `TILEWIRE_CASES`, or as many as CI has time for.
fn cases() -> u64 {
    std::env::var("TILEWIRE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(120)
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    AllReduce,
    AllGather,
    AllToAll,
    ReduceScatter,
    Broadcast,
    Shift,
    /// A send of one rank and a receive of another. The other ranks take no part.
    Pair {
        from: usize,
        to: usize,
    },
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Chosen,
    Staged {
        slot_bytes: usize,
        depth: usize,
    },
    /// Into windows. Reductions read them.
    Direct,
}

#[derive(Clone, Copy, Debug)]
struct Spec {
    kind: Kind,
    len: usize,
    way: Way,
}

impl Spec {
    fn of(numbers: &mut Random, ranks: usize) -> Spec {
        use Kind::*;
        let from = numbers.below(ranks);
        let pair = Pair { from, to: (from + 1 + numbers.below(ranks - 1)) % ranks };
        let kind = numbers.pick(&[AllReduce, AllGather, AllToAll, ReduceScatter, Broadcast, Shift, pair, pair]);
        let len = numbers.pick(&[1, 7, 60, 600, 3000, 20_000]);
        let staged = Way::Staged { slot_bytes: numbers.pick(&[512, 4096]), depth: numbers.pick(&[2, 4, 8]) };
        let way = numbers.pick(&[Way::Chosen, Way::Chosen, staged, Way::Direct]);
        Spec { kind, len, way }
    }

    fn has(&self, rank: usize) -> bool {
        !matches!(self.kind, Kind::Pair { from, to } if rank != from && rank != to)
    }
}

#[derive(Debug)]
struct Program {
    ranks: usize,
    ops: Vec<Spec>,
    /// The operations that each rank launches. Ranks that take no part in a pair's operation do not launch it.
    launches: Vec<Vec<usize>>,
    /// The operations that no rank launches among these. All ranks launch them at the end, since everything that is
    /// built must be launched.
    rest: Vec<usize>,
    /// True if all ranks launch the same.
    same: bool,
}

impl Program {
    fn of(numbers: &mut Random, ranks: usize) -> Program {
        let ops: Vec<Spec> = (0..2 + numbers.below(3)).map(|_| Spec::of(numbers, ranks)).collect();
        let order: Vec<usize> = (0..3 + numbers.below(5)).map(|_| numbers.below(ops.len())).collect();
        let mut launches = vec![order.clone(); ranks];
        let rank = numbers.below(ranks);
        let (a, b) = (numbers.below(order.len()), numbers.below(order.len()));
        match numbers.below(4) {
            0 => {}
            1 => launches[rank].swap(a, b),
            2 => _ = launches[rank].remove(a),
            _ => launches[rank].insert(a, numbers.below(ops.len())),
        }
        let own =
            |rank: usize, order: &[usize]| order.iter().copied().filter(|&k| ops[k].has(rank)).collect::<Vec<_>>();
        let same = (0..ranks).all(|rank| own(rank, &launches[rank]) == own(rank, &order));
        let rest = (0..ops.len()).filter(|k| !order.contains(k)).collect();
        Program { ranks, ops, launches, rest, same }
    }

    /// Builds all operations and launches those of this rank, in its order. Panics if bytes are wrong.
    fn run(&self, link: &ShmTransport, what: &str) -> Result<(), RunError> {
        let me = link.rank().index();
        let made = self.ops.iter().enumerate().map(|(number, spec)| make(link, number, *spec));
        let mut made = made.collect::<Result<Vec<_>, _>>()?;
        for &k in &self.launches[me] {
            let Some(made) = &mut made[k] else { continue };
            made.out.fill(0);
            made.op.run()?;
            if let Some(expected) = &made.expected {
                assert_eq!(&made.out.to_vec(), expected, "wrong bytes without a word: {what}, {self:?}");
            }
        }
        for &k in &self.rest {
            made[k].as_mut().map_or(Ok(()), |made| made.op.run())?;
        }
        Ok(())
    }

    /// Asserts right bytes or an error on all ranks, and that no deadline passed. Returns true if the program ran to
    /// its end.
    #[track_caller]
    fn judge(&self, outcomes: &[Outcome], what: &str) -> bool {
        let failed = outcomes.iter().filter(|outcome| **outcome != Outcome::Right).count();
        assert!(failed == 0 || failed == self.ranks, "{what}, {self:?}: {outcomes:?}");
        let is_timeout = |outcome: &Outcome| matches!(outcome, Outcome::Failed { timeout: true, .. });
        assert!(!outcomes.iter().any(is_timeout), "{what}, {self:?}: {outcomes:?}");
        assert!(!self.same || failed == 0, "{what}, {self:?}: {outcomes:?}");
        failed == 0
    }
}

/// The results of a rank's launches, in a form that processes can tell each other.
#[derive(Debug, PartialEq)]
enum Outcome {
    Right,
    Failed { timeout: bool, why: String },
}

impl Outcome {
    fn of(outcome: &Result<(), RunError>) -> Outcome {
        match outcome {
            Ok(()) => Outcome::Right,
            Err(error) => Outcome::Failed { timeout: matches!(error, RunError::Timeout(_)), why: error.to_string() },
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Outcome::Right => Vec::new(),
            Outcome::Failed { timeout, why } => [&[u8::from(*timeout)], why.as_bytes()].concat(),
        }
    }

    fn from_bytes(bytes: &[u8]) -> Outcome {
        match bytes {
            [] => Outcome::Right,
            [timeout, why @ ..] => {
                Outcome::Failed { timeout: *timeout == 1, why: String::from_utf8_lossy(why).into_owned() }
            }
        }
    }
}

/// An operation with its tensors: the input of a rank, and its expected output.
struct Made<'l> {
    op: PreparedExchange<'l>,
    out: Tensor<u32>,
    /// `None` if this rank only sends.
    expected: Option<Vec<u32>>,
}

/// Element `i` of the input of rank `rank`.
fn value(number: usize, rank: usize, i: usize) -> u32 {
    (number as u32 + 1) * 1_000_003 + rank as u32 * 10_007 + i as u32
}

/// `None` if this rank takes no part. All ranks allocate windows.
fn make<'l>(link: &'l ShmTransport, number: usize, spec: Spec) -> Result<Option<Made<'l>>, RunError> {
    let (me, ranks, Spec { kind, len, way }) = (link.rank().index(), link.world_size(), spec);
    let whole = len * ranks;
    let of = |rank: usize, i: usize| value(number, rank, i);
    let sum = |i: usize| (0..ranks).map(|rank| of(rank, i)).fold(0u32, u32::wrapping_add);
    let previous = (me + ranks - 1) % ranks;
    let (inp_len, expected): (usize, Vec<u32>) = match kind {
        Kind::AllReduce => (len, (0..len).map(sum).collect()),
        Kind::AllGather => (len, (0..whole).map(|i| of(i / len, i % len)).collect()),
        Kind::AllToAll => (whole, (0..whole).map(|i| of(i / len, me * len + i % len)).collect()),
        Kind::ReduceScatter => (whole, (0..len).map(|i| sum(me * len + i)).collect()),
        Kind::Broadcast => (len, (0..len).map(|i| of(0, i)).collect()),
        Kind::Shift => (len, (0..len).map(|i| of(previous, i)).collect()),
        Kind::Pair { from, .. } => (len, (0..len).map(|i| of(from, i)).collect()),
    };
    let direct = matches!(way, Way::Direct);
    let reads = direct && matches!(kind, Kind::AllReduce | Kind::ReduceScatter);
    let writes = direct && !matches!(kind, Kind::ReduceScatter);
    let window = |wanted: bool, len: usize| wanted.then(|| Window::<u32>::allocate(link, len)).transpose();
    let (from, into) = (window(reads, inp_len)?, window(writes, expected.len())?);
    let tensor = |window: &Option<Window<u32>>, len: usize| {
        window.as_ref().map_or_else(|| Tensor::zeros(len), |window| window.tensor().clone())
    };
    let (inp, out) = (tensor(&from, inp_len), tensor(&into, expected.len()));
    inp.copy_from(&(0..inp_len).map(|i| of(me, i)).collect::<Vec<u32>>());
    let rank = |k: usize| Rank::new(k as u32);
    let windows = || from.iter().chain(&into);
    let op = match kind {
        Kind::AllReduce | Kind::ReduceScatter => {
            let reduction = match kind {
                Kind::AllReduce => all_reduce(link, &out, &inp),
                _ => reduce_scatter(link, &out, &inp),
            };
            let reduction = match (kind, way) {
                (Kind::AllReduce, Way::Staged { .. }) => reduction.algorithm(Algorithm::TwoPhase),
                (_, Way::Direct) => reduction.primitive(Primitive::Direct),
                _ => reduction,
            };
            windows().fold(reduction, |reduction, window| reduction.window(window)).build()?
        }
        kind => {
            let exchange = match kind {
                Kind::AllGather => all_gather(link, &out, &inp),
                Kind::AllToAll => all_to_all(link, &out, &inp),
                Kind::Broadcast => broadcast(link, &out, &inp, rank(0)),
                Kind::Pair { from, to } if me == from => send(link, &inp, rank(to)),
                Kind::Pair { from, to } if me == to => recv(link, &out, rank(from)),
                Kind::Pair { .. } => return Ok(None),
                _ => sendrecv(link, &out, &inp, rank((me + 1) % ranks), rank(previous)),
            };
            let config = match way {
                Way::Chosen => Knobs::default(),
                Way::Staged { slot_bytes, depth } => Knobs {
                    primitive: Some(Primitive::Staged),
                    slot_bytes: Some(slot_bytes),
                    depth: Some(depth),
                    ..Knobs::default()
                },
                Way::Direct => Knobs { primitive: Some(Primitive::Direct), ..Knobs::default() },
            };
            windows().fold(exchange.config(config), |exchange, window| exchange.window(window)).build()?
        }
    };
    let only_sends = matches!(kind, Kind::Pair { from, .. } if me == from);
    Ok(Some(Made { op, out, expected: (!only_sends).then_some(expected) }))
}

#[test]
fn every_program_ends_with_right_bytes_or_with_an_error_on_all_ranks() {
    let (mut right, mut refused) = (0, 0);
    for case in 0..cases() {
        let mut numbers = Random::new(seed() ^ case << 20);
        let ranks = 2 + numbers.below(2);
        let (program, what) = (Program::of(&mut numbers, ranks), format!("case {case}"));
        let outcomes = outcomes(ranks, |_, link| program.run(link, &what));
        let outcomes: Vec<Outcome> = outcomes.iter().map(Outcome::of).collect();
        let ended = program.judge(&outcomes, &what);
        right += u64::from(ended);
        refused += u64::from(!ended);
    }
    println!("{right} with right bytes, {refused} with an error on all ranks");
    assert!(right > cases() / 8 && refused > cases() / 4, "{right} and {refused}");
}

/// A new transport for each program, because a failing program breaks its transport.
fn programs_of_processes(world: &World) -> Result<(), RankError> {
    for case in 0..cases() / 4 {
        let program = Program::of(&mut Random::new(!seed() ^ case << 20), world.size());
        let link = ShmTransport::rendezvous(world, OPTIONS)?;
        let ran = program.run(&link, &format!("case {case}"));
        let ended = Outcome::of(&ran.and(link.close().map_err(RunError::from)));
        let all = world.bootstrap().all_gather(&format!("outcome/{case}"), &ended.to_bytes(), LONG.into())?;
        let all: Vec<Outcome> = all.iter().map(|bytes| Outcome::from_bytes(bytes)).collect();
        program.judge(&all, &format!("case {case} of {} processes", world.size()));
    }
    Ok(())
}

#[test]
fn every_program_among_processes_ends_with_right_bytes_or_with_an_error_on_all_ranks() {
    let name = "order::random::every_program_among_processes_ends_with_right_bytes_or_with_an_error_on_all_ranks";
    in_worlds(name, [2, 3], programs_of_processes);
}
