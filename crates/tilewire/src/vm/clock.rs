//! Time by the processor's own clock.

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
