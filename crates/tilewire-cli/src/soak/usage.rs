//! The resources of this process, their least when warm and at the end, and the limits of growth.

use std::io;
use std::time::Duration;

/// Memory, descriptors and mappings of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Resident bytes of memory, including shared ones.
    pub resident: u64,
    /// Open files and sockets.
    pub descriptors: u64,
    /// Mappings.
    pub mappings: u64,
}

/// A leak of one small tensor per transfer exceeds this within seconds.
const RESIDENT: u64 = 16 << 20;
/// Heaps of threads come and go in a few mappings.
const MAPPINGS: u64 = 24;

/// The same usage as text.
pub const BOUND: &str = "16 MiB, no descriptor, 24 mappings more than when warm";
/// Growth of memory in less time than this may be an allocator's cache: too few samples.
pub const JUDGED: Duration = Duration::from_secs(30);

impl Usage {
    /// The current resources of this process.
    pub fn now() -> io::Result<Usage> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        let descriptors = std::fs::read_dir("/proc/self/fd")?.count() as u64;
        let mappings = std::fs::read_to_string("/proc/self/maps")?.lines().count() as u64;
        Ok(Usage { resident: kib.unwrap_or(0) << 10, descriptors, mappings })
    }

    /// The growth beyond the limits since `before`; of memory only if `memory`.
    pub fn beyond(&self, before: &Usage, memory: bool) -> Vec<String> {
        let more = |now: u64, before: u64| now.saturating_sub(before);
        let resident = more(self.resident, before.resident);
        let descriptors = more(self.descriptors, before.descriptors);
        let mappings = more(self.mappings, before.mappings);
        let mut grown = Vec::new();
        if memory && resident > RESIDENT {
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

    /// The lesser of both, for each kind.
    fn least(self, other: Usage) -> Usage {
        Usage {
            resident: self.resident.min(other.resident),
            descriptors: self.descriptors.min(other.descriptors),
            mappings: self.mappings.min(other.mappings),
        }
    }
}

/// When a rank counts as warm: everything it keeps permanently is there.
const WARM: Duration = Duration::from_secs(10);

/// The least that a process held when warm and at the end, sampled at times when it uses nothing.
///
/// A single sample is not enough: an allocator keeps freed memory and returns it when it likes, so that resident memory
/// varies by 20 MiB forever. A leak raises the least of many samples too.
pub struct Floors {
    /// End of the first third after [`WARM`].
    early: Duration,
    /// Start of the last third.
    late: Duration,
    warm_at: Duration,
    warm: Option<Usage>,
    end: Option<Usage>,
}

impl Floors {
    /// For a run of this length.
    pub fn new(length: Duration) -> Floors {
        let warm_at = WARM.min(length / 3);
        let third = (length - warm_at) / 3;
        Floors { warm_at, early: warm_at + third, late: length - third, warm: None, end: None }
    }

    /// Records the resources at a time after the beginning.
    pub fn note(&mut self, at: Duration, held: Usage) {
        let least = |floor: Option<Usage>| Some(floor.map_or(held, |floor| floor.least(held)));
        // The first sample after a long batch may come late.
        if at >= self.warm_at && (at < self.early || self.warm.is_none()) {
            self.warm = least(self.warm);
        }
        if at >= self.late {
            self.end = least(self.end);
        }
    }

    /// The least when warm, and at the end; `None` if there was no sample.
    pub fn warm_and_end(&self) -> Option<(Usage, Usage)> {
        Some((self.warm?, self.end?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident(mib: u64) -> Usage {
        Usage { resident: mib << 20, descriptors: 9, mappings: 50 }
    }

    /// The growth of resources over a minute, sampled every second.
    fn growth(held: impl Fn(u64) -> u64) -> Vec<String> {
        let mut floors = Floors::new(Duration::from_secs(60));
        (1..=60).for_each(|second| floors.note(Duration::from_secs(second), resident(held(second))));
        let (warm, end) = floors.warm_and_end().unwrap();
        end.beyond(&warm, true)
    }

    /// The memory kept by an allocator, as observed.
    fn kept(second: u64) -> u64 {
        285 + [0, 3, 20, 11, 23][second as usize % 5]
    }

    #[test]
    fn an_allocator_that_keeps_and_gives_back_does_not_grow() {
        assert_eq!(growth(kept), [""; 0]);
        assert_eq!(growth(|second| if second == 60 { 400 } else { kept(second) }), [""; 0]);
    }

    #[test]
    fn a_leak_below_what_an_allocator_keeps_is_found() {
        // 600 KiB a second: a kilobyte or two for each transfer.
        assert_eq!(growth(|second| kept(second) + second * 600 / 1024), ["21 MiB more than when warm"]);
    }

    #[test]
    fn a_run_of_one_look_compares_it_with_itself() {
        let mut floors = Floors::new(Duration::from_secs(3));
        assert!(floors.warm_and_end().is_none());
        floors.note(Duration::from_secs(5), resident(80));
        assert_eq!(floors.warm_and_end(), Some((resident(80), resident(80))));
    }
}
