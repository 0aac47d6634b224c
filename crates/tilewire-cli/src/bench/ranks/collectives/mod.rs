//! `tilewire bench` of a collective: the work, the limits and the targets.

mod columns;
mod limits;
mod ours;
mod results;
mod sum;
pub(super) mod work;

pub use results::table;

use super::contest::Effort;
use super::heats::{Arena, Heat, Sides, Step, hold};
use super::links::Links;
use super::mpi::Peer;
use super::pin::cores;
use super::side::{Aim, Limit, Side};
use super::world::Kind;
use crate::bench::Size;
use crate::run::Mesh;
use anyhow::Result;
use limits::Buffers;
use ours::Race;
use tilewire::Primitive;
use tilewire::link::Transport;
use work::{ELEMENT, Work};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Two elements: here latency matters.
const SMALL: usize = 8;
/// Bytes of a chunk, or of the tensor of an all-reduce.
const SIZES: &[usize] = &[SMALL, 64 * KIB, MIB, 8 * MIB];
/// From here on the output does not fit caches, and tables show how much of the time memory takes.
const STORES_FROM: usize = 8 * MIB;

/// Our own contests: MPI has no contiguous all-to-all of columns to compare with.
const COLUMNS: [&str; 2] = ["all_to_all, column slices", "all_to_all, column slices into windows"];

/// One kind of work.
struct Case {
    /// Its name on the command line; some have several cases.
    subject: &'static str,
    /// Its name in reports.
    name: &'static str,
    work: Work,
    sizes: &'static [usize],
    sides: Sides,
}

const CASES: &[Case] = &[
    Case {
        subject: "all_to_all",
        name: "all_to_all",
        work: Work::AllToAll,
        sizes: SIZES,
        sides: |links, bytes| sides(links, Work::AllToAll, bytes),
    },
    Case {
        subject: "all_to_all",
        name: "all_to_all, transposing",
        work: Work::Transposing,
        sizes: &[64 * KIB, MIB, 8 * MIB],
        sides: |links, bytes| sides(links, Work::Transposing, bytes),
    },
    Case {
        subject: "all_to_all",
        name: COLUMNS[0],
        work: Work::AllToAll,
        sizes: &[64 * KIB, MIB, 8 * MIB],
        sides: |links, bytes| columns::sides(links, bytes, false),
    },
    Case {
        subject: "all_to_all",
        name: COLUMNS[1],
        work: Work::AllToAll,
        sizes: &[64 * KIB, MIB, 8 * MIB],
        sides: |links, bytes| columns::sides(links, bytes, true),
    },
    Case {
        subject: "all_gather",
        name: "all_gather",
        work: Work::AllGather,
        sizes: SIZES,
        sides: |links, bytes| sides(links, Work::AllGather, bytes),
    },
    Case {
        subject: "reduce_scatter",
        name: "reduce_scatter",
        work: Work::ReduceScatter,
        sizes: SIZES,
        sides: |links, bytes| sides(links, Work::ReduceScatter, bytes),
    },
    Case {
        subject: "all_reduce",
        name: "all_reduce",
        work: Work::AllReduce,
        sizes: &[SMALL, 64 * KIB, MIB, 8 * MIB, 64 * MIB],
        sides: |links, bytes| sides(links, Work::AllReduce, bytes),
    },
    Case {
        subject: "broadcast",
        name: "broadcast",
        work: Work::Broadcast,
        sizes: SIZES,
        sides: |links, bytes| sides(links, Work::Broadcast, bytes),
    },
    Case {
        subject: "gather",
        name: "gather",
        work: Work::Gather,
        sizes: SIZES,
        sides: |links, bytes| sides(links, Work::Gather, bytes),
    },
    Case {
        subject: "scatter",
        name: "scatter",
        work: Work::Scatter,
        sizes: SIZES,
        sides: |links, bytes| sides(links, Work::Scatter, bytes),
    },
];

