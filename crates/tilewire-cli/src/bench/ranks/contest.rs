//! Rounds of samples, all sides in turn, and their results by place.
//!
//! The order differs in every round, as in [`interleaved`](crate::bench::interleaved). A sample is: probe, warm up,
//! timed run, probe.
//!
//! A limit is the fastest of many variants, and the fastest of forty medians is mostly the luckiest: up to a tenth
//! faster than the same variant in another run. So variants qualify first, at each place. The figures are measured
//! afterwards, of those few and of all that race them.

use super::heats::MPI;
use super::lockstep::Lockstep;
use super::mpi;
use super::place::Place;
use super::side::{Aim, Limit, Part, Side};
use crate::bench::interleaved::order;
use anyhow::{Context, Result};
use std::io::{Write, stderr};
use std::time::{Duration, Instant};

/// Messages before a sample: at least one, and not too many small ones.
const MOST_WARM_UP: u64 = 256;

/// How much time to spend on one contest.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The least length of a sample: short, since the processors move.
    pub sample: Duration,
    /// Bytes before a sample. For figures they restore a side's state of the caches: its sent and received data, and
    /// all slots of the largest ring several times.
    pub warm_up: u64,
    /// Rounds to find the fastest variants of each limit.
    pub trials: Rounds,
    /// Rounds for the figures.
    pub rounds: Rounds,
    /// Samples needed for a median.
    pub least: usize,
}

/// How often all sides of a contest take their turn.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// Samples of each side, and the number that suffices when time is up.
    pub most: usize,
    pub least: usize,
    /// The time.
    pub time: Duration,
}

impl Effort {
    /// For figures.
    pub const FULL: Effort = Effort {
        sample: Duration::from_millis(1),
        warm_up: 32 << 20,
        trials: Rounds { most: 15, least: 7, time: Duration::from_secs(5) },
        rounds: Rounds { most: 41, least: 15, time: Duration::from_secs(8) },
        least: 3,
    };
    /// The effort of tests, which only check that contests work.
    pub const QUICK: Effort = Effort {
        sample: Duration::from_micros(100),
        warm_up: 2 << 20,
        trials: Rounds { most: 2, least: 1, time: Duration::from_millis(300) },
        rounds: Rounds { most: 5, least: 2, time: Duration::from_secs(1) },
        least: 1,
    };

    /// Messages of `bytes` bytes before a sample.
    pub fn warm_up_steps(&self, bytes: usize) -> u64 {
        (self.warm_up / bytes.max(1) as u64).clamp(1, MOST_WARM_UP)
    }
}

/// A side that is another program: it times and probes itself.
pub struct Guest<'m> {
    /// The name in reports.
    pub name: &'static str,
    /// Its name for the work.
    pub work: &'static str,
    /// The limit it races.
    pub against: Limit,
    /// The program.
    pub job: &'m mut mpi::Job,
}

impl Guest<'_> {
    /// Sends the program a request. One that fails is not asked again, since its state is unknown, and the others
    /// continue.
    fn with<R>(&mut self, ask: impl FnOnce(&mut mpi::Job, &str) -> Result<R>) -> Option<R> {
        if self.job.has_failed {
            return None;
        }
        let answer = ask(self.job, self.work);
        if let Err(error) = &answer {
            self.job.has_failed = true;
            _ = writeln!(stderr(), "tilewire: {} is left out from here on: {error:#}", self.name);
        }
        answer.ok()
    }
}

/// The measurements of one side.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The side's name.
    pub name: String,
    /// Its part in the contest.
    pub part: Part,
    /// Nanoseconds per message, by place, sorted.
    samples: [Vec<f64>; 4],
}

impl Outcome {
    /// A side without measurements.
    pub fn new(name: String, part: Part) -> Outcome {
        Outcome { name, part, samples: Default::default() }
    }

    /// Adds a sample.
    pub fn add(&mut self, place: Place, ns: f64) {
        let samples = &mut self.samples[place as usize];
        samples.insert(samples.partition_point(|&other| other < ns), ns);
    }

