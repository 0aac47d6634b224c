//! Findings of an audit of the mended checker: later signals that show less, waits that are repeated, roles that poll,
//! memory that its owner binds and does not touch. Also the attempts that found nothing.

use super::Expect::{AnyFault, Clean, CleanDecided, Fault};
use super::{Seen, Shared, check, one, plan, settings};
use tilewire::hook::Block;
use tilewire::ir::{Order, Part, Purpose, Scope};
use tilewire::{Memory, Tensor, Traced, kernel};

seeds! {
    later_signal_of_one_told_by_credit: Fault("race"),
    later_signal_of_one_told_by_credit_first: Fault("race"),
    later_signal_by_proxy: CleanDecided,
    later_credit_by_proxy: Fault("race"),
    wait_repeated_between_two_credits: CleanDecided,
    wait_between_two_credits: CleanDecided,
    role_polls_another: Clean,
    role_polls_a_peer_that_waits_for_another: Clean,
    block_polls_another: Clean,
    rank_polls_another: Clean,
    output_written_by_a_peer_and_left_alone: CleanDecided,
    input_written_by_a_peer_and_left_alone: Fault("written-during-launch"),
    overwritten_after_a_credit: Fault("race"),
    packets_among_the_elements_of_one_each: Fault("deadlock"),
    packets_in_one_each_and_in_two: Fault("deadlock"),
    packets_in_opposite_orders: Fault("deadlock"),
    tickets_of_elements: Clean,
    elements_add_and_load: Fault("race"),
    masked_elements_write_one_place: Fault("race"),
    packets_shifted_by_half: AnyFault,
    packet_publishes_nothing: Fault("race"),
    signal_of_another_operation: Fault("other-operation"),
    signal_of_another_operation_before_one_of_the_right_one: Fault("other-operation"),
}

/// C may find B's 2 instead of A's 1. B was told only by a credit of X, so it has seen none of A's data.
fn later_signal_of_one_told_by_credit() -> Seen {
    told_by_credit([0, 1, 2, 3])
}
/// The same, with C's wait before B's signal in the order of the ranks.
fn later_signal_of_one_told_by_credit_first() -> Seen {
    told_by_credit([0, 3, 1, 2])
}
fn told_by_credit(order: [usize; 4]) -> Seen {
    let s = Shared::new();
    let put = line!() + 2;
    let a = s.rank(|r, kit| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
    });
    let x = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        r.signal_credit(kit.slots.slot(0, 1), 1);
    });
    let b = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 1), 1);
        r.signal(kit.slots.slot(0, 0), 2);
    });
    let get = line!() + 3;
    let c = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
        r.wait(kit.slots.slot(0, 0), 2);
    });
    let all = [a, x, b, c];
    check(&[order.map(|rank| all[rank].clone()).to_vec()]).at(&[put, get])
}

/// The same with a proxy: B has seen A's data and posts a bare 2. A posted signal shows what its poster has seen, so C
/// may find either.
fn later_signal_by_proxy() -> Seen {
    later_notice_by_proxy(false)
}

/// A posted credit shows nothing. C may find it in place of A's signal.
fn later_credit_by_proxy() -> Seen {
    later_notice_by_proxy(true)
}

fn later_notice_by_proxy(credit: bool) -> Seen {
    let [ring, region, near] = [(); 3].map(|()| Memory::zeroed(64));
    let slots = Memory::zeroed(4 * 128);
    let out = Tensor::<u64>::zeros(8);
    let put = line!() + 4;
    let a = kernel("a", |k| {
        let (near, slots) = (k.region("near", one(&near)), k.slots("slots", one(&slots), 128));
        k.main(|r| {
            near.put(0, 0, 9u64);
            r.signal(slots.slot(0, 0), 1);
        });
    });
    let b = kernel("b", |k| {
        let (wire, slots) = (k.queue("wire", &ring), k.slots("slots", one(&slots), 128));
        k.main(|r| {
            r.wait(slots.slot(0, 0), 1);
            match credit {
                true => r.post_credit(wire, 2, 0, 2),
                false => r.post_signal(wire, 2, 0, 2),
            }
        });
    });
    let get = line!() + 5;
    let c = kernel("c", |k| {
        let (near, slots) = (k.region("near", one(&near)), k.slots("slots", one(&slots), 128));
        let out = k.output(&out);
        k.main(|r| {
            r.wait(slots.slot(0, 0), 1);
            out.store(0, near.get::<u64>(0, 0));
            r.wait(slots.slot(0, 0), 2);
        });
    });
    let mut plan = plan(&[[a, b, c].map(Result::unwrap).to_vec()]);
    Seen::from(plan.route(&ring, 2, &region, &slots, 128).verify(&settings())).at(&[put, get + 1])
}

