//! One suite for every transport and engine: the same bodies over shared memory among threads and among processes, over
//! networks, and over a GPU's virtual ranks. Another transport needs one more line of `every_link!`.
//!
//! Without a GPU its instances say so and pass; `TILEWIRE_REQUIRE=cuda` makes that a failure, and
//! `TILEWIRE_REQUIRE=libfabric` does the same for networks.

use std::time::Duration;
use tilewire::collective::{Launch, Rounds};
use tilewire::cuda::Device;
use tilewire::link::{
    AnyTransport, FabricOptions, FabricTransport, MeshOptions, MeshTransport, NetworkOptions, NvlOptions, NvlTransport,
    Puts, ShmOptions, ShmTransport, Tensors, Transport, Window,
};
use tilewire::transport::{LinkKind, Rank, RankError, TransportError, World};
use tilewire::{
    Algorithm, Bf16, F8E4M3, Knobs, Primitive, ReduceOp, RunError, Tensor, all_gather, all_reduce, all_to_all, barrier,
    broadcast, gather, kernel, reduce_scatter, scatter, sendrecv,
};
use tilewire_testkit::libfabric;
use tilewire_testkit::ranks::{Body, in_processes, in_processes_within, in_threads};

const RANKS: usize = 3;

macro_rules! every_link {
    ($($body:ident;)*) => {
        every_link! { @ shm_threads, |_, body| in_threads(RANKS, body), shm: $($body;)* }
        every_link! { @ shm_processes, |test, body| in_processes(test, RANKS, body), shm: $($body;)* }
        every_link! { @ posts_alone, |_, body| in_threads(RANKS, body), alone: $($body;)* }
        every_link! { @ mesh_2_1, |_, body| in_threads(RANKS, body), mesh: $($body;)* }
        every_link! { @ mesh_shuffled, |_, body| in_threads(RANKS, body), shuffled: $($body;)* }
        every_link! { @ mesh_with_proxy_threads, |_, body| in_threads(RANKS, body), relieved: $($body;)* }
        every_link! { @ fabric_processes, on_network, fabric: $($body;)* }
        every_link! { @ fabric_in_any_order, on_network, unordered: $($body;)* }
        every_link! { @ mesh_processes, on_network, mesh_of_processes: $($body;)* }
        every_link! { @ fabric_threads, |_, body| threads_on_network(body), fabric: $($body;)* }
        every_link! { @ fabric_threads_in_any_order, |_, body| threads_on_network(body), unordered: $($body;)* }
        every_link! { @ mesh_threads_over_network, |_, body| threads_on_network(body), mesh_over_network: $($body;)* }
        every_link! { @ cuda_threads, |_, body| on_gpu(body), cuda: $($body;)* }
        every_link! { @ cuda_mesh, |_, body| on_gpu(body), cuda_mesh: $($body;)* }
        every_link! { @ cuda_fabric, |_, body| on_gpus_network(body), cuda_fabric: $($body;)* }
        every_link! { @ cuda_fabric_in_any_order, |_, body| on_gpus_network(body), cuda_unordered: $($body;)* }
        every_link! { @ cuda_mesh_over_network, |_, body| on_gpus_network(body), cuda_mesh_over_network: $($body;)* }
    };
    (@ $place:ident, $start:expr, $link:ident: $($body:ident;)*) => {
        mod $place {
            use super::*;

            type Start = fn(&str, Body);

            $(#[test]
            fn $body() {
                let start: Start = $start;
                start(concat!("every_link::", stringify!($place), "::", stringify!($body)), |world| {
                    let link = $link(world)?;
                    super::$body(&link)?;
                    Ok(link.close()?)
                });
            })*
        }
    };
}

every_link! {
    every_collective_moves_what_its_definition_says;
    hooks_run_on_both_legs;
    windows_are_written_and_read_in_one_hop;
    every_exchange_writes_windows;
    kernels_put_into_windows;
    prepared_operations_follow_each_other_in_any_geometry;
    reductions_agree_to_the_bit_in_every_algorithm;
    ranks_that_differ_all_hear_of_it;
}

fn shm(world: &World) -> Result<AnyTransport, RankError> {
    Ok(ShmTransport::rendezvous(world, ShmOptions::default())?.into())
}

