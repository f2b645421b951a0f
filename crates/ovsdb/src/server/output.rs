//! What a session has yet to send. Bytes of a transaction are held until its log write is done.

use std::sync::Arc;

use wire::WriteQueue;

/// Messages of this size and more are shared between the sessions that get them, not copied.
pub(super) const SHARED_BYTES_MIN: usize = 4096;
/// Size of a session's own buffers.
const PIECE_BYTES: usize = 128 * 1024;

/// The queue of one session.
pub type Output = WriteQueue<Arc<Vec<u8>>, PIECE_BYTES>;

/// Appends bytes that others send as well; held.
pub(super) fn append_shared(output: &mut Output, bytes: Arc<Vec<u8>>) {
    if bytes.len() < SHARED_BYTES_MIN {
        output.append(&bytes);
    } else {
        output.push_shared(bytes);
    }
}

/// Memory that a queue takes; of bytes that others send as well, its part.
pub(super) fn kept_bytes(output: &Output) -> usize {
    let part_of = |bytes: &Arc<Vec<u8>>| bytes.len() / Arc::strong_count(bytes);
    output.owned_bytes() + output.shared().map(part_of).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_shared_and_counted_once() {
        let big = Arc::new(vec![b'x'; SHARED_BYTES_MIN]);
        let (mut one, mut two) = (Output::default(), Output::default());
        append_shared(&mut one, Arc::clone(&big));
        append_shared(&mut two, Arc::clone(&big));
        assert_eq!(Arc::strong_count(&big), 3);
        drop(big);
        assert_eq!((kept_bytes(&one), kept_bytes(&two)), (SHARED_BYTES_MIN / 2, SHARED_BYTES_MIN / 2));
        assert_eq!(two.take_held().len(), SHARED_BYTES_MIN);
        append_shared(&mut two, Arc::new(vec![b'y'; SHARED_BYTES_MIN - 1]));
        assert_eq!((two.shared_bytes(), kept_bytes(&one)), (0, SHARED_BYTES_MIN));
    }
}
