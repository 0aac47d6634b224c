//! FROZEN with `handwritten.rs`: the AVX2 side of the hand-written loops.
//!
//! Every function asks the same of its caller: AVX2, FMA and F16C are there ([`detected`]), and the slices have the
//! lengths that the safe function of the same name asserts. With `STREAM` the stores are non-temporal, if `dst` is
//! aligned for them; otherwise they are ordinary ones.
#![allow(clippy::missing_safety_doc)] // the paragraph above, for all of them

use super::{GROUP, plain};
use std::arch::x86_64::*;

/// True if this processor runs these loops.
pub fn detected() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

/// How far ahead a streaming loop fetches: the hardware's prefetchers alone gave 10 GB/s at 8 MiB, with this 15.
const AHEAD: usize = 2048;

/// Stores a vector, around the cache if `STREAM`.
///
/// # Safety
/// 32 bytes can be written at `to`, which is a multiple of 32 if `STREAM`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store<const STREAM: bool>(to: *mut u8, v: __m256i) {
    // SAFETY: the caller's promise.
    unsafe {
        if STREAM {
            _mm256_stream_si256(to.cast(), v);
        } else {
            _mm256_storeu_si256(to.cast(), v);
        }
    }
}

/// Fetches the four lines that a streaming loop reads [`AHEAD`] bytes later.
#[inline]
#[target_feature(enable = "avx2")]
#[allow(unused_unsafe)] // a prefetch is a safe intrinsic in newer compilers only
fn fetch_ahead<const STREAM: bool>(from: *const u8) {
    if STREAM {
        for line in 0..4 {
            // SAFETY: a prefetch of an invalid address does nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD + line * 64).cast()) };
        }
    }
}

fn aligned<T>(slice: &[T]) -> bool {
    (slice.as_ptr() as usize).is_multiple_of(32)
}

#[target_feature(enable = "avx2")]
pub unsafe fn copy<const STREAM: bool>(dst: &mut [u8], src: &[u8]) {
    if STREAM && !aligned(dst) {
        // SAFETY: the caller's promise.
        return unsafe { copy::<false>(dst, src) };
    }
    let whole = src.len() / 256 * 256;
    let (to, from) = (dst.as_mut_ptr(), src.as_ptr());
    for at in (0..whole).step_by(256) {
        // SAFETY: `at` + 256 is at most the common length; `to` is aligned if STREAM and `at` is a multiple of 256.
        unsafe {
            fetch_ahead::<STREAM>(from.add(at));
            let v: [__m256i; 8] = std::array::from_fn(|k| _mm256_loadu_si256(from.add(at + k * 32).cast()));
            // The array is passed by reference: moved into an iterator, it went over the stack in one build, at a
            // quarter of the speed.
            for (k, &v) in v.iter().enumerate() {
                store::<STREAM>(to.add(at + k * 32), v);
            }
        }
    }
    if STREAM {
        _mm_sfence();
    }
    dst[whole..].copy_from_slice(&src[whole..]);
}

#[target_feature(enable = "avx2")]
pub unsafe fn scale<const STREAM: bool>(dst: &mut [f32], src: &[f32], s: f32) {
    if STREAM && !aligned(dst) {
        // SAFETY: the caller's promise.
        return unsafe { scale::<false>(dst, src, s) };
    }
    let factor = _mm256_set1_ps(s);
    let whole = src.len() / 64 * 64;
    let (to, from) = (dst.as_mut_ptr(), src.as_ptr());
    for at in (0..whole).step_by(64) {
        // SAFETY: `at` + 64 elements are at most the common length; alignment as in `copy`.
        unsafe {
            fetch_ahead::<STREAM>(from.add(at).cast());
            let v: [__m256; 8] = std::array::from_fn(|k| _mm256_mul_ps(_mm256_loadu_ps(from.add(at + k * 8)), factor));
            for (k, &v) in v.iter().enumerate() {
                store::<STREAM>(to.add(at + k * 8).cast(), _mm256_castps_si256(v));
            }
        }
    }
    if STREAM {
        _mm_sfence();
    }
    plain::scale(&mut dst[whole..], &src[whole..], s);
}

#[target_feature(enable = "avx2")]
pub unsafe fn accumulate(dst: &mut [f32], src: &[u16]) {
    let whole = src.len() / 32 * 32;
    let (to, from) = (dst.as_mut_ptr(), src.as_ptr());
    for at in (0..whole).step_by(32) {
        // SAFETY: `at` + 32 elements are at most the common length.
        unsafe {
            let sums: [__m256; 4] = std::array::from_fn(|k| {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(at + k * 8).cast()));
                let x = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide));
                _mm256_add_ps(_mm256_loadu_ps(to.add(at + k * 8)), x)
            });
            for (k, &sum) in sums.iter().enumerate() {
                _mm256_storeu_ps(to.add(at + k * 8), sum);
            }
        }
    }
    plain::accumulate(&mut dst[whole..], &src[whole..]);
}

