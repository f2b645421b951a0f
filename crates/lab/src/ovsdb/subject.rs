//! The OVSDB servers under test: Dormouse, the stock server under three allocators, and the floor.

use super::control::Control;
use super::template;
use crate::os::{self, Placement};
use crate::process;
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const START_TIMEOUT: Duration = Duration::from_secs(300);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

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
    /// Its name in tables and options.
    pub name: String,
    /// Which kind.
    pub kind: Kind,
    /// Its program.
    pub program: PathBuf,
    /// Library that replaces the allocator.
    pub preload: Option<PathBuf>,
    /// What the program says of itself.
    pub version: String,
}

/// A running server; killed when dropped.
pub struct Server {
    child: Child,
    directory: PathBuf,
    /// Its process.
    pub pid: u32,
    /// Where clients connect.
    pub socket: PathBuf,
    /// Where it takes commands.
    pub control: PathBuf,
}

fn find_program(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths)
        .chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

/// A library of one of these names, the first one first, where systems keep theirs.
fn find_library(names: &[&str]) -> Option<PathBuf> {
    let roots = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib"].map(PathBuf::from);
    let folders = roots.iter().flat_map(|root| {
        let below = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut below: Vec<PathBuf> = below.filter(|path| path.is_dir()).collect();
        below.sort();
        std::iter::once(root.clone()).chain(below)
    });
    let folders: Vec<PathBuf> = folders.collect();
    let candidates = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    candidates.into_iter().find(|path| path.is_file())
}

fn version_of(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").trim().to_owned()
}

impl Subject {
    /// Dormouse by `PROGRAM` or `NAME=PROGRAM`; without either the program running now.
    pub fn dormouse(given: Option<&str>) -> Result<Self> {
        let (name, program) = match given {
            None => ("dormouse", std::env::current_exe().context("finding this program")?),
            Some(text) => match text.split_once('=') {
                Some((name, path)) => (name, PathBuf::from(path)),
                None => ("dormouse", PathBuf::from(text)),
            },
        };
        ensure!(program.is_file(), "there is no program {}", program.display());
        let version = version_of(&program, &["--version"]);
        Ok(Self { name: name.to_owned(), kind: Kind::Dormouse, program, preload: None, version })
    }

    /// A peer by `NAME` or `NAME=PROGRAM`; `None` where it or its allocator is not installed.
    pub fn peer(text: &str) -> Result<Option<Self>> {
        let (name, given) = text.split_once('=').map_or((text, None), |(name, path)| (name, Some(path)));
        let libraries: Option<&[&str]> = match name {
            "floor" => {
                let program = std::env::current_exe().context("finding this program")?;
                let version = "ends of requests and canned replies".to_owned();
                let name = name.to_owned();
                return Ok(Some(Self { name, kind: Kind::Floor, program, preload: None, version }));
            }
            "stock" => None,
            "stock-jemalloc" => Some(&["libjemalloc.so.2"]),
            "stock-tcmalloc" => Some(&["libtcmalloc.so.4", "libtcmalloc_minimal.so.4"]),
            _ => bail!("unknown peer `{name}`: stock, stock-jemalloc, stock-tcmalloc, floor or none"),
        };
        let program = match given {
            Some(path) if Path::new(path).is_file() => PathBuf::from(path),
            Some(path) => bail!("peer {name}: there is no program {path}"),
            None => match find_program("ovsdb-server") {
                Some(program) => program,
                None => return Ok(None),
            },
        };
        let preload = libraries.map(find_library);
        if preload == Some(None) {
            return Ok(None);
        }
        let version = version_of(&program, &["--version"]);
        let preload = preload.flatten();
        Ok(Some(Self { name: name.to_owned(), kind: Kind::Stock, program, preload, version }))
    }

