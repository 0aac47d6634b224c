//! Transposition by whole lines, with the 512-bit vectors of AVX-512.
//!
//! [Tiles](super) take 16 bytes of a source row at a time and return to its line for the rest. This module loads each
//! line once. A **square** is one line on a side and is processed in parts. Each part takes 16 vectors of 16 words. A
//! word holds one f32 element, or two bf16 elements of the same column in two source rows, made by unpacking the lines
//! of those rows. Four rounds transpose the 16 × 16 words: two within the 16-byte lanes of the vectors, two of whole
//! lanes. Every vector is then a whole line of the result.
//!
//! ```text
//!   bf16, part 0: lines of 32 source rows        16 vectors                            16 lines of the result
//!   c+0:  r0 r1 r2 r3 | r4 .. r7 | r8 ..         (c+0,c+1).r0 .r1 .r2 .r3 | .r8 ..     r0: c+0 c+1 c+2 .. c+31
//!   c+1:  r0 r1 r2 r3 | r4 .. r7 | r8 ..         (c+2,c+3).r0 .r1 .r2 .r3 | .r8 ..     r1: c+0 c+1 c+2 .. c+31
//!    ..                                           ..                                    ..
//! ```
//!
//! Lines gain most for large matrices. Bytes gain nothing, so they go by tiles (docs/decisions/0006).

use super::{LINE, Matrix};
use crate::vm::copy::fence;
use std::arch::x86_64::*;

/// Columns of the result written at a time, a multiple of every square's side. The order is always down. Along result
/// rows, the 16 stores of a part go to rows at a constant distance. The processor then appears to prefetch along that
/// stride, and takes lines away from the rank that writes the next chunk. Prefetching source rows beyond the end has
/// the same effect (docs/decisions/0006).
const BAND: usize = 256;

/// Transposes the whole squares of a matrix with elements of 2, 4 or 8 bytes. Returns how many rows and columns they
/// cover.
///
/// # Safety
/// The promises of [`super::transpose`] hold for `m` with elements of `SIZE` bytes; the processor has the features.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn squares<const SIZE: usize>(m: Matrix) -> (usize, usize) {
    let side = LINE / SIZE;
    let (rows, cols) = (m.rows / side * side, m.cols / side * side);
    // SAFETY: the caller's promises; these are whole squares of the matrix; `streams` has checked the alignment.
    unsafe {
        if m.streams() {
            down::<SIZE, true>(m, rows, cols);
            fence();
        } else {
            down::<SIZE, false>(m, rows, cols);
        }
    }
    (rows, cols)
}

/// Goes down the result, [`BAND`] columns at a time.
///
/// # Safety
/// As for [`squares`]; rows and cols cover whole squares of the matrix; if STREAMED, rows of the result start at a
/// multiple of a line.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn down<const SIZE: usize, const STREAMED: bool>(m: Matrix, rows: usize, cols: usize) {
    let side = const { LINE / SIZE };
    for band in (0..cols).step_by(BAND) {
        for r in (0..rows).step_by(side) {
            for c in (band..(band + BAND).min(cols)).step_by(side) {
                // SAFETY: the square at (r, c) lies in the matrix.
                unsafe {
                    let (to, from) = (m.dst.add(r * m.dst_stride + c * SIZE), m.src.add(c * m.src_stride + r * SIZE));
                    // Prefetch the next lines of these rows, if there are any: memory beyond the end may belong to
                    // another rank.
                    if r + side < rows {
                        for k in 0..side {
                            _mm_prefetch::<_MM_HINT_T0>(from.add(k * m.src_stride + LINE).cast());
                        }
                    }
                    if SIZE == 8 {
                        doubles::<STREAMED>((to, m.dst_stride), (from, m.src_stride));
                    } else {
                        for part in 0..4 / SIZE {
                            words::<SIZE, STREAMED>((to, m.dst_stride), (from, m.src_stride), part);
                        }
                    }
                }
            }
        }
    }
}

