//! The OVSDB servers under test: Dormouse and the stock server, both under several allocators, and the floor.

use super::control::Control;
use super::template;
use crate::allocator;
use crate::child;
use crate::os::Placement;
use crate::process;
use crate::programs::{self, Program};
use crate::storage::Scratch;
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const START_TIMEOUT: Duration = Duration::from_secs(300);
const START_LOOK: Duration = Duration::from_millis(1);

/// Which kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Dormouse under its stock name.
    Dormouse,
    /// The stock `ovsdb-server`.
    Stock,
    /// The transport's own cost.
    Floor,
}

/// A server that can be started.
#[derive(Clone, Debug, Serialize)]
pub struct Subject {
    /// Its program.
    #[serde(flatten)]
    pub program: Program,
    /// Which kind.
    pub kind: Kind,
}

/// A running server; killed when dropped.
pub struct Server {
    child: child::Server,
    /// Its process.
    pub pid: u32,
    /// Where clients connect.
    pub socket: PathBuf,
    /// Where it takes commands.
    pub control: PathBuf,
}

impl Subject {
    /// Dormouse by `PROGRAM` or `NAME=PROGRAM`; without either the program that is found.
    pub fn dormouse(given: Option<&str>) -> Result<Self> {
        let (name, program) = match given {
            None => ("dormouse", programs::dormouse(None)?),
            Some(text) => match text.split_once('=') {
                Some((name, path)) => (name, PathBuf::from(path)),
                None => ("dormouse", PathBuf::from(text)),
            },
        };
        ensure!(program.is_file(), "there is no program {}", program.display());
        Ok(Self { program: Program::new(name, program, "--version"), kind: Kind::Dormouse })
    }

    /// Dormouse with the library of an allocator preloaded, if that can be.
    pub fn with_allocator(&self, name: &str) -> Result<Option<Self>> {
        Ok(self.program.with_allocator(name)?.map(|program| Self { program, ..self.clone() }))
    }

    /// A peer by `NAME` or `NAME=PROGRAM`; `None` where it or its allocator is not installed.
    pub fn peer(text: &str) -> Result<Option<Self>> {
        let (name, given) = text.split_once('=').map_or((text, None), |(name, path)| (name, Some(path)));
        let preload = match name {
            "floor" => {
                let program = Program::floor("ends of requests and canned replies")?;
                return Ok(Some(Self { program, kind: Kind::Floor }));
            }
            "stock" => None,
            "stock-jemalloc" | "stock-tcmalloc" => {
                Some(allocator::library(name.trim_start_matches("stock-"))?)
            }
            _ => bail!("unknown peer `{name}`: stock, stock-jemalloc, stock-tcmalloc, floor or none"),
        };
        let program = Program::peer(name, given, "ovsdb-server", "--version")?;
        if preload == Some(None) {
            return Ok(None);
        }
        let preload = preload.flatten();
        Ok(program.map(|program| Self { program: Program { preload, ..program }, kind: Kind::Stock }))
    }

    /// Starts the server on a new database and waits until it serves it.
    pub fn start(&self, placement: Placement) -> Result<Server> {
        self.start_alone(placement).with_context(|| self.program.starting())
    }

    fn start_alone(&self, placement: Placement) -> Result<Server> {
        let scratch = Scratch::new(None)?;
        let directory = scratch.path.clone();
        template::create_file(&directory.join("lab.db"))?;
        let (socket, control) = (directory.join("db.sock"), directory.join("ctl"));
        let child = child::Server::start(self.command(&directory), scratch, placement)?;
        let mut server = Server { pid: child.pid(), child, socket, control };
        server.wait_until_it_serves()?;
        self.program.ensure_loaded(server.pid)?;
        Ok(server)
    }

    fn command(&self, directory: &Path) -> Command {
        let mut command = self.program.command();
        match self.kind {
            Kind::Floor => {
                command.arg("ovsdb-floor").arg(directory.join("db.sock"));
            }
            Kind::Dormouse | Kind::Stock => {
                if self.kind == Kind::Dormouse {
                    command.arg("ovsdb-server");
                }
                command.arg(format!("--remote=punix:{}", directory.join("db.sock").display()));
                command.arg(format!("--unixctl={}", directory.join("ctl").display()));
                command.arg("-vconsole:warn").arg(directory.join("lab.db"));
            }
        }
        command
    }
}

impl Server {
    fn wait_until_it_serves(&mut self) -> Result<()> {
        let socket = &self.socket;
        self.child.wait_until(START_TIMEOUT, START_LOOK, || match Control::new(socket) {
            Ok(mut session) => session.serves(),
            Err(_) => Ok(false),
        })
    }

    /// Ends the server, starts it again on the same file, and says how long that took to the first answer.
    pub fn restart(&mut self, subject: &Subject, placement: Placement) -> Result<Duration> {
        self.end()?;
        // A server that was killed would leave its socket behind; an old one must not be mistaken for the new one.
        let _it_may_be_gone = fs::remove_file(&self.socket);
        let start = Instant::now();
        self.child.start_again(subject.command(self.child.directory()), placement)?;
        self.pid = self.child.pid();
        self.wait_until_it_serves().with_context(|| format!("starting {} again", subject.program.name))?;
        Ok(start.elapsed())
    }

    /// Length of the database file.
    pub fn file_bytes(&self) -> u64 {
        fs::metadata(self.child.directory().join("lab.db")).map_or(0, |metadata| metadata.len())
    }

    /// Memory of its process.
    pub fn memory(&self) -> Result<process::Memory> {
        process::memory(self.pid)
    }

    /// Fails when it has ended.
    pub fn ensure_alive(&mut self) -> Result<()> {
        self.child.ensure_alive()
    }

    /// Asks it to end and waits for that.
    pub fn end(&mut self) -> Result<()> {
        self.child.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_by_name() {
        assert!(Subject::peer("oracle").is_err());
        assert!(Subject::peer("stock=/nonexistent/ovsdb-server").is_err());
        assert!(Subject::dormouse(Some("fast=/nonexistent/dormouse")).is_err());
        assert_eq!(Subject::peer("floor").unwrap().unwrap().kind, Kind::Floor);
        let this = std::env::current_exe().unwrap();
        let named = Subject::dormouse(Some(&format!("system={}", this.display()))).unwrap();
        assert_eq!(named.program.name, "system");
    }
}
