//! Findings of a review of the model: signals that show less than earlier ones, memory weaker than interleavings,
//! packets of other elements, proxies, hosts.

use super::Expect::*;
use super::{Seen, Shared, check, one, plan, settings};
use tilewire::check::CopyStream;
use tilewire::ir::{Access, BulkDone, Order, Scope};
use tilewire::{Memory, Tensor, kernel};

seeds! {
    first_signal_below_initial: AnyFault,
    first_signal_below_initial_data: AnyFault,
    two_writers_by_credit: AnyFault,
    put_beside_post: CleanDecided,
    put_beside_post_signal_only: CleanDecided,
    put_beside_post_credit: Fault("race"),
    two_rings_two_kernels: AnyFault,
    two_rings_one_kernel: AnyFault,
    bulk_overlaps: AnyFault,
    dekker_tests: NotCalledSafe,
    dekker_relaxed: NotCalledSafe,
    iriw_tests: NotCalledSafe,
    packet_of_other_element: AnyFault,
    packet_of_other_element_masked: AnyFault,
    inout_late_get: AnyFault,
    input_late_get: AnyFault,
    plain_read_of_slot_beside_waiter: Clean,
    ahead_correct: CleanDecided,
    prior_launch_write_read_in: CleanDecided,
    stream_resets_slot: Clean,
    credit_over_data: CleanDecided,
    later_signal_knows_less: AnyFault,
    post_signal_over_signal: CleanDecided,
    post_credit_over_signal: Fault("race"),
    test_credit_over_data: Clean,
    undefined_atomic: NotCalledSafe,
    in_then_region_then_in: CleanDecided,
}

/// Counters left by an earlier run stand at 2. Signalling 1 takes them back. Rank 0 hangs if rank 1 is first.
fn first_signal_below_initial() -> Seen {
    let slots = Tensor::<u64>::from_slice(&[2; 16]);
    let wait = kernel("w", |k| {
        let s = k.slots("slots", one(slots.memory()), 8);
        k.main(|r| r.wait(s.slot(0, 0), 2));
    })
    .unwrap();
    let signal = kernel("s", |k| {
        let s = k.slots("slots", one(slots.memory()), 8);
        k.main(|r| r.signal(s.slot(0, 0), 1));
    })
    .unwrap();
    check(&[vec![wait, signal]])
}

fn first_signal_below_initial_data() -> Seen {
    let slots = Tensor::<u64>::from_slice(&[2; 16]);
    let wait = kernel("w", |k| {
        let s = k.slots("slots", one(slots.memory()), 8);
        k.main(|r| {
            r.wait(s.slot(0, 0), 2);
            r.wait(s.slot(0, 1), 1);
        });
    })
    .unwrap();
    let signal = kernel("s", |k| {
        let s = k.slots("slots", one(slots.memory()), 8);
        k.main(|r| {
            r.signal(s.slot(0, 0), 1);
            r.signal(s.slot(0, 0), 2);
        });
    })
    .unwrap();
    check(&[vec![wait, signal]])
}

/// A credit is a relaxed store. It does not order A's signal before B's.
fn two_writers_by_credit() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        r.signal(kit.slots.slot(0, 0), 1);
        r.signal_credit(kit.slots.slot(0, 1), 1);
    });
    let b = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 1), 1);
        r.signal(kit.slots.slot(0, 0), 2);
    });
    let c = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 2);
    });
    super::check_with(&[vec![a, b, c]], &settings())
}

