//! `dormouse journal restore`.
//!
//! A backup may come from anywhere. Only files that a bucket has are copied, none of them through a symbolic link, and
//! nobody but the owner may do more with a copy than with the original.

use super::verify::{self, Report};
use super::{Progress, bytes_below, name_of, shard_number};
use crate::bucket_store::{BucketStore, IDENTITY, SETTINGS};
use crate::data_dir::{DataDir, make_directories};
use crate::text_file::open_itself;
use anyhow::{Context as _, bail};
use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const HOUR_NS: u64 = 3_600 * 1_000_000_000;

pub fn run(backup: &Path, data: &Path) -> anyhow::Result<()> {
    let name = name_of(backup)?;
    // Locked until the end, so that no node starts meanwhile.
    let directory = DataDir::open(data)?;
    let place = directory.buckets().directory(&name);
    if place.exists() {
        bail!("{}: there is a bucket of this name already; delete it or move it away", place.display());
    }
    let Report { text, damages, max_cas } = verify::report(backup)?;
    crate::print(&text)?;
    if damages > 0 {
        bail!(
            "{}: the backup is damaged, and was not restored; to serve what is whole of it, copy it to {} yourself",
            backup.display(),
            place.display()
        );
    }
    let unix_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let unix_ns = u64::try_from(unix_ns).unwrap_or(u64::MAX);
    if kv::cas_is_ahead(max_cas, unix_ns) {
        let hours = max_cas.saturating_sub(unix_ns) / HOUR_NS;
        bail!(
            "{}: its CAS is {hours} h ahead of this machine's clock, and that of a node that serves it would go on \
             there; it was not restored. Set the clock, or, to serve it all the same, copy it to {} yourself",
            backup.display(),
            place.display()
        );
    }
    let Parts { known, others } = parts(backup)?;
    for path in others {
        crate::print(&format!("{}: left out, since no bucket has such a file\n", path.display()))?;
    }
    restore(backup, &known, &directory.buckets(), &name).with_context(|| place.display().to_string())?;
    crate::print(&format!(
        "{}: restored; a node started with --data {} serves it\n",
        place.display(),
        data.display()
    ))
}

/// Copies under a name that no bucket has, then renames it to the bucket's in one step.
fn restore(backup: &Path, parts: &[Part], store: &BucketStore, name: &str) -> io::Result<()> {
    let place = store.directory(name);
    // No bucket's name begins with a dot.
    let unfinished = store.directory(&format!(".{name}.restoring"));
    let parent = place.parent().unwrap_or(&place);
    make_directories(parent)?;
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)?;
    }
    let (mut progress, all) = (Progress::new("copying"), bytes_below(backup));
    make(&fs::metadata(backup)?, &unfinished)?;
    let mut done = 0;
    for part in parts {
        let (source, target) = (backup.join(&part.path), unfinished.join(&part.path));
        if part.metadata.is_dir() {
            make(&part.metadata, &target)?;
            continue;
        }
        let mode = mode_of(&part.metadata, 0o600);
        let mut file = File::options().write(true).create_new(true).mode(mode).open(&target)?;
        done += io::copy(&mut open_itself(&source)?, &mut file)?;
        file.sync_all()?;
        progress.show(done, all);
    }
    for directory in parts.iter().filter(|part| part.metadata.is_dir()) {
        sync(&unfinished.join(&directory.path))?;
    }
    sync(&unfinished)?;
    fs::rename(&unfinished, &place)?;
    sync(parent)?;
    parent.parent().map_or(Ok(()), sync)
}

/// A file or directory of a backup.
struct Part {
    /// Where it is in the backup.
    path: PathBuf,
    /// Not of what a link leads to.
    metadata: Metadata,
}

/// What there is in a backup.
#[derive(Default)]
struct Parts {
    /// The files of a bucket and the directories of its shards, each before what is in it.
    known: Vec<Part>,
    /// Anything else.
    others: Vec<PathBuf>,
}

/// Lists a backup; an error if there is a symbolic link in it.
fn parts(backup: &Path) -> anyhow::Result<Parts> {
    let mut parts = Parts::default();
    list(backup, Path::new(""), &mut parts)?;
    Ok(parts)
}

fn list(backup: &Path, within: &Path, parts: &mut Parts) -> anyhow::Result<()> {
    let directory = backup.join(within);
    let is_shard = !within.as_os_str().is_empty();
    for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
        let path = entry.with_context(|| directory.display().to_string())?.path();
        let metadata = fs::symlink_metadata(&path).with_context(|| path.display().to_string())?;
        if metadata.is_symlink() {
            bail!("{}: a symbolic link, and nothing was restored; allowed: the file itself", path.display());
        }
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_known = match (metadata.is_dir(), metadata.is_file()) {
            (true, _) => !is_shard && shard_number(&path).is_some(),
            (_, true) if is_shard => journal::log::is_file_name(name),
            (_, is_file) => is_file && [IDENTITY, SETTINGS].contains(&name),
        };
        if !is_known {
            parts.others.push(path);
            continue;
        }
        let (part, is_directory) = (within.join(name), metadata.is_dir());
        parts.known.push(Part { path: part.clone(), metadata });
        if is_directory {
            list(backup, &part, parts)?;
        }
    }
    Ok(())
}

fn make(source: &Metadata, directory: &Path) -> io::Result<()> {
    DirBuilder::new().mode(mode_of(source, 0o700)).create(directory)
}

/// The owner may do with a copy what a node has to; others at most what they may with the original.
fn mode_of(source: &Metadata, of_owner: u32) -> u32 {
    of_owner | source.permissions().mode() & 0o077
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
