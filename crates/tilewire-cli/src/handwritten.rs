//! FROZEN hand-written loops, the limits that `tilewire bench kernels` compares with. Later work does not change them:
//! a baseline that moves measures nothing. A faster one may come beside them, since the limit is the best of all.
//!
//! | function | what it does | how |
//! |---|---|---|
//! | [`copy_memcpy`] | copy | the C library's `memcpy` |
//! | [`copy_temporal`], [`copy_non_temporal`] | copy | 8 vectors in flight |
//! | [`scale_f32`], `_non_temporal` | `dst = src · s` | 8 vectors in flight |
//! | [`accumulate_bf16`] | `dst: f32 += src: bf16` | widen by a shift, 4 vectors in flight |
//! | [`quantise_f8e4m3`], `_non_temporal` | fp8, an f32 scale per 128 | maximum as integers, rounding by one addition |
//! | [`gather_i32`], `_vector` | `dst[k] = src[idx[k]]` | scalar loads; `vpgatherdd` |
//! | [`transpose_f32`], `_non_temporal` | `dst[r][c] = src[c][r]` | 8 × 8 in registers, 64 rows, whole lines |
//! | [`transpose_f32_down`], `_non_temporal` | the same | down bands of 32 columns (streamed: 256) |
//!
//! Every function detects AVX2 (with FMA and F16C) at run time and has a plain loop for other processors, which is also
//! what the tests compare with. A non-temporal variant exists where it wins at some size; the limit is the best of the
//! variants in the same run. Those end with `sfence`.

/// Elements that share a scale in [`quantise_f8e4m3`].
pub const GROUP: usize = 128;

/// Copies with the C library's `memcpy`.
pub fn copy_memcpy(dst: &mut [u8], src: &[u8]) {
    dst.copy_from_slice(src);
}

/// Copies with ordinary stores.
pub fn copy_temporal(dst: &mut [u8], src: &[u8]) {
    assert_eq!(dst.len(), src.len());
    #[cfg(target_arch = "x86_64")]
    if x86::detected() {
        // SAFETY: AVX2 was detected and the lengths are equal.
        return unsafe { x86::copy::<false>(dst, src) };
    }
    dst.copy_from_slice(src);
}

/// Copies with non-temporal stores.
pub fn copy_non_temporal(dst: &mut [u8], src: &[u8]) {
    assert_eq!(dst.len(), src.len());
    #[cfg(target_arch = "x86_64")]
    if x86::detected() {
        // SAFETY: AVX2 was detected and the lengths are equal.
        return unsafe { x86::copy::<true>(dst, src) };
    }
    dst.copy_from_slice(src);
}

/// `dst[k] = src[k] * s`.
pub fn scale_f32(dst: &mut [f32], src: &[f32], s: f32) {
    scale::<false>(dst, src, s);
}

/// [`scale_f32`] with non-temporal stores.
pub fn scale_f32_non_temporal(dst: &mut [f32], src: &[f32], s: f32) {
    scale::<true>(dst, src, s);
}

fn scale<const STREAM: bool>(dst: &mut [f32], src: &[f32], s: f32) {
    assert_eq!(dst.len(), src.len());
    #[cfg(target_arch = "x86_64")]
    if x86::detected() {
        // SAFETY: AVX2 was detected and the lengths are equal.
        return unsafe { x86::scale::<STREAM>(dst, src, s) };
    }
    plain::scale(dst, src, s);
}

/// `dst[k] += src[k]`, where `src` holds the bits of bf16.
pub fn accumulate_bf16(dst: &mut [f32], src: &[u16]) {
    assert_eq!(dst.len(), src.len());
    #[cfg(target_arch = "x86_64")]
    if x86::detected() {
        // SAFETY: AVX2 was detected and the lengths are equal.
        return unsafe { x86::accumulate(dst, src) };
    }
    plain::accumulate(dst, src);
}

/// Per group of 128: m = max |x| (a NaN loses), scale = m / 448 or 1 where m is 0, q = f8e4m3(x · (1 / scale)), rounded
/// to nearest even, saturating, a NaN staying one.
pub fn quantise_f8e4m3(dst: &mut [u8], scales: &mut [f32], src: &[f32]) {
    quantise::<false>(dst, scales, src);
}

/// [`quantise_f8e4m3`] with non-temporal stores of the elements.
pub fn quantise_f8e4m3_non_temporal(dst: &mut [u8], scales: &mut [f32], src: &[f32]) {
    quantise::<true>(dst, scales, src);
}

fn quantise<const STREAM: bool>(dst: &mut [u8], scales: &mut [f32], src: &[f32]) {
    assert!(src.len().is_multiple_of(GROUP) && dst.len() == src.len() && scales.len() == src.len() / GROUP);
    #[cfg(target_arch = "x86_64")]
    if x86::detected() {
        // SAFETY: AVX2 was detected and the lengths are those of whole groups.
        return unsafe { x86::quantise::<STREAM>(dst, scales, src) };
    }
    plain::quantise(dst, scales, src);
}

