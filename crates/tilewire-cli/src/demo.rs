//! `tilewire` without arguments: a custom collective in front of your eyes, in a few seconds.
//!
//! The story: the lines a user writes; what they give, to the bit; what they save; that they are free of races and deadlocks; and what
//! is said when they are not.

use anyhow::{Context, Result, ensure};
use std::io::{Write, stdout};
use std::time::{Duration, Instant};
use tilewire::check::{Mutation, Plan, Report, Settings};
use tilewire::collective::{Exchange, Link};
use tilewire::cuda::Device;
use tilewire::rehearsal::Rehearsal;
use tilewire::transport::{RankError, ShmOptions, ShmTransport};
use tilewire::{Config, Primitive, RunError, Tensor, World, all_to_all, map};

const RANKS: usize = 4;
/// What a rank has for each rank: 1 MiB.
const ROWS: usize = 512;
const COLS: usize = 512;
const CHUNK: usize = ROWS * COLS;
/// Samples of each way; the median counts.
const ROUNDS: usize = 11;

/// The lines of [`transposed`], as printed; a test compares them with this file.
const SOURCE: &str = "    // Every rank has a [rows, cols] matrix for every rank.
    all_to_all(link, out, inp)
        .chunk_shape(rows, cols)
        // The hook: what is sent for a position of the output. It becomes part of the kernel that sends.
        .produce(|c| c.input.at(c.col(), c.row()))
";

fn transposed<'l, L: Link>(
    link: &'l L,
    out: &Tensor<f32>,
    inp: &Tensor<f32>,
    (rows, cols): (usize, usize),
) -> Exchange<'l, 'l, L, f32, f32, f32> {
    // Every rank has a [rows, cols] matrix for every rank.
    all_to_all(link, out, inp)
        .chunk_shape(rows, cols)
        // The hook: what is sent for a position of the output. It becomes part of the kernel that sends.
        .produce(|c| c.input.at(c.col(), c.row()))
}

/// Runs the demonstration.
pub fn demo() -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "tilewire: write what happens to one tile, tilewire sends it.\n")?;
    writeln!(out, "1. A collective of your own: an all-to-all that transposes what it sends.\n\n{SOURCE}")?;
    out.flush()?;
    let times = World::threads(RANKS).run(|world| rank(&world, ROUNDS))?;
    let elements = RANKS * RANKS * CHUNK;
    writeln!(out, "   {RANKS} ranks, {elements} elements: every one equals a plain loop's, to the bit.\n")?;
    writeln!(
        out,
        "2. Against the two-pass way (transpose into a buffer, then a plain all-to-all), 1 MiB per pair of ranks:\n"
    )?;
    out.write_all(chart(&times).as_bytes())?;
    checked(&mut out)?;
    gpu_part(&mut out)?;
    out.write_all(NEXT.as_bytes())?;
    Ok(())
}

const NEXT: &str = "
Try next:
  tilewire emit transpose --ir --lines      the kernel a hook becomes, with the source line of every instruction
  tilewire run sendrecv --ranks 4 --hook transpose --world processes
                                            a ring of transfers among processes, every byte checked
  tilewire check all --ranks 3              races and deadlocks of all that ships
  tilewire bench kernels                    the CPU engine against hand-written loops
and docs/README.md: the guide, and examples in the order to read them.
";

// ---- one rank -----------------------------------------------------------------------------------------------------

/// Times of the two ways, sample by sample.
#[derive(Default)]
struct Times {
    one_pass: Vec<Duration>,
    two_passes: Vec<Duration>,
}

/// What a rank does: both ways in turn, so many times, each checked.
fn rank(world: &World, rounds: usize) -> Result<Times, RankError> {
    let link = ShmTransport::rendezvous(world, ShmOptions::default())?;
    let me = world.rank().index();
    let inp = Tensor::from_fn(RANKS * CHUNK, |i| element(me, i));
    let (out, between) = (Tensor::<f32>::zeros(RANKS * CHUNK), Tensor::<f32>::zeros(RANKS * CHUNK));

    let mut fused = transposed(&link, &out, &inp, (ROWS, COLS)).build()?;
    let transposes = |chunk: usize| {
        let part = chunk * CHUNK..(chunk + 1) * CHUNK;
        let transpose = map(&between.slice(part.clone()), &inp.slice(part)).chunk_shape(ROWS, COLS);
        transpose.produce(|c| c.input.at(c.col(), c.row())).build()
    };
    let mut transposes = (0..RANKS).map(transposes).collect::<Result<Vec<_>, _>>()?;
    let mut plain = all_to_all(&link, &out, &between).build()?;

    let mut times = Times::default();
    for _ in 0..rounds {
        times.one_pass.push(timed(world, || fused.run())?);
        check(me, &out)?;
        times.two_passes.push(timed(world, || {
            transposes.iter_mut().try_for_each(|transpose| transpose.run())?;
            plain.run()
        })?);
        check(me, &out)?;
    }
    drop((fused, plain));
    link.close()?;
    Ok(times)
}

/// How long it takes when all ranks begin together.
fn timed(world: &World, work: impl FnOnce() -> Result<(), RunError>) -> Result<Duration, RankError> {
    world.bootstrap().barrier("sample", world.deadline())?;
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}

/// Element `i` of what a rank has: different everywhere, exact in an f32.
fn element(rank: usize, i: usize) -> f32 {
    (rank * RANKS * CHUNK + i) as f32 - 1e6
}

