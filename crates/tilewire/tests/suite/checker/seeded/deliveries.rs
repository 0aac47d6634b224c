//! Deliveries: posts of bytes with a notice, between ranks that each have an outbox, an inbox and slots.

use super::Expect::{CleanDecided, Fault};
use super::{Seen, one, plan, settings};
use tilewire::hook::{Block, Queue, Region, RoleCtx, Slots, Value, View};
use tilewire::ir::{Inst, Kernel, Op};
use tilewire::{Memory, Tensor, Traced, kernel};

seeds! {
    delivery_of_two_parts: CleanDecided,
    delivery_of_two_parts_the_other_way_round: CleanDecided,
    outbox_reused_after_the_credit: CleanDecided,
    outbox_reused_in_the_next_launch_after_the_credit: CleanDecided,
    producers_of_one_ring: CleanDecided,
    deliveries_round_three_ranks: CleanDecided,
    delivery_shows_what_its_poster_saw: CleanDecided,
    delivery_shows_the_one_before_for_its_slot: CleanDecided,
    signal_covers_deliveries_for_other_slots: CleanDecided,
    delivery_shows_a_post_that_is_over: CleanDecided,
    delivery_over_a_post_of_another_role_that_is_over: CleanDecided,
    part_after_its_notice: Fault("race"),
    delivery_before_its_outbox_is_filled: Fault("race"),
    outbox_reused_early: Fault("race"),
    inbox_credited_before_it_is_read: Fault("race"),
    signal_for_a_post_of_another_role: Fault("race"),
    signal_after_a_post_of_another_role_that_is_over: Fault("race"),
    delivery_to_the_wrong_slot: Fault("deadlock"),
    delivery_without_one_part: Fault("deadlock"),
    delivery_with_a_part_too_few: Fault("race"),
    delivery_of_parts_from_two_roles: Fault("deadlock"),
    delivery_held_by_an_incomplete_one: Fault("deadlock"),
    delivery_taken_for_another: Fault("race"),
    credit_for_posted_data: Fault("race"),
    producers_of_one_slot: Fault("two-writers"),
    deliveries_to_one_slot_in_the_wrong_order: Fault("not-growing"),
}

/// The memory of a rank.
struct Place {
    ring: Memory,
    outbox: Memory,
    inbox: Memory,
    slots: Memory,
}

struct Net(Vec<Place>);

/// The same memory, as the rank's kernel sees it.
#[derive(Clone, Copy)]
struct Kit<'t> {
    queue: Queue<'t>,
    outbox: Region<'t>,
    inbox: Region<'t>,
    slots: Slots<'t>,
    out: View<'t, u64>,
}

impl<'t> Kit<'t> {
    /// Words of the outbox, and their places in the inbox of a peer.
    fn parts(&self, r: &RoleCtx<'t>, words: &[(i64, i64)]) -> Vec<(View<'t, u8>, Value<'t, i64>, Value<'t, i64>)> {
        let part =
            |&(from, to): &(i64, i64)| (self.outbox.bank(0).part(from * 8, 8), r.constant(to * 8), r.constant(8i64));
        words.iter().map(part).collect()
    }

    /// Delivers words of the outbox.
    fn deliver(&self, r: &RoleCtx<'t>, peer: i64, words: &[(i64, i64)], slot: i64, value: i64) {
        r.deliver(self.queue, peer, &self.parts(r, words), slot, value);
    }

    fn fill(&self, word: i64) {
        self.outbox.put(0, word * 8, 7u64);
    }

    fn keep(&self, word: i64) {
        self.out.store(word, self.inbox.get::<u64>(0, word * 8));
    }

    fn wait(&self, r: &RoleCtx<'t>, slot: i64, value: i64) {
        r.wait(self.slots.slot(0, slot), value);
    }
}

impl Net {
    fn new(ranks: usize) -> Net {
        let [ring, bytes, slots] = [64, 64, 4 * 128].map(|bytes| move || Memory::zeroed(bytes));
        Net((0..ranks).map(|_| Place { ring: ring(), outbox: bytes(), inbox: bytes(), slots: slots() }).collect())
    }