/// Rank 2's credit comes after rank 1 has found rank 0's signal. A second wait of rank 1 changes nothing.
fn wait_repeated_between_two_credits() -> Seen {
    two_credits(true)
}
fn wait_between_two_credits() -> Seen {
    two_credits(false)
}
fn two_credits(again: bool) -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| r.signal_credit(kit.slots.slot(0, 0), 1));
    let b = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        r.signal(kit.slots.slot(0, 2), 1);
        if again {
            r.wait(kit.slots.slot(0, 0), 1);
        }
    });
    let c = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 2), 1);
        r.signal_credit(kit.slots.slot(0, 0), 2);
    });
    check(&[vec![a, b, c]])
}

/// A role polls by an atomic for another role of its block, which runs after it.
fn role_polls_another() -> Seen {
    let s = Shared::new();
    let a = s.kernel(|k, kit| {
        k.role("poll", 1).run(|r| {
            r.while_(|| kit.words.atomic_add(0, 0u64, Order::Acquire, Scope::System).eq(0u64), || {});
            kit.out.store(0, kit.words.load(1));
        });
        k.role("tell", 1).run(|_| {
            kit.words.store(1, 9u64);
            kit.words.atomic_add(0, 1u64, Order::Release, Scope::System);
        });
    });
    check(&[vec![a]])
}
/// The flag belongs to a peer, which waits for another role of the polling block.
fn role_polls_a_peer_that_waits_for_another() -> Seen {
    let s = Shared::new();
    let a = s.kernel(|k, kit| {
        k.role("poll", 1).run(|r| {
            r.while_(|| kit.words.atomic_add(0, 0u64, Order::Acquire, Scope::System).eq(0u64), || {});
            kit.out.store(0, kit.words.load(1));
        });
        k.role("tell", 1).run(|r| r.signal(kit.slots.slot(0, 0), 1));
    });
    let b = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        kit.words.store(1, 9u64);
        kit.words.atomic_add(0, 1u64, Order::Release, Scope::System);
    });
    check(&[vec![a, b]])
}
fn block_polls_another() -> Seen {
    let s = Shared::new();
    let a = s.kernel(|k, kit| {
        k.blocks(2);
        k.main(|r| {
            r.if_else(
                r.block().eq(0),
                || {
                    r.while_(|| kit.words.atomic_add(0, 0u64, Order::Acquire, Scope::Device).eq(0u64), || {});
                    kit.out.store(0, kit.words.load(1));
                },
                || {
                    kit.words.store(1, 9u64);
                    kit.words.atomic_add(0, 1u64, Order::Release, Scope::Device);
                },
            )
        });
    });
    check(&[vec![a]])
}
fn rank_polls_another() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        r.while_(|| kit.words.atomic_add(0, 0u64, Order::Acquire, Scope::System).eq(0u64), || {});
        kit.out.store(0, kit.words.load(1));
    });
    let b = s.rank(|_, kit| {
        kit.words.store(1, 9u64);
        kit.words.atomic_add(0, 1u64, Order::Release, Scope::System);
    });
    check(&[vec![a, b]])
}

/// The owner binds an output and does not touch it. A peer puts into it during the launch, ordered by signals. Shipped
/// `direct` transfers do the same.
fn output_written_by_a_peer_and_left_alone() -> Seen {
    let (y, slots) = (Tensor::<u64>::zeros(4), Memory::zeroed(512));
    written_by_peer(y.memory(), &slots, |n| kernel("owner", |k| left_alone(k.output(&y), k, &slots, n)).unwrap())
}
/// An input is promised as a whole.
fn input_written_by_a_peer_and_left_alone() -> Seen {
    let (x, slots) = (Tensor::<u64>::zeros(4), Memory::zeroed(512));
    let bind = line!() + 1;
    let owner = |n| kernel("owner", |k| left_alone(k.input(&x), k, &slots, n)).unwrap();
    written_by_peer(x.memory(), &slots, owner).at(&[bind])
}
fn left_alone<T>(_: T, k: &Block<'_>, slots: &Memory, n: i64) {
    let s = k.slots("slots", one(slots), 128);
    k.main(|r| {
        r.signal(s.slot(0, 0), n);
        r.wait(s.slot(0, 1), n);
    });
}
fn written_by_peer(memory: &Memory, slots: &Memory, owner: impl Fn(i64) -> Traced) -> Seen {
    let peer = |n: i64| {
        let traced = kernel("peer", |k| {
            let (theirs, s) = (k.region("theirs", one(memory)), k.slots("slots", one(slots), 128));
            k.main(|r| {
                r.wait(s.slot(0, 0), n);
                r.each(4, |i| theirs.put(0, i * 8, 7u64));
                r.signal(s.slot(0, 1), n);
            });
        });
        traced.unwrap()
    };
    check(&[vec![owner(1), peer(1)], vec![owner(2), peer(2)]])
}

