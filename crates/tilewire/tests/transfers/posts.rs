//! Ranks that reach each other by posts. The same data arrive as over shared memory, nothing else arrives, and every
//! failure ends in a typed error on all ranks.

use crate::case::{LONG, SMALL};
use crate::untouched;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tilewire::collective::Launch;
use tilewire::link::{MeshOptions, MeshTransport, ShmTransport, Transport};
use tilewire::tensor::bytes_of;
use tilewire::transport::{PeerEndpoint, Rank, RankError, There, TransportError, World};
use tilewire::{
    Algorithm, F8E4M3, Knobs, Primitive, RunError, Tensor, all_gather, all_reduce, all_to_all, kernel, recv,
    reduce_scatter, send, sendrecv,
};
use tilewire_testkit::ranks::words;

/// The domains of four ranks.
const SHAPES: [&[&[u32]]; 4] =
    [&[&[0, 1], &[2, 3]], &[&[0], &[1, 2, 3]], &[&[0, 2], &[1, 3]], &[&[0], &[1], &[2], &[3]]];

pub fn mesh(world: &World, domains: &[&[u32]], seed: Option<u64>) -> Result<MeshTransport, TransportError> {
    let domains = Some(domains.iter().map(|domain| domain.to_vec()).collect());
    // Every second seed gives the proxies threads.
    let thread = seed.is_some_and(|seed| seed % 2 == 1);
    MeshTransport::rendezvous(world, MeshOptions { domains, sizes: SMALL, seed, thread, ..MeshOptions::default() })
}

/// Every rank is alone.
pub fn alone(world: &World, seed: Option<u64>) -> Result<MeshTransport, TransportError> {
    let thread = seed.is_some_and(|seed| seed % 2 == 1);
    MeshTransport::rendezvous(world, MeshOptions { sizes: SMALL, seed, thread, ..MeshOptions::alone(world.size()) })
}

#[track_caller]
pub fn run<R: Send>(ranks: usize, body: impl Fn(&World) -> Result<R, RankError> + Sync) -> Vec<R> {
    World::threads(ranks).deadline(LONG).run(|world| body(&world)).unwrap()
}

pub fn staged(slot_bytes: usize, depth: usize) -> Knobs {
    Knobs {
        primitive: Some(Primitive::Staged),
        slot_bytes: Some(slot_bytes),
        depth: Some(depth),
        blocks: Some(1),
        ..Knobs::default()
    }
}

/// The rank after this one, and the one before it.
pub fn neighbours(link: &dyn Transport) -> (Rank, Rank) {
    let (me, ranks) = (link.rank(), link.world_size());
    (me.after(1, ranks), me.after(ranks - 1, ranks))
}

// ---- what arrives ---------------------------------------------------------------------------------------------------

/// Sends `len` elements that contain neither kind of poison. Returns how many bytes of staging were written.
fn written<T: tilewire::ir::scalar::Element>(world: &World, len: usize) -> Result<usize, RankError> {
    let link = alone(world, Some(len as u64))?;
    let peer = world.next();
    let endpoint = link.endpoint(peer).expect("a peer");
    let There::Posted(posted) = &endpoint.there else { panic!("ranks are alone") };
    untouched::poison(&posted.outbox);
    const CLEAN: u64 = 0x5a5a_5a5a_5a5a_5a5a;
    words(&endpoint.here.staging).iter().for_each(|word| word.store(CLEAN, Ordering::Release));
    world.bootstrap().barrier("poisoned", world.deadline())?;
    let sevens = T::from_bits(0x0707_0707_0707_0707);
    let (inp, out) = (Tensor::from_slice(&vec![sevens; len]), Tensor::<T>::zeros(len));
    sendrecv(&link, &out, &inp, peer, peer).config(staged(512, 8)).run()?;
    assert!(out.to_vec().iter().all(|x| x.to_bits() == sevens.to_bits()));
    let staging = bytes_of(&endpoint.here.staging).unwrap();
    let stranger = staging.iter().position(|byte| ![0x07, 0x5a].contains(byte));
    assert_eq!(stranger, None, "bytes that nobody sent, beside {len} elements of {}", T::TYPE);
    link.close()?;
    Ok(staging.iter().filter(|&&byte| byte == 0x07).count())
}