    /// The median at a place, if there are at least `least` samples.
    pub fn median_ns(&self, place: Place, least: usize) -> Option<f64> {
        let samples = &self.samples[place as usize];
        let (low, high) = (samples.len().saturating_sub(1) / 2, samples.len() / 2);
        (samples.len() >= least.max(1)).then(|| (samples[low] + samples[high]) / 2.0)
    }

    /// Number of samples at a place.
    pub fn count(&self, place: Place) -> usize {
        self.samples[place as usize].len()
    }

    /// True if it is a variant of a limit.
    pub fn is(&self, limit: Limit) -> bool {
        self.part == Part::Limit(limit)
    }
}

/// The fastest variant of a limit at a place, and its median.
pub fn best(outcomes: &[Outcome], limit: Limit, place: Place, least: usize) -> Option<(&Outcome, f64)> {
    let variants = outcomes.iter().filter(|outcome| outcome.is(limit));
    let medians = variants.filter_map(|outcome| Some((outcome, outcome.median_ns(place, least)?)));
    medians.min_by(|a, b| a.1.total_cmp(&b.1))
}

/// The work, and how long it may be measured.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    /// The name in messages.
    pub what: &'static str,
    /// Messages one after the other in one step.
    pub hops: f64,
    /// True if there are more ranks than cores.
    pub crowded: bool,
    /// Bytes of a message.
    pub bytes: usize,
    /// Time to spend.
    pub effort: Effort,
}

/// Checks and measures all sides. Rank 0 calls this while the others follow.
pub fn measure(
    lockstep: &mut Lockstep,
    sides: &mut [Side],
    guests: &mut [Guest],
    course: Course,
) -> Result<Vec<Outcome>> {
    let Course { what, hops, crowded, bytes, effort } = course;
    for k in 0..sides.len() {
        lockstep.check(sides, k).with_context(|| format!("{what} of {bytes} bytes"))?;
    }
    for guest in guests.iter_mut() {
        guest.with(|job, work| job.check(work, bytes));
    }
    let warm_up = effort.warm_up_steps(bytes);
    let mut steps = Vec::new();
    for k in 0..sides.len() {
        steps.push(calibrate(effort.sample, |steps| lockstep.run(sides, k, steps))?);
    }
    for guest in guests.iter_mut() {
        let filling = |job: &mut mpi::Job, work: &str| {
            calibrate(effort.sample, |steps| Ok(job.run(work, bytes, warm_up, steps)?.took))
        };
        steps.push(guest.with(filling).unwrap_or(1));
    }
    let mut outcomes: Vec<Outcome> =
        sides.iter().map(|side| Outcome::new(side.name.clone(), side.part.clone())).collect();
    outcomes.extend(guests.iter().map(|guest| {
        Outcome::new(guest.name.into(), Part::Racer { against: guest.against, aim: Aim::None, protocol: MPI })
    }));
    let mut take = |k: usize| -> Result<Option<(Place, f64)>> {
        let (place, took) = match k.checked_sub(sides.len()) {
            None => sample(lockstep, sides, k, warm_up, steps[k])?,
            Some(guest) => match guests[guest].with(|job, work| job.run(work, bytes, warm_up, steps[k])) {
                Some(answer) => (Place::agreed(answer.probes_ns.0, answer.probes_ns.1), answer.took),
                None => return Ok(None),
            },
        };
        let place = if crowded { Some(Place::Crowded) } else { place };
        Ok(place.map(|place| (place, took.as_nanos() as f64 / steps[k] as f64 / hops)))
    };
    let nothing = outcomes.clone();
    for _ in 0..ATTEMPTS {
        let mut trials = nothing.clone();
        let variants: Vec<usize> = (0..trials.len()).filter(|&k| must_qualify(&trials, k)).collect();
        rounds(effort.trials, &variants, |k| {
            take(k)?.into_iter().for_each(|(place, ns)| trials[k].add(place, ns));
            Ok(())
        })?;
        let may_race = |k: usize, place| !variants.contains(&k) || qualifies(&trials, k, place, effort.least);
        let racing: Vec<usize> =
            (0..nothing.len()).filter(|&k| Place::EVERY.iter().any(|&place| may_race(k, place))).collect();
        outcomes.clone_from(&nothing);
        rounds(effort.rounds, &racing, |k| {
            // If no variant qualified at a place, there is no limit rather than a slow one.
            let counts = take(k)?.filter(|&(place, _)| may_race(k, place));
            counts.into_iter().for_each(|(place, ns)| outcomes[k].add(place, ns));
            Ok(())
        })?;
        if Place::EVERY.iter().any(|&place| is_decided(&outcomes, place, effort.least)) {
            break;
        }
    }
    Ok(outcomes)
}

