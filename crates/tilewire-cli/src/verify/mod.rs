//! `tilewire verify`: an engine against the reference evaluator, and the collectives against plain computations, bit
//! for bit.
//!
//! In: the number of random programs of the whole language, their seed and engine; the numbers of ranks. Out: a table,
//! and a line for every program or collective that differs, with the arguments to reproduce it. On a GPU also rings of
//! virtual ranks: several ranks on one device, each on its own stream, that wait for each other.

mod collectives;
mod fields;
mod graphs;
mod meets;
mod order;
mod posts;
mod ring;
mod shifts;
mod unequal;

pub use self::collectives::quick_plans;
use self::collectives::{Asked, collectives, collectives_of};
use crate::cli::{collective, listing};
use crate::launch::MOST_RANKS;
use crate::run::{Apart, Collective, CpuWire, Mesh, Network, Ranks, Shuffle, Word, everywhere, in_processes};
use crate::table::hanging;
use anyhow::{Error, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tilewire::check;
use tilewire::cuda::{CudaError, Device};
use tilewire::transport::{RankError, World};
use tilewire::vm::Prepared;
use tilewire_testkit::copied;
use tilewire_testkit::programs::{Hosted, ParamSpec, Program};
use tilewire_testkit::random::Random;

/// The engine of the programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Engine {
    /// The CPU engine.
    Cpu,
    /// The GPU engine; the CPU engine runs the same programs.
    Cuda,
}

impl Engine {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Cpu => "cpu",
            Engine::Cuda => "cuda",
        }
    }
}

/// What to verify.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Only these collectives; everything if none is named
    #[arg(value_name = "COLLECTIVE", value_parser = collective(), hide_possible_values = true,
        help = listing("Only these collectives [default: everything]", &Collective::ALL.map(Collective::name)))]
    pub only: Vec<Collective>,
    /// The engine of the programs and the collectives
    #[arg(long, value_enum, default_value_t = Engine::Cpu)]
    pub engine: Engine,
    /// Number of random programs
    #[arg(long, value_name = "N", default_value_t = 200, conflicts_with = "only")]
    pub programs: u64,
    /// Random transfers for each number of ranks, on a GPU
    #[arg(long, value_name = "N", default_value_t = 60, conflicts_with = "only")]
    pub shifts: usize,
    /// Replays of captured transfers, on a GPU
    #[arg(long, value_name = "N", default_value_t = 1000, conflicts_with = "only")]
    pub replays: u64,
    /// Random programs of several operations, launched in another order by one rank of a GPU; every second one is
    /// captured
    #[arg(
        long,
        value_name = "N",
        default_value_t = 40,
        conflicts_with = "only",
        help = "Programs of operations that one rank of a GPU launches in another order"
    )]
    pub orders: u64,
    /// Number of the first random program, and seed of samples and data
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Numbers of ranks
    #[arg(long, value_name = "LIST", value_delimiter = ',', overrides_with = "ranks", value_parser = number_of_ranks,
        help = "Numbers of ranks [default: 1,2,3,4,5,8, or as many as --domains has]")]
    pub ranks: Vec<usize>,
    /// Plans of collectives for each number of ranks [default: all on the CPU, 150 on a GPU]
    #[arg(long, value_name = "N", conflicts_with = "share")]
    pub sample: Option<usize>,
    /// The Kth of N parts of all plans of collectives, for several runs; 1/1 is all
    #[arg(long, value_name = "K/N", value_parser = share)]
    pub share: Option<(usize, usize)>,
    /// Where the ranks of the collectives run; as processes, nothing else is verified
    #[arg(long, value_enum, default_value_t = Ranks::Threads)]
    pub world: Ranks,
    /// The transport; over loop, mesh and fabric, only collectives are verified. On CPUs, ranks over fabric are
    /// processes
    #[command(flatten)]
    pub wire: CpuWire,
    /// The domains of a mesh
    #[command(flatten)]
    pub apart: Apart,
    /// The network of a mesh
    #[command(flatten)]
    pub network: Network,
    /// The reordering of posts
    #[command(flatten)]
    pub shuffle: Shuffle,
    /// Every schedule with each of K seeds of --shuffle, from its value on, instead of all plans
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..=1_000_000),
        help = "Every schedule with K seeds, from that of --shuffle on, instead of all plans")]
    pub seeds: Option<u64>,
    /// Few types and sizes of the collectives
    #[arg(long)]
    pub quick: bool,
    /// Report the progress of the collectives in lines on stderr, even if it is no terminal
    #[arg(long)]
    pub progress: bool,
}

