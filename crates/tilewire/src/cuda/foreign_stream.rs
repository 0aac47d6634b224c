//! Streams of others, on which launches of a transport run too.
//!
//! ```text
//!   outside of a capture   theirs ──event──▶ the transport's own stream: launch ──event──▶ theirs
//!   in their capture       theirs: [wait for `turn`] launch [record `turn`], replayed whenever they like
//! ```
//!
//! Outside of a capture, all launches of a transport are on its own stream, so any number of streams may be served.
//! A graph that others captured runs on their streams. An event orders it with everything else: whoever launches waits
//! for the event first, and records it afterwards. An ordinary event may not cross a capture, so the graph has
//! external event nodes. They are left out while one stream alone uses the transport, whose order then is enough.

use super::device::{Device, held};
use super::error::{Called, CudaError};
use super::event::Event;
use super::launch::Kept;
use cudarc::driver::{result, sys};
use std::any::Any;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};

/// A CUDA stream that others made, for [`run_on`](crate::collective::PreparedExchange::run_on).
///
/// ```no_run
/// use std::sync::Arc;
/// use tilewire::collective::PreparedExchange;
/// use tilewire::cuda::ForeignStream;
/// # use std::ffi::c_void;
/// // For example `torch.cuda.current_stream().cuda_stream`.
/// fn step(raw: *mut c_void, sum: &mut PreparedExchange<'_>) -> Result<(), tilewire::RunError> {
///     // SAFETY: Python keeps the stream for the time of this call.
///     let stream = unsafe { ForeignStream::new(raw, Arc::new(())) };
///     sum.run_on(&stream)
/// }
/// ```
#[derive(Clone)]
pub struct ForeignStream {
    handle: usize,
    _keep: Arc<dyn Any + Send + Sync>,
}

impl ForeignStream {
    /// A `CUstream` or `cudaStream_t`, which are the same. Null is the default stream. `keep` is held as long as this
    /// value lives.
    ///
    /// # Safety
    /// The handle must be that of a stream as long as `keep` lives. Graphs that are captured from it must not be
    /// replayed after the transport, or a tensor that was lent to it, is gone.
    pub unsafe fn new(handle: *mut c_void, keep: Arc<dyn Any + Send + Sync>) -> Self {
        ForeignStream { handle: handle as usize, _keep: keep }
    }

    pub(super) fn handle(&self) -> sys::CUstream {
        self.handle as sys::CUstream
    }

    /// The stream as a number. A handle that its owner gave back may come again for another stream.
    pub(super) fn number(&self) -> usize {
        self.handle
    }

    /// True if work put on the stream is recorded, not run. An error if it is not a stream of the device's primary
    /// context.
    pub(super) fn is_capturing(&self, device: &Device) -> Result<bool, CudaError> {
        device.bind()?;
        let mut context = null_mut();
        // SAFETY: writes one handle; the stream lives.
        unsafe { sys::cuStreamGetCtx(self.handle(), &mut context) }.result().called("cuStreamGetCtx")?;
        if !device.is_context(context) {
            return Err(CudaError::Stream {
                what: "the stream belongs to another device or context than the launch: make it on the device of the \
                       transport, in its primary context",
            });
        }
        // SAFETY: the stream lives.
        let status = unsafe { result::stream::is_capturing(self.handle()) }.called("cuStreamIsCapturing")?;
        use sys::CUstreamCaptureStatus as S;
        match status {
            S::CU_STREAM_CAPTURE_STATUS_NONE => Ok(false),
            S::CU_STREAM_CAPTURE_STATUS_ACTIVE => Ok(true),
            S::CU_STREAM_CAPTURE_STATUS_INVALIDATED => {
                Err(CudaError::Stream { what: "the stream is in a capture that has failed: end that capture first" })
            }
        }
    }