#[test]
fn what_lies_in_the_outbox_behind_a_short_tile_does_not_travel() {
    // A slot has 512 bytes. Messages: one byte, a tile less a byte, a tile, a tile and a byte, all slots of a block.
    for len in [1, 3, 511, 512, 513, 1300, 4096] {
        assert_eq!(run(2, |world| written::<u8>(world, len)), [len; 2]);
    }
    for len in [1, 63, 64, 65, 100, 512] {
        assert_eq!(run(2, |world| written::<u64>(world, len)), [8 * len; 2]);
    }
}

/// Launches a small message `launches` times. The input is overwritten as soon as each launch returns.
fn reuse_inputs(launches: u32) {
    run(2, |world| {
        let link = alone(world, None)?;
        let (peer, me) = (world.next(), world.rank().number());
        let (inp, out) = (Tensor::<u32>::zeros(16), Tensor::<u32>::zeros(16));
        let mut exchange = sendrecv(&link, &out, &inp, peer, peer).build()?;
        for launch in 0..launches {
            inp.fill(launch << 1 | me);
            exchange.run()?;
            inp.fill(u32::MAX);
            assert_eq!(out.to_vec(), [launch << 1 | (1 - me); 16], "launch {launch}");
        }
        drop(exchange);
        Ok(link.close()?)
    });
}

#[test]
fn an_input_may_be_overwritten_when_its_launch_returns() {
    reuse_inputs(10_000);
}

/// Bytes with a scale for 32 neighbours. These are two parts, so there are two posts for each tile.
fn scaled(link: &dyn Transport, len: usize) -> Result<Vec<u32>, RunError> {
    let me = link.rank().index();
    let inp = Tensor::from_slice(&(0..len).map(|i| ((i * 37 + me * 11) % 1013) as f32 - 300.0).collect::<Vec<_>>());
    let out = Tensor::<f32>::zeros(len);
    let (next, before) = neighbours(link);
    sendrecv(link, &out, &inp, next, before)
        .produce2(|c| {
            let x = c.input.load(c.pos());
            let scale = (x.abs().group_max(32) / 448.0).max(f32::MIN_POSITIVE);
            ((x / scale).cast::<F8E4M3>(), scale)
        })
        .consume(|c, (x, scale)| c.output.store(c.pos(), x.cast::<f32>() * scale))
        .config(Knobs { granule: Some(32), ..staged(1024, 4) })
        .run()?;
    Ok(bits(&out))
}

fn bits(out: &Tensor<f32>) -> Vec<u32> {
    out.to_vec().iter().map(|x| x.to_bits()).collect()
}

#[test]
fn messages_of_two_parts_arrive_whole_in_any_order() {
    // A short message, and one of many tiles.
    let both = |link: &dyn Transport| Ok::<_, RankError>([scaled(link, 96)?, scaled(link, 4096)?]);
    let flat = run(3, |world| both(&ShmTransport::rendezvous(world, SMALL)?));
    for seed in 0..20 {
        let far = run(3, |world| both(&alone(world, Some(seed))?));
        assert!(far == flat, "seed {seed}");
    }
}

