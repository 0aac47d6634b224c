//! The arguments of `tilewire bench`.

use super::ranks::{COLLECTIVES, CollectivePlan, Kind, NetworkPlan, NetworkWork, PairPlan, check_pair_key};
use super::{Bench, Size, Subject, gpu, kernels};
use crate::run::{Apart, CpuWire, Mesh, Network, Shuffle};
use crate::verify::Engine;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};

/// The largest size that `bench kernels` accepts: its buffers are up to five times as large, and indices are 32 bits
/// wide.
const LARGEST: Size = Size(4 << 30);
/// The largest message of ranks: there are about twelve of them, and six more for every MPI.
const LARGEST_MESSAGE: Size = Size(512 << 20);
/// The most ranks that share this machine's cores.
const MOST_RANKS: u64 = 16;

/// The subjects of measurements.
#[derive(Subcommand)]
#[command(rename_all = "snake_case")]
pub enum Words {
    /// The CPU engine against hand-written loops
    Kernels(Kernels),
    /// Two ranks against hand-written limits and MPI; with --engine cuda on a GPU
    Sendrecv(Pair),
    /// All-to-all; with --engine cuda among four virtual ranks of a GPU
    #[command(alias = "all-to-all")]
    AllToAll(Collective),
    /// All-gather
    #[command(alias = "all-gather")]
    AllGather(Collective),
    /// Reduce-scatter
    #[command(alias = "reduce-scatter")]
    ReduceScatter(Collective),
    /// All-reduce; with --engine cuda among four virtual ranks of a GPU
    #[command(alias = "all-reduce")]
    AllReduce(Collective),
    /// Broadcast
    Broadcast(Collective),
    /// Gather
    Gather(Collective),
    /// Scatter
    Scatter(Collective),
    /// Kernels, sendrecv and the collectives, on the CPU
    All(All),
}

/// Options of `bench kernels`.
#[derive(Args)]
pub struct Kernels {
    /// Bytes of the inputs [default: 64KiB,1MiB,64MiB]
    #[arg(long, value_name = "LIST", value_delimiter = ',', overrides_with = "sizes", value_parser = kernel_size)]
    sizes: Option<Vec<Size>>,
    /// Cases [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', overrides_with = "cases", value_parser = kernel_case)]
    cases: Vec<String>,
    /// Only test that it works
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    reports: Reports,
}

/// Options of `bench sendrecv`.
#[derive(Args)]
pub struct Pair {
    #[command(flatten)]
    usual: Usual,
    /// Threads or processes, on the CPU [default: both]
    #[arg(long)]
    world: Option<Kind>,
    #[command(flatten)]
    knobs: Knobs,
    #[command(flatten)]
    reports: Reports,
    #[command(flatten)]
    drawn: Drawn,
}

/// Options of the collectives.
#[derive(Args)]
pub struct Collective {
    #[command(flatten)]
    usual: Usual,
    /// Number of ranks on the CPU: threads, or processes over --transport fabric [default: 2]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(2..=MOST_RANKS))]
    ranks: Option<usize>,
    #[command(flatten)]
    knobs: Knobs,
    #[command(flatten)]
    reports: Reports,
    #[command(flatten)]
    drawn: Drawn,
}

/// Options of `bench all`.
#[derive(Args)]
pub struct All {
    /// Only test that it works
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    reports: Reports,
    #[command(flatten)]
    drawn: Drawn,
}

/// Options common to ranks on CPUs and on GPUs.
#[derive(Args)]
struct Usual {
    /// The engine that runs the kernels
    #[arg(long, value_enum, default_value_t = Engine::Cpu)]
    engine: Engine,
    /// Bytes of a message; for a collective, of a chunk or of the tensor of an all_reduce
    #[arg(long, value_name = "LIST", value_delimiter = ',', overrides_with = "sizes", value_parser = message_size)]
    sizes: Option<Vec<Size>>,
    /// Cases, for sendrecv or a GPU [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', overrides_with = "cases", value_parser = trimmed)]
    cases: Vec<String>,
    #[command(flatten)]
    wire: CpuWire,
    #[command(flatten)]
    apart: Apart,
    #[command(flatten)]
    network: Network,
    /// Only test that it works
    #[arg(long)]
    quick: bool,
}

