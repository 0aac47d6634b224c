//! Roles and blocks side by side. They wait for each other in any direction, on any number of threads.

use crate::engine_launch::{SOON, impatient, prepared, slots};
use std::time::{Duration, Instant};
use tilewire::vm::{LaunchError, Prepared, Settings, StorePolicy};
use tilewire::{Memory, Scalar, Tensor, kernel};

/// Two roles of one block play ping-pong: `rounds` values go from one to the other and back, each one more.
fn ping_pong(rounds: i64) -> (Tensor<u64>, tilewire::hook::Traced) {
    let (ball, (_, forth), (_, back)) = (Tensor::<u64>::zeros(1), slots(1), slots(1));
    let traced = kernel("ping-pong", |k| {
        let (ball, forth, back) = (k.inout(&ball), k.slots("forth", &forth, 8), k.slots("back", &back, 8));
        k.role("ping", 1).run(|r| {
            r.for_(0..rounds, |turn| {
                ball.store(0, ball.load(0) + 1);
                r.signal(forth.slot(0, 0), turn + 1);
                r.wait(back.slot(0, 0), turn + 1);
            });
        });
        k.role("pong", 1).run(|r| {
            r.for_(0..rounds, |turn| {
                r.wait(forth.slot(0, 0), turn + 1);
                ball.store(0, ball.load(0) * 3);
                r.signal(back.slot(0, 0), turn + 1);
            });
        });
    });
    (ball, traced.expect("traces"))
}

#[test]
fn two_roles_of_one_thread_wait_for_each_other_in_turn() {
    let (ball, traced) = ping_pong(30);
    prepared(&traced).run().expect("runs");
    assert_eq!(ball.get(0), (0..30).fold(0u64, |x, _| (x + 1) * 3));
}

#[test]
fn a_deadline_counts_from_the_last_progress_not_from_the_first_wait() {
    // Every wait is satisfied immediately. All of them together may take longer than the deadline.
    let (ball, traced) = ping_pong(200_000);
    let settings = Settings { deadline: Some(Duration::from_millis(20)), ..Settings::default() };
    let start = Instant::now();
    Prepared::with(&traced.kernel, &traced.args, settings).expect("prepares").run().expect("runs");
    assert_eq!(ball.get(0), (0..200_000).fold(0u64, |x, _| x.wrapping_add(1).wrapping_mul(3)));
    // A role that makes progress needs no sleep of the thread: 200,000 naps of 50 µs would be ten seconds.
    assert!(start.elapsed() < Duration::from_secs(5), "took {:?}", start.elapsed());
}

#[test]
fn sixty_four_blocks_may_each_wait_for_the_next() {
    const BLOCKS: usize = 64;
    let epoch = Scalar::new(0u64);
    let (x, y) = (Tensor::<i64>::zeros(BLOCKS), Tensor::<i64>::zeros(BLOCKS));
    let ((_, up), (_, down)) = (slots(BLOCKS + 1), slots(BLOCKS + 1));
    let traced = kernel("chain", |k| {
        k.blocks(BLOCKS as u32);
        let (x, y, up, down) = (k.inout(&x), k.inout(&y), k.slots("up", &up, 8), k.slots("down", &down, 8));
        let last = BLOCKS as i64 - 1;
        k.role("from the end", 1).run(|r| {
            let block = r.block();
            r.if_else(
                block.lt(last),
                || {
                    r.wait(up.slot(0, block + 1), &epoch);
                    x.store(block, x.load(block + 1) + 1);
                },
                || x.store(block, r.scalar(&epoch).cast::<i64>() * 1000),
            );
            r.signal(up.slot(0, block), &epoch);
        });
        // Begins when the chain above has arrived at block 0, and returns to the end.
        k.role("to the end", 1).run(|r| {
            let block = r.block();
            r.if_else(
                block.gt(0),
                || {
                    r.wait(down.slot(0, block - 1), &epoch);
                    y.store(block, y.load(block - 1) * 2 + 1);
                },
                || {
                    r.wait(up.slot(0, 0), &epoch);
                    y.store(block, x.load(0));
                },
            );
            r.signal(down.slot(0, block), &epoch);
        });
    })
    .expect("traces");
    let mut op = prepared(&traced);
    for turn in 1..=20i64 {
        epoch.set(turn as u64);
        op.run().expect("runs");
        let first: Vec<i64> = (0..BLOCKS as i64).map(|k| turn * 1000 + 63 - k).collect();
        assert_eq!(x.to_vec(), first);
        let back = std::iter::successors(Some(first[0]), |y| Some(y.wrapping_mul(2).wrapping_add(1)));
        assert_eq!(y.to_vec(), back.take(BLOCKS).collect::<Vec<_>>());
    }
}

#[test]
fn packets_go_from_role_to_role_without_a_signal() {
    const N: usize = 5000;
    let region = [Memory::zeroed(16 * N)];
    let (x, y) = (Tensor::<u64>::zeros(N), Tensor::<u64>::zeros(N));
    let flag = Scalar::new(0u32);
    for receiver_first in [false, true] {
        let traced = kernel("packets", |k| {
            let (x, y, region) = (k.input(&x), k.output(&y), k.region("packets", &region));
            let send = || {
                k.role("send", 1).run(|r| {
                    let flag = r.scalar(&flag);
                    r.each(N, |i| region.packet_put(0, i, x.load(i), flag));
                });
            };
            let receive = || {
                k.role("receive", 1).run(|r| {
                    let flag = r.scalar(&flag);
                    r.each(N, |i| y.store(i, region.packet_get(0, (N as i64 - 1) - i, flag) ^ 1));
                });
            };
            if receiver_first {
                receive();
                send();
            } else {
                send();
                receive();
            }
        })
        .expect("traces");
        let mut op = prepared(&traced);
        for turn in 1..=20u64 {
            flag.set(flag.get() + 1);
            (0..N).for_each(|i| x.set(i, (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15 + turn)));
            op.run().expect("runs");
            let expected = (0..N).rev().map(|i| x.get(i) ^ 1);
            assert!(y.to_vec().into_iter().eq(expected), "turn {turn}");
        }
    }
}

