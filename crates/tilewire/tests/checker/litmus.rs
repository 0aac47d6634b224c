//! Litmus tests: what the stated memory model allows and forbids. Programs of two to four role copies over shared words.

use crate::{check, clean, expect, kinds};
use tilewire::hook::{Region, RoleCtx, Slots, View};
use tilewire::ir::{BulkDone, Order, Scope};
use tilewire::{Memory, Tensor, Traced, kernel};

/// What litmus programs share: bytes, slots, and an output for each rank.
pub struct Shared {
    pub bytes: Memory,
    pub slots: Memory,
}

impl Shared {
    pub fn new() -> Shared {
        Shared { bytes: Memory::zeroed(256), slots: Memory::zeroed(8 * 128) }
    }

    /// A rank with one role.
    pub fn rank(&self, body: impl for<'t> Fn(&RoleCtx<'t>, Region<'t>, Slots<'t>, View<'t, u64>)) -> Traced {
        let out = Tensor::<u64>::zeros(4);
        let traced = kernel("litmus", |k| {
            let region = k.region("bytes", std::slice::from_ref(&self.bytes));
            let slots = k.slots("slots", std::slice::from_ref(&self.slots), 128);
            let out = k.output(&out).named("out");
            k.main(|r| body(r, region, slots, out));
        });
        traced.unwrap()
    }
}

#[test]
fn message_passing_is_ordered() {
    let s = Shared::new();
    let send = s.rank(|r, bytes, slots, _| {
        bytes.put(0, 0, 7u64);
        r.signal(slots.slot(0, 0), 1);
    });
    let receive = s.rank(|r, bytes, slots, out| {
        r.wait(slots.slot(0, 0), 1);
        out.store(0, bytes.get::<u64>(0, 0));
    });
    clean(&check(&[vec![send, receive]]));
}

#[test]
fn message_passing_without_the_wait_is_a_race_at_both_lines() {
    let s = Shared::new();
    let put = line!() + 2;
    let send = s.rank(|r, bytes, slots, _| {
        bytes.put(0, 0, 7u64);
        r.signal(slots.slot(0, 0), 1);
    });
    let get = line!() + 2;
    let receive = s.rank(|r, bytes, slots, out| {
        out.store(0, bytes.get::<u64>(0, 0));
        r.wait(slots.slot(0, 0), 1);
    });
    let report = check(&[vec![send, receive]]);
    expect(&report, "race", &[put, get]);
    assert!(report.is_decided());
}

#[test]
fn a_credit_shows_no_data() {
    let s = Shared::new();
    let put = line!() + 2;
    let send = s.rank(|r, bytes, slots, _| {
        bytes.put(0, 0, 7u64);
        r.signal_credit(slots.slot(0, 0), 1);
    });
    let get = line!() + 3;
    let receive = s.rank(|r, bytes, slots, out| {
        r.wait(slots.slot(0, 0), 1);
        out.store(0, bytes.get::<u64>(0, 0));
    });
    let report = check(&[vec![send, receive]]);
    let fault = expect(&report, "race", &[put, get]);
    assert!(fault.to_string().contains("a credit shows no data"), "{fault}");
}

#[test]
fn store_buffering_is_two_races() {
    let s = Shared::new();
    let one = |mine: i64, theirs: i64| {
        s.rank(move |_, bytes, _, out| {
            bytes.put(0, mine * 8, 1u64);
            out.store(0, bytes.get::<u64>(0, theirs * 8));
        })
    };
    let report = check(&[vec![one(0, 1), one(1, 0)]]);
    assert!(report.is_decided() && kinds(&report).contains(&"race"), "{report}");
}

#[test]
fn load_buffering_is_a_race() {
    let s = Shared::new();
    let one = |mine: i64, theirs: i64| {
        s.rank(move |_, bytes, _, out| {
            out.store(0, bytes.get::<u64>(0, theirs * 8));
            bytes.put(0, mine * 8, 1u64);
        })
    };
    let report = check(&[vec![one(0, 1), one(1, 0)]]);
    assert!(kinds(&report).contains(&"race"), "{report}");
}

