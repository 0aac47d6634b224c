//! Reductions, compared with a plain accumulation on the host in the defined order: shard `s` takes ranks `s + 1`, …,
//! `s`. All algorithms must have the same bits.

use crate::case::{SMALL, Way, assert_same, element, everything, floats, has_far, joined, poison, seed, threads};
use tilewire::collective::{Reducible, Rounds};
use tilewire::ir::scalar::{Element, dynamic};
use tilewire::ir::{BinaryOp, Type};
use tilewire::link::{Transport, Window};
use tilewire::transport::{Rank, RankError, World};
use tilewire::{Algorithm, Bf16, F8E4M3, F16, ReduceOp, RunError, Tensor, all_reduce, all_to_all, reduce_scatter};
use tilewire_testkit::random::Random;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    ReduceScatter,
    AllReduce,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    op: ReduceOp,
    algorithm: Option<Algorithm>,
    way: Way,
    /// Elements of an output.
    len: usize,
    blocks: usize,
    rounds: Rounds,
    in_place: bool,
}

impl Case {
    fn random(numbers: &mut Random, kind: Kind) -> Case {
        let staged = [Way::Chosen, Way::staged(256, 2), Way::staged(512, 7)];
        let (algorithm, way) = match (kind, numbers.below(5)) {
            (_, 0) => (None, Way::Chosen),
            (Kind::AllReduce, 4) => (numbers.pick(&[None, Some(Algorithm::OneShot)]), Way::Direct),
            (_, 4) => (None, Way::Direct),
            (_, 1) => (Some(Algorithm::Ring), numbers.pick(&staged)),
            (Kind::AllReduce, 2) => (Some(Algorithm::TwoPhase), numbers.pick(&staged)),
            (Kind::ReduceScatter, 2) => (Some(Algorithm::OneShot), numbers.pick(&staged)),
            _ => (Some(Algorithm::OneShot), Way::Packet),
        };
        let len = match way {
            Way::Packet => numbers.pick(&[0, 1, 7, 50, 61]),
            _ => numbers.pick(&[0, 1, 7, 61, 256, 1023, 4001]),
        };
        let (blocks, rounds) =
            (numbers.pick(&[1, 1, 2, 3]), numbers.pick(&[Rounds::Roles, Rounds::Blocks, Rounds::Legs]));
        let (op, in_place) = (numbers.pick(&ReduceOp::ALL), numbers.below(3) == 0);
        // In one shot, peers read the input while outputs are written.
        let is_read = kind == Kind::AllReduce && way == Way::Direct && algorithm == Some(Algorithm::OneShot);
        let in_place = in_place && !is_read;
        Case { kind, op, algorithm, way, len, blocks, rounds, in_place }
    }

    /// Builds, launches twice with new data, and checks every bit.
    fn run<T: Reducible>(&self, link: &dyn Transport, seed: u64) -> Result<(), RankError> {
        let (me, ranks) = (link.rank(), link.world_size());
        let sent = if self.kind == Kind::AllReduce { self.len } else { self.len * ranks };
        let window = |len| if self.way == Way::Direct { Window::<T>::allocate(link, len).map(Some) } else { Ok(None) };
        let (inputs, outputs) = (window(sent)?, window(self.len)?);
        let of = |window: &Option<Window<T>>, len| window.as_ref().map_or(Tensor::zeros(len), |w| w.tensor().clone());
        let inp = of(&inputs, sent);
        let out = match (self.in_place, self.kind) {
            (false, _) => of(&outputs, self.len),
            (true, Kind::AllReduce) => inp.clone(),
            (true, Kind::ReduceScatter) => inp.slice(me.index() * self.len..(me.index() + 1) * self.len),
        };
        let reduction = match self.kind {
            Kind::ReduceScatter => reduce_scatter(link, &out, &inp),
            Kind::AllReduce => all_reduce(link, &out, &inp),
        };
        let reduction = reduction.op(self.op).config(self.way.config(self.blocks)).rounds(self.rounds);
        let reduction = self.algorithm.into_iter().fold(reduction, Reduce::by);
        let reduction = inputs.iter().chain(&outputs).fold(reduction, |reduction, window| reduction.window(window));
        let built = reduction.build();
        if self.kind == Kind::AllReduce && self.algorithm == Some(Algorithm::OneShot) && has_far(link) {
            assert_needs_packets(built.err());
            return Ok(());
        }
        let mut op = built?;
        for turn in 0..2 {
            let input = |rank| numbers_of::<T>(seed + turn, rank, sent);
            poison(&out);
            inp.copy_from(&input(me));
            op.run()?;
            let must = self.expected(me, &Rank::all(ranks).map(input).collect::<Vec<_>>());
            assert_same(&out.to_vec(), &must, (self, me, ranks, seed));
        }
        Ok(())
    }

