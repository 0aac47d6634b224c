//! The contests of a benchmark, one after the other: rank 0 leads, the others follow.
#![forbid(unsafe_code)]

use super::contest::{Course, Effort, Guest, Outcome, best, measure};
use super::links::Links;
use super::lockstep::Lockstep;
use super::mpi::Peer;
use super::pin::{Pinned, cores};
use super::place::Place;
use super::side::{Aim, Limit, Part, Side};
use super::world::{self, Kind};
use crate::bench::Size;
use crate::bench::plot::{Panel, titled};
use crate::bench::report::Row;
use crate::progress::Progress;
use crate::run::Mesh;
use anyhow::Result;
use std::io::{Write, stderr};
use std::sync::Mutex;
use tilewire::link::ShmOptions;
use tilewire::transport::{AbortCode, Cause, World};

/// This rank's half of all sides of a contest over `bytes` bytes. Collective.
pub type Sides = for<'l> fn(links: &'l Links, bytes: usize) -> Result<Vec<Side<'l>>>;

/// A contest to hold.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Its name in reports.
    pub name: &'static str,
    /// Bytes of a message, or of a chunk.
    pub bytes: usize,
    /// Messages one after the other in one step.
    pub hops: f64,
    /// Bytes that a step moves; `None` if latency is measured.
    pub volume: Option<usize>,
    /// The sides.
    pub sides: Sides,
    /// The name of the work in MPI programs, and the limit they are compared with; `None` if they have nothing
    /// comparable.
    pub guests: Option<(&'static str, Limit)>,
}

/// The places and durations of contests.
pub struct Arena {
    /// Threads or processes.
    pub kind: Kind,
    /// Number of ranks.
    pub ranks: usize,
    /// The domains of ranks that post to each other, if our sides do.
    pub mesh: Option<Mesh>,
    /// Time to spend on each contest.
    pub effort: Effort,
    /// Competing MPI programs.
    pub peer: Peer,
    /// The arguments that make another process take part as a rank.
    pub words: Vec<String>,
}

/// A contest that was held.
#[derive(Debug)]
pub struct Heat {
    /// The work.
    pub step: Step,
    /// Threads or processes.
    pub kind: Kind,
    /// Number of ranks.
    pub ranks: usize,
    /// The transport of our sides, if it is not shared memory.
    pub over: Option<&'static str>,
    /// The measurements.
    pub outcomes: Vec<Outcome>,
    /// Samples needed for a median.
    pub least: usize,
    /// Why there is no MPI among them.
    pub absent: Option<String>,
}

/// A limit, or a side that races one.
pub struct Line<'h> {
    /// The name in reports.
    pub name: String,
    /// The limit.
    pub against: Limit,
    /// Its target.
    pub aim: Aim,
    /// How its messages travel.
    pub protocol: &'static str,
    /// For each place, the side and its median.
    pub medians: [Option<(&'h Outcome, f64)>; 4],
}

/// The protocol of limits and of MPI programs, in reports.
pub const BY_HAND: &str = "by hand";
pub const MPI: &str = "mpi";
/// The start of the names that the targets of transfers refer to.
pub const OPEN_MPI: &str = "Open MPI";

/// The footnote of tables about a side that is neither ours nor a limit to judge by.
pub const STORES_ALONE: &str = "\
stores alone: not ours, and not judged. The same ranks store as many bytes in the same places
around the caches, and read nothing: no copy that goes around them is faster, but one may
leave some in them.
";

impl Heat {
    /// The best of each limit, and everything that races.
    pub fn lines(&self) -> Vec<Line<'_>> {
        let mut lines: Vec<Line> = Vec::new();
        for outcome in &self.outcomes {
            match outcome.part {
                Part::Limit(limit) if lines.iter().any(|line| line.name == limit.name()) => {}
                Part::Limit(limit) => lines.push(Line {
                    name: limit.name().into(),
                    against: limit,
                    aim: Aim::None,
                    protocol: BY_HAND,
                    medians: Place::EVERY.map(|place| best(&self.outcomes, limit, place, self.least)),
                }),
                Part::Racer { against, aim, protocol } => lines.push(Line {
                    name: outcome.name.clone(),
                    against,
                    aim,
                    protocol,
                    medians: Place::EVERY.map(|place| Some((outcome, outcome.median_ns(place, self.least)?))),
                }),
            }
        }
        lines
    }

    /// The time of a limit at a place.
    pub fn limit_ns(&self, limit: Limit, place: Place) -> Option<f64> {
        best(&self.outcomes, limit, place, self.least).map(|(_, ns)| ns)
    }

    /// How many times as fast as the best Open MPI a time of `ns` is, at a place.
    pub fn times_open_mpi(&self, ns: f64, place: Place) -> Option<f64> {
        self.times_mpi(OPEN_MPI, ns, place).map(|(_, times)| times)
    }

    /// The best MPI at a place whose name starts with `make`, and how many times as fast a time of `ns` is.
    pub fn times_mpi(&self, make: &str, ns: f64, place: Place) -> Option<(String, f64)> {
        let peers = self.lines().into_iter().filter(|line| line.protocol == MPI && line.name.starts_with(make));
        let timed = peers.filter_map(|line| Some((line.medians[place as usize]?.1 / ns, line.name)));
        timed.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(times, name)| (name, times))
    }

    /// The transport of a line: limits and MPI use shared memory.
    fn transport(&self, line: &Line) -> &'static str {
        let is_our_limit = matches!(line.against, Limit::Plain | Limit::Copied);
        let is_ours = line.protocol != MPI && (line.protocol != BY_HAND || is_our_limit);
        match (self.over.filter(|_| is_ours), self.kind) {
            (Some(over), _) => over,
            (None, Kind::Threads) => "shm threads",
            (None, Kind::Processes) => "shm processes",
        }
    }

    /// The words of a title about the transport.
    pub fn over_words(&self) -> String {
        self.over.map_or(String::new(), |over| format!(" over {over}"))
    }

    /// True if stores alone were measured, which tables then [explain](STORES_ALONE).
    pub fn has_stores(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome.is(Limit::Stores))
    }

    /// Gigabytes per second, all directions together.
    pub fn gbps(&self, ns: f64) -> Option<f64> {
        self.step.volume.filter(|&bytes| bytes > 0).map(|bytes| bytes as f64 / ns)
    }
}

