//! A subject in one variant: started with its allocator, environment and files, waited for, and ended with everything
//! that it has started.
//!
//! ```text
//! files, prepare ──> start (own process group, cores, LD_PRELOAD) ──> ready? ──> load ──> stop signal ──> all gone?
//! ```
//! All processes of a run have a mark in their environment. Whatever happens to the lab, those with the mark are killed
//! and the directory is removed: a cleanup process sees to that.

use super::builtin;
use super::command::Surroundings;
use super::figures::{ACTIVE, ALLOCATED, HELD, USED};
use super::file::{Builtin, HugePages, Ready, Signal, Study, SubjectSpec, VariantSpec};
use super::settings;
use super::text::{Places, said};
use super::tree::{self, Tree};
use crate::child::{self, version_of};
use crate::cleanup::CleanupProcess;
use crate::client::{figure, redis_information, statistics};
use crate::os::{self, User};
use crate::storage::Scratch;
use crate::subject::free_address;
use crate::{allocator, debian};
use anyhow::{Context, Result, bail, ensure};
use regex::Regex;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const READY_TIMEOUT: Duration = Duration::from_secs(30);
const PREPARE_TIMEOUT: Duration = Duration::from_secs(600);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// How long children may outlive it.
const CHILDREN_PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);
/// Asking a command whether the server is ready costs more than a look.
const COMMAND_LOOK: Duration = Duration::from_millis(100);
/// Variables whose values mark the processes of a run: of the subject, and of everything else.
const MARK: &str = "DORMOUSE_LAB_RUN";
const LOAD_MARK: &str = "DORMOUSE_LAB_LOAD";
/// Kills what has one of two marks.
const KILL: &str = r#"for _ in 1 2 3 4 5; do
    found=$(grep -laz -e "^$1\$" -e "^$2\$" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3)
    [ -n "$found" ] || break
    kill -9 $found 2>/dev/null
done"#;

