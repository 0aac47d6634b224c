//! The thread of a rank that drives its proxy when no waiting thread does.
#![forbid(unsafe_code)]

use super::Proxy;
use super::duty::Duty;
use crate::transport::SegmentError;
use crate::transport::deadline::Deadline;
use crate::transport::doorbell::Doorbell;
use crate::transport::mapping::HEADER;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The thread of a proxy. Dropping it ends the thread, once all posts are delivered or [`LAST_POSTS`] has passed.
pub(crate) struct ProxyThread {
    duty: Arc<Duty>,
    thread: Option<JoinHandle<()>>,
}

/// How long a dropped transport tries to deliver posts. Only launches that nobody waited for have undelivered posts.
const LAST_POSTS: Duration = Duration::from_secs(1);

impl ProxyThread {
    /// Starts a thread that sleeps on a bell of its own, while arrivals ring the bell of the waiting threads. `polls`
    /// says that arrivals ring no bell, and that they need this thread's steps whatever the rank does meanwhile.
    ///
    /// # Panics
    /// If the proxy already has a thread.
    pub(crate) fn start_alone(proxy: &Arc<Proxy>, polls: bool) -> Result<ProxyThread, SegmentError> {
        let no_memory = SegmentError::NoMemory { bytes: HEADER, shortage: None };
        let duty = Duty::new(Doorbell::alone().ok_or(no_memory)?);
        ProxyThread::run(proxy, if polls { duty.that_polls() } else { duty })
    }

    /// Starts a thread that sleeps on a bell which the carrier rings for arrivals.
    ///
    /// # Panics
    /// If the proxy already has a thread.
    pub(crate) fn start(proxy: &Arc<Proxy>, bell: Doorbell) -> Result<ProxyThread, SegmentError> {
        ProxyThread::run(proxy, Duty::new(bell))
    }

    fn run(proxy: &Arc<Proxy>, duty: Duty) -> Result<ProxyThread, SegmentError> {
        let duty = Arc::new(duty);
        let (served, driven) = (duty.clone(), proxy.clone());
        let run = move || {
            let serve = || served.serve(|| driven.step_uncounted(), || driven.is_busy(), || driven.driven());
            // A panic poisons the proxy's lock, and the next step reports that to all ranks.
            if catch_unwind(AssertUnwindSafe(serve)).is_err() {
                driven.step();
            }
            if !driven.is_stopped() {
                _ = driven.drain(Deadline::after(LAST_POSTS));
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
