//! The PTX of every kernel that has a name, assembled for every target: no error, no spill.

use std::process::Command;
use tilewire::ptx::Target;
use tilewire_testkit::ptxas;

const KERNELS: [&str; 8] = ["copy", "scale", "accumulate", "quantise", "gather", "transpose", "rmsnorm", "message"];

#[test]
fn every_named_kernel_assembles_for_every_target() {
    if ptxas::find().is_none() {
        return;
    }
    for kernel in KERNELS {
        for target in Target::ALL {
            let output = Command::new(env!("CARGO_BIN_EXE_tilewire"))
                .args(["emit", kernel, "--ptx", "--arch", target.name()])
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8(output.stdout).unwrap();
            match ptxas::assemble(&text, target) {
                Ok(usage) => assert_eq!(usage.spills, 0, "{kernel} for {target}: {usage:?}"),
                Err(said) => panic!("{kernel} for {target}: {said}"),
            }
        }
    }
}