/// Every peer is reached by posts.
fn alone(world: &World) -> Result<AnyTransport, RankError> {
    Ok(MeshTransport::rendezvous(world, MeshOptions::alone(RANKS))?.into())
}

/// Ranks 0 and 2 share memory, and rank 1 is alone. So the domains are not contiguous.
fn mesh(world: &World) -> Result<AnyTransport, RankError> {
    let domains = Some(vec![vec![0, 2], vec![1]]);
    Ok(MeshTransport::rendezvous(world, MeshOptions { domains, ..MeshOptions::default() })?.into())
}

/// Like `mesh`, over a carrier that delays and reorders, with a ring of one descriptor.
fn shuffled(world: &World) -> Result<AnyTransport, RankError> {
    let (domains, seed) = (Some(vec![vec![0, 2], vec![1]]), Some(7));
    Ok(MeshTransport::rendezvous(world, MeshOptions { domains, seed, ring: Some(1), ..MeshOptions::default() })?.into())
}

/// Like `shuffled`, with a thread for each rank's proxy. Ranks that fall asleep hand their posts to it.
fn relieved(world: &World) -> Result<AnyTransport, RankError> {
    let (domains, seed) = (Some(vec![vec![0, 2], vec![1]]), Some(8));
    let options = MeshOptions { domains, seed, thread: true, ring: Some(1), ..MeshOptions::default() };
    Ok(MeshTransport::rendezvous(world, options)?.into())
}

/// A network on this host.
fn network(provider: &str) -> NetworkOptions {
    let provider = libfabric::in_place_of(provider);
    let options = NetworkOptions::default().provider(&provider).library(libfabric::find().expect("the parent looked"));
    if provider == "tcp" { options.address("127.0.0.1") } else { options }
}

fn over(world: &World, provider: &str) -> Result<AnyTransport, RankError> {
    let options = FabricOptions { network: network(provider), ..FabricOptions::default() };
    let link = FabricTransport::rendezvous(world, options)?;
    assert!(link.to_string().contains(&libfabric::in_place_of(provider)), "{link}");
    Ok(link.into())
}

fn fabric(world: &World) -> Result<AnyTransport, RankError> {
    over(world, "tcp")
}

/// This provider orders nothing.
fn unordered(world: &World) -> Result<AnyTransport, RankError> {
    over(world, "shm")
}

/// Like `mesh`, joined by a network.
fn mesh_of_processes(world: &World) -> Result<AnyTransport, RankError> {
    let (domains, network) = (Some(vec![vec![0, 2], vec![1]]), network("tcp"));
    Ok(MeshTransport::rendezvous(world, MeshOptions { domains, network, ..MeshOptions::default() })?.into())
}

/// As `mesh`, where threads are joined by a network.
fn mesh_over_network(world: &World) -> Result<AnyTransport, RankError> {
    let (domains, network) = (Some(vec![vec![0, 2], vec![1]]), network("tcp"));
    let options = MeshOptions { domains, network, over_network: true, ..MeshOptions::default() };
    let link = MeshTransport::rendezvous(world, options)?;
    assert!(link.to_string().contains("joined by tcp"), "{link}");
    Ok(link.into())
}

/// Ranks that are threads, each with an endpoint of its own.
fn threads_on_network(body: Body) {
    if libfabric::find().is_some() {
        World::threads(RANKS).deadline(Duration::from_secs(60)).run(|world| body(&world)).unwrap();
    }
}

/// Opening a network takes longer than creating a segment: on a busy machine several seconds.
fn on_network(test: &str, body: Body) {
    if libfabric::find().is_some() {
        in_processes_within(test, RANKS, Duration::from_secs(60), body);
    }
}

/// Ranks 0 and 2 reach each other's device memory, and rank 1 posts to both.
fn cuda_mesh(world: &World) -> Result<AnyTransport, RankError> {
    let options = MeshOptions { domains: Some(vec![vec![0, 2], vec![1]]), ..MeshOptions::default() };
    Ok(MeshTransport::rendezvous_on(world, &Device::open(0)?, options)?.into())
}

