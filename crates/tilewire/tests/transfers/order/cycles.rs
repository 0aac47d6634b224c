//! Ranks that wait for each other learn so within a second. Ranks that are slow are waited for.

use super::{OPTIONS, assert_all_failed, outcomes, ramp};
use crate::case::LONG;
use std::time::{Duration, Instant};
use tilewire::link::{ShmOptions, ShmTransport, Transport};
use tilewire::transport::{Pairing, Rank, TransportError, World};
use tilewire::{RunError, Tensor, all_reduce, recv, send};

#[test]
fn a_send_and_then_a_receive_on_both_ranks_is_a_cycle_whatever_the_size() {
    for len in [2, 1 << 20] {
        let start = Instant::now();
        let outcomes = outcomes(2, |world, link| {
            let (peer, x) = (world.rank().after(1, 2), ramp(world.rank(), len));
            send(link, &x, peer).run()?;
            recv(link, &Tensor::<f32>::zeros(len), peer).run()
        });
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert_all_failed(&outcomes, "send, then recv");
        for outcome in &outcomes {
            let error = outcome.as_ref().unwrap_err();
            let RunError::Deadlock(deadlock) = error else { panic!("{error}") };
            let waiting: Vec<_> = deadlock.waiting.iter().map(|it| (it.rank, it.peers.clone())).collect();
            assert_eq!(waiting, [(0, vec![1]), (1, vec![0])], "{error}");
            assert!(error.to_string().contains(file!()) && error.to_string().contains("sendrecv"), "{error}");
        }
    }
}

