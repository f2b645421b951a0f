//! `dormouse journal verify`.

use super::{Progress, Shard, bucket_file, bytes_below, shards};
use crate::bucket_store::{IDENTITY, read_settings};
use anyhow::bail;
use journal::RealDisk;
use journal::log::{Buffer, verify_with_progress};
use kv::persistence::BucketFile;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What verifying finds.
pub struct Report {
    /// A line for each shard and each damage.
    pub text: String,
    /// The number of damages.
    pub damages: usize,
    /// The highest CAS, above which the clock of a node that serves it goes on.
    pub max_cas: u64,
}

pub fn run(directory: &Path) -> anyhow::Result<()> {
    let Report { text, damages, .. } = report(directory)?;
    crate::print(&text)?;
    match damages {
        0 => Ok(()),
        1 => bail!("{}: damaged in one place", directory.display()),
        places => bail!("{}: damaged in {places} places", directory.display()),
    }
}

/// Entries that are neither regular files nor, where these are allowed, directories. No node wrote them, and reading
/// them might never end.
fn strange_files(directory: &Path, may_have_directories: bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_known = |path: &PathBuf| {
        let metadata = fs::metadata(path);
        metadata.is_ok_and(|metadata| metadata.is_file() || (may_have_directories && metadata.is_dir()))
    };
    let mut strange: Vec<PathBuf> = entries.filter(|path| !is_known(path)).collect();
    strange.sort();
    strange
}

fn list_strange(text: &mut String, strange: &[PathBuf]) -> usize {
    for path in strange {
        let _ = writeln!(text, "DAMAGE {}: not a regular file, and not read", path.display());
    }
    strange.len()
}

/// Verifies the journals of a bucket, or one of them.
pub fn report(directory: &Path) -> anyhow::Result<Report> {
    let (disk, mut buffer, mut progress) =
        (RealDisk::default(), Buffer::default(), Progress::new("verifying"));
    let (all_bytes, mut before_bytes) = (bytes_below(directory), 0);
    let (mut text, mut damages, mut max_cas) = (String::new(), 0, 0);
    let shards = shards(directory)?;
    let mut file = None;
    if shards.first().is_none_or(|shard| shard.directory != directory) {
        damages += list_strange(&mut text, &strange_files(directory, true));
        let BucketFile { name, .. } = file.insert(bucket_file(directory)?);
        if let Err(problem) = read_settings(directory, name) {
            let _ = writeln!(text, "DAMAGE {problem}");
            damages += 1;
        }
    }
    if shards.is_empty() {
        let _ = writeln!(text, "{}: nothing was written yet", directory.display());
    }
    for Shard { directory: shard, has_begun } in shards {
        let mut report =
            |so_far: &journal::log::Verified| progress.show(before_bytes + so_far.bytes, all_bytes);
        let strange = strange_files(&shard, false);
        damages += list_strange(&mut text, &strange);
        let verified = match verify_with_progress(&disk, &shard, &mut buffer, has_begun, &mut report) {
            Ok(verified) => verified,
            // Already reported.
            Err(_) if !strange.is_empty() => continue,
            Err(error) => return Err(error.into()),
        };
        before_bytes += verified.bytes;
        damages += verified.damage.len();
        max_cas = verified.max_cas.max(max_cas);
        let end = match (verified.torn_bytes, verified.is_clean) {
            (0, true) => "closed by a clean stop".to_owned(),
            (0, false) if verified.is_ended => "complete up to the end in its manifest: a backup".to_owned(),
            (0, false) => "not closed: a node writes to it, or was killed".to_owned(),
            (bytes, _) => format!("{bytes} bytes of an unfinished batch at the end, ignored"),
        };
        let _ = writeln!(
            text,
            "{}: {} segments ({} sealed), {} bytes, {} batches, {} runs, {} records; {end}",
            shard.display(),
            verified.segments,
            verified.sealed_segments,
            verified.bytes,
            verified.batches,
            verified.runs,
            verified.records,
        );
        if let (Some(file), Some(found)) = (&file, verified.identity)
            && (file.bucket, file.vbuckets) != (found.bucket, found.vbuckets)
        {
            let _ = writeln!(text, "DAMAGE {}: of another bucket than {IDENTITY}", shard.display());
            damages += 1;
        }
        for damage in &verified.damage {
            let _ = writeln!(text, "DAMAGE {damage}");
        }
    }
    Ok(Report { text, damages, max_cas })
}
