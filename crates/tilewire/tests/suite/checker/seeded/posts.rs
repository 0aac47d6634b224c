//! Posts through a network proxy happen later, in any order, and a signal covers only its own peer.

use super::Expect::{AnyFault, CleanDecided, Fault};
use super::{Seen, one, plan, settings};
use tilewire::hook::{Queue, Region, RoleCtx, Slots, View};
use tilewire::{Memory, Tensor, Traced, kernel};

seeds! {
    post_after_its_signal: AnyFault,
    post_without_its_signal: AnyFault,
    post_whose_source_is_refilled: Fault("race"),
    post_whose_source_is_refilled_in_the_next_launch: Fault("race"),
    post_whose_source_another_role_fills: Fault("race"),
    posts_to_one_place: Fault("race"),
    post_signalled_to_another_peer: Fault("race"),
    post_signalled_by_a_plain_signal: Fault("race"),
    post_over_a_slot_that_is_being_read: Fault("race"),
    source_refilled_after_a_flush: CleanDecided,
    source_rewritten_by_the_host_after_a_flush: CleanDecided,
    source_refilled_without_waiting_for_the_flush: Fault("race"),
    source_refilled_after_a_flush_of_another_peer: Fault("race"),
    source_refilled_after_a_flush_of_another_role: Fault("race"),
    source_refilled_after_a_flush_of_an_earlier_post: Fault("race"),
    flush_for_the_data_at_the_peer: Fault("race"),
    flush_between_posts_to_one_place: Fault("race"),
}

/// A wire from rank 0 to rank 1: the source at rank 0, and the destination at rank 1.
struct Wire {
    ring: Memory,
    source: Memory,
    region: Memory,
    slots: Memory,
}

#[derive(Clone, Copy)]
struct Sender<'t> {
    queue: Queue<'t>,
    source: Region<'t>,
    /// Slots that the receiver has for plain signals.
    slots: Slots<'t>,
}

impl Wire {
    fn new() -> Wire {
        let zeroed = Memory::zeroed;
        Wire { ring: zeroed(64), source: zeroed(64), region: zeroed(64), slots: zeroed(4 * 128) }
    }

    fn sender(&self, body: impl for<'t> Fn(&RoleCtx<'t>, Sender<'t>)) -> Traced {
        let traced = kernel("sender", |k| {
            let (queue, source) = (k.queue("wire", &self.ring), k.region("source", one(&self.source)));
            let slots = k.slots("slots", one(&self.slots), 128);
            k.main(|r| body(r, Sender { queue, source, slots }));
        });
        traced.unwrap()
    }

    fn receiver(&self, body: impl for<'t> Fn(&RoleCtx<'t>, Region<'t>, Slots<'t>, View<'t, u64>)) -> Traced {
        let out = Tensor::<u64>::zeros(8);
        let traced = kernel("receiver", |k| {
            let (region, slots) = (k.region("region", one(&self.region)), k.slots("slots", one(&self.slots), 128));
            let out = k.output(&out);
            k.main(|r| body(r, region, slots, out));
        });
        traced.unwrap()
    }

    fn check(&self, launches: &[Vec<Traced>]) -> Seen {
        let mut plan = plan(launches);
        plan.route(&self.ring, 1, &self.region, &self.slots, 128).verify(&settings()).into()
    }

    /// A receiver that waits once and reads once.
    fn takes(&self) -> Traced {
        self.receiver(|r, region, slots, out| {
            r.wait(slots.slot(0, 0), 1);
            out.store(0, region.get::<u64>(0, 0));
        })
    }
}

fn post_after_its_signal() -> Seen {
    let wire = Wire::new();
    let send = wire.sender(|r, tx| {
        tx.source.put(0, 0, 7u64);
        r.post_signal(tx.queue, 1, 0, 1);
        r.post(tx.queue, 1, tx.source.bank(0), 0, 8);
    });
    wire.check(&[vec![send, wire.takes()]])
}

