//! `dormouse journal verify`.

use super::{Progress, bytes_below, shards};
use anyhow::bail;
use journal::RealDisk;
use journal::log::{Buffer, verify_with_progress};
use std::fmt::Write as _;
use std::path::Path;

pub fn run(directory: &Path) -> anyhow::Result<()> {
    let (report, damages) = report(directory)?;
    crate::print(&report);
    match damages {
        0 => Ok(()),
        1 => bail!("{}: damaged in one place", directory.display()),
        places => bail!("{}: damaged in {places} places", directory.display()),
    }
}

/// A line for each shard and each damage, and how many of the latter there are.
pub fn report(directory: &Path) -> anyhow::Result<(String, usize)> {
    let (disk, mut buffer, mut progress) =
        (RealDisk::default(), Buffer::default(), Progress::new("verifying"));
    let (all_bytes, mut before_bytes) = (bytes_below(directory), 0);
    let (mut text, mut damages) = (String::new(), 0);
    let shards = shards(directory)?;
    if shards.is_empty() {
        let _ = writeln!(text, "{}: nothing was written yet", directory.display());
    }
    for shard in shards {
        let mut tell =
            |so_far: &journal::log::Verified| progress.tell(before_bytes + so_far.bytes, all_bytes);
        let verified = verify_with_progress(&disk, &shard, &mut buffer, &mut tell)?;
        before_bytes += verified.bytes;
        damages += verified.damage.len();
        let end = match (verified.torn_bytes, verified.is_clean) {
            (0, true) => "closed by a clean stop".to_owned(),
            (0, false) => "not closed: a node writes to it, or was killed".to_owned(),
            (bytes, _) => format!("{bytes} bytes of an unfinished batch at the end, which do not count"),
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
        for damage in &verified.damage {
            let _ = writeln!(text, "DAMAGE {damage}");
        }
    }
    Ok((text, damages))
}