/// The numbers of ranks, if none are given.
const RANKS: [usize; 6] = [1, 2, 3, 4, 5, 8];

/// Plans of collectives on a device for each number of ranks, by default: each is a separate kernel there.
const DEVICE_SAMPLE: usize = 150;

/// Copies of a role on a device.
const COPIES: usize = 4;

/// Bytes of a message by posts that is much larger than all staging.
const LARGE: usize = 1 << 30;

/// Parses one number of a list, which may have spaces.
pub fn number_of_ranks(text: &str) -> Result<usize, String> {
    let number = text.trim().parse().ok().filter(|number| (1..=MOST_RANKS as usize).contains(number));
    number.ok_or_else(|| format!("write numbers from 1 to {MOST_RANKS}, as 1,2,4"))
}

/// Parses `K/N`, K from 1 to N, as the number from 0 and N.
fn share(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').and_then(|(k, n)| Some((k.parse::<usize>().ok()?, n.parse::<usize>().ok()?)));
    match numbers {
        Some((k, n)) if (1..=n).contains(&k) => Ok((k - 1, n)),
        _ => Err("write K/N, the Kth of N, as 1/8".into()),
    }
}

#[cfg(test)]
impl Default for Request {
    /// The options of a run without arguments.
    fn default() -> Request {
        match crate::cli::Command::parse(["verify"]) {
            Ok(crate::cli::Command::Verify(request)) => request,
            other => panic!("{other:?}"),
        }
    }
}

/// The result of one program on one engine.
enum Outcome {
    Agrees,
    /// The engine reports that it cannot run it, and why.
    Refused(String),
    Differs(String),
}

/// Longer than any wait of a program takes.
const DEADLINE: Duration = Duration::from_secs(10);

impl Request {
    fn device(&self) -> Result<Option<Arc<Device>>, CudaError> {
        match self.engine {
            Engine::Cpu => Ok(None),
            Engine::Cuda => Device::open(0).map(Some),
        }
    }

    fn asked<'d>(&'d self, device: Option<&'d Arc<Device>>) -> Asked<'d> {
        let sample = self.sample.or_else(|| device.filter(|_| self.samples_unasked()).map(|_| DEVICE_SAMPLE));
        let (quick, only, share) = (self.quick, self.only.as_slice(), self.share.unwrap_or((0, 1)));
        let (seed, progress) = (self.seed, self.progress);
        let schedules = self.seeds.is_some();
        Asked { quick, only, sample, share, seed, progress, device, mesh: None, schedules, copies: COPIES }
    }

    /// The request with its defaults, or why it is impossible: options depend on each other.
    pub fn checked(mut self) -> Result<Request, String> {
        let mesh = self.mesh()?;
        match &mesh {
            None if self.seeds.is_some() => {
                return Err("--seeds is for --transport loop or mesh: shm has no posts to reorder".into());
            }
            None if self.wire.transport.is_some() && self.engine == Engine::Cuda => {
                return Err("--engine cuda does not go over --transport shm".into());
            }
            None => {}
            Some(mesh) => {
                if mesh.is_of_processes() && self.engine == Engine::Cpu && self.world == Ranks::Threads {
                    self.world = Ranks::Processes.unless_launched();
                }
                mesh.fits(self.world == Ranks::Threads, self.world.name(), self.engine)?;
                if self.ranks.is_empty() {
                    self.ranks.extend(mesh.count(None)?);
                }
                self.ranks.iter().try_for_each(|&ranks| mesh.count(Some(ranks)).map(|_| ()))?;
            }
        }
        if self.ranks.is_empty() {
            self.ranks = RANKS.to_vec();
        }
        Ok(self)
    }

    /// The domains of ranks that post to each other, if they do.
    fn mesh(&self) -> Result<Option<Mesh>, String> {
        self.network.of(Mesh::of(self.wire.transport, self.apart.clone(), self.shuffle)?)
    }