    fn expected<T: Reducible>(&self, me: Rank, inputs: &[Vec<T>]) -> Vec<T> {
        let ranks = inputs.len();
        let share = self.len.div_ceil(ranks).max(1);
        let position = |i: usize| {
            let (shard, at) = match self.kind {
                Kind::ReduceScatter => (me.index(), me.index() * self.len + i),
                Kind::AllReduce => (i / share, i),
            };
            reduced(self.op, (0..ranks).map(|k| inputs[(shard + 1 + k) % ranks][at]))
        };
        (0..self.len).map(position).collect()
    }
}

/// A one-shot all-reduce sends everything in packets, which far peers do not take.
pub fn assert_needs_packets(error: Option<RunError>) {
    let error = error.expect("far peers take no packets").to_string();
    assert!(error.contains("use two-phase or ring"), "{error}");
}

/// Lets a fold over algorithms read as a sentence.
trait Reduce: Sized {
    fn by(self, algorithm: Algorithm) -> Self;
}

impl<T: Element> Reduce for tilewire::collective::Reduction<'_, '_, T, T> {
    fn by(self, algorithm: Algorithm) -> Self {
        self.algorithm(algorithm)
    }
}

/// The ranks' values for one position, combined in this order.
fn reduced<T: Reducible>(op: ReduceOp, of_ranks: impl ExactSizeIterator<Item = T>) -> T {
    if !T::TYPE.is_float() {
        return reduced_integers(op, of_ranks);
    }
    let wide = if T::TYPE.size() < 4 { Type::F32 } else { T::TYPE };
    let ranks = of_ranks.len() as u64;
    let binary = match op {
        ReduceOp::Sum | ReduceOp::Average => BinaryOp::Add,
        ReduceOp::Min => BinaryOp::Min,
        ReduceOp::Max => BinaryOp::Max,
        ReduceOp::Product => BinaryOp::Mul,
        other => panic!("{other:?} is new"),
    };
    let bits = of_ranks.map(|x| dynamic::cast(T::TYPE, wide, Element::to_bits(x)));
    let mut x = bits.reduce(|a, b| dynamic::binary(binary, wide, a, b)).expect("a rank");
    if op == ReduceOp::Average {
        x = dynamic::binary(BinaryOp::Div, wide, x, dynamic::cast(Type::I64, wide, ranks));
    }
    T::from_bits(dynamic::cast(wide, T::TYPE, x))
}

/// In a type that holds every sum. It wraps where [`ReduceOp`] says so.
fn reduced_integers<T: Element>(op: ReduceOp, of_ranks: impl ExactSizeIterator<Item = T>) -> T {
    let ranks = of_ranks.len() as i128;
    let signed = matches!(T::TYPE, Type::I8 | Type::I16 | Type::I32 | Type::I64);
    let wrapped = |x: i128| match (signed, T::TYPE.size()) {
        (true, size) => x << (128 - 8 * size) >> (128 - 8 * size),
        (false, size) => x & ((1 << (8 * size)) - 1),
    };
    let numbers = of_ranks.map(|x| wrapped(i128::from(Element::to_bits(x))));
    let x = match op {
        ReduceOp::Sum => numbers.sum(),
        ReduceOp::Min => numbers.min().expect("a rank"),
        ReduceOp::Max => numbers.max().expect("a rank"),
        ReduceOp::Product => numbers.reduce(|a, b| wrapped(a.wrapping_mul(b))).expect("a rank"),
        ReduceOp::Average if T::TYPE.size() == 8 => wrapped(numbers.sum()) / ranks,
        ReduceOp::Average => numbers.sum::<i128>() / ranks,
        other => panic!("{other:?} is new"),
    };
    T::from_bits(wrapped(x) as u64)
}

/// Numbers that give no NaN: near 1 in floats, any bits in integers.
fn numbers_of<T: Element>(seed: u64, rank: Rank, len: usize) -> Vec<T> {
    let number = |i| {
        let bits = element::<u64>(seed, rank, i);
        let float = ((bits % 4096) as f32 - 2048.0) / 1000.0;
        if T::TYPE.is_float() { dynamic::cast(Type::F32, T::TYPE, Element::to_bits(float)) } else { bits }
    };
    (0..len).map(|i| T::from_bits(number(i))).collect()
}

