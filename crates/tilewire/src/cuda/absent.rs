//! The GPU engine of a library without the feature `cuda`: no device opens, so no transport has a [`Seat`]. Code that
//! names one compiles all the same, and never runs: there is no value of these types.

mod error;

pub use error::{CudaError, Stopped, UnmetRequirement};

use crate::ir::Kernel;
use crate::ptx::Target;
use crate::tensor::{Arg, Element, Tensor};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// The place where launches run: there is none.
pub struct Seat {
    pub(crate) stream: Arc<Stream>,
    pub(crate) sharers: u32,
}

pub(crate) struct Stream(Device);

pub(crate) struct Device(Infallible);

pub(crate) struct Launch(Infallible);

/// As with the feature.
#[derive(Default)]
pub(crate) struct Settings {
    pub rank: u32,
    pub world_size: u32,
    pub deadline: Option<Duration>,
    pub unroll: u32,
}

impl Seat {
    pub(crate) fn of_thread(device: &Arc<Device>) -> Result<Seat, CudaError> {
        match device.0 {}
    }
}

impl Stream {
    pub fn device(&self) -> &Device {
        &self.0
    }

    pub fn is_capturing(&self) -> Result<bool, CudaError> {
        match self.0.0 {}
    }

    pub fn is_idle(&self) -> Result<bool, CudaError> {
        match self.0.0 {}
    }
}

impl Device {
    pub fn open(_ordinal: u32) -> Result<Arc<Device>, CudaError> {
        Err(CudaError::NoFeature)
    }

    pub fn target(&self) -> Target {
        match self.0 {}
    }

    pub fn multiprocessors(&self) -> u32 {
        match self.0 {}
    }

    pub fn zeros<T: Element>(&self, _len: usize) -> Result<Tensor<T>, CudaError> {
        match self.0 {}
    }
}

impl Launch {
    pub fn new(_: &Kernel, _: &[Arg], seat: &Seat, _: Settings) -> Result<Launch, CudaError> {
        match seat.stream.device().0 {}
    }

    pub fn name(&self, _: String) {
        match self.0 {}
    }

    pub fn rebind(&mut self, _: &Kernel, _: &[Arg]) -> Result<(), CudaError> {
        match self.0 {}
    }

    pub fn start(&mut self) -> Result<(), CudaError> {
        match self.0 {}
    }

    pub fn sync(&mut self) -> Result<(), CudaError> {
        match self.0 {}
    }

    pub fn text(&self) -> &str {
        match self.0 {}
    }
}
