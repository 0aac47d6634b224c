//! Broken kernels: verified and printed.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tilewire_testkit::malformed::ir(data);
});
