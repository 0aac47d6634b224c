//! Every exchange, by every protocol, in worlds of all sizes, with elements of all types: a copy, bit for bit.

use crate::case::{SMALL, Way, everything, joined, seed, threads};
use crate::collectives::exchange::{Case, KINDS, Kind, Ready};
use tilewire::collective::{Exchange, Rounds};
use tilewire::link::{ShmOptions, ShmTransport, Window};
use tilewire::transport::{Rank, RankError, World};
use tilewire::{Algorithm, Bf16, Config, F8E4M3, Knobs, Primitive, RunError, Tensor, all_gather, all_to_all, barrier};
use tilewire_testkit::random::Random;

/// Random cases of all kinds, each built and launched twice.
fn sample(world: &World, cases: usize) -> Result<(), RankError> {
    let link = joined(world, SMALL)?;
    let mut numbers = Random::new(seed() ^ (world.size() as u64) << 32);
    for number in 0..cases {
        for kind in KINDS {
            let case = Case::random(&mut numbers, kind, world.size());
            let turn = numbers.next();
            let result = match number % 5 {
                0 => twice(Ready::<u8>::build(case, &link)?, turn),
                1 => twice(Ready::<Bf16>::build(case, &link)?, turn),
                2 => twice(Ready::<f32>::build(case, &link)?, turn),
                3 => twice(Ready::<i64>::build(case, &link)?, turn),
                _ => twice(Ready::<F8E4M3>::build(case, &link)?, turn),
            };
            result.map_err(|error| format!("{case:?} of {} ranks: {error}", world.size()))?;
        }
    }
    Ok(link.close()?)
}

fn twice<T: tilewire::ir::scalar::Element>(mut ready: Ready<'_, T>, seed: u64) -> Result<(), RankError> {
    ready.turn(seed)?;
    ready.turn(seed + 1)
}

#[test]
pub fn every_exchange_is_right_in_worlds_of_every_size() {
    for ranks in [1, 2, 3, 4, 5, 8] {
        let cases = if everything() { 100 } else { 12 };
        threads(ranks, "exchanges", |world| sample(world, cases));
    }
}

#[test]
pub fn every_protocol_and_both_layouts_carry_every_exchange() {
    for ranks in [2, 3] {
        threads(ranks, "protocols", |world| {
            let link = joined(world, SMALL)?;
            for (way, chunk) in [(Way::Packet, 60), (Way::staged(256, 3), 1001), (Way::Direct, 1001)] {
                for kind in KINDS {
                    for rounds in [Rounds::Roles, Rounds::Blocks] {
                        for blocks in [1, 3] {
                            let case = Case { kind, root: Rank::new(1), chunk, way, blocks, rounds };
                            twice(Ready::<f32>::build(case, &link)?, seed())?;
                        }
                    }
                }
            }
            Ok(link.close()?)
        });
    }
}

#[test]
pub fn a_mebibyte_for_every_peer() {
    threads(3, "a mebibyte", |world| {
        let link = joined(world, ShmOptions { per_peer_bytes: Some(1 << 20), ..Default::default() })?;
        for way in [Way::Chosen, Way::Direct] {
            for kind in [Kind::AllToAll, Kind::AllGather] {
                let case = Case { kind, root: Rank::new(0), chunk: 1 << 18, way, blocks: 1, rounds: Rounds::Roles };
                Ready::<f32>::build(case, &link)?.turn(seed())?;
            }
        }
        Ok(link.close()?)
    });
}

/// The kept and the sent chunk alternate: through the cache, around it, one of each; the same chunk, and another one;
/// lengths that are not whole lines.
#[test]
pub fn large_chunks_are_sent_and_kept_in_turns() {
    let cases = [(Kind::AllGather, 2051), (Kind::AllGather, (7 << 18) + 5), (Kind::AllGather, 25 << 18)];
    let others = [(Kind::AllToAll, (9 << 17) + 3), (Kind::AllToAll, (33 << 16) + 1), (Kind::Broadcast, 70_001)];
    for ranks in [2, 3] {
        threads(ranks, "in turns", |world| {
            let link = joined(world, ShmOptions { per_peer_bytes: Some(1 << 20), ..Default::default() })?;
            for (kind, chunk) in cases.into_iter().chain(others) {
                let (root, way) = (Rank::new(0), Way::Direct);
                let case = Case { kind, root, chunk, way, blocks: 1, rounds: Rounds::Roles };
                let mut ready = Ready::<f32>::build(case, &link)?;
                (0..2).try_for_each(|turn| ready.turn(seed() + turn))?;
            }
            Ok(link.close()?)
        });
    }
}

