//! Where a rank's tensors are: with its transport.

use tilewire::collective::Link;
use tilewire::ir::scalar::Element;
use tilewire::transport::{NvlTransport, ShmTransport, WindowSpace};
use tilewire::{RunError, Tensor};

/// A transport, and where its kernels want their tensors.
pub trait Place: Link + WindowSpace {
    /// A tensor of zeros.
    fn zeros<T: Element>(&self, len: usize) -> Result<Tensor<T>, RunError>;
}

impl Place for ShmTransport {
    fn zeros<T: Element>(&self, len: usize) -> Result<Tensor<T>, RunError> {
        Ok(Tensor::zeros(len))
    }
}

impl Place for NvlTransport {
    fn zeros<T: Element>(&self, len: usize) -> Result<Tensor<T>, RunError> {
        Ok(self.device().zeros(len)?)
    }
}