/// `dst[k] = src[idx[k]]`, element by element. On an Ice Lake Xeon this is the faster one: 9.4 against 3.5 GB/s of
/// `vpgatherdd` at 64 KiB, 3.7 against 3.0 at 1 MiB, the same at 64 MiB.
///
/// # Safety
/// Every index is at least 0 and below `src.len()`; a check would be a cost the hand-written C does not have.
pub unsafe fn gather_i32(dst: &mut [f32], src: &[f32], idx: &[i32]) {
    assert_eq!(dst.len(), idx.len());
    // SAFETY: the caller vouches for the indices.
    unsafe { plain::gather(dst, src, idx) };
}

/// [`gather_i32`] with gather instructions.
///
/// # Safety
/// As for [`gather_i32`].
pub unsafe fn gather_i32_vector(dst: &mut [f32], src: &[f32], idx: &[i32]) {
    assert_eq!(dst.len(), idx.len());
    #[cfg(target_arch = "x86_64")]
    if x86::detected() {
        // SAFETY: AVX2 was detected, the lengths are equal, and the caller vouches for the indices.
        return unsafe { x86::gather(dst, src, idx) };
    }
    // SAFETY: the caller vouches for the indices.
    unsafe { plain::gather(dst, src, idx) };
}

/// `dst[r][c] = src[c][r]`: `dst` has `rows` rows of `cols` elements.
pub fn transpose_f32(dst: &mut [f32], src: &[f32], rows: usize, cols: usize) {
    transpose::<false, false>(dst, src, rows, cols);
}

/// [`transpose_f32`] with non-temporal stores.
pub fn transpose_f32_non_temporal(dst: &mut [f32], src: &[f32], rows: usize, cols: usize) {
    transpose::<true, false>(dst, src, rows, cols);
}

/// [`transpose_f32`] in another order.
pub fn transpose_f32_down(dst: &mut [f32], src: &[f32], rows: usize, cols: usize) {
    transpose::<false, true>(dst, src, rows, cols);
}

/// [`transpose_f32_down`] with non-temporal stores.
pub fn transpose_f32_down_non_temporal(dst: &mut [f32], src: &[f32], rows: usize, cols: usize) {
    transpose::<true, true>(dst, src, rows, cols);
}

fn transpose<const STREAM: bool, const DOWN: bool>(dst: &mut [f32], src: &[f32], rows: usize, cols: usize) {
    assert!(dst.len() == rows * cols && src.len() == rows * cols);
    #[cfg(target_arch = "x86_64")]
    if x86::detected() && rows.is_multiple_of(64) && cols.is_multiple_of(64) {
        // SAFETY: AVX2 was detected, the shapes are whole blocks, and the slices hold rows * cols elements.
        return unsafe {
            match DOWN {
                true => x86::transpose_down::<STREAM>(dst, src, rows, cols),
                false => x86::transpose::<STREAM>(dst, src, rows, cols),
            }
        };
    }
    plain::transpose(dst, src, rows, cols);
}

/// The meaning of each loop, and what runs where there is no AVX2.
mod plain {
    use super::GROUP;

    pub fn scale(dst: &mut [f32], src: &[f32], s: f32) {
        dst.iter_mut().zip(src).for_each(|(d, x)| *d = x * s);
    }

    pub fn accumulate(dst: &mut [f32], src: &[u16]) {
        dst.iter_mut().zip(src).for_each(|(d, &x)| *d += f32::from_bits(u32::from(x) << 16));
    }

    pub fn quantise(dst: &mut [u8], scales: &mut [f32], src: &[f32]) {
        for ((dst, src), scale) in dst.chunks_mut(GROUP).zip(src.chunks(GROUP)).zip(scales) {
            let m = src.iter().fold(0f32, |m, x| m.max(x.abs()));
            *scale = if m == 0.0 { 1.0 } else { m / 448.0 };
            let inv = 1.0 / *scale;
            dst.iter_mut().zip(src).for_each(|(d, x)| *d = f8e4m3(x * inv));
        }
    }

    /// Rounds to nearest even, saturates at 448, and keeps NaN.
    pub fn f8e4m3(x: f32) -> u8 {
        let sign = (x.to_bits() >> 24) as u8 & 0x80;
        if x.is_nan() {
            return sign | 0x7f;
        }
        let x = x.abs().min(448.0);
        // The unit in the last place is 2^-9 below 2^-6 and 2^(e - 3) from there on.
        let exponent = ((x.to_bits() >> 23) as i32 - 127).max(-6);
        let units = (x * 2f32.powi(3 - exponent)).round_ties_even() as i32;
        sign | (units + (exponent + 6) * 8) as u8
    }

    /// # Safety
    /// Every index is an element of `src`.
    pub unsafe fn gather(dst: &mut [f32], src: &[f32], idx: &[i32]) {
        for (d, &k) in dst.iter_mut().zip(idx) {
            // SAFETY: the caller's promise.
            *d = unsafe { *src.get_unchecked(k as usize) };
        }
    }

