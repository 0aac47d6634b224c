//! Puts, signals and counters of windows in kernels of one's own: the same bytes however ranks reach each other, in
//! launches that follow each other without a reset, and nothing beyond a window.

use crate::case::{LONG, Place, SMALL, joined, seed, threads};
use tilewire::collective::Launch;
use tilewire::cuda::Device;
use tilewire::ir::RequiredBytes;
use tilewire::link::{AnyTransport, NvlOptions, NvlTransport, Puts, PutsOptions, Tensors, Transport, Window};
use tilewire::schedule::WINDOW_IDS;
use tilewire::transport::{AbortCode, Rank, RankError, World};
use tilewire::{RunError, Scalar, Tensor, kernel};
use tilewire_testkit::random::Random;

/// The ways in which ranks reach each other.
const PLACES: [Place; 5] = [Place::Shm, Place::Alone, Place::Halves, Place::First, Place::Interleaved];

/// What a byte of a window is where nothing was put.
const GUARD: u8 = 0xee;

// ---- random puts ----------------------------------------------------------------------------------------------------

/// One put of a block in a launch.
#[derive(Clone, Copy)]
struct One {
    peer: usize,
    to: usize,
    from: usize,
    bytes: usize,
}

/// The puts of a case. Every rank knows those of all ranks.
struct Plan {
    ranks: usize,
    blocks: usize,
    /// A block of a rank puts into this many bytes of each window.
    room: usize,
    /// Sizes of windows differ by rank.
    uneven: bool,
}

impl Plan {
    fn of(&self, launch: u64, rank: usize, block: usize) -> One {
        let mut random = Random::of_case(seed() ^ launch << 32 ^ (rank * 64 + block) as u64);
        let align = random.pick(&[1, 4, 16, 16]);
        let most = if random.once_in(3) { self.room } else { self.room.min(300) };
        let bytes = (4 + random.below(most - 3)) / align * align;
        let start = |random: &mut Random| random.below(self.room - bytes + 1) / align * align;
        let first = (rank * self.blocks + block) * self.room;
        let (peer, to, from) = (random.below(self.ranks), first + start(&mut random), start(&mut random));
        One { peer, to, from, bytes }
    }

    /// Bytes of a rank's window.
    fn window(&self, rank: usize) -> usize {
        let all = self.ranks * self.blocks * self.room;
        if self.uneven { all + 48 * (rank % 2) + 5 } else { all }
    }

    fn byte(launch: u64, rank: usize, i: usize) -> u8 {
        (i * 7 + rank * 31 + launch as usize * 13 + i / 251) as u8
    }

