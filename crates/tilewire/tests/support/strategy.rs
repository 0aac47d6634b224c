//! Random programs for property tests. Apart from `programs/`, which the program `tilewire` has too, without `proptest`.

use super::programs::Program;
use proptest::prelude::*;

impl Program {
    /// Programs for property tests; they shrink to fewer sections.
    pub fn strategy() -> impl Strategy<Value = Program> {
        (any::<u64>().no_shrink(), 1..6u64).prop_map(|(seed, sections)| Program::new(seed, sections))
    }
}
