//! A configuration key: its kind, its default, its allowed values, and how a value reaches the typed section.
//!
//! A [`Section`] is a static list of [`Key`]s over one typed struct. Reading a file, applying a flag, printing
//! `config default` and generating `docs/configuration.md` all walk the same list, so they cannot disagree.

use super::address::{self, Address};
use super::size;
use kv::replication::{PeerNode, split_address};
use kv::{BUCKET_NAME, BucketSetting, BucketSettings, NotAllowed, SettingKind, SettingValue, is_bucket_name};
use std::path::PathBuf;

/// A raw value, as given in TOML or on the command line.
#[derive(Debug, Clone, Copy)]
pub enum Raw<'a> {
    /// A TOML string, or the text of a flag.
    Text(&'a str),
    /// A TOML integer.
    Integer(i64),
    /// A TOML boolean.
    Flag(bool),
}

impl Raw<'_> {
    /// Formats the value as TOML.
    pub fn show(self) -> String {
        match self {
            Self::Text(text) => format!("{text:?}"),
            Self::Integer(number) => number.to_string(),
            Self::Flag(flag) => flag.to_string(),
        }
    }
}

/// What a key accepts, and how its value is stored. Bounds are inclusive.
pub enum Kind<T> {
    /// A number of bytes.
    Size { min: u64, max: u64, set: fn(&mut T, u64) },
    /// A number of bytes, or `"auto"`.
    SizeOrAuto { min: u64, max: u64, set: fn(&mut T, Option<u64>) },
    /// A whole number; `unit` follows it in messages.
    Count { min: u64, max: u64, unit: &'static str, set: fn(&mut T, u64) },
    /// A number of milliseconds, or -1 for never.
    MillisecondsOrNever { max: u64, set: fn(&mut T, Option<u64>) },
    /// `true` or `false`.
    Flag { set: fn(&mut T, bool) },
    /// One of the settings that every bucket has.
    Setting { setting: &'static BucketSetting, settings: fn(&mut T) -> &mut BucketSettings },
    /// One of a set of words.
    Choice { allowed: &'static [&'static str], set: fn(&mut T, &str) },
    /// The name of a bucket.
    BucketName { set: fn(&mut T, String) },
    /// The name of a user.
    UserName { set: fn(&mut T, String) },
    /// A path; empty for none.
    Path { set: fn(&mut T, Option<PathBuf>) },
    /// Remotes of OVSDB servers, separated by blanks.
    Remotes { set: fn(&mut T, Vec<String>) },
    /// Names of hosts, separated by blanks.
    HostNames { set: fn(&mut T, Vec<String>) },
    /// A name without blanks; empty for the default.
    Name { set: fn(&mut T, String) },
    /// Other nodes, separated by blanks.
    Nodes { set: fn(&mut T, Vec<PeerNode>) },
    /// An address to listen on, or `"none"`.
    Address { set: fn(&mut T, Option<Address>) },
}

impl<T> Kind<T> {
    /// Describes the allowed values.
    pub fn allowed(&self) -> String {
        match self {
            Self::Size { min, max, .. } => {
                format!("{} to {}, {}", size::show(*min), size::show(*max), size::FORMS)
            }
            Self::SizeOrAuto { min, max, .. } => {
                format!("\"auto\", or {} to {}, {}", size::show(*min), size::show(*max), size::FORMS)
            }
            Self::Count { min, max, unit, .. } => {
                format!("{min} to {max}{}{unit}", if unit.is_empty() { "" } else { " " })
            }
            Self::MillisecondsOrNever { max, .. } => format!("0 to {max} milliseconds, or -1 for never"),
            Self::Flag { .. } => "true or false".into(),
            Self::Choice { allowed, .. } => choice(allowed),
            Self::Setting { setting, .. } => match setting.kind {
                SettingKind::Bytes { min, max, .. } => {
                    format!("{} to {}, {}", size::show(min), size::show(max), size::FORMS)
                }
                SettingKind::Count { min, max, unit, .. } => format!("{min} to {max} {unit}"),
                SettingKind::PowerOfTwo { max, .. } => format!("a power of two from 1 to {max}"),
                SettingKind::Flag { .. } => "true or false".into(),
                SettingKind::Switch { .. } => choice(&["on", "off"]),
                SettingKind::Word { words, .. } => choice(words),
            },
            Self::BucketName { .. } => BUCKET_NAME.into(),
            Self::UserName { .. } => {
                format!("{}; none of ( ) < > @ , ; : \\ \" / [ ] ? = {{ }}", kv::users::NAME)
            }
            Self::Path { .. } => "a path, or \"\" for none".into(),
            Self::Remotes { .. } => {
                "punix:FILE, ptcp:PORT[:HOST], pssl:PORT[:HOST], unix:FILE, tcp:HOST[:PORT], ssl:HOST[:PORT], \
                db:DATABASE,TABLE,COLUMN, several separated by blanks, or \"\""
                    .into()
            }
            Self::HostNames { .. } => {
                "names of hosts such as \"db1.example\", several separated by blanks, \"*\" for all, or \"\"".into()
            }
            Self::Name { .. } => "1 to 255 characters without blanks or control characters, or \"\"".into(),
            Self::Nodes { .. } => {
                "NAME=HOST:KV, NAME=HOST:KV/HTTP or NAME=HOST:KV/HTTP,KV/HTTP, where KV and HTTP are ports, those \
                 with TLS after the comma, and an HTTP port may be left out; several separated by blanks, or \"\""
                    .into()
            }
            Self::Address { .. } => address::FORMS.into(),
        }
    }

