//! Edits of a document's text beside the same edits of a tree: random documents, paths and values. Both come to equal
//! documents, or to the same error.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use wire::subdocument::{self, Change, Component, Error, Locator, Path, Search};

/// Names are few, so that paths often meet something.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![Just("a"), Just("b"), Just("c.d"), Just("e`f"), Just("")].prop_map(str::to_owned)
}

/// Of these, no path names the empty one.
fn in_path() -> impl Strategy<Value = String> {
    prop_oneof![Just("a"), Just("b"), Just("c.d"), Just("e`f")].prop_map(str::to_owned)
}

fn document() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..4).prop_map(Value::from),
        Just(Value::from(i64::MAX)),
        Just(json!(1.5)),
        prop_oneof![Just("x"), Just("x\"]}y\\"), Just("é\n")].prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((name(), inner), 0..5)
                .prop_map(|members| Value::from(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(u32),
    Last,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => in_path().prop_map(Step::Key),
        2 => (0u32..4).prop_map(Step::Index),
        1 => Just(Step::Last),
    ];
    prop::collection::vec(step, 0..5)
}

fn path_text(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        match step {
            Step::Key(name) => {
                if !text.is_empty() {
                    text.push('.');
                }
                if name.contains(['.', '`']) {
                    text += &format!("`{}`", name.replace('`', "``"));
                } else {
                    text += name;
                }
            }
            Step::Index(index) => text += &format!("[{index}]"),
            Step::Last => text += "[-1]",
        }
    }
    text
}

/// Text with blanks where JSON allows them, so that edits meet some.
fn write(value: &Value, blanks: &mut impl FnMut() -> &'static str, out: &mut String) {
    out.push_str(blanks());
    match value {
        Value::Array(elements) => {
            out.push('[');
            for (index, element) in elements.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                write(element, blanks, out);
            }
            out.push_str(blanks());
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            for (index, (name, member)) in members.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                out.push_str(blanks());
                out.push_str(&Value::from(name.as_str()).to_string());
                out.push_str(blanks());
                out.push(':');
                write(member, blanks, out);
            }
            out.push_str(blanks());
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
    out.push_str(blanks());
}

/// What the steps lead to; `Err` with how many of them were found otherwise.
fn find<'v>(root: &'v mut Value, steps: &[Step]) -> Result<&'v mut Value, Result<usize, Error>> {
    let mut at = root;
    for (found, step) in steps.iter().enumerate() {
        at = match (step, at) {
            (Step::Key(name), Value::Object(members)) => members.get_mut(name).ok_or(Ok(found))?,
            (Step::Index(index), Value::Array(elements)) => {
                elements.get_mut(*index as usize).ok_or(Ok(found))?
            }
            (Step::Last, Value::Array(elements)) => elements.last_mut().ok_or(Ok(found))?,
            _ => return Err(Err(Error::PathMismatch)),
        };
    }
    Ok(at)
}

fn nested(missing: &[Step], value: Value) -> Result<Value, Error> {
    missing.iter().rev().try_fold(value, |value, step| match step {
        Step::Key(name) => Ok(json!({ name.as_str(): value })),
        _ => Err(Error::PathMissing),
    })
}

fn is_primitive(value: &Value) -> bool {
    !value.is_array() && !value.is_object()
}

