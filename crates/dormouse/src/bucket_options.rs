//! The options of `dormouse bucket create` and `edit`: one for each form field that a bucket has over HTTP.
//!
//! They come from the table of the bucket's settings, which also says what the node accepts: nothing is checked here.

use crate::config::{Problem, size};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use kv::{BUCKET_SETTINGS, SettingKind};
use std::sync::LazyLock;

/// The form fields given, with their values. `NEW`: of a bucket to be created; otherwise only what can change.
#[derive(Debug, Clone)]
pub struct BucketOptions<const NEW: bool> {
    fields: Vec<(&'static str, String)>,
}

/// An option and its form field.
struct BucketOption {
    /// Without dashes,
    name: String,
    /// and with them.
    flag: String,
    field: &'static str,
    value_name: String,
    about: String,
    /// Whether it can change while the bucket is served.
    is_live: bool,
}

const MEMORY: &str = "memory";
const TYPE: &str = "type";
const MIB: u64 = 1 << 20;

static OPTIONS: LazyLock<Vec<BucketOption>> = LazyLock::new(|| {
    let own = [
        (MEMORY, "ramQuota", "SIZE", true, "Its budget of resident memory, such as 512MiB or 4GiB."),
        (
            TYPE,
            "bucketType",
            "TYPE",
            false,
            "\"ephemeral\": in memory only. \"persistent\", which is what a node makes unless told otherwise: kept \
             in the data directory too.",
        ),
        (
            "eviction",
            "evictionPolicy",
            "POLICY",
            true,
            "What happens at the budget. Ephemeral: \"nruEviction\", the least used items are deleted, or \
             \"noEviction\", new data is refused, which is what a node does unless told otherwise; fixed when the \
             bucket is created. Persistent: \"valueOnly\" or \
             \"fullEviction\", stored and shown; values are ejected with either.",
        ),
    ];
    let own = own.map(|(name, field, value_name, is_live, about)| BucketOption {
        name: name.to_owned(),
        flag: format!("--{name}"),
        field,
        value_name: value_name.to_owned(),
        about: about.to_owned(),
        is_live,
    });
    let of_settings = BUCKET_SETTINGS.iter().filter_map(|setting| {
        let name = setting.key.replace('_', "-");
        Some(BucketOption {
            flag: format!("--{name}"),
            name,
            field: setting.field?,
            value_name: match setting.kind {
                SettingKind::Count { .. } | SettingKind::PowerOfTwo { .. } => "N".to_owned(),
                SettingKind::Bytes { .. } => "BYTES".to_owned(),
                SettingKind::Flag { .. } => "true|false".to_owned(),
                SettingKind::Switch { .. } => "on|off".to_owned(),
                SettingKind::Word { words, .. } => words.join("|"),
            },
            about: setting.about.to_owned(),
            is_live: setting.live.is_some(),
        })
    });
    own.into_iter().chain(of_settings).collect()
});

fn options(is_new: bool) -> impl Iterator<Item = &'static BucketOption> {
    OPTIONS.iter().filter(move |option| is_new || option.is_live)
}

/// The form fields, and the options that they come from.
pub fn fields() -> Vec<(&'static str, &'static str)> {
    OPTIONS.iter().map(|option| (option.field, option.flag.as_str())).collect()
}

/// The settings of a bucket by the names of their options and their fields, in the order of the help.
pub fn settings() -> impl Iterator<Item = (&'static str, &'static str)> {
    OPTIONS.iter().filter(|option| option.name != MEMORY).map(|option| (option.name.as_str(), option.field))
}

impl<const NEW: bool> BucketOptions<NEW> {
    /// The form.
    pub fn fields(&self) -> &[(&'static str, String)] {
        &self.fields
    }
}

impl<const NEW: bool> FromArgMatches for BucketOptions<NEW> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let value = |option: &'static BucketOption| {
            Some((option.field, matches.get_one::<String>(&option.name)?.clone()))
        };
        Ok(Self { fields: options(NEW).filter_map(value).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<const NEW: bool> Args for BucketOptions<NEW> {
    fn augment_args(command: Command) -> Command {
        let arguments = options(NEW).map(|option| {
            let argument = Arg::new(option.name.as_str())
                .long(option.name.as_str())
                .value_name(option.value_name.as_str())
                .help(option.about.as_str())
                .allow_hyphen_values(true)
                .help_heading("Settings");
            match option.name.as_str() {
                MEMORY => argument.value_parser(mebibytes),
                // As configuration and listings call it.
                TYPE => argument.visible_alias("kind"),
                _ => argument,
            }
        });
        command.args(arguments).infer_long_args(true)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// A size as the form has it.
fn mebibytes(text: &str) -> Result<String, Problem> {
    let bytes = size::read(text).filter(|bytes| *bytes > 0 && bytes.is_multiple_of(MIB));
    let allowed =
        || Problem::new(format!("allowed are sizes of whole MiB, {}", size::FORMS.replace("64MB", "4096m")));
    bytes.map(|bytes| (bytes / MIB).to_string()).ok_or_else(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn read<const NEW: bool>(line: &[&'static str]) -> Result<Vec<(&'static str, String)>, clap::Error> {
        let command = BucketOptions::<NEW>::augment_args(Command::new("bucket").no_binary_name(true));
        Ok(BucketOptions::<NEW>::from_arg_matches(&command.try_get_matches_from(line)?)?.fields)
    }

    #[test]
    fn each_field_has_an_option() {
        let names: BTreeSet<&str> = OPTIONS.iter().map(|option| option.name.as_str()).collect();
        assert_eq!(names.len(), OPTIONS.len(), "a name is there twice");
        for field in BUCKET_SETTINGS.iter().filter_map(|setting| setting.field) {
            assert!(fields().iter().any(|(known, _)| *known == field), "{field}");
        }
    }

    #[test]
    fn options_become_fields() {
        assert_eq!(read::<true>(&["--kind", "ephemeral"]).unwrap(), [("bucketType", "ephemeral".to_owned())]);
        let fields = read::<true>(&[
            "--memory",
            "1.5GiB",
            "--type",
            "ephemeral",
            "--durability",
            "none",
            "--max-ttl",
            "-5",
        ]);
        let expected = [
            ("ramQuota", "1536"),
            ("bucketType", "ephemeral"),
            ("maxTTL", "-5"),
            ("durabilityMinLevel", "none"),
        ];
        assert_eq!(fields.unwrap(), expected.map(|(field, value)| (field, value.to_owned())));
        for size in ["0", "1000", "1.0001MiB", "-1", "much"] {
            assert!(read::<true>(&["--memory", size]).is_err(), "{size}");
        }
    }

    #[test]
    fn an_edit_has_options_of_what_can_change() {
        assert!(read::<false>(&["--type", "ephemeral"]).is_err());
        assert_eq!(
            read::<false>(&["--flush-enabled", "true"]).unwrap(),
            [("flushEnabled", "true".to_owned())]
        );
    }
}
