//! The experiment file: what to start, under which variants, with which load.
//!
//! ```toml
//! repeats = 8
//!
//! [subject]
//! builtin = "valkey"
//!
//! [workload]
//! builtin = "resp"
//! items = 200000
//! reads = 0.8
//!
//! [matrix]
//! allocator = ["glibc", "jemalloc", "mimalloc"]
//! ```
//! `docs/lab-run.md` describes every key. A mistake is answered with the key, the value and what is allowed.

use super::names;
use crate::allocator;
use crate::protocol::{ITEMS_MAX, Protocol};
use anyhow::{Context, Result, anyhow, bail, ensure};
use regex::Regex;
use serde::{Deserialize, Deserializer, de};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most runs of one experiment.
const RUNS_MAX: usize = 10_000;
/// Fewest repeats that can show a difference: with 5 of each, the rarest of 252 orders has a probability below 1 %.
pub const REPEATS_LEAST: usize = 5;

/// An experiment.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// Its name in reports; the file's name without its ending if it has none.
    #[serde(default)]
    pub name: String,
    /// What it is about, for the report.
    #[serde(default)]
    pub about: String,
    /// Runs of each variant.
    #[serde(default = "eight")]
    pub repeats: usize,
    /// Determines the order of the runs and the load's random numbers.
    #[serde(default)]
    pub seed: Option<u64>,
    /// The variant that the others are compared with; the first if it is not named.
    #[serde(default)]
    pub baseline: Option<String>,
    /// What is run.
    pub subject: SubjectSpec,
    /// What is asked of it.
    pub workload: WorkloadSpec,
    /// How it is run.
    #[serde(default, rename = "variant")]
    pub variants: Vec<VariantSpec>,
    /// Variants by all combinations of these.
    #[serde(default)]
    matrix: Matrix,
    /// The directory of the file.
    #[serde(skip)]
    pub directory: PathBuf,
}

fn eight() -> usize {
    8
}

/// A server, and how it is started and stopped.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SubjectSpec {
    /// One that the lab knows.
    pub builtin: Option<Builtin>,
    /// Another program for a built-in one.
    pub program: Option<PathBuf>,
    /// A command line, for any other.
    pub command: Vec<String>,
    /// Further arguments.
    pub arguments: Vec<String>,
    /// Environment variables.
    pub environment: BTreeMap<String, String>,
    /// Files that are written into its directory before it starts, by their name there.
    pub files: BTreeMap<String, String>,
    /// Commands that are run in its directory before it starts.
    pub prepare: Vec<Vec<String>>,
    /// How to tell that it serves.
    pub ready: Option<Ready>,
    /// How long it may take until then.
    #[serde(deserialize_with = "some_duration")]
    pub ready_timeout: Option<Duration>,
    /// The signal that ends it.
    pub stop: Option<Signal>,
    /// How long it may take to end.
    #[serde(deserialize_with = "some_duration")]
    pub stop_timeout: Option<Duration>,
    /// The user it runs as, for servers that refuse to be root.
    pub user: Option<String>,
    /// A command that prints its version.
    pub version: Vec<String>,
}

/// Servers that the lab knows how to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Builtin {
    /// This project's server.
    Dormouse,
    /// memcached.
    Memcached,
    /// Redis.
    Redis,
    /// Valkey.
    Valkey,
    /// The stock OVSDB server.
    OvsdbServer,
    /// PostgreSQL.
    Postgresql,
}

/// How to tell that a server serves.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Ready {
    /// It accepts connections on `{port}`.
    Port(bool),
    /// This file exists: a socket, say.
    File(String),
    /// A line of its output matches this pattern.
    Log(#[serde(deserialize_with = "pattern")] Regex),
    /// This command succeeds.
    Command(Vec<String>),
}

/// A signal that asks a server to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Signal {
    /// SIGTERM.
    Term,
    /// SIGINT.
    Int,
    /// SIGQUIT.
    Quit,
}

/// A load of the lab's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnLoad {
    /// Reads and writes of items.
    KeyValue(Protocol),
    /// Transactions that change rows, through `{directory}/socket`.
    Ovsdb,
}

