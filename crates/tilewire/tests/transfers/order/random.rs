//! Random programs of several prepared operations, some of which one rank launches in another order: right bytes, or an error on all
//! ranks.

use super::outcomes;
use crate::case::{Numbers, seed};
use tilewire::collective::PreparedExchange;
use tilewire::transport::{P2pTransport, Rank, ShmTransport};
use tilewire::{
    Config, Primitive, RunError, Tensor, all_gather, all_reduce, all_to_all, broadcast, reduce_scatter, sendrecv,
};

/// How many programs: `TILEWIRE_CASES`, or a number that CI has time for.
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
}

#[derive(Clone, Copy, Debug)]
struct Spec {
    kind: Kind,
    len: usize,
    /// Slots: their bytes, and how many.
    staged: Option<(usize, usize)>,
}

#[derive(Debug)]
struct Program {
    ranks: usize,
    ops: Vec<Spec>,
    /// What each rank launches.
    launches: Vec<Vec<usize>>,
    /// Whether all launch the same.
    same: bool,
}

impl Program {
    fn of(numbers: &mut Numbers) -> Program {
        use Kind::*;
        let ranks = 2 + numbers.below(2);
        let spec = |numbers: &mut Numbers| Spec {
            kind: numbers.one_of(&[AllReduce, AllGather, AllToAll, ReduceScatter, Broadcast, Shift]),
            len: numbers.one_of(&[1, 7, 60, 600, 3000, 20_000]),
            staged: (numbers.below(3) == 0).then(|| (numbers.one_of(&[512, 4096]), numbers.one_of(&[2, 4, 8]))),
        };
        let ops: Vec<Spec> = (0..2 + numbers.below(3)).map(|_| spec(numbers)).collect();
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
        let same = launches.iter().all(|of| *of == order);
        Program { ranks, ops, launches, same }
    }
}

/// An operation with its tensors: what a rank puts in, and what must come out.
struct Made<'l> {
    op: PreparedExchange<'l>,
    out: Tensor<u32>,
    expected: Vec<u32>,
}

/// What rank `rank` puts in at `i`.
fn value(number: usize, rank: usize, i: usize) -> u32 {
    (number as u32 + 1) * 1_000_003 + rank as u32 * 10_007 + i as u32
}

fn make<'l>(link: &'l ShmTransport, number: usize, spec: Spec) -> Result<Made<'l>, RunError> {
    let (me, ranks, Spec { kind, len, staged }) = (link.rank().index(), link.world_size(), spec);
    let whole = len * ranks;
    let of = |rank: usize, i: usize| value(number, rank, i);
    let sum = |i: usize| (0..ranks).map(|rank| of(rank, i)).fold(0u32, u32::wrapping_add);
    let (inp_len, expected): (usize, Vec<u32>) = match kind {
        Kind::AllReduce => (len, (0..len).map(sum).collect()),
        Kind::AllGather => (len, (0..whole).map(|i| of(i / len, i % len)).collect()),
        Kind::AllToAll => (whole, (0..whole).map(|i| of(i / len, me * len + i % len)).collect()),
        Kind::ReduceScatter => (whole, (0..len).map(|i| sum(me * len + i)).collect()),
        Kind::Broadcast => (len, (0..len).map(|i| of(0, i)).collect()),
        Kind::Shift => (len, (0..len).map(|i| of((me + ranks - 1) % ranks, i)).collect()),
    };
    let inp = Tensor::from_fn(inp_len, |i| of(me, i));
    let out = Tensor::<u32>::zeros(expected.len());
    let rank = |k: usize| Rank::new(k as u32);
    let op = match kind {
        Kind::AllReduce if staged.is_some() => {
            all_reduce(link, &out, &inp).algorithm(tilewire::Algorithm::TwoPhase).build()?
        }
        Kind::AllReduce => all_reduce(link, &out, &inp).build()?,
        Kind::ReduceScatter => reduce_scatter(link, &out, &inp).build()?,
        kind => {
            let exchange = match kind {
                Kind::AllGather => all_gather(link, &out, &inp),
                Kind::AllToAll => all_to_all(link, &out, &inp),
                Kind::Broadcast => broadcast(link, &out, &inp, rank(0)),
                _ => sendrecv(link, &out, &inp, rank((me + 1) % ranks), rank((me + ranks - 1) % ranks)),
            };
            let (slot_bytes, depth) = staged.unzip();
            let primitive = staged.map(|_| Primitive::Staged);
            exchange.config(Config { primitive, slot_bytes, depth, ..Config::default() }).build()?
        }
    };
    Ok(Made { op, out, expected })
}

#[test]
fn every_program_ends_with_right_bytes_or_with_an_error_on_all_ranks() {
    let (mut right, mut refused) = (0, 0);
    for case in 0..cases() {
        let program = Program::of(&mut Numbers(seed() ^ case << 20));
        let outcomes = outcomes(program.ranks, |world, link| {
            let made = program.ops.iter().enumerate().map(|(number, spec)| make(link, number, *spec));
            let mut made = made.collect::<Result<Vec<_>, _>>()?;
            let mut launched = vec![false; made.len()];
            for &k in &program.launches[world.rank().index()] {
                let Made { op, out, expected } = &mut made[k];
                out.fill(0);
                op.run()?;
                launched[k] = true;
                assert_eq!(&out.to_vec(), expected, "wrong bytes without a word: case {case}, {program:?}");
            }
            // What is built is to be launched: the others may wait for it.
            for k in (0..made.len()).filter(|k| !program.launches[0].contains(k)) {
                made[k].op.run()?;
            }
            Ok(())
        });
        let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        let timed_out = outcomes.iter().any(|outcome| matches!(outcome, Err(RunError::Timeout(_))));
        assert!(failed == 0 || failed == program.ranks, "case {case}, {program:?}: {outcomes:?}");
        assert!(!timed_out, "case {case}, {program:?}: {outcomes:?}");
        assert!(!program.same || failed == 0, "case {case}, {program:?}: {outcomes:?}");
        right += u64::from(failed == 0);
        refused += u64::from(failed > 0);
    }
    println!("{right} with right bytes, {refused} with an error on all ranks");
    assert!(right > cases() / 8 && refused > cases() / 4, "{right} and {refused}");
}
