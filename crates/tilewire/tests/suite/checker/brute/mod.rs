//! The checker against all interleavings of small random programs.
//!
//! If the checker says *decided*, or *sampled* with every schedule run, it must report the same as all interleavings.
//! If it ran some schedules only, every fault that it reports must be a fault of some interleaving. `TILEWIRE_CASES`
//! and `TILEWIRE_SEED` set the number of programs and their seed.
//!
//! The comparison covers races, deadlocks, slots with two writers, slots and flags that do not grow, and inputs and
//! outputs that a peer writes. If bytes that decide which party continues (slots, packets) have such a fault, the rest
//! of the run depends on the schedule. Then both sides must find *some* fault. Faults of other kinds (a signal that
//! nobody takes, a credit ahead of its data) are not compared, and the schedules that would have come after them are
//! left out.
//!
//! | file | holds |
//! |---|---|
//! | `program.rs` | small programs, also as kernels |
//! | `generate.rs` | random ones |
//! | `events.rs` | their accesses, and which of them conflict |
//! | `interleave.rs` | all interleavings, and what they show |
//! | `steps.rs` | what each step changes, and who knows what |
//! | `posted.rs` | what happens to posts |

mod events;
mod found;
mod generate;
mod interleave;
mod posted;
mod program;
mod steps;

pub use generate::{Features, program};
pub use interleave::{Reads, Shown, all_interleavings};
pub use program::{Place, Program, Small};

use crate::checker::kinds;
use tilewire::check::{Certainty, Report, Settings};
use tilewire::ir::{NoticeKind, Order};
use tilewire_testkit::random::Random;

/// Programs with more states than this are skipped.
pub const MOST_STATES: usize = 20_000;

