//! The options of `tilewire run`.

use super::agreement::Word;
use super::case::{Case, protocol_name, rounds_name};
use super::collective::{Collective, Plan};
use super::hook::Hook;
use super::mesh::{Apart, Mesh, Network, Shuffle, Wire};
use super::worlds::Ranks;
use crate::bench::Size;
use crate::cli::{collective, listing, one_of};
use crate::verify::Engine;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use tilewire::collective::Rounds;
use tilewire::ir::Type;
use tilewire::{Algorithm, Knobs, Primitive, ReduceOp};

/// The most ranks that are started here: with more ranks, the memory per pair gets smaller.
const MOST_RANKS: u64 = 64;
/// The largest message: every rank has two of it.
const LARGEST: Size = Size(8 << 30);

/// A request of `tilewire run`.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    /// The engine.
    pub engine: Engine,
    /// Number of ranks, if given.
    pub count: Option<usize>,
    /// Where they run, if given.
    pub ranks: Option<Ranks>,
    /// The domains of ranks that post to each other, if they do.
    pub mesh: Option<Mesh>,
    /// The collective.
    pub plan: Plan,
    /// Number of launches, with new data each.
    pub launches: u64,
    /// The seed of the data.
    pub seed: u64,
}

impl Run {
    /// The options that all ranks must share: a rank that differs would wait for the others elsewhere, or check for
    /// other data. Among the protocols only `direct` has its own collective call, for its window; the others are
    /// compared, or refused, when the collective is prepared.
    pub fn words(&self) -> Vec<Word> {
        let Run { engine, plan: Plan { collective, case, op, algorithm }, launches, seed, .. } = self;
        let Case { dtype, hook, len, config, rounds } = case;
        let protocol = protocol_name(config.primitive);
        vec![
            Word::new("run", collective.name()),
            Word::new("--engine", engine.name()),
            Word::new("--bytes", Size(len * dtype.size())).of_kind(len * dtype.size()),
            Word::new("--dtype", dtype),
            Word::new("--hook", hook.name()),
            Word::new("--op", op.name()),
            Word::given("--algorithm", algorithm.map(algorithm_name)),
            Word::given("--rounds", rounds.map(rounds_name)),
            Word::new("--blocks", config.blocks.unwrap_or(1)),
            Word::new("--launches", launches),
            Word::new("--seed", seed),
            Word::new("--protocol", protocol).of_kind(config.primitive == Some(Primitive::Direct)),
        ]
    }
}

/// The arguments of `run`.
#[derive(Args)]
pub struct Words {
    /// The collective
    #[arg(value_parser = collective(), hide_possible_values = true,
        help = listing("The collective; sendrecv is a ring shift", &Collective::ALL.map(Collective::name)))]
    collective: Collective,
    #[command(flatten)]
    how: Options,
}

impl Words {
    /// The request, or why it is impossible.
    pub fn run(self) -> Result<Run, String> {
        self.how.run(self.collective)
    }
}

/// Options of a collective.
#[derive(Args)]
pub struct Options {
    /// Number of ranks [default: 2]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=MOST_RANKS))]
    ranks: Option<usize>,
    /// Bytes that one rank sends to another; of an all_reduce: of the tensor [default: 1MiB]
    #[arg(long, value_name = "SIZE", value_parser = Size::parse)]
    bytes: Option<Size>,
    /// Type of the elements [default: f32]
    #[arg(long, value_name = "TYPE", hide_possible_values = true, value_parser = one_of(Type::ALL.map(|ty| (ty.name(), ty))),
        help = listing("Type of the elements [default: f32]", &Type::ALL.map(Type::name)))]
    dtype: Option<Type>,
    /// Hook of the library
    #[arg(long, hide_possible_values = true, value_parser = one_of(Hook::ALL.map(|hook| (hook.name(), hook))),
        help = listing("Hook of the library [default: copy]", &Hook::ALL.map(Hook::name)))]
    hook: Option<Hook>,
    /// The protocol; chosen for the size by default
    #[arg(long, value_parser = one_of(PROTOCOLS.map(|protocol| (protocol_name(Some(protocol)), protocol))))]
    protocol: Option<Primitive>,
    /// The algorithm; not every collective has all of them
    #[arg(long, value_parser = one_of(ALGORITHMS))]
    algorithm: Option<Algorithm>,
    /// The op of a reduction [default: sum]
    #[arg(long, value_parser = one_of(ReduceOp::ALL.map(|op| (op.name(), op))))]
    op: Option<ReduceOp>,
    /// Blocks for each peer
    #[arg(long, value_name = "K", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    blocks: Option<usize>,
    /// How the rounds share a launch
    #[arg(long, value_parser = one_of(ROUNDS.map(|rounds| (rounds_name(rounds), rounds))))]
    rounds: Option<Rounds>,
    /// Where ranks run: env under a launcher, processes over fabric on CPUs, otherwise threads
    #[arg(long)]
    world: Option<Ranks>,
    /// The engine: cpu goes over all transports but nvl, and cuda over all but shm [default: cpu]
    #[arg(long)]
    engine: Option<Engine>,
    /// The transport; implies the engine
    #[arg(long, value_parser = one_of(Wire::ALL.map(|wire| (wire.name(), wire))))]
    transport: Option<Wire>,
    #[command(flatten)]
    apart: Apart,
    #[command(flatten)]
    network: Network,
    #[command(flatten)]
    shuffle: Shuffle,
    /// Number of launches, with new data each [default: 10]
    #[arg(long, value_name = "L", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    launches: Option<u64>,
    /// Seed of the data [default: 1]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

