//! Random transfers between random ranks, the same on every rank.

use crate::run::{Case, GROUP, Hook, PROTOCOLS, Peers};
use tilewire::ir::Type;
use tilewire::transport::Rank;
use tilewire::{Knobs, Primitive};
use tilewire_testkit::random::Random;

/// One transfer of some ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Its index, from 0.
    pub number: u64,
    /// The transfer.
    pub case: Case,
    /// The part of each rank.
    pub peers: Vec<Peers>,
    /// Number of its first launches.
    pub launches: usize,
    /// The index of the kept transfer that is launched after it.
    pub again: usize,
}

/// An endless sequence of rounds.
pub struct Plan {
    random: Random,
    ranks: usize,
    number: u64,
    /// True if some ranks post to each other: then nothing goes in packets or windows.
    posts: bool,
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64, ranks: usize, posts: bool) -> Plan {
        Plan { random: Random::new(seed), ranks, number: 0, posts }
    }

    /// The next round.
    pub fn next(&mut self) -> Round {
        let number = self.number;
        self.number += 1;
        let (case, peers) = (self.case(), self.peers());
        let (launches, again) = (1 + self.random.below(4), self.random.below(1 << 20));
        Round { number, case, peers, launches, again }
    }

    fn case(&mut self) -> Case {
        let random = &mut self.random;
        let primitive = random.pick(&PROTOCOLS);
        let primitive = if self.posts && primitive.is_some() { Some(Primitive::Staged) } else { primitive };
        let dtype = random.pick(&Type::ALL);
        let is_possible = |hook: &Hook| {
            let is_stored_as_sent = *hook != Hook::Quantise || primitive != Some(Primitive::Direct);
            hook.takes(dtype) && is_stored_as_sent
        };
        let hooks: Vec<Hook> = Hook::FEW.into_iter().filter(is_possible).collect();
        let hook = random.pick(&hooks);
        let mut config = Knobs { primitive, blocks: Some(random.pick(&[1, 1, 2, 3, 5, 8])), ..Knobs::default() };
        if hook == Hook::Quantise {
            config.granule = Some(GROUP);
        }
        if matches!(primitive, Some(Primitive::Staged | Primitive::Bulk)) && random.below(2) == 0 {
            let largest = if primitive == Some(Primitive::Bulk) { 32768 } else { 65536 };
            config.slot_bytes = Some(random.pick(&[512, 1024, 4096, 8192, largest]));
            config.depth = Some(2 + random.below(7));
        }
        let most = match primitive {
            // The whole message must fit the packets of one block, with a scale beside every quantised element.
            Some(Primitive::Packet) => 1024 / dtype.size().max(5),
            _ => random.pick(&[17, 4 << 10, 64 << 10, 512 << 10]),
        };
        Case { dtype, hook, len: random.below(most + 1), config, rounds: None }
    }

    /// A ring, pairs, or some ranks with some others.
    fn peers(&mut self) -> Vec<Peers> {
        let (random, ranks) = (&mut self.random, self.ranks);
        let mut order: Vec<usize> = (0..ranks).collect();
        (1..ranks).rev().for_each(|i| order.swap(i, random.below(i + 1)));
        let mut peers = vec![Peers::default(); ranks];
        let mut join = |from: usize, to: usize| {
            peers[from].to = Some(Rank::new(to as u32));
            peers[to].from = Some(Rank::new(from as u32));
        };
        match random.below(3) {
            0 => (0..ranks).for_each(|i| join(order[i], order[(i + 1) % ranks])),
            1 => order.chunks_exact(2).for_each(|pair| {
                join(pair[0], pair[1]);
                join(pair[1], pair[0]);
            }),
            _ => {
                // A ring with gaps: some only send, some only receive, some sit out.
                let edges: Vec<bool> = (0..ranks).map(|_| random.below(2) == 0).collect();
                (0..ranks).filter(|&i| edges[i]).for_each(|i| join(order[i], order[(i + 1) % ranks]));
            }
        }
        peers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan_and_partners_agree() {
        let (mut one, mut other) = (Plan::new(5, 4, false), Plan::new(5, 4, false));
        let mut seen = [false; 3];
        for _ in 0..1000 {
            let round = one.next();
            assert_eq!(round, other.next());
            for (rank, peers) in round.peers.iter().enumerate() {
                let me = Some(Rank::new(rank as u32));
                assert!(peers.to.is_none_or(|to| Some(to) != me && round.peers[to.index()].from == me));
                assert!(peers.from.is_none_or(|from| round.peers[from.index()].to == me));
                seen[usize::from(peers.to.is_some()) + usize::from(peers.from.is_some())] = true;
            }
        }
        assert_eq!(seen, [true; 3], "ranks that sit out, that only send or receive, and that do both");
    }
}
