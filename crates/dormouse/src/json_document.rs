//! Members of JSON documents that a node answered. What is missing or of another type is 0, empty or absent.

use serde_json::Value;

/// A number at a JSON pointer.
pub fn number(json: &Value, path: &str) -> u64 {
    json.pointer(path).and_then(Value::as_u64).unwrap_or(0)
}

/// The elements of a list.
pub fn list(json: Option<&Value>) -> impl Iterator<Item = &Value> {
    json.and_then(Value::as_array).into_iter().flatten()
}

/// The members of an object.
pub fn entries(json: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    json.and_then(Value::as_object).into_iter().flatten()
}

/// The strings of a list.
pub fn strings(json: Option<&Value>) -> Vec<&str> {
    list(json).filter_map(Value::as_str).collect()
}

/// A string.
pub fn text_of<'a>(json: &'a Value, member: &str) -> &'a str {
    json.get(member).and_then(Value::as_str).unwrap_or_default()
}

/// The name.
pub fn name_of(json: &Value) -> String {
    text_of(json, "name").to_owned()
}

/// A document for scripts.
pub fn pretty(document: &Value) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(document)? + "\n")
}
