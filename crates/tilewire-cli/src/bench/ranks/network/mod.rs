//! `tilewire bench sendrecv`, `all_reduce` and `all_to_all` with `--transport fabric`: ranks that are processes of this
//! host and post to each other over libfabric, against what else moves the bytes there.
//!
//! ```text
//!   work ──▶ entrants: ours │ plain libfabric loops │ raw sockets │ Open MPI (its own processes)
//!                │                      one sample of each, in an order that changes ──▶ one round
//!                ▼
//!   pairs: of each round the time of a rival over that of ours ──▶ medians ──▶ tables, rows, plots
//! ```
//! - **In**: the work, the number of ranks, the provider. **Out**: for each of our sides and each rival the median of
//!   the ratios of their pairs, and an aim where there is one.
//! - **Why pairs**: the kernel moves these bytes, and what else the machine does changes by the second. Two samples of
//!   one round are taken within the same second.
//! - **Invariants**: as for the contests of [`ranks`](super). A rival that is not there has rows that say why.
//! - **Must not know**: how a kernel works.
#![forbid(unsafe_code)]

mod ours;
mod pairs;
mod plain;
mod raw;
mod report;
mod rival;

pub use report::{panels, rows, table};

use super::collectives::work::{ELEMENT, Work};
use super::contest::{Effort, Rounds};
use super::links::Links;
use super::lockstep::Lockstep;
use super::mpi::{self, Job};
use super::pin::{Pinned, cores};
use super::world;
use crate::bench::Size;
use crate::progress::Progress;
use crate::run::Mesh;
use anyhow::{Context, Result};
use pairs::{Entrant, Guest, Score};
use rival::Rival;
use std::io::{Write, stderr};
use std::time::Duration;
use tilewire::link::{ShmOptions, Transport};
use tilewire::transport::{AbortCode, Cause, World};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The subject of a benchmark over a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Messages between two ranks.
    Sendrecv,
    /// A sum of all ranks' tensors on all ranks.
    AllReduce,
    /// A chunk from each rank to each.
    AllToAll,
}

impl What {
    /// All of them.
    pub const ALL: [What; 3] = [What::Sendrecv, What::AllReduce, What::AllToAll];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            What::Sendrecv => "sendrecv",
            What::AllReduce => "all_reduce",
            What::AllToAll => "all_to_all",
        }
    }

    /// The one of this name. The error says which ones there are.
    pub fn named(name: &str) -> Result<What, String> {
        let names = What::ALL.map(What::name).join(", ");
        let found = What::ALL.into_iter().find(|what| what.name() == name);
        found
            .ok_or_else(|| format!("{name} is not measured over a network; over --transport fabric there are: {names}"))
    }
}

/// One kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Messages from rank 0 to rank 1.
    Stream,
    /// Messages there and back; the time is that of one direction.
    PingPong,
    /// One step of a collective.
    Collective(Work),
}

impl Kind {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Stream => "one way",
            Kind::PingPong => "ping-pong",
            Kind::Collective(work) => work.name(),
        }
    }

    /// Its name in MPI programs.
    fn of_mpi(self) -> &'static str {
        match self {
            Kind::Stream => "stream",
            Kind::PingPong => "pingpong",
            Kind::Collective(work) => work.name(),
        }
    }

    /// Bytes that a step moves; `None` if latency is measured.
    pub fn volume(self, bytes: usize, ranks: usize) -> Option<usize> {
        match self {
            Kind::Stream => Some(bytes),
            Kind::PingPong => None,
            Kind::Collective(work) => Some(work.volume(bytes, ranks)),
        }
    }

    /// Messages one after the other in one step.
    fn hops(self) -> f64 {
        if self == Kind::PingPong { 2.0 } else { 1.0 }
    }
}

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The subject.
    pub what: What,
    /// Number of ranks, all of them processes of this host.
    pub ranks: usize,
    /// The transport, with its provider.
    pub mesh: Mesh,
    /// Bytes of a message, a chunk, or the tensor of an all-reduce, if not the defaults.
    pub sizes: Option<Vec<Size>>,
    /// True to only test that it works.
    pub quick: bool,
}