    /// Runs a few launches, and compares the window with a model after each.
    fn run(&self, link: &AnyTransport, world: &World, launches: u64) -> Result<(), RankError> {
        let (me, &Plan { ranks, blocks, room, .. }) = (link.rank().index(), self);
        let window = Window::<u8>::allocate(link, self.window(me))?;
        let options = {
            let mut options = PutsOptions::default();
            options.outbox_bytes = Some(256);
            options
        };
        let puts = Puts::with(link, &window, options)?;
        let sources: Vec<Tensor<u8>> = (0..blocks).map(|_| link.zeros(room)).collect::<Result<_, _>>()?;
        let bound = sources.iter().map(|source| puts.source(source)).collect::<Result<Vec<_>, _>>()?;
        let (plan, expected) = (link.zeros::<i64>(blocks * 4)?, link.zeros::<i64>(blocks * ranks)?);
        let traced = kernel("random puts", |k| {
            k.blocks(blocks as u32);
            let (ops, plan, expected) = (puts.ops(k), k.input(&plan), k.input(&expected));
            let bound: Vec<_> = bound.iter().map(|source| source.bind(k)).collect();
            k.main(|r| {
                let block = r.block();
                let [peer, to, from, bytes] = [0, 1, 2, 3].map(|i| plan.load(block * 4 + i));
                for (number, source) in bound.iter().enumerate() {
                    r.if_(block.eq(number as i64), || {
                        let put = ops.to(peer, to).from(*source, from, bytes).signal(block).counter(block);
                        match number % 3 {
                            0 => put.put_block_direct(r),
                            1 => put.put_block(r),
                            _ => put.put_warp_chunked_direct(r, 64),
                        }
                    });
                }
                r.for_(0..ranks as i64, |source| {
                    r.if_(expected.load(source * blocks as i64 + block).ne(0), || {
                        ops.wait_signal_from(r, source, block);
                    });
                });
                ops.wait_counter(r, peer, block);
            });
        })?;
        let mut launch = Launch::new(link, &traced)?;
        let mut model = vec![GUARD; self.window(me)];
        for number in 0..launches {
            window.tensor().fill(GUARD);
            model.fill(GUARD);
            for (block, source) in sources.iter().enumerate() {
                let One { peer, to, from, bytes } = self.of(number, me, block);
                plan.slice(block * 4..block * 4 + 4).copy_from(&[peer, to, from, bytes].map(|x| x as i64));
                source.copy_from(&(0..room).map(|i| Self::byte(number, me * blocks + block, i)).collect::<Vec<_>>());
            }
            let all = (0..ranks).flat_map(|rank| (0..blocks).map(move |block| (rank, block)));
            for (rank, block) in all {
                let One { peer, to, from, bytes } = self.of(number, rank, block);
                expected.set(rank * blocks + block, i64::from(peer == me));
                if peer == me {
                    let byte = |i| Self::byte(number, rank * blocks + block, from + i);
                    (0..bytes).for_each(|i| model[to + i] = byte(i));
                }
            }
            world.bootstrap().barrier(&format!("filled {number}"), world.deadline())?;
            launch.run()?;
            // The counters said that the sources have been read.
            sources.iter().for_each(|source| source.fill(0));
            let wrong = window.tensor().to_vec().iter().zip(&model).position(|(is, must)| is != must);
            assert_eq!(wrong, None, "rank {me}, launch {number}");
            world.bootstrap().barrier(&format!("read {number}"), world.deadline())?;
        }
        drop(launch);
        Ok(())
    }
}

fn random_puts() {
    for (ranks, blocks, room, uneven) in [(2, 1, 5000, false), (3, 4, 700, false), (4, WINDOW_IDS, 321, true)] {
        threads(ranks, ("random puts", blocks, room), |world| {
            let link = joined(world, SMALL)?;
            Plan { ranks, blocks, room, uneven }.run(&link, world, 6)?;
            Ok(link.close()?)
        });
    }
}

#[test]
fn random_puts_to_run_time_peers_arrive_exactly() {
    PLACES.into_iter().for_each(|place| place.hosts(random_puts));
}

fn large_puts() {
    threads(2, "large puts", |world| {
        let link = joined(world, SMALL)?;
        Plan { ranks: 2, blocks: 2, room: 16 << 20, uneven: false }.run(&link, world, 1)?;
        Ok(link.close()?)
    });
}

#[test]
fn puts_of_16_mib_arrive_exactly() {
    [Place::Shm, Place::Alone].into_iter().for_each(|place| place.hosts(large_puts));
}

// ---- beyond the end -------------------------------------------------------------------------------------------------

fn one_beyond() {
    one_beyond_on(|world| Ok(joined(world, SMALL)?));
}

