//! Settings of a cluster that scripts make and tools read, and that mean little on a node alone. Each page is a table:
//! its fields are checked, kept in the node's profile, and shown; a default is what Couchbase has there.
//!
//! Of all pages one has an effect: the password policy ([`check_password`]). Another refuses what it cannot do: there
//! is no audit log.

use crate::buckets::{invalid, refused};
use crate::work::Party;
use crate::{Console, Refusal};
use axum::Json;
use axum::extract::{Form, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use kv::profile::Profile;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

type Fields = Form<Vec<(String, String)>>;

/// A page of settings.
pub struct Page {
    /// Its name in the profile.
    name: &'static str,
    fields: &'static [Field],
    /// Without this field nothing is changed.
    required: Option<&'static str>,
    /// Members that are always the same.
    constants: &'static [(&'static str, Constant)],
}

enum Constant {
    Number(u64),
    Text(&'static str),
    List,
}

struct Field {
    /// Its name in forms.
    name: &'static str,
    /// Where it is in the document.
    at: &'static [&'static str],
    kind: Kind,
}

/// What it may be, and what it is if nobody has said anything.
enum Kind {
    Flag(bool),
    /// No, and nothing else: the reason.
    Never(&'static str),
    Number {
        min: u64,
        max: u64,
        default: u64,
    },
    /// Not limited unless a number is given.
    Limit {
        min: u64,
        max: u64,
    },
    /// Days, which may have a fraction.
    Days {
        min: f64,
        max: f64,
        default: f64,
    },
    Word {
        words: &'static [&'static str],
        default: &'static str,
    },
}

const UNDEFINED: &str = "undefined";
const MINUTES: [u64; 2] = [5, 3600];

const fn flag(name: &'static str, at: &'static [&'static str], default: bool) -> Field {
    Field { name, at, kind: Kind::Flag(default) }
}

const fn number(
    name: &'static str,
    at: &'static [&'static str],
    [min, max]: [u64; 2],
    default: u64,
) -> Field {
    Field { name, at, kind: Kind::Number { min, max, default } }
}

