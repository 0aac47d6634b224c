//! Lane allocation: which strip memory each lane value of an `each` lives in, reused as values die.

use super::super::code::LaneInfo;

/// Strips are handed out by element size; a freed one is reused by the next value of its size. Offsets are settled at
/// the end, when the strip's length is known.
#[derive(Default)]
pub(super) struct Lanes {
    /// The number of lanes the role had before this `each`.
    first: u16,
    /// The lanes of this `each`: (element size, whether it has strip memory, how many elements share one value: 1 or
    /// the group size).
    made: Vec<(u8, bool, u32)>,
    free: Vec<u16>,
}

impl Lanes {
    /// Allocation for an `each` of a role that has `first` lanes already.
    pub(super) fn new(first: usize) -> Lanes {
        Lanes { first: first.min(u16::MAX as usize) as u16, made: Vec::new(), free: Vec::new() }
    }

    /// A lane that will point into a tensor.
    pub(super) fn bound(&mut self, size: u8) -> u16 {
        self.make(size, false, 1)
    }

    /// A lane with strip memory; `group` elements share one value.
    pub(super) fn strip(&mut self, size: u8, group: u32) -> u16 {
        let fits = |&lane: &u16| self.made[(lane - self.first) as usize] == (size, true, group);
        match self.free.iter().position(fits) {
            Some(k) => self.free.swap_remove(k),
            None => self.make(size, true, group),
        }
    }

    /// A lane whose strip memory is its own from the first strip to the last. It is filled before the first strip and
    /// read in all of them, so it must not share memory with another value.
    pub(super) fn pinned(&mut self, size: u8) -> u16 {
        self.make(size, true, 1)
    }

    /// Gives a lane back; bound lanes are not reused (they cost nothing).
    pub(super) fn release(&mut self, lane: u16) {
        if self.made[(lane - self.first) as usize].1 {
            debug_assert!(!self.free.contains(&lane));
            self.free.push(lane);
        }
    }

    /// Bytes that one element of a strip touches, strip memory and tensors alike, times 128 so that group lanes can
    /// count fractions.
    pub(super) fn weight(&self) -> u64 {
        self.made.iter().map(|lane| u64::from(lane.0) * 128 / u64::from(lane.2)).sum()
    }

    /// Whether any lane has strip memory.
    pub(super) fn any_strip(&self) -> bool {
        self.made.iter().any(|lane| lane.1)
    }

    /// Lays out the lanes one after the other for strips of `length` elements. Returns the lanes and the bytes needed.
    pub(super) fn settle(&self, length: u64) -> (Vec<LaneInfo>, u64) {
        let mut bytes = 0u64;
        let lanes = self
            .made
            .iter()
            .map(|&(size, strip, group)| {
                let capacity = length.div_ceil(u64::from(group));
                let offset = bytes;
                if strip {
                    bytes += (capacity * u64::from(size)).next_multiple_of(64);
                }
                let strip = strip.then_some((offset as u32, capacity as u32));
                LaneInfo { size, strip }
            })
            .collect();
        (lanes, bytes)
    }

    fn make(&mut self, size: u8, strip: bool, group: u32) -> u16 {
        self.made.push((size, strip, group));
        self.first.saturating_add((self.made.len() - 1).min(u16::MAX as usize) as u16)
    }
}
