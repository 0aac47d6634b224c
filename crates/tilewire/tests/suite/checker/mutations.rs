//! Mutations of pipelines written by hand, of bulk copies through one slot and of posts through two slots. Every
//! mutation that applies is caught. (`shipped.rs` has those of the shipped schedules.)

use crate::checker::{clean, plan};
use tilewire::check::{Mutation, Plan, Settings};
use tilewire::ir::BulkDone;
use tilewire::{Memory, Tensor, Traced, kernel};

/// Two ranks. Bulk copies move tiles from scratch to staging and from staging to scratch, through one slot.
fn bulk_pair() -> Vec<Traced> {
    let (staging, slots) = ([Memory::zeroed(64)], [Memory::zeroed(256)]);
    let (x, y) = (Tensor::<u8>::zeros(256), Tensor::<u8>::zeros(256));
    let send = kernel("bulk send", |k| {
        let (x, staging) = (k.input(&x).named("x"), k.region("staging", &staging));
        let slots = k.slots("slots", &slots, 128);
        k.main(|r| {
            let tile = r.scratch::<u8>(64);
            r.for_(0..4, |step| {
                r.each(64, |i| tile.store(i, x.load(step * 64 + i)));
                r.wait(slots.slot(0, 1), step);
                r.proxy_fence();
                r.bulk_copy(staging.bank(0), tile, 64);
                r.bulk_wait(0, BulkDone::Complete);
                r.signal(slots.slot(0, 0), step + 1);
            });
        });
    });
    let receive = kernel("bulk receive", |k| {
        let (y, staging) = (k.output(&y).named("y"), k.region("staging", &staging));
        let slots = k.slots("slots", &slots, 128);
        k.main(|r| {
            let tile = r.scratch::<u8>(64);
            r.for_(0..4, |step| {
                r.wait(slots.slot(0, 0), step + 1);
                r.proxy_fence();
                r.bulk_copy(tile, staging.bank(0), 64);
                r.bulk_wait(0, BulkDone::Complete);
                r.signal_credit(slots.slot(0, 1), step + 1);
                r.each(64, |i| y.store(step * 64 + i, tile.load(i)));
            });
        });
    });
    vec![send.unwrap(), receive.unwrap()]
}

/// Two ranks and a network. Two copies of a role deliver tiles of two parts, or post them and signal, through two slots
/// of an outbox. Credits come back over the network.
fn posted_pair(delivers: bool) -> Plan {
    let [rings, boxes] = [64, 64].map(|bytes| [Memory::zeroed(bytes), Memory::zeroed(bytes)]);
    let slots = [Memory::zeroed(4 * 128), Memory::zeroed(5 * 128)];
    let (x, y) = (Tensor::<u64>::zeros(16), Tensor::<u64>::zeros(16));
    let send = kernel("posted send", |k| {
        let (x, outbox) = (k.input(&x).named("x"), k.region("outbox", &boxes[..1]));
        let (slots, wire) = (k.slots("slots", &slots[..1], 128), k.queue("wire", &rings[0]));
        k.role("send", 1).copies(2, |r| {
            r.for_turns(4, |step| {
                let (slot, round) = (step % 2, step / 2);
                r.wait(slots.slot(0, slot), round);
                r.each(4, |i| outbox.put(0, (slot * 4 + i) * 8, x.load(step * 4 + i)));
                let part = |n: i64| outbox.bank(0).part(slot * 32 + n * 16, 16);
                let to = |n: i64| slot * 32 + n * 16;
                if delivers {
                    let parts = [0, 1].map(|n| (part(n), to(n), r.constant(16i64)));
                    r.deliver(wire, 1, &parts, slot, round + 1);
                } else {
                    [0, 1].into_iter().for_each(|n| r.post(wire, 1, part(n), to(n), 16));
                    r.post_signal(wire, 1, slot, round + 1);
                }
            });
        });
    });
    let receive = kernel("posted receive", |k| {
        let (y, inbox) = (k.output(&y).named("y"), k.region("inbox", &boxes[1..]));
        let (slots, wire) = (k.slots("slots", &slots[1..], 128), k.queue("wire", &rings[1]));
        k.main(|r| {
            r.for_(0..4, |step| {
                let (slot, round) = (step % 2, step / 2);
                r.wait(slots.slot(0, slot), round + 1);
                r.each(4, |i| y.store(step * 4 + i, inbox.get::<u64>(0, (slot * 4 + i) * 8)));
                r.post_credit(wire, 0, slot, round + 1);
            });
        });
    });
    let mut plan = plan(&[vec![send.unwrap(), receive.unwrap()]]);
    plan.route(&rings[0], 1, &boxes[1], &slots[1], 128).route(&rings[1], 0, &boxes[0], &slots[0], 128);
    plan
}