fn put_beside(post: bool, credit: bool) -> Seen {
    let (ring, source, region, slots, near) =
        (Memory::zeroed(64), Memory::zeroed(64), Memory::zeroed(64), Memory::zeroed(4 * 128), Memory::zeroed(64));
    let send = kernel("sender", |k| {
        let (queue, source) = (k.queue("wire", &ring), k.region("source", one(&source)));
        let near = k.region("near", one(&near));
        k.main(|r| {
            near.put(0, 0, 9u64);
            if post {
                source.put(0, 0, 7u64);
                r.post(queue, 1, source.bank(0), 0, 8);
            }
            match credit {
                true => r.post_credit(queue, 1, 0, 1),
                false => r.post_signal(queue, 1, 0, 1),
            }
        });
    })
    .unwrap();
    let out = Tensor::<u64>::zeros(8);
    let receive = kernel("receiver", |k| {
        let near = k.region("near", one(&near));
        let region = k.region("region", one(&region));
        let slots = k.slots("slots", one(&slots), 128);
        let out = k.output(&out);
        k.main(|r| {
            r.wait(slots.slot(0, 0), 1);
            out.store(0, near.get::<u64>(0, 0));
            if post {
                out.store(1, region.get::<u64>(0, 0));
            }
        });
    })
    .unwrap();
    let mut plan = plan(&[vec![send, receive]]);
    plan.route(&ring, 1, &region, &slots, 128).verify(&settings()).into()
}

/// A posted signal also publishes earlier direct puts: it goes through the ring, which is released and acquired.
fn put_beside_post() -> Seen {
    put_beside(true, false)
}
fn put_beside_post_signal_only() -> Seen {
    put_beside(false, false)
}
/// A posted credit does not.
fn put_beside_post_credit() -> Seen {
    put_beside(false, true)
}

/// The data goes over one ring and the signal over another. Both kernels have the queue as their first parameter.
fn rings(one_kernel: bool) -> Seen {
    let (ring_a, ring_b, source, region, slots) =
        (Memory::zeroed(64), Memory::zeroed(64), Memory::zeroed(64), Memory::zeroed(64), Memory::zeroed(4 * 128));
    let out = Tensor::<u64>::zeros(8);
    let nothing = || kernel("nothing", |k| k.main(|_| {})).unwrap();
    let receive = kernel("receiver", |k| {
        let region = k.region("region", one(&region));
        let slots = k.slots("slots", one(&slots), 128);
        let out = k.output(&out);
        k.main(|r| {
            r.wait(slots.slot(0, 0), 1);
            out.store(0, region.get::<u64>(0, 0));
        });
    })
    .unwrap();
    let launches = if one_kernel {
        let both = kernel("both", |k| {
            let (a, b) = (k.queue("a", &ring_a), k.queue("b", &ring_b));
            let source = k.region("source", one(&source));
            k.main(|r| {
                source.put(0, 0, 7u64);
                r.post(a, 1, source.bank(0), 0, 8);
                r.post_signal(b, 1, 0, 1);
            });
        })
        .unwrap();
        vec![vec![both, receive]]
    } else {
        let first = kernel("first", |k| {
            let queue = k.queue("a", &ring_a);
            let source = k.region("source", one(&source));
            k.main(|r| {
                source.put(0, 0, 7u64);
                r.post(queue, 1, source.bank(0), 0, 8);
            });
        })
        .unwrap();
        let second = kernel("second", |k| {
            let queue = k.queue("b", &ring_b);
            k.main(|r| r.post_signal(queue, 1, 0, 1));
        })
        .unwrap();
        vec![vec![first, nothing()], vec![second, receive]]
    };
    let mut plan = plan(&launches);
    plan.route(&ring_a, 1, &region, &slots, 128).route(&ring_b, 1, &region, &slots, 128).verify(&settings()).into()
}
fn two_rings_two_kernels() -> Seen {
    rings(false)
}
fn two_rings_one_kernel() -> Seen {
    rings(true)
}

/// The source and the destination of one bulk copy overlap.
fn bulk_overlaps() -> Seen {
    let x = Tensor::<u64>::zeros(16);
    let k = kernel("k", |k| {
        let x = k.inout(&x);
        k.main(|r| {
            r.proxy_fence();
            r.bulk_copy(x.part(1, 8), x.part(0, 8), 8);
            r.bulk_wait(0, BulkDone::Complete);
        });
    })
    .unwrap();
    check(&[vec![k]])
}

