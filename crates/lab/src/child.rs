//! A server under test as a child process: found, started in a directory of its own with a log there, waited for, asked
//! to exit. When dropped it is killed, and its directory removed.

use crate::os::{self, Placement};
use crate::storage::Scratch;
use anyhow::{Result, bail};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take to exit.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_LOOK: Duration = Duration::from_millis(5);
/// Directories with servers that are not on an ordinary user's PATH.
const FURTHER_FOLDERS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// Finds a program.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths)
        .chain(FURTHER_FOLDERS.map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

/// The first line that a program prints when started with `flag`, and the commit that it names, if any.
pub fn version_of(command: &mut Command, flag: &str) -> String {
    let output = command.arg(flag).output().ok();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let said = output.as_ref().map(|output| text(&output.stdout)).unwrap_or_default();
    // Some programs (Java) say it on standard error.
    let said =
        if said.is_empty() { output.map(|output| text(&output.stderr)).unwrap_or_default() } else { said };
    let mut lines = said.lines();
    let first = lines.next().unwrap_or("unknown").trim();
    match lines.find_map(|line| line.trim().strip_prefix("commit ")) {
        Some(commit) => format!("{first}, commit {}", commit.trim()),
        None => first.to_owned(),
    }
}

/// A running server.
pub struct Server {
    child: Child,
    directory: Scratch,
}

impl Server {
    /// Starts it.
    pub fn start(command: Command, directory: Scratch, placement: Placement) -> Result<Self> {
        let child = spawn(command, &directory.path, placement)?;
        Ok(Self { child, directory })
    }

    /// Starts another process in place of this one, which has ended.
    pub fn start_again(&mut self, command: Command, placement: Placement) -> Result<()> {
        self.child = spawn(command, &self.directory.path, placement)?;
        Ok(())
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it keeps its files.
    pub fn directory(&self) -> &Path {
        &self.directory.path
    }

    /// Fails if it has ended.
    pub fn ensure_alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = fs::read_to_string(self.directory.path.join("log")).unwrap_or_default();
            bail!("the server ended with {status}: {}", log.trim());
        }
        Ok(())
    }

    /// Waits until `serves` returns true, polling every `look`.
    pub fn wait_until(
        &mut self,
        timeout: Duration,
        look: Duration,
        mut serves: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now() + timeout;
        while !serves()? {
            self.ensure_alive()?;
            if Instant::now() > deadline {
                bail!("it is not serving after {} s", timeout.as_secs());
            }
            thread::sleep(look);
        }
        Ok(())
    }

    /// Asks it to exit and waits until it has.
    pub fn end(&mut self) -> Result<()> {
        self.ensure_alive()?;
        os::signal(self.pid(), libc::SIGTERM)?;
        let deadline = Instant::now() + STOP_TIMEOUT;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                bail!("it has not exited {} s after SIGTERM", STOP_TIMEOUT.as_secs());
            }
            thread::sleep(STOP_LOOK);
        }
        Ok(())
    }
}

fn spawn(mut command: Command, directory: &Path, placement: Placement) -> Result<Child> {
    os::place(&mut command, placement);
    let log = File::options().create(true).append(true).open(directory.join("log"))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(command.spawn()?)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _it_may_have_ended = self.child.kill();
        let _it_may_have_ended = self.child.wait();
    }
}
