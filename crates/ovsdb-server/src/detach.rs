//! Detaching, monitoring the server, and changing the user: each by running this program again, so that no process
//! forks with threads or partial state.
//!
//! ```text
//!   as called ──spawn──> (monitor ──spawn──>) server
//!       ^                                       │ standard input is a pipe's end: one byte says "I serve"
//!       └───────────────────────────────────────┘ EOF without a byte: it died, its exit code is ours
//! ```
//! An environment variable tells a process which of them it is; commands of `--run` do not inherit it.

use super::users::Identity;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};

/// The variable; its value is a [`Stage`]'s word.
const STAGE: &str = "DORMOUSE_OVSDB_SERVER_STAGE";

/// Which process this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// As the user started it.
    Called,
    /// Now runs as another user; otherwise as called.
    AsUser,
    /// Detached; monitors a server.
    Monitor,
    /// Serves, and reports that to the process that waits.
    Server,
    /// As [`Stage::Server`], in a session of its own.
    Detached,
}

impl Stage {
    fn word(self) -> &'static str {
        match self {
            Self::Called => "",
            Self::AsUser => "as-user",
            Self::Monitor => "monitor",
            Self::Server => "server",
            Self::Detached => "detached",
        }
    }

    /// The stage of this process.
    pub fn current() -> Self {
        let word = std::env::var(STAGE).unwrap_or_default();
        [Self::AsUser, Self::Monitor, Self::Server, Self::Detached]
            .into_iter()
            .find(|stage| stage.word() == word)
            .unwrap_or(Self::Called)
    }
}

/// Removes the variable from what a command inherits.
pub fn without_stage(command: &mut Command) -> &mut Command {
    command.env_remove(STAGE)
}

/// A command that runs this program again, with the same name and arguments.
fn again(stage: Stage, identity: Option<Identity>) -> Command {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| OsString::from("ovsdb-server"));
    // The file itself: its path may name a newer version by now.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(name).args(arguments).env(STAGE, stage.word());
    if let Some(Identity { user, group }) = identity {
        command.gid(group).uid(user);
    }
    command
}

/// Runs this program again in this process, as another user. Returns only on failure.
pub fn become_user(identity: Identity) -> io::Error {
    again(Stage::AsUser, Some(identity)).exec()
}

/// The result of starting a process.
pub enum Started {
    /// It serves.
    Serving(Child),
    /// It ended before that.
    Ended(ExitStatus),
}

/// Runs this program again and waits until it serves or ends.
pub fn start(stage: Stage) -> io::Result<Started> {
    let (mut reader, writer) = io::pipe()?;
    let mut child = again(stage, None).stdin(Stdio::from(writer)).spawn()?;
    // The command, and with it our copy of the write end, is dropped here.
    let mut byte = [0];
    loop {
        match reader.read(&mut byte) {
            Ok(0) => return child.wait().map(Started::Ended),
            Ok(_) => return Ok(Started::Serving(child)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Tells the process that waits that this one serves.
pub fn say_serving() {
    // The caller may be gone.
    let _ = rustix::io::write(rustix::stdio::stdin(), b"\0");
}

/// Detaches from the standard input, which may be the pipe, and with `output` also from standard output and error.
pub fn leave_files(output: bool) -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    if output {
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
    }
    Ok(())
}

/// Names the process after the program, not after its file.
pub fn take_name() {
    let _ = rustix::thread::set_name(c"ovsdb-server");
}

/// Starts a session of its own, without a terminal.
pub fn lead_session() {
    // Fails only if the process leads one already.
    let _ = rustix::process::setsid();
}

/// How a process ended, in the stock server's words.
pub fn status_text(status: ExitStatus) -> String {
    if let Some(code) = status.code() {
        return format!("exit status {code}");
    }
    let core = if status.core_dumped() { ", core dumped" } else { "" };
    match status.signal() {
        Some(signal) => format!("killed ({}){core}", signal_name(signal)),
        None => format!("terminated abnormally ({status})"),
    }
}

/// The C library's name of a signal.
pub fn signal_name(signal: i32) -> &'static str {
    match signal {
        1 => "Hangup",
        2 => "Interrupt",
        3 => "Quit",
        4 => "Illegal instruction",
        6 => "Aborted",
        7 => "Bus error",
        8 => "Floating point exception",
        9 => "Killed",
        11 => "Segmentation fault",
        13 => "Broken pipe",
        14 => "Alarm clock",
        15 => "Terminated",
        24 => "CPU time limit exceeded",
        25 => "File size limit exceeded",
        _ => "Unknown signal",
    }
}

/// Returns true if a server that ended with this status crashed, so that it must be restarted.
pub fn has_crashed(status: ExitStatus) -> bool {
    // SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGPIPE, SIGALRM, SIGXCPU, SIGXFSZ
    status.signal().is_some_and(|signal| [4, 6, 7, 8, 11, 13, 14, 24, 25].contains(&signal))
}