/// Two posts. The signal between them covers the first.
fn post_without_its_signal() -> Seen {
    let wire = Wire::new();
    let send = wire.sender(|r, tx| {
        r.each(2, |i| tx.source.put(0, i * 8, 7u64));
        r.post(tx.queue, 1, tx.source.bank(0), 0, 8);
        r.post_signal(tx.queue, 1, 0, 1);
        r.post(tx.queue, 1, tx.source.bank(0).part(8, 8), 8, 8);
    });
    let receive = wire.receiver(|r, region, slots, out| {
        r.wait(slots.slot(0, 0), 1);
        r.each(2, |i| out.store(i, region.get::<u64>(0, i * 8)));
    });
    wire.check(&[vec![send, receive]])
}

/// The proxy may read the source after the signal was asked for.
fn post_whose_source_is_refilled() -> Seen {
    let wire = Wire::new();
    let send = wire.sender(|r, tx| {
        tx.source.put(0, 0, 7u64);
        r.post(tx.queue, 1, tx.source.bank(0), 0, 8);
        r.post_signal(tx.queue, 1, 0, 1);
        tx.source.put(0, 0, 8u64);
    });
    wire.check(&[vec![send, wire.takes()]])
}

/// No credit comes back, so the sender of the next launch knows nothing of the earlier post.
fn post_whose_source_is_refilled_in_the_next_launch() -> Seen {
    let wire = Wire::new();
    let launch = |n: i64| {
        let send = wire.sender(move |r, tx| {
            tx.source.put(0, 0, 7u64);
            r.post(tx.queue, 1, tx.source.bank(0), n * 8, 8);
            r.post_signal(tx.queue, 1, 0, n + 1);
        });
        let receive = wire.receiver(move |r, region, slots, out| {
            r.wait(slots.slot(0, 0), n + 1);
            out.store(0, region.get::<u64>(0, n * 8));
        });
        vec![send, receive]
    };
    wire.check(&[launch(0), launch(1)])
}

/// One role fills the source and another one posts it. Nothing orders them.
fn post_whose_source_another_role_fills() -> Seen {
    let wire = Wire::new();
    let send = kernel("sender", |k| {
        let (queue, source) = (k.queue("wire", &wire.ring), k.region("source", one(&wire.source)));
        k.role("fill", 1).run(|_| source.put(0, 0, 7u64));
        k.role("post", 1).run(|r| {
            r.post(queue, 1, source.bank(0), 0, 8);
            r.post_signal(queue, 1, 0, 1);
        });
    });
    wire.check(&[vec![send.unwrap(), wire.takes()]])
}

/// Two posts are not ordered, even to one place with the signal after both.
fn posts_to_one_place() -> Seen {
    let wire = Wire::new();
    let send = wire.sender(|r, tx| {
        r.each(2, |i| tx.source.put(0, i * 8, 7u64));
        r.post(tx.queue, 1, tx.source.bank(0), 0, 8);
        r.post(tx.queue, 1, tx.source.bank(0).part(8, 8), 0, 8);
        r.post_signal(tx.queue, 1, 0, 1);
    });
    wire.check(&[vec![send, wire.takes()]])
}

/// The data goes to rank 1 and the signal to rank 2, which tells rank 1.
fn post_signalled_to_another_peer() -> Seen {
    let (wire, far) = (Wire::new(), Memory::zeroed(128));
    let send = wire.sender(|r, tx| {
        tx.source.put(0, 0, 7u64);
        r.post(tx.queue, 1, tx.source.bank(0), 0, 8);
        r.post_signal(tx.queue, 2, 0, 1);
    });
    let tell = kernel("between", |k| {
        let (far, slots) = (k.slots("far", one(&far), 128), k.slots("slots", one(&wire.slots), 128));
        k.main(|r| {
            r.wait(far.slot(0, 0), 1);
            r.signal(slots.slot(0, 0), 1);
        });
    });
    let mut plan = plan(&[vec![send, wire.takes(), tell.unwrap()]]);
    plan.route(&wire.ring, 1, &wire.region, &wire.slots, 128);
    plan.route(&wire.ring, 2, &Memory::zeroed(64), &far, 128).verify(&settings()).into()
}