/// The number of random programs: `TILEWIRE_CASES`, or as many as CI has time for.
pub fn cases(short: u64) -> u64 {
    std::env::var("TILEWIRE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(short)
}

/// The numbers of random programs: consecutive ones from a place that `TILEWIRE_SEED` sets. Two seeds have no program
/// in common.
pub fn numbers(short: u64) -> std::ops::Range<u64> {
    let seed: u64 = std::env::var("TILEWIRE_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let first = seed << 40;
    first..first + cases(short)
}

#[derive(Default, Debug)]
struct Count {
    programs: u64,
    refused: u64,
    skipped: u64,
    decided: u64,
    exhausted: u64,
    sampled: u64,
    race: u64,
    deadlock: u64,
    writers: u64,
    shrinks: u64,
    promise: u64,
    stricter: u64,
    /// The number of programs that are wrong only if waits or tests find older values, and how many of those the
    /// checker calls clean (sampled).
    older: u64,
    older_missed: u64,
    clean: u64,
    decided_clean: u64,
    exhausted_clean: u64,
    sampled_clean: u64,
}

/// The kinds of faults that are compared, with the results of all interleavings.
fn said(report: &Report) -> Shown {
    let all = kinds(report);
    for kind in &all {
        let known = ["race", "deadlock", "no-producer", "two-writers", "not-growing", "stale-flag"];
        let others = ["written-during-launch", "leftover", "over-credit", "untaken"];
        assert!(known.contains(kind) || others.contains(kind), "{report}");
    }
    let has = |kind| all.contains(&kind);
    Shown {
        race: has("race"),
        deadlock: has("deadlock"),
        writers: has("two-writers"),
        shrinks: has("not-growing") || has("stale-flag"),
        promise: has("written-during-launch"),
        ..Shown::default()
    }
}

/// The reason why the checker's report is wrong, if it is. It must find a fault if `must` has one, and no fault that
/// `may` does not have.
fn disagreement(program: &Program, report: &Report, must: &Shown, may: &Shown) -> Option<String> {
    let said = said(report);
    // The comparison is stricter where it can be.
    if may.stricter && !may.race && said.race {
        return None;
    }
    let all = report.is_decided() || matches!(report.certainty, Certainty::Sampled { exhausted: true, .. });
    if said.is_clean() && !must.is_clean() && all {
        return Some("the checker says that nothing is wrong".into());
    }
    if may.is_clean() && !said.is_clean() {
        return Some("the checker found what does not happen".into());
    }
    let pairs = [
        ("race", said.race, must.race, may.race),
        ("deadlock", said.deadlock, must.deadlock, may.deadlock),
        ("two writers", said.writers, must.writers, may.writers),
        ("not growing", said.shrinks, must.shrinks, may.shrinks),
        ("promise", said.promise, must.promise, may.promise),
    ];
    if may.control || may.writers || may.shrinks {
        return None;
    }
    // Faults with one copy that have the same lines as faults with all copies are not reported again, and all ops of
    // these programs have the same lines. A write of promised memory is a race if nothing orders it.
    let exact = report.is_decided() && !may.promise && program.copies() == 1;
    let wrong = |(_, said, must, may): &&(&str, bool, bool, bool)| *said && !may || exact && *must && !said;
    pairs.iter().find(wrong).map(|(name, said, must, _)| format!("{name}: said {said}, shown {must}"))
}

/// True if all order comes from signals that publish, and slots grow and have one writer. Then races can be judged by
/// meeting.
fn meets_are_races(program: &Program) -> bool {
    program.ops().all(|op| match op {
        Small::Plain(touch) => !matches!(touch.at, Place::Slot(_)),
        Small::Wait { .. } | Small::Test { .. } => true,
        Small::Signal { credit, .. } => !credit,
        Small::Post { .. } => false,
        Small::Add { at, order, then, .. } => {
            *order == Order::Relaxed && then.is_none() && !matches!(at, Place::Slot(_))
        }
        Small::Packets { .. } => false,
    }) && program.tensor.is_none()
}

fn compare(seeds: std::ops::Range<u64>, features: impl Fn(&mut Random) -> Features) -> Count {
    let (mut count, mut wrong) = (Count::default(), Vec::new());
    for seed in seeds {
        let mut random = Random::of_case(seed);
        let features = features(&mut random);
        let program = program(&mut random, features);
        count.programs += 1;
        let Ok(launch) = program.trace() else {
            count.refused += 1;
            continue;
        };
        let settings =
            Settings { cumulative: true, across_launches: true, exhaustive: 400, random: 20, ..Settings::default() };
        let report = launch.plan().verify(&settings);
        // A decided report holds for real machines. For other reports, interleavings are run.
        let reads = [Reads::Latest, Reads::AnyNotHidden].map(|reads| all_interleavings(&program, reads, MOST_STATES));
        let [Some(latest), Some(any)] = reads else {
            count.skipped += 1;
            continue;
        };
        let lemma = latest.met == latest.race || latest.writers || latest.shrinks || !meets_are_races(&program);
        assert!(lemma, "seed {seed}: {program}\n{latest:?}");
        assert!(any.is_clean() <= latest.is_clean(), "seed {seed}: {program}\n{latest:?}\n{any:?}");
        let must = if report.is_decided() { any } else { latest };
        if let Some(why) = disagreement(&program, &report, &must, &any) {
            wrong.push(format!("seed {seed}: {why}\n{program}\n{latest:?}\n{any:?}\n{report}"));
        }
        let found = !said(&report).is_clean();
        count.stricter += u64::from(any.is_clean() && any.stricter && found);
        count.older += u64::from(latest.is_clean() && !any.is_clean());
        count.older_missed += u64::from(latest.is_clean() && !any.is_clean() && !found);
        count.add(&report, &must);
    }
    println!("{count:?}");
    wrong.sort_by_key(String::len);
    assert!(
        wrong.is_empty(),
        "{} disagreements, the shortest:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(5)].join("\n")
    );
    count
}

impl Count {
    fn add(&mut self, report: &Report, shown: &Shown) {
        let (clean, exhausted) =
            (u64::from(shown.is_clean()), matches!(report.certainty, Certainty::Sampled { exhausted: true, .. }));
        let (kind, kind_clean) = match (report.is_decided(), exhausted) {
            (true, _) => (&mut self.decided, &mut self.decided_clean),
            (_, true) => (&mut self.exhausted, &mut self.exhausted_clean),
            _ => (&mut self.sampled, &mut self.sampled_clean),
        };
        *kind += 1;
        *kind_clean += clean;
        self.clean += clean;
        self.race += u64::from(shown.race);
        self.deadlock += u64::from(shown.deadlock);
        self.writers += u64::from(shown.writers);
        self.shrinks += u64::from(shown.shrinks);
        self.promise += u64::from(shown.promise);
    }
}

#[test]
fn the_checker_says_what_all_interleavings_say() {
    let count = compare(numbers(6000), Features::random);
    let enough = [count.decided_clean, count.exhausted_clean, count.race, count.deadlock, count.writers, count.promise];
    assert!(enough.iter().all(|&n| n > 10) && count.skipped * 5 < count.programs, "{count:?}");
}

/// Several parties signal one slot. They are ordered by credits, by proxies and by signals to each other.
#[test]
fn the_checker_says_what_all_interleavings_say_of_relays() {
    let features = |random: &mut Random| Features {
        relays: true,
        credits: !random.once_in(4),
        several: !random.once_in(4),
        posts: random.once_in(3),
        data: random.once_in(2),
        packets: random.once_in(6),
        ..Features::default()
    };
    let count = compare(numbers(2000), features);
    let enough = [count.decided_clean, count.race, count.deadlock, count.writers];
    assert!(enough.iter().all(|&n| n > 10) && count.skipped * 5 < count.programs, "{count:?}");
}

/// Words and notices travel through the network.
#[test]
fn the_checker_says_what_all_interleavings_say_of_posts() {
    let features = |random: &mut Random| Features {
        posts: true,
        data: !random.once_in(8),
        credits: !random.once_in(3),
        several: random.once_in(4),
        relays: random.once_in(8),
        atomics: random.once_in(6),
        packets: random.once_in(8),
        ..Features::default()
    };
    let count = compare(numbers(2000), features);
    let enough = [count.decided_clean, count.race, count.deadlock, count.writers];
    assert!(enough.iter().all(|&n| n > 10) && count.skipped * 5 < count.programs, "{count:?}");
}

/// A role posts after another role of its rank, or after itself. A credit shows it that the first post is over.
#[test]
fn the_checker_says_what_all_interleavings_say_of_posts_of_two_roles() {
    use program::{Cut, Party, Place, Span, Told, Touch};
    let party = |rank, role, ops| Party { rank, block: 0, role, copy: 0, ops };
    let word = |at, write| Small::Plain(Touch { at: Place::Word(at), write });
    let told = |slot| Some(Told { slot, value: 1, kind: NoticeKind::Data });
    let wait = |slot| Small::Wait { slot, value: 1 };
    let span = Some(Span { from: 0, to: 1, cut: Cut::Whole });
    // A signal covers a post of its own role that is over, and none of another role. Bytes come after either.
    for (same_role, again, is_clean) in
        [(true, None, true), (false, None, false), (true, span, true), (false, span, true)]
    {
        let (mut first, mut second) =
            (vec![word(0, Some(1)), Small::Post { peer: 1, span, notice: told(0) }], Vec::new());
        let rest = [wait(1), Small::Post { peer: 1, span: again, notice: told(2) }];
        if same_role {
            first.extend(rest);
        } else {
            // The first role tells the second about its stores. Its posts have not been written by then.
            first.push(Small::Signal { slot: 3, value: 1, credit: false });
            second.extend([wait(3)].into_iter().chain(rest));
        }
        let credit = Small::Signal { slot: 1, value: 1, credit: true };
        let parties = vec![
            party(0, 0, first),
            party(0, 1, second),
            party(1, 0, vec![wait(0), credit]),
            party(1, 1, vec![wait(2), word(1, None)]),
        ];
        let program = Program { parties, tensor: None };
        let settings =
            Settings { cumulative: true, across_launches: true, exhaustive: 400, random: 20, ..Settings::default() };
        let report = program.trace().unwrap().plan().verify(&settings);
        let any = all_interleavings(&program, Reads::AnyNotHidden, MOST_STATES).unwrap();
        assert!(report.is_decided(), "{report}");
        assert_eq!((any.is_clean(), report.is_clean()), (is_clean, is_clean), "{program}\n{any:?}\n{report}");
        assert_eq!(disagreement(&program, &report, &any, &any), None, "{program}");
    }
}