/// Independent reads of independent writes: with a signal for each write and a wait before each read nothing is left to see.
#[test]
fn iriw_with_signals_is_ordered_and_without_is_not() {
    for ordered in [true, false] {
        let s = Shared::new();
        let writer = |at: i64| {
            s.rank(move |r, bytes, slots, _| {
                bytes.put(0, at * 8, 1u64);
                r.signal(slots.slot(0, at), 1);
            })
        };
        let reader = |first: i64, second: i64| {
            s.rank(move |r, bytes, slots, out| {
                for (i, at) in [first, second].into_iter().enumerate() {
                    if ordered {
                        r.wait(slots.slot(0, at), 1);
                    }
                    out.store(i as i64, bytes.get::<u64>(0, at * 8));
                }
            })
        };
        let report = check(&[vec![writer(0), writer(1), reader(0, 1), reader(1, 0)]]);
        assert_eq!(report.is_clean(), ordered, "{report}");
    }
}

#[test]
fn a_credit_hands_a_slot_back() {
    for credited in [true, false] {
        let s = Shared::new();
        let send = s.rank(|r, bytes, slots, _| {
            bytes.put(0, 0, 1u64);
            r.signal(slots.slot(0, 0), 1);
            if credited {
                r.wait(slots.slot(0, 1), 1);
            }
            bytes.put(0, 0, 2u64);
            r.signal(slots.slot(0, 0), 2);
        });
        let receive = s.rank(|r, bytes, slots, out| {
            r.wait(slots.slot(0, 0), 1);
            out.store(0, bytes.get::<u64>(0, 0));
            r.signal_credit(slots.slot(0, 1), 1);
            r.wait(slots.slot(0, 0), 2);
            out.store(1, bytes.get::<u64>(0, 0));
        });
        let report = check(&[vec![send, receive]]);
        assert_eq!(report.is_clean(), credited, "{report}");
    }
}

#[test]
fn a_signal_is_cumulative() {
    // 0 → 1 → 2: rank 2 sees what rank 0 wrote, though rank 1 never touched it; by a credit it does not.
    for credit in [false, true] {
        let s = Shared::new();
        let first = s.rank(|r, bytes, slots, _| {
            bytes.put(0, 0, 1u64);
            r.signal(slots.slot(0, 0), 1);
        });
        let second = s.rank(|r, _, slots, _| {
            r.wait(slots.slot(0, 0), 1);
            if credit {
                r.signal_credit(slots.slot(0, 1), 1);
            } else {
                r.signal(slots.slot(0, 1), 1);
            }
        });
        let third = s.rank(|r, bytes, slots, out| {
            r.wait(slots.slot(0, 1), 1);
            out.store(0, bytes.get::<u64>(0, 0));
        });
        let report = check(&[vec![first, second, third]]);
        assert_eq!(report.is_clean(), !credit, "{report}");
    }
}

#[test]
fn a_signal_carries_what_all_lanes_of_the_role_did() {
    let s = Shared::new();
    let send = s.rank(|r, bytes, slots, _| {
        r.each(8, |i| bytes.put(0, i * 8, i.cast::<u64>()));
        r.signal(slots.slot(0, 0), 1);
    });
    let receive = s.rank(|r, bytes, slots, out| {
        r.wait(slots.slot(0, 0), 1);
        // Other lanes than those that were written by.
        r.each(4, |i| out.store(i, bytes.get::<u64>(0, (3 - i) * 16)));
    });
    clean(&check(&[vec![send, receive]]));
}

#[test]
fn elements_of_one_each_are_not_ordered_and_two_eaches_are() {
    let s = Shared::new();
    let two = s.rank(|r, bytes, _, out| {
        r.each(4, |i| bytes.put(0, i * 8, 1u64));
        r.each(4, |i| out.store(i, bytes.get::<u64>(0, (3 - i) * 8)));
    });
    clean(&check(&[vec![two]]));
    let s = Shared::new();
    let at = line!() + 3;
    let one = s.rank(|r, bytes, _, out| {
        r.each(4, |i| {
            bytes.put(0, i * 8, 1u64);
            out.store(i, bytes.get::<u64>(0, (3 - i) * 8));
        });
    });
    let report = check(&[vec![one]]);
    expect(&report, "race", &[at, at + 1]);
}

