//! All-gathers round a ring give the results of those that go straight, and hooks see the same fields.

use crate::case::{SMALL, Way, assert_same, data, floats, joined, poison, seed, threads};
use tilewire::ir::{Op, Region, simplify};
use tilewire::link::Transport;
use tilewire::rehearsal::Rehearsal;
use tilewire::transport::{Rank, RankError, World};
use tilewire::{Algorithm, Bf16, F8E4M3, Tensor, Traced, all_gather, all_reduce};

/// Worlds of all sizes, with some geometries.
fn every(body: impl Fn(&World, &dyn Transport, Way, usize) -> Result<(), RankError> + Sync) {
    for ranks in [1, 2, 3, 4, 5, 8] {
        threads(ranks, "rings", |world| {
            let link = joined(world, SMALL)?;
            for way in [Way::Chosen, Way::staged(256, 2), Way::staged(512, 7)] {
                for blocks in [1, 3] {
                    body(world, &link, way, blocks)?;
                }
            }
            Ok(link.close()?)
        });
    }
}

#[test]
pub fn a_ring_gathers_every_bit() {
    every(|world, link, way, blocks| {
        // More than the staging holds, in large steps. Every step waits for a neighbour.
        let longest = if way == Way::Chosen { 20_001 } else { 1001 };
        for (turn, len) in [0, 1, 7, longest].into_iter().enumerate() {
            let seed = seed() + turn as u64;
            let inp = Tensor::from_slice(&data::<Bf16>(seed, world.rank(), len));
            let out = Tensor::<Bf16>::zeros(world.size() * len);
            let gathering = all_gather(link, &out, &inp).config(way.config(blocks)).algorithm(Algorithm::Ring);
            let mut op = gathering.build()?;
            for _ in 0..2 {
                poison(&out);
                op.run()?;
                let must: Vec<Bf16> = Rank::all(world.size()).flat_map(|rank| data(seed, rank, len)).collect();
                assert_same(&out.to_vec(), &must, (way, blocks, len, world.rank()));
            }
        }
        Ok(())
    });
}

#[test]
pub fn hooks_run_where_a_chunk_begins_and_wherever_it_is_kept() {
    every(|world, link, way, blocks| {
        let (rows, cols) = (12, 40);
        let inp = Tensor::from_slice(&floats(seed(), world.rank(), rows * cols));
        let out = Tensor::<f32>::zeros(world.size() * rows * cols);
        let gathering = all_gather(link, &out, &inp).config(way.config(blocks)).algorithm(Algorithm::Ring);
        // The payload is narrower than the output. Every rank adds the number of the shard, and that of the rank it
        // came from.
        gathering
            .chunk_shape(rows, cols)
            .output_shape(cols, rows)
            .produce(|c| c.input.at(c.col(), c.row()).cast::<Bf16>())
            .consume(|c, x| {
                let mark = (c.shard() * 10 + c.recv_peer()).cast::<f32>();
                c.output.store_at(c.row(), c.col(), x.cast::<f32>() + mark);
            })
            .run()?;
        let (me, ranks) = (link.rank().index(), world.size());
        let must = Rank::all(ranks).flat_map(|from| {
            let sent = floats(seed(), from, rows * cols);
            let mark = (from.index() * 10 + from.index()) as f32;
            (0..rows * cols).map(move |i| Bf16::from_f32(sent[i % rows * cols + i / rows]).to_f32() + mark)
        });
        assert_same(&out.to_vec(), &must.collect::<Vec<f32>>(), (way, blocks, me));
        Ok(())
    });
}

