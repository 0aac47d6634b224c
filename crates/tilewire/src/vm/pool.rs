//! The worker pool: threads that help a launch of several blocks. They are helpers only: the launching thread runs
//! every instance that nobody has taken, so a launch never waits for a worker to become free, and ranks that are
//! threads of one process cannot starve each other.

use super::copy;
use super::machine::{Machine, Stop, Watch};
use super::rounding::Rounding;
use super::stall::Stalls;
use super::waits::{Awaited, Backoff, Waits};
use crate::sync::{Arc, AtomicUsize, Condvar, Mutex, Ordering, sleep, yield_now};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::time::Duration;

/// The end of a chain of machines.
const NONE: usize = usize::MAX;

/// The instances of one launch, shared by the threads that run them.
pub(crate) struct Job {
    machines: Machines,
    /// Next instance nobody has taken.
    next: AtomicUsize,
    /// The number of workers inside. It grows only under the pool's lock.
    helpers: AtomicUsize,
    failure: Mutex<Option<Failure>>,
    deadline: Mutex<Option<Duration>>,
    waits: Waits,
    stalls: Stalls,
}

/// Which instance ended a launch, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub index: usize,
    /// Where it stopped: a fault, or a wait that was not ready.
    pub stop: Stop,
    /// The abort word, if that ended the wait; otherwise the deadline did.
    pub abort: Option<u64>,
}

struct Machines {
    first: *mut Machine,
    len: usize,
}

// SAFETY: a machine is touched only by the participant that took its index from `next`, which gives out each index once
// per launch; between launches no participant is inside (the launch waits for `helpers` to be 0). The memory its
// pointers name is owned by the machine or kept alive by the prepared kernel, which outlives the launch.
unsafe impl Send for Machines {}
// SAFETY: as above: sharing the table hands out disjoint machines.
unsafe impl Sync for Machines {}

impl Job {
    /// A job over machines that do not move while the job is used. Takes a vector, not a slice: the vector's own
    /// pointer stays valid when the machines are accessed through the vector between launches, and a pointer derived
    /// from a slice would not.
    #[allow(clippy::ptr_arg)]
    pub(crate) fn new(machines: &mut Vec<Machine>, waits: Waits) -> Arc<Job> {
        Arc::new(Job {
            machines: Machines { first: machines.as_mut_ptr(), len: machines.len() },
            next: AtomicUsize::new(0),
            helpers: AtomicUsize::new(0),
            failure: Mutex::new(None),
            deadline: Mutex::new(None),
            waits,
            stalls: Stalls::default(),
        })
    }

    /// Runs all instances to the end; the workers of `pool` may help. Returns the instance that failed and why.
    pub(crate) fn launch(job: &Arc<Job>, pool: Option<&Pool>, deadline: Option<Duration>) -> Result<(), Failure> {
        *job.deadline.lock().expect("no participant panics") = deadline;
        job.stalls.failed.store(false, Ordering::Relaxed);
        job.next.store(0, Ordering::Relaxed);
        {
            let _shared = pool.map(|pool| Shared::new(job, pool));
            job.participate(deadline);
        }
        if job.stalls.failed.load(Ordering::Relaxed) {
            let failure = job.failure.lock().expect("no participant panics").take();
            return Err(failure.expect("a failed job says why"));
        }
        Ok(())
    }

