//! Settings of a variant that do nothing. Loaders and allocators ignore what they cannot use: some with a line on
//! standard error, some without a word. Such a variant would be measured as one that it is not.

use crate::allocator;
use anyhow::{Context, Result, bail};
use regex::Regex;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

/// The beginning of a program's output that is looked at.
const OUTPUT_MAX: u64 = 64 << 20;
const TUNABLES: &str = "GLIBC_TUNABLES";

/// What says that a setting was ignored.
static COMPLAINTS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let all = [
        // The loader: one of /etc/ld.so.preload is the machine's matter.
        r"ERROR: ld\.so: object '.*' from LD_PRELOAD cannot be preloaded",
        r"(ERROR|WARNING): ld\.so: .*GLIBC_TUNABLES",
        // With `confirm_conf` jemalloc repeats good settings too.
        r"<jemalloc>: (Invalid|Out-of-range|Malformed|Conf string|Abort \(abort_conf|invalid configuration)",
        r"mimalloc: (warning|error): .*\boption\b.*\b(invalid|unknown|unsupported|not supported)\b",
        // gperftools has no other words on what it is set to.
        r"warning: unable to create memfs_malloc_path",
        r"(?i)tcmalloc: .*\b(invalid|unknown|unsupported|unrecognized) (option|flag|value|setting)",
        r"(?i)(snmalloc|rpmalloc|scudo)\b.*: .*\b(invalid|unknown|unsupported|unrecognized) (option|flag|value)",
    ];
    all.into_iter().filter_map(|pattern| Regex::new(pattern).ok()).collect()
});

/// Fails with the first line of a program's output that says that a setting was ignored.
pub fn check_output(path: &Path) -> Result<()> {
    let mut output = BufReader::new(File::open(path).context("reading the output")?.take(OUTPUT_MAX));
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).context("reading the output")? > 0 {
        let text = String::from_utf8_lossy(&line);
        if COMPLAINTS.iter().any(|pattern| pattern.is_match(&text)) {
            bail!("it does not run under its settings; it said: {}", super::text::printable(text.trim()));
        }
        line.clear();
    }
    Ok(())
}

/// Fails if one of these variables has no meaning: allocators and glibc ignore unknown ones without a word. `allocator`
/// is preloaded, as this library.
pub fn check_variables(
    environment: &BTreeMap<String, String>,
    allocator: Option<&str>,
    library: Option<&Path>,
) -> Result<()> {
    for (name, value) in environment {
        if name == TUNABLES {
            check_tunables(value)?;
        }
        let (Some(allocator), Some(library)) = (allocator, library) else { continue };
        let text = match (name.split_once('_'), allocator) {
            (Some(("MIMALLOC", option)), "mimalloc" | "mimalloc2" | "mimalloc3") => {
                option.to_ascii_lowercase()
            }
            (Some(("TCMALLOC", _)), "tcmalloc") => name.clone(),
            _ => continue,
        };
        if !allocator::mentions(library, &text)? {
            bail!("{name}: {} has no such option, and would ignore it", library.display());
        }
    }
    Ok(())
}

/// The names are those that the loader lists. One that cannot be asked is not.
fn check_tunables(value: &str) -> Result<()> {
    let Some(known) = tunables() else { return Ok(()) };
    for setting in value.split(':').filter(|setting| !setting.is_empty()) {
        let name = setting.split('=').next().unwrap_or_default();
        if !known.iter().any(|known| known == name) {
            let near = super::names::nearest(name, known.iter().map(String::as_str));
            let meant = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            bail!("{TUNABLES}: glibc has no `{name}` here, and would ignore it{meant}");
        }
    }
    Ok(())
}

fn tunables() -> Option<Vec<String>> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let loader = maps.lines().find_map(|line| {
        let path = line.get(line.find('/')?..)?;
        Path::new(path).file_name()?.to_str()?.starts_with("ld-linux").then_some(path)
    })?;
    let output = Command::new(loader).arg("--list-tunables").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names: Vec<_> =
        text.lines().filter_map(|line| line.split_once(": ")).map(|(name, _)| name.to_owned()).collect();
    (output.status.success() && !names.is_empty()).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Scratch;

    fn complaint(said: &str) -> Option<String> {
        let scratch = Scratch::new(None).unwrap();
        let path = scratch.path.join("output");
        fs::write(&path, said).unwrap();
        check_output(&path).err().map(|error| error.to_string())
    }

    #[test]
    fn lines_about_ignored_settings_are_found() {
        for line in [
            "ERROR: ld.so: object '/no.so' from LD_PRELOAD cannot be preloaded (cannot open it): ignored.",
            "<jemalloc>: Invalid conf pair: nonsense:1",
            "<jemalloc>: Out-of-range conf value: lg_chunk:99",
            "<jemalloc>: Malformed conf string",
            "<jemalloc>: Conf string ends with comma",
            "mimalloc: warning: environment option mimalloc_reset_delay has an invalid value.",
            "WARNING: ld.so: invalid GLIBC_TUNABLES value `x' for option `glibc.malloc.arena_max': ignored.",
            "warning: unable to create memfs_malloc_path",
        ] {
            let found = complaint(&format!("ready\n\u{fffd}{line}\nserving\n")).unwrap();
            assert!(
                found.starts_with("it does not run under its settings; it said: ") && found.contains(line),
                "{found}"
            );
        }
        for line in [
            "<jemalloc>: -- Set conf value: narenas:1",
            "<jemalloc>: malloc_conf #4 (\"environment variable MALLOC_CONF\"): \"narenas:1\"",
            "ERROR: ld.so: object '/no.so' from /etc/ld.so.preload cannot be preloaded: ignored.",
            "mimalloc: option 'verbose': 1",
            "tcmalloc: large alloc 1073741824 bytes == 0x7f",
            "Invalid conf pair in my own file",
        ] {
            assert_eq!(complaint(line), None, "{line}");
        }
    }

    #[test]
    fn variables_without_a_meaning_are_refused() {
        let scratch = Scratch::new(None).unwrap();
        let library = scratch.path.join("lib.so");
        fs::write(&library, b"\0\x7fELF\0purge_delay\0TCMALLOC_RELEASE_RATE\0").unwrap();
        let check = |allocator, name: &str, value: &str| {
            let environment = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            check_variables(&environment, Some(allocator), Some(&library))
                .err()
                .map(|error| error.to_string())
        };
        assert_eq!(check("mimalloc", "MIMALLOC_PURGE_DELAY", "0"), None);
        assert_eq!(check("tcmalloc", "TCMALLOC_RELEASE_RATE", "5"), None);
        assert_eq!(check("jemalloc", "MIMALLOC_PURGED", "0"), None, "another allocator's");
        assert!(check("mimalloc", "MIMALLOC_PURGE_DELAYED", "0").unwrap().contains("has no such option"));
        assert!(check("tcmalloc", "TCMALLOC_RELEASE", "0").unwrap().contains("has no such option"));
        let tunable = |value| check("jemalloc", TUNABLES, value);
        assert_eq!(tunable("glibc.malloc.arena_max=1:glibc.malloc.tcache_count=0"), None);
        let refused = tunable("glibc.malloc.arena_mx=1").unwrap();
        assert!(refused.contains("glibc has no `glibc.malloc.arena_mx`"), "{refused}");
        assert!(refused.ends_with("did you mean `glibc.malloc.arena_max`?"), "{refused}");
    }
}
