//! `cuda/gang.rs`, with launches that are only counted.

#[path = "../../crates/tilewire/src/cuda/gang.rs"]
mod gang;

mod device {
    use crate::sync::{Mutex, MutexGuard, PoisonError};

    pub(super) fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

mod error {
    #[derive(Debug)]
    pub struct CudaError;
}

pub(crate) mod models {
    use super::error::CudaError;
    use super::gang::{GangLaunch, LegEnd, Order};
    use crate::Bounds;
    use crate::sync::{Arc, Mutex};
    use loom::thread;
    use std::time::Duration;

    struct Noted {
        stream: usize,
        log: Arc<Mutex<Vec<usize>>>,
    }

    impl Order for Noted {
        fn stream(&self) -> usize {
            self.stream
        }

        fn deadline(&self) -> Option<Duration> {
            None
        }

        fn busy(&self) -> Duration {
            Duration::ZERO
        }

        fn submit(self) -> Result<(), CudaError> {
            self.log.lock().unwrap().push(self.stream);
            Ok(())
        }
    }

    #[derive(Clone)]
    struct Ranks {
        gang: Arc<GangLaunch<Noted>>,
        log: Arc<Mutex<Vec<usize>>>,
    }

    impl Ranks {
        fn new() -> Ranks {
            Ranks { gang: Arc::new(GangLaunch::new(false)), log: Arc::new(Mutex::new(Vec::new())) }
        }

        fn run(&self, rank: u32, to: Option<u32>, from: Option<u32>) {
            let send = to.map(|to| LegEnd { from: rank, to, sends: true });
            let receive = from.map(|from| LegEnd { from, to: rank, sends: false });
            let ends: Vec<_> = send.into_iter().chain(receive).collect();
            let order = Noted { stream: rank as usize, log: self.log.clone() };
            self.gang.arrive(&ends, order, &Arc::default());
        }

        /// Flushes this rank. Afterwards all its launches have started.
        fn flush(&self, rank: u32, launches: usize) {
            self.gang.flush(rank as usize);
            let started = self.log.lock().unwrap().iter().filter(|&&stream| stream == rank as usize).count();
            assert_eq!(started, launches, "rank {rank} has flushed");
        }

        fn started(&self) -> Vec<usize> {
            let mut started = self.log.lock().unwrap().clone();
            started.sort_unstable();
            started
        }
    }

    pub(crate) fn gang(bounds: &Bounds) {
        bounds.check(3, || {
            let ranks = Ranks::new();
            let other = ranks.clone();
            let one = thread::spawn(move || {
                other.run(1, None, Some(0));
                other.flush(1, 1);
            });
            ranks.run(0, Some(1), None);
            ranks.flush(0, 1);
            one.join().unwrap();
            assert_eq!(ranks.started(), [0, 1]);
        });
    }

    /// Rank 0 sends, flushes, and then receives; rank 1 does both in one launch. The first to flush waits for the
    /// other, and continues only because it learns that the other flushes as well.
    pub(crate) fn flushing(bounds: &Bounds) {
        bounds.check(3, || {
            let ranks = Ranks::new();
            let other = ranks.clone();
            let one = thread::spawn(move || {
                other.run(1, Some(0), Some(0));
                other.flush(1, 1);
            });
            ranks.run(0, Some(1), None);
            ranks.flush(0, 1);
            ranks.run(0, None, Some(1));
            ranks.flush(0, 2);
            one.join().unwrap();
            assert_eq!(ranks.started(), [0, 0, 1]);
        });
    }
}
