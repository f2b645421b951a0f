use super::{Framer, Limits, Message};

fn frames(text: &[u8]) -> Vec<String> {
    let mut framer = Framer::new(Limits::default());
    let (mut rest, mut found) = (text, Vec::new());
    while let Some(end) = framer.advance(rest).expect("JSON") {
        let (message, after) = rest.split_at_checked(end).expect("an end within");
        found.push(String::from_utf8_lossy(message).into_owned());
        rest = after;
    }
    found
}

#[test]
fn messages_follow_one_another_with_or_without_white_space() {
    assert_eq!(frames(b"{}[]\n {\"a\":1}\n{\"b"), ["{}", "[]", "\n {\"a\":1}"]);
}

#[test]
fn a_message_is_as_long_as_the_limit_allows() {
    let framer = Framer::new(Limits { message_bytes: 8, depth: 3 });
    assert_eq!(framer.clone().advance(b"[123456]"), Ok(Some(8)));
    let text = "message exceeds maximum length of 8 bytes";
    assert_eq!(framer.clone().advance(b"[1234567]").expect_err("too long").to_string(), text);
    let mut pieces = framer.clone();
    assert_eq!(pieces.advance(b"[12345"), Ok(None));
    assert_eq!((pieces.pending_bytes(), pieces.is_inside()), (6, true));
    assert_eq!(pieces.advance(b"678").expect_err("too long").to_string(), text);
    assert!(framer.clone().advance(b"[[[[").is_err());
    assert_eq!(framer.clone().advance(b"[]  [123456]"), Ok(Some(2)));
}

#[test]
fn each_kind_of_message_has_its_parts() {
    let parse = |text: &'static str| Message::parse(text.as_bytes()).expect("a message");
    let request = parse(r#"{"params":[1],"id":"x","method":"echo"}"#);
    assert!(matches!(request, Message::Request { method, params, id }
        if method == "echo" && params.array().text() == b"[1]" && id.text() == b"\"x\""));
    let notification = parse(r#"{"method":"update","params":[],"id":null}"#);
    assert!(matches!(notification, Message::Notification { method, .. } if method == "update"));
    let reply = parse(r#"{"id":1,"result":[],"error":null}"#);
    assert!(matches!(reply, Message::Reply { result, .. } if result.text() == b"[]"));
    let error = parse(r#"{"id":1,"result":null,"error":"no"}"#);
    assert!(matches!(error, Message::Error { error, .. } if error.text() == b"\"no\""));
}

#[test]
fn params_are_all_there_however_many_they_are() {
    for count in [0, 1, 15, 16, 17, 100] {
        let elements: Vec<String> = (0..count).map(|number| format!("[{number}, \"]\"]")).collect();
        // Of equal members the last one counts.
        let text =
            format!(r#"{{"params":[5,6],"id":0,"params" : [{}] ,"method":"m"}}"#, elements.join(" , "));
        let Ok(Message::Request { params, .. }) = Message::parse(text.as_bytes()) else { panic!("{text}") };
        assert_eq!(params.array().text(), format!("[{}]", elements.join(" , ")).as_bytes());
        let found: Vec<&[u8]> = params.into_elements().iter().map(|element| element.text()).collect();
        assert_eq!(found, elements.iter().map(String::as_bytes).collect::<Vec<_>>());
    }
}

#[test]
fn each_error_is_the_stock_servers() {
    let cases = [
        ("[]", "message is not a JSON object"),
        (r#"{"method":5}"#, "method is not a JSON string"),
        (r#"{"x":1,"method":5}"#, "method is not a JSON string"),
        (r#"{"x":1,"params":5}"#, "message has unexpected member \"x\""),
        (r#"{"method":"a","params":{}}"#, "\"params\" must be JSON array"),
        (r#"{"method":"a"}"#, "notification must have \"params\""),
        (r#"{"id":5}"#, "request must have \"method\""),
        (r#"{"result":1,"error":2,"id":3}"#, "reply must not have \"error\""),
        (r#"{"error":1}"#, "error must have \"id\""),
    ];
    for (text, expected) in cases {
        assert_eq!(Message::parse(text.as_bytes()).expect_err("wrong").to_string(), expected, "{text}");
    }
}