    /// Parses a value and stores it; `Err` if it is not allowed.
    pub fn store(&self, target: &mut T, raw: Raw<'_>) -> Result<(), ()> {
        match self {
            Self::Size { min, max, set } => set(target, bytes(raw, *min, *max)?),
            Self::SizeOrAuto { min, max, set } => match raw {
                Raw::Text("auto") => set(target, None),
                _ => set(target, Some(bytes(raw, *min, *max)?)),
            },
            Self::Count { min, max, set, .. } => set(target, count(raw, *min, *max)?),
            Self::MillisecondsOrNever { max, set } => match raw {
                Raw::Integer(-1) | Raw::Text("-1") => set(target, None),
                _ => set(target, Some(count(raw, 0, *max)?)),
            },
            Self::Flag { set } => set(target, flag(raw)?),
            Self::Choice { allowed, set } => match raw {
                Raw::Text(word) if allowed.contains(&word) => set(target, word),
                _ => return Err(()),
            },
            Self::Setting { setting, settings } => {
                let value = setting_value(setting, raw)?;
                setting.set(settings(target), value).map_err(|NotAllowed| ())?;
            }
            Self::BucketName { set } => match raw {
                Raw::Text(name) if is_bucket_name(name) => set(target, name.to_owned()),
                _ => return Err(()),
            },
            Self::UserName { set } => match raw {
                Raw::Text(name) if is_user_name(name) => set(target, name.to_owned()),
                _ => return Err(()),
            },
            Self::Path { set } => match raw {
                Raw::Text(path) => set(target, (!path.is_empty()).then(|| PathBuf::from(path))),
                _ => return Err(()),
            },
            Self::Remotes { set } => match raw {
                Raw::Text(text) => {
                    let remotes: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
                    if !remotes.iter().all(|remote| is_remote(remote)) {
                        return Err(());
                    }
                    set(target, remotes);
                }
                _ => return Err(()),
            },
            Self::HostNames { set } => match raw {
                Raw::Text(text) => {
                    let names: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
                    if !names.iter().all(|name| name == console::HostNames::ANY || is_host_name(name)) {
                        return Err(());
                    }
                    set(target, names);
                }
                _ => return Err(()),
            },
            Self::Name { set } => match raw {
                Raw::Text(name) if is_name(name) => set(target, name.to_owned()),
                _ => return Err(()),
            },
            Self::Nodes { set } => match raw {
                Raw::Text(text) => {
                    let nodes: Option<Vec<PeerNode>> = text.split_whitespace().map(node).collect();
                    let nodes = nodes.ok_or(())?;
                    let mut names: Vec<&str> = nodes.iter().map(|node| &*node.name).collect();
                    names.sort_unstable();
                    names.dedup();
                    if names.len() < nodes.len() {
                        return Err(());
                    }
                    set(target, nodes);
                }
                _ => return Err(()),
            },
            Self::Address { set } => match raw {
                Raw::Text("none") => set(target, None),
                Raw::Text(text) => set(target, Some(Address::parse(text).ok_or(())?)),
                _ => return Err(()),
            },
        }
        Ok(())
    }
}

/// One key of a section.
pub struct Key<T> {
    /// Its name in the file.
    pub name: &'static str,
    /// What it accepts.
    pub kind: Kind<T>,
    /// Its default.
    pub default: Raw<'static>,
    /// What it does, in one or two sentences.
    pub about: &'static str,
    /// Whether SIGHUP applies a changed value to the running server.
    pub reload: bool,
}

/// A table of the file: `[name]`, or `[[name]]` when repeated.
pub struct Section<T: 'static> {
    /// Its name in the file.
    pub name: &'static str,
    /// Whether it may occur several times.
    pub repeated: bool,
    /// Its purpose.
    pub about: &'static str,
    /// Its keys.
    pub keys: &'static [Key<T>],
}

