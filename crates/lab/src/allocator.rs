//! Allocator libraries to preload into a program.

use crate::child::version_of;
use crate::debian;
use crate::report::Table;
use anyhow::{Context, Result, ensure};
use memchr::memmem;
use regex::Regex;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The system's own allocator, for which nothing is preloaded.
const SYSTEM: &str = "glibc";

/// An allocator that replaces the system's as a preloaded library.
#[derive(Debug)]
pub struct Allocator {
    /// Its name in options and experiment files.
    pub name: &'static str,
    /// Its possible file names, the preferred one first.
    files: &'static [&'static str],
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// The packages that have had it, the newest first: Debian's names change with its releases.
    Packages(&'static [&'static str]),
    /// How to build it.
    Build(&'static str),
}

/// All that the lab knows.
pub const ALLOCATORS: [Allocator; 7] = [
    Allocator { name: "jemalloc", files: &["libjemalloc.so.2"], source: Source::Packages(&["libjemalloc2"]) },
    Allocator {
        name: "tcmalloc",
        files: &["libtcmalloc.so.4", "libtcmalloc_minimal.so.4"],
        source: Source::Packages(&[
            "libgoogle-perftools4t64",
            "libgoogle-perftools4",
            "libtcmalloc-minimal4t64",
            "libtcmalloc-minimal4",
        ]),
    },
    Allocator {
        name: "mimalloc",
        files: &["libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so"],
        source: Source::Packages(&["libmimalloc3", "libmimalloc2.1", "libmimalloc2.0"]),
    },
    Allocator {
        name: "mimalloc2",
        files: &["libmimalloc.so.2", "libmimalloc.so.2.0"],
        source: Source::Packages(&["libmimalloc2.1", "libmimalloc2.0"]),
    },
    Allocator {
        name: "mimalloc3",
        files: &["libmimalloc.so.3"],
        source: Source::Build("build mimalloc 3 with cmake, and install libmimalloc.so.3 in /usr/local/lib"),
    },
    Allocator {
        name: "snmalloc",
        files: &["libsnmallocshim.so", "libsnmallocshim-checks.so"],
        source: Source::Build("build snmalloc with cmake, and install libsnmallocshim.so in /usr/local/lib"),
    },
    Allocator {
        name: "rpmalloc",
        files: &["librpmallocwrap.so", "librpmalloc.so"],
        source: Source::Build(
            "build rpmalloc with its override of malloc, and install librpmallocwrap.so in /usr/local/lib",
        ),
    },
];

impl Allocator {
    fn named(name: &str) -> Result<&'static Self> {
        let known: Vec<_> = ALLOCATORS.iter().map(|allocator| allocator.name).collect();
        let found = ALLOCATORS.iter().find(|allocator| allocator.name == name);
        found.with_context(|| {
            let near = crate::study::names::nearest(name, known.iter().copied());
            let meant = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            format!("unknown allocator `{name}`: {}{meant}", known.join(", "))
        })
    }

    /// How to get it. A package is named only where it is offered.
    pub fn how_to_get(&self) -> String {
        match self.source {
            Source::Packages(names) => debian::installation(names).unwrap_or_else(|| {
                format!(
                    "no package of this system has it; put {} into /usr/local/lib",
                    self.files.join(" or ")
                )
            }),
            Source::Build(how) => how.to_owned(),
        }
    }

    /// Its library, if it is installed.
    pub fn library(&self) -> Option<PathBuf> {
        find_library(self.files)
    }
}

/// Fails if there is no allocator of this name, installed or not. `glibc`, the system's, is one too.
pub fn check_name(name: &str) -> Result<()> {
    if name != SYSTEM {
        Allocator::named(name).with_context(|| format!("`{SYSTEM}` for the system's"))?;
    }
    Ok(())
}

/// The library to preload for an allocator; `None` for the system's. `Err` says how to get one that is not installed.
pub fn find(name: &str) -> Result<Option<PathBuf>> {
    if name == SYSTEM {
        return Ok(None);
    }
    let allocator = Allocator::named(name)?;
    let library = allocator.library();
    library.map(Some).with_context(|| format!("{name} is not installed ({})", allocator.how_to_get()))
}

