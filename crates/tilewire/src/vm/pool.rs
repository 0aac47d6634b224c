//! The worker pool: threads that help a launch of several blocks. They are helpers only: the launching thread runs every
//! instance that nobody has taken, so a launch never waits for a worker to become free, and ranks that are threads of one
//! process cannot starve each other.

use super::machine::{Machine, Stop};
use super::rounding::Rounding;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The instances of one launch, shared by who runs them.
pub(crate) struct Job {
    machines: Machines,
    /// Next instance nobody has taken.
    next: AtomicUsize,
    /// Workers inside; guarded by the pool's lock when it grows.
    helpers: AtomicUsize,
    failed: AtomicBool,
    failure: Mutex<Option<(usize, Stop)>>,
    deadline: Mutex<Option<Duration>>,
}

struct Machines {
    first: *mut Machine,
    len: usize,
}

// SAFETY: a machine is touched only by the participant that took its index from `next`, which gives out each index once per
// launch; between launches no participant is inside (the launch waits for `helpers` to be 0). The memory its pointers name is owned by
// the machine or kept alive by the prepared kernel, which outlives the launch.
unsafe impl Send for Machines {}
// SAFETY: as above: sharing the table hands out disjoint machines.
unsafe impl Sync for Machines {}

impl Job {
    /// A job over machines that do not move while the job is used.
    pub(crate) fn new(machines: &mut [Machine]) -> Arc<Job> {
        Arc::new(Job {
            machines: Machines { first: machines.as_mut_ptr(), len: machines.len() },
            next: AtomicUsize::new(0),
            helpers: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            deadline: Mutex::new(None),
        })
    }

    /// Runs all instances to the end; `share` asks the pool for help. Gives the instance that failed and why.
    pub(crate) fn launch(self: &Arc<Job>, share: bool, deadline: Option<Duration>) -> Result<(), (usize, Stop)> {
        *self.deadline.lock().expect("no participant panics") = deadline;
        self.failed.store(false, Ordering::Relaxed);
        self.next.store(0, Ordering::Relaxed);
        {
            let _shared = share.then(|| Shared::new(self));
            self.participate(deadline);
        }
        if self.failed.load(Ordering::Relaxed) {
            let failure = self.failure.lock().expect("no participant panics").take();
            return Err(failure.expect("a failed job says why"));
        }
        Ok(())
    }

    /// Takes instances one by one and runs those that were taken, round and round, until all are done. They are chained through
    /// the machines themselves: no participant allocates, however many of its instances wait.
    fn participate(&self, deadline: Option<Duration>) {
        const NONE: usize = usize::MAX;
        let _nearest = Rounding::nearest();
        let mut first = NONE;
        let mut backoff = Backoff::new(deadline);
        loop {
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
                // SAFETY: the chain holds indices that `take` gave to this participant alone, each once; `link` is in another
                // machine or in none.
                let machine = unsafe { self.machine(index) };
                let before = machine.passed;
                let stop = machine.run();
                progress |= machine.passed != before;
                match stop {
                    Stop::Done => {
                        progress = true;
                        *link = machine.next;
                    }
                    stop @ Stop::Blocked(_) => {
                        stuck = Some((index, stop));
                        link = &mut machine.next;
                    }
                    stop => {
                        self.fail(index, stop);
                        *link = machine.next;
                    }
                }
            }
            if self.failed.load(Ordering::Relaxed) || (taken.is_none() && first == NONE) {
                return;
            }
            if progress {
                backoff = Backoff::new(deadline);
            } else if backoff.pause()
                && let Some((index, stop)) = stuck
            {
                self.fail(index, stop);
                return;
            }
        }
    }

    fn take(&self) -> Option<usize> {
        // Relaxed: the index alone is handed out; the machines were published by the pool's lock, or belong to this thread.
        let index = self.next.load(Ordering::Relaxed);
        if index >= self.machines.len {
            return None;
        }
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        (index < self.machines.len).then_some(index)
    }

    /// # Safety
    /// The caller took `index` from [`Job::take`] in this launch.
    #[allow(clippy::mut_from_ref)]
    unsafe fn machine(&self, index: usize) -> &mut Machine {
        // SAFETY: the caller's promise makes it the only reference; `index` is in range.
        unsafe { &mut *self.machines.first.add(index) }
    }

    fn fail(&self, index: usize, stop: Stop) {
        let mut failure = self.failure.lock().expect("no participant panics");
        if !self.failed.swap(true, Ordering::Relaxed) {
            *failure = Some((index, stop));
        }
    }
}

