//! Findings of a second review: packets under plain writes, atomics of elements, posts to several peers, memory weaker
//! than interleavings.

use super::Expect::*;
use super::{Seen, Shared, check, one, plan, settings};
use tilewire::check::Values;
use tilewire::ir::{Order, Scope};
use tilewire::{Memory, Tensor, kernel};

seeds! {
    mp_credits_test: NotCalledSafe,
    mp_signal_credit_test: NotCalledSafe,
    mp_packet_test: NotCalledSafe,
    mp_packet_atomic: NotCalledSafe,
    lb_relaxed: NotCalledSafe,
    sb_control: NotCalledSafe,
    each_release_forgets_reads: AnyFault,
    each_release_forgets_reads_control: AnyFault,
    each_release_forgets_atomics: AnyFault,
    packet_junk: AnyFault,
    packet_junk_control: AnyFault,
    mp_packet_acquire: NotCalledSafe,
    mp_credit_acquire: NotCalledSafe,
    lane_reused_shows_other_post: CleanDecided,
    lane_reused_control: CleanDecided,
    lane_reused_after_credit: Fault("race"),
    lane_reused_after_credit_control: Fault("race"),
    host_resets_counter: Clean,
    posted_then_bare_signal: Clean,
    inout_accumulates: CleanDecided,
    inout_window_get_then_credit: CleanDecided,
    value_wrong_second_launch: AnyFault,
    each_uniform_load: AnyFault,
    each_release_shows_other_element: NotCalledSafe,
    each_release_shows_other_element_spin: NotCalledSafe,
    values_empty: Clean,
    packet_cleared_while_polled: AnyFault,
    heard_overwritten: CleanDecided,
    heard_not: CleanDecided,
    each_crossing: AnyFault,
    credit_of_proxy_then_data: NotCalledSafe,
    equal_start: Clean,
}

fn third(s: &Shared) -> tilewire::Traced {
    s.rank(|_, kit| kit.words.store(5, 9u64))
}

