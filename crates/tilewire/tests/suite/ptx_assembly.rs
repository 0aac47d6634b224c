//! PTX without a GPU: every text is assembled by NVIDIA's own assembler for all targets, without errors and without
//! spills.

use tilewire::ir::{Kernel, simplify};
use tilewire::ptx::{Options, PtxError, Target, emit};
use tilewire_testkit::programs::Program;
use tilewire_testkit::random::Random;
use tilewire_testkit::{hook_samples, kernels, ptxas};

fn assembles(name: &str, kernel: &Kernel, targets: &[Target]) {
    for &target in targets {
        let module = match emit(kernel, Options::new(target)) {
            Ok(module) => module,
            // The scratch of a random program may be too large for a small GPU.
            Err(PtxError::SharedMemory { .. }) if name.starts_with("Program") => continue,
            Err(error) => panic!("{name} for {target}: {error}"),
        };
        match ptxas::assemble(&module.text, target) {
            Ok(usage) if usage.spills > 0 && !name.starts_with("Program") => panic!("{name} for {target}: {usage:?}"),
            Ok(_) => {}
            Err(said) => panic!("{name} for {target}: {said}\n{kernel}"),
        }
    }
}

#[test]
fn kernels_of_every_op_assemble_for_every_target() {
    if ptxas::find().is_none() {
        return;
    }
    for (name, kernel) in kernels::all() {
        assembles(name, &kernel, &Target::ALL);
        assembles(name, &simplify(&kernel), &Target::ALL);
    }
}

/// Every hook of the library, each with several types. The kernels take the targets alternately.
#[test]
fn hooks_of_the_library_assemble() {
    if ptxas::find().is_none() {
        return;
    }
    for (k, sample) in hook_samples::all().iter().enumerate() {
        assembles(&sample.name, &simplify(&sample.traced.kernel), &[Target::ALL[k % 5]]);
    }
}

/// CI assembles a few; `TILEWIRE_CASES` sets another number. The programs take the targets alternately.
#[test]
fn random_programs_assemble() {
    if ptxas::find().is_none() {
        return;
    }
    let cases = std::env::var("TILEWIRE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(10);
    let first = std::env::var("TILEWIRE_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let mut random = Random::new(first);
    for case in 0..cases {
        let (seed, sections) = (random.next(), 1 + random.below_u64(5));
        let program = Program::new(seed, sections);
        let target = [Target::ALL[case % 5]];
        assembles(&format!("Program::new({seed:#x}, {sections})"), &simplify(&program.kernel), &target);
    }
}
