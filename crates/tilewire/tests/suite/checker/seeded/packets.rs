//! Packets: an `each` that gets before it puts, flags that are used again, packets that are overwritten too early, and
//! packets that are taken for signals.

use super::Expect::{AnyFault, Fault, FaultOrRefused};
use super::{Kit, Seen, Shared, check, check_built};
use tilewire::hook::Value;

seeds! {
    each_gets_before_it_puts: FaultOrRefused,
    each_gets_before_it_puts_in_a_ring: FaultOrRefused,
    each_gets_before_it_puts_on_different_lines: FaultOrRefused,
    each_gets_another_element_before_it_puts: FaultOrRefused,
    each_waits_for_the_next_element: FaultOrRefused,
    receivers_get_before_anybody_puts: Fault("deadlock"),
    flag_used_again: Fault("stale-flag"),
    flag_used_again_in_the_next_launch: Fault("stale-flag"),
    flag_goes_back: Fault("stale-flag"),
    flag_that_is_zero_when_it_runs: Fault("error"),
    packet_overwritten_in_the_next_launch: AnyFault,
    packet_of_the_next_launch_but_one_without_credit: AnyFault,
    packet_answered_by_a_packet_is_no_credit: Fault("race"),
    packet_credited_by_one_of_two_readers: AnyFault,
    packet_credited_before_it_is_taken: Fault("race"),
    packet_as_release_through_a_third_rank: Fault("race"),
    packet_as_release_of_a_counter_of_words: Fault("race"),
    packet_taken_twice_across_launches: AnyFault,
    packet_that_nobody_takes: Fault("untaken"),
    packet_from_two_senders: AnyFault,
    packet_beside_staged_bytes: AnyFault,
    packet_read_as_plain_bytes: Fault("race"),
}

#[track_caller]
fn send<'t>(kit: Kit<'t>, index: Value<'t, i64>, flag: u32) {
    kit.bytes.packet_put(0, index, 7u64, flag);
}

/// The packets that ranks `from` and `to` exchange lie from `from * 4` on.
fn gets_first(ranks: usize) -> Seen {
    let s = Shared::new();
    let rank = |me: usize| {
        let from = (me + ranks - 1) % ranks;
        s.try_rank(move |r, kit| {
            r.each(4, |i| {
                kit.out.store(i, kit.bytes.packet_get(0, i + 4 * from as i64, 1u32));
                send(kit, i + 4 * me as i64, 1);
            });
        })
    };
    match ranks {
        2 => check_built([rank(0), rank(1)]),
        _ => check_built([rank(0), rank(1), rank(2)]),
    }
}

/// Every rank waits for the packet that the other puts after its own wait.
fn each_gets_before_it_puts() -> Seen {
    gets_first(2)
}

fn each_gets_before_it_puts_in_a_ring() -> Seen {
    gets_first(3)
}

/// One rank forwards what it gets. The other waits for an answer before it asks.
fn each_gets_before_it_puts_on_different_lines() -> Seen {
    let s = Shared::new();
    let forward = s.try_rank(|r, kit| {
        r.each(2, |i| {
            let x = kit.bytes.packet_get(0, i, 1u32);
            kit.bytes.packet_put(0, i + 8, x + 1, 1u32);
        });
    });
    let ask = s.try_rank(|r, kit| {
        r.each(2, |i| {
            let answer = kit.bytes.packet_get(0, i + 8, 1u32);
            kit.bytes.packet_put(0, i, answer * 2, 1u32);
        });
    });
    check_built([forward, ask])
}

/// Element i waits for the packet of the other's element 3 − i, and then puts its own.
fn each_gets_another_element_before_it_puts() -> Seen {
    let s = Shared::new();
    let rank = |me: i64| {
        s.try_rank(move |r, kit| {
            r.each(4, |i| {
                kit.out.store(i, kit.bytes.packet_get(0, 3 - i + 4 * (1 - me), 1u32));
                send(kit, i + 4 * me, 1);
            });
        })
    };
    check_built([rank(0), rank(1)])
}

/// An `each` must not wait for a packet that it puts itself, because element i + 1 may come after element i.
fn each_waits_for_the_next_element() -> Seen {
    let s = Shared::new();
    let rank = s.try_rank(|r, kit| {
        r.each(4, |i| {
            send(kit, i, 1);
            kit.out.store(i, kit.bytes.packet_get(0, (i + 1) % 4, 1u32));
        });
    });
    check_built([rank])
}