#[test]
fn a_bulk_copy_is_seen_when_it_was_waited_for() {
    for (fenced, waited, ok) in [
        (true, Some(BulkDone::Complete), true),
        (false, Some(BulkDone::Complete), false),
        (true, Some(BulkDone::Read), false),
        (true, None, false),
    ] {
        let s = Shared::new();
        let send = s.rank(|r, bytes, slots, _| {
            let tile = r.scratch::<u8>(64);
            r.each(64, |i| tile.store(i, i.cast::<u8>()));
            if fenced {
                r.proxy_fence();
            }
            r.bulk_copy(bytes.bank(0), tile, 64);
            if let Some(done) = waited {
                r.bulk_wait(0, done);
            }
            r.signal(slots.slot(0, 0), 1);
        });
        let receive = s.rank(|r, bytes, slots, out| {
            r.wait(slots.slot(0, 0), 1);
            out.store(0, bytes.get::<u64>(0, 0));
        });
        let report = check(&[vec![send, receive]]);
        assert_eq!(report.is_clean(), ok, "fenced {fenced}, waited {waited:?}: {report}");
    }
}

#[test]
fn a_refill_needs_the_source_to_be_read_and_a_fence_for_the_next_copy() {
    for (read, fenced, ok) in [(true, true, true), (false, true, false), (true, false, false)] {
        let s = Shared::new();
        let send = s.rank(|r, bytes, _, _| {
            let tile = r.scratch::<u8>(32);
            for half in 0..2i64 {
                if half == 1 && read {
                    r.bulk_wait(0, BulkDone::Read);
                }
                r.each(32, |i| tile.store(i, i.cast::<u8>()));
                if half == 0 || fenced {
                    r.proxy_fence();
                }
                r.bulk_copy(bytes.bank(0).part(half * 32, 32), tile, 32);
            }
            r.bulk_wait(0, BulkDone::Complete);
        });
        let report = check(&[vec![send]]);
        assert_eq!(report.is_clean(), ok, "read {read}, fenced {fenced}: {report}");
    }
}

#[test]
fn packets_carry_their_own_bytes_and_nothing_else() {
    let s = Shared::new();
    let send = s.rank(|r, bytes, _, _| r.each(4, |i| bytes.packet_put(0, i, i.cast::<u64>(), 1u32)));
    let receive = s.rank(|r, bytes, _, out| r.each(4, |i| out.store(i, bytes.packet_get(0, i, 1u32))));
    clean(&check(&[vec![send, receive]]));

    let s = Shared::new();
    let send = s.rank(|r, bytes, _, _| {
        bytes.put(0, 128, 1u64);
        r.each(4, |i| bytes.packet_put(0, i, i.cast::<u64>(), 1u32));
    });
    let receive = s.rank(|r, bytes, _, out| {
        r.each(4, |i| out.store(i, bytes.packet_get(0, i, 1u32)));
        out.store(0, bytes.get::<u64>(0, 128));
    });
    expect(&check(&[vec![send, receive]]), "race", &[]);
}

#[test]
fn packets_are_credited_like_slots() {
    for credited in [true, false] {
        let s = Shared::new();
        let send = s.rank(|r, bytes, slots, _| {
            r.each(4, |i| bytes.packet_put(0, i, i.cast::<u64>(), 1u32));
            if credited {
                r.wait(slots.slot(0, 0), 1);
            }
            r.each(4, |i| bytes.packet_put(0, i, i.cast::<u64>(), 2u32));
        });
        let receive = s.rank(|r, bytes, slots, out| {
            r.each(4, |i| out.store(i, bytes.packet_get(0, i, 1u32)));
            r.signal_credit(slots.slot(0, 0), 1);
            r.each(4, |i| out.store(i, bytes.packet_get(0, i, 2u32)));
        });
        let report = check(&[vec![send, receive]]);
        assert_eq!(report.is_clean(), credited, "{report}");
    }
}

