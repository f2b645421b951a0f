//! `ovsdb-server`: the stock server's command line, log, control socket and exit codes over this process's event loop.
//!
//! ```text
//!   command line ── log ── (another user) ── (detach, monitor: this program again) ── pidfile ── databases
//!         ── control socket ── remotes ── (--run) ── "I serve" ── loop ── remove pidfile and sockets
//! ```
//! Exit codes: 0 after the command `exit` or a successful `--run`, 1 for every mistake and failure; otherwise death by
//! the signal that arrived.
#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod crash;
mod detach;
mod directories;
mod figures;
mod memory_report;
mod monitor;
pub mod open_database;
mod options;
mod pidfile;
mod serving;
mod users;
mod vlog;

pub use vlog::rate::Rates;

use arguments::{Arguments, Invocation};
use detach::{Stage, Started};
use net::ovsdb::{Level, Logger as _};
use pidfile::Failure;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use vlog::Vlog;

/// The name of the program, whatever the binary is called.
pub const NAME: &str = "ovsdb-server";

/// COMPAT: scripts look for the name and a version of Open vSwitch.
const VERSION: &str = concat!("ovsdb-server (Open vSwitch) 3.1.0-dormouse-", env!("CARGO_PKG_VERSION"));

/// Returns true if a program of this name is to act as `ovsdb-server`.
pub fn is_name(argument: &std::ffi::OsStr) -> bool {
    Path::new(argument).file_name().is_some_and(|name| name == NAME)
}

/// The end of the process: an exit code, and what to print first.
#[derive(Debug)]
struct End {
    code: u8,
    text: Option<String>,
}

impl End {
    fn failure(text: impl Into<String>) -> Self {
        Self { code: 1, text: Some(text.into()) }
    }
}

/// Runs the server with the arguments after its name.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    detach::take_name();
    crash::by_default();
    match try_run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(end) => {
            if let Some(text) = end.text {
                print_error(&text);
            }
            ExitCode::from(end.code)
        }
    }
}

/// Prints a text on standard output. Failures are ignored.
fn say(text: &str) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints one line on standard error, in the stock server's form. Failures are ignored.
fn print_error(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{NAME}: {text}");
}

fn try_run(arguments: impl Iterator<Item = OsString>) -> Result<(), End> {
    let line = options::parse(arguments).map_err(|mistake| End::failure(mistake.0))?;
    let log = Arc::new(Vlog::new(NAME));
    let arguments = match Arguments::understand(line, &log).map_err(End::failure)? {
        Invocation::Help => {
            say(&arguments::help());
            return Ok(());
        }
        Invocation::Version => {
            say(&format!("{VERSION}\n"));
            return Ok(());
        }
        Invocation::Serve(arguments) => *arguments,
    };
    let stage = Stage::current();
    if stage == Stage::Called
        && let Some(spec) = &arguments.user
    {
        let identity = users::find(spec).map_err(End::failure)?;
        let mine = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        if mine != (identity.user, identity.group) {
            let error = detach::become_user(identity);
            return Err(End::failure(format!("{spec}: cannot become this user ({error}), aborting")));
        }
    }
    let is_called = matches!(stage, Stage::Called | Stage::AsUser);
    if is_called && arguments.detach {
        // The process that serves opens the log. The pidfile is checked now, and errors in it are logged.
        if let Some(path) = arguments.pidfile.as_deref().filter(|_| !arguments.overwrite_pidfile)
            && let Err(failure) = pidfile::check(path)
        {
            open_log(&arguments, &log)?;
            return Err(fatal(&log, "daemon_unix", failure));
        }
        let next = if arguments.monitor { Stage::Monitor } else { Stage::Detached };
        return match detach::start(next) {
            Ok(Started::Serving(_)) => Ok(()),
            Ok(Started::Ended(status)) => Err(match status.code() {
                // It has reported why.
                Some(code) => End { code: u8::try_from(code).unwrap_or(1), text: None },
                None => End::failure(format!(
                    "fork child died before signaling startup ({})",
                    detach::status_text(status)
                )),
            }),
            Err(error) => Err(End::failure(format!("fork failed ({})", vlog::system_text(&error)))),
        };
    }
    if matches!(stage, Stage::Monitor | Stage::Detached) {
        detach::lead_session();
    }
    if arguments.monitor && stage != Stage::Server {
        return monitor::watch(&arguments, &log, stage == Stage::Monitor);
    }
    open_log(&arguments, &log)?;
    if let Some(target) = &arguments.syslog_target {
        match log.set_syslog_target(target) {
            Ok(()) => {
                let text = "--syslog-target flag is deprecated, use --syslog-method instead";
                log.log("vlog", Level::Warning, text);
            }
            Err(text) => log.log("socket_util", Level::Error, &text),
        }
    }
    for (name, why) in &arguments.without_effect {
        log.log("ovsdb_server", Level::Information, &format!("--{name} has no effect: {why}"));
    }
    serving::serve(&arguments, &log, stage)
}

fn open_log(arguments: &Arguments, log: &Vlog) -> Result<(), End> {
    match &arguments.log_file {
        Some(path) => log.open_file(path).map_err(|()| End { code: 1, text: None }),
        None => Ok(()),
    }
}

fn check_pidfile(arguments: &Arguments, log: &Vlog) -> Result<(), End> {
    match &arguments.pidfile {
        Some(path) if !arguments.overwrite_pidfile => {
            pidfile::check(path).map_err(|failure| fatal(log, "daemon_unix", failure))
        }
        _ => Ok(()),
    }
}

/// Logs what ends the process. The caller prints it on standard error, so the log's console is silenced.
fn fatal(log: &Vlog, module: &'static str, failure: Failure) -> End {
    if let Some(warning) = failure.warning {
        log.log(module, Level::Warning, &warning);
    }
    log.silence_console();
    log.log(module, Level::Emergency, &failure.text);
    End::failure(failure.text)
}
