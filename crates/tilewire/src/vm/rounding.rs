//! The floating-point control word: results must not depend on the host program's settings.

/// While it lives, floats round to nearest and denormals are kept. Dropping it restores the previous settings.
pub(crate) struct Rounding {
    #[cfg(target_arch = "x86_64")]
    restore: Option<u32>,
    #[cfg(target_arch = "aarch64")]
    restore: Option<u64>,
}

#[cfg(target_arch = "x86_64")]
mod word {
    pub(super) type Word = u32;
    /// Rounding control, flush-to-zero, denormals-are-zero, and the masks of the exceptions.
    pub(super) const MATTERS: Word = 0xe040 | WANTED;
    /// All exceptions masked: a kernel may produce infinities and NaN.
    pub(super) const WANTED: Word = 0x1f80;

    #[inline(always)]
    pub(super) fn read() -> Word {
        let mut word = 0u32;
        // SAFETY: stores the control word to a local; every x86-64 processor has the instruction.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut word, options(nostack, preserves_flags)) };
        word
    }

    pub(super) fn write(word: Word) {
        // SAFETY: the word was read before, with only rounding and denormal bits changed. It is restored before other
        // code of this thread runs.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &word, options(nostack, preserves_flags)) };
    }
}

#[cfg(target_arch = "aarch64")]
mod word {
    pub(super) type Word = u64;
    /// Rounding mode (bits 22, 23), flush-to-zero (24) and half-precision flush (19).
    pub(super) const MATTERS: Word = 0x01c8_0000;
    pub(super) const WANTED: Word = 0;

    #[inline(always)]
    pub(super) fn read() -> Word {
        let word: u64;
        // SAFETY: reads a control register that user code may read.
        unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) word, options(nomem, nostack, preserves_flags)) };
        word
    }

    pub(super) fn write(word: Word) {
        // SAFETY: as on x86-64.
        unsafe { std::arch::asm!("msr fpcr, {}", in(reg) word, options(nomem, nostack, preserves_flags)) };
    }
}

impl Rounding {
    /// Sets the control word if necessary.
    #[inline(always)]
    pub(crate) fn nearest() -> Rounding {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        {
            let found: word::Word = word::read();
            if found & word::MATTERS == word::WANTED {
                return Rounding { restore: None };
            }
            word::write(found & !word::MATTERS | word::WANTED);
            Rounding { restore: Some(found) }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        Rounding {}
    }
}

impl Drop for Rounding {
    #[inline(always)]
    fn drop(&mut self) {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        if let Some(found) = self.restore {
            word::write(found);
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn denormals_survive_a_host_that_flushes_them() {
        let before = word::read();
        word::write(before | 0x8040);
        let tiny = std::hint::black_box(f32::MIN_POSITIVE);
        let flushed = tiny * std::hint::black_box(0.5);
        let kept = {
            let _nearest = Rounding::nearest();
            std::hint::black_box(tiny) * std::hint::black_box(0.5)
        };
        let restored = word::read() & word::MATTERS & !word::WANTED;
        word::write(before);
        assert_eq!(flushed, 0.0);
        assert!(kept > 0.0);
        assert_eq!(restored, 0x8040);
    }
}