impl Usual {
    /// The domains of ranks that post to each other, if they do.
    fn mesh(&self) -> Result<Option<Mesh>, String> {
        self.network.of(Mesh::of(self.wire.transport, self.apart.clone(), Shuffle::default())?)
    }

    /// The plan of a measurement over a network. `name` is the subject's.
    fn network(self, mesh: Mesh, name: &str, ranks: usize) -> Result<Subject, String> {
        let what = NetworkWork::named(name)?;
        let Usual { sizes, quick, .. } = self;
        Ok(Subject::Network(NetworkPlan { what, ranks, mesh, sizes, quick }))
    }

    /// The same for ranks on a GPU, which do not use shm.
    fn mesh_on_gpu(&self) -> Result<Option<Mesh>, String> {
        match (self.mesh()?, self.wire.transport) {
            (None, Some(_)) => {
                Err("--transport shm is for --engine cpu: cuda goes over nvl, loop, mesh or fabric".into())
            }
            (mesh, _) => Ok(mesh),
        }
    }
}

/// Options for a GPU only.
#[derive(Args)]
#[command(next_help_heading = "With --engine cuda")]
struct Knobs {
    /// Numbers of blocks [default: 2,4,8,16]
    #[arg(long, value_name = "LIST", value_delimiter = ',', overrides_with = "blocks", value_parser = blocks)]
    blocks: Option<Vec<usize>>,
    /// Bytes of a slot
    #[arg(long, value_name = "SIZE", value_parser = Size::parse)]
    slot: Option<Size>,
    /// Warps of a block
    #[arg(long, value_name = "N")]
    warps: Option<u32>,
}

/// Destinations of the figures.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Reports")]
pub struct Reports {
    /// Write the JSON report to this file; - is stdout, instead of the tables
    #[arg(long, value_name = "FILE")]
    pub json: Option<String>,
    /// Write the rows as CSV to this file; - is stdout, instead of the tables
    #[arg(long, value_name = "FILE")]
    pub csv: Option<String>,
}

#[derive(Args)]
#[command(next_help_heading = "Reports")]
struct Drawn {
    /// Write a plot of speed as a share of the limit, as SVG; - is stdout
    #[arg(long, value_name = "FILE")]
    plot: Option<String>,
}

impl Words {
    /// The request, or why it is impossible.
    pub fn bench(self) -> Result<Bench, String> {
        let (name, words) = match self {
            Words::Kernels(Kernels { sizes, cases, quick, reports }) => {
                return Bench::new(Subject::Kernels { sizes, cases, quick }, reports, None);
            }
            Words::All(All { quick, reports, drawn }) => {
                return Bench::new(Subject::All { quick }, reports, drawn.plot);
            }
            Words::Sendrecv(words) => return words.bench(),
            Words::AllToAll(words) => ("all_to_all", words),
            Words::AllGather(words) => ("all_gather", words),
            Words::ReduceScatter(words) => ("reduce_scatter", words),
            Words::AllReduce(words) => ("all_reduce", words),
            Words::Broadcast(words) => ("broadcast", words),
            Words::Gather(words) => ("gather", words),
            Words::Scatter(words) => ("scatter", words),
        };
        words.bench(name)
    }
}