    /// The mesh for each seed of reordering.
    fn meshes(&self) -> Vec<Option<Mesh>> {
        let mesh = self.mesh().expect("a checked request");
        let first = self.shuffle.shuffle.unwrap_or(1);
        let with = |seed| mesh.as_ref().map(|mesh| mesh.shuffled(seed));
        self.seeds.map_or_else(|| vec![mesh.clone()], |seeds| (0..seeds).map(|k| with(first.wrapping_add(k))).collect())
    }
}

impl Request {
    /// True if it takes a sample although the user did not ask for one.
    fn samples_unasked(&self) -> bool {
        self.engine == Engine::Cuda && self.sample.is_none() && self.share.is_none()
    }

    /// The options that all ranks of a job must share: they make the same plans.
    fn words(&self) -> Vec<Word> {
        let only: Vec<&str> = self.only.iter().map(|collective| collective.name()).collect();
        let share = self.share.map(|(k, n)| format!("{}/{n}", k + 1));
        vec![
            Word::new("verify", if only.is_empty() { "all collectives".to_string() } else { only.join(" ") }),
            Word::new("--engine", self.engine.name()),
            Word::new("--seed", self.seed),
            Word::new("--quick", if self.quick { "yes" } else { "no" }),
            Word::given("--sample", self.sample),
            Word::given("--share", share),
        ]
    }

    /// The note about that in the report.
    fn sample_note(&self) -> Option<String> {
        self.samples_unasked().then(|| {
            format!(
                "a sample: {DEVICE_SAMPLE} plans of collectives for each number of ranks, by seed {}; all of them: --share 1/1, or --share K/N \
                 in N runs",
                self.seed
            )
        })
    }
}

/// Verifies; status 1 if anything differs, or is refused that should work.
pub fn verify(request: &Request) -> Result<ExitCode> {
    match request.world {
        Ranks::Threads => all(request),
        Ranks::Env => everywhere(Ranks::Env, None, &request.words(), |world| rank(world, request)),
        Ranks::Processes => {
            // A rank's stderr is a pipe to this process, which passes on whole lines.
            let progress = stderr().is_terminal().then_some("--progress");
            one_by_one(&request.ranks, |ranks| {
                let number = ranks.to_string();
                let mesh = request.mesh().expect("a checked request").map(|mesh| mesh.words_of_processes(ranks));
                let mesh = mesh.iter().flatten().map(String::as_str);
                let more: Vec<&str> = ["--ranks", &number].into_iter().chain(progress).chain(mesh).collect();
                in_processes(ranks, &more)
            })
        }
    }
}

/// Runs with every number of ranks: an error with one says nothing about the others. The status is the first failing
/// one.
fn one_by_one(ranks: &[usize], run: impl Fn(usize) -> Result<ExitCode>) -> Result<ExitCode> {
    let mut failed = Vec::new();
    for &ranks in ranks {
        let status = run(ranks)?;
        if status != ExitCode::SUCCESS {
            failed.push((ranks.to_string(), status));
        }
    }
    let Some((_, status)) = failed.first() else { return Ok(ExitCode::SUCCESS) };
    let numbers: Vec<&str> = failed.iter().map(|(ranks, _)| ranks.as_str()).collect();
    _ = writeln!(stderr(), "tilewire: does not hold with these numbers of processes: {}", numbers.join(", "));
    Ok(*status)
}

/// The collectives, as one of the processes of a job.
fn rank(world: &World, request: &Request) -> Result<bool, RankError> {
    let (start, device) = (Instant::now(), request.device()?);
    let mesh = request.mesh().expect("a checked request");
    let outcomes = collectives_of(world, Asked { mesh: mesh.as_ref(), ..request.asked(device.as_ref()) })?;
    let mut tally = Tally::default();
    for (collective, outcome) in Collective::ALL.into_iter().zip(outcomes) {
        tally.collective(collective.name(), outcome);
    }
    if world.rank().index() == 0 {
        writeln!(stdout(), "{} processes", world.size())?;
        request.sample_note().into_iter().try_for_each(|note| writeln!(stdout(), "{}", hanging("", &note)))?;
        tally.print(start)?;
    }
    Ok(tally.holds())
}

