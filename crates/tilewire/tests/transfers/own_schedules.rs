//! Your own schedules and kernels (layers 3 and 4) over meshes: chunks with a shape whose last tiles are narrow, and
//! news that reaches a rank through another one.

use crate::posts::{mesh, run};
use std::slice::from_ref;
use tilewire::collective::Launch;
use tilewire::hook::{AnyValue, Regs};
use tilewire::ir::Part;
use tilewire::link::{Staged, StagedLeg, Transport};
use tilewire::schedule::{Position, Ring, RingReduce, reduce_tiles, ring_reduce};
use tilewire::transport::{PeerEndpoint, RankError, There};
use tilewire::{Memory, Rank, Tensor, kernel};

/// Tiles of 16 by 16 positions. The last tile of a row is eight wide, and the last rows of tiles are short as well.
const ROWS: usize = 24;
const COLS: usize = 40;
const LEN: usize = ROWS * COLS;

fn staged<R: Regs>(link: &dyn Transport, cols: usize) -> Staged<'_, R> {
    Staged::shaped(link, ROWS, cols).tile(256).depth(2)
}

fn narrow(leg: StagedLeg<'_, f32>) -> StagedLeg<'_, f32> {
    let cols = leg.tiling().tile_cols();
    assert!(cols < COLS && !COLS.is_multiple_of(cols), "the last tiles of a row are narrow");
    leg
}

const DOMAINS: [&[&[u32]]; 5] =
    [&[&[0, 1], &[2]], &[&[0], &[1, 2]], &[&[0, 2], &[1]], &[&[0], &[1], &[2]], &[&[0, 1, 2]]];

/// A whole number, so that sums are exact in any order.
fn element(rank: usize, launch: usize, i: usize) -> f32 {
    ((i * 37 + rank * 911 + launch * 13) % 4093) as f32
}

fn of_f32<'t>(x: AnyValue<'t>) -> tilewire::Value<'t, f32> {
    x.typed()
}

/// Rank 0 sends its chunk to rank 1. Rank 1 adds its own chunk, keeps the sum and passes it on to rank 2.
fn chain(link: &dyn Transport) -> Result<(), RankError> {
    let me = link.rank().index();
    let (inp, out) = (Tensor::<f32>::zeros(LEN), Tensor::<f32>::zeros(LEN));
    let leg = |rank: usize| staged(link, COLS).with(Rank::new(rank as u32)).map(narrow);
    let (to, from) = ((me < 2).then(|| leg(me + 1)).transpose()?, (me > 0).then(|| leg(me - 1)).transpose()?);
    let traced = kernel("chain", |k| {
        let (x, y) = (k.input(&inp), k.output(&out));
        let (to, from) = (to.map(|to| to.sender(k)), from.map(|from| from.receiver(k)));
        k.main(|r| match (&from, &to) {
            (None, Some(to)) => to.send(r, |at| {
                let x = x.load(at.pos);
                y.store(at.pos, x);
                x
            }),
            (Some(from), Some(to)) => {
                let ends = ((from_ref(&**from), from.plan()), (from_ref(&**to), to.plan()));
                reduce_tiles(r, ends.0, ends.1, to.tiling(), f32::TYPES, &|at: &Position<'_>, got| {
                    let sum = of_f32(got[0]) + x.load(at.pos);
                    y.store(at.pos, sum);
                    sum.into()
                });
            }
            (Some(from), None) => from.recv(r, |at, sum| y.store(at.pos, sum + x.load(at.pos))),
            (None, None) => unreachable!("there are three ranks"),
        });
    })?;
    let mut launch = Launch::new(link, &traced)?;
    for number in 0..3 {
        inp.copy_from(&(0..LEN).map(|i| element(me, number, i)).collect::<Vec<_>>());
        launch.run()?;
        let must = |i: usize| (0..=me).map(|rank| element(rank, number, i)).sum::<f32>();
        assert_eq!(wrong(&out, must), 0, "rank {me}, launch {number}");
    }
    Ok(())
}

