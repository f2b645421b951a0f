//! Reads a TOML file and then the flags, which override it, into a [`Config`]; stops at the first mistake.

use super::key::{Key, Raw, Section};
use super::problem::{Origin, nearest};
use super::{Address, Config, MemcachedSection, Problem, address, check, keys};
use crate::node_store::NodeStore;
use crate::{bucket_store, text_file};
use console::HostNames;
use std::collections::BTreeMap;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Longest configuration file.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The prefix of a `--memcached` value whose port speaks TLS.
const TLS_PREFIX: &str = "tls:";

/// The command-line flags, unparsed.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// `--data`.
    pub data: Option<String>,
    /// `--memcached [tls:]ADDR[=BUCKET]`, one entry per occurrence.
    pub memcached: Vec<String>,
    /// `--kv`.
    pub kv: Option<String>,
    /// `--http`.
    pub http: Option<String>,
    /// `--http-host-names`.
    pub http_host_names: Option<String>,
    /// `--kv-tls-address`.
    pub kv_tls: Option<String>,
    /// `--http-tls-address`.
    pub http_tls: Option<String>,
    /// `--tls-certificate`.
    pub tls_certificate: Option<String>,
    /// `--tls-key`.
    pub tls_key: Option<String>,
    /// `--workers`.
    pub workers: Option<String>,
    /// `--memory`.
    pub memory: Option<String>,
    /// `--bucket NAME[,KIND][,SIZE][,EVICTION]`, one entry per occurrence.
    pub bucket: Vec<String>,
    /// `--user`.
    pub user: Option<String>,
    /// `--password-file`.
    pub password_file: Option<String>,
    /// `--log-level`.
    pub log_level: Option<String>,
    /// `--testcontainers`.
    pub testcontainers: bool,
}

/// Applies the defaults, then `file` if there is one, then `flags`; then checks the rules between keys.
pub fn load(file: Option<&Path>, flags: &Flags) -> Result<Config, Problem> {
    let mut reader = Reader::default();
    let mut config = defaults();
    if let Some(path) = file {
        let name = path.display().to_string();
        let text = text_file::read(path, FILE_BYTES_MAX).map_err(|error| {
            Problem::new(format!("{name}: cannot read the configuration file: {}", cause(&error)))
        })?;
        reader.file(&mut config, &name, &text)?;
    }
    reader.flags(&mut config, flags)?;
    config.given = reader.given;
    if flags.testcontainers {
        play_container(&mut config, reader.has_buckets);
    }
    let has_files = config.auth.password_file.is_some() || config.auth.users_file.is_some();
    config.auth.has_kept = !has_files
        && (config.testcontainers || NodeStore::new(config.node.data.as_deref()).has_administrator()?);
    let on_disk = config.node.data.as_deref().map(bucket_store::names).unwrap_or_default();
    implied(&mut config, &on_disk, reader.has_buckets);
    check::rules(&config, &on_disk)?;
    Ok(config)
}

/// Changes defaults for a test container: all addresses, any name, no user, no bucket and no memcached port.
fn play_container(config: &mut Config, has_buckets: bool) {
    config.testcontainers = true;
    let is_given = |key: &str| config.given.keys().any(|given| given.starts_with(key));
    for (key, address) in [
        ("kv.address", &mut config.kv.address),
        ("kv.tls_address", &mut config.kv.tls_address),
        ("http.address", &mut config.http.address),
        ("http.tls_address", &mut config.http.tls_address),
    ] {
        if let (false, Some(Address::Tcp(default))) = (is_given(key), &address) {
            *address = Some(Address::All(default.port()));
        }
    }
    if !is_given("memcached[") {
        config.memcached.clear();
    }
    if !is_given("http.host_names") {
        config.http.host_names = vec![HostNames::ANY.into()];
    }
    if !has_buckets {
        config.buckets.clear();
    }
}

