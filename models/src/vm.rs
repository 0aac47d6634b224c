//! `vm/stall.rs` and `vm/pool.rs` with machines of one step.

#[path = "../../crates/tilewire/src/vm/pool.rs"]
mod pool;
#[path = "../../crates/tilewire/src/vm/stall.rs"]
mod stall;

mod copy {
    /// Orders stores around the cache: no machine here makes any.
    pub(crate) fn fence() {}
}

mod machine {
    use super::waits::Awaited;
    use loom::cell::UnsafeCell;

    #[derive(Clone, Copy, PartialEq, Debug)]
    pub(crate) enum Stop {
        Done,
        Blocked(u32),
    }

    #[derive(Clone, Copy)]
    pub(crate) struct Watch;

    impl Watch {
        pub(crate) fn address(&self) -> Option<usize> {
            Some(8)
        }

        pub(crate) fn is_polled(&self) -> bool {
            false
        }

        /// # Safety
        /// None is needed here.
        pub(crate) unsafe fn is_ready(&self) -> bool {
            false
        }
    }

    /// Writes its result, or waits forever.
    pub(crate) struct Machine {
        pub next: usize,
        pub passed: u64,
        pub stop: Stop,
        pub watch: Watch,
        pub waits: bool,
        /// How often the machine ran. Loom finds unordered accesses to it.
        pub result: UnsafeCell<u32>,
    }

    impl Machine {
        pub(super) fn new(waits: bool) -> Machine {
            Machine { next: 0, passed: 0, stop: Stop::Done, watch: Watch, waits, result: UnsafeCell::new(0) }
        }

        pub(super) fn restart(&mut self) {}

        pub(crate) fn awaited(&self) -> Option<Awaited> {
            Some(Awaited { rank: 1 })
        }

        pub(super) fn run(&mut self) -> bool {
            if self.waits {
                self.stop = Stop::Blocked(0);
                return false;
            }
            // SAFETY: loom checks that no other thread accesses the count.
            self.result.with_mut(|result| unsafe { *result += 1 });
            true
        }
    }
}

mod rounding {
    pub(crate) struct Rounding;

    impl Rounding {
        pub(crate) fn nearest() -> Rounding {
            Rounding
        }
    }
}

mod waits {
    use loom::thread::yield_now;
    // This is not loom's type: it belongs to the model itself, and must not order anything.
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    #[derive(Clone, Copy)]
    pub(crate) struct Awaited {
        pub rank: usize,
    }

    /// A host that ends a launch when it hears that all instances wait.
    pub(crate) struct Waits {
        /// The number of instances that must wait at the first report. Later ones may be fewer, because the
        /// participants leave an ending launch one after the other.
        instances: usize,
        told: AtomicBool,
    }

    impl Waits {
        pub(super) fn new(instances: usize) -> Waits {
            Waits { instances, told: AtomicBool::new(false) }
        }

        pub(crate) fn host(&self) -> Option<&Waits> {
            Some(self)
        }

        pub(crate) fn aborted(&self) -> Option<u64> {
            None
        }

        pub(crate) fn in_vain(&self, _: Option<Awaited>) -> Option<u64> {
            None
        }

        pub(crate) fn probe(&self) -> u64 {
            0
        }

        pub(crate) fn stalled(&self, at: &[Option<Awaited>], _: u64) -> Option<u64> {
            let first = !self.told.swap(true, Ordering::Relaxed);
            assert!(!first || at.len() == self.instances, "the host is told that all wait, and {} do", at.len());
            Some(7)
        }

        /// No waiting machine of this model ever continues.
        pub(crate) fn resumed(&self) {
            panic!("the host is told that a launch which fails goes on");
        }

        pub(crate) fn wake(&self) {}
    }

    pub(crate) struct Backoff;

    impl Backoff {
        pub(crate) fn new(_: Option<Duration>) -> Backoff {
            Backoff
        }

        pub(crate) fn spins(&self) -> bool {
            true
        }

        pub(crate) fn is_stalled(&self) -> bool {
            true
        }

        pub(crate) fn pause(&mut self, _: &Waits, _: bool, _: &mut dyn FnMut() -> bool) -> bool {
            yield_now();
            false
        }
    }
}

pub(crate) mod models {
    use super::machine::Machine;
    use super::pool::{Job, Pool, enter, help};
    use super::waits::Waits;
    use crate::Bounds;
    use crate::sync::Arc;
    use loom::thread;

    /// The work of a pool's worker when it finds a job, `rounds` times.
    fn worker(pool: &std::sync::Arc<Pool>, rounds: usize) -> thread::JoinHandle<()> {
        let pool = pool.clone();
        thread::spawn(move || {
            for _ in 0..rounds {
                let job = enter(&pool.jobs.lock().unwrap());
                job.into_iter().for_each(help);
            }
        })
    }

    pub(crate) fn launch(bounds: &Bounds) {
        bounds.check(3, || {
            let pool = std::sync::Arc::new(Pool::without_workers());
            let mut machines: Vec<Machine> = (0..2).map(|_| Machine::new(false)).collect();
            let job = Job::new(&mut machines, Waits::new(2));
            let worker = worker(&pool, 2);
            for launch in 1..=2 {
                Job::launch(&job, Some(&pool), None).unwrap();
                assert_eq!(Arc::strong_count(&job), 1, "a helper holds the job after the launch");
                // SAFETY: no thread is inside, as loom checks.
                let results: Vec<u32> = machines.iter().map(|m| m.result.with(|result| unsafe { *result })).collect();
                assert_eq!(results, [launch, launch]);
            }
            worker.join().unwrap();
        });
    }

    /// Both instances wait forever, and the launch ends when the host hears this.
    pub(crate) fn stalled(bounds: &Bounds) {
        bounds.check(4, || {
            let pool = std::sync::Arc::new(Pool::without_workers());
            let mut machines: Vec<Machine> = (0..2).map(|_| Machine::new(true)).collect();
            let job = Job::new(&mut machines, Waits::new(2));
            let worker = worker(&pool, 1);
            let failure = Job::launch(&job, Some(&pool), None).unwrap_err();
            assert_eq!(failure.abort, Some(7));
            worker.join().unwrap();
        });
    }
}
