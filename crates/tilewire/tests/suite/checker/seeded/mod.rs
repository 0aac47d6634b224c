//! Seeded programs: small kernels whose right verdict follows from the documentation of the language alone. Their
//! author did not read the checker's algorithms, but saw its reports. These showed mistakes in some programs and led to
//! further ones.
//!
//! Bugs must be found. Correct programs, even unusual ones, must pass. A program that the checker judges wrongly is
//! listed in [`MISJUDGED`].
//!
//! | file | holds |
//! |---|---|
//! | `atomics.rs` | atomics that acquire, atomics on slots, scopes |
//! | `giving_up.rs` | loops that stop polling after some tries |
//! | `promises.rs` | inputs and outputs that somebody else writes during the launch |
//! | `hosts.rs` | tensors that a peer reaches while their host uses them |
//! | `packets.rs` | packets: order, flags, reuse |
//! | `copies.rs` | role copies that need each other |
//! | `credits.rs` | credits: too early, too many, to the wrong slot |
//! | `bulk.rs` | bulk copies |
//! | `slots.rs` | signals and waits that do not fit |
//! | `plain.rs` | plain loads and stores of shared memory |
//! | `posts.rs` | posts through a network proxy |
//! | `deliveries.rs` | posts of bytes with a notice |
//! | `reviewed.rs`, `second.rs` | what two reviews of the model found |
//! | `audited.rs` | what an audit found after that |
//! | `third.rs` | what a third review found |
//! | `correct_counters.rs` | correct, if unusual: signals and waits |
//! | `correct_credits.rs` | correct, if unusual: credits |
//! | `correct_memory.rs` | correct, if unusual: packets, atomics, bulk copies, posts, memory |

/// The programs of a file with their right verdicts.
macro_rules! seeds {
    ($($name:ident: $expect:expr,)*) => {
        pub const SEEDS: &[super::Seed] = &[$(super::Seed { name: stringify!($name), expect: $expect, program: $name }),*];
    };
}

mod atomics;
mod audited;
mod bulk;
mod copies;
mod correct_counters;
mod correct_credits;
mod correct_memory;
mod credits;
mod deliveries;
mod giving_up;
mod hosts;
mod packets;
mod plain;
mod posts;
mod promises;
mod reviewed;
mod second;
mod slots;
mod third;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use tilewire::check::{Certainty, Fault, Plan, Report, Settings};
use tilewire::hook::{Block, BuildError, Region, RoleCtx, Slots, View};
use tilewire::ir::Access;
use tilewire::{Memory, Tensor, Traced, kernel};

/// The programs that the checker judges wrongly. A program that shows a new hole is listed here until the hole is
/// mended.
const MISJUDGED: &[&str] = &[];

/// A program and its right verdict.
struct Seed {
    name: &'static str,
    expect: Expect,
    program: fn() -> Seen,
}

/// The right verdict of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expect {
    /// A fault of this kind, at the lines that the program names.
    Fault(&'static str),
    /// Some fault, at the lines that the program names.
    AnyFault,
    /// As `AnyFault`, or an error when the kernel is built.
    FaultOrRefused,
    /// The program is wrong in a schedule that a run need not meet. The report may miss the fault. But then it must not
    /// say *clean* together with *decided* or *every schedule run*.
    NotCalledSafe,
    /// No fault, decided or sampled.
    Clean,
    /// No fault, or an error when the kernel is built.
    CleanOrRefused,
    /// No fault in any schedule.
    CleanDecided,
}

impl Expect {
    fn is_bug(self) -> bool {
        !matches!(self, Expect::Clean | Expect::CleanOrRefused | Expect::CleanDecided)
    }