    /// Takes instances one by one and runs the taken ones in rounds until all are done. They are chained through the
    /// machines themselves, so no participant allocates, however many of its instances wait.
    fn participate(&self, deadline: Option<Duration>) {
        let _nearest = Rounding::nearest();
        let mut first = NONE;
        let mut backoff = Backoff::new(deadline);
        let mut participant = self.stalls.enter(&self.waits);
        loop {
            participant.looks();
            let mut progress = false;
            let mut stuck = None;
            let taken = self.take();
            if let Some(index) = taken {
                // SAFETY: `take` gave this index to this participant alone.
                let machine = unsafe { self.machine(index) };
                machine.restart();
                machine.next = first;
                first = index;
                progress = true;
            }
            let mut link = &mut first;
            while *link != NONE {
                let index = *link;
                // SAFETY: the chain holds indices that `take` gave to this participant alone, each once; `link` is in
                // another machine or in none.
                let machine = unsafe { self.machine(index) };
                let before = machine.passed;
                let done = machine.run();
                progress |= done || machine.passed != before;
                if done {
                    *link = machine.next;
                } else if matches!(machine.stop, Stop::Blocked(_)) {
                    stuck = Some(index);
                    link = &mut machine.next;
                } else {
                    self.fail(Failure { index, stop: machine.stop, abort: None });
                    *link = machine.next;
                }
            }
            let has_failed = self.stalls.failed.load(Ordering::Relaxed);
            if has_failed || (taken.is_none() && first == NONE) {
                if has_failed {
                    // Streamed stores of machines that stopped before their end: no fence of theirs follows.
                    copy::fence();
                }
                return;
            }
            // In every round, even one with progress: instances that only signal each other must end, too.
            // SAFETY: `take` gave this index to this participant alone; no reference to the machine is held here.
            let stop_of = |index: usize| unsafe { self.machine(index) }.stop;
            if let (Some(index), abort @ Some(_)) = (stuck, self.waits.aborted()) {
                return self.fail(Failure { index, stop: stop_of(index), abort });
            }
            if progress {
                backoff = Backoff::new(deadline);
                participant.goes_on();
            } else if backoff.is_stalled()
                && let Some(index) = stuck
                && let abort @ Some(_) = participant.waits(self.blocked(first).map(|(.., at)| at))
            {
                return self.fail(Failure { index, stop: stop_of(index), abort });
            } else if !backoff.spins()
                && let Some((index, abort)) = self.in_vain(first)
            {
                return self.fail(Failure { index, stop: stop_of(index), abort: Some(abort) });
            } else if self.pause(&mut backoff, first)
                && let Some(index) = stuck
            {
                return self.fail(Failure { index, stop: stop_of(index), abort: None });
            }
        }
    }

    /// The chained instances from this one on, which are blocked, with what each waits for.
    fn blocked(&self, first: usize) -> impl Iterator<Item = (usize, Watch, Option<Awaited>)> {
        let next = |&index: &usize| {
            // SAFETY: the chain holds indices that `take` gave to this participant alone; no reference to them is held
            // here.
            let next = unsafe { self.machine(index) }.next;
            (next != NONE).then_some(next)
        };
        std::iter::successors((first != NONE).then_some(first), next).map(|k| {
            // SAFETY: as above.
            let machine = unsafe { self.machine(k) };
            (k, machine.watch, machine.awaited())
        })
    }

    /// A chained instance that waits for something that will never come, if there is one: the launch cannot finish
    /// then.
    fn in_vain(&self, first: usize) -> Option<(usize, u64)> {
        self.blocked(first).find_map(|(index, watch, at)| {
            let word = self.waits.in_vain(at)?;
            // Checked after reading the word: signals sent before it are visible now.
            // SAFETY: the instance is blocked, and the memory it waits for lives as long as it does.
            let ready = unsafe { watch.is_ready() };
            // A rank that gives up says why, in the abort word, before it leaves.
            (!ready).then(|| (index, self.waits.aborted().unwrap_or(word)))
        })
    }

    /// Waits a little, at most until a chained instance can continue or the launch must end. Returns true at the
    /// deadline.
    fn pause(&self, backoff: &mut Backoff, first: usize) -> bool {
        let polls = self.blocked(first).any(|(_, watch, _)| watch.is_polled());
        backoff.pause(&self.waits, polls, &mut || {
            self.stalls.failed.load(Ordering::Relaxed)
                || self.waits.aborted().is_some()
                || self.blocked(first).any(|(_, watch, at)| {
                    let in_vain = self.waits.in_vain(at).is_some();
                    // SAFETY: these instances are blocked, and the memory they wait for lives as long as they do.
                    in_vain || unsafe { watch.is_ready() }
                })
        })
    }

    fn take(&self) -> Option<usize> {
        // The machines were published by the pool's lock, or belong to this thread. Acquire and release: a participant
        // that finds none left also sees that the one that took the last had entered (`stall.rs`).
        let index = self.next.load(Ordering::Acquire);
        if index >= self.machines.len {
            return None;
        }
        let index = self.next.fetch_add(1, Ordering::AcqRel);
        (index < self.machines.len).then_some(index)
    }

    /// # Safety
    /// The caller took `index` from [`Job::take`] in this launch.
    #[allow(clippy::mut_from_ref)]
    unsafe fn machine(&self, index: usize) -> &mut Machine {
        // SAFETY: the caller's promise makes it the only reference; `index` is in range.
        unsafe { &mut *self.machines.first.add(index) }
    }