#[test]
fn data_streamed_around_the_cache_is_there_when_its_signal_is() {
    const N: usize = 20_000;
    let (x, staging, y) = (Tensor::<f32>::zeros(N), Tensor::<f32>::zeros(N), Tensor::<f32>::zeros(N));
    let ((_, full), (_, empty)) = (slots(2), slots(2));
    let epoch = Scalar::new(0u64);
    let traced = kernel("stream", |k| {
        k.blocks(2);
        let (x, staging, y) = (k.input(&x), k.inout(&staging), k.output(&y));
        let (full, empty) = (k.slots("full", &full, 8), k.slots("empty", &empty, 8));
        k.role("send", 1).run(|r| {
            let first = r.block() * (N as i64 / 2);
            r.wait(empty.slot(0, r.block()), r.scalar(&epoch) - 1);
            r.each(N / 2, |i| staging.store(first + i, x.load(first + i) * 2.0));
            r.signal(full.slot(0, r.block()), &epoch);
        });
        // Block b receives what the other block sent.
        k.role("receive", 1).run(|r| {
            let other = 1 - r.block();
            let first = other * (N as i64 / 2);
            r.wait(full.slot(0, other), &epoch);
            r.each(N / 2, |i| y.store(first + i, staging.load(first + i) + 1.0));
            r.signal_credit(empty.slot(0, other), &epoch);
        });
    })
    .expect("traces");
    let settings = Settings { stores: StorePolicy { from: 1, ..StorePolicy::default() }, ..Settings::default() };
    let mut op = Prepared::with(&traced.kernel, &traced.args, settings).expect("prepares");
    for turn in 1..=200 {
        epoch.set(turn);
        x.fill(turn as f32);
        op.run().expect("runs");
        assert!(y.to_vec().iter().all(|&y| y == turn as f32 * 2.0 + 1.0), "turn {turn}");
    }
}

#[test]
fn a_role_that_polls_a_slot_sees_it_rise() {
    // Another thread than the polling one raises the slot. There are as many blocks as threads; otherwise the test
    // would show nothing.
    let ((_, bank), seen) = (slots(1), Tensor::<u64>::zeros(1));
    let traced = kernel("test once", |k| {
        let (flag, seen) = (k.slots("flag", &bank, 8), k.inout(&seen));
        k.role("raise", 1).run(|r| r.signal(flag.slot(0, 0), 1));
        k.role("poll", 1).run(|r| {
            r.wait(flag.slot(0, 0), 1);
            let ready = r.test(flag.slot(0, 0), 1);
            let not = r.test(flag.slot(0, 0), 2);
            seen.store(0, ready.select(1u64, 0u64) + not.select(10u64, 0u64));
        });
    })
    .expect("traces");
    prepared(&traced).run().expect("runs");
    assert_eq!(seen.get(0), 1);
}

#[test]
fn a_role_that_polls_in_a_loop_lets_the_role_it_waits_for_run() {
    let ((_, bank), turns) = (slots(1), Tensor::<u64>::zeros(1));
    let traced = kernel("poll", |k| {
        let (flag, turns) = (k.slots("flag", &bank, 8), k.inout(&turns));
        k.role("poll", 1).run(|r| r.while_(|| !r.test(flag.slot(0, 0), 1), || turns.store(0, turns.load(0) + 1)));
        k.role("raise", 1).run(|r| r.signal(flag.slot(0, 0), 1));
    })
    .expect("traces");
    let mut op = Prepared::with(&traced.kernel, &traced.args, impatient()).expect("prepares");
    op.run().expect("runs");
}

#[test]
fn a_failure_of_one_block_ends_the_launch_of_all() {
    let ((_, bank), y, at) = (slots(16), Tensor::<f32>::zeros(4), Scalar::new(99i64));
    let traced = kernel("one fails", |k| {
        k.blocks(16);
        let (flags, y) = (k.slots("flags", &bank, 8), k.output(&y));
        k.main(|r| {
            r.if_(r.block().eq(7), || y.store(r.scalar(&at), 1.0));
            r.signal(flags.slot(0, r.block()), 1);
            // All blocks wait for block 7, which never arrives.
            r.wait(flags.slot(0, 7), 1);
        });
    })
    .expect("traces");
    let start = Instant::now();
    let mut op = prepared(&traced);
    for _ in 0..20 {
        match op.run() {
            Err(LaunchError::OutOfBounds { index: 99, len: 4, by, .. }) => assert_eq!(by.block, 7),
            other => panic!("{other:?}"),
        }
    }
    assert!(start.elapsed() < SOON * 60, "nobody waited for the deadline");
    // The launch succeeds once the cause is removed.
    at.set(3);
    op.run().expect("runs");
    assert_eq!(y.to_vec(), [0.0, 0.0, 0.0, 1.0]);
}
