//! In place where it makes sense, and an error elsewhere.

use crate::case::{SMALL, Way, assert_same, data, has_far, joined, seed, threads};
use crate::collectives::exchange::{Case, Kind};
use crate::collectives::reductions::assert_needs_packets;
use tilewire::collective::Rounds;
use tilewire::hook::Captured;
use tilewire::link::Window;
use tilewire::transport::{Rank, TransferError};
use tilewire::{Algorithm, Primitive, RunError, Tensor, all_gather, all_reduce, all_to_all, reduce_scatter};

const CHUNK: usize = 321;

fn case(kind: Kind, way: Way) -> Case {
    Case { kind, root: Rank::new(1), chunk: CHUNK, way, blocks: 2, rounds: Rounds::Roles }
}

#[test]
pub fn the_input_may_be_the_part_of_the_output_that_it_becomes() {
    for ranks in [1, 2, 4] {
        threads(ranks, "in place", |world| {
            let link = joined(world, SMALL)?;
            let me = world.rank();
            let own = me.index() * CHUNK..(me.index() + 1) * CHUNK;
            for way in [Way::staged(256, 2), Way::Direct] {
                let window = Window::<u32>::allocate(&link, ranks * CHUNK)?;
                let whole = if way == Way::Direct { window.tensor().clone() } else { Tensor::zeros(ranks * CHUNK) };
                whole.slice(own.clone()).copy_from(&data(seed(), me, CHUNK));
                let gathering = case(Kind::AllGather, way).of(&link, &whole, &whole.slice(own.clone()));
                if way == Way::Direct {
                    gathering.window(&window).run()?
                } else {
                    gathering.run()?
                }
                let must: Vec<u32> = Rank::all(ranks).flat_map(|rank| data(seed(), rank, CHUNK)).collect();
                assert_same(&whole.to_vec(), &must, (way, me));
            }
            Ok(link.close()?)
        });
    }
}

#[test]
pub fn the_root_of_a_broadcast_a_gather_and_a_scatter_may_be_in_place() {
    threads(3, "in place at the root", |world| {
        let link = joined(world, SMALL)?;
        let (me, root) = (world.rank(), Rank::new(1));
        let part = |rank: Rank| rank.index() * CHUNK..(rank.index() + 1) * CHUNK;
        let way = Way::staged(256, 2);

        let x = Tensor::from_slice(&data::<u32>(seed(), me, CHUNK));
        case(Kind::Broadcast, way).of(&link, &x, &x).run()?;
        assert_same(&x.to_vec(), &data(seed(), root, CHUNK), ("broadcast", me));

        let all = Tensor::<u32>::zeros(3 * CHUNK);
        all.slice(part(me)).copy_from(&data(seed(), me, CHUNK));
        case(Kind::Gather, way).of(&link, &all, &all.slice(part(me))).run()?;
        let must: Vec<u32> = Rank::all(3).flat_map(|rank| data(seed(), rank, CHUNK)).collect();
        assert!(me != root || all.to_vec() == must);

        let all = Tensor::from_slice(&data::<u32>(seed(), me, 3 * CHUNK));
        case(Kind::Scatter, way).of(&link, &all.slice(part(me)), &all).run()?;
        assert_same(&all.to_vec()[part(me)], &data::<u32>(seed(), root, 3 * CHUNK)[part(me)], ("scatter", me));
        Ok(link.close()?)
    });
}

#[test]
pub fn what_would_overwrite_what_is_still_to_be_sent_is_refused() {
    threads(2, "overlap", |world| {
        let link = joined(world, SMALL)?;
        let x = Tensor::<u32>::zeros(2 * CHUNK + 1);
        let overlap = |result: Result<(), RunError>, bytes: usize| {
            assert!(matches!(result, Err(RunError::Transfer(TransferError::Overlap { bytes: is, .. })) if is == bytes));
        };
        let (low, high) = (x.slice(0..2 * CHUNK), x.slice(1..2 * CHUNK + 1));
        overlap(all_to_all(&link, &low, &low).run(), CHUNK * 4);
        overlap(all_to_all(&link, &low, &high).run(), CHUNK * 4);
        // Not at the right place: one element too far.
        let first = world.rank().index() * CHUNK + 1;
        overlap(all_gather(&link, &low, &x.slice(first..first + CHUNK)).run(), CHUNK * 4);
        // A hook would change the chunk while it is being sent.
        let own = low.slice(world.rank().index() * CHUNK..(world.rank().index() + 1) * CHUNK);
        overlap(all_gather(&link, &low, &own).produce(|c| c.input.load(c.pos()) + 1).run(), CHUNK * 4);
        Ok(link.close()?)
    });
}