/// The collectives that can be measured.
pub const SUBJECTS: [&str; 7] =
    ["all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "gather", "scatter"];

/// Limits and ours. Collective.
fn sides<'l>(links: &'l Links, work: Work, bytes: usize) -> Result<Vec<Side<'l>>> {
    let buffers = Buffers::allocate(links, work, bytes)?;
    let mut sides = buffers.limits();
    if bytes >= STORES_FROM && matches!(work, Work::AllToAll | Work::AllGather) {
        sides.extend(buffers.stores_alone());
    }
    let ranks = links.shm.world_size();
    let races = match links.mesh() {
        Some(_) => posted_races(work, bytes, ranks, links.have_two_levels()),
        None => races(work, bytes, ranks),
    };
    for race in races {
        sides.push(race.side(&buffers)?);
    }
    Ok(sides)
}

/// The protocols that are compared. Tensors are registered for `direct` alone; those of `default` are ordinary ones.
fn races(work: Work, bytes: usize, ranks: usize) -> Vec<Race> {
    let against = match work {
        _ if bytes <= SMALL => Limit::Words,
        Work::AllToAll | Work::AllGather | Work::Broadcast | Work::Gather | Work::Scatter => Limit::Moved,
        Work::Transposing => Limit::Transposed,
        Work::ReduceScatter | Work::AllReduce => Limit::Reduced,
    };
    let race = |name, primitive, aim| Race { name, primitive, against, aim };
    let aim = aim(work, bytes, ranks);
    match work {
        _ if bytes <= SMALL => vec![race("packet", None, aim)],
        _ => vec![
            race("direct", Some(Primitive::Direct), aim),
            race("staged", Some(Primitive::Staged), Aim::None),
            race("default", None, default_aim(work, bytes, ranks)),
        ],
    }
}

/// The target of calls over ordinary tensors, which take one hop.
fn default_aim(work: Work, bytes: usize, ranks: usize) -> Aim {
    match work {
        _ if ranks > cores() => Aim::None,
        Work::AllReduce if bytes >= 8 * MIB => Aim::Ratio(0.8),
        Work::AllToAll | Work::AllGather | Work::ReduceScatter | Work::AllReduce => Aim::Ratio(0.85),
        Work::Transposing | Work::Broadcast | Work::Gather | Work::Scatter => Aim::None,
    }
}

/// The races over a mesh, where far peers have neither packets nor windows. Targets are for shared memory.
fn posted_races(work: Work, bytes: usize, ranks: usize, two_levels: bool) -> Vec<Race> {
    let against = races(work, bytes, ranks)[0].against;
    let race = |name, primitive| Race { name, primitive, against, aim: Aim::None };
    match work {
        _ if bytes <= SMALL => vec![race("default", None)],
        // A primitive asks for one level.
        Work::AllGather | Work::Broadcast if two_levels => {
            vec![race("two-level", None), race("staged", Some(Primitive::Staged))]
        }
        _ => vec![race("staged", Some(Primitive::Staged))],
    }
}

fn aim(work: Work, bytes: usize, ranks: usize) -> Aim {
    let ahead = |times, ratio| Aim::Ahead { times, ratio };
    match work {
        // If ranks share cores, the target is only not to collapse; a single word cannot go faster.
        _ if ranks > cores() || bytes <= SMALL => ahead(1.0, None),
        Work::AllToAll | Work::AllGather => ahead(if bytes < MIB { 3.0 } else { 2.0 }, Some(0.85)),
        // There is no target for being ahead of MPI.
        Work::Broadcast | Work::Gather | Work::Scatter => Aim::Ratio(0.85),
        _ if bytes < MIB => Aim::None,
        Work::Transposing => ahead(3.0, None),
        Work::ReduceScatter | Work::AllReduce => ahead(2.0, None),
    }
}

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// A subset of [`SUBJECTS`].
    pub subjects: Vec<&'static str>,
    /// Number of ranks, all of them threads.
    pub ranks: usize,
    /// The domains of ranks that post to each other, if they do.
    pub mesh: Option<Mesh>,
    /// Bytes of a chunk, if not the defaults.
    pub sizes: Option<Vec<Size>>,
    /// True to only test that it works.
    pub quick: bool,
}