fn wrong(out: &Tensor<f32>, must: impl Fn(usize) -> f32) -> usize {
    out.to_vec().iter().enumerate().filter(|&(i, &x)| x != must(i)).count()
}

#[test]
fn what_is_sent_reduced_and_passed_on_lies_at_its_own_place() {
    for (seed, domains) in DOMAINS.into_iter().enumerate() {
        run(3, |world| {
            let link = mesh(world, domains, Some(seed as u64))?;
            chain(&link)?;
            Ok(link.close()?)
        });
    }
}

/// Sums of chunks, round a ring. Every rank gets its own sum, or all of them.
fn lap(link: &dyn Transport, gathers: bool) -> Result<(), RankError> {
    let (me, ranks) = (link.rank().index(), link.world_size());
    let leg = |after: usize| staged(link, COLS).with(link.rank().after(after, ranks)).map(narrow);
    let (next, before) = (leg(1)?, leg(ranks - 1)?);
    let (inp, out) = (Tensor::<f32>::zeros(ranks * LEN), Tensor::<f32>::zeros(ranks * LEN));
    let first = |before: usize| ((me + ranks - before) % ranks * LEN) as i64;
    let traced = kernel("lap", |k| {
        let (x, y) = (k.input(&inp), k.output(&out));
        let (next, previous) = (next.sender(k), before.receiver(k));
        k.main(|r| {
            let ring = Ring { next: &next, previous: &previous, plan: next.plan(), tiling: next.tiling(), ranks };
            let reduction = RingReduce {
                partial: f32::TYPES,
                whole: f32::TYPES,
                contribute: &|shard, at| x.load(at.pos + first(shard)).into(),
                combine: &|so_far, x| (of_f32(so_far) + of_f32(x)).into(),
                finish: &|x| x,
                keep: &|shard, at, x| y.store(at.pos + first(shard), of_f32(x)),
                len: &|_| LEN,
                gathers,
            };
            ring_reduce(r, &ring, &reduction);
        });
    })?;
    let mut launch = Launch::new(link, &traced)?;
    for number in 0..3 {
        inp.copy_from(&(0..ranks * LEN).map(|i| element(me, number, i)).collect::<Vec<_>>());
        launch.run()?;
        let is_mine = |i: usize| gathers || i / LEN == me;
        let sum = |i: usize| (0..ranks).map(|rank| element(rank, number, i)).sum::<f32>();
        let must = |i: usize| if is_mine(i) { sum(i) } else { 0.0 };
        assert_eq!(wrong(&out, must), 0, "rank {me}, launch {number}, gathers: {gathers}");
    }
    Ok(())
}

#[test]
fn what_is_reduced_round_a_ring_lies_at_its_own_place() {
    for (seed, domains) in DOMAINS.into_iter().enumerate() {
        run(3, |world| {
            let link = mesh(world, domains, Some(seed as u64))?;
            lap(&link, false)?;
            lap(&link, true)?;
            Ok(link.close()?)
        });
    }
}

