use super::{Cursor, DEPTH_MAX, Kind, Number, Scanner, Value, validate, write};
use proptest::collection::vec;
use proptest::prelude::*;

fn error_of(text: &[u8]) -> String {
    validate(text).expect_err("not JSON").to_string()
}

fn sorted(text: &str) -> String {
    let mut out = Vec::new();
    write::sorted(&mut out, validate(text.as_bytes()).expect("JSON"));
    String::from_utf8(out).expect("UTF-8")
}

/// The element of a one-element array.
fn only(array: &str) -> Value<'_> {
    validate(array.as_bytes()).expect("JSON").elements().next().expect("an element")
}

#[test]
fn each_error_is_the_stock_servers() {
    let cases: &[(&[u8], &str)] = &[
        (b"", "line 0, column 0, byte 0: empty input stream"),
        (b" ", "line 0, column 1, byte 1: empty input stream"),
        (b"5", "line 0, column 1, byte 1: syntax error at beginning of input"),
        (b"\"a\"", "line 0, column 2, byte 2: syntax error at beginning of input"),
        (b"[1", "line 0, column 3, byte 3: unexpected end of input"),
        (b"{\"a\":\"b", "line 0, column 7, byte 7: unexpected end of input in quoted string"),
        (b"[tru", "line 0, column 4, byte 4: invalid keyword 'tru'"),
        (b"[]\n [", "line 1, column 1, byte 4: trailing garbage at end of input"),
        (b"[] x", "line 0, column 4, byte 4: invalid keyword 'x'"),
        (b"[1,]", "line 0, column 3, byte 3: syntax error expecting value"),
        (b"[,1]", "line 0, column 1, byte 1: syntax error expecting value"),
        (b"[1 2]", "line 0, column 4, byte 4: syntax error expecting ']' or ','"),
        (b"[12345}", "line 0, column 6, byte 6: syntax error expecting ']' or ','"),
        (b"[\"a\"\"bc\"]", "line 0, column 7, byte 7: syntax error expecting ']' or ','"),
        (b"{1}", "line 0, column 2, byte 2: syntax error parsing object expecting string"),
        (b"{\"a\":1,}", "line 0, column 7, byte 7: syntax error parsing object expecting string"),
        (b"{\"a\" 1}", "line 0, column 6, byte 6: syntax error parsing object expecting ':'"),
        (b"{\"a\":}", "line 0, column 5, byte 5: syntax error expecting value"),
        (b"{\"a\":1 \"b\"}", "line 0, column 9, byte 9: syntax error expecting '}' or ','"),
        (b"\n\n [\n1 \n2]", "line 4, column 1, byte 9: syntax error expecting ']' or ','"),
        (b"[\"\\\n\n\"]", "line 1, column 0, byte 4: U+000A must be escaped in quoted string"),
        (b"[TRUE]", "line 0, column 1, byte 1: invalid character 'T'"),
        (b"[\x01]", "line 0, column 1, byte 1: invalid character U+0001"),
        (b"[\x7f]", "line 0, column 1, byte 1: invalid character U+007f"),
        (b"[\x80]", "line 0, column 1, byte 1: invalid character U+0080"),
        (b"[01]", "line 0, column 3, byte 3: leading zeros not allowed"),
        (b"[-]", "line 0, column 2, byte 2: '-' must be followed by digit"),
        (b"[1.]", "line 0, column 3, byte 3: decimal point must be followed by digit"),
        (b"[1e]", "line 0, column 3, byte 3: exponent must contain at least one digit"),
        (b"[1-2]", "line 0, column 4, byte 4: syntax error in number"),
        (b"[1e400]", "line 0, column 6, byte 6: number outside valid range"),
        (b"[3e-324]", "line 0, column 7, byte 7: number outside valid range"),
        (b"[1e2147483647]", "line 0, column 13, byte 13: exponent outside valid range"),
        (b"[\"\\x\"]", "line 0, column 4, byte 4: bad escape \\x"),
        (b"[\"\\u0000\"]", "line 0, column 8, byte 8: null bytes not supported in quoted strings"),
        (b"[\"\\u12\"]", "line 0, column 6, byte 6: quoted string ends within \\u escape"),
        (b"[\"\\u12g4\"]", "line 0, column 8, byte 8: malformed \\u escape"),
        (b"[\"\\ud83d\"]", "line 0, column 8, byte 8: malformed escaped surrogate pair"),
        (
            b"[\"\\ud83d\\u0041\"]",
            "line 0, column 14, byte 14: second half of escaped surrogate pair is not trailing surrogate",
        ),
        (b"[\"a\nb\"]", "line 0, column 3, byte 3: U+000A must be escaped in quoted string"),
    ];
    for (text, expected) in cases {
        assert_eq!(error_of(text), *expected, "{}", String::from_utf8_lossy(text));
    }
}