/// Ranks on a GPU that post everything to each other over a network.
fn cuda_over(world: &World, provider: &str) -> Result<AnyTransport, RankError> {
    let options = FabricOptions::<NvlOptions> { network: network(provider), ..FabricOptions::default() };
    let link = FabricTransport::rendezvous_on(world, &Device::open(0)?, options)?;
    assert!(link.to_string().contains(provider), "{link}");
    Ok(link.into())
}

fn cuda_fabric(world: &World) -> Result<AnyTransport, RankError> {
    cuda_over(world, "tcp")
}

fn cuda_unordered(world: &World) -> Result<AnyTransport, RankError> {
    cuda_over(world, "shm")
}

/// As `cuda_mesh`, joined by a network.
fn cuda_mesh_over_network(world: &World) -> Result<AnyTransport, RankError> {
    let (domains, network) = (Some(vec![vec![0, 2], vec![1]]), network("tcp"));
    let options = MeshOptions { domains, network, over_network: true, ..MeshOptions::default() };
    Ok(MeshTransport::rendezvous_on(world, &Device::open(0)?, options)?.into())
}

fn on_gpus_network(body: Body) {
    if libfabric::find().is_some() {
        on_gpu(body);
    }
}

fn cuda(world: &World) -> Result<AnyTransport, RankError> {
    Ok(NvlTransport::rendezvous(world, &Device::open(0)?, NvlOptions::default())?.into())
}

fn on_gpu(body: Body) {
    if let Err(error) = Device::open(0) {
        return tilewire_testkit::skip::skip("cuda", error);
    }
    World::threads(RANKS).deadline(Duration::from_secs(60)).run(|world| body(&world)).unwrap();
}

/// Element `i` of a rank's data. Sums of all ranks are exact in f32.
fn of(rank: usize, i: usize) -> f32 {
    (rank * 31 + i % 1009) as f32
}

fn all_of(link: &dyn Transport, len: usize) -> Result<Tensor<f32>, RunError> {
    let me = link.rank().index();
    Ok(link.tensor(&(0..len).map(|i| of(me, i)).collect::<Vec<_>>())?)
}

#[track_caller]
fn same(out: &Tensor<f32>, what: &str, must: impl Fn(usize) -> f32) {
    let out = out.to_vec();
    let wrong = (0..out.len()).find(|&i| out[i].to_bits() != must(i).to_bits());
    assert_eq!(wrong.map(|i| (i, out[i], must(i))), None, "{what} of {} elements: (position, is, must)", out.len());
}

/// The ways in which messages may be told to travel: the default, and every protocol that needs no window.
fn ways() -> Vec<Knobs> {
    let staged =
        Knobs { primitive: Some(Primitive::Staged), slot_bytes: Some(512), depth: Some(4), ..Knobs::default() };
    let bulk = Knobs { primitive: Some(Primitive::Bulk), slot_bytes: Some(1024), depth: Some(4), ..Knobs::default() };
    let packet = Knobs { primitive: Some(Primitive::Packet), ..Knobs::default() };
    vec![Knobs::default(), packet, staged, Knobs { blocks: Some(2), ..staged }, bulk]
}