/// Prints what this machine has.
pub fn print_list() -> Result<()> {
    let mut table = Table::new("Allocators that can be preloaded", &["name", "library, or how to get it"]);
    table.row(vec![SYSTEM.to_owned(), "the system's own: nothing is preloaded".to_owned()]);
    for allocator in &ALLOCATORS {
        let library = allocator.library();
        let found = library
            .map_or_else(|| format!("not installed ({})", allocator.how_to_get()), |path| description(&path));
        table.row(vec![allocator.name.to_owned(), found]);
    }
    let mut text = String::new();
    table.render(&mut text);
    io::stdout().write_all(text.as_bytes()).context("printing the list")
}

/// What a library is exactly: its file, the version that it says it has, and the package that it is from.
pub fn description(library: &Path) -> String {
    let file = fs::canonicalize(library).unwrap_or_else(|_| library.to_owned());
    let package = debian::package_of(&file).map(|found| format!("{} {}", found.name, found.version));
    let parts = [Some(file.display().to_string()), version_in(&file), package];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// jemalloc and gperftools have their versions as texts; mimalloc prints its own when it is asked to talk.
fn version_in(library: &Path) -> Option<String> {
    let bytes = fs::read(library).ok()?;
    let pattern = r"(?-u)\b(\d+\.\d+\.\d+-\d+-g[0-9a-f]{40}|gperftools \d+(\.\d+)+)";
    let text = regex::bytes::Regex::new(pattern).ok()?.find(&bytes).map(|found| found.as_bytes());
    if let Some(text) = text {
        return Some(String::from_utf8_lossy(text).into_owned());
    }
    if !mentions(library, "show_stats").ok()? {
        return None;
    }
    let output =
        command(Path::new("true"), Some(&library.to_owned())).env("MIMALLOC_VERBOSE", "1").output().ok()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Regex::new(r"mimalloc: .*?\bv(\d+\.\d+\.\d+)")
        .ok()?
        .captures(&said)?
        .get(1)
        .map(|found| found.as_str().to_owned())
}

/// Returns true if a file has this text, with nothing after it.
pub fn mentions(library: &Path, text: &str) -> Result<bool> {
    let bytes = fs::read(library).with_context(|| format!("reading {}", library.display()))?;
    Ok(memmem::find(&bytes, &[text.as_bytes(), &[0]].concat()).is_some())
}

/// The version of glibc, whose allocator is the system's.
pub fn system_version() -> Option<String> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The library of an allocator; `None` if it is not installed.
pub fn library(name: &str) -> Result<Option<PathBuf>> {
    Ok(Allocator::named(name)?.library())
}

/// A command that starts the program with this library, if any, preloaded in place of its allocator.
pub fn command(program: &Path, preload: Option<&PathBuf>) -> Command {
    let mut command = Command::new(program);
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    command
}

/// The library of an allocator, and the version text of a Dormouse started with it; `None` if it is not installed, or
/// if the program has an allocator of its own: the version text names what serves `malloc`.
pub fn preloaded(program: &Path, name: &str) -> Result<Option<(PathBuf, String)>> {
    let Some(library) = library(name)? else { return Ok(None) };
    let version = version_of(&mut command(program, Some(&library)), "--version");
    let is_used = version.contains(name) && version.contains("preloaded");
    Ok(is_used.then_some((library, version)))
}

/// Fails if the library is not loaded. The loader ignores a library it cannot load, with only a warning: the figures
/// would be another allocator's.
pub fn ensure_loaded(preload: Option<&PathBuf>, pid: u32) -> Result<()> {
    let Some(library) = preload else { return Ok(()) };
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).context("reading maps")?;
    let name = library.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    ensure!(maps.contains(name), "{} was not loaded", library.display());
    Ok(())
}

/// The file name of an allocator's library that a process has loaded.
pub fn loaded(pid: u32) -> Option<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let names = maps.lines().filter_map(|line| line.rsplit_once('/').map(|(_, name)| name));
    let is_one = |name: &&str| {
        ["libjemalloc", "libtcmalloc", "libmimalloc", "libsnmalloc", "librpmalloc"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    names.into_iter().find(is_one).map(str::to_owned)
}

/// Searches the usual library directories for one of these names, in order of preference.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_library_of_no_name() {
        assert_eq!(find_library(&["libnothing-of-this-name.so.9"]), None);
    }

    #[test]
    fn only_a_program_that_says_so_has_another_allocator() {
        let this = std::env::current_exe().unwrap();
        assert!(preloaded(&this, "sbrk").is_err());
        assert!(preloaded(&this, "jemalloc").unwrap().is_none(), "this test does not tell its allocator");
    }
}