/// The plain implementation.
fn model(root: &mut Value, change: Change, steps: &[Step], value: &Value, create: bool) -> Result<(), Error> {
    let last = steps.last();
    match (change, last) {
        (Change::DictAdd | Change::DictUpsert, None | Some(Step::Index(_) | Step::Last))
        | (Change::ArrayInsert, None | Some(Step::Key(_) | Step::Last))
        | (Change::Delete | Change::Replace | Change::Counter, None) => return Err(Error::PathInvalid),
        _ => {}
    }
    let delta = value.as_i64().filter(|delta| *delta != 0);
    if change == Change::Counter && delta.is_none() {
        return Err(Error::DeltaInvalid);
    }
    if change == Change::ArrayAddUnique && !is_primitive(value) {
        return Err(Error::ValueInvalid);
    }
    let is_push = matches!(change, Change::ArrayPushFirst | Change::ArrayPushLast | Change::ArrayAddUnique);
    match find(root, steps) {
        Ok(at) if is_push => {
            let elements = at.as_array_mut().ok_or(Error::PathMismatch)?;
            if change == Change::ArrayAddUnique {
                if !elements.iter().all(is_primitive) {
                    return Err(Error::PathMismatch);
                }
                if elements.contains(value) {
                    return Err(Error::PathExists);
                }
            }
            let place = if change == Change::ArrayPushFirst { 0 } else { elements.len() };
            elements.insert(place, value.clone());
        }
        Ok(at) => match change {
            Change::DictAdd => return Err(Error::PathExists),
            Change::DictUpsert | Change::Replace => *at = value.clone(),
            Change::Counter => {
                let old = match at {
                    Value::Number(number) if !number.to_string().contains(['.', 'e']) => number.as_i64(),
                    _ => return Err(Error::PathMismatch),
                };
                let number =
                    old.ok_or(Error::NumberRange)?.checked_add(delta.unwrap()).ok_or(Error::ValueInvalid)?;
                *at = number.into();
            }
            Change::Delete | Change::ArrayInsert => {
                let (last, above) = steps.split_last().unwrap();
                let parent = find(root, above).unwrap();
                match (last, parent) {
                    (Step::Key(name), Value::Object(members)) => drop(members.remove(name)),
                    (Step::Index(index), Value::Array(elements)) if change == Change::ArrayInsert => {
                        elements.insert(*index as usize, value.clone());
                    }
                    (Step::Index(index), Value::Array(elements)) => drop(elements.remove(*index as usize)),
                    (_, Value::Array(elements)) => drop(elements.pop()),
                    _ => unreachable!("found above"),
                }
            }
            Change::ArrayPushFirst | Change::ArrayPushLast | Change::ArrayAddUnique => unreachable!("pushes"),
        },
        Err(Err(error)) => return Err(error),
        Err(Ok(found)) => {
            let (above, missing) = steps.split_at(found);
            let container = find(root, above).unwrap();
            match change {
                Change::Delete | Change::Replace => return Err(Error::PathMissing),
                Change::ArrayInsert => match (missing, container) {
                    ([Step::Index(index)], Value::Array(elements)) if *index as usize == elements.len() => {
                        elements.push(value.clone());
                    }
                    _ => return Err(Error::PathMissing),
                },
                _ if (is_push || missing.len() > 1) && !create => return Err(Error::PathMissing),
                _ => {
                    let value = if is_push { json!([value]) } else { value.clone() };
                    let Step::Key(name) = &missing[0] else { return Err(Error::PathMissing) };
                    let value = nested(&missing[1..], value)?;
                    container.as_object_mut().unwrap().insert(name.clone(), value);
                }
            }
        }
    }
    Ok(())
}

/// The path's grammar once more: first the backticks are resolved, then what is left is taken apart.
fn parsed(path: &str) -> Option<Vec<Step>> {
    let mut chars = path.chars().peekable();
    let (mut text, mut is_quoted) = (Vec::new(), false);
    while let Some(one) = chars.next() {
        let is_pair = one == '`' && chars.peek() == Some(&'`');
        if is_pair && (is_quoted || chars.clone().nth(1) != Some('`')) {
            chars.next();
            text.push(('`', true));
        } else if one == '`' {
            is_quoted = !is_quoted;
            // It is no part of an index, either.
            text.push(('\0', true));
        } else {
            text.push((one, is_quoted));
        }
    }
    let mut steps = Vec::new();
    let mut rest = &text[..];
    while !rest.is_empty() {
        if rest[0] == ('[', false) {
            let end = rest.iter().position(|(one, _)| *one == ']')?;
            let inside = rest[1..end].iter().map(|(one, is_quoted)| if *is_quoted { '?' } else { *one });
            let inside: String = inside.collect();
            steps.push(match inside.as_str() {
                "-1" => Step::Last,
                digits if digits.starts_with(|one: char| one.is_ascii_digit()) => {
                    Step::Index(digits.parse().ok()?)
                }
                _ => return None,
            });
            rest = &rest[end + 1..];
        } else {
            let is_end = |one: &(char, bool)| matches!(one, ('.' | '[', false));
            let end = rest.iter().position(is_end).unwrap_or(rest.len());
            let name = &rest[..end];
            if name.contains(&(']', false)) {
                return None;
            }
            let name: String = name.iter().map(|(one, _)| *one).filter(|one| *one != '\0').collect();
            let bare = name.replace("\\\\", "").replace("\\\"", "");
            if name.is_empty() || bare.contains('"') || name.chars().any(|one| one < ' ') {
                return None;
            }
            steps.push(Step::Key(name));
            rest = &rest[end..];
        }
        match rest {
            [('.', false), behind @ ..] => rest = behind,
            [] | [('[', false), ..] => {}
            _ => return None,
        }
    }
    (!is_quoted).then_some(steps)
}

