//! Operations that one rank launches in another order than the others.

use super::{assert_all_failed, outcomes, ramp};
use tilewire::collective::PreparedExchange;
use tilewire::link::{ShmTransport, Transport, Window};
use tilewire::transport::Rank;
use tilewire::{Knobs, Primitive, RunError, Tensor, all_gather, all_reduce, all_to_all, kernel, recv, send, sendrecv};

type Op<'l> = PreparedExchange<'l>;

/// Two operations, built in the same order by both ranks, and launched in another order by rank 1. `build` returns them
/// and keeps their tensors.
fn swapped(
    build: impl for<'l> Fn(&'l ShmTransport) -> Result<[Op<'l>; 2], RunError> + Sync,
    rounds: usize,
) -> Vec<RunError> {
    let outcomes = outcomes(2, |world, link| {
        let mut ops = build(link)?;
        // Some rounds in the same order, so that counters have left their first values.
        for _ in 0..rounds {
            ops.iter_mut().try_for_each(Op::run)?;
        }
        if world.rank() == Rank::new(1) {
            ops.reverse();
        }
        ops.iter_mut().try_for_each(Op::run)
    });
    assert_all_failed(&outcomes, "two operations");
    outcomes.into_iter().map(|outcome| outcome.unwrap_err()).collect()
}

/// Both errors name both operations.
#[track_caller]
fn assert_both_are_named(errors: &[RunError], names: [&str; 2]) {
    for error in errors {
        let RunError::OtherOperation(other) = error else { panic!("{error}") };
        let (mut ranks, text) = ([other.rank.index(), other.peer.index()], error.to_string());
        ranks.sort_unstable();
        assert_eq!(ranks, [0, 1], "{error}");
        assert!(names.iter().all(|name| text.contains(name)) && text.contains(file!()), "{error}");
    }
}

/// Both errors say that the ranks wait for each other, and where.
#[track_caller]
fn assert_both_wait(errors: &[RunError], names: [&str; 2]) {
    for error in errors {
        let RunError::Deadlock(deadlock) = error else { panic!("{error}") };
        assert_eq!(deadlock.waiting.iter().map(|waiting| waiting.rank).collect::<Vec<_>>(), [0, 1], "{error}");
        let text = error.to_string();
        assert!(names.iter().all(|name| text.contains(name)) && text.contains(file!()), "{text}");
    }
}

#[test]
fn two_all_reduces_of_one_kind_are_told_apart_in_packets() {
    for rounds in [0, 3, 9] {
        let errors = swapped(
            |link| {
                let [a, b] = [ramp(link.rank(), 60), ramp(link.rank(), 60)];
                Ok([all_reduce(link, &a, &a).build()?, all_reduce(link, &b, &b).build()?])
            },
            rounds,
        );
        assert_both_are_named(&errors, ["all_reduce of 60 f32", "all_reduce of 60 f32"]);
    }
}

#[test]
fn operations_of_other_kinds_and_types_are_told_apart() {
    let errors = swapped(
        |link| {
            let (a, bytes) = (ramp(link.rank(), 60), Tensor::<u8>::zeros(24));
            Ok([all_reduce(link, &a, &a).build()?, all_gather(link, &Tensor::<u8>::zeros(48), &bytes).build()?])
        },
        2,
    );
    assert_both_are_named(&errors, ["all_reduce of 60 f32", "all_gather of 24 u8"]);
}

#[test]
fn staged_operations_are_told_apart() {
    for rounds in [0, 5] {
        let errors = swapped(
            |link| {
                let build = |len: usize| {
                    let (inp, out) = (Tensor::<u32>::zeros(2 * len), Tensor::<u32>::zeros(2 * len));
                    all_to_all(link, &out, &inp).primitive(Primitive::Staged).build()
                };
                Ok([build(10_000)?, build(30_000)?])
            },
            rounds,
        );
        assert_both_are_named(&errors, ["10000 u32", "30000 u32"]);
    }
}

#[test]
fn a_sender_that_runs_ahead_through_deeper_slots_is_told_apart() {
    let of = |len: usize, depth| {
        (
            len,
            Knobs { primitive: Some(Primitive::Staged), slot_bytes: Some(128), depth: Some(depth), ..Knobs::default() },
        )
    };
    let (shallow, deep) = (of(32, 2), of(256, 16));
    let outcomes = outcomes(2, |world, link| {
        let peer = world.rank().after(1, 2);
        let build = |(len, config): (usize, Knobs)| {
            let x = Tensor::<u32>::zeros(len);
            if peer == Rank::new(1) {
                send(link, &x, peer).config(config).build()
            } else {
                recv(link, &x, peer).config(config).build()
            }
        };
        let (mut one, mut eight) = (build(shallow)?, build(deep)?);
        eight.run()?;
        one.run()?;
        one.run()?;
        // Ten steps so far. The sender fills eight slots and comes to slot 0 with the seventeenth step. There the
        // receiver waits for the eleventh.
        if peer == Rank::new(1) { eight.run() } else { one.run() }
    });
    assert_all_failed(&outcomes, "deeper slots");
    assert!(matches!(outcomes[1], Err(RunError::OtherOperation(_))), "{outcomes:?}");
}

