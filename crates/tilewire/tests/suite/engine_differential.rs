//! The CPU engine and the reference evaluator give the same bytes, for random programs of the whole language, with and
//! without the simplifier, at every instruction-set level of this processor.

use proptest::prelude::*;
use tilewire::check::{self, Options};
use tilewire::vm::{Level, Prepared, Puts, Settings, StorePolicy};
use tilewire_testkit::programs::{Hosted, Program};

fn reference(program: &Program) -> Vec<Vec<Vec<u8>>> {
    let (binding, memories) = program.bind();
    let after = check::run(&program.kernel, &binding, memories, Options::default());
    program.results(&binding, &after.unwrap_or_else(|e| panic!("the evaluator refused: {e}\n{program:?}")))
}

fn engine(program: &Program, settings: Settings) -> Vec<Vec<Vec<u8>>> {
    let hosted = Hosted::new(program);
    let mut op = Prepared::with(&program.kernel, &hosted.args, settings)
        .unwrap_or_else(|e| panic!("the engine refused: {e}\n{program:?}"));
    op.run().unwrap_or_else(|e| panic!("the launch failed: {e}\n{program:?}\n{}", op.disassembly()));
    hosted.results(program)
}

fn agree(program: &Program) {
    let expected = reference(program);
    for level in Level::available() {
        // Streaming from one byte on puts every direct store through the non-temporal path.
        let (all, none, through) = (1, usize::MAX, Puts::ThroughCache);
        for (simplify, stream_from, puts) in
            [(true, none, through), (false, none, through), (true, all, through), (true, none, Puts::AroundCache)]
        {
            let stores = StorePolicy { from: stream_from, puts, ..StorePolicy::default() };
            let settings = Settings { level, simplify, stores, ..Settings::default() };
            let got = engine(program, settings);
            for (p, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert!(
                    got == expected,
                    "parameter {p} differs at {level:?}, simplify {simplify}, stream from {stream_from}, {puts:?}\n{}\n{program:?}",
                    first_difference(got, expected)
                );
            }
        }
    }
}

fn first_difference(got: &[Vec<u8>], expected: &[Vec<u8>]) -> String {
    for (bank, (got, expected)) in got.iter().zip(expected).enumerate() {
        if let Some(k) = (0..got.len().min(expected.len())).find(|&k| got[k] != expected[k]) {
            let end = (k + 8).min(got.len());
            return format!("bank {bank} byte {k}: {:02x?} instead of {:02x?}", &got[k..end], &expected[k..end]);
        }
    }
    "lengths differ".into()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn engine_and_evaluator_agree(program in crate::strategy::programs()) {
        agree(&program);
    }
}

/// The number of random programs: `TILEWIRE_CASES`, or as many as CI has time for.
fn cases() -> u32 {
    std::env::var("TILEWIRE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
}