fn sample(world: &World, cases: usize) -> Result<(), RankError> {
    let link = joined(world, SMALL)?;
    let mut numbers = Random::new(seed() ^ (world.size() as u64) << 32);
    for number in 0..cases {
        for kind in [Kind::ReduceScatter, Kind::AllReduce] {
            let (case, turn) = (Case::random(&mut numbers, kind), numbers.next());
            let result = match number % 6 {
                0 => case.run::<f32>(&link, turn),
                1 => case.run::<Bf16>(&link, turn),
                2 => case.run::<i32>(&link, turn),
                3 => case.run::<F8E4M3>(&link, turn),
                4 => case.run::<f64>(&link, turn),
                _ => case.run::<u8>(&link, turn),
            };
            result.map_err(|error| format!("{case:?} of {} ranks: {error}", world.size()))?;
        }
    }
    Ok(link.close()?)
}

#[test]
pub fn every_reduction_is_right_in_worlds_of_every_size() {
    for ranks in [1, 2, 3, 4, 5, 8] {
        let cases = if everything() { 200 } else { 24 };
        threads(ranks, "reductions", |world| sample(world, cases));
    }
}

/// A few cases alternately over one transport.
pub fn back_to_back(world: &World) -> Result<(), RankError> {
    sample(world, 30)
}

#[test]
pub fn every_op_and_every_algorithm_has_the_same_bits() {
    for ranks in [2, 3, 5] {
        threads(ranks, "ops", |world| {
            let link = joined(world, SMALL)?;
            for op in ReduceOp::ALL {
                for (kind, algorithm, way) in [
                    (Kind::ReduceScatter, Algorithm::OneShot, Way::Packet),
                    (Kind::ReduceScatter, Algorithm::OneShot, Way::staged(256, 3)),
                    (Kind::ReduceScatter, Algorithm::Ring, Way::staged(256, 3)),
                    (Kind::AllReduce, Algorithm::OneShot, Way::Packet),
                    (Kind::AllReduce, Algorithm::TwoPhase, Way::staged(256, 3)),
                    (Kind::AllReduce, Algorithm::Ring, Way::staged(256, 3)),
                    (Kind::ReduceScatter, Algorithm::OneShot, Way::Direct),
                    (Kind::AllReduce, Algorithm::TwoPhase, Way::Direct),
                    (Kind::AllReduce, Algorithm::OneShot, Way::Direct),
                ] {
                    for (blocks, rounds) in [(1, Rounds::Roles), (2, Rounds::Blocks)] {
                        let algorithm = Some(algorithm);
                        let case = Case { kind, op, algorithm, way, len: 59, blocks, rounds, in_place: false };
                        // The same seed, so that all algorithms are compared with one expectation.
                        case.run::<F16>(&link, seed())?;
                        case.run::<f32>(&link, seed())?;
                    }
                }
            }
            Ok(link.close()?)
        });
    }
}

#[test]
pub fn an_average_of_integers_does_not_wrap_on_its_way() {
    // As many eight-byte elements as fit the packets.
    const LEN: usize = 53;
    fn case<T: Reducible>(link: &dyn Transport, of_ranks: [T; 3], mean: T) -> Result<(), RankError> {
        let mine = of_ranks[link.rank().index()];
        let average = |(algorithm, way): (Algorithm, Way)| -> Result<(), RankError> {
            let windows = [Window::<T>::allocate(link, LEN)?, Window::<T>::allocate(link, LEN)?];
            let [inp, out] = windows.each_ref().map(|window| window.tensor());
            inp.fill(mine);
            let average = all_reduce(link, out, inp).op(ReduceOp::Average).algorithm(algorithm).config(way.config(1));
            let average = if way == Way::Direct { average.window(&windows[0]).window(&windows[1]) } else { average };
            if algorithm == Algorithm::OneShot && has_far(link) {
                assert_needs_packets(average.run().err());
                return Ok(());
            }
            average.run()?;
            assert_same(&out.to_vec(), &[mean; LEN], (T::TYPE, algorithm, way));
            Ok(())
        };
        let staged = Way::staged(256, 3);
        average((Algorithm::OneShot, Way::Packet))?;
        average((Algorithm::TwoPhase, staged))?;
        average((Algorithm::Ring, staged))?;
        average((Algorithm::TwoPhase, Way::Direct))?;
        average((Algorithm::OneShot, Way::Direct))?;
        let (inp, out) = (Tensor::from_fn(3 * LEN, |_| mine), Tensor::<T>::zeros(LEN));
        reduce_scatter(link, &out, &inp).op(ReduceOp::Average).algorithm(Algorithm::Ring).run()?;
        assert_same(&out.to_vec(), &[mean; LEN], (T::TYPE, "reduce_scatter"));
        Ok(())
    }
    threads(3, "averages", |world| {
        let link = joined(world, SMALL)?;
        case::<u8>(&link, [200, 200, 200], 200)?;
        case::<i8>(&link, [-128, -128, -127], -127)?; // −127.67, towards zero
        case::<u16>(&link, [65_535, 65_535, 65_534], 65_534)?;
        case::<i16>(&link, [i16::MAX; 3], i16::MAX)?;
        case::<u32>(&link, [u32::MAX; 3], u32::MAX)?;
        case::<i32>(&link, [i32::MIN, i32::MIN, i32::MIN + 1], i32::MIN + 1)?;
        // There is no wider type. The sum wraps first, as documented.
        case::<u64>(&link, [1 << 63, 1 << 63, 6], 2)?;
        case::<i64>(&link, [i64::MAX, i64::MAX, -1], -1)?;
        Ok(link.close()?)
    });
}

