//! Schemas of OVSDB databases, and values of their columns: no input panics; a schema prints as the same schema; an
//! accepted cell prints as JSON that parses to the same cell. The input is a JSON array: a schema, then values for all
//! of its columns.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ovsdb::cell::{self, Checks};
use ovsdb::schema::{ColumnSchema, DatabaseSchema};
use ovsdb::uuid::Uuid;
use wire::json::{Value, validate};

fuzz_target!(|input: &[u8]| {
    let Ok(input) = validate(input) else { return };
    let mut elements = input.elements();
    let Some(first) = elements.next() else { return };
    let schema = match DatabaseSchema::parse(first) {
        Ok(schema) => schema,
        Err(error) => {
            let mut out = Vec::new();
            error.write_json(&mut out);
            assert!(validate(&out).is_ok());
            return;
        }
    };
    let mut text = Vec::new();
    schema.write_json(&mut text);
    let again = DatabaseSchema::parse(validate(&text).expect("JSON")).expect("a schema");
    let mut text_again = Vec::new();
    again.write_json(&mut text_again);
    assert_eq!(text, text_again);

    for (_, table) in schema.tables() {
        for (_, column) in table.columns() {
            assert!(cell::is_default(&column.kind, &column.default));
            for value in elements.clone() {
                check_value(column, value);
            }
        }
    }
});

fn check_value(column: &ColumnSchema, value: Value<'_>) {
    let kind = &column.kind;
    let mut packed = Vec::new();
    let mut names = |_: &str| Some(Uuid::zero());
    if let Err(error) = cell::parse(kind, value, &mut names, Checks::All, &mut packed) {
        assert!(packed.is_empty() && !error.to_string().is_empty());
        return;
    }
    let mut rest = packed.as_slice();
    assert_eq!(cell::split(kind, &mut rest), packed);
    assert!(rest.is_empty() && cell::check(kind, &packed).is_ok() && cell::has_allowed_length(kind, &packed));
    let mut text = b"[".to_vec();
    cell::write_json(kind, &packed, &mut text);
    text.push(b']');
    // Reals print with 15 digits: two elements of a set may become equal.
    let value = validate(&text).expect("JSON").elements().next().expect("a value");
    let mut printed = Vec::new();
    if cell::parse(kind, value, &mut cell::no_names, Checks::Nothing, &mut printed).is_ok() {
        let mut text_again = b"[".to_vec();
        cell::write_json(kind, &printed, &mut text_again);
        text_again.push(b']');
        assert_eq!(text, text_again);
    }

    // A diff from the default to the value, applied to the default, gives the value.
    let (mut difference, mut applied) = (Vec::new(), Vec::new());
    cell::diff(kind, &column.default, &packed, &mut difference);
    cell::apply_diff(kind, &column.default, &difference, &mut applied).expect("a size that is allowed");
    assert_eq!(applied, packed);
}
