//! Correct, if unusual: atomics, packets, bulk copies, posts, and the bytes that parties touch.

use super::Expect::{Clean, CleanDecided, CleanOrRefused};
use super::{Kit, Seen, Shared, check, check_built, check_with, one, plan, settings};
use tilewire::check::Settings;
use tilewire::hook::RoleCtx;
use tilewire::ir::{Access, BulkDone, Order, Scope};
use tilewire::{Memory, Tensor, kernel};

seeds! {
    spins_on_an_atomic: Clean,
    spins_on_an_atomic_of_its_own_device: Clean,
    lock_of_an_atomic: Clean,
    sum_by_relaxed_additions_and_a_tree_of_signals: CleanDecided,
    sum_by_additions_of_block_scope: Clean,
    tickets: Clean,
    packets_round_a_ring_of_three: CleanDecided,
    packets_for_the_next_launch_and_after_the_last: CleanDecided,
    packets_that_are_echoed: CleanOrRefused,
    packets_read_by_two_ranks_that_both_give_back: CleanDecided,
    bulk_copies_one_behind_the_signal: CleanDecided,
    bulk_copies_that_end_with_the_role: CleanDecided,
    posts_in_any_order_before_one_signal: CleanDecided,
    bytes_beside_each_other_by_two_ranks: CleanDecided,
    halves_of_a_word_by_two_roles: CleanDecided,
    region_read_by_several_blocks: CleanDecided,
    words_by_plain_accesses_and_signals: CleanDecided,
    input_loaded_by_a_peer_that_answers: CleanDecided,
    tensor_stored_by_a_peer_that_says_so: CleanDecided,
    output_read_back: CleanDecided,
    input_bound_twice: CleanDecided,
    banks_for_every_peer: CleanDecided,
    masked_lanes_that_lie_outside: CleanDecided,
    scratch_of_the_same_name_in_every_block: CleanDecided,
}

/// A flag made of an atomic, as in other languages: one party adds 0 until another one adds 1. The data comes before
/// the release and is read after the acquire. Polling forever is no schedule, because the other parties run, too.
fn spin<'t>(r: &RoleCtx<'t>, kit: Kit<'t>, order: Order, scope: Scope) {
    r.while_(|| kit.words.atomic_add(0, 0u64, order, scope).eq(0), || {});
    kit.out.store(0, kit.bytes.get::<u64>(0, 0));
}

/// If the checker runs such loops to the step limit, it does so only a few times.
fn few_schedules() -> Settings {
    Settings { exhaustive: 200, random: 20, ..settings() }
}

fn spins_on_an_atomic() -> Seen {
    let s = Shared::new();
    let send = s.rank(|_, kit| {
        kit.bytes.put(0, 0, 7u64);
        kit.words.atomic_add(0, 1u64, Order::Release, Scope::System);
    });
    let receive = s.rank(|r, kit| spin(r, kit, Order::Acquire, Scope::System));
    check_with(&[vec![send, receive]], &few_schedules())
}

/// The same between the blocks of a rank, where device scope suffices.
fn spins_on_an_atomic_of_its_own_device() -> Seen {
    let s = Shared::new();
    let both = s.kernel(|k, kit| {
        k.blocks(2);
        k.main(|r| {
            let send = || {
                kit.bytes.put(0, 0, 7u64);
                kit.words.atomic_add(0, 1u64, Order::AcqRel, Scope::Device);
            };
            r.if_else(r.block().eq(1), send, || spin(r, kit, Order::AcqRel, Scope::Device));
        });
    });
    check_with(&[vec![both]], &few_schedules())
}

/// Two ranks draw tickets and enter in that order. So the common word has one writer at a time.
fn lock_of_an_atomic() -> Seen {
    let s = Shared::new();
    let rank = || {
        s.rank(|r, kit| {
            let ticket = kit.words.atomic_add(0, 1u64, Order::Relaxed, Scope::System);
            r.while_(|| kit.words.atomic_add(1, 0u64, Order::Acquire, Scope::System).lt(ticket), || {});
            kit.words.store(2, ticket);
            kit.words.atomic_add(1, 1u64, Order::Release, Scope::System);
        })
    };
    check_with(&[vec![rank(), rank()]], &few_schedules())
}

