//! Broken bytecode: verified, and run if it passes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tilewire::fuzz::bytecode(data);
});
