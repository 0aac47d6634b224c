//! Programs that the checker calls clean run on the CPU engine, with a thread for each rank and more threads than
//! cores. They end within a deadline and leave the evaluator's bytes. `TILEWIRE_CASES` and `TILEWIRE_SEED` set the
//! number of programs and their seed.
//!
//! | file | programs |
//! |---|---|
//! | here | the random ones of `brute`: mostly wrong, and those that are not run |
//! | `correct.rs` | pipelines with credits, packets, reductions by atomics: all of them are clean |
//! | `polls.rs` | loops that poll: by atomics and tests, among roles, blocks and ranks |

mod correct;
mod polls;

use crate::checker::brute::{Features, Small, numbers, program};
use crate::checker::plan;
use std::cell::Cell;
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;
use tilewire::check::{Report, Settings};
use tilewire::collective::waits_over;
use tilewire::tensor::bytes_of;
use tilewire::transport::SegmentSet;
use tilewire::vm::{self, Prepared};
use tilewire::{Memory, Traced};
use tilewire_testkit::random::Random;

/// The source of the memory that ranks share. Every rank's thread traces the program for itself, and takes the same
/// parts in the same order.
pub struct Room {
    segment: Option<Memory>,
    used: Cell<usize>,
}

/// Bytes of all that the ranks of a program share.
const ROOM: usize = 1 << 18;

impl Room {
    /// Each rank has its own memory: for the checker.
    pub fn apart() -> Room {
        Room { segment: None, used: Cell::new(0) }
    }

    fn of(segment: Memory) -> Room {
        Room { segment: Some(segment), used: Cell::new(0) }
    }

    pub fn shared(&self, bytes: usize) -> Memory {
        let Some(segment) = &self.segment else { return Memory::zeroed(bytes) };
        let start = self.used.replace(self.used.get() + bytes.next_multiple_of(64));
        segment.part(start, bytes)
    }
}

/// The launches of all ranks, and their memory.
struct Case {
    /// For each launch, then for each rank.
    launches: Vec<Vec<Traced>>,
    shared: Vec<Memory>,
    /// For each rank, its own memory.
    own: Vec<Vec<Memory>>,
}

type Make = Arc<dyn Fn(&Room) -> Case + Send + Sync>;

/// The bytes that are shared, then those of the ranks.
type Bytes = Vec<Vec<Vec<u8>>>;

/// A longer wait counts as a hang. The limit is long, because there are few cores and other tests.
const DEADLINE: Duration = Duration::from_secs(20);

fn settings() -> Settings {
    Settings { cumulative: true, across_launches: true, exhaustive: 400, random: 20, ..Settings::default() }
}

/// The bytes after the evaluator has run the program with one copy of each role, as the engine does.
fn evaluated(case: &Case) -> Bytes {
    let one_copy = Settings { most_copies: 1, ..settings() };
    let after = plan(&case.launches).run(&one_copy, None).expect("what is clean comes to its end");
    let all = std::iter::once(&case.shared).chain(&case.own);
    all.map(|memory| memory.iter().map(|memory| after.bytes(memory)).collect()).collect()
}

/// The bytes after the CPU engine has run it, or the error. `late` is the rank that begins last.
fn engine(make: &Make, ranks: usize, late: usize) -> Result<Bytes, String> {
    let sets = SegmentSet::threads(ranks, ROOM).map_err(|error| error.to_string())?;
    let room = Room::of(sets[0].segment(0));
    let (start, (done, results)) = (Arc::new(Barrier::new(ranks)), mpsc::channel());
    for (rank, set) in sets.into_iter().enumerate() {
        let (start, done, make) = (start.clone(), done.clone(), make.clone());
        std::thread::spawn(move || {
            let case = make(&Room::of(set.segment(0)));
            let (deadline, waits) = (Some(DEADLINE), waits_over(&set));
            let settings = vm::Settings { rank, world_size: ranks, deadline, waits, ..vm::Settings::default() };
            let prepare = |all: &Vec<Traced>| Prepared::with(&all[rank].kernel, &all[rank].args, settings.clone());
            let prepared = case.launches.iter().map(prepare).collect::<Result<Vec<Prepared>, _>>();
            start.wait();
            if rank == late {
                (0..20).for_each(|_| std::thread::yield_now());
            }
            let ended = prepared.map_err(|error| error.to_string()).and_then(|mut launches| {
                launches.iter_mut().try_for_each(Prepared::run).map_err(|error| error.to_string())
            });
            let own = ended.map(|()| case.own[rank].iter().map(|own| bytes_of(own).unwrap()).collect::<Vec<_>>());
            // Nobody listens any more if another rank has failed.
            _ = done.send((rank, own));
        });
    }
    drop(done);
    let mut bytes = vec![Vec::new(); ranks + 1];
    for _ in 0..ranks {
        // A launch ends at its own deadline. This limit is for an engine that ignores the deadline.
        let ended = results.recv_timeout(DEADLINE * 3);
        let (rank, own) = ended.map_err(|_| "the engine hangs beyond its deadline, or panicked".to_string())?;
        bytes[rank + 1] = own.map_err(|error| format!("rank {rank}: {error}"))?;
    }
    bytes[0] = make(&room).shared.iter().map(|shared| bytes_of(shared).unwrap()).collect();
    Ok(bytes)
}

/// Runs a clean program several times. Returns the first error.
fn disagreement(make: &Make, times: usize, determined: bool) -> Option<String> {
    let case = make(&Room::apart());
    let (ranks, expected) = (case.launches[0].len(), evaluated(&case));
    for time in 0..times {
        match engine(make, ranks, time % ranks) {
            Err(error) => return Some(error),
            Ok(bytes) if determined && bytes != expected => {
                return Some(format!("the engine leaves\n{bytes:?}, the evaluator\n{expected:?}"));
            }
            Ok(_) => {}
        }
    }
    None
}

fn is_clean(case: &Case) -> (bool, Report) {
    let report = plan(&case.launches).verify(&settings());
    (report.is_clean(), report)
}

#[test]
fn random_programs_that_are_clean_run() {
    let (mut ran, mut compared) = (0, 0);
    for seed in numbers(600) {
        let mut random = Random::of_case(!seed);
        let features = Features::random(&mut random);
        let program = program(&mut random, features);
        // Nothing delivers posts here.
        if program.trace().is_err() || program.ops().count() < 2 || program.posts() {
            continue;
        }
        let traced = program.clone();
        let make: Make = Arc::new(move |room| {
            let (launch, shared, own) = traced.trace_recording(&|bytes| room.shared(bytes)).expect("traced before");
            Case { launches: vec![launch], shared, own }
        });
        if !is_clean(&make(&Room::apart())).0 {
            continue;
        }
        // The result of a test or of a used atomic depends on the schedule. Such a program must end, and its bytes are
        // unknown.
        let determined = program.ops().all(|op| !matches!(op, Small::Test { .. } | Small::Add { then: Some(_), .. }));
        (ran, compared) = (ran + 1, compared + u64::from(determined));
        if let Some(wrong) = disagreement(&make, 3, determined) {
            panic!("seed {seed}: {wrong}\n{program}");
        }
    }
    println!("{ran} programs are clean and ran, {compared} of them to the same bytes");
    assert!(ran > 20 && compared > 10, "{ran} {compared}");
}