impl Pair {
    fn bench(self) -> Result<Bench, String> {
        let Pair { usual, world, knobs, reports, drawn } = self;
        let subject = match usual.engine {
            Engine::Cuda if world.is_some() => return Err("--world is for --engine cpu".into()),
            Engine::Cuda => {
                let mesh = usual.mesh_on_gpu()?;
                mesh.as_ref().map_or(Ok(None), |mesh| mesh.count(Some(2)))?;
                // Those of two ranks.
                let cases = if mesh.is_some() {
                    ["post", "ping", "put_flush", "oneway"].map(String::from).to_vec()
                } else {
                    vec![]
                };
                Subject::Gpu(knobs.plan(usual, cases)?)
            }
            Engine::Cpu => {
                knobs.refuse()?;
                usual.cases.iter().try_for_each(|key| check_pair_key(key))?;
                let mesh = usual.mesh()?;
                let is_network = mesh.as_ref().is_some_and(Mesh::is_of_processes);
                let kind = world.unwrap_or(if is_network { Kind::Processes } else { Kind::Threads });
                if is_network && !usual.cases.is_empty() {
                    return Err("--cases is not for --transport fabric, which measures streams and latency".into());
                }
                if let Some(mesh) = &mesh {
                    mesh.fits(kind == Kind::Threads, kind.name(), usual.engine)?;
                    mesh.count(Some(2))?;
                }
                if let Some(mesh) = mesh.clone().filter(|_| is_network) {
                    return Bench::new(usual.network(mesh, "sendrecv", 2)?, reports, drawn.plot);
                }
                let world = if mesh.is_some() { Some(kind) } else { world };
                let Usual { sizes, cases, quick, .. } = usual;
                Subject::Sendrecv(PairPlan { sizes, cases, world, mesh, quick })
            }
        };
        Bench::new(subject, reports, drawn.plot)
    }
}

impl Collective {
    fn bench(self, name: &'static str) -> Result<Bench, String> {
        debug_assert!(COLLECTIVES.contains(&name), "{name}");
        let Collective { usual, ranks, knobs, reports, drawn } = self;
        let subject = match usual.engine {
            Engine::Cuda => {
                let posts = usual.mesh_on_gpu()?.is_some();
                gpu::check_key(name, posts).map_err(|why| format!("{name} is not measured on a GPU: {why}"))?;
                if ranks.is_some() {
                    return Err("--ranks is for --engine cpu: a GPU has four of them".into());
                }
                Subject::Gpu(knobs.plan(usual, vec![name.to_string()])?)
            }
            Engine::Cpu if !usual.cases.is_empty() => {
                return Err(format!("--cases is for --engine cuda, and for kernels and sendrecv, not for {name}"));
            }
            Engine::Cpu => {
                knobs.refuse()?;
                let mesh = usual.mesh()?;
                if let Some(mesh) = mesh.clone().filter(Mesh::is_of_processes) {
                    return Bench::new(usual.network(mesh, name, ranks.unwrap_or(2))?, reports, drawn.plot);
                }
                mesh.as_ref().map_or(Ok(()), |mesh| mesh.fits(true, "threads", usual.engine))?;
                let ranks = mesh.as_ref().map_or(Ok(ranks), |mesh| mesh.count(ranks))?.unwrap_or(2);
                if !(2..=MOST_RANKS as usize).contains(&ranks) {
                    return Err(format!("--domains lists {ranks} ranks: a benchmark has 2 to {MOST_RANKS}"));
                }
                let Usual { sizes, quick, .. } = usual;
                Subject::Collectives(CollectivePlan { ranks, mesh, sizes, quick, ..CollectivePlan::of(&[name]) })
            }
        };
        Bench::new(subject, reports, drawn.plot)
    }
}

impl Knobs {
    fn refuse(&self) -> Result<(), String> {
        let said =
            [("--blocks", self.blocks.is_some()), ("--slot", self.slot.is_some()), ("--warps", self.warps.is_some())];
        let first = said.into_iter().find(|(_, is_said)| *is_said);
        first.map_or(Ok(()), |(option, _)| Err(format!("{option} is for --engine cuda")))
    }

    /// A plan of these cases, unless others are named.
    fn plan(self, usual: Usual, cases: Vec<String>) -> Result<gpu::Plan, String> {
        let mesh = usual.mesh_on_gpu()?;
        usual.cases.iter().try_for_each(|key| gpu::check_key(key, mesh.is_some()))?;
        let said = tilewire::Knobs::default();
        let slot_bytes = self.slot.map(|size| size.0);
        let config = tilewire::Knobs { slot_bytes, send_warps: self.warps, recv_warps: self.warps, ..said };
        let cases = if usual.cases.is_empty() { cases } else { usual.cases };
        Ok(gpu::Plan { sizes: usual.sizes, blocks: self.blocks, cases, config, quick: usual.quick, mesh })
    }
}

