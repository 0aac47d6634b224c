//! The words of the command line.

use crate::bench::{self, Bench};
use crate::check::{COLLECTIVES, Task};
use crate::emit::Parts;
use crate::fingerprints;
use crate::kernels::{Named, named};
use crate::launch::Job;
use crate::run::{self, Collective, Ranks, Run};
use crate::soak::{self, Soak};
use crate::verify::{Engine, Request};
use std::ffi::OsString;
use tilewire::check::Mutation;
use tilewire::ptx::Target;
use tilewire::transport::Deadline;

/// What `--help` prints.
pub const HELP: &str = "\
tilewire: write what happens to one tile, tilewire sends it

usage:
  tilewire                                  a short demonstration
  tilewire emit KERNEL|COLLECTIVE --ir [--simplified] [--lines]
                                            print a kernel's intermediate representation; a collective's with the
                                            options of run (--ranks, --hook, --dtype, --protocol, ..), of rank 0,
                                            with --transport nvl as a GPU here runs it; gather is the kernel unless
                                            there are some
  tilewire emit KERNEL --bytecode           print what the CPU engine runs
  tilewire emit KERNEL --ptx [--arch ARCH]  print what a GPU runs
  tilewire verify [COLLECTIVE ..] [--engine cpu|cuda] [--programs N] [--shifts N] [--replays N] [--orders N] [--seed S] [--ranks LIST]
                  [--sample N | --share K/N] [--world threads|processes] [--quick] [--progress]
                                            random programs on an engine against their definition, and every
                                            collective with every hook against a plain computation, bit for bit, and
                                            with hooks that write down what they know; or only the collectives that
                                            are named. With --engine cuda a sample of 150 plans for each number of
                                            ranks unless --sample or --share says otherwise: --share 1/1 is all
  tilewire run COLLECTIVE [--ranks N] [--bytes SIZE] [--dtype T] [--hook HOOK]
               [--protocol packet|staged|bulk|direct] [--algorithm one-shot|two-phase|ring] [--op OP]
               [--blocks K] [--rounds roles|blocks|legs] [--world threads|processes|env] [--engine cpu|cuda]
               [--transport shm|nvl] [--launches L] [--seed S]
                                            a collective among N ranks with a hook, every byte checked; the engine
                                            cpu goes over shm and cuda over nvl, so that one of them is enough to say
  tilewire soak --minutes M [--ranks N] [--seed S]
                                            random transfers among N processes, every byte checked, nothing may grow
  tilewire bench kernels [--sizes LIST] [--cases NAME,..] [--quick] [--json FILE]
                                            the CPU engine against hand-written loops, in one run
  tilewire bench sendrecv [--sizes LIST] [--cases NAME,..] [--world WORLD] [--quick] [--json FILE] [--plot FILE]
                                            two ranks against hand-written limits and MPI, in one run
  tilewire bench sendrecv --engine cuda [--sizes LIST] [--blocks LIST] [--cases NAME,..] [--slot SIZE] [--warps N] [--quick]
                          [--json FILE] [--plot FILE]
                                            two virtual ranks of a GPU against hand-written kernels, in one run;
                                            bench all_to_all and all_reduce --engine cuda: four of them
  tilewire bench all_to_all|all_gather|reduce_scatter|all_reduce|broadcast|gather|scatter [--ranks N] [--sizes LIST]
                 [--quick] [--json FILE] [--plot FILE]
                                            a collective against hand-written limits and MPI, in one run
  tilewire bench all [--quick] [--json FILE] [--plot FILE]
                                            kernels, sendrecv and the collectives, on the CPU
  tilewire check COLLECTIVE|all [--ranks N] [--blocks B] [--mutate NAME|all] [--seed S] [--steps N] [--json FILE]
                 [--svg FILE]
                                            races and deadlocks, in all schedules; or mistakes that must be found
  tilewire fingerprints [--ranks LIST] [--against FILE] [--every]
                                            hashes of the IR, bytecode and PTX of all kernels of check and verify
                                            --quick, by group or of each; or what differs from an earlier list
  tilewire launch -n N [--deadline TIME] -- PROGRAM ARGUMENTS
                                            start N ranks on this host; their output is prefixed by [rank]
  tilewire topo | tilewire doctor           what this machine has, what two ranks would use and why; whether it is fit
  tilewire --help | --version

  K/N    of all plans of collectives the Kth of N parts: for several runs at once, or on several machines
  LIST   sizes separated by commas: 64KiB,1MiB,64MiB; of ranks: 1,2,4
  ARCH   sm_80, sm_90a (as is usual), sm_100a, sm_103a or sm_120
  FILE   where the JSON report goes (- is stdout, in place of the table), or the plot: an SVG of speed as a share of the limit
  COLLECTIVE  sendrecv (a ring shift), all_to_all, all_gather, reduce_scatter, all_reduce, broadcast, gather, scatter;
         of check also barrier
  HOOK   of the library: copy, scale, transpose, quantise, quantise-i8, cast, narrow, permute, gather, scatter, accumulate,
         bias-gelu, swiglu, rms-norm, mask, keep, compose
  OP     of a reduction: sum, min, max, product, average
  SIZE   bytes that one rank sends to another (of an all_reduce: of the tensor): 4096, 64KiB, 8MiB
  T      element type: bool, i8 to i64, u8 to u64, f16, bf16, f32, f64, f8e4m3, f8e5m2
  env    the ranks of whatever launcher started this program; the default under one, otherwise threads
  WORLD  of a benchmark: threads or processes; both unless said
  TIME   how long ranks wait for each other: 500ms, 30s, 2m, or off

