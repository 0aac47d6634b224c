//! Transfers with hooks: bit for bit the reference evaluator's result of the same hooks in a `map` of the sender's
//! data.

use crate::case::{SMALL, Way, assert_same, data, floats, joined, poison, seed, threads};
use tilewire::check::{Options, evaluate};
use tilewire::ir::scalar::Element;
use tilewire::link::{ShmOptions, Transport, Window};
use tilewire::prelude::*;
use tilewire::tensor::bytes_of;
use tilewire::transport::{Rank, RankError, World};
use tilewire::{Knobs, Traced, recv, send, sendrecv};

const WAYS: [Way; 7] = [
    Way::Packet,
    Way::staged(256, 2),
    Way::staged(512, 7),
    Way::bulk(256, 2),
    Way::bulk(512, 7),
    Way::Chosen,
    Way::Direct,
];

/// The contents of the first output of a kernel of one rank, by definition.
fn by_definition(traced: &Traced) -> Vec<u8> {
    let bytes = evaluate(&traced.kernel, &traced.args, (0, 1), Options::default()).unwrap();
    let output = traced.kernel.params.values().position(|param| param.name() == "output").expect("an output");
    bytes[output][0].clone()
}

/// Runs a ring shift with hooks, which are given once for both builders. Compares it with a map of the peer's data.
macro_rules! agrees {
    ($world:expr, $link:expr, $way:expr, $blocks:expr, $lens:expr, $Out:ty, |$builder:ident| $hooked:expr) => {{
        let (world, link, way, (sent, received)): (&World, &dyn Transport, Way, (usize, usize)) =
            ($world, $link, $way, $lens);
        let (me, size) = (world.rank(), world.size());
        let (to, from) = (me.after(1, size), me.after(size - 1, size));
        let window = (way == Way::Direct).then(|| Window::<$Out>::allocate(link, received)).transpose()?;
        let out = window.as_ref().map_or_else(|| Tensor::<$Out>::zeros(received), |window| window.tensor().clone());
        let before = Tensor::from_slice(&data::<$Out>(seed(), from, received));
        out.copy_from(&before.to_vec());
        let (mine, theirs) = [me, from].map(|rank| Tensor::from_slice(&floats(seed(), rank, sent))).into();
        let $builder = sendrecv(link, &out, &mine, to, from).config(way.config($blocks));
        let $builder = match &window {
            Some(window) => $builder.window(window),
            None => $builder,
        };
        $hooked.run()?;
        let $builder = map(&before, &theirs);
        let must = by_definition(&$hooked.trace()?);
        assert!(bytes_of(out.memory()).unwrap() == must, "rank {me} with {way:?} and {} blocks", $blocks);
    }};
}

/// Every way with one and with three blocks.
fn every_way(ways: &'static [Way], body: impl Fn(&World, &dyn Transport, Way, usize) -> Result<(), RankError> + Sync) {
    threads(3, "hooks", |world| {
        let link = joined(world, ShmOptions { packet_bytes: Some(256 << 10), ..SMALL })?;
        for &way in ways {
            for blocks in [1, 2, 3] {
                body(world, &link, way, blocks)?;
            }
        }
        Ok(link.close()?)
    });
}

#[test]
pub fn a_produce_hook_scales() {
    every_way(&WAYS, |world, link, way, blocks| {
        agrees!(world, link, way, blocks, (301, 301), f32, |b| b.produce(|c| c.input.load(c.pos()) * 0.3 + 1.0));
        Ok(())
    });
}

#[test]
pub fn a_consume_hook_scales() {
    every_way(&WAYS[..4], |world, link, way, blocks| {
        agrees!(world, link, way, blocks, (301, 301), f32, |b| b.consume(|c, x| c.output.store(c.pos(), x * 0.7)));
        Ok(())
    });
}

#[test]
pub fn both_hooks_share_the_work_of_a_narrower_wire() {
    every_way(&WAYS[..4], |world, link, way, blocks| {
        agrees!(world, link, way, blocks, (303, 303), f32, |b| b
            .produce(|c| c.input.load(c.pos()).cast::<Bf16>())
            .consume(|c, x| c.output.store(c.pos(), x.cast::<f32>() * 2.0)));
        agrees!(world, link, way, blocks, (303, 303), F16, |b| b.produce(|c| c.input.load(c.pos()).cast::<F16>()));
        Ok(())
    });
}