/// Store buffering with release stores and acquire loads of two slots. Both tests may fail on any machine with store
/// buffers.
fn dekker_tests() -> Seen {
    let s = Shared::new();
    let side = |mine: i64, theirs: i64| {
        s.rank(move |r, kit| {
            r.signal(kit.slots.slot(0, mine), 1);
            let there = r.test(kit.slots.slot(0, theirs), 1);
            r.if_(!there, || kit.words.store(0, 7u64));
            r.wait(kit.slots.slot(0, theirs), 1);
        })
    };
    check(&[vec![side(0, 1), side(1, 0)]])
}

fn dekker_relaxed() -> Seen {
    let s = Shared::new();
    let side = |mine: i64, theirs: i64| {
        s.rank(move |r, kit| {
            kit.words.atomic_add(mine, 1u64, Order::Relaxed, Scope::System);
            let seen = kit.words.atomic_add(theirs, 0u64, Order::Relaxed, Scope::System);
            r.if_(seen.eq(0u64), || kit.words.store(2, 7u64));
        })
    };
    check(&[vec![side(0, 1), side(1, 0)]])
}

/// Independent reads of independent writes, by tests.
fn iriw_tests() -> Seen {
    let s = Shared::new();
    let writer = |slot: i64| s.rank(move |r, kit| r.signal(kit.slots.slot(0, slot), 1));
    let reader = |a: i64, b: i64| {
        s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, a), 1);
            let there = r.test(kit.slots.slot(0, b), 1);
            r.if_(!there, || kit.words.store(0, 7u64));
            r.wait(kit.slots.slot(0, b), 1);
        })
    };
    check(&[vec![writer(0), writer(1), reader(0, 1), reader(1, 0)]])
}

/// Each element has got its own packet and reads the bytes of its neighbour's.
fn packet_of_other_element() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| r.each(2, |i| kit.bytes.packet_put(0, i, 7u64, 1u32)));
    let receive = s.rank(|r, kit| {
        r.each(2, |i| {
            let mine = kit.bytes.packet_get(0, i, 1u32);
            let theirs = kit.bytes.get::<u64>(0, (-i + 1) * 16);
            kit.out.store(i, mine + theirs);
        });
    });
    check(&[vec![send, receive]])
}

fn packet_of_other_element_masked() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| r.each(2, |i| kit.bytes.packet_put(0, i, 7u64, 1u32)));
    let receive = s.rank(|r, kit| {
        r.each(2, |i| {
            let mine = kit.bytes.packet_get(0, i, 1u32);
            let theirs = kit.bytes.get::<u32>(0, 16);
            kit.out.store(i, mine + theirs.cast::<u64>());
        });
    });
    check(&[vec![send, receive]])
}

/// In place: the peer reads late, and the host has stored new numbers there for its next launch.
fn late(inout: bool) -> Seen {
    let (x, slots) = (Tensor::<u64>::zeros(4), Memory::zeroed(4 * 128));
    let out = Tensor::<u64>::zeros(4);
    let launch = |n: i64| {
        let owner = kernel("owner", |k| {
            let x = if inout { k.inout(&x) } else { k.input(&x) };
            let mine = Tensor::<u64>::zeros(4);
            let mine = k.output(&mine);
            let s = k.slots("slots", one(&slots), 128);
            k.main(|r| {
                mine.store(0, x.load(0));
                r.signal(s.slot(0, 0), n + 1);
            });
        })
        .unwrap();
        let peer = kernel("peer", |k| {
            let theirs = k.region("theirs", one(x.memory()));
            let out = k.output(&out);
            let s = k.slots("slots", one(&slots), 128);
            k.main(|r| {
                r.wait(s.slot(0, 0), n + 1);
                r.each(4, |i| out.store(i, theirs.get::<u64>(0, i * 8)));
            });
        })
        .unwrap();
        vec![owner, peer]
    };
    check(&[launch(0), launch(1)])
}
fn inout_late_get() -> Seen {
    late(true)
}
fn input_late_get() -> Seen {
    late(false)
}