exit status: 0 holds, 1 does not, 2 usage; launch: that of the first rank that failed, 128 + N after signal N
";

/// What the user asked for.
#[derive(Debug, PartialEq)]
pub enum Command {
    /// Print the help text.
    Help,
    /// Print the version.
    Version,
    /// Show what this is.
    Demo,
    /// Say what this machine has.
    Topo,
    /// Say whether this machine is fit for the work.
    Doctor,
    /// Print the text of a kernel.
    Emit {
        /// The kernel.
        kernel: &'static Named,
        /// What of it.
        parts: Parts,
    },
    /// Print the text of what a collective launches.
    EmitCollective {
        /// The collective, and how.
        run: Run,
        /// What of it.
        parts: Parts,
    },
    /// Compare an engine with the definition of the language.
    Verify(Request),
    /// Look for races and deadlocks.
    Check(Task),
    /// Hash what kernels are compiled to.
    Fingerprints(fingerprints::Request),
    /// Start the ranks of a job.
    Launch(Job),
    /// Run a collective and check it.
    Run(Run),
    /// Run random transfers for a while.
    Soak(Soak),
    /// Measure.
    Bench(Bench),
}

impl Command {
    /// Reads the words after the program's name; the error says what is wrong with them.
    pub fn parse(words: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Command, String> {
        let mut words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        // What stands after `--` is for another program, and may be any bytes.
        let others = words.iter().position(|word| word == "--").map(|at| words.split_off(at + 1)).unwrap_or_default();
        let is_launch = words.first().is_some_and(|first| first == "launch");
        let (own, program) = if is_launch { (words, others) } else { ([words, others].concat(), Vec::new()) };
        let mut words = Words::of(own.into_iter().map(text_of).collect::<Result<_, _>>()?);
        let Some(first) = words.next() else { return Ok(Command::Demo) };
        // What stands after `--` is for another program.
        if words.0.as_slice().iter().take_while(|word| *word != "--").any(|word| word == "--help" || word == "-h") {
            return Ok(Command::Help);
        }
        match first.as_str() {
            "--help" | "-h" | "help" => Ok(Command::Help),
            "--version" | "-V" => words.end(Command::Version),
            "emit" => emit(words),
            "topo" | "doctor" => match words.next() {
                Some(more) => Err(format!("{first}: '{more}' is one word too many")),
                None => Ok(if first == "topo" { Command::Topo } else { Command::Doctor }),
            },
            "bench" => bench::parse(words).map(Command::Bench),
            "check" => check(words),
            "fingerprints" => fingerprints(words),
            "launch" => launch(words, program),
            "verify" => verify(words),
            "run" => run::parse(words).map(Command::Run),
            "soak" => soak::parse(words).map(Command::Soak),
            word => Err(format!("unknown command '{word}'")),
        }
    }
}

/// A word that must be text.
fn text_of(word: OsString) -> Result<String, String> {
    word.into_string().map_err(|word| format!("'{}' is not UTF-8", word.to_string_lossy()))
}

fn emit(mut words: Words) -> Result<Command, String> {
    let (mut kernel, mut parts, mut arch) = (None, Parts::default(), None);
    // How a collective is to be run, as the words of `run`.
    let mut how = Vec::new();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--ir" => parts.ir = true,
            "--simplified" => parts.simplified = true,
            "--lines" => parts.lines = true,
            "--bytecode" => parts.bytecode = true,
            "--ptx" => parts.ptx = Some(Target::Sm90a),
            "--arch" => {
                arch = Some(words.value("--arch")?.parse::<Target>().map_err(|error| format!("emit: {error}"))?)
            }
            option if option.starts_with('-') => {
                let value = words.value(option).map_err(|_| format!("emit: unknown option '{option}'"))?;
                how.extend([word, value]);
            }
            _ if kernel.is_none() => kernel = Some(word),
            _ => return Err(format!("emit: '{word}' is one word too many")),
        }
    }
    let name = kernel.unwrap_or_default();
    let kernel = match Collective::named(&name) {
        // A gather is both: the kernel, unless it is said how to run it.
        Some(_) if !how.is_empty() || named(&name).is_err() => None,
        // An empty name is no kernel's, so the answer lists those there are.
        _ => Some(named(&name).map_err(|error| format!("emit: {error}\nand the collectives that run has"))?),
    };
    if let Some(arch) = arch {
        parts.ptx = Some(parts.ptx.and(Some(arch)).ok_or("emit: --arch is for --ptx")?);
    }
    match parts {
        Parts { ir: false, bytecode: false, ptx: None, .. } => {
            Err("emit: say what to print: --ir, --bytecode or --ptx".into())
        }
        Parts { ir: false, simplified: true, .. } => Err("emit: --simplified is for --ir".into()),
        Parts { ir: false, lines: true, .. } => Err("emit: --lines is for --ir".into()),
        parts => match (kernel, how.first()) {
            (Some(kernel), None) => Ok(Command::Emit { kernel, parts }),
            (Some(_), Some(option)) => Err(format!("emit: {option} is for collectives")),
            (None, _) => {
                how.insert(0, name);
                let run = run::parse(Words::of(how)).map_err(|why| why.replacen("run:", "emit:", 1))?;
                match run {
                    Run { ranks: Some(_), .. } => Err("emit: its ranks are threads; leave --world out".into()),
                    Run { engine: Engine::Cuda, .. } if parts.bytecode => {
                        Err("emit: --bytecode is what the CPU engine runs, over shm; a GPU runs --ptx".into())
                    }
                    run => Ok(Command::EmitCollective { run, parts }),
                }
            }
        },
    }
}

