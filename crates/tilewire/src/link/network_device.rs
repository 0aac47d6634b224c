//! A rank's GPU, as the network sees it. Written, and never run with a card.
#![forbid(unsafe_code)]

use super::NetworkOptions;
use crate::cuda::{Buffer, Device};
use crate::tensor::Memory;
use crate::transport::fabric::{Abilities, Choice, Exported, FabricCarrier, NetworkDevice, NetworkError};
use std::sync::Arc;

/// A device of the CUDA driver.
pub(super) struct OnNetwork(pub(super) Arc<Device>);

impl NetworkDevice for OnNetwork {
    fn abilities(&self) -> Abilities {
        let writes = self.0.card_writes();
        Abilities { dma_bufs: writes.dma_bufs, needs_flush: writes.needs_flush, host_flushes: writes.host_flushes }
    }

    fn dma_buf(&self, memory: &Memory) -> Result<Exported, String> {
        let device = self.0.ordinal();
        if !memory.reachable_from().is_device(device) {
            return Err(format!("it is not reached from GPU {device}"));
        }
        let buf = self.0.dma_buf(memory).map_err(|error| error.to_string())?;
        Ok(Exported { descriptor: buf.descriptor, base: buf.base, offset: buf.offset, device: device as i32 })
    }

    fn flush(&self) -> Result<(), String> {
        self.0.flush_card_writes().map_err(|error| error.to_string())
    }

    fn sample(&self, bytes: usize) -> Result<Memory, String> {
        let buffer = Buffer::shareable(&self.0, bytes, &[]).map_err(|error| error.to_string())?;
        Ok(Arc::new(buffer).memory())
    }

    fn read(&self, memory: &Memory) -> Result<Vec<u8>, String> {
        self.0.copy_of(memory).map_err(|error| error.to_string())
    }
}

/// The network that a rank on this device would choose, and why: also whether its card would write the device's memory.
pub fn network_of(device: &Arc<Device>, options: NetworkOptions) -> Result<Choice, NetworkError> {
    let device = Arc::new(OnNetwork(device.clone()));
    let (carrier, _) = FabricCarrier::open_for(Some(device), options, 0, 1)?;
    Ok(carrier.choice().clone())
}