fn every_collective_moves_what_its_definition_says(link: &AnyTransport) -> Result<(), RankError> {
    let (me, root) = (link.rank().index(), Rank::new(1));
    for knobs in ways() {
        // Odd lengths, and more than a slot. Packets hold a whole message.
        let lens: &[usize] = if knobs.primitive == Some(Primitive::Packet) { &[1, 61] } else { &[1, 61, 4099] };
        for &len in lens {
            let (whole, one) = (all_of(link, RANKS * len)?, all_of(link, len)?);
            let (long, short) = (link.zeros::<f32>(RANKS * len)?, link.zeros::<f32>(len)?);
            let sum = |i: usize| (0..RANKS).map(|rank| of(rank, i)).sum::<f32>();
            let (next, before) = (link.rank().after(1, RANKS), link.rank().after(RANKS - 1, RANKS));
            sendrecv(link, &short, &one, next, before).config(knobs).run()?;
            same(&short, "sendrecv", |i| of(before.index(), i));
            all_to_all(link, &long, &whole).config(knobs).run()?;
            same(&long, "all_to_all", |i| of(i / len, me * len + i % len));
            all_gather(link, &long, &one).config(knobs).run()?;
            same(&long, "all_gather", |i| of(i / len, i % len));
            broadcast(link, &short, &one, root).config(knobs).run()?;
            same(&short, "broadcast", |i| of(root.index(), i));
            scatter(link, &short, &whole, root).config(knobs).run()?;
            same(&short, "scatter", |i| of(root.index(), me * len + i));
            long.fill(-1.0);
            gather(link, &long, &one, root).config(knobs).run()?;
            same(&long, "gather", |i| if me == root.index() { of(i / len, i % len) } else { -1.0 });
            if knobs.primitive != Some(Primitive::Bulk) {
                reduce_scatter(link, &short, &whole).config(knobs).run()?;
                same(&short, "reduce_scatter", |i| sum(me * len + i));
                all_reduce(link, &short, &one).config(knobs).run()?;
                same(&short, "all_reduce", sum);
            }
        }
    }
    barrier(link).run()?;
    Ok(())
}

fn hooks_run_on_both_legs(link: &AnyTransport) -> Result<(), RankError> {
    let (me, (rows, cols)) = (link.rank().index(), (24, 40));
    let len = rows * cols;
    let (whole, long) = (all_of(link, RANKS * len)?, link.zeros::<f32>(RANKS * len)?);
    for rounds in [Rounds::Roles, Rounds::Blocks, Rounds::Legs] {
        // Every chunk arrives transposed and scaled.
        let exchange = all_to_all(link, &long, &whole).chunk_shape(rows, cols).output_shape(cols, rows).rounds(rounds);
        exchange.produce(|c| c.input.at(c.col(), c.row()) * 0.5).run()?;
        same(&long, "transposed", |i| {
            let (from, at) = (i / len, i % len);
            of(from, me * len + at % rows * cols + at / rows) * 0.5
        });
    }
    // Eight bits and a scale for 32 neighbours, added to the output's numbers.
    let (one, short) = (all_of(link, 4096)?, link.tensor(&vec![1.0f32; 4096])?);
    let (next, before) = (link.rank().after(1, RANKS), link.rank().after(RANKS - 1, RANKS));
    sendrecv(link, &short, &one, next, before)
        .produce2(|c| {
            let x = c.input.load(c.pos());
            let scale = (x.abs().group_max(32) / 448.0).max(f32::MIN_POSITIVE);
            ((x / scale).cast::<F8E4M3>(), scale)
        })
        .consume(|c, (x, scale)| c.output.store(c.pos(), c.output.load(c.pos()) + x.cast::<f32>() * scale))
        .run()?;
    let out = short.to_vec();
    for group in 0..4096 / 32 {
        let x: Vec<f32> = (0..32).map(|i| of(before.index(), group * 32 + i)).collect();
        let scale = (x.iter().fold(0.0f32, |a, b| a.max(b.abs())) / 448.0).max(f32::MIN_POSITIVE);
        for (i, x) in x.iter().enumerate() {
            let must = 1.0 + F8E4M3::from_f32(x / scale).to_f32() * scale;
            assert_eq!(out[group * 32 + i], must, "position {i} of group {group}");
        }
    }
    Ok(())
}

fn windows_are_written_and_read_in_one_hop(link: &AnyTransport) -> Result<(), RankError> {
    let (me, len) = (link.rank().index(), 3001);
    let window = Window::<f32>::allocate(link, RANKS * len)?;
    let whole = all_of(link, RANKS * len)?;
    let mut exchange = all_to_all(link, window.tensor(), &whole).window(&window).build()?;
    for launch in 0..3 {
        whole.copy_from(&(0..RANKS * len).map(|i| of(me, i) + launch as f32).collect::<Vec<_>>());
        exchange.run()?;
        exchange.sync()?;
        same(window.tensor(), "all_to_all", |i| of(i / len, me * len + i % len) + launch as f32);
    }
    drop(exchange);
    let input = Window::<f32>::allocate(link, RANKS * len)?;
    input.tensor().copy_from(&whole.to_vec());
    all_reduce(link, window.tensor(), input.tensor()).window(&input).window(&window).run()?;
    same(window.tensor(), "all_reduce", |i| (0..RANKS).map(|rank| of(rank, i) + 2.0).sum());
    Ok(())
}