    /// In a capture of this stream: the graph keeps this until it is destroyed, with all that is made of it.
    pub(super) fn graph_keeps(&self, kept: Arc<Kept>) -> Result<(), CudaError> {
        use sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as NO_SYNC;
        use sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as MOVE;
        let (mut status, mut id, mut graph) =
            (sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, 0, null_mut());
        // SAFETY: writes a status, a number and a handle; null stands for what is not wanted. The stream lives.
        unsafe {
            let (nodes, edges, count) = (null_mut(), null_mut(), null_mut());
            sys::cuStreamGetCaptureInfo_v3(self.handle(), &mut status, &mut id, &mut graph, nodes, edges, count)
        }
        .result()
        .called("cuStreamGetCaptureInfo")?;
        let (mut object, kept) = (null_mut(), Box::into_raw(Box::new(kept)));
        // SAFETY: `let_go` gets the box once, when the last reference to the object goes.
        let made = unsafe { sys::cuUserObjectCreate(&mut object, kept.cast(), Some(let_go), 1, NO_SYNC as u32) };
        if let Err(error) = made.result().called("cuUserObjectCreate") {
            // SAFETY: no object has it.
            drop(unsafe { Box::from_raw(kept) });
            return Err(error);
        }
        // SAFETY: the graph is being captured, and takes over the one reference.
        let moved = unsafe { sys::cuGraphRetainUserObject(graph, object, 1, MOVE as u32) }.result();
        if moved.is_err() {
            // SAFETY: the reference is still this function's.
            _ = unsafe { sys::cuUserObjectRelease(object, 1) };
        }
        moved.called("cuGraphRetainUserObject")
    }

    /// In a capture of this stream: its later work waits for the event as it is when the graph is launched.
    pub(super) fn wait_in_graph(&self, event: &Event) -> Result<(), CudaError> {
        let external = sys::CUevent_wait_flags::CU_EVENT_WAIT_EXTERNAL;
        // SAFETY: event and stream live.
        unsafe { result::stream::wait_event(self.handle(), event.handle(), external) }.called("cuStreamWaitEvent")
    }

    /// In a capture of this stream: each launch of the graph records the event.
    pub(super) fn record_in_graph(&self, event: &Event) -> Result<(), CudaError> {
        let external = sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL;
        // SAFETY: event and stream live.
        unsafe { sys::cuEventRecordWithFlags(event.handle(), self.handle(), external as u32) }
            .result()
            .called("cuEventRecordWithFlags")
    }
}

/// What graphs of others have let go of. A driver's thread does that, which may call no driver: it is dropped later.
static LET_GO: Mutex<Vec<Arc<Kept>>> = Mutex::new(Vec::new());

/// # Safety
/// `kept` is a box of `graph_keeps`, and this is called once.
unsafe extern "C" fn let_go(kept: *mut c_void) {
    // SAFETY: the caller's promise.
    let kept = unsafe { Box::from_raw(kept.cast::<Arc<Kept>>()) };
    held(&LET_GO).push(*kept);
}

/// Drops what graphs of others have let go of. It may unload modules and free memory.
pub(super) fn drop_let_go() {
    let all = std::mem::take(&mut *held(&LET_GO));
    drop(all);
}

/// For the time of a value, captures of others forbid this thread no call of the driver. None of the calls made then
/// puts anything into a capture by accident.
pub(crate) struct BesideCaptures(sys::CUstreamCaptureMode);

impl BesideCaptures {
    pub(crate) fn now() -> Result<Self, CudaError> {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: exchanges one number.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }
            .result()
            .called("cuThreadExchangeStreamCaptureMode")?;
        Ok(BesideCaptures(mode))
    }
}

impl Drop for BesideCaptures {
    fn drop(&mut self) {
        // SAFETY: as above.
        _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.0) };
    }
}

/// For which streams a transport's stream has launched, and how graphs of others take turns with it.
#[derive(Default)]
pub(super) struct Guests {
    users: Mutex<Users>,
    /// Recorded after every launch and replay, once there is a graph of others that waits for it.
    turn: OnceLock<Arc<Event>>,
}

impl Guests {
    /// A launch outside of a capture, for a stream.
    pub(super) fn launches(&self, stream: usize) -> Result<Option<&Arc<Event>>, CudaError> {
        held(&self.users).launches(stream)?;
        Ok(self.turn.get())
    }

    /// The event, if there is one.
    pub(super) fn turn(&self) -> Option<&Arc<Event>> {
        self.turn.get()
    }

