#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tercel_fuzz::papers::run(data));