/// The load.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSpec {
    /// A load of the lab's own.
    #[serde(default, deserialize_with = "some_load")]
    pub builtin: Option<OwnLoad>,
    /// Keys in use.
    #[serde(default = "items")]
    pub items: u32,
    /// Length of a key.
    #[serde(default = "key_bytes")]
    pub key_bytes: usize,
    /// Length of a value.
    #[serde(default = "value_bytes")]
    pub value_bytes: usize,
    /// Fraction of requests that are reads.
    #[serde(default = "reads")]
    pub reads: f64,
    /// Connections.
    #[serde(default = "connections")]
    pub connections: usize,
    /// Requests in flight on each.
    #[serde(default = "depth")]
    pub depth: usize,
    /// Requests that are sent each second, however fast they are answered.
    #[serde(default)]
    pub requests_per_second: Option<u32>,
    /// How long it runs unmeasured first.
    #[serde(default = "two_seconds", deserialize_with = "duration")]
    pub warm_up: Duration,
    /// How long it is measured.
    #[serde(default = "five_seconds", deserialize_with = "duration")]
    pub length: Duration,
    /// Commands that are run before the load: to fill the server, say.
    #[serde(default)]
    pub prepare: Vec<Vec<String>>,
    /// A command whose run is the load.
    #[serde(default)]
    pub command: Vec<String>,
    /// Finds the number of operations per second in its output, as the pattern's first group.
    #[serde(default, deserialize_with = "some_pattern")]
    pub rate: Option<Regex>,
    /// Finds the number of operations, in the same way.
    #[serde(default, deserialize_with = "some_pattern")]
    pub operations: Option<Regex>,
    /// Finds further figures, by name.
    #[serde(default, deserialize_with = "patterns")]
    pub figures: BTreeMap<String, Regex>,
    /// How long it may take.
    #[serde(default = "ten_minutes", deserialize_with = "duration")]
    pub timeout: Duration,
    /// A pause before memory is read.
    #[serde(default = "two_seconds", deserialize_with = "duration")]
    pub settle: Duration,
}

fn items() -> u32 {
    100_000
}
fn key_bytes() -> usize {
    24
}
fn value_bytes() -> usize {
    256
}
fn reads() -> f64 {
    0.8
}
fn connections() -> usize {
    16
}
fn depth() -> usize {
    16
}
fn two_seconds() -> Duration {
    Duration::from_secs(2)
}
fn five_seconds() -> Duration {
    Duration::from_secs(5)
}
fn ten_minutes() -> Duration {
    Duration::from_secs(600)
}

/// One way to run the subject.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VariantSpec {
    /// Its name in reports.
    pub name: String,
    /// The allocator that is preloaded.
    pub allocator: Option<String>,
    /// Further environment variables: `MALLOC_CONF`, `GLIBC_TUNABLES` and so on.
    pub environment: BTreeMap<String, String>,
    /// Further arguments.
    pub arguments: Vec<String>,
    /// Files in place of the subject's of the same name, and further ones.
    pub files: BTreeMap<String, String>,
    /// Another program: another build, say.
    pub program: Option<PathBuf>,
    /// Huge pages.
    pub huge_pages: Option<HugePages>,
    /// The cores it may use, by number.
    pub cores: Vec<usize>,
}

/// The huge pages that a process gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HugePages {
    /// As the system's mode says.
    System,
    /// None, whatever the system's mode is (`prctl`).
    Denied,
    /// The system's mode is set to `always` for the run.
    Always,
    /// The same with `madvise`.
    Madvise,
    /// The same with `never`.
    Never,
}

