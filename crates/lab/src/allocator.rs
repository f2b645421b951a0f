//! Allocator libraries to preload into a program.

use crate::child::version_of;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Libraries that replace the system's allocator: a name, and the possible file names, the preferred one first.
const ALLOCATORS: [(&str, &[&str]); 3] = [
    ("jemalloc", &["libjemalloc.so.2"]),
    ("tcmalloc", &["libtcmalloc.so.4", "libtcmalloc_minimal.so.4"]),
    ("mimalloc", &["libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so"]),
];

/// The library of an allocator; `None` if it is not installed.
pub fn library(name: &str) -> Result<Option<PathBuf>> {
    let known: Vec<_> = ALLOCATORS.iter().map(|(name, _)| *name).collect();
    let files = ALLOCATORS.iter().find(|(known, _)| *known == name).map(|(_, files)| find_library(files));
    files.with_context(|| format!("unknown allocator `{name}`: {}", known.join(", ")))
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