/// Fills in what follows from the given keys and from the buckets on disk. A bucket `default` on disk takes precedence
/// over the implicit one, and a memcached port without a bucket serves the only bucket that is named.
fn implied(config: &mut Config, on_disk: &[String], has_buckets: bool) {
    if !has_buckets {
        config.buckets.retain(|bucket| !on_disk.contains(&bucket.name));
    }
    if let ([only], true) = (config.buckets.as_slice(), has_buckets) {
        for (index, port) in config.memcached.iter_mut().enumerate() {
            if !config.given.contains_key(&format!("memcached[{index}].bucket")) {
                port.bucket.clone_from(&only.name);
            }
        }
    }
}

/// The configuration with nothing given.
pub fn defaults() -> Config {
    Config {
        node: keys::NODE.defaults(),
        memcached: vec![keys::MEMCACHED.defaults()],
        kv: keys::KV.defaults(),
        http: keys::HTTP.defaults(),
        buckets: vec![keys::BUCKET.defaults()],
        databases: vec![keys::OVSDB.defaults()],
        limits: keys::LIMITS.defaults(),
        allocator: keys::ALLOCATOR.defaults(),
        auth: keys::AUTH.defaults(),
        replication: keys::REPLICATION.defaults(),
        tls: keys::TLS.defaults(),
        log: keys::LOG.defaults(),
        testcontainers: false,
        given: BTreeMap::new(),
    }
}

/// An I/O error without Rust's "(os error 2)".
pub fn cause(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text.get(..end).unwrap_or(&text).to_lowercase(),
        None => text,
    }
}

#[derive(Default)]
struct Reader {
    given: BTreeMap<String, String>,
    /// Whether buckets were given.
    has_buckets: bool,
}

/// A file's text and name, to map byte positions to lines.
struct Source<'a> {
    name: &'a str,
    text: &'a str,
}

impl Source<'_> {
    fn origin(&self, position: usize) -> Origin {
        let before = self.text.as_bytes().get(..position).unwrap_or_default();
        Origin::File {
            file: self.name.to_owned(),
            line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
        }
    }
}

impl Reader {
    fn file(&mut self, config: &mut Config, name: &str, text: &str) -> Result<(), Problem> {
        let source = Source { name, text };
        let document = DeTable::parse(text).map_err(|error| {
            let position = error.span().map_or(0, |span| span.start);
            Problem::at(&source.origin(position), format!("not TOML: {}", error.message()))
        })?;
        // In file order, so that the first mistake is the one reported.
        let mut tables: Vec<_> = document.get_ref().iter().collect();
        tables.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in tables {
            match name.get_ref().as_ref() {
                "node" => self.section(&source, &keys::NODE, &mut config.node, value)?,
                "memcached" => self.sections(&source, &keys::MEMCACHED, &mut config.memcached, value)?,
                "kv" => self.section(&source, &keys::KV, &mut config.kv, value)?,
                "http" => self.section(&source, &keys::HTTP, &mut config.http, value)?,
                "bucket" => {
                    self.sections(&source, &keys::BUCKET, &mut config.buckets, value)?;
                    self.has_buckets = true;
                }
                "ovsdb" => self.sections(&source, &keys::OVSDB, &mut config.databases, value)?,
                "limits" => self.section(&source, &keys::LIMITS, &mut config.limits, value)?,
                "allocator" => {
                    self.section(&source, &keys::ALLOCATOR, &mut config.allocator, value)?;
                }
                "auth" => self.section(&source, &keys::AUTH, &mut config.auth, value)?,
                "replication" => {
                    self.section(&source, &keys::REPLICATION, &mut config.replication, value)?;
                }
                "tls" => self.section(&source, &keys::TLS, &mut config.tls, value)?,
                "log" => self.section(&source, &keys::LOG, &mut config.log, value)?,
                unknown => {
                    return Err(unknown_section(&source.origin(name.span().start), unknown, value.get_ref()));
                }
            }
        }
        Ok(())
    }

