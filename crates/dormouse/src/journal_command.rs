//! `dormouse journal`: inspects, compacts and restores the journals of persistent buckets.
//!
//! DIR is a bucket's directory (`DATA/buckets/NAME`, or a backup), or one of its shards. No command needs a server;
//! `compact` and `restore` refuse a data directory that a node uses.

mod compact;
mod dump;
mod restore;
mod verify;

use crate::bucket_store::IDENTITY;
use crate::text_file;
use anyhow::{Context as _, bail};
use clap::Subcommand;
use journal::{AnyDisk, RealDisk};
use kv::persistence::BucketFile;
use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What to do with a journal.
#[derive(Debug, Subcommand)]
pub enum JournalCommand {
    /// Read every byte that counts and report damage, with file and offset; changes nothing.
    ///
    /// Exit code 0: everything is as it was written. 1: something is damaged. An unfinished batch at the end is not
    /// damage: a crash leaves one, and the next start truncates it. In a directory that a node is writing to, the end
    /// may look the same.
    #[command(after_help = "Examples:
  dormouse journal verify /var/lib/dormouse/buckets/default
  dormouse journal verify /var/lib/dormouse/backups/default/monday
  for bucket in /var/lib/dormouse/buckets/*; do dormouse journal verify \"$bucket\"; done")]
    Verify {
        /// Directory of a bucket, of a backup, or of one shard
        dir: PathBuf,
    },
    /// Print all batches, runs and records, one line each, oldest file first; changes nothing.
    #[command(after_help = "Lines:
  manifest: N segments
  segment FILE BYTES sealed|open
  batch NUMBER at OFFSET to END highest CAS
  run vBucket N at OFFSET, RECORDS records
  KIND vb=N seqno=N cas=N rev=N expiry=N flags=N datatype=N key=\"...\" value=N bytes
  DAMAGE FILE: ...

Keys are printed with their collection's number before them, as they are stored; other than printable bytes are escaped.

Examples:
  dormouse journal dump /var/lib/dormouse/buckets/default
  dormouse journal dump --values DIR | grep 'key=\"\\\\x00user:1\"'      all versions of a document")]
    Dump {
        /// Print values too, escaped
        #[arg(long)]
        values: bool,
        /// Directory of a bucket, of a backup, or of one shard
        dir: PathBuf,
    },
    /// Rewrite the live records and free the other disk space; for a bucket that no node uses.
    ///
    /// A running node does this by itself whenever about half of a journal is garbage. This command reads the whole
    /// bucket into memory, as a start does, and then compacts until nothing is left to free.
    #[command(after_help = "Example:
  dormouse journal compact /var/lib/dormouse/buckets/default")]
    Compact {
        /// Directory of a bucket
        dir: PathBuf,
    },
    /// Verify a backup and put it into a data directory that no node uses.
    ///
    /// The bucket gets its old name and settings; a bucket of that name must not exist. Backups are made by a running
    /// node: POST /pools/default/buckets/NAME/backup.
    #[command(after_help = "Examples:
  curl -u ada:secret -d label=monday http://127.0.0.1:8091/pools/default/buckets/default/backup
  dormouse journal restore /var/lib/dormouse/backups/default/monday /var/lib/dormouse")]
    Restore {
        /// Directory of the backup
        backup: PathBuf,
        /// Data directory of a node that does not run; created if missing
        data: PathBuf,
    },
}

/// Runs the command.
pub fn run(command: &JournalCommand) -> anyhow::Result<()> {
    match command {
        JournalCommand::Verify { dir } => verify::run(dir),
        JournalCommand::Dump { values, dir } => dump::run(dir, *values),
        JournalCommand::Compact { dir } => compact::run(dir),
        JournalCommand::Restore { backup, data } => restore::run(backup, data),
    }
}

/// One shard of the given directory.
struct Shard {
    directory: PathBuf,
    /// It was written to, so its manifest must exist.
    has_begun: bool,
}

/// The shards of the given directory, in numerical order.
fn shards(directory: &Path) -> anyhow::Result<Vec<Shard>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let (mut shards, mut is_shard) = (Vec::new(), false);
    for entry in entries {
        let path = entry?.path();
        if let Some(number) = shard_number(&path).filter(|_| path.is_dir()) {
            shards.push(number);
        } else {
            let is_manifest = path.file_name().is_some_and(|name| name == "MANIFEST");
            is_shard |= is_manifest || path.extension().is_some_and(|extension| extension == "segment");
        }
    }
    let is_bucket = directory.join(IDENTITY).exists();
    if !is_shard && !is_bucket && shards.is_empty() {
        bail!("{}: neither a bucket's directory ({IDENTITY}) nor a shard's (*.segment)", directory.display());
    }
    if is_shard {
        let path = fs::canonicalize(directory).with_context(|| directory.display().to_string())?;
        let written = path.parent().map_or(Ok(Vec::new()), written_shards)?;
        let has_begun = shard_number(&path).is_some_and(|number| written.contains(&number));
        return Ok(vec![Shard { directory: directory.to_owned(), has_begun }]);
    }
    let written = written_shards(directory)?;
    shards.extend(&written);
    shards.sort_unstable();
    shards.dedup();
    let shard = |number: u16| Shard {
        directory: directory.join(format!("shard-{number}")),
        has_begun: written.contains(&number),
    };
    Ok(shards.into_iter().map(shard).collect())
}

fn shard_number(directory: &Path) -> Option<u16> {
    directory.file_name()?.to_str()?.strip_prefix("shard-")?.parse().ok()
}

/// The shards of a bucket that, according to its `bucket.json`, were written to.
fn written_shards(directory: &Path) -> anyhow::Result<Vec<u16>> {
    if !directory.join(IDENTITY).exists() {
        return Ok(Vec::new());
    }
    Ok(bucket_file(directory)?.written_shards)
}

/// Reads a bucket's `bucket.json`.
fn bucket_file(directory: &Path) -> anyhow::Result<BucketFile> {
    // Waits for nobody, and follows no pipe.
    let path = directory.join(IDENTITY);
    text_file::open_regular(&path).with_context(|| path.display().to_string())?;
    Ok(BucketFile::read(&AnyDisk::Real(RealDisk::default()), directory)?)
}

/// Total size of the files below a directory.
fn bytes_below(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let bytes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

/// The name of the bucket in a directory.
fn name_of(directory: &Path) -> anyhow::Result<String> {
    let name = bucket_file(directory)?.name;
    if !kv::is_bucket_name(&name) {
        bail!("{}: {name:?} is not a bucket name", directory.join(IDENTITY).display());
    }
    Ok(name)
}

/// Reports the progress of long work on standard error: in place on a terminal, else as a line every few seconds.
struct Progress {
    what: &'static str,
    shown: Instant,
    is_terminal: bool,
    has_shown: bool,
}

impl Progress {
    const TERMINAL: Duration = Duration::from_millis(200);
    const LOG: Duration = Duration::from_secs(3);

    fn new(what: &'static str) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { what, shown: Instant::now(), is_terminal, has_shown: false }
    }

    fn show(&mut self, done: u64, all: u64) {
        let interval = if self.is_terminal { Self::TERMINAL } else { Self::LOG };
        if self.shown.elapsed() < interval {
            return;
        }
        self.shown = Instant::now();
        self.has_shown = true;
        let percent = done.min(all).saturating_mul(100) / all.max(1);
        let end = if self.is_terminal { "\r" } else { "\n" };
        let _ = write!(std::io::stderr(), "{}: {percent} %{end}", self.what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_terminal && self.has_shown {
            let _ = writeln!(std::io::stderr());
        }
    }
}
