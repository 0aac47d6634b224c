//! Broken kernels: verified and printed.
#![no_main]
#![allow(dead_code)] // the kernels of the tests bring more than is used

#[path = "../../crates/tilewire/tests/support/code.rs"]
mod code;
#[path = "../../crates/tilewire/tests/support/kernels.rs"]
mod kernels;
#[path = "../../crates/tilewire/tests/support/malformed.rs"]
mod malformed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    malformed::ir(data);
});
