//! Properties of the processor besides its [level](super::level): those that measurably matter, on the processors that
//! were measured.

use std::sync::OnceLock;

/// The properties of a processor that decisions depend on, as plain data: ranks on other machines may have other ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Processor {
    /// True if it is made by Intel.
    pub intel: bool,
    /// Bytes of a core's second-level cache.
    pub second_level: usize,
}

impl Processor {
    /// This machine's processor.
    pub(crate) fn here() -> Processor {
        Processor { intel: is_intel(), second_level: second_level() }
    }
}

/// True if it is made by Intel.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_intel() -> bool {
    static VALUE: OnceLock<bool> = OnceLock::new();
    *VALUE.get_or_init(|| {
        let vendor = std::arch::x86_64::__cpuid(0);
        [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == *b"GenuineIntel"
    })
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn is_intel() -> bool {
    false
}

/// The time by the processor's own clock, in ticks of unknown length, for comparing times. Instructions may be
/// reordered across it in both directions.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    // SAFETY: it reads a counter that every x86-64 processor has, and nothing else.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Does `work` and returns how many [ticks] it took. Fences keep earlier and later instructions out.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[cfg_attr(test, allow(dead_code))] // tests set how long a look takes
pub(crate) fn timed<R>(work: impl FnOnce() -> R) -> (R, u64) {
    // SAFETY: load fences, which every x86-64 processor has.
    let fence = || unsafe { std::arch::x86_64::_mm_lfence() };
    fence();
    let start = ticks();
    fence();
    let done = work();
    fence();
    // If the clock is set back, this wraps to a very long time.
    (done, ticks().wrapping_sub(start))
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
    use std::arch::x86_64::__cpuid;
    const CACHES: u32 = 0x8000_0006;
    // Both makers report it there, in KiB. A processor without this page reports nothing: 0.
    if __cpuid(0x8000_0000).eax < CACHES { 0 } else { (__cpuid(CACHES).ecx >> 16) as usize * 1024 }
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