/// One party reads a counter plainly after the wait for its last value, while another only waits for it.
fn plain_read_of_slot_beside_waiter() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| r.signal(kit.slots.slot(0, 0), 1));
    let b = kernel("b", |k| {
        let (slots, raw) =
            (k.slots("slots", one(&s.slots), 128), k.buffer::<u64>("raw", one(&s.slots), Access::InOut).bank(0));
        let out = Tensor::<u64>::zeros(4);
        let out = k.output(&out);
        k.main(|r| {
            r.wait(slots.slot(0, 0), 1);
            out.store(0, raw.load(0));
        });
    })
    .unwrap();
    let c = s.rank(|r, kit| r.wait(kit.slots.slot(0, 0), 1));
    check(&[vec![a, b, c]])
}

/// Rank 0 runs ahead; correct.
fn ahead_correct() -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let a = s.rank(move |r, kit| {
            if n >= 2 {
                r.wait(kit.slots.slot(0, 1), n - 1);
            }
            kit.bytes.put(0, (n % 2) * 8, 7u64);
            r.signal(kit.slots.slot(0, 0), n + 1);
        });
        let b = s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, 0), n + 1);
            kit.out.store(0, kit.bytes.get::<u64>(0, (n % 2) * 8));
            r.signal_credit(kit.slots.slot(0, 1), n + 1);
        });
        vec![a, b]
    };
    check(&[launch(0), launch(1), launch(2), launch(3)])
}

/// In launch 0 the peer writes memory that is the owner's input in launch 1. The owner waited in launch 0.
fn prior_launch_write_read_in() -> Seen {
    let (x, slots) = (Memory::zeroed(64), Memory::zeroed(4 * 128));
    let writer = kernel("writer", |k| {
        let (x, s) = (k.region("x", one(&x)), k.slots("slots", one(&slots), 128));
        k.main(|r| {
            r.each(8, |i| x.put(0, i * 8, 7u64));
            r.signal(s.slot(0, 0), 1);
        });
    })
    .unwrap();
    let waiter = kernel("waiter", |k| {
        let s = k.slots("slots", one(&slots), 128);
        k.main(|r| r.wait(s.slot(0, 0), 1));
    })
    .unwrap();
    let reader = kernel("reader", |k| {
        let out = Tensor::<u64>::zeros(8);
        let (x, out) = (k.buffer::<u64>("x", one(&x), Access::In).bank(0), k.output(&out));
        k.main(|r| r.each(8, |i| out.store(i, x.load(i))));
    })
    .unwrap();
    let nothing = kernel("nothing", |k| k.main(|_| {})).unwrap();
    check(&[vec![writer, waiter], vec![nothing, reader]])
}

/// A stream sets the counters back between two launches. This is ordered correctly.
fn stream_resets_slot() -> Seen {
    let (slots, zero) = (Memory::zeroed(8), Memory::zeroed(8));
    let both = || {
        kernel("both", |k| {
            let s = k.slots("slots", one(&slots), 8);
            k.role("a", 1).run(|r| r.signal(s.slot(0, 0), 1));
            k.role("b", 1).run(|r| r.wait(s.slot(0, 0), 1));
        })
        .unwrap()
    };
    let nothing = kernel("nothing", |k| k.main(|_| {})).unwrap();
    let mut plan = plan(&[vec![both()], vec![nothing]]);
    plan.beside(0, CopyStream::new().copy(&slots, &zero));
    let second = both();
    plan.launch(&[(&second.kernel, &second.args[..])]);
    plan.host_writes(0, &zero);
    plan.verify(&settings()).into()
}

/// The wait for 1 may find 2, a credit of the same role copy. A relaxed store that follows a release of the same thread
/// to the same place shows what the release showed.
fn credit_over_data() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
        r.signal_credit(kit.slots.slot(0, 0), 2);
    });
    let b = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
        r.wait(kit.slots.slot(0, 0), 2);
    });
    check(&[vec![a, b]])
}

/// C may find B's 2, and B has seen none of A's data.
fn later_signal_knows_less() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
        r.signal_credit(kit.slots.slot(0, 1), 1);
    });
    let b = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 1), 1);
        r.signal(kit.slots.slot(0, 0), 2);
    });
    let c = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
        r.wait(kit.slots.slot(0, 0), 2);
    });
    check(&[vec![a, b, c]])
}

