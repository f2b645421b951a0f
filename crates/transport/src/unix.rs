//! Names of sockets in the file system.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Longest name that fits the address of a Unix socket.
pub const SOCKET_NAME_MAX: usize = 107;

/// A name that fits the address of a Unix socket. For a long one, the directory is opened and referred to by its
/// number.
pub(crate) struct ShortName {
    pub path: PathBuf,
    _directory: Option<File>,
}

impl ShortName {
    pub fn of(path: &Path) -> io::Result<Self> {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(Self { path: path.to_owned(), _directory: None });
        };
        if path.as_os_str().len() <= SOCKET_NAME_MAX {
            return Ok(Self { path: path.to_owned(), _directory: None });
        }
        let directory = File::open(directory)?;
        let path = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
        Ok(Self { path, _directory: Some(directory) })
    }
}

/// The name of a listening socket, removed when it is dropped, unless something else has it by then.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl SocketFile {
    pub fn of(path: &Path) -> io::Result<Self> {
        // Absolute, so that it stays valid if the working directory changes.
        let path = std::path::absolute(path)?;
        let metadata = fs::symlink_metadata(&path)?;
        Ok(Self { path, id: (metadata.dev(), metadata.ino()) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket that nothing listens on any more. Anything else under that name is an error.
pub(crate) fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        let text = "something else than a socket has this name";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    if !is_stale(path)? {
        return Err(Errno::ADDRINUSE.into());
    }
    fs::remove_file(path)
}

/// Returns true if nothing listens on an existing socket.
fn is_stale(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        // A socket with a full connection queue is in use.
        Ok(()) | Err(Errno::AGAIN) => Ok(false),
        Err(Errno::CONNREFUSED) => Ok(true),
        // A socket of another type, which refuses streams: it is in use.
        Err(Errno::PROTOTYPE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