fn verify(mut words: Words) -> Result<Command, String> {
    let mut request = Request::default();
    // What is not about collectives.
    let mut besides = None;
    let number =
        |option: &str, text: String| text.parse().map_err(|_| format!("verify: {option} takes a number, not '{text}'"));
    while let Some(word) = words.next() {
        besides =
            besides.or(["--replays", "--orders", "--shifts", "--programs"].into_iter().find(|&option| option == word));
        match word.as_str() {
            "--engine" => {
                request.engine = Engine::parse(&words.value("--engine")?).map_err(|why| format!("verify: {why}"))?;
            }
            "--replays" => request.replays = number("--replays", words.value("--replays")?)?,
            "--orders" => request.orders = number("--orders", words.value("--orders")?)?,
            "--shifts" => request.shifts = number("--shifts", words.value("--shifts")?)? as usize,
            "--programs" => request.programs = number("--programs", words.value("--programs")?)?,
            "--seed" => request.seed = number("--seed", words.value("--seed")?)?,
            "--quick" => request.quick = true,
            "--progress" => request.progress = true,
            "--sample" => request.sample = Some(number("--sample", words.value("--sample")?)? as usize),
            "--share" => request.share = Some(share(&words.value("--share")?)?),
            "--world" => {
                request.world = Ranks::parse(&words.value("--world")?).map_err(|why| format!("verify: {why}"))?;
            }
            "--ranks" => {
                let ranks =
                    words.value("--ranks")?.split(',').map(|text| ranks_of(text.trim())).collect::<Result<_, _>>();
                request.ranks = ranks.map_err(|error| error.replace("launch:", "verify:"))?;
            }
            other => {
                let collective = Collective::named(other).ok_or_else(|| format!("verify: unknown word '{other}'"))?;
                request.only.push(collective);
            }
        }
    }
    if request.share.is_some() && request.sample.is_some() {
        return Err("verify: a sample or a share, not both".into());
    }
    if let (Some(option), [_, ..]) = (besides, &request.only[..]) {
        return Err(format!("verify: {option} is for what is verified besides collectives, but some are named"));
    }
    Ok(Command::Verify(request))
}