impl HugePages {
    /// The system's mode for the run, if it is set.
    pub fn mode(self) -> Option<&'static str> {
        match self {
            Self::System | Self::Denied => None,
            Self::Always => Some("always"),
            Self::Madvise => Some("madvise"),
            Self::Never => Some("never"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Denied => "denied",
            other => other.mode().unwrap_or_default(),
        }
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Matrix {
    allocator: Vec<String>,
    huge_pages: Vec<HugePages>,
}

impl Matrix {
    fn variants(&self) -> Vec<VariantSpec> {
        if self.allocator.is_empty() && self.huge_pages.is_empty() {
            return Vec::new();
        }
        let allocators: Vec<Option<&String>> = or_none(&self.allocator);
        let huge_pages: Vec<Option<&HugePages>> = or_none(&self.huge_pages);
        let mut variants = Vec::new();
        for allocator in allocators {
            for pages in &huge_pages {
                let names = allocator.cloned().into_iter();
                let names = names.chain(pages.map(|pages| format!("huge pages {}", pages.name())));
                variants.push(VariantSpec {
                    name: names.collect::<Vec<_>>().join(", "),
                    allocator: allocator.cloned(),
                    huge_pages: pages.copied(),
                    ..VariantSpec::default()
                });
            }
        }
        variants
    }
}

/// All of them, or one that is none.
fn or_none<T>(list: &[T]) -> Vec<Option<&T>> {
    if list.is_empty() { vec![None] } else { list.iter().map(Some).collect() }
}

impl Study {
    /// Reads a file; returns its text as well.
    pub fn read(path: &Path) -> Result<(Self, String)> {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("experiment");
        let mut study = Self::parse(&text, stem).with_context(|| format!("{}", path.display()))?;
        study.directory = fs::canonicalize(path)?.parent().map(Path::to_owned).unwrap_or_default();
        Ok((study, text))
    }

    /// Parses the text of a file, without [`Study::check`]. `stem` is its name if it does not say one.
    pub fn parse(text: &str, stem: &str) -> Result<Self> {
        let mut study: Self = toml::from_str(text).map_err(with_meant)?;
        check_load_keys(&toml::from_str(text)?, study.workload.builtin.is_some())?;
        if study.name.is_empty() {
            stem.clone_into(&mut study.name);
        }
        study.variants.extend(study.matrix.variants());
        if study.variants.is_empty() {
            study.variants.push(VariantSpec { name: "as it is".to_owned(), ..VariantSpec::default() });
        }
        Ok(study)
    }

    /// The index of the variant that the others are compared with.
    pub fn baseline(&self) -> usize {
        let named = self.baseline.as_ref();
        named.and_then(|name| self.variants.iter().position(|variant| variant.name == *name)).unwrap_or(0)
    }

    /// Returns true if a variant runs under a huge page mode of its own.
    pub fn sets_huge_page_mode(&self) -> bool {
        self.variants.iter().any(|variant| variant.huge_pages.and_then(HugePages::mode).is_some())
    }

    /// Fails with the key, its value and what is allowed.
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.name.chars().all(|c| c.is_ascii_alphanumeric() || "-_. ".contains(c))
                && !self.name.starts_with('.'),
            "name = {:?}: letters, digits, `-`, `_`, `.` and spaces are allowed, since files are named by it",
            self.name
        );
        ensure!(self.repeats >= 1, "repeats = {}: at least 1", self.repeats);
        let runs = self.repeats.saturating_mul(self.variants.len());
        ensure!(
            runs <= RUNS_MAX,
            "repeats = {}: with {} variants that is {runs} runs; {RUNS_MAX} are allowed",
            self.repeats,
            self.variants.len()
        );
        self.subject.check()?;
        self.workload.check()?;
        ensure!(
            self.workload.builtin != Some(OwnLoad::Ovsdb)
                || matches!(self.subject.builtin, Some(Builtin::OvsdbServer | Builtin::Dormouse)),
            "workload.builtin = \"ovsdb\": only with a built-in `ovsdb-server` or `dormouse`, which serve its database"
        );
        let mut names = BTreeSet::new();
        for variant in &self.variants {
            ensure!(!variant.name.trim().is_empty(), "variant: each needs a name");
            ensure!(
                !variant.name.chars().any(char::is_control),
                "variant.name = {:?}: control characters are not allowed",
                variant.name
            );
            check_environment("variant.environment", &variant.environment)?;
            ensure!(names.insert(&variant.name), "variant.name = {:?}: named twice", variant.name);
            if let Some(name) = &variant.allocator {
                allocator::check_name(name)
                    .with_context(|| format!("variant.allocator of {:?}", variant.name))?;
            }
            check_files("variant.files", &variant.files)?;
        }
        if let Some(baseline) = &self.baseline {
            let known: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
            ensure!(
                names.contains(baseline),
                "baseline = {baseline:?}: no variant of that name; there are {}",
                known.join(", ")
            );
        }
        Ok(())
    }
}