#[test]
fn a_slot_that_rests_for_thousands_of_steps_is_used_again() {
    run(2, |world| {
        let link = alone(world, Some(1))?;
        let (peer, me) = (world.next(), world.rank().number());
        let tensors = |len: usize| (Tensor::<u32>::zeros(len), Tensor::<u32>::zeros(len));
        // All eight slots; then two of them for 1,500 steps. This is a jump that does not fit into one notice.
        let ((wide_in, wide_out), (narrow_in, narrow_out)) = (tensors(8 * 16), tensors(1500 * 16));
        let mut wide = sendrecv(&link, &wide_out, &wide_in, peer, peer).config(staged(64, 8)).build()?;
        let mut narrow = sendrecv(&link, &narrow_out, &narrow_in, peer, peer).config(staged(64, 2)).build()?;
        let of = |rank: u32, round: u32, i: u32| rank << 28 | round << 20 | i;
        let fill = |tensor: &Tensor<u32>, round: u32| {
            tensor.copy_from(&(0..tensor.len() as u32).map(|i| of(me, round, i)).collect::<Vec<_>>());
        };
        let check = |tensor: &Tensor<u32>, round: u32| {
            let wrong = tensor.to_vec().iter().enumerate().position(|(i, &x)| x != of(1 - me, round, i as u32));
            assert_eq!(wrong, None, "round {round}");
        };
        for round in 0..3 {
            fill(&wide_in, round);
            wide.run()?;
            check(&wide_out, round);
            fill(&narrow_in, round);
            narrow.run()?;
            check(&narrow_out, round);
        }
        let payload = 4 * 3 * (wide_in.len() + narrow_in.len()) as u64;
        // Six slots have rested twice, and words of two operations alternate.
        assert_eq!(link.carried_bytes(), payload, "words travel in notices");
        drop((wide, narrow));
        Ok(link.close()?)
    });
}

#[test]
fn operations_that_alternate_share_their_slots() {
    for shape in [SHAPES[0], SHAPES[3]] {
        run(4, |world| {
            let link = mesh(world, shape, Some(2))?;
            let (me, (next, before)) = (world.rank().number(), neighbours(&link));
            let (one, short, long) = (Tensor::<u32>::zeros(9), Tensor::<u32>::zeros(9), Tensor::<u32>::zeros(36));
            let mut shift = sendrecv(&link, &short, &one, next, before).build()?;
            let mut gather = all_gather(&link, &long, &one).build()?;
            for launch in 0..60 {
                one.fill(launch << 8 | me);
                // Runs of different lengths, which are the same on all ranks.
                if launch * 7 % 5 < 2 {
                    shift.run()?;
                    assert_eq!(short.to_vec(), [launch << 8 | before.number(); 9]);
                } else {
                    gather.run()?;
                    assert!(long.to_vec().iter().enumerate().all(|(i, &x)| x == (launch << 8) | (i as u32 / 9)));
                }
            }
            drop((shift, gather));
            Ok(link.close()?)
        });
    }
}

/// The results of every collective on this rank, as bits. Sums depend on the order of ranks.
fn collectives(link: &dyn Transport) -> Result<Vec<Vec<u32>>, RunError> {
    let (me, ranks) = (link.rank().index(), link.world_size());
    let (next, before) = neighbours(link);
    let mut all = Vec::new();
    for len in [5, 700] {
        let inp = Tensor::from_slice(
            &(0..len * ranks).map(|i| ((i * 7919 + me * 104_729) % 10_007) as f32 / 37.0).collect::<Vec<_>>(),
        );
        let (one, short, long) = (inp.slice(0..len), Tensor::<f32>::zeros(len), Tensor::<f32>::zeros(len * ranks));
        let knobs = Knobs { blocks: None, ..staged(256, 4) };
        sendrecv(link, &short, &one, next, before).config(knobs).run()?;
        all.push(bits(&short));
        all_to_all(link, &long, &inp).config(knobs).run()?;
        all.push(bits(&long));
        for algorithm in [Algorithm::OneShot, Algorithm::Ring] {
            all_gather(link, &long, &one).config(knobs).algorithm(algorithm).run()?;
            all.push(bits(&long));
            reduce_scatter(link, &short, &inp).config(knobs).algorithm(algorithm).run()?;
            all.push(bits(&short));
        }
        for algorithm in [Algorithm::TwoPhase, Algorithm::Ring] {
            all_reduce(link, &short, &one).config(knobs).algorithm(algorithm).run()?;
            all.push(bits(&short));
        }
    }
    Ok(all)
}

