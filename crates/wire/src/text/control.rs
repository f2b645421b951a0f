//! Single-line commands that neither fetch nor store.

use super::{Command, Error, KEY_MAX, Line, Tokens, number};

/// Size classes have numbers below this.
const CLASSES: u32 = 64;

/// Argument of `shutdown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownMode {
    /// No argument: stop.
    Now,
    /// `graceful`: drain, then stop.
    Graceful,
    /// Anything else; answered only if the command is enabled.
    Invalid,
}

/// A list of keys, and which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dump {
    /// What is listed of each.
    pub form: DumpForm,
    /// Bits of the size classes that are listed.
    pub classes: u64,
    /// Maximum number of keys; 0 = all.
    pub limit: u32,
}

/// What a list shows of each key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpForm {
    /// `lru_crawler metadump`: key, times, CAS, class and size.
    Meta,
    /// `lru_crawler mgdump`: an `mg` command.
    Keys,
    /// `stats cachedump`: key, length and expiry.
    Items,
    /// `stats conns`: no keys, but the connected clients.
    Clients,
}

/// The events that `watch` reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Watched(u8);

impl Watched {
    /// Every lookup of a key.
    pub const FETCHERS: Self = Self(1);
    /// Every attempt to store.
    pub const MUTATIONS: Self = Self(2);
    /// Documents evicted because memory is short.
    pub const EVICTIONS: Self = Self(4);
    /// Connections opened and closed.
    pub const CONNECTIONS: Self = Self(8);
    /// Documents deleted.
    pub const DELETIONS: Self = Self(16);

