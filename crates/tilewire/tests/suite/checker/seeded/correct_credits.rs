//! Correct, if unusual: units of credits, who gets them, and how often.

use super::Expect::CleanDecided;
use super::{Seen, Shared, check, check_with, settings};
use tilewire::check::Settings;

seeds! {
    head_counted_in_bytes: CleanDecided,
    head_counted_in_bytes_over_launches: CleanDecided,
    head_counted_in_elements: CleanDecided,
    head_counted_in_steps_of_different_sizes: CleanDecided,
    ready_before_it_is_asked_for: CleanDecided,
    ready_for_a_peer_that_seldom_sends: CleanDecided,
    ready_by_credit_to_three_peers: CleanDecided,
    ready_by_one_credit_for_three_peers: CleanDecided,
    ready_by_credit_to_another_peer_in_each_launch: CleanDecided,
    ready_by_credit_in_every_launch: CleanDecided,
    credits_in_batches_of_two: CleanDecided,
    credits_in_batches_of_any_size: CleanDecided,
    credit_that_nobody_needs: CleanDecided,
}

/// The receiver gives back bytes, not steps: two slots of 16 bytes, so step g may begin when 16 · (g − 1) bytes are
/// free again.
fn head_counted_in_bytes() -> Seen {
    let s = Shared::new();
    let launch = |steps: std::ops::Range<i64>| {
        let takes = steps.clone();
        let send = s.rank(move |r, kit| {
            for step in steps.clone() {
                r.wait(kit.slots.slot(0, 1), (step - 1).max(0) * 16);
                r.each(2, |i| kit.bytes.put(0, step % 2 * 16 + i * 8, 7u64));
                r.signal(kit.slots.slot(0, 0), step + 1);
            }
        });
        let receive = s.rank(move |r, kit| {
            for step in takes.clone() {
                r.wait(kit.slots.slot(0, 0), step + 1);
                r.each(2, |i| kit.out.store(i, kit.bytes.get::<u64>(0, step % 2 * 16 + i * 8)));
                r.signal_credit(kit.slots.slot(0, 1), (step + 1) * 16);
            }
        });
        vec![send, receive]
    };
    check(&[launch(0..4)])
}

/// The same, with first steps that need no credit, in three launches. The next launch takes the credits of the previous
/// one.
fn head_counted_in_bytes_over_launches() -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let send = s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, 1), n * 24);
            r.each(3, |i| kit.bytes.put(0, i * 8, 7u64));
            r.signal(kit.slots.slot(0, 0), n + 1);
        });
        let receive = s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, 0), n + 1);
            r.each(3, |i| kit.out.store(i, kit.bytes.get::<u64>(0, i * 8)));
            r.signal_credit(kit.slots.slot(0, 1), (n + 1) * 24);
        });
        vec![send, receive]
    };
    check(&[launch(0), launch(1), launch(2)])
}

/// Two elements in a step, one slot of staging, and a HEAD that counts elements. After step g, HEAD is 2 · (g + 1), and
/// TAIL is g + 1.
fn head_counted_in_elements() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        for step in 0..3 {
            if step > 0 {
                r.wait(kit.slots.slot(0, 1), step * 2);
            }
            r.each(2, |i| kit.bytes.put(0, i * 8, 7u64));
            r.signal(kit.slots.slot(0, 0), step + 1);
        }
    });
    let receive = s.rank(|r, kit| {
        for step in 0..3 {
            r.wait(kit.slots.slot(0, 0), step + 1);
            r.each(2, |i| kit.out.store(i, kit.bytes.get::<u64>(0, i * 8)));
            r.signal_credit(kit.slots.slot(0, 1), (step + 1) * 2);
        }
    });
    check(&[vec![send, receive]])
}

