//! A subject in one variant: started with its allocator, environment and files, waited for, and ended with everything
//! that it has started.
//!
//! ```text
//! files, prepare ──> start (own process group, cores, LD_PRELOAD) ──> ready? ──> load ──> stop signal ──> all gone?
//! ```
//! Whatever happens to the lab, the process group is killed and the directory removed: a cleanup process sees to that.

use super::file::{HugePages, Ready, Signal, Study, SubjectSpec, VariantSpec};
use super::text::{Places, end_of};
use super::{builtin, tree};
use crate::allocator;
use crate::child::version_of;
use crate::cleanup::CleanupProcess;
use crate::os;
use crate::storage::Scratch;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Servers and load alike, so that a busy machine disturbs both less.
const NICE: i32 = -10;
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// How long children may outlive it.
const CHILDREN_PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);
/// Asking a command whether the server is ready costs more than a look.
const COMMAND_LOOK: Duration = Duration::from_millis(100);
const LOG: &str = "output.log";

/// A subject as one variant starts it.
#[derive(Debug, Clone)]
pub struct Launch {
    spec: SubjectSpec,
    /// Library that replaces the allocator.
    preload: Option<PathBuf>,
    huge_pages: HugePages,
    cores: Vec<usize>,
    file_directory: PathBuf,
}

impl Launch {
    /// An experiment's subject in one of its variants. `Err` says what this machine lacks.
    pub fn new(study: &Study, variant: &VariantSpec) -> Result<Self> {
        let subject = &study.subject;
        let mut spec = builtin::complete(subject, &study.workload, variant.program.as_deref())?;
        if subject.builtin.is_none()
            && let Some(program) = &variant.program
            && let Some(first) = spec.command.first_mut()
        {
            *first = program.to_string_lossy().into_owned();
        }
        spec.command.extend(variant.arguments.iter().cloned());
        spec.environment.extend(variant.environment.clone());
        spec.files.extend(variant.files.clone());
        let preload = match &variant.allocator {
            Some(name) => allocator::find(name)?,
            None => None,
        };
        let allowed = os::allowed_cores()?;
        for core in &variant.cores {
            ensure!(allowed.contains(core), "cores: this process may use {allowed:?}, not {core}");
        }
        let huge_pages = variant.huge_pages.unwrap_or(HugePages::System);
        let file_directory = study.directory.clone();
        Ok(Self { spec, preload, huge_pages, cores: variant.cores.clone(), file_directory })
    }

    /// The system's huge page mode that it needs.
    pub fn huge_page_mode(&self) -> Option<&'static str> {
        self.huge_pages.mode()
    }

    /// The command line, before the placeholders are filled in.
    pub fn command_line(&self) -> String {
        let environment = self.environment().into_iter().map(|(name, value)| format!("{name}={value}"));
        environment.chain(self.spec.command.iter().map(|word| quoted(word))).collect::<Vec<_>>().join(" ")
    }

    /// The variables that differ from the lab's own.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let mut environment = self.spec.environment.clone();
        if let Some(library) = &self.preload {
            environment.insert("LD_PRELOAD".to_owned(), library.to_string_lossy().into_owned());
        }
        environment
    }

    /// The version text, if it can be asked for.
    pub fn version(&self) -> Option<String> {
        let (program, arguments) = self.spec.version.split_first()?;
        let (last, others) = arguments.split_last()?;
        Some(version_of(Command::new(program).args(others), last))
    }

    /// Starts it, on these cores if the variant names none, and waits until it serves.
    pub fn start(&self, default_cores: &[usize]) -> Result<Running> {
        let scratch = Scratch::new(None)?;
        let directory = scratch.path.clone();
        let port = free_port()?;
        let places = Places { port, directory: &directory, file_directory: &self.file_directory };
        let user = self.spec.user.as_deref().map(os::find_user).transpose()?;
        for (name, text) in &self.spec.files {
            let path = directory.join(name);
            fs::create_dir_all(path.parent().unwrap_or(&directory))?;
            fs::write(&path, places.fill(text)).with_context(|| format!("writing {}", path.display()))?;
        }
        if let Some(user) = user {
            std::os::unix::fs::chown(&directory, Some(user.uid), Some(user.gid))?;
        }
        let as_user = |command: &mut Command| {
            if let Some(user) = user {
                command.uid(user.uid).gid(user.gid);
            }
        };
        for line in &self.spec.prepare {
            let mut command = command_of(&places.fill_all(line), &directory)?;
            as_user(&mut command);
            succeed(&mut command, line).context("subject.prepare")?;
        }
        let mut command = command_of(&places.fill_all(&self.spec.command), &directory)?;
        for (name, value) in self.environment() {
            command.env(name, places.fill(&value));
        }
        let cores = if self.cores.is_empty() { default_cores } else { &self.cores };
        os::place_on(&mut command, cores, self.huge_pages == HugePages::Denied, NICE);
        as_user(&mut command);
        command.process_group(0);
        let log = File::options().create(true).append(true).open(directory.join(LOG))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("starting {}", self.command_line()))?;
        let group = child.id().to_string();
        let killer = CleanupProcess::new(r#"kill -9 -- "-$1" 2>/dev/null"#, &[group.as_ref()])?;
        let mut running = Running { child, port, scratch, launch: self.clone(), _killer: killer };
        running.wait_until_ready()?;
        allocator::ensure_loaded(self.preload.as_ref(), running.pid())?;
        Ok(running)
    }
}

