use super::{ColumnRef, DatabaseSchema, TableId, is_version};
use wire::json::validate;

fn parse(text: &str) -> Result<DatabaseSchema, String> {
    DatabaseSchema::parse(validate(text.as_bytes()).expect("JSON")).map_err(|error| error.to_string())
}

fn written(text: &str) -> String {
    let mut out = Vec::new();
    parse(text).expect("a schema").write_json(&mut out);
    String::from_utf8(out).expect("UTF-8")
}

/// A schema with one table of one column of this type.
fn of_type(kind: &str) -> String {
    format!("{{\"name\":\"D\",\"tables\":{{\"A\":{{\"columns\":{{\"c\":{{\"type\":{kind}}}}}}}}}}}")
}

#[test]
fn a_schema_prints_as_the_stock_server_prints_it() {
    let text = r#"{"cksum":"1 2","name":"D","tables":{"A":{"columns":{"e":{"ephemeral":true,"mutable":false,"type":"real"},"s":{"type":{"key":{"enum":["set",["a","b"]],"type":"string"}}}},"indexes":[["s"],["_uuid","s"]],"isRoot":true,"maxRows":5},"B":{"columns":{"r":{"type":{"key":"string","max":"unlimited","min":0,"value":{"refTable":"A","refType":"weak","type":"uuid"}}}},"mutable":false}},"version":"1.2.3"}"#;
    assert_eq!(written(text), text);
    let types = [
        (r#"{"key":"integer"}"#, r#""integer""#),
        (r#"{"key":{"type":"integer"},"min":1,"max":1}"#, r#""integer""#),
        (
            r#"{"key":{"type":"integer","minInteger":-9223372036854775808,"maxInteger":5.0}}"#,
            r#"{"key":{"maxInteger":5,"type":"integer"}}"#,
        ),
        (
            r#"{"key":{"type":"real","maxReal":1e300,"minReal":0.1}}"#,
            r#"{"key":{"maxReal":1e+300,"minReal":0.1,"type":"real"}}"#,
        ),
        (
            r#"{"key":{"type":"string","minLength":0,"maxLength":0},"max":4}"#,
            r#"{"key":{"maxLength":0,"type":"string"},"max":4}"#,
        ),
        (
            r#"{"key":{"type":"uuid","refTable":"A","refType":"strong"},"min":0}"#,
            r#"{"key":{"refTable":"A","type":"uuid"},"min":0}"#,
        ),
        (
            r#"{"key":{"type":"integer","enum":["set",[2,1]]}}"#,
            r#"{"key":{"enum":["set",[1,2]],"type":"integer"}}"#,
        ),
    ];
    for (given, expected) in types {
        assert_eq!(written(&of_type(given)), of_type(expected));
    }
    assert_eq!(written(r#"{"name":"E","name":"D","tables":{}}"#), r#"{"name":"D","tables":{}}"#);
}

#[test]
fn names_and_numbers_lead_to_tables_and_columns() {
    let schema = parse(r#"{"name":"D","tables":{"b":{"columns":{"y":{"type":{"key":{"type":"uuid","refTable":"a_"}}},"x":{"type":"integer"}}},"a_":{"columns":{"c":{"type":"string"}}},"B":{"columns":{"c":{"type":"string"}}}}}"#).expect("a schema");
    let names: Vec<_> = schema.tables().map(|(_, table)| table.name.as_str()).collect();
    assert_eq!(names, ["B", "a_", "b"]);
    let (id, table) = schema.find_table("b").expect("a table");
    assert_eq!(id, TableId(2));
    let Some(ColumnRef::Column(y)) = table.find_column("y") else { panic!("no column y") };
    assert_eq!(y.index(), 1);
    let column = table.column(y);
    assert_eq!(column.kind.key.strong_reference().map(|reference| reference.target), Some(TableId(1)));
    assert_eq!(column.default, [0; 16]);
    assert_eq!(table.find_column("_uuid"), Some(ColumnRef::Uuid));
    assert_eq!(table.find_column("z"), None);
    assert!(schema.find_table("c").is_none());
    assert!(schema.tables().all(|(_, table)| table.is_root), "none is root, so all are");
}

#[test]
fn what_keeps_a_row_alive_is_not_ephemeral() {
    let text = r#"{"name":"D","tables":{"A":{"isRoot":true,"columns":{"c":{"type":{"key":{"type":"uuid","refTable":"B"}},"ephemeral":true}}},"B":{"columns":{"c":{"type":"integer"}}}}}"#;
    assert!(!written(text).contains("ephemeral"));
}

#[test]
fn each_error_is_the_stock_servers() {
    let cases = [
        ("[]".to_owned(), "syntax error: Parsing database schema failed: Object expected."),
        (
            "{}".to_owned(),
            "syntax \"{}\": syntax error: Parsing database schema failed: Required 'name' member is missing.",
        ),
        (
            r#"{"name":"D","version":"1.2","tables":{}}"#.to_owned(),
            r#"syntax "{"name":"D","tables":{},"version":"1.2"}": syntax error: schema version "1.2" not in format x.y.z"#,
        ),
        (
            r#"{"name":"1D","tables":{}}"#.to_owned(),
            r#"syntax "{"name":"1D","tables":{}}": syntax error: Parsing database schema failed: Type mismatch for member 'name'."#,
        ),
        (
            r#"{"name":"D","tables":{},"x":1}"#.to_owned(),
            r#"syntax "{"name":"D","tables":{},"x":1}": syntax error: Parsing database schema failed: Member 'x' is present but not allowed here."#,
        ),
        (
            r#"{"name":"D","tables":{"A":{"columns":{}}}}"#.to_owned(),
            r#"syntax "{"columns":{}}": syntax error: table must have at least one column"#,
        ),
        (
            r#"{"name":"D","tables":{"A":{"columns":{"_c":{"type":"real"}}}}}"#.to_owned(),
            r#"syntax "{"columns":{"_c":{"type":"real"}}}": syntax error: names beginning with "_" are reserved"#,
        ),
        (
            r#"{"name":"D","tables":{"A":{"columns":{"c":5}}}}"#.to_owned(),
            "syntax error: Parsing schema for column c failed: Object expected.",
        ),
        (of_type("\"x\""), r#"syntax ""x"": syntax error: "x" is not an atomic-type"#),
        (of_type(r#"{"key":"real","max":-1}"#), r#"syntax "-1": syntax error: bad min or max value"#),
        (
            of_type(r#"{"key":"real","min":2}"#),
            r#"syntax "{"key":"real","min":2}": syntax error: ovsdb type fails constraint checks"#,
        ),
        (
            of_type(r#"{"key":{"type":"uuid","refTable":"B"}}"#),
            "syntax error: column c key refers to undefined table B",
        ),
        (
            of_type(r#"{"key":{"type":"uuid","refTable":"A","refType":"x"}}"#),
            r#"syntax "{"refTable":"A","refType":"x","type":"uuid"}": syntax error: refType must be "strong" or "weak" (not "x")"#,
        ),
        (
            of_type(r#"{"key":{"type":"string","minLength":-1}}"#),
            r#"syntax "-1": syntax error: minLength out of valid range 0 to 4294967295"#,
        ),
        (
            of_type(r#"{"key":{"type":"integer","enum":["set",[1,1]]}}"#),
            "ovsdb error: set contains duplicate",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(parse(&text).expect_err("wrong"), expected, "{text}");
    }
    let index = |index: &str| {
        let text = format!(
            r#"{{"name":"D","tables":{{"A":{{"columns":{{"c":{{"type":"real"}},"e":{{"type":"real","ephemeral":true}}}},"indexes":{index}}}}}}}"#
        );
        let error = parse(&text).expect_err("wrong");
        error.split_once("\": ").map(|(_, rest)| rest.to_owned()).unwrap_or(error)
    };
    assert_eq!(index("[[]]"), "syntax error: index must have at least one column");
    assert_eq!(index("[[\"e\"]]"), "syntax error: ephemeral columns (such as e) may not be indexed");
    assert_eq!(
        index("[[\"_version\"]]"),
        "syntax error: ephemeral columns (such as _version) may not be indexed"
    );
    assert_eq!(index("[[\"x\"]]"), "syntax error: x is not a valid column name");
    assert_eq!(index("[[\"c\",\"c\"]]"), "syntax error: array of distinct column names expected");
}

#[test]
fn versions_are_three_numbers_as_scanf_reads_them() {
    for good in ["1.2.3", " 1.2.3", "-1.+2.3", "1. 2.3", "111111111111111111111.0.0"] {
        assert!(is_version(good), "{good}");
    }
    for bad in ["", "1.2", "1.2.3.4", "1..3", "1.2.3 ", "1 .2.3", "0x1.2.3"] {
        assert!(!is_version(bad), "{bad}");
    }
}
