//! Times on a stream.

use super::device::Device;
use super::error::{Called, CudaError};
use super::stream::{Stream, ended};
use cudarc::driver::{result, sys};
use std::sync::Arc;
use std::time::Duration;

/// A point in the work of a stream.
pub struct Event {
    device: Arc<Device>,
    handle: sys::CUevent,
}

// SAFETY: the driver's handles may be used from any thread; an event never changes after it is made.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that has not happened.
    pub fn new(device: &Arc<Device>) -> Result<Event, CudaError> {
        device.bind()?;
        let handle = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).called("cuEventCreate")?;
        Ok(Event { device: device.clone(), handle })
    }

    /// An event that records no time.
    pub(super) fn untimed(device: &Arc<Device>) -> Result<Event, CudaError> {
        device.bind()?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let handle = result::event::create(flags).called("cuEventCreate")?;
        Ok(Event { device: device.clone(), handle })
    }

    /// Waits until it has happened. An event that was never recorded counts as happened.
    pub(super) fn wait(&self) -> Result<(), CudaError> {
        self.device.bind()?;
        // SAFETY: the event lives.
        unsafe { result::event::synchronize(self.handle) }.called("cuEventSynchronize")
    }

    /// True if it has happened. An event that was never recorded counts as happened.
    pub(super) fn has_happened(&self) -> Result<bool, CudaError> {
        self.device.bind()?;
        // SAFETY: the event lives.
        ended(unsafe { result::event::query(self.handle) }).called("cuEventQuery")
    }

    pub(super) fn handle(&self) -> sys::CUevent {
        self.handle
    }

    /// Makes it happen when all work now on the stream is done.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        self.record_on(stream.ordered())
    }

    /// The same, for the handle of a stream that lives.
    pub(super) fn record_on(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        self.device.bind()?;
        // SAFETY: event and stream live.
        unsafe { result::event::record(self.handle, stream) }.called("cuEventRecord")
    }

    /// The time from the other event to this one; waits until both have happened.
    pub fn since(&self, other: &Event) -> Result<Duration, CudaError> {
        self.device.bind()?;
        // SAFETY: both events live.
        unsafe {
            result::event::synchronize(self.handle).called("cuEventSynchronize")?;
            result::event::synchronize(other.handle).called("cuEventSynchronize")?;
            let milliseconds = result::event::elapsed(other.handle, self.handle).called("cuEventElapsedTime")?;
            Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: created by `new`, destroyed once; the driver keeps it until it has happened.
            _ = unsafe { result::event::destroy(self.handle) };
        }
    }
}
