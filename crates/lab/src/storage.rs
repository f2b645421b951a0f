//! The disk under an experiment: a directory on it, its raw sync rate, its raw read speed.

use crate::cleanup::CleanupProcess;
use crate::os;
use anyhow::{Context, Result};
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Bytes read at once when a whole file is read.
const READ_BYTES: usize = 1 << 20;
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Retries for a while: a process that wrote there may still be exiting.
const REMOVE: &str = r#"for _ in 1 2 3 4 5; do rm -rf -- "$1" && break; sleep 1; done"#;

/// A directory of an experiment; removed with its contents when dropped, and also when this process is interrupted or
/// killed.
#[derive(Debug)]
pub struct Scratch {
    /// Where it is.
    pub path: PathBuf,
    _remover: CleanupProcess,
}

impl Scratch {
    /// Creates one in `parent`, or in the system's temporary directory.
    pub fn new(parent: Option<&Path>) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let path = parent.join(format!("dormouse-lab-{}-{number}", std::process::id()));
        let remover = CleanupProcess::new(REMOVE, &[path.as_os_str()])?;
        fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self { path, _remover: remover })
    }
}

/// Type and device of the file system a path is on, as `ext4 on /dev/sda1`.
pub fn file_system(path: &Path) -> String {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    find_mount(&mounts, &path).unwrap_or_else(|| "unknown".to_owned())
}

fn find_mount(mounts: &str, path: &Path) -> Option<String> {
    let mount = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let point = left.split_whitespace().nth(4)?.to_owned();
        let mut right = right.split_whitespace();
        let (kind, device) = (right.next()?, right.next()?);
        path.starts_with(&point).then(|| (point.len(), format!("{kind} on {device}")))
    };
    mounts.lines().filter_map(mount).max_by_key(|(length, _)| *length).map(|(_, words)| words)
}

/// The sync rate of a disk with no other load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SyncRate {
    /// Bytes appended before each sync.
    pub bytes: usize,
    /// Syncs per second.
    pub per_second: f64,
}

/// Repeatedly appends `bytes` bytes to a new file and syncs them (`fdatasync`).
pub fn sync_rate(directory: &Path, bytes: usize, length: Duration) -> Result<SyncRate> {
    let path = directory.join("sync-rate");
    let mut file = OpenOptions::new().create_new(true).append(true).open(&path)?;
    let block = vec![0x5a; bytes];
    let (start, mut syncs) = (Instant::now(), 0u32);
    while start.elapsed() < length {
        file.write_all(&block)?;
        file.sync_data()?;
        syncs += 1;
    }
    let per_second = f64::from(syncs) / start.elapsed().as_secs_f64();
    fs::remove_file(&path)?;
    Ok(SyncRate { bytes, per_second })
}

/// All files below a directory.
pub fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("listing {}", directory.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files.extend(files_below(&entry.path())?);
        } else {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// Drops these files from the page cache; returns the method used, as text.
pub fn drop_page_cache(files: &[PathBuf]) -> Result<&'static str> {
    for file in files {
        File::open(file)?.sync_all()?;
    }
    if fs::write(DROP_CACHES, "3").is_ok() {
        return Ok("all of the kernel's caches dropped (drop_caches)");
    }
    for file in files {
        let file = File::open(file)?;
        os::forget_cached(file.as_raw_fd())?;
    }
    Ok("the files' pages dropped (posix_fadvise); the kernel's caches could not be")
}

/// Reads files one after the other; returns their bytes and how long it took.
pub fn read_through(files: &[PathBuf]) -> Result<(u64, Duration)> {
    let mut buffer = vec![0; READ_BYTES];
    let (start, mut bytes) = (Instant::now(), 0);
    for file in files {
        let mut file = File::open(file)?;
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            bytes += count as u64;
        }
    }
    Ok((bytes, start.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_mount_point_wins() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:5 / /tmp rw shared:1 - tmpfs none rw\n";
        assert_eq!(find_mount(mounts, Path::new("/tmp/x")).unwrap(), "tmpfs on none");
        assert_eq!(find_mount(mounts, Path::new("/var")).unwrap(), "ext4 on /dev/sda1");
        assert_eq!(find_mount("", Path::new("/var")), None);
    }

    #[test]
    fn a_directory_is_read_through_and_gone_at_the_end() {
        let scratch = Scratch::new(None).unwrap();
        let path = scratch.path.clone();
        fs::create_dir(path.join("inner")).unwrap();
        fs::write(path.join("inner/one"), [7; 3000]).unwrap();
        fs::write(path.join("two"), [7; 70]).unwrap();
        let files = files_below(&path).unwrap();
        assert_eq!(files, [path.join("inner/one"), path.join("two")]);
        assert_eq!(read_through(&files).unwrap().0, 3070);
        let rate = sync_rate(&path, 100, Duration::from_millis(20)).unwrap();
        assert!(rate.per_second > 0.0);
        assert_eq!(files_below(&path).unwrap().len(), 2, "its own file is gone");
        drop(scratch);
        assert!(!path.exists());
    }
}