/// Several prepared exchanges, launched alternately over one transport. Protocols, geometries and patterns change.
pub fn back_to_back(world: &World) -> Result<(), RankError> {
    let link = joined(world, SMALL)?;
    let case = |kind, chunk, way, blocks, rounds| Case { kind, root: Rank::new(1), chunk, way, blocks, rounds };
    let cases = [
        case(Kind::AllToAll, 333, Way::staged(256, 2), 2, Rounds::Roles),
        case(Kind::AllToAll, 60, Way::Packet, 1, Rounds::Roles),
        case(Kind::AllGather, 1000, Way::staged(512, 5), 1, Rounds::Blocks),
        case(Kind::AllToAll, 777, Way::Direct, 2, Rounds::Blocks),
        case(Kind::Broadcast, 500, Way::staged(256, 2), 1, Rounds::Roles),
        case(Kind::Gather, 50, Way::Packet, 2, Rounds::Blocks),
        case(Kind::Scatter, 400, Way::Direct, 1, Rounds::Roles),
    ];
    let built = cases.map(|case| Ready::<u32>::build(case, &link));
    let mut ready = built.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut numbers = Random::new(seed());
    for turn in 0..150 {
        let which = numbers.below(ready.len());
        ready[which].turn(turn)?;
    }
    drop(ready);
    Ok(link.close()?)
}

#[test]
pub fn a_hundred_and_fifty_launches_of_alternating_exchanges() {
    for ranks in [2, 4] {
        threads(ranks, "back to back", back_to_back);
    }
}

#[test]
pub fn nobody_leaves_a_barrier_before_all_have_come() {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    let come = AtomicUsize::new(0);
    let counts = threads(4, "barrier", |world| {
        let link = joined(world, SMALL)?;
        let mut meet = barrier(&link).build()?;
        let mut least = usize::MAX;
        for round in 0..200 {
            come.fetch_add(1, Relaxed);
            meet.run()?;
            least = least.min(come.load(Relaxed) - round * 4);
        }
        drop(meet);
        link.close()?;
        Ok(least)
    });
    assert!(counts.into_iter().all(|least| least >= 4));
}

/// A barrier can be explained and traced like every other collective. Neither call meets the other ranks.
#[test]
fn a_barrier_is_explained_and_traced_like_the_others() {
    World::threads(3)
        .run(|world| {
            let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
            let text = barrier(&link).explain()?;
            assert!(text.contains("barrier") && text.contains("packet"), "{text}");
            if world.rank() == Rank::new(0) {
                let traced = barrier(&link).deadline(None).trace()?;
                assert_eq!(traced.kernel.to_string(), barrier(&link).trace()?.kernel.to_string());
            }
            barrier(&link).run()?;
            Ok(link.close()?)
        })
        .unwrap();
}

/// The value given last for a knob holds. A configuration leaves the knobs that it does not name as they are.
#[test]
fn a_configuration_and_single_knobs_combine_in_any_order() {
    World::threads(2)
        .run(|world| {
            let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
            let (x, y) = (Tensor::<f32>::zeros(100_000), Tensor::<f32>::zeros(100_000));
            let gathered = Tensor::<f32>::zeros(200_000);
            let slots = Knobs { slot_bytes: Some(4096), depth: Some(4), ..Knobs::default() };
            let exchange = || all_to_all(&link, &y, &x).primitive(Primitive::Staged);
            let kernel = |exchange: Exchange<'_, '_, f32, f32>| Ok::<_, RunError>(exchange.trace()?.kernel.to_string());
            let wanted = kernel(exchange().config(Knobs { blocks: Some(2), ..slots }))?;
            assert_eq!(kernel(exchange().blocks(2).config(slots))?, wanted);
            assert_eq!(kernel(exchange().config(slots).blocks(2))?, wanted);
            assert_eq!(kernel(exchange().slot_bytes(4096).depth(4).blocks(2))?, wanted);
            assert_eq!(kernel(exchange().blocks(1).depth(2).config(Knobs { blocks: Some(2), ..slots }))?, wanted);
            for other in [exchange().config(slots), exchange().blocks(2), exchange().blocks(2).config(slots).depth(2)] {
                assert_ne!(kernel(other)?, wanted);
            }
            // The same holds for settings that are no knobs, and for the knobs of far peers.
            let ring = Config { algorithm: Some(Algorithm::Ring), rounds: Some(Rounds::Roles), ..Config::default() };
            let gather = || all_gather(&link, &gathered, &x).primitive(Primitive::Staged);
            let wanted = kernel(gather().config(Config { near: slots, far: Some(slots), ..ring }))?;
            assert_eq!(kernel(gather().algorithm(Algorithm::Ring).config(slots).rounds(Rounds::Roles))?, wanted);
            assert_eq!(kernel(gather().far(slots).config(slots).rounds(Rounds::Blocks).config(ring))?, wanted);
            assert_ne!(kernel(gather().config(slots))?, wanted);
            Ok(link.close()?)
        })
        .unwrap();
}

/// Each call adds a window, for exchanges as for reductions. The output decides which of them is meant.
#[test]
fn of_several_windows_the_one_of_the_output_is_written() {
    World::threads(2)
        .run(|world| {
            let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
            let windows = [Window::<u32>::allocate(&link, 8)?, Window::<u32>::allocate(&link, 8)?];
            let [first, second] = &windows;
            for (round, window) in [first, second, first].into_iter().enumerate() {
                let inp = Tensor::from_slice(&[10 * round as u32 + world.rank().number(); 4]);
                all_gather(&link, window.tensor(), &inp).window(first).window(second).run()?;
                let [a, b] = [0, 1].map(|rank| 10 * round as u32 + rank);
                assert_eq!(window.tensor().to_vec(), [a, a, a, a, b, b, b, b]);
            }
            assert_eq!(second.tensor().get(0), 10);
            Ok(link.close()?)
        })
        .unwrap();
}
