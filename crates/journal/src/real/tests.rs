use super::*;
use crate::write_all_at;
use std::process::Command;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("journal-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("a directory");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_is_written_is_read_and_renamed() {
    let scratch = Scratch::new("write");
    let disk = RealDisk::default();
    let (a, b) = (scratch.0.join("a"), scratch.0.join("b"));
    let file = disk.open(&a, Open::CreateNew).expect("created");
    assert!(disk.open(&a, Open::CreateNew).is_err());
    write_all_at(&file, b"hello", 0).expect("written");
    file.sync().expect("synced");
    let mut pending = disk.sync_in_background(&file);
    let result = loop {
        if let Some(result) = pending.poll() {
            break result;
        }
        thread::yield_now();
    };
    result.expect("synced");
    disk.rename(&a, &b).expect("renamed");
    disk.sync_directory(&b).expect("synced");
    let file = disk.open(&b, Open::Read).expect("opened");
    let mut buffer = [0; 8];
    assert_eq!(file.read_at(&mut buffer, 1).expect("read"), 4);
    assert_eq!(&buffer[..4], b"ello");
    assert_eq!(file.length().expect("length"), 5);
    assert!(!disk.exists(&a).expect("asked"));
}

#[test]
fn symbolic_links_are_followed_even_to_nothing() {
    let scratch = Scratch::new("links");
    let disk = RealDisk::default();
    let link = scratch.0.join("link");
    std::os::unix::fs::symlink("target", &link).expect("a link");
    assert_eq!(disk.resolve(&link).expect("followed"), scratch.0.join("target"));
    assert_eq!(disk.resolve(&scratch.0.join("none")).expect("nothing there"), scratch.0.join("none"));
    std::os::unix::fs::symlink("loop", scratch.0.join("loop")).expect("a link");
    assert!(disk.resolve(&scratch.0.join("loop")).is_err());
}

#[test]
fn a_lock_is_seen_by_this_process_and_by_others() {
    let scratch = Scratch::new("lock");
    let disk = RealDisk::default();
    let path = scratch.0.join(".a.~lock~");
    let lock = disk.lock(&path).expect("locked");
    assert!(matches!(disk.lock(&path), Err(LockError::ThisProcess)));
    // Another process asks for the lock as the stock tools do.
    let ask = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)";
    let other = || Command::new("python3").args(["-c", ask]).arg(&path).output().expect("python3").status;
    assert!(!other().success());
    drop(lock);
    assert!(other().success());
    disk.lock(&path).expect("locked again");
}

#[test]
fn what_is_no_file_is_refused_without_waiting_for_it() {
    let scratch = Scratch::new("pipe");
    let (disk, pipe) = (RealDisk::default(), scratch.0.join("pipe"));
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    for (path, how) in [(&pipe, Open::Read), (&pipe, Open::ReadWrite), (&scratch.0, Open::Read)] {
        let error = disk.open(path, how).expect_err("not a file");
        assert_eq!(error.to_string(), "not a regular file");
    }
}