/// A signal by a store overtakes the proxy.
fn post_signalled_by_a_plain_signal() -> Seen {
    let wire = Wire::new();
    let send = wire.sender(|r, tx| {
        tx.source.put(0, 0, 7u64);
        r.post(tx.queue, 1, tx.source.bank(0), 0, 8);
        r.signal(tx.slots.slot(0, 0), 1);
    });
    wire.check(&[vec![send, wire.takes()]])
}

/// The second message goes to the place of the first from another source. No credit says that the first was read.
fn post_over_a_slot_that_is_being_read() -> Seen {
    let wire = Wire::new();
    let send = wire.sender(|r, tx| {
        r.each(2, |i| tx.source.put(0, i * 8, 7u64));
        for step in 0..2i64 {
            r.post(tx.queue, 1, tx.source.bank(0).part(step * 8, 8), 0, 8);
            r.post_signal(tx.queue, 1, 0, step + 1);
        }
    });
    let receive = wire.receiver(|r, region, slots, out| {
        for step in 0..2i64 {
            r.wait(slots.slot(0, 0), step + 1);
            out.store(step, region.get::<u64>(0, 0));
        }
    });
    wire.check(&[vec![send, receive]])
}

/// Posts and flushes to rank 1; the slots from 2 on are the sender's own.
fn flushed(peers: [i64; 2], launches: i64, is_waited: bool) -> Seen {
    let (wire, other) = (Wire::new(), Memory::zeroed(4 * 128));
    let launch = |n: i64| {
        let send = wire.sender(|r, tx| {
            tx.source.put(0, 0, 7u64);
            r.post(tx.queue, peers[0], tx.source.bank(0), n * 8, 8);
            r.post_signal(tx.queue, peers[0], 0, n + 1);
            r.post_flush(tx.queue, peers[1], 2, n + 1);
            if is_waited {
                r.wait(tx.slots.slot(0, 2), n + 1);
            }
            tx.source.put(0, 0, 8u64);
        });
        let receive = wire.receiver(|r, region, slots, out| {
            r.wait(slots.slot(0, 0), n + 1);
            out.store(0, region.get::<u64>(0, n * 8));
            if !is_waited {
                r.wait(slots.slot(0, 2), n + 1);
            }
        });
        vec![send, receive, kernel("idle", |k| k.main(|_| {})).unwrap()]
    };
    let mut plan = plan(&(0..launches).map(launch).collect::<Vec<_>>());
    plan.route(&wire.ring, 0, &wire.region, &wire.slots, 128).route(&wire.ring, 1, &wire.region, &wire.slots, 128);
    plan.route(&wire.ring, 2, &Memory::zeroed(64), &other, 128).verify(&settings()).into()
}

fn source_refilled_after_a_flush() -> Seen {
    flushed([1, 1], 2, true)
}

fn source_refilled_without_waiting_for_the_flush() -> Seen {
    flushed([1, 1], 1, false)
}

fn source_refilled_after_a_flush_of_another_peer() -> Seen {
    flushed([1, 2], 1, true)
}

/// Zero-copy: the source is an input, which the host rewrites between launches.
fn source_rewritten_by_the_host_after_a_flush() -> Seen {
    let (wire, input) = (Wire::new(), Tensor::<u8>::zeros(8));
    let launch = |n: i64| {
        let send = kernel("sender", |k| {
            let (queue, source) = (k.queue("wire", &wire.ring), k.input(&input));
            let slots = k.slots("slots", one(&wire.slots), 128);
            k.main(|r| {
                r.deliver(queue, 1, &[(source, r.constant(n * 8), r.constant(8i64))], 0, n + 1);
                r.post_flush(queue, 1, 2, n + 1);
                r.wait(slots.slot(0, 2), n + 1);
            });
        });
        let receive = wire.receiver(|r, region, slots, out| {
            r.wait(slots.slot(0, 0), n + 1);
            out.store(0, region.get::<u64>(0, n * 8));
        });
        vec![send.unwrap(), receive]
    };
    let mut plan = plan(&[launch(0), launch(1), launch(2)]);
    plan.route(&wire.ring, 0, &wire.region.part(0, 0), &wire.slots, 128);
    plan.route(&wire.ring, 1, &wire.region, &wire.slots, 128).verify(&settings()).into()
}