/// The mutations that apply. Every one is caught at lines of this file.
fn caught(plan: &Plan) -> Vec<Mutation> {
    clean(&plan.verify(&Settings::default()));
    let mut seen = Vec::new();
    for &mutation in Mutation::all() {
        for mutant in plan.mutants(mutation) {
            let report = mutant.verify(&Settings::default());
            assert!(!report.is_clean() && report.is_decided(), "{mutant}: {report}");
            let here = |at: &tilewire::ir::SourceLine| at.file.ends_with("mutations.rs");
            assert!(report.faults[0].fault.lines().iter().all(here), "{report}");
            println!("{mutant}: {}", report.faults[0].fault.kind());
            seen.push(mutation);
        }
    }
    seen
}

#[test]
fn a_bulk_pipeline_is_clean_and_its_mutants_are_not() {
    let seen = caught(&plan(&[bulk_pair()]));
    for wanted in [
        Mutation::DropWait,
        Mutation::DropCreditWait,
        Mutation::ReusedSlot,
        Mutation::SignalBeforePut,
        Mutation::ReleaseToRelaxed,
        Mutation::AcquireToRelaxed,
        Mutation::BulkBeforeCompletion,
        Mutation::MissingProxyFence,
    ] {
        assert!(seen.contains(&wanted), "{wanted} applies nowhere");
    }
    for of_posts in OF_POSTS {
        assert!(!seen.contains(&of_posts), "{of_posts} applies where nothing is posted");
    }
}

/// Mutations that need posts.
pub const OF_POSTS: [Mutation; 8] = [
    Mutation::NoticeBeforeData,
    Mutation::PostBeforePut,
    Mutation::WrongLine,
    Mutation::PartsOffByOne,
    Mutation::OutboxReused,
    Mutation::OvertakingSignal,
    Mutation::EarlyFlush,
    Mutation::UnheldNotice,
];

/// A role delivers twice for one slot, and after a flush overwrites the bytes that it delivered.
fn twice_and_flushed() -> Plan {
    let [ring, source, inbox] = [64, 16, 16].map(Memory::zeroed);
    let slots = [Memory::zeroed(4 * 128), Memory::zeroed(4 * 128)];
    let send = kernel("twice", |k| {
        let (wire, source) = (k.queue("wire", &ring), k.region("source", std::slice::from_ref(&source)));
        let own = k.slots("own", &slots[..1], 128);
        k.main(|r| {
            r.each(2, |i| source.put(0, i * 8, 7u64));
            let part = |n: i64| [(source.bank(0).part(n * 8, 8), r.constant(n * 8), r.constant(8i64))];
            r.deliver(wire, 1, &part(0), 1, 1);
            r.deliver(wire, 1, &part(1), 1, 2);
            r.post_flush(wire, 1, 3, 1);
            r.wait(own.slot(0, 3), 1);
            r.each(2, |i| source.put(0, i * 8, 8u64));
        });
    });
    let out = Tensor::<u64>::zeros(2);
    let receive = kernel("takes two", |k| {
        let (inbox, out) = (k.region("inbox", std::slice::from_ref(&inbox)), k.output(&out));
        let slots = k.slots("slots", &slots[1..], 128);
        k.main(|r| {
            r.wait(slots.slot(0, 1), 2);
            r.each(2, |i| out.store(i, inbox.get::<u64>(0, i * 8)));
        });
    });
    let mut plan = plan(&[vec![send.unwrap(), receive.unwrap()]]);
    plan.route(&ring, 0, &inbox.part(0, 0), &slots[0], 128).route(&ring, 1, &inbox, &slots[1], 128);
    plan
}

#[test]
fn notices_for_one_slot_and_flushes_are_clean_and_their_mutants_are_not() {
    let seen = caught(&twice_and_flushed());
    for wanted in [Mutation::UnheldNotice, Mutation::EarlyFlush, Mutation::DropWait, Mutation::WrongLine] {
        assert!(seen.contains(&wanted), "{wanted} applies nowhere");
    }
}

#[test]
fn a_pipeline_of_posts_is_clean_and_its_mutants_are_not() {
    use Mutation::{DropCreditWait, DropWait, OffByOneCredit, PutTooFar, ReusedSlot, SharedTail};
    let both =
        [DropWait, DropCreditWait, ReusedSlot, OffByOneCredit, PutTooFar, SharedTail, Mutation::AcquireToRelaxed];
    let delivered = [Mutation::NoticeBeforeData, Mutation::PartsOffByOne];
    let signalled = [Mutation::SignalBeforePut, Mutation::ReleaseToRelaxed, Mutation::OvertakingSignal];
    for (delivers, own, others) in [(true, &delivered[..], &signalled[..]), (false, &signalled[..], &delivered[..])] {
        let seen = caught(&posted_pair(delivers));
        let always = [Mutation::PostBeforePut, Mutation::WrongLine, Mutation::OutboxReused];
        for wanted in both.into_iter().chain(own.iter().copied()).chain(always) {
            assert!(seen.contains(&wanted), "{wanted} applies nowhere");
        }
        assert!(others.iter().all(|other| !seen.contains(other)), "{seen:?}");
    }
}

#[test]
fn mutations_have_names_and_say_what_they_do() {
    for &mutation in Mutation::all() {
        assert_eq!(Mutation::named(mutation.name()), Some(mutation));
        assert!(mutation.describe().ends_with('.'), "{}", mutation.describe());
    }
    assert_eq!(Mutation::named("fly"), None);
}