/// The same circle in two `each`s of a rank.
fn receivers_get_before_anybody_puts() -> Seen {
    let s = Shared::new();
    let rank = |me: i64| {
        s.rank(move |r, kit| {
            r.each(4, |i| kit.out.store(i, kit.bytes.packet_get(0, i + 4 * (1 - me), 1u32)));
            r.each(4, |i| send(kit, i + 4 * me, 1));
        })
    };
    check(&[vec![rank(0), rank(1)]])
}

/// Two messages in the same packets, with these flags and a credit between them.
fn two_messages(flags: [u32; 2]) -> Seen {
    let s = Shared::new();
    let sends = s.rank(|r, kit| {
        r.each(2, |i| send(kit, i, flags[0]));
        r.wait(kit.slots.slot(0, 0), 1);
        r.each(2, |i| send(kit, i, flags[1]));
    });
    let takes = s.rank(|r, kit| {
        r.each(2, |i| kit.out.store(i, kit.bytes.packet_get(0, i, flags[0])));
        r.signal_credit(kit.slots.slot(0, 0), 1);
        r.each(2, |i| kit.out.store(i, kit.bytes.packet_get(0, i, flags[1])));
    });
    check(&[vec![sends, takes]])
}

/// The receiver takes the first message twice.
fn flag_used_again() -> Seen {
    two_messages([1, 1])
}

fn flag_goes_back() -> Seen {
    two_messages([2, 1])
}

/// One launch of a message, with a credit for the next one. `flag` returns the flag of a launch.
fn launches(flag: fn(i64) -> u32, waits: fn(i64) -> i64, areas: i64) -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let sends = s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, 0), waits(n));
            r.each(2, |i| send(kit, i + n % areas * 2, flag(n)));
        });
        let takes = s.rank(move |r, kit| {
            r.each(2, |i| kit.out.store(i, kit.bytes.packet_get(0, i + n % areas * 2, flag(n))));
            r.signal_credit(kit.slots.slot(0, 0), n + 1);
        });
        vec![sends, takes]
    };
    check(&[launch(0), launch(1), launch(2)])
}

/// The flag is a constant of the kernel, which is right only in the first launch.
fn flag_used_again_in_the_next_launch() -> Seen {
    launches(|_| 1, |n| n, 1)
}

/// Flags grow, and the sender waits for no credit.
fn packet_overwritten_in_the_next_launch() -> Seen {
    launches(|n| n as u32 + 1, |_| 0, 1)
}

/// Two areas that take turns delay the collision by one launch.
fn packet_of_the_next_launch_but_one_without_credit() -> Seen {
    launches(|n| n as u32 + 1, |_| 0, 2)
}

/// The flag is the number of the rank. A flag of 0 means nothing.
fn flag_that_is_zero_when_it_runs() -> Seen {
    let s = Shared::new();
    let rank = s.rank(|r, kit| {
        let flag = r.rank().cast::<u32>();
        r.each(2, |i| kit.bytes.packet_put(0, i, 7u64, flag));
        r.each(2, |i| kit.out.store(i, kit.bytes.packet_get(0, i, flag)));
    });
    check(&[vec![rank]])
}

/// The answer comes in packets. It says that the question was read, but packets order only their own bytes.
fn packet_answered_by_a_packet_is_no_credit() -> Seen {
    let s = Shared::new();
    let asks = s.rank(|r, kit| {
        for round in 1..=2u32 {
            r.each(2, |i| send(kit, i, round));
            r.each(2, |i| kit.out.store(i, kit.bytes.packet_get(0, i + 4 * i64::from(round), round)));
        }
    });
    let answers = s.rank(|r, kit| {
        for round in 1..=2u32 {
            r.each(2, |i| kit.out.store(i, kit.bytes.packet_get(0, i, round)));
            r.each(2, |i| send(kit, i + 4 * i64::from(round), round));
        }
    });
    check(&[vec![asks, answers]])
}

/// Two ranks take the packets, and one gives them back.
fn packet_credited_by_one_of_two_readers() -> Seen {
    let s = Shared::new();
    let sends = s.rank(|r, kit| {
        r.each(2, |i| send(kit, i, 1));
        r.wait(kit.slots.slot(0, 0), 1);
        r.each(2, |i| send(kit, i, 2));
    });
    let takes = |credits: bool| {
        s.rank(move |r, kit| {
            r.each(2, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 1u32)));
            if credits {
                r.signal_credit(kit.slots.slot(0, 0), 1);
                r.each(2, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 2u32)));
            }
        })
    };
    check(&[vec![sends, takes(true), takes(false)]])
}