/// A subject as one variant starts it.
#[derive(Debug, Clone)]
pub struct Launch {
    spec: SubjectSpec,
    allocator: Option<String>,
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
        let program = variant.program.as_deref().or(subject.program.as_deref());
        let program = program.map(|path| placed(path, &study.directory));
        let mut spec = builtin::complete(subject, &study.workload, program.as_deref())?;
        if subject.builtin.is_none()
            && let (Some(program), Some(first)) = (&program, spec.command.first_mut())
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
        settings::check_variables(&spec.environment, variant.allocator.as_deref(), preload.as_deref())?;
        let launch = Self {
            spec,
            allocator: variant.allocator.clone(),
            preload,
            huge_pages: variant.huge_pages.unwrap_or(HugePages::System),
            cores: variant.cores.clone(),
            file_directory: study.directory.clone(),
        };
        launch.check_own_allocator()?;
        Ok(launch)
    }

    /// A Dormouse says which allocator it has, and one that is linked into it cannot be replaced.
    fn check_own_allocator(&self) -> Result<()> {
        let (Some(Builtin::Dormouse), Some(name)) = (self.spec.builtin, &self.allocator) else {
            return Ok(());
        };
        let program = self.spec.command.first().context("an empty command")?;
        let version = self.version().unwrap_or_default();
        let has_it = match self.preload {
            Some(_) => allocator::preloaded(Path::new(program), name)?.is_some(),
            None => version.contains(name),
        };
        ensure!(
            has_it,
            "{name}: this build has an allocator of its own ({version}); one with the feature alloc-system takes it"
        );
        Ok(())
    }

    /// The system's huge page mode that it needs.
    pub fn huge_page_mode(&self) -> Option<&'static str> {
        self.huge_pages.mode()
    }

    /// The command line, before the placeholders are filled in.
    pub fn command_line(&self) -> String {
        let environment =
            self.environment().into_iter().map(|(name, value)| format!("{name}={}", quoted(&value)));
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
        let file_directory = self.file_directory.to_string_lossy();
        let mut words =
            self.spec.version.iter().map(|word| word.replace("{file_directory}", &file_directory));
        let mut command = Command::new(words.next()?);
        let program = command.get_program().to_owned();
        let mut arguments: Vec<_> = words.collect();
        let last = arguments.pop().unwrap_or_default();
        let said = version_of(command.args(arguments).env_remove("LD_PRELOAD"), &last);
        let file =
            child::find_program(&program.to_string_lossy()).and_then(|path| fs::canonicalize(path).ok());
        let package = file.and_then(|file| debian::package_of(&file));
        Some(match package {
            Some(package) => format!("{said}, {} {}", package.name, package.version),
            None => said,
        })
    }

    /// The allocator that the variant names, exactly.
    pub fn library(&self) -> Option<String> {
        match &self.preload {
            Some(library) => Some(allocator::description(library)),
            None => self.allocator.as_ref().and_then(|_| allocator::system_version()),
        }
    }

    /// Starts it, on these cores if the variant names none, and waits until it serves.
    pub fn start(&self, default_cores: &[usize]) -> Result<Running> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let (mark, load_mark) = (format!("{MARK}={number}"), format!("{LOAD_MARK}={number}"));
        let scratch = Scratch::new(None)?;
        // What the lab writes itself does not count as the subject's.
        let directory = scratch.path.join("run");
        let logs = scratch.path.join("logs");
        fs::create_dir(&directory)?;
        fs::create_dir(&logs)?;
        let killer = CleanupProcess::new(KILL, &[mark.as_ref(), load_mark.as_ref()])?;
        let port = free_address()?.port();
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
        let filled = |environment: BTreeMap<String, String>| -> BTreeMap<String, String> {
            environment.into_iter().map(|(name, value)| (name, places.fill(&value))).collect()
        };
        let other = Surroundings {
            directory: directory.clone(),
            environment: filled(self.spec.environment.clone()),
            mark: load_mark.clone(),
            log: logs.join("prepare"),
            user,
        };
        for line in &self.spec.prepare {
            other.run(&places.fill_all(line), PREPARE_TIMEOUT, || Ok(())).context("subject.prepare")?;
        }
        let own = Surroundings {
            environment: filled(self.environment()),
            mark: mark.clone(),
            log: logs.join("output"),
            ..other
        };
        let mut command = own.command(&places.fill_all(&self.spec.command))?;
        let cores = if self.cores.is_empty() { default_cores } else { &self.cores };
        os::place_on(&mut command, cores, self.huge_pages == HugePages::Denied, 0);
        let child = command.spawn().with_context(|| format!("starting {}", self.command_line()))?;
        let mut running = Running {
            child,
            _killer: killer,
            port,
            directory,
            logs,
            user,
            launch: self.clone(),
            mark,
            load_mark,
            _scratch: scratch,
        };
        running.wait_until_ready().map_err(|error| match settings::check_output(&running.output()) {
            Err(complaint) => error.context(complaint),
            Ok(()) => error,
        })?;
        running.check_variant()?;
        Ok(running)
    }
}

/// A program's path: relative to the experiment file if it has folders, else looked for on the PATH.
fn placed(path: &Path, file_directory: &Path) -> PathBuf {
    let text = path.to_string_lossy().replace("{file_directory}", &file_directory.to_string_lossy());
    let path = Path::new(&text);
    if path.components().count() > 1 { file_directory.join(path) } else { path.to_owned() }
}

/// A word as a shell would need it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,{}@%+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// A subject that runs; killed with all that it has started when dropped.
pub struct Running {
    child: Child,
    _killer: CleanupProcess,
    /// What `{port}` stands for.
    pub port: u16,
    directory: PathBuf,
    logs: PathBuf,
    user: Option<User>,
    launch: Launch,
    mark: String,
    load_mark: String,
    _scratch: Scratch,
}

/// A file that is read as it grows, line by line.
#[derive(Default)]
struct Lines {
    at: u64,
}

impl Lines {
    /// Whether one of the lines that have been completed since the last call matches.
    fn have(&mut self, path: &Path, pattern: &Regex) -> std::io::Result<bool> {
        let mut file = fs::File::open(path)?;
        file.seek(SeekFrom::Start(self.at))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.at += complete as u64;
        // The last line may be complete without an end.
        Ok(text.lines().any(|line| pattern.is_match(line)))
    }
}

impl Running {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All its processes.
    pub fn tree(&self) -> Tree {
        Tree::new(self.pid(), &self.mark)
    }

    /// What the placeholders stand for.
    pub fn places(&self) -> Places<'_> {
        Places { port: self.port, directory: &self.directory, file_directory: &self.launch.file_directory }
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where commands run that are not part of it, with their output in this file.
    pub fn surroundings(&self, log: &str) -> Surroundings {
        Surroundings {
            directory: self.directory.clone(),
            environment: BTreeMap::new(),
            mark: self.load_mark.clone(),
            log: self.logs.join(log),
            user: None,
        }
    }