/// Four groups at a time (8 were slower beyond L2), first all their scales and then all their codes: the latency of a
/// maximum across a vector and of two divisions would otherwise stand between the two loops of every group.
#[target_feature(enable = "avx2")]
pub unsafe fn quantise<const STREAM: bool>(dst: &mut [u8], scales: &mut [f32], src: &[f32]) {
    if STREAM && !aligned(dst) {
        // SAFETY: the caller's promise.
        return unsafe { quantise::<false>(dst, scales, src) };
    }
    const BATCH: usize = 4;
    let batches = dst.chunks_mut(BATCH * GROUP).zip(src.chunks(BATCH * GROUP)).zip(scales.chunks_mut(BATCH));
    for ((dst, src), scales) in batches {
        let mut most = [0f32; BATCH];
        for (most, group) in most.iter_mut().zip(src.chunks_exact(GROUP)) {
            *most = greatest(group);
        }
        // If the maximum is not finite, or so small that the scale is a denormal and its reciprocal inexact or
        // infinite, the plain loop runs.
        if most.iter().any(|&m| !m.is_finite() || (m != 0.0 && m < 448.0 * f32::MIN_POSITIVE)) {
            plain::quantise(dst, scales, src);
            continue;
        }
        let scale = most.map(|m| if m == 0.0 { 1.0 } else { m / 448.0 });
        let inv = scale.map(|scale| 1.0 / scale);
        scales.copy_from_slice(&scale[..scales.len()]);
        for ((to, from), inv) in dst.chunks_exact_mut(GROUP).zip(src.chunks_exact(GROUP)).zip(inv) {
            let inv = _mm256_set1_ps(inv);
            for k in (0..GROUP).step_by(32) {
                // SAFETY: k + 32 elements are at most a group on both sides; a group is a multiple of 32 bytes in
                // `dst`, so alignment is that of the slice.
                unsafe {
                    let mut q = [_mm256_setzero_si256(); 4];
                    for (j, q) in q.iter_mut().enumerate() {
                        *q = f8e4m3(_mm256_mul_ps(_mm256_loadu_ps(from.as_ptr().add(k + j * 8)), inv));
                    }
                    let low = _mm256_packus_epi32(q[0], q[1]);
                    let high = _mm256_packus_epi32(q[2], q[3]);
                    // Packs work within halves: put the eight four-byte runs back in order.
                    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
                    let codes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
                    store::<STREAM>(to.as_mut_ptr().add(k), codes);
                }
            }
        }
    }
    if STREAM {
        _mm_sfence();
    }
}

/// The greatest magnitude of a group. Magnitudes of floats order like integers, and a NaN or an infinity then is the
/// greatest.
#[inline]
#[target_feature(enable = "avx2")]
fn greatest(group: &[f32]) -> f32 {
    assert_eq!(group.len(), GROUP);
    let mut most = [_mm256_setzero_si256(); 4];
    for k in 0..GROUP / 8 {
        // SAFETY: k * 8 + 8 is at most a group.
        let x = unsafe { _mm256_loadu_si256(group.as_ptr().add(k * 8).cast()) };
        most[k % 4] = _mm256_max_epi32(most[k % 4], _mm256_and_si256(x, _mm256_set1_epi32(0x7fff_ffff)));
    }
    let most = _mm256_max_epi32(_mm256_max_epi32(most[0], most[1]), _mm256_max_epi32(most[2], most[3]));
    let most = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256::<1>(most));
    let most = _mm_max_epi32(most, _mm_shuffle_epi32::<0b01_00_11_10>(most));
    let most = _mm_max_epi32(most, _mm_shuffle_epi32::<0b10_11_00_01>(most));
    f32::from_bits(_mm_cvtsi128_si32(most) as u32)
}

/// The codes of eight values of magnitude at most 448 and a bit. Adding 2^(e + 20), e the exponent and at least -6,
/// leaves the value in units of 2^(e - 3), rounded to nearest even, in the low bits of the sum.
#[inline]
#[target_feature(enable = "avx2")]
fn f8e4m3(x: __m256) -> __m256i {
    let bits = _mm256_castps_si256(x);
    let magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fff_ffff));
    let exponent = _mm256_and_si256(bits, _mm256_set1_epi32(0x7f80_0000));
    let exponent = _mm256_max_epi32(exponent, _mm256_set1_epi32((127 - 6) << 23));
    let unit = _mm256_add_epi32(exponent, _mm256_set1_epi32(20 << 23));
    let sum = _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_castsi256_ps(unit)));
    let units = _mm256_sub_epi32(sum, unit);
    // (e + 6) * 8 from the biased exponent in place.
    let base = _mm256_sub_epi32(_mm256_srli_epi32::<20>(exponent), _mm256_set1_epi32((127 - 6) * 8));
    let sign = _mm256_and_si256(_mm256_srli_epi32::<24>(bits), _mm256_set1_epi32(0x80));
    _mm256_or_si256(_mm256_add_epi32(units, base), sign)
}