fn packet_credited_before_it_is_taken() -> Seen {
    let s = Shared::new();
    let sends = s.rank(|r, kit| {
        r.each(2, |i| send(kit, i, 1));
        r.wait(kit.slots.slot(0, 0), 1);
        r.each(2, |i| send(kit, i, 2));
    });
    let takes = s.rank(|r, kit| {
        kit.out.store(0, 0u64);
        r.signal_credit(kit.slots.slot(0, 0), 1);
        r.each(2, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 1u32)));
        r.each(2, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 2u32)));
    });
    check(&[vec![sends, takes]])
}

/// 0 sends a packet to 1, and 1 signals 2. Neither sees what 0 wrote besides the packet.
fn packet_as_release_through_a_third_rank() -> Seen {
    let s = Shared::new();
    let put = line!() + 2;
    let first = s.rank(|r, kit| {
        kit.bytes.put(0, 256, 7u64);
        r.each(1, |i| send(kit, i, 1));
    });
    let second = s.rank(|r, kit| {
        r.each(1, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 1u32)));
        r.signal(kit.slots.slot(0, 0), 1);
    });
    let get = line!() + 3;
    let third = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        kit.out.store(0, kit.bytes.get::<u64>(0, 256));
    });
    check(&[vec![first, second, third]]).at(&[put, get])
}

/// A packet tells how many words there are. The words are plain stores.
fn packet_as_release_of_a_counter_of_words() -> Seen {
    let s = Shared::new();
    let store = line!() + 2;
    let sends = s.rank(|r, kit| {
        r.each(3, |i| kit.words.store(i, 7u64));
        r.each(1, |i| kit.bytes.packet_put(0, i, 3u64, 1u32));
    });
    let load = line!() + 4;
    let takes = s.rank(|r, kit| {
        let count = r.scratch::<u64>(1);
        r.each(1, |i| count.store(i, kit.bytes.packet_get(0, i, 1u32)));
        r.for_(..count.load(0).cast::<i64>(), |i| kit.out.store(i, kit.words.load(i)));
    });
    check(&[vec![sends, takes]]).at(&[store, load])
}

/// The receiver of the second launch asks for the flag of the first. It finds it if the sender is slow, and hangs if
/// the sender is fast.
fn packet_taken_twice_across_launches() -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let sends = s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, 0), n);
            r.each(2, |i| send(kit, i, n as u32 + 1));
        });
        let takes = s.rank(move |r, kit| {
            r.each(2, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 1u32)));
            r.signal_credit(kit.slots.slot(0, 0), n + 1);
        });
        vec![sends, takes]
    };
    check(&[launch(0), launch(1)])
}

fn packet_that_nobody_takes() -> Seen {
    let s = Shared::new();
    let sends = s.rank(|r, kit| r.each(4, |i| send(kit, i, 1)));
    let takes = s.rank(|r, kit| r.each(3, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 1u32))));
    check(&[vec![sends, takes]])
}

/// Two ranks put the same packet, with flags 1 and 2. The first one is lost if the second is faster.
fn packet_from_two_senders() -> Seen {
    let s = Shared::new();
    let sends = |flag: u32| s.rank(move |r, kit| r.each(1, |i| send(kit, i, flag)));
    let takes = s.rank(|r, kit| {
        r.each(1, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 1u32)));
        r.each(1, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 2u32)));
    });
    check(&[vec![sends(1), sends(2), takes]])
}

/// Staging begins in the middle of a packet. Staged bytes tear it while it is being taken.
fn packet_beside_staged_bytes() -> Seen {
    let s = Shared::new();
    let sends = s.rank(|r, kit| {
        r.each(1, |i| send(kit, i, 1));
        kit.bytes.put(0, 8, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
    });
    let takes = s.rank(|r, kit| {
        r.each(1, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 1u32)));
        r.wait(kit.slots.slot(0, 0), 1);
        kit.out.store(1, kit.bytes.get::<u64>(0, 8));
    });
    check(&[vec![sends, takes]])
}

/// The data of a packet is read by a plain get, as if it had arrived.
fn packet_read_as_plain_bytes() -> Seen {
    let s = Shared::new();
    let sends = s.rank(|r, kit| r.each(2, |i| send(kit, i, 1)));
    let takes = s.rank(|r, kit| {
        r.each(1, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 1u32)));
        kit.out.store(1, kit.bytes.get::<u32>(0, 16).cast::<u64>());
        r.each(1, |i| kit.out.store(i, kit.bytes.packet_get(0, i + 1, 1u32)));
    });
    check(&[vec![sends, takes]])
}