impl SubjectSpec {
    fn check(&self) -> Result<()> {
        match (self.builtin, self.command.is_empty()) {
            (None, true) => bail!("subject: either `builtin` or `command` is needed"),
            (Some(_), false) => bail!("subject: `builtin` and `command` exclude each other"),
            _ => {}
        }
        ensure!(
            self.builtin.is_some() || self.program.is_none(),
            "subject.program: only with `builtin`; otherwise the command names it"
        );
        let uses_port = self.command.iter().any(|word| word.contains("{port}"));
        ensure!(
            self.builtin.is_some() || self.ready.is_some() || uses_port,
            "subject.ready: needed, as the command has no {{port}} to connect to: `log`, `file` or `command`"
        );
        ensure!(
            !matches!(self.ready, Some(Ready::Port(false))),
            "subject.ready.port = false: true is allowed"
        );
        ensure!(self.prepare.iter().all(|command| !command.is_empty()), "subject.prepare: an empty command");
        check_environment("subject.environment", &self.environment)?;
        check_files("subject.files", &self.files)
    }
}

impl WorkloadSpec {
    fn check(&self) -> Result<()> {
        match (self.builtin, self.command.is_empty()) {
            (None, true) => bail!("workload: either `builtin` or `command` is needed"),
            (Some(_), false) => bail!("workload: `builtin` and `command` exclude each other"),
            _ => {}
        }
        ensure!(
            self.builtin.is_none()
                || self.rate.is_none() && self.operations.is_none() && self.figures.is_empty(),
            "workload.rate, .operations and .figures: only with `command`, whose output they are found in"
        );
        let in_range = [
            ("items", u64::from(self.items), 1, u64::from(ITEMS_MAX)),
            ("key_bytes", self.key_bytes as u64, 8, 250),
            ("value_bytes", self.value_bytes as u64, 8, 20 << 20),
            ("connections", self.connections as u64, 1, 10_000),
            ("depth", self.depth as u64, 1, 1024),
        ];
        for (key, value, least, most) in in_range {
            ensure!(
                (least..=most).contains(&value),
                "workload.{key} = {value}: {least} to {most} are allowed"
            );
        }
        if let Some(rate) = self.requests_per_second {
            ensure!(
                matches!(self.builtin, Some(OwnLoad::KeyValue(_))) && (1..=1_000_000).contains(&rate),
                "workload.requests_per_second = {rate}: 1 to 1000000 are allowed, with a built-in load of items"
            );
        }
        ensure!((0.0..=1.0).contains(&self.reads), "workload.reads = {}: 0 to 1 are allowed", self.reads);
        ensure!(!self.length.is_zero(), "workload.length = 0: it must last");
        ensure!(self.prepare.iter().all(|command| !command.is_empty()), "workload.prepare: an empty command");
        Ok(())
    }
}

/// A parser's error, with the key or value that an unknown one is close to, or the table that it belongs into.
fn with_meant(error: toml::de::Error) -> anyhow::Error {
    let text = error.to_string();
    let Some((is_key, word, known)) = names::unknown(&text) else { return error.into() };
    if let Some(near) = names::nearest(word, known) {
        return anyhow!("{text}did you mean `{near}`?");
    }
    let owner = tables().into_iter().find(|(_, keys)| is_key && keys.iter().any(|key| key == word));
    match owner {
        Some((table, _)) => anyhow!("{text}it belongs into {table}"),
        None => error.into(),
    }
}

/// The tables of a file with their keys, as the parser itself tells them.
fn tables() -> [(&'static str, Vec<String>); 4] {
    fn keys<T: for<'de> Deserialize<'de>>() -> Vec<String> {
        // No table has a key of this name.
        let error = toml::from_str::<T>("'?' = 0").err().map(|error| error.to_string()).unwrap_or_default();
        let known = names::unknown(&error).map(|(_, _, known)| known);
        known.into_iter().flatten().map(str::to_owned).collect()
    }
    [
        ("[subject]", keys::<SubjectSpec>()),
        ("[workload]", keys::<WorkloadSpec>()),
        ("[[variant]]", keys::<VariantSpec>()),
        ("[matrix]", keys::<Matrix>()),
    ]
}

/// Keys of the lab's own loads do nothing to a command, and the reverse: such a key is a mistake.
fn check_load_keys(file: &toml::Table, is_own: bool) -> Result<()> {
    const OWN: [&str; 9] = [
        "items",
        "key_bytes",
        "value_bytes",
        "reads",
        "connections",
        "depth",
        "requests_per_second",
        "warm_up",
        "length",
    ];
    let keys = file.get("workload").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::keys);
    for key in keys.map(String::as_str) {
        ensure!(
            is_own || !OWN.contains(&key),
            "workload.{key}: only with `builtin`; a command has options of its own"
        );
    }
    Ok(())
}