fn every_exchange_writes_windows(link: &AnyTransport) -> Result<(), RankError> {
    let (me, root) = (link.rank().index(), Rank::new(1));
    let has_far = Rank::all(RANKS).any(|rank| link.link(rank).kind == LinkKind::Fabric);
    // Posts write the windows of far ranks on CPUs, also over a network. On GPUs the same goes through staging.
    let in_one_hop = !has_far || link.seat().is_none();
    for len in [1, 61, 4099] {
        let (whole, one) = (all_of(link, RANKS * len)?, all_of(link, len)?);
        let (long, short) = (Window::<f32>::allocate(link, RANKS * len)?, Window::<f32>::allocate(link, len)?);
        let (next, before) = (link.rank().after(1, RANKS), link.rank().after(RANKS - 1, RANKS));
        for hooked in [false, true] {
            let by = if hooked { 2.0 } else { 1.0 };
            macro_rules! run {
                ($window:expr, $exchange:expr) => {{
                    let exchange = $exchange.window(&$window);
                    let (said, run) = match hooked {
                        true => {
                            let exchange = exchange.produce(|c| c.input.load(c.pos()) * 2.0);
                            (exchange.explain()?, exchange.run())
                        }
                        false => (exchange.explain()?, exchange.run()),
                    };
                    run?;
                    assert!(!in_one_hop || said.contains("direct") && !said.contains("staged"), "{said}");
                    assert!(has_far || !said.contains("posted"), "{said}");
                }};
            }
            run!(short, sendrecv(link, short.tensor(), &one, next, before));
            same(short.tensor(), "sendrecv", |i| of(before.index(), i) * by);
            run!(long, all_to_all(link, long.tensor(), &whole));
            same(long.tensor(), "all_to_all", |i| of(i / len, me * len + i % len) * by);
            run!(long, all_gather(link, long.tensor(), &one));
            same(long.tensor(), "all_gather", |i| of(i / len, i % len) * by);
            run!(short, broadcast(link, short.tensor(), &one, root));
            same(short.tensor(), "broadcast", |i| of(root.index(), i) * by);
            run!(short, scatter(link, short.tensor(), &whole, root));
            same(short.tensor(), "scatter", |i| of(root.index(), me * len + i) * by);
            long.tensor().fill(-1.0);
            run!(long, gather(link, long.tensor(), &one, root));
            same(long.tensor(), "gather", |i| if me == root.index() { of(i / len, i % len) * by } else { -1.0 });
        }
    }
    Ok(())
}

/// Every rank puts its tensor into the windows of all ranks, in all ways, and computes their numbers.
fn kernels_put_into_windows(link: &AnyTransport) -> Result<(), RankError> {
    const BYTES: i64 = 3001 * 4;
    let (me, len, ranks) = (link.rank().index(), 3001, RANKS as i64);
    let window = Window::<f32>::allocate(link, RANKS * len)?;
    let has_far = Rank::all(RANKS).any(|rank| link.link(rank).kind == LinkKind::Fabric);
    let puts = match Puts::new(link, &window) {
        // Posts write the windows of far ranks on CPUs.
        Err(TransportError::WindowUnreached { .. }) if has_far && link.seat().is_some() => return Ok(()),
        puts => puts?,
    };
    let x = all_of(link, len)?;
    let source = puts.source(&x)?;
    for how in 0..3i64 {
        let copies = if how == 2 { 3 } else { 1 };
        let traced = kernel("puts", |k| {
            let (ops, x) = (puts.ops(k), source.bind(k));
            k.role("put", 4).copies(copies, |r| {
                r.for_(..r.world_size(), |peer| {
                    let put = ops.to(peer, me as i64 * BYTES).from(x, 0, BYTES).signal(how).counter(how);
                    match how {
                        0 => put.put_block_direct(r),
                        1 => put.put_block(r),
                        _ => put.put_warp_chunked_direct(r, 1024),
                    }
                });
                r.if_(r.copy().eq(0), || {
                    r.for_(0..ranks, |peer| {
                        ops.wait_signal_from(r, peer, how);
                        ops.wait_counter(r, peer, how);
                    });
                });
            });
        })?;
        let mut launch = Launch::new(link, &traced)?;
        for number in 0..3 {
            x.copy_from(&(0..len).map(|i| of(me, i) + number as f32).collect::<Vec<_>>());
            launch.run()?;
            launch.sync()?;
            same(window.tensor(), "puts", |i| of(i / len, i % len) + number as f32);
            barrier(link).run()?;
        }
    }
    Ok(())
}