#[test]
pub fn hooks_see_positions_of_the_whole_tensor_and_their_shard_in_every_algorithm() {
    for ranks in [1, 2, 3, 4] {
        threads(ranks, "hooks of reductions", |world| {
            let link = joined(world, SMALL)?;
            let (rows, cols) = (7, 9);
            let len = rows * cols;
            let inp = Tensor::from_slice(&floats(seed(), world.rank(), len));
            for algorithm in [Algorithm::OneShot, Algorithm::TwoPhase, Algorithm::Ring] {
                if algorithm == Algorithm::OneShot && has_far(&link) {
                    continue;
                }
                let out = Tensor::<f32>::zeros(len);
                // Every rank contributes its input transposed, with the shard added. Every result is doubled, and its
                // position is added.
                all_reduce(&link, &out, &inp)
                    .algorithm(algorithm)
                    .chunk_shape(rows, cols)
                    .output_shape(cols, rows)
                    .produce(|c| c.input.at(c.col(), c.row()) + c.shard().cast::<f32>())
                    .consume(|c, x| c.output.store(c.pos(), x * 2.0 + c.pos().cast::<f32>()))
                    .run()?;
                let share = len.div_ceil(ranks);
                let must = |i: usize| {
                    let of = |k: usize| {
                        let rank = Rank::new(((i / share + k) % ranks) as u32);
                        floats(seed(), rank, len)[i % rows * cols + i / rows] + (i / share) as f32
                    };
                    (1..=ranks).map(of).reduce(|a, b| a + b).unwrap() * 2.0 + i as f32
                };
                let must: Vec<f32> = (0..len).map(must).collect();
                assert_same(&out.to_vec(), &must, (algorithm, world.rank(), ranks));
            }
            Ok(link.close()?)
        });
    }
}

#[test]
pub fn through_windows_a_reduce_scatter_has_a_consume_hook_and_alternates_with_what_is_sent_into_them() {
    for ranks in [2, 3] {
        threads(ranks, "windows", |world| {
            let link = joined(world, SMALL)?;
            let (me, len) = (world.rank(), 777);
            let (inputs, sent) = (Window::<f32>::allocate(&link, ranks * len)?, Tensor::<f32>::zeros(ranks * len));
            let out = Tensor::<f32>::zeros(len);
            // Both use the same words of the same windows.
            let mut give = all_to_all(&link, inputs.tensor(), &sent).window(&inputs).blocks(2).build()?;
            let reduce = reduce_scatter(&link, &out, inputs.tensor()).consume(|c, x| c.output.store(c.pos(), x * 2.0));
            let mut reduce = reduce.window(&inputs).blocks(2).build()?;
            for turn in 0..50 {
                sent.copy_from(&floats(seed() + turn, me, ranks * len));
                give.run()?;
                reduce.run()?;
                // Chunk `me` of rank `p`'s window came from this rank, as its chunk for `p`.
                let position = |i: usize| {
                    let of = |p: usize| floats(seed() + turn, me, ranks * len)[p * len + i];
                    (1..=ranks).map(|k| of((me.index() + k) % ranks)).reduce(|a, b| a + b).unwrap() * 2.0
                };
                assert_same(&out.to_vec(), &(0..len).map(position).collect::<Vec<_>>(), (me, ranks, turn));
            }
            drop((give, reduce));
            Ok(link.close()?)
        });
    }
}

#[test]
pub fn a_produce_hook_makes_what_is_reduced_of_something_else() {
    threads(3, "counts", |world| {
        let link = joined(world, SMALL)?;
        let inp = Tensor::from_slice(&floats(seed(), world.rank(), 3 * 100));
        let out = Tensor::<i32>::zeros(100);
        // The number of ranks that have a positive number.
        reduce_scatter(&link, &out, &inp).produce(|c| c.input.load(c.pos()).gt(0.0).select(1i32, 0i32)).run()?;
        let me = world.rank().index();
        let must = |i: usize| Rank::all(3).filter(|&rank| floats(seed(), rank, 300)[me * 100 + i] > 0.0).count() as i32;
        assert_same(&out.to_vec(), &(0..100).map(must).collect::<Vec<_>>(), me);
        Ok(link.close()?)
    });
}