/// Compares with plain loops, then wipes the output for the next way.
fn check(me: usize, out: &Tensor<f32>) -> Result<(), RankError> {
    for (from, chunk) in out.cells().chunks(CHUNK).enumerate() {
        for (i, got) in chunk.iter().enumerate() {
            let must = element(from, me * CHUNK + i % ROWS * COLS + i / ROWS);
            if got.get().to_bits() != must.to_bits() {
                return Err(format!("element {i} from rank {from} is {}, must be {must}", got.get()).into());
            }
            got.set(f32::NAN);
        }
    }
    Ok(())
}

/// A bar for each way: the median over the samples of the slowest rank's time.
fn chart(ranks: &[Times]) -> String {
    let median = |of: fn(&Times) -> &Vec<Duration>| {
        let slowest = |round: usize| ranks.iter().map(|times| of(times)[round]).max().unwrap_or_default();
        let mut all: Vec<Duration> = (0..ROUNDS).map(slowest).collect();
        all.sort();
        all[ROUNDS / 2].as_secs_f64() * 1e3
    };
    let (one, two) = (median(|times| &times.one_pass), median(|times| &times.two_passes));
    let bar = |time: f64| "█".repeat((time / one.max(two) * 48.0).round().max(1.0) as usize);
    let line = |name: &str, time: f64| format!("   {name:<16}{:<50}{time:.2} ms\n", bar(time));
    let what = if two > one { format!("{:.2} times as fast", two / one) } else { "no faster here".to_string() };
    format!(
        "{}{}\n   The hook makes it {what}, and needs no buffer.\n",
        line("with the hook", one),
        line("two passes", two)
    )
}

// ---- the checker --------------------------------------------------------------------------------------------------

/// Checks the collective as it is, and with a mistake.
fn checked(out: &mut impl Write) -> Result<()> {
    let began = Instant::now();
    let plan = plan()?;
    let report = plan.verify(&Settings::default());
    let milliseconds = began.elapsed().as_millis();
    ensure!(report.is_clean(), "the demonstration's own collective: {report}");
    writeln!(
        out,
        "\n3. Its kernels under the checker, all ranks, in every order of events ({milliseconds} ms):\n\n   {report}"
    )?;
    writeln!(out, "\n4. The same with a mistake planted: a sender that does not wait until its slot has been read.\n")?;
    let report = mistaken(&plan)?;
    for line in report.to_string().lines().take(16) {
        writeln!(out, "   {line}")?;
    }
    Ok(())
}

/// Three launches of the collective of this demonstration, with slots small enough to come round.
fn plan() -> Result<Plan, RunError> {
    let (links, mut plan) = (Rehearsal::small(RANKS, 1).ranks(), Plan::new(RANKS as u32));
    let (rows, cols) = (12, 20);
    for _ in 0..3 {
        let trace = |link| {
            let tensor = || Tensor::<f32>::zeros(RANKS * rows * cols);
            let config = Config {
                primitive: Some(Primitive::Staged),
                slot_bytes: Some(128),
                depth: Some(4),
                ..Config::default()
            };
            transposed(link, &tensor(), &tensor(), (rows, cols)).config(config).trace()
        };
        let traced = links.iter().map(trace).collect::<Result<Vec<_>, _>>()?;
        let kernels: Vec<_> = traced.iter().map(|traced| (&traced.kernel, &traced.args[..])).collect();
        plan.launch(&kernels);
    }
    Ok(plan)
}

/// The report on the plan without the wait for a credit.
fn mistaken(plan: &Plan) -> Result<Report> {
    let mutants = plan.mutants(Mutation::DropCreditWait);
    let mut reports = mutants.iter().map(|mutant| mutant.verify(&Settings::default()));
    reports.find(|report| !report.is_clean()).context("the planted mistake was not found")
}

// ---- a GPU --------------------------------------------------------------------------------------------------------

/// What there is of it on a GPU: so far, which one there is.
fn gpu_part(out: &mut impl Write) -> Result<()> {
    if let Ok(device) = Device::open(0) {
        let (name, target) = (device.name(), device.target());
        writeln!(out, "\n5. There is a GPU: {name} ({target}). `tilewire verify --engine cuda` runs kernels on it.")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_shown_are_the_lines_run() {
        let lines = |text: &str| text.lines().map(|line| line.trim().to_string()).collect::<Vec<_>>().join("\n");
        assert_eq!(lines(include_str!("demo.rs")).matches(lines(SOURCE).as_str()).count(), 2);
    }

    #[test]
    fn the_collective_is_right_and_clean_and_its_mistake_is_found() {
        let times = World::threads(RANKS).run(|world| rank(&world, 1)).unwrap();
        assert_eq!((times.len(), times[0].one_pass.len()), (RANKS, 1));
        let plan = plan().unwrap();
        assert!(plan.verify(&Settings::default()).is_clean());
        assert_eq!(mistaken(&plan).unwrap().faults[0].fault.kind(), "race");
    }

    #[test]
    fn a_wrong_element_is_seen() {
        let of = |from: usize, i: usize| element(from, CHUNK + i % ROWS * COLS + i / ROWS);
        let out = Tensor::from_fn(RANKS * CHUNK, |i| of(i / CHUNK, i % CHUNK));
        out.set(CHUNK + 3, 0.5);
        assert!(check(1, &out).unwrap_err().to_string().starts_with("element 3 from rank 1 is 0.5"));
    }

    #[test]
    fn bars_are_as_long_as_the_times() {
        let times = |ms| vec![Duration::from_millis(ms); ROUNDS];
        let text = chart(&[
            Times { one_pass: times(1), two_passes: times(3) },
            Times { one_pass: times(2), two_passes: times(4) },
        ]);
        let bars: Vec<usize> = text.lines().map(|line| line.matches('█').count()).collect();
        assert_eq!(bars[..2], [24, 48]);
        assert!(text.contains("2.00 times as fast"));
    }
}
