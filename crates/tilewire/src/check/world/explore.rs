//! Every schedule, up to the order of independent steps.

use super::choose::Chooser;
use super::footprint::Footprint;

/// Runs schedules in turn, by running again from the start with the next choice (as loom and CHESS do), reduced in two
/// ways:
///
/// - Plain accesses are no choices: vector clocks judge them in whichever order they ran.
/// - **Sleep sets** (Godefroid 1996). After a choice between p and q has been run with p first, the runs with q first
///   need not try p again until somebody does something that p's step depends on. Up to there p and the others commute,
///   and those runs have already been made. A run in which all runnable parties are asleep is abandoned. From every
///   class of schedules that differ by the order of independent steps at least one is run to its end, so a race, a
///   deadlock or a wrong counter of any schedule is seen in one.
#[derive(Clone, Debug)]
pub struct Exhaustive {
    nodes: Vec<Node>,
    depth: usize,
    reduces: bool,
}

#[derive(Clone, Debug)]
struct Node {
    alternatives: Vec<Choice>,
    chosen: usize,
    /// Parties that need not be tried here.
    asleep: Vec<Choice>,
}

/// A party and the footprint of its next step.
#[derive(Clone, Debug)]
struct Choice {
    party: usize,
    touches: Footprint,
}

impl Exhaustive {
    /// All schedules, or (`reduces`) at least one of every class of them.
    pub fn new(reduces: bool) -> Exhaustive {
        Exhaustive { nodes: Vec::new(), depth: 0, reduces }
    }

    /// Prepares the next schedule; `false` if all have been run.
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

    /// The parties asleep after the previous choice: those that were, and those that were tried there before, unless
    /// the step taken woke them.
    fn asleep(&self) -> Vec<Choice> {
        let Some(parent) = self.depth.checked_sub(1).filter(|_| self.reduces).map(|depth| &self.nodes[depth]) else {
            return Vec::new();
        };
        let taken = &parent.alternatives[parent.chosen];
        let tried = parent.asleep.iter().chain(&parent.alternatives[..parent.chosen]);
        tried.filter(|choice| choice.touches.is_independent(&taken.touches)).cloned().collect()
    }
}

impl Chooser for Exhaustive {
    fn choose(&mut self, runnable: &[usize], touches: &dyn Fn(usize) -> Footprint) -> Option<usize> {
        if self.depth == self.nodes.len() {
            let asleep = self.asleep();
            let awake = runnable.iter().filter(|&&party| !asleep.iter().any(|choice| choice.party == party));
            let alternatives: Vec<Choice> = awake.map(|&party| Choice { party, touches: touches(party) }).collect();
            if alternatives.is_empty() {
                return None;
            }
            self.nodes.push(Node { alternatives, chosen: 0, asleep });
        }
        let node = &self.nodes[self.depth];
        self.depth += 1;
        // Past the end: the remaining alternatives all wait.
        node.alternatives.get(node.chosen).map(|choice| choice.party)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::memory::MemoryId;

    /// Runs two parties of two steps each, all on one byte or each on its own, and counts the schedules.
    fn schedules(reduces: bool, one_byte: bool) -> (u64, u64) {
        let (mut all, mut complete, mut runs) = (Exhaustive::new(reduces), 0, 0);
        loop {
            let mut left = [2, 2];
            let touches = |party: usize| {
                let at = if one_byte { 0 } else { party as u64 };
                Footprint::Bytes { spans: vec![(MemoryId(0), at..at + 1)], writes: true }
            };
            loop {
                let runnable: Vec<usize> = (0..2).filter(|&party| left[party] > 0).collect();
                if runnable.is_empty() {
                    complete += 1;
                    break;
                }
                let Some(party) = all.choose(&runnable, &touches) else { break };
                left[party] -= 1;
            }
            runs += 1;
            if !all.advance() {
                return (complete, runs);
            }
        }
    }

    #[test]
    fn steps_that_commute_are_run_in_one_order() {
        assert_eq!(schedules(false, true), (6, 6)); // 4 over 2
        assert_eq!(schedules(true, true), (6, 6));
        assert_eq!(schedules(false, false).0, 6);
        let (complete, runs) = schedules(true, false);
        assert!(complete == 1 && runs < 6, "{complete} of {runs}");
    }
}