#[test]
pub fn payload_and_scale_travel_side_by_side() {
    // Slots that hold at least the 32 elements of a group.
    const WAYS: [Way; 5] = [Way::Packet, Way::staged(512, 2), Way::staged(512, 7), Way::bulk(512, 7), Way::Chosen];
    every_way(&WAYS, |world, link, way, blocks| {
        for len in [64, 320, 300] {
            agrees!(world, link, way, blocks, (len, len), f32, |b| b
                .produce2(|c| {
                    let x = c.input.load(c.pos());
                    let scale = x.abs().group_max(32) / 448.0;
                    ((x / scale).cast::<F8E4M3>(), scale)
                })
                .consume(|c, (x, scale)| c.output.store(c.pos(), x.cast::<f32>() * scale)));
        }
        Ok(())
    });
}

#[test]
pub fn three_parts_of_different_types_travel_side_by_side() {
    every_way(&WAYS[..4], |world, link, way, blocks| {
        agrees!(world, link, way, blocks, (133, 133), f64, |b| b
            .produce3(|c| {
                let x = c.input.load(c.pos());
                (x.cast::<i8>(), x.cast::<f64>(), c.pos().cast::<u16>())
            })
            .consume(|c, (a, b, at)| c.output.store(c.pos(), a.cast::<f64>() + b * at.cast::<f64>())));
        Ok(())
    });
}

/// Shapes of all kinds: square, flat, tall, with rows longer than a tile, with sizes that no tile divides.
const SHAPES: [(usize, usize); 8] = [(8, 8), (1, 40), (40, 1), (3, 3), (17, 6), (6, 3), (5, 23), (13, 19)];

#[test]
pub fn chunks_arrive_transposed_by_the_sender() {
    every_way(&WAYS, |world, link, way, blocks| {
        for (rows, cols) in SHAPES {
            agrees!(world, link, way, blocks, (rows * cols, rows * cols), f32, |b| b
                .chunk_shape(rows, cols)
                .output_shape(cols, rows)
                .produce(|c| c.input.at(c.col(), c.row())));
        }
        Ok(())
    });
}

#[test]
pub fn chunks_arrive_transposed_by_the_receiver() {
    every_way(&WAYS[..4], |world, link, way, blocks| {
        for (rows, cols) in SHAPES {
            // Positions follow the output as it is sent. The receiver stores them elsewhere.
            agrees!(world, link, way, blocks, (rows * cols, rows * cols), f32, |b| b
                .chunk_shape(rows, cols)
                .consume(|c, x| c.output.store(c.col() * rows as i64 + c.row(), x)));
        }
        Ok(())
    });
}

#[test]
fn rows_that_blocks_share_unequally_fit_their_packets() {
    // 512 bytes of packets for each block. Two of three rows are 520, and a third of three would be less.
    threads(2, "rows in packets", |world| {
        let link = joined(world, SMALL)?;
        for cols in [60, 64, 65, 70] {
            for _ in 0..10 {
                agrees!(world, &link, Way::Chosen, 2, (3 * cols, 3 * cols), f32, |b| b
                    .chunk_shape(cols, 3)
                    .output_shape(3, cols)
                    .produce(|c| c.input.at(c.col(), c.row())));
            }
        }
        Ok(link.close()?)
    });
}

#[test]
pub fn large_chunks_arrive_transposed_in_tiles() {
    threads(2, "large chunks", |world| {
        let link = joined(world, SMALL)?;
        for (rows, cols) in [(97, 113), (300, 41), (64, 128)] {
            for (way, blocks) in
                [(Way::staged(256, 3), 1), (Way::staged(2048, 2), 5), (Way::bulk(256, 5), 2), (Way::Chosen, 8)]
            {
                agrees!(world, &link, way, blocks, (rows * cols, rows * cols), f32, |b| b
                    .chunk_shape(rows, cols)
                    .output_shape(cols, rows)
                    .produce(|c| c.input.at(c.col(), c.row()) * 2.0));
            }
        }
        Ok(link.close()?)
    });
}

#[test]
pub fn a_consume_hook_accumulates() {
    threads(3, "accumulate", |world| {
        let link = joined(world, SMALL)?;
        let (me, to, from) = (world.rank(), world.rank().after(1, 3), world.rank().after(2, 3));
        for way in [Way::Packet, Way::staged(128, 2), Way::bulk(128, 3), Way::Chosen] {
            let (mine, sum) = (floats(seed(), me, 333), Tensor::from_slice(&floats(7, me, 333)));
            let inp = Tensor::from_slice(&mine);
            let mut add = sendrecv(&link, &sum, &inp, to, from)
                .config(way.config(4))
                .consume(|c, x| c.output.store(c.pos(), c.output.load(c.pos()) + x))
                .build()?;
            let mut must = floats(7, me, 333);
            for round in 0..3 {
                inp.copy_from(&floats(seed() + round, me, 333));
                add.run()?;
                must.iter_mut().zip(floats(seed() + round, from, 333)).for_each(|(sum, x)| *sum += x);
                assert_same(&sum.to_vec(), &must, (me, way, round));
            }
        }
        Ok(link.close()?)
    });
}

