//! What this process holds, and what growth is too much.

use std::io;

/// Memory, descriptors and mappings of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of memory that are there, shared ones included.
    pub resident: u64,
    /// Open files and sockets.
    pub descriptors: u64,
    /// Mappings.
    pub mappings: u64,
}

/// A leak of one small tensor per transfer is more than this within seconds; what allocators keep for later is less.
const RESIDENT: u64 = 24 << 20;
/// Heaps of threads come and go in a few mappings.
const MAPPINGS: u64 = 24;

/// The same, for people.
pub const BOUND: &str = "24 MiB, no descriptor, 24 mappings more than when warm";

impl Usage {
    /// What this process holds now.
    pub fn now() -> io::Result<Usage> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        let descriptors = std::fs::read_dir("/proc/self/fd")?.count() as u64;
        let mappings = std::fs::read_to_string("/proc/self/maps")?.lines().count() as u64;
        Ok(Usage { resident: kib.unwrap_or(0) << 10, descriptors, mappings })
    }

    /// What is too much more than `before`.
    pub fn beyond(&self, before: &Usage) -> Vec<String> {
        let more = |now: u64, before: u64| now.saturating_sub(before);
        let resident = more(self.resident, before.resident);
        let descriptors = more(self.descriptors, before.descriptors);
        let mappings = more(self.mappings, before.mappings);
        let mut grown = Vec::new();
        if resident > RESIDENT {
            grown.push(format!("{} MiB more than when warm", resident >> 20));
        }
        if descriptors > 0 {
            grown.push(format!("{descriptors} descriptors more than when warm"));
        }
        if mappings > MAPPINGS {
            grown.push(format!("{mappings} mappings more than when warm"));
        }
        grown
    }
}
