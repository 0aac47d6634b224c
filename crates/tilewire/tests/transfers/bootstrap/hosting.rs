//! A rank that hosts the store, as a process: its end, and the others' errors, when one of them is stopped, leaves or
//! is killed.

use crate::bootstrap::{SHORT, secret};
use std::net::TcpListener;
use std::time::{Duration, Instant};
use tilewire::transport::{Placement, World, WorldError};
use tilewire_testkit::job::{Job, Member};

/// Runs the test of this name again, in processes that are told where rank 0 hosts the store.
fn start(test: &str, ranks: usize) -> Job {
    let mut job = Job::start(test, ranks);
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    (0..ranks).for_each(|rank| job.tell(rank, address.as_bytes()));
    job
}

fn join(member: &mut Member, deadline: &str) -> World {
    let address = String::from_utf8(member.hear()).unwrap();
    let placement = Placement::from_vars(&|name| match name {
        "TILEWIRE_RANK" => Some(member.rank.to_string()),
        "TILEWIRE_WORLD_SIZE" => Some(member.size.to_string()),
        "TILEWIRE_STORE" => Some(address.clone()),
        "TILEWIRE_STORE_HOST" => Some("rank0".to_string()),
        "TILEWIRE_SECRET" => Some(secret().expose().to_string()),
        "TILEWIRE_DEADLINE" => Some(deadline.to_string()),
        _ => None,
    });
    World::join(&placement.unwrap()).unwrap()
}

fn signal(job: &Job, rank: usize, signal: i32) {
    // SAFETY: `kill` takes plain numbers, and the job has not reaped its child.
    assert_eq!(unsafe { libc::kill(job.pid(rank), signal) }, 0);
}

/// The default deadline, which is not changed here, is 30 s.
const FAR_FROM_THE_DEFAULT: Duration = Duration::from_secs(10);

#[test]
fn a_host_leaves_at_once_and_ends_soon_after_a_failure_though_a_rank_is_stopped() {
    let test = "bootstrap::hosting::a_host_leaves_at_once_and_ends_soon_after_a_failure_though_a_rank_is_stopped";
    if let Some(mut member) = Member::of_this_process() {
        let world = join(&mut member, "1s");
        member.report("joined");
        member.hear();
        let error = world.bootstrap().barrier("b", world.deadline()).unwrap_err();
        // `main` prints its error after all of this is dropped.
        drop(world);
        return member.report(error.to_string());
    }
    let mut job = start(test, 2);
    job.expect(0..2, "joined");
    signal(&job, 1, libc::SIGSTOP);
    let stopped = Instant::now();
    job.tell(0, b"go on");
    let error = job.report(0);
    assert!(error.contains("did not come: rank 1"), "{error}");
    assert!(job.ends(0).success());
    assert!(stopped.elapsed() < FAR_FROM_THE_DEFAULT, "{:?}", stopped.elapsed());
}

#[test]
fn a_host_that_leaves_in_peace_waits_no_longer_than_its_deadline() {
    let test = "bootstrap::hosting::a_host_that_leaves_in_peace_waits_no_longer_than_its_deadline";
    if let Some(mut member) = Member::of_this_process() {
        let world = join(&mut member, "1s");
        member.report("joined");
        member.hear();
        drop(world);
        return member.report("left");
    }
    let mut job = start(test, 2);
    job.expect(0..2, "joined");
    signal(&job, 1, libc::SIGSTOP);
    let stopped = Instant::now();
    job.tell(0, b"go on");
    job.expect([0], "left");
    assert!(job.ends(0).success());
    assert!(stopped.elapsed() < FAR_FROM_THE_DEFAULT, "{:?}", stopped.elapsed());
}

#[test]
fn a_host_whose_main_has_returned_stays_until_the_others_have_left() {
    let test = "bootstrap::hosting::a_host_whose_main_has_returned_stays_until_the_others_have_left";
    if let Some(mut member) = Member::of_this_process() {
        let world = join(&mut member, "10s");
        if member.rank == 0 {
            world.bootstrap().set("key", b"value", world.deadline()).unwrap();
            drop(world);
            return member.report("left");
        }
        member.hear();
        let value = world.bootstrap().get("key", world.deadline()).unwrap();
        return member.report(String::from_utf8(value).unwrap());
    }
    let mut job = start(test, 2);
    job.expect([0], "left");
    // A process that does not wait ends long before this.
    std::thread::sleep(2 * SHORT);
    job.tell(1, b"go on");
    job.expect([1], "value");
    job.finish();
}

/// The others may be in any call at that moment.
#[test]
fn a_host_that_is_killed_is_named_by_every_other_rank() {
    let test = "bootstrap::hosting::a_host_that_is_killed_is_named_by_every_other_rank";
    if let Some(mut member) = Member::of_this_process() {
        let world = join(&mut member, "10s");
        member.report("joined");
        let store = world.bootstrap();
        let error = match member.rank {
            0 => loop {
                std::thread::park();
            },
            1 => store.barrier("b", world.deadline()).unwrap_err(),
            2 => store.get("key", world.deadline()).unwrap_err(),
            // Between calls.
            _ => loop {
                if let Err(error) = store.set("key of rank 3", b"", world.deadline()) {
                    break error;
                }
                std::thread::yield_now();
            },
        };
        member.report(error.to_string());
        let error = WorldError::from(store.all_gather("later", b"", world.deadline()).unwrap_err());
        return member.report(error.to_string());
    }
    let mut job = start(test, 4);
    job.expect(0..4, "joined");
    job.kill(0);
    for rank in 1..4 {
        for _ in 0..2 {
            let error = job.report(rank);
            assert!(error.starts_with("rank 0 died"), "rank {rank}: {error}");
        }
    }
}
