//! `--monitor`: a process that restarts the server when it crashes.

use super::arguments::Arguments;
use super::detach::{self, Stage, Started};
use super::vlog::{Vlog, system_text};
use super::{End, check_pidfile};
use net::ovsdb::{Level, Logger as _};
use std::process::Child;
use std::time::{Duration, Instant};

/// Shortest interval between two starts of a server that crashes again.
const RESTART_INTERVAL: Duration = Duration::from_secs(10);

/// Starts the server and monitors it until it ends without crashing.
pub(super) fn watch(arguments: &Arguments, log: &Vlog, detached: bool) -> Result<(), End> {
    log.set_part("monitor");
    check_pidfile(arguments, log)?;
    let mut child = start()?;
    if detached {
        detach::say_serving();
        if !arguments.no_chdir {
            // The monitor must not keep a file system busy.
            let _ = std::env::set_current_dir("/");
        }
        detach::leave_files(true).map_err(|error| End::failure(system_text(&error)))?;
        log.silence_console();
    }
    if let Some(target) = &arguments.syslog_target {
        // The server has reported what is wrong with it.
        let _ = log.set_syslog_target(target);
    }
    let mut crashes = 0u64;
    let mut restarted: Option<Instant> = None;
    loop {
        let pid = child.id();
        let status =
            child.wait().map_err(|error| End::failure(format!("wait failed ({})", system_text(&error))))?;
        let text = detach::status_text(status);
        // COMPAT: the file is open only while there is something to log, so that it can be renamed and removed.
        super::open_log(arguments, log)?;
        if !detach::has_crashed(status) {
            log.log("daemon_unix", Level::Information, &format!("pid {pid} died, {text}, exiting"));
            let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
            return if code == 0 { Ok(()) } else { Err(End { code, text: None }) };
        }
        crashes += 1;
        let text = format!("{crashes} crashes: pid {pid} died, {text}, restarting");
        log.log("daemon_unix", Level::Error, &text);
        let left = restarted.map(|at| RESTART_INTERVAL.saturating_sub(at.elapsed())).unwrap_or_default();
        if !left.is_zero() {
            let text = "waiting until 10 seconds since last restart";
            log.log("daemon_unix", Level::Warning, text);
            std::thread::sleep(left);
        }
        restarted = Some(Instant::now());
        log.close();
        child = start()?;
    }
}

fn start() -> Result<Child, End> {
    match detach::start(Stage::Server) {
        Ok(Started::Serving(child)) => Ok(child),
        Ok(Started::Ended(status)) => {
            Err(End { code: status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1), text: None })
        }
        Err(error) => Err(End::failure(format!("fork failed ({})", system_text(&error)))),
    }
}