#[test]
fn direct_operations_on_one_window_are_told_apart_before_anything_is_put() {
    let errors = swapped(
        |link| {
            let (window, inp) = (Window::<u32>::allocate(link, 60)?, Tensor::<u32>::zeros(60));
            let gather = all_gather(link, window.tensor(), &inp.slice(0..30)).window(&window);
            let exchange = all_to_all(link, window.tensor(), &inp).window(&window);
            Ok([gather.build()?, exchange.build()?])
        },
        3,
    );
    assert_both_are_named(&errors, ["all_gather of 30 u32", "all_to_all of 30 u32"]);
}

/// They have lines of their own, so neither sees a word of the other.
#[test]
fn direct_operations_on_two_windows_are_found_by_their_status_lines() {
    let errors = swapped(
        |link| {
            let peer = link.rank().after(1, 2);
            let build = |len: usize| {
                let window = Window::<u32>::allocate(link, len)?;
                let inp = Tensor::<u32>::zeros(len);
                let op = sendrecv(link, window.tensor(), &inp, peer, peer).primitive(Primitive::Direct).window(&window);
                op.build()
            };
            Ok([build(100)?, build(40_000)?])
        },
        3,
    );
    assert_both_wait(&errors, ["sendrecv of 100 u32", "sendrecv of 40000 u32"]);
}

#[test]
fn a_send_is_not_taken_for_a_collective_nor_one_send_for_another() {
    let (first, other) = (Rank::new(0), Rank::new(1));
    let build = |link: &ShmTransport, second: bool| -> Result<(), RunError> {
        let (x, y) = (ramp(link.rank(), 32), Tensor::<f32>::zeros(32));
        let mut gather = all_gather(link, &Tensor::<f32>::zeros(64), &x).build()?;
        let mut pair =
            if link.rank() == first { send(link, &x, other).build()? } else { recv(link, &y, first).build()? };
        let mut again =
            if link.rank() == first { send(link, &x, other).build()? } else { recv(link, &y, first).build()? };
        match (link.rank() == first, second) {
            (true, false) => [&mut pair, &mut gather].into_iter().try_for_each(|op| op.run()),
            (false, false) => [&mut gather, &mut pair].into_iter().try_for_each(|op| op.run()),
            (true, true) => [&mut pair, &mut again].into_iter().try_for_each(|op| op.run()),
            (false, true) => [&mut again, &mut pair].into_iter().try_for_each(|op| op.run()),
        }
    };
    for second in [false, true] {
        let outcomes = outcomes(2, |_, link| build(link, second));
        assert_all_failed(&outcomes, "a send");
        for outcome in &outcomes {
            let error = outcome.as_ref().unwrap_err();
            assert!(!matches!(error, RunError::Timeout(_) | RunError::Mismatch(_)), "{error}");
        }
    }
}

#[test]
fn operations_that_meet_in_no_word_are_found_by_their_status_lines() {
    // One goes in packets and the other through slots. Neither sees a word of the other.
    let errors = swapped(
        |link| {
            let (a, b) = (ramp(link.rank(), 60), ramp(link.rank(), 100_000));
            Ok([all_reduce(link, &a, &a).build()?, all_reduce(link, &b, &b).build()?])
        },
        3,
    );
    assert_both_wait(&errors, ["all_reduce of 60 f32", "all_reduce of 100000 f32"]);
}

#[test]
fn a_launch_too_few_is_found() {
    for len in [60, 100_000] {
        let outcomes = outcomes(2, |world, link| {
            let x = ramp(world.rank(), len);
            let mut op = all_reduce(link, &x, &x).build()?;
            let launches = if world.rank() == Rank::new(0) { 3 } else { 2 };
            (0..launches).try_for_each(|_| op.run())
        });
        assert_all_failed(&outcomes, "a launch too few");
        let error = outcomes[0].as_ref().unwrap_err();
        assert!(matches!(error, RunError::Deadlock(_)) && error.to_string().contains("close()"), "{error}");
    }
}

#[test]
fn kernels_of_ones_own_take_part_with_the_operation_they_name() {
    let run = |numbers: [u16; 2]| {
        outcomes(2, |world, link| {
            let peer = world.rank().after(1, 2);
            let endpoint = link.endpoint(peer).unwrap().operation(numbers[world.rank().index()]);
            let traced = kernel("bell", |k| {
                let banks = |memory| std::slice::from_ref(memory);
                let (tail, arrived) = (
                    k.slots("tail", banks(&endpoint.mapped().unwrap().signals.tail), 128),
                    k.slots("arrived", banks(&endpoint.here.signals.tail), 128),
                );
                k.main(|r| {
                    r.signal(tail.slot(0, 0), 1);
                    r.wait(arrived.slot(0, 0), 1);
                });
            })?;
            tilewire::collective::Launch::new(link, &traced)?.run()
        })
    };
    assert!(run([7, 7]).iter().all(Result::is_ok));
    let outcomes = run([7, 8]);
    assert_all_failed(&outcomes, "own kernels");
    assert!(matches!(outcomes[0], Err(RunError::OtherOperation(_))), "{outcomes:?}");
}
