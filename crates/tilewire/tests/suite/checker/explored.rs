//! Outside of the monotone fragment: the schedules that are run show what all interleavings show, and are fewer.

use crate::checker::brute::{Random, SLOTS, Shown, Small, WORDS, all_interleavings, trace};
use crate::checker::litmus::Shared;
use crate::checker::{check_with, kinds, plan};
use tilewire::check::{Certainty, Report, Settings};

/// Everything, however long it takes.
const ALL: u64 = 1_000_000;

/// A program of so many parties and ops each, with tests. Party p signals slot p, by 1, 2, …; with `several`, sometimes the slot of another.
/// At the end parties wait for each other's last signals, so that nothing is left over.
fn program(random: &mut Random, parties: usize, ops: usize, several: bool) -> Vec<Vec<Small>> {
    let mut all = Vec::new();
    let mut lasts = vec![0; parties];
    for party in 0..parties as i64 {
        let (mut body, mut next) = (Vec::new(), 1);
        for _ in 0..ops {
            let other = (party + 1 + random.below(parties as u64 - 1)) % parties as i64;
            let word = random.below(WORDS as u64);
            body.push(match random.below(8) {
                0 => Small::Load(word),
                1 => Small::Store(word),
                2 | 3 => Small::LoadIf { slot: other, value: 1 + random.below(2), there: true, word },
                4 => Small::StoreIf { slot: other, value: 1 + random.below(2), there: random.below(2) == 0, word },
                5 => Small::Wait(other, 1),
                6 if several => Small::Signal(other, 2 + random.below(3)),
                _ => {
                    next += 1;
                    Small::Signal(party, next - 1)
                }
            });
        }
        body.push(Small::Signal(party, next));
        all.push(body);
    }
    for op in all.iter().flatten() {
        if let Small::Signal(slot, value) = *op {
            lasts[slot as usize] = value.max(lasts[slot as usize]);
        }
    }
    // Few waits: every one of them multiplies the interleavings.
    all[0].extend((1..parties).map(|other| Small::Wait(other as i64, lasts[other])));
    all[1].push(Small::Wait(0, lasts[0]));
    all
}

fn explored(kernels: &[tilewire::Traced], reduces: bool) -> Report {
    let settings = Settings { exhaustive: ALL, random: 0, reduces, cumulative: true, ..Settings::default() };
    check_with(&[kernels.to_vec()], &settings)
}

#[derive(Default, Debug)]
struct Count {
    programs: u64,
    outside: u64,
    clean: u64,
    full: u64,
    reduced: u64,
    interleavings: u64,
}

fn compare(several: bool, seeds: std::ops::Range<u64>) -> Count {
    let mut count = Count::default();
    for seed in seeds {
        let mut random = Random(seed);
        let (parties, ops) = if seed.is_multiple_of(4) { (3, 1) } else { (2, 3) };
        assert!(parties <= SLOTS);
        let program = program(&mut random, parties, ops, several);
        let kernels = trace(&program);
        let (shown, interleavings) = all_interleavings(&kernels);
        let (reduced, full) = (explored(&kernels, true), explored(&kernels, false));
        for report in [&reduced, &full] {
            let said = kinds(report);
            assert_eq!(said.is_empty(), shown == Shown::default(), "seed {seed}: {program:?}\n{shown:?}\n{report}");
            assert!(shown.race || !said.contains(&"race"), "seed {seed}: {program:?}\n{report}");
            assert!(shown.deadlock || !said.contains(&"deadlock"), "seed {seed}: {program:?}\n{report}");
        }
        count.programs += 1;
        count.outside += u64::from(!reduced.is_decided());
        if reduced.is_clean() && !reduced.is_decided() {
            assert!(matches!(reduced.certainty, Certainty::Sampled { exhausted: true, .. }), "{reduced}");
            assert!(reduced.schedules <= full.schedules, "seed {seed}: {program:?}");
            count.clean += 1;
            count.full += full.schedules;
            count.reduced += reduced.schedules;
            count.interleavings += interleavings;
        }
    }
    count
}

#[test]
fn programs_with_tests_are_judged_as_all_interleavings_judge_them() {
    let count = compare(false, 0..200);
    println!("{count:?}");
    assert!(count.outside > 50 && count.clean > 10, "{count:?}");
    // Where a party begins and ends is a choice, too, so without reduction there are more schedules than interleavings of ops.
    assert!(count.reduced * 10 < count.full && count.reduced * 2 < count.interleavings, "{count:?}");
}

#[test]
fn programs_with_several_writers_are_judged_as_all_interleavings_judge_them() {
    let count = compare(true, 1000..1150);
    println!("{count:?}");
    assert!(count.clean > 5 && count.clean * 2 < count.programs, "{count:?}");
}

/// A bug that one order of eight shows: three tests must all fail, then the data is read too early.
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
