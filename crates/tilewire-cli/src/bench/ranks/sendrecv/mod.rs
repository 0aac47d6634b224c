//! `tilewire bench sendrecv`: two ranks; the messages, the limits and the targets.

mod limits;
pub(super) mod messages;
pub(super) mod ours;
mod table;

pub use table::table;

use super::contest::Effort;
use super::heats::{Arena, Heat, Sides, Step, hold};
use super::links::Links;
use super::mpi::Peer;
use super::side::{Aim, Limit, Part, Side};
use super::world::{self, Kind};
use crate::bench::Size;
use crate::run::Mesh;
use anyhow::Result;
use limits::Buffers;
use messages::Pattern;
use ours::Race;
use tilewire::Primitive;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// From here on messages both ways do not fit caches, and tables show how much of the time memory takes.
const STORES_FROM: usize = 64 * MIB;

/// One kind of work.
#[derive(Debug)]
pub struct Case {
    /// Its name for `--cases`.
    key: &'static str,
    /// Its name in reports.
    pub name: &'static str,
    /// The direction of messages.
    pub pattern: Pattern,
    /// The sizes measured; `--sizes` can change them if `is_sized`.
    sizes: &'static [usize],
    is_sized: bool,
    /// This rank's half of all sides. Collective.
    sides: Sides,
    /// The limit that MPI is compared with.
    guests: Option<Limit>,
}

impl Case {
    fn step(&self, bytes: usize) -> Step {
        let Case { name, pattern, sides, guests, .. } = *self;
        let volume = (pattern != Pattern::PingPong).then_some(bytes * pattern.directions());
        let guests = guests.map(|limit| (pattern.name(), limit));
        Step { name, bytes, hops: pattern.hops(), volume, sides, guests }
    }
}

const CASES: &[Case] = &[
    Case {
        key: "stream",
        name: "one way",
        pattern: Pattern::Stream,
        sizes: &[64 * KIB, MIB, 8 * MIB, 64 * MIB],
        is_sized: true,
        sides: stream,
        guests: Some(Limit::TwoCopy),
    },
    Case {
        key: "both",
        name: "both ways",
        pattern: Pattern::Both,
        sizes: &[MIB, 8 * MIB, 64 * MIB],
        is_sized: true,
        sides: both,
        guests: Some(Limit::OneCopy),
    },
    Case {
        key: "latency",
        name: "ping-pong",
        pattern: Pattern::PingPong,
        sizes: &[8, KIB],
        is_sized: false,
        sides: latency,
        guests: Some(Limit::CacheLine),
    },
    Case {
        key: "hooks",
        name: "one way, hooks",
        pattern: Pattern::Stream,
        sizes: &[8 * MIB],
        is_sized: false,
        sides: ours::hooked,
        guests: None,
    },
    Case {
        key: "waits",
        name: "ping-pong, waits",
        pattern: Pattern::PingPong,
        sizes: &[8, 64 * KIB],
        is_sized: false,
        sides: waits,
        guests: None,
    },
    Case {
        key: "launch",
        name: "launch",
        pattern: Pattern::Stream,
        sizes: &[0],
        is_sized: false,
        sides: |links, _| ours::launches(links),
        guests: None,
    },
];

fn stream<'l>(links: &'l Links, bytes: usize) -> Result<Vec<Side<'l>>> {
    let buffers = Buffers::allocate(links, Pattern::Stream, bytes)?;
    let mut sides = buffers.two_copy()?;
    sides.extend(buffers.one_copy());
    sides.extend(buffers.half_each());
    let staged = Race::new("staged", Primitive::Staged, Limit::TwoCopy, Aim::Ratio(0.9));
    let direct = Race::new("direct", Primitive::Direct, Limit::OneCopy, Aim::Ratio(0.9));
    sides.extend(ours(links, &buffers, &[staged, direct])?);
    Ok(sides)
}

fn both<'l>(links: &'l Links, bytes: usize) -> Result<Vec<Side<'l>>> {
    let buffers = Buffers::allocate(links, Pattern::Both, bytes)?;
    let mut sides = buffers.one_copy();
    if bytes >= STORES_FROM {
        sides.extend(buffers.stores_alone());
    }
    sides.extend(buffers.two_copy()?);
    let aim = if bytes < MIB { Aim::Ratio(0.9) } else { Aim::Ahead { times: 2.0, ratio: Some(0.9) } };
    let direct = Race::new("direct", Primitive::Direct, Limit::OneCopy, aim);
    let staged = Race::new("staged", Primitive::Staged, Limit::TwoCopy, Aim::None);
    sides.extend(ours(links, &buffers, &[direct, staged])?);
    Ok(sides)
}