/// Every algorithm of a reduction, with the primitive it needs.
const REDUCTIONS: [(Algorithm, Primitive); 3] = [
    (Algorithm::OneShot, Primitive::Packet),
    (Algorithm::TwoPhase, Primitive::Staged),
    (Algorithm::Ring, Primitive::Staged),
];

#[test]
pub fn a_reduction_whose_hooks_stay_at_their_position_may_be_in_place() {
    for (ranks, (algorithm, primitive)) in [1, 2, 3].into_iter().flat_map(|ranks| REDUCTIONS.map(|way| (ranks, way))) {
        threads(ranks, "hooks in place", |world| {
            let link = joined(world, SMALL)?;
            let (me, len) = (world.rank(), if primitive == Primitive::Packet { 50 } else { 4001 });
            let given =
                |rank: Rank, len: usize| (0..len).map(|i| ((rank.index() * 7 + i) % 50) as f32).collect::<Vec<_>>();
            let sums = |len: usize| {
                let all: Vec<Vec<f32>> = Rank::all(ranks).map(|rank| given(rank, len)).collect();
                let sum = |i: usize| all.iter().map(|of_rank| 2.0 * of_rank[i]).sum::<f32>();
                (0..len).map(|i| sum(i) + 1.0).collect::<Vec<_>>()
            };
            let x = Tensor::from_slice(&given(me, len));
            let reduce = all_reduce(&link, &x, &x)
                .algorithm(algorithm)
                .primitive(primitive)
                .blocks(2)
                .produce(|c| c.input.load(c.pos()) * 2.0)
                .consume(|c, x| c.output.store(c.pos(), x + 1.0))
                .build();
            if algorithm == Algorithm::OneShot && has_far(&link) {
                assert_needs_packets(reduce.err());
            } else {
                let mut reduce = reduce?;
                for _ in 0..3 {
                    x.copy_from(&given(me, len));
                    reduce.run()?;
                    assert_same(&x.to_vec(), &sums(len), (algorithm, me));
                }
            }
            if algorithm != Algorithm::TwoPhase {
                let all = Tensor::from_slice(&given(me, ranks * len));
                let own = me.index() * len..(me.index() + 1) * len;
                reduce_scatter(&link, &all.slice(own.clone()), &all)
                    .algorithm(algorithm)
                    .primitive(primitive)
                    .produce(|c| c.input.load(c.pos()) * 2.0)
                    .consume(|c, x| c.output.store(c.pos(), x + 1.0))
                    .run()?;
                assert_same(&all.slice(own.clone()).to_vec(), &sums(ranks * len)[own], ("scattered", algorithm, me));
            }
            Ok(link.close()?)
        });
    }
}

#[test]
pub fn a_reduction_whose_hooks_read_what_others_write_is_refused_in_place() {
    threads(2, "hooks in place", |world| {
        let link = joined(world, SMALL)?;
        let (me, x) = (world.rank(), Tensor::<f32>::zeros(100));
        let overlap = |result: Result<(), RunError>| {
            let error = result.expect_err("an overlap");
            assert!(matches!(error, RunError::Transfer(TransferError::Overlap { .. })), "{error}");
            assert!(error.to_string().contains("in_place.rs"), "{error}");
        };
        overlap(all_reduce(&link, &x, &x).produce(|c| c.input.load(-c.pos() + 99)).run());
        overlap(all_reduce(&link, &x, &x).chunk_shape(10, 10).produce(|c| c.input.at(c.col(), c.row())).run());
        // A captured handle to the same memory, and a result that is stored at another position.
        overlap(all_reduce(&link, &x, &x).produce(|c| c.input.load(c.pos()) + x.at(c.pos() / 2)).run());
        overlap(all_reduce(&link, &x, &x).consume(|c, x| c.output.store(-c.pos() + 99, x)).run());
        // A store under a mask writes only some of the positions that are read.
        let halves = all_reduce(&link, &x, &x).produce(|c| c.input.load(c.pos()));
        overlap(halves.consume(|c, x| c.output.store_if(c.pos().lt(50), c.pos(), x)).run());
        // A reduce-scatter would write its chunk while it still produces for others.
        let own = x.slice(me.index() * 50..(me.index() + 1) * 50);
        let scattered = reduce_scatter(&link, &own, &x).primitive(Primitive::Staged);
        overlap(scattered.produce(|c| c.input.load(c.pos()) + own.at(c.pos())).run());
        Ok(link.close()?)
    });
}
