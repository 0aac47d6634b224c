//! Random programs for property tests. They are not in the testkit, because the program `tilewire` is built with the
//! testkit and does without `proptest`.

use proptest::prelude::*;
use tilewire_testkit::programs::Program;

/// Programs that shrink to fewer sections.
pub fn programs() -> impl Strategy<Value = Program> {
    (any::<u64>().no_shrink(), 1..6u64).prop_map(|(seed, sections)| Program::new(seed, sections))
}