    /// A kernel with these roles.
    fn kernel(&self, rank: usize, body: impl for<'t> Fn(&Block<'t>, Kit<'t>)) -> Traced {
        let (place, out) = (&self.0[rank], Tensor::<u64>::zeros(8));
        let traced = kernel("delivers", |k| {
            let kit = Kit {
                queue: k.queue("wire", &place.ring),
                outbox: k.region("outbox", one(&place.outbox)),
                inbox: k.region("inbox", one(&place.inbox)),
                slots: k.slots("slots", one(&place.slots), 128),
                out: k.output(&out),
            };
            body(k, kit);
        });
        traced.unwrap()
    }

    fn rank(&self, rank: usize, body: impl for<'t> Fn(&RoleCtx<'t>, Kit<'t>)) -> Traced {
        self.kernel(rank, |k, kit| k.main(|r| body(r, kit)))
    }

    /// A receiver of these words that waits for slot 0.
    fn takes(&self, rank: usize, words: i64) -> Traced {
        self.rank(rank, move |r, kit| {
            kit.wait(r, 0, 1);
            (0..words).for_each(|word| kit.keep(word));
        })
    }

    fn check(&self, launches: &[Vec<Traced>]) -> Seen {
        let mut plan = plan(launches);
        for (from, to) in self.0.iter().flat_map(|from| self.0.iter().enumerate().map(move |to| (from, to))) {
            plan.route(&from.ring, to.0 as u32, &to.1.inbox, &to.1.slots, 128);
        }
        plan.verify(&settings()).into()
    }
}

/// The posts of a kernel, in order.
fn posts(kernel: &Kernel) -> Vec<Inst> {
    kernel.insts.keys().filter(|&inst| matches!(kernel.insts[inst].op, Op::Post { .. })).collect()
}

/// No hook leaves out a part of a delivery.
fn without_post(mut traced: Traced, number: usize) -> Traced {
    let left_out = posts(&traced.kernel)[number];
    let regions: Vec<_> = traced.kernel.regions.keys().collect();
    regions.into_iter().for_each(|region| traced.kernel.regions[region].retain(|&inst| inst != left_out));
    traced
}

/// No hook counts the parts of a delivery wrongly.
fn with_parts(mut traced: Traced, wrong: u8) -> Traced {
    for inst in posts(&traced.kernel) {
        if let Op::Post { notice: Some(notice), .. } = &mut traced.kernel.insts[inst].op {
            notice.parts = wrong;
        }
    }
    traced
}

fn two_parts(words: &'static [(i64, i64)]) -> Seen {
    let net = Net::new(2);
    let send = net.rank(0, |r, kit| {
        r.each(2, |i| kit.outbox.put(0, i * 8, 7u64));
        kit.deliver(r, 1, words, 0, 1);
    });
    net.check(&[vec![send, net.takes(1, 2)]])
}

/// The slot counts parts, in whichever order they come.
fn delivery_of_two_parts() -> Seen {
    two_parts(&[(0, 0), (1, 1)])
}
fn delivery_of_two_parts_the_other_way_round() -> Seen {
    two_parts(&[(1, 1), (0, 0)])
}

/// One slot of the outbox and of the inbox, used three times.
fn one_slot(credited: bool, credit_first: bool) -> Seen {
    let net = Net::new(2);
    let send = net.rank(0, move |r, kit| {
        for step in 0..3i64 {
            if credited && step > 0 {
                kit.wait(r, 1, step);
            }
            kit.fill(0);
            // The receiver has room without credits, so only the outbox is wrong.
            kit.deliver(r, 1, &[(0, if credited { 0 } else { step })], 0, step + 1);
        }
    });
    let receive = net.rank(1, move |r, kit| {
        for step in 0..3i64 {
            kit.wait(r, 0, step + 1);
            if credited && credit_first {
                r.post_credit(kit.queue, 0, 1, step + 1);
            }
            kit.keep(if credited { 0 } else { step });
            if credited && !credit_first {
                r.post_credit(kit.queue, 0, 1, step + 1);
            }
        }
    });
    net.check(&[vec![send, receive]])
}
/// The receiver's credit says that the bytes have left the outbox.
fn outbox_reused_after_the_credit() -> Seen {
    one_slot(true, false)
}
fn outbox_reused_early() -> Seen {
    one_slot(false, false)
}
fn inbox_credited_before_it_is_read() -> Seen {
    one_slot(true, true)
}

