//! Copies between memories that another rank may reach. Not `memcpy`, which collapses on some machines.

use crate::handwritten as hand;
use tilewire::Memory;

/// How a copy stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// 32 bytes at a time.
    Cached,
    /// 32 bytes at a time, around the cache.
    Streamed,
    /// 64 bytes at a time.
    WideCached,
    /// 64 bytes at a time, around the cache.
    WideStreamed,
}

impl Copy {
    /// The ways that this processor supports.
    pub fn available() -> Vec<Copy> {
        let mut copies = vec![Copy::Cached, Copy::Streamed];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            copies.extend([Copy::WideCached, Copy::WideStreamed]);
        }
        copies
    }

    /// True if it writes around the cache.
    pub fn streams(self) -> bool {
        matches!(self, Copy::Streamed | Copy::WideStreamed)
    }

    /// The suffix of a variant's name.
    pub fn suffix(self) -> &'static str {
        match self {
            Copy::Cached => "",
            Copy::Streamed => ", streamed",
            Copy::WideCached => ", wide",
            Copy::WideStreamed => ", wide streamed",
        }
    }

    /// Copies `bytes` bytes from offset `from` of `source` to offset `to` of `target`; a release store publishes them.
    ///
    /// # Panics
    /// If they are not inside.
    ///
    /// # Safety
    /// No rank writes those bytes of `source`, and no other rank touches those of `target`, before this rank's next
    /// signal.
    #[inline]
    pub unsafe fn run(self, target: &Memory, to: usize, source: &Memory, from: usize, bytes: usize) {
        assert!(to + bytes <= target.bytes() && from + bytes <= source.bytes());
        // SAFETY: both ranges are initialised and inside memory that the handles keep alive. The caller guarantees that
        // nothing else writes the one or touches the other, so a shared and an exclusive reference are justified.
        let (target, source) = unsafe {
            (
                std::slice::from_raw_parts_mut(target.start().as_ptr().add(to), bytes),
                std::slice::from_raw_parts(source.start().as_ptr().add(from), bytes),
            )
        };
        match self {
            Copy::Cached => hand::copy_temporal(target, source),
            Copy::Streamed => hand::copy_non_temporal(target, source),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: such a copy comes only from `available`, which found AVX-512; the lengths are equal.
            Copy::WideCached => unsafe { wide::<false>(target, source) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Copy::WideStreamed => unsafe { wide::<true>(target, source) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => target.copy_from_slice(source),
        }
    }

    /// Stores a word repeatedly over `bytes` bytes from offset `to` of `target`, around the cache if the copy does, and
    /// reads nothing; a release store publishes them.
    ///
    /// # Panics
    /// If they are not inside.
    ///
    /// # Safety
    /// No other rank touches those bytes before this rank's next signal.
    pub unsafe fn fill(self, target: &Memory, to: usize, bytes: usize, word: u64) {
        assert!(to + bytes <= target.bytes());
        // SAFETY: as for `run`.
        let target = unsafe { std::slice::from_raw_parts_mut(target.start().as_ptr().add(to), bytes) };
        let rest = match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: AVX2 was detected.
            Copy::Streamed if is_x86_feature_detected!("avx2") => unsafe { fill_256(target, word) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: such a copy comes only from `available`, which found AVX-512.
            Copy::WideStreamed => unsafe { fill_512(target, word) },
            _ => target,
        };
        rest.chunks_mut(8).for_each(|to| to.copy_from_slice(&word.to_ne_bytes()[..to.len()]));
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! fill {
    ($name:ident, $feature:literal, $vector:ty, $set:ident, $store:ident, $stream:ident) => {
        /// Fills whole groups of four vectors, and returns the rest. Off vector borders stores are ordinary.
        ///
        /// # Safety
        /// The processor has the feature.
        #[target_feature(enable = $feature)]
        unsafe fn $name(target: &mut [u8], word: u64) -> &mut [u8] {
            use std::arch::x86_64::*;
            const VECTOR: usize = size_of::<$vector>();
            let streams = (target.as_ptr() as usize).is_multiple_of(VECTOR);
            let (whole, rest) = target.split_at_mut(target.len() / (4 * VECTOR) * (4 * VECTOR));
            let vector = $set(word as i64);
            for group in whole.chunks_exact_mut(4 * VECTOR) {
                for k in 0..4 {
                    // SAFETY: a group has four vectors; a streamed store is aligned.
                    unsafe {
                        let to = group.as_mut_ptr().add(k * VECTOR).cast::<$vector>();
                        if streams { $stream(to, vector) } else { $store(to, vector) }
                    }
                }
            }
            if streams {
                _mm_sfence();
            }
            rest
        }
    };
}
#[cfg(target_arch = "x86_64")]
fill!(fill_256, "avx2", std::arch::x86_64::__m256i, _mm256_set1_epi64x, _mm256_storeu_si256, _mm256_stream_si256);
#[cfg(target_arch = "x86_64")]
fill!(fill_512, "avx512f", std::arch::x86_64::__m512i, _mm512_set1_epi64, _mm512_storeu_si512, _mm512_stream_si512);

/// True if [`in_turns`] is available.
pub fn has_turns() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Two copies, from and to offsets of memories, alternating after four lines, around the cache or through it; a release
/// store publishes them.
///
/// # Panics
/// If they are not inside, or it is not [available](has_turns).
///
/// # Safety
/// As for [`Copy::run`], for both.
pub unsafe fn in_turns(
    targets: [(&Memory, usize); 2],
    sources: [(&Memory, usize); 2],
    bytes: usize,
    streams: [bool; 2],
) {
    assert!(has_turns() && targets.iter().chain(&sources).all(|(memory, at)| at + bytes <= memory.bytes()));
    let [to, other_to] = targets.map(|(memory, at)| memory.start().as_ptr().wrapping_add(at));
    let [from, other] = sources.map(|(memory, at)| memory.start().as_ptr().wrapping_add(at).cast_const());
    #[cfg(target_arch = "x86_64")]
    // SAFETY: all are inside memory that the handles keep alive; the caller guarantees the rest, and there is AVX-512.
    unsafe {
        match streams {
            [false, false] => turns::<false, false>([to, other_to], [from, other], bytes),
            [false, true] => turns::<false, true>([to, other_to], [from, other], bytes),
            [true, false] => turns::<true, false>([to, other_to], [from, other], bytes),
            [true, true] => turns::<true, true>([to, other_to], [from, other], bytes),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (to, other_to, from, other, streams);
}

/// # Safety
/// There is AVX-512; `bytes` bytes can be read and written there, and no other rank touches what is written, or writes
/// what is read.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn turns<const FIRST: bool, const SECOND: bool>(to: [*mut u8; 2], from: [*const u8; 2], bytes: usize) {
    use std::arch::x86_64::*;
    const STEP: usize = 256;
    let whole = bytes / STEP * STEP;
    let streams = [0, 1].map(|k| [FIRST, SECOND][k] && (to[k] as usize).is_multiple_of(64));
    for at in (0..whole).step_by(STEP) {
        // The sent copy first: if both have the same source that is faster.
        for k in [1, 0] {
            // SAFETY: `at` + 256 is at most `bytes`; a streamed store is at a multiple of 64.
            unsafe {
                let lines: [__m512i; 4] = std::array::from_fn(|n| _mm512_loadu_si512(from[k].add(at + n * 64).cast()));
                for (n, &line) in lines.iter().enumerate() {
                    let to = to[k].add(at + n * 64).cast();
                    if streams[k] { _mm512_stream_si512(to, line) } else { _mm512_storeu_si512(to, line) }
                }
            }
        }
    }
    _mm_sfence();
    // SAFETY: the rest of the ranges.
    (0..2).for_each(|k| unsafe { from[k].add(whole).copy_to_nonoverlapping(to[k].add(whole), bytes - whole) });
}

/// Copies 8 lines at a time. `STREAM` is for targets on line borders; others use ordinary stores.
///
/// # Safety
/// There is AVX-512, and the slices have the same length.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn wide<const STREAM: bool>(target: &mut [u8], source: &[u8]) {
    use std::arch::x86_64::*;
    const STEP: usize = 512;
    /// The distance by which the 32-byte loop fetches ahead.
    const AHEAD: usize = 2048;
    let streams = STREAM && (target.as_ptr() as usize).is_multiple_of(64);
    let whole = source.len() / STEP * STEP;
    let (to, from) = (target.as_mut_ptr(), source.as_ptr());
    for at in (0..whole).step_by(STEP) {
        // SAFETY: `at` + 512 is at most the common length; a streamed store is at a multiple of 64; a prefetch of an
        // invalid address does nothing.
        unsafe {
            if streams {
                (0..8).for_each(|k| {
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at + AHEAD + k * 64).cast());
                });
            }
            let lines: [__m512i; 8] = std::array::from_fn(|k| _mm512_loadu_si512(from.add(at + k * 64).cast()));
            for (k, &line) in lines.iter().enumerate() {
                if streams {
                    _mm512_stream_si512(to.add(at + k * 64).cast(), line);
                } else {
                    _mm512_storeu_si512(to.add(at + k * 64).cast(), line);
                }
            }
        }
    }
    if streams {
        _mm_sfence();
    }
    target[whole..].copy_from_slice(&source[whole..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_copies_in_turns_are_exact_at_any_alignment() {
        for streams in [[false, false], [false, true], [true, false], [true, true]].into_iter().filter(|_| has_turns())
        {
            for (bytes, to, from) in [(0, 0, 0), (5, 3, 1), (256, 0, 0), (5000, 64, 0), (5000, 1, 7)] {
                let source = tilewire::Tensor::from_fn(2 * bytes + from, |k| (k * 7 + 1) as u8);
                let [one, two] = [0, 1].map(|_| tilewire::Tensor::<u8>::zeros(to + bytes + 1));
                let sources = [(source.memory(), from), (source.memory(), from + bytes)];
                // SAFETY: all belong to this test alone.
                unsafe { in_turns([(one.memory(), to), (two.memory(), to)], sources, bytes, streams) };
                let sent = source.to_vec();
                for (got, from) in [(one.to_vec(), from), (two.to_vec(), from + bytes)] {
                    assert_eq!(got[to..to + bytes], sent[from..from + bytes], "{streams:?}");
                    assert!(got[..to].iter().chain(&got[to + bytes..]).all(|&byte| byte == 0), "{streams:?}");
                }
            }
        }
    }

    #[test]
    fn a_word_fills_what_it_is_for_at_any_alignment_and_nothing_else() {
        for copy in Copy::available() {
            for (bytes, to) in [(0, 0), (5, 3), (512, 0), (5000, 64), (5000, 1)] {
                let (target, word) = (tilewire::Tensor::<u8>::zeros(to + bytes + 1), 0x0807_0605_0403_0201);
                // SAFETY: it belongs to this test alone.
                unsafe { copy.fill(target.memory(), to, bytes, word) };
                let got = target.to_vec();
                assert!((0..bytes).all(|k| got[to + k] == word.to_ne_bytes()[k % 8]), "{copy:?}");
                assert!(got[..to].iter().chain(&got[to + bytes..]).all(|&byte| byte == 0), "{copy:?}");
            }
        }
    }

    #[test]
    fn every_copy_is_exact_at_any_alignment() {
        for copy in Copy::available() {
            for (bytes, to, from) in [(0, 0, 0), (5, 3, 1), (512, 0, 0), (5000, 64, 0), (5000, 1, 7)] {
                let source = tilewire::Tensor::from_fn(bytes + from, |k| (k * 7 + 1) as u8);
                let target = tilewire::Tensor::<u8>::zeros(to + bytes + 1);
                // SAFETY: both belong to this test alone.
                unsafe { copy.run(target.memory(), to, source.memory(), from, bytes) };
                let (got, sent) = (target.to_vec(), source.to_vec());
                assert_eq!(got[to..to + bytes], sent[from..], "{copy:?}");
                assert!(got[..to].iter().chain(&got[to + bytes..]).all(|&byte| byte == 0), "{copy:?}");
            }
        }
    }
}
