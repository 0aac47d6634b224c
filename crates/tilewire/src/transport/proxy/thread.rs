//! The thread of a rank that drives its proxy when no waiting thread does.
#![forbid(unsafe_code)]

use super::Proxy;
use super::duty::Duty;
use crate::transport::SegmentError;
use crate::transport::doorbell::Doorbell;
use crate::transport::mapping::HEADER;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The thread of a proxy. Dropping it ends the thread, once all posts are delivered or a peer has made no progress for
/// [`LAST_POSTS`].
pub(crate) struct ProxyThread {
    duty: Arc<Duty>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread of a rank does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ThreadWork {
    /// It carries what a launch has posted while the launch computes.
    Computing,
    /// It also carries posts while waiting threads sleep, and those of kernels on a GPU.
    Sleeping,
    /// It also polls whatever the rank does: arrivals ring no bell, and need its steps.
    Polling,
}

/// How long a dropped transport waits for the next post to be delivered. Only launches that nobody waited for have
/// undelivered posts.
const LAST_POSTS: Duration = Duration::from_secs(1);

impl ProxyThread {
    /// Starts a thread that sleeps on `bell`, which the carrier rings for arrivals. Without one it sleeps on a bell of
    /// its own, while arrivals ring the bell of the waiting threads.
    ///
    /// # Panics
    /// If the proxy already has a thread.
    pub(crate) fn start(
        proxy: &Arc<Proxy>,
        bell: Option<Doorbell>,
        work: ThreadWork,
    ) -> Result<ProxyThread, SegmentError> {
        let no_memory = SegmentError::NoMemory { bytes: HEADER, shortage: None };
        let duty = Duty::new(bell.or_else(Doorbell::alone).ok_or(no_memory)?);
        let duty = match work {
            ThreadWork::Computing => duty.that_relieves_nobody(),
            ThreadWork::Sleeping => duty,
            ThreadWork::Polling => duty.that_polls(),
        };
        ProxyThread::run(proxy, duty)
    }

    /// True if the thread makes progress without being called.
    #[cfg(test)]
    pub(crate) fn polls(&self) -> bool {
        self.duty.polls()
    }

    fn run(proxy: &Arc<Proxy>, duty: Duty) -> Result<ProxyThread, SegmentError> {
        #[cfg(test)]
        if NO_THREADS.get() {
            let source = std::io::Error::other("the system gives no more threads");
            return Err(SegmentError::System { call: "starting a thread", source });
        }
        let duty = Arc::new(duty);
        let (served, driven) = (duty.clone(), proxy.clone());
        let run = move || {
            let serve = || served.serve(|| driven.step_uncounted(), || driven.is_busy(), || driven.driven());
            // A panic poisons the proxy's lock, and the next step reports that to all ranks.
            if catch_unwind(AssertUnwindSafe(serve)).is_err() {
                driven.step();
            }
            if !driven.is_stopped() {
                _ = driven.drain(Some(LAST_POSTS));
            }
        };
        let thread = std::thread::Builder::new().name("tilewire-proxy".to_string()).spawn(run);
        let source = |source| SegmentError::System { call: "starting a thread", source };
        let thread = Some(thread.map_err(source)?);
        proxy.relieved_by(duty.clone());
        Ok(ProxyThread { duty, thread })
    }
}

impl Drop for ProxyThread {
    fn drop(&mut self) {
        self.duty.end();
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

#[cfg(test)]
thread_local! {
    /// True while this thread gets no threads, for tests of failures.
    pub(crate) static NO_THREADS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}