/// Steps of one and two words alternate in one slot. HEAD counts words: 1, 3, 4, 6.
fn head_counted_in_steps_of_different_sizes() -> Seen {
    let s = Shared::new();
    let words = |step: i64| step + step / 2;
    let send = s.rank(move |r, kit| {
        for step in 0..4 {
            r.wait(kit.slots.slot(0, 1), words(step));
            r.each(1 + step % 2, |i| kit.bytes.put(0, i * 8, 7u64));
            r.signal(kit.slots.slot(0, 0), step + 1);
        }
    });
    let receive = s.rank(move |r, kit| {
        for step in 0..4 {
            r.wait(kit.slots.slot(0, 0), step + 1);
            r.each(1 + step % 2, |i| kit.out.store(i, kit.bytes.get::<u64>(0, i * 8)));
            r.signal_credit(kit.slots.slot(0, 1), words(step + 1));
        }
    });
    check(&[vec![send, receive]])
}

/// The receiver permits a message and then waits for it, step by step. READY is one ahead of what was sent.
fn ready_before_it_is_asked_for() -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let send = s.rank(move |r, kit| {
            for step in 2 * n..2 * n + 2 {
                r.wait(kit.slots.slot(0, 1), step + 1);
                kit.bytes.put(0, 0, 7u64);
                r.signal(kit.slots.slot(0, 0), step + 1);
            }
        });
        let receive = s.rank(move |r, kit| {
            for step in 2 * n..2 * n + 2 {
                r.signal_credit(kit.slots.slot(0, 1), step + 1);
                r.wait(kit.slots.slot(0, 0), step + 1);
                kit.out.store(0, kit.bytes.get::<u64>(0, 0));
            }
        });
        vec![send, receive]
    };
    check(&[launch(0), launch(1)])
}

/// READY counts launches. Rank 1 sends in every launch and rank 2 in every second one, so the TAIL of rank 2 is behind.
fn ready_for_a_peer_that_seldom_sends() -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let both = n % 2 == 1;
        let receive = s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, 1), n + 1);
            kit.out.store(0, kit.bytes.get::<u64>(0, 8));
            if both {
                r.wait(kit.slots.slot(0, 2), n / 2 + 1);
                kit.out.store(1, kit.bytes.get::<u64>(0, 16));
            }
            r.signal_credit(kit.slots.slot(0, 0), n + 1);
        });
        let send = |me: i64, value: i64| {
            s.rank(move |r, kit| {
                r.wait(kit.slots.slot(0, 0), n);
                kit.bytes.put(0, me * 8, 7u64);
                r.signal(kit.slots.slot(0, me), value);
            })
        };
        let second = if both { send(2, n / 2 + 1) } else { s.rank(|r, _| r.barrier()) };
        vec![receive, send(1, n + 1), second]
    };
    check(&(0..4).map(launch).collect::<Vec<_>>())
}

/// A receiver permits three peers to write, each in a separate place, and waits for all of them. READY publishes
/// nothing, so it is a credit.
fn ready(launches: i64) -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let receive = s.rank(move |r, kit| {
            (1..4).for_each(|peer| r.signal_credit(kit.slots.slot(0, peer), n + 1));
            (1..4).for_each(|peer| r.wait(kit.slots.slot(0, 4 + peer), n + 1));
            r.each(3, |i| kit.out.store(i, kit.bytes.get::<u64>(0, i * 8)));
        });
        let send = |me: i64| {
            s.rank(move |r, kit| {
                r.wait(kit.slots.slot(0, me), n + 1);
                kit.bytes.put(0, (me - 1) * 8, 7u64);
                r.signal(kit.slots.slot(0, 4 + me), n + 1);
            })
        };
        vec![receive, send(1), send(2), send(3)]
    };
    check(&(0..launches).map(launch).collect::<Vec<_>>())
}

fn ready_by_credit_to_three_peers() -> Seen {
    ready(1)
}

fn ready_by_credit_in_every_launch() -> Seen {
    ready(3)
}

