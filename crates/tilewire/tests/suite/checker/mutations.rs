//! Mutations of a pipeline of bulk copies as somebody would write it by hand, through one slot: every one that applies is caught. (Those of the
//! schedules that ship are in `shipped.rs`.)

use crate::checker::{check, clean, plan};
use tilewire::check::{Mutation, Settings};
use tilewire::ir::BulkDone;
use tilewire::{Memory, Tensor, Traced, kernel};

/// Two ranks: tiles go from scratch to staging and from staging to scratch by bulk copies, through one slot.
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

#[test]
fn a_bulk_pipeline_is_clean_and_its_mutants_are_not() {
    let launches = [bulk_pair()];
    clean(&check(&launches));
    let mut seen = Vec::new();
    for &mutation in Mutation::all() {
        for mutant in plan(&launches).mutants(mutation) {
            let report = mutant.verify(&Settings::default());
            assert!(!report.is_clean() && report.is_decided(), "{mutant}: {report}");
            let here = |at: &tilewire::ir::SourceLine| at.file.ends_with("mutations.rs");
            assert!(report.faults[0].fault.lines().iter().all(here), "{report}");
            seen.push(mutation);
        }
    }
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
}

#[test]
fn mutations_have_names_and_say_what_they_do() {
    for &mutation in Mutation::all() {
        assert_eq!(Mutation::named(mutation.name()), Some(mutation));
        assert!(mutation.describe().ends_with('.'), "{}", mutation.describe());
    }
    assert_eq!(Mutation::named("fly"), None);
}
