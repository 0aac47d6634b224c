//! The reference evaluator, as a specification.
mod support;

use support::Program;

#[test]
fn smoke() {
    for seed in 0..300 {
        let program = Program::new(seed, 4);
        let (binding, memories) = program.bind();
        if let Err(e) = tilewire::check::run(&program.kernel, &binding, memories, Default::default()) {
            panic!("{e}\n{program:?}");
        }
    }
}
