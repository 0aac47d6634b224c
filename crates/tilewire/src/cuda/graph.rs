//! Launches that were recorded, to be replayed in one call.

use super::device::Device;
use super::error::{Called, CudaError};
use super::launch::Kept;
use super::stream::Stream;
use cudarc::driver::{result, sys};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// What [`Stream::capture`] recorded. Counters live in device memory, so it may be replayed any number of times, mixed with plain
/// launches. Values of scalars are those of the capture. It keeps alive what its launches use; dropping it waits for its replays.
pub struct Graph {
    device: Arc<Device>,
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
    _kept: Vec<Rc<Kept>>,
    /// Where it was replayed.
    streams: RefCell<Vec<Arc<Stream>>>,
}

impl Graph {
    /// Takes over a graph of the driver.
    pub(super) fn own(device: &Arc<Device>, graph: sys::CUgraph, kept: Vec<Rc<Kept>>) -> Result<Graph, CudaError> {
        let (exec, streams) = (std::ptr::null_mut(), RefCell::default());
        let mut made = Graph { device: device.clone(), graph, exec, _kept: kept, streams };
        // SAFETY: writes one handle; the graph lives.
        unsafe { sys::cuGraphInstantiateWithFlags(&mut made.exec, graph, 0) }
            .result()
            .called("cuGraphInstantiateWithFlags")?;
        // SAFETY: as above. So that the first replay costs what the others do.
        unsafe { result::graph::upload(made.exec, device.chores()) }.called("cuGraphUpload")?;
        device.settle()?;
        Ok(made)
    }

    /// Replays it on a stream; returns at once.
    pub fn replay(&self, stream: &Arc<Stream>) -> Result<(), CudaError> {
        self.device.bind()?;
        stream.busy();
        let mut streams = self.streams.borrow_mut();
        if !streams.iter().any(|known| Arc::ptr_eq(known, stream)) {
            streams.push(stream.clone());
        }
        // SAFETY: graph and stream live; the graph keeps what its kernels use, and waits for them when it is dropped.
        unsafe { result::graph::launch(self.exec, stream.handle()) }.called("cuGraphLaunch")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.streams.borrow().iter().for_each(|stream| _ = stream.sync());
        if self.device.bind().is_ok() {
            // SAFETY: made by `own` or the driver, destroyed once; no replay is under way.
            unsafe {
                if !self.exec.is_null() {
                    _ = result::graph::exec_destroy(self.exec);
                }
                _ = result::graph::destroy(self.graph);
            }
        }
    }
}
