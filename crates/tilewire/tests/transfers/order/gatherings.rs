//! A rank in a call that all ranks make (a window, `close`), while others do something else, learns so within a second.
//! One that waits for a slow rank waits.

use super::{assert_all_failed, outcomes, ramp};
use crate::case::LONG;
use std::time::{Duration, Instant};
use tilewire::link::{ShmOptions, ShmTransport, Transport, Window};
use tilewire::transport::{AbortCode, Rank, RankError, TransportError, Verdict, World};
use tilewire::{Primitive, RunError, Tensor, all_reduce, all_to_all, recv, sendrecv};
use tilewire_testkit::ranks::in_processes;

const LEN: usize = 600;
const FIRST: Rank = Rank::new(0);

/// Rank 0 asks for a window, for `direct`, and the other ranks launch without one.
fn direct_against_auto(link: &ShmTransport, built_before: bool) -> Result<(), RunError> {
    let (x, y) = (ramp(link.rank(), LEN), Tensor::<f32>::zeros(LEN));
    let mut all = all_reduce(link, &y, &x).build()?;
    if built_before {
        all.run()?;
    }
    if link.rank() == FIRST {
        let window = Window::<f32>::allocate(link, LEN)?;
        let peer = link.rank().after(1, 2);
        return sendrecv(link, window.tensor(), &x, peer, peer).primitive(Primitive::Direct).window(&window).run();
    }
    all.run()
}

#[track_caller]
fn assert_names_both(error: &RunError, calls: [&str; 2]) {
    let RunError::Deadlock(deadlock) = error else { panic!("{error}") };
    assert!(deadlock.waiting.len() >= 2, "{error}");
    let text = error.to_string();
    assert!(calls.iter().all(|call| text.contains(call)) && text.matches(file!()).count() >= 2, "{text}");
}

#[test]
fn a_window_on_one_rank_and_a_launch_on_the_others_are_an_error_on_all() {
    for (ranks, built_before) in [(2, false), (2, true), (3, true)] {
        let start = Instant::now();
        let outcomes = outcomes(ranks, |_, link| direct_against_auto(link, built_before));
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert_all_failed(&outcomes, "a window against a launch");
        for outcome in &outcomes {
            let error = outcome.as_ref().unwrap_err();
            assert_names_both(error, ["Window::allocate of 600 f32 at", "all_reduce of 600 f32 at"]);
        }
    }
}

#[test]
fn a_window_on_one_rank_and_a_launch_on_another_are_an_error_on_both_among_processes() {
    let body = |world: &World| -> Result<(), RankError> {
        let link = ShmTransport::rendezvous(world, ShmOptions::default())?;
        let start = Instant::now();
        let error = direct_against_auto(&link, true).expect_err("they do different things");
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}: {error}", start.elapsed());
        assert_names_both(&error, ["Window::allocate of 600 f32 at", "all_reduce of 600 f32 at"]);
        Ok(())
    };
    let name = "order::gatherings::a_window_on_one_rank_and_a_launch_on_another_are_an_error_on_both_among_processes";
    in_processes(name, 2, body);
}

#[test]
fn a_window_on_one_rank_and_a_close_on_another_are_an_error_on_both() {
    let start = Instant::now();
    let outcomes = World::threads(2).deadline(LONG).run(|world| {
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        let error = match world.rank() == FIRST {
            true => Window::<f32>::allocate(&link, LEN).map(drop).unwrap_err(),
            false => link.close().unwrap_err(),
        };
        // Neither has ended its program when the other hears of it.
        world.bootstrap().barrier("both heard", LONG.into())?;
        Ok(error)
    });
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    for error in outcomes.unwrap() {
        let TransportError::Judged(Verdict::Deadlock(waiting)) = &error else { panic!("{error}") };
        assert_eq!(waiting.iter().map(|it| it.rank).collect::<Vec<_>>(), [0, 1]);
        let text = error.to_string();
        assert!(["Window::allocate", "close()", file!()].iter().all(|word| text.contains(word)), "{text}");
    }
}

