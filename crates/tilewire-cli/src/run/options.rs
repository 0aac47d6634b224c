//! The words of `tilewire run`.

use super::agreement::Word;
use super::case::{Case, protocol_name, rounds_name};
use super::collective::{Collective, Plan};
use super::hook::Hook;
use super::worlds::Ranks;
use crate::args::Words;
use crate::bench::Size;
use crate::verify::Engine;
use tilewire::collective::Rounds;
use tilewire::ir::Type;
use tilewire::{Algorithm, Config, Primitive, ReduceOp};

/// The most ranks that are started here: what each has for every other gets smaller with more.
const MOST_RANKS: usize = 64;
/// The largest message: every rank has two of it.
const LARGEST: Size = Size(8 << 30);

/// What to run.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    /// What runs the kernels.
    pub engine: Engine,
    /// How many ranks, where it is said.
    pub count: Option<usize>,
    /// Where they run, where it is said.
    pub ranks: Option<Ranks>,
    /// The collective.
    pub plan: Plan,
    /// How many times, with new data each.
    pub launches: u64,
    /// What the data is made from.
    pub seed: u64,
}

impl Run {
    /// What all ranks must be started with: who differs would wait for the others elsewhere, or check for other data. Of the protocols only
    /// `direct` has a call of its own, for its window; the others are compared, or refused, when the collective is prepared.
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

/// Reads the words after `run`.
pub fn parse(words: Words) -> Result<Run, String> {
    read(words).map_err(|reason| format!("run: {reason}"))
}

fn read(mut words: Words) -> Result<Run, String> {
    let names = Collective::ALL.map(Collective::name).join(", ");
    let collective = match words.next() {
        Some(word) => {
            Collective::named(&word).ok_or_else(|| format!("unknown collective '{word}'; there are: {names}"))?
        }
        None => return Err(format!("say which collective: {names}")),
    };
    // A rank cannot shift to itself; all else works in a world of one.
    let least = if collective == Collective::Sendrecv { 2 } else { 1 };
    let (mut op, mut algorithm, mut rounds) = (ReduceOp::Sum, None, None);
    let (mut count, mut ranks, mut bytes) = (None, None, Size(1 << 20));
    let (mut dtype, mut hook, mut config) = (Type::F32, Hook::Copy, Config::default());
    let (mut launches, mut seed, mut engine, mut transport) = (10, 1, None, None);
    while let Some(word) = words.next() {
        let mut value = || words.value(&word);
        match word.as_str() {
            "--ranks" => count = Some(number_of(&value()?, "ranks", least..=MOST_RANKS as u64)? as usize),
            "--engine" => engine = Some(Engine::parse(&value()?)?),
            "--transport" => transport = Some(transport_of(&value()?)?),
            "--world" => ranks = Some(Ranks::parse(&value()?)?),
            "--bytes" => bytes = Size::parse(&value()?)?,
            "--dtype" => dtype = dtype_of(&value()?)?,
            "--hook" => hook = hook_of(&value()?)?,
            "--protocol" => config.primitive = Some(protocol_of(&value()?)?),
            "--blocks" => config.blocks = Some(number_of(&value()?, "blocks", 1..=1024)? as usize),
            "--op" if collective.reduces() => op = op_of(&value()?)?,
            "--algorithm" => algorithm = Some(algorithm_of(&value()?, collective)?),
            "--rounds" => rounds = Some(rounds_of(&value()?)?),
            "--launches" => launches = number_of(&value()?, "launches", 1..=1_000_000_000)?,
            "--seed" => seed = number_of(&value()?, "seed", 0..=u64::MAX)?,
            _ => return Err(format!("unknown word '{word}'")),
        }
    }
    let engine = engine_over(engine, transport)?;
    if bytes > LARGEST {
        return Err(format!("--bytes {bytes}: at most {LARGEST}"));
    }
    if !bytes.0.is_multiple_of(dtype.size()) {
        return Err(format!("--bytes {bytes} is no whole number of elements of type {dtype}"));
    }
    if !hook.takes(dtype) {
        return Err(format!("--hook {} does not take elements of type {dtype}", hook.name()));
    }
    let case = Case { dtype, hook, len: bytes.0 / dtype.size(), config, rounds };
    if let Some(why) = collective.refuses(&case) {
        let protocol = protocol_name(config.primitive);
        return Err(format!("--hook {} with --protocol {protocol} and type {dtype}: {why}", hook.name()));
    }
    let plan = Plan { collective, case, op, algorithm };
    Ok(Run { engine, count, ranks, plan, launches, seed })
}

/// Reads a number that must lie in a range.
pub fn number_of(word: &str, what: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, String> {
    let number = word.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("'{word}' is no number of {what} from {} to {}", range.start(), range.end()))
}

/// The transports there are, and the engine that goes over each: who says one has said the other.
const TRANSPORTS: [(&str, Engine); 2] = [("shm", Engine::Cpu), ("nvl", Engine::Cuda)];

fn transport_of(word: &str) -> Result<(&'static str, Engine), String> {
    let names = || TRANSPORTS.map(|(name, engine)| format!("{name} (of --engine {})", engine.name())).join(" and ");
    let found = TRANSPORTS.into_iter().find(|(name, _)| *name == word);
    found.ok_or_else(|| format!("there is no transport '{word}'; there are {}", names()))
}

/// The engine that is said, or the one that the transport goes with.
fn engine_over(engine: Option<Engine>, transport: Option<(&str, Engine)>) -> Result<Engine, String> {
    match (engine, transport) {
        (Some(engine), Some((transport, over))) if engine != over => {
            let fits = TRANSPORTS.map(|(name, engine)| format!("{} goes over {name}", engine.name())).join(", ");
            Err(format!("--engine {} does not go over --transport {transport}: {fits}", engine.name()))
        }
        _ => Ok(engine.or(transport.map(|(_, engine)| engine)).unwrap_or(Engine::Cpu)),
    }
}

fn dtype_of(word: &str) -> Result<Type, String> {
    let names = || Type::ALL.map(Type::name).join(", ");
    let found = Type::ALL.into_iter().find(|ty| ty.name() == word);
    found.ok_or_else(|| format!("'{word}' is no element type; there are {}", names()))
}

fn rounds_of(word: &str) -> Result<Rounds, String> {
    let all = [Rounds::Roles, Rounds::Blocks, Rounds::Legs];
    let names = || all.map(rounds_name).join(", ");
    let found = all.into_iter().find(|&rounds| rounds_name(rounds) == word);
    found.ok_or_else(|| format!("rounds do not run as '{word}'; there are {}", names()))
}

fn hook_of(word: &str) -> Result<Hook, String> {
    let names = || Hook::ALL.map(Hook::name).join(", ");
    let found = Hook::ALL.into_iter().find(|hook| hook.name() == word);
    found.ok_or_else(|| format!("there is no hook '{word}'; there are {}", names()))
}

fn op_of(word: &str) -> Result<ReduceOp, String> {
    let names = || ReduceOp::ALL.map(ReduceOp::name).join(", ");
    let found = ReduceOp::ALL.into_iter().find(|op| op.name() == word);
    found.ok_or_else(|| format!("there is no op '{word}'; there are {}", names()))
}

fn algorithm_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::OneShot => "one-shot",
        Algorithm::TwoPhase => "two-phase",
        _ => "ring",
    }
}

