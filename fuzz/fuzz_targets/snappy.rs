//! Compressed values as clients send them: what passes the check can be decompressed, and what the decoder accepts
//! passes the check.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::snappy::{Compressor, check, inflate, inflated_len};

const MOST: usize = 1 << 20;

fuzz_target!(|input: &[u8]| {
    let checked = check(input, MOST).ok();
    if inflated_len(input).is_some_and(|length| length <= MOST) {
        let decoded = snap::raw::Decoder::new().decompress_vec(input).ok();
        assert_eq!(checked, decoded.as_ref().map(Vec::len));
        if let Some(decoded) = decoded {
            let mut inflated = vec![0; decoded.len()];
            inflate(input, &mut inflated);
            assert_eq!(inflated, decoded);
        }
    } else {
        assert_eq!(checked, None);
    }
    let mut compressor = Compressor::default();
    let block = compressor.compress(input).expect("shorter than 4 GiB");
    assert_eq!(check(block, input.len()), Ok(input.len()));
    let mut inflated = vec![0; input.len()];
    inflate(block, &mut inflated);
    assert_eq!(inflated, input);
});
