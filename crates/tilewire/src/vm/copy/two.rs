//! Two interleaved copies: the data a rank sends, and the data it keeps.
//!
//! If both have the same source it is read only once, which pays even in the cache. If one goes around the cache and
//! the other through it, interleaving keeps memory busy with reads (of lines about to be overwritten) and writes all
//! the time. Two sources that both go through the cache are faster one after the other. docs/decisions/0007 has the
//! figures.

#[cfg(any(test, target_arch = "x86_64"))]
use super::LINE;
use super::{Level, Stores, copy};

/// Copies `bytes` bytes to each of two places, from one or two sources. Like [`copy`], returns true if non-temporal
/// stores were used.
///
/// # Safety
/// Both of `from` are valid for reads and both of `to` for writes of `bytes` bytes, neither of `to` overlaps another
/// range, and `level` is one of [`Level::available`].
pub(crate) unsafe fn copy_two(
    to: [*mut u8; 2],
    from: [*const u8; 2],
    bytes: usize,
    stores: [Stores; 2],
    level: Level,
) -> bool {
    // SAFETY: parts of the caller's ranges.
    let both = |at: usize, bytes: usize, stores: [Stores; 2]| unsafe {
        let one = |k: usize| copy(to[k].add(at), from[k].add(at), bytes, stores[k], level);
        one(0) | one(1)
    };
    #[cfg(target_arch = "x86_64")]
    {
        // Up to the first line boundary of the first destination.
        let head = to[0].align_offset(LINE).min(bytes);
        let aligned = (to[1] as usize).wrapping_add(head).is_multiple_of(LINE);
        if level > Level::Baseline && (aligned || stores[1] == Stores::Cached) {
            both(0, head, [Stores::Cached; 2]);
            // SAFETY: the rest of the caller's ranges. Streamed destinations start on a line. The caller vouches for
            // the level, and Avx512 includes AVX2.
            let done = unsafe {
                let (to, from, bytes) = (to.map(|to| to.add(head)), from.map(|from| from.add(head)), bytes - head);
                match level {
                    Level::Avx512 => x86::turns_avx512(to, from, bytes, stores),
                    _ => x86::turns_avx2(to, from, bytes, stores),
                }
            };
            both(head + done, bytes - head - done, [Stores::Cached; 2]);
            return stores.contains(&Stores::Streamed);
        }
    }
    // Small pieces, so that a source is still in the first-level cache when it is read again.
    (0..bytes).step_by(PIECE).fold(false, |streamed, at| streamed | both(at, PIECE.min(bytes - at), stores))
}