impl Bench {
    fn new(subject: Subject, reports: Reports, plot: Option<String>) -> Result<Bench, String> {
        let on_stdout = [&reports.json, &reports.csv, &plot].into_iter().filter(|file| file.as_deref() == Some("-"));
        if on_stdout.count() > 1 {
            return Err("stdout (-) is for one report".into());
        }
        Ok(Bench { subject, reports, plot })
    }
}

fn kernel_size(text: &str) -> Result<Size, String> {
    size(text, LARGEST)
}

fn message_size(text: &str) -> Result<Size, String> {
    size(text, LARGEST_MESSAGE)
}

fn size(text: &str, largest: Size) -> Result<Size, String> {
    match Size::parse(text.trim())? {
        size if size == Size(0) || size > largest => Err(format!("{size} is not between 1B and {largest}")),
        size => Ok(size),
    }
}

fn kernel_case(key: &str) -> Result<String, String> {
    kernels::check_key(key.trim()).map(|()| key.trim().to_string())
}

fn blocks(text: &str) -> Result<usize, String> {
    text.trim().parse().map_err(|_| "write numbers, as 2,4,8".to_string())
}

fn trimmed(key: &str) -> Result<String, String> {
    Ok(key.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Command;

    fn parse(line: &str) -> Result<Bench, String> {
        match Command::parse(["bench"].into_iter().chain(line.split_whitespace())) {
            Ok(Command::Bench(bench)) => Ok(bench),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    fn bench(subject: Subject) -> Bench {
        Bench { subject, reports: Reports::default(), plot: None }
    }

    #[test]
    fn subjects_and_options_are_read() {
        let kernels = |sizes, cases| Subject::Kernels { sizes, cases, quick: false };
        assert_eq!(parse("kernels"), Ok(bench(kernels(None, vec![]))));
        let cases = vec!["copy".to_string(), "one".to_string()];
        assert_eq!(parse("kernels --cases copy,one"), Ok(bench(kernels(None, cases))));
        let sizes = Some(vec![Size(64 << 10), Size(1 << 20)]);
        let reports = Reports { json: Some("out.json".into()), csv: Some("-".into()) };
        let full = Ok(Bench { reports, ..bench(kernels(sizes, vec![])) });
        assert_eq!(parse("kernels --sizes 64KiB,1MiB --json out.json --csv -"), full);
        assert_eq!(parse("kernels --csv=- --json=out.json --sizes=64KiB,1MiB"), full);
        // The last occurrence counts.
        assert_eq!(parse("kernels --csv=- --sizes 8 --json=- --json=out.json --sizes=64KiB,1MiB"), full);
        let plan =
            CollectivePlan { ranks: 4, sizes: Some(vec![Size(8)]), quick: true, ..CollectivePlan::of(&["all_reduce"]) };
        let collective = Bench { plot: Some("x.svg".into()), ..bench(Subject::Collectives(plan)) };
        assert_eq!(parse("all_reduce --ranks 4 --sizes 8B --quick --plot x.svg"), Ok(collective));
        assert_eq!(parse("all-gather --quick"), parse("all_gather --quick"));
        assert_eq!(parse("all --quick"), Ok(bench(Subject::All { quick: true })));
        assert_eq!(parse("sendrecv --plot=x.svg").map(|bench| bench.plot), Ok(Some("x.svg".into())));
        for name in ["all_to_all", "all_reduce"] {
            let plan = gpu::Plan { cases: vec![name.to_string()], quick: true, ..gpu::Plan::default() };
            let on_gpu = Bench { plot: Some("x.svg".into()), ..bench(Subject::Gpu(plan)) };
            assert_eq!(parse(&format!("{name} --engine cuda --quick --plot x.svg")), Ok(on_gpu));
        }
        let on_gpu = Bench { plot: Some("x.svg".into()), ..bench(Subject::Gpu(gpu::Plan::default())) };
        assert_eq!(parse("sendrecv --plot=x.svg --engine=cuda"), Ok(on_gpu));
        let config = tilewire::Knobs { slot_bytes: Some(65536), ..tilewire::Knobs::warps(8) };
        let plan = gpu::Plan { blocks: Some(vec![2, 4]), config, ..gpu::Plan::default() };
        let line = "sendrecv --engine cuda --blocks 2,4 --slot 64KiB --warps 8";
        assert_eq!(parse(line), Ok(bench(Subject::Gpu(plan))));
    }

    #[test]
    fn lists_may_have_spaces() {
        let read = |list| {
            let words = [
                "bench",
                "sendrecv",
                "--engine",
                "cuda",
                "--blocks",
                list,
                "--sizes",
                " 1MiB, 2MiB",
                "--cases",
                "both, small",
            ];
            Command::parse(words).map_err(|error| error.to_string())
        };
        assert_eq!(read("2, 4"), read("2,4"));
        let verify = |list| Command::parse(["verify", "--ranks", list]).map_err(|error| error.to_string());
        assert_eq!(verify("2, 4"), verify("2,4"));
        for wrong in ["", "2,", "0", "1025", "two"] {
            assert!(verify(wrong).is_err() && (wrong == "0" || wrong == "1025" || read(wrong).is_err()), "{wrong}");
        }
    }

    #[test]
    fn every_collective_is_a_subject() {
        for name in COLLECTIVES {
            assert_eq!(parse(name), Ok(bench(Subject::Collectives(CollectivePlan::of(&[name])))));
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (line, reason) in [
            ("", "kernels"),
            ("everything", "unrecognized subcommand 'everything'"),
            ("kernels fast", "unexpected argument 'fast'"),
            ("kernels --plot x.svg", "unexpected argument '--plot'"),
            ("kernels --sizes", "a value is required for '--sizes"),
            ("kernels --cases copy,fly", "there is no case 'fly'"),
            ("kernels --sizes 64KB", "'KB' is not a unit"),
            ("kernels --sizes 0", "not between"),
            ("kernels --sizes 5GiB", "not between"),
            ("kernels --json - --csv -", "is for one report"),
            ("sendrecv --cases copy", "there is no case 'copy'"),
            ("sendrecv --sizes 1GiB", "not between"),
            ("sendrecv --world moon", "invalid value 'moon'"),
            ("sendrecv --blocks 4", "--blocks is for --engine cuda"),
            ("sendrecv --world threads --engine cuda", "--world is for --engine cpu"),
            ("sendrecv fast", "unexpected argument 'fast'"),
            ("all_reduce --ranks 1", "1 is not in 2..=16"),
            ("all_reduce --ranks 3 --engine cuda", "--ranks is for --engine cpu"),
            ("all_reduce --cases small", "--cases is for --engine cuda"),
            ("all_gather --world threads", "unexpected argument '--world'"),
            ("all_gather --engine cuda", "all_gather is not measured on a GPU"),
            ("all --sizes 8", "unexpected argument '--sizes'"),
            ("sendrecv --transport loop --world processes", "joins threads of one process"),
            ("sendrecv --transport mesh --domains 0,1|2", "--domains 0,1|2 lists 2: 2 ranks are 0 to 1"),
            ("all_reduce --transport mesh --domains 0,1|2 --ranks 4", "does not list 3"),
            ("all_reduce --domains 0|1", "--domains 0|1 is for --transport mesh, not shm"),
            ("all_reduce --transport shm --engine cuda", "--transport shm is for --engine cpu"),
            ("sendrecv --transport loop --engine cuda --cases small", "there is no case 'small'; there are: post"),
            ("sendrecv --transport mesh --domains 0,1|2 --engine cuda", "--domains 0,1|2 lists 2: 2 ranks are 0 to 1"),
            ("all_gather --transport fabric", "over --transport fabric there are: sendrecv, all_reduce, all_to_all"),
            ("sendrecv --transport fabric --world threads", "joins processes"),
            ("sendrecv --transport fabric --cases latency", "--cases is not for --transport fabric"),
            ("sendrecv --provider shm", "--provider shm is for --transport fabric"),
            ("sendrecv --transport loop --engine cuda --provider shm", "--provider shm is for --transport fabric"),
            ("all_reduce --transport nvl", "[possible values: shm, loop, mesh, fabric]"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }
}