/// Transposes one part of a square of elements of 2 or 4 bytes.
///
/// # Safety
/// A line can be read at each of `LINE / SIZE` rows of the source, and written at as many rows of the result, aligned
/// if STREAMED. The part is less than `4 / SIZE`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn words<const SIZE: usize, const STREAMED: bool>(
    (to, to_stride): (*mut u8, usize),
    (from, from_stride): (*const u8, usize),
    part: usize,
) {
    // SAFETY: the caller's promise.
    let line = |row: usize| unsafe { _mm512_loadu_si512(from.add(row * from_stride).cast()) };
    let mut v = [_mm512_setzero_si512(); 16];
    for (k, v) in v.iter_mut().enumerate() {
        *v = match (SIZE, part) {
            (4, _) => line(k),
            (_, 0) => _mm512_unpacklo_epi16(line(2 * k), line(2 * k + 1)),
            _ => _mm512_unpackhi_epi16(line(2 * k), line(2 * k + 1)),
        };
    }
    // Squares of 4 words in each lane: vectors k .. k + 4 then hold word 0, 1, 2, 3 of the lanes of four rows.
    for k in (0..16).step_by(4) {
        let (a, b) = (_mm512_unpacklo_epi32(v[k], v[k + 1]), _mm512_unpackhi_epi32(v[k], v[k + 1]));
        let (c, d) = (_mm512_unpacklo_epi32(v[k + 2], v[k + 3]), _mm512_unpackhi_epi32(v[k + 2], v[k + 3]));
        (v[k], v[k + 1]) = (_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c));
        (v[k + 2], v[k + 3]) = (_mm512_unpacklo_epi64(b, d), _mm512_unpackhi_epi64(b, d));
    }
    // Squares of 4 lanes, of vectors k, k + 4, k + 8, k + 12, which then hold lanes 0, 1, 2, 3 of the four.
    for k in 0..4 {
        let (a, b) = (lanes::<0x88>(v[k], v[k + 4]), lanes::<0xdd>(v[k], v[k + 4]));
        let (c, d) = (lanes::<0x88>(v[k + 8], v[k + 12]), lanes::<0xdd>(v[k + 8], v[k + 12]));
        (v[k], v[k + 4]) = (lanes::<0x88>(a, c), lanes::<0x88>(b, d));
        (v[k + 8], v[k + 12]) = (lanes::<0xdd>(a, c), lanes::<0xdd>(b, d));
    }
    for (k, &line) in v.iter().enumerate() {
        let row = k / 4 * (16 / SIZE) + part * 4 + k % 4;
        // SAFETY: the caller's promise.
        unsafe { put::<STREAMED>(to.add(row * to_stride), line) };
    }
}

/// Transposes a square of elements of 8 bytes.
///
/// # Safety
/// As for [`words`], of 8 rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn doubles<const STREAMED: bool>((to, to_stride): (*mut u8, usize), (from, from_stride): (*const u8, usize)) {
    let mut v = [_mm512_setzero_si512(); 8];
    for k in (0..8).step_by(2) {
        // SAFETY: the caller's promise.
        let [a, b] = [k, k + 1].map(|row| unsafe { _mm512_loadu_si512(from.add(row * from_stride).cast()) });
        (v[k], v[k + 1]) = (_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    }
    for k in 0..2 {
        let (a, b) = (lanes::<0x88>(v[k], v[k + 2]), lanes::<0xdd>(v[k], v[k + 2]));
        let (c, d) = (lanes::<0x88>(v[k + 4], v[k + 6]), lanes::<0xdd>(v[k + 4], v[k + 6]));
        (v[k], v[k + 2]) = (lanes::<0x88>(a, c), lanes::<0x88>(b, d));
        (v[k + 4], v[k + 6]) = (lanes::<0xdd>(a, c), lanes::<0xdd>(b, d));
    }
    for (row, &line) in v.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { put::<STREAMED>(to.add(row * to_stride), line) };
    }
}

/// Two lanes of the first vector, then two of the second: the even ones (0x88) or the odd ones (0xdd).
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes<const WHICH: i32>(a: __m512i, b: __m512i) -> __m512i {
    _mm512_shuffle_i32x4::<WHICH>(a, b)
}

/// # Safety
/// A line can be written at `to`, which is aligned if STREAMED.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn put<const STREAMED: bool>(to: *mut u8, line: __m512i) {
    // SAFETY: the caller's promise.
    unsafe { if STREAMED { _mm512_stream_si512(to.cast(), line) } else { _mm512_storeu_si512(to.cast(), line) } }
}