/// Traces a sender of rows of `cols` positions, in which groups of 16 share a scale.
fn shared(link: &dyn Transport, cols: usize) -> Result<(), String> {
    let next = link.rank().after(1, link.world_size());
    let leg = staged::<(i8, f32)>(link, cols).last_per(16).with(next).unwrap();
    let inp = Tensor::<f32>::zeros(ROWS * cols);
    let traced = kernel("shared", |k| {
        let (x, to) = (k.input(&inp), leg.sender(k));
        k.main(|r| {
            to.send(r, |at| {
                let x = x.load(at.pos);
                (x.cast::<i8>(), x.abs().group_max(16))
            });
        });
    });
    traced.map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn groups_that_narrow_tiles_would_tear_are_no_kernel() {
    for (domains, is_dense) in [(DOMAINS[0], true), (DOMAINS[4], false)] {
        run(3, |world| {
            let link = mesh(world, domains, None)?;
            assert_eq!(link.is_dense(), is_dense);
            let torn = shared(&link, COLS);
            match torn {
                Err(text) if is_dense => {
                    assert!(text.contains("rows of 40 positions, and a value for 16 neighbours"), "{text}");
                }
                torn => assert!(torn.is_ok() && !is_dense, "{torn:?}"),
            }
            assert_eq!(shared(&link, 48), Ok(()));
            Ok(link.close()?)
        });
    }
}

/// Rank 0 stores into rank 2's memory, and posts to rank 1. Rank 1 posts to rank 2, which reads what rank 0 stored. A
/// notice covers everything that its rank has seen, whichever rank did it and in whichever way.
#[test]
fn what_was_stored_is_there_when_a_post_of_a_third_rank_says_so() {
    const TURNS: i64 = 2000;
    // The staging of a block, in words.
    const WORDS: usize = 512;
    for seed in [None, Some(2), Some(3)] {
        run(3, |world| {
            let link = mesh(world, &[&[0, 2], &[1]], seed)?;
            let me = world.rank().number();
            let old = Tensor::<u64>::zeros(WORDS);
            let to = |peer: u32| link.endpoint(Rank::new(peer)).expect("a peer");
            let mapped = |peer: u32| match to(peer).there {
                There::Mapped(mapped) => mapped,
                _ => panic!("rank {peer} is near"),
            };
            let posted = |peer: u32| match to(peer).there {
                There::Posted(posted) => posted,
                _ => panic!("rank {peer} is far"),
            };
            let told_by = |peer: u32| to(peer).here.signals.tail;
            let traced = kernel("told", |k| {
                let slots = |name: &str, memory: Memory| k.slots(name, &[memory], PeerEndpoint::SLOT_STRIDE);
                match me {
                    0 => {
                        let (staging, from) = (k.region("staging", &[mapped(2).staging]), slots("from", told_by(2)));
                        let (queue, line) =
                            (k.queue("posts", posted(1).queue_for(Part::Tail)), posted(1).lines.tail as i64);
                        k.main(|r| {
                            r.for_(1..TURNS + 1, |turn| {
                                r.wait(from.slot(0i64, 0i64), turn - 1);
                                r.each(WORDS, |i| staging.put(0i64, i * 8, turn));
                                r.post_signal(queue, 1i64, line, turn);
                            });
                        });
                    }
                    1 => {
                        let (queue, line) =
                            (k.queue("posts", posted(2).queue_for(Part::Tail)), posted(2).lines.tail as i64);
                        let from = slots("from", told_by(0));
                        k.main(|r| {
                            r.for_(1..TURNS + 1, |turn| {
                                r.wait(from.slot(0i64, 0i64), turn);
                                r.post_signal(queue, 2i64, line, turn);
                            });
                        });
                    }
                    _ => {
                        let (staging, old) = (k.region("staging", &[to(0).here.staging]), k.inout(&old));
                        let (from, back) = (slots("from", told_by(1)), slots("back", mapped(0).signals.tail));
                        k.main(|r| {
                            r.for_(1..TURNS + 1, |turn| {
                                r.wait(from.slot(0i64, 0i64), turn);
                                r.each(WORDS, |i| {
                                    let is_old = staging.get::<i64>(0i64, i * 8).ne(turn);
                                    old.store(i, old.load(i) + is_old.select(1u64, 0u64));
                                });
                                r.signal_credit(back.slot(0i64, 0i64), turn);
                            });
                        });
                    }
                }
            })?;
            Launch::new(&link, &traced)?.run()?;
            assert_eq!(old.to_vec(), [0; WORDS], "words that were older than their notice, seed {seed:?}");
            Ok(link.close()?)
        });
    }
}
