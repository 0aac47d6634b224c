//! Correct, if unusual: signallers, waiters, values and times.

use super::Expect::{Clean, CleanDecided};
use super::{Seen, Shared, check, check_with, settings};
use tilewire::check::Settings;

seeds! {
    leftover_for_the_next_launch_and_after_the_last: CleanDecided,
    wait_in_a_branch_that_is_not_taken: CleanDecided,
    wait_in_a_loop_of_no_steps: CleanDecided,
    wait_for_zero: CleanDecided,
    wait_repeated: CleanDecided,
    signals_that_skip_values: CleanDecided,
    signals_that_begin_at_a_large_value: CleanDecided,
    chain_of_four_ranks: CleanDecided,
    double_buffer_by_parity: CleanDecided,
    mailbox_used_in_both_directions: CleanDecided,
    counter_with_a_writer_in_each_launch: CleanDecided,
    copies_with_slots_of_their_own: CleanDecided,
    copies_that_serve_a_peer_in_turn: CleanDecided,
    blocks_with_counters_of_their_own: CleanDecided,
    ranks_with_different_roles: CleanDecided,
    dissemination_barrier_in_every_launch: CleanDecided,
    start_counters_in_memory: CleanDecided,
    signals_between_roles_of_one_rank: CleanDecided,
    test_before_a_wait: Clean,
    gives_up_and_waits: Clean,
}

/// Each launch sends what the next one takes. The plan ends after three launches, the program does not.
fn leftover_for_the_next_launch_and_after_the_last() -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let send = s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, 1), (n - 1).max(0));
            kit.bytes.put(0, n % 2 * 8, 7u64);
            r.signal(kit.slots.slot(0, 0), n + 1);
        });
        let receive = s.rank(move |r, kit| {
            if n == 0 {
                return r.barrier();
            }
            r.wait(kit.slots.slot(0, 0), n);
            kit.out.store(0, kit.bytes.get::<u64>(0, (n - 1) % 2 * 8));
            r.signal_credit(kit.slots.slot(0, 1), n);
        });
        vec![send, receive]
    };
    check_with(&[launch(0), launch(1), launch(2)], &Settings { across_launches: true, ..settings() })
}

/// The wait for rank 7 never runs, because there are two ranks.
fn wait_in_a_branch_that_is_not_taken() -> Seen {
    let s = Shared::new();
    let rank = |me: i64| {
        s.rank(move |r, kit| {
            kit.bytes.put(0, me * 8, 7u64);
            r.if_(r.rank().eq(7), || r.wait(kit.slots.slot(0, 7), 1));
        })
    };
    check(&[vec![rank(0), rank(1)]])
}

/// A rank waits for all lower ranks. Rank 0 waits for none.
fn wait_in_a_loop_of_no_steps() -> Seen {
    let s = Shared::new();
    let rank = s.rank(|r, kit| {
        r.for_(..r.rank(), |below| r.wait(kit.slots.slot(0, below), 1));
        r.if_(r.rank().lt(r.world_size() - 1), || r.signal(kit.slots.slot(0, r.rank()), 1));
    });
    check(&[vec![rank.clone(), rank.clone(), rank]])
}

/// A wait for 0 returns, whether that slot is signalled or not.
fn wait_for_zero() -> Seen {
    let s = Shared::new();
    let rank = |me: i64| {
        s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, 5), 0);
            kit.bytes.put(0, me * 8, 7u64);
            r.wait(kit.slots.slot(0, 6), 0);
        })
    };
    check(&[vec![rank(0), rank(1)]])
}

/// Two blocks and two roles wait for one signal, and one of them twice.
fn wait_repeated() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
    });
    let receive = s.kernel(|k, kit| {
        k.blocks(2);
        k.role("once", 1).run(|r| {
            r.wait(kit.slots.slot(0, 0), 1);
            kit.out.store(r.block(), kit.bytes.get::<u64>(0, 0));
        });
        k.role("twice", 1).run(|r| {
            r.wait(kit.slots.slot(0, 0), 1);
            r.wait(kit.slots.slot(0, 0), 1);
            kit.out.store(r.block() + 2, kit.bytes.get::<u64>(0, 0));
        });
    });
    check(&[vec![send, receive]])
}

