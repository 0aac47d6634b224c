//! Moves bytes: the engine's own copy loop.
//!
//! libc's `memcpy` is not used above 32 bytes: glibc 2.36 may choose `rep movsb`, which collapses to a tenth of the
//! speed at some relative alignments of source and destination.
//!
//! ```text
//! bytes   0..=32          two overlapping integers: head and tail, no loop, no dispatch
//!         ..=8 vectors    1, 2 or 4 vectors from each end, overlapping in the middle
//!         more            head | lines aligned in dst, 8 vectors in flight | vectors | tail
//! ```
//!
//! If the caller asks for it, the aligned lines are written with non-temporal stores. A release store does not order
//! those, so every entry says whether it streamed and the caller executes [`fence`] before it signals.

use super::level::Level;
use crate::processor::{is_intel, second_level};

mod two;

pub(crate) use two::copy_two;

/// The bytes of a cache line. Non-temporal stores must fill whole lines, or each costs a read of the rest.
pub(crate) const LINE: usize = 64;

/// The size in bytes from which writing around the cache pays, for writing alone (docs/decisions/0007 has the figures).
/// If another core is known to read the bytes immediately, they should stay in the cache longer (`StorePolicy::from`).
pub(crate) fn stream_from() -> usize {
    static VALUE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *VALUE.get_or_init(|| if is_intel() { 1 << 20 } else { 12 * second_level() })
}

/// How the bulk of a copy is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stores {
    /// Through the cache: right if a core of this machine reads the bytes soon.
    Cached,
    /// Around the cache, saving the read of the line that is about to be overwritten.
    Streamed,
}

/// Copies `bytes` bytes and returns true if non-temporal stores were used: if so, [`fence`] before a signal. The caller
/// knows the size of the whole transfer and chooses the stores; see [`stream_from`].
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `bytes` bytes, the two ranges do not overlap, and `level` is one of
/// [`Level::available`].
#[inline]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize, stores: Stores, level: Level) -> bool {
    // SAFETY: the caller's promises.
    unsafe { copy_in(dst, src, bytes, (stores, stores == Stores::Streamed && is_intel()), level) }
}

/// As [`copy`]; the second part of `how` is true if streaming interleaves several pages.
///
/// # Safety
/// As for [`copy`].
#[inline]
unsafe fn copy_in(dst: *mut u8, src: *const u8, bytes: usize, how: (Stores, bool), level: Level) -> bool {
    let stores = how.0;
    if bytes <= 32 {
        // SAFETY: the caller's ranges, and `bytes` is at most 32.
        unsafe { copy_small(dst, src, bytes) };
        return false;
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's ranges. Each kernel needs more bytes than its vector has: 32 < bytes holds here and 64 <
    // bytes is tested. The caller promises that the processor has `level`, and Avx512 includes AVX2.
    unsafe {
        match level {
            // In the cache, 64-byte vectors gain little at some sizes and lose at others: unaligned ones split lines
            // (docs/decisions/0007).
            Level::Avx512 if stores == Stores::Streamed && bytes > 64 => x86::copy_avx512(dst, src, bytes, how),
            Level::Avx512 | Level::Avx2 => x86::copy_avx2(dst, src, bytes, how),
            Level::Baseline => x86::copy_sse2(dst, src, bytes, how),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (stores, how, level);
        // SAFETY: the caller's ranges, which do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, bytes) };
        false
    }
}

/// Orders earlier non-temporal stores of this thread before its later stores.
#[inline]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `sfence` touches no memory and is part of SSE, which x86-64 always has.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

/// Fetches the line of an address, which need not be valid.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint: it reads nothing into the program and faults at no address. SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Fetches the lines of `bytes` bytes for writing.
#[inline(always)]
pub(crate) fn prefetch_all_for_write(start: *const u8, bytes: usize) {
    (0..bytes).step_by(LINE).for_each(|at| prefetch_for_write(start.wrapping_add(at)));
}

/// As [`prefetch`], but takes the line from other caches because it is about to be written.
#[inline(always)]
pub(crate) fn prefetch_for_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as for `prefetch`; 64-bit processors without the instruction treat it as a no-op.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly))
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Copies at most 32 bytes: the first and the last power of two of bytes, overlapping in the middle.
///
/// # Safety
/// As for [`copy`], with `bytes` at most 32.
#[inline]
unsafe fn copy_small(dst: *mut u8, src: *const u8, bytes: usize) {
    /// Both ends of a range that holds at least one `T` and at most two.
    #[inline(always)]
    unsafe fn ends<T: Copy>(dst: *mut u8, src: *const u8, bytes: usize) {
        let last = bytes - size_of::<T>();
        // SAFETY: 0 and `last` both leave room for a whole `T` inside the caller's ranges; accesses are unaligned ones.
        unsafe {
            let head = src.cast::<T>().read_unaligned();
            let tail = src.add(last).cast::<T>().read_unaligned();
            dst.cast::<T>().write_unaligned(head);
            dst.add(last).cast::<T>().write_unaligned(tail);
        }
    }
    // SAFETY: every arm's lower bound is the size of its integer, its upper bound at most twice that.
    unsafe {
        match bytes {
            16.. => ends::<u128>(dst, src, bytes),
            8.. => ends::<u64>(dst, src, bytes),
            4.. => ends::<u32>(dst, src, bytes),
            2.. => ends::<u16>(dst, src, bytes),
            1 => *dst = *src,
            0 => {}
        }
    }
}