const fn limit(name: &'static str, at: &'static [&'static str], [min, max]: [u64; 2]) -> Field {
    Field { name, at, kind: Kind::Limit { min, max } }
}

/// `/settings/autoFailover`. Nothing fails over by itself: `dormouse bucket promote` does when it is asked.
pub static AUTO_FAILOVER: Page = Page {
    name: "autoFailover",
    fields: &[
        flag("enabled", &["enabled"], true),
        number("timeout", &["timeout"], MINUTES, 120),
        number("maxCount", &["maxCount"], [1, 100], 1),
        flag("failoverOnDataDiskIssues[enabled]", &["failoverOnDataDiskIssues", "enabled"], false),
        number(
            "failoverOnDataDiskIssues[timePeriod]",
            &["failoverOnDataDiskIssues", "timePeriod"],
            MINUTES,
            120,
        ),
        flag("failoverPreserveDurabilityMajority", &["failoverPreserveDurabilityMajority"], false),
        flag("canAbortRebalance", &["canAbortRebalance"], true),
    ],
    required: Some("enabled"),
    constants: &[("count", Constant::Number(0))],
};

/// `/settings/stats`. Nothing is ever sent.
pub static STATS: Page = Page {
    name: "stats",
    fields: &[flag("sendStats", &["sendStats"], false)],
    required: Some("sendStats"),
    constants: &[],
};

const COMPACTION: &str = "autoCompactionSettings";
const DATABASE: &str = "databaseFragmentationThreshold";
const VIEW: &str = "viewFragmentationThreshold";
const SIZES: [u64; 2] = [1, 1 << 50];
const PERCENT: [u64; 2] = [2, 100];

/// `/settings/autoCompaction`. Journals are compacted when that is worth it; `tombstone_age_s` of a bucket is what
/// `purgeInterval` would be.
pub static AUTO_COMPACTION: Page = Page {
    name: "autoCompaction",
    fields: &[
        flag("parallelDBAndViewCompaction", &[COMPACTION, "parallelDBAndViewCompaction"], false),
        number(
            "databaseFragmentationThreshold[percentage]",
            &[COMPACTION, DATABASE, "percentage"],
            PERCENT,
            30,
        ),
        limit("databaseFragmentationThreshold[size]", &[COMPACTION, DATABASE, "size"], SIZES),
        number("viewFragmentationThreshold[percentage]", &[COMPACTION, VIEW, "percentage"], PERCENT, 30),
        limit("viewFragmentationThreshold[size]", &[COMPACTION, VIEW, "size"], SIZES),
        number("magmaFragmentationPercentage", &[COMPACTION, "magmaFragmentationPercentage"], [10, 100], 50),
        Field {
            name: "indexCompactionMode",
            at: &[COMPACTION, "indexCompactionMode"],
            kind: Kind::Word { words: &["circular", "full"], default: "circular" },
        },
        number(
            "indexFragmentationThreshold[percentage]",
            &[COMPACTION, "indexFragmentationThreshold", "percentage"],
            PERCENT,
            30,
        ),
        Field {
            name: "purgeInterval",
            at: &["purgeInterval"],
            kind: Kind::Days { min: 0.04, max: 60.0, default: 3.0 },
        },
    ],
    required: Some("parallelDBAndViewCompaction"),
    constants: &[],
};

/// `/settings/passwordPolicy`: what new passwords must have.
pub static PASSWORD_POLICY: Page = Page {
    name: "passwordPolicy",
    fields: &[
        number("minLength", &["minLength"], [0, 100], 6),
        flag("enforceUppercase", &["enforceUppercase"], false),
        flag("enforceLowercase", &["enforceLowercase"], false),
        flag("enforceDigits", &["enforceDigits"], false),
        flag("enforceSpecialChars", &["enforceSpecialChars"], false),
    ],
    required: None,
    constants: &[],
};

/// `/settings/audit`. There is no audit log, so it cannot be switched on.
pub static AUDIT: Page = Page {
    name: "audit",
    fields: &[
        Field {
            name: "auditdEnabled",
            at: &["auditdEnabled"],
            kind: Kind::Never("There is no audit log: what the node does is in its log (GET /log)."),
        },
        number("rotateInterval", &["rotateInterval"], [900, 604_800], 86_400),
        number("rotateSize", &["rotateSize"], [0, 524_288_000], 20_971_520),
        number("pruneAge", &["pruneAge"], [0, 35_791_394], 0),
    ],
    required: None,
    constants: &[
        ("uid", Constant::Text("0")),
        ("logPath", Constant::Text("")),
        ("disabled", Constant::List),
        ("disabledUsers", Constant::List),
    ],
};

impl Field {
    /// The value of a text; what is allowed if it is not.
    fn value(&self, text: &str) -> Result<Value, String> {
        let parsed = || text.parse::<u64>().ok();
        let within = |value: Option<u64>, min: u64, max: u64| {
            value.filter(|number| (min..=max).contains(number)).map(|number| json!(number))
        };
        let (value, allowed) = match self.kind {
            Kind::Flag(_) => {
                (is_yes(text).map(|flag| json!(flag)), "one of the following: [true,false]".to_owned())
            }
            Kind::Never(why) => match is_yes(text) {
                Some(true) => return Err(why.to_owned()),
                no => (no.map(|flag| json!(flag)), "one of the following: [true,false]".to_owned()),
            },
            Kind::Number { min, max, .. } => {
                (within(parsed(), min, max), format!("in range from {min} to {max}"))
            }
            Kind::Limit { .. } if [UNDEFINED, ""].contains(&text) => (Some(json!(UNDEFINED)), String::new()),
            Kind::Limit { min, max } => (within(parsed(), min, max), format!("in range from {min} to {max}")),
            Kind::Days { min, max, .. } => {
                let days = text.parse::<f64>().ok().filter(|days| (min..=max).contains(days));
                (days.map(shown_days), format!("in range from {min} to {max}"))
            }
            Kind::Word { words, .. } => {
                let word = words.contains(&text).then(|| json!(text));
                (word, format!("one of the following: [{}]", words.join(",")))
            }
        };
        value.ok_or_else(|| format!("The value must be {allowed}"))
    }

    fn default(&self) -> Value {
        match self.kind {
            Kind::Flag(default) => json!(default),
            Kind::Never(_) => json!(false),
            Kind::Number { default, .. } => json!(default),
            Kind::Limit { .. } => json!(UNDEFINED),
            Kind::Days { default, .. } => shown_days(default),
            Kind::Word { default, .. } => json!(default),
        }
    }
}

fn is_yes(text: &str) -> Option<bool> {
    match text {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

/// COMPAT: whole days are whole numbers, which parsers expect.
fn shown_days(days: f64) -> Value {
    if days.fract() == 0.0 { json!(days as u64) } else { json!(days) }
}

/// Puts a value at a path of names.
fn place(object: &mut Map<String, Value>, path: &[&str], value: Value) {
    match path {
        [] => {}
        [name] => drop(object.insert((*name).to_owned(), value)),
        [name, rest @ ..] => {
            let inner = object.entry(*name).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                place(inner, rest, value);
            }
        }
    }
}

impl Page {
    /// What is in force.
    fn value(&self, profile: &Profile, field: &Field) -> Value {
        let said = profile.stored.get(self.name).and_then(|page| page.get(field.name));
        said.and_then(|text| field.value(text).ok()).unwrap_or_else(|| field.default())
    }

    /// Its document.
    pub fn shown(&self, profile: &Profile) -> Value {
        let mut document = Map::new();
        for (name, constant) in self.constants {
            let value = match constant {
                Constant::Number(number) => json!(number),
                Constant::Text(text) => json!(text),
                Constant::List => json!([]),
            };
            document.insert((*name).to_owned(), value);
        }
        for field in self.fields {
            place(&mut document, field.at, self.value(profile, field));
        }
        Value::Object(document)
    }

    /// The fields of a form that are on the page, each checked.
    ///
    /// COMPAT: others are ignored.
    fn said(&self, fields: Vec<(String, String)>) -> Result<BTreeMap<String, String>, Refusal> {
        if let Some(required) = self.required.filter(|name| !fields.iter().any(|(field, _)| field == name)) {
            return Err(invalid(required, "The value must be supplied"));
        }
        let mut said = BTreeMap::new();
        for (name, text) in fields {
            let Some(field) = self.fields.iter().find(|field| field.name == name) else { continue };
            field.value(&text).map_err(|reason| invalid(field.name, reason))?;
            said.insert(name, text);
        }
        Ok(said)
    }

    /// The handler that shows it.
    pub fn reads(&'static self) -> MethodRouter<Console> {
        get(move |State(console): State<Console>| async move { Json(self.shown(&console.node.profile())) })
    }

    /// The handler that changes it.
    pub fn changes(&'static self) -> MethodRouter<Console> {
        post(move |State(console): State<Console>, party: Party, Form(fields): Fields| async move {
            self.set(console, &party, fields).await
        })
    }

    async fn set(&'static self, console: Console, party: &Party, fields: Vec<(String, String)>) -> Response {
        let said = match self.said(fields) {
            Ok(said) => said,
            Err(refusal) => return refused(refusal),
        };
        let control = Arc::clone(&console.control);
        let change = move || {
            let store = move |profile: &mut Profile| {
                profile.stored.entry(self.name.to_owned()).or_default().extend(said);
            };
            control.change_profile(Box::new(store))
        };
        match console.change(party, "dm:setup", change).await {
            Ok(()) => StatusCode::OK.into_response(),
            Err(refusal) => refused(refusal),
        }
    }
}

/// Characters of which a password must have one, if special characters are enforced.
const SPECIAL: &str = "@%+/'\\\"!#$^?:,(){}[]~`-_";

/// Characters of which the policy may want one: the field, which they are, and their name.
type Class = (&'static str, fn(char) -> bool, &'static str);

/// Refuses a password that the policy does not allow.
pub fn check_password(console: &Console, password: &str) -> Result<(), Refusal> {
    let policy = PASSWORD_POLICY.shown(&console.node.profile());
    let least = policy["minLength"].as_u64().unwrap_or_default();
    if (password.chars().count() as u64) < least {
        return Err(invalid("password", format!("The password must be at least {least} characters long.")));
    }
    let classes: [Class; 4] = [
        ("enforceUppercase", |c| c.is_uppercase(), "one uppercase letter"),
        ("enforceLowercase", |c| c.is_lowercase(), "one lowercase letter"),
        ("enforceDigits", |c| c.is_ascii_digit(), "one digit"),
        ("enforceSpecialChars", |c| SPECIAL.contains(c), "one special character"),
    ];
    for (name, is_one, what) in classes {
        if policy[name] == json!(true) && !password.contains(is_one) {
            return Err(invalid("password", format!("The password must contain at least {what}.")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: [&Page; 5] = [&AUTO_FAILOVER, &STATS, &AUTO_COMPACTION, &PASSWORD_POLICY, &AUDIT];

    fn form(text: &str) -> Vec<(String, String)> {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn with(page: &Page, text: &str) -> Value {
        let mut profile = Profile::default();
        profile.stored.insert(page.name.to_owned(), page.said(form(text)).expect("valid"));
        page.shown(&profile)
    }

    #[test]
    fn each_field_takes_its_default_and_shows_it() {
        for page in PAGES {
            let shown = page.shown(&Profile::default());
            for field in page.fields {
                let text = match field.default() {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                assert_eq!(field.value(&text), Ok(field.default()), "{} {}", page.name, field.name);
                let found = field.at.iter().try_fold(&shown, |document, part| document.get(part));
                assert_eq!(found, Some(&field.default()), "{} {}", page.name, field.name);
            }
        }
    }

    #[test]
    fn what_is_said_is_shown_and_the_rest_ignored() {
        let shown =
            with(&AUTO_FAILOVER, "enabled=false&timeout=5&failoverOnDataDiskIssues[enabled]=true&colour=red");
        assert_eq!(
            (&shown["enabled"], &shown["timeout"], &shown["count"]),
            (&json!(false), &json!(5), &json!(0))
        );
        assert_eq!(shown["failoverOnDataDiskIssues"], json!({ "enabled": true, "timePeriod": 120 }));
        let shown = with(
            &AUTO_COMPACTION,
            "parallelDBAndViewCompaction=true&databaseFragmentationThreshold[size]=7&purgeInterval=0.5",
        );
        assert_eq!(shown[COMPACTION][DATABASE], json!({ "percentage": 30, "size": 7 }));
        assert_eq!(shown["purgeInterval"], json!(0.5));
    }

    #[test]
    fn what_is_not_allowed_is_refused_by_name() {
        for (page, text, field) in [
            (&AUTO_FAILOVER, "timeout=120", "enabled"),
            (&AUTO_FAILOVER, "enabled=maybe", "enabled"),
            (&AUTO_FAILOVER, "enabled=true&timeout=4", "timeout"),
            (&STATS, "", "sendStats"),
            (&AUTO_COMPACTION, "parallelDBAndViewCompaction=false&purgeInterval=61", "purgeInterval"),
            (
                &AUTO_COMPACTION,
                "parallelDBAndViewCompaction=false&indexCompactionMode=never",
                "indexCompactionMode",
            ),
            (&PASSWORD_POLICY, "minLength=101", "minLength"),
            (&AUDIT, "auditdEnabled=true", "auditdEnabled"),
            (&AUDIT, "rotateInterval=1", "rotateInterval"),
        ] {
            let refused = page.said(form(text));
            assert!(
                matches!(&refused, Err(Refusal::Invalid { field: of, .. }) if *of == field),
                "{text}: {refused:?}"
            );
        }
    }
}