/// The sender signals every third step. The receiver waits for each step, which the settings allow.
fn signals_that_skip_values() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        for batch in 0..2 {
            r.each(3, |i| kit.bytes.put(0, i * 8 + batch * 24, 7u64));
            r.signal(kit.slots.slot(0, 0), batch * 3 + 3);
        }
    });
    let receive = s.rank(|r, kit| {
        for step in 0..6 {
            r.wait(kit.slots.slot(0, 0), step + 1);
            kit.out.store(step, kit.bytes.get::<u64>(0, step * 8));
        }
    });
    check_with(&[vec![send, receive]], &Settings { cumulative: true, ..settings() })
}

/// Both sides count from a million, in steps of a thousand.
fn signals_that_begin_at_a_large_value() -> Seen {
    let s = Shared::new();
    let value = |step: i64| 1_000_000 + step * 1000;
    let send = s.rank(move |r, kit| {
        for step in 0..3 {
            kit.bytes.put(0, step * 8, 7u64);
            r.signal(kit.slots.slot(0, 0), value(step));
        }
    });
    let receive = s.rank(move |r, kit| {
        for step in 0..3 {
            r.wait(kit.slots.slot(0, 0), value(step));
            kit.out.store(step, kit.bytes.get::<u64>(0, step * 8));
        }
    });
    check(&[vec![send, receive]])
}

/// Rank 3 reads what ranks 0, 1 and 2 wrote. It gets a signal from rank 2 only.
fn chain_of_four_ranks() -> Seen {
    let s = Shared::new();
    let rank = |me: usize| {
        s.rank(move |r, kit| {
            if me > 0 {
                r.wait(kit.slots.slot(0, me - 1), 1);
            }
            kit.bytes.put(0, me * 8, 7u64);
            if me < 3 {
                r.signal(kit.slots.slot(0, me), 1);
            } else {
                r.each(4, |i| kit.out.store(i, kit.bytes.get::<u64>(0, i * 8)));
            }
        })
    };
    check(&[(0..4).map(rank).collect()])
}

/// Launches use the two halves of the staging alternately, so a launch waits for the one before last.
fn double_buffer_by_parity() -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let half = n % 2;
        let send = s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, 2 + half), n / 2);
            r.each(4, |i| kit.bytes.put(0, half * 32 + i * 8, 7u64));
            r.signal(kit.slots.slot(0, half), n / 2 + 1);
        });
        let receive = s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, half), n / 2 + 1);
            r.each(4, |i| kit.out.store(i, kit.bytes.get::<u64>(0, half * 32 + i * 8)));
            r.signal_credit(kit.slots.slot(0, 2 + half), n / 2 + 1);
        });
        vec![send, receive]
    };
    check(&(0..5).map(launch).collect::<Vec<_>>())
}

/// One place serves both directions. The rank that has read it last may write it next, and needs no credit for that.
fn mailbox_used_in_both_directions() -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let writes = s.rank(move |r, kit| {
            kit.bytes.put(0, 0, n as u64);
            r.signal(kit.slots.slot(0, n % 2), n / 2 + 1);
        });
        let reads = s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, n % 2), n / 2 + 1);
            kit.out.store(0, kit.bytes.get::<u64>(0, 0));
        });
        if n % 2 == 0 { vec![writes, reads] } else { vec![reads, writes] }
    };
    check(&(0..4).map(launch).collect::<Vec<_>>())
}

/// The counter of the mailbox also passes from one rank to the other. Its writers are ordered, so it only grows.
fn counter_with_a_writer_in_each_launch() -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let writes = s.rank(move |r, kit| {
            kit.bytes.put(0, 0, n as u64);
            r.signal(kit.slots.slot(0, 0), n + 1);
        });
        let reads = s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, 0), n + 1);
            kit.out.store(0, kit.bytes.get::<u64>(0, 0));
        });
        if n % 2 == 0 { vec![writes, reads] } else { vec![reads, writes] }
    };
    check(&(0..4).map(launch).collect::<Vec<_>>())
}