/// Two credits of one party are relaxed stores. A party that found the second may miss the first.
fn mp_credits_test() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        r.signal_credit(kit.slots.slot(0, 0), 1);
        r.signal_credit(kit.slots.slot(0, 1), 1);
    });
    let b = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 1), 1);
        let there = r.test(kit.slots.slot(0, 0), 1);
        r.if_(!there, || kit.words.store(5, 7u64));
    });
    check(&[vec![a, b, third(&s)]])
}
fn mp_signal_credit_test() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        r.signal(kit.slots.slot(0, 0), 1);
        r.signal_credit(kit.slots.slot(0, 1), 1);
    });
    let b = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 1), 1);
        let there = r.test(kit.slots.slot(0, 0), 1);
        r.if_(!there, || kit.words.store(5, 7u64));
    });
    check(&[vec![a, b, third(&s)]])
}
fn mp_packet_test() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        r.signal(kit.slots.slot(0, 0), 1);
        r.each(1, |i| kit.bytes.packet_put(0, i, 7u64, 1u32));
    });
    let b = s.rank(|r, kit| {
        r.each(1, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 1u32)));
        let there = r.test(kit.slots.slot(0, 0), 1);
        r.if_(!there, || kit.words.store(5, 7u64));
    });
    check(&[vec![a, b, third(&s)]])
}
fn mp_packet_atomic() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        kit.words.atomic_add(0, 1u64, Order::Relaxed, Scope::System);
        r.each(1, |i| kit.bytes.packet_put(0, i, 7u64, 1u32));
    });
    let b = s.rank(|r, kit| {
        r.each(1, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 1u32)));
        let seen = kit.words.atomic_add(0, 0u64, Order::Relaxed, Scope::System);
        r.if_(seen.eq(0u64), || kit.words.store(5, 7u64));
    });
    check(&[vec![a, b, third(&s)]])
}
/// Load buffering: both may find the other's 1.
fn lb_relaxed() -> Seen {
    let s = Shared::new();
    let side = |mine: i64, theirs: i64| {
        s.rank(move |r, kit| {
            let seen = kit.words.atomic_add(theirs, 0u64, Order::Relaxed, Scope::System);
            kit.words.atomic_add(mine, 1u64, Order::Relaxed, Scope::System);
            r.if_(seen.eq(1u64), || kit.words.store(5, 7u64));
        })
    };
    check(&[vec![side(0, 1), side(1, 0)]])
}
fn sb_control() -> Seen {
    let s = Shared::new();
    let side = |mine: i64, theirs: i64| {
        s.rank(move |r, kit| {
            r.each(1, |i| kit.bytes.packet_put(0, i + mine, 7u64, 1u32));
            let there = r.test(kit.slots.slot(0, theirs), 1);
            r.signal(kit.slots.slot(0, mine), 1);
            r.if_(!there, || kit.words.store(5, 7u64));
            r.each(1, |i| kit.out.store(i, kit.bytes.packet_get(0, i + theirs, 1u32)));
            r.wait(kit.slots.slot(0, theirs), 1);
        })
    };
    check(&[vec![side(0, 1), side(1, 0)]])
}
/// Element 0 reads word 0, element 1 writes it; between them element 1 reads it again in a later epoch.
fn forgets(order: Order) -> Seen {
    let s = Shared::new();
    let k = s.rank(move |r, kit| {
        r.each(2, |i| {
            let a = kit.words.load(0);
            kit.words.atomic_add(8, 1u64, order, Scope::System);
            let b = kit.words.load(-i + 1);
            kit.words.store(-i + 1, b + 1u64);
            kit.out.store(i, a + i.cast::<u64>());
        });
    });
    check(&[vec![k]])
}
fn each_release_forgets_reads() -> Seen {
    forgets(Order::Release)
}
fn each_release_forgets_reads_control() -> Seen {
    forgets(Order::Relaxed)
}
/// Elements 0 and 1 add to word 0. Only element 1 reads it plainly.
fn each_release_forgets_atomics() -> Seen {
    let s = Shared::new();
    let k = s.rank(move |r, kit| {
        r.each(2, |i| {
            kit.words.atomic_add(0, 1u64, Order::Release, Scope::System);
            kit.out.store(i, kit.words.load(-i + 1));
        });
    });
    check(&[vec![k]])
}
/// Plain bytes that look like a packet of flag 1 lie there for a while. The getter may take them.
fn junk(first: bool) -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        kit.bytes.put(0, 0, (1u64 << 32) | 5);
        kit.bytes.put(0, 8, (1u64 << 32) | 6);
        if !first {
            kit.bytes.put(0, 0, 0u64);
            kit.bytes.put(0, 8, 0u64);
        }
        r.each(1, |i| kit.bytes.packet_put(0, i, 7u64, 1u32));
    });
    let b = s.rank(|r, kit| r.each(1, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 1u32))));
    check(&[vec![a, b]])
}
fn packet_junk() -> Seen {
    junk(false)
}
fn packet_junk_control() -> Seen {
    junk(true)
}

