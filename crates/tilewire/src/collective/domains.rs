//! The domains of a world: which ranks reach each other by loads and stores, and what that means for algorithms.
//!
//! All ranks must derive the same decisions from the domains. So the domains depend only on the transport's answers,
//! which are the same on all ranks.

use crate::link::Transport;
use crate::transport::{LinkKind, Rank};

/// The domains of a world that has several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Domains {
    /// The number of each rank's domain among `members`.
    of: Vec<usize>,
    /// The ranks of each domain, in rank order; domains are in the order of their first ranks.
    members: Vec<Vec<Rank>>,
}

impl Domains {
    /// The domains of a transport. `None` if there is only one, or if the transport does not know them.
    pub(super) fn of(link: &dyn Transport) -> Option<Domains> {
        let numbers = Rank::all(link.world_size()).map(|rank| link.domain(rank)).collect::<Option<Vec<_>>>()?;
        let me = link.rank();
        let is_far = |peer: Rank| link.link(peer).kind == LinkKind::Fabric;
        let fits = |peer: Rank| peer == me || is_far(peer) == (numbers[peer.index()] != numbers[me.index()]);
        // A transport whose answers contradict each other does not know its domains.
        let fit = Rank::all(numbers.len()).all(fits);
        Some(Domains::numbered(&numbers)).filter(|domains| fit && domains.members.len() > 1)
    }

    /// The domains of ranks, given for each rank a number that is the same for the ranks of a domain.
    fn numbered(numbers: &[usize]) -> Domains {
        let mut firsts: Vec<usize> = Vec::new();
        let mut members: Vec<Vec<Rank>> = Vec::new();
        let mut of = Vec::new();
        for (rank, number) in Rank::all(numbers.len()).zip(numbers) {
            let domain = firsts.iter().position(|first| first == number).unwrap_or_else(|| {
                firsts.push(*number);
                members.push(Vec::new());
                members.len() - 1
            });
            members[domain].push(rank);
            of.push(domain);
        }
        Domains { of, members }
    }

    /// The ranks of each domain.
    pub(super) fn members(&self) -> &[Vec<Rank>] {
        &self.members
    }

    /// The ranks of a rank's domain.
    pub(super) fn around(&self, rank: Rank) -> &[Rank] {
        &self.members[self.of[rank.index()]]
    }

    pub(super) fn are_near(&self, a: Rank, b: Rank) -> bool {
        self.of[a.index()] == self.of[b.index()]
    }

    /// A rank that `rank` reaches by posts.
    pub(super) fn far_from(&self, rank: Rank) -> Rank {
        let far = self.members.iter().find(|members| !members.contains(&rank));
        far.expect("there are several domains")[0]
    }

    /// True if some rank has near peers.
    pub(super) fn have_neighbours(&self) -> bool {
        self.members.iter().any(|members| members.len() > 1)
    }

    /// The rank of a domain that receives the chunk of `origin`, a rank of another domain, for the whole domain.
    /// Origins of one domain have different relays if the domain has enough ranks.
    pub(super) fn relay(&self, origin: Rank, members: &[Rank]) -> Rank {
        let number = self.around(origin).iter().position(|rank| *rank == origin).expect("it is in its domain");
        members[number % members.len()]
    }

    /// How often a ring in rank order crosses from one domain to another.
    pub(super) fn crossings(&self) -> usize {
        let ranks = self.of.len();
        (0..ranks).filter(|&rank| self.of[rank] != self.of[(rank + 1) % ranks]).count()
    }

    /// True if a ring in rank order enters every domain once.
    pub(super) fn are_contiguous(&self) -> bool {
        self.crossings() == self.members.len()
    }

    /// The number of ordered pairs of ranks that reach each other by posts.
    pub(super) fn far_pairs(&self) -> usize {
        self.members.iter().map(|members| members.len() * (self.of.len() - members.len())).sum()
    }

    /// The domains in words: `2 domains of 2 and 2 ranks`.
    pub(super) fn describe(&self) -> String {
        let sizes: Vec<String> = self.members.iter().map(|members| members.len().to_string()).collect();
        let (last, others) = sizes.split_last().expect("there are several domains");
        format!("{} domains of {} and {last} ranks", sizes.len(), others.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(numbers: &[u32]) -> Vec<Rank> {
        numbers.iter().copied().map(Rank::new).collect()
    }

    #[test]
    fn domains_are_in_the_order_of_their_first_ranks_whatever_their_numbers() {
        let domains = Domains::numbered(&[7, 3, 7, 9, 3]);
        assert_eq!(domains.members(), [ranks(&[0, 2]), ranks(&[1, 4]), ranks(&[3])]);
        assert_eq!(domains.describe(), "3 domains of 2, 2 and 1 ranks");
        assert_eq!(domains.far_from(Rank::new(2)), Rank::new(1));
        assert_eq!(domains.far_from(Rank::new(4)), Rank::new(0));
        assert!(domains.are_near(Rank::new(1), Rank::new(4)) && !domains.are_near(Rank::new(1), Rank::new(3)));
    }

    #[test]
    fn a_ring_in_rank_order_crosses_once_per_domain_where_domains_are_contiguous() {
        for (numbers, crossings, contiguous) in [
            (&[0, 0, 1, 1][..], 2, true),
            (&[1, 0, 0, 1], 2, true), // contiguous round the end
            (&[0, 1, 0, 1], 4, false),
            (&[0, 1, 1, 1], 2, true),
            (&[0, 0, 1, 2, 2], 3, true),
            (&[0, 1, 1, 0, 1], 4, false),
        ] {
            let domains = Domains::numbered(numbers);
            assert_eq!((domains.crossings(), domains.are_contiguous()), (crossings, contiguous), "{numbers:?}");
        }
    }

    #[test]
    fn every_origin_has_one_relay_in_every_other_domain_and_they_share_the_work() {
        for numbers in [&[0, 0, 1, 1][..], &[0, 1, 1, 1], &[0, 1, 0, 1], &[0, 0, 0, 1], &[0, 1, 0, 2, 1, 1, 1]] {
            let domains = Domains::numbered(numbers);
            for members in domains.members() {
                let origins = Rank::all(numbers.len()).filter(|rank| !members.contains(rank));
                let mut load = vec![0; numbers.len()];
                for origin in origins {
                    let relay = domains.relay(origin, members);
                    assert!(members.contains(&relay));
                    load[relay.index()] += 1;
                }
                // Every other domain gives a relay at most its ranks, shared out evenly.
                let others = domains.members().iter().filter(|other| *other != members);
                let most: usize = others.map(|other| other.len().div_ceil(members.len())).sum();
                assert!(load.iter().all(|&shards| shards <= most), "{numbers:?}: {load:?}");
            }
        }
    }
}