fn collectives_of_every_shape(seeds: std::ops::Range<u64>) {
    let flat = run(4, |world| Ok(collectives(&ShmTransport::rendezvous(world, SMALL)?)?));
    for seed in seeds {
        for shape in SHAPES {
            let far = run(4, |world| {
                let link = mesh(world, shape, Some(seed))?;
                let all = collectives(&link)?;
                link.close()?;
                Ok(all)
            });
            assert!(far == flat, "seed {seed}, domains {shape:?}");
        }
    }
}

#[test]
fn all_domains_and_orders_give_the_bytes_of_flat_shared_memory() {
    collectives_of_every_shape(0..20);
}

#[test]
#[ignore = "300 seeds, about a minute: cargo test -p tilewire --test transfers posts:: -- --ignored"]
fn all_domains_and_many_orders_give_the_bytes_of_flat_shared_memory() {
    collectives_of_every_shape(20..320);
}

// ---- what is carried ------------------------------------------------------------------------------------------------

#[test]
fn near_legs_never_touch_the_carrier() {
    let together: &[&[u32]] = &[&[0, 1, 2, 3]];
    assert_eq!(
        run(4, |world| {
            let link = mesh(world, together, Some(3))?;
            collectives(&link)?;
            Ok(link.carried_bytes())
        }),
        [0; 4]
    );
    let pairs = run(4, |world| {
        let link = mesh(world, SHAPES[2], Some(3))?;
        // 0 and 2, 1 and 3.
        let (peer, inp, out) = (world.rank().after(2, 4), Tensor::<u32>::zeros(3000), Tensor::<u32>::zeros(3000));
        sendrecv(&link, &out, &inp, peer, peer).run()?;
        Ok(link.carried_bytes())
    });
    assert_eq!(pairs, [0; 4]);
}

#[test]
fn a_flat_all_gather_carries_each_far_ranks_bytes_once() {
    const LAUNCHES: u64 = 5;
    for (shape, far) in SHAPES.into_iter().zip([[2, 2, 2, 2], [3, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]]) {
        let carried = run(4, |world| {
            let link = mesh(world, shape, Some(4))?;
            let (one, long) = (Tensor::<u16>::zeros(1001), Tensor::<u16>::zeros(4004));
            let knobs = Knobs { blocks: None, ..staged(256, 4) };
            let mut gather = all_gather(&link, &long, &one).algorithm(Algorithm::OneShot).config(knobs).build()?;
            // The first word of this operation on each line travels as mail.
            (0..4).try_for_each(|_| gather.run())?;
            world.bootstrap().barrier("warm", world.deadline())?;
            let before = link.carried_bytes();
            world.bootstrap().barrier("read", world.deadline())?;
            (0..LAUNCHES).try_for_each(|_| gather.run())?;
            Ok(link.carried_bytes() - before)
        });
        assert_eq!(carried, far.map(|far| far * LAUNCHES * 2002), "domains {shape:?}");
    }
}

// ---- what goes wrong ------------------------------------------------------------------------------------------------

#[test]
fn domains_that_are_no_partition_are_refused_on_all_ranks() {
    let bad: [&[&[u32]]; 6] =
        [&[&[0, 1]], &[&[0, 1], &[1, 2]], &[&[0, 1, 2], &[]], &[&[0, 1, 3]], &[], &[&[0], &[1], &[2], &[u32::MAX]]];
    for domains in bad {
        let refused = run(3, |world| Ok(mesh(world, domains, None).expect_err("no partition")));
        for error in refused {
            assert!(matches!(&error, TransportError::Domains { ranks: 3, .. }), "{domains:?}: {error}");
        }
    }
    for ring in [0, usize::MAX, 1 << 40] {
        let options = MeshOptions { ring: Some(ring), ..MeshOptions::alone(2) };
        for error in run(2, |world| Ok(MeshTransport::rendezvous(world, options.clone()).expect_err("no ring"))) {
            assert!(matches!(&error, TransportError::BadOption { option: "ring", .. }), "{error}");
        }
    }
    // Only one rank gives other domains.
    let differ = run(3, |world| {
        let domains: &[&[u32]] = if world.rank() == Rank::new(1) { &[&[0, 1], &[2]] } else { &[&[0], &[1, 2]] };
        Ok(mesh(world, domains, None).expect_err("they differ"))
    });
    for error in differ {
        assert!(matches!(&error, TransportError::Mismatch { parameter, .. } if parameter == "domains"), "{error}");
    }
}

