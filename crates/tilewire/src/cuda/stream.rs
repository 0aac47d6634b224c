//! A stream: a sequence of launches.

use super::device::{Device, held};
use super::error::{Called, CudaError};
use super::event::Event;
use super::foreign_stream::{ForeignStream, Guests, drop_let_go};
use super::gang::GangLaunch;
use super::graph::Graph;
use super::launch::{CAPTURED, Captured, KernelOrder};
use cudarc::driver::{result, sys};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    /// The number of the thread that launches here; see [`Stream::own`].
    owner: AtomicU64,
    /// Odd while that thread waits for the stream; a different number in every wait.
    waits: AtomicU64,
    /// The last launch on a thread's own stream that this one follows.
    followed: AtomicU64,
    /// The streams of others for which it launches, too.
    pub(super) guests: Guests,
}

/// Held while streams enter a capture, and while a watching thread queries one: a query of a stream in a capture would
/// end the capture.
static CAPTURE_OR_QUERY: Mutex<()> = Mutex::new(());

/// Numbers of threads, from 1; none is reused.
static THREADS: AtomicU64 = AtomicU64::new(1);

/// A thread's own stream, see [`Stream::of_thread`], and its last launch: launches on such streams are numbered in the
/// order of time.
struct OwnStream {
    stream: Weak<Stream>,
    last: u64,
}

