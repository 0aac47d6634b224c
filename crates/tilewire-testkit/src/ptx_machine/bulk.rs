//! Asynchronous copies, done as late as possible, when a thread waits for them. So a signal, write or read that comes
//! too early has a visible effect.

use super::Memory;
use std::collections::HashMap;

/// Shared memory of a block, and the mbarriers in it.
pub struct Shared {
    pub bytes: Vec<u8>,
    mbarriers: HashMap<u64, Mbarrier>,
}

/// A copy of a number of bytes between shared memory and memory.
#[derive(Clone, Copy)]
pub struct Copy {
    pub global: u64,
    pub shared: u64,
    pub bytes: u64,
}

#[derive(Default)]
struct Mbarrier {
    /// Phases that are complete.
    phase: u64,
    arrived: bool,
    /// The number of expected bytes that have not arrived.
    expected: u64,
    copies: Vec<Copy>,
}

impl Copy {
    pub fn checked(self) -> Result<Copy, String> {
        let Copy { global, shared, bytes } = self;
        let aligned = [global, shared, bytes].iter().all(|x| x.is_multiple_of(16)) && bytes > 0;
        if aligned { Ok(self) } else { Err(format!("a bulk copy of {bytes} bytes, {global:#x} and {shared:#x}")) }
    }

    /// From shared memory to memory.
    pub fn put(self, memory: &mut Memory, shared: &Shared) -> Result<(), String> {
        let from = shared.bytes.get(self.range()).ok_or("a bulk copy outside of shared memory")?;
        memory.at(self.global, self.bytes)?.copy_from_slice(from);
        Ok(())
    }

    /// From memory to shared memory.
    pub fn land(self, memory: &mut Memory, shared: &mut Shared) -> Result<(), String> {
        let to = shared.bytes.get_mut(self.range()).ok_or("a copy outside of shared memory")?;
        to.copy_from_slice(memory.at(self.global, self.bytes)?);
        Ok(())
    }

    fn range(self) -> std::ops::Range<usize> {
        self.shared as usize..(self.shared + self.bytes) as usize
    }
}

impl Shared {
    pub fn new(bytes: usize) -> Shared {
        // The value is undefined at launch, so it is neither zero nor small.
        Shared { bytes: vec![0xa5; bytes], mbarriers: HashMap::new() }
    }

    pub fn init(&mut self, at: u64, count: u64) -> Result<(), String> {
        if count != 1 || !at.is_multiple_of(8) || self.mbarriers.insert(at, Mbarrier::default()).is_some() {
            return Err(format!("an mbarrier for {count} at {at:#x}, or twice"));
        }
        Ok(())
    }

    /// One thread arrives, and announces the bytes to expect.
    pub fn arrive(&mut self, at: u64, bytes: u64) -> Result<(), String> {
        let mbarrier = self.mbarrier(at)?;
        if std::mem::replace(&mut mbarrier.arrived, true) {
            return Err("an mbarrier for one at which a second arrives".into());
        }
        mbarrier.expected += bytes;
        mbarrier.complete();
        Ok(())
    }

    /// From memory to shared memory, completing bytes of an mbarrier.
    pub fn get(&mut self, at: u64, copy: Copy) -> Result<(), String> {
        self.mbarrier(at)?.copies.push(copy.checked()?);
        Ok(())
    }

    /// True if the phase of this parity is complete.
    pub fn waited(&mut self, at: u64, parity: u64, memory: &mut Memory) -> Result<bool, String> {
        let copies = std::mem::take(&mut self.mbarrier(at)?.copies);
        for copy in copies {
            copy.land(memory, self)?;
            let mbarrier = self.mbarrier(at)?;
            mbarrier.expected = mbarrier.expected.checked_sub(copy.bytes).ok_or("bytes that nobody expects")?;
            mbarrier.complete();
        }
        Ok(self.mbarrier(at)?.phase & 1 != parity)
    }

    /// True if any copies are under way.
    pub fn is_quiet(&self) -> bool {
        self.mbarriers.values().all(|mbarrier| mbarrier.copies.is_empty())
    }

    fn mbarrier(&mut self, at: u64) -> Result<&mut Mbarrier, String> {
        self.mbarriers.get_mut(&at).ok_or_else(|| format!("no mbarrier at {at:#x}"))
    }
}

impl Mbarrier {
    fn complete(&mut self) {
        if self.arrived && self.expected == 0 {
            self.arrived = false;
            self.phase += 1;
        }
    }
}