/// Copies at most 63 bytes: the ends of a streamed copy.
///
/// # Safety
/// As for [`copy`], with `bytes` at most 63.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_less_than_a_line(dst: *mut u8, src: *const u8, bytes: usize) {
    let first = bytes.min(32);
    // SAFETY: two pieces of at most 32 bytes that make up the caller's range.
    unsafe {
        copy_small(dst, src, first);
        copy_small(dst.add(first), src.add(first), bytes - first);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LINE, Stores};
    use std::arch::x86_64::*;

    /// The distance between interleaved streams: the hardware prefetchers follow each within its page.
    const PAGE: usize = 4096;
    /// How many pages are streamed alternately, chosen among 2, 4 and 8.
    const PAGES: usize = 4;
    /// How far ahead a straight stream prefetches.
    const AHEAD: usize = 2048;

    /// Copies `$count` vectors from each end, overlapping in the middle. The range holds at most twice as many.
    macro_rules! both_ends {
        ($dst:ident, $src:ident, $bytes:ident, $count:literal, $load:ident, $store:ident, $vector:ty) => {{
            const W: usize = size_of::<$vector>();
            let last = $bytes - $count * W;
            let head: [$vector; $count] = std::array::from_fn(|k| $load($src.add(k * W).cast()));
            let tail: [$vector; $count] = std::array::from_fn(|k| $load($src.add(last + k * W).cast()));
            for k in 0..$count {
                $store($dst.add(k * W).cast(), head[k]);
                $store($dst.add(last + k * W).cast(), tail[k]);
            }
        }};
    }

    /// Copies from `$at` on, first eight vectors and then one at a time, while whole ones fit. `$dst.add($at)` is
    /// aligned.
    macro_rules! aligned_run {
        ($dst:ident, $src:ident, $bytes:ident, $at:ident, $load:ident, $store:ident, $vector:ty) => {{
            const W: usize = size_of::<$vector>();
            while $at + 8 * W <= $bytes {
                let run: [$vector; 8] = std::array::from_fn(|k| $load($src.add($at + k * W).cast()));
                for k in 0..8 {
                    $store($dst.add($at + k * W).cast(), run[k]);
                }
                $at += 8 * W;
            }
            while $at + W <= $bytes {
                $store($dst.add($at).cast(), $load($src.add($at).cast()));
                $at += W;
            }
        }};
    }

    /// Streams `PAGES` pages at a time, two lines of each alternately. The reads then use several memory banks and
    /// several prefetch streams simultaneously. That is faster on Intel's processors, and slower on AMD's
    /// (docs/decisions/0007).
    macro_rules! interleaved_pages {
        ($dst:ident, $src:ident, $bytes:ident, $at:ident, $load:ident, $stream:ident, $vector:ty) => {{
            const W: usize = size_of::<$vector>();
            while $at + PAGES * PAGE <= $bytes {
                for pair in (0..PAGE).step_by(2 * LINE) {
                    for page in 0..PAGES {
                        // Fetches the next pair. Past the end the fetch is merely useless, so the address is computed
                        // with wrapping.
                        let next = $src.wrapping_add($at + page * PAGE + pair + 2 * LINE);
                        _mm_prefetch::<_MM_HINT_T0>(next.cast());
                        _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(LINE).cast());
                    }
                    for page in 0..PAGES {
                        let from = $at + page * PAGE + pair;
                        for k in 0..2 * LINE / W {
                            $stream($dst.add(from + k * W).cast(), $load($src.add(from + k * W).cast()));
                        }
                    }
                }
                $at += PAGES * PAGE;
            }
        }};
    }

    /// Streams line after line and prefetches `AHEAD`: for processors with few write-combining buffers.
    macro_rules! straight_lines {
        ($dst:ident, $src:ident, $bytes:ident, $at:ident, $load:ident, $stream:ident, $vector:ty) => {{
            const W: usize = size_of::<$vector>();
            while $at + 4 * LINE <= $bytes {
                for line in 0..4 {
                    // Past the end the fetch is merely useless, so the address is computed with wrapping.
                    _mm_prefetch::<_MM_HINT_T0>($src.wrapping_add($at + AHEAD + line * LINE).cast());
                }
                let run: [$vector; 4 * LINE / W] = std::array::from_fn(|k| $load($src.add($at + k * W).cast()));
                for k in 0..4 * LINE / W {
                    $stream($dst.add($at + k * W).cast(), run[k]);
                }
                $at += 4 * LINE;
            }
        }};
    }

    macro_rules! copy_kernel {
        ($name:ident, $features:literal, $vector:ty, $load:ident, $unaligned:ident, $aligned:ident, $stream:ident) => {
            /// Copies and returns true if it streamed.
            ///
            /// # Safety
            /// As for [`super::copy`]; `bytes` exceeds one vector, and the processor has the features of this function.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name(dst: *mut u8, src: *const u8, bytes: usize, how: (Stores, bool)) -> bool {
                let (stores, interleaved) = how;
                const W: usize = size_of::<$vector>();
                // SAFETY: every access is at an offset k with k + W <= bytes. Ends: the branch taken has count * W <=
                // bytes. Head: bytes > 8 W >= 128 holds a line. Runs: their loop conditions. Tail: bytes - W, or the
                // rest of the last line. Aligned stores start at `at`, where dst + at is a multiple of a line, and step
                // by vectors.
                unsafe {
                    if bytes <= 2 * W {
                        both_ends!(dst, src, bytes, 1, $load, $unaligned, $vector);
                        return false;
                    }
                    if bytes <= 4 * W {
                        both_ends!(dst, src, bytes, 2, $load, $unaligned, $vector);
                        return false;
                    }
                    if bytes <= 8 * W {
                        both_ends!(dst, src, bytes, 4, $load, $unaligned, $vector);
                        return false;
                    }
                    if stores == Stores::Streamed {
                        // Only whole lines are streamed, and no line is written both ways: a cached store to a line
                        // whose stream is still in the write-combining buffer costs most of a microsecond.
                        let mut at = (LINE - dst as usize % LINE) % LINE;
                        super::copy_less_than_a_line(dst, src, at);
                        let end = at + (bytes - at) / LINE * LINE;
                        if interleaved {
                            interleaved_pages!(dst, src, end, at, $load, $stream, $vector);
                        } else {
                            straight_lines!(dst, src, end, at, $load, $stream, $vector);
                        }
                        aligned_run!(dst, src, end, at, $load, $stream, $vector);
                        super::copy_less_than_a_line(dst.add(end), src.add(end), bytes - end);
                        return true;
                    }
                    let mut at = LINE - dst as usize % LINE;
                    for k in 0..LINE / W {
                        $unaligned(dst.add(k * W).cast(), $load(src.add(k * W).cast()));
                    }
                    aligned_run!(dst, src, bytes, at, $load, $aligned, $vector);
                    $unaligned(dst.add(bytes - W).cast(), $load(src.add(bytes - W).cast()));
                    false
                }
            }
        };
    }

    copy_kernel!(copy_sse2, "sse2", __m128i, _mm_loadu_si128, _mm_storeu_si128, _mm_store_si128, _mm_stream_si128);
    copy_kernel!(
        copy_avx2,
        "avx2",
        __m256i,
        _mm256_loadu_si256,
        _mm256_storeu_si256,
        _mm256_store_si256,
        _mm256_stream_si256
    );
    copy_kernel!(
        copy_avx512,
        "avx512f",
        __m512i,
        _mm512_loadu_si512,
        _mm512_storeu_si512,
        _mm512_store_si512,
        _mm512_stream_si512
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies between two buffers at the given misalignments and checks every byte of the destination, guards included.
    fn check(bytes: usize, src_at: usize, dst_at: usize, how: (Stores, bool), level: Level) {
        const GUARD: usize = 80;
        let src: Vec<u8> = (0..bytes + src_at).map(|k| (k * 7 + k / 251 + 3) as u8).collect();
        let mut dst = vec![0xA5u8; GUARD + dst_at + bytes + GUARD];
        let start = GUARD + dst_at;
        // SAFETY: both vectors hold `bytes` bytes from the offsets used, and are separate allocations.
        unsafe {
            copy_in(dst.as_mut_ptr().add(start), src.as_ptr().add(src_at), bytes, how, level);
        }
        fence();
        let context = (bytes, src_at, dst_at, how, level);
        assert!(dst[..start].iter().all(|&b| b == 0xA5), "wrote before the range: {context:?}");
        assert!(dst[start + bytes..].iter().all(|&b| b == 0xA5), "wrote after the range: {context:?}");
        assert_eq!(&dst[start..start + bytes], &src[src_at..], "{context:?}");
    }

    #[test]
    fn every_size_and_misalignment_copies_exactly() {
        for level in Level::available() {
            for how in [(Stores::Cached, false), (Stores::Streamed, false), (Stores::Streamed, true)] {
                for bytes in 0..300 {
                    for (src_at, dst_at) in [(0, 0), (1, 0), (0, 1), (3, 5), (31, 17), (16, 63), (64, 32)] {
                        check(bytes, src_at, dst_at, how, level);
                    }
                }
                for bytes in [511, 512, 513, 575, 576, 577, 1023, 1024, 1100, 4096, 4097, 70_001] {
                    for (src_at, dst_at) in [(0, 0), (1, 0), (0, 1), (31, 17), (16, 63), (64, 32)] {
                        check(bytes, src_at, dst_at, how, level);
                    }
                }
            }
        }
    }

    #[test]
    fn only_a_copy_that_streamed_says_so() {
        const LARGE: usize = 1 << 20;
        let src = vec![1u8; LARGE];
        let mut dst = vec![0u8; LARGE];
        // SAFETY: separate vectors of LARGE bytes.
        let mut streamed =
            |bytes, stores| unsafe { copy(dst.as_mut_ptr(), src.as_ptr(), bytes, stores, Level::detect()) };
        assert!(!streamed(0, Stores::Streamed) && !streamed(32, Stores::Streamed) && !streamed(999, Stores::Cached));
        assert_eq!(streamed(LARGE, Stores::Streamed), cfg!(target_arch = "x86_64"));
        fence();
        assert_eq!(src, dst);
    }
}
