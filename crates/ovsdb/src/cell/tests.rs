use super::{Checks, Operator, parse};
use crate::atom::{Atom, AtomType};
use crate::column_type::{ColumnType, UNLIMITED};
use crate::error::Error;
use crate::uuid::Uuid;
use proptest::collection::vec;
use proptest::prelude::*;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use wire::json::{Value, validate};

fn kind(json: &str) -> ColumnType {
    let text = format!("[{json}]");
    let value = validate(text.as_bytes()).expect("JSON").elements().next().expect("a type");
    ColumnType::parse(value).expect("a type")
}

fn cell_of(kind: &ColumnType, json: &str) -> Result<Vec<u8>, Error> {
    let text = format!("[{json}]");
    let value = validate(text.as_bytes()).expect("JSON").elements().next().expect("a value");
    let mut out = b"before".to_vec();
    let result = parse(kind, value, &mut |_| Some(Uuid([7; 16])), Checks::All, &mut out);
    assert!(result.is_ok() || out == b"before");
    result.map(|()| out.split_off(6))
}

fn json(kind: &ColumnType, cell: &[u8]) -> String {
    let mut out = Vec::new();
    super::write_json(kind, cell, &mut out);
    String::from_utf8(out).expect("UTF-8")
}

const INTEGERS: &str = r#"{"key":"integer","min":0,"max":"unlimited"}"#;
const STRINGS: &str = r#"{"key":"string","min":0,"max":"unlimited"}"#;
const MAP: &str = r#"{"key":"string","value":"integer","min":0,"max":"unlimited"}"#;