/// A contest that was held.
#[derive(Debug)]
pub struct Contest {
    /// The work.
    pub kind: Kind,
    /// Bytes of a message, or of a chunk.
    pub bytes: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// The provider that was chosen.
    pub provider: String,
    /// The figures of all that took part, or why they did not.
    pub scores: Vec<Score>,
}

impl Plan {
    /// The arguments that make another process measure the same, as a rank.
    fn words(&self) -> Vec<String> {
        let mut words = vec!["bench".to_string(), self.what.name().to_string()];
        if self.what != What::Sendrecv {
            words.extend(["--ranks".to_string(), self.ranks.to_string()]);
        }
        if let Some(sizes) = &self.sizes {
            let sizes: Vec<String> = sizes.iter().map(Size::to_string).collect();
            words.extend(["--sizes".into(), sizes.join(",")]);
        }
        words.extend(self.mesh.words(self.ranks));
        words.extend(self.quick.then(|| "--quick".into()));
        words
    }

    /// The contests: what, and of how many bytes.
    fn steps(&self) -> Vec<(Kind, usize)> {
        let (kind, usual) = match self.what {
            What::Sendrecv => (Kind::Stream, &[64 * KIB, 256 * KIB, MIB, 8 * MIB, 64 * MIB][..]),
            What::AllReduce => (Kind::Collective(Work::AllReduce), &[64 * KIB, MIB, 8 * MIB, 64 * MIB][..]),
            What::AllToAll => (Kind::Collective(Work::AllToAll), &[64 * KIB, MIB, 8 * MIB][..]),
        };
        let whole = |bytes: usize| bytes.next_multiple_of(2 * ELEMENT);
        let mut sizes: Vec<usize> = match &self.sizes {
            Some(sizes) => sizes.iter().map(|size| whole(size.0)).collect(),
            // Small sizes suffice to test that it works.
            None if self.quick => usual.iter().map(|&size| size.min(MIB)).collect(),
            None => usual.to_vec(),
        };
        sizes.dedup();
        let latency = (self.what == What::Sendrecv).then_some((Kind::PingPong, 8));
        latency.into_iter().chain(sizes.into_iter().map(|bytes| (kind, bytes))).collect()
    }

    fn effort(&self) -> Effort {
        match self.quick {
            true => Effort::QUICK,
            false => Effort {
                sample: Duration::from_millis(10),
                rounds: Rounds { most: 15, least: 7, time: Duration::from_secs(20) },
                ..Effort::FULL
            },
        }
    }

    /// Starts the MPI programs.
    fn guests(&self) -> Vec<(Rival, Result<Job>)> {
        let ways = [Rival::MpiTcp, Rival::MpiFabric].map(|rival| (rival.name(), rival.words(self.mesh.provider())));
        let jobs = mpi::open_mpi(self.ranks, &ways).into_iter().map(|(_, job)| job);
        [Rival::MpiTcp, Rival::MpiFabric].into_iter().zip(jobs).collect()
    }
}

/// Measures; only rank 0 has results.
pub fn run(plan: &Plan) -> Result<Vec<Contest>> {
    // Before this thread is tied to a core: the jobs would be tied to it, too.
    let guests = std::cell::RefCell::new(if world::is_rank() { Vec::new() } else { plan.guests() });
    world::processes(plan.ranks, &plan.words(), |world| on_links(world, plan, &mut guests.borrow_mut()))
}

