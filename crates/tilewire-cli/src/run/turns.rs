//! The turns of a run: new data, a launch, a check; and the table of results.

use super::case::{Peers, Transfer, prepare, protocol_name};
use super::collective::{Collective, prepare_all};
use super::mesh::Mesh;
use super::options::Run;
use super::worlds::{DEFAULT, Ranks, everywhere, in_processes};
use crate::bench::{Size, duration};
use crate::memory::{self, TooMuch};
use crate::table::Table;
use crate::verify::Engine;
use anyhow::Result;
use std::fmt::Write as _;
use std::io::{Write, stderr, stdout};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tilewire::RunError;
use tilewire::collective::PreparedExchange;
use tilewire::cuda::Device;
use tilewire::link::AnyTransport;
use tilewire::link::{NvlOptions, NvlTransport, ShmOptions, ShmTransport};
use tilewire::transport::layout::Geometry;
use tilewire::transport::{RankError, World};

/// Runs it; the status is success if every byte was right.
pub fn run(run: &Run) -> Result<ExitCode> {
    let are_processes = run.engine == Engine::Cpu && run.mesh.as_ref().is_some_and(Mesh::is_of_processes);
    let usual = if are_processes { Ranks::Processes } else { Ranks::Threads };
    let ranks = run.ranks.unwrap_or_else(|| usual.unless_launched());
    let fits = |mesh: &Mesh| mesh.fits(ranks == Ranks::Threads, ranks.name(), run.engine);
    if let Some(Err(why)) = run.mesh.as_ref().map(fits) {
        _ = writeln!(stderr(), "tilewire: {why}");
        return Ok(ExitCode::from(2));
    }
    if let Some(too_much) = enough_memory(run, run.count.unwrap_or(DEFAULT)).err().filter(|_| ranks != Ranks::Env) {
        _ = writeln!(stderr(), "tilewire: {too_much}");
        return Ok(ExitCode::from(2));
    }
    if let (Ranks::Processes, Some(mesh)) = (ranks, &run.mesh) {
        let count = run.count.unwrap_or(DEFAULT);
        let more = mesh.words_of_processes(count);
        return in_processes(count, &more.iter().map(String::as_str).collect::<Vec<_>>());
    }
    everywhere(ranks, run.count, &run.words(), |world| turns(world, run))
}

/// The result of one rank.
struct Outcome {
    /// The median of its launches.
    median: Duration,
    /// The first error.
    wrong: Option<String>,
}

fn turns(world: &World, run: &Run) -> Result<bool, RankError> {
    if !world.are_threads() {
        // Before the ranks meet, which is before any of them allocates.
        enough_memory(run, world.size())?;
    }
    let link = link_of(world, run)?;
    let held = turns_over(&link, world, run)?;
    link.close()?;
    Ok(held)
}

/// The text of the operation that rank 0 of some threads launches, after its launch: `text` selects the part.
pub fn text_of(run: &Run, text: impl Fn(&PreparedExchange<'_>) -> Result<String, RankError> + Sync) -> Result<String> {
    let ranks = World::threads(run.count.unwrap_or(2));
    let mut texts = ranks.run(|world| {
        let link = link_of(&world, run)?;
        let mut op = prepared(&link, &world, run)?;
        op.fill(0)?;
        op.launch()?;
        let text = op.prepared().filter(|_| world.rank().index() == 0).map_or(Ok(String::new()), &text)?;
        drop(op);
        link.close()?;
        Ok(text)
    })?;
    Ok(texts.swap_remove(0))
}

fn link_of(world: &World, run: &Run) -> Result<AnyTransport, RankError> {
    Ok(match (run.engine, &run.mesh) {
        (Engine::Cpu, Some(mesh)) => mesh.rendezvous(world, options(run, world.size()))?,
        (Engine::Cpu, None) => AnyTransport::from(ShmTransport::rendezvous(world, options(run, world.size()))?),
        (Engine::Cuda, mesh) => {
            let usual = NvlOptions::default();
            let max_blocks_per_peer = blocks(run, usual.geometry(world.size()), usual.geometry(2));
            let (device, options) = (gpu(world)?, NvlOptions { max_blocks_per_peer, ..usual });
            match mesh {
                Some(mesh) => mesh.rendezvous_on(world, &device, options)?,
                None => AnyTransport::from(NvlTransport::rendezvous(world, &device, options)?),
            }
        }
    })
}

fn options(run: &Run, ranks: usize) -> ShmOptions {
    let usual = ShmOptions::default();
    ShmOptions { max_blocks_per_peer: blocks(run, usual.geometry(ranks), usual.geometry(2)), ..usual }
}

/// Room for twice the requested blocks, since two phases have separate blocks: as much as `few` ranks have, if `usual`
/// has less. `None` if that is enough.
fn blocks(run: &Run, usual: Geometry, few: Geometry) -> Option<usize> {
    let wanted = run.plan.case.config.blocks.unwrap_or(1).saturating_mul(2).min(few.max_blocks_per_peer);
    (wanted > usual.max_blocks_per_peer).then_some(wanted)
}

/// Checks that there is memory for all ranks.
fn enough_memory(run: &Run, ranks: usize) -> Result<(), TooMuch> {
    let on_device = run.engine == Engine::Cuda;
    // Ranks that post have outboxes as large as the staging of their peers. Those of a GPU have both in the host's
    // memory.
    let posts = run.mesh.as_ref().is_some_and(|mesh| mesh.has_far(ranks));
    let between = match (on_device, posts) {
        (true, false) => 0,
        (true, true) => memory::of_segments(NvlOptions::default().geometry(ranks)).saturating_mul(2),
        (false, _) => {
            let segments = memory::of_segments(options(run, ranks).geometry(ranks));
            segments.saturating_mul(1 + u64::from(run.mesh.is_some()))
        }
    };
    let needed = run.plan.host_bytes(ranks, on_device).saturating_add(between);
    memory::check(needed, "--bytes or --ranks", || format!("{} by {ranks} ranks", run.plan))
}

fn prepared<'l>(link: &'l AnyTransport, world: &World, run: &Run) -> Result<Box<dyn Transfer + 'l>, RunError> {
    let (me, size) = (world.rank(), world.size());
    match run.plan.collective {
        // A ring shift: every rank sends to the next and receives from the one before.
        Collective::Sendrecv => {
            let peers = Peers { to: Some(me.after(1, size)), from: Some(me.after(size - 1, size)) };
            prepare(link, &run.plan.case, peers, run.seed)
        }
        _ => prepare_all(link, &run.plan, run.seed),
    }
}

