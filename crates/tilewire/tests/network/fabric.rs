//! Everything over the network, and over meshes of processes on one host.

use super::suite::{SMALL, all, digest, expected, fabric, mesh, network, staged};
use std::time::{Duration, Instant};
use tilewire::link::{FabricOptions, FabricTransport, NetworkOptions, ib_rendezvous};
use tilewire::transport::{RankError, World};
use tilewire::{Tensor, all_gather, sendrecv};
use tilewire_testkit::job::Member;
use tilewire_testkit::libfabric;
use tilewire_testkit::ranks::{join_within, start};

/// Runs `body` in worlds of processes. It returns a digest, which must equal that over shared memory.
#[track_caller]
fn gives_the_bytes_of_shared_memory(test: &str, ranks: &[usize], body: fn(&World) -> Result<u64, RankError>) {
    if let Some(mut member) = Member::of_this_process() {
        let world = join_within(&mut member, "60s");
        let result = body(&world).map_err(|error| error.to_string());
        return member.report(format!("{result:?}"));
    }
    if libfabric::find().is_none() {
        return;
    }
    for &ranks in ranks {
        let (mut job, _store) = start(test, ranks);
        job.allow(Duration::from_secs(120));
        for (rank, digest) in expected(ranks).iter().enumerate() {
            assert_eq!(job.report(rank), format!("Ok({digest})"), "rank {rank} of {ranks}");
        }
        job.finish();
    }
}

#[test]
fn domains_that_are_given_are_joined_by_the_network() {
    let test = "fabric::domains_that_are_given_are_joined_by_the_network";
    gives_the_bytes_of_shared_memory(test, &[4], |world| {
        let mut results = Vec::new();
        for domains in [vec![vec![0, 1], vec![2, 3]], vec![vec![0, 2], vec![1, 3]], vec![vec![0], vec![1, 2, 3]]] {
            let link = mesh(world, Some(domains.clone()), "tcp")?;
            assert_eq!(link.domains(), domains);
            results.push(digest(&all(&link)?));
            link.close()?;
        }
        assert!(results.iter().all(|result| *result == results[0]));
        Ok(results[0])
    });
}

/// If no domains are given, processes of one host are one domain, and no network is needed.
#[test]
fn the_processes_of_a_host_find_that_they_are_one_domain() {
    let test = "fabric::the_processes_of_a_host_find_that_they_are_one_domain";
    gives_the_bytes_of_shared_memory(test, &[3], |world| {
        let link = mesh(world, None, "no such provider")?;
        assert_eq!((link.domains(), link.carried_bytes()), (&[vec![0, 1, 2]][..], 0));
        assert!(link.network().is_none());
        let result = digest(&all(&link)?);
        link.close()?;
        Ok(result)
    });
}

/// Writes of peers arrive while their receiver does something else, and while it closes.
#[test]
fn what_is_sent_lands_while_the_receiver_computes() {
    let test = "fabric::what_is_sent_lands_while_the_receiver_computes";
    gives_the_bytes_of_shared_memory(test, &[2], |world| {
        let link = fabric(world, "tcp")?;
        let (peer, me) = (world.next(), world.rank().number());
        let (inp, out) = (Tensor::from_slice(&[me; 64]), Tensor::<u32>::zeros(64));
        let mut exchange = sendrecv(&link, &out, &inp, peer, peer).config(staged(256, 8)).build()?;
        exchange.run()?;
        if me == 1 {
            // This rank's credits and data must leave although none of its threads waits.
            std::thread::sleep(Duration::from_millis(300));
        }
        let start = Instant::now();
        exchange.run()?;
        assert!(me == 0 || start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert_eq!(out.to_vec(), [1 - me; 64]);
        drop(exchange);
        let result = digest(&all(&link)?);
        link.close()?;
        Ok(result)
    });
}

/// A kernel posts faster than its few entries of the ring are taken.
#[test]
fn hundreds_of_posts_of_a_launch_pass_a_ring_of_sixteen() {
    let test = "fabric::hundreds_of_posts_of_a_launch_pass_a_ring_of_sixteen";
    gives_the_bytes_of_shared_memory(test, &[2], |world| {
        let options = FabricOptions { sizes: SMALL, ring: Some(16), network: network("tcp") };
        let link = FabricTransport::rendezvous(world, options)?;
        let (peer, me) = (world.next(), world.rank().number());
        // 1,500 slots, each a post of data and a post of a credit.
        let len = 1500 * 64;
        let values = |rank: u32| (0..len as u32).map(move |i| i * 31 + rank);
        let (inp, out) = (Tensor::from_slice(&values(me).collect::<Vec<_>>()), Tensor::<u32>::zeros(len));
        let mut exchange = sendrecv(&link, &out, &inp, peer, peer).config(staged(256, 8)).build()?;
        for _ in 0..2 {
            out.fill(0);
            exchange.run()?;
            assert!(out.to_vec().into_iter().eq(values(peer.number())));
        }
        drop(exchange);
        let result = digest(&all(&link)?);
        link.close()?;
        Ok(result)
    });
}

/// No provider but verbs will do.
#[test]
fn infiniband_is_never_replaced_by_something_slower() {
    let Some(library) = libfabric::find() else { return };
    if libfabric::in_place_of("tcp") == "verbs" {
        return tilewire_testkit::skip::skip("no verbs", "this machine has verbs");
    }
    let body = |world: World| -> Result<(), RankError> {
        let network = NetworkOptions::default().library(library);
        let error = ib_rendezvous(&world, FabricOptions { network, ..FabricOptions::default() }).map(drop).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("verbs") && said.contains("no provider") && !said.contains("tcp"), "{said}");
        Ok(())
    };
    World::threads(2).deadline(Duration::from_secs(30)).run(body).unwrap();
}

/// Transports come and go in one world; nothing stays behind in this process.
#[test]
fn transports_come_and_go() {
    let test = "fabric::transports_come_and_go";
    if let Some(mut member) = Member::of_this_process() {
        let world = join_within(&mut member, "60s");
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let mut first = None;
        for _ in 0..super::suite::rounds(5) {
            let link = fabric(&world, "tcp").unwrap();
            let (one, both) = (Tensor::from_slice(&[world.rank().number()]), Tensor::<u32>::zeros(2));
            all_gather(&link, &both, &one).run().unwrap();
            assert_eq!(both.to_vec(), [0, 1]);
            link.close().unwrap();
            let start = *first.get_or_insert(open());
            assert!(open() <= start + 2, "{} files are open, at first {start}", open());
        }
        return member.report("done");
    }
    if libfabric::find().is_none() {
        return;
    }
    let (mut job, _store) = start(test, 2);
    job.allow(Duration::from_secs(120));
    job.expect(0..2, "done");
    job.finish();
}

/// A rank that has been idle for a second takes at most one percent of a processor. This is about processor time, which
/// does not depend on how busy the machine is.
#[test]
fn an_idle_rank_sleeps() {
    let test = "fabric::an_idle_rank_sleeps";
    gives_the_bytes_of_shared_memory(test, &[2], |world| {
        let link = fabric(world, "tcp")?;
        let result = digest(&all(&link)?);
        std::thread::sleep(Duration::from_millis(1500));
        let (since, before) = (Instant::now(), processor_time());
        std::thread::sleep(Duration::from_secs(2));
        let (used, waited) = (processor_time() - before, since.elapsed());
        assert!(100 * used <= waited, "{used:?} of processor time in {waited:?}");
        world.bootstrap().barrier("measured", world.deadline())?;
        link.close()?;
        Ok(result)
    });
}

/// The processor time that all threads of this process have taken so far.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every Linux, and the structure lives through the call.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
