//! Messages of the bootstrap store, from anybody who reaches its port.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tilewire::fuzz::bootstrap_wire(data);
});
