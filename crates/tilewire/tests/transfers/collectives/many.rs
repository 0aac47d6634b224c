//! Many ranks: the default sizes are small enough for them to meet, and large enough for every collective.

use std::time::Duration;
use tilewire::link::{ShmOptions, ShmTransport, Transport};
use tilewire::transport::{Rank, RankError, World};
use tilewire::{
    RunError, Tensor, all_gather, all_reduce, all_to_all, barrier, broadcast, gather, reduce_scatter, scatter, sendrecv,
};

/// On two free cores 3 s are enough for either. A busy machine gets more.
const PATIENCE: Duration = Duration::from_secs(60);

/// Element `i` of a rank's data. It is of ordinary size, so that sums of all ranks are exact.
fn of(rank: Rank, i: usize) -> f32 {
    (rank.index() * 31 + i % 1009) as f32
}

/// Meets, and sums numbers of all ranks for the first time.
fn first_all_reduce(world: &World) -> Result<(), RankError> {
    let link = ShmTransport::rendezvous(world, ShmOptions::default())?;
    let (x, sum) = (Tensor::from_fn(1000, |i| of(world.rank(), i)), Tensor::<f32>::zeros(1000));
    all_reduce(&link, &sum, &x).run()?;
    for i in [0, 1, 500, 999] {
        assert_eq!(sum.get(i), Rank::all(world.size()).map(|rank| of(rank, i)).sum::<f32>(), "element {i}");
    }
    Ok(link.close()?)
}

#[test]
fn sixty_four_threads_meet_and_finish_a_first_all_reduce() {
    let result = World::threads(64).deadline(PATIENCE).run(|world| first_all_reduce(&world));
    result.unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn sixty_four_processes_meet_and_finish_a_first_all_reduce() {
    use tilewire_testkit::job::Member;
    use tilewire_testkit::ranks::{join_within, start};
    if let Some(mut member) = Member::of_this_process() {
        let world = join_within(&mut member, "60s");
        let result = first_all_reduce(&world).map_err(|error| error.to_string());
        return member.report(format!("{result:?}"));
    }
    let (mut job, _store) = start("collectives::many::sixty_four_processes_meet_and_finish_a_first_all_reduce", 64);
    job.allow(PATIENCE);
    job.expect(0..64, "Ok(())");
    job.finish();
}

/// Every collective with chunks of `len` elements. Every element is compared.
fn every_collective(world: &World, link: &ShmTransport, len: usize) -> Result<(), RunError> {
    let (me, ranks) = (world.rank(), world.size());
    let (next, before, root) = (me.after(1, ranks), me.after(ranks - 1, ranks), Rank::new(ranks as u32 - 1));
    let chunk = || Tensor::from_fn(len, |i| of(me, i));
    let all = || Tensor::from_fn(ranks * len, |i| of(me, i));
    let sum = |i: usize| Rank::all(ranks).map(|rank| of(rank, i)).sum::<f32>();
    let is = |out: &Tensor<f32>, what: &str, must: &dyn Fn(usize) -> f32| {
        let wrong = out.to_vec().iter().enumerate().position(|(i, &x)| x != must(i));
        assert_eq!(wrong, None, "{what} of {len} elements by {ranks} ranks");
    };
    let (one, many) = (Tensor::<f32>::zeros(len), Tensor::<f32>::zeros(ranks * len));
    sendrecv(link, &one, &chunk(), next, before).run()?;
    is(&one, "sendrecv", &|i| of(before, i));
    all_to_all(link, &many, &all()).run()?;
    is(&many, "all_to_all", &|i| of(Rank::new((i / len) as u32), me.index() * len + i % len));
    all_gather(link, &many, &chunk()).run()?;
    is(&many, "all_gather", &|i| of(Rank::new((i / len) as u32), i % len));
    reduce_scatter(link, &one, &all()).run()?;
    is(&one, "reduce_scatter", &|i| sum(me.index() * len + i));
    all_reduce(link, &one, &chunk()).run()?;
    is(&one, "all_reduce", &sum);
    let given = if me == root { chunk() } else { Tensor::zeros(len) };
    broadcast(link, &one, &given, root).run()?;
    is(&one, "broadcast", &|i| of(root, i));
    many.fill(0.0);
    gather(link, &many, &chunk(), root).run()?;
    is(&many, "gather", &|i| if me == root { of(Rank::new((i / len) as u32), i % len) } else { 0.0 });
    scatter(link, &one, &all(), root).run()?;
    is(&one, "scatter", &|i| of(root, me.index() * len + i));
    barrier(link).run()
}

/// Worlds on both sides of each size at which a default gets smaller.
#[test]
fn every_collective_works_unconfigured_in_worlds_of_every_size() {
    for (ranks, lens) in [(5, &[1, 100, 70_000][..]), (9, &[64, 5000]), (17, &[300]), (33, &[2])] {
        let result = World::threads(ranks).deadline(PATIENCE).run(|world| {
            let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
            assert_eq!(link.link(link.rank()).staging_bytes, ShmOptions::default().geometry(ranks).per_peer_bytes);
            lens.iter().try_for_each(|&len| every_collective(&world, &link, len))?;
            Ok(link.close()?)
        });
        result.unwrap_or_else(|error| panic!("{ranks} ranks: {error}"));
    }
}