    pub fn transpose(dst: &mut [f32], src: &[f32], rows: usize, cols: usize) {
        for r in 0..rows {
            for c in 0..cols {
                dst[r * cols + c] = src[c * rows + r];
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 11] = [0, 1, 7, 8, 63, 64, 65, 128, 200, 1000, 4099];

    fn noise(count: usize) -> Vec<f32> {
        let mut state = 0x9E37_79B9u32;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state
        };
        // Magnitudes over many binades, so that results hit denormals and every rounding.
        (0..count).map(|_| (next() as i32 as f32) * 2f32.powi(next() as i32 % 24 - 31)).collect()
    }

    #[test]
    fn copies_are_exact_at_any_alignment() {
        for size in SIZES {
            for at in [0, 1, 33] {
                let src: Vec<u8> = (0..size + at).map(|k| (k * 7 + 1) as u8).collect();
                for copy in [copy_memcpy, copy_temporal, copy_non_temporal] {
                    let mut dst = vec![0xA5; size + at + 1];
                    copy(&mut dst[at..at + size], &src[at..]);
                    assert_eq!(dst[at..at + size], src[at..]);
                    assert_eq!(dst[at + size], 0xA5);
                }
            }
        }
    }

    #[test]
    fn elementwise_loops_equal_the_plain_ones() {
        for size in SIZES {
            let src = noise(size);
            let (mut got, mut want) = (vec![0.0; size], vec![0.0; size]);
            plain::scale(&mut want, &src, 1.7);
            scale_f32(&mut got, &src, 1.7);
            assert_eq!(got, want);
            got.fill(0.0);
            scale_f32_non_temporal(&mut got, &src, 1.7);
            assert_eq!(got, want);
            let narrow: Vec<u16> = src.iter().map(|x| (x.to_bits() >> 16) as u16).collect();
            accumulate_bf16(&mut got, &narrow);
            plain::accumulate(&mut want, &narrow);
            assert_eq!(got, want);
        }
    }

    #[test]
    fn quantising_equals_the_plain_loop_special_values_included() {
        let mut src = noise(64 * GROUP);
        src[5 * GROUP..6 * GROUP].fill(0.0);
        src[6 * GROUP + 3] = f32::NAN;
        src[7 * GROUP + 9] = f32::NEG_INFINITY;
        src[8 * GROUP..9 * GROUP].iter_mut().for_each(|x| *x *= 1e-38);
        src[9 * GROUP..10 * GROUP].fill(f32::MAX);
        src[10 * GROUP..11 * GROUP]
            .iter_mut()
            .enumerate()
            .for_each(|(k, x)| *x = if k == 0 { 448.0 } else { k as f32 / 512.0 });
        let (mut want, mut want_scales) = (vec![0; src.len()], vec![0.0; 64]);
        plain::quantise(&mut want, &mut want_scales, &src);
        for quantise in [quantise_f8e4m3, quantise_f8e4m3_non_temporal] {
            let (mut got, mut scales) = (vec![0; src.len()], vec![0.0; 64]);
            quantise(&mut got, &mut scales, &src);
            assert_eq!(scales, want_scales);
            assert_eq!(got, want);
        }
    }

    #[test]
    fn f8e4m3_rounds_to_the_nearest_of_all_its_values() {
        // Decode every finite code: halfway points go to the even code, everything else to the nearer.
        let value = |code: u8| {
            let (e, m) = (i32::from(code >> 3), f32::from(code & 7));
            if e == 0 { m * 2f32.powi(-9) } else { (8.0 + m) * 2f32.powi(e - 10) }
        };
        for code in 0..0x7e_u8 {
            let (low, high) = (value(code), value(code + 1));
            let half = (low + high) / 2.0;
            assert_eq!(plain::f8e4m3(low), code);
            assert_eq!(plain::f8e4m3(half), if code % 2 == 0 { code } else { code + 1 });
            assert_eq!(plain::f8e4m3(half.next_down()), code);
            assert_eq!(plain::f8e4m3(half.next_up()), code + 1);
        }
        assert_eq!(plain::f8e4m3(1e9), 0x7e);
        assert_eq!(plain::f8e4m3(f32::NEG_INFINITY), 0xfe);
    }

    #[test]
    fn gathers_and_transposes_equal_the_plain_loops() {
        for size in SIZES {
            let src = noise(size);
            let idx: Vec<i32> = (0..size).map(|k| ((k * 7919 + 13) % size.max(1)) as i32).collect();
            for gather in [gather_i32, gather_i32_vector] {
                let mut dst = vec![0.0; size];
                // SAFETY: the indices are remainders by the size.
                unsafe { gather(&mut dst, &src, &idx) };
                assert!(dst.iter().zip(&idx).all(|(d, &k)| d.to_bits() == src[k as usize].to_bits()));
            }
        }
        for (rows, cols) in [(64, 64), (128, 192), (3, 5), (64, 65)] {
            let src = noise(rows * cols);
            let mut want = vec![0.0; rows * cols];
            plain::transpose(&mut want, &src, rows, cols);
            for transpose in
                [transpose_f32, transpose_f32_non_temporal, transpose_f32_down, transpose_f32_down_non_temporal]
            {
                let mut got = vec![0.0; rows * cols];
                transpose(&mut got, &src, rows, cols);
                assert_eq!(got, want);
            }
        }
    }
}
