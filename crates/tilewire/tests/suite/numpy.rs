//! DLPack with a library that is not ours: `examples/dlpack/round_trip.py` opens `examples/dlpack/module.rs`, and numpy
//! takes and gives its tensors. Without numpy the test says so and passes; `TILEWIRE_REQUIRE=numpy` makes that a
//! failure.

use std::path::Path;
use std::process::Command;
use tilewire_testkit::numpy;

#[test]
fn tensors_go_to_numpy_and_back_in_place_and_are_freed_once() {
    let Some(numpy) = numpy::find() else { return };
    let program = std::env::current_exe().expect("a running program has a path");
    // target/PROFILE/deps/PROGRAM; cargo builds what Python opens with the other examples.
    let profile = program.ancestors().nth(2).expect("a test lies in the build folder");
    let file = format!("{}dlpack_module{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let library = profile.join("examples").join(file);
    if !library.exists() {
        return numpy::skip("the example dlpack_module is not built: run all tests of the package");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/dlpack/round_trip.py");
    let output = Command::new("python3").arg(script).arg(library).env("PYTHONPATH", numpy).output();
    let output = output.expect("python3 starts");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches(": ok").count(), 5, "{said}");
    println!("{said}");
}