/// Everything, in this process.
fn all(request: &Request) -> Result<ExitCode> {
    let device = request.device()?;
    let mut out = stdout();
    if let Some(device) = &device {
        writeln!(out, "{} ({}, {} multiprocessors)", device.name(), device.target(), device.multiprocessors())?;
    }
    if let Some(note) = request.sample_note() {
        writeln!(out, "{}", hanging("", &note))?;
    }
    let start = Instant::now();
    let mut tally = Tally::default();
    let meshes = request.meshes();
    // Programs of one rank know no transport.
    if request.only.is_empty() && meshes[0].is_none() {
        programs(request, device.as_ref(), &mut tally);
        if let Some(device) = &device {
            on_device(request, device, &mut tally);
        }
    }
    for (&ranks, mesh) in request.ranks.iter().flat_map(|ranks| meshes.iter().map(move |mesh| (ranks, mesh))) {
        let asked = Asked { mesh: mesh.as_ref(), ..request.asked(device.as_ref()) };
        // Posts are tried with as many warps as fit a block, too: half of the plans have roles without copies.
        let posts_on_device = device.is_some() && asked.has_far(ranks);
        let halves = if posts_on_device { &[COPIES, 1][..] } else { &[COPIES] };
        for (k, &copies) in halves.iter().enumerate() {
            let sample = asked.sample.map(|sample| sample.div_ceil(halves.len()));
            let asked = Asked { copies, sample, seed: asked.seed.wrapping_add(k as u64), ..asked };
            let among = |error: Error| anyhow!("{}: {error}", asked.among(ranks));
            let outcomes = collectives(ranks, asked).map_err(among)?;
            for (collective, outcome) in Collective::ALL.into_iter().zip(outcomes) {
                tally.collective(collective.name(), outcome);
            }
        }
        if let (Some(device), Some(mesh), true) = (&device, mesh, posts_on_device && request.only.is_empty()) {
            let replays = posts::replays(device, mesh, ranks, request.replays);
            tally.count("cuda, graphs of posts", outcome(&asked.among(ranks), replays));
            let bad = posts::bad_post(device, mesh, ranks);
            tally.count("cuda, posts that fail", outcome(&format!("a bad post, {}", asked.among(ranks)), bad));
            let missing = posts::missing_peer(device, mesh, ranks);
            tally.count("cuda, posts that fail", outcome(&format!("no far peer, {}", asked.among(ranks)), missing));
            let large = posts::large(device, mesh, ranks, LARGE);
            tally.count("cuda, a GiB by posts", outcome(&asked.among(ranks), large));
        }
    }
    tally.print(start)?;
    if tally.rows.values().all(|row| row[0] == 0) {
        bail!("nothing was compared");
    }
    Ok(if tally.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Random programs, on all processors of this machine.
fn programs(request: &Request, device: Option<&Arc<Device>>, tally: &mut Tally) {
    let (next, tally) = (AtomicU64::new(0), Mutex::new(tally));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= request.programs {
                break;
            }
            let mut random = Random::new(request.seed.wrapping_add(number));
            let (seed, sections) = (random.next(), 1 + random.below_u64(5));
            for (engine, outcome) in judge(seed, sections, device) {
                tally.lock().expect("no panic while it is held").count(engine, outcome);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..std::thread::available_parallelism().map_or(1, usize::from) {
            // A helper that cannot be started is not needed: this thread works too.
            _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

fn outcome(what: &str, result: Result<()>) -> Outcome {
    match result {
        Ok(()) => Outcome::Agrees,
        Err(error) => Outcome::Differs(format!("{what}: {error:#}")),
    }
}

/// Tests for a GPU only: graphs, impossible launches, rings of virtual ranks and random transfers among them.
fn on_device(request: &Request, device: &Arc<Device>, tally: &mut Tally) {
    tally.count("cuda, graphs and failures", outcome("replays", graphs::replays(device, request.replays)));
    tally.count("cuda, graphs and failures", outcome("captures", graphs::refusals(device)));
    tally.count("cuda, graphs and failures", outcome("a peer that never comes", graphs::missing_peer(device)));
    tally.count("cuda, graphs and failures", outcome("too many blocks", graphs::too_many_blocks(device)));
    for k in 0..request.orders {
        let (seed, captured) = (request.seed ^ k << 20, k % 2 == 1);
        let went = order::program(device, seed, captured).map(|_| ());
        tally.count("cuda, launches in other orders", outcome("several operations", went));
    }
    for captured in [false, true].into_iter().filter(|_| request.orders > 0) {
        let what = format!("three ranks that wait for each other in a ring, captured {captured}");
        tally.count("cuda, launches in other orders", outcome(&what, order::ring(device, captured)));
    }
    for (waits, captured) in order::HOST_WAITS.into_iter().filter(|_| request.orders > 0) {
        let what = format!("a kernel and a host that wait for each other, {waits:?}, captured {captured}");
        tally.count("cuda, kernels and hosts", outcome(&what, order::host(device, waits, captured)));
    }
    for _ in 0..request.orders.min(5) {
        tally.count("cuda, kernels and hosts", outcome("a rank that is late", order::late(device)));
    }
    for &ranks in &request.ranks {
        for blocks in [1, 4] {
            let what = format!("ring of {ranks} ranks, {blocks} blocks");
            tally.count("cuda, rings of virtual ranks", outcome(&what, ring::ring(device, ranks, blocks)));
        }
        for case in shifts::cases(ranks, request.seed, request.shifts) {
            let what = format!("sendrecv among {ranks} ranks, {case}");
            tally.count("cuda, sendrecv", outcome(&what, shifts::shift(device, ranks, &case, request.seed)));
        }
    }
}

/// Counts of outcomes by engine.
#[derive(Default)]
struct Tally {
    /// Agree, refused, differ.
    rows: BTreeMap<&'static str, [u64; 3]>,
    /// The failures by reason: the count, and the first one in full. The reason is without its figures, which differ
    /// from program to program.
    refusals: BTreeMap<String, (u64, String)>,
    /// Plans that were refused and should not have been.
    denials: Vec<String>,
    differences: Vec<String>,
}

/// Lines of each kind of fault that are kept.
const MOST_LINES: usize = 20;

impl Tally {
    fn text(&self) -> String {
        let mut text = format!("{:<30}{:>8}{:>8}{:>9}{:>9}\n", "engine", "cases", "agree", "refused", "differ");
        for (engine, row) in &self.rows {
            let [agree, refused, differ] = *row;
            _ = writeln!(text, "{engine:<30}{:>8}{agree:>8}{refused:>9}{differ:>9}", agree + refused + differ);
        }
        for (times, example) in self.refusals.values() {
            _ = match times {
                1 => writeln!(text, "refused once: {example}"),
                _ => writeln!(text, "refused {times} times, as in: {example}"),
            };
        }
        for what in &self.denials {
            _ = writeln!(text, "REFUSED {what}");
        }
        for what in &self.differences {
            _ = writeln!(text, "DIFFERS {what}");
        }
        text
    }

    fn print(&self, start: Instant) -> std::io::Result<()> {
        writeln!(stdout(), "{}{:.1} s", self.text(), start.elapsed().as_secs_f32())
    }

    fn holds(&self) -> bool {
        self.denials.is_empty() && self.rows.values().all(|row| row[2] == 0)
    }

    fn collective(&mut self, name: &'static str, outcome: collectives::Outcome) {
        let collectives::Outcome { agree, refused, denied, differ } = outcome;
        // It was not requested in this world.
        if agree == 0 && refused.is_empty() && denied.is_empty() && differ.is_empty() {
            return;
        }
        let row = self.rows.entry(name).or_default();
        row[0] += agree;
        row[1] += denied.len() as u64;
        let room = MOST_LINES.saturating_sub(self.denials.len());
        self.denials.extend(denied.into_iter().take(room).map(|what| format!("{name}: {what}")));
        refused.into_iter().for_each(|why| self.count(name, Outcome::Refused(why)));
        differ.into_iter().for_each(|what| self.count(name, Outcome::Differs(what)));
    }

    fn count(&mut self, engine: &'static str, outcome: Outcome) {
        let row = self.rows.entry(engine).or_default();
        match outcome {
            Outcome::Agrees => row[0] += 1,
            Outcome::Refused(reason) => {
                row[1] += 1;
                let kind: String = reason.chars().filter(|c| !c.is_ascii_digit()).collect();
                self.refusals.entry(kind).or_insert((0, reason)).0 += 1;
            }
            Outcome::Differs(what) => {
                row[2] += 1;
                if self.differences.len() < MOST_LINES {
                    self.differences.push(format!("{engine}: {what}"));
                }
            }
        }
    }
}

/// Runs one program by definition and on the engines.
fn judge(seed: u64, sections: u64, device: Option<&Arc<Device>>) -> Vec<(&'static str, Outcome)> {
    let program = Program::new(seed, sections);
    let name = format!("Program::new({seed:#x}, {sections})");
    let (binding, memories) = program.bind();
    let expected = match check::run(&program.kernel, &binding, memories, check::Options::default()) {
        Ok(after) => program.results(&binding, &after),
        Err(error) => return vec![("evaluator", Outcome::Differs(format!("{name}: {error}")))],
    };
    let mut outcomes = Vec::new();
    let hosted = Hosted::new(&program);
    if let Some(device) = device {
        let outcome = match copied::evaluate(device, &program.kernel, &hosted.args, Some(DEADLINE)) {
            Ok(results) => compare(&name, &program, &program.comparable(results), &expected),
            Err(CudaError::Ptx(error)) => Outcome::Refused(error.to_string()),
            Err(error) => Outcome::Differs(format!("{name}: {error}")),
        };
        outcomes.push(("cuda, random programs", outcome));
    }
    let ran = Prepared::new(&program.kernel, &hosted.args)
        .map_err(|error| error.to_string())
        .and_then(|mut op| op.run().map_err(|error| error.to_string()));
    outcomes.push(match ran {
        Ok(()) => ("cpu, random programs", compare(&name, &program, &hosted.results(&program), &expected)),
        Err(error) => ("cpu, random programs", Outcome::Differs(format!("{name}: {error}"))),
    });
    outcomes
}

fn compare(name: &str, program: &Program, got: &[Vec<Vec<u8>>], expected: &[Vec<Vec<u8>>]) -> Outcome {
    for (p, (got, expected)) in got.iter().zip(expected).enumerate() {
        if let ParamSpec::Scalar { .. } = program.params[p] {
            continue;
        }
        for (bank, (got, expected)) in got.iter().zip(expected).enumerate() {
            if let Some(k) = (0..got.len().max(expected.len())).find(|&k| got.get(k) != expected.get(k)) {
                let part = |bytes: &[u8]| format!("{:02x?}", &bytes[k.min(bytes.len())..(k + 8).min(bytes.len())]);
                return Outcome::Differs(format!(
                    "{name}: parameter {p} bank {bank} byte {k}: {} instead of {}",
                    part(got),
                    part(expected)
                ));
            }
        }
    }
    Outcome::Agrees
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn one_number_of_processes_that_fails_does_not_keep_the_others_from_being_tried() {
        let tried = RefCell::new(Vec::new());
        let run = |ranks| {
            tried.borrow_mut().push(ranks);
            Ok(if ranks == 2 { ExitCode::from(3) } else { ExitCode::SUCCESS })
        };
        assert_eq!(one_by_one(&[1, 2, 4], run).unwrap(), ExitCode::from(3));
        assert_eq!(*tried.borrow(), [1, 2, 4]);
        assert_eq!(one_by_one(&[1, 4], run).unwrap(), ExitCode::SUCCESS);
    }

    #[test]
    fn a_reason_that_is_refused_often_is_said_once_with_its_numbers() {
        let mut tally = Tally::default();
        for shard in [30, 31, 33] {
            tally.count("all_reduce", Outcome::Refused(format!("shards of {shard} elements, groups of 4")));
        }
        tally.count("all_reduce", Outcome::Refused("9 blocks".into()));
        let text = tally.text();
        assert!(text.contains("refused 3 times, as in: shards of 30 elements, groups of 4\n"), "{text}");
        assert!(text.contains("refused once: 9 blocks\n"), "{text}");
    }

    #[test]
    fn a_sample_that_nobody_asked_for_is_said_to_be_one() {
        let cuda = Request { engine: Engine::Cuda, ..Request::default() };
        let note = cuda.sample_note().unwrap();
        assert!(note.contains("150 plans") && note.contains("--share 1/1"), "{note}");
        for asked in [Request { share: Some((0, 1)), ..cuda.clone() }, Request { sample: Some(3), ..cuda.clone() }] {
            assert_eq!(asked.sample_note(), None);
        }
        assert_eq!(Request::default().sample_note(), None);
    }
}