#[test]
fn values_print_in_their_one_form() {
    let cases = [
        (r#""integer""#, "5.0", "5"),
        (r#""integer""#, r#"["set",[1]]"#, "1"),
        (r#""real""#, "123456789012345678", "1.23456789012346e+17"),
        (r#""real""#, "-0.0", "0"),
        (r#""boolean""#, "true", "true"),
        (r#""string""#, r#""\u00e9\/\u0007""#, "\"\u{e9}/\\u0007\""),
        (
            r#""uuid""#,
            r#"["uuid","ABCDEF00-0000-0000-0000-000000000001"]"#,
            r#"["uuid","abcdef00-0000-0000-0000-000000000001"]"#,
        ),
        (r#""uuid""#, r#"["named-uuid","x"]"#, r#"["uuid","07070707-0707-0707-0707-070707070707"]"#),
        (INTEGERS, r#"["set",[3,-1,2]]"#, r#"["set",[-1,2,3]]"#),
        (INTEGERS, r#"["set",[]]"#, r#"["set",[]]"#),
        (INTEGERS, "7", "7"),
        (
            STRINGS,
            r#"["set",["b","a","B","","aa","\u00e9"]]"#,
            "[\"set\",[\"\",\"B\",\"a\",\"aa\",\"b\",\"\u{e9}\"]]",
        ),
        (MAP, r#"["map",[["b",1],["a",2]]]"#, r#"["map",[["a",2],["b",1]]]"#),
        (MAP, r#" [ "map" , [ [ "b" , 1 ] ] ] "#, r#"["map",[["b",1]]]"#),
    ];
    for (column, value, expected) in cases {
        let kind = kind(column);
        let cell = cell_of(&kind, value).expect("a value");
        assert_eq!(json(&kind, &cell), expected);
        let mut rest = cell.as_slice();
        assert_eq!(super::split(&kind, &mut rest), cell);
        assert!(rest.is_empty());
    }
}

#[test]
fn each_error_is_the_stock_servers() {
    let syntax = |syntax: &str, details: &str| format!("syntax \"{syntax}\": syntax error: {details}");
    let violation = |details: &str| format!("constraint violation: {details}");
    let limited = |limits: &str| format!(r#"{{"key":{{"type":{limits}}}}}"#);
    let cases = [
        (r#""integer""#.into(), "1.5", syntax("1.5", "expected integer")),
        (r#""integer""#.into(), "{\"b\": 1, \"a\":1}", syntax("{\"a\":1,\"b\":1}", "expected integer")),
        (r#""real""#.into(), "\"x\"", syntax("\"x\"", "expected real")),
        (
            r#""integer""#.into(),
            r#"["set",[]]"#,
            syntax("[\"set\",[]]", "set must have exactly one member but 0 are present"),
        ),
        (
            r#""integer""#.into(),
            r#"["set",[1,"a"]]"#,
            syntax("[\"set\",[1,\"a\"]]", "set must have exactly one member but 2 are present"),
        ),
        (INTEGERS.into(), r#"["set",1]"#, syntax("[\"set\",1]", "expected [\"set\", <array>]")),
        (INTEGERS.into(), r#"["set",["a"],2]"#, syntax("[\"set\",[\"a\"],2]", "expected [\"set\", <array>]")),
        (INTEGERS.into(), r#"["set",[3,1,3]]"#, "ovsdb error: set contains duplicate".into()),
        (MAP.into(), "5", syntax("5", "expected [\"map\", <array>]")),
        (
            MAP.into(),
            r#"["map",[["a",1]],1]"#,
            syntax("[\"map\",[[\"a\",1]],1]", "expected [\"map\", <array>]"),
        ),
        (MAP.into(), r#"["map",[["b"]]]"#, syntax("[\"b\"]", "expected 2-element array")),
        (MAP.into(), r#"["map",[[1,1,1]]]"#, syntax("[1,1,1]", "expected 2-element array")),
        (MAP.into(), r#"["map",[["a","b"]]]"#, syntax("\"b\"", "expected integer")),
        (MAP.into(), r#"["map",[["b",1],["b",1]]]"#, "ovsdb error: map contains duplicate key".into()),
        (
            r#"{"key":"integer","min":1,"max":3}"#.into(),
            r#"["set",["a",2,3,4]]"#,
            syntax("[\"set\",[\"a\",2,3,4]]", "set must have 1 to 3 members but 4 are present"),
        ),
        (r#""uuid""#.into(), r#""x""#, syntax("\"x\"", "expected [\"uuid\", <string>]")),
        (r#""uuid""#.into(), r#"["uuid","x"]"#, syntax("[\"uuid\",\"x\"]", "\"x\" is not a valid UUID")),
        (
            r#""uuid""#.into(),
            r#"["named-uuid","1x"]"#,
            syntax("[\"named-uuid\",\"1x\"]", "named-uuid string is not a valid <id>"),
        ),
        (
            r#""string""#.into(),
            r#""\ude00""#,
            violation("not a valid UTF-8 string: invalid UTF-8 sequence 0xed 0xb8"),
        ),
        (
            limited(r#""string","enum":["set",["b","a b","true","c1",""]]"#),
            "\"zz\"",
            violation("zz is not one of the allowed values ([\"\", \"a b\", b, c1, \"true\"])"),
        ),
        (
            limited(r#""integer","enum":["set",[2,1]]"#),
            "3",
            violation("3 is not one of the allowed values ([1, 2])"),
        ),
        (
            limited(r#""integer","minInteger":-5,"maxInteger":10"#),
            "11",
            violation("11 is not in the valid range -5 to 10 (inclusive)"),
        ),
        (
            limited(r#""integer","minInteger":-5"#),
            "-6",
            violation("-6 is less than minimum allowed value -5"),
        ),
        (
            limited(r#""real","maxReal":0.001"#),
            "0.01",
            violation("0.01 is greater than maximum allowed value 0.001"),
        ),
        (
            limited(r#""string","minLength":2"#),
            "\"\u{e9}\"",
            violation("\"\u{e9}\" length 1 is less than minimum allowed length 2"),
        ),
        (
            limited(r#""string","maxLength":2"#),
            r#""abc""#,
            violation("\"abc\" length 3 is greater than maximum allowed length 2"),
        ),
    ];
    for (column, value, expected) in cases {
        let error = cell_of(&kind(&column), value).expect_err("wrong");
        assert_eq!(error.to_string(), expected, "{column} {value}");
    }
}

#[test]
fn without_names_a_named_uuid_is_no_uuid() {
    let text = br#"[["named-uuid","1x"]]"#;
    let value = validate(text).expect("JSON").elements().next().expect("a value");
    let error = parse(&kind("\"uuid\""), value, &mut super::no_names, Checks::All, &mut Vec::new());
    assert_eq!(error.expect_err("wrong").details(), Some("expected [\"uuid\", <string>]"));
}

#[test]
fn bytes_that_are_not_utf8_are_shown_up_to_the_first_that_cannot_be() {
    let cases: [(&[u8], &str); 7] = [
        (b"a\xc0\x80b", "0xc0"),
        (b"\xe2\x82", "0xe2 0x82 0x00"),
        (b"\xe2(\xa1", "0xe2 0x28"),
        (b"\xf4\x90\x80\x80", "0xf4 0x90"),
        (b"\xf0\x9f\x98x", "0xf0 0x9f 0x98 0x78"),
        (b"\xc3\xc3", "0xc3 0xc3"),
        (b"\xff", "0xff"),
    ];
    for (bytes, shown) in cases {
        let text = [b"\"".as_slice(), bytes, b"\""].concat();
        let kind = kind("\"string\"");
        let mut out = Vec::new();
        let error = parse(&kind, Value::of_checked(&text), &mut super::no_names, Checks::All, &mut out);
        let expected = format!("not a valid UTF-8 string: invalid UTF-8 sequence {shown}");
        assert_eq!(error.expect_err("wrong").details(), Some(expected.as_str()));
    }
}

#[test]
fn arithmetic_is_the_stock_servers() {
    let range = |operator: &str| format!("range error: Result of \"{operator}\" operation is out of range.");
    let duplicates = |operator: &str| {
        format!("constraint violation: Result of \"{operator}\" operation contains duplicates.")
    };
    let zero = "domain error: Division by zero.".to_owned();
    let integer = r#""integer""#;
    let real = r#""real""#;
    let cases = [
        (integer, "-7", "/=", "2", Ok("-3")),
        (integer, "-7", "%=", "2", Ok("-1")),
        (integer, "5", "/=", "0", Err(zero.clone())),
        (integer, "5", "%=", "0", Err(zero.clone())),
        (integer, "9223372036854775807", "+=", "1", Err(range("+="))),
        (integer, "-9223372036854775808", "-=", "1", Err(range("-="))),
        (integer, "9223372036854775807", "*=", "2", Err(range("*="))),
        (integer, "2", "*=", "-4611686018427387904", Ok("-9223372036854775808")),
        (integer, "-9223372036854775808", "/=", "-1", Err(range("/="))),
        (integer, "-9223372036854775808", "%=", "-1", Err(range("%="))),
        (real, "5", "/=", "2", Ok("2.5")),
        (real, "5", "/=", "0", Err(zero)),
        (real, "1e308", "*=", "1e308", Err(range("*="))),
        (INTEGERS, r#"["set",[-1,2,3]]"#, "*=", "-1", Ok(r#"["set",[-3,-2,1]]"#)),
        (INTEGERS, r#"["set",[1,2,3]]"#, "*=", "0", Err(duplicates("*="))),
        (INTEGERS, r#"["set",[]]"#, "/=", "0", Ok(r#"["set",[]]"#)),
        (
            r#"{"key":{"type":"integer","maxInteger":9}}"#,
            "5",
            "+=",
            "7",
            Err("constraint violation: 12 is greater than maximum allowed value 9".into()),
        ),
    ];
    for (column, value, operator, argument, expected) in cases {
        let kind = kind(column);
        let cell = cell_of(&kind, value).expect("a value");
        let scalar = ColumnType::scalar(crate::base_type::BaseType::plain(kind.key.kind));
        let argument = cell_of(&scalar, argument).expect("an argument");
        let argument = super::first(&scalar, &argument).expect("an atom");
        let operator = Operator::from_name(operator).expect("an operator");
        let mut out = Vec::new();
        let result = super::arithmetic(&kind, &cell, operator, &argument, &mut out);
        let result = result.map(|()| json(&kind, &out)).map_err(|error| error.to_string());
        assert_eq!(result, expected.map(str::to_owned));
    }
}

#[test]
fn a_difference_may_not_change_the_size_too_much() {
    let kind = kind(r#"{"key":"integer","min":1,"max":2}"#);
    let many = kind.transient();
    let old = cell_of(&kind, r#"["set",[1,2]]"#).expect("a value");
    let mut out = Vec::new();
    let grown = cell_of(&many, r#"["set",[3]]"#).expect("a value");
    let error = super::apply_diff(&kind, &old, &grown, &mut out).expect_err("three");
    assert_eq!(error.details(), Some("Datum crated by diff has size error"));
    assert!(super::apply_diff(&kind, &old, &old, &mut out).is_err() && out.is_empty());
}

/// A column type of the model: kinds of keys and values.
fn kinds() -> impl Strategy<Value = ColumnType> {
    const NAMES: &[&str] = &["integer", "real", "boolean", "string", "uuid"];
    let key = prop::sample::select(NAMES);
    let value = proptest::option::of(prop::sample::select(NAMES));
    (key, value, 0..2, prop::sample::select(vec!["1", "3", "\"unlimited\""])).prop_map(
        |(key, value, min, max)| {
            let value = value.map(|value| format!(",\"value\":\"{value}\"")).unwrap_or_default();
            kind(&format!("{{\"key\":\"{key}\"{value},\"min\":{min},\"max\":{max}}}"))
        },
    )
}

/// An atom in the model.
#[derive(Debug, Clone, PartialEq)]
enum Plain {
    Integer(i64),
    Real(f64),
    Boolean(bool),
    String(String),
    Uuid([u8; 16]),
}

impl Plain {
    /// Made from a few bits: few distinct atoms, so that they collide.
    fn new(kind: AtomType, bits: u8) -> Self {
        let small = i64::from(bits % 16) - 8;
        match kind {
            AtomType::Integer => Self::Integer(if bits >= 240 { small << 58 } else { small * 50 }),
            AtomType::Real => Self::Real(small as f64 / 4.0),
            AtomType::Boolean => Self::Boolean(bits & 1 == 1),
            AtomType::String => {
                Self::String("a\u{e9}z\"".repeat(usize::from(bits / 64)) + &small.to_string())
            }
            AtomType::Uuid => {
                let mut uuid = [0; 16];
                uuid[usize::from(bits % 3) * 7] = bits / 16;
                Self::Uuid(uuid)
            }
        }
    }

    /// Made from more bits: all distinct, packed in one to nine bytes if it is an integer.
    fn distinct(kind: AtomType, bits: u16) -> Self {
        let number = i64::from(bits) - (1 << 15);
        match kind {
            AtomType::Integer => Self::Integer(number * if bits.is_multiple_of(3) { 1 << 45 | 1 } else { 1 }),
            AtomType::Real => Self::Real(number as f64 / 4.0),
            AtomType::Boolean => Self::Boolean(bits & 1 == 1),
            AtomType::String => Self::String(number.to_string()),
            AtomType::Uuid => {
                let mut uuid = [0; 16];
                uuid[usize::from(bits % 7)..][..2].copy_from_slice(&bits.to_be_bytes());
                Self::Uuid(uuid)
            }
        }
    }

    fn atom(&self) -> Atom<'_> {
        match self {
            Self::Integer(value) => Atom::Integer(*value),
            Self::Real(value) => Atom::Real(*value),
            Self::Boolean(value) => Atom::Boolean(*value),
            Self::String(text) => Atom::String(text),
            Self::Uuid(bytes) => Atom::Uuid(Uuid(*bytes)),
        }
    }
}

impl Eq for Plain {}

impl PartialOrd for Plain {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Plain {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Integer(one), Self::Integer(other)) => one.cmp(other),
            (Self::Real(one), Self::Real(other)) => one.partial_cmp(other).expect("no NaN"),
            (Self::Boolean(one), Self::Boolean(other)) => one.cmp(other),
            (Self::String(one), Self::String(other)) => one.cmp(other),
            (Self::Uuid(one), Self::Uuid(other)) => one.cmp(other),
            _ => panic!("atoms of two kinds"),
        }
    }
}

/// A set or map in the model. The values of a set's elements are `None`.
type Model = BTreeMap<Plain, Option<Plain>>;

fn model(kind: &ColumnType, bits: &[(u8, u8)]) -> Model {
    let limit = if kind.is_scalar() { 1 } else { usize::MAX };
    let value = |bits| kind.value.as_ref().map(|base| Plain::new(base.kind, bits));
    let elements = bits.iter().map(|(key, other)| (Plain::new(kind.key.kind, *key), value(*other)));
    let mut model: Model = elements.take(limit).collect();
    if kind.is_scalar() && model.is_empty() {
        model.insert(Plain::new(kind.key.kind, 0), None);
    }
    model
}

fn packed(kind: &ColumnType, model: &Model) -> Vec<u8> {
    let mut out = Vec::new();
    let mut builder = super::Builder::new(kind, &out);
    // Out of order, to be sorted.
    for (key, value) in model.iter().rev() {
        builder.push(&mut out, key.atom(), value.as_ref().map(Plain::atom));
    }
    builder.finish(&mut out).expect("no duplicates");
    out
}

proptest! {
    #[test]
    fn cells_compute_as_sets_and_maps_do(
        kind in kinds(),
        one in vec(any::<(u8, u8)>(), 0..12),
        other in vec(any::<(u8, u8)>(), 0..12),
        share in any::<u8>(),
    ) {
        // Both have some elements in common.
        let mut other = other;
        other.extend(one.iter().take(usize::from(share) % 8));
        let (one, other) = (model(&kind, &one), model(&kind, &other));
        let (cell, cell_other) = (packed(&kind, &one), packed(&kind, &other));

        prop_assert_eq!(super::len(&kind, &cell), one.len());
        let text = format!("[{}]", json(&kind, &cell));
        let value = validate(text.as_bytes()).expect("JSON").elements().next().expect("a value");
        let mut back = Vec::new();
        let read = parse(&kind, value, &mut super::no_names, Checks::Nothing, &mut back);
        prop_assert!(read.is_ok());
        prop_assert_eq!(&back, &cell);
        let count = u32::try_from(one.len()).unwrap_or(u32::MAX);
        let allowed = (kind.n_min..=kind.n_max).contains(&count);
        prop_assert_eq!(super::has_allowed_length(&kind, &cell), allowed);
        prop_assert_eq!(parse(&kind, value, &mut super::no_names, Checks::All, &mut back).is_ok(), allowed);
        let default = kind.default_cell();
        prop_assert!(super::is_default(&kind, &default));
        prop_assert_eq!(super::is_default(&kind, &cell), cell == default);

        prop_assert_eq!(cell == cell_other, one == other);
        let expected = one.len().cmp(&other.len())
            .then_with(|| one.keys().cmp(other.keys()))
            .then_with(|| one.values().cmp(other.values()));
        prop_assert_eq!(super::compare(&kind, &cell, &cell_other), expected);
        let includes = other.iter().all(|(key, value)| one.get(key) == Some(value));
        prop_assert_eq!(super::includes(&kind, &cell, &cell_other), includes);
        let excludes = !other.iter().any(|(key, value)| one.get(key) == Some(value));
        prop_assert_eq!(super::excludes(&kind, &cell, &cell_other), excludes);
        for key in other.keys() {
            prop_assert_eq!(super::contains_key(&kind, &cell, &key.atom()), one.contains_key(key));
            let expected = one.get(key).and_then(|value| value.as_ref().map(Plain::atom));
            prop_assert_eq!(super::value_of(&kind, &cell, &key.atom()), expected);
        }

        if !kind.is_scalar() {
            let mut out = Vec::new();
            let union: Model = other.clone().into_iter().chain(one.clone()).collect();
            super::union(&kind, &cell, &cell_other, &mut out);
            prop_assert_eq!(&out, &packed(&kind, &union));

            out.clear();
            let rest: Model =
                one.clone().into_iter().filter(|(key, value)| other.get(key) != Some(value)).collect();
            super::subtract(&kind, &cell, &kind, &cell_other, &mut out);
            prop_assert_eq!(&out, &packed(&kind, &rest));

            out.clear();
            let keys_kind = kind.transient_keys();
            let keys: Model = other.keys().map(|key| (key.clone(), None)).collect();
            let rest: Model = one.clone().into_iter().filter(|(key, _)| !other.contains_key(key)).collect();
            super::subtract(&kind, &cell, &keys_kind, &packed(&keys_kind, &keys), &mut out);
            prop_assert_eq!(&out, &packed(&kind, &rest));
        }

        let mut difference = Vec::new();
        super::diff(&kind, &cell, &cell_other, &mut difference);
        if kind.is_composite() {
            let gone = one.iter().filter(|(key, _)| !other.contains_key(key));
            let new = other.iter().filter(|(key, value)| one.get(key) != Some(value));
            let expected: Model = gone.chain(new).map(|(key, value)| (key.clone(), value.clone())).collect();
            prop_assert_eq!(&difference, &packed(&kind, &expected));
        } else {
            prop_assert_eq!(&difference, &cell_other);
        }
        let mut applied = Vec::new();
        let result = super::apply_diff(&kind, &cell, &difference, &mut applied);
        if result.is_ok() {
            prop_assert_eq!(applied, cell_other);
        } else {
            prop_assert!(!super::has_allowed_length(&kind, &cell_other));
        }
    }

    /// Cells so long that elements are searched for by halves.
    #[test]
    fn long_cells_compute_as_sets_and_maps_do(
        key in 0..4_usize,
        value in prop_oneof![Just(None), Just(Some(AtomType::Uuid)), Just(Some(AtomType::String))],
        one in vec(any::<u16>(), 100..500),
        other in vec(any::<u16>(), 1..10),
        common in vec(any::<proptest::sample::Index>(), 0..10),
    ) {
        let key = [AtomType::Integer, AtomType::Real, AtomType::Uuid, AtomType::String][key];
        let base = crate::base_type::BaseType::plain;
        let kind = ColumnType { n_min: 0, n_max: UNLIMITED, value: value.map(base), ..ColumnType::scalar(base(key)) };
        let model = |bits: &[u16]| -> Model {
            let elements = bits.iter().map(|bits| {
                (Plain::distinct(key, *bits), value.map(|kind| Plain::new(kind, (bits % 3) as u8)))
            });
            elements.collect()
        };
        // Some keys in common; of these, some with another value.
        let other: Vec<u16> = other.into_iter().chain(common.iter().map(|index| *index.get(&one))).collect();
        let (one, mut other) = (model(&one), model(&other));
        for (place, found) in other.values_mut().enumerate() {
            *found = value.filter(|_| place % 3 == 0).map(|kind| Plain::new(kind, 3)).or_else(|| found.take());
        }
        let (cell, cell_other) = (packed(&kind, &one), packed(&kind, &other));
        let is_in = |(key, value): (&Plain, &Option<Plain>)| one.get(key) == Some(value);
        prop_assert_eq!(super::includes(&kind, &cell, &cell_other), other.iter().all(is_in));
        prop_assert_eq!(super::excludes(&kind, &cell, &cell_other), !other.iter().any(is_in));
        prop_assert_eq!(super::excludes(&kind, &cell_other, &cell), !other.iter().any(is_in));

        let mut out = Vec::new();
        let union: Model = other.clone().into_iter().chain(one.clone()).collect();
        super::union(&kind, &cell, &cell_other, &mut out);
        prop_assert_eq!(&out, &packed(&kind, &union));
        out.clear();
        let rest: Model = one.clone().into_iter().filter(|(key, value)| other.get(key) != Some(value)).collect();
        super::subtract(&kind, &cell, &kind, &cell_other, &mut out);
        prop_assert_eq!(&out, &packed(&kind, &rest));
        out.clear();
        let keys = kind.transient_keys();
        let unwanted: Model = other.keys().map(|key| (key.clone(), None)).collect();
        let rest: Model = one.into_iter().filter(|(key, _)| !other.contains_key(key)).collect();
        super::subtract(&kind, &cell, &keys, &packed(&keys, &unwanted), &mut out);
        prop_assert_eq!(&out, &packed(&kind, &rest));
    }

    #[test]
    fn a_row_splits_into_its_cells(columns in vec((kinds(), vec(any::<(u8, u8)>(), 0..6)), 0..6)) {
        let cells: Vec<Vec<u8>> = columns.iter().map(|(kind, bits)| packed(kind, &model(kind, bits))).collect();
        let row = cells.concat();
        let mut rest = row.as_slice();
        for ((kind, _), cell) in columns.iter().zip(&cells) {
            prop_assert_eq!(super::split(kind, &mut rest), cell.as_slice());
        }
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn bytes_that_are_no_cell_do_no_harm(
        kind in kinds(),
        bytes in vec(any::<u8>(), 0..40),
        more in vec(any::<u8>(), 0..40),
    ) {
        let mut rest = bytes.as_slice();
        super::split(&kind, &mut rest);
        prop_assert!(super::atoms(&kind, &bytes).count() <= bytes.len().max(1));
        let mut out = Vec::new();
        super::write_json(&kind, &bytes, &mut out);
        super::union(&kind, &bytes, &more, &mut out);
        super::diff(&kind, &bytes, &more, &mut out);
        super::subtract(&kind, &bytes, &kind, &more, &mut out);
        let _ = super::apply_diff(&kind, &bytes, &more, &mut out);
        let _ = (super::compare(&kind, &bytes, &more), super::is_default(&kind, &bytes), super::to_text(&kind, &bytes));
        let _ = (super::includes(&kind, &bytes, &more), super::check(&kind, &bytes));
    }

    #[test]
    fn packed_atoms_have_the_order_of_atoms(kind in 0..5_usize, one: u8, other: u8) {
        use AtomType::{Boolean, Integer, Real, String, Uuid};
        let kind = [Integer, Real, Boolean, String, Uuid][kind];
        let (one, other) = (Plain::new(kind, one), Plain::new(kind, other));
        let pack = |plain: &Plain| {
            let mut out = Vec::new();
            crate::atom::put(&mut out, plain.atom());
            out
        };
        let (packed_one, packed_other) = (pack(&one), pack(&other));
        prop_assert_eq!(crate::atom::compare_packed(kind, &packed_one, &packed_other), one.cmp(&other));
        prop_assert_eq!(crate::atom::compare(&one.atom(), &other.atom()), one.cmp(&other));
        let mut rest = packed_one.as_slice();
        prop_assert_eq!(crate::atom::take_packed(&mut rest, kind), packed_one.as_slice());
        let mut rest = packed_one.as_slice();
        prop_assert_eq!(crate::atom::take(&mut rest, kind), one.atom());
        prop_assert!(rest.is_empty());
    }
}
