//! The bodies that the tests run over any transport, and the transports.

use std::time::Duration;
use tilewire::link::{
    FabricOptions, FabricTransport, MeshOptions, MeshTransport, NetworkOptions, ShmOptions, Transport,
};
use tilewire::transport::{Rank, RankError, TransportError, World};
use tilewire::{
    Algorithm, Knobs, Primitive, RunError, Tensor, all_gather, all_reduce, all_to_all, recv, reduce_scatter, send,
    sendrecv,
};
use tilewire_testkit::libfabric;

/// So small that messages of a few KiB take many steps.
pub const SMALL: ShmOptions = ShmOptions {
    per_peer_bytes: Some(32 << 10),
    max_blocks_per_peer: Some(8),
    max_slots: Some(8),
    max_copies: 1,
    packet_bytes: Some(64 << 10),
    window_sets: None,
    populate: false,
};

/// A network on this host.
pub fn network(provider: &str) -> NetworkOptions {
    let provider = libfabric::in_place_of(provider);
    let options = NetworkOptions::default().provider(&provider).library(libfabric::find().expect("the parent looked"));
    if provider == "tcp" { options.address("127.0.0.1") } else { options }
}

pub fn fabric(world: &World, provider: &str) -> Result<FabricTransport, TransportError> {
    FabricTransport::rendezvous(world, FabricOptions { sizes: SMALL, ring: None, network: network(provider) })
}

pub fn mesh(world: &World, domains: Option<Vec<Vec<u32>>>, provider: &str) -> Result<MeshTransport, TransportError> {
    let options = MeshOptions { domains, sizes: SMALL, network: network(provider), ..MeshOptions::default() };
    MeshTransport::rendezvous(world, options)
}

/// As [`mesh`], where ranks that are threads are joined by the network.
pub fn mesh_of_threads(
    world: &World,
    domains: Option<Vec<Vec<u32>>>,
    provider: &str,
) -> Result<MeshTransport, TransportError> {
    let network = network(provider);
    let options = MeshOptions { domains, sizes: SMALL, network, over_network: true, ..MeshOptions::default() };
    MeshTransport::rendezvous(world, options)
}

/// The number of repetitions of tests of faults: `usual`, or that of `TILEWIRE_KILLS`.
pub fn rounds(usual: u64) -> u64 {
    std::env::var("TILEWIRE_KILLS").map_or(usual, |kills| kills.parse().expect("TILEWIRE_KILLS is a number"))
}

/// Longer than any launch of these tests takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn staged(slot_bytes: usize, depth: usize) -> Knobs {
    Knobs {
        primitive: Some(Primitive::Staged),
        slot_bytes: Some(slot_bytes),
        depth: Some(depth),
        blocks: Some(1),
        ..Knobs::default()
    }
}

fn neighbours(link: &dyn Transport) -> (Rank, Rank) {
    let (me, ranks) = (link.rank(), link.world_size());
    (me.after(1, ranks), me.after(ranks - 1, ranks))
}

fn bits(out: &Tensor<f32>) -> Vec<u32> {
    out.to_vec().iter().map(|x| x.to_bits()).collect()
}

/// The results of sends, receives and collectives on this rank, as bits. `transfers/every_link.rs` runs everything over
/// each network.
pub fn all(link: &dyn Transport) -> Result<Vec<Vec<u32>>, RunError> {
    let (me, ranks) = (link.rank().index(), link.world_size());
    let (next, before) = neighbours(link);
    let mut all = Vec::new();
    for len in [5, 700] {
        let value = |i: usize| ((i * 7919 + me * 104_729) % 10_007) as f32 / 37.0;
        let inp = Tensor::from_slice(&(0..len * ranks).map(value).collect::<Vec<_>>());
        let (one, short, long) = (inp.slice(0..len), Tensor::<f32>::zeros(len), Tensor::<f32>::zeros(len * ranks));
        let knobs = Knobs { blocks: None, ..staged(256, 4) };
        sendrecv(link, &short, &one, next, before).config(knobs).run()?;
        all.push(bits(&short));
        sendrecv(link, &short, &one, next, before).produce(|c| c.input.load(c.pos()) * 1.7).run()?;
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
    // One pair alone. The others do nothing.
    let (x, y) = (Tensor::from_slice(&[3.5f32 + me as f32; 100]), Tensor::<f32>::zeros(100));
    match me {
        0 => send(link, &x, Rank::new(ranks as u32 - 1)).run()?,
        _ if me == ranks - 1 => recv(link, &y, Rank::new(0)).run()?,
        _ => {}
    }
    all.push(bits(&y));
    Ok(all)
}

/// A digest of the results of [`all`], to compare ranks that share no memory.
pub fn digest(all: &[Vec<u32>]) -> u64 {
    let words = all.iter().flat_map(|part| part.iter().copied().chain([part.len() as u32]));
    words.fold(0xcbf2_9ce4_8422_2325, |digest, word| (digest ^ u64::from(word)).wrapping_mul(0x100_0000_01b3))
}

/// The results of each rank of a world of threads over plain shared memory.
pub fn expected(ranks: usize) -> Vec<u64> {
    let body = |world: World| -> Result<u64, RankError> {
        let link = tilewire::link::ShmTransport::rendezvous(&world, SMALL)?;
        Ok(digest(&all(&link)?))
    };
    World::threads(ranks).deadline(PATIENCE).run(body).unwrap()
}
