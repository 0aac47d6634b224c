//! The choice of the next party to run.

use super::footprint::Footprint;
use crate::check::random::Random;

/// Decides at every choice of a run.
pub trait Chooser {
    /// One of the runnable parties (numbered the same in every run of a plan), or `None` to abandon the run. `touches`
    /// returns the footprint of each one's next step.
    fn choose(&mut self, runnable: &[usize], touches: &dyn Fn(usize) -> Footprint) -> Option<usize>;

    /// The party chosen last cannot run: it waits. It will not be offered again until another one has run.
    fn blocked(&mut self) {}

    /// True if a party runs only to its next signal, wait, packet or atomic, so that every order of those is possible.
    fn is_fine(&self) -> bool {
        true
    }
}

/// Everybody runs until it waits: the fewest switches. Enough if one run decides.
#[derive(Clone, Copy, Default, Debug)]
pub struct ToBlock;

impl Chooser for ToBlock {
    fn choose(&mut self, runnable: &[usize], _: &dyn Fn(usize) -> Footprint) -> Option<usize> {
        runnable.first().copied()
    }
    fn is_fine(&self) -> bool {
        false
    }
}

/// Probabilistic concurrency testing (Burckhardt, Kothari, Musuvathi, Nagarakatte 2010): random priorities. The
/// runnable party with the highest priority runs, and at a few random choices its priority becomes the lowest. Finds a
/// bug that needs `d` orderings with probability at least `1 / (n k^(d-1))` for `n` parties and `k` choices.
#[derive(Clone, Debug)]
pub struct Priorities {
    random: Random,
    priorities: Vec<u64>,
    changes: Vec<u64>,
    choices: u64,
    last: usize,
}

impl Priorities {
    /// Priorities from a seed, for runs of about `length` choices, with `changes` points where the priority falls.
    pub fn new(seed: u64, length: u64, changes: usize) -> Priorities {
        let mut random = Random::new(seed);
        let changes = (0..changes).map(|_| random.below(length.max(1) as usize) as u64).collect();
        Priorities { random, priorities: Vec::new(), changes, choices: 0, last: 0 }
    }
}

impl Chooser for Priorities {
    fn choose(&mut self, runnable: &[usize], _: &dyn Fn(usize) -> Footprint) -> Option<usize> {
        let most = runnable.iter().max().map_or(0, |&most| most + 1);
        while self.priorities.len() < most {
            // The low numbers are for those that fell.
            self.priorities.push(self.random.next() | 1 << 63);
        }
        if self.changes.contains(&self.choices) && self.last < self.priorities.len() {
            self.priorities[self.last] = u64::MAX / 2 - self.choices;
        }
        self.choices += 1;
        let next = runnable.iter().copied().max_by_key(|&party| self.priorities[party])?;
        self.last = next;
        Some(next)
    }
}
