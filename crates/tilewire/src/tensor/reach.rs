//! Where memory can be reached from.
#![forbid(unsafe_code)]

use std::fmt;

/// Where loads and stores can reach a memory from: the host's processors, kernels of devices, or both.
///
/// ```
/// use tilewire::tensor::ReachableFrom;
/// let pinned = ReachableFrom { host: true, devices: vec![0, 2] };
/// assert!(pinned.host && pinned.is_device(2) && !pinned.is_device(1));
/// assert_eq!(pinned.to_string(), "the host, GPU 0 and GPU 2");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReachableFrom {
    /// True if host code and kernels of the CPU engine reach it.
    pub host: bool,
    /// The devices whose kernels reach it.
    pub devices: Vec<u32>,
}

impl ReachableFrom {
    /// From the host alone.
    pub const HOST: ReachableFrom = ReachableFrom { host: true, devices: Vec::new() };

    /// The device that kernels using it must run on: the first of its devices, if the host does not reach it.
    pub fn device_only(&self) -> Option<u32> {
        self.devices.first().copied().filter(|_| !self.host)
    }

    /// True if kernels of a device reach it.
    pub fn is_device(&self, device: u32) -> bool {
        self.devices.contains(&device)
    }
}

impl fmt::Display for ReachableFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.devices.iter().map(|device| format!("GPU {device}"));
        let places: Vec<String> = self.host.then(|| "the host".to_string()).into_iter().chain(devices).collect();
        match &places[..] {
            [] => f.write_str("nowhere"),
            [one] => f.write_str(one),
            [first @ .., last] => write!(f, "{} and {last}", first.join(", ")),
        }
    }
}