const PROTOCOLS: [Primitive; 4] = [Primitive::Packet, Primitive::Staged, Primitive::Bulk, Primitive::Direct];
/// How rounds may share a launch.
pub const ROUNDS: [Rounds; 3] = [Rounds::Roles, Rounds::Blocks, Rounds::Legs];
const ALGORITHMS: [(&str, Algorithm); 4] = [
    ("one-shot", Algorithm::OneShot),
    ("two-phase", Algorithm::TwoPhase),
    ("ring", Algorithm::Ring),
    ("two-level", Algorithm::TwoLevel),
];

impl Options {
    /// The first option that is given.
    pub fn first(&self) -> Option<&'static str> {
        let said = [
            ("--ranks", self.ranks.is_some()),
            ("--bytes", self.bytes.is_some()),
            ("--dtype", self.dtype.is_some()),
            ("--hook", self.hook.is_some()),
            ("--protocol", self.protocol.is_some()),
            ("--algorithm", self.algorithm.is_some()),
            ("--op", self.op.is_some()),
            ("--blocks", self.blocks.is_some()),
            ("--rounds", self.rounds.is_some()),
            ("--world", self.world.is_some()),
            ("--engine", self.engine.is_some()),
            ("--transport", self.transport.is_some()),
            ("--domains", self.apart.domains.is_some()),
            ("--provider", self.network.provider.is_some()),
            ("--shuffle", self.shuffle.shuffle.is_some()),
            ("--launches", self.launches.is_some()),
            ("--seed", self.seed.is_some()),
        ];
        said.into_iter().find(|(_, is_said)| *is_said).map(|(name, _)| name)
    }

    /// The request for a collective, or why it is impossible.
    pub fn run(self, collective: Collective) -> Result<Run, String> {
        let engine = engine_over(self.engine, self.transport)?;
        let mesh = Mesh::of(self.transport, self.apart, self.shuffle)?;
        let mesh = self.network.of(mesh)?;
        let mut count = self.ranks;
        if let Some(mesh) = &mesh {
            let usual = if mesh.is_of_processes() && engine == Engine::Cpu { Ranks::Processes } else { Ranks::Threads };
            let world = self.world.unwrap_or(usual);
            mesh.fits(world == Ranks::Threads, world.name(), engine)?;
            count = mesh.count(count)?;
        }
        // A rank cannot shift to itself; everything else works in a world of one.
        if collective == Collective::Sendrecv && count == Some(1) {
            return Err(format!("--ranks 1: a sendrecv has 2 to {MOST_RANKS} ranks"));
        }
        if self.op.is_some() && !collective.reduces() {
            return Err(format!("--op is for reductions, and {} is not one", collective.name()));
        }
        if let Some(algorithm) = self.algorithm.filter(|algorithm| !collective.algorithms().contains(algorithm)) {
            let of_all = |wanted: &[Algorithm]| {
                let all = ALGORITHMS.iter().filter(|(_, algorithm)| wanted.contains(algorithm));
                all.map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
            };
            let (name, known) = (of_all(&[algorithm]), of_all(collective.algorithms()));
            return Err(format!("there is no {name} {}; there are {known}", collective.name()));
        }
        let (bytes, dtype, hook) =
            (self.bytes.unwrap_or(Size(1 << 20)), self.dtype.unwrap_or(Type::F32), self.hook.unwrap_or(Hook::Copy));
        if bytes > LARGEST {
            return Err(format!("--bytes {bytes}: at most {LARGEST}"));
        }
        if !bytes.0.is_multiple_of(dtype.size()) {
            return Err(format!("--bytes {bytes} is not a whole number of elements of type {dtype}"));
        }
        if !hook.takes(dtype) {
            return Err(format!("--hook {} does not take elements of type {dtype}", hook.name()));
        }
        let config = Knobs { primitive: self.protocol, blocks: self.blocks, ..Knobs::default() };
        let case = Case { dtype, hook, len: bytes.0 / dtype.size(), config, rounds: self.rounds };
        if let Some(why) = collective.refuses(&case) {
            let protocol = protocol_name(config.primitive);
            return Err(format!("--hook {} with --protocol {protocol} and type {dtype}: {why}", hook.name()));
        }
        let plan = Plan { collective, case, op: self.op.unwrap_or(ReduceOp::Sum), algorithm: self.algorithm };
        let (launches, seed) = (self.launches.unwrap_or(10), self.seed.unwrap_or(1));
        Ok(Run { engine, count, ranks: self.world, mesh, plan, launches, seed })
    }
}

