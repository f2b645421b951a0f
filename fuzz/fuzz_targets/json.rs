//! JSON and the framing of messages: no input panics, input in pieces gives the same result as the whole, and accepted
//! input reads and prints the same again. The first byte chooses the size of the pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::json::{Cursor, Value, validate, write};
use wire::jsonrpc::{Framer, Limits, Message};

fuzz_target!(|input: &[u8]| {
    let Some((size, input)) = input.split_first() else { return };
    let limits = Limits { message_bytes: 1 << 20, depth: 20 };
    let mut rest = input;
    loop {
        let whole = Framer::new(limits).advance(rest);
        assert_eq!(in_pieces(rest, usize::from(*size).max(1), limits), whole);
        let Ok(Some(end)) = whole else { break };
        let (message, after) = rest.split_at(end);
        accepted(message);
        rest = after;
    }

    // For text that is not JSON, any answer is allowed, but no panic.
    let value = Value::of_checked(input);
    let _ = (value.kind(), value.as_string(), value.as_integer(), value.as_boolean());
    assert!(value.elements().count() <= input.len());
    assert!(value.members().count() <= input.len());
    let _ = Message::parse(input);
});

fn in_pieces(text: &[u8], size: usize, limits: Limits) -> Result<Option<usize>, wire::jsonrpc::SyntaxError> {
    let mut framer = Framer::new(limits);
    let mut before = 0;
    for piece in text.chunks(size) {
        match framer.advance(piece)? {
            Some(end) => return Ok(Some(before + end)),
            None => before += piece.len(),
        }
        assert_eq!(framer.pending_bytes(), before);
    }
    Ok(None)
}

fn accepted(message: &[u8]) {
    let value = validate(message).expect("what a framer takes is a value");
    let mut cursor = Cursor::new(message);
    let skipped = cursor.skip();
    assert!(cursor.rest().is_empty());
    let (mut once, mut twice) = (Vec::new(), Vec::new());
    write::sorted(&mut once, value);
    write::sorted(&mut twice, skipped);
    assert_eq!(once, twice);
    // An unpaired surrogate prints as bytes that are not UTF-8, and a real with 15 digits may be an integer when read
    // again; after printing twice the text is stable.
    twice.clear();
    write::sorted(&mut twice, validate(&once).expect("what was printed is a value"));
    let mut thrice = Vec::new();
    write::sorted(&mut thrice, validate(&twice).expect("what was printed is a value"));
    assert_eq!(twice, thrice);
    let _ = Message::parse(message);
}
