//! Fuzz targets: functions that take bytes and must not panic. The crate in `fuzz/` runs them under libFuzzer, which
//! sets `cfg(fuzzing)`. The tests here run them on a few thousand mutations of known inputs. The target for the IR's
//! verifier needs nothing private, so it is in `tilewire_testkit::malformed`.
//!
//! For a longer run: `TILEWIRE_CASES=10000000 cargo test --release -p tilewire --lib fuzz`. `TILEWIRE_SEED=7` selects
//! other inputs.
#![forbid(unsafe_code)]

/// Reads bootstrap messages and writes them again. Returns how many could be read.
pub fn bootstrap_wire(data: &[u8]) -> usize {
    crate::transport::bootstrap::fuzz(data)
}

/// Verifies broken bytecode, and runs it if it passes. Returns true if it passed.
pub fn bytecode(data: &[u8]) -> bool {
    crate::vm::fuzz(data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewire_testkit::mutations::mutations;

    #[test]
    fn no_message_of_the_bootstrap_makes_its_reader_panic() {
        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/bootstrap");
        let files = std::fs::read_dir(corpus).expect("the corpus").map(|file| file.expect("a file").path());
        let mut seeds: Vec<Vec<u8>> = files.map(|path| std::fs::read(path).expect("a file")).collect();
        // Every kind of message, with bodies of zeros and of small numbers.
        for (kind, length) in (0..24u8).flat_map(|kind| [0, 4, 8, 12, 16, 24, 40].map(|length| (kind, length))) {
            let head = [&[kind][..], &7u64.to_le_bytes(), &u32::to_le_bytes(length)].concat();
            seeds.push([&head[..], &vec![0; length as usize]].concat());
            seeds.push([&head[..], &Vec::from_iter((0..length as u8).map(|k| k % 5))].concat());
        }
        let mut read = 0;
        let cases = mutations(&seeds, 100_000, |data| read += bootstrap_wire(data));
        assert!(read > cases / 100, "of {cases} inputs {read} messages could be read: the test shows little");
    }

    #[test]
    fn no_broken_bytecode_makes_its_verifier_panic_or_leaves_its_memory() {
        let (mut passed, mut cases) = (0, 0);
        cases += mutations(&[vec![0; 8], vec![1; 16]], 4_000, |data| passed += usize::from(bytecode(data)));
        assert!(passed > cases / 50 && passed < cases, "of {cases} inputs {passed} passed: the test shows little");
    }
}