    /// Ends the launch for all participants: running ones see it after this round, sleeping ones are woken.
    fn fail(&self, why: Failure) {
        let mut failure = self.failure.lock().expect("no participant panics");
        // Relaxed: `failure` is read under its lock, or after everybody has left. A sleeper that misses the ring,
        // because this store and the bell's load were reordered, looks again after a nap.
        if !self.stalls.failed.swap(true, Ordering::Relaxed) {
            *failure = Some(why);
            self.waits.wake();
        }
    }
}

/// A job that the pool may help with. However the launch ends, even by a panic, no helper is inside once this is
/// dropped.
struct Shared<'j> {
    job: &'j Arc<Job>,
    pool: &'j Pool,
}

impl<'j> Shared<'j> {
    fn new(job: &'j Arc<Job>, pool: &'j Pool) -> Shared<'j> {
        pool.offer(job);
        Shared { job, pool }
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.job.stalls.failed.store(true, Ordering::Relaxed);
            self.job.waits.wake();
        }
        self.pool.withdraw(self.job);
        let mut backoff = Backoff::new(None);
        // Acquire: what the helpers wrote is visible once they are gone.
        let mut alone = || self.job.helpers.load(Ordering::Acquire) == 0;
        while !alone() {
            backoff.pause(&self.job.waits, false, &mut alone);
        }
        // A helper that is gone drops its handle to the job a moment later, and with it the memory that waits look at.
        // A caller that closes a transport after this launch must not find that memory still mapped. The pool has
        // withdrawn its handle, so the one that remains is the launcher's.
        let mut turns = 0;
        while Arc::strong_count(self.job) > 1 {
            // Sleeping also lets threads run that the system puts behind this one.
            if turns < 100 {
                yield_now()
            } else {
                sleep(Duration::from_micros(50))
            }
            turns += 1;
        }
    }
}

/// The workers of this process.
pub(crate) struct Pool {
    pub(super) jobs: Mutex<VecDeque<Arc<Job>>>,
    wake: Condvar,
}

impl Pool {
    /// The pool of this process, with a worker for every core but one.
    pub(crate) fn global() -> &'static Pool {
        static POOL: OnceLock<&'static Pool> = OnceLock::new();
        POOL.get_or_init(|| {
            let pool: &'static Pool = Box::leak(Box::new(Pool::without_workers()));
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            for k in 1..cores {
                let worker = std::thread::Builder::new().name(format!("tilewire-{k}"));
                // Without a worker the launching thread does all the work itself.
                let _ = worker.spawn(move || pool.work());
            }
            pool
        })
    }

    pub(super) fn without_workers() -> Pool {
        Pool { jobs: Mutex::new(VecDeque::with_capacity(64)), wake: Condvar::new() }
    }

    fn offer(&self, job: &Arc<Job>) {
        self.jobs.lock().expect("no worker panics").push_back(job.clone());
        self.wake.notify_all();
    }

    fn withdraw(&self, job: &Arc<Job>) {
        self.jobs.lock().expect("no worker panics").retain(|other| !Arc::ptr_eq(other, job));
    }

    fn work(&self) {
        loop {
            let mut jobs = self.jobs.lock().expect("no worker panics");
            let job = loop {
                match enter(&jobs) {
                    Some(job) => break job,
                    None => jobs = self.wake.wait(jobs).expect("no worker panics"),
                }
            };
            drop(jobs);
            help(job);
        }
    }
}

/// Joins a job that has instances nobody has taken. The caller holds the pool's lock, so a launch that withdraws the
/// job afterwards sees that somebody is inside.
pub(super) fn enter(jobs: &VecDeque<Arc<Job>>) -> Option<Arc<Job>> {
    let job = jobs.iter().find(|job| job.next.load(Ordering::Relaxed) < job.machines.len)?;
    job.helpers.fetch_add(1, Ordering::Relaxed);
    Some(job.clone())
}

/// Runs instances of a job that was entered, and leaves it.
pub(super) fn help(job: Arc<Job>) {
    let deadline = *job.deadline.lock().expect("no participant panics");
    // A panic here would be a bug of the engine, and the launcher would wait for this thread forever.
    let worked = catch_unwind(AssertUnwindSafe(|| job.participate(deadline)));
    if worked.is_err() {
        eprintln!("tilewire bug: a worker panicked; the results of the launch are lost");
        std::process::abort();
    }
    job.helpers.fetch_sub(1, Ordering::Release);
    // The launcher may be asleep until the last helper is gone.
    job.waits.wake();
}
