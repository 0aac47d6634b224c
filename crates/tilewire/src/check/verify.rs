//! The checker's entry: one run decides if it can; otherwise many schedules are run.

use super::fixed::{beyond_device, waits_without_producer};
use super::model::{Detector, Watch};
use super::report::{Certainty, Fault, Found, Namer, Report};
use super::residency::Residence;
use super::world::{Chooser, Ending, Exhaustive, Limits, Outcome, Plan, Priorities, Stage, StreamOp, ToBlock, execute};
use crate::ir::Kernel;
use crate::tensor::Arg;

/// How a plan is checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Seed of random schedules, if there are any.
    pub seed: u64,
    /// Most schedules run in turn outside the monotone fragment.
    pub exhaustive: u64,
    /// Random schedules run after that.
    pub random: u64,
    /// True if schedules that differ only by the order of commuting steps count as one; `false` is for testing that.
    pub reduces: bool,
    /// Most copies run of a role; 1 is the CPU engine's number.
    pub most_copies: u32,
    /// Worlds of up to this many ranks also run with one copy of every role, so that what holds on a GPU holds on the
    /// CPU engine.
    pub one_copy_ranks: u32,
    /// Steps after which a run is abandoned.
    pub step_limit: u64,
    /// A wait may be satisfied by a larger value than it names (counters that are signalled in batches).
    pub cumulative: bool,
    /// A signal of data may be left for a later launch to wait for; otherwise that is a fault, at the end of its
    /// launch.
    pub across_launches: bool,
    /// True if a check ends at its first fault.
    pub first_fault: bool,
    /// The device that all ranks share, if they do: a launch that it cannot hold simultaneously is a fault.
    pub device: Option<Residence>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            seed: 1,
            exhaustive: 2000,
            random: 200,
            reduces: true,
            most_copies: u32::MAX,
            one_copy_ranks: 4,
            step_limit: 200_000_000,
            cumulative: false,
            across_launches: false,
            first_fault: false,
            device: None,
        }
    }
}

impl Settings {
    /// The detector's settings, with the mistakes of a mutation.
    pub(super) fn watch(&self, mistakes: Watch) -> Watch {
        Watch { cumulative: self.cumulative, across_launches: self.across_launches, ..mistakes }
    }
}

/// Checks launches of several ranks: `launches[l][r]` is launch `l` of rank `r`. See [`Plan`] for more.
pub fn verify_world(launches: &[Vec<(&Kernel, &[Arg])>], settings: &Settings) -> Report {
    let ranks = launches.first().map_or(0, Vec::len);
    let mut plan = Plan::new(ranks as u32);
    launches.iter().for_each(|ranks| _ = plan.launch(ranks));
    plan.verify(settings)
}

impl Plan {
    /// Checks the plan: see the head of [`crate::check`] for what that means.
    pub fn verify(&self, settings: &Settings) -> Report {
        self.verify_watching(settings, &settings.watch(Watch::default()))
    }

    pub(super) fn verify_watching(&self, settings: &Settings, watch: &Watch) -> Report {
        let mut report = Report {
            ranks: self.ranks(),
            launches: self.launches() as u32,
            faults: Vec::new(),
            certainty: Certainty::Decided,
            schedules: 0,
            steps: 0,
        };
        if self.ranks() == 0 {
            return report;
        }
        let stage = match self.stage() {
            Ok(stage) => stage,
            Err(error) => {
                report.faults.push(found(Fault::Error(error)));
                return report;
            }
        };
        let namer = || Namer { plan: self, stage: &stage };
        report.faults = match settings.device.and_then(|device| beyond_device(&namer(), &device)) {
            Some(fault) => vec![found(fault)],
            None => Vec::new(),
        };
        let one_copy = Settings { most_copies: 1, ..settings.clone() };
        let also = self.most_copies().min(settings.most_copies) > 1 && self.ranks() <= settings.one_copy_ranks;
        for settings in [settings, &one_copy].into_iter().take(1 + usize::from(also)) {
            if settings.first_fault && !report.is_clean() {
                break;
            }
            let before = report.faults.len();
            Check { plan: self, stage: &stage, settings, watch, namer: namer() }.run(&mut report);
            // A fault found with all copies need not be reported again with one.
            let (first, second) = report.faults.split_at(before);
            let news = second.iter().filter(|found| !first.iter().any(|known| is_like(&known.fault, &found.fault)));
            let with_one_copy = also && settings.most_copies == 1;
            let news: Vec<Found> = news.map(|found| Found { with_one_copy, ..found.clone() }).collect();
            report.faults.truncate(before);
            report.faults.extend(news);
        }
        report
    }
}