/// The contests as rows of the JSON report: one for each line and place.
pub fn rows(heats: &[Heat]) -> Vec<Row> {
    let of_heat = |heat: &Heat| heat.lines().iter().flat_map(|line| rows_of(heat, line)).collect::<Vec<_>>();
    heats.iter().flat_map(of_heat).collect()
}

fn rows_of(heat: &Heat, line: &Line) -> Vec<Row> {
    let row = |place: Place| {
        let (outcome, ns) = line.medians[place as usize]?;
        let limit = best(&heat.outcomes, line.against, place, heat.least);
        Some(Row {
            name: format!("{}: {}", heat.step.name, line.name),
            engine: "cpu",
            transport: heat.transport(line),
            protocol: line.protocol,
            ranks: heat.ranks,
            blocks: 1,
            bytes: heat.step.bytes,
            place: place.name(),
            median_us: ns / 1e3,
            spread_us: None,
            gbps: heat.gbps(ns),
            limit: limit.map_or("none".into(), |(best, _)| format!("{}: {}", line.against.name(), best.name)),
            ratio: limit.map_or(f64::NAN, |(_, limit)| limit / ns),
            target: match line.aim {
                Aim::Ratio(ratio) | Aim::Ahead { ratio: Some(ratio), .. } => Some(ratio),
                _ => None,
            },
            each: String::new(),
            samples: outcome.count(place),
        })
    };
    Place::EVERY.into_iter().filter_map(row).collect()
}

/// The contests as pictures: one for each kind of work and place, a line for each protocol.
pub fn panels(heats: &[Heat]) -> Vec<Panel> {
    let mut panels: Vec<Panel> = Vec::new();
    for (heat, place) in heats.iter().flat_map(|heat| Place::EVERY.map(|place| (heat, place))) {
        let (ranks, kind, over) = (heat.ranks, heat.kind.name(), heat.over_words());
        let title = format!("{}, {ranks} {kind}{over}, {}", heat.step.name, place.name());
        for line in heat.lines().iter().filter(|line| line.protocol != BY_HAND) {
            let (median, limit) = (line.medians[place as usize], heat.limit_ns(line.against, place));
            let Some(((_, ns), limit)) = median.zip(limit) else { continue };
            titled(&mut panels, title.clone()).add(&line.name, line.protocol == MPI, heat.step.bytes, limit / ns);
        }
    }
    panels
}