/// D overwrites what W wrote. D knows only that W's write is over.
fn overwritten_after_a_credit() -> Seen {
    let s = Shared::new();
    let w = s.rank(|r, kit| {
        kit.words.store(0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
    });
    let x = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        kit.out.store(0, kit.words.load(0));
        r.signal_credit(kit.slots.slot(0, 1), 1);
    });
    let d = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 1), 1);
        kit.words.store(0, 8u64);
    });
    check(&[vec![w, x, d]])
}

fn packets_among_the_elements_of_one_each() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        r.each(2, |i| {
            kit.bytes.packet_put(0, i, i.cast::<u64>(), 1u32);
            kit.out.store(i, kit.bytes.packet_get(0, -i + 1, 1u32));
        })
    });
    check(&[vec![a]])
}
/// Rank 0 puts and gets in one `each`. Rank 1 gets everything, then puts everything.
fn packets_in_one_each_and_in_two() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        r.each(2, |i| {
            kit.bytes.packet_put(0, i, i.cast::<u64>(), 1u32);
            kit.out.store(i, kit.bytes.packet_get(0, i + 2, 1u32));
        })
    });
    let b = s.rank(|r, kit| {
        r.each(2, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 1u32)));
        r.each(2, |i| kit.bytes.packet_put(0, i + 2, 5u64, 1u32));
    });
    check(&[vec![a, b]])
}
fn packets_in_opposite_orders() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        r.each(8, |i| {
            kit.bytes.packet_put(0, i, 3u64, 1u32);
            kit.out.store(i, kit.bytes.packet_get(0, i + 8, 1u32));
        })
    });
    let b = s.rank(|r, kit| {
        r.each(8, |i| {
            kit.bytes.packet_put(0, -i + 15, 5u64, 1u32);
            kit.out.store(i, kit.bytes.packet_get(0, -i + 7, 1u32));
        })
    });
    check(&[vec![a, b]])
}

fn tickets_of_elements() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        r.each(4, |i| kit.out.store(i, kit.words.atomic_add(0, 1u64, Order::Relaxed, Scope::System)));
    });
    check(&[vec![a]])
}
fn elements_add_and_load() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        r.each(4, |i| {
            kit.words.atomic_add(0, 1u64, Order::Relaxed, Scope::System);
            kit.out.store(i, kit.words.load(0));
        })
    });
    check(&[vec![a]])
}
fn masked_elements_write_one_place() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| r.each(4, |i| kit.out.store_if(i.lt(2), 0, i.cast::<u64>())));
    check(&[vec![a]])
}

/// Two ranks have packets at one place. One of them has them half a packet further on.
fn packets_shifted_by_half() -> Seen {
    let s = Shared::new();
    let (part, out) = (s.bytes.part(8, 64), Tensor::<u64>::zeros(4));
    let a = s.rank(|r, kit| r.each(1, |i| kit.bytes.packet_put(0, i, 7u64, 1u32)));
    let b = kernel("shifted", |k| {
        let (part, out) = (k.region("part", one(&part)), k.output(&out));
        k.main(|r| {
            r.each(1, |i| {
                part.packet_put(0, i, 5u64, 1u32);
                out.store(i, part.packet_get(0, i + 1, 1u32))
            })
        });
    });
    let c = s.rank(|r, kit| r.each(1, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 1u32))));
    check(&[vec![a, b.unwrap(), c]])
}
fn packet_publishes_nothing() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        kit.words.store(0, 7u64);
        r.barrier();
        r.each(1, |i| kit.bytes.packet_put(0, i, 7u64, 1u32));
    });
    let b = s.rank(|r, kit| {
        r.each(1, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 1u32)));
        kit.out.store(1, kit.words.load(0));
    });
    check(&[vec![a, b]])
}

fn signal_of_another_operation() -> Seen {
    operations(&[(5, 6)])
}
/// The run may meet the second word, of the right operation, in the first wait. Another run does not.
fn signal_of_another_operation_before_one_of_the_right_one() -> Seen {
    operations(&[(5, 6), (6, 6)])
}
/// For each launch: the operation of the signalling rank, and that of the waiting one.
fn operations(launches: &[(u16, u16)]) -> Seen {
    let slots = Memory::zeroed(128).for_purpose(Purpose::Transfer { part: Part::Done, from: 0, to: 1 });
    let launch = |(n, &(told, awaited)): (i64, &(u16, u16))| {
        let tell = kernel("tell", |k| {
            let s = k.slots("slots", one(&slots.clone().for_operation(told)), 128);
            k.main(|r| r.signal(s.slot(0, 0), n));
        });
        let wait = kernel("wait", |k| {
            let s = k.slots("slots", one(&slots.clone().for_operation(awaited)), 128);
            k.main(|r| r.wait(s.slot(0, 0), n));
        });
        vec![tell.unwrap(), wait.unwrap()]
    };
    check(&(1..).zip(launches).map(launch).collect::<Vec<_>>())
}
