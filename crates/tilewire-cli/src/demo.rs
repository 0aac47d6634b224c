//! `tilewire` without arguments: a demonstration of a custom collective, in a few seconds.
//!
//! It shows the lines a user writes, their result to the bit, the time they save, that they are free of races and
//! deadlocks, and the report if they are not.

use anyhow::{Context, Result, ensure};
use std::io::{Write, stdout};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tilewire::check::{Mutation, Plan, Report, Settings};
use tilewire::collective::{Exchange, PreparedExchange};
use tilewire::cuda::Device;
use tilewire::link::{NvlOptions, NvlTransport, ShmOptions, ShmTransport, Transport};
use tilewire::rehearsal::Rehearsal;
use tilewire::transport::RankError;
use tilewire::{Knobs, Primitive, RunError, Tensor, World, all_to_all, map};

const RANKS: usize = 4;
/// Each rank has for each rank a matrix of this many rows and columns, 1 MiB; on a GPU 4 MiB.
const SIDE: usize = 512;
const GPU_SIDE: usize = 1024;
/// Samples of each way; the median counts.
const ROUNDS: usize = 11;
/// Launches in a sample on a GPU: starting one and waiting for it takes longer than it runs.
const LAUNCHES: u32 = 40;

/// The lines of [`transposed`], as printed; a test compares them with this file.
const SOURCE: &str = "    // Every rank has a [rows, cols] matrix for every rank.
    all_to_all(link, out, inp)
        .chunk_shape(rows, cols)
        .output_shape(cols, rows)
        // The hook: what is sent for a position of the output. It becomes part of the kernel that sends.
        .produce(|c| c.input.at(c.col(), c.row()))
";

fn transposed<'l, L: Transport>(
    link: &'l L,
    out: &Tensor<f32>,
    inp: &Tensor<f32>,
    (rows, cols): (usize, usize),
) -> Exchange<'l, 'l, f32, f32, f32> {
    // Every rank has a [rows, cols] matrix for every rank.
    all_to_all(link, out, inp)
        .chunk_shape(rows, cols)
        .output_shape(cols, rows)
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
    writeln!(out, "   {RANKS} ranks, {} elements: every one equals a plain loop's, to the bit.\n", elements(SIDE))?;
    writeln!(
        out,
        "2. Against the two-pass way (transpose into a buffer, then a plain all-to-all), 1 MiB per pair of ranks:\n"
    )?;
    let ((one, two), bars) = chart(&times, ["with the hook", "two passes"]);
    let what = if two > one { format!("{:.2} times as fast", two / one) } else { "no faster here".to_string() };
    writeln!(out, "{bars}\n   The hook makes it {what}, and needs no buffer.")?;
    checked(&mut out)?;
    gpu_part(&mut out)?;
    out.write_all(NEXT.as_bytes())?;
    Ok(())
}

const NEXT: &str = "
Try next:
  tilewire run all_to_all --ranks 4 --hook transpose --world processes
                                            the same among processes, every byte checked
  tilewire emit all_to_all --hook transpose --ir --lines
                                            what it launches, with the source line of every instruction
  tilewire verify --quick                   every collective with every hook of the library, to the bit
  tilewire check all --ranks 3              races and deadlocks of all that ships
  tilewire bench kernels                    the CPU engine against hand-written loops
and docs/README.md: the guide, and examples in the order to read them.
";

// ---- one rank -----------------------------------------------------------------------------------------------------

/// Times of two ways, sample by sample.
type Times = [Vec<Duration>; 2];

/// The work of a rank: both ways in turn, `rounds` times, each checked.
fn rank(world: &World, rounds: usize) -> Result<Times, RankError> {
    let link = ShmTransport::rendezvous(world, ShmOptions::default())?;
    let me = world.rank().index();
    const CHUNK: usize = SIDE * SIDE;
    let inp = Tensor::from_slice(&matrices(me, SIDE));
    let (out, between) = (Tensor::<f32>::zeros(RANKS * CHUNK), Tensor::<f32>::zeros(RANKS * CHUNK));

    let mut fused = transposed(&link, &out, &inp, (SIDE, SIDE)).build()?;
    let transposes = |chunk: usize| {
        let part = chunk * CHUNK..(chunk + 1) * CHUNK;
        let transpose = map(&between.slice(part.clone()), &inp.slice(part)).chunk_shape(SIDE, SIDE);
        transpose.produce(|c| c.input.at(c.col(), c.row())).build()
    };
    let mut transposes = (0..RANKS).map(transposes).collect::<Result<Vec<_>, _>>()?;
    let mut plain = all_to_all(&link, &out, &between).build()?;

    let mut times = Times::default();
    for _ in 0..rounds {
        times[0].push(timed(world, || fused.run())?);
        check(me, &out, SIDE)?;
        times[1].push(timed(world, || {
            transposes.iter_mut().try_for_each(|transpose| transpose.run())?;
            plain.run()
        })?);
        check(me, &out, SIDE)?;
    }
    drop((fused, plain));
    link.close()?;
    Ok(times)
}

/// The time it takes if all ranks begin together.
fn timed(world: &World, work: impl FnOnce() -> Result<(), RunError>) -> Result<Duration, RankError> {
    world.bootstrap().barrier("sample", world.deadline())?;
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}

/// Number of elements that all ranks send.
fn elements(side: usize) -> usize {
    RANKS * RANKS * side * side
}

/// The data of a rank: a matrix for every rank.
fn matrices(rank: usize, side: usize) -> Vec<f32> {
    (0..elements(side) / RANKS).map(|i| element(rank, i, side)).collect()
}

/// Element `i` of a rank's data: different everywhere, exact in an f32.
fn element(rank: usize, i: usize, side: usize) -> f32 {
    (rank * RANKS * side * side + i) as f32 - 1e6
}