    fn section<T: Default>(
        &mut self,
        source: &Source<'_>,
        section: &Section<T>,
        target: &mut T,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(), Problem> {
        let DeValue::Table(table) = value.get_ref() else {
            let form = format!("[{}]", section.name);
            return Err(Problem::at(
                &source.origin(value.span().start),
                format!("{} is a table: write it as {form}", section.name),
            ));
        };
        self.table(source, section, section.name, target, table)
    }

    fn sections<T: Default>(
        &mut self,
        source: &Source<'_>,
        section: &Section<T>,
        targets: &mut Vec<T>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(), Problem> {
        let misplaced = |position: usize| {
            Problem::at(
                &source.origin(position),
                format!("{0} may be given several times: write each as [[{0}]]", section.name),
            )
        };
        let DeValue::Array(tables) = value.get_ref() else { return Err(misplaced(value.span().start)) };
        targets.clear();
        for (index, table) in tables.iter().enumerate() {
            let DeValue::Table(entries) = table.get_ref() else { return Err(misplaced(table.span().start)) };
            let mut target = section.defaults();
            self.table(source, section, &format!("{}[{index}]", section.name), &mut target, entries)?;
            targets.push(target);
        }
        Ok(())
    }

    fn table<T: Default>(
        &mut self,
        source: &Source<'_>,
        section: &Section<T>,
        path: &str,
        target: &mut T,
        table: &DeTable<'_>,
    ) -> Result<(), Problem> {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in entries {
            let origin = source.origin(name.span().start);
            let word = name.get_ref().as_ref();
            let Some(key) = section.key(word) else { return Err(unknown_key(&origin, section, word)) };
            let raw = match value.get_ref() {
                DeValue::String(text) => Some(Raw::Text(text)),
                DeValue::Integer(number) => {
                    i64::from_str_radix(&number.as_str().replace('_', ""), number.radix())
                        .ok()
                        .map(Raw::Integer)
                }
                DeValue::Boolean(flag) => Some(Raw::Flag(*flag)),
                _ => None,
            };
            let shown = || source.text.get(value.span()).unwrap_or("?").trim().to_owned();
            let Some(raw) = raw else { return Err(refused(&origin, section, key, &shown())) };
            self.store(&origin, section, path, key, target, raw)?;
        }
        Ok(())
    }

    fn store<T: Default>(
        &mut self,
        origin: &Origin,
        section: &Section<T>,
        path: &str,
        key: &Key<T>,
        target: &mut T,
        raw: Raw<'_>,
    ) -> Result<(), Problem> {
        key.kind.store(target, raw).map_err(|()| refused(origin, section, key, &raw.show()))?;
        if let Some(why) = keys::missing(section.name, key.name) {
            let given = format!("{}.{} = {}", section.name, key.name, raw.show());
            return Err(Problem::at(origin, format!("{given}: {why}; allowed: to leave the key out")));
        }
        self.given.insert(format!("{path}.{}", key.name), raw.show());
        Ok(())
    }

    fn flags(&mut self, config: &mut Config, flags: &Flags) -> Result<(), Problem> {
        self.flag("--data", &keys::NODE, &mut config.node, "data", flags.data.as_deref())?;
        self.flag("--workers", &keys::NODE, &mut config.node, "workers", flags.workers.as_deref())?;
        self.flag("--memory", &keys::NODE, &mut config.node, "memory", flags.memory.as_deref())?;
        self.flag("--kv", &keys::KV, &mut config.kv, "address", flags.kv.as_deref())?;
        self.flag("--http", &keys::HTTP, &mut config.http, "address", flags.http.as_deref())?;
        let (kv_tls, http_tls) = (flags.kv_tls.as_deref(), flags.http_tls.as_deref());
        self.flag("--kv-tls-address", &keys::KV, &mut config.kv, "tls_address", kv_tls)?;
        self.flag("--http-tls-address", &keys::HTTP, &mut config.http, "tls_address", http_tls)?;
        let (certificate, key) = (flags.tls_certificate.as_deref(), flags.tls_key.as_deref());
        self.flag("--tls-certificate", &keys::TLS, &mut config.tls, "certificate", certificate)?;
        self.flag("--tls-key", &keys::TLS, &mut config.tls, "key", key)?;
        let names = flags.http_host_names.as_deref();
        self.flag("--http-host-names", &keys::HTTP, &mut config.http, "host_names", names)?;
        self.flag("--user", &keys::AUTH, &mut config.auth, "user", flags.user.as_deref())?;
        self.flag(
            "--password-file",
            &keys::AUTH,
            &mut config.auth,
            "password_file",
            flags.password_file.as_deref(),
        )?;
        self.flag("--log-level", &keys::LOG, &mut config.log, "level", flags.log_level.as_deref())?;
        self.memcached_flags(config, &flags.memcached)?;
        self.bucket_flags(config, &flags.bucket)
    }

    fn flag<T: Default>(
        &mut self,
        flag: &'static str,
        section: &Section<T>,
        target: &mut T,
        name: &str,
        value: Option<&str>,
    ) -> Result<(), Problem> {
        let (Some(value), Some(key)) = (value, section.key(name)) else { return Ok(()) };
        self.store(&Origin::Flag(flag), section, section.name, key, target, Raw::Text(value))
    }

    /// `--memcached [tls:]ADDR[=BUCKET]` replaces the ports of the file.
    fn memcached_flags(&mut self, config: &mut Config, values: &[String]) -> Result<(), Problem> {
        if values.is_empty() {
            return Ok(());
        }
        let size = config.memcached.first().map(|port| port.item_size_max);
        self.forget("memcached[");
        config.memcached.clear();
        for (index, value) in values.iter().enumerate() {
            let mut port: MemcachedSection = keys::MEMCACHED.defaults();
            port.item_size_max = size.unwrap_or(port.item_size_max);
            let (value, tls) = match value.strip_prefix(TLS_PREFIX) {
                Some(rest) => (rest, Some(Raw::Flag(true))),
                None => (value.as_str(), None),
            };
            let (address, bucket) = address::split_bucket(value);
            let given =
                [("address", Some(Raw::Text(address))), ("bucket", bucket.map(Raw::Text)), ("tls", tls)];
            for (name, raw) in given {
                if let (Some(raw), Some(key)) = (raw, keys::MEMCACHED.key(name)) {
                    let path = format!("memcached[{index}]");
                    self.store(&Origin::Flag("--memcached"), &keys::MEMCACHED, &path, key, &mut port, raw)?;
                }
            }
            config.memcached.push(port);
        }
        Ok(())
    }

    /// `--bucket NAME[,KIND][,SIZE][,EVICTION]` replaces the buckets of the file.
    fn bucket_flags(&mut self, config: &mut Config, values: &[String]) -> Result<(), Problem> {
        if values.is_empty() {
            return Ok(());
        }
        self.has_buckets = true;
        self.forget("bucket[");
        config.buckets.clear();
        let origin = Origin::Flag("--bucket");
        for (index, value) in values.iter().enumerate() {
            let mut bucket = keys::BUCKET.defaults();
            let Some(parts) = bucket_parts(value) else {
                return Err(Problem::at(&origin, format!("{value:?}: allowed is {}", super::BUCKET_FLAG)));
            };
            for (word, text) in parts {
                if let Some(key) = keys::BUCKET.key(word) {
                    self.store(
                        &origin,
                        &keys::BUCKET,
                        &format!("bucket[{index}]"),
                        key,
                        &mut bucket,
                        Raw::Text(text),
                    )?;
                }
            }
            config.buckets.push(bucket);
        }
        Ok(())
    }

    fn forget(&mut self, prefix: &str) {
        self.given.retain(|path, _| !path.starts_with(prefix));
    }
}

/// The values of `--bucket` with their keys. After the name they may come in any order, each at most once.
fn bucket_parts(value: &str) -> Option<Vec<(&'static str, &str)>> {
    let mut parts = value.split(',');
    let mut found = vec![("name", parts.next().unwrap_or_default())];
    for part in parts {
        let has = |key: &str| found.iter().any(|(known, _)| *known == key);
        let key = match part {
            "auto_delete" | "fail_new_data" | "value_ejection" => "eviction",
            "ephemeral" | "persistent" => "kind",
            size if size == "auto" || size.starts_with(|c: char| c.is_ascii_digit()) => "memory",
            // An unrecognised part counts as the kind, or else the memory, which then refuses it.
            _ if !has("kind") => "kind",
            _ => "memory",
        };
        if has(key) {
            return None;
        }
        found.push((key, part));
    }
    Some(found)
}

fn refused<T>(origin: &Origin, section: &Section<T>, key: &Key<T>, shown: &str) -> Problem {
    let path = format!("{}.{}", section.name, key.name);
    Problem::at(origin, format!("{path} = {shown}: not allowed; allowed: {}", key.kind.allowed()))
}

fn unknown_key<T>(origin: &Origin, section: &Section<T>, word: &str) -> Problem {
    let names = || section.keys.iter().map(|key| key.name);
    let meant = nearest(word, names()).map(|near| format!("did you mean \"{near}\"? ")).unwrap_or_default();
    let known = names().collect::<Vec<_>>().join(", ");
    Problem::at(
        origin,
        format!("unknown key {}.{word}; {meant}allowed in {}: {known}", section.name, section.name),
    )
}

fn unknown_section(origin: &Origin, word: &str, value: &DeValue<'_>) -> Problem {
    let rows = keys::rows();
    let written: Vec<String> = rows
        .iter()
        .map(|row| if row.repeated { format!("[[{}]]", row.name) } else { format!("[{}]", row.name) })
        .collect();
    let is_table = matches!(value, DeValue::Table(_) | DeValue::Array(_));
    let what = if is_table { "unknown section" } else { "unknown key" };
    let owner = rows.iter().find(|row| row.keys.iter().any(|key| key.name == word)).filter(|_| !is_table);
    let meant = match (owner, nearest(word, rows.iter().map(|row| row.name))) {
        (Some(row), _) => format!("it belongs into [{}]; ", row.name),
        (None, Some(near)) => format!("did you mean \"{near}\"? "),
        (None, None) => String::new(),
    };
    Problem::at(origin, format!("{what} {word}; {meant}allowed sections: {}", written.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EvictionChoice;

    fn read(text: &str) -> Result<Config, Problem> {
        let mut reader = Reader::default();
        let mut config = defaults();
        reader.file(&mut config, "node.toml", text)?;
        config.given = reader.given;
        implied(&mut config, &[], reader.has_buckets);
        check::rules(&config, &[])?;
        Ok(config)
    }

    fn problem(text: &str) -> String {
        let line = read(text).expect_err("a mistake").to_string();
        assert!(!line.contains('\n'), "{line}");
        line
    }

    #[test]
    fn the_default_file_gives_the_defaults() {
        let read = read(&super::super::page::default_toml()).expect("the default file is valid");
        assert_eq!(format!("{:?}", Config { given: BTreeMap::new(), ..read }), format!("{:?}", defaults()));
    }

    #[test]
    fn unknown_keys_are_named_with_what_was_meant() {
        let line = problem("[node]\nworkers = 2\nmemroy = \"1g\"\n");
        assert!(line.starts_with("node.toml:3: unknown key node.memroy; did you mean \"memory\"?"), "{line}");
        let line = problem("workers = 2\n");
        assert!(line.starts_with("node.toml:1: unknown key workers; it belongs into [node]"), "{line}");
        let line = problem("[[buckets]]\nname = \"a\"\n");
        assert!(line.starts_with("node.toml:1: unknown section buckets; did you mean \"bucket\"?"), "{line}");
    }

    #[test]
    fn bad_values_are_named_with_what_is_allowed() {
        for (text, start) in [
            (
                "[node]\nmemory = \"5x\"",
                "node.toml:2: node.memory = \"5x\": not allowed; allowed: \"auto\", or 8MiB to",
            ),
            (
                "[node]\nworkers = 1.5",
                "node.toml:2: node.workers = 1.5: not allowed; allowed: 0 to 64 threads",
            ),
            (
                "[[bucket]]\nvbuckets = 1000",
                "node.toml:2: bucket.vbuckets = 1000: not allowed; allowed: a power of two",
            ),
            (
                "[[bucket]]\nkind = \"durable\"",
                "node.toml:2: bucket.kind = \"durable\": not allowed; allowed: \"ephemeral\" or \"persistent\"",
            ),
            (
                "[[bucket]]\nflush_interval_ms = \"soon\"",
                "node.toml:2: bucket.flush_interval_ms = \"soon\": not allowed; allowed: 0 to 60000 milliseconds",
            ),
            (
                "[bucket]\nname = \"a\"",
                "node.toml:1: bucket may be given several times: write each as [[bucket]]",
            ),
            ("[[kv]]\n", "node.toml:1: kv is a table: write it as [kv]"),
            (
                "[kv]\naddress = \"localhost\"",
                "node.toml:2: kv.address = \"localhost\": not allowed; allowed: IP:PORT",
            ),
            (
                "[log]\nlevel = \"loud\"",
                "node.toml:2: log.level = \"loud\": not allowed; allowed: \"error\" or \"warn\"",
            ),
            ("[node\n", "node.toml:1: not TOML:"),
            ("[node]\nworkers = 1\nworkers = 2", "node.toml:3: not TOML:"),
        ] {
            let line = problem(text);
            assert!(line.starts_with(start), "{line}");
        }
    }

    #[test]
    fn flags_go_over_the_file_and_are_named_in_mistakes() {
        let flags = Flags {
            bucket: vec!["a,ephemeral,64MiB".into(), "b,32m".into(), "c".into()],
            ..Flags::default()
        };
        let config = load(None, &flags)
            .map(|c| c.buckets.iter().map(|b| (b.name.clone(), b.memory_bytes)).collect::<Vec<_>>());
        // The memcached port serves "default", which is not among these, and there is more than one.
        assert!(config.expect_err("no default").to_string().contains("memcached"));
        let only = Flags { bucket: vec!["cache,fail_new_data,64MiB".into()], ..Flags::default() };
        let config = load(None, &only).expect("the only bucket is the one that is served");
        assert_eq!(config.memcached.first().map(|port| port.bucket.as_str()), Some("cache"));
        assert_eq!(
            config.buckets.first().map(|b| (b.eviction, b.memory_bytes)),
            Some((EvictionChoice::FailNewData, Some(64 << 20)))
        );
        let named = Flags { memcached: vec!["127.0.0.1:0,default".into()], ..only };
        assert!(load(None, &named).expect_err("no default").to_string().contains("allowed: cache"));
        let flags = Flags { memcached: vec!["127.0.0.1:0=b".into()], ..flags };
        let config = load(None, &flags).expect("valid");
        let budgets: Vec<_> = config.buckets.iter().map(|b| b.memory_bytes).collect();
        assert_eq!(budgets, [Some(64 << 20), Some(32 << 20), None]);

        for (flags, start) in [
            (
                Flags { memory: Some("5x".into()), ..Flags::default() },
                "--memory: node.memory = \"5x\": not allowed",
            ),
            (
                Flags { bucket: vec!["a,persistent".into()], ..Flags::default() },
                "bucket.kind = \"persistent\" of bucket \"a\" needs node.data",
            ),
            (
                Flags { bucket: vec!["a,ephemeral,1g,x".into()], ..Flags::default() },
                "--bucket: \"a,ephemeral,1g,x\"",
            ),
            (
                Flags { workers: Some("many".into()), ..Flags::default() },
                "--workers: node.workers = \"many\"",
            ),
        ] {
            let line = load(None, &flags).expect_err("a mistake").to_string();
            assert!(line.starts_with(start), "{line}");
        }
    }
}