impl Plan {
    /// Two ranks, the default sizes.
    pub fn of(subjects: &[&'static str]) -> Plan {
        Plan { subjects: subjects.to_vec(), ranks: 2, mesh: None, sizes: None, quick: false }
    }

    fn steps(&self) -> Vec<Step> {
        let sizes = |case: &Case| -> Vec<usize> {
            let mut sizes: Vec<usize> = match &self.sizes {
                Some(sizes) => sizes.iter().map(|size| size.0.next_multiple_of(2 * ELEMENT)).collect(),
                // Small sizes suffice to test that it works.
                None if self.quick => case.sizes.iter().map(|&size| size.min(MIB)).collect(),
                None => case.sizes.to_vec(),
            };
            sizes.dedup();
            sizes
        };
        let step = |case: &Case, bytes: usize| Step {
            name: case.name,
            bytes,
            hops: 1.0,
            volume: (bytes > SMALL).then(|| case.work.volume(bytes, self.ranks)),
            sides: case.sides,
            guests: (!COLUMNS.contains(&case.name))
                .then(|| (case.work.name(), races(case.work, bytes, self.ranks)[0].against)),
        };
        let wanted = CASES.iter().filter(|case| self.subjects.contains(&case.subject));
        wanted.flat_map(|case| sizes(case).into_iter().map(move |bytes| step(case, bytes))).collect()
    }
}

/// Measures, also MPI if there is one.
pub fn run(plan: &Plan, peer: Peer) -> Result<Vec<Heat>> {
    let effort = if plan.quick { Effort::QUICK } else { Effort::FULL };
    let (ranks, mesh) = (plan.ranks, plan.mesh.clone());
    hold(&plan.steps(), Arena { kind: Kind::Threads, ranks, mesh, effort, peer, words: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::super::side::Part;
    use super::*;

    #[test]
    fn every_collective_has_cases_and_sizes() {
        for subject in SUBJECTS {
            assert!(!Plan::of(&[subject]).steps().is_empty(), "{subject}");
        }
        let of = |plan: &Plan| plan.steps().iter().map(|step| (step.name, step.bytes)).collect::<Vec<_>>();
        let sizes = Some(vec![Size(5), Size(100)]);
        assert_eq!(of(&Plan { sizes, ..Plan::of(&["all_gather"]) }), [("all_gather", 8), ("all_gather", 104)]);
        assert_eq!(of(&Plan { quick: true, ..Plan::of(&["all_reduce"]) }).len(), 3);
    }

    #[test]
    fn collectives_with_a_root_are_judged_by_their_limits_and_small_ones_by_mpi() {
        let alone = cores() < 2;
        for work in [Work::Broadcast, Work::Gather, Work::Scatter] {
            assert_eq!(aim(work, SMALL, 2), Aim::Ahead { times: 1.0, ratio: None });
            assert!(alone || [64 * KIB, 8 * MIB].iter().all(|&bytes| aim(work, bytes, 2) == Aim::Ratio(0.85)));
        }
    }

    /// Every side of every collective, checked and measured. Places depend on the machine: a busy one may have none.
    #[test]
    fn limits_and_ours_are_checked_and_measured() {
        // Three ranks on two cores take long for their work.
        for (ranks, sizes) in [(2, vec![8, 4096, 600 << 10]), (3, vec![4096])] {
            let sizes = Some(sizes.into_iter().map(Size).collect());
            let plan = Plan { ranks, sizes, quick: true, ..Plan::of(&SUBJECTS) };
            let heats = run(&plan, Peer::Missing("not asked".into())).unwrap();
            assert_eq!(heats.len(), plan.steps().len());
            for heat in &heats {
                for outcome in &heat.outcomes {
                    let Part::Racer { against, .. } = outcome.part else { continue };
                    assert!(heat.outcomes.iter().any(|other| other.is(against)), "{} {against:?}", heat.step.name);
                }
            }
        }
    }
}
