//! Kernels broken at random. The verifier and the printer must not panic or hang. A kernel that the verifier passes
//! must be safe to read without checks.
//!
//! To run more cases: `TILEWIRE_CASES=10000000 cargo test --release -p tilewire --test suite malformed`. For real
//! fuzzing, see `fuzz/`.

use tilewire_testkit::malformed::ir;
use tilewire_testkit::mutations::mutations;

#[test]
fn no_mutation_makes_the_verifier_panic() {
    let kernels = tilewire_testkit::kernels::all().len() as u8;
    // Takes each kernel as it is, and with one fault for each of many numbers.
    let whole = (0..kernels).map(|which| vec![which]);
    let broken = (0..2000u16).map(|k| [&[k as u8 % kernels][..], &u64::from(k).to_be_bytes()].concat());
    let seeds: Vec<Vec<u8>> = whole.chain(broken).collect();
    let mut passed = 0;
    let cases = mutations(&seeds, 6000, |data| passed += usize::from(ir(data)));
    let refused = cases - passed;
    assert!(refused > cases / 4, "the mutations do little: {refused} refused, {passed} passed");
    assert!(passed > cases / 40, "nothing survives: {refused} refused, {passed} passed");
}