/// A launch ends while its delivery is under way. The next launch waits for the credit before it fills the outbox.
fn outbox_reused_in_the_next_launch_after_the_credit() -> Seen {
    let net = Net::new(2);
    let launch = |n: i64| {
        let send = net.rank(0, move |r, kit| {
            kit.wait(r, 1, n);
            kit.fill(0);
            kit.deliver(r, 1, &[(0, 0)], 0, n + 1);
        });
        let receive = net.rank(1, move |r, kit| {
            kit.wait(r, 0, n + 1);
            kit.keep(0);
            r.post_credit(kit.queue, 0, 1, n + 1);
        });
        vec![send, receive]
    };
    net.check(&[launch(0), launch(1), launch(2)])
}

/// Two copies of a role deliver over one ring, each to a separate slot, or both to one.
fn producers(own: bool) -> Seen {
    let net = Net::new(2);
    let send = net.kernel(0, move |k, kit| {
        for copy in 0..2i64 {
            k.role(format!("send {copy}"), 1).run(|r| {
                kit.fill(copy);
                let (slot, value) = if own { (copy, 1) } else { (0, copy + 1) };
                kit.deliver(r, 1, &[(copy, copy)], slot, value);
            });
        }
    });
    let receive = net.rank(1, move |r, kit| {
        for copy in 0..2i64 {
            let (slot, value) = if own { (copy, 1) } else { (0, copy + 1) };
            kit.wait(r, slot, value);
            kit.keep(copy);
        }
    });
    net.check(&[vec![send, receive]])
}
fn producers_of_one_ring() -> Seen {
    producers(true)
}
fn producers_of_one_slot() -> Seen {
    producers(false)
}

/// Each rank delivers to the next one, twice through one slot, and credits the previous one.
fn deliveries_round_three_ranks() -> Seen {
    let net = Net::new(3);
    let rank = |me: usize| {
        let (next, before) = ((me as i64 + 1) % 3, (me as i64 + 2) % 3);
        net.rank(me, move |r, kit| {
            for step in 0..2i64 {
                kit.wait(r, 1, step);
                r.each(2, |i| kit.outbox.put(0, i * 8, 7u64));
                kit.deliver(r, next, &[(0, 0), (1, 1)], 0, step + 1);
                kit.wait(r, 0, step + 1);
                r.each(2, |i| kit.out.store(i, kit.inbox.get::<u64>(0, i * 8)));
                r.post_credit(kit.queue, before, 1, step + 1);
            }
        })
    };
    net.check(&[(0..3).map(rank).collect()])
}

/// Rank 0 delivers to rank 1, which delivers to rank 2, which reads what rank 0 put at rank 1. (Ranks 1 and 2 are near
/// each other.)
fn delivery_shows_what_its_poster_saw() -> Seen {
    let net = Net::new(3);
    let send = net.rank(0, |r, kit| {
        kit.fill(0);
        kit.deliver(r, 1, &[(0, 0)], 0, 1);
    });
    let between = net.rank(1, |r, kit| {
        kit.wait(r, 0, 1);
        kit.fill(1);
        kit.deliver(r, 2, &[(1, 1)], 0, 1);
    });
    let near = kernel("near", |k| {
        let (theirs, slots) = (k.region("theirs", one(&net.0[1].inbox)), k.slots("slots", one(&net.0[2].slots), 128));
        let out = Tensor::<u64>::zeros(1);
        let out = k.output(&out);
        k.main(|r| {
            r.wait(slots.slot(0, 0), 1);
            out.store(0, theirs.get::<u64>(0, 0));
        });
    });
    net.check(&[vec![send, between, near.unwrap()]])
}

/// The second notice is held until the first delivery has arrived.
fn delivery_shows_the_one_before_for_its_slot() -> Seen {
    let net = Net::new(2);
    let send = net.rank(0, |r, kit| {
        r.each(2, |i| kit.outbox.put(0, i * 8, 7u64));
        kit.deliver(r, 1, &[(0, 0)], 0, 1);
        kit.deliver(r, 1, &[(1, 1)], 0, 2);
    });
    let receive = net.rank(1, |r, kit| {
        kit.wait(r, 0, 2);
        r.each(2, |i| kit.out.store(i, kit.inbox.get::<u64>(0, i * 8)));
    });
    net.check(&[vec![send, receive]])
}