fn latency<'l>(links: &'l Links, bytes: usize) -> Result<Vec<Side<'l>>> {
    let buffers = Buffers::allocate(links, Pattern::PingPong, bytes)?;
    // A message of many lines cannot arrive before its first: the limit of one word holds for it as well.
    let mut sides = vec![Buffers::allocate(links, Pattern::PingPong, 8)?.cache_line()];
    sides.extend(buffers.small_message()?);
    let aim = if bytes == 8 { Aim::Time(0.10, Some(0.35)) } else { Aim::Time(0.2, None) };
    let packet = Race::new("packet", Primitive::Packet, Limit::CacheLine, Aim::None);
    let default = Race { name: "default", primitive: None, aim, ..packet };
    let staged = Race { name: "staged", primitive: Some(Primitive::Staged), ..packet };
    sides.extend(ours(links, &buffers, &[default, packet, staged])?);
    Ok(sides)
}

/// Our sides. Over a mesh, only those without packets and windows, which far peers do not have; targets are for shared
/// memory.
fn ours<'l>(links: &Links, buffers: &Buffers<'l>, races: &[Race]) -> Result<Vec<Side<'l>>> {
    let is_mesh = links.mesh().is_some();
    let fits = |race: &&Race| !is_mesh || matches!(race.primitive, None | Some(Primitive::Staged));
    let aimed = |race: &Race| if is_mesh { Race { aim: Aim::None, ..*race } } else { *race };
    races.iter().filter(fits).map(|race| aimed(race).side(buffers)).collect()
}

/// The cost of watching the clock.
fn waits<'l>(links: &'l Links, bytes: usize) -> Result<Vec<Side<'l>>> {
    let buffers = Buffers::allocate(links, Pattern::PingPong, bytes)?;
    let in_packets = bytes <= KIB && !links.has_far();
    let primitive = if in_packets { Primitive::Packet } else { Primitive::Staged };
    let race = Race::new("deadline and abort", primitive, Limit::Plain, Aim::Ratio(0.98));
    let mut plain = Race { name: "without", deadline: false, ..race }.side(&buffers)?;
    plain.part = Part::Limit(Limit::Plain);
    Ok(vec![plain, race.side(&buffers)?])
}

/// What to measure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of the messages, if not the defaults.
    pub sizes: Option<Vec<Size>>,
    /// Keys of the cases; all if empty.
    pub cases: Vec<String>,
    /// Threads or processes; both if `None`.
    pub world: Option<Kind>,
    /// The domains of ranks that post to each other, if they do. They are threads.
    pub mesh: Option<Mesh>,
    /// True to only test that it works.
    pub quick: bool,
}

/// Rejects a word that is not the key of a case.
pub fn check_key(key: &str) -> Result<(), String> {
    let keys: Vec<&str> = CASES.iter().map(|case| case.key).collect();
    if keys.contains(&key) { Ok(()) } else { Err(format!("there is no case '{key}'; there are: {}", keys.join(", "))) }
}

impl Plan {
    /// The worlds to measure in. A process that is a rank has been told which one.
    pub fn worlds(&self) -> Vec<Kind> {
        match self.world {
            Some(kind) => vec![kind],
            None if world::is_rank() => vec![Kind::Processes],
            None => vec![Kind::Threads, Kind::Processes],
        }
    }

    /// The arguments that make another process measure the same, as a rank.
    fn words(&self) -> Vec<String> {
        let mut words: Vec<String> = ["bench", "sendrecv", "--world", "processes"].map(String::from).to_vec();
        if let Some(sizes) = &self.sizes {
            let sizes: Vec<String> = sizes.iter().map(Size::to_string).collect();
            words.extend(["--sizes".into(), sizes.join(",")]);
        }
        if !self.cases.is_empty() {
            words.extend(["--cases".into(), self.cases.join(",")]);
        }
        words.extend(self.mesh.iter().flat_map(|mesh| mesh.words(2)));
        words.extend(self.quick.then(|| "--quick".into()));
        words
    }

