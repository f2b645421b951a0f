//! `dormouse journal restore`.

use super::verify::{self, Report};
use super::{Progress, bytes_below, name_of};
use crate::bucket_store::BucketStore;
use crate::data_dir::{DataDir, make_directories};
use crate::text_file::open_regular;
use anyhow::{Context as _, bail};
use std::fs::{self, File};
use std::io;
use std::path::Path;
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
    restore(backup, &directory.buckets(), &name).with_context(|| place.display().to_string())?;
    crate::print(&format!(
        "{}: restored; a node started with --data {} serves it\n",
        place.display(),
        data.display()
    ))
}

/// Copies under a name that no bucket has, then renames it to the bucket's in one step.
fn restore(backup: &Path, store: &BucketStore, name: &str) -> io::Result<()> {
    let place = store.directory(name);
    // No bucket's name begins with a dot.
    let unfinished = store.directory(&format!(".{name}.restoring"));
    let parent = place.parent().unwrap_or(&place);
    make_directories(parent)?;
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)?;
    }
    let mut progress = Progress::new("copying");
    copy(backup, &unfinished, &mut 0, bytes_below(backup), &mut progress)?;
    fs::rename(&unfinished, &place)?;
    sync(parent)?;
    parent.parent().map_or(Ok(()), sync)
}

fn copy(from: &Path, to: &Path, done: &mut u64, all: u64, progress: &mut Progress) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy(&source, &target, done, all, progress)?;
            continue;
        }
        let mut file = File::create_new(&target)?;
        *done += io::copy(&mut open_regular(&source)?, &mut file)?;
        file.sync_all()?;
        progress.show(*done, all);
    }
    sync(to)
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
