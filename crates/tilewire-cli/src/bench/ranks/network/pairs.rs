//! Rounds in which all take their turn, and the ratios of two samples of one round.

use super::rival::Rival;
use crate::bench::ranks::contest::{Effort, calibrate, rounds};
use crate::bench::ranks::lockstep::Lockstep;
use crate::bench::ranks::mpi::Job;
use crate::bench::ranks::side::Side;
use anyhow::{Context, Error, Result};
use std::io::{Write, stderr};

/// One that takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entrant {
    /// One of our sides, by its protocol.
    Ours(&'static str),
    /// What ours are compared with.
    Rival(Rival),
}

/// An MPI program, or why there is none.
pub struct Guest<'m> {
    /// Its name.
    pub rival: Rival,
    /// Its name for the work.
    pub work: &'static str,
    /// The program.
    pub job: &'m mut Result<Job>,
}

/// The work, and how long it may be measured.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    /// The name in messages.
    pub name: &'static str,
    /// Messages one after the other in one step.
    pub hops: f64,
    /// Bytes of a message.
    pub bytes: usize,
    /// Time to spend.
    pub effort: Effort,
}

/// The figures of one that takes part.
#[derive(Clone, Debug)]
pub struct Score {
    /// Its name.
    pub entrant: Entrant,
    /// Nanoseconds of a message in each round.
    pub ns: Vec<Option<f64>>,
    /// Why it is not there.
    pub skipped: Option<String>,
}

impl Score {
    /// Nobody's figures yet.
    pub fn new(entrant: Entrant) -> Score {
        Score { entrant, ns: Vec::new(), skipped: None }
    }

    /// The median time of a message.
    pub fn median_ns(&self) -> Option<f64> {
        median(self.ns.iter().flatten().copied().collect())
    }

    /// The time of a rival over that of this one, in every round that has both.
    fn ratios(&self, rival: &Score) -> Vec<f64> {
        self.ns.iter().zip(&rival.ns).filter_map(|(own, other)| Some((*other)? / (*own)?)).collect()
    }

    /// How fast this one is as a share of the rival: the median of the pairs, and their number.
    pub fn share_of(&self, rival: &Score) -> (Option<f64>, usize) {
        let ratios = self.ratios(rival);
        let pairs = ratios.len();
        (median(ratios), pairs)
    }
}

fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    let (low, high) = (all.len().saturating_sub(1) / 2, all.len() / 2);
    (!all.is_empty()).then(|| (all[low] + all[high]) / 2.0)
}

/// Checks all, and measures them in turns. Rank 0 calls this while the others follow.
pub fn measure(
    lockstep: &mut Lockstep,
    (entrants, sides): (&[Entrant], &mut [Side]),
    guests: &mut [Guest],
    course: Course,
) -> Result<Vec<Score>> {
    let Course { name, hops, bytes, effort } = course;
    for k in 0..sides.len() {
        lockstep.check(sides, k).with_context(|| format!("{name} of {bytes} bytes"))?;
    }
    let warm_up = effort.warm_up_steps(bytes);
    let mut steps = Vec::new();
    for k in 0..sides.len() {
        steps.push(calibrate(effort.sample, |steps| lockstep.run(sides, k, steps))?);
    }
    for guest in guests.iter_mut() {
        let filling = |job: &mut Job, work: &str| {
            job.check(work, bytes)?;
            calibrate(effort.sample, |steps| Ok(job.run(work, bytes, warm_up, steps)?.took))
        };
        steps.push(guest.with(filling).unwrap_or(1));
    }
    let all = entrants.iter().copied().chain(guests.iter().map(|guest| Entrant::Rival(guest.rival)));
    let mut scores: Vec<Score> = all.map(Score::new).collect();
    let turns: Vec<usize> = (0..scores.len()).collect();
    rounds(effort.rounds, &turns, |k| {
        let took = match k.checked_sub(sides.len()) {
            None => {
                lockstep.run(sides, k, warm_up)?;
                Some(lockstep.run(sides, k, steps[k])?)
            }
            Some(guest) => guests[guest].with(|job, work| Ok(job.run(work, bytes, warm_up, steps[k])?.took)),
        };
        scores[k].ns.push(took.map(|took| took.as_nanos() as f64 / steps[k] as f64 / hops));
        Ok(())
    })?;
    for (guest, score) in guests.iter().zip(&mut scores[sides.len()..]) {
        score.skipped = guest.job.as_ref().err().map(|error| format!("{error:#}"));
    }
    Ok(scores)
}

impl Guest<'_> {
    /// Sends the program a request. One that fails is not asked again: its state is unknown.
    fn with<R>(&mut self, ask: impl FnOnce(&mut Job, &str) -> Result<R>) -> Option<R> {
        let answer = ask(self.job.as_mut().ok()?, self.work);
        answer
            .map_err(|error: Error| {
                _ = writeln!(stderr(), "tilewire: {} is left out from here on: {error:#}", self.rival.name());
                *self.job = Err(error);
            })
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(ns: &[Option<f64>]) -> Score {
        Score { ns: ns.to_vec(), ..Score::new(Entrant::Ours("direct")) }
    }

    #[test]
    fn ratios_are_those_of_pairs_and_not_of_medians() {
        // The machine became ten times slower after the first round.
        let ours = score(&[Some(1.0), Some(10.0), Some(12.0)]);
        let rival = score(&[Some(2.0), Some(20.0), Some(24.0)]);
        assert_eq!(ours.share_of(&rival), (Some(2.0), 3));
        assert_eq!((ours.median_ns(), rival.median_ns()), (Some(10.0), Some(20.0)));
    }

    #[test]
    fn a_round_without_one_of_both_is_no_pair() {
        let ours = score(&[Some(1.0), Some(1.0), Some(1.0)]);
        assert_eq!(ours.share_of(&score(&[Some(3.0), None, Some(5.0)])), (Some(4.0), 2));
        assert_eq!(ours.share_of(&score(&[None, None, None])), (None, 0));
        assert_eq!(ours.share_of(&Score::new(Entrant::Rival(Rival::MpiTcp))), (None, 0));
    }
}