const PIECE: usize = 4096;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LINE, Stores};
    use std::arch::x86_64::*;

    /// Bytes to one place before switching to the other. We do not prefetch: the processor does, and prefetch
    /// instructions gain nothing (docs/decisions/0007).
    const TURN: usize = 4 * LINE;

    macro_rules! turns {
        ($name:ident, $features:literal, $vector:ty, $load:ident, $store:ident, $stream:ident) => {
            /// Copies whole turns. Returns how many bytes of each copy are done.
            ///
            /// # Safety
            /// As for [`super::copy_two`]; the processor has the features; streamed destinations start on a line.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name(
                to: [*mut u8; 2],
                from: [*const u8; 2],
                bytes: usize,
                stores: [Stores; 2],
            ) -> usize {
                const W: usize = size_of::<$vector>();
                type Turn = [$vector; TURN / W];

                /// # Safety
                /// A turn can be read from `from`.
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn load(from: *const u8) -> Turn {
                    // SAFETY: the caller's promise.
                    std::array::from_fn(|k| unsafe { $load(from.add(k * W).cast()) })
                }

                /// # Safety
                /// A turn can be written to `to`, which is aligned if STREAMED.
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn store<const STREAMED: bool>(to: *mut u8, turn: Turn) {
                    for k in 0..TURN / W {
                        // SAFETY: the caller's promise.
                        unsafe {
                            let to = to.add(k * W).cast();
                            if STREAMED { $stream(to, turn[k]) } else { $store(to, turn[k]) }
                        }
                    }
                }

                /// # Safety
                /// As for the enclosing function; `bytes` is a multiple of a turn; if SAME, both sources are the same.
                #[target_feature(enable = $features)]
                unsafe fn run<const FIRST: bool, const SECOND: bool, const SAME: bool>(
                    to: [*mut u8; 2],
                    from: [*const u8; 2],
                    bytes: usize,
                ) {
                    for at in (0..bytes).step_by(TURN) {
                        // SAFETY: a turn within the ranges.
                        unsafe {
                            let turn = load(from[0].add(at));
                            store::<FIRST>(to[0].add(at), turn);
                            let turn = if SAME { turn } else { load(from[1].add(at)) };
                            store::<SECOND>(to[1].add(at), turn);
                        }
                    }
                }

                let whole = bytes / TURN * TURN;
                let [first, second] = stores.map(|stores| stores == Stores::Streamed);
                // SAFETY: the caller's promises.
                unsafe {
                    match (first, second, from[0] == from[1]) {
                        (false, false, false) => run::<false, false, false>(to, from, whole),
                        (false, false, true) => run::<false, false, true>(to, from, whole),
                        (false, true, false) => run::<false, true, false>(to, from, whole),
                        (false, true, true) => run::<false, true, true>(to, from, whole),
                        (true, false, false) => run::<true, false, false>(to, from, whole),
                        (true, false, true) => run::<true, false, true>(to, from, whole),
                        (true, true, false) => run::<true, true, false>(to, from, whole),
                        (true, true, true) => run::<true, true, true>(to, from, whole),
                    }
                }
                whole
            }
        };
    }

    turns!(turns_avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256);
    turns!(turns_avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_stream_si512);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_have_the_bytes_at_every_alignment_and_nothing_beside_them_changes() {
        let source: Vec<u8> = (0..30_000).map(|k| (k * 31 + k / 256 * 7 + 1) as u8).collect();
        let sizes = [0, 1, 31, 63, 64, 65, 255, 256, 257, 300, 1000, 4096, 4200, 9999];
        let stores = [Stores::Cached, Stores::Streamed];
        let ways: Vec<_> = stores.iter().flat_map(|&a| stores.map(|b| [a, b])).collect();
        for level in Level::available() {
            for bytes in sizes {
                for (a, b, c) in [(0, 0, 0), (1, 1, 0), (0, 32, 5), (7, 71, 3), (5, 0, 64), (33, 1, 2)] {
                    for (&stores, same) in ways.iter().flat_map(|stores| [(stores, false), (stores, true)]) {
                        let mut to = [vec![0xA5u8; bytes + 300], vec![0x5Au8; bytes + 300]];
                        let starts = [a, b].map(|shift| 64 + shift);
                        let at: [usize; 2] = [0, 1].map(|k| to[k].as_ptr().align_offset(LINE) + starts[k]);
                        let places = [to[0].as_mut_ptr().wrapping_add(at[0]), to[1].as_mut_ptr().wrapping_add(at[1])];
                        let sources = [c, if same { c } else { 12_000 + c }];
                        let from = sources.map(|c| source[c..].as_ptr());
                        // SAFETY: three vectors with room for `bytes` bytes from these offsets on.
                        let streamed = unsafe { copy_two(places, from, bytes, stores, level) };
                        if streamed {
                            super::super::fence();
                        }
                        assert!(!streamed || stores.contains(&Stores::Streamed));
                        for k in 0..2 {
                            let guard = [0xA5, 0x5A][k];
                            let (before, rest) = to[k].split_at(at[k]);
                            let (copied, after) = rest.split_at(bytes);
                            let from = sources[k];
                            let what = (k, bytes, a, b, c, stores, same, level);
                            assert!(copied == &source[from..from + bytes], "{what:?}");
                            assert!(before.iter().chain(after).all(|&byte| byte == guard), "beside it: {what:?}");
                        }
                    }
                }
            }
        }
    }
}