/// Steps are shared out by the number of running copies, and every step has its own slot.
fn copies_with_slots_of_their_own() -> Seen {
    let s = Shared::new();
    let send = s.kernel(|k, kit| {
        k.role("send", 1).copies(3, |r| {
            r.for_turns(6, |step| {
                kit.bytes.put(0, step * 8, 7u64);
                r.signal(kit.slots.slot(0, step), 1);
            });
        });
    });
    let receive = s.kernel(|k, kit| {
        k.role("receive", 1).copies(2, |r| {
            r.for_turns(6, |step| {
                r.wait(kit.slots.slot(0, step), 1);
                kit.out.store(step, kit.bytes.get::<u64>(0, step * 8));
            });
        });
    });
    check(&[vec![send, receive]])
}

/// Four slots and two copies on each side. A copy has the slots of its steps to itself, and each slot has its own
/// credits.
fn copies_that_serve_a_peer_in_turn() -> Seen {
    let s = Shared::new();
    // TAIL of slot i is counter i, HEAD is counter 4 + i; step g goes through slot g mod 4.
    let send = s.kernel(|k, kit| {
        k.role("send", 1).copies(2, |r| {
            r.for_turns(8, |step| {
                let slot = step % 4;
                r.wait(kit.slots.slot(0, slot + 4), step / 4);
                kit.bytes.put(0, slot * 8, 7u64);
                r.signal(kit.slots.slot(0, slot), step / 4 + 1);
            });
        });
    });
    let receive = s.kernel(|k, kit| {
        k.role("receive", 1).copies(2, |r| {
            r.for_turns(8, |step| {
                let slot = step % 4;
                r.wait(kit.slots.slot(0, slot), step / 4 + 1);
                kit.out.store(step, kit.bytes.get::<u64>(0, slot * 8));
                r.signal_credit(kit.slots.slot(0, slot + 4), step / 4 + 1);
            });
        });
    });
    check(&[vec![send, receive]])
}

/// Four blocks send, one receives.
fn blocks_with_counters_of_their_own() -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let send = s.kernel(move |k, kit| {
            k.blocks(4);
            k.main(|r| {
                r.wait(kit.slots.slot(0, 4), n);
                r.each(2, |i| kit.bytes.put(0, (r.block() * 2 + i) * 8, 7u64));
                r.signal(kit.slots.slot(0, r.block()), n + 1);
            });
        });
        let receive = s.rank(move |r, kit| {
            r.for_(0..4, |block| r.wait(kit.slots.slot(0, block), n + 1));
            r.each(8, |i| kit.out.store(i, kit.bytes.get::<u64>(0, i * 8)));
            r.signal_credit(kit.slots.slot(0, 4), n + 1);
        });
        vec![send, receive]
    };
    check(&[launch(0), launch(1)])
}

/// One kernel for all ranks: rank 0 gives, rank 1 works on the data with two roles, rank 2 takes, rank 3 does nothing.
fn ranks_with_different_roles() -> Seen {
    let s = Shared::new();
    let kernel = s.kernel(|k, kit| {
        k.role("ends", 1).run(|r| {
            r.if_(r.rank().eq(0), || {
                r.each(2, |i| kit.bytes.put(0, i * 8, 7u64));
                r.signal(kit.slots.slot(0, 0), 1);
            });
            r.if_(r.rank().eq(2), || {
                (1..3).for_each(|slot| r.wait(kit.slots.slot(0, slot), 1));
                r.each(2, |i| kit.out.store(i, kit.bytes.get::<u64>(0, 16 + i * 8)));
            });
        });
        for half in 0..2i64 {
            k.role(format!("work {half}"), 1).run(|r| {
                r.if_(r.rank().eq(1), || {
                    r.wait(kit.slots.slot(0, 0), 1);
                    kit.bytes.put(0, 16 + half * 8, kit.bytes.get::<u64>(0, half * 8) + 1);
                    r.signal(kit.slots.slot(0, 1 + half), 1);
                });
            });
        }
    });
    check(&[vec![kernel.clone(), kernel.clone(), kernel.clone(), kernel]])
}