/// The GPU of a rank: one each if there are enough, otherwise ranks share.
fn gpu(world: &World) -> Result<Arc<Device>, RankError> {
    let local = world.local_rank().unwrap_or(world.rank().index()) as u32;
    Ok(Device::open(local % Device::count()?.max(1))?)
}

fn turns_over(link: &AnyTransport, world: &World, run: &Run) -> Result<bool, RankError> {
    let (me, mut op) = (world.rank(), prepared(link, world, run)?);
    let (mut times, mut wrong) = (Vec::new(), None);
    for turn in 0..run.launches {
        op.fill(turn)?;
        // So that the launch is timed, and not the others' filling and checking.
        world.bootstrap().barrier("run/filled", world.deadline())?;
        let start = Instant::now();
        op.launch()?;
        times.push(start.elapsed());
        if let (Err(error), None) = (op.check(turn), &wrong) {
            wrong = Some(format!("rank {me}, launch {turn}: {error}"));
        }
    }
    times.sort();
    let own = Outcome { median: times[times.len() / 2], wrong };
    let all = world.bootstrap().all_gather("run/outcomes", &own.to_bytes(), world.deadline())?;
    drop(op);
    let all: Vec<Outcome> = all.iter().map(|bytes| Outcome::from_bytes(bytes)).collect();
    if me.index() == 0 {
        stdout().write_all(table(run, &all, world.are_threads()).as_bytes())?;
    }
    Ok(all.iter().all(|outcome| outcome.wrong.is_none()))
}

fn table(run: &Run, all: &[Outcome], threads: bool) -> String {
    let case = &run.plan.case;
    let wrong: Vec<&String> = all.iter().filter_map(|outcome| outcome.wrong.as_ref()).collect();
    let slowest = all.iter().map(|outcome| outcome.median).max().expect("at least one rank");
    let head = ["collective", "ranks", "bytes", "dtype", "hook", "protocol", "blocks", "launches", "median"];
    let mut table = Table::new(head, &[0, 1, 2, 3, 4, 5, 6, 7, 8]);
    table.row([
        run.plan.collective.name().to_string(),
        format!("{} {}", all.len(), if threads { "threads" } else { "processes" }),
        Size(case.len * case.dtype.size()).to_string(),
        case.dtype.to_string(),
        case.hook.name().to_string(),
        protocol_name(case.config.primitive).to_string(),
        case.config.blocks.unwrap_or(1).to_string(),
        run.launches.to_string(),
        duration(slowest.as_secs_f64() * 1e6),
    ]);
    let mut text = table.to_string();
    let over = run.mesh.as_ref().map_or(String::new(), |mesh| format!(" over {}", mesh.describe(all.len())));
    _ = writeln!(text, "{}{over}", if wrong.is_empty() { "every byte right" } else { "WRONG" });
    for wrong in wrong {
        _ = writeln!(text, "{wrong}");
    }
    text
}

impl Outcome {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = (self.median.as_nanos() as u64).to_le_bytes().to_vec();
        bytes.extend(self.wrong.iter().flat_map(|text| text.bytes()));
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Outcome {
        let (median, text) = bytes.split_first_chunk().expect("every rank runs this version");
        let wrong = String::from_utf8_lossy(text).into_owned();
        let median = Duration::from_nanos(u64::from_le_bytes(*median));
        Outcome { median, wrong: Some(wrong).filter(|text| !text.is_empty()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Command;
    use crate::table::WIDTH;

    #[test]
    fn a_wrong_result_is_told_with_its_rank() {
        let Ok(Command::Run(run)) = Command::parse(["run", "sendrecv"]) else { unreachable!() };
        let right = Outcome { median: Duration::from_micros(3), wrong: None };
        let wrong = Outcome { median: Duration::from_micros(5), wrong: Some("rank 1, launch 0: …".into()) };
        let all = [right, wrong].map(|outcome| Outcome::from_bytes(&outcome.to_bytes()));
        let text = table(&run, &all, true);
        assert!(text.contains("WRONG") && text.contains("rank 1, launch 0") && text.contains("5.00 µs"), "{text}");
        assert!(table(&run, &all[..1], true).ends_with("every byte right\n"));
    }

    #[test]
    fn tables_fit_a_hundred_columns() {
        let line =
            "run reduce_scatter --bytes 1000KiB --dtype f8e4m3 --hook accumulate --protocol staged --blocks 1024";
        let words = line.split(' ').chain(["--launches", "10000000"]);
        let Ok(Command::Run(run)) = Command::parse(words) else { unreachable!() };
        let all: Vec<_> = (0..64).map(|_| Outcome { median: Duration::from_millis(9990), wrong: None }).collect();
        let text = table(&run, &all, false);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.lines().count(), 3, "no cell goes on in the next line: {text}");
    }
}