/// Ties this rank to its core while it works on its transports. If it fails, the others are told.
fn on_links(world: &World, plan: &Plan, guests: &mut [(Rival, Result<Job>)]) -> Result<Vec<Contest>> {
    let rank = world.rank().index();
    let _pinned = Pinned::to_core_of(rank);
    if cores() < world.size() && rank == 0 {
        _ = writeln!(stderr(), "tilewire: {} ranks share {} cores", world.size(), cores());
    }
    let links = Links::rendezvous(world, Some(&plan.mesh), ShmOptions { populate: true, ..Default::default() })?;
    let held = hold(&links, plan, guests);
    match held {
        Ok(_) => links.close()?,
        Err(_) => links.mark_broken(Cause { code: AbortCode::Failed, rank, reason: 0 }),
    }
    held
}

fn hold(links: &Links, plan: &Plan, guests: &mut [(Rival, Result<Job>)]) -> Result<Vec<Contest>> {
    let provider = links.network().context("ranks of one domain have no network to measure")?.provider.clone();
    let (leads, ranks) = (links.shm.rank().index() == 0, links.shm.world_size());
    let mut lockstep = Lockstep::new(&links.shm)?;
    let steps = plan.steps();
    let mut progress = leads.then(|| Progress::new(steps.len()));
    let mut contests = Vec::new();
    for (kind, bytes) in steps {
        progress.iter_mut().for_each(|progress| progress.step(&format!("{} {}", kind.name(), Size(bytes))));
        let (entrants, mut sides): (Vec<Entrant>, Vec<_>) = entrants(links, kind, bytes)?.into_iter().unzip();
        if !leads {
            lockstep.follow(&mut sides)?;
            continue;
        }
        let course = pairs::Course { name: kind.name(), hops: kind.hops(), bytes, effort: plan.effort() };
        let of_kind = guests.iter_mut().map(|(rival, job)| Guest { rival: *rival, work: kind.of_mpi(), job });
        let scores = pairs::measure(&mut lockstep, (&entrants, &mut sides), &mut of_kind.collect::<Vec<_>>(), course)?;
        lockstep.end()?;
        contests.push(Contest { kind, bytes, ranks, provider: provider.clone(), scores });
    }
    Ok(contests)
}

/// All that take part as ranks of this world. Collective.
fn entrants<'l>(links: &'l Links, kind: Kind, bytes: usize) -> Result<Vec<(Entrant, super::side::Side<'l>)>> {
    let mut all = match kind {
        Kind::Collective(work) => return ours::collective(links, work, bytes),
        Kind::Stream | Kind::PingPong => ours::messages(links, kind, bytes)?,
    };
    all.extend(plain::sides(links, kind, bytes)?);
    all.extend(raw::sides(links, kind, bytes)?);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Bench, Reports, Subject};
    use crate::cli::Command;
    use crate::run::{Apart, Shuffle, Wire};

    fn plan(what: What, provider: Option<&str>) -> Plan {
        let mesh = Mesh::of(Some(Wire::Fabric), Apart::default(), Shuffle::default()).unwrap().unwrap();
        let ranks = if what == What::Sendrecv { 2 } else { 4 };
        Plan { what, ranks, mesh: mesh.over(provider.map(String::from)), sizes: None, quick: true }
    }

    #[test]
    fn a_rank_is_told_the_plan_in_words() {
        for what in What::ALL {
            for plan in [plan(what, None), Plan { sizes: Some(vec![Size(64), Size(MIB)]), ..plan(what, Some("shm")) }] {
                let expected =
                    Bench { subject: Subject::Network(plan.clone()), reports: Reports::default(), plot: None };
                assert_eq!(Command::parse(plan.words()).unwrap(), Command::Bench(expected));
            }
        }
    }

    #[test]
    fn messages_have_latency_and_sizes_are_those_asked_for() {
        assert_eq!(plan(What::Sendrecv, None).steps()[0], (Kind::PingPong, 8));
        let asked = Plan { sizes: Some(vec![Size(5), Size(100)]), ..plan(What::AllToAll, None) };
        let kind = Kind::Collective(Work::AllToAll);
        assert_eq!(asked.steps(), [(kind, 8), (kind, 104)]);
    }
}