/// Four ranks add to one word, relaxed; signals up a tree say when all have.
fn sum_by_relaxed_additions_and_a_tree_of_signals() -> Seen {
    let s = Shared::new();
    let rank = |me: usize| {
        s.rank(move |r, kit| {
            r.each(4, |i| _ = kit.words.atomic_add(i, 1u64, Order::Relaxed, Scope::System));
            for child in [2 * me + 1, 2 * me + 2].into_iter().filter(|&child| child < 4) {
                r.wait(kit.slots.slot(0, child), 1);
            }
            match me {
                0 => r.each(4, |i| kit.out.store(i, kit.words.load(i))),
                _ => r.signal(kit.slots.slot(0, me), 1),
            }
        })
    };
    check(&[(0..4).map(rank).collect()])
}

/// The roles of one block count together. Block scope contains both.
fn sum_by_additions_of_block_scope() -> Seen {
    let s = Shared::new();
    let rank = s.kernel(|k, kit| {
        for role in 0..2i64 {
            k.role(format!("count {role}"), 1).run(|r| {
                r.each(4, |_| _ = kit.words.atomic_add(0, 1u64, Order::Relaxed, Scope::Block));
                r.signal(kit.slots.slot(0, role), 1);
            });
        }
        k.role("read", 1).run(|r| {
            (0..2).for_each(|role| r.wait(kit.slots.slot(0, role), 1));
            kit.out.store(0, kit.words.load(0));
        });
    });
    check(&[vec![rank]])
}

/// Ranks draw a number and write in that place. The last one reads all places.
fn tickets() -> Seen {
    let s = Shared::new();
    let rank = || {
        s.rank(|r, kit| {
            let ticket = kit.words.atomic_add(0, 1u64, Order::Relaxed, Scope::System);
            kit.bytes.put(0, ticket.cast::<i64>() * 8, 7u64);
            let before = kit.words.atomic_add(1, 1u64, Order::AcqRel, Scope::System);
            r.if_(before.eq(1), || r.each(2, |i| kit.out.store(i, kit.bytes.get::<u64>(0, i * 8))));
        })
    };
    check(&[vec![rank(), rank()]])
}

/// Every rank puts packet i for the next rank, then gets packet i of the previous one, in one `each` of one dimension.
fn packets_round_a_ring_of_three() -> Seen {
    let s = Shared::new();
    let rank = |me: i64| {
        s.rank(move |r, kit| {
            r.each(4, |i| {
                kit.bytes.packet_put(0, i + 4 * me, 7u64, 1u32);
                kit.out.store(i, kit.bytes.packet_get(0, i + 4 * ((me + 2) % 3), 1u32));
            });
        })
    };
    check(&[vec![rank(0), rank(1), rank(2)]])
}

/// Each launch puts the packets that the next launch takes.
fn packets_for_the_next_launch_and_after_the_last() -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let send = s.rank(move |r, kit| {
            r.each(2, |i| kit.bytes.packet_put(0, i + n * 2, 7u64, n as u32 + 1));
        });
        let receive = s.rank(move |r, kit| match n {
            0 => r.barrier(),
            _ => r.each(2, |i| kit.out.store(i, kit.bytes.packet_get(0, i + (n - 1) * 2, n as u32))),
        });
        vec![send, receive]
    };
    check_with(&[launch(0), launch(1), launch(2)], &Settings { across_launches: true, ..settings() })
}

/// One rank answers each packet as it comes, in one `each` that gets before it puts. The other puts everything before
/// it gets anything.
fn packets_that_are_echoed() -> Seen {
    let s = Shared::new();
    let ask = s.try_rank(|r, kit| {
        r.each(4, |i| kit.bytes.packet_put(0, i, 7u64, 1u32));
        r.each(4, |i| kit.out.store(i, kit.bytes.packet_get(0, i + 8, 1u32)));
    });
    let echo = s.try_rank(|r, kit| {
        r.each(4, |i| {
            let x = kit.bytes.packet_get(0, i, 1u32);
            kit.bytes.packet_put(0, i + 8, x + 1, 1u32);
        });
    });
    check_built([ask, echo])
}

