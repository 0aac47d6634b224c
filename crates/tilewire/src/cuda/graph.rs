//! Recorded launches, to be replayed in one call.

use super::device::Device;
use super::error::{Called, CudaError};
use super::event::Event;
use super::gang::{GangLaunch, LegEnd, open_ends};
use super::launch::{Kept, KernelOrder, keep_captured};
use super::stream::Stream;
use cudarc::driver::{result, sys};
use std::cell::RefCell;
use std::sync::Arc;

/// The result of [`Stream::capture`]. Counters live in device memory, so it may be replayed any number of times, mixed
/// with plain launches. Values of scalars are those of the capture. It keeps alive what its launches use; dropping it
/// waits for its replays.
pub struct Graph {
    device: Arc<Device>,
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
    kept: Vec<Arc<Kept>>,
    /// Legs that lead out of it: their other ends start together with plain launches.
    open: Vec<(Arc<GangLaunch<KernelOrder>>, Vec<LegEnd>)>,
    /// The streams whose launches it contains. None of their launches may run beside it, since counters are shared.
    parts: Vec<Arc<Stream>>,
    /// The end of the last replay, which later launches on those streams wait for.
    done: Arc<Event>,
    /// The streams it was replayed on.
    streams: RefCell<Vec<Arc<Stream>>>,
}

impl Graph {
    /// Takes ownership of a graph of the driver.
    pub(super) fn own(
        device: &Arc<Device>,
        graph: sys::CUgraph,
        kept: Vec<Arc<Kept>>,
        parts: Vec<Arc<Stream>>,
    ) -> Result<Graph, CudaError> {
        let (exec, streams, done) = (std::ptr::null_mut(), RefCell::default(), Arc::new(Event::untimed(device)?));
        let open = open(&kept);
        let mut made = Graph { device: device.clone(), graph, exec, kept, open, parts, done, streams };
        // SAFETY: writes one handle; the graph lives.
        unsafe { sys::cuGraphInstantiateWithFlags(&mut made.exec, graph, 0) }
            .result()
            .called("cuGraphInstantiateWithFlags")?;
        // SAFETY: as above. Uploading now makes the first replay as fast as the others.
        unsafe { result::graph::upload(made.exec, device.chores()) }.called("cuGraphUpload")?;
        device.sync_chores()?;
        Ok(made)
    }

    /// Replays it on a stream; returns immediately. It runs after the work on the streams it was captured from, and
    /// later work there runs after it. Errors that an earlier replay has reported are returned first.
    pub fn replay(&self, stream: &Arc<Stream>) -> Result<(), CudaError> {
        self.kept.iter().try_for_each(|kept| kept.reported())?;
        self.device.bind()?;
        let capturing = stream.is_capturing()?;
        if capturing {
            keep_captured(&self.kept, &self.parts)?;
        } else {
            stream.join(&self.parts, &self.done)?;
        }
        stream.busy();
        let mut streams = self.streams.borrow_mut();
        if !streams.iter().any(|known| Arc::ptr_eq(known, stream)) {
            streams.push(stream.clone());
        }
        // SAFETY: graph and stream live; the graph keeps what its kernels use, and waits for them when it is dropped.
        unsafe { result::graph::launch(self.exec, stream.ordered()) }.called("cuGraphLaunch")?;
        if !capturing {
            self.open.iter().for_each(|(gang, ends)| gang.passed(ends));
            for turn in self.parts.iter().filter_map(|part| part.guests.turn()) {
                turn.record(stream)?;
            }
        }
        self.done.record(stream)
    }

    /// Waits until all replays have ended, and returns their result.
    pub fn sync(&self) -> Result<(), CudaError> {
        self.streams.borrow().iter().try_for_each(|stream| stream.sync())?;
        self.kept.iter().try_for_each(|kept| kept.reported())
    }
}

/// The legs that lead out of these launches, by gang.
fn open(kept: &[Arc<Kept>]) -> Vec<(Arc<GangLaunch<KernelOrder>>, Vec<LegEnd>)> {
    let mut all: Vec<(Arc<GangLaunch<KernelOrder>>, Vec<LegEnd>)> = Vec::new();
    for (gang, ends) in kept.iter().filter_map(|kept| kept.together()) {
        match all.iter_mut().find(|(known, _)| Arc::ptr_eq(known, gang)) {
            Some((_, known)) => known.extend_from_slice(ends),
            None => all.push((gang.clone(), ends.to_vec())),
        }
    }
    let open = all.into_iter().map(|(gang, ends)| (gang, open_ends(ends.into_iter())));
    open.filter(|(_, ends)| !ends.is_empty()).collect()
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.streams.borrow().iter().map(|stream| stream.sync()).any(|done| done.is_err()) {
            // It is unknown if the kernels are done: leaking the memory is better than reusing it.
            std::mem::forget(std::mem::take(&mut self.kept));
        }
        if self.device.bind().is_ok() {
            // SAFETY: made by `own` or the driver, destroyed once; no replay is running.
            unsafe {
                if !self.exec.is_null() {
                    _ = result::graph::exec_destroy(self.exec);
                }
                _ = result::graph::destroy(self.graph);
            }
        }
    }
}
