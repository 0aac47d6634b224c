//! All-gather and broadcast in two levels. The same data arrive as over flat shared memory. Each chunk crosses between
//! domains once. Requests that cannot run in two levels are refused or run in one level.

use crate::case::{LONG, SMALL};
use std::fmt::Debug;
use tilewire::collective::Rounds;
use tilewire::ir::scalar::Element;
use tilewire::link::{MeshOptions, MeshTransport, ShmOptions, ShmTransport, Tensors, Transport, Window};
use tilewire::transport::{Rank, RankError, TransferError, TransportError, World};
use tilewire::{
    Algorithm, Bf16, Config, F8E4M3, Knobs, Primitive, RunError, Tensor, all_gather, all_reduce, all_to_all, broadcast,
    hooks,
};

type Domains = [&'static [u32]];

/// Domains of 2 to 7 ranks: equal, unequal, interleaved, and with ranks that are alone.
const WORLDS: [&Domains; 11] = [
    &[&[0, 1], &[2, 3]],
    &[&[0], &[1, 2, 3]],
    &[&[3, 1, 2], &[0]],
    &[&[0, 2], &[1, 3]],
    &[&[0], &[1], &[2], &[3]],
    &[&[0, 1], &[2]],
    &[&[0], &[1]],
    &[&[0, 1, 2], &[3, 4, 5]],
    &[&[0, 5], &[1, 3], &[2, 4]],
    // A relay has up to three chunks to pass on.
    &[&[0, 1, 2, 3, 4], &[5, 6]],
    &[&[6], &[0, 2, 4], &[1, 3, 5]],
];

fn size(domains: &Domains) -> usize {
    domains.iter().map(|domain| domain.len()).sum()
}

fn mesh(
    world: &World,
    domains: &Domains,
    sizes: ShmOptions,
    seed: Option<u64>,
) -> Result<MeshTransport, TransportError> {
    let domains = Some(domains.iter().map(|domain| domain.to_vec()).collect());
    MeshTransport::rendezvous(world, MeshOptions { domains, sizes, seed, ..MeshOptions::default() })
}

#[track_caller]
fn run<R: Send>(ranks: usize, body: impl Fn(&World) -> Result<R, RankError> + Sync) -> Vec<R> {
    World::threads(ranks).deadline(LONG).run(|world| body(&world)).unwrap()
}

/// Slots of few bytes, so that there are many steps.
fn slots(slot_bytes: usize, depth: usize) -> Config {
    let knobs = Knobs { slot_bytes: Some(slot_bytes), depth: Some(depth), ..Knobs::default() };
    Config { far: Some(knobs), ..Config::from(knobs) }
}

/// An element for a position of a rank's input in a launch.
fn element<T: Element>(rank: usize, launch: usize, i: usize) -> T {
    let bits = (i * 7919 + rank * 104_729 + launch * 1_299_709 + 17) as u64;
    match T::TYPE.size() {
        // Patterns with different bits. None is a NaN, whose bits may change.
        1 if T::TYPE == tilewire::ir::Type::Bool => T::from_bits(bits & 1),
        1 => T::from_bits(bits % 0x70),
        2 => T::from_bits(bits % 0x7000),
        4 => T::from_bits(bits % 0x7f00_0000),
        _ => T::from_bits(bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8),
    }
}

fn bits<T: Element>(tensor: &Tensor<T>) -> Vec<u64> {
    tensor.to_vec().iter().map(|x| x.to_bits()).collect()
}

/// Launches both collectives of `len` elements three times with new data, in two levels if there is a mesh. Checks the
/// plain computation itself.
fn plain<T: Element + Debug>(link: &dyn Transport, len: usize, config: Config, root: Rank) -> Result<(), RankError> {
    let (me, ranks) = (link.rank().index(), link.world_size());
    let (inp, all, one) = (Tensor::<T>::zeros(len), Tensor::<T>::zeros(len * ranks), Tensor::<T>::zeros(len));
    let gather = all_gather(link, &all, &inp).config(config).algorithm(Algorithm::TwoLevel);
    let spread = broadcast(link, &one, &inp, root).config(config).algorithm(Algorithm::TwoLevel);
    let (mut gather, mut spread) = (gather.build()?, spread.build()?);
    for launch in 0..3 {
        inp.copy_from(&(0..len).map(|i| element(me, launch, i)).collect::<Vec<T>>());
        gather.run()?;
        spread.run()?;
        let of = |rank: usize| (0..len).map(move |i| element::<T>(rank, launch, i).to_bits());
        let must: Vec<u64> = (0..ranks).flat_map(of).collect();
        assert!(bits(&all) == must, "all-gather of {len} {}, launch {launch}", T::TYPE);
        assert!(bits(&one) == of(root.index()).collect::<Vec<_>>(), "broadcast of {len} {}", T::TYPE);
    }
    Ok(())
}

#[test]
fn every_type_and_length_arrives_over_all_domains() {
    for (which, domains) in WORLDS.into_iter().enumerate() {
        let ranks = size(domains);
        run(ranks, |world| {
            let link = mesh(world, domains, SMALL, Some(which as u64))?;
            let root = |nth: usize| Rank::new(((which + nth) % ranks) as u32);
            for (nth, len) in [0, 1, 5, 64, 1027].into_iter().enumerate() {
                plain::<u8>(&link, len, slots(192, 4), root(nth))?;
                plain::<bool>(&link, len, slots(64, 2), root(nth))?;
                plain::<Bf16>(&link, len, slots(256, 8), root(nth))?;
                plain::<F8E4M3>(&link, len, slots(128, 3), root(nth))?;
                plain::<f32>(&link, len, slots(256, 4), root(nth))?;
                plain::<i64>(&link, len, Config::default(), root(nth))?;
            }
            Ok(link.close()?)
        });
    }
}

/// Both collectives with hooks on both legs, of one value, of two, and of shaped chunks, as bits.
fn hooked(link: &dyn Transport, way: Option<Algorithm>, rounds: Option<Rounds>) -> Result<Vec<Vec<u32>>, RunError> {
    let (me, ranks) = (link.rank().index(), link.world_size());
    let (rows, cols) = (12, 31);
    let len = rows * cols;
    let inp = Tensor::from_slice(&(0..len).map(|i| ((i * 37 + me * 11) % 1013) as f32 - 300.0).collect::<Vec<_>>());
    let of = |tensor: &Tensor<f32>| tensor.to_vec().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let root = Rank::new(ranks as u32 - 1);
    let mut all = Vec::new();
    macro_rules! both {
        ($len:expr, $builder:ident => $hooked:expr) => {{
            let (long, short) = (Tensor::<f32>::zeros($len * ranks), Tensor::<f32>::zeros($len));
            for _ in 0..2 {
                let $builder = all_gather(link, &long, &inp.slice(0..$len));
                $hooked.run()?;
                let $builder = broadcast(link, &short, &inp.slice(0..$len), root);
                $hooked.run()?;
                all.extend([of(&long), of(&short)]);
            }
        }};
    }
    macro_rules! with {
        ($builder:expr) => {{
            let builder = way.into_iter().fold($builder, |builder, way| builder.algorithm(way));
            rounds.into_iter().fold(builder, |builder, rounds| builder.rounds(rounds))
        }};
    }
    both!(len, b => with!(b.config(slots(256, 4)))
    .produce(|c| c.input.load(c.pos()) * 0.5 + c.rank().cast::<f32>())
    .consume(|c, x| {
        // Accumulates: every position must be handled once.
        let place = c.output.load(c.pos());
        c.output.store(c.pos(), place + x + c.recv_peer().cast::<f32>() * 1000.0 + c.shard().cast::<f32>());
    }));
    both!(len, b => with!(b.config(slots(256, 4)))
        .chunk_shape(rows, cols)
        .output_shape(cols, rows)
        .produce(|c| c.input.at(c.col(), c.row()))
        .consume(|c, x| c.output.store(c.pos(), x + c.row().cast::<f32>())));
    let scaled = Config { far: Some(Knobs { granule: Some(32), ..slots(1024, 4).near }), ..slots(1024, 4) };
    let scaled = Config { near: Knobs { granule: Some(32), ..scaled.near }, ..scaled };
    both!(len / 32 * 32, b => with!(b.config(scaled))
        .produce2(hooks::quantise(F8E4M3::MAX, 32))
        .last_per(32)
        .consume(hooks::dequantise()));
    Ok(all)
}

#[test]
fn hooks_on_both_legs_see_the_ranks_that_a_flat_gather_shows_them() {
    for domains in WORLDS {
        let ranks = size(domains);
        let flat = run(ranks, |world| Ok(hooked(&ShmTransport::rendezvous(world, SMALL)?, None, None)?));
        for (way, rounds) in [
            (Some(Algorithm::TwoLevel), None),
            (None, None),
            (Some(Algorithm::TwoLevel), Some(Rounds::Blocks)),
            (Some(Algorithm::TwoLevel), Some(Rounds::Legs)),
        ] {
            let near = run(ranks, |world| {
                let link = mesh(world, domains, SMALL, Some(3))?;
                let all = hooked(&link, way, rounds)?;
                link.close()?;
                Ok(all)
            });
            assert!(near == flat, "domains {domains:?}, {way:?}, {rounds:?}");
        }
    }
}

fn orders(seeds: std::ops::Range<u64>) {
    for domains in [WORLDS[0], WORLDS[1], WORLDS[3], WORLDS[7], WORLDS[9]] {
        for seed in seeds.clone() {
            let ranks = size(domains);
            run(ranks, |world| {
                let link = mesh(world, domains, SMALL, Some(seed))?;
                plain::<u16>(&link, 601, slots(128, 2), Rank::new((seed % ranks as u64) as u32))?;
                Ok(link.close()?)
            });
        }
    }
}

#[test]
fn chunks_arrive_in_every_order_of_posts() {
    orders(0..20);
}

#[test]
#[ignore = "300 seeds, about a minute: cargo test -p tilewire --test transfers two_level:: -- --ignored"]
fn chunks_arrive_in_many_more_orders_of_posts() {
    orders(20..320);
}

#[test]
fn blocks_lanes_and_other_operations_share_the_slots_of_near_peers() {
    // Two blocks for near and far peers. So chunks that are passed on use other blocks than the ranks' own, in several
    // lanes.
    let sizes = ShmOptions { max_blocks_per_peer: Some(8), ..SMALL };
    for domains in [WORLDS[0], WORLDS[9]] {
        let ranks = size(domains);
        run(ranks, |world| {
            let link = mesh(world, domains, sizes, Some(11))?;
            let me = world.rank().index();
            let (one, all) = (Tensor::<u32>::zeros(500), Tensor::<u32>::zeros(500 * ranks));
            let (wide_in, wide_out) = (Tensor::<u32>::zeros(100 * ranks), Tensor::<u32>::zeros(100 * ranks));
            let knobs = |blocks| Knobs { blocks: Some(blocks), ..slots(64, 4).near };
            let gather = |near, far| {
                let config = Config { far: Some(knobs(far)), ..Config::from(knobs(near)) };
                all_gather(&link, &all, &one).config(config).algorithm(Algorithm::TwoLevel).build()
            };
            let mut gathers = [gather(2, 2)?, gather(1, 1)?, gather(4, 1)?];
            // Uses all eight blocks of every pair.
            let staged = Knobs { primitive: Some(Primitive::Staged), ..knobs(8) };
            let mut swap = all_to_all(&link, &wide_out, &wide_in).config(staged).build()?;
            for launch in 0..12 {
                one.copy_from(&(0..500).map(|i| element(me, launch, i)).collect::<Vec<u32>>());
                wide_in.fill(element(me, launch, 0));
                gathers[launch % 3].run()?;
                for rank in 0..ranks {
                    let is: Vec<u32> = all.slice(rank * 500..(rank + 1) * 500).to_vec();
                    assert!(is == (0..500).map(|i| element(rank, launch, i)).collect::<Vec<u32>>(), "rank {rank}");
                }
                if launch % 2 == 0 {
                    swap.run()?;
                    let must = |at: usize| element::<u32>(at / 100, launch, 0);
                    assert!(wide_out.to_vec() == (0..100 * ranks).map(must).collect::<Vec<_>>());
                }
            }
            drop((gathers, swap));
            Ok(link.close()?)
        });
    }
}

// ---- what is carried ------------------------------------------------------------------------------------------------

/// The bytes that came to each rank by posts in some launches, after the launches in which slots rest for the first
/// time.
fn carried(domains: &'static Domains, algorithm: Option<Algorithm>, root: Option<Rank>) -> Vec<u64> {
    run(size(domains), |world| {
        let link = mesh(world, domains, SMALL, Some(4))?;
        let (one, long) = (Tensor::<u16>::zeros(1001), Tensor::<u16>::zeros(1001 * world.size()));
        let config = slots(256, 4);
        let built = match root {
            None => {
                let gather = all_gather(&link, &long, &one).config(config);
                algorithm.into_iter().fold(gather, |gather, way| gather.algorithm(way)).build()
            }
            Some(root) => {
                let spread = broadcast(&link, &one, &one, root).config(config);
                algorithm.into_iter().fold(spread, |spread, way| spread.algorithm(way)).build()
            }
        };
        let mut built = built?;
        // The first word of an operation on each line travels as mail.
        (0..4).try_for_each(|_| built.run())?;
        world.bootstrap().barrier("warm", world.deadline())?;
        let before = link.carried_bytes();
        world.bootstrap().barrier("read", world.deadline())?;
        (0..LAUNCHES).try_for_each(|_| built.run())?;
        Ok((link.carried_bytes() - before) / LAUNCHES)
    })
}

const LAUNCHES: u64 = 5;
const CHUNK: u64 = 2002;

#[test]
fn each_chunk_crosses_the_network_once_per_other_domain() {
    let two = Some(Algorithm::TwoLevel);
    for domains in WORLDS {
        let ranks = size(domains);
        let of_others = |domain: &[u32]| (ranks - domain.len()) as u64 * CHUNK;
        let must: u64 = domains.iter().map(|domain| of_others(domain)).sum();
        let all: u64 = carried(domains, two, None).iter().sum();
        assert_eq!(all, must, "all-gather over {domains:?}");
        for root in [0, ranks as u32 - 1] {
            let all: u64 = carried(domains, two, Some(Rank::new(root))).iter().sum();
            assert_eq!(all, (domains.len() as u64 - 1) * CHUNK, "broadcast from {root} over {domains:?}");
        }
    }
    // Ranks of one domain share the work evenly.
    assert_eq!(carried(WORLDS[0], two, None), [CHUNK; 4]);
    assert_eq!(carried(WORLDS[1], two, None), [3 * CHUNK, CHUNK, 0, 0]);
    assert_eq!(carried(WORLDS[3], two, None), [CHUNK; 4]);
}

#[test]
fn two_levels_move_at_most_half_of_what_one_moves_across_pairs() {
    for domains in [WORLDS[0], WORLDS[3]] {
        let sum = |way| carried(domains, way, None).iter().sum::<u64>();
        let (flat, two) = (sum(Some(Algorithm::OneShot)), sum(Some(Algorithm::TwoLevel)));
        assert!(flat > 0 && 2 * two <= flat, "{two} of {flat} bytes over {domains:?}");
        assert_eq!(sum(None), two, "two levels are the default");
    }
}

#[test]
fn near_legs_never_touch_the_carrier() {
    // Rank 0 alone sends across: ranks 2 and 3 get its chunk from rank 1.
    assert_eq!(carried(WORLDS[1], Some(Algorithm::TwoLevel), Some(Rank::new(0))), [0, CHUNK, 0, 0]);
    assert_eq!(carried(WORLDS[1], Some(Algorithm::TwoLevel), Some(Rank::new(2))), [CHUNK, 0, 0, 0]);
}

// ---- when it is chosen ----------------------------------------------------------------------------------------------

/// The explanation of an all-gather of a kilobyte, on every rank.
fn explained(
    domains: &'static Domains,
    sizes: ShmOptions,
    config: Config,
    algorithm: Option<Algorithm>,
) -> Vec<Result<String, TransferError>> {
    run(size(domains), |world| {
        let link = mesh(world, domains, sizes, None)?;
        let (one, long) = (Tensor::<f32>::zeros(256), Tensor::<f32>::zeros(256 * world.size()));
        let gather = all_gather(&link, &long, &one).config(config);
        let text = algorithm.into_iter().fold(gather, |gather, way| gather.algorithm(way)).explain();
        link.close()?;
        match text {
            Ok(text) => Ok(Ok(text)),
            Err(RunError::Transfer(error)) => Ok(Err(error)),
            Err(error) => Err(error.into()),
        }
    })
}

#[test]
fn it_is_the_default_where_there_are_near_and_far_peers_and_explain_says_why() {
    let usual = Config::default();
    for domains in [WORLDS[0], WORLDS[3], WORLDS[5]] {
        for text in explained(domains, SMALL, usual, None) {
            assert!(text.as_ref().unwrap().contains("two-level: 2 domains of 2"), "{text:?}");
        }
    }
    let texts: Vec<String> = explained(WORLDS[0], SMALL, usual, None).into_iter().map(Result::unwrap).collect();
    assert!(texts[2].contains("receive rank 0: 256 elements by staged") && texts[2].contains("passed on to rank 3"));
    assert!(texts[3].contains("receive rank 0: 256 elements by staged") && texts[3].contains(", through rank 2"));
    let staged = Config::from(Knobs { primitive: Some(Primitive::Staged), ..Knobs::default() });
    let narrow = ShmOptions { max_blocks_per_peer: Some(1), ..SMALL };
    let wide = ShmOptions { max_blocks_per_peer: Some(4), ..SMALL };
    let near = |blocks| Config {
        far: Some(Knobs::default()),
        ..Config::from(Knobs { blocks: Some(blocks), ..Knobs::default() })
    };
    for (domains, sizes, config, why) in [
        (WORLDS[4], SMALL, usual, "one-shot: every rank is alone in its domain"),
        (WORLDS[0], SMALL, staged, "one-shot: a primitive was asked for"),
        (WORLDS[0], narrow, usual, "one-shot: far peers take more than half of the blocks"),
        (WORLDS[1], wide, near(4), "one-shot: near peers leave no blocks free"),
    ] {
        for text in explained(domains, sizes, config, None) {
            assert!(text.as_ref().unwrap().contains(why), "{text:?} lacks {why}");
        }
    }
}

#[test]
fn what_has_no_room_is_refused_where_two_levels_are_asked_for() {
    let two = Some(Algorithm::TwoLevel);
    let narrow = ShmOptions { max_blocks_per_peer: Some(1), ..SMALL };
    for error in explained(WORLDS[0], narrow, Config::default(), two) {
        let is_it = matches!(&error, Err(TransferError::NotTwoLevel { why, .. }) if why.contains("half of the blocks"));
        assert!(is_it, "{error:?}");
    }
    let bulk = Config::from(Knobs { primitive: Some(Primitive::Bulk), ..Knobs::default() });
    for error in explained(WORLDS[0], SMALL, bulk, two) {
        let is_it = matches!(&error, Err(TransferError::NotTwoLevel { why, .. }) if why.contains("use staged"));
        assert!(is_it, "{error:?}");
    }
}

#[test]
fn worlds_without_far_peers_have_no_two_levels() {
    let together: &'static Domains = &[&[0, 1, 2]];
    let refused = |link: &dyn Transport| {
        let (one, long) = (Tensor::<f32>::zeros(5), Tensor::<f32>::zeros(15));
        let asked = all_gather(link, &long, &one).algorithm(Algorithm::TwoLevel).run().unwrap_err();
        let text = asked.to_string();
        assert!(text.contains("use one-shot, or leave the algorithm out") && text.contains("by posts"), "{text}");
        let spread = broadcast(link, &one, &one, Rank::new(1)).algorithm(Algorithm::TwoLevel).run().unwrap_err();
        assert!(matches!(&spread, RunError::Transfer(TransferError::NotTwoLevel { collective: "broadcast", .. })));
        let sum = all_reduce(link, &one, &one).algorithm(Algorithm::TwoLevel).run().unwrap_err();
        assert!(matches!(&sum, RunError::Transfer(TransferError::NoAlgorithm { algorithm: "two-level", .. })), "{sum}");
        let plain = all_gather(link, &long, &one).explain()?;
        assert!(!plain.contains("one-shot:") && !plain.contains("two-level"), "{plain}");
        Ok::<_, RankError>(())
    };
    run(3, |world| refused(&ShmTransport::rendezvous(world, SMALL)?));
    run(3, |world| refused(&mesh(world, together, SMALL, None)?));
}

#[test]
fn a_window_or_a_rank_that_does_not_exist_changes_nothing_about_the_errors() {
    run(4, |world| {
        let link = mesh(world, WORLDS[0], SMALL, None)?;
        let one = link.zeros::<f32>(10)?;
        let beyond = broadcast(&link, &one, &one, Rank::new(4)).algorithm(Algorithm::TwoLevel).run().unwrap_err();
        assert!(matches!(&beyond, RunError::Transfer(TransferError::NoSuchPeer { .. })), "{beyond}");
        let window = Window::<f32>::allocate(&link, 40)?;
        let text = all_gather(&link, window.tensor(), &one).window(&window).explain()?;
        assert!(text.contains("one-shot: a window was given"), "{text}");
        // It is asked for, and goes through staging, as a ring does.
        one.fill(world.rank().number() as f32);
        all_gather(&link, window.tensor(), &one).window(&window).algorithm(Algorithm::TwoLevel).run()?;
        assert!((0..40).all(|i| window.tensor().get(i) == (i / 10) as f32));
        drop(window);
        Ok(link.close()?)
    });
}

#[test]
fn ranks_that_differ_about_blocks_or_slots_for_far_peers_are_told() {
    for knobs in [Knobs { blocks: Some(2), ..Knobs::default() }, Knobs { slot_bytes: Some(128), ..Knobs::default() }] {
        let errors = run(4, |world| {
            let link = mesh(world, WORLDS[0], ShmOptions { max_blocks_per_peer: Some(8), ..SMALL }, None)?;
            let (one, long) = (Tensor::<f32>::zeros(256), Tensor::<f32>::zeros(1024));
            let far = if world.rank() == Rank::new(3) { knobs } else { Knobs::default() };
            let gather = all_gather(&link, &long, &one).algorithm(Algorithm::TwoLevel).far(far);
            Ok(gather.run().expect_err("rank 3 differs").to_string())
        });
        assert!(errors.iter().any(|error| error.contains("for far peers")), "{errors:?}");
    }
}

// ---- reductions -----------------------------------------------------------------------------------------------------

#[test]
fn an_all_reduce_over_domains_goes_round_a_ring_where_that_carries_less_and_gives_the_same_bits() {
    let sums = |link: &dyn Transport, len: usize| {
        let me = link.rank().index();
        let inp =
            Tensor::from_slice(&(0..len).map(|i| ((i * 7919 + me * 31) % 9973) as f32 / 37.0).collect::<Vec<_>>());
        let out = Tensor::<f32>::zeros(len);
        let text = all_reduce(link, &out, &inp).explain()?;
        all_reduce(link, &out, &inp).run()?;
        Ok::<_, RankError>((text, out.to_vec().iter().map(|x| x.to_bits()).collect::<Vec<_>>()))
    };
    let sizes = ShmOptions { per_peer_bytes: Some(1 << 20), ..SMALL };
    let (small, large) = (1000, (1 << 18) + 12);
    for (domains, why) in [
        (WORLDS[0], "ring: over 2 domains of 2 and 2 ranks, a ring in rank order crosses 2 times a lap"),
        (WORLDS[1], "two-phase: a ring would carry no less across 2 domains of 1 and 3 ranks"),
        (WORLDS[3], "two-phase: domains are not contiguous, and a ring in rank order crosses 4 times a lap"),
        (WORLDS[4], "two-phase: a ring would carry no less across 4 domains"),
        (WORLDS[7], "ring: over 2 domains of 3 and 3 ranks"),
    ] {
        let ranks = size(domains);
        for (len, why) in [(small, "two-phase: shards of less than 256 KiB"), (large / 4 * ranks, why)] {
            let flat = run(ranks, |world| Ok(sums(&ShmTransport::rendezvous(world, sizes)?, len)?.1));
            let near = run(ranks, |world| {
                let link = mesh(world, domains, sizes, Some(9))?;
                let (text, sums) = sums(&link, len)?;
                assert!(text.contains(why), "{len} over {domains:?}: {text}");
                link.close()?;
                Ok(sums)
            });
            assert!(near == flat, "{len} over {domains:?}");
        }
    }
}

#[test]
fn a_ring_that_was_asked_for_says_how_often_it_crosses() {
    for (domains, says) in [
        (WORLDS[0], "ring: crosses 2 times a lap between 2 domains of 2 and 2 ranks\n"),
        (WORLDS[3], "ring: crosses 4 times a lap between 2 domains of 2 and 2 ranks: they are not contiguous"),
    ] {
        run(4, |world| {
            let link = mesh(world, domains, SMALL, None)?;
            let x = Tensor::<f32>::zeros(100);
            let text = all_reduce(&link, &x, &x).algorithm(Algorithm::Ring).explain()?;
            assert!(text.contains(says), "{text}");
            Ok(link.close()?)
        });
    }
}

// ---- kernels --------------------------------------------------------------------------------------------------------

/// The kernels of some collectives, as text.
fn kernels(link: &dyn Transport) -> Result<Vec<String>, RunError> {
    let (one, all) = (Tensor::<f32>::zeros(3000), Tensor::<f32>::zeros(3000 * link.world_size()));
    let other = Tensor::<f32>::zeros(all.len());
    let mut texts = Vec::new();
    for rounds in [Rounds::Roles, Rounds::Blocks, Rounds::Legs] {
        for blocks in [1, 3] {
            texts.push(all_to_all(link, &all, &other).rounds(rounds).blocks(blocks).trace()?.kernel.to_string());
            texts.push(all_gather(link, &all, &one).rounds(rounds).blocks(blocks).trace()?.kernel.to_string());
            texts.push(all_reduce(link, &all, &other).rounds(rounds).blocks(blocks).trace()?.kernel.to_string());
        }
    }
    texts.push(all_gather(link, &all, &one).trace()?.kernel.to_string());
    texts.push(broadcast(link, &one, &one, Rank::new(1)).trace()?.kernel.to_string());
    texts.push(all_reduce(link, &all, &other).trace()?.kernel.to_string());
    Ok(texts)
}

#[test]
fn a_mesh_of_one_domain_has_the_kernels_of_shared_memory() {
    let together: &'static Domains = &[&[0, 1, 2]];
    let shared = run(3, |world| Ok(kernels(&ShmTransport::rendezvous(world, SMALL)?)?));
    let near = run(3, |world| Ok(kernels(&mesh(world, together, SMALL, None)?)?));
    assert!(shared == near);
    let apart = run(3, |world| Ok(kernels(&mesh(world, WORLDS[5], SMALL, None)?)?));
    assert!(shared.iter().zip(&apart).all(|(shared, apart)| shared != apart));
}