/// With `vpgatherdd`. Microcode against data sampling makes it slow on many processors.
#[target_feature(enable = "avx2")]
pub unsafe fn gather(dst: &mut [f32], src: &[f32], idx: &[i32]) {
    let whole = idx.len() / 32 * 32;
    let to = dst.as_mut_ptr();
    for at in (0..whole).step_by(32) {
        // SAFETY: `at` + 32 is at most the common length of `dst` and `idx`; the indices are elements of `src`.
        unsafe {
            let v: [__m256; 4] = std::array::from_fn(|k| {
                let idx = _mm256_loadu_si256(idx.as_ptr().add(at + k * 8).cast());
                _mm256_i32gather_ps::<4>(src.as_ptr(), idx)
            });
            for (k, &v) in v.iter().enumerate() {
                _mm256_storeu_ps(to.add(at + k * 8), v);
            }
        }
    }
    // SAFETY: the caller's promise about the indices.
    unsafe { plain::gather(&mut dst[whole..], src, &idx[whole..]) };
}

/// Two 8 x 8 squares side by side, so that whole lines of the result are written together: with rows a power of two
/// apart that is twice as fast as square by square (1024 x 1024: 6.1 against 3.0 GB/s).
#[target_feature(enable = "avx2")]
pub unsafe fn transpose<const STREAM: bool>(dst: &mut [f32], src: &[f32], rows: usize, cols: usize) {
    const BLOCK: usize = 64;
    if STREAM && !aligned(dst) {
        // SAFETY: the caller's promise.
        return unsafe { transpose::<false>(dst, src, rows, cols) };
    }
    let (to, from) = (dst.as_mut_ptr(), src.as_ptr());
    // SAFETY: rows and cols are multiples of 64, so every 8 x 8 square named here is inside both matrices; rows of
    // `dst` are whole vectors, so alignment is that of the slice.
    unsafe {
        for block in (0..rows).step_by(BLOCK) {
            for c in (0..cols).step_by(16) {
                for r in (block..block + BLOCK).step_by(8) {
                    if STREAM && r % 16 == 0 {
                        // The next 16 source rows, while these are written.
                        for k in 16..32 {
                            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add((c + k) * rows + r).cast());
                        }
                    }
                    let left = square(from.add(c * rows + r), rows);
                    let right = square(from.add((c + 8) * rows + r), rows);
                    for k in 0..8 {
                        store::<STREAM>(to.add((r + k) * cols + c).cast(), left[k]);
                        store::<STREAM>(to.add((r + k) * cols + c + 8).cast(), right[k]);
                    }
                }
            }
        }
    }
    if STREAM {
        _mm_sfence();
    }
}

/// As [`transpose`], down bands of 32 columns (streamed: 256), which is faster on AMD EPYC.
#[target_feature(enable = "avx2")]
pub unsafe fn transpose_down<const STREAM: bool>(dst: &mut [f32], src: &[f32], rows: usize, cols: usize) {
    if STREAM && !aligned(dst) {
        // SAFETY: the caller's promise.
        return unsafe { transpose_down::<false>(dst, src, rows, cols) };
    }
    let band = if STREAM { 256 } else { 32 };
    let (to, from) = (dst.as_mut_ptr(), src.as_ptr());
    // SAFETY: as for `transpose`.
    unsafe {
        for first in (0..cols).step_by(band) {
            for r in (0..rows).step_by(16) {
                for c in (first..(first + band).min(cols)).step_by(16) {
                    for r in [r, r + 8] {
                        let left = square(from.add(c * rows + r), rows);
                        let right = square(from.add((c + 8) * rows + r), rows);
                        for k in 0..8 {
                            store::<STREAM>(to.add((r + k) * cols + c).cast(), left[k]);
                            store::<STREAM>(to.add((r + k) * cols + c + 8).cast(), right[k]);
                        }
                    }
                }
            }
        }
    }
    if STREAM {
        _mm_sfence();
    }
}

/// Eight rows of eight elements, transposed. Rows k and k + 4 are loaded into the halves of one vector, so that no
/// instruction has to cross halves.
///
/// # Safety
/// Eight elements can be read at `from + k * stride` for k in 0..8.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn square(from: *const f32, stride: usize) -> [__m256i; 8] {
    let halves = |column: usize, row: usize| {
        // SAFETY: column is 0 or 4, row at most 3: inside the eight rows of eight.
        unsafe {
            let low = _mm_loadu_ps(from.add(row * stride + column));
            let high = _mm_loadu_ps(from.add((row + 4) * stride + column));
            _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high)
        }
    };
    let mut out = [_mm256_setzero_si256(); 8];
    for column in [0, 4] {
        let v: [__m256; 4] = std::array::from_fn(|row| halves(column, row));
        let (a, b) = (_mm256_unpacklo_ps(v[0], v[2]), _mm256_unpackhi_ps(v[0], v[2]));
        let (c, d) = (_mm256_unpacklo_ps(v[1], v[3]), _mm256_unpackhi_ps(v[1], v[3]));
        out[column] = _mm256_castps_si256(_mm256_unpacklo_ps(a, c));
        out[column + 1] = _mm256_castps_si256(_mm256_unpackhi_ps(a, c));
        out[column + 2] = _mm256_castps_si256(_mm256_unpacklo_ps(b, d));
        out[column + 3] = _mm256_castps_si256(_mm256_unpackhi_ps(b, d));
    }
    out
}