fn algorithm_of(word: &str, collective: Collective) -> Result<Algorithm, String> {
    let all = collective.algorithms();
    let names = all.iter().map(|&algorithm| algorithm_name(algorithm)).collect::<Vec<_>>().join(", ");
    let found = all.iter().find(|&&algorithm| algorithm_name(algorithm) == word);
    found.copied().ok_or_else(|| format!("there is no {word} {}; there are {names}", collective.name()))
}

fn protocol_of(word: &str) -> Result<Primitive, String> {
    match word {
        "packet" => Ok(Primitive::Packet),
        "staged" => Ok(Primitive::Staged),
        "bulk" => Ok(Primitive::Bulk),
        "direct" => Ok(Primitive::Direct),
        _ => Err(format!("there is no protocol '{word}'; there are packet, staged, bulk, direct")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(line: &str) -> Result<Engine, String> {
        parse(Words::of(line.split_whitespace().map(String::from).collect())).map(|run| run.engine)
    }

    #[test]
    fn a_transport_goes_with_its_engine_whichever_is_said() {
        assert_eq!(engine("all_to_all"), Ok(Engine::Cpu));
        for (transport, of) in TRANSPORTS {
            for line in [
                format!("all_to_all --transport {transport}"),
                format!("all_to_all --engine {}", of.name()),
                format!("all_to_all --engine {} --transport={transport}", of.name()),
                format!("all_to_all --transport {transport} --engine {}", of.name()),
            ] {
                assert_eq!(engine(&line), Ok(of), "{line}");
            }
        }
    }

    #[test]
    fn an_engine_and_a_transport_that_do_not_fit_are_both_named() {
        let fits = "cpu goes over shm, cuda goes over nvl";
        for (of, transport) in [("cpu", "nvl"), ("cuda", "shm")] {
            let why = format!("run: --engine {of} does not go over --transport {transport}: {fits}");
            for line in [
                format!("sendrecv --engine {of} --transport {transport}"),
                format!("sendrecv --transport {transport} --engine {of}"),
            ] {
                assert_eq!(engine(&line), Err(why.clone()), "{line}");
            }
        }
    }

    #[test]
    fn a_transport_there_is_not_is_answered_with_those_there_are() {
        // Some of them are to come.
        for word in ["fabric", "mesh", "tcp", "SHM", "cpu"] {
            let why = format!(
                "run: there is no transport '{word}'; there are shm (of --engine cpu) and nvl (of --engine cuda)"
            );
            assert_eq!(engine(&format!("sendrecv --transport {word}")), Err(why));
        }
        assert_eq!(engine("sendrecv --transport"), Err("run: --transport needs a value".into()));
    }
}
