//! Who runs next.

use crate::check::random::Random;

/// Decides at every choice of a run.
pub trait Chooser {
    /// One of the runnable parties (they are numbered the same in every run of a plan), or `None` to give the run up.
    fn choose(&mut self, runnable: &[usize]) -> Option<usize>;

    /// The party chosen last cannot run: it waits. It will not be offered again until somebody else ran.
    fn blocked(&mut self) {}

    /// Whether a party runs only to its next signal, wait, packet or atomic, so that every order of those can be had.
    fn is_fine(&self) -> bool {
        true
    }
}

/// Everybody runs until it waits: the fewest switches. Enough where one run decides.
#[derive(Clone, Copy, Default, Debug)]
pub struct ToBlock;

impl Chooser for ToBlock {
    fn choose(&mut self, runnable: &[usize]) -> Option<usize> {
        runnable.first().copied()
    }
    fn is_fine(&self) -> bool {
        false
    }
}

/// Every schedule in turn, by running again from the start with the next choice (as loom and CHESS do). Plain accesses are
/// no choices: vector clocks judge them in whichever order they ran, which is the reduction that makes this bearable.
#[derive(Clone, Default, Debug)]
pub struct Exhaustive {
    nodes: Vec<Node>,
    depth: usize,
}

#[derive(Clone, Debug)]
struct Node {
    alternatives: Vec<usize>,
    chosen: usize,
}

impl Exhaustive {
    /// Prepares the next schedule; `false` when all have been run.
    pub fn advance(&mut self) -> bool {
        self.depth = 0;
        while let Some(node) = self.nodes.last_mut() {
            node.chosen += 1;
            if node.chosen < node.alternatives.len() {
                return true;
            }
            self.nodes.pop();
        }
        false
    }
}

impl Chooser for Exhaustive {
    fn choose(&mut self, runnable: &[usize]) -> Option<usize> {
        if self.depth == self.nodes.len() {
            self.nodes.push(Node { alternatives: runnable.to_vec(), chosen: 0 });
        }
        let node = &self.nodes[self.depth];
        self.depth += 1;
        // Past the end: the alternatives that were left all wait.
        node.alternatives.get(node.chosen).copied()
    }

    fn blocked(&mut self) {
        self.depth -= 1;
        let node = &mut self.nodes[self.depth];
        node.alternatives.remove(node.chosen);
        if node.alternatives.is_empty() {
            self.nodes.truncate(self.depth);
        }
    }
}

/// Probabilistic concurrency testing (Burckhardt, Kothari, Musuvathi, Nagarakatte 2010): random priorities, the highest that
/// can runs, and at a few random choices it becomes the lowest. Finds a bug that needs `d` orderings with probability at least
/// `1 / (n k^(d-1))` for `n` parties and `k` choices.
#[derive(Clone, Debug)]
pub struct Priorities {
    random: Random,
    priorities: Vec<u64>,
    changes: Vec<u64>,
    choices: u64,
    last: usize,
}

impl Priorities {
    /// Priorities out of a seed, for runs of about `length` choices, with `changes` places where the priority falls.
    pub fn new(seed: u64, length: u64, changes: usize) -> Priorities {
        let mut random = Random::new(seed);
        let changes = (0..changes).map(|_| random.below(length.max(1) as usize) as u64).collect();
        Priorities { random, priorities: Vec::new(), changes, choices: 0, last: 0 }
    }
}

impl Chooser for Priorities {
    fn choose(&mut self, runnable: &[usize]) -> Option<usize> {
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