/// Data, its signal, and one more signal of the same poster: that shows the data as well.
fn posted_then_bare_signal() -> Seen {
    let (ring, source, region, slots) =
        (Memory::zeroed(64), Memory::zeroed(64), Memory::zeroed(64), Memory::zeroed(4 * 128));
    let send = kernel("sender", |k| {
        let (queue, source) = (k.queue("wire", &ring), k.region("source", one(&source)));
        k.main(|r| {
            source.put(0, 0, 7u64);
            r.post(queue, 1, source.bank(0), 0, 8);
            r.post_signal(queue, 1, 0, 1);
            r.post_signal(queue, 1, 0, 2);
        });
    })
    .unwrap();
    let out = Tensor::<u64>::zeros(8);
    let receive = kernel("receiver", |k| {
        let region = k.region("region", one(&region));
        let slots = k.slots("slots", one(&slots), 128);
        let out = k.output(&out);
        k.main(|r| {
            r.wait(slots.slot(0, 0), 1);
            out.store(0, region.get::<u64>(0, 0));
            r.wait(slots.slot(0, 0), 2);
        });
    })
    .unwrap();
    let mut plan = plan(&[vec![send, receive]]);
    plan.route(&ring, 1, &region, &slots, 128).verify(&settings()).into()
}
/// A tensor is summed up over launches. Nobody else touches it.
fn inout_accumulates() -> Seen {
    let x = Tensor::<u64>::zeros(4);
    let k = || {
        kernel("k", |k| {
            let x = k.inout(&x);
            k.main(|r| r.each(4, |i| x.store(i, x.load(i) + 1u64)));
        })
        .unwrap()
    };
    let mut plan = plan(&[vec![k()], vec![k()], vec![k()]]);
    plan.expect(|_, launch| vec![Values::of(&x, [launch as u64 + 1; 4])]);
    plan.verify(&settings()).into()
}
/// The host does not touch x. A peer reads it late, and the next launch waits for that before it adds.
fn inout_window_get_then_credit() -> Seen {
    let (x, slots) = (Tensor::<u64>::zeros(4), Memory::zeroed(4 * 128));
    let out = Tensor::<u64>::zeros(4);
    let launch = |n: i64| {
        let owner = kernel("owner", |k| {
            let x = k.inout(&x);
            let s = k.slots("slots", one(&slots), 128);
            k.main(|r| {
                if n > 0 {
                    r.wait(s.slot(0, 1), n);
                }
                r.each(4, |i| x.store(i, x.load(i) + 1u64));
                r.signal(s.slot(0, 0), n + 1);
            });
        })
        .unwrap();
        let peer = kernel("peer", |k| {
            let theirs = k.region("theirs", one(x.memory()));
            let (out, s) = (k.output(&out), k.slots("slots", one(&slots), 128));
            k.main(|r| {
                r.wait(s.slot(0, 0), n + 1);
                r.each(4, |i| out.store(i, theirs.get::<u64>(0, i * 8)));
                r.signal_credit(s.slot(0, 1), n + 1);
            });
        })
        .unwrap();
        vec![owner, peer]
    };
    let mut plan = plan(&[launch(0), launch(1)]);
    plan.host_leaves(0, x.memory()).verify(&settings()).into()
}
/// The second launch does not touch the output. The host expects a new number.
fn value_wrong_second_launch() -> Seen {
    let (x, y) = (Tensor::<u64>::zeros(4), Tensor::<u64>::zeros(4));
    let first = kernel("k", |k| {
        let (x, y) = (k.input(&x), k.output(&y));
        k.main(|r| r.each(4, |i| y.store(i, x.load(i))));
    })
    .unwrap();
    let second = kernel("k", |k| {
        let (x, y) = (k.input(&x), k.output(&y));
        k.main(|r| r.each(3, |i| y.store(i, x.load(i))));
    })
    .unwrap();
    let mut plan = plan(&[vec![first], vec![second]]);
    plan.inputs(|_, l| vec![Values::of(&x, [l as u64; 4])]);
    plan.expect(|_, l| vec![Values::of(&y, [l as u64; 4])]);
    plan.verify(&settings()).into()
}

