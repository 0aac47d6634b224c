//! Kernels broken at random: the verifier and the printer must not panic or hang, and what the verifier lets pass must
//! be safe to look at without checks.
//!
//! For longer: `TILEWIRE_CASES=10000000 cargo test --release -p tilewire --test suite malformed`; for real, `fuzz/`.

use tilewire_testkit::malformed::ir;
use tilewire_testkit::mutations::mutations;

#[test]
fn no_mutation_makes_the_verifier_panic() {
    let kernels = tilewire_testkit::kernels::all().len() as u8;
    // Each kernel whole, and each broken once by many numbers.
    let whole = (0..kernels).map(|which| vec![which]);
    let broken = (0..2000u16).map(|k| [&[k as u8 % kernels][..], &u64::from(k).to_be_bytes()].concat());
    let seeds: Vec<Vec<u8>> = whole.chain(broken).collect();
    let mut passed = 0;
    let cases = mutations(&seeds, 6000, |data| passed += usize::from(ir(data)));
    let refused = cases - passed;
    assert!(refused > cases / 4, "the mutations do little: {refused} refused, {passed} passed");
    assert!(passed > cases / 40, "nothing survives: {refused} refused, {passed} passed");
}