/// Reads `K/N`, K from 1 to N, as the number from 0 and N.
fn share(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').and_then(|(k, n)| Some((k.parse::<usize>().ok()?, n.parse::<usize>().ok()?)));
    match numbers {
        Some((k, n)) if (1..=n).contains(&k) => Ok((k - 1, n)),
        _ => Err(format!("verify: --share takes K/N, the Kth of N, as 1/8; not '{text}'")),
    }
}

/// More ranks or blocks than this are no small world.
const MOST_CHECKED: usize = 64;

fn fingerprints(mut words: Words) -> Result<Command, String> {
    let mut request = fingerprints::Request { ranks: vec![2, 3, 4], ..fingerprints::Request::default() };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--ranks" => {
                let ranks = words.value("--ranks")?;
                request.ranks = ranks.split(',').map(|text| ranks_of(text.trim())).collect::<Result<_, _>>()?;
            }
            "--against" => request.against = Some(words.value("--against")?),
            "--every" => request.every = true,
            _ => return Err(format!("fingerprints: unknown word '{word}'")),
        }
    }
    Ok(Command::Fingerprints(request))
}

fn check(mut words: Words) -> Result<Command, String> {
    let (mut collective, mut ranks, mut blocks, mut seed, mut steps) = (None, 2, 2, 1, None);
    let (mut mutations, mut json, mut svg) = (Vec::new(), None, None);
    let number = |what: &str, text: String, least: usize| {
        let number = text.parse().ok().filter(|n| (least..=MOST_CHECKED).contains(n));
        number.ok_or_else(|| format!("check: '{text}' is no number of {what} from {least} to {MOST_CHECKED}"))
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--ranks" => ranks = number("ranks", words.value("--ranks")?, 2)?,
            "--blocks" => blocks = number("blocks", words.value("--blocks")?, 1)?,
            "--seed" => {
                let text = words.value("--seed")?;
                seed = text.parse().map_err(|_| format!("check: '{text}' is no seed: write a number"))?;
            }
            "--steps" => {
                let text = words.value("--steps")?;
                let most = text.parse().ok().filter(|&most: &u64| most > 0);
                steps = Some(most.ok_or_else(|| format!("check: '{text}' is no number of steps: write 1 or more"))?);
            }
            "--mutate" => mutations = mutations_of(&words.value("--mutate")?)?,
            "--json" => json = Some(words.value("--json")?),
            "--svg" => svg = Some(words.value("--svg")?),
            option if option.starts_with('-') => return Err(format!("check: unknown option '{option}'")),
            _ if collective.is_none() => collective = Some(word.replace('-', "_")),
            _ => return Err(format!("check: '{word}' is one word too many")),
        }
    }
    let known = COLLECTIVES.join(", ");
    let collective = match collective {
        None => return Err(format!("check: say what to check: all, or one of {known}")),
        Some(all) if all == "all" => None,
        Some(name) if COLLECTIVES.contains(&name.as_str()) => Some(name),
        Some(name) => return Err(format!("check: there is no collective '{name}'; there are: {known}")),
    };
    Ok(Command::Check(Task { collective, ranks, blocks, mutations, seed, steps, json, svg }))
}

fn mutations_of(name: &str) -> Result<Vec<Mutation>, String> {
    if name == "all" {
        return Ok(Mutation::all().to_vec());
    }
    let names: Vec<&str> = Mutation::all().iter().map(|mutation| mutation.name()).collect();
    let mutation = Mutation::named(name);
    mutation
        .map(|mutation| vec![mutation])
        .ok_or_else(|| format!("check: there is no mutation '{name}'; there are: {}", names.join(", ")))
}

/// The most ranks `launch` starts: each costs the launcher three threads and two pipes.
const MOST_RANKS: usize = 1024;

