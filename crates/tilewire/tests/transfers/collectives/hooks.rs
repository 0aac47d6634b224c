//! Exchanges with hooks, compared with plain Rust on the host, and the hook's view of its exchange.

use crate::case::{LONG, SMALL, Way, assert_same, floats, joined, seed, threads};
use crate::collectives::exchange::{Case, KINDS};
use tilewire::collective::Rounds;
use tilewire::link::{ShmOptions, ShmTransport, Transport, Window};
use tilewire::transport::{Rank, RankError, World};
use tilewire::{F8E4M3, Tensor, all_to_all};

const GROUP: usize = 32;

/// All kinds in these forms, with both layouts.
fn every(ways: &[(Way, usize)], body: impl Fn(&World, &dyn Transport, Case) -> Result<(), RankError> + Sync) {
    for ranks in [1, 2, 3, 5] {
        threads(ranks, "hooks", |world| {
            let link = joined(world, ShmOptions { packet_bytes: Some(256 << 10), ..SMALL })?;
            for &(way, chunk) in ways {
                for kind in KINDS {
                    for (blocks, rounds) in [(1, Rounds::Roles), (2, Rounds::Blocks), (3, Rounds::Roles)] {
                        let root = Rank::new(world.size() as u32 - 1);
                        body(world, &link, Case { kind, root, chunk, way, blocks, rounds })?;
                    }
                }
            }
            Ok(link.close()?)
        });
    }
}

/// The input, the output and, for `direct`, the window that contains it.
type Tensors = (Tensor<f32>, Tensor<f32>, Option<Window<f32>>);

fn tensors(case: &Case, link: &dyn Transport) -> Result<Tensors, tilewire::RunError> {
    let (sent, received) = case.lens(link.world_size());
    let window = if case.way == Way::Direct { Some(Window::allocate(link, received)?) } else { None };
    let out = window.as_ref().map_or_else(|| Tensor::zeros(received), |window| window.tensor().clone());
    let inp = Tensor::from_slice(&floats(seed(), link.rank(), sent));
    out.fill(-7.5);
    Ok((inp, out, window))
}

fn check(case: &Case, link: &dyn Transport, out: &Tensor<f32>, hook: impl Fn(&[f32]) -> Vec<f32>) {
    let (me, ranks) = (link.rank(), link.world_size());
    let input = |rank| floats(seed(), rank, case.lens(ranks).0);
    let must = case.expected(me, ranks, input, hook).unwrap_or_else(|| vec![-7.5; out.len()]);
    assert_same(&out.to_vec(), &must, (case, me, ranks));
}

const WAYS: [(Way, usize); 3] = [(Way::Packet, 192), (Way::staged(512, 2), 960), (Way::Direct, 960)];

#[test]
pub fn a_produce_hook_scales() {
    every(&WAYS, |_, link, case| {
        let (inp, out, window) = tensors(&case, link)?;
        let exchange = case.of(link, &out, &inp);
        let exchange = window.iter().fold(exchange, |exchange, window| exchange.window(window));
        exchange.produce(|c| c.input.load(c.pos()) * 1.7).run()?;
        check(&case, link, &out, |chunk| chunk.iter().map(|x| x * 1.7).collect());
        Ok(())
    });
}

#[test]
pub fn every_chunk_arrives_transposed() {
    every(&WAYS, |_, link, case| {
        let (inp, out, window) = tensors(&case, link)?;
        let (rows, cols) = (12, case.chunk / 12);
        let exchange = case.of(link, &out, &inp).chunk_shape(rows, cols).output_shape(cols, rows);
        let exchange = window.iter().fold(exchange, |exchange, window| exchange.window(window));
        exchange.produce(|c| c.input.at(c.col(), c.row())).run()?;
        check(&case, link, &out, |x| (0..x.len()).map(|i| x[i % rows * cols + i / rows]).collect());
        Ok(())
    });
}

fn quantised(chunk: &[f32]) -> Vec<f32> {
    let group = |xs: &[f32]| {
        let most = xs.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        let scale = if most == 0.0 { 1.0 } else { most / 448.0 };
        xs.iter().map(|x| F8E4M3::from_f32(x / scale).to_f32() * scale).collect::<Vec<_>>()
    };
    chunk.chunks(GROUP).flat_map(group).collect()
}

#[test]
pub fn payload_and_scale_travel_side_by_side() {
    every(&WAYS[..2], |_, link, case| {
        let (inp, out, _) = tensors(&case, link)?;
        let exchange = case.of(link, &out, &inp).granule(GROUP).produce2(|c| {
            let x = c.input.load(c.pos());
            let most = x.abs().group_max(GROUP as u32);
            let scale = most.eq(0.0).select(1.0f32, most / 448.0);
            ((x / scale).cast::<F8E4M3>(), scale)
        });
        exchange.consume(|c, (x, scale)| c.output.store(c.pos(), x.cast::<f32>() * scale)).run()?;
        check(&case, link, &out, quantised);
        Ok(())
    });
}