/// Four ranks meet in two rounds: before they read what the others wrote, and after.
fn dissemination_barrier_in_every_launch() -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let rank = |me: usize| {
            s.rank(move |r, kit| {
                let meet = |value: i64| {
                    for (round, distance) in [1, 2].into_iter().enumerate() {
                        r.signal(kit.slots.slot(0, round * 4 + me), value);
                        r.wait(kit.slots.slot(0, round * 4 + (me + 4 - distance) % 4), value);
                    }
                };
                kit.bytes.put(0, me * 8, 7u64);
                meet(2 * n + 1);
                r.each(4, |i| kit.out.store(i, kit.bytes.get::<u64>(0, i * 8)));
                meet(2 * n + 2);
            })
        };
        (0..4).map(rank).collect::<Vec<_>>()
    };
    check(&[launch(0), launch(1)])
}

/// One kernel for every launch. It reads its progress first, and stores it last.
fn start_counters_in_memory() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        let start = kit.words.load(0).cast::<i64>();
        r.for_((start, start + 2), |step| {
            r.wait(kit.slots.slot(0, 1), step);
            kit.bytes.put(0, 0, 7u64);
            r.signal(kit.slots.slot(0, 0), step + 1);
        });
        kit.words.store(0, (start + 2).cast::<u64>());
    });
    let receive = s.rank(|r, kit| {
        let start = kit.words.load(1).cast::<i64>();
        r.for_((start, start + 2), |step| {
            r.wait(kit.slots.slot(0, 0), step + 1);
            kit.out.store(0, kit.bytes.get::<u64>(0, 0));
            r.signal_credit(kit.slots.slot(0, 1), step + 1);
        });
        kit.words.store(1, (start + 2).cast::<u64>());
    });
    let launch = vec![send, receive];
    check(&[launch.clone(), launch.clone(), launch])
}

/// Three roles of one rank in a chain. Each waits for the slot of the one before.
fn signals_between_roles_of_one_rank() -> Seen {
    let s = Shared::new();
    let rank = s.kernel(|k, kit| {
        for stage in 0..3i64 {
            k.role(format!("stage {stage}"), 1).run(|r| {
                if stage == 0 {
                    kit.bytes.put(0, 0, 7u64);
                } else {
                    r.wait(kit.slots.slot(0, stage - 1), 1);
                    kit.bytes.put(0, stage * 8, kit.bytes.get::<u64>(0, (stage - 1) * 8) + 1);
                }
                if stage < 2 {
                    r.signal(kit.slots.slot(0, stage), 1);
                }
            });
        }
    });
    check(&[vec![rank]])
}

/// The receiver tests first. If the data is there it takes it. If not, it does something else and then waits.
fn test_before_a_wait() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
    });
    let receive = s.rank(|r, kit| {
        r.if_else(
            r.test(kit.slots.slot(0, 0), 1),
            || kit.out.store(0, kit.bytes.get::<u64>(0, 0)),
            || {
                kit.out.store(1, 1u64);
                r.wait(kit.slots.slot(0, 0), 1);
                kit.out.store(0, kit.bytes.get::<u64>(0, 0));
            },
        );
    });
    check(&[vec![send, receive]])
}

/// Polls five times, counts the failures, and then waits.
fn gives_up_and_waits() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
    });
    let receive = s.rank(|r, kit| {
        let (tries, there) = (r.var(0i64), r.var(false));
        r.while_(
            || tries.get().lt(5).and(!there.get()),
            || {
                there.set(r.test(kit.slots.slot(0, 0), 1));
                tries.set(tries.get() + 1);
            },
        );
        kit.out.store(1, tries.get().cast::<u64>());
        r.wait(kit.slots.slot(0, 0), 1);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
    });
    check(&[vec![send, receive]])
}