    /// The reason why this outcome is not the right one, or `None`.
    fn complaint(self, seen: &Seen) -> Option<String> {
        let report = match &seen.verdict {
            Ok(report) => report,
            Err(_) if matches!(self, Expect::FaultOrRefused | Expect::CleanOrRefused) => return None,
            Err(refused) => return Some(format!("refused when built: {refused}")),
        };
        let right = match self {
            Expect::Fault(kind) => {
                report.faults.iter().any(|found| found.fault.kind() == kind && seen.names(&found.fault))
            }
            Expect::AnyFault | Expect::FaultOrRefused => report.faults.iter().any(|found| seen.names(&found.fault)),
            Expect::NotCalledSafe => {
                let sure = matches!(report.certainty, Certainty::Decided | Certainty::Sampled { exhausted: true, .. });
                !(report.is_clean() && sure)
            }
            Expect::Clean | Expect::CleanOrRefused => report.is_clean(),
            Expect::CleanDecided => report.is_clean() && report.is_decided(),
        };
        let lines = if seen.lines.is_empty() { String::new() } else { format!(" at lines {:?}", seen.lines) };
        (!right).then(|| format!("the right verdict is {self:?}{lines}, the report says:\n{report}"))
    }
}

/// The checker's outcome for a program.
struct Seen {
    verdict: Result<Report, BuildError>,
    /// The lines that one fault must name, all of them.
    lines: Vec<u32>,
}

impl Seen {
    fn names(&self, fault: &Fault) -> bool {
        let named: Vec<u32> = fault.lines().iter().filter(|at| at.file.contains("seeded")).map(|at| at.line).collect();
        self.lines.iter().all(|line| named.contains(line))
    }

    fn at(self, lines: &[u32]) -> Seen {
        Seen { lines: lines.to_vec(), ..self }
    }
}

impl From<Report> for Seen {
    fn from(report: Report) -> Seen {
        Seen { verdict: Ok(report), lines: Vec::new() }
    }
}

/// The settings for these programs. A run takes fewer than a thousand steps, so a program that polls forever ends soon.
fn settings() -> Settings {
    Settings { step_limit: 20_000, ..Settings::default() }
}

/// Checks launches: `launches[l][r]` is what rank `r` launches in launch `l`.
fn check(launches: &[Vec<Traced>]) -> Seen {
    check_with(launches, &settings())
}

fn check_with(launches: &[Vec<Traced>], settings: &Settings) -> Seen {
    plan(launches).verify(settings).into()
}

fn plan(launches: &[Vec<Traced>]) -> Plan {
    let mut plan = Plan::new(launches[0].len() as u32);
    for ranks in launches {
        let ranks: Vec<_> = ranks.iter().map(|traced| (&traced.kernel, &traced.args[..])).collect();
        plan.launch(&ranks);
    }
    plan
}

/// Like [`check`], for kernels that the language may refuse.
fn check_built<const N: usize>(ranks: [Result<Traced, BuildError>; N]) -> Seen {
    match ranks.into_iter().collect::<Result<Vec<_>, _>>() {
        Ok(ranks) => check(&[ranks]),
        Err(refused) => Seen { verdict: Err(refused), lines: Vec::new() },
    }
}

/// The memory that the ranks of a program share.
struct Shared {
    bytes: Memory,
    slots: Memory,
    words: Memory,
}

/// The same memory as a kernel sees it, with an output of the rank.
#[derive(Clone, Copy)]
struct Kit<'t> {
    /// 512 bytes, for `put`, `get`, packets and bulk copies.
    bytes: Region<'t>,
    /// 16 counters.
    slots: Slots<'t>,
    /// 16 words, for plain accesses and atomics.
    words: View<'t, u64>,
    out: View<'t, u64>,
}

impl Shared {
    fn new() -> Shared {
        Shared { bytes: Memory::zeroed(512), slots: Memory::zeroed(16 * 128), words: Memory::zeroed(128) }
    }

    /// A kernel with these roles.
    fn try_kernel(&self, body: impl for<'t> Fn(&Block<'t>, Kit<'t>)) -> Result<Traced, BuildError> {
        let out = Tensor::<u64>::zeros(16);
        kernel("seeded", |k| {
            let kit = Kit {
                bytes: k.region("bytes", one(&self.bytes)),
                slots: k.slots("slots", one(&self.slots), 128),
                words: k.buffer::<u64>("words", one(&self.words), Access::InOut).bank(0),
                out: k.output(&out).named("out"),
            };
            body(k, kit);
        })
    }

    fn kernel(&self, body: impl for<'t> Fn(&Block<'t>, Kit<'t>)) -> Traced {
        self.try_kernel(body).unwrap()
    }