#[test]
pub fn a_consume_hook_adds_to_what_is_there() {
    every(&WAYS[..2], |_, link, case| {
        let (inp, out, _) = tensors(&case, link)?;
        case.of(link, &out, &inp).consume(|c, x| c.output.store(c.pos(), c.output.load(c.pos()) + x)).run()?;
        check(&case, link, &out, |chunk| chunk.iter().map(|x| -7.5 + x).collect());
        Ok(())
    });
}

#[test]
pub fn chunks_may_change_their_length_and_type_on_the_way() {
    threads(3, "another length", |world| {
        let link = joined(world, SMALL)?;
        // The sum of every pair of elements arrives, as an integer.
        let inp = Tensor::from_fn(3 * 200, |i| i as f32);
        let out = Tensor::<i32>::zeros(3 * 100);
        let pairs = all_to_all(&link, &out, &inp).blocks(2);
        pairs.produce(|c| (c.input.load(c.pos() * 2) + c.input.load(c.pos() * 2 + 1)).cast::<i32>()).run()?;
        let me = world.rank().index() as i32;
        let must = |i: i32| 2 * (200 * me + 2 * (i % 100)) + 1;
        assert!((0..300).all(|i| out.get(i as usize) == must(i)));
        Ok(link.close()?)
    });
}

#[test]
pub fn a_hook_knows_peers_shard_and_block() {
    for (blocks, rounds) in [(1, Rounds::Roles), (2, Rounds::Roles), (1, Rounds::Blocks), (2, Rounds::Blocks)] {
        threads(4, "facts", |world| {
            let link = joined(world, SMALL)?;
            let (me, ranks) = (world.rank().index() as i64, 4i64);
            // A position of the chunk for each fact that the sender knows, and one for each that the receiver knows.
            const FACTS: usize = 7;
            let (inp, out) = (Tensor::<i64>::zeros(4 * FACTS), Tensor::<i64>::zeros(8 * FACTS));
            // A tile has seven elements, by every protocol.
            let exchange =
                all_to_all(&link, &out, &inp).blocks(blocks).rounds(rounds).granule(FACTS).slot_bytes(8 * FACTS);
            exchange
                .produce(|c| {
                    let facts = [c.rank(), c.peer(), c.shard(), c.world_size(), c.chunk(), c.num_blocks(), c.block()];
                    let which = c.pos() % FACTS as i64;
                    facts.iter().enumerate().fold(c.value(0i64), |x, (k, &fact)| which.eq(k as i64).select(fact, x))
                })
                .consume(|c, sent| {
                    let facts =
                        [c.rank(), c.recv_peer(), c.shard(), c.world_size(), c.chunk(), c.num_blocks(), c.block()];
                    let which = c.pos() % FACTS as i64;
                    let zero = c.value(0i64);
                    let mine = facts.iter().enumerate().fold(zero, |x, (k, &fact)| which.eq(k as i64).select(fact, x));
                    c.output.store(c.pos(), sent * 1000 + mine);
                })
                .run()?;
            let out = out.to_vec();
            for from in 0..ranks {
                for pos in 0..2 * FACTS as i64 {
                    let block = if blocks == 2 { pos / FACTS as i64 } else { 0 };
                    let k = (pos % FACTS as i64) as usize;
                    let chunk = 2 * FACTS as i64;
                    let sent = [from, me, from, ranks, chunk, blocks as i64, block][k];
                    let received = [me, from, from, ranks, chunk, blocks as i64, block][k];
                    let is = out[(from * chunk + pos) as usize];
                    assert_eq!(is, sent * 1000 + received, "fact {k} from {from} at {me}, {blocks} blocks, {rounds:?}");
                }
            }
            Ok(link.close()?)
        });
    }
}

#[test]
fn the_transposing_all_to_all_of_the_readme() -> Result<(), tilewire::transport::WorldError> {
    let (rows, cols) = (3, 5);
    World::threads(4).deadline(LONG).run(|world| {
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        let inp = Tensor::from_slice(&floats(seed(), world.rank(), 4 * rows * cols));
        let out = Tensor::<f32>::zeros(4 * rows * cols);
        all_to_all(&link, &out, &inp)
            .chunk_shape(rows, cols)
            .output_shape(cols, rows)
            .produce(|c| c.input.at(c.col(), c.row()))
            .run()?;
        for from in Rank::all(4) {
            let sent = floats(seed(), from, 4 * rows * cols);
            let (first, mine) = (from.index() * rows * cols, world.rank().index() * rows * cols);
            for (row, col) in (0..cols).flat_map(|row| (0..rows).map(move |col| (row, col))) {
                assert_eq!(out.get(first + row * rows + col), sent[mine + col * cols + row]);
            }
        }
        Ok(link.close()?)
    })?;
    Ok(())
}