/// How often a contest is repeated if its ranks were moved after the variants had qualified.
const ATTEMPTS: usize = 3;

/// True if all of ours can be compared with their limits at a place. A guest may have failed.
fn is_decided(outcomes: &[Outcome], place: Place, least: usize) -> bool {
    outcomes.iter().all(|outcome| match outcome.part {
        Part::Limit(_) | Part::Racer { protocol: MPI, .. } => true,
        Part::Racer { against, .. } => {
            outcome.median_ns(place, least).is_some() && best(outcomes, against, place, least).is_some()
        }
    })
}

/// All sides in turn, as often as there is time for.
pub fn rounds(rounds: Rounds, sides: &[usize], mut take: impl FnMut(usize) -> Result<()>) -> Result<()> {
    let start = Instant::now();
    for round in 0..rounds.most {
        if round >= rounds.least && start.elapsed() > rounds.time {
            break;
        }
        order(round, sides.len()).into_iter().try_for_each(|k| take(sides[k]))?;
    }
    Ok(())
}

/// Number of variants of a limit that qualify at each place.
const QUALIFY: usize = 2;

/// True if a side is one of more variants than can qualify.
fn must_qualify(outcomes: &[Outcome], k: usize) -> bool {
    let variants = |limit| outcomes.iter().filter(|outcome| outcome.is(limit)).count();
    matches!(outcomes[k].part, Part::Limit(limit) if variants(limit) > QUALIFY)
}

/// True if a variant of a limit was among the fastest at a place where (nearly) all were measured: the fastest of a few
/// that happened to be there is no limit.
fn qualifies(trials: &[Outcome], k: usize, place: Place, least: usize) -> bool {
    let Some(own) = trials[k].median_ns(place, least) else { return false };
    let variants: Vec<&Outcome> = trials.iter().filter(|other| other.part == trials[k].part).collect();
    let medians: Vec<f64> = variants.iter().filter_map(|other| other.median_ns(place, least)).collect();
    10 * medians.len() >= 9 * variants.len() && medians.iter().filter(|&&ns| ns < own).count() < QUALIFY
}

fn sample(
    lockstep: &mut Lockstep,
    sides: &mut [Side],
    k: usize,
    warm_up: u64,
    steps: u64,
) -> Result<(Option<Place>, Duration)> {
    let before = lockstep.probe()?;
    lockstep.run(sides, k, warm_up)?;
    let took = lockstep.run(sides, k, steps)?;
    let after = lockstep.probe()?;
    Ok((Place::agreed(before, after), took))
}

