//! Copy engines beside the kernels: streams of copies and handshakes. Their words go back to 0, so every schedule is
//! run.

use crate::checker::{expect, kinds};
use tilewire::check::{CopyStream, Fault, Plan, Report, Settings, Word};
use tilewire::ir::Access;
use tilewire::tensor::bytes_of;
use tilewire::{Memory, Tensor, kernel};

/// The memory between a sender and a receiver.
struct Way {
    input: Tensor<f32>,
    output: Tensor<f32>,
    /// The word by which the receiver permits writes to its output.
    ready: Word,
    /// The word by which the sender says that it has written.
    done: Word,
}

impl Way {
    fn new(name: &str) -> Way {
        let (ready, done) = (Word::new(&format!("ready {name}")), Word::new(&format!("done {name}")));
        Way { input: Tensor::zeros(32), output: Tensor::zeros(32), ready, done }
    }

    fn pair() -> [Way; 2] {
        [Way::new("0 to 1"), Way::new("1 to 0")]
    }
}

/// Three launches of two ranks. `stream` returns the stream of a rank, from the memory for what it sends and for what
/// it receives.
fn exchange(ways: &[Way; 2], stream: impl Fn(usize, &Way, &Way) -> CopyStream) -> Plan {
    let mut plan = Plan::new(2);
    for _ in 0..3 {
        plan.launch_streams(&[stream(0, &ways[0], &ways[1]), stream(1, &ways[1], &ways[0])]);
    }
    for (rank, way) in (0..).zip(ways) {
        plan.host_writes(rank, way.input.memory()).host_reads(1 - rank, way.output.memory());
    }
    plan
}

/// The stream permits, waits for the permission, copies, says so, and waits for the other copy.
fn right(_: usize, out: &Way, inn: &Way) -> CopyStream {
    CopyStream::new()
        .write(&inn.ready, 1)
        .wait(&out.ready, 1)
        .write(&out.ready, 0)
        .copy(out.output.memory(), out.input.memory())
        .write(&out.done, 1)
        .wait(&inn.done, 1)
        .write(&inn.done, 0)
}

fn verify(plan: &Plan) -> Report {
    plan.verify(&Settings { exhaustive: 100_000, ..Settings::default() })
}

#[test]
fn an_exchange_by_copy_engines_is_clean_in_every_schedule() {
    let report = verify(&exchange(&Way::pair(), right));
    assert!(report.is_clean(), "{report}");
    let said = report.to_string();
    assert!(
        !report.is_decided() && said.contains("sampled, every schedule run (a handshake of copy engines"),
        "{said}"
    );
}

#[test]
fn what_a_stream_copies_is_what_the_plan_leaves() {
    let ways = Way::pair();
    (0..32).for_each(|i| ways[0].input.set(i, i as f32));
    let after = exchange(&ways, right).run(&Settings::default(), Some(3)).unwrap();
    assert_eq!(after.bytes(ways[0].output.memory()), bytes_of(ways[0].input.memory()).unwrap());
}

#[test]
fn a_copy_without_permission_overwrites_what_the_host_reads() {
    let copy = line!() + 4;
    let report = verify(&exchange(&Way::pair(), |_, out, inn| {
        CopyStream::new()
            // The wait for `ready` is missing.
            .copy(out.output.memory(), out.input.memory())
            .write(&out.done, 1)
            .wait(&inn.done, 1)
            .write(&inn.done, 0)
    }));
    let fault = expect(&report, "race", &[copy]).to_string();
    assert!(fault.contains("(the copy engine)") && fault.contains("(the host)"), "{fault}");
    // The host reads copied bytes, or the word is set again before it is taken. In both cases the same line is missing.
    assert!(!report.is_decided(), "{report}");
}

#[test]
fn a_host_that_does_not_wait_for_the_copy_reads_it_half() {
    let copy = line!() + 6;
    let report = verify(&exchange(&Way::pair(), |_, out, inn| {
        CopyStream::new()
            .write(&inn.ready, 1)
            .wait(&out.ready, 1)
            .write(&out.ready, 0)
            .copy(out.output.memory(), out.input.memory())
    }));
    expect(&report, "race", &[copy]);
}

#[test]
fn done_before_the_copy_is_a_race() {
    let copy = line!() + 7;
    let report = verify(&exchange(&Way::pair(), |_, out, inn| {
        CopyStream::new()
            .write(&inn.ready, 1)
            .wait(&out.ready, 1)
            .write(&out.ready, 0)
            .write(&out.done, 1)
            .copy(out.output.memory(), out.input.memory())
            .wait(&inn.done, 1)
            .write(&inn.done, 0)
    }));
    expect(&report, "race", &[copy]);
}

