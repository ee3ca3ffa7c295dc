#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rescind_verification::fuzz::check("events", data));
