//! A stream: a sequence of launches.

use super::device::{Device, held};
use super::error::{Called, CudaError};
use super::event::Event;
use super::gang::GangLaunch;
use super::graph::Graph;
use super::launch::{CAPTURED, KernelOrder};
use cudarc::driver::{result, sys};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Launches on one stream run one after the other; on different streams they run side by side.
pub struct Stream {
    device: Arc<Device>,
    handle: sys::CUstream,
    /// True if a launch came since the last replay of a graph that contains launches of this stream.
    ahead: AtomicBool,
    /// The ends of such replays since the last launch: the next launch waits for them.
    behind: Mutex<Vec<Arc<Event>>>,
    /// The gang of ranks with which its launches start.
    together: Option<Gang>,
}

/// Ranks of this process that share a device: their launches start together.
#[derive(Clone)]
pub struct Gang(Arc<GangLaunch<KernelOrder>>);

impl Gang {
    /// Each rank is a thread.
    pub fn of_threads() -> Gang {
        Gang(Arc::new(GangLaunch::new(false)))
    }

    /// One thread plays all ranks.
    pub fn of_one_thread() -> Gang {
        Gang(Arc::new(GangLaunch::new(true)))
    }
}

// SAFETY: the driver's handles may be used from any thread; the mutable fields are an atomic and behind a lock.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

thread_local! {
    /// Streams that this thread has put launches on since it last waited for them: host access to device memory waits
    /// for these.
    static BUSY: RefCell<Vec<Weak<Stream>>> = const { RefCell::new(Vec::new()) };
}

impl Stream {
    /// A new stream.
    pub fn new(device: &Arc<Device>) -> Result<Arc<Stream>, CudaError> {
        Stream::make(device, None)
    }

    /// A new stream of one of these ranks.
    pub fn together(device: &Arc<Device>, ranks: &Gang) -> Result<Arc<Stream>, CudaError> {
        Stream::make(device, Some(ranks.clone()))
    }

    fn make(device: &Arc<Device>, together: Option<Gang>) -> Result<Arc<Stream>, CudaError> {
        device.bind()?;
        let handle = result::stream::create(result::stream::StreamKind::NonBlocking).called("cuStreamCreate")?;
        let (ahead, behind) = (AtomicBool::new(false), Mutex::default());
        Ok(Arc::new(Stream { device: device.clone(), handle, ahead, behind, together }))
    }

    /// The device it is on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Waits until everything on the stream is done.
    pub fn sync(&self) -> Result<(), CudaError> {
        if self.is_capturing()? {
            return Err(CudaError::Capturing { what: "waiting for a stream" });
        }
        self.ordered();
        for replayed in std::mem::take(&mut *held(&self.behind)) {
            replayed.wait()?;
        }
        self.wait()
    }

    fn wait(&self) -> Result<(), CudaError> {
        self.device.bind()?;
        // SAFETY: the stream lives.
        let done = unsafe { result::stream::synchronize(self.handle) }.called("cuStreamSynchronize");
        held(&self.device.residency).release(self.handle as usize);
        done
    }

    /// Makes later work on this stream wait for the current work of the other.
    pub fn after(&self, other: &Stream) -> Result<(), CudaError> {
        self.ordered();
        other.ordered();
        self.device.bind()?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = result::event::create(flags).called("cuEventCreate")?;
        // SAFETY: event and streams live; the driver keeps a destroyed event until it has happened.
        unsafe {
            let recorded = result::event::record(event, other.handle).called("cuEventRecord");
            let waits = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            let waited = recorded
                .and_then(|()| result::stream::wait_event(self.handle, event, waits).called("cuStreamWaitEvent"));
            _ = result::event::destroy(event);
            waited
        }
    }