fn prepared_operations_follow_each_other_in_any_geometry(link: &AnyTransport) -> Result<(), RankError> {
    let lens = [1, 300, 20_000];
    let mut prepared = Vec::new();
    for (k, &len) in lens.iter().enumerate() {
        let slots = Knobs { slot_bytes: Some(256 << k), depth: Some([4, 8, 4][k]), ..Knobs::default() };
        let knobs = Knobs { primitive: Some(Primitive::Staged), ..slots };
        let (one, long) = (link.zeros::<f32>(len)?, link.zeros::<f32>(RANKS * len)?);
        let gather = all_gather(link, &long, &one).config(knobs).build()?;
        let sum = all_reduce(link, &one, &one).build()?;
        prepared.push((one, long, gather, sum));
    }
    let me = link.rank().index();
    for launch in 0..12 {
        let k = [0, 1, 2, 2, 0, 1][launch % 6];
        let (one, long, gather, sum) = &mut prepared[k];
        let (len, turn) = (lens[k], launch as f32);
        one.copy_from(&(0..len).map(|i| of(me, i) + turn).collect::<Vec<_>>());
        gather.run()?;
        sum.run()?;
        same(long, "all_gather", |i| of(i / len, i % len) + turn);
        same(one, "all_reduce in place", |i| (0..RANKS).map(|rank| of(rank, i) + turn).sum());
    }
    for (_, _, mut gather, mut sum) in prepared {
        gather.sync()?;
        sum.sync()?;
    }
    Ok(())
}

fn reductions_agree_to_the_bit_in_every_algorithm(link: &AnyTransport) -> Result<(), RankError> {
    let (me, len) = (link.rank().index(), 1000);
    // Sums of these numbers depend on the order. All algorithms use the same order.
    let data: Vec<Bf16> =
        (0..len).map(|i| Bf16::from_f32(((i * 7919 + me * 104_729) % 10_007) as f32 / 37.0)).collect();
    let inp = link.tensor(&data)?;
    for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Average] {
        let mut first: Option<Vec<Bf16>> = None;
        for algorithm in [Algorithm::OneShot, Algorithm::TwoPhase, Algorithm::Ring] {
            let out = link.zeros::<Bf16>(len)?;
            let has_far = Rank::all(RANKS).any(|rank| link.link(rank).kind == LinkKind::Fabric);
            let built = all_reduce(link, &out, &inp).op(op).algorithm(algorithm).build();
            if algorithm == Algorithm::OneShot && has_far {
                let error = built.expect_err("far peers take no packets").to_string();
                assert!(error.contains("use two-phase or ring"), "{error}");
                continue;
            }
            built?.run()?;
            let bits = out.to_vec();
            let expected = first.get_or_insert_with(|| bits.clone());
            assert!(*expected == bits, "{op:?} by {algorithm:?}");
        }
    }
    Ok(())
}

fn ranks_that_differ_all_hear_of_it(link: &AnyTransport) -> Result<(), RankError> {
    let len = if link.rank().index() == 1 { 64 } else { 65 };
    let (one, long) = (link.zeros::<f32>(len)?, link.zeros::<f32>(RANKS * len)?);
    let error = all_gather(link, &long, &one).run().unwrap_err();
    assert!(matches!(error, RunError::Mismatch(_)), "{error}");
    // Nothing was sent, so the next operation works.
    let (one, long) = (all_of(link, 64)?, link.zeros::<f32>(RANKS * 64)?);
    all_gather(link, &long, &one).run()?;
    same(&long, "all_gather", |i| of(i / 64, i % 64));
    Ok(())
}