fn another_slot(signal: bool) -> Seen {
    let net = Net::new(2);
    let send = net.rank(0, move |r, kit| {
        r.each(2, |i| kit.outbox.put(0, i * 8, 7u64));
        kit.deliver(r, 1, &[(0, 0)], 0, 1);
        match signal {
            true => r.post_signal(kit.queue, 1, 1, 1),
            false => kit.deliver(r, 1, &[(1, 1)], 1, 1),
        }
    });
    let receive = net.rank(1, |r, kit| {
        kit.wait(r, 1, 1);
        kit.keep(0);
        kit.wait(r, 0, 1);
    });
    net.check(&[vec![send, receive]])
}
/// A signal comes after the bytes of all earlier deliveries, but not after their notices.
fn signal_covers_deliveries_for_other_slots() -> Seen {
    another_slot(true)
}
/// Two deliveries are not ordered.
fn delivery_taken_for_another() -> Seen {
    another_slot(false)
}

/// A credit has said that the first delivery is over. So the second notice to that peer comes after it, for every role
/// of the peer.
fn delivery_shows_a_post_that_is_over() -> Seen {
    let net = Net::new(2);
    let send = net.rank(0, |r, kit| {
        r.each(2, |i| kit.outbox.put(0, i * 8, 7u64));
        kit.deliver(r, 1, &[(0, 0)], 0, 1);
        kit.wait(r, 0, 1);
        kit.deliver(r, 1, &[(1, 1)], 1, 1);
    });
    let receive = net.kernel(1, |k, kit| {
        k.role("first", 1).run(|r| {
            kit.wait(r, 0, 1);
            r.post_credit(kit.queue, 0, 0, 1);
        });
        k.role("second", 1).run(|r| {
            kit.wait(r, 1, 1);
            r.each(2, |i| kit.out.store(i, kit.inbox.get::<u64>(0, i * 8)));
        });
    });
    net.check(&[vec![send, receive]])
}

/// The notice travels with the first word. The second word is posted separately.
fn part_after_its_notice() -> Seen {
    let net = Net::new(2);
    let send = net.rank(0, |r, kit| {
        r.each(2, |i| kit.outbox.put(0, i * 8, 7u64));
        kit.deliver(r, 1, &[(0, 0)], 0, 1);
        r.post(kit.queue, 1, kit.outbox.bank(0).part(8, 8), 8, 8);
    });
    net.check(&[vec![send, net.takes(1, 2)]])
}

fn delivery_before_its_outbox_is_filled() -> Seen {
    let net = Net::new(2);
    let post = line!() + 3;
    let send = net.rank(0, |r, kit| {
        kit.fill(0);
        r.deliver(kit.queue, 1, &kit.parts(r, &[(0, 0), (1, 1)]), 0, 1);
        kit.outbox.put(0, 8, 7u64);
    });
    net.check(&[vec![send, net.takes(1, 2)]]).at(&[post, post + 1])
}

/// One role posts and tells the other, which signals. That covers only the second role's own posts.
fn signal_for_a_post_of_another_role() -> Seen {
    let net = Net::new(2);
    let send = net.kernel(0, |k, kit| {
        k.role("post", 1).run(|r| {
            kit.fill(0);
            r.post(kit.queue, 1, kit.outbox.bank(0).part(0, 8), 0, 8);
            r.signal(kit.slots.slot(0, 2), 1);
        });
        k.role("signal", 1).run(|r| {
            kit.wait(r, 2, 1);
            r.post_signal(kit.queue, 1, 0, 1);
        });
    });
    net.check(&[vec![send, net.takes(1, 1)]])
}