    /// The union of both.
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Returns true if any of `others` is among these.
    pub const fn has(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// As a number.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// From a number.
    pub const fn of_bits(bits: u8) -> Self {
        Self(bits)
    }
}

/// `[fetchers|mutations|evictions|connevents|deletions ...]`
pub(super) fn watch(tokens: Tokens<'_>) -> Line<'_> {
    if tokens.rest().is_empty() {
        return Line::Command(Command::Watch(Watched::FETCHERS));
    }
    let mut watched = Watched::default();
    for word in tokens {
        watched = watched.and(match word {
            b"fetchers" => Watched::FETCHERS,
            b"mutations" => Watched::MUTATIONS,
            b"evictions" => Watched::EVICTIONS,
            b"connevents" => Watched::CONNECTIONS,
            b"deletions" => Watched::DELETIONS,
            // COMPAT: known to memcached; none of these events occur here.
            b"sysevents" | b"rawcmds" | b"proxyreqs" | b"proxyevents" | b"proxyuser" => Watched::default(),
            _ => return Line::Malformed(Error::Unknown),
        });
    }
    Line::Command(Command::Watch(watched))
}

/// `[subject ...]`
pub(super) fn stats(tokens: Tokens<'_>) -> Line<'_> {
    let arguments = tokens.rest();
    let mut words = tokens;
    match words.next() {
        Some(b"cachedump") => {}
        Some(b"conns") => {
            let dump = Dump { form: DumpForm::Clients, classes: u64::MAX, limit: 0 };
            return Line::Command(Command::Dump(dump));
        }
        _ => return Line::Command(Command::Stats { arguments }),
    }
    let (Some(class), Some(limit)) = (words.next(), words.next()) else {
        return Line::Malformed(Error::BadCommandLine);
    };
    let (Some(class), Some(limit)) = (number::digits_32(class), number::digits_32(limit)) else {
        return Line::Malformed(Error::BadFormat);
    };
    if class >= CLASSES {
        return Line::Malformed(Error::IllegalClass);
    }
    // There is no class 0.
    let classes = 1 << class & !1;
    Line::Command(Command::Dump(Dump { form: DumpForm::Items, classes, limit }))
}

/// `metadump|mgdump all|hash|<class>,<class>...`; the crawler has no other commands here.
pub(super) fn lru_crawler(mut tokens: Tokens<'_>) -> Line<'_> {
    let form = match tokens.next() {
        Some(b"metadump") => DumpForm::Meta,
        Some(b"mgdump") => DumpForm::Keys,
        _ => return Line::Malformed(Error::Unknown),
    };
    let (Some(which), true) = (tokens.next(), tokens.rest().is_empty()) else {
        return Line::Malformed(Error::Unknown);
    };
    let classes = match which {
        b"all" | b"hash" => Some(u64::MAX),
        list => list.split(|byte| *byte == b',').try_fold(0, |classes, class| {
            let class = number::digits_32(class).filter(|class| (1..CLASSES).contains(class))?;
            Some(classes | 1 << class)
        }),
    };
    match classes {
        Some(classes) => Line::Command(Command::Dump(Dump { form, classes, limit: 0 })),
        None => Line::Malformed(Error::BadClass),
    }
}

/// `<key> [noreply]`
pub(super) fn delete(mut tokens: Tokens<'_>) -> Line<'_> {
    let noreply = is_noreply(tokens);
    match tokens.next() {
        None => Line::Malformed(Error::BadFormat),
        Some(key) if key.len() > KEY_MAX => Line::malformed(Error::BadFormat, noreply),
        Some(key) => Line::Command(Command::Delete { key, noreply }),
    }
}

/// `<key> <number> [noreply]`
pub(super) fn arithmetic(mut tokens: Tokens<'_>, decrement: bool) -> Line<'_> {
    let noreply = is_noreply(tokens);
    let (Some(key), Some(number)) = (tokens.next(), tokens.next()) else {
        return Line::Malformed(Error::BadFormat);
    };
    if key.len() > KEY_MAX {
        return Line::malformed(Error::BadFormat, noreply);
    }
    match number::digits(number) {
        Some(delta) => Line::Command(Command::Arithmetic { key, delta, decrement, noreply }),
        None => Line::malformed(Error::BadDelta, noreply),
    }
}

/// `<key> <exptime> [noreply]`
pub(super) fn touch(mut tokens: Tokens<'_>) -> Line<'_> {
    let noreply = is_noreply(tokens);
    let (Some(key), Some(exptime)) = (tokens.next(), tokens.next()) else {
        return Line::Malformed(Error::BadFormat);
    };
    if key.len() > KEY_MAX {
        return Line::malformed(Error::BadFormat, noreply);
    }
    match number::signed_32(exptime) {
        Some(exptime) => Line::Command(Command::Touch { key, exptime, noreply }),
        None => Line::malformed(Error::BadExptime, noreply),
    }
}

/// `[delay] [noreply]`
pub(super) fn flush_all(mut tokens: Tokens<'_>) -> Line<'_> {
    let noreply = is_noreply(tokens);
    let delay = match (tokens.next(), tokens.rest()) {
        (None, _) => Some(0),
        (Some(b"noreply"), b"") => Some(0),
        (Some(token), _) => number::signed_32(token),
    };
    match delay {
        Some(delay) => Line::Command(Command::FlushAll { delay, noreply }),
        None => Line::malformed(Error::BadExptime, noreply),
    }
}

/// `<level> [noreply]`
pub(super) fn verbosity(mut tokens: Tokens<'_>) -> Line<'_> {
    let noreply = is_noreply(tokens);
    match tokens.next() {
        Some(level) if number::digits_32(level).is_some() => Line::Command(Command::Verbosity { noreply }),
        _ => Line::malformed(Error::BadFormat, noreply),
    }
}

/// `<MiB> [noreply]`
pub(super) fn cache_memlimit(mut tokens: Tokens<'_>) -> Line<'_> {
    let noreply = is_noreply(tokens);
    match tokens.next().and_then(number::digits_32) {
        Some(mebibytes) => Line::Command(Command::CacheMemlimit { mebibytes: u64::from(mebibytes), noreply }),
        None => Line::malformed(Error::Unknown, noreply),
    }
}

/// `[graceful]`
pub(super) fn shutdown(mut tokens: Tokens<'_>) -> Line<'_> {
    let mode = match (tokens.next(), tokens.next()) {
        (None, _) => ShutdownMode::Now,
        (Some(b"graceful"), None) => ShutdownMode::Graceful,
        _ => ShutdownMode::Invalid,
    };
    Line::Command(Command::Shutdown(mode))
}

/// Returns true if the last of a command's words is the option. COMPAT: whatever stands before it.
fn is_noreply(tokens: Tokens<'_>) -> bool {
    tokens.last_word() == b"noreply"
}