    fn steps(&self) -> Vec<Step> {
        let wanted = |case: &&Case| self.cases.is_empty() || self.cases.iter().any(|key| key == case.key);
        let sizes = |case: &'static Case| -> Vec<usize> {
            match &self.sizes {
                Some(sizes) if case.is_sized => sizes.iter().map(|size| size.0.next_multiple_of(8)).collect(),
                // Small sizes suffice to test that it works.
                _ if self.quick => {
                    let mut sizes: Vec<usize> = case.sizes.iter().map(|&size| size.min(MIB)).collect();
                    sizes.dedup();
                    sizes
                }
                _ => case.sizes.to_vec(),
            }
        };
        CASES.iter().filter(wanted).flat_map(|case| sizes(case).into_iter().map(|bytes| case.step(bytes))).collect()
    }

    fn effort(&self) -> Effort {
        if self.quick { Effort::QUICK } else { Effort::FULL }
    }
}

/// Measures in one world; only rank 0 has results.
pub fn run(plan: &Plan, kind: Kind, peer: Peer) -> Result<Vec<Heat>> {
    let (mesh, effort, words) = (plan.mesh.clone(), plan.effort(), plan.words());
    hold(&plan.steps(), Arena { kind, ranks: 2, mesh, effort, peer, words })
}

#[cfg(test)]
mod tests {
    use super::super::place::Place;
    use super::*;
    use crate::bench::{Bench, Reports, Subject};
    use crate::cli::Command;
    use tilewire::link::ShmOptions;
    use tilewire::transport::World;

    fn plan(cases: &[&str], sizes: &[usize]) -> Plan {
        let sizes = (!sizes.is_empty()).then(|| sizes.iter().copied().map(Size).collect());
        Plan {
            sizes,
            cases: cases.iter().map(|key| key.to_string()).collect(),
            world: Some(Kind::Threads),
            mesh: None,
            quick: true,
        }
    }

    #[test]
    fn every_case_has_the_sizes_it_is_about() {
        let steps = |plan: &Plan| plan.steps().iter().map(|step| (step.name, step.bytes)).collect::<Vec<_>>();
        assert_eq!(
            steps(&plan(&["stream", "latency"], &[])),
            [("one way", 65536), ("one way", 1 << 20), ("ping-pong", 8), ("ping-pong", 1024)]
        );
        assert_eq!(
            steps(&plan(&["both", "latency"], &[100])),
            [("both ways", 104), ("ping-pong", 8), ("ping-pong", 1024)]
        );
        assert_eq!(Plan::default().steps().len(), CASES.iter().map(|case| case.sizes.len()).sum::<usize>());
        assert!(check_key("stream").is_ok());
        assert!(check_key("fly").unwrap_err().contains("latency"));
    }

    #[test]
    fn a_rank_is_told_the_plan_in_words() {
        for plan in [plan(&["both"], &[64, 4096]), plan(&[], &[]), Plan { quick: false, ..plan(&[], &[8]) }] {
            let expected = Plan { world: Some(Kind::Processes), ..plan.clone() };
            let bench = Bench { subject: Subject::Sendrecv(expected), reports: Reports::default(), plot: None };
            assert_eq!(Command::parse(plan.words()).unwrap(), Command::Bench(bench));
        }
    }

    /// At any size: contests include them only if they take long.
    #[test]
    fn stores_alone_write_what_one_copy_writes() {
        let worked = World::threads(2).run(|world| {
            let links = Links::rendezvous(&world, None, ShmOptions::default())?;
            let sides = Buffers::allocate(&links, Pattern::Both, MIB)?.stores_alone();
            assert!(!sides.is_empty());
            for mut side in sides {
                side.run.fill();
                side.run.run(3)?;
                side.run.verify()?;
            }
            Ok(links.close()?)
        });
        worked.unwrap();
    }

    /// Small messages of every side, checked and measured. Places depend on the machine: a busy one may have none.
    #[test]
    fn limits_are_checked_and_measured() {
        let plan = plan(&[], &[8, 4096, 600 << 10]);
        let heats = run(&plan, Kind::Threads, Peer::Missing("not asked".into())).unwrap();
        assert_eq!(heats.len(), plan.steps().len());
        for heat in &heats {
            // Every racer has something to race against.
            for outcome in &heat.outcomes {
                let Part::Racer { against, .. } = outcome.part else { continue };
                assert!(heat.outcomes.iter().any(|other| other.is(against)), "{} {against:?}", heat.step.name);
            }
            for outcome in &heat.outcomes {
                assert!(
                    Place::ALL.map(|place| outcome.count(place)).iter().sum::<usize>() <= plan.effort().rounds.most
                );
            }
        }
        let text = table(&heats);
        for word in ["one way", "both ways", "ping-pong", "two-copy limit", "one-copy limit", "not asked", "600KiB"] {
            assert!(text.contains(word), "no '{word}' in\n{text}");
        }
    }
}
