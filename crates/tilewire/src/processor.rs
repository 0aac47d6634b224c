//! What is known of this machine's processor, as plain data.
//!
//! Decisions that all ranks must make alike depend on a [`Processor`] that the ranks have agreed on. What changes only
//! how fast this rank does its part may ask [`is_intel`] and [`second_level`].
#![deny(unsafe_code)]

use std::sync::OnceLock;

/// The properties of a processor that decisions depend on, as plain data: ranks on other machines may have other ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor {
    /// True if it is made by Intel.
    pub intel: bool,
    /// Bytes of a core's second-level cache.
    pub second_level: usize,
}

impl Processor {
    /// This machine's processor.
    pub fn here() -> Processor {
        #[cfg(test)]
        if let Some(claimed) = CLAIMED.get() {
            return claimed;
        }
        Processor { intel: is_intel(), second_level: second_level() }
    }

    /// What two processors have in common: choices that are made for it suit both.
    pub(crate) fn and(self, other: Processor) -> Processor {
        Processor {
            // Larger rings were measured on other makers' processors alone. The smaller ones of Intel's work on all.
            intel: self.intel || other.intel,
            // Slots that fit the smaller cache fit the larger one, too.
            second_level: self.second_level.min(other.second_level),
        }
    }
}

#[cfg(test)]
thread_local! {
    /// The processor that this thread's rank claims to have.
    static CLAIMED: std::cell::Cell<Option<Processor>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
impl Processor {
    /// From here on, this thread's rank says that it runs on this processor.
    pub(crate) fn claim(self) {
        CLAIMED.set(Some(self));
    }
}

/// What the processor says on this page.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, unused_unsafe)] // Older compilers take its call for unsafe, newer ones for safe.
fn cpuid(page: u32) -> std::arch::x86_64::CpuidResult {
    // SAFETY: every processor of this architecture has the instruction.
    unsafe { std::arch::x86_64::__cpuid(page) }
}

/// True if it is made by Intel.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_intel() -> bool {
    static VALUE: OnceLock<bool> = OnceLock::new();
    *VALUE.get_or_init(|| {
        let vendor = cpuid(0);
        [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == *b"GenuineIntel"
    })
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn is_intel() -> bool {
    false
}

/// Bytes of a core's second-level cache, as the processor reports it, clamped to a likely size.
pub(crate) fn second_level() -> usize {
    static VALUE: OnceLock<usize> = OnceLock::new();
    *VALUE.get_or_init(|| likely(said()))
}

/// Clamps to what today's servers have. An unknown size (0) becomes the smallest.
fn likely(bytes: usize) -> usize {
    bytes.clamp(512 << 10, 2 << 20)
}

#[cfg(target_arch = "x86_64")]
fn said() -> usize {
    const CACHES: u32 = 0x8000_0006;
    // Both makers report it there, in KiB. A processor without this page reports nothing: 0.
    if cpuid(0x8000_0000).eax < CACHES { 0 } else { (cpuid(CACHES).ecx >> 16) as usize * 1024 }
}

#[cfg(not(target_arch = "x86_64"))]
fn said() -> usize {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_has_a_likely_size() {
        assert_eq!([0, 256 << 10, 1 << 20, 64 << 20].map(likely), [512 << 10, 512 << 10, 1 << 20, 2 << 20]);
        assert!((512 << 10..=2 << 20).contains(&second_level()), "{}", second_level());
    }
}
