//! Which vector instructions the engine uses, decided once per process.
#![forbid(unsafe_code)]

use super::error::PrepareError;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// The variable that asks for a lower level than the processor's.
const VARIABLE: &str = "TILEWIRE_CPU_LEVEL";

/// An instruction-set level; a later one includes the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// What the target always has: SSE2 on x86-64, plain Rust elsewhere.
    Baseline = 1,
    /// AVX2 with FMA, F16C, BMI1 and BMI2.
    Avx2 = 2,
    /// AVX-512 F, BW, DQ and VL, on top of [`Level::Avx2`].
    Avx512 = 3,
}

/// The detected level as its discriminant; 0 is "not asked yet".
static DETECTED: AtomicU8 = AtomicU8::new(0);

impl Level {
    /// The level of this process: the processor's, or a lower one asked for with
    /// `TILEWIRE_CPU_LEVEL=baseline|avx2|avx512`. With any other value nothing can be prepared
    /// ([`PrepareError::BadVariable`]).
    #[inline]
    pub fn detect() -> Level {
        // Relaxed: every thread that finds 0 computes the same answer.
        match DETECTED.load(Ordering::Relaxed) {
            1 => Level::Baseline,
            2 => Level::Avx2,
            3 => Level::Avx512,
            _ => Level::detect_slowly(),
        }
    }

    /// The levels this process may use, lowest first; tests run once for each.
    pub fn available() -> impl Iterator<Item = Level> {
        [Level::Baseline, Level::Avx2, Level::Avx512].into_iter().filter(|&level| level <= Level::detect())
    }

    /// The name used in `TILEWIRE_CPU_LEVEL` and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Level::Baseline => "baseline",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }

    #[cold]
    fn detect_slowly() -> Level {
        let level = Level::of_processor().min(Level::asked_for().ok().flatten().unwrap_or(Level::Avx512));
        DETECTED.store(level as u8, Ordering::Relaxed);
        level
    }

    /// The level that the variable names; `None` if it is unset or empty.
    fn asked_for() -> Result<Option<Level>, PrepareError> {
        let Some(word) = std::env::var_os(VARIABLE).filter(|word| !word.is_empty()) else { return Ok(None) };
        Level::of_word(&word.to_string_lossy()).map(Some)
    }

    fn of_word(word: &str) -> Result<Level, PrepareError> {
        Level::parse(word).ok_or_else(|| PrepareError::BadVariable {
            variable: VARIABLE,
            value: word.to_string(),
            expected: "baseline, avx2 or avx512",
        })
    }

    /// Like [`Level::detect`], but returns an error if the variable has an unknown value. Reads it once per process.
    pub(super) fn checked() -> Result<Level, PrepareError> {
        static SAID: OnceLock<Result<(), PrepareError>> = OnceLock::new();
        SAID.get_or_init(|| Level::asked_for().map(|_| ())).clone().map(|()| Level::detect())
    }

    fn parse(word: &str) -> Option<Level> {
        [Level::Baseline, Level::Avx2, Level::Avx512].into_iter().find(|level| level.name() == word)
    }

    #[cfg(target_arch = "x86_64")]
    fn of_processor() -> Level {
        macro_rules! has { ($($feature:tt)*) => { $(is_x86_feature_detected!($feature))&&* }; }
        if !(has!("avx2" "fma" "f16c" "bmi1" "bmi2")) {
            Level::Baseline
        } else if !(has!("avx512f" "avx512bw" "avx512dq" "avx512vl")) {
            Level::Avx2
        } else {
            Level::Avx512
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn of_processor() -> Level {
        Level::Baseline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_the_variable_takes() {
        for level in [Level::Baseline, Level::Avx2, Level::Avx512] {
            assert_eq!(Level::parse(level.name()), Some(level));
        }
        assert_eq!(Level::parse("avx1024"), None);
        let error = Level::of_word("avx1024").unwrap_err();
        let PrepareError::BadVariable { variable, value, expected } = &error else { panic!("{error}") };
        assert_eq!((*variable, &**value), ("TILEWIRE_CPU_LEVEL", "avx1024"));
        for level in [Level::Baseline, Level::Avx2, Level::Avx512] {
            assert!(expected.contains(level.name()), "{error}");
        }
    }

    #[test]
    fn the_available_levels_end_at_the_detected_one() {
        assert_eq!(Level::available().next(), Some(Level::Baseline));
        assert_eq!(Level::available().last(), Some(Level::detect()));
    }
}
