//! Sums of inputs, by hand.

/// Elements of a strip: sums of many inputs stay in the first-level cache in between.
pub const STRIP: usize = 2048;

/// `dst[k] = a[k] + b[k]`, with stores around the cache if `streams`.
///
/// # Panics
/// If the lengths differ.
pub fn add(dst: &mut [f32], a: &[f32], b: &[f32], streams: bool) {
    assert!(dst.len() == a.len() && dst.len() == b.len());
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: AVX-512 was detected and the lengths are equal.
        return unsafe { if streams { x86::add_512::<true>(dst, a, b) } else { x86::add_512::<false>(dst, a, b) } };
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was detected and the lengths are equal.
        return unsafe { if streams { x86::add_256::<true>(dst, a, b) } else { x86::add_256::<false>(dst, a, b) } };
    }
    _ = streams;
    dst.iter_mut().zip(a.iter().zip(b)).for_each(|(dst, (a, b))| *dst = a + b);
}

/// `dst[k] += b[k]`.
///
/// # Panics
/// If the lengths differ.
pub fn accumulate(dst: &mut [f32], b: &[f32]) {
    assert_eq!(dst.len(), b.len());
    dst.iter_mut().zip(b).for_each(|(dst, b)| *dst += b);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    macro_rules! add {
        ($name:ident, $feature:literal, $lanes:literal, $load:ident, $add:ident, $store:ident, $stream:ident) => {
            /// # Safety
            /// The processor has the feature, and the lengths are equal.
            #[target_feature(enable = $feature)]
            pub unsafe fn $name<const STREAM: bool>(dst: &mut [f32], a: &[f32], b: &[f32]) {
                const STEP: usize = 4 * $lanes;
                let streams = STREAM && (dst.as_ptr() as usize).is_multiple_of(4 * $lanes);
                let whole = dst.len() / STEP * STEP;
                let (to, a_at, b_at) = (dst.as_mut_ptr(), a.as_ptr(), b.as_ptr());
                for at in (0..whole).step_by(STEP) {
                    for k in (at..at + STEP).step_by($lanes) {
                        // SAFETY: `at` + STEP is at most the common length; a streamed store is aligned.
                        unsafe {
                            let sum = $add($load(a_at.add(k)), $load(b_at.add(k)));
                            if streams { $stream(to.add(k), sum) } else { $store(to.add(k), sum) }
                        }
                    }
                }
                if streams {
                    _mm_sfence();
                }
                for k in whole..dst.len() {
                    dst[k] = a[k] + b[k];
                }
            }
        };
    }
    add!(add_256, "avx2", 8, _mm256_loadu_ps, _mm256_add_ps, _mm256_storeu_ps, _mm256_stream_ps);
    add!(add_512, "avx512f", 16, _mm512_loadu_ps, _mm512_add_ps, _mm512_storeu_ps, _mm512_stream_ps);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_at_any_length_and_alignment() {
        let (a, b): (Vec<f32>, Vec<f32>) = (0..1000).map(|k| (k as f32, 3.0 * k as f32)).unzip();
        for (first, len) in [(0, 0), (0, 5), (0, 64), (1, 333), (3, 997)] {
            for streams in [false, true] {
                let mut dst = vec![-1.0; len];
                add(&mut dst, &a[first..first + len], &b[first..first + len], streams);
                accumulate(&mut dst, &a[first..first + len]);
                assert!(dst.iter().enumerate().all(|(k, &x)| x == 5.0 * (first + k) as f32));
            }
        }
    }
}
