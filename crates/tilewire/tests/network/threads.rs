//! Ranks that are threads, each with an endpoint of its own, as ranks on a GPU are.

use super::suite::{PATIENCE, all, digest, expected, fabric, mesh_of_threads};
use tilewire::link::{MeshTransport, Transport, Window};
use tilewire::transport::{RankError, TransportError, World};
use tilewire::{Tensor, sendrecv};
use tilewire_testkit::libfabric;

/// Runs in worlds of threads. A body returns a digest, which must be that of shared memory.
#[track_caller]
fn give_the_bytes_of_shared_memory(ranks: &[usize], body: impl Fn(&World) -> Result<u64, RankError> + Sync) {
    if libfabric::find().is_none() {
        return;
    }
    for &ranks in ranks {
        let given = World::threads(ranks).deadline(PATIENCE).run(|world| body(&world)).unwrap();
        assert_eq!(given, expected(ranks), "{ranks} ranks");
    }
}

#[test]
fn two_to_four_threads_reach_each_other_over_every_software_provider() {
    for provider in ["tcp", "shm"] {
        give_the_bytes_of_shared_memory(&[2, 3, 4], |world| {
            let link = fabric(world, provider)?;
            assert!(link.network().is_some_and(|choice| choice.provider.starts_with(provider)), "{link}");
            assert!(Transport::posts_windows(&link));
            let result = digest(&all(&link)?);
            assert!(link.carried_bytes() > 0);
            link.close()?;
            Ok(result)
        });
    }
}

#[test]
fn domains_of_threads_are_joined_by_the_network() {
    let halves = [vec![vec![0, 1], vec![2, 3]], vec![vec![0, 2], vec![1, 3]], vec![vec![0], vec![1, 2, 3]]];
    for provider in ["tcp", "shm"] {
        for domains in &halves {
            give_the_bytes_of_shared_memory(&[4], |world| {
                let link = mesh_of_threads(world, Some(domains.clone()), provider)?;
                assert_eq!(link.domains(), domains);
                let result = digest(&all(&link)?);
                link.close()?;
                Ok(result)
            });
        }
    }
}

/// One domain needs no network, even if one is asked for.
#[test]
fn threads_that_share_memory_open_no_network() {
    give_the_bytes_of_shared_memory(&[2, 3], |world| {
        let link = mesh_of_threads(world, None, "no such provider")?;
        assert!(link.network().is_none() && link.carried_bytes() == 0);
        let result = digest(&all(&link)?);
        link.close()?;
        Ok(result)
    });
}

#[test]
fn ranks_that_disagree_about_the_network_all_hear_of_it() {
    if libfabric::find().is_none() {
        return;
    }
    let errors = World::threads(2).deadline(PATIENCE).run(|world| {
        let domains = Some(vec![vec![0], vec![1]]);
        let link = match world.rank().index() {
            0 => mesh_of_threads(&world, domains, "tcp"),
            _ => super::suite::mesh(&world, domains, "tcp"),
        };
        Ok(link.map(|link: MeshTransport| link.to_string()).unwrap_err())
    });
    for error in errors.unwrap() {
        assert!(matches!(&error, TransportError::Mismatch { parameter, .. } if parameter == "network"), "{error}");
    }
}

/// Windows of other lengths, empty ones among them, and windows that come and go.
#[test]
fn windows_over_a_network_come_and_go() {
    if libfabric::find().is_none() {
        return;
    }
    for provider in ["tcp", "shm"] {
        let ran = World::threads(3).deadline(PATIENCE).run(|world| {
            let link = fabric(&world, provider)?;
            let (me, ranks) = (world.rank().index(), world.size());
            let (next, before) = (world.rank().after(1, ranks), world.rank().after(ranks - 1, ranks));
            let mut kept = Vec::new();
            for round in 0..12 {
                // Every rank has a window of its own length, and the first one is empty now and then.
                let len = |rank: usize| [0, 1, 61, 5000][round % 4] + rank;
                let element = |rank: usize, i: usize| (round * 100_000 + rank * 10_000 + i) as u32;
                let window = Window::<u32>::allocate(&link, len(me))?;
                let inp = Tensor::from_fn(len(next.index()), |i| element(me, i));
                let shift = sendrecv(&link, window.tensor(), &inp, next, before).window(&window);
                assert!(shift.explain()?.contains("direct"));
                let mut shift = shift.build()?;
                for launch in 0..3 {
                    shift.run()?;
                    let expected: Vec<u32> = (0..len(me)).map(|i| element(before.index(), i)).collect();
                    assert_eq!(window.tensor().to_vec(), expected, "round {round}, launch {launch}, over {provider}");
                }
                drop(shift);
                // Every rank drops other windows at other times.
                if round % 3 != me {
                    // There are control lines for eight windows, and two ranks may keep different ones.
                    if kept.len() == 3 {
                        kept.remove(0);
                    }
                    kept.push(window);
                }
            }
            drop(kept);
            Ok(link.close()?)
        });
        ran.unwrap();
    }
}