/// Two ranks take the same packets. The sender waits for both before it puts the next ones.
fn packets_read_by_two_ranks_that_both_give_back() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        for message in 0..2 {
            (0..2).for_each(|reader| r.wait(kit.slots.slot(0, reader), message));
            r.each(2, |i| kit.bytes.packet_put(0, i, 7u64, message as u32 + 1));
        }
    });
    let take = |reader: i64| {
        s.rank(move |r, kit| {
            for message in 0..2 {
                r.each(2, |i| kit.out.store(i, kit.bytes.packet_get(0, i, message as u32 + 1)));
                r.signal_credit(kit.slots.slot(0, reader), message + 1);
            }
        })
    };
    check(&[vec![send, take(0), take(1)]])
}

/// Step g is signalled when step g + 1 is under way.
fn bulk_copies_one_behind_the_signal() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        let tiles = r.scratch::<u8>(64);
        r.each(64, |i| tiles.store(i, 7u8));
        r.proxy_fence();
        for step in 0..4i64 {
            r.bulk_copy(kit.bytes.bank(0).part(step * 16, 16), tiles.part(step * 16, 16), 16);
            if step > 0 {
                r.bulk_wait(1, BulkDone::Complete);
                r.signal(kit.slots.slot(0, 0), step);
            }
        }
        r.bulk_wait(0, BulkDone::Complete);
        r.signal(kit.slots.slot(0, 0), 4);
    });
    let receive = s.rank(|r, kit| {
        for step in 0..4i64 {
            r.wait(kit.slots.slot(0, 0), step + 1);
            r.each(2, |i| kit.out.store(i, kit.bytes.get::<u64>(0, step * 16 + i * 8)));
        }
    });
    check(&[vec![send, receive]])
}

/// Nobody waits for the copies. They are over when the role ends, and the next launch reads what they wrote.
fn bulk_copies_that_end_with_the_role() -> Seen {
    let s = Shared::new();
    let copy = s.rank(|r, kit| {
        let tile = r.scratch::<u8>(32);
        r.each(32, |i| tile.store(i, 7u8));
        r.proxy_fence();
        r.bulk_copy(kit.bytes.bank(0), tile, 32);
    });
    let read = s.rank(|r, kit| r.each(4, |i| kit.out.store(i, kit.bytes.get::<u64>(0, i * 8))));
    check(&[vec![copy], vec![read]])
}

/// Three posts to three places, in any order that the proxy chooses, and one signal for all.
fn posts_in_any_order_before_one_signal() -> Seen {
    let (ring, source) = (Memory::zeroed(64), Memory::zeroed(64));
    let (region, slots) = (Memory::zeroed(64), Memory::zeroed(128));
    let out = Tensor::<u64>::zeros(3);
    let send = kernel("send", |k| {
        let (queue, source) = (k.queue("wire", &ring), k.region("source", one(&source)));
        k.main(|r| {
            r.each(3, |i| source.put(0, i * 8, 7u64));
            for part in 0..3i64 {
                r.post(queue, 1, source.bank(0).part(part * 8, 8), 16 - part * 8, 8);
            }
            r.post_signal(queue, 1, 0, 1);
        });
    });
    let receive = kernel("receive", |k| {
        let (region, slots) = (k.region("region", one(&region)), k.slots("slots", one(&slots), 128));
        let out = k.output(&out);
        k.main(|r| {
            r.wait(slots.slot(0, 0), 1);
            r.each(3, |i| out.store(i, region.get::<u64>(0, i * 8)));
        });
    });
    let mut plan = plan(&[vec![send.unwrap(), receive.unwrap()]]);
    plan.route(&ring, 1, &region, &slots, 128).verify(&settings()).into()
}

/// Two ranks write every other byte of a word. A store touches its own bytes only.
fn bytes_beside_each_other_by_two_ranks() -> Seen {
    let s = Shared::new();
    let half = |odd: i64| {
        s.rank(move |r, kit| {
            r.each(4, |i| kit.bytes.put(0, i * 2 + odd, 7u8));
            r.signal(kit.slots.slot(0, odd), 1);
        })
    };
    let read = s.rank(|r, kit| {
        (0..2).for_each(|slot| r.wait(kit.slots.slot(0, slot), 1));
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
    });
    check(&[vec![half(0), half(1), read]])
}

