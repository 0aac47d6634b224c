//! `cuda/muster.rs` with launches that only count.

#[path = "../../crates/tilewire/src/cuda/muster.rs"]
mod muster;

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
    use super::muster::{LegEnd, Muster, Order};
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
        muster: Arc<Muster<Noted>>,
        log: Arc<Mutex<Vec<usize>>>,
    }

    impl Ranks {
        fn new() -> Ranks {
            Ranks { muster: Arc::new(Muster::new(false)), log: Arc::new(Mutex::new(Vec::new())) }
        }

        fn run(&self, rank: u32, to: Option<u32>, from: Option<u32>) {
            let send = to.map(|to| LegEnd { from: rank, to, sends: true });
            let receive = from.map(|from| LegEnd { from, to: rank, sends: false });
            let ends: Vec<_> = send.into_iter().chain(receive).collect();
            let order = Noted { stream: rank as usize, log: self.log.clone() };
            self.muster.arrive(&ends, order, &Arc::default());
        }

        /// After this rank has settled all its launches have started.
        fn settle(&self, rank: u32, launches: usize) {
            self.muster.settle(rank as usize);
            let started = self.log.lock().unwrap().iter().filter(|&&stream| stream == rank as usize).count();
            assert_eq!(started, launches, "rank {rank} has settled");
        }

        fn started(&self) -> Vec<usize> {
            let mut started = self.log.lock().unwrap().clone();
            started.sort_unstable();
            started
        }
    }

    pub(crate) fn muster(bounds: &Bounds) {
        bounds.check(3, || {
            let ranks = Ranks::new();
            let other = ranks.clone();
            let one = thread::spawn(move || {
                other.run(1, None, Some(0));
                other.settle(1, 1);
            });
            ranks.run(0, Some(1), None);
            ranks.settle(0, 1);
            one.join().unwrap();
            assert_eq!(ranks.started(), [0, 1]);
        });
    }

    /// Rank 0 sends, settles, and then receives; rank 1 does both in one launch. Whoever settles first waits for the other, and only the
    /// news that the other settles as well lets it go on.
    pub(crate) fn settling(bounds: &Bounds) {
        bounds.check(3, || {
            let ranks = Ranks::new();
            let other = ranks.clone();
            let one = thread::spawn(move || {
                other.run(1, Some(0), Some(0));
                other.settle(1, 1);
            });
            ranks.run(0, Some(1), None);
            ranks.settle(0, 1);
            ranks.run(0, None, Some(1));
            ranks.settle(0, 2);
            one.join().unwrap();
            assert_eq!(ranks.started(), [0, 0, 1]);
        });
    }
}
