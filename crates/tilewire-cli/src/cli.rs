//! The command line: its grammar, and the requests it is parsed into.
//!
//! A command that consists only of its options is parsed directly ([`Request`], [`Task`], [`Job`], [`Soak`]). If
//! options depend on each other (`run`, `emit`, `bench`), they are parsed first and then checked together. Either way a
//! refusal has status 2 and prints the usage.

use crate::bench::{self, Bench};
use crate::check::Task;
use crate::emit::{self, Parts};
use crate::fingerprints;
use crate::kernels::{Named, named};
use crate::launch::Job;
use crate::run::{self, Collective, Run};
use crate::soak::Soak;
use crate::verify::{Engine, Request};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use std::ffi::OsString;

/// The user's request.
#[derive(Debug, PartialEq)]
pub enum Command {
    /// Run the demonstration.
    Demo,
    /// Describe this machine.
    Topo,
    /// Report whether this machine is suitable.
    Doctor,
    /// Print the text of a kernel.
    Emit {
        /// The kernel.
        kernel: &'static Named,
        /// The parts to print.
        parts: Parts,
    },
    /// Print the text of a collective's kernel.
    EmitCollective {
        /// The collective and its options.
        run: Run,
        /// The parts to print.
        parts: Parts,
    },
    /// Compare an engine with the definition of the language.
    Verify(Request),
    /// Find races and deadlocks.
    Check(Task),
    /// Hash the compiled forms of kernels.
    Fingerprints(fingerprints::Request),
    /// Start the ranks of a job.
    Launch(Job),
    /// Run a collective and check it.
    Run(Run),
    /// Run random transfers for a while.
    Soak(Soak),
    /// Measure.
    Bench(Bench),
    /// Print a completion script.
    Completions(Shell),
}

/// Write what happens to one tile, tilewire sends it
#[derive(Parser)]
#[command(name = "tilewire", version, args_override_self = true, after_help = AFTER)]
struct Cli {
    #[command(subcommand)]
    words: Option<Words>,
}

const AFTER: &str = "\
Without a command: a short demonstration.

SIZE is a number of bytes: 4096, 64KiB, 8MiB, 1GiB. LIST has commas: 64KiB,1MiB or 1,2,4.

Exit status: 0 holds, 1 does not, 2 usage, 3 could not be checked (check);
of launch: that of the first rank that failed, 128 + N after signal N.";