    /// A launch in a capture of a stream: the event that takes turns, if there must be one. `begin` makes it and
    /// records it after all launches so far.
    pub(super) fn captures(
        &self,
        stream: usize,
        begin: impl FnOnce() -> Result<Event, CudaError>,
    ) -> Result<Option<&Arc<Event>>, CudaError> {
        let mut users = held(&self.users);
        if users.captures(stream)? == Turns::ByStream {
            return Ok(None);
        }
        if self.turn.get().is_none() {
            _ = self.turn.set(Arc::new(begin()?));
        }
        users.takes_turns();
        Ok(self.turn.get())
    }

    /// True if a graph of others may be running, which nobody here knows.
    pub(super) fn may_be_replayed(&self) -> bool {
        held(&self.users).captured != Captured::Nothing
    }
}

/// What orders the launches in a graph of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turns {
    ByStream,
    ByEvents,
}

/// What others have captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Captured {
    #[default]
    Nothing,
    /// Graphs without event nodes, from this stream, which no other one may join.
    Alone(usize),
    /// Graphs that take turns.
    InTurns,
}

/// The streams for which there were launches: the first two suffice.
#[derive(Default)]
struct Users {
    streams: Vec<usize>,
    captured: Captured,
}

impl Users {
    fn launches(&mut self, stream: usize) -> Result<(), CudaError> {
        if let Captured::Alone(only) = self.captured
            && only != stream
        {
            return Err(CudaError::Stream {
                what: "a graph was captured from another stream when that one alone used the transport, and nothing orders \
                       its replays with this launch: launch with run_on(..) on that stream, or launch on both streams \
                       before the capture",
            });
        }
        if self.streams.len() < 2 && !self.streams.contains(&stream) {
            self.streams.push(stream);
        }
        Ok(())
    }

    fn captures(&mut self, stream: usize) -> Result<Turns, CudaError> {
        match self.captured {
            Captured::InTurns => Ok(Turns::ByEvents),
            Captured::Nothing if self.streams.iter().any(|&other| other != stream) => Ok(Turns::ByEvents),
            Captured::Alone(only) if only != stream => Err(CudaError::Stream {
                what: "a graph was captured from another stream when that one alone used the transport, and nothing orders \
                       its replays with this one's: capture from that stream, or launch on both streams before the first \
                       capture",
            }),
            _ => {
                self.captured = Captured::Alone(stream);
                self.launches(stream)?;
                Ok(Turns::ByStream)
            }
        }
    }

    fn takes_turns(&mut self) {
        self.captured = Captured::InTurns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_is_alone_needs_no_events_and_stays_alone() {
        let mut users = Users::default();
        users.launches(7).unwrap();
        assert_eq!(users.captures(7).unwrap(), Turns::ByStream);
        assert_eq!(users.captures(7).unwrap(), Turns::ByStream);
        users.launches(7).unwrap();
        let refused = users.launches(8).unwrap_err();
        assert!(refused.to_string().contains("run_on(..) on that stream"), "{refused}");
        let refused = users.captures(8).unwrap_err();
        assert!(refused.to_string().contains("capture from that stream"), "{refused}");
        users.launches(7).unwrap();
        // The first work of all may be a capture.
        let mut users = Users::default();
        assert_eq!(users.captures(0).unwrap(), Turns::ByStream);
        assert!(users.launches(1).is_err());
    }

    #[test]
    fn several_streams_take_turns_by_events() {
        for streams in [&[1][..], &[1, 2], &[2, 1], &[1, 2, 3]] {
            let mut users = Users::default();
            streams.iter().for_each(|&stream| users.launches(stream).unwrap());
            assert_eq!(users.captures(2).unwrap(), Turns::ByEvents, "{streams:?}");
            users.takes_turns();
            (1..5).for_each(|stream| users.launches(stream).unwrap());
            (1..5).for_each(|stream| assert_eq!(users.captures(stream).unwrap(), Turns::ByEvents));
        }
    }

    /// An event that could not be made is no reason to believe later that there is one.
    #[test]
    fn turns_that_did_not_begin_are_begun_again() {
        let guests = Guests::default();
        guests.launches(1).unwrap();
        for _ in 0..2 {
            let error = guests.captures(2, || Err(CudaError::NoDriver)).err();
            assert_eq!(error, Some(CudaError::NoDriver));
            assert!(guests.turn().is_none() && !guests.may_be_replayed());
            guests.launches(3).unwrap();
        }
    }
}
