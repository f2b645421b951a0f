//! Locations of the programs that the lab starts, other than the peers.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::allocator;
use crate::child::{find_program, version_of};

/// The server's program.
const DORMOUSE: &str = "dormouse";

/// The path of this program, to start parts of an experiment in a separate process.
pub fn this() -> Result<PathBuf> {
    std::env::current_exe().context("finding this program")
}

/// The server to measure: the one given, else the one beside this program, else the one on the PATH.
pub fn dormouse(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(program) = given {
        return Ok(program.to_owned());
    }
    let beside = this()?.with_file_name(DORMOUSE);
    if beside.is_file() {
        return Ok(beside);
    }
    find_program(DORMOUSE).with_context(|| {
        format!("there is no {} and no {DORMOUSE} on the PATH: name one with --dormouse", beside.display())
    })
}

/// A program under test.
#[derive(Clone, Debug, Serialize)]
pub struct Program {
    /// Its name in tables and options.
    pub name: String,
    /// Its file.
    #[serde(rename = "program")]
    pub path: PathBuf,
    /// Library that replaces its allocator.
    pub preload: Option<PathBuf>,
    /// Its version text.
    pub version: String,
}

impl Program {
    /// A program that exists, with the version text that it prints for `flag`.
    pub fn new(name: &str, path: PathBuf, flag: &str) -> Self {
        let version = version_of(&mut Command::new(&path), flag);
        Self { name: name.to_owned(), path, preload: None, version }
    }

    /// This program, as a floor.
    pub fn floor(version: &str) -> Result<Self> {
        Ok(Self { name: "floor".to_owned(), path: this()?, preload: None, version: version.to_owned() })
    }

    /// A peer: the program given, or the one installed as `default`; `None` if it is not installed.
    pub fn peer(name: &str, given: Option<&str>, default: &str, flag: &str) -> Result<Option<Self>> {
        let path = match given {
            Some(path) if Path::new(path).is_file() => PathBuf::from(path),
            Some(path) => bail!("peer {name}: there is no program {path}"),
            None => match find_program(default) {
                Some(path) => path,
                None => return Ok(None),
            },
        };
        Ok(Some(Self::new(name, path, flag)))
    }

    /// A Dormouse with the library of an allocator preloaded; `None` if that is not installed, or the program has an
    /// allocator of its own.
    pub fn with_allocator(&self, allocator: &str) -> Result<Option<Self>> {
        let found = allocator::preloaded(&self.path, allocator)?;
        Ok(found.map(|(library, version)| Self {
            name: format!("{}-{allocator}", self.name),
            preload: Some(library),
            version,
            ..self.clone()
        }))
    }

    /// A command that starts it.
    pub fn command(&self) -> Command {
        allocator::command(&self.path, self.preload.as_ref())
    }

    /// Fails if a process of it does not have the allocator it was to have.
    pub fn ensure_loaded(&self, pid: u32) -> Result<()> {
        allocator::ensure_loaded(self.preload.as_ref(), pid)
    }

    /// What a start that failed was of.
    pub fn starting(&self) -> String {
        format!("starting {} ({})", self.name, self.path.display())
    }
}