/// The packet does not order A's atomic before B's. B may add first and acquire nothing.
fn mp_packet_acquire() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        kit.words.store(5, 7u64);
        kit.words.atomic_add(0, 1u64, Order::Release, Scope::System);
        r.each(1, |i| kit.bytes.packet_put(0, i, 7u64, 1u32));
    });
    let b = s.rank(|r, kit| {
        r.each(1, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 1u32)));
        kit.words.atomic_add(0, 0u64, Order::Acquire, Scope::System);
        kit.out.store(2, kit.words.load(5));
    });
    check(&[vec![a, b]])
}
fn mp_credit_acquire() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        kit.words.store(5, 7u64);
        kit.words.atomic_add(0, 1u64, Order::Release, Scope::System);
        r.signal_credit(kit.slots.slot(0, 0), 1);
    });
    let b = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        kit.words.atomic_add(0, 0u64, Order::Acquire, Scope::System);
        kit.out.store(2, kit.words.load(5));
    });
    check(&[vec![a, b]])
}
/// Rank 0 posts to rank 1, learns that the post arrived, and then tells rank 2 over the network. If rank 1 signalled,
/// rank 0 has seen the data at rank 1, and its notice shows that to rank 2. If rank 1 gave a credit, rank 0 has not
/// seen it, and the notice covers only what was posted to rank 2.
fn lanes(post: bool, credit: bool) -> Seen {
    let (ring, source, r1, r2, s1, s2, ack) = (
        Memory::zeroed(64),
        Memory::zeroed(64),
        Memory::zeroed(64),
        Memory::zeroed(64),
        Memory::zeroed(512),
        Memory::zeroed(512),
        Memory::zeroed(512),
    );
    let send = kernel("sender", |k| {
        let (queue, source) = (k.queue("wire", &ring), k.region("source", one(&source)));
        let ack = k.slots("ack", one(&ack), 128);
        k.main(|r| {
            source.put(0, 0, 7u64);
            r.post(queue, 1, source.bank(0), 0, 8);
            r.post_signal(queue, 1, 0, 1);
            r.wait(ack.slot(0, 0), 1);
            if post {
                r.post(queue, 2, source.bank(0), 0, 8);
            }
            r.post_signal(queue, 2, 0, 1);
        });
    })
    .unwrap();
    let one_ = kernel("one", |k| {
        let (s, ack) = (k.slots("s", one(&s1), 128), k.slots("ack", one(&ack), 128));
        k.main(|r| {
            r.wait(s.slot(0, 0), 1);
            match credit {
                true => r.signal_credit(ack.slot(0, 0), 1),
                false => r.signal(ack.slot(0, 0), 1),
            }
        });
    })
    .unwrap();
    let out = Tensor::<u64>::zeros(2);
    let two = kernel("two", |k| {
        let (s, theirs, out) = (k.slots("s", one(&s2), 128), k.region("theirs", one(&r1)), k.output(&out));
        k.main(|r| {
            r.wait(s.slot(0, 0), 1);
            out.store(0, theirs.get::<u64>(0, 0));
        });
    })
    .unwrap();
    let mut plan = plan(&[vec![send, one_, two]]);
    plan.route(&ring, 1, &r1, &s1, 128).route(&ring, 2, &r2, &s2, 128).verify(&settings()).into()
}
fn lane_reused_shows_other_post() -> Seen {
    lanes(true, false)
}
fn lane_reused_control() -> Seen {
    lanes(false, false)
}
fn lane_reused_after_credit() -> Seen {
    lanes(true, true)
}
fn lane_reused_after_credit_control() -> Seen {
    lanes(false, true)
}
/// The only host sets the counter back between launches.
fn host_resets_counter() -> Seen {
    let slots = Tensor::<u64>::zeros(1);
    let both = || {
        kernel("both", |k| {
            let s = k.slots("slots", one(slots.memory()), 8);
            k.role("a", 1).run(|r| r.signal(s.slot(0, 0), 1));
            k.role("b", 1).run(|r| r.wait(s.slot(0, 0), 1));
        })
        .unwrap()
    };
    let mut plan = plan(&[vec![both()], vec![both()]]);
    plan.inputs(|_, _| vec![Values::of(&slots, [0u64])]);
    plan.verify(&settings()).into()
}