/// Values become lines of unit files and environment files.
fn check_environment(key: &str, environment: &BTreeMap<String, String>) -> Result<()> {
    for (name, value) in environment {
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        ensure!(is_name, "{key}: {name:?} is not the name of a variable");
        ensure!(!value.chars().any(char::is_control), "{key}.{name}: control characters are not allowed");
    }
    Ok(())
}

fn check_files(key: &str, files: &BTreeMap<String, String>) -> Result<()> {
    for name in files.keys() {
        let is_inside =
            Path::new(name).components().all(|part| matches!(part, std::path::Component::Normal(_)));
        ensure!(!name.is_empty() && is_inside, "{key}: {name:?} is not a name in the subject's directory");
    }
    Ok(())
}

/// Parses a length of time, such as `500ms`, `10s` or `2m`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text.get(digits.len()..) {
        Some("ms") => 1e-3,
        Some("s") => 1.0,
        Some("m") => 60.0,
        Some("h") => 3600.0,
        _ => return Err(format!("`{text}` is not a length of time such as 500ms, 10s or 2m")),
    };
    let number = digits.trim().parse::<f64>().ok().filter(|number| (0.0..1e6).contains(number));
    number
        .map(|number| Duration::from_secs_f64(number * factor))
        .ok_or_else(|| format!("`{text}` is not a length of time such as 500ms, 10s or 2m"))
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    parse_duration(&text).map_err(de::Error::custom)
}

fn some_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    duration(from).map(Some)
}

fn pattern<'de, D: Deserializer<'de>>(from: D) -> Result<Regex, D::Error> {
    let text = String::deserialize(from)?;
    Regex::new(&text).map_err(de::Error::custom)
}

/// A pattern that finds a figure: its first group.
fn figure_pattern(text: &str) -> Result<Regex, String> {
    let pattern = Regex::new(text).map_err(|error| error.to_string())?;
    if pattern.captures_len() < 2 {
        return Err(format!("`{text}` has no group: the figure is what its first group matches"));
    }
    Ok(pattern)
}

fn some_pattern<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Regex>, D::Error> {
    let text = String::deserialize(from)?;
    figure_pattern(&text).map(Some).map_err(de::Error::custom)
}

fn patterns<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Regex>, D::Error> {
    let texts = BTreeMap::<String, String>::deserialize(from)?;
    let compile = |(name, text): (String, String)| Ok((name, figure_pattern(&text)?));
    texts.into_iter().map(compile).collect::<Result<_, String>>().map_err(de::Error::custom)
}

/// The lab's own loads.
const OWN_LOADS: [OwnLoad; 5] = [
    OwnLoad::KeyValue(Protocol::MemcachedBinary),
    OwnLoad::KeyValue(Protocol::MemcachedText),
    OwnLoad::KeyValue(Protocol::Resp),
    OwnLoad::KeyValue(Protocol::Couchbase),
    OwnLoad::Ovsdb,
];

impl OwnLoad {
    fn name(self) -> &'static str {
        match self {
            Self::KeyValue(protocol) => protocol.name(),
            Self::Ovsdb => "ovsdb",
        }
    }
}

fn some_load<'de, D: Deserializer<'de>>(from: D) -> Result<Option<OwnLoad>, D::Error> {
    let text = String::deserialize(from)?;
    let found = OWN_LOADS.into_iter().find(|load| load.name() == text);
    let names = OWN_LOADS.map(OwnLoad::name).join(", ");
    let near = super::names::nearest(&text, OWN_LOADS.map(OwnLoad::name));
    let meant = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
    found.map(Some).ok_or_else(|| de::Error::custom(format!("`{text}` is none of {names}{meant}")))
}
