#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rescind_testkit::fuzz::check("events", data));
