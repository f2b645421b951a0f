//! The JSON body of an error, where the client negotiated XERROR.

use serde_json::json;

/// `{"error":{"context":"..."}}`: a sentence for a human.
pub fn context(text: &str) -> String {
    json!({ "error": { "context": text } }).to_string()
}

/// The same with the manifest a name or collection id was looked up in: for UNKNOWN_COLLECTION and UNKNOWN_SCOPE.
pub fn with_manifest(text: &str, manifest_uid: u64) -> String {
    json!({ "error": { "context": text }, "manifest_uid": format!("{manifest_uid:x}") }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_escaped_json() {
        assert_eq!(context("a \"b\""), r#"{"error":{"context":"a \"b\""}}"#);
        assert_eq!(with_manifest("x", 10), r#"{"error":{"context":"x"},"manifest_uid":"a"}"#);
    }
}