#[test]
fn a_rank_that_fails_between_launches_ends_the_waits_of_the_others() {
    for seed in [None, Some(5)] {
        let (heard, start) = (Mutex::new(Vec::new()), Instant::now());
        let result = World::threads(4).deadline(Duration::from_secs(600)).run(|world| {
            let link = mesh(&world, SHAPES[0], seed)?;
            let (one, out) = (Tensor::<f32>::zeros(3000), Tensor::<f32>::zeros(3000));
            let mut sum = all_reduce(&link, &out, &one).build()?;
            for launch in 0..100 {
                if world.rank() == Rank::new(1) && launch == 7 {
                    return Err("enough".into());
                }
                if let Err(error) = sum.run() {
                    heard.lock().unwrap().push(error);
                    return Ok(());
                }
            }
            Ok(())
        });
        assert_eq!(result.unwrap_err().to_string(), "rank 1 failed: enough");
        let heard = heard.into_inner().unwrap();
        assert_eq!(heard.len(), 3);
        for error in heard {
            // A rank that hears it from another survivor also learns that it was rank 1.
            assert!(matches!(&error, RunError::PeerFailed { cause, .. } if cause.rank == 1), "{error}");
        }
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn a_launch_that_fails_in_its_middle_ends_the_waits_of_the_others() {
    let (heard, start) = (Mutex::new(Vec::new()), Instant::now());
    let failed = World::threads(3).deadline(Duration::from_secs(600)).run(|world| {
        let link = alone(&world, Some(6))?;
        let (inp, out) = (Tensor::<u32>::zeros(5000), Tensor::<u32>::zeros(5000));
        // Far into the message, rank 1 reads an element that it does not have.
        let beyond = if world.rank() == Rank::new(1) { 1000 } else { 0 };
        let (next, before) = neighbours(&link);
        let exchange = sendrecv(&link, &out, &inp, next, before).config(staged(256, 4));
        let result = exchange.produce(|c| c.input.load(c.pos() + beyond)).run();
        heard.lock().unwrap().push((world.rank().index(), result.err()));
        Ok(())
    });
    failed.unwrap();
    for (rank, error) in heard.into_inner().unwrap() {
        // Rank 0 sends to rank 1 and receives from rank 2. Both transfers may be over before rank 1 fails.
        let Some(error) = error else {
            assert_eq!(rank, 0, "rank 1 fails, and rank 2 waits for it");
            continue;
        };
        match rank {
            1 => assert!(matches!(&error, RunError::Launch(_)), "{error}"),
            _ => assert!(matches!(&error, RunError::PeerFailed { cause, .. } if cause.rank == 1), "{error}"),
        }
    }
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_rank_that_does_not_come_is_late() {
    let errors = World::threads(3).deadline(Duration::from_millis(300)).run(|world| {
        let link = alone(&world, Some(7))?;
        let (one, out) = (Tensor::<f32>::zeros(30), Tensor::<f32>::zeros(30));
        let mut sum = all_reduce(&link, &out, &one).build()?;
        sum.run()?;
        world.bootstrap().barrier("once", LONG.into())?;
        let error = if world.rank() == Rank::new(1) { None } else { sum.run().err() };
        world.bootstrap().barrier("twice", LONG.into())?;
        Ok(error)
    });
    let errors: Vec<RunError> = errors.unwrap().into_iter().flatten().collect();
    assert_eq!(errors.len(), 2);
    let names = |error: &RunError| match error {
        RunError::Timeout(timeout) => timeout.late == Some(Rank::new(1)),
        RunError::PeerFailed { cause, .. } => cause.late() == Some(1),
        _ => false,
    };
    assert!(errors.iter().all(names), "{errors:?}");
}

#[test]
fn what_a_rank_posted_before_it_left_can_still_be_received() {
    for seed in 0..150 {
        run(2, |world| {
            let link = alone(world, (seed % 2 == 0).then_some(seed))?;
            let (one, out) = (Tensor::from_slice(&[seed as u32; 40]), Tensor::<u32>::zeros(40));
            // Neither rank closes. The sender leaves as soon as its posts are delivered.
            if world.rank() == Rank::new(0) {
                return Ok(send(&link, &one, Rank::new(1)).run()?);
            }
            recv(&link, &out, Rank::new(0)).run()?;
            assert_eq!(out.to_vec(), [seed as u32; 40]);
            Ok(())
        });
    }
}

/// Without `domains`, the ranks of one machine are one domain.
#[test]
fn ranks_of_one_machine_are_one_domain() {
    run(3, |world| {
        let link = MeshTransport::rendezvous(world, MeshOptions { sizes: SMALL, ..MeshOptions::default() })?;
        assert_eq!(link.domains(), [vec![0, 1, 2]]);
        assert!(Rank::all(3).all(|peer| !link.is_far(peer)));
        Ok(link.close()?)
    });
}

/// A kernel of rank 0 posts for a control line that does not belong to it, and rank 1 waits for that line.
#[test]
fn a_bad_descriptor_ends_the_waits_of_all_ranks_with_and_without_a_thread() {
    for thread in [false, true] {
        let errors = World::threads(2).deadline(LONG).run(|world| {
            let options = MeshOptions { sizes: SMALL, thread, ..MeshOptions::alone(2) };
            let link = MeshTransport::rendezvous(&world, options)?;
            let endpoint = link.endpoint(world.next()).expect("a peer");
            let There::Posted(posted) = &endpoint.there else { panic!("ranks are alone") };
            let traced = kernel("bad", |k| {
                let queue = k.queue("posts", posted.queue.clone());
                let tail =
                    k.slots("tail", std::slice::from_ref(&endpoint.here.signals.tail), PeerEndpoint::SLOT_STRIDE);
                k.main(|r| {
                    if world.rank().index() == 0 {
                        r.post_signal(queue, 1i64, 1i64 << 19, 1i64);
                    }
                    r.wait(tail.slot(0i64, 0i64), 1i64);
                });
            })?;
            Ok(Launch::new(&link, &traced)?.run().unwrap_err())
        });
        let errors = errors.unwrap();
        let is_bad_line = |error: &RunError| error.to_string().contains("control line 524288 of rank 1");
        assert!(is_bad_line(&errors[0]), "{}", errors[0]);
        let of_rank_0 = matches!(&errors[1], RunError::PeerFailed { cause, .. } if cause.rank == 0);
        assert!(of_rank_0, "{}", errors[1]);
    }
}

/// Ranks wait for each other most of the time here, while the awaited posts are on their way. That is no deadlock.
#[test]
fn posts_on_their_way_are_no_deadlock() {
    run(2, |world| {
        let link = alone(world, Some(8))?;
        let (peer, inp, out) = (world.next(), Tensor::<u32>::zeros(16), Tensor::<u32>::zeros(16));
        let mut exchange = sendrecv(&link, &out, &inp, peer, peer).config(staged(64, 2)).build()?;
        for launch in 0..40 {
            if world.rank().index() == launch % 2 {
                // So long that the other rank sleeps and reports what it waits for.
                std::thread::sleep(Duration::from_millis(8));
            }
            exchange.run()?;
        }
        drop(exchange);
        Ok(link.close()?)
    });
}
