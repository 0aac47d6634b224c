//! An order of launches.

use super::device::{Device, held};
use super::error::{Called, CudaError};
use super::graph::Graph;
use super::launch::CAPTURED;
use cudarc::driver::{result, sys};
use std::cell::RefCell;
use std::sync::{Arc, Weak};

/// Launches on one stream run one after the other; on different streams they run side by side.
pub struct Stream {
    device: Arc<Device>,
    handle: sys::CUstream,
}

// SAFETY: the driver's handles may be used from any thread; nothing in a stream changes here.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

thread_local! {
    /// Streams that this thread has put launches on since it last waited for them: what host access to device memory waits for.
    static BUSY: RefCell<Vec<Weak<Stream>>> = const { RefCell::new(Vec::new()) };
}

impl Stream {
    /// A new stream.
    pub fn new(device: &Arc<Device>) -> Result<Arc<Stream>, CudaError> {
        device.bind()?;
        let handle = result::stream::create(result::stream::StreamKind::NonBlocking).called("cuStreamCreate")?;
        Ok(Arc::new(Stream { device: device.clone(), handle }))
    }

    /// The device it is on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Waits until all that was put on the stream is done.
    pub fn sync(&self) -> Result<(), CudaError> {
        self.device.bind()?;
        // SAFETY: the stream lives.
        let done = unsafe { result::stream::synchronize(self.handle) }.called("cuStreamSynchronize");
        held(&self.device.residency).release(self.handle as usize);
        done
    }

    /// What comes next on this stream waits for what is on the other now.
    pub fn after(&self, other: &Stream) -> Result<(), CudaError> {
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

    /// Records what `body` puts on this stream, and on those of `others` (as forks of it), instead of running it; see [`Graph`].
    pub fn capture<E: From<CudaError>>(
        &self,
        others: &[&Stream],
        body: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        self.device.bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream lives.
        unsafe { result::stream::begin_capture(self.handle, mode) }.called("cuStreamBeginCapture")?;
        CAPTURED.set(Some(Vec::new()));
        let fork = || others.iter().try_for_each(|other| other.after(self));
        let join = || others.iter().try_for_each(|other| self.after(other));
        let body = fork().map_err(E::from).and_then(|()| body()).and_then(|()| Ok(join()?));
        let kept = CAPTURED.take().unwrap_or_default();
        // In any case: a stream must not be left in a capture.
        // SAFETY: the stream is capturing.
        let graph = unsafe { result::stream::end_capture(self.handle) }.called("cuStreamEndCapture");
        let graph = graph.map(|graph| Graph::own(&self.device, graph, kept));
        body?;
        Ok(graph??)
    }

    /// Whether what is put on the stream is recorded, not run.
    pub fn is_capturing(&self) -> Result<bool, CudaError> {
        self.device.bind()?;
        // SAFETY: the stream lives.
        let status = unsafe { result::stream::is_capturing(self.handle) }.called("cuStreamIsCapturing")?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// This thread has put something on the stream.
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
}

/// Waits for all launches that this thread has put on streams of the device.
pub(super) fn settle_launches(device: &Device) -> Result<(), CudaError> {
    let mine = BUSY.with_borrow_mut(|busy| {
        let (mine, others): (Vec<_>, Vec<_>) = std::mem::take(busy)
            .into_iter()
            .partition(|known| known.upgrade().is_none_or(|stream| std::ptr::eq(Arc::as_ptr(&stream.device), device)));
        *busy = others;
        mine
    });
    // All are waited for, whatever the first says.
    let ends: Vec<_> = mine.iter().filter_map(Weak::upgrade).map(|stream| stream.sync()).collect();
    ends.into_iter().collect()
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: created by `new`, destroyed once; the driver lets what is under way finish.
            _ = unsafe { result::stream::destroy(self.handle) };
        }
        held(&self.device.residency).release(self.handle as usize);
    }
}
