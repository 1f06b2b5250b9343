#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    weft_fuzz_entries::update_message(input);
});
