//! Nothing hangs: a rank that waits for one that does not come gets an error that names it, and the others hear of it.

use crate::case::{LONG, SMALL, Way, among, joined};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tilewire::collective::{Rounds, Timeout};
use tilewire::link::{Transport, Window};
use tilewire::transport::{AbortCode, Cause, Rank, TransferError};
use tilewire::{RunError, Tensor, all_reduce, all_to_all, recv, send};

const SHORT: Duration = Duration::from_millis(300);

/// Four ranks build; rank 2 does not run. Rank 0, which has a short deadline, says for which rank it waited. The others
/// hear of it.
fn without_rank_2(way: Way, rounds: Rounds) -> Timeout {
    let late = Rank::new(2);
    let errors = among(4, LONG, |world| {
        let link = joined(&world, SMALL)?;
        let window = Window::<u32>::allocate(&link, 400)?;
        let inp = Tensor::<u32>::zeros(400);
        let deadline = if world.rank() == Rank::new(0) { SHORT } else { LONG };
        let exchange = all_to_all(&link, window.tensor(), &inp).config(way.config(1)).rounds(rounds).deadline(deadline);
        let mut op = if way == Way::Direct { exchange.window(&window).build()? } else { exchange.build()? };
        let meet = |name: &str| world.bootstrap().barrier(name, LONG.into());
        if world.rank() == late {
            // The build tells the others its card, so the others do launch.
            meet("failed")?;
            return Ok(op.run().unwrap_err());
        }
        let error = op.run().unwrap_err();
        meet("failed")?;
        Ok(error)
    });
    let errors = errors.unwrap();
    let cause = Cause::timed_out(0, Some(2));
    for rank in [1, 3] {
        // In its launch, or before it if it got no processor for so long.
        assert_eq!(heard(&errors[rank]), cause, "rank {rank}");
    }
    assert_eq!(heard(&errors[2]), cause);
    match &errors[0] {
        RunError::Timeout(timeout) => (**timeout).clone(),
        other => panic!("{other}"),
    }
}

#[test]
pub fn who_waits_for_a_rank_that_does_not_run_names_it() {
    for way in [Way::Packet, Way::staged(128, 2), Way::Direct] {
        for rounds in [Rounds::Roles, Rounds::Blocks] {
            let error = without_rank_2(way, rounds);
            assert_eq!((error.rank, error.peer, error.after), (Rank::new(0), Some(Rank::new(2)), SHORT), "{error}");
            let (call, at) = (error.call.as_ref().unwrap(), error.at.as_ref().unwrap());
            assert_eq!((&*call.operation, call.at.file), ("all_to_all of 100 u32 for each rank", file!()));
            let words = error.to_string();
            assert!(words.contains(&call.to_string()) && words.contains(at.file), "{words}");
        }
    }
}

#[test]
fn who_waits_for_the_input_of_a_rank_that_does_not_run_names_it() {
    let errors = among(3, LONG, |world| {
        let link = joined(&world, SMALL)?;
        let window = Window::<f32>::allocate(&link, 400)?;
        let deadline = if world.rank() == Rank::new(0) { SHORT } else { LONG };
        let reduction = all_reduce(&link, window.tensor(), window.tensor()).window(&window);
        let mut op = reduction.deadline(deadline).build()?;
        if world.rank() == Rank::new(2) {
            world.bootstrap().barrier("failed", LONG.into())?;
            return Ok(None);
        }
        let error = op.run().unwrap_err();
        world.bootstrap().barrier("failed", LONG.into())?;
        Ok(Some(error))
    });
    let errors = errors.unwrap();
    let Some(RunError::Timeout(error)) = &errors[0] else { panic!("{errors:?}") };
    assert_eq!((error.rank, error.peer, error.after), (Rank::new(0), Some(Rank::new(2)), SHORT), "{error}");
    assert!(error.to_string().contains("done of rank 2"), "{error}");
    let cause = Cause::timed_out(0, Some(2));
    assert_eq!(heard(errors[1].as_ref().unwrap()), cause);
}

#[test]
pub fn a_rank_that_never_builds_is_named() {
    let deadline = Duration::from_secs(1);
    let errors = among(3, deadline, |world| {
        let link = joined(&world, SMALL)?;
        if world.rank() == Rank::new(1) {
            return Ok(None);
        }
        let (inp, out) = (Tensor::<u32>::zeros(30), Tensor::<u32>::zeros(30));
        let error = all_to_all(&link, &out, &inp).run().unwrap_err();
        Ok(Some(error.to_string()))
    });
    let errors: Vec<String> = errors.unwrap().into_iter().flatten().collect();
    assert_eq!(errors.len(), 2);
    // The first rank to give up names rank 1. The other may hear of that first.
    assert!(errors.iter().any(|error| error.contains("rank 1")), "{errors:?}");
}