#[test]
fn nesting_is_bounded() {
    let deep = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
    assert!(validate(&deep(1000)).is_ok());
    assert_eq!(
        error_of(&deep(1001)),
        "line 0, column 1000, byte 1000: input exceeds maximum nesting depth 1000"
    );
    let value = deep(1000);
    let mut out = Vec::new();
    write::sorted(&mut out, validate(&value).expect("JSON"));
    assert_eq!(out, value);
}

#[test]
fn numbers_are_integers_whenever_they_can_be() {
    let cases = [
        ("1.0", "1"),
        ("1e3", "1000"),
        ("-0", "0"),
        ("-0.0e5", "0"),
        ("0.1e1", "1"),
        ("1e18", "1000000000000000000"),
        ("1e19", "1e+19"),
        ("9223372036854775807", "9223372036854775807"),
        ("9223372036854775806.0", "9223372036854775806"),
        ("9223372036854775808", "9.22337203685478e+18"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("-9223372036854775809", "-9.22337203685478e+18"),
        ("18446744073709551615", "1.84467440737096e+19"),
        ("18446744073709551616", "0"),
        ("18446744073709551617", "1"),
        ("1.8446744073709551616", "0"),
        ("184467440737095516160", "0"),
        ("123456789012345678901234567890", "1.23456789012346e+29"),
        ("1.00000000000000000000000000", "1"),
        ("1e-400", "0"),
        ("0.30000000000000004", "0.3"),
        ("123456789.123456789", "123456789.123457"),
        ("2.5e-5", "2.5e-05"),
        ("0.0001", "0.0001"),
        ("0.00001", "1e-05"),
        ("1.7976931348623157e308", "1.79769313486232e+308"),
        ("2.2250738585072014e-308", "2.2250738585072e-308"),
        ("-1.5e-7", "-1.5e-07"),
    ];
    for (number, expected) in cases {
        assert_eq!(sorted(&format!("[{number}]")), format!("[{expected}]"), "{number}");
    }
    assert_eq!(only("[1e3]").kind(), Kind::Integer);
    assert_eq!(only("[1e30]").kind(), Kind::Real);
    assert_eq!(only("[ -12]").as_integer(), Some(-12));
    assert_eq!(only("[1.5]").as_integer(), None);
    assert_eq!(only("[\"1\"]").as_integer(), None);
}

#[test]
fn reals_print_as_in_c() {
    let cases = [
        (0.0, "0"),
        (1.0, "1"),
        (-2.5, "-2.5"),
        (1e14, "100000000000000"),
        (1e15, "1e+15"),
        (123_456_789_012_345.6, "123456789012346"),
        (999_999_999_999_999.9, "1e+15"),
        (0.000_1, "0.0001"),
        (0.000_012_5, "1.25e-05"),
        (1e100, "1e+100"),
        (-1e-100, "-1e-100"),
        (f64::MAX, "1.79769313486232e+308"),
    ];
    for (value, expected) in cases {
        let mut out = Vec::new();
        write::real(&mut out, value);
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}

#[test]
fn sorted_text_is_the_one_form_of_a_value() {
    let text = " {\"b\" : [1, true ,null], \
        \"a\":\"\\u00e9\\/\\u0007\\ud83d\\ude00\\\"\\\\\\b\\f\\n\\r\\t\u{7f}\",\"b\":{} }";
    assert_eq!(sorted(text), "{\"a\":\"\u{e9}/\\u0007\u{1f600}\\\"\\\\\\b\\f\\n\\r\\t\u{7f}\",\"b\":{}}");
    assert_eq!(sorted("[[],{}, [ ] ]"), "[[],{},[]]");
    assert_eq!(
        sorted(
            "{\"b\" : [{\"z\": {\"y\":[]}, \"a\" :{}}] ,\"a\":{\"x\":\"[{\",\"c\": [[{\"k\":{ } }]] \
            },\"b\":{\"q\":[1] }}"
        ),
        "{\"a\":{\"c\":[[{\"k\":{}}]],\"x\":\"[{\"},\"b\":{\"q\":[1]}}"
    );
}

#[test]
fn strings_that_are_not_utf8_keep_their_bytes() {
    let text = b"[\"a\xffb\", \"\\ude00\"]";
    let value = validate(text).expect("as JSON it passes");
    let mut elements = value.elements();
    assert_eq!(elements.next().expect("one").as_string().expect("a string"), "a\u{fffd}b");
    let mut second = elements.next().expect("two").cursor();
    assert_eq!(second.string_bytes().as_ref(), b"\xed\xb8\x80");
}

#[test]
fn members_come_in_their_order_and_the_last_counts() {
    let value = validate(b"{\"a\":1,\"b\":{\"c\":[]},\"a\":2}").expect("JSON");
    let names: Vec<_> = value.members().map(|(name, value)| (name.into_owned(), value.text())).collect();
    let expected: [(&str, &[u8]); 3] = [("a", b"1"), ("b", b"{\"c\":[]}"), ("a", b"2")];
    assert_eq!(names, expected.map(|(name, text)| (name.to_owned(), text)));
    assert_eq!(value.member("a").and_then(Value::as_integer), Some(2));
    assert_eq!(value.member("c").map(Value::text), None);
    assert_eq!(validate(b"[1]").expect("JSON").members().count(), 0);
    assert_eq!(value.elements().count(), 0);
}

#[test]
fn a_uuid_has_its_36_characters() {
    let mut out = Vec::new();
    write::uuid(&mut out, &std::array::from_fn(|place| place as u8 * 17));
    assert_eq!(out, b"00112233-4455-6677-8899-aabbccddeeff");
}

/// Texts that are JSON, nearly JSON, or made of its characters.
fn texts() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::sample::select(vec![
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "\"",
        "\\",
        "\\u",
        "00e9",
        "d83d",
        "de00",
        "\\\"",
        "a",
        "true",
        "null",
        "nul",
        "1",
        "-",
        "0",
        "12",
        ".5",
        "e",
        "+",
        "123456789012345678901",
        " ",
        "\n",
        "\"a\":",
        "\"key\"",
        "[1,2]",
        "{\"a\":[]}",
        "\u{e9}",
        "\u{1}",
        "\"\\n\\ud83d\\ude00\"",
    ]);
    let soup = vec(pieces, 0..12).prop_map(|pieces| pieces.concat().into_bytes());
    let wrapped = soup.clone().prop_map(|soup| [b"[".as_slice(), &soup, b"]"].concat());
    prop_oneof![
        soup,
        wrapped,
        trees().prop_map(|tree| tree.to_string().into_bytes()),
        vec(any::<u8>(), 0..20)
    ]
}

/// Arrays and objects as another implementation knows them.
fn trees() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        (-1e300..1e300).prop_map(serde_json::Value::from),
        "[^\u{0}]{0,12}".prop_map(serde_json::Value::from),
    ];
    let tree = leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(serde_json::Value::from),
            vec(("[^\u{0}]{0,6}", inner), 0..6)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    });
    vec(tree, 0..4).prop_map(serde_json::Value::from)
}