/// Two roles have the memory as u32. They write the halves of each u64 that a third role reads.
fn halves_of_a_word_by_two_roles() -> Seen {
    let s = Shared::new();
    let rank = s.kernel(|k, kit| {
        let halves = k.buffer::<u32>("halves", one(&s.words), Access::InOut).bank(0);
        for half in 0..2i64 {
            k.role(format!("half {half}"), 1).run(|r| {
                r.each(4, |i| halves.store(i * 2 + half, 7u32));
                r.signal(kit.slots.slot(0, half), 1);
            });
        }
        k.role("read", 1).run(|r| {
            (0..2).for_each(|half| r.wait(kit.slots.slot(0, half), 1));
            r.each(4, |i| kit.out.store(i, kit.words.load(i)));
        });
    });
    check(&[vec![rank]])
}

/// Every block of the receiver reads the whole slot and gives it back separately. The sender waits for all of them.
fn region_read_by_several_blocks() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        for step in 0..2 {
            r.for_(0..3, |block| r.wait(kit.slots.slot(0, block + 1), step));
            r.each(4, |i| kit.bytes.put(0, i * 8, 7u64));
            r.signal(kit.slots.slot(0, 0), step + 1);
        }
    });
    let receive = s.kernel(|k, kit| {
        k.blocks(3);
        k.main(|r| {
            for step in 0..2 {
                r.wait(kit.slots.slot(0, 0), step + 1);
                r.each(4, |i| kit.out.store(r.block() * 4 + i, kit.bytes.get::<u64>(0, i * 8)));
                r.signal_credit(kit.slots.slot(0, r.block() + 1), step + 1);
            }
        });
    });
    check(&[vec![send, receive]])
}

/// No region: two ranks pass words of a common buffer back and forth by plain stores and loads.
fn words_by_plain_accesses_and_signals() -> Seen {
    let s = Shared::new();
    let first = s.rank(|r, kit| {
        r.each(4, |i| kit.words.store(i, 7u64));
        r.signal(kit.slots.slot(0, 0), 1);
        r.wait(kit.slots.slot(0, 1), 1);
        r.each(4, |i| kit.out.store(i, kit.words.load(i)));
    });
    let second = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        r.each(4, |i| kit.words.store(i, kit.words.load(i) + 1));
        r.signal(kit.slots.slot(0, 1), 1);
    });
    check(&[vec![first, second]])
}

/// The peer reads an input after the owner says that it is ready, and before the peer says that it has been read.
fn input_loaded_by_a_peer_that_answers() -> Seen {
    let (x, slots, out) = (Tensor::<u64>::zeros(4), Memory::zeroed(256), Tensor::<u64>::zeros(4));
    let launch = |n: i64| {
        let owner = kernel("owner", |k| {
            let (_, slots) = (k.input(&x).named("x"), k.slots("slots", one(&slots), 128));
            k.main(|r| {
                r.signal(slots.slot(0, 0), n + 1);
                r.wait(slots.slot(0, 1), n + 1);
            });
        });
        let peer = kernel("peer", |k| {
            let theirs = k.buffer::<u64>("theirs", one(x.memory()), Access::InOut).bank(0);
            let (slots, out) = (k.slots("slots", one(&slots), 128), k.output(&out));
            k.main(|r| {
                r.wait(slots.slot(0, 0), n + 1);
                r.each(4, |i| out.store(i, theirs.load(i)));
                r.signal(slots.slot(0, 1), n + 1);
            });
        });
        vec![owner.unwrap(), peer.unwrap()]
    };
    check(&[launch(0), launch(1), launch(2)])
}

/// Memory that is bound for reading and writing may be written by a peer, between two signals.
fn tensor_stored_by_a_peer_that_says_so() -> Seen {
    let (x, slots, out) = (Tensor::<u64>::zeros(4), Memory::zeroed(256), Tensor::<u64>::zeros(4));
    let launch = |n: i64| {
        let owner = kernel("owner", |k| {
            let (x, out, slots) = (k.inout(&x).named("x"), k.output(&out), k.slots("slots", one(&slots), 128));
            k.main(|r| {
                r.signal(slots.slot(0, 0), n + 1);
                r.wait(slots.slot(0, 1), n + 1);
                r.each(4, |i| out.store(i, x.load(i)));
            });
        });
        let peer = kernel("peer", |k| {
            let theirs = k.buffer::<u64>("theirs", one(x.memory()), Access::InOut).bank(0);
            let slots = k.slots("slots", one(&slots), 128);
            k.main(|r| {
                r.wait(slots.slot(0, 0), n + 1);
                r.each(4, |i| theirs.store(i, 7u64));
                r.signal(slots.slot(0, 1), n + 1);
            });
        });
        vec![owner.unwrap(), peer.unwrap()]
    };
    check(&[launch(0), launch(1)])
}