/// The number of the last launch on any thread's own stream.
static OWN_LAUNCHES: AtomicU64 = AtomicU64::new(0);

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
    /// The number of this thread.
    static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
    /// This thread's own streams, one for each device.
    static OWN: RefCell<Vec<OwnStream>> = const { RefCell::new(Vec::new()) };
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

    /// The stream of this thread for launches that belong to no transport. They are ordered with the thread's launches
    /// on all other streams, in the order of its calls.
    pub fn of_thread(device: &Arc<Device>) -> Result<Arc<Stream>, CudaError> {
        let known = OWN.with_borrow_mut(|own| {
            own.retain(|own| own.stream.strong_count() > 0);
            let mut streams = own.iter().filter_map(|own| own.stream.upgrade());
            streams.find(|stream| stream.device.ordinal() == device.ordinal())
        });
        if let Some(stream) = known {
            return Ok(stream);
        }
        let stream = Stream::new(device)?;
        OWN.with_borrow_mut(|own| own.push(OwnStream { stream: Arc::downgrade(&stream), last: 0 }));
        Ok(stream)
    }

    /// A launch of this thread comes next: it runs after those on the thread's own streams and, if this is one of them,
    /// after those on all streams.
    pub(super) fn follow_thread(self: &Arc<Self>) -> Result<(), CudaError> {
        let is_self = |stream: &Weak<Stream>| std::ptr::eq(stream.as_ptr(), Arc::as_ptr(self));
        let live = |streams: Vec<Weak<Stream>>| streams.into_iter().filter(|other| !is_self(other));
        if OWN.with_borrow(|own| own.iter().any(|own| is_self(&own.stream))) {
            if CAPTURED.with_borrow(Option::is_some) {
                return Err(CudaError::Capturing { what: "a launch of no transport, which has a stream of its own," });
            }
            for other in live(BUSY.with_borrow(Vec::clone)).filter_map(|other| other.upgrade()) {
                self.after(&other)?;
            }
            // Relaxed: the number is this thread's from here on.
            let number = OWN_LAUNCHES.fetch_add(1, Ordering::Relaxed) + 1;
            return OWN.with_borrow_mut(|own| {
                own.iter_mut().filter(|own| is_self(&own.stream)).for_each(|own| own.last = number);
                Ok(())
            });
        }
        // Relaxed: launches of one stream are one thread's, or ordered by whoever shares it.
        let followed = self.followed.load(Ordering::Relaxed);
        let ahead: Vec<(Arc<Stream>, u64)> = OWN.with_borrow(|own| {
            let ahead = own.iter().filter(|own| own.last > followed);
            ahead.filter_map(|own| Some((own.stream.upgrade()?, own.last))).collect()
        });
        for (stream, last) in ahead {
            self.after(&stream)?;
            self.followed.fetch_max(last, Ordering::Relaxed);
        }
        Ok(())
    }

    fn make(device: &Arc<Device>, together: Option<Gang>) -> Result<Arc<Stream>, CudaError> {
        device.bind()?;
        let handle = result::stream::create(result::stream::StreamKind::NonBlocking).called("cuStreamCreate")?;
        let (ahead, behind) = (AtomicBool::new(false), Mutex::default());
        let (owner, waits, followed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let (device, guests) = (device.clone(), Guests::default());
        let stream = Stream { device, handle, ahead, behind, together, owner, waits, followed, guests };
        stream.own();
        Ok(Arc::new(stream))
    }

    /// The device it is on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Records that this thread launches here; no other does at the same time.
    pub(super) fn own(&self) {
        let before = THREAD.with(|&thread| self.owner.swap(thread, Ordering::Relaxed));
        if THREAD.with(|&thread| before != thread) {
            // What the thread before had followed says nothing about this thread's own streams.
            self.followed.store(0, Ordering::Relaxed);
        }
    }

    /// The number of the wait for this stream that its launching thread is in; 0 if it is in none.
    pub(crate) fn host_waits(&self) -> u64 {
        // Acquire and release (`HostWait`): all launches observed between two reads of the same number were made before
        // that wait.
        Some(self.waits.load(Ordering::Acquire)).filter(|number| number % 2 == 1).unwrap_or(0)
    }

    /// If this thread is the one that launches here, marks it as waiting for the stream until the guard is dropped.
    fn host_wait(&self) -> Option<HostWait<'_>> {
        // Relaxed: a thread reads its own number, or one that differs from it.
        let is_owner = THREAD.with(|&thread| self.owner.load(Ordering::Relaxed) == thread);
        (is_owner && self.host_waits() == 0).then(|| {
            self.waits.fetch_add(1, Ordering::AcqRel);
            HostWait(self)
        })
    }

    /// True if all launches here have ended, including those in replays on other streams. Meaningful only while the
    /// launching thread does not launch. False if others have a graph of them, which may run at any time.
    pub(crate) fn is_idle(&self) -> Result<bool, CudaError> {
        if self.guests.may_be_replayed() {
            return Ok(false);
        }
        // In this order: pending launches move from that list to the stream.
        if self.has_pending() {
            return Ok(false);
        }
        self.device.bind()?;
        let _no_capture_begins = held(&CAPTURE_OR_QUERY);
        if self.is_capturing()? {
            return Ok(false);
        }
        // SAFETY: the stream lives.
        let is_empty = ended(unsafe { sys::cuStreamQuery(self.handle) }.result()).called("cuStreamQuery")?;
        let behind = held(&self.behind).clone();
        let over = behind.iter().map(|replayed| replayed.has_happened()).collect::<Result<Vec<_>, _>>()?;
        Ok(is_empty && over.into_iter().all(|is_over| is_over))
    }

    /// True if launches wait for other ranks before they start here.
    pub(super) fn has_pending(&self) -> bool {
        self.gang().is_some_and(|gang| gang.has_pending(self.handle as usize))
    }

    /// The number of the first launch that waits for other ranks before it starts here, and a missing rank.
    pub(crate) fn lacks(&self) -> Option<(u64, u32)> {
        self.gang()?.lacks(self.handle as usize)
    }

    /// Starts that launch with what has arrived: the missing ranks never will.
    pub(crate) fn start_without(&self, number: u64) {
        if let Some(gang) = self.gang() {
            gang.start_without(self.handle as usize, number);
        }
    }

    /// Waits until everything on the stream is done.
    pub fn sync(&self) -> Result<(), CudaError> {
        if self.is_capturing()? {
            return Err(CudaError::Capturing { what: "waiting for a stream" });
        }
        let _waits = self.host_wait();
        self.ordered();
        // They stay in the list until they have happened: `is_idle` reads it, whichever thread waits here.
        let behind = held(&self.behind).clone();
        behind.iter().try_for_each(|replayed| replayed.wait())?;
        held(&self.behind).retain(|replayed| !replayed.has_happened().unwrap_or(false));
        self.guests.turn().map_or(Ok(()), |turn| turn.wait())?;
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

    /// Makes later work on this stream wait for the current work on a stream of others.
    pub(super) fn after_foreign(&self, other: &ForeignStream) -> Result<(), CudaError> {
        let now = Event::untimed(&self.device)?;
        now.record_on(other.handle())?;
        self.ordered();
        self.after_event(&now)
    }

    /// Makes later work on a stream of others wait for the current work on this one. Waits until that has started.
    pub(super) fn before_foreign(&self, other: &ForeignStream) -> Result<(), CudaError> {
        let now = Event::untimed(&self.device)?;
        now.record(self)?;
        let waits = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: event and stream live; the driver keeps a destroyed event until it has happened.
        unsafe { result::stream::wait_event(other.handle(), now.handle(), waits) }.called("cuStreamWaitEvent")
    }

    /// True if this is a thread's own stream; see [`Stream::of_thread`].
    pub(super) fn is_of_thread(&self) -> bool {
        OWN.with_borrow(|own| own.iter().any(|own| std::ptr::eq(own.stream.as_ptr(), self)))
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
            if let Some(turn) = part.guests.launches(part.handle as usize)? {
                self.after_event(turn)?;
            }
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

    pub(super) fn after_event(&self, event: &Event) -> Result<(), CudaError> {
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
        let no_query = held(&CAPTURE_OR_QUERY);
        // SAFETY: the stream lives.
        unsafe { result::stream::begin_capture(self.handle, mode) }.called("cuStreamBeginCapture")?;
        let recording = Recording { stream: self };
        CAPTURED.set(Some(Captured::default()));
        let forked = others.iter().try_for_each(|other| other.after(self));
        drop(no_query);
        let join = || others.iter().try_for_each(|other| self.after(other));
        let body = forked.map_err(E::from).and_then(|()| body()).and_then(|()| Ok(join()?));
        let Captured { kept, streams } = CAPTURED.take().unwrap_or_default();
        let graph = recording.end();
        body?;
        let mut parts: Vec<Arc<Stream>> = others.iter().map(|&other| other.clone()).chain([self.clone()]).collect();
        for stream in streams {
            if !parts.iter().any(|part| Arc::ptr_eq(part, &stream)) {
                parts.push(stream);
            }
        }
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

/// Marks that a stream's launching thread waits for it; see [`Stream::host_waits`].
struct HostWait<'s>(&'s Stream);

impl Drop for HostWait<'_> {
    fn drop(&mut self) {
        self.0.waits.fetch_add(1, Ordering::AcqRel);
    }
}

/// True if a query of the driver reports that everything has ended.
pub(super) fn ended(query: Result<(), result::DriverError>) -> Result<bool, result::DriverError> {
    match query {
        Err(result::DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
        query => query.map(|()| true),
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
    let mine: Vec<Arc<Stream>> = mine.iter().filter_map(Weak::upgrade).collect();
    // While it waits for one, it waits for all: it returns when all have ended.
    let _waits: Vec<_> = mine.iter().map(|stream| stream.host_wait()).collect();
    // All are waited for, whatever the first says.
    let ends: Vec<_> = mine.iter().map(|stream| stream.sync()).collect();
    ends.into_iter().collect()
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: created by `new`, destroyed once; the driver lets pending work finish.
            _ = unsafe { result::stream::destroy(self.handle) };
        }
        held(&self.device.residency).release(self.handle as usize);
        drop_let_go();
    }
}
