//! Levels by module and destination, and how they are set.

use super::modules::{self, MODULES};
use super::rate::Rates;
use net::ovsdb::Level;

/// A destination of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Destination {
    /// Standard error.
    Console,
    /// The system log.
    Syslog,
    /// The log file.
    File,
}

/// All destinations, in the order of [`Destination`].
pub const DESTINATIONS: [Destination; 3] = [Destination::Console, Destination::Syslog, Destination::File];

impl Destination {
    /// The destination with this name.
    pub fn find(name: &str) -> Option<Self> {
        let names = [("console", Self::Console), ("syslog", Self::Syslog), ("file", Self::File)];
        names.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, found)| found)
    }
}

/// The least severe level that passes; `None`: nothing passes.
type Threshold = Option<Level>;

/// The levels.
#[derive(Debug, Clone)]
pub struct Levels(Vec<[Threshold; DESTINATIONS.len()]>);

impl Default for Levels {
    fn default() -> Self {
        Self(vec![[Some(Level::Information); DESTINATIONS.len()]; MODULES.len()])
    }
}

/// A level's name; three or four letters.
pub fn name_of(level: Threshold) -> &'static str {
    match level {
        None => "OFF",
        Some(Level::Emergency) => "EMER",
        Some(Level::Error) => "ERR",
        Some(Level::Warning) => "WARN",
        Some(Level::Information) => "INFO",
        Some(Level::Debug) => "DBG",
    }
}

const LEVELS: [Threshold; 6] = [
    None,
    Some(Level::Emergency),
    Some(Level::Error),
    Some(Level::Warning),
    Some(Level::Information),
    Some(Level::Debug),
];

fn find_level(name: &str) -> Option<Threshold> {
    LEVELS.into_iter().find(|level| name_of(*level).eq_ignore_ascii_case(name))
}

impl Levels {
    /// Returns true if a line of a module passes; modules without an entry have the initial levels.
    pub fn allows(&self, module: Option<usize>, destination: Destination, level: Level) -> bool {
        let threshold = match module.and_then(|module| self.0.get(module)) {
            Some(thresholds) => thresholds.get(destination as usize).copied().flatten(),
            None => Some(Level::Information),
        };
        threshold.is_some_and(|threshold| level <= threshold)
    }

    /// Sets one destination's level for all modules.
    pub fn set_all(&mut self, destination: Destination, level: Threshold) {
        for thresholds in &mut self.0 {
            if let Some(place) = thresholds.get_mut(destination as usize) {
                *place = level;
            }
        }
    }

    /// Sets levels from words for a module, a destination and a level, in any order. A missing module or destination
    /// means all of them, a missing level DBG.
    pub fn set(&mut self, spec: &str) -> Result<(), String> {
        let (mut module, mut destination, mut level) = (None, None, None);
        for word in spec.split([' ', ',', ':']).filter(|word| !word.is_empty()) {
            if word.eq_ignore_ascii_case("any") {
            } else if let Some(found) = Destination::find(word) {
                if destination.replace(found).is_some() {
                    return Err("cannot specify multiple destinations".into());
                }
            } else if let Some(found) = find_level(word) {
                if level.replace(found).is_some() {
                    return Err("cannot specify multiple levels".into());
                }
            } else if let Some(found) = modules::find(word) {
                if module.replace(found).is_some() {
                    return Err("cannot specify multiple modules".into());
                }
            } else {
                return Err(format!("no destination, level, or module \"{word}\""));
            }
        }
        let level = level.unwrap_or(Some(Level::Debug));
        for (index, thresholds) in self.0.iter_mut().enumerate() {
            if module.is_some_and(|module| module != index) {
                continue;
            }
            for (place, threshold) in DESTINATIONS.iter().zip(thresholds) {
                if destination.is_none_or(|destination| destination == *place) {
                    *threshold = level;
                }
            }
        }
        Ok(())
    }

    /// The table of `vlog/list`.
    pub fn list(&self, rates: &Rates) -> String {
        let mut text = String::from("                 console    syslog    file\n");
        text.push_str("                 -------    ------    ------\n");
        for (index, (name, [console, syslog, file])) in MODULES.iter().zip(&self.0).enumerate() {
            let note = if rates.is_limited(index) { "" } else { "    (rate limiting disabled)" };
            let [console, syslog, file] = [name_of(*console), name_of(*syslog), name_of(*file)];
            text.push_str(&format!("{name:<16}  {console:>4}       {syslog:>4}       {file:>4}{note}\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_have_their_words_in_any_order() {
        let mut levels = Levels::default();
        let jsonrpc = modules::find("jsonrpc");
        levels.set("dbg:jsonrpc,file").unwrap();
        assert!(levels.allows(jsonrpc, Destination::File, Level::Debug));
        assert!(!levels.allows(jsonrpc, Destination::Console, Level::Debug));
        assert!(!levels.allows(modules::find("raft"), Destination::File, Level::Debug));
        levels.set("ANY:console:off").unwrap();
        assert!(!levels.allows(jsonrpc, Destination::Console, Level::Emergency));
        levels.set("").unwrap();
        assert!(levels.allows(jsonrpc, Destination::Console, Level::Debug));
        assert_eq!(levels.set("jsonrpc:bar").unwrap_err(), "no destination, level, or module \"bar\"");
        assert_eq!(levels.set("info dbg").unwrap_err(), "cannot specify multiple levels");
        let list = levels.list(&Rates::default());
        assert!(list.contains("\nbacktrace          DBG        DBG        DBG\n"), "{list}");
        assert!(list.contains("\ndpif_lookup_autovalidator   DBG        DBG        DBG\n"), "{list}");
    }
}
