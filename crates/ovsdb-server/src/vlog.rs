//! The stock server's log: modules with levels for each of three destinations, and lines made from patterns.
//!
//! ```text
//!   message ─ level of (module, destination) ─ rate limit ─ pattern ─> console, system log, file
//! ```
//! One counter numbers the messages that went to any destination. A line is written with one system call, so that lines
//! of several processes do not mix in one file.

mod levels;
mod modules;
mod pattern;
pub mod rate;
mod syslog;

pub use levels::{DESTINATIONS, Destination, Levels};

use net::ovsdb::{Level, Logger};
use pattern::Line;
use rate::Rates;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use syslog::Syslog;

/// The log of this process.
pub struct Vlog {
    program: String,
    state: Mutex<State>,
}

struct State {
    levels: Levels,
    rates: Rates,
    patterns: [String; DESTINATIONS.len()],
    file: Option<File>,
    /// Of the file: its path, and its name as given.
    path: Option<(PathBuf, String)>,
    syslog: Syslog,
    /// In parentheses after the module, e.g. `monitor`.
    part: &'static str,
    count: u64,
}

impl Vlog {
    /// The log of `program`: INFO and above go to the console and the system log.
    pub fn new(program: &str) -> Self {
        let state = State {
            levels: Levels::default(),
            rates: Rates::default(),
            patterns: [
                "%D{%Y-%m-%dT%H:%M:%SZ}|%05N|%c%T|%p|%m".into(),
                "ovs|%05N|%c%T|%p|%m".into(),
                "%D{%Y-%m-%dT%H:%M:%S.###Z}|%05N|%c%T|%p|%m".into(),
            ],
            file: None,
            path: None,
            syslog: Syslog::default(),
            part: "",
            count: 0,
        };
        Self { program: program.to_owned(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A line that was interrupted by a panic is harmless.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets which part of the program this process is, e.g. `monitor`.
    pub fn set_part(&self, part: &'static str) {
        self.state().part = part;
    }

    /// Sets levels, a pattern or the facility, in the syntax of `-v` and `vlog/set`.
    pub fn set(&self, spec: &str) -> Result<(), String> {
        let mut words = spec.splitn(3, [':', ' ']);
        let first = words.next().unwrap_or_default();
        if first.eq_ignore_ascii_case("pattern") {
            let name = words.next().filter(|name| !name.is_empty()).ok_or("missing destination")?;
            let pattern = words.next().unwrap_or_default();
            return self.set_pattern(name, pattern);
        }
        if first.eq_ignore_ascii_case("facility") {
            let name = spec.get(first.len() + 1..).unwrap_or_default();
            return self.state().syslog.set_facility(name);
        }
        self.state().levels.set(spec)
    }

    fn set_pattern(&self, name: &str, pattern: &str) -> Result<(), String> {
        let mut state = self.state();
        if name.eq_ignore_ascii_case("any") {
            state.patterns.fill(pattern.to_owned());
            return Ok(());
        }
        let destination = Destination::find(name).ok_or_else(|| format!("unknown destination \"{name}\""))?;
        if let Some(place) = state.patterns.get_mut(destination as usize) {
            pattern.clone_into(place);
        }
        Ok(())
    }

    /// Sends what goes to the system log also to `HOST:PORT`, by UDP.
    pub fn set_syslog_target(&self, target: &str) -> Result<(), String> {
        self.state().syslog.set_target(target)
    }

    /// Stops logging to the console: nobody reads it.
    pub fn silence_console(&self) {
        self.state().levels.set_all(Destination::Console, None);
    }

    /// Starts logging to a file.
    pub fn open_file(&self, path: &Path) -> Result<(), ()> {
        // The working directory may change; messages show the name as given.
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        self.state().path = Some((absolute, path.display().to_string()));
        self.reopen().map_err(drop)
    }

    /// Reopens the file, which may have been renamed.
    pub fn reopen(&self) -> Result<(), String> {
        let Some((path, name)) = self.state().path.clone() else {
            return Err("Logging to file not configured".into());
        };
        match OpenOptions::new().append(true).create(true).mode(0o660).open(&path) {
            Ok(file) => {
                self.state().file = Some(file);
                let text = format!("opened log file {name}");
                self.log("vlog", Level::Information, &text);
                Ok(())
            }
            Err(error) => {
                let error = system_text(&error);
                let text = format!("failed to open {name} for logging: {error}");
                self.log("vlog", Level::Warning, &text);
                Err(error)
            }
        }
    }

    /// Closes the file until it is reopened.
    pub fn close(&self) {
        let is_open = self.state().file.is_some();
        if is_open {
            self.log("vlog", Level::Information, "closing log file");
            self.state().file = None;
        }
    }

    /// The answer to `vlog/list`.
    pub fn list(&self) -> String {
        let state = self.state();
        state.levels.list(&state.rates)
    }

    /// The answer to `vlog/list-pattern`.
    pub fn list_patterns(&self) -> String {
        let state = self.state();
        let mut text = String::from("         prefix                            format\n");
        text.push_str("         ------                            ------\n");
        let prefixes = ["none", "<%B> %D{%h %e %T} %E %A:", "none"];
        let [console, syslog, file] = &state.patterns;
        for (name, prefix, pattern) in
            [("SYSLOG", prefixes[1], syslog), ("CONSOLE", prefixes[0], console), ("FILE", prefixes[2], file)]
        {
            text.push_str(&format!("{name:<7}  {prefix:<32}  {pattern}\n"));
        }
        text
    }

    /// Enables or disables the rate limit of some modules (none: of all).
    pub fn limit_rates(&self, names: &[String], limited: bool) -> Result<(), String> {
        let mut state = self.state();
        if names.is_empty() {
            state.rates.set_all(limited);
        }
        for name in names {
            if name.eq_ignore_ascii_case("any") {
                state.rates.set_all(limited);
            } else {
                let module = modules::find(name).ok_or("unknown module")?;
                state.rates.set(module, limited);
            }
        }
        Ok(())
    }
}

impl Logger for Vlog {
    fn log(&self, module: &'static str, level: Level, text: &str) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut guard = self.state();
        let state = &mut *guard;
        let index = modules::find(module);
        let wants = |destination| state.levels.allows(index, destination, level);
        let console = wants(Destination::Console);
        let syslog = wants(Destination::Syslog);
        let file = state.file.is_some() && wants(Destination::File);
        if !(console || syslog || file) {
            return;
        }
        let seconds = time.as_secs();
        let (passes, dropped) = state.rates.take(module, level, seconds);
        if !passes {
            return;
        }
        for (text, level) in dropped.iter().map(|text| (text.as_str(), level)).chain([(text, level)]) {
            state.count += 1;
            let line = Line {
                program: &self.program,
                module,
                part: state.part,
                level,
                number: state.count,
                time,
                facility: state.syslog.shown_facility(),
                text: "",
            };
            for text in text.lines() {
                let line = Line { text, ..line };
                let [console_pattern, syslog_pattern, file_pattern] = &state.patterns;
                if console {
                    write_line(&mut io::stderr(), line.format(console_pattern));
                }
                if syslog {
                    let prefixed = format!("<%B>%D{{%h %e %T}} %A: {syslog_pattern}");
                    let local = Line { facility: state.syslog.facility(), ..line };
                    state.syslog.send(&local.format(&prefixed));
                    if state.syslog.has_target() {
                        state.syslog.send_to_target(&line.format(COLLECTED));
                    }
                }
                if file && let Some(target) = &mut state.file {
                    write_line(target, line.format(file_pattern));
                }
            }
        }
    }
}

/// The format for log collectors (RFC 5424), whatever the pattern of the system log is.
const COLLECTED: &str = "<%B>1 %D{%Y-%m-%dT%H:%M:%S.###Z} %E %A %P %c - \u{feff}%m";

/// Failures are ignored: there is nowhere to report them.
fn write_line(target: &mut impl io::Write, mut line: String) {
    line.push('\n');
    let _ = target.write_all(line.as_bytes());
}

/// The C library's text of an error.
pub fn system_text(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => ovsdb::error::system_text(number),
        None => error.to_string(),
    }
}
