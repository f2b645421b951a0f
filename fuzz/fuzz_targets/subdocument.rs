//! Sub-document paths and edits: what is accepted as JSON is JSON, and every edit of a document leaves one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::subdocument::{Change, Error, Path, check, count, edit, locate};

// Path, value and document, each but the last ended by a zero.
fuzz_target!(|input: &[u8]| {
    let mut parts = input.splitn(3, |byte| *byte == 0);
    let (Some(path), Some(value), Some(document)) = (parts.next(), parts.next(), parts.next()) else {
        return;
    };
    let checked = check(document);
    let parsed = serde_json::from_slice::<serde_json::Value>(document);
    match checked {
        // The parser wants pairs of surrogates, and numbers that fit a float.
        Ok(_) => {
            let is_special = |byte: &u8| matches!(byte, b'u' | b'e' | b'E' | b'0'..=b'9');
            assert!(parsed.is_ok() || document.iter().any(is_special));
        }
        Err(Error::DocumentTooDeep) => {}
        Err(_) => assert!(parsed.is_err()),
    }
    let Ok(path) = Path::parse(path) else { return };
    let found = locate(document, path.components());
    let counted = count(document, path.components());
    if checked.is_ok() {
        assert_ne!(found, Err(Error::NotJson));
        assert_ne!(counted, Err(Error::NotJson));
    }
    for (index, change) in Change::ALL.iter().copied().enumerate() {
        let edited = edit(document, change, &path, value, index % 2 == 0);
        if let (Ok(_), Ok(splice)) = (checked, edited) {
            let mut bytes = document.to_vec();
            bytes.splice(splice.at, splice.with);
            assert!(check(&bytes).is_ok(), "{change:?} left {:?}", String::from_utf8_lossy(&bytes));
        }
    }
});
