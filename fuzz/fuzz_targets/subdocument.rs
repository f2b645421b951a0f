//! Sub-document paths and edits: what is accepted as JSON is JSON, and every edit of a document leaves one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::subdocument::{
    Change, Component, Error, PATH_BYTES_MAX, Path, check, count, edit, locate, unquoted,
};

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
    let Ok(parsed) = Path::parse(path) else { return };
    if !matches!(path, [] | [.., b'.']) && path.len() < PATH_BYTES_MAX {
        let with_dot = [path, b"."].concat();
        assert_eq!(
            Path::parse(&with_dot).map(|path| path.components().to_vec()),
            Ok(parsed.components().to_vec())
        );
    }
    for component in parsed.components() {
        if let Component::Key { name, quoted } = *component {
            let name = if quoted { unquoted(name).collect() } else { name.to_vec() };
            assert!(!name.is_empty() && name.iter().all(|byte| *byte >= b' '));
        }
    }
    let path = parsed;
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