/// Number of steps that fill a sample.
pub fn calibrate(sample: Duration, mut run: impl FnMut(u64) -> Result<Duration>) -> Result<u64> {
    let mut steps = 1;
    loop {
        let took = run(steps)?;
        // A step that takes no time at all is not run forever.
        if took >= sample / 2 || steps >= 1 << 24 {
            let scale = sample.as_secs_f64() / took.as_secs_f64().max(1e-9);
            let filling = (steps as f64 * scale).ceil() as u64;
            return Ok(filling.clamp(1, 2 * steps));
        }
        steps *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &str, limit: Limit, near: &[f64]) -> Outcome {
        let mut outcome = Outcome::new(name.into(), Part::Limit(limit));
        near.iter().for_each(|&ns| outcome.add(Place::Near, ns));
        outcome
    }

    #[test]
    fn medians_are_taken_by_place() {
        let mut ring = outcome("ring", Limit::TwoCopy, &[3.0, 1.0, 2.0]);
        ring.add(Place::Far, 40.0);
        ring.add(Place::Far, 20.0);
        assert_eq!((ring.median_ns(Place::Near, 3), ring.count(Place::Near)), (Some(2.0), 3));
        assert_eq!(ring.median_ns(Place::Near, 4), None);
        assert_eq!(ring.median_ns(Place::Far, 1), Some(30.0));
        assert_eq!(ring.median_ns(Place::Smt, 0), None);
    }

    #[test]
    fn the_limit_is_its_fastest_variant() {
        let all = [
            outcome("slow", Limit::TwoCopy, &[9.0]),
            outcome("fast", Limit::TwoCopy, &[5.0]),
            outcome("other", Limit::OneCopy, &[1.0]),
        ];
        assert_eq!(
            best(&all, Limit::TwoCopy, Place::Near, 1).map(|(one, ns)| (one.name.as_str(), ns)),
            Some(("fast", 5.0))
        );
        assert!(best(&all, Limit::TwoCopy, Place::Far, 1).is_none());
    }

    #[test]
    fn the_fastest_variants_qualify_where_they_are_the_fastest() {
        let mut all: Vec<Outcome> =
            [7.0, 5.0, 6.0].map(|ns| outcome("ring", Limit::TwoCopy, &[ns, ns])).into_iter().collect();
        all[0].add(Place::Far, 1.0);
        assert!(!qualifies(&all, 0, Place::Far, 1), "nobody else was there");
        [1, 2].into_iter().for_each(|k| all[k].add(Place::Far, 1.0 + k as f64));
        all.push(outcome("copy", Limit::OneCopy, &[1.0]));
        assert_eq!([0, 1, 2, 3].map(|k| must_qualify(&all, k)), [true, true, true, false]);
        assert_eq!([0, 1, 2].map(|k| qualifies(&all, k, Place::Near, 2)), [false, true, true]);
        assert_eq!([0, 1, 2].map(|k| qualifies(&all, k, Place::Far, 1)), [true, true, false]);
        assert!(!qualifies(&all, 0, Place::Far, 2), "one sample is too few here");
        assert!(!qualifies(&all, 0, Place::Smt, 1), "nothing is known of that place");
    }

    #[test]
    fn a_contest_is_decided_where_racers_and_limits_were() {
        let racer = Part::Racer { against: Limit::TwoCopy, aim: Aim::None, protocol: "staged" };
        let mut all = vec![outcome("ring", Limit::TwoCopy, &[5.0]), Outcome::new("ours".into(), racer)];
        assert!(!is_decided(&all, Place::Near, 1));
        all[1].add(Place::Far, 5.0);
        assert!(Place::EVERY.iter().all(|&place| !is_decided(&all, place, 1)));
        all[1].add(Place::Near, 5.0);
        assert!(is_decided(&all, Place::Near, 1) && !is_decided(&all, Place::Near, 2));
        let guest = Part::Racer { against: Limit::TwoCopy, aim: Aim::None, protocol: MPI };
        all.push(Outcome::new("a guest that failed".into(), guest));
        assert!(is_decided(&all, Place::Near, 1));
    }

    #[test]
    fn every_side_has_its_turn_in_every_round() {
        let (mut turns, never) = (Vec::new(), Duration::ZERO);
        let thrice = Rounds { most: 9, least: 3, time: never };
        let note = |k| {
            turns.push(k);
            Ok(())
        };
        rounds(thrice, &[4, 7, 9], note).unwrap();
        assert_eq!(turns.len(), 9);
        turns.chunks_mut(3).for_each(|round| {
            round.sort();
            assert_eq!(round, [4, 7, 9]);
        });
        rounds(thrice, &[], |_| unreachable!("nobody is there")).unwrap();
    }

    #[test]
    fn calibration_fills_a_sample() {
        let per_step = Duration::from_micros(3);
        let steps = calibrate(Duration::from_micros(300), |steps| Ok(per_step * steps as u32)).unwrap();
        assert!((50..=150).contains(&steps), "{steps}");
    }
}
