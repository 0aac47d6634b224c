//! Domains: the sets of ranks that map each other's memory.
//!
//! In a *domain*, each rank maps the memory of every other rank. The ranks of one host are usually one domain. Ranks of
//! different domains learn of each other's failures only through the bootstrap (`herald.rs`).
#![forbid(unsafe_code)]

use std::fmt;

/// The domains of a world whose ranks are processes: which ranks map each other's segments. Ranks that are threads
/// share one address space, so all of them do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Domains {
    /// All ranks are one domain. A rank on another host is an error.
    #[default]
    One,
    /// Ranks that reach each other, in both directions, are a domain. These are the ranks of each host, if they run as
    /// one user in one network namespace. The ranks find out at the rendezvous.
    Found,
    /// The given domains. Every rank is in exactly one domain, and the ranks of a domain are on one host.
    Given(Vec<Vec<u32>>),
}

impl Domains {
    /// Domains in which each rank is alone.
    pub fn alone(ranks: usize) -> Domains {
        Domains::Given((0..ranks as u32).map(|rank| vec![rank]).collect())
    }

    /// The reason why these cannot be the domains of a world of this many ranks; `None` if they can.
    pub(crate) fn objection(&self, ranks: usize) -> Option<String> {
        match self {
            Domains::Given(domains) if !is_partition(domains, ranks) => Some(format!(
                "the domains {domains:?} do not contain each of the {ranks} ranks, counted from 0, exactly once"
            )),
            _ => None,
        }
    }
}

impl fmt::Display for Domains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Domains::One => f.write_str("one"),
            Domains::Found => f.write_str("found"),
            Domains::Given(domains) => write!(f, "{domains:?}"),
        }
    }
}

/// True if every rank is in exactly one domain, and no domain is empty.
pub(crate) fn is_partition(domains: &[Vec<u32>], ranks: usize) -> bool {
    let mut all: Vec<u32> = domains.iter().flatten().copied().collect();
    all.sort_unstable();
    all.iter().copied().eq(0..ranks as u32) && domains.iter().all(|domain| !domain.is_empty())
}

/// The ranks of the domain that contains a rank.
pub(crate) fn domain_of(domains: &[Vec<u32>], rank: usize) -> &[u32] {
    let of = domains.iter().find(|domain| domain.contains(&(rank as u32)));
    of.expect("every rank is in a domain")
}

/// Groups ranks into domains whose members all reach each other. `reaches(a, b)` says that a reaches b. All ranks
/// compute this from the same table, so all get the same domains. In rank order, each rank joins the first domain where
/// it reaches every member and every member reaches it.
pub(crate) fn grouped(ranks: usize, reaches: impl Fn(usize, usize) -> bool) -> Vec<Vec<u32>> {
    let both_ways = |a: usize, b: usize| reaches(a, b) && reaches(b, a);
    let mut domains: Vec<Vec<u32>> = Vec::new();
    for rank in 0..ranks {
        match domains.iter_mut().find(|domain| domain.iter().all(|&member| both_ways(rank, member as usize))) {
            Some(domain) => domain.push(rank as u32),
            None => domains.push(vec![rank as u32]),
        }
    }
    domains
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks with the same letter are on one host.
    fn hosts(of: &str) -> Vec<Vec<u32>> {
        let of: Vec<char> = of.chars().collect();
        grouped(of.len(), |a, b| of[a] == of[b])
    }

    #[test]
    fn ranks_that_reach_each_other_are_a_domain_wherever_they_stand() {
        assert_eq!(hosts("aabb"), [vec![0, 1], vec![2, 3]]);
        assert_eq!(hosts("ababc"), [vec![0, 2], vec![1, 3], vec![4]], "no arithmetic on rank numbers");
        assert_eq!(hosts("aaba"), [vec![0, 1, 3], vec![2]]);
        assert_eq!(hosts(""), [[0u32; 0]; 0]);
    }

    #[test]
    fn a_rank_that_reaches_only_some_of_a_domain_or_one_way_only_is_not_in_it() {
        // A chain: each reaches its neighbours alone.
        assert_eq!(grouped(4, |a, b| a.abs_diff(b) <= 1), [vec![0, 1], vec![2, 3]]);
        // All ranks reach rank 0, and no rank reaches any other.
        assert_eq!(grouped(3, |_, b| b == 0), [vec![0], vec![1], vec![2]]);
        assert_eq!(grouped(3, |a, b| a == 0 || b == 0), [vec![0, 1], vec![2]]);
    }

    #[test]
    fn given_domains_are_a_partition() {
        let of = |domains: &[&[u32]]| domains.iter().map(|domain| domain.to_vec()).collect::<Vec<_>>();
        assert!(is_partition(&of(&[&[2, 0], &[1]]), 3));
        for bad in [&[&[0, 1][..]][..], &[&[0], &[1], &[1]], &[&[0, 1, 3]], &[&[0, 1, 2], &[]]] {
            assert!(!is_partition(&of(bad), 3), "{bad:?}");
            assert!(Domains::Given(of(bad)).objection(3).is_some());
        }
        assert_eq!(Domains::alone(2).objection(2), None);
        assert_eq!(domain_of(&of(&[&[2, 0], &[1]]), 2), [2, 0]);
    }
}