#[test]
fn a_slow_rank_is_waited_for_in_a_window_and_in_a_close() {
    let outcomes = outcomes(3, |world, link| {
        for turn in 0..3 {
            if world.rank() == Rank::new(turn) {
                std::thread::sleep(Duration::from_millis(400));
            }
            let window = Window::<u32>::allocate(link, 96)?;
            let x = Tensor::from_fn(96, |i| i as u32);
            all_to_all(link, window.tensor(), &x).primitive(Primitive::Direct).window(&window).run()?;
        }
        if world.rank() == FIRST {
            std::thread::sleep(Duration::from_millis(400));
        }
        Ok(())
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

#[test]
fn windows_of_two_transports_in_another_order_are_told_apart() {
    let start = Instant::now();
    let errors = World::threads(2).deadline(LONG).run(|world| {
        let links = [(); 2].map(|()| ShmTransport::rendezvous(&world, ShmOptions::default()));
        let [one, other] = links;
        let mut links = [one?, other?];
        // Some calls of each kind in order, so that the counts of the two transports differ.
        for link in [&links[0], &links[0], &links[1]] {
            Window::<f32>::allocate(link, LEN)?;
        }
        if world.rank() == FIRST {
            links.reverse();
        }
        Ok(Window::<f32>::allocate(&links[0], LEN).map(drop).unwrap_err())
    });
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    for error in errors.unwrap() {
        let TransportError::Mismatch { parameter, values } = &error else { panic!("{error}") };
        assert!(parameter == "transport" && values[0] != values[1], "{error}");
    }
}

#[test]
fn who_has_let_go_of_a_transport_holds_up_nobody_on_another() {
    let outcomes = World::threads(2).deadline(LONG).run(|world| {
        let old = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        let kept = (world.rank() == FIRST).then_some(old);
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        Window::<f32>::allocate(&link, LEN)?;
        link.close()?;
        drop(kept);
        Ok(())
    });
    outcomes.unwrap();
}

#[test]
fn a_rank_that_comes_after_the_verdict_is_told_the_same() {
    let outcomes = World::threads(3).deadline(LONG).run(|world| {
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        let mut errors = Vec::new();
        match world.rank().number() {
            0 => errors.push(Window::<f32>::allocate(&link, LEN).map(drop).unwrap_err().into()),
            1 => errors.push(recv(&link, &Tensor::<f32>::zeros(LEN), FIRST).run().unwrap_err()),
            _ => {
                link.doorbell(world.rank()).sleep(|| link.is_broken(), LONG);
                errors.push(link.check().unwrap_err().into());
                errors.push(Window::<f32>::allocate(&link, LEN).map(drop).unwrap_err().into());
                errors.push(link.close().unwrap_err().into());
            }
        }
        world.bootstrap().barrier("all heard", LONG.into())?;
        Ok(errors)
    });
    for error in outcomes.unwrap().iter().flatten() {
        assert_names_both(error, ["Window::allocate of 600 f32 at", "recv of 600 f32"]);
    }
}

/// Rank 1 drops its transport, and rank 0 asks for a window on it.
fn window_against_drop(world: &World) -> Result<(), RankError> {
    let link = ShmTransport::rendezvous(world, ShmOptions::default())?;
    if world.rank() == FIRST {
        let start = Instant::now();
        let error = Window::<f32>::allocate(&link, LEN).map(drop).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}: {error}", start.elapsed());
        let TransportError::Broken { cause } = &error else { panic!("{error}") };
        assert_eq!((cause.code, cause.rank), (AbortCode::Left, 1), "{error}");
    } else {
        drop(link);
    }
    // Rank 1 does not end its program, so the bootstrap does not notice it.
    Ok(world.bootstrap().barrier("rank 0 heard", LONG.into())?)
}

#[test]
fn a_window_on_one_rank_and_a_dropped_transport_on_another_are_an_error() {
    World::threads(2).deadline(LONG).run(|world| window_against_drop(&world)).unwrap();
}

#[test]
fn a_window_on_one_rank_and_a_dropped_transport_on_another_are_an_error_among_processes() {
    let name =
        "order::gatherings::a_window_on_one_rank_and_a_dropped_transport_on_another_are_an_error_among_processes";
    in_processes(name, 2, window_against_drop);
}

#[test]
fn a_rank_that_dropped_one_transport_and_asks_for_a_window_on_another_is_told_apart() {
    let start = Instant::now();
    let errors = World::threads(2).deadline(LONG).run(|world| {
        let mut links = Vec::new();
        for _ in 0..2 {
            links.push(ShmTransport::rendezvous(&world, ShmOptions::default())?);
        }
        if world.rank() != FIRST {
            links.remove(0);
        }
        Ok(Window::<f32>::allocate(&links[0], LEN).map(drop).unwrap_err())
    });
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    for error in errors.unwrap() {
        let TransportError::Mismatch { parameter, values } = &error else { panic!("{error}") };
        assert!(parameter == "transport" && values[0] != values[1], "{error}");
    }
}

#[test]
fn of_several_calls_that_expire_each_names_the_rank_that_did_not_come() {
    let outcomes = World::threads(3).deadline(Duration::from_millis(600)).run(|world| {
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        if world.rank() != Rank::new(2) {
            // One deadline passes after the other.
            std::thread::sleep(Duration::from_millis(100) * world.rank().number());
            let error = RunError::from(Window::<f32>::allocate(&link, LEN).map(drop).unwrap_err());
            let RunError::Timeout(timeout) = &error else { panic!("{error}") };
            assert_eq!(timeout.late, Some(Rank::new(2)), "{error}");
        }
        world.bootstrap().barrier("all expired", LONG.into())?;
        Ok(link.close()?)
    });
    outcomes.unwrap();
}

#[test]
fn a_call_that_expired_does_not_count() {
    let short = Duration::from_millis(300);
    let outcomes = World::threads(2).deadline(short).run(|world| {
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        if world.rank() == FIRST {
            let error = RunError::from(Window::<f32>::allocate(&link, LEN).map(drop).unwrap_err());
            let RunError::Timeout(timeout) = &error else { panic!("{error}") };
            assert_eq!(timeout.late, Some(Rank::new(1)), "{error}");
        }
        world.bootstrap().barrier("expired", LONG.into())?;
        Window::<f32>::allocate(&link, LEN)?;
        Window::<f32>::allocate(&link, LEN)?;
        Ok(link.close()?)
    });
    outcomes.unwrap();
}