    /// A rank with one role in one block.
    fn rank(&self, body: impl for<'t> Fn(&RoleCtx<'t>, Kit<'t>)) -> Traced {
        self.try_rank(body).unwrap()
    }

    fn try_rank(&self, body: impl for<'t> Fn(&RoleCtx<'t>, Kit<'t>)) -> Result<Traced, BuildError> {
        self.try_kernel(|k, kit| k.main(|r| body(r, kit)))
    }
}

fn one(memory: &Memory) -> &[Memory] {
    std::slice::from_ref(memory)
}

fn seeds() -> impl Iterator<Item = &'static Seed> {
    let files: [&[Seed]; 19] = [
        atomics::SEEDS,
        audited::SEEDS,
        bulk::SEEDS,
        copies::SEEDS,
        correct_counters::SEEDS,
        correct_credits::SEEDS,
        correct_memory::SEEDS,
        credits::SEEDS,
        deliveries::SEEDS,
        giving_up::SEEDS,
        hosts::SEEDS,
        packets::SEEDS,
        plain::SEEDS,
        posts::SEEDS,
        promises::SEEDS,
        reviewed::SEEDS,
        second::SEEDS,
        slots::SEEDS,
        third::SEEDS,
    ];
    files.into_iter().flatten()
}

#[test]
fn programs_are_judged_rightly() {
    let expected: BTreeSet<&str> = MISJUDGED.iter().copied().collect();
    let (mut wrong, mut kinds) = (String::new(), BTreeSet::new());
    for Seed { name, expect, program } in seeds() {
        let begun = Instant::now();
        // A checker that panics has given no verdict.
        let complaint = match catch_unwind(AssertUnwindSafe(program)) {
            Ok(seen) => expect.complaint(&seen).or_else(|| nameless(&seen, &mut kinds)),
            Err(_) => Some("the checker panicked".to_string()),
        };
        let complaint =
            complaint.or_else(|| (begun.elapsed() > SLOW).then(|| format!("it took {:?}", begun.elapsed())));
        match (complaint, expected.contains(name)) {
            (Some(complaint), false) => wrong += &format!("\n{name}: {complaint}\n"),
            (None, true) => wrong += &format!("\n{name} is judged rightly: remove it from MISJUDGED\n"),
            _ => {}
        }
    }
    let names: BTreeSet<&str> = seeds().map(|seed| seed.name).collect();
    for name in expected.difference(&names) {
        wrong += &format!("\nMISJUDGED has {name}, and there is no such program\n");
    }
    assert!(wrong.is_empty(), "{wrong}");
    // Faults of other kinds (devices, copy engines, bounds, outputs that nobody wrote) have separate tests.
    let met = ["deadlock", "error", "leftover", "no-producer", "not-growing", "other-operation", "over-credit", "race"];
    let more = ["skipped", "stale-flag", "two-writers", "untaken", "unwritten", "written-during-launch", "wrong-value"];
    let missing: Vec<_> = met.iter().chain(&more).filter(|kind| !kinds.contains(*kind)).collect();
    assert!(missing.is_empty(), "no program has these faults: {missing:?}");
}

/// Every fault names a line of a party that takes part. Collects the kinds of faults.
fn nameless(seen: &Seen, kinds: &mut BTreeSet<&'static str>) -> Option<String> {
    let faults = || seen.verdict.iter().flat_map(|report| &report.faults).map(|found| &found.fault);
    kinds.extend(faults().map(Fault::kind));
    faults().find(|fault| fault.lines().is_empty()).map(|fault| format!("a fault without a line:\n{fault}"))
}

/// No program has so many schedules, in a debug build on a busy machine.
const SLOW: Duration = Duration::from_secs(20);

#[test]
fn there_are_enough_programs_and_each_has_a_name_of_its_own() {
    let (bugs, correct): (Vec<_>, Vec<_>) = seeds().partition(|seed| seed.expect.is_bug());
    assert!(bugs.len() >= 44 && correct.len() >= 22, "{} bugs, {} correct programs", bugs.len(), correct.len());
    let names: BTreeSet<&str> = seeds().map(|seed| seed.name).collect();
    assert_eq!(names.len(), bugs.len() + correct.len());
    assert!(MISJUDGED.is_sorted());
}