#[test]
fn a_ring_of_receives_is_a_cycle() {
    let outcomes = outcomes(3, |world, link| {
        let (next, previous, x) = (world.rank().after(1, 3), world.rank().after(2, 3), ramp(world.rank(), 8));
        let mut give = send(link, &x, next).build()?;
        let mut take = recv(link, &Tensor::<f32>::zeros(8), previous).build()?;
        // All have been built. This one is found in the launch.
        take.run()?;
        give.run()
    });
    assert_all_failed(&outcomes, "a ring");
    for outcome in &outcomes {
        let Err(RunError::Deadlock(deadlock)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(deadlock.waiting.len(), 3, "{deadlock}");
    }
}

#[test]
fn both_built_first_is_no_cycle() {
    let outcomes = outcomes(2, |world, link| {
        let (peer, x, y) = (world.rank().after(1, 2), ramp(world.rank(), 8), Tensor::<f32>::zeros(8));
        let (mut give, mut take) = (send(link, &x, peer).build()?, recv(link, &y, peer).build()?);
        give.run()?;
        take.run()?;
        assert_eq!(y.to_vec(), ramp(peer, 8).to_vec());
        Ok(())
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

#[test]
fn a_slow_rank_is_waited_for() {
    let slow = Duration::from_millis(700);
    let outcomes = outcomes(3, |world, link| {
        let x = ramp(world.rank(), 500);
        let mut op = all_reduce(link, &x, &x).build()?;
        for turn in 0..3 {
            // Late before its meeting, and between launches. Meanwhile the others wait for each other and for it.
            if world.rank() == Rank::new(turn) {
                std::thread::sleep(slow);
            }
            op.run()?;
        }
        Ok(())
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

#[test]
fn at_a_timeout_the_rank_at_the_end_of_the_chain_is_named() {
    let errors = World::threads(3).deadline(LONG).run(|world| {
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        let (x, meet) = (Tensor::<f32>::zeros(8), |name: &str| world.bootstrap().barrier(name, LONG.into()));
        let me = world.rank().number();
        // 0 waits for 1, which waits for 2, which is in another call.
        let (mut pass, mut take) = match me {
            0 => (None, Some(recv(&link, &x, Rank::new(1)).deadline(Duration::from_millis(500)).build()?)),
            1 => (Some(send(&link, &x, Rank::new(0)).build()?), Some(recv(&link, &x, Rank::new(2)).build()?)),
            _ => (Some(send(&link, &x, Rank::new(1)).build()?), None),
        };
        let error = match &mut take {
            Some(take) => take.run().err(),
            None => None,
        };
        meet("failed")?;
        let _ = pass.as_mut().map(|pass| pass.run());
        Ok(error)
    });
    let errors = errors.unwrap();
    let Some(RunError::Timeout(timeout)) = &errors[0] else { panic!("{errors:?}") };
    assert_eq!((timeout.peer, timeout.late), (Some(Rank::new(1)), Some(Rank::new(2))), "{timeout}");
    assert!(timeout.to_string().contains("rank 2 is the one that is late"), "{timeout}");
}

/// 0 waits for 1, which waits for 2, which does not come, at their first meetings. `patient` has the longer deadline,
/// and hears of the other's.
fn chain_of_meetings(patient: Rank) -> Vec<RunError> {
    let errors = World::threads(3).deadline(LONG).run(|world| {
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        let (x, me) = (Tensor::<f32>::zeros(8), world.rank());
        let error = (me != Rank::new(2)).then(|| {
            let deadline = if me == patient { LONG } else { Duration::from_millis(500) };
            recv(&link, &x, me.after(1, 3)).deadline(deadline).run().unwrap_err()
        });
        world.bootstrap().barrier("failed", LONG.into())?;
        Ok(error)
    });
    errors.unwrap().into_iter().flatten().collect()
}

#[test]
fn at_a_first_meeting_that_expires_the_rank_at_the_end_of_the_chain_is_named() {
    let [first, second, late] = [0, 1, 2].map(Rank::new);
    for (patient, impatient) in [(second, first), (first, second)] {
        let errors = chain_of_meetings(patient);
        let RunError::Timeout(timeout) = &errors[impatient.index()] else { panic!("{errors:?}") };
        assert_eq!((timeout.peer, timeout.late), (Some(impatient.after(1, 3)), Some(late)), "{timeout}");
        // The other error says for which rank the wait was.
        let RunError::PeerFailed { rank, .. } = &errors[patient.index()] else { panic!("{errors:?}") };
        assert_eq!(*rank, impatient);
        let text = errors[patient.index()].to_string();
        let said = format!("a wait of rank {impatient} for rank 2 expired");
        assert!(text.contains(&said) && text.contains("look into rank 2"), "{text}");
    }
}

/// Rank 0 may look for the late rank after the deadline of rank 1 has passed, and before its abort words are set.
#[test]
fn a_rank_that_gives_up_at_a_meeting_is_seen_to_wait_until_it_says_otherwise() {
    let step = std::sync::Barrier::new(3);
    let all = outcomes(3, |world, link| {
        if world.rank() == Rank::new(1) {
            let ticket = link.ticket(Pairing::Receive, Rank::new(2));
            let error = link.hear(&ticket, Some(Duration::from_millis(50))).unwrap_err();
            assert!(matches!(error, TransportError::NotMet { late, .. } if late == Rank::new(2)), "{error}");
        }
        step.wait();
        assert!(world.rank() != Rank::new(0) || link.status().late(1) == 2);
        step.wait();
        if world.rank() == Rank::new(1) {
            link.status().goes_on();
        }
        step.wait();
        assert!(world.rank() != Rank::new(0) || link.status().late(1) == 1);
        step.wait();
        Ok(())
    });
    assert!(all.iter().all(Result::is_ok), "{all:?}");
}

/// The errors of ranks 0 and 1 when 0 waits in a launch for 1, which waits in one for 2, which does not come. Rank 0
/// begins when it sees that rank 1 waits. The ranks have launched the same operations before, so they do not wait for a
/// first meeting.
fn chain_of_launches(deadlines: [Duration; 2]) -> Vec<RunError> {
    let errors = World::threads(3).deadline(LONG).run(|world| {
        let link = ShmTransport::rendezvous(&world, OPTIONS)?;
        let (x, y, me) = (Tensor::<f32>::zeros(8), Tensor::<f32>::zeros(8), world.rank().index());
        let next = world.rank().after(1, 3);
        let take = deadlines.get(me).map(|&deadline| recv(&link, &y, next).deadline(deadline).build());
        let give = (me > 0).then(|| send(&link, &x, world.rank().after(2, 3)).build());
        let (mut take, mut give) = (take.transpose()?, give.transpose()?);
        let meet = |name: &str| world.bootstrap().barrier(name, LONG.into());
        // All cards are there, and the data are ready when they are taken. So no deadline passes here.
        meet("built")?;
        give.as_mut().map_or(Ok(()), |give| give.run())?;
        meet("given")?;
        take.as_mut().map_or(Ok(()), |take| take.run())?;
        meet("taken")?;
        // On a busy machine, the deadline of rank 1 may have passed by now.
        while me == 0 && link.status().late(1) != 2 && link.broken().is_none() {
            std::thread::yield_now();
        }
        let error = take.as_mut().map(|take| take.run().unwrap_err());
        meet("failed")?;
        Ok(error)
    });
    errors.unwrap().into_iter().flatten().collect()
}

#[test]
fn of_ranks_whose_launches_expire_in_a_chain_at_the_same_time_none_blames_one_in_the_middle() {
    for run in 0..200 {
        // Rank 1 reports its wait after some 5 ms. From then on rank 0 waits, for different times.
        let errors = chain_of_launches([5_000 + 50 * run, 15_000].map(Duration::from_micros));
        for (rank, error) in errors.iter().enumerate() {
            let late = match error {
                RunError::Timeout(timeout) => timeout.late,
                // It heard of the other rank's.
                RunError::PeerFailed { cause, .. } => cause.late().map(|late| Rank::new(late as u32)),
                _ => panic!("run {run}: rank {rank}: {error}"),
            };
            assert_eq!(late, Some(Rank::new(2)), "run {run}: rank {rank}: {error}");
        }
    }
}
