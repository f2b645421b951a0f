//! The server duration in answers: microseconds squeezed into 16 bits, `encoded = (2 * us) ^ (1 / 1.74)`.

/// Encodes a duration in microseconds; 120 s and more saturate.
pub fn encode(duration_us: u64) -> u16 {
    if duration_us == 0 {
        return 0;
    }
    let encoded = (duration_us as f64 * 2.0).powf(1.0 / 1.74);
    // A cast from float to integer saturates.
    encoded as u16
}

/// Decodes to microseconds, as clients do.
pub fn decode(encoded: u16) -> f64 {
    f64::from(encoded).powf(1.74) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decoded_duration_is_within_two_per_cent_above_two_milliseconds() {
        for us in [2000u64, 10_000, 1_000_000, 60_000_000] {
            let back = decode(encode(us));
            assert!((back - us as f64).abs() / (us as f64) < 0.02, "{us} us came back as {back}");
        }
    }

    #[test]
    fn the_ends_are_exact() {
        assert_eq!(encode(0), 0);
        assert_eq!(encode(u64::MAX), u16::MAX);
        assert!(decode(u16::MAX) > 119_000_000.0);
    }
}
