//! Ranks that end in the middle of a job: every survivor learns which one, wherever it is.

use super::suite::{PATIENCE, fabric, mesh, rounds, staged};
use std::time::{Duration, Instant};
use tilewire::link::Transport;
use tilewire::transport::{RankError, TransportError, World};
use tilewire::{RunError, Tensor, all_reduce};
use tilewire_testkit::job::{Job, Member};
use tilewire_testkit::libfabric;
use tilewire_testkit::ranks::{join_within, start};

/// A survivor's report of its error.
fn told(error: &(dyn std::error::Error + 'static)) -> String {
    match error.downcast_ref::<RunError>() {
        Some(RunError::PeerFailed { cause, .. }) => return cause.to_string(),
        Some(RunError::Timeout(timeout)) => return format!("timeout: {:?}", timeout.peer),
        _ => {}
    }
    match error.downcast_ref::<TransportError>() {
        Some(TransportError::Broken { cause }) => cause.to_string(),
        _ => error.to_string(),
    }
}

/// Launches until a launch fails. Reports "under way" after the first one.
fn reduce_until_it_fails(member: &mut Member, link: &dyn Transport) -> RankError {
    let (x, y) = (Tensor::from_slice(&[1.0f32; 3000]), Tensor::<f32>::zeros(3000));
    let mut sum = match all_reduce(link, &y, &x).config(staged(512, 4)).build() {
        Ok(sum) => sum,
        Err(error) => return error.into(),
    };
    for turn in 0.. {
        if let Err(error) = sum.run() {
            return error.into();
        }
        assert!(y.to_vec().iter().all(|y| *y == link.world_size() as f32), "turn {turn}");
        if turn == 0 {
            member.report("under way");
        }
    }
    unreachable!("a rank ends");
}

/// The transport of a test: every rank is a domain, or there are two domains of three ranks.
fn link(world: &World, over: &str) -> Result<Box<dyn Transport>, TransportError> {
    Ok(match over {
        "mesh" => Box::new(mesh(world, Some(vec![vec![0, 2], vec![1]]), "tcp")?),
        provider => Box::new(fabric(world, provider)?),
    })
}

/// A rank of these tests: its transport, and the way in which rank 1 ends.
fn rank(member: &mut Member, over: &str, ends: fn(Box<dyn Transport>)) {
    let world = join_within(member, "30s");
    let link = link(&world, over).unwrap();
    if member.rank == 1 {
        let (x, y) = (Tensor::from_slice(&[1.0f32; 3000]), Tensor::<f32>::zeros(3000));
        let mut sum = all_reduce(&*link, &y, &x).config(staged(512, 4)).build().unwrap();
        (0..3).for_each(|_| sum.run().unwrap());
        drop(sum);
        ends(link);
        // The world stays, so the others hear only what the transport reports.
        member.hear();
        return;
    }
    let error = reduce_until_it_fails(member, &*link);
    member.report(told(&*error));
    let closed = link.close().unwrap_err();
    member.report(told(&closed));
}

#[track_caller]
fn survivors_say(test: &str, over: &str, ends: fn(Box<dyn Transport>), expected: &[&str]) {
    if let Some(mut member) = Member::of_this_process() {
        return rank(&mut member, over, ends);
    }
    if libfabric::find().is_none() {
        return;
    }
    let (mut job, _store) = start(test, 3);
    job.allow(PATIENCE);
    for rank in [0, 2] {
        assert_eq!(job.report(rank), "under way");
        for call in ["the launch", "closing"] {
            let said = job.report(rank);
            assert!(expected.contains(&said.as_str()), "rank {rank}, {call}: {said}");
        }
    }
}

#[test]
fn a_rank_that_breaks_the_transport_is_named_everywhere() {
    let ends = |link: Box<dyn Transport>| {
        link.fail(tilewire::transport::Cause { code: tilewire::transport::AbortCode::Failed, rank: 1, reason: 0 });
    };
    let test = "faults::a_rank_that_breaks_the_transport_is_named_everywhere";
    survivors_say(test, "mesh", ends, &["rank 1 gave up after an error"]);
}

#[test]
fn a_rank_that_leaves_is_named_everywhere() {
    let test = "faults::a_rank_that_leaves_is_named_everywhere";
    survivors_say(test, "tcp", drop, &["rank 1 left while others waited for it"]);
}

#[test]
fn a_rank_that_exits_is_named_everywhere() {
    let test = "faults::a_rank_that_exits_is_named_everywhere";
    survivors_say(test, "mesh", |_| std::process::exit(3), &["rank 1 died"]);
}

#[test]
fn a_rank_that_panics_is_named_everywhere() {
    let test = "faults::a_rank_that_panics_is_named_everywhere";
    let ends = |_link: Box<dyn Transport>| std::panic::resume_unwind(Box::new("without a message"));
    survivors_say(test, "mesh", ends, &["rank 1 panicked"]);
}

/// Kills a rank at a time when all are under way. Survivors name it, and end long before their deadline.
fn kills_mid_pipeline(test: &str, over: &str, usual: u64) {
    if let Some(mut member) = Member::of_this_process() {
        let world = join_within(&mut member, "60s");
        let link = link(&world, over).unwrap();
        let error = reduce_until_it_fails(&mut member, &*link);
        member.report(told(&*error));
        return member.report(told(&link.close().unwrap_err()));
    }
    if libfabric::find().is_none() {
        return;
    }
    for round in 0..rounds(usual) {
        let (mut job, _store) = start(test, 3);
        job.allow(PATIENCE);
        job.expect(0..3, "under way");
        std::thread::sleep(Duration::from_micros(round * 1373 % 20_000));
        let victim = (round % 3) as usize;
        job.kill(victim);
        let killed = Instant::now();
        for rank in (0..3).filter(|&rank| rank != victim) {
            for call in ["the launch", "closing"] {
                assert_eq!(job.report(rank), format!("rank {victim} died"), "round {round}, rank {rank}, {call}");
            }
        }
        assert!(killed.elapsed() < Duration::from_secs(20), "{:?}", killed.elapsed());
    }
}

#[test]
fn a_kill_in_mid_pipeline_over_tcp_is_told() {
    kills_mid_pipeline("faults::a_kill_in_mid_pipeline_over_tcp_is_told", "tcp", 3);
}

#[test]
fn a_kill_in_mid_pipeline_of_a_mesh_is_told() {
    kills_mid_pipeline("faults::a_kill_in_mid_pipeline_of_a_mesh_is_told", "mesh", 3);
}

/// Killed while the ranks meet. Survivors name it within the deadline.
#[test]
fn a_kill_at_the_rendezvous_is_told() {
    let test = "faults::a_kill_at_the_rendezvous_is_told";
    if let Some(mut member) = Member::of_this_process() {
        let world = join_within(&mut member, "8s");
        member.report("joined");
        // The victim is killed before it hears of it, or soon after.
        member.hear();
        let said = match link(&world, "tcp") {
            Ok(link) => told(&*reduce_until_it_fails(&mut member, &*link)),
            Err(error) => told(&error),
        };
        return member.report(said);
    }
    if libfabric::find().is_none() {
        return;
    }
    for round in 0..rounds(3) {
        let (mut job, _store) = start(test, 3);
        job.allow(Duration::from_secs(40));
        job.expect(0..3, "joined");
        (0..3).for_each(|rank| job.tell(rank, b"meet"));
        std::thread::sleep(Duration::from_millis(round * 37 % 150));
        job.kill(2);
        for rank in 0..2 {
            let mut said = job.report(rank);
            if said == "under way" {
                said = job.report(rank);
            }
            assert!(said.contains("rank 2") || said.contains("[2]"), "round {round}, rank {rank}: {said}");
        }
    }
}

/// Killed while the others close.
#[test]
fn a_kill_at_the_close_is_told() {
    let test = "faults::a_kill_at_the_close_is_told";
    if let Some(mut member) = Member::of_this_process() {
        let world = join_within(&mut member, "20s");
        let link = link(&world, "tcp").unwrap();
        let (x, y) = (Tensor::from_slice(&[1.0f32; 3000]), Tensor::<f32>::zeros(3000));
        all_reduce(&*link, &y, &x).run().unwrap();
        member.report("done");
        if member.rank == 1 {
            member.hear();
        }
        return member.report(told(&link.close().unwrap_err()));
    }
    if libfabric::find().is_none() {
        return;
    }
    for round in 0..rounds(2) {
        let (mut job, _store) = start(test, 3);
        job.allow(Duration::from_secs(40));
        job.expect(0..3, "done");
        std::thread::sleep(Duration::from_millis(round * 37 % 150));
        job.kill(1);
        for rank in [0, 2] {
            assert_eq!(job.report(rank), "rank 1 died", "round {round}, rank {rank}");
        }
    }
}

/// Stopped for a while, shorter than the deadline. The job continues as if nothing had happened.
#[test]
fn a_rank_that_is_stopped_for_a_while_is_waited_for() {
    let test = "faults::a_rank_that_is_stopped_for_a_while_is_waited_for";
    if let Some(mut member) = Member::of_this_process() {
        let world = join_within(&mut member, "60s");
        let link = link(&world, "mesh").unwrap();
        let (x, y) = (Tensor::from_slice(&[1.0f32; 3000]), Tensor::<f32>::zeros(3000));
        let mut sum = all_reduce(&*link, &y, &x).config(staged(512, 4)).build().unwrap();
        sum.run().unwrap();
        member.report("under way");
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(6) {
            // All ranks make the same number of launches, because they wait for each other in each.
            sum.run().unwrap();
            assert!(y.to_vec().iter().all(|y| *y == 3.0));
            // Rank 0 decides whether to continue.
            let mine = Tensor::from_slice(&[u32::from(start.elapsed() < Duration::from_secs(5))]);
            let all = Tensor::<u32>::zeros(3);
            tilewire::all_gather(&*link, &all, &mine).run().unwrap();
            if all.get(0) == 0 {
                break;
            }
        }
        drop(sum);
        return member.report(format!("{:?}", link.close().map_err(|error| error.to_string())));
    }
    if libfabric::find().is_none() {
        return;
    }
    let (mut job, _store) = start(test, 3);
    job.allow(PATIENCE);
    job.expect(0..3, "under way");
    stop_and_continue(&job, 1, Duration::from_secs(3));
    job.expect(0..3, "Ok(())");
    job.finish();
}

fn stop_and_continue(job: &Job, rank: usize, time: Duration) {
    // SAFETY: signals a child of this test; touches no memory.
    let signal = |signal| assert_eq!(unsafe { libc::kill(job.pid(rank), signal) }, 0);
    signal(libc::SIGSTOP);
    std::thread::sleep(time);
    signal(libc::SIGCONT);
}