#[test]
pub fn two_values_go_round_side_by_side() {
    every(|world, link, way, blocks| {
        if way == Way::staged(256, 2) {
            return Ok(()); // not 32 elements fit a slot with their scales
        }
        let len = 960;
        let inp = Tensor::from_slice(&floats(seed(), world.rank(), len));
        let out = Tensor::<f32>::zeros(world.size() * len);
        let quantised = |from| {
            let sent = floats(seed(), from, len);
            let group = |xs: &[f32]| {
                let scale = xs.iter().fold(0.0, |most: f32, x| most.max(x.abs())) / 448.0;
                xs.iter().map(|x| F8E4M3::from_f32(x / scale).to_f32() * scale).collect::<Vec<_>>()
            };
            sent.chunks(32).flat_map(group).collect::<Vec<_>>()
        };
        let must: Vec<f32> = Rank::all(world.size()).flat_map(quantised).collect();
        // A scale for every element, and then one for its group, so that more elements fit a slot.
        for shared in [1, 32] {
            out.fill(0.0);
            let ring = all_gather(link, &out, &inp).config(way.config(blocks)).algorithm(Algorithm::Ring).granule(32);
            ring.produce2(|c| {
                let x = c.input.load(c.pos());
                let scale = x.abs().group_max(32) / 448.0;
                ((x / scale).cast::<F8E4M3>(), scale)
            })
            .last_per(shared)
            .consume(|c, (x, scale)| c.output.store(c.pos(), x.cast::<f32>() * scale))
            .run()?;
            assert_same(&out.to_vec(), &must, (way, blocks, shared));
        }
        Ok(())
    });
}

#[test]
pub fn a_ring_gathers_in_place() {
    threads(3, "ring in place", |world| {
        let link = joined(world, SMALL)?;
        let (me, len) = (world.rank(), 700);
        let out = Tensor::<u32>::zeros(3 * len);
        let own = out.slice(me.index() * len..(me.index() + 1) * len);
        own.copy_from(&data(seed(), me, len));
        all_gather(&link, &out, &own).config(Way::staged(256, 2).config(2)).algorithm(Algorithm::Ring).run()?;
        let must: Vec<u32> = Rank::all(3).flat_map(|rank| data(seed(), rank, len)).collect();
        assert_same(&out.to_vec(), &must, me);
        Ok(link.close()?)
    });
}

/// The accesses of a ring for every element of a tile, for each region: loads, gets, stores, puts.
fn touches(traced: &Traced) -> Vec<[usize; 4]> {
    // As an engine sees it, after redundant reads were removed.
    let kernel = simplify(&traced.kernel);
    let each =
        kernel.insts.values().filter_map(|inst| if let Op::Each { body, .. } = inst.op { Some(body) } else { None });
    let of = |body: Region| {
        let count =
            |is: fn(&Op) -> bool| kernel.regions[body].iter().filter(|&&inst| is(&kernel.insts[inst].op)).count();
        [
            count(|op| matches!(op, Op::Load { .. })),
            count(|op| matches!(op, Op::Get { .. })),
            count(|op| matches!(op, Op::Store { .. })),
            count(|op| matches!(op, Op::Put { .. })),
        ]
    };
    each.map(of).collect()
}

#[test]
fn what_a_ring_passes_on_is_read_once_and_written_twice() {
    let link = &Rehearsal::small(4, 2).ranks()[1];
    let (one, all) = (Tensor::<f32>::zeros(100), Tensor::<f32>::zeros(400));
    let gathered = all_gather(link, &all, &one).algorithm(Algorithm::Ring).trace().unwrap();
    // The own chunk; two that are passed on; the last one, which is not.
    assert_eq!(touches(&gathered), [[1, 0, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 0]]);

    let whole = Tensor::<f32>::zeros(400);
    let reduced = all_reduce(link, &whole, &all).algorithm(Algorithm::Ring).trace().unwrap();
    // The sum that this rank adds to is passed on. Its own shard is kept as well. The rest is as above.
    let adds = [[1, 0, 0, 1], [1, 1, 0, 1], [1, 1, 0, 1]];
    let (own, gathers) = ([1, 1, 1, 1], [[0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 0]]);
    assert_eq!(touches(&reduced), [&adds[..], &[own], &gathers].concat());
}