    /// A launch comes next: it runs after replays of graphs that contain launches of this stream.
    pub(super) fn catch_up(&self) -> Result<(), CudaError> {
        let behind = std::mem::take(&mut *held(&self.behind));
        behind.iter().try_for_each(|replayed| self.after_event(replayed))?;
        // Relaxed: launches and replays of one stream are made by one thread, or ordered by the threads that share it.
        self.ahead.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// A graph that contains launches of these streams comes next on this one: it runs after their current work, and
    /// their later work runs after it.
    pub(super) fn join(self: &Arc<Self>, parts: &[Arc<Stream>], done: &Arc<Event>) -> Result<(), CudaError> {
        self.ordered();
        for part in parts {
            part.ordered();
            let other = !Arc::ptr_eq(part, self);
            if part.ahead.swap(false, Ordering::Relaxed) && other {
                self.after(part)?;
            }
            let mut behind = held(&part.behind);
            for replayed in behind.iter().filter(|replayed| !Arc::ptr_eq(replayed, done)) {
                self.after_event(replayed)?;
            }
            behind.clear();
            if other {
                behind.push(done.clone());
            }
        }
        Ok(())
    }

    fn after_event(&self, event: &Event) -> Result<(), CudaError> {
        self.device.bind()?;
        let waits = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: event and stream live.
        unsafe { result::stream::wait_event(self.handle, event.handle(), waits) }.called("cuStreamWaitEvent")
    }

    /// Records what `body` puts on this stream, and on those of `others` (as forks of it), instead of running it; see
    /// [`Graph`].
    pub fn capture<E: From<CudaError>>(
        self: &Arc<Self>,
        others: &[&Arc<Stream>],
        body: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        if CAPTURED.with_borrow(Option::is_some) {
            return Err(CudaError::Capturing { what: "another capture begins on this thread" }.into());
        }
        others.iter().copied().chain([self]).for_each(|stream| _ = stream.ordered());
        self.device.bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream lives.
        unsafe { result::stream::begin_capture(self.handle, mode) }.called("cuStreamBeginCapture")?;
        let recording = Recording { stream: self };
        CAPTURED.set(Some(Vec::new()));
        let fork = || others.iter().try_for_each(|other| other.after(self));
        let join = || others.iter().try_for_each(|other| self.after(other));
        let body = fork().map_err(E::from).and_then(|()| body()).and_then(|()| Ok(join()?));
        let kept = CAPTURED.take().unwrap_or_default();
        let graph = recording.end();
        body?;
        let parts = others.iter().map(|&other| other.clone()).chain([self.clone()]).collect();
        Ok(Graph::own(&self.device, graph?, kept, parts)?)
    }

    /// True if work put on the stream is recorded, not run.
    pub fn is_capturing(&self) -> Result<bool, CudaError> {
        self.device.bind()?;
        // SAFETY: the stream lives.
        let status = unsafe { result::stream::is_capturing(self.handle) }.called("cuStreamIsCapturing")?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// This thread has put work on the stream.
    pub(super) fn busy(self: &Arc<Self>) {
        BUSY.with_borrow_mut(|busy| {
            if !busy.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(self))) {
                busy.retain(|known| known.strong_count() > 0);
                busy.push(Arc::downgrade(self));
            }
        });
    }

    pub(super) fn handle(&self) -> sys::CUstream {
        self.handle
    }

    /// The handle, for work that comes after all launches so far: waits until those that start with other ranks have
    /// started.
    pub(super) fn ordered(&self) -> sys::CUstream {
        if let Some(Gang(gang)) = &self.together {
            gang.flush(self.handle as usize);
        }
        self.handle
    }

    pub(super) fn gang(&self) -> Option<&Arc<GangLaunch<KernelOrder>>> {
        self.together.as_ref().map(|Gang(gang)| gang)
    }
}

/// A capture in progress. It ends however its body does, since a stream must not be left capturing.
struct Recording<'s> {
    stream: &'s Stream,
}

impl Recording<'_> {
    fn end(self) -> Result<sys::CUgraph, CudaError> {
        let stream = self.stream;
        std::mem::forget(self);
        // SAFETY: the stream is capturing.
        unsafe { result::stream::end_capture(stream.handle) }.called("cuStreamEndCapture")
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        // The body panicked.
        CAPTURED.take();
        // SAFETY: the stream is capturing; the resulting graph is destroyed, once.
        unsafe {
            if let Ok(graph) = result::stream::end_capture(self.stream.handle) {
                _ = result::graph::destroy(graph);
            }
        }
    }
}

/// Waits for all launches that this thread has put on streams of the device.
pub(super) fn sync_launches(device: &Device) -> Result<(), CudaError> {
    let mine = BUSY.with_borrow_mut(|busy| {
        let (mine, others): (Vec<_>, Vec<_>) = std::mem::take(busy)
            .into_iter()
            .partition(|known| known.upgrade().is_none_or(|stream| std::ptr::eq(Arc::as_ptr(&stream.device), device)));
        *busy = others;
        mine
    });
    // All are waited for, whatever the first returns.
    let ends: Vec<_> = mine.iter().filter_map(Weak::upgrade).map(|stream| stream.sync()).collect();
    ends.into_iter().collect()
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: created by `new`, destroyed once; the driver lets pending work finish.
            _ = unsafe { result::stream::destroy(self.handle) };
        }
        held(&self.device.residency).release(self.handle as usize);
    }
}