/// A credit has told the second role that the first role's delivery is over. The second role posts to that peer as
/// well.
fn two_posters(second: impl for<'t> Fn(&RoleCtx<'t>, Kit<'t>), word: i64) -> Seen {
    let net = Net::new(2);
    let send = net.kernel(0, |k, kit| {
        k.role("first", 1).run(|r| {
            kit.fill(0);
            kit.deliver(r, 1, &[(0, 0)], 0, 1);
        });
        k.role("second", 1).run(|r| {
            kit.wait(r, 0, 1);
            second(r, kit);
        });
    });
    let receive = net.kernel(1, |k, kit| {
        k.role("first", 1).run(|r| {
            kit.wait(r, 0, 1);
            r.post_credit(kit.queue, 0, 0, 1);
        });
        k.role("second", 1).run(|r| {
            kit.wait(r, 1, 1);
            kit.keep(word);
        });
    });
    net.check(&[vec![send, receive]])
}

/// A real proxy would have written the bytes of the first role before this signal, but the language does not promise
/// it.
fn signal_after_a_post_of_another_role_that_is_over() -> Seen {
    two_posters(|r, kit| r.post_signal(kit.queue, 1, 1, 1), 0)
}

/// To the same place. The first one has been written there before.
fn delivery_over_a_post_of_another_role_that_is_over() -> Seen {
    two_posters(
        |r, kit| {
            kit.outbox.put(0, 8, 9u64);
            kit.deliver(r, 1, &[(1, 0)], 1, 1);
        },
        0,
    )
}

fn delivery_to_the_wrong_slot() -> Seen {
    let net = Net::new(2);
    let send = net.rank(0, |r, kit| {
        kit.fill(0);
        kit.deliver(r, 1, &[(0, 0)], 1, 1);
    });
    net.check(&[vec![send, net.takes(1, 1)]])
}

fn sends_two_parts(net: &Net) -> Traced {
    net.rank(0, |r, kit| {
        r.each(2, |i| kit.outbox.put(0, i * 8, 7u64));
        kit.deliver(r, 1, &[(0, 0), (1, 1)], 0, 1);
    })
}

/// The slot waits for a part that nobody posts.
fn delivery_without_one_part() -> Seen {
    let net = Net::new(2);
    net.check(&[vec![without_post(sends_two_parts(&net), 1), net.takes(1, 2)]])
}

/// Each part counts as the whole, so the slot moves after the first part that arrives.
fn delivery_with_a_part_too_few() -> Seen {
    let net = Net::new(2);
    net.check(&[vec![with_parts(sends_two_parts(&net), 1), net.takes(1, 2)]])
}

/// Two roles post one part each. Parts of two posters belong to two deliveries, and neither is complete.
fn delivery_of_parts_from_two_roles() -> Seen {
    let net = Net::new(2);
    let send = net.kernel(0, |k, kit| {
        for part in 0..2i64 {
            k.role(format!("part {part}"), 1).run(|r| {
                kit.fill(part);
                kit.deliver(r, 1, &[(part, part)], 0, 1);
            });
        }
    });
    net.check(&[vec![with_parts(send, 2), net.takes(1, 2)]])
}

/// The first delivery lacks a part, so the second notice for its slot never comes.
fn delivery_held_by_an_incomplete_one() -> Seen {
    let net = Net::new(2);
    let send = net.rank(0, |r, kit| {
        r.each(3, |i| kit.outbox.put(0, i * 8, 7u64));
        kit.deliver(r, 1, &[(0, 0), (1, 1)], 0, 1);
        kit.deliver(r, 1, &[(2, 2)], 0, 2);
    });
    let receive = net.rank(1, |r, kit| {
        kit.wait(r, 0, 2);
        kit.keep(2);
    });
    net.check(&[vec![without_post(send, 0), receive]])
}

/// A credit waits for no bytes and shows none.
fn credit_for_posted_data() -> Seen {
    let net = Net::new(2);
    let send = net.rank(0, |r, kit| {
        kit.fill(0);
        r.post(kit.queue, 1, kit.outbox.bank(0).part(0, 8), 0, 8);
        r.post_credit(kit.queue, 1, 0, 1);
    });
    net.check(&[vec![send, net.takes(1, 1)]])
}

fn deliveries_to_one_slot_in_the_wrong_order() -> Seen {
    let net = Net::new(2);
    let send = net.rank(0, |r, kit| {
        r.each(2, |i| kit.outbox.put(0, i * 8, 7u64));
        kit.deliver(r, 1, &[(0, 0)], 0, 2);
        kit.deliver(r, 1, &[(1, 1)], 0, 1);
    });
    net.check(&[vec![send, net.takes(1, 2)]])
}