/// What [`Cursor`] sees, as a tree.
fn read(cursor: &mut Cursor<'_>) -> serde_json::Value {
    match cursor.kind() {
        Kind::Null => {
            cursor.null();
            serde_json::Value::Null
        }
        Kind::Boolean => cursor.boolean().into(),
        Kind::Integer | Kind::Real => match cursor.number() {
            Number::Integer(value) => value.into(),
            Number::Real(value) => value.into(),
        },
        Kind::String => cursor.string().into_owned().into(),
        Kind::Array => {
            let mut elements = Vec::new();
            cursor.enter_array();
            while cursor.next_element() {
                elements.push(read(cursor));
            }
            elements.into()
        }
        Kind::Object => {
            let mut members = serde_json::Map::new();
            cursor.enter_object();
            while let Some(name) = cursor.next_member() {
                members.insert(name.into_owned(), read(cursor));
            }
            serde_json::Value::Object(members)
        }
    }
}

/// Reals that happen to be integers are integers here.
fn with_integers(tree: serde_json::Value) -> serde_json::Value {
    match tree {
        serde_json::Value::Number(number) => match number.as_f64() {
            Some(real) if !number.is_i64() && real.trunc() == real && real.abs() < 9e18 => {
                (real as i64).into()
            }
            _ => serde_json::Value::Number(number),
        },
        serde_json::Value::Array(elements) => elements.into_iter().map(with_integers).collect(),
        serde_json::Value::Object(members) => {
            members.into_iter().map(|(name, value)| (name, with_integers(value))).collect()
        }
        other => other,
    }
}

