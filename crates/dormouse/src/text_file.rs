//! Reads user-supplied files of any type: no function waits for long, and every read is bounded.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, Timespec};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the other end of a pipe may take in total.
const PIPE_PATIENCE: Duration = Duration::from_secs(5);

/// Opens a regular file for reading; anything else is refused without waiting.
pub fn open_regular(path: &Path) -> io::Result<File> {
    regular(open(path, OFlags::empty())?)
}

/// The same, but not through a symbolic link.
pub fn open_itself(path: &Path) -> io::Result<File> {
    regular(open(path, OFlags::NOFOLLOW)?)
}

fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

/// Reads a regular file of at most `bytes_max` bytes.
pub fn read_regular(path: &Path, bytes_max: u64) -> io::Result<String> {
    text(&mut open_regular(path)?, bytes_max)
}

/// Reads a file of at most `bytes_max` bytes. It may be a pipe, like the shell's `<(command)`, if its writer writes
/// soon.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut file = open(path, OFlags::empty())?;
    let kind = file.metadata()?.file_type();
    if kind.is_fifo() {
        text(&mut Pipe { file, since: Instant::now() }, bytes_max)
    } else {
        text(&mut file, bytes_max)
    }
}

fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    // Without this flag, opening a pipe waits for its other end. For a regular file it has no effect.
    let flags = (flags | OFlags::NONBLOCK).bits().cast_signed();
    File::options().read(true).custom_flags(flags).open(path)
}

fn text(source: &mut impl io::Read, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    source.take(bytes_max + 1).read_to_string(&mut text)?;
    if text.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("longer than {bytes_max} bytes")));
    }
    Ok(text)
}

/// A pipe that is read until its end or a timeout.
struct Pipe {
    file: File,
    since: Instant,
}

impl io::Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "a pipe, and nobody writes to it");
        let rest = PIPE_PATIENCE.checked_sub(self.since.elapsed()).ok_or_else(late)?;
        let rest = Timespec { tv_sec: rest.as_secs().cast_signed(), tv_nsec: rest.subsec_nanos().into() };
        // While no writer has connected yet, a read reports end of file but a poll does not.
        match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&rest)) {
            Ok(0) => Err(late()),
            Ok(_) => self.file.read(buffer),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn pipes_and_devices_do_not_hold_it_up() {
        let directory = std::env::temp_dir().join(format!("dormouse-text-file-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let (pipe, file) = (directory.join("pipe"), directory.join("file"));
        assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
        std::fs::write(&file, "twelve bytes").expect("a file");
        assert_eq!(read_regular(&file, 12).expect("it is as long as that"), "twelve bytes");
        assert_eq!(read_regular(&file, 11).expect_err("it is longer").to_string(), "longer than 11 bytes");
        assert_eq!(read_regular(&pipe, 12).expect_err("a pipe").to_string(), "not a regular file");
        assert_eq!(
            read(&pipe, 12).expect_err("nobody writes").to_string(),
            "a pipe, and nobody writes to it"
        );
        let writer = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::write(pipe, "a line\n")
        });
        assert_eq!(read(&pipe, 12).expect("somebody writes"), "a line\n");
        writer.join().expect("it ends").expect("written");
        assert_eq!(read(Path::new("/dev/null"), 12).expect("a device"), "");
        assert_eq!(
            read(Path::new("/dev/zero"), 12).expect_err("endless").to_string(),
            "longer than 12 bytes"
        );
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}