    fn output(&self) -> PathBuf {
        self.logs.join("output")
    }

    /// Fails if it has ended.
    pub fn ensure_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("the subject ended with {status}; it said: {}", said(&self.output())),
            None => Ok(()),
        }
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let timeout = self.launch.spec.ready_timeout.unwrap_or(READY_TIMEOUT);
        let deadline = Instant::now() + timeout;
        let ready = self.launch.spec.ready.clone().unwrap_or(Ready::Port(true));
        let look = if matches!(ready, Ready::Command(_)) { COMMAND_LOOK } else { LOOK };
        let mut lines = Lines::default();
        loop {
            self.ensure_alive()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if self.is_ready(&ready, &mut lines, left) {
                return Ok(());
            }
            if left.is_zero() {
                bail!(
                    "it was not ready after {} s; it said: {}",
                    timeout.as_secs_f64(),
                    said(&self.output())
                );
            }
            thread::sleep(look.min(left));
        }
    }

    fn is_ready(&self, ready: &Ready, lines: &mut Lines, left: Duration) -> bool {
        let places = self.places();
        match ready {
            Ready::Port(_) => TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok(),
            Ready::File(path) => self.directory.join(places.fill(path)).exists(),
            Ready::Log(pattern) => lines.have(&self.output(), pattern).unwrap_or(false),
            Ready::Command(line) => {
                let surroundings = Surroundings { user: self.user, ..self.surroundings("ready") };
                surroundings.run(&places.fill_all(line), left, || Ok(())).is_ok()
            }
        }
    }

    /// Fails if it is not what the variant says: the loader ignores a library that it cannot load, an allocator
    /// settings that it does not know, and a program may bring another allocator than the system's. What was started
    /// may be a script: the allocator is that of the largest process.
    pub fn check_variant(&self) -> Result<()> {
        settings::check_output(&self.output())?;
        let Some(name) = &self.launch.allocator else { return Ok(()) };
        let largest = self.tree().largest().unwrap_or(self.pid());
        allocator::ensure_loaded(self.launch.preload.as_ref(), largest)?;
        if self.launch.preload.is_none()
            && let Some(other) = allocator::loaded(largest)
        {
            bail!("{name}: the program itself loads {other}");
        }
        Ok(())
    }

    /// What it says of its memory, by the names of figures, if it is one that says so.
    pub fn accounts(&self) -> Vec<(&'static str, f64)> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        // On a Couchbase port there is nobody to ask in this way.
        let told = |subject| statistics(address, subject).unwrap_or_default();
        let lists = match self.launch.spec.builtin {
            Some(Builtin::Redis | Builtin::Valkey) => {
                let memory = redis_information(address, "memory").unwrap_or_default();
                let mut names = vec![(USED, "used_memory")];
                // They ask the jemalloc that they were built with, which is idle if another one is preloaded.
                if self.launch.preload.is_none() {
                    names.extend([
                        (ALLOCATED, "allocator_allocated"),
                        (ACTIVE, "allocator_active"),
                        (HELD, "allocator_resident"),
                    ]);
                }
                vec![(memory, names)]
            }
            Some(Builtin::Memcached) => vec![(told(""), vec![(USED, "bytes")])],
            Some(Builtin::Dormouse) => vec![
                (told("memory"), vec![(USED, "allocated")]),
                (
                    told("allocator"),
                    vec![(ALLOCATED, "allocated_bytes"), (ACTIVE, "active_bytes"), (HELD, "resident_bytes")],
                ),
            ],
            Some(Builtin::OvsdbServer | Builtin::Postgresql) | None => Vec::new(),
        };
        let known = |(told, names): (BTreeMap<String, String>, Vec<(&'static str, &str)>)| {
            let value = move |(name, its)| Some((name, figure(&told, its).ok()? as f64));
            names.into_iter().filter_map(value).collect::<Vec<_>>()
        };
        lists.into_iter().flat_map(known).collect()
    }

    /// Ends it. Returns the names of the processes that it left behind, which are killed.
    pub fn stop(mut self) -> Result<Vec<String>> {
        let started = self.tree().identities();
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
        tree::end_marked(&self.mark);
        tree::end_marked(&self.load_mark);
    }
}