/// Compares with plain loops, then wipes the output for the next way.
fn check(me: usize, out: &Tensor<f32>, side: usize) -> Result<(), RankError> {
    let chunk = side * side;
    for (from, received) in out.try_to_vec()?.chunks(chunk).enumerate() {
        for (i, got) in received.iter().enumerate() {
            let must = element(from, me * chunk + i % side * side + i / side, side);
            if got.to_bits() != must.to_bits() {
                return Err(format!("element {i} from rank {from} is {got}, must be {must}").into());
            }
        }
    }
    Ok(out.try_fill(f32::NAN)?)
}

/// The medians over the samples of the slowest rank's time, in milliseconds, and a bar for each.
fn chart(ranks: &[Times], names: [&str; 2]) -> ((f64, f64), String) {
    let median = |way: usize| {
        let slowest = |round: usize| ranks.iter().map(|times| times[way][round]).max().unwrap_or_default();
        let mut all: Vec<Duration> = (0..ROUNDS).map(slowest).collect();
        all.sort();
        all[ROUNDS / 2].as_secs_f64() * 1e3
    };
    let (one, two) = (median(0), median(1));
    let bar = |time: f64| "█".repeat((time / one.max(two) * 48.0).round().max(1.0) as usize);
    let line = |name: &str, time: f64| format!("   {name:<16}{:<50}{time:.2} ms\n", bar(time));
    ((one, two), line(names[0], one) + &line(names[1], two))
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

/// Three launches of this demonstration's collective, with slots small enough to be reused.
fn plan() -> Result<Plan, RunError> {
    let (links, mut plan) = (Rehearsal::small(RANKS, 1).ranks(), Plan::new(RANKS as u32));
    let (rows, cols) = (12, 20);
    for _ in 0..3 {
        let trace = |link| {
            let tensor = || Tensor::<f32>::zeros(RANKS * rows * cols);
            let config =
                Knobs { primitive: Some(Primitive::Staged), slot_bytes: Some(128), depth: Some(4), ..Knobs::default() };
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

/// Prints the same lines for a GPU, if there is one. Its ranks are virtual, each with its own stream.
fn gpu_part(out: &mut impl Write) -> Result<()> {
    let Ok(device) = Device::open(0) else { return Ok(()) };
    let (name, target) = (device.name(), device.target());
    writeln!(out, "\n5. The same lines on the GPU, {name} ({target}), as PTX; its ranks share it:\n")?;
    out.flush()?;
    let times = World::threads(RANKS).run(|world| gpu_rank(&world, &device, ROUNDS))?;
    let elements = elements(GPU_SIDE);
    writeln!(out, "   {RANKS} ranks, {elements} elements: every one equals a plain loop's, to the bit.\n")?;
    let ((one, two), bars) = chart(&times, ["with the hook", "plain"]);
    writeln!(
        out,
        "{bars}\n   One launch after the other, the transpose takes {:.2} times as long as a plain all-to-all.",
        one / two
    )?;
    Ok(())
}

/// The work of a rank there: with the hook and without it in turn, `rounds` times.
fn gpu_rank(world: &World, device: &Arc<Device>, rounds: usize) -> Result<Times, RankError> {
    let link = NvlTransport::rendezvous(world, device, NvlOptions::default())?;
    let me = world.rank().index();
    let len = elements(GPU_SIDE) / RANKS;
    let (inp, out) = (device.zeros::<f32>(len)?, device.zeros::<f32>(len)?);
    inp.try_copy_from(&matrices(me, GPU_SIDE))?;
    let mut fused = transposed(&link, &out, &inp, (GPU_SIDE, GPU_SIDE)).build()?;
    let mut plain = all_to_all(&link, &out, &inp).build()?;
    let mut times = Times::default();
    for _ in 0..rounds {
        let sample = |op: &mut PreparedExchange<'_>| -> Result<Duration, RankError> {
            let took = timed(world, || (0..LAUNCHES).try_for_each(|_| op.run()).and_then(|()| op.sync()))?;
            Ok(took / LAUNCHES)
        };
        times[0].push(sample(&mut fused)?);
        check(me, &out, GPU_SIDE)?;
        times[1].push(sample(&mut plain)?);
    }
    drop((fused, plain));
    link.close()?;
    Ok(times)
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
        assert_eq!((times.len(), times[0][0].len()), (RANKS, 1));
        let plan = plan().unwrap();
        assert!(plan.verify(&Settings::default()).is_clean());
        assert_eq!(mistaken(&plan).unwrap().faults[0].fault.kind(), "race");
    }

    #[test]
    fn a_wrong_element_is_seen() {
        let chunk = SIDE * SIDE;
        let of = |from: usize, i: usize| element(from, chunk + i % SIDE * SIDE + i / SIDE, SIDE);
        let out = Tensor::from_fn(RANKS * chunk, |i| of(i / chunk, i % chunk));
        out.set(chunk + 3, 0.5);
        assert!(check(1, &out, SIDE).unwrap_err().to_string().starts_with("element 3 from rank 1 is 0.5"));
        out.set(chunk + 3, of(1, 3));
        check(1, &out, SIDE).unwrap();
        assert!(out.to_vec().iter().all(|x| x.is_nan()), "wiped for the next way");
    }

    #[test]
    fn bars_are_as_long_as_the_times() {
        let times = |ms| vec![Duration::from_millis(ms); ROUNDS];
        let ((one, two), text) = chart(&[[times(1), times(3)], [times(2), times(4)]], ["hook", "passes"]);
        let bars: Vec<usize> = text.lines().map(|line| line.matches('█').count()).collect();
        assert_eq!((bars, one, two), (vec![24, 48], 2.0, 4.0));
    }
}