/// All peers wait for the same READY.
fn ready_by_one_credit_for_three_peers() -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let receive = s.rank(move |r, kit| {
            r.signal_credit(kit.slots.slot(0, 0), n + 1);
            (1..4).for_each(|peer| r.wait(kit.slots.slot(0, peer), n + 1));
            r.each(3, |i| kit.out.store(i, kit.bytes.get::<u64>(0, i * 8)));
        });
        let send = |me: i64| {
            s.rank(move |r, kit| {
                r.wait(kit.slots.slot(0, 0), n + 1);
                kit.bytes.put(0, (me - 1) * 8, 7u64);
                r.signal(kit.slots.slot(0, me), n + 1);
            })
        };
        vec![receive, send(1), send(2), send(3)]
    };
    check(&[launch(0), launch(1)])
}

/// READY counts launches, and each TAIL the messages of one peer: READY is ahead of every TAIL.
fn ready_by_credit_to_another_peer_in_each_launch() -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let from = n % 2 + 1;
        let receive = s.rank(move |r, kit| {
            r.signal_credit(kit.slots.slot(0, 0), n + 1);
            r.wait(kit.slots.slot(0, from), n / 2 + 1);
            kit.out.store(0, kit.bytes.get::<u64>(0, from * 8));
        });
        let send = s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, 0), n + 1);
            kit.bytes.put(0, from * 8, 7u64);
            r.signal(kit.slots.slot(0, from), n / 2 + 1);
        });
        let idle = s.rank(|r, _| r.barrier());
        if from == 1 { vec![receive, send, idle] } else { vec![receive, idle, send] }
    };
    check(&(0..4).map(launch).collect::<Vec<_>>())
}

/// Four slots. The receiver gives them back in pairs, and the sender waits for pairs.
fn credits_in_batches_of_two() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        for step in 0..8 {
            if step >= 4 && step % 2 == 0 {
                r.wait(kit.slots.slot(0, 1), step - 2);
            }
            kit.bytes.put(0, step % 4 * 8, 7u64);
            r.signal(kit.slots.slot(0, 0), step + 1);
        }
    });
    let receive = s.rank(|r, kit| {
        for step in 0..8 {
            r.wait(kit.slots.slot(0, 0), step + 1);
            kit.out.store(step, kit.bytes.get::<u64>(0, step % 4 * 8));
            if step % 2 == 1 {
                r.signal_credit(kit.slots.slot(0, 1), step + 1);
            }
        }
    });
    check(&[vec![send, receive]])
}

/// The sender waits for every step, and the receiver gives back three steps together. The settings allow it.
fn credits_in_batches_of_any_size() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        for step in 0..6 {
            r.wait(kit.slots.slot(0, 1), (step - 2).max(0));
            kit.bytes.put(0, step % 3 * 8, 7u64);
            r.signal(kit.slots.slot(0, 0), step + 1);
        }
    });
    let receive = s.rank(|r, kit| {
        for step in 0..6 {
            r.wait(kit.slots.slot(0, 0), step + 1);
            kit.out.store(step, kit.bytes.get::<u64>(0, step % 3 * 8));
            if step % 3 == 2 {
                r.signal_credit(kit.slots.slot(0, 1), step + 1);
            }
        }
    });
    check_with(&[vec![send, receive]], &Settings { cumulative: true, ..settings() })
}

/// Every step has a separate place. The receiver gives the places back all the same.
fn credit_that_nobody_needs() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        for step in 0..3 {
            kit.bytes.put(0, step * 8, 7u64);
            r.signal(kit.slots.slot(0, 0), step + 1);
        }
    });
    let receive = s.rank(|r, kit| {
        for step in 0..3 {
            r.wait(kit.slots.slot(0, 0), step + 1);
            kit.out.store(step, kit.bytes.get::<u64>(0, step * 8));
            r.signal_credit(kit.slots.slot(0, 1), step + 1);
        }
    });
    check(&[vec![send, receive]])
}