#[test]
fn network_puts_are_ordered_by_their_signal_only() {
    // A put is seen after its signal, a second put after that signal is not, and the source is busy until a credit says so.
    for (reuse, ok) in [("credited", true), ("at once", false)] {
        let (ring, credits) = ([Memory::zeroed(64), Memory::zeroed(64)], Memory::zeroed(128));
        let (region, slots, source) = (Memory::zeroed(64), Memory::zeroed(128), Memory::zeroed(64));
        let out = Tensor::<u64>::zeros(2);
        let send = kernel("send", |k| {
            let source = k.region("source", std::slice::from_ref(&source));
            let (queue, credit) = (k.queue("wire", &ring[0]), k.slots("credit", std::slice::from_ref(&credits), 128));
            k.main(|r| {
                for step in 1..=2i64 {
                    if step == 2 && reuse == "credited" {
                        r.wait(credit.slot(0, 0), 1);
                    }
                    source.put(0, 0, step as u64);
                    r.post(queue, 1, source.bank(0), 0, 8);
                    r.post_signal(queue, 1, 0, step);
                }
            });
        });
        let receive = kernel("receive", |k| {
            let (region, out) = (k.region("region", std::slice::from_ref(&region)), k.output(&out));
            let (tail, queue) = (k.slots("tail", std::slice::from_ref(&slots), 128), k.queue("wire", &ring[1]));
            k.main(|r| {
                for step in 1..=2i64 {
                    r.wait(tail.slot(0, 0), step);
                    out.store(step - 1, region.get::<u64>(0, 0));
                    r.post_signal(queue, 0, 0, step);
                }
            });
        });
        let (send, receive) = (send.unwrap(), receive.unwrap());
        let mut plan = crate::plan(&[vec![send, receive]]);
        plan.route(&ring[0], 1, &region, &slots, 128).route(&ring[1], 0, &source, &credits, 128);
        let report = plan.verify(&Default::default());
        assert!(report.faults.iter().all(|f| f.fault.kind() != "error"), "{report}");
        let races = kinds(&report).contains(&"race");
        assert_eq!(races, !ok, "{reuse}: {report}");
    }
}

#[test]
fn atomics_order_by_release_and_acquire_and_are_sampled() {
    for (order, ok) in [(Order::AcqRel, true), (Order::Relaxed, false)] {
        let s = Shared::new();
        let count = Memory::zeroed(8);
        let rank = |at: i64| {
            let out = Tensor::<u64>::zeros(2);
            let traced = kernel("last one reads", |k| {
                let bytes = k.region("bytes", std::slice::from_ref(&s.bytes));
                let count = k.buffer::<u32>("count", std::slice::from_ref(&count), tilewire::ir::Access::InOut);
                let out = k.output(&out);
                k.main(|r| {
                    bytes.put(0, at * 8, 1u64);
                    let before = count.bank(0).atomic_add(0, 1u32, order, Scope::System);
                    r.if_(before.eq(1), || out.store(0, bytes.get::<u64>(0, (1 - at) * 8)));
                });
            });
            traced.unwrap()
        };
        let report = check(&[vec![rank(0), rank(1)]]);
        assert!(!report.is_decided(), "{report}");
        assert_eq!(report.is_clean(), ok, "{report}");
    }
}

#[test]
fn a_test_is_sampled_and_every_schedule_is_run() {
    let s = Shared::new();
    let send = s.rank(|r, bytes, slots, _| {
        bytes.put(0, 0, 7u64);
        r.signal(slots.slot(0, 0), 1);
    });
    let receive = s.rank(|r, bytes, slots, out| {
        let there = r.test(slots.slot(0, 0), 1);
        // Wrong where the test fails: only some schedules show it.
        r.if_(!there, || out.store(0, bytes.get::<u64>(0, 0)));
        r.wait(slots.slot(0, 0), 1);
    });
    let report = check(&[vec![send, receive]]);
    assert!(!report.is_decided(), "{report}");
    expect(&report, "race", &[]);
    assert!(report.schedules > 1, "{report}");
}

#[test]
fn a_role_may_poll() {
    let s = Shared::new();
    let send = s.rank(|r, bytes, slots, _| {
        bytes.put(0, 0, 7u64);
        r.signal(slots.slot(0, 0), 1);
    });
    let polls = |slot: i64| {
        s.rank(move |r, bytes, slots, out| {
            r.while_(|| !r.test(slots.slot(0, slot), 1), || {});
            out.store(0, bytes.get::<u64>(0, 0));
        })
    };
    let report = check(&[vec![send.clone(), polls(0)]]);
    assert!(report.is_clean() && !report.is_decided(), "{report}");
    // Nobody will ever signal: polling for ever is found, not waited for.
    let report = check(&[vec![send, polls(1)]]);
    assert!(kinds(&report).contains(&"step-limit") && kinds(&report).contains(&"no-producer"), "{report}");
}