#[test]
fn streams_that_wait_before_they_permit_are_a_cycle() {
    let wait = line!() + 3;
    let report = verify(&exchange(&Way::pair(), |_, out, inn| {
        CopyStream::new()
            .wait(&out.ready, 1)
            .write(&inn.ready, 1)
            .write(&out.ready, 0)
            .copy(out.output.memory(), out.input.memory())
    }));
    let fault = expect(&report, "deadlock", &[wait, wait]);
    let Fault::Deadlock { cycle, .. } = fault else { panic!("{fault}") };
    assert_eq!(cycle.len(), 2, "{fault}");
    let text = fault.to_string();
    assert!(text.contains("waits for ready 0 to 1 = 1, seen 0") && text.contains("(the copy engine)"), "{text}");
}

#[test]
fn a_word_that_is_not_set_back_is_found_though_one_launch_is_right() {
    let done = line!() + 7;
    let stream = |_: usize, out: &Way, inn: &Way| {
        CopyStream::new()
            .write(&inn.ready, 1)
            .wait(&out.ready, 1)
            .write(&out.ready, 0)
            .copy(out.output.memory(), out.input.memory())
            .write(&out.done, 1)
            .wait(&inn.done, 1)
    };
    // One launch: only the word itself shows the mistake.
    let ways = Way::pair();
    let mut once = Plan::new(2);
    once.launch_streams(&[stream(0, &ways[0], &ways[1]), stream(1, &ways[1], &ways[0])]);
    for (rank, way) in (0..).zip(&ways) {
        once.host_writes(rank, way.input.memory()).host_reads(1 - rank, way.output.memory());
    }
    let report = verify(&once);
    expect(&report, "not-reset", &[done]);
    // Two launches: the second one takes the word of the first for its own.
    let report = verify(&exchange(&Way::pair(), stream));
    assert!(kinds(&report).contains(&"race"), "{report}");
}

#[test]
fn a_pulse_can_be_missed_and_only_some_schedules_show_it() {
    // A wait is for the value that the word has now. A writer of 1 and then 0 may do both before anybody looks.
    let (way, taken) = (Way::new("0 to 1"), Word::new("taken"));
    let mut plan = Plan::new(2);
    let wait = line!() + 3;
    plan.launch_streams(&[
        CopyStream::new().copy(way.output.memory(), way.input.memory()).write(&way.done, 1).write(&way.done, 0),
        CopyStream::new().wait(&way.done, 1).write(&taken, 1).write(&taken, 0),
    ]);
    plan.host_writes(0, way.input.memory());
    let report = verify(&plan);
    expect(&report, "deadlock", &[wait]);
    // The other order is correct. Only running both orders shows the difference.
    let lucky = (1..100).any(|seed| plan.run(&Settings::default(), Some(seed)).is_ok());
    assert!(lucky, "no schedule of a hundred gets through");
}

#[test]
fn two_engines_that_set_one_word_are_two_writers() {
    let ways = Way::pair();
    let shared = Word::new("done");
    let write = line!() + 1;
    let sends = |way: &Way| CopyStream::new().copy(way.output.memory(), way.input.memory()).write(&shared, 1);
    let mut plan = Plan::new(3);
    plan.launch_streams(&[sends(&ways[0]), sends(&ways[1]), CopyStream::new().wait(&shared, 1).write(&shared, 0)]);
    plan.host_writes(0, ways[0].input.memory()).host_writes(1, ways[1].input.memory());
    expect(&verify(&plan), "two-writers", &[write, write]);
}

#[test]
fn a_kernel_that_reads_beside_the_copy_races_with_it() {
    // The launch has a kernel and a stream, and nothing orders them.
    let (way, sum) = (Way::new("0 to 1"), Tensor::<f32>::zeros(1));
    let one = std::slice::from_ref::<Memory>;
    let load = line!() + 3;
    let reads = kernel("reads", |k| {
        let (y, sum) = (k.buffer::<f32>("y", one(way.output.memory()), Access::In).bank(0), k.output(&sum));
        k.main(|_| sum.store(0, y.load(0) + y.load(31)));
    });
    let idle = kernel("idle", |k| k.main(|r| r.barrier()));
    let (reads, idle) = (reads.unwrap(), idle.unwrap());
    let mut plan = Plan::new(2);
    plan.launch(&[(&idle.kernel, &idle.args), (&reads.kernel, &reads.args)]);
    plan.host_writes(0, way.input.memory());
    let copy = line!() + 1;
    plan.beside(0, CopyStream::new().copy(way.output.memory(), way.input.memory()));
    let fault = expect(&verify(&plan), "race", &[load, copy]).to_string();
    assert!(fault.contains("race on y"), "{fault}");
}