/// The given engine, or the one of the transport.
fn engine_over(engine: Option<Engine>, transport: Option<Wire>) -> Result<Engine, String> {
    match (engine, transport) {
        (Some(engine), Some(wire)) if !wire.engines().contains(&engine) => {
            let (engine, transport) = (engine.name(), wire.name());
            let fits = "cpu goes over shm, loop, mesh or fabric, cuda goes over nvl, loop, mesh or fabric";
            Err(format!("--engine {engine} does not go over --transport {transport}: {fits}"))
        }
        _ => Ok(engine.or(transport.map(|wire| wire.engines()[0])).unwrap_or(Engine::Cpu)),
    }
}

fn algorithm_name(algorithm: Algorithm) -> &'static str {
    ALGORITHMS.iter().find(|(_, known)| *known == algorithm).expect("all of them are listed").0
}

#[cfg(test)]
mod tests {
    use super::super::worlds::DEFAULT;
    use super::*;
    use crate::cli::Command;

    fn engine(line: &str) -> Result<Engine, String> {
        match Command::parse(["run"].into_iter().chain(line.split_whitespace())) {
            Ok(Command::Run(run)) => Ok(run.engine),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn a_transport_goes_with_its_engine_whichever_is_said() {
        assert_eq!(engine("all_to_all"), Ok(Engine::Cpu));
        for wire in Wire::ALL {
            let transport = wire.name();
            assert_eq!(engine(&format!("all_to_all --transport {transport}")), Ok(wire.engines()[0]));
            for &of in wire.engines() {
                for line in [
                    format!("all_to_all --engine {}", of.name()),
                    format!("all_to_all --engine {} --transport={transport}", of.name()),
                    format!("all_to_all --transport {transport} --engine {}", of.name()),
                ] {
                    assert_eq!(engine(&line), Ok(of), "{line}");
                }
            }
        }
    }

    #[test]
    fn an_engine_and_a_transport_that_do_not_fit_are_both_named() {
        let fits = "cpu goes over shm, loop, mesh or fabric, cuda goes over nvl, loop, mesh or fabric";
        for (of, transport) in [("cpu", "nvl"), ("cuda", "shm")] {
            let why = format!("--engine {of} does not go over --transport {transport}: {fits}");
            for line in [
                format!("sendrecv --engine {of} --transport {transport}"),
                format!("sendrecv --transport {transport} --engine {of}"),
            ] {
                assert!(engine(&line).unwrap_err().contains(&why), "{line}");
            }
        }
    }

    #[test]
    fn a_transport_there_is_not_is_answered_with_those_there_are() {
        for word in ["verbs", "tcp", "SHM", "cpu"] {
            let why = engine(&format!("sendrecv --transport {word}")).unwrap_err();
            assert!(why.contains(&format!("'{word}'")) && why.contains("shm, nvl, loop, mesh, fabric"), "{why}");
        }
        assert!(engine("sendrecv --transport").unwrap_err().contains("a value is required for '--transport"));
    }

    fn parsed(line: &str) -> Result<Run, String> {
        match Command::parse(["run"].into_iter().chain(line.split_whitespace())) {
            Ok(Command::Run(run)) => Ok(run),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn domains_say_how_many_ranks_there_are() {
        let over = |line: &str| {
            let run = parsed(line).unwrap();
            let ranks = run.count.unwrap_or(DEFAULT);
            (ranks, run.mesh.unwrap().describe(ranks))
        };
        assert_eq!(over("all_to_all --transport loop"), (2, "loop".into()));
        assert_eq!(over("all_to_all --transport mesh --ranks 3"), (3, "mesh 0,1|2".into()));
        assert_eq!(over("all_to_all --transport mesh --domains 0,2|1,3"), (4, "mesh 0,2|1,3".into()));
        assert_eq!(over("gather --transport=mesh --domains=1|0 --shuffle 7"), (2, "mesh 1|0, shuffled by 7".into()));
        assert_eq!(over("all_to_all --transport fabric --ranks 3"), (3, "fabric".into()));
        assert_eq!(over("all_to_all --transport mesh --world processes --ranks 3"), (3, "mesh 0,1|2".into()));
        assert_eq!(over("all_to_all --transport mesh --ranks 3 --provider tcp"), (3, "mesh 0,1|2 by tcp".into()));
        assert_eq!(over("all_to_all --transport fabric --engine cuda --provider shm"), (2, "fabric by shm".into()));
        assert_eq!(parsed("all_to_all --transport shm").unwrap().mesh, None);
    }

    #[test]
    fn domains_that_do_not_fit_are_named_with_their_values() {
        for (line, why) in [
            ("--transport mesh --domains 0,1|2,3 --ranks 3", "--domains 0,1|2,3 lists 3: 3 ranks are 0 to 2"),
            ("--transport mesh --domains 0,1|4", "--domains 0,1|4 does not list 2 and lists 4"),
            (
                "--transport mesh --domains 0,1|1",
                "invalid value '0,1|1' for '--domains <LISTS>': rank 1 is listed twice",
            ),
            ("--transport mesh --domains 0,a", "'a' is not a rank"),
            ("--domains 0|1", "--domains 0|1 is for --transport mesh, not shm"),
            ("--transport loop --domains 0|1", "--domains 0|1 is for --transport mesh, not loop"),
            ("--shuffle 4", "--shuffle 4 is for --transport loop or mesh"),
            ("--transport loop --world processes", "--world processes: --transport loop joins threads of one process"),
            ("--transport fabric --world threads", "--world threads: --transport fabric joins processes"),
            ("--transport fabric --shuffle 3", "--shuffle 3 is for --transport loop or mesh"),
            ("--transport mesh --world processes --shuffle 3", "--shuffle 3 is for threads"),
            ("--transport mesh --world env --engine cuda", "on GPUs, --transport mesh joins threads"),
            ("--transport fabric --world processes --engine cuda", "on GPUs, --transport fabric joins threads"),
            ("--provider tcp", "--provider tcp is for --transport fabric or mesh, not shm"),
            ("--transport loop --provider tcp", "--provider tcp is for --transport fabric or mesh, not loop"),
            ("--transport mesh --provider tcp --shuffle 3", "a network has an order of its own"),
        ] {
            let said = parsed(&format!("all_to_all {line}")).unwrap_err();
            assert!(said.contains(why), "{line}: {said}");
        }
    }

    /// Every option has a name, so that `emit` can report the ones that a kernel does not take.
    #[test]
    fn every_option_is_known_by_name() {
        use clap::{CommandFactory, FromArgMatches, Parser};
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            how: Options,
        }
        for arg in Line::command().get_arguments() {
            let Some(option) = arg.get_long().filter(|option| *option != "help") else { continue };
            let value = match option {
                "bytes" => "64".to_string(),
                "domains" => "0|1".to_string(),
                _ => arg.get_possible_values().first().map_or("2".into(), |value| value.get_name().to_string()),
            };
            let said = format!("--{option}");
            let matches = Line::command().try_get_matches_from(["line", &said, &value]).unwrap();
            assert_eq!(Line::from_arg_matches(&matches).unwrap().how.first(), Some(said.as_str()));
        }
    }
}