/// As above, with the proxy's signal as the later one. It shows the actions of its poster, so it shows what the earlier
/// signal shows.
fn post_signal_over_signal() -> Seen {
    post_over_signal(false)
}
/// A credit shows nothing. The proxy that sets the slot is not the party that signalled before.
fn post_credit_over_signal() -> Seen {
    post_over_signal(true)
}
fn post_over_signal(credit: bool) -> Seen {
    let (ring, region, slots, near) =
        (Memory::zeroed(64), Memory::zeroed(64), Memory::zeroed(4 * 128), Memory::zeroed(64));
    let send = kernel("sender", |k| {
        let (queue, near) = (k.queue("wire", &ring), k.region("near", one(&near)));
        let slots = k.slots("slots", one(&slots), 128);
        k.main(|r| {
            near.put(0, 0, 9u64);
            r.signal(slots.slot(0, 0), 1);
            match credit {
                true => r.post_credit(queue, 1, 0, 2),
                false => r.post_signal(queue, 1, 0, 2),
            }
        });
    })
    .unwrap();
    let out = Tensor::<u64>::zeros(8);
    let receive = kernel("receiver", |k| {
        let near = k.region("near", one(&near));
        let slots = k.slots("slots", one(&slots), 128);
        let out = k.output(&out);
        k.main(|r| {
            r.wait(slots.slot(0, 0), 1);
            out.store(0, near.get::<u64>(0, 0));
            r.wait(slots.slot(0, 0), 2);
        });
    })
    .unwrap();
    let mut plan = plan(&[vec![send, receive]]);
    plan.route(&ring, 1, &region, &slots, 128).verify(&settings()).into()
}

fn test_credit_over_data() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
        r.signal_credit(kit.slots.slot(0, 0), 2);
    });
    let b = s.rank(|r, kit| {
        let there = r.test(kit.slots.slot(0, 0), 1);
        r.if_(there, || kit.out.store(0, kit.bytes.get::<u64>(0, 0)));
        r.wait(kit.slots.slot(0, 0), 2);
    });
    check(&[vec![a, b]])
}

/// An atomic on bytes between ranks that nobody wrote, whose result decides.
fn undefined_atomic() -> Seen {
    let bytes = Memory::zeroed(64);
    let out = Tensor::<u64>::zeros(4);
    let k = kernel("k", |k| {
        let (region, words) =
            (k.region("region", one(&bytes)), k.buffer::<u64>("words", one(&bytes), Access::InOut).bank(0));
        let out = k.output(&out);
        k.main(|r| {
            let old = words.atomic_add(0, 1u64, Order::Relaxed, Scope::System);
            r.if_(old.eq(0u64), || out.store(0, 1u64));
            region.put(0, 8, 1u64);
        });
    })
    .unwrap();
    check(&[vec![k]])
}

/// One memory is an input, then memory between ranks, then an input again. This is correct.
fn in_then_region_then_in() -> Seen {
    let (x, slots) = (Memory::zeroed(64), Memory::zeroed(4 * 128));
    let reader = || {
        kernel("reader", |k| {
            let out = Tensor::<u64>::zeros(8);
            let (x, out) = (k.buffer::<u64>("x", one(&x), Access::In).bank(0), k.output(&out));
            k.main(|r| r.each(8, |i| out.store(i, x.load(i))));
        })
        .unwrap()
    };
    let between = kernel("between", |k| {
        let s = k.slots("slots", one(&slots), 128);
        k.main(|r| {
            r.signal(s.slot(0, 0), 1);
            r.wait(s.slot(0, 1), 1);
        });
    })
    .unwrap();
    let writer = kernel("writer", |k| {
        let (x, s) = (k.buffer::<u64>("x", one(&x), Access::InOut).bank(0), k.slots("slots", one(&slots), 128));
        k.main(|r| {
            r.wait(s.slot(0, 0), 1);
            r.each(8, |i| x.store(i, 7u64));
            r.signal(s.slot(0, 1), 1);
        });
    })
    .unwrap();
    let nothing = || kernel("nothing", |k| k.main(|_| {})).unwrap();
    check(&[vec![reader(), nothing()], vec![between, writer], vec![reader(), nothing()]])
}