/// A word as a shell would need it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,{}@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A command line as a command in this directory.
pub fn command_of(words: &[String], directory: &Path) -> Result<Command> {
    let (program, arguments) = words.split_first().context("an empty command")?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory);
    Ok(command)
}

/// Runs a command that must succeed.
pub fn succeed(command: &mut Command, line: &[String]) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("running {line:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{line:?} ended with {}: {}", output.status, said.trim());
    Ok(())
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// A subject that runs; killed with its process group when dropped.
pub struct Running {
    child: Child,
    /// What `{port}` stands for.
    pub port: u16,
    scratch: Scratch,
    launch: Launch,
    _killer: CleanupProcess,
}

impl Running {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the placeholders stand for.
    pub fn places(&self) -> Places<'_> {
        let file_directory = &self.launch.file_directory;
        Places { port: self.port, directory: &self.scratch.path, file_directory }
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.scratch.path
    }

    fn said(&self) -> String {
        end_of(&fs::read(self.scratch.path.join(LOG)).unwrap_or_default())
    }

    /// Fails if it has ended.
    pub fn ensure_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("the subject ended with {status}; it said: {}", self.said()),
            None => Ok(()),
        }
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let timeout = self.launch.spec.ready_timeout.unwrap_or(READY_TIMEOUT);
        let deadline = Instant::now() + timeout;
        let ready = self.launch.spec.ready.clone().unwrap_or(Ready::Port(true));
        let look = if matches!(ready, Ready::Command(_)) { COMMAND_LOOK } else { LOOK };
        loop {
            self.ensure_alive()?;
            if self.is_ready(&ready) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("it was not ready after {} s; it said: {}", timeout.as_secs_f64(), self.said());
            }
            thread::sleep(look);
        }
    }

    fn is_ready(&self, ready: &Ready) -> bool {
        let places = self.places();
        match ready {
            Ready::Port(_) => TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok(),
            Ready::File(path) => self.scratch.path.join(places.fill(path)).exists(),
            Ready::Log(pattern) => {
                let text = fs::read(self.scratch.path.join(LOG)).unwrap_or_default();
                String::from_utf8_lossy(&text).lines().any(|line| pattern.is_match(line))
            }
            Ready::Command(line) => command_of(&places.fill_all(line), &self.scratch.path)
                .and_then(|mut command| succeed(&mut command, line))
                .is_ok(),
        }
    }

    /// Ends it. Returns the names of the processes that it left behind, which are killed.
    pub fn stop(mut self) -> Result<Vec<String>> {
        let started = tree::identities(self.pid());
        let signal = match self.launch.spec.stop.unwrap_or(Signal::Term) {
            Signal::Term => libc::SIGTERM,
            Signal::Int => libc::SIGINT,
            Signal::Quit => libc::SIGQUIT,
        };
        self.ensure_alive()?;
        os::signal(self.pid(), signal)?;
        let timeout = self.launch.spec.stop_timeout.unwrap_or(STOP_TIMEOUT);
        let deadline = Instant::now() + timeout;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                bail!("it has not ended {} s after its signal, and is killed", timeout.as_secs_f64());
            }
            thread::sleep(LOOK);
        }
        Ok(tree::end(&started, CHILDREN_PATIENCE))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _it_may_have_ended = self.child.kill();
        let _it_may_have_ended = self.child.wait();
    }
}