impl<T: Default> Section<T> {
    /// The section with every key at its default.
    ///
    /// # Panics
    /// If a default in the table is not allowed by its own kind, which a test rules out.
    pub fn defaults(&self) -> T {
        let mut target = T::default();
        for key in self.keys {
            let stored = key.kind.store(&mut target, key.default);
            assert!(stored.is_ok(), "the default of {}.{} is not allowed", self.name, key.name);
        }
        target
    }

    /// The key with this name.
    pub fn key(&self, name: &str) -> Option<&'static Key<T>> {
        self.keys.iter().find(|key| key.name == name)
    }
}

fn choice(words: &[&str]) -> String {
    words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(" or ")
}

/// Converts a value to its setting's type.
fn setting_value<'a>(setting: &BucketSetting, raw: Raw<'a>) -> Result<SettingValue<'a>, ()> {
    Ok(match setting.kind {
        SettingKind::Bytes { .. } => SettingValue::Number(bytes(raw, 0, u64::MAX)?),
        SettingKind::Count { .. } | SettingKind::PowerOfTwo { .. } => {
            SettingValue::Number(count(raw, 0, u64::MAX)?)
        }
        SettingKind::Flag { .. } => SettingValue::Flag(flag(raw)?),
        SettingKind::Switch { .. } => match raw {
            Raw::Text("on") => SettingValue::Flag(true),
            Raw::Text("off") => SettingValue::Flag(false),
            _ => return Err(()),
        },
        SettingKind::Word { .. } => match raw {
            Raw::Text(word) => SettingValue::Word(word),
            _ => return Err(()),
        },
    })
}

fn bytes(raw: Raw<'_>, min: u64, max: u64) -> Result<u64, ()> {
    let value = match raw {
        Raw::Integer(number) => u64::try_from(number).map_err(drop)?,
        Raw::Text(text) => size::read(text).ok_or(())?,
        Raw::Flag(_) => return Err(()),
    };
    if (min..=max).contains(&value) { Ok(value) } else { Err(()) }
}

fn count(raw: Raw<'_>, min: u64, max: u64) -> Result<u64, ()> {
    let value = match raw {
        Raw::Integer(number) => u64::try_from(number).map_err(drop)?,
        Raw::Text(text) => text.parse().map_err(drop)?,
        Raw::Flag(_) => return Err(()),
    };
    if (min..=max).contains(&value) { Ok(value) } else { Err(()) }
}

fn flag(raw: Raw<'_>) -> Result<bool, ()> {
    match raw {
        Raw::Flag(flag) => Ok(flag),
        Raw::Text("true") => Ok(true),
        Raw::Text("false") => Ok(false),
        _ => Err(()),
    }
}

/// Returns true if the text is a remote that can be served.
fn is_remote(text: &str) -> bool {
    use net::ovsdb::Remote;
    match Remote::parse(text, std::path::Path::new("")) {
        Remote::ListenUnix(path) | Remote::ConnectUnix(path) => path.file_name().is_some(),
        Remote::ListenInherited(_) => true,
        Remote::ListenTcp(..) | Remote::ConnectTcp(..) | Remote::Database(_) => true,
        Remote::Unusable { .. } => false,
    }
}

fn is_name(name: &str) -> bool {
    name.len() <= 255 && !name.chars().any(|c| c.is_control() || c.is_whitespace())
}

/// Reads `NAME=HOST:KV[/HTTP][,KV[/HTTP]]`. Only a node that has one with TLS may have 0 as its first KV port.
fn node(text: &str) -> Option<PeerNode> {
    let (name, ports) = text.split_once('=').filter(|(name, _)| !name.is_empty() && is_name(name))?;
    let (plain, encrypted) = ports.split_once(',').map_or((ports, None), |(one, two)| (one, Some(two)));
    let (address, http) = and_http(plain)?;
    let (host, kv) = split_address(address)?;
    let (kv_tls, http_tls) = match encrypted.map(and_http) {
        None => (None, None),
        Some(ports) => {
            let (kv, http) = ports?;
            (Some(port(kv)?), http)
        }
    };
    let is_host = is_host_name(host) || host.parse::<std::net::Ipv6Addr>().is_ok();
    let kv = (kv > 0).then_some(kv);
    (is_host && kv.or(kv_tls).is_some()).then(|| PeerNode {
        name: name.into(),
        host: host.into(),
        kv,
        http,
        kv_tls,
        http_tls,
    })
}

/// Splits off what is after a slash: an HTTP port.
fn and_http(text: &str) -> Option<(&str, Option<u16>)> {
    match text.split_once('/') {
        Some((first, http)) => Some((first, Some(port(http)?))),
        None => Some((text, None)),
    }
}

fn port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port > 0)
}

/// Returns true if the text can be a host name.
pub fn is_host_name(name: &str) -> bool {
    (1..=253).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

fn is_user_name(name: &str) -> bool {
    kv::users::is_name(name) && !name.chars().any(|c| r#"()<>@,;:\"/[]?={}"#.contains(c))
}