#[derive(Subcommand)]
enum Words {
    /// Run a collective with a hook and check every byte
    Run(run::Words),
    /// Compare engines and collectives with their definitions, bit for bit
    Verify(Request),
    /// Find races and deadlocks of the shipped schedules, in all interleavings
    Check(Task),
    /// Hash the compiled form of every shipped kernel, or compare with an earlier list
    Fingerprints(fingerprints::Request),
    /// Measure against hand-written limits and MPI, in one run
    Bench {
        #[command(subcommand)]
        subject: bench::Words,
    },
    /// Print the IR, bytecode or PTX of a kernel or a collective
    Emit(emit::Words),
    /// Start the ranks of a program on this host; their output is prefixed by [rank]
    Launch(Job),
    /// Run random transfers among processes: every byte checked, nothing may grow
    Soak(Soak),
    /// Describe this machine, and the transport two ranks would use and why
    Topo,
    /// Check whether this machine is suitable
    Doctor,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

impl Command {
    /// Parses the arguments after the program's name. The error is the text to print instead, with its status; help and
    /// versions are among them.
    pub fn parse(words: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Command, clap::Error> {
        let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        let mut grammar = Cli::command();
        grammar.build();
        if let Some(word) = own(&words).iter().find(|word| word.to_str().is_none()) {
            return Err(grammar.error(ErrorKind::InvalidUtf8, format!("'{}' is not UTF-8", word.to_string_lossy())));
        }
        let program = OsString::from("tilewire");
        let mut matches = grammar.try_get_matches_from_mut([vec![program], words].concat())?;
        let mut at = &mut grammar;
        let mut below = matches.subcommand();
        while let Some((name, more)) = below {
            at = at.find_subcommand_mut(name).expect("it was read by it");
            below = more.subcommand();
        }
        let cli = Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(at))?;
        asked(cli.words).map_err(|why| at.error(ErrorKind::ValueValidation, why))
    }
}

/// The arguments that must be text: those after `--` of a launch are for another program, and may be any bytes.
fn own(words: &[OsString]) -> &[OsString] {
    match words.iter().position(|word| word == "--") {
        Some(end) if words[0] == "launch" => &words[..end],
        _ => words,
    }
}

/// Checks options that depend on each other.
fn asked(words: Option<Words>) -> Result<Command, String> {
    Ok(match words {
        None => Command::Demo,
        Some(Words::Run(words)) => Command::Run(words.run()?),
        Some(Words::Verify(request)) => Command::Verify(request.checked()?),
        Some(Words::Check(task)) => Command::Check(task.checked()?),
        Some(Words::Fingerprints(request)) => Command::Fingerprints(request),
        Some(Words::Bench { subject }) => Command::Bench(subject.bench()?),
        Some(Words::Emit(words)) => emitted(words)?,
        Some(Words::Launch(job)) => Command::Launch(job),
        Some(Words::Soak(soak)) => Command::Soak(soak),
        Some(Words::Topo) => Command::Topo,
        Some(Words::Doctor) => Command::Doctor,
        Some(Words::Completions { shell }) => Command::Completions(shell),
    })
}

fn emitted(words: emit::Words) -> Result<Command, String> {
    let name = words.name.clone().unwrap_or_default();
    // `gather` is both: the kernel, unless options of a collective are given.
    let collective = Collective::named(&name).filter(|_| words.how.first().is_some() || named(&name).is_err());
    let Some(collective) = collective else {
        // An empty name is not a kernel's, so the answer lists them.
        let kernel = named(&name).map_err(|error| format!("{error}\nand the collectives that run has"))?;
        let parts = words.parts()?;
        return match words.how.first() {
            Some(option) => Err(format!("{option} is for collectives, and {name} is a kernel")),
            None => Ok(Command::Emit { kernel, parts }),
        };
    };
    let parts = words.parts()?;
    match words.how.run(collective)? {
        Run { ranks: Some(_), .. } => Err("the ranks are threads: leave --world out".into()),
        Run { engine: Engine::Cuda, .. } if parts.bytecode => {
            Err("--bytecode is what the CPU engine runs, over shm; a GPU runs --ptx".into())
        }
        run => Ok(Command::EmitCollective { run, parts }),
    }
}

/// The completion script of a shell.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tilewire", &mut script);
    script
}

