//! Says visibly that a test did not run.
//!
//! This file uses only the standard library, so that tests of any crate can include it.

use std::fmt::Display;
use std::io::Write;

/// Says that a test cannot run here because `needed` is not there. If `TILEWIRE_REQUIRE` lists `needed`, that is a
/// failure.
///
/// The harness swallows what a passing test prints by `println!`, but not what it writes to the standard error itself.
pub fn skip(needed: &str, why: impl Display) {
    let required = std::env::var("TILEWIRE_REQUIRE").is_ok_and(|list| list.split(',').any(|word| word == needed));
    assert!(!required, "{needed} is required: {why}");
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    _ = writeln!(std::io::stderr(), "SKIP {test}: no {needed}: {why}");
}