/// Rank 1 puts one element too far, to a peer that it computes.
fn one_beyond_on(join: fn(&World) -> Result<AnyTransport, RankError>) {
    const BYTES: usize = 64;
    let heard = threads(3, "one beyond", |world| {
        let link = join(world)?;
        let (me, next) = (link.rank().index(), world.next());
        // The guards are windows on both sides of this one, and the rest of the source's memory.
        let before = Window::<u8>::allocate(&link, BYTES)?;
        let window = Window::<u8>::allocate(&link, BYTES + 4 * me)?;
        let after = Window::<u8>::allocate(&link, BYTES)?;
        let all = [&before, &window, &after];
        all.iter().for_each(|window| window.tensor().fill(GUARD));
        world.bootstrap().barrier("filled", LONG.into())?;
        let puts = Puts::new(&link, &window)?;
        let x = link.tensor(&[7u8; 2 * BYTES])?;
        let source = puts.source(&x)?;
        let (peer, at) = (Scalar::new(next.number() as i64), Scalar::new(0i64));
        // The window of the next rank ends here.
        let size = BYTES + 4 * next.index();
        at.set((size - 16 + if me == 1 { 4 } else { 0 }) as i64);
        let line = std::cell::Cell::new(0);
        let traced = kernel("too far", |k| {
            let (ops, x) = (puts.ops(k), source.bind(k));
            k.main(|r| {
                let (peer, at) = (r.scalar(&peer), r.scalar(&at));
                // Only the bad put runs, so that every other byte is a guard.
                r.if_(r.rank().eq(1), || {
                    line.set(line!() + 1);
                    ops.to(peer, at).from(x, 0, 16).signal(0).counter(0).put_block_direct(r);
                });
                ops.wait_signal_from(r, world.previous().number(), 0);
            });
        })?;
        let mut launch = Launch::new(&link, &traced)?;
        // A launch on a GPU ends later.
        let error = launch.run().and_then(|()| launch.sync()).unwrap_err();
        assert_eq!(link.broken().map(|cause| (cause.code, cause.rank)), Some((AbortCode::Required, 1)));
        drop(launch);
        for window in all {
            assert!(window.tensor().to_vec().iter().all(|&byte| byte == GUARD), "rank {me}");
        }
        Ok((error, line.get(), size))
    });
    let (_, line, size) = (&heard[1].0, heard[1].1, heard[1].2 as i64);
    for (error, ..) in &heard {
        let RunError::Required(it) = error else { panic!("{error}") };
        let span = RequiredBytes { rank: 2, offset: size - 12, bytes: 16, size };
        assert_eq!(it.span, Some(span), "{error}");
        assert!(it.rank.index() == 1 && it.at.contains(&format!("window_operations.rs:{line}")), "{error}");
    }
}

#[test]
fn one_element_beyond_a_window_ends_the_launch_on_all_ranks() {
    PLACES.into_iter().for_each(|place| place.hosts(one_beyond));
}

#[test]
fn one_element_beyond_a_window_on_a_gpu_ends_the_launch_on_all_ranks() {
    if let Err(error) = Device::open(0) {
        return tilewire_testkit::skip::skip("cuda", error);
    }
    one_beyond_on(|world| Ok(NvlTransport::rendezvous(world, &Device::open(0)?, NvlOptions::default())?.into()));
}

#[test]
fn a_rank_an_id_and_a_source_that_do_not_exist_are_refused() {
    let wrong: [(i64, i64, i64, &str); 5] = [
        (2, 0, 0, "a requirement of its kernel does not hold"),
        (-1, 0, 0, "a requirement of its kernel does not hold"),
        (0, WINDOW_IDS as i64, 0, "a requirement of its kernel does not hold"),
        (0, 0, 1, "64 bytes at offset 1 do not lie inside the 64 bytes of rank 0"),
        (0, 0, -1, "64 bytes at offset -1 do not lie inside the 64 bytes of rank 0"),
    ];
    for (peer, id, from, said) in wrong {
        threads(2, "wrong", |world| {
            let link = joined(world, SMALL)?;
            let window = Window::<u8>::allocate(&link, 64)?;
            let (puts, x) = (Puts::new(&link, &window)?, link.tensor(&[7u8; 64])?);
            let source = puts.source(&x)?;
            let numbers = [peer, id, from].map(Scalar::new);
            let traced = kernel("wrong", |k| {
                let (ops, x) = (puts.ops(k), source.bind(k));
                k.main(|r| {
                    let [peer, id, from] = [0, 1, 2].map(|i: usize| r.scalar(&numbers[i]));
                    r.if_(r.rank().eq(0), || ops.to(peer, 0).from(x, from, 64).signal(id).put_block_direct(r));
                    r.if_(r.rank().eq(1), || ops.wait_signal_from(r, 0, 7));
                });
            })?;
            let error = Launch::new(&link, &traced)?.run().unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
            assert_eq!(window.tensor().to_vec(), [0; 64]);
            Ok(())
        });
    }
}

// ---- signals and counters -------------------------------------------------------------------------------------------

