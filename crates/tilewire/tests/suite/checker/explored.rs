//! Outside of the monotone fragment, the schedules that are run show the same as all interleavings, and are fewer.

use crate::checker::brute::{Features, MOST_STATES, Reads, all_interleavings, program};
use crate::checker::litmus::Shared;
use crate::checker::{check_with, kinds, plan};
use tilewire::check::{Certainty, Report, Settings};
use tilewire_testkit::random::Random;

/// Programs that have more schedules than this without reduction are left out.
const ALL: u64 = 3000;

fn explored(kernels: &[tilewire::Traced], reduces: bool) -> Report {
    let (exhaustive, random) = (ALL, 0);
    let settings =
        Settings { exhaustive, random, reduces, cumulative: true, across_launches: true, ..Settings::default() };
    check_with(&[kernels.to_vec()], &settings)
}

#[derive(Default, Debug)]
struct Count {
    programs: u64,
    too_many: u64,
    clean: u64,
    full: u64,
    reduced: u64,
}

/// Runs with reduction report the same as runs without. `brute` shows that both report the same as all interleavings.
fn compare(features: Features, seeds: std::ops::Range<u64>) -> Count {
    let mut count = Count::default();
    for seed in seeds {
        let program = program(&mut Random::new(seed), features);
        let Ok(launch) = program.trace() else { continue };
        let kernels = launch.kernels;
        let reduced = explored(&kernels, true);
        if reduced.is_decided() {
            continue;
        }
        count.programs += 1;
        let full = explored(&kernels, false);
        // All interleavings were run. The report says separately whether weaker memory allows more.
        let exhausted = |report: &Report| report.schedules < ALL;
        if full.is_clean() && !exhausted(&full) {
            count.too_many += 1;
            continue;
        }
        assert_eq!(reduced.is_clean(), full.is_clean(), "seed {seed}: {program}\n{reduced}\n{full}");
        if !full.is_clean() {
            continue;
        }
        assert!(
            exhausted(&reduced) && reduced.schedules <= full.schedules,
            "seed {seed}: {program}\n{reduced}\n{full}"
        );
        let shown = all_interleavings(&program, Reads::Latest, MOST_STATES);
        assert!(shown.is_none_or(|shown| shown.is_clean()), "seed {seed}: {program}\n{shown:?}");
        count.clean += 1;
        count.full += full.schedules;
        count.reduced += reduced.schedules;
    }
    println!("{count:?}");
    count
}

#[test]
fn programs_with_tests_are_judged_as_without_reduction() {
    let count = compare(Features { tests: true, ..Features::default() }, 0..300);
    assert!(count.clean > 10 && count.reduced * 10 < count.full, "{count:?}");
}

#[test]
fn programs_with_atomics_are_judged_as_without_reduction() {
    let features = Features { atomics: true, used: true, raw_slots: true, several: true, ..Features::default() };
    let count = compare(features, 0..300);
    assert!(count.clean > 10 && count.reduced * 10 < count.full, "{count:?}");
}

/// A bug that one order of eight shows: if three tests all fail, the data is read too early.
fn narrow() -> Vec<tilewire::Traced> {
    let s = Shared::new();
    let send = s.rank(|r, bytes, slots, _| {
        for step in 1..=3 {
            r.signal(slots.slot(0, step), 1);
        }
        bytes.put(0, 0, 7u64);
        r.signal(slots.slot(0, 0), 1);
    });
    let receive = s.rank(|r, bytes, slots, out| {
        let early = (1..=3).map(|step| !r.test(slots.slot(0, step), 1)).reduce(|a, b| a & b).unwrap();
        r.if_(early, || out.store(0, bytes.get::<u64>(0, 0)));
        (0..=3).for_each(|step| r.wait(slots.slot(0, step), 1));
    });
    vec![send, receive]
}

#[test]
fn random_priorities_find_it_too_and_the_seed_finds_it_again() {
    let random = |seed| Settings { exhaustive: 0, random: 500, seed, ..Settings::default() };
    let plan = plan(&[narrow()]);
    let report = plan.verify(&random(11));
    assert!(kinds(&report).contains(&"race") && report.to_string().contains("sampled, seed 11"), "{report}");
    let again = plan.verify(&random(11));
    assert_eq!(report, again);
    assert!(report.schedules > 1, "the first schedule shows it: nothing is shown here");
}

#[test]
fn a_budget_that_is_not_enough_is_said() {
    let settings = Settings { exhaustive: 3, random: 2, ..Settings::default() };
    let s = Shared::new();
    let one = |mine: i64, other: i64| {
        s.rank(move |r, _, slots, _| {
            for step in 1..=3 {
                r.signal(slots.slot(0, mine), step);
                r.if_(r.test(slots.slot(0, other), step), || {});
            }
            r.wait(slots.slot(0, other), 3);
        })
    };
    let report = check_with(&[vec![one(0, 1), one(1, 0)]], &Settings { cumulative: true, ..settings });
    assert!(report.is_clean(), "{report}");
    assert!(matches!(report.certainty, Certainty::Sampled { exhausted: false, seed: 1, .. }), "{report}");
    assert_eq!(report.schedules, 1 + 3 + 2);
}