/// Parses one of some names into its value. `--help`, errors and completions list the names.
pub fn one_of<T: Clone + Send + Sync + 'static>(
    all: impl IntoIterator<Item = (&'static str, T)>,
) -> impl TypedValueParser<Value = T> {
    let all: Vec<(&'static str, T)> = all.into_iter().collect();
    let names: Vec<&'static str> = all.iter().map(|(name, _)| *name).collect();
    PossibleValuesParser::new(names)
        .map(move |word| all.iter().find(|(name, _)| *name == word).expect("no other name passes").1.clone())
}

/// Names with underscores, which may be written with hyphens.
pub fn underscored(names: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = String> {
    let value = |name: &'static str| PossibleValue::new(name).alias(name.replace('_', "-"));
    PossibleValuesParser::new(names.into_iter().map(value)).map(|word| word.replace('-', "_"))
}

/// Parses the name of a collective.
pub fn collective() -> impl TypedValueParser<Value = Collective> {
    underscored(Collective::ALL.map(Collective::name))
        .map(|name| Collective::named(&name).expect("no other name passes"))
}

/// A help text that lists many names, in lines of suitable width.
pub fn listing(what: &str, names: &[&str]) -> String {
    let lines = crate::table::wrapped(&names.join(", "), 80);
    format!("{what}:\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Apart, CpuWire, Ranks, Shuffle};
    use crate::table::WIDTH;
    use std::path::Path;
    use tilewire::ptx::Target;

    fn parse(line: &str) -> Result<Command, String> {
        Command::parse(line.split_whitespace()).map_err(|error| error.to_string())
    }

    /// Checks that a command line is answered with a text instead of being run, with status 0.
    #[track_caller]
    fn answer(line: &str) -> String {
        let error = Command::parse(line.split_whitespace()).unwrap_err();
        assert_eq!((error.exit_code(), error.use_stderr()), (0, false), "{line}: {error}");
        error.to_string()
    }

    #[test]
    fn commands_are_read() {
        assert_eq!(parse(""), Ok(Command::Demo));
        assert_eq!(parse("completions zsh"), Ok(Command::Completions(Shell::Zsh)));
        let (kernel, parts) = (named("scale").unwrap(), Parts { ir: true, ..Parts::default() });
        assert_eq!(parse("emit scale --ir"), Ok(Command::Emit { kernel, parts }));
        let parts = Parts { simplified: true, lines: true, bytecode: true, ..parts };
        assert_eq!(parse("emit --bytecode --lines scale --simplified --ir"), Ok(Command::Emit { kernel, parts }));
        let parts = Parts { ptx: Some(Target::Sm120), ..Parts::default() };
        assert_eq!(parse("emit scale --ptx --arch sm_120"), Ok(Command::Emit { kernel, parts }));
        let (kernel, both) = (named("gather").unwrap(), "gather --ptx --arch sm_120");
        assert_eq!(parse(&format!("emit {both}")), Ok(Command::Emit { kernel, parts }));
        let Ok(Command::Run(run)) = parse("run gather --ranks 3") else { panic!("it is read") };
        assert_eq!(parse(&format!("emit {both} --ranks 3")), Ok(Command::EmitCollective { run, parts }));
        let Ok(Command::Run(run)) = parse("run all_to_all --ranks 3 --hook transpose") else { panic!("it is read") };
        let line = "emit --ptx all_to_all --ranks 3 --arch sm_120 --hook=transpose";
        assert_eq!(parse(line), Ok(Command::EmitCollective { run, parts }));
        let Ok(Command::Run(run)) = parse("run all_to_all --engine cuda") else { panic!("it is read") };
        assert_eq!(
            parse("emit all_to_all --ptx --arch sm_120 --transport nvl"),
            Ok(Command::EmitCollective { run, parts })
        );
        let (ranks, quick) = (vec![2, 4], true);
        let request = Request {
            engine: Engine::Cuda,
            programs: 7,
            seed: 3,
            ranks,
            quick,
            sample: Some(9),
            world: Ranks::Processes,
            ..Request::default()
        };
        let line = "verify --engine cuda --programs 7 --seed 3 --ranks 2,4 --quick --sample 9 --world processes";
        assert_eq!(parse(line), Ok(Command::Verify(request)));
        let request = Request { share: Some((2, 3)), ..Request::default() };
        assert_eq!(parse("verify --share 3/3"), Ok(Command::Verify(request)));
        for wrong in ["0/3", "4/3", "3", "/", "a/b", "1/0"] {
            let why = parse(&format!("verify --share {wrong}")).unwrap_err();
            assert!(why.contains("K/N") && why.contains(&format!("'{wrong}'")), "{why}");
        }
        let why = parse("verify --share 1/2 --sample 3").unwrap_err();
        assert!(why.contains("'--share <K/N>' cannot be used with '--sample <N>'"), "{why}");
        let only = vec![Collective::AllReduce, Collective::Gather];
        let request = Request { only, quick: true, ..Request::default() };
        assert_eq!(parse("verify all_reduce --quick gather"), Ok(Command::Verify(request)));
        let Ok(Command::Verify(request)) = parse("verify --transport mesh --domains 0,2|1,3 --shuffle 5 --seeds 9")
        else {
            panic!("it is read")
        };
        assert_eq!((request.ranks, request.shuffle, request.seeds), (vec![4], Shuffle { shuffle: Some(5) }, Some(9)));
        // The last one counts. The program uses this to pass options to its ranks.
        let request = Request { ranks: vec![3], world: Ranks::Env, progress: true, ..Request::default() };
        let line = "verify --ranks 2,4 --world processes --progress --world env --ranks 3 --progress";
        assert_eq!(parse(line), Ok(Command::Verify(request)));
    }

    #[test]
    fn help_and_versions_are_answers() {
        assert_eq!(answer("--version"), format!("tilewire {}\n", env!("CARGO_PKG_VERSION")));
        for line in ["--help", "-h", "help"] {
            assert!(answer(line).contains("Usage: tilewire [COMMAND]"), "{line}");
        }
        for line in ["bench kernels --help", "help bench kernels", "bench kernels --sizes 8 -h"] {
            assert!(answer(line).contains("Usage: tilewire bench kernels"), "{line}");
        }
    }

    /// The help of every command, in full.
    #[test]
    fn help_fits_a_hundred_columns_and_says_something_of_every_option() {
        fn check(command: &mut clap::Command) {
            let help = command.render_long_help().to_string();
            assert!(help.lines().all(|line| line.chars().count() <= WIDTH), "{help}");
            for arg in command.get_arguments() {
                assert!(arg.get_help().is_some(), "{}: {arg}", command.get_name());
            }
            command.get_subcommands_mut().for_each(check);
        }
        Cli::command().debug_assert();
        let mut grammar = Cli::command();
        grammar.build();
        check(&mut grammar);
    }

    #[test]
    fn completions_know_commands_options_and_values() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(completions(shell)).unwrap();
            for word in ["doctor", "all_to_all", "protocol", "bias-gelu", "reduce_scatter"] {
                assert!(script.contains(word), "{shell}: no '{word}'");
            }
        }
    }

    #[test]
    fn checks_are_read() {
        let task = Task {
            collective: "all".into(),
            ranks: Some(3),
            blocks: 2,
            mutate: Some("drop-wait"),
            wire: CpuWire::default(),
            apart: Apart::default(),
            seed: 7,
            steps: Some(900),
            json: None,
            svg: None,
        };
        assert_eq!(parse("check all --ranks 3 --mutate drop-wait --seed=7 --steps 900"), Ok(Command::Check(task)));
    }

    /// The examples with options, as people copy them.
    #[test]
    fn documented_lines_are_understood() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let guide = std::fs::read_dir(root.join("docs/guide")).unwrap().map(|entry| entry.unwrap().path());
        let mut tried = Vec::new();
        for path in ["README.md", "CONTRIBUTING.md", "docs/measurements.md"]
            .map(|name| root.join(name))
            .into_iter()
            .chain(guide)
        {
            let text = std::fs::read_to_string(&path).unwrap();
            let spans = text.lines().flat_map(|line| line.split('`'));
            for span in spans {
                let own = ["tilewire ", "cargo run --release -- ", "bench ", "run ", "verify ", "emit "];
                let Some(start) = own.into_iter().find(|start| span.starts_with(start)) else { continue };
                // In blocks, a description follows the command.
                let words = span.strip_prefix(start).unwrap().split("  ").next().unwrap();
                let words = if start.len() > 7 { words.to_string() } else { format!("{start}{words}") };
                if words.contains(" --") && !words.contains(['[', '|', '…', '$']) && !words.contains("..") {
                    if let Err(error) = Command::parse(words.split_whitespace()) {
                        assert_eq!(error.exit_code(), 0, "{}: {words}: {error}", path.display());
                    }
                    tried.push(words);
                }
            }
        }
        assert!(tried.len() > 10, "{tried:?}");
    }

    #[test]
    fn what_comes_after_two_dashes_is_left_alone() {
        let job = Job {
            ranks: 4,
            deadline: Some("5s".into()),
            hosts: Vec::new(),
            address: None,
            program: ["prog", "--help", "--a=b", "--", "-n"].map(OsString::from).to_vec(),
            prefixed: true,
        };
        assert_eq!(parse("launch -n 4 --deadline=5s -- prog --help --a=b -- -n"), Ok(Command::Launch(job)));
        assert!(answer("launch --help -- prog").contains("Usage: tilewire launch"));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (line, reason) in [
            ("fly", "unrecognized subcommand 'fly'"),
            ("emit", "there are\n  copy"),
            ("emit nothing --ir", "there is no kernel 'nothing'"),
            ("emit scale --bytecode --lines", "--lines is for --ir"),
            ("emit scale --bytecode --simplified", "--simplified is for --ir"),
            ("emit scale", "--ir"),
            ("emit scale --ir --arch sm_90a", "--arch is for --ptx"),
            ("emit scale --ptx --arch sm_70", "invalid value 'sm_70' for '--arch"),
            ("verify --engine tpu", "invalid value 'tpu' for '--engine"),
            ("verify --programs many", "invalid value 'many' for '--programs"),
            ("verify fast", "invalid value 'fast' for '[COLLECTIVE]"),
            ("verify all_gather --programs 3", "'[COLLECTIVE]...' cannot be used with '--programs <N>'"),
            ("emit scale b --ir", "unexpected argument 'b'"),
            ("check", "<COLLECTIVE>"),
            ("check nothing", "invalid value 'nothing' for '<COLLECTIVE>'"),
            ("check all --ranks 1", "1 is not in 2..=64"),
            ("check all --mutate fly", "invalid value 'fly' for '--mutate"),
            ("check all --seed x", "invalid value 'x' for '--seed"),
            ("check all all", "unexpected argument 'all'"),
            ("check all --transport mesh --domains 0|1|2 --ranks 2", "--domains 0|1|2 lists 2: 2 ranks are 0 to 1"),
            ("check all --transport mesh --domains 0|1 --ranks 3", "--domains 0|1 does not list 2"),
            ("check all --domains 0|1", "--domains 0|1 is for --transport mesh, not shm"),
            ("verify --transport nvl", "[possible values: shm, loop, mesh, fabric]"),
            ("verify --transport fabric --shuffle 2", "--shuffle 2 is for --transport loop or mesh"),
            ("verify --transport loop --world processes", "--world processes: --transport loop joins threads"),
            (
                "verify --transport mesh --domains 0,2|1,3 --ranks 2,4",
                "--domains 0,2|1,3 lists 2,3: 2 ranks are 0 to 1",
            ),
            ("verify --transport mesh --domains 0,x", "'x' is not a rank"),
            ("verify --shuffle 3", "--shuffle 3 is for --transport loop or mesh"),
            ("verify --seeds 3", "--seeds is for --transport loop or mesh"),
            ("verify --transport loop --seeds 0", "0 is not in 1..=1000000"),
            ("run", "<COLLECTIVE>"),
            ("run gossip", "invalid value 'gossip' for '<COLLECTIVE>'"),
            ("run sendrecv --ranks 1", "--ranks 1: a sendrecv has 2 to"),
            ("run sendrecv --bytes 3 --dtype f32", "--bytes 3B is not a whole number of elements of type f32"),
            ("run sendrecv --bytes 9GiB", "--bytes 9GiB: at most 8GiB"),
            ("run sendrecv --dtype f12", "invalid value 'f12' for '--dtype"),
            ("run sendrecv --hook fold", "invalid value 'fold' for '--hook"),
            ("run sendrecv --hook scale --dtype bool", "--hook scale does not take elements of type bool"),
            ("run sendrecv --hook quantise --protocol direct", "--hook quantise with --protocol direct"),
            ("run all_reduce --hook narrow", "values of one type"),
            ("run all_reduce --op xor", "[possible values: sum"),
            ("run all_gather --op sum", "--op is for reductions, and all_gather is not one"),
            ("emit scale --ir --ranks 3", "--ranks is for collectives"),
            ("emit all_to_all --ir --hook nothing", "invalid value 'nothing' for '--hook"),
            ("emit all_to_all --ir --world threads", "the ranks are threads: leave --world out"),
            ("emit all_to_all --ir --so", "unexpected argument '--so'"),
            ("run all_to_all --algorithm ring", "there is no ring all_to_all; there are one-shot"),
            ("run reduce_scatter --dtype bool", "a reduction takes numbers"),
            ("run broadcast --ranks 0", "0 is not in 1..=64"),
            ("run sendrecv --protocol tcp", "invalid value 'tcp' for '--protocol"),
            ("run sendrecv --blocks 0", "0 is not in 1..=1024"),
            ("run sendrecv --world moon", "[possible values: threads, processes, env]"),
            ("run sendrecv --launches", "a value is required for '--launches"),
            ("run sendrecv --fast", "unexpected argument '--fast'"),
            ("run sendrecv --transport tcp", "[possible values: shm, nvl, loop, mesh, fabric]"),
            ("run sendrecv --transport fabric --world threads", "--transport fabric joins processes"),
            (
                "run sendrecv --engine cpu --transport nvl",
                "--engine cpu does not go over --transport nvl: cpu goes over",
            ),
            ("emit all_to_all --ir --transport tcp", "invalid value 'tcp' for '--transport"),
            ("emit all_to_all --ir --engine cuda --transport shm", "--engine cuda does not go over --transport shm"),
            ("emit all_to_all --bytecode --transport nvl", "--bytecode is what the CPU engine runs"),
            ("emit scale --ir --transport shm", "--transport is for collectives"),
            ("soak", "--minutes <M>"),
            ("soak --minutes soon", "not a number of minutes"),
            ("soak --minutes 1 --ranks 99", "99 is not in 2..=16"),
            ("launch", "-- <PROGRAM>..."),
            ("launch -n 2 --", "<PROGRAM>..."),
            ("launch -n 2 prog", "unexpected argument 'prog'"),
            ("launch -- prog", "-n <N>"),
            ("launch -n 0 -- prog", "0 is not in 1..=1024"),
            ("launch -n two -- prog", "invalid value 'two' for '-n <N>'"),
            ("launch -n 2 --deadline soon -- prog", "not a time: write 500ms"),
            ("launch -n 2 --hosts a,-b -- prog", "'-b' is not a host"),
            ("launch -n 2 --address lo -- prog", "--hosts <LIST>"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }
}
