//! The process that serves: from the pidfile to its end.

use super::arguments::Arguments;
use super::commands;
use super::detach::{self, Stage};
use super::memory_report::{self, MemoryReport};
use super::pidfile::Pidfile;
use super::vlog::{Vlog, system_text};
use super::{End, VERSION, directories, fatal, figures, open_database};
use net::ovsdb::{Answer, Command, Core, EventLoop, Host, Level, Logger, Settings};
use signal_hook::consts::{SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::{emulate_default_handler, pipe};
use std::io;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// How long the process waits for host names that listeners need before it reports that it serves.
const NAMES_WAIT: Duration = Duration::from_secs(2);

/// Signals that end the process.
const DEADLY: [i32; 4] = [SIGTERM, SIGINT, SIGHUP, SIGALRM];

/// The process around the loop.
pub(super) struct Process {
    pub log: Arc<Vlog>,
    /// The last deadly signal, if any.
    signal: Arc<AtomicUsize>,
    /// The command of `--run`.
    child: Option<(String, Child)>,
    memory: MemoryReport,
    /// How the process ends when the loop does.
    end: Result<(), End>,
}

impl Host for Process {
    fn command(&mut self, events: &mut EventLoop, command: &Command) -> Answer {
        commands::execute(self, events, command)
    }

    fn turn_ended(&mut self, events: &mut EventLoop) {
        if let Some(text) = self.memory.look(events.now().monotonic_ms, memory_report::peak_kb) {
            self.log.log("memory", Level::Information, &text);
            self.log.log("memory", Level::Information, &figures::memory(events.core()));
        }
    }

    fn woken(&mut self, events: &mut EventLoop) {
        if let Ok(signal) = i32::try_from(self.signal.load(Relaxed))
            && signal != 0
        {
            let name = detach::signal_name(signal);
            let text = format!("terminating with signal {signal} ({name})");
            self.log.log("fatal_signal", Level::Warning, &text);
            events.stop();
            return;
        }
        if let Some((command, child)) = &mut self.child {
            match child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) if status.success() => events.stop(),
                Ok(Some(status)) => {
                    let text = format!("{command}: child exited, {}", detach::status_text(status));
                    self.end = Err(End::failure(text));
                    events.stop();
                }
                Err(error) => {
                    self.end = Err(End::failure(format!("{command}: {}", system_text(&error))));
                    events.stop();
                }
            }
        }
    }
}

/// Serves until something ends it.
pub(super) fn serve(arguments: &Arguments, log: &Arc<Vlog>, stage: Stage) -> Result<(), End> {
    let failed = |error: io::Error| End::failure(system_text(&error));
    let pidfile = match &arguments.pidfile {
        None => None,
        Some(path) => {
            super::check_pidfile(arguments, log)?;
            Some(Pidfile::create(path).map_err(|failure| fatal(log, "daemon_unix", failure))?)
        }
    };
    transport::raise_open_files(arguments.limits.sessions);
    let core = Core::new(arguments.limits, open_database::random_uuids())
        .map_err(|error| End::failure(error.to_string()))?;
    let settings = Settings {
        logger: Arc::clone(log) as Arc<dyn Logger>,
        run_directory: directories::run(),
        messages: arguments.messages,
        backlog_bytes: arguments.limits.backlog_bytes,
        client_bytes: arguments.client_bytes.unwrap_or(usize::MAX),
    };
    let mut events = EventLoop::new(core, settings).map_err(failed)?;
    for file in &arguments.files {
        open_database::open(&mut events, log.as_ref(), file, u64::MAX)
            .map_err(|error| End::failure(error.to_string()))?;
    }
    if let Some(path) = &arguments.control {
        events.open_control(path).map_err(|error| {
            let text = format!("{}: could not initialize control socket ({error})", path.display());
            End::failure(text)
        })?;
    }
    let mut errors = String::new();
    for remote in &arguments.remotes {
        if let Err(error) = events.add_remote(remote) {
            errors.push_str(&format!("\"{remote}\": {error}\n"));
        }
    }
    if let Err(error) = events.set_tls(arguments.tls.clone()) {
        errors.push_str(&error);
    }
    if !errors.is_empty() {
        // COMPAT: the stock server ends the last of these lines twice.
        return Err(End::failure(errors));
    }
    events.open_remotes();
    events.await_names(NAMES_WAIT);
    let signal = watch_signals(&mut events).map_err(failed)?;
    let mut process = Process {
        log: Arc::clone(log),
        signal: Arc::clone(&signal),
        child: None,
        memory: MemoryReport::default(),
        end: Ok(()),
    };
    if let Some(command) = &arguments.run {
        let mut shell = std::process::Command::new("/bin/sh");
        shell.arg("-c").arg(command).stdin(Stdio::null());
        let child = detach::without_stage(&mut shell).spawn();
        let child = child.map_err(|error| End::failure(format!("{command}: {}", system_text(&error))))?;
        process.child = Some((command.clone(), child));
    }
    if stage == Stage::Server || stage == Stage::Detached {
        detach::say_serving();
        if !arguments.no_chdir && arguments.detach {
            std::env::set_current_dir("/").map_err(failed)?;
        }
        detach::leave_files(arguments.detach).map_err(failed)?;
        if arguments.detach {
            log.silence_console();
        }
    }
    if arguments.run.is_none() {
        log.log("ovsdb_server", Level::Information, VERSION);
    }
    let result = events.run(&mut process);
    drop(events);
    drop(pidfile);
    result.map_err(failed)?;
    if let Ok(signal) = i32::try_from(signal.load(Relaxed))
        && signal != 0
    {
        // Whoever started the process must see which signal ended it.
        let _ = emulate_default_handler(signal);
    }
    process.end
}

/// Makes deadly signals and exits of children wake the loop.
fn watch_signals(events: &mut EventLoop) -> io::Result<Arc<AtomicUsize>> {
    let signal = Arc::new(AtomicUsize::new(0));
    let (reader, writer) = UnixStream::pair()?;
    for number in DEADLY {
        let value = usize::try_from(number).unwrap_or_default();
        signal_hook::flag::register_usize(number, Arc::clone(&signal), value)?;
        pipe::register(number, writer.try_clone()?)?;
    }
    pipe::register(SIGCHLD, writer)?;
    events.watch(reader)?;
    Ok(signal)
}