fn is_like(a: &Fault, b: &Fault) -> bool {
    a.kind() == b.kind() && a.lines() == b.lines()
}

fn found(fault: Fault) -> Found {
    Found { fault, times: 1, prefix: Vec::new(), with_one_copy: false }
}

struct Check<'p> {
    plan: &'p Plan,
    stage: &'p Stage,
    settings: &'p Settings,
    watch: &'p Watch,
    namer: Namer<'p>,
}

impl<'p> Check<'p> {
    /// One run, and if it does not decide, more.
    fn run(&self, report: &mut Report) {
        let faults = report.faults.len();
        let first = self.execute(&mut ToBlock, report);
        let Some(why) = self.outside(&first.detector) else { return };
        let seed = self.settings.seed;
        let exhausted = self.sample(report, faults, first);
        // Another run of the same plan (with fewer copies) may have been sampled before.
        let all = exhausted && !matches!(report.certainty, Certainty::Sampled { exhausted: false, .. });
        report.certainty = Certainty::Sampled { why, seed, exhausted: all };
    }

    /// Runs more schedules until one has a fault beyond the first `faults`; returns true if they were all there are.
    fn sample(&self, report: &mut Report, faults: usize, first: Outcome<'p>) -> bool {
        let (choices, mut incomplete) = (first.choices, first.detector.incomplete.is_some());
        let begun = report.steps;
        let goes_on = |report: &Report| report.faults.len() == faults && report.steps - begun < MOST_SAMPLED_STEPS;
        let mut all = Exhaustive::new(self.settings.reduces);
        for _ in 0..self.settings.exhaustive {
            if !goes_on(report) {
                break;
            }
            incomplete |= self.execute(&mut all, report).detector.incomplete.is_some();
            if !all.advance() {
                return !incomplete && report.faults.len() == faults;
            }
        }
        for i in 0..self.settings.random {
            if !goes_on(report) {
                break;
            }
            // Depths 1 to 4: most bugs need few orderings.
            let seed = self.settings.seed.wrapping_add(i);
            self.execute(&mut Priorities::new(seed, choices.max(8), (i % 4) as usize), report);
        }
        false
    }

    fn execute(&self, chooser: &mut dyn Chooser, report: &mut Report) -> Outcome<'p> {
        let Settings { most_copies, step_limit: steps, first_fault, .. } = *self.settings;
        let limits = Limits { most_copies, steps, first_fault };
        let outcome = execute(self.plan, self.stage, self.watch.clone(), limits, chooser);
        report.schedules += 1;
        report.steps += outcome.steps;
        let seen = outcome.detector.sightings().iter().map(|sighting| self.namer.found(&outcome.detector, sighting));
        report.faults.extend(seen);
        report.faults.extend(outcome.wrong.iter().map(|wrong| found(self.namer.wrong(wrong))));
        match &outcome.ending {
            Ending::Deadlock(stuck) => {
                report.faults.extend(waits_without_producer(&self.namer, stuck).into_iter().map(found));
                report.faults.push(found(self.namer.deadlock(&outcome.detector, stuck)));
            }
            Ending::Error(error) => report.faults.push(found(Fault::Error(error.clone()))),
            _ => {}
        }
        outcome
    }

    /// Why the program is not in the monotone fragment, if it is not. Several writers of a slot, and counters that do
    /// not grow, are faults. What remains are ops whose effect on their party depends on the schedule.
    fn outside(&self, detector: &Detector<'_>) -> Option<String> {
        let streams = self.plan.launches.iter().flatten().flat_map(|job| &job.streams);
        let handshake = streams.flat_map(|stream| &stream.ops).find(|(op, _)| !matches!(op, StreamOp::Copy { .. }));
        if let Some((op, at)) = handshake {
            return Some(format!("a handshake of copy engines, {} at {at}", op.text()));
        }
        if let Some(who) = detector.slot_written_by {
            return Some(format!("{who} that writes a slot"));
        }
        let (&(launch, rank, inst), why) = detector.outside.first_key_value()?;
        Some(format!("{why} at {}", self.plan.kernel(launch, rank).line(inst)))
    }
}

/// Steps of all schedules together after which no more are begun: a few seconds.
const MOST_SAMPLED_STEPS: u64 = 20_000_000;