fn launch(mut words: Words, program: Vec<OsString>) -> Result<Command, String> {
    let (mut ranks, mut deadline) = (None, None);
    loop {
        let Some(word) = words.next() else { return Err("launch: say what to start: -- PROGRAM ARGUMENTS".into()) };
        match word.as_str() {
            "--" => break,
            "-n" => ranks = Some(ranks_of(&words.value("-n")?)?),
            "--deadline" => {
                let text = words.value("--deadline")?;
                if Deadline::parse_length(&text).is_none() {
                    return Err(format!("launch: '{text}' is no time: write 500ms, 30s, 2m or off"));
                }
                deadline = Some(text);
            }
            _ => return Err(format!("launch: unknown word '{word}'; the program comes after --")),
        }
    }
    match ranks {
        None => Err("launch: say how many ranks: -n N".into()),
        Some(_) if program.is_empty() => Err("launch: say what to start: -- PROGRAM ARGUMENTS".into()),
        Some(ranks) => Ok(Command::Launch(Job { ranks, deadline, program, prefixed: true })),
    }
}

fn ranks_of(text: &str) -> Result<usize, String> {
    let ranks = text.parse().ok().filter(|ranks| (1..=MOST_RANKS).contains(ranks));
    ranks.ok_or_else(|| format!("launch: '{text}' is no number of ranks from 1 to {MOST_RANKS}"))
}

/// The words not read yet, `--key=value` counting as two.
pub struct Words(std::vec::IntoIter<String>);

impl Words {
    /// The next one.
    pub fn next(&mut self) -> Option<String> {
        let word = self.0.next()?;
        match word.split_once('=') {
            Some((key, value)) if key.starts_with("--") => {
                let rest: Vec<String> = std::iter::once(value.to_string()).chain(self.0.by_ref()).collect();
                self.0 = rest.into_iter();
                Some(key.to_string())
            }
            _ => Some(word),
        }
    }

    /// The value of an option.
    pub fn value(&mut self, option: &str) -> Result<String, String> {
        self.0.next().ok_or_else(|| format!("{option} needs a value"))
    }

    /// All of them, as they are.
    pub fn rest(self) -> Vec<String> {
        self.0.collect()
    }

    /// These, to be read.
    pub fn of(words: Vec<String>) -> Words {
        Words(words.into_iter())
    }