    /// Starts the server on a new database and waits until it serves it.
    pub fn start(&self, placement: Placement) -> Result<Server> {
        static STARTS: AtomicU32 = AtomicU32::new(0);
        let number = STARTS.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("dormouse-lab-{}-ovsdb-{number}", std::process::id()));
        fs::create_dir_all(&directory).context("creating a directory for the server")?;
        let started = template::create_file(&directory.join("lab.db"))
            .map_err(Into::into)
            .and_then(|()| self.spawn(&directory, placement));
        let mut server = match started {
            Ok(child) => Server {
                pid: child.id(),
                socket: directory.join("db.sock"),
                control: directory.join("ctl"),
                child,
                directory,
            },
            Err(error) => {
                let _the_first_error_counts = fs::remove_dir_all(&directory);
                return Err(error.context(format!("starting {} ({})", self.name, self.program.display())));
            }
        };
        server
            .wait_until_it_serves()
            .with_context(|| format!("starting {} ({})", self.name, self.program.display()))?;
        self.check_allocator(&server)?;
        Ok(server)
    }

    fn spawn(&self, directory: &Path, placement: Placement) -> Result<Child> {
        let mut command = Command::new(&self.program);
        match self.kind {
            Kind::Floor => {
                command.args(["lab", "ovsdb-floor"]).arg(directory.join("db.sock"));
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
        if let Some(library) = &self.preload {
            command.env("LD_PRELOAD", library);
        }
        os::place(&mut command, placement);
        let log = File::options().create(true).append(true).open(directory.join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command.spawn()?)
    }

    /// A library that the loader refuses is ignored with a warning: the figures would be another allocator's.
    fn check_allocator(&self, server: &Server) -> Result<()> {
        let Some(library) = &self.preload else { return Ok(()) };
        let maps = fs::read_to_string(format!("/proc/{}/maps", server.pid)).context("reading maps")?;
        let name = library.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        ensure!(maps.contains(name), "{}: {} was not loaded", self.name, library.display());
        Ok(())
    }
}

impl Server {
    fn wait_until_it_serves(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Ok(mut session) = Control::new(&self.socket)
                && session.serves()?
            {
                return Ok(());
            }
            self.ensure_alive()?;
            if Instant::now() > deadline {
                bail!("it does not serve after {} s", START_TIMEOUT.as_secs());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the server, starts it again on the same file, and says how long that took to the first answer.
    pub fn restart(&mut self, subject: &Subject, placement: Placement) -> Result<Duration> {
        self.end()?;
        // A server that was killed would leave its socket behind; an old one must not be mistaken for the new one.
        let _it_may_be_gone = fs::remove_file(&self.socket);
        let start = Instant::now();
        self.child = subject.spawn(&self.directory, placement)?;
        self.pid = self.child.id();
        self.wait_until_it_serves().with_context(|| format!("starting {} again", subject.name))?;
        Ok(start.elapsed())
    }

    /// Length of the database file.
    pub fn file_bytes(&self) -> u64 {
        fs::metadata(self.directory.join("lab.db")).map_or(0, |metadata| metadata.len())
    }

    /// Memory of its process.
    pub fn memory(&self) -> Result<process::Memory> {
        process::memory(self.pid)
    }

    /// Fails when it has ended.
    pub fn ensure_alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
            bail!("the server ended with {status}: {}", log.trim());
        }
        Ok(())
    }

    /// Asks it to end and waits for that.
    pub fn end(&mut self) -> Result<()> {
        self.ensure_alive()?;
        os::signal(self.pid, libc::SIGTERM)?;
        let deadline = Instant::now() + STOP_TIMEOUT;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                bail!("it does not end on SIGTERM after {} s", STOP_TIMEOUT.as_secs());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _it_may_have_ended = self.child.kill();
        let _it_may_have_ended = self.child.wait();
        let _nothing_is_lost_by_leaving_it = fs::remove_dir_all(&self.directory);
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
        assert_eq!(named.name, "system");
    }

    #[test]
    fn no_library_of_no_name() {
        assert_eq!(find_library(&["libnothing-of-this-name.so.9"]), None);
    }
}