#[test]
pub fn what_is_built_and_dropped_breaks_the_transport_for_all() {
    let errors = among(3, LONG, |world| {
        let link = joined(&world, SMALL)?;
        let (inp, out) = (Tensor::<u32>::zeros(30), Tensor::<u32>::zeros(30));
        let mut op = all_to_all(&link, &out, &inp).build()?;
        world.bootstrap().barrier("built", LONG.into())?;
        if world.rank() == Rank::new(1) {
            drop(op);
            return Ok(link.broken().is_some());
        }
        Ok(op.run().is_err())
    });
    assert_eq!(errors.unwrap(), [true; 3]);
}

/// The cause that a rank heard of, in whichever way it heard of it.
pub fn heard(error: &RunError) -> Cause {
    match error {
        RunError::PeerFailed { cause, .. } => *cause,
        other => panic!("{other}"),
    }
}

#[test]
pub fn an_error_of_one_ranks_build_ends_the_others_long_before_their_deadline() {
    let heard_by = Mutex::new(Vec::new());
    let start = Instant::now();
    let result = among(3, Duration::from_secs(600), |world| {
        let link = joined(&world, SMALL)?;
        // Rank 1 alone has a tensor that cannot be cut into three.
        let len = if world.rank() == Rank::new(1) { 31 } else { 30 };
        let (inp, out) = (Tensor::<u32>::zeros(len), Tensor::<u32>::zeros(len));
        let result = all_to_all(&link, &out, &inp).run();
        if let (Err(error), true) = (&result, len == 30) {
            heard_by.lock().unwrap().push(heard(error));
        }
        Ok(result?)
    });
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    // The report contains the cause, not its effect on the others.
    let words = result.unwrap_err().to_string();
    assert!(words.starts_with("rank 1 failed: ") && words.contains("pad it to 33"), "{words}");
    assert_eq!(heard_by.into_inner().unwrap(), [Cause { code: AbortCode::Failed, rank: 1, reason: 0 }; 2]);
}

/// A thread that ends its closure before it made the calls of the others: none of them, or one launch too few.
#[test]
pub fn a_thread_that_leaves_is_not_waited_for() {
    for launches in [0, 1, 7] {
        let start = Instant::now();
        let result = among(2, Duration::from_secs(600), |world| {
            let link = joined(&world, SMALL)?;
            let (inp, out) = (Tensor::<u32>::zeros(1000), Tensor::<u32>::zeros(1000));
            let more = usize::from(world.rank() == Rank::new(0));
            if launches + more > 0 {
                let mut op = all_to_all(&link, &out, &inp).build()?;
                (0..launches + more).try_for_each(|_| op.run())?;
            }
            Ok(())
        });
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
        let words = result.unwrap_err().to_string();
        assert!(words.starts_with("rank 0 failed: "), "{words}");
        assert!(words.contains("rank 1 left while others waited for it"), "{words}");
    }
}

/// Data that a thread sent before it ended arrives.
#[test]
pub fn what_a_thread_sent_before_it_left_arrives() {
    for len in [1, 100, 5000] {
        let all = among(2, Duration::from_secs(60), |world| {
            let link = joined(&world, SMALL)?;
            let x = Tensor::from_fn(len, |i| i as u32);
            if world.rank() == Rank::new(1) {
                send(&link, &x, Rank::new(0)).run()?;
                return Ok(true);
            }
            let y = Tensor::<u32>::zeros(len);
            let mut take = recv(&link, &y, Rank::new(1)).build()?;
            // The other rank has left by then, unless it waits for room.
            std::thread::sleep(Duration::from_millis(20));
            take.run()?;
            Ok(y.to_vec() == x.to_vec())
        });
        assert_eq!(all.unwrap(), [true, true], "{len} elements");
    }
}

#[test]
pub fn an_error_that_all_ranks_get_alike_leaves_the_link_as_it_was() {
    among(3, LONG, |world| {
        let link = joined(&world, SMALL)?;
        for len in [31, 30, 32, 33] {
            let (inp, out) = (Tensor::from_fn(len, |i| i as u32), Tensor::<u32>::zeros(len));
            match all_to_all(&link, &out, &inp).run() {
                Ok(()) => {
                    assert_eq!((len % 3, out.get(len - 1)), (0, (world.rank().index() * len / 3 + len / 3 - 1) as u32))
                }
                Err(error) => assert!(matches!(error, RunError::Transfer(TransferError::Uneven { .. })), "{error}"),
            }
        }
        Ok(link.close()?)
    })
    .unwrap();
}