/// A kernel may read back what it wrote into its own output, in another lane of a later `each`.
fn output_read_back() -> Seen {
    let y = Tensor::<u64>::zeros(8);
    let traced = kernel("read back", |k| {
        let y = k.output(&y);
        k.main(|r| {
            r.each(4, |i| y.store(i, i.cast::<u64>()));
            r.each(4, |i| y.store(i + 4, y.load(3 - i)));
        });
    });
    check(&[vec![traced.unwrap()]])
}

/// An input under two types is still only read.
fn input_bound_twice() -> Seen {
    let (x, y) = (Tensor::<u64>::zeros(4), Tensor::<u64>::zeros(4));
    let traced = kernel("two types", |k| {
        let (words, y) = (k.input(&x), k.output(&y));
        let halves = k.buffer::<u32>("halves", one(x.memory()), Access::In).bank(0);
        k.main(|r| r.each(4, |i| y.store(i, words.load(i) + halves.load(i * 2).cast::<u64>())));
    });
    let traced = traced.unwrap();
    check(&[vec![traced.clone()], vec![traced]])
}

/// All to all of three ranks, with a bank of memory and of counters for each.
fn banks_for_every_peer() -> Seen {
    let banks = || [Memory::zeroed(64), Memory::zeroed(64), Memory::zeroed(64)];
    let (staging, tails) = (banks(), [Memory::zeroed(512), Memory::zeroed(512), Memory::zeroed(512)]);
    let rank = |_: usize| {
        let out = Tensor::<u64>::zeros(3);
        let traced = kernel("all to all", |k| {
            let (staging, tails) = (k.region("staging", &staging), k.slots("tails", &tails, 128));
            let out = k.output(&out);
            k.main(|r| {
                r.for_(..r.world_size(), |peer| {
                    staging.put(peer, r.rank() * 8, 7u64);
                    r.signal(tails.slot(peer, r.rank()), 1);
                });
                r.for_(..r.world_size(), |peer| {
                    r.wait(tails.slot(r.rank(), peer), 1);
                    out.store(peer, staging.get::<u64>(r.rank(), peer * 8));
                });
            });
        });
        traced.unwrap()
    };
    check(&[(0..3).map(rank).collect()])
}

/// Eight lanes for five elements. The others are masked off, and their places lie outside or were never written.
fn masked_lanes_that_lie_outside() -> Seen {
    let (s, x) = (Shared::new(), Tensor::<u64>::zeros(5));
    let send = s.kernel(|k, kit| {
        let x = k.input(&x);
        k.main(|r| {
            r.each(8, |i| kit.bytes.put_if(i.lt(5), 0, i * 8, x.load_if(i.lt(5), i, 0u64)));
            r.signal(kit.slots.slot(0, 0), 1);
        });
    });
    let receive = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        r.each(8, |i| kit.out.store_if(i.lt(5), i, kit.bytes.get_if(i.lt(5), 0, i * 8, 0u64)));
    });
    check(&[vec![send, receive]])
}

/// Scratch is private. Blocks, roles and copies that use the same variable do not meet.
fn scratch_of_the_same_name_in_every_block() -> Seen {
    let s = Shared::new();
    let rank = s.kernel(|k, kit| {
        k.blocks(2);
        k.role("work", 1).copies(2, |r| {
            let tile = r.scratch::<u64>(4);
            r.for_turns(2, |step| {
                r.each(4, |i| tile.store(i, (i + step).cast::<u64>()));
                r.each(4, |i| kit.out.store((r.block() * 2 + step) * 4 + i, tile.load(3 - i)));
            });
        });
    });
    check(&[vec![rank]])
}