/// Holds contests in one world; only rank 0 has results.
pub fn hold(steps: &[Step], arena: Arena) -> Result<Vec<Heat>> {
    let Arena { kind, ranks, mesh, effort, peer, words } = arena;
    let mesh = mesh.as_ref();
    // Only rank 0 takes it; a rank that is a separate process has its own.
    let peer = Mutex::new(peer);
    let body = |world: &World| match world.rank().index() {
        0 => lead(world, mesh, steps, kind, effort, &mut peer.lock().expect("rank 0 alone locks it")),
        _ => follow(world, mesh, steps).map(|()| Vec::new()),
    };
    match kind {
        Kind::Threads => world::threads(ranks, body),
        Kind::Processes => world::processes(ranks, &words, body),
    }
}

fn lead(
    world: &World,
    mesh: Option<&Mesh>,
    steps: &[Step],
    kind: Kind,
    effort: Effort,
    peer: &mut Peer,
) -> Result<Vec<Heat>> {
    on_links(world, mesh, |links| {
        let mut lockstep = Lockstep::new(&links.shm)?;
        let mut progress = Progress::new(steps.len());
        let mut heat = |&step: &Step| {
            let Step { name, bytes, hops, .. } = step;
            progress.step(&format!("{name} {}, {}", Size(bytes), kind.name()));
            let mut sides = (step.sides)(links, bytes)?;
            let course = Course { what: name, hops, crowded: world.size() > cores(), bytes, effort };
            let outcomes = measure(&mut lockstep, &mut sides, &mut guests(&step, peer), course)?;
            lockstep.end()?;
            let absent = match peer {
                Peer::Missing(why) if step.guests.is_some() => Some(why.clone()),
                _ => None,
            };
            let over = mesh.map(Mesh::name);
            Ok(Heat { step, kind, ranks: world.size(), over, outcomes, least: effort.least, absent })
        };
        steps.iter().map(&mut heat).collect()
    })
}

fn follow(world: &World, mesh: Option<&Mesh>, steps: &[Step]) -> Result<()> {
    on_links(world, mesh, |links| {
        let mut lockstep = Lockstep::new(&links.shm)?;
        steps.iter().try_for_each(|step| lockstep.follow(&mut (step.sides)(links, step.bytes)?))
    })
}

/// Ties this rank to its core while it works on its transports. If it fails, the others are told.
fn on_links<R>(world: &World, mesh: Option<&Mesh>, work: impl FnOnce(&Links) -> Result<R>) -> Result<R> {
    let rank = world.rank().index();
    let _pinned = Pinned::to_core_of(rank);
    if cores() < world.size() && rank == 0 {
        let (ranks, cores) = (world.size(), cores());
        _ = writeln!(
            stderr(),
            "tilewire: {ranks} ranks share {cores} cores: these figures say how the system switches between them"
        );
    }
    let links = Links::rendezvous(world, mesh, ShmOptions { populate: true, ..Default::default() })?;
    let result = work(&links);
    match result {
        Ok(_) => links.close()?,
        Err(_) => links.mark_broken(Cause { code: AbortCode::Failed, rank, reason: 0 }),
    }
    result
}

fn guests<'m>(step: &Step, peer: &'m mut Peer) -> Vec<Guest<'m>> {
    match (step.guests, peer) {
        (Some((work, against)), Peer::Running(jobs)) => jobs
            .iter_mut()
            .filter(|(_, job)| !job.has_failed)
            .map(|(name, job)| Guest { name, work, against, job })
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_say_loop_or_mesh_for_ours_and_shared_memory_for_limits() {
        let racer = |protocol| Part::Racer { against: Limit::Moved, aim: Aim::None, protocol };
        let near = |name: &str, part| {
            let mut outcome = Outcome::new(name.into(), part);
            outcome.add(Place::Near, 5e6);
            outcome
        };
        let of = |over, kind| {
            let outcomes = vec![
                near("cached", Part::Limit(Limit::Moved)),
                near("staged", racer("staged")),
                near("Open MPI", racer(MPI)),
                near("staged copy", Part::Limit(Limit::Plain)),
            ];
            let (bytes, volume) = (64, Some(64));
            let step = Step { name: "gather", bytes, hops: 1.0, volume, sides: |_, _| Ok(Vec::new()), guests: None };
            let heat = Heat { step, kind, ranks: 2, over, outcomes, least: 1, absent: None };
            rows(&[heat]).iter().map(|row| row.transport).collect::<Vec<_>>()
        };
        let (shm, far) = ("shm threads", "mesh");
        assert_eq!(of(Some("mesh"), Kind::Threads), [shm, far, shm, far]);
        assert_eq!(of(None, Kind::Processes), ["shm processes"; 4]);
    }
}
