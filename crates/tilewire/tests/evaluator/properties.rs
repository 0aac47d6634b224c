//! Random programs do not depend on any freedom the language leaves: the order of elements, the schedule, the number of
//! copies, the time of bulk copies.

use super::support::programs::Program;
use proptest::prelude::*;
use tilewire::check::{self, BulkTiming, ElementOrder, InstanceOptions, Options, Schedule};
use tilewire::ir::verify;

fn results(program: &Program, options: Options) -> Vec<Vec<Vec<u8>>> {
    let (binding, memories) = program.bind();
    let after = check::run(&program.kernel, &binding, memories, options).unwrap_or_else(|e| panic!("{e}\n{program:?}"));
    program.results(&binding, &after)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn programs_are_legal(program in Program::strategy()) {
        if let Err(faults) = verify(&program.kernel) {
            panic!("{faults:?}\n{program:?}");
        }
    }

    #[test]
    fn element_orders_agree(program in Program::strategy(), seed: u64) {
        let forward = results(&program, Options::default());
        for order in [ElementOrder::Reverse, ElementOrder::Shuffled(seed)] {
            let instance = InstanceOptions { order, ..InstanceOptions::default() };
            prop_assert_eq!(&forward, &results(&program, Options { instance, ..Options::default() }));
        }
    }

    #[test]
    fn schedules_agree(program in Program::strategy(), seed: u64) {
        let in_turn = results(&program, Options::default());
        for schedule in [Schedule::ToBlock, Schedule::Random(seed)] {
            prop_assert_eq!(&in_turn, &results(&program, Options { schedule, ..Options::default() }));
        }
    }

    #[test]
    fn copies_and_bulk_timing_do_not_matter(program in Program::strategy()) {
        let plain = results(&program, Options::default());
        let instance = InstanceOptions { bulk: BulkTiming::Late, ..InstanceOptions::default() };
        let other = Options { instance, most_copies: u32::MAX, ..Options::default() };
        prop_assert_eq!(&plain, &results(&program, other));
    }

    #[test]
    fn a_program_of_a_seed_is_always_the_same(seed: u64) {
        prop_assert_eq!(format!("{:?}", Program::new(seed, 3)), format!("{:?}", Program::new(seed, 3)));
    }
}