/// A million in `make subdocument-model`.
fn cases() -> u32 {
    std::env::var("SUBDOCUMENT_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn edits_of_the_text_are_those_of_a_tree(
        document in document(),
        changes in prop::collection::vec(
            (prop::sample::select(Change::ALL), steps(), document(), any::<bool>()),
            1..6,
        ),
        seed in any::<u32>(),
        is_long in any::<bool>(),
    ) {
        let (mut tree, mut text, mut state) = (document, String::new(), seed);
        let mut blanks = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ["", "", "", " ", "\n\t"][(state >> 16) as usize % 5]
        };
        write(&tree, &mut blanks, &mut text);
        if is_long {
            // Long documents are read in another way.
            text += &" ".repeat(700);
        }
        prop_assert!(subdocument::check(text.as_bytes()).is_ok());
        let paths: Vec<_> = changes.iter().map(|(_, steps, ..)| steps.clone()).collect();
        for (change, steps, value, create) in changes {
            let mut value_text = String::new();
            write(&value, &mut blanks, &mut value_text);
            let path_text = path_text(&steps);
            let path = Path::parse(path_text.as_bytes()).unwrap();
            let mut edited_tree = tree.clone();
            let expected = model(&mut edited_tree, change, &steps, &value, create);
            let found = subdocument::edit(text.as_bytes(), change, &path, value_text.as_bytes(), create);
            prop_assert_eq!(found.as_ref().err(), expected.as_ref().err(), "{} {:?} {}", text, change, path_text);
            if let Ok(splice) = found {
                let mut bytes = text.clone().into_bytes();
                bytes.splice(splice.at, splice.with);
                text = String::from_utf8(bytes).unwrap();
                tree = edited_tree;
                prop_assert!(subdocument::check(text.as_bytes()).is_ok(), "{}", text);
                prop_assert_eq!(&serde_json::from_str::<Value>(&text).unwrap(), &tree, "{}", text);
            }
            let read = match (subdocument::locate(text.as_bytes(), path.components()), find(&mut tree, &steps)) {
                (Ok(Search::Found(place)), Ok(value)) => {
                    serde_json::from_str::<Value>(&text[place.value]).unwrap() == *value
                }
                (Ok(Search::Missing { found, .. }), Err(Ok(expected))) => found == expected,
                (Err(error), Err(Err(expected))) => error == expected,
                _ => false,
            };
            prop_assert!(read, "{} {}", text, path_text);
        }
        // Together, the paths find the same as each alone.
        let texts: Vec<_> = paths.iter().map(|steps| path_text(steps)).collect();
        let mut locator = Locator::new(text.as_bytes());
        for (steps, path_text) in paths.iter().zip(&texts) {
            let path = Path::parse(path_text.as_bytes()).unwrap();
            let alone = subdocument::locate(text.as_bytes(), path.components());
            prop_assert_eq!(locator.locate(&path), alone, "{} {:?}", text, texts);
            let counted = subdocument::count(text.as_bytes(), path.components()).ok();
            let expected = find(&mut tree, steps).ok().and_then(|value| match value {
                Value::Array(elements) => Some(elements.len()),
                Value::Object(members) => Some(members.len()),
                _ => None,
            });
            prop_assert_eq!(counted.map(|count| count as usize), expected, "{} {}", text, path_text);
        }
    }

    #[test]
    fn paths_are_parsed_as_by_another_parser(
        path in prop::collection::vec(prop::sample::select(&b"ab``..[[]]01-\"\\\x01"[..]), 0..16),
    ) {
        let text = String::from_utf8(path).unwrap();
        let found = Path::parse(text.as_bytes()).map(|path| {
            let steps = path.components().iter().map(|component| match *component {
                Component::Key { name, quoted: false } => Step::Key(String::from_utf8(name.to_vec()).unwrap()),
                Component::Key { name, quoted: true } => {
                    Step::Key(String::from_utf8(subdocument::unquoted(name).collect()).unwrap())
                }
                Component::Index(index) => Step::Index(index),
                Component::Last => Step::Last,
            });
            steps.collect::<Vec<_>>()
        });
        prop_assert_eq!(found, parsed(&text).ok_or(Error::PathInvalid), "{}", text);
    }

    #[test]
    fn nothing_breaks_it(
        document in prop::collection::vec(prop::sample::select(&b"{}[]\",:\\ 0a-.e`tn"[..]), 0..40),
        path in "[ab`.\\[\\]0-9\"-]{0,12}",
    ) {
        let is_valid = subdocument::check(&document).is_ok();
        prop_assert_eq!(is_valid, serde_json::from_slice::<Value>(&document).is_ok());
        if let Ok(path) = Path::parse(path.as_bytes()) {
            prop_assert!(path.components().len() <= 32);
            let _ = subdocument::locate(&document, path.components());
            let _ = subdocument::locate(&[&document[..], &[b' '; 700]].concat(), path.components());
            let _ = subdocument::count(&document, path.components());
            for change in Change::ALL.iter().copied() {
                let _ = subdocument::edit(&document, change, &path, b"1", true);
            }
        }
    }
}