proptest! {
    #[test]
    fn pieces_of_any_size_give_the_answer_of_the_whole(text in texts(), sizes in vec(1..5_usize, 1..20)) {
        let whole = Scanner::new(1000).advance(&text);
        let mut scanner = Scanner::new(1000);
        let (mut at, mut result) = (0, Ok(None));
        for size in sizes.iter().cycle() {
            let piece = text.get(at..text.len().min(at + size)).unwrap_or_default();
            if piece.is_empty() {
                break;
            }
            result = scanner.advance(piece);
            match &mut result {
                Ok(None) => at += piece.len(),
                Ok(Some(end)) => {
                    *end += at;
                    break;
                }
                Err(_) => break,
            }
        }
        prop_assert_eq!(result, whole);
    }

    #[test]
    fn what_another_implementation_takes_for_json_is_json(text in texts()) {
        let other: Result<serde_json::Value, _> = serde_json::from_slice(&text);
        if let Ok(other) = other
            && (other.is_array() || other.is_object())
            && !text.windows(6).any(|window| window == b"\\u0000")
        {
            let value = validate(&text);
            prop_assert!(value.is_ok(), "{value:?}");
        }
    }

    #[test]
    fn a_cursor_sees_the_tree(tree in trees()) {
        let tree = with_integers(tree);
        let text = serde_json::to_vec_pretty(&tree).expect("JSON");
        let value = validate(&text).expect("JSON");
        let mut cursor = value.cursor();
        let seen = read(&mut cursor);
        prop_assert!(cursor.rest().is_empty());
        prop_assert_eq!(seen, tree);
        let mut whole = Cursor::new(&text);
        prop_assert_eq!(whole.skip().text(), text.as_slice());
    }

    #[test]
    fn sorted_text_is_stable(tree in trees()) {
        // Once is not enough: a real with 15 digits may be an integer when it is read again.
        let twice = sorted(&sorted(&tree.to_string()));
        prop_assert_eq!(sorted(&twice), twice);
    }

    #[test]
    fn strings_come_back(text in "[^\u{0}]{0,40}") {
        let mut out = vec![b'['];
        write::string(&mut out, &text);
        out.push(b']');
        let back = only(std::str::from_utf8(&out).expect("UTF-8")).as_string().map(|text| text.into_owned());
        prop_assert_eq!(back, Some(text));
    }

    #[test]
    fn integers_come_back(value: i64) {
        let mut out = Vec::new();
        write::integer(&mut out, value);
        prop_assert_eq!(String::from_utf8_lossy(&out), value.to_string());
        prop_assert_eq!(Value::of_checked(&out).as_integer(), Some(value));
    }

    #[test]
    fn reals_keep_fifteen_digits(value in proptest::num::f64::NORMAL) {
        let mut out = Vec::new();
        write::real(&mut out, value);
        let back: f64 = std::str::from_utf8(&out).expect("UTF-8").parse().expect("a number");
        prop_assert!(value == back || ((value - back) / value).abs() < 1e-14);
    }

    #[test]
    fn unchecked_text_does_no_harm(text in texts()) {
        let mut out = Vec::new();
        let value = Value::of_checked(&text);
        let _ = (value.as_string(), value.as_integer(), value.as_boolean(), value.kind());
        write::sorted(&mut out, value);
        prop_assert!(value.elements().count() <= text.len());
        prop_assert!(value.members().count() <= text.len());
    }
}

/// A value that is `depth` objects deep, each with its members in the wrong order.
fn deep(depth: usize) -> String {
    let mut text = "0".to_owned();
    for _ in 0..depth {
        text = format!("{{\"b\":[{text}],\"a\":{{}}}}");
    }
    text
}

#[test]
fn sorting_reads_no_level_twice() {
    // Two levels of nesting each.
    for depth in [1, 10, DEPTH_MAX / 2] {
        let text = deep(depth);
        let value = validate(text.as_bytes()).expect("JSON");
        let before = super::cursor::SKIPPED_BYTES.get();
        let mut out = Vec::new();
        write::sorted(&mut out, value);
        assert_eq!(out.len(), text.len());
        let skipped = super::cursor::SKIPPED_BYTES.get() - before;
        assert!(skipped <= text.len(), "{skipped} bytes were skipped of {}", text.len());
    }
}