    fn end(mut self, command: Command) -> Result<Command, String> {
        self.0.next().map_or(Ok(command), |word| Err(format!("'{word}' is one word too many")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, String> {
        Command::parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn commands_are_read() {
        assert_eq!(parse("--help"), Ok(Command::Help));
        assert_eq!(parse("bench kernels --help"), Ok(Command::Help));
        assert_eq!(parse("--version"), Ok(Command::Version));
        assert_eq!(parse(""), Ok(Command::Demo));
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
            assert!(parse(&format!("verify --share {wrong}")).unwrap_err().contains("K/N"), "{wrong}");
        }
        assert!(parse("verify --share 1/2 --sample 3").unwrap_err().contains("not both"));
        let only = vec![Collective::AllReduce, Collective::Gather];
        let request = Request { only, quick: true, ..Request::default() };
        assert_eq!(parse("verify all_reduce --quick gather"), Ok(Command::Verify(request)));
    }

    #[test]
    fn checks_are_read() {
        let task = Task {
            collective: None,
            ranks: 3,
            blocks: 2,
            mutations: vec![Mutation::DropWait],
            seed: 7,
            steps: Some(900),
            json: None,
            svg: None,
        };
        assert_eq!(parse("check all --ranks 3 --mutate drop-wait --seed=7 --steps 900"), Ok(Command::Check(task)));
    }

    #[test]
    fn what_comes_after_two_dashes_is_left_alone() {
        let job = Job {
            ranks: 4,
            deadline: Some("5s".into()),
            program: ["prog", "--help", "--a=b", "--", "-n"].map(OsString::from).to_vec(),
            prefixed: true,
        };
        assert_eq!(parse("launch -n 4 --deadline=5s -- prog --help --a=b -- -n"), Ok(Command::Launch(job)));
        assert_eq!(parse("launch --help -- prog"), Ok(Command::Help));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (line, reason) in [
            ("fly", "unknown command 'fly'"),
            ("--version now", "'now' is one word too many"),
            ("emit", "there are\n  copy"),
            ("emit nothing --ir", "there is no kernel 'nothing'"),
            ("emit scale --bytecode --lines", "--lines is for --ir"),
            ("emit scale --bytecode --simplified", "--simplified is for --ir"),
            ("emit scale", "--ir"),
            ("emit scale --ir --arch sm_90a", "--arch is for --ptx"),
            ("emit scale --ptx --arch sm_70", "no target 'sm_70'"),
            ("verify --engine tpu", "no engine 'tpu'"),
            ("verify --programs many", "takes a number"),
            ("verify fast", "unknown word 'fast'"),
            ("verify all_gather --programs 3", "--programs is for what is verified besides collectives"),
            ("emit scale b --ir", "'b' is one word too many"),
            ("check", "say what to check"),
            ("check nothing", "there is no collective 'nothing'"),
            ("check all --ranks 1", "'1' is no number of ranks"),
            ("check all --mutate fly", "there is no mutation 'fly'"),
            ("check all --seed x", "'x' is no seed"),
            ("check all --steps 0", "'0' is no number of steps"),
            ("check all all", "one word too many"),
            ("run", "say which collective"),
            ("run gossip", "unknown collective 'gossip'"),
            ("run sendrecv --ranks 1", "'1' is no number of ranks from 2 to"),
            ("run sendrecv --bytes 3 --dtype f32", "--bytes 3B is no whole number of elements of type f32"),
            ("run sendrecv --bytes 9GiB", "--bytes 9GiB: at most 8GiB"),
            ("run sendrecv --dtype f12", "'f12' is no element type; there are bool, i8"),
            ("run sendrecv --hook fold", "there is no hook 'fold'"),
            ("run sendrecv --hook scale --dtype bool", "--hook scale does not take elements of type bool"),
            ("run sendrecv --hook quantise --protocol direct", "--hook quantise with --protocol direct"),
            ("run all_reduce --hook narrow", "values of one type"),
            ("run all_reduce --op xor", "there is no op 'xor'; there are sum"),
            ("run all_gather --op sum", "unknown word '--op'"),
            ("emit scale --ir --ranks 3", "emit: --ranks is for collectives"),
            ("emit all_to_all --ir --hook nothing", "emit: there is no hook 'nothing'"),
            ("emit all_to_all --ir --world threads", "emit: its ranks are threads; leave --world out"),
            ("emit all_to_all --ir --so", "emit: unknown option '--so'"),
            ("run all_to_all --algorithm ring", "there is no ring all_to_all; there are one-shot"),
            ("run reduce_scatter --dtype bool", "a reduction takes numbers"),
            ("run broadcast --ranks 0", "'0' is no number of ranks from 1 to"),
            ("run sendrecv --protocol tcp", "there is no protocol 'tcp'"),
            ("run sendrecv --blocks 0", "'0' is no number of blocks"),
            ("run sendrecv --world moon", "'moon' is no world"),
            ("run sendrecv --launches", "--launches needs a value"),
            ("run sendrecv --fast", "unknown word '--fast'"),
            (
                "run sendrecv --transport fabric",
                "there is no transport 'fabric'; there are shm (of --engine cpu) and nvl",
            ),
            (
                "run sendrecv --engine cpu --transport nvl",
                "--engine cpu does not go over --transport nvl: cpu goes over",
            ),
            ("emit all_to_all --ir --transport mesh", "emit: there is no transport 'mesh'"),
            (
                "emit all_to_all --ir --engine cuda --transport shm",
                "emit: --engine cuda does not go over --transport shm",
            ),
            ("emit all_to_all --bytecode --transport nvl", "emit: --bytecode is what the CPU engine runs"),
            ("emit scale --ir --transport shm", "emit: --transport is for collectives"),
            ("soak", "--minutes M"),
            ("soak --minutes soon", "'soon' is no number of minutes"),
            ("soak --minutes 1 --ranks 99", "'99' is no number of ranks"),
            ("launch", "-- PROGRAM"),
            ("launch -n 2 --", "-- PROGRAM"),
            ("launch -n 2 prog", "comes after --"),
            ("launch -- prog", "-n N"),
            ("launch -n 0 -- prog", "'0' is no number of ranks"),
            ("launch -n two -- prog", "'two' is no number of ranks"),
            ("launch -n 2 --deadline soon -- prog", "'soon' is no time"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }
}
