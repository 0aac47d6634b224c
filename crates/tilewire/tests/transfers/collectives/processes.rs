//! The same among processes: a named part.
#![cfg(target_os = "linux")]

use crate::case::SMALL;
use crate::collectives::exchanges::back_to_back;
use crate::collectives::failures::heard;
use crate::collectives::reductions;
use tilewire::link::ShmTransport;
use tilewire::transport::{Rank, World};
use tilewire::{RunError, Tensor, all_to_all, recv, send};
use tilewire_testkit::job::Member;
use tilewire_testkit::ranks::{in_processes, join_within, start};

#[test]
fn alternating_exchanges_between_two_processes() {
    in_processes("collectives::processes::alternating_exchanges_between_two_processes", 2, back_to_back);
}

#[test]
fn alternating_exchanges_among_four_processes() {
    in_processes("collectives::processes::alternating_exchanges_among_four_processes", 4, back_to_back);
}

#[test]
fn random_reductions_among_three_processes() {
    in_processes("collectives::processes::random_reductions_among_three_processes", 3, reductions::back_to_back);
}

/// Three ranks with a deadline that no test waits for. `expected` is the report of each. Rank 1 stays alive until all
/// have reported: they hear that it left the transport, not that it died.
fn three(test: &str, expected: [&str; 3], body: impl Fn(&World) -> Result<(), RunError>) {
    if let Some(mut member) = Member::of_this_process() {
        let world = join_within(&mut member, "600s");
        let words = match body(&world) {
            Ok(()) => "all is well".to_string(),
            Err(error @ RunError::Transfer(tilewire::transport::TransferError::Uneven { .. })) => error.to_string(),
            Err(error) => heard(&error).to_string(),
        };
        member.report(words);
        member.hear();
        return;
    }
    let (mut job, _store) = start(test, 3);
    for (rank, expected) in expected.into_iter().enumerate() {
        let words = job.report(rank);
        assert!(words.contains(expected), "rank {rank}: {words}");
    }
    (0..3).for_each(|rank| job.tell(rank, b"go on"));
    job.finish();
}

const LEFT: &str = "rank 1 left while others waited for it";

#[test]
fn an_error_of_one_ranks_build_ends_the_others() {
    let test = "collectives::processes::an_error_of_one_ranks_build_ends_the_others";
    three(test, [LEFT, "pad it to 33", LEFT], |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let len = if world.rank() == Rank::new(1) { 31 } else { 30 };
        all_to_all(&link, &Tensor::<u32>::zeros(len), &Tensor::<u32>::zeros(len)).run()
    });
}

#[test]
fn launches_that_wait_for_a_rank_that_left_end() {
    let test = "collectives::processes::launches_that_wait_for_a_rank_that_left_end";
    three(test, [LEFT, "all is well", LEFT], |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let (inp, out) = (Tensor::<u32>::zeros(30), Tensor::<u32>::zeros(30));
        let mut op = all_to_all(&link, &out, &inp).build()?;
        op.run()?;
        // Like a `?` between two launches: rank 1 makes two, the others a third.
        op.run()?;
        if world.rank() == Rank::new(1) { Ok(()) } else { op.run() }
    });
}

#[test]
fn a_receive_from_a_rank_that_left_ends() {
    let test = "collectives::processes::a_receive_from_a_rank_that_left_ends";
    three(test, [LEFT, "all is well", "all is well"], |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let (first, second, x) = (Rank::new(0), Rank::new(1), Tensor::<u32>::zeros(30));
        match world.rank() {
            rank if rank == second => send(&link, &x, first).run(),
            rank if rank == first => {
                let mut take = recv(&link, &x, second).build()?;
                take.run()?;
                take.run()
            }
            _ => Ok(()),
        }
    });
}

#[test]
fn what_a_rank_sent_before_it_left_arrives() {
    let test = "collectives::processes::what_a_rank_sent_before_it_left_arrives";
    three(test, ["all is well"; 3], |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let (first, second, x) = (Rank::new(0), Rank::new(1), Tensor::from_fn(30, |i| i as u32));
        // So rank 0 builds, and looks, only when rank 1 is gone. Rank 2 is not involved.
        let gone = |link: ShmTransport| {
            drop(link);
            world.bootstrap().barrier("gone", world.deadline()).unwrap();
        };
        match world.rank() {
            rank if rank == second => {
                let mut give = send(&link, &x, first).build()?;
                // The first launch meets the peer's build. The second one's data must arrive.
                give.run()?;
                give.run()?;
                drop(give);
                gone(link);
            }
            rank if rank == first => {
                let out = Tensor::<u32>::zeros(30);
                let mut take = recv(&link, &out, second).build()?;
                take.run()?;
                world.bootstrap().barrier("gone", world.deadline()).unwrap();
                while !link.departures().has_left(1) {
                    std::thread::yield_now();
                }
                out.fill(0);
                take.run()?;
                assert_eq!(out.to_vec(), x.to_vec());
            }
            _ => gone(link),
        }
        Ok(())
    });
}