/// Every launch sends a number round the ring through every id, with several signals each, and overwrites the source
/// between two puts. A flush comes before a third rank is told.
fn counted() {
    const TURNS: i64 = 5;
    threads(3, "counted", |world| {
        let link = joined(world, SMALL)?;
        let (me, next, previous) = (link.rank().number() as i64, world.next().number(), world.previous().number());
        let ids = WINDOW_IDS as i64;
        let window = Window::<i64>::allocate(&link, (ids * 2) as usize)?;
        let (puts, x, y) = (Puts::new(&link, &window)?, link.zeros::<i64>(1)?, link.zeros::<i64>(3)?);
        let (source, launch) = (puts.source(&x)?, Scalar::new(0i64));
        let traced = kernel("counted", |k| {
            let (ops, source, x, y) = (puts.ops(k), source.bind(k), k.inout(&x), k.inout(&y));
            k.main(|r| {
                let first = r.scalar(&launch) * (TURNS * ids);
                r.for_(0..TURNS * ids, |turn| {
                    let (id, number) = (turn % ids, first + turn + 1);
                    x.store(0, number * 10 + me);
                    ops.to(next, id * 8).from(source, 0, 8).signal(id).counter(id).put_block_direct(r);
                    ops.wait_signal_from(r, previous, id);
                    let found = ops.own().get::<i64>(0, id * 8);
                    let is_old = found.ne(number * 10 + previous as i64);
                    y.store(0, y.load(0) + is_old.select(1i64, 0i64));
                    // The source may be overwritten, and the window, too: a signal the other way says so.
                    ops.wait_counter(r, next, id);
                    ops.signal(r, previous, id);
                    ops.wait_signal_from(r, next, id);
                });
                // The rank after the next is told of bytes at the next rank.
                ops.to(next, ids * 8).from(source, 0, 8).put_block_direct(r);
                ops.flush(r, 0);
                ops.barrier(r, 0);
                let found = ops.own().get::<i64>(0, ids * 8);
                let must = (first + TURNS * ids) * 10 + previous as i64;
                y.store(1, y.load(1) + found.ne(must).select(1i64, 0i64));
                ops.self_copy(r, (ids + 1) * 8, source, 0, 8);
                y.store(2, ops.own().get::<i64>(0, (ids + 1) * 8));
                ops.barrier(r, 0);
            });
        })?;
        let mut kernel = Launch::new(&link, &traced)?;
        for number in 0..20 {
            launch.set(number);
            kernel.run()?;
            assert_eq!(y.to_vec(), [0, 0, (number + 1) * TURNS * ids * 10 + me], "launch {number}");
        }
        drop(kernel);
        Ok(link.close()?)
    });
}

#[test]
fn signals_and_counters_go_on_from_launch_to_launch() {
    PLACES.into_iter().for_each(|place| place.hosts(counted));
}

/// Two kernels over one window share its counts, and so do the operations that were made twice.
#[test]
fn another_kernel_goes_on_where_the_last_one_stopped() {
    threads(2, "two kernels", |world| {
        let link = joined(world, SMALL)?;
        let (peer, window) = (world.next().number(), Window::<u32>::allocate(&link, 4)?);
        for number in 1..6u32 {
            let puts = Puts::new(&link, &window)?;
            let (x, y) = (Tensor::from_slice(&[number]), Tensor::<u32>::zeros(1));
            let source = puts.source(&x)?;
            let traced = kernel("one of several", |k| {
                let (ops, source, y) = (puts.ops(k), source.bind(k), k.output(&y));
                k.main(|r| {
                    ops.to(peer, 4 * (number as i64 % 2))
                        .from(source, 0, 4)
                        .signal(number as i64 % 2)
                        .put_block_direct(r);
                    ops.wait_signal_from(r, peer, number as i64 % 2);
                    y.store(0, ops.own().get::<u32>(0, 4 * (number as i64 % 2)));
                });
            })?;
            Launch::new(&link, &traced)?.run()?;
            assert_eq!(y.to_vec(), [number]);
        }
        Ok(link.close()?)
    });
}

#[test]
fn a_put_through_an_outbox_needs_a_counter() {
    Place::Alone.hosts(|| {
        threads(2, "no counter", |world| {
            let link = joined(world, SMALL)?;
            let (peer, window) = (world.next().number(), Window::<u32>::allocate(&link, 4)?);
            let (puts, x) = (Puts::new(&link, &window)?, Tensor::<u32>::zeros(4));
            let source = puts.source(&x)?;
            let traced = kernel("no counter", |k| {
                let (ops, source) = (puts.ops(k), source.bind(k));
                k.main(|r| ops.to(peer, 0).from(source, 0, 4).put_block(r));
            });
            let said = traced.unwrap_err().to_string();
            assert!(said.contains("needs a counter"), "{said}");
            assert!(Rank::all(2).all(|rank| window.peer(rank).is_some() == (rank == link.rank())));
            Ok(link.close()?)
        });
    });
}