/// A job that the pool may help with. However the launch ends, by a panic too, nobody is inside when this is gone.
struct Shared<'j> {
    job: &'j Arc<Job>,
    pool: &'static Pool,
}

impl<'j> Shared<'j> {
    fn new(job: &'j Arc<Job>) -> Shared<'j> {
        let pool = Pool::global();
        pool.offer(job);
        Shared { job, pool }
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.job.failed.store(true, Ordering::Relaxed);
        }
        self.pool.withdraw(self.job);
        let mut backoff = Backoff::new(None);
        // Acquire: what the helpers wrote is visible when they are gone.
        while self.job.helpers.load(Ordering::Acquire) != 0 {
            backoff.pause();
        }
    }
}

/// How a participant with nothing to do passes the time: first it spins, then it lets others run, then it sleeps.
pub(crate) struct Backoff {
    rounds: u32,
    since: Option<Instant>,
    deadline: Option<Duration>,
}

impl Backoff {
    const SPINS: u32 = 256;
    const YIELDS: u32 = 512;
    const SLEEP: Duration = Duration::from_micros(50);

    pub(crate) fn new(deadline: Option<Duration>) -> Backoff {
        Backoff { rounds: 0, since: None, deadline }
    }

    /// Waits a little; true when the deadline has passed.
    pub(crate) fn pause(&mut self) -> bool {
        self.rounds += 1;
        if self.rounds < Self::SPINS {
            std::hint::spin_loop();
            return false;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.rounds < Self::YIELDS {
            std::thread::yield_now();
        } else {
            self.rounds = Self::YIELDS;
            std::thread::sleep(Self::SLEEP);
        }
        self.deadline.is_some_and(|deadline| since.elapsed() >= deadline)
    }
}

/// The workers of this process.
struct Pool {
    jobs: Mutex<VecDeque<Arc<Job>>>,
    wake: Condvar,
}

impl Pool {
    fn global() -> &'static Pool {
        static POOL: OnceLock<&'static Pool> = OnceLock::new();
        POOL.get_or_init(|| {
            let pool: &'static Pool =
                Box::leak(Box::new(Pool { jobs: Mutex::new(VecDeque::with_capacity(64)), wake: Condvar::new() }));
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            for k in 1..cores {
                let worker = std::thread::Builder::new().name(format!("tilewire-{k}"));
                // Without a worker the launching thread does all the work itself.
                let _ = worker.spawn(move || pool.work());
            }
            pool
        })
    }

    fn offer(&self, job: &Arc<Job>) {
        self.jobs.lock().expect("no worker panics").push_back(job.clone());
        self.wake.notify_all();
    }

    fn withdraw(&self, job: &Arc<Job>) {
        self.jobs.lock().expect("no worker panics").retain(|other| !Arc::ptr_eq(other, job));
    }

    fn work(&self) {
        let mut jobs = self.jobs.lock().expect("no worker panics");
        loop {
            let open = jobs.iter().position(|job| job.next.load(Ordering::Relaxed) < job.machines.len);
            let Some(k) = open else {
                jobs = self.wake.wait(jobs).expect("no worker panics");
                continue;
            };
            let job = jobs[k].clone();
            // Under the lock: a launch that withdraws the job afterwards sees that somebody is inside.
            job.helpers.fetch_add(1, Ordering::Relaxed);
            drop(jobs);
            let deadline = *job.deadline.lock().expect("no participant panics");
            // A panic here would be a bug of the engine, and the launcher would wait for this thread for ever.
            let worked = catch_unwind(AssertUnwindSafe(|| job.participate(deadline)));
            if worked.is_err() {
                eprintln!("tilewire bug: a worker panicked; the results of the launch are lost");
                std::process::abort();
            }
            job.helpers.fetch_sub(1, Ordering::Release);
            drop(job);
            jobs = self.jobs.lock().expect("no worker panics");
        }
    }
}