#[test]
pub fn one_side_may_pack_elements_that_the_other_copies_in_words() {
    fn one_way<T: Element>(world: &World, link: &dyn Transport, config: Knobs) -> Result<(), RankError> {
        let (sender, receiver) = (Rank::new(0), Rank::new(1));
        for len in [16, 24, 40, 64] {
            for hook_sends in [true, false] {
                let x = Tensor::from_slice(&data::<T>(seed(), sender, len));
                if world.rank() == sender {
                    let give = send(link, &x, receiver).config(config);
                    if hook_sends { give.produce(|c| c.input.load(c.pos())).run()? } else { give.run()? }
                } else {
                    poison(&x);
                    let take = recv(link, &x, sender).config(config);
                    if hook_sends {
                        take.run()?
                    } else {
                        take.consume(|c, x| c.output.store(c.pos(), x)).run()?
                    }
                    assert_same(&x.to_vec(), &data::<T>(seed(), sender, len), (T::TYPE, config, len, hook_sends));
                }
            }
        }
        Ok(())
    }
    threads(2, "words", |world| {
        let link = joined(world, SMALL)?;
        for blocks in 1..=4 {
            for granule in [1, 3, 8, 64] {
                let config = Knobs { granule: Some(granule), ..Way::Packet.config(blocks) };
                one_way::<u8>(world, &link, config)?;
                one_way::<f32>(world, &link, config)?;
            }
        }
        Ok(link.close()?)
    });
}

#[test]
pub fn a_produce_hook_gathers_by_an_index() {
    const ROWS: usize = 50;
    threads(2, "gather", |world| {
        let link = joined(world, SMALL)?;
        let (me, peer) = (world.rank(), world.rank().after(1, 2));
        let index = |rank, len| data::<u32>(3, rank, len).iter().map(|i| i % ROWS as u32).collect::<Vec<_>>();
        for (way, len) in [
            (Way::Packet, 20),
            (Way::staged(256, 2), 1000),
            (Way::bulk(256, 4), 1000),
            (Way::Chosen, 77),
            (Way::Chosen, 0),
        ] {
            let (table, rows) = (Tensor::from_slice(&data::<i16>(5, me, ROWS)), Tensor::from_slice(&index(me, len)));
            let out = Tensor::<i16>::zeros(len);
            let mut give = send(&link, &table, peer)
                .send_len(len)
                .config(way.config(2))
                .produce(|c| c.input.load(rows.at(c.pos())))
                .build()?;
            let mut take = recv(&link, &out, peer).config(way.config(2)).build()?;
            if me.index() == 0 {
                give.run()?;
                take.run()?;
            } else {
                take.run()?;
                give.run()?;
            }
            let theirs = data::<i16>(5, peer, ROWS);
            let must: Vec<i16> = index(peer, len).iter().map(|&row| theirs[row as usize]).collect();
            assert_same(&out.to_vec(), &must, (me, way, len));
        }
        Ok(link.close()?)
    });
}

#[test]
pub fn hooks_know_where_they_are() {
    threads(3, "places", |world| {
        let link = joined(world, SMALL)?;
        let (me, to, from) = (world.rank(), world.rank().after(1, 3), world.rank().after(2, 3));
        let (inp, out) = (Tensor::<i64>::zeros(500), Tensor::<i64>::zeros(500));
        sendrecv(&link, &out, &inp, to, from)
            .config(Way::staged(256, 3).config(2))
            .produce(|c| c.rank() * 1000 + c.peer() * 100 + c.recv_peer() * 10 + c.pos() - c.pos())
            .consume(|c, x| {
                let here = c.rank() * 1000 + c.peer() * 100 + c.recv_peer() * 10 + c.shard();
                c.output.store(c.pos(), x * 10_000 + here)
            })
            .run()?;
        let [me, to, from] = [me, to, from].map(|rank| i64::from(rank.number()));
        // On its way from one rank to this one. Both legs name the same two ranks, whatever else they send and receive.
        assert_ne!(to, from);
        let sender = from * 1000 + me * 100 + from * 10;
        let must = sender * 10_000 + me * 1000 + me * 100 + from * 10 + from;
        assert_eq!(out.to_vec(), [must; 500]);
        Ok(link.close()?)
    });
}