/// The flush of a role covers its own posts.
fn source_refilled_after_a_flush_of_another_role() -> Seen {
    let wire = Wire::new();
    let send = kernel("sender", |k| {
        let (queue, source) = (k.queue("wire", &wire.ring), k.region("source", one(&wire.source)));
        let slots = k.slots("slots", one(&wire.slots), 128);
        k.role("post", 1).run(|r| {
            source.put(0, 0, 7u64);
            r.post(queue, 1, source.bank(0), 0, 8);
            r.post_signal(queue, 1, 0, 1);
            r.signal(slots.slot(0, 3), 1);
        });
        k.role("flush", 1).run(|r| {
            r.wait(slots.slot(0, 3), 1);
            r.post_flush(queue, 1, 2, 1);
            r.wait(slots.slot(0, 2), 1);
            source.put(0, 0, 8u64);
        });
    });
    let mut plan = plan(&[vec![send.unwrap(), wire.takes()]]);
    plan.route(&wire.ring, 0, &wire.region.part(0, 0), &wire.slots, 128);
    plan.route(&wire.ring, 1, &wire.region, &wire.slots, 128).verify(&settings()).into()
}

/// Runs a sender beside a receiver that waits once, and reads words 0 and 1 if it is told to.
fn beside_a_receiver(send: Traced, wire: &Wire, waits_for: (i64, i64)) -> Seen {
    let receive = wire.receiver(|r, region, slots, out| {
        r.wait(slots.slot(0, waits_for.0), waits_for.1);
        out.store(0, region.get::<u64>(0, 0));
    });
    let mut plan = plan(&[vec![send, receive]]);
    plan.route(&wire.ring, 0, &wire.region.part(0, 0), &wire.slots, 128);
    plan.route(&wire.ring, 1, &wire.region, &wire.slots, 128).verify(&settings()).into()
}

/// The second post reads the same source, and no flush covers it.
fn source_refilled_after_a_flush_of_an_earlier_post() -> Seen {
    let wire = Wire::new();
    let send = wire.sender(|r, tx| {
        tx.source.put(0, 0, 7u64);
        r.post(tx.queue, 1, tx.source.bank(0), 0, 8);
        r.post_flush(tx.queue, 1, 2, 1);
        r.post(tx.queue, 1, tx.source.bank(0), 8, 8);
        r.post_signal(tx.queue, 1, 0, 1);
        r.wait(tx.slots.slot(0, 2), 1);
        tx.source.put(0, 0, 8u64);
    });
    beside_a_receiver(send, &wire, (0, 1))
}

/// A flush says that the source was read, not that the bytes have arrived. The sender tells the peer by a plain signal.
fn flush_for_the_data_at_the_peer() -> Seen {
    let wire = Wire::new();
    let send = wire.sender(|r, tx| {
        tx.source.put(0, 0, 7u64);
        r.post(tx.queue, 1, tx.source.bank(0), 0, 8);
        r.post_flush(tx.queue, 1, 2, 1);
        r.wait(tx.slots.slot(0, 2), 1);
        r.signal(tx.slots.slot(0, 3), 1);
    });
    beside_a_receiver(send, &wire, (3, 1))
}

/// A flush does not order the writes of the posts before and after it either.
fn flush_between_posts_to_one_place() -> Seen {
    let wire = Wire::new();
    let send = wire.sender(|r, tx| {
        r.each(2, |i| tx.source.put(0, i * 8, 7u64));
        r.post(tx.queue, 1, tx.source.bank(0), 0, 8);
        r.post_flush(tx.queue, 1, 2, 1);
        r.wait(tx.slots.slot(0, 2), 1);
        r.post(tx.queue, 1, tx.source.bank(0).part(8, 8), 0, 8);
        r.post_signal(tx.queue, 1, 0, 1);
    });
    beside_a_receiver(send, &wire, (0, 1))
}