fn each_uniform_load() -> Seen {
    let s = Shared::new();
    let k = s.rank(move |r, kit| {
        r.each(2, |i| {
            let a = kit.words.load(0);
            kit.words.store(-i + 1, 3u64);
            kit.out.store(i, a);
        });
    });
    check(&[vec![k]])
}
/// Element 0 writes word 4, and element 1 releases word 1. Nothing orders the two.
fn each_release_shows_other_element() -> Seen {
    let s = Shared::new();
    let a = s.rank(move |r, kit| {
        r.each(2, |i| {
            kit.words.store(i + 4, 7u64);
            kit.words.atomic_add(i, 1u64, Order::Release, Scope::System);
        });
    });
    let b = s.rank(move |r, kit| {
        let seen = kit.words.atomic_add(1, 0u64, Order::Acquire, Scope::System);
        r.if_(seen.eq(1u64), || kit.out.store(0, kit.words.load(4)));
    });
    check(&[vec![a, b]])
}
fn each_release_shows_other_element_spin() -> Seen {
    let s = Shared::new();
    let a = s.rank(move |r, kit| {
        r.each(2, |i| {
            kit.words.store(i + 4, 7u64);
            kit.words.atomic_add(-i + 1, 1u64, Order::Release, Scope::System);
        });
    });
    let b = s.rank(move |r, kit| {
        let seen = kit.words.atomic_add(0, 0u64, Order::Acquire, Scope::System);
        r.if_(seen.eq(1u64), || kit.out.store(0, kit.words.load(4)));
    });
    check(&[vec![a, b]])
}
fn values_empty() -> Seen {
    let x = Tensor::<u64>::zeros(4);
    let k = kernel("k", |k| {
        let x = k.inout(&x);
        k.main(|r| r.each(4, |i| x.store(i, x.load(i) + 1u64)));
    })
    .unwrap();
    let mut plan = plan(&[vec![k]]);
    plan.inputs(|_, _| vec![Values::of(&x, [])]);
    plan.expect(|_, _| vec![Values::of(&x, [])]);
    plan.verify(&settings()).into()
}
/// Launch 0 leaves a packet of flag 1 there. Launch 1 clears it and puts flag 1 again. The getter may take the old one.
fn packet_cleared_while_polled() -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let a = s.rank(move |r, kit| {
            if n > 0 {
                r.wait(kit.slots.slot(0, 0), n);
                kit.bytes.put(0, 0, 0u64);
                kit.bytes.put(0, 8, 0u64);
            }
            r.each(1, |i| kit.bytes.packet_put(0, i, (7 + n) as u64, 1u32));
        });
        let b = s.rank(move |r, kit| {
            r.each(1, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 1u32)));
            r.signal_credit(kit.slots.slot(0, 0), n + 1);
        });
        vec![b, a]
    };
    check(&[launch(0), launch(1)])
}
/// B hears by a packet that A's wait for the data is over, then gives a credit in the same counter.
fn heard(put_first: bool) -> Seen {
    let s = Shared::new();
    let b = s.rank(move |r, kit| {
        kit.bytes.put(0, 64, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
        r.each(1, |i| kit.out.store(i, kit.bytes.packet_get(0, i, 1u32)));
        r.signal_credit(kit.slots.slot(0, 0), 2);
    });
    let a = s.rank(move |r, kit| {
        if put_first {
            r.each(1, |i| kit.bytes.packet_put(0, i, 7u64, 1u32));
        }
        r.wait(kit.slots.slot(0, 0), 1);
        if !put_first {
            r.each(1, |i| kit.bytes.packet_put(0, i, 7u64, 1u32));
        }
        kit.out.store(1, kit.bytes.get::<u64>(0, 64));
        r.wait(kit.slots.slot(0, 0), 2);
    });
    check(&[vec![a, b]])
}
fn heard_overwritten() -> Seen {
    heard(false)
}
fn heard_not() -> Seen {
    heard(true)
}

/// Elements that run one after the other wait forever for each other's packets.
fn each_crossing() -> Seen {
    let s = Shared::new();
    let side = |mine: i64, theirs: i64| {
        s.rank(move |r, kit| {
            r.each(2, |i| {
                kit.bytes.packet_put(0, i + mine, 7u64, 1u32);
                kit.out.store(i, kit.bytes.packet_get(0, -i + 1 + theirs, 1u32));
            })
        })
    };
    check(&[vec![side(0, 2), side(2, 0)]])
}
/// A counts data in the counter. Then B, which A has told, gives a credit in it, and C's wait may find that credit.
fn credit_of_proxy_then_data() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
        r.signal(kit.slots.slot(0, 1), 1);
    });
    let b = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 1), 1);
        r.signal_credit(kit.slots.slot(0, 0), 2);
    });
    let c = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
        r.wait(kit.slots.slot(0, 0), 2);
    });
    check(&[vec![c, a, b]])
}
fn equal_start() -> Seen {
    let slots = Tensor::<u64>::from_slice(&[2; 16]);
    let wait = kernel("w", |k| {
        let s = k.slots("slots", one(slots.memory()), 8);
        k.main(|r| r.wait(s.slot(0, 0), 3));
    })
    .unwrap();
    let signal = kernel("s", |k| {
        let s = k.slots("slots", one(slots.memory()), 8);
        k.main(|r| {
            r.signal(s.slot(0, 0), 2);
            r.signal(s.slot(0, 0), 3);
        });
    })
    .unwrap();
    check(&[vec![wait, signal]])
}
