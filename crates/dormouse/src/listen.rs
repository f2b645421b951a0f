//! Binds the listeners and makes room for connections.

use crate::config::reader::cause;
use crate::config::{Address, Problem};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;
/// Ports of the kernel's choice that are tried until one is free in both families.
const FREE_PORT_TRIES: u32 = 16;
/// Open files beside client connections: listeners, polls, logs, HTTP connections.
const OTHER_FILES: u64 = 1024;

/// A socket that listens, of either family.
#[derive(Debug)]
pub enum Bound {
    /// Of TCP.
    Tcp(TcpListener, SocketAddr),
    /// Of the Unix domain, and the file to remove at the end.
    Unix(UnixListener, SocketFile),
}

/// Binds what an address stands for; `key` is the configuration key it comes from. `everywhere` says whether `:PORT` is all addresses.
pub fn bind(key: &str, address: &Address, everywhere: bool) -> Result<Vec<Bound>, Problem> {
    let bound = match address {
        Address::Tcp(address) => tcp(*address).map(|bound| vec![bound]),
        Address::All(port) if everywhere => all(*port).map(|bound| vec![bound]),
        Address::All(port) | Address::Localhost(port) => localhost(*port),
        Address::Unix { path, mode } => unix(path, *mode).map(|bound| vec![bound]),
    };
    bound.map_err(|error| {
        let allowed = match address {
            Address::Unix { .. } => "a new name in a directory this process can write",
            _ => "a free address of this machine, or port 0 for any free port",
        };
        Problem::new(format!("{key} = \"{address}\": {}; allowed: {allowed}", cause(&error)))
    })
}

fn tcp(address: SocketAddr) -> io::Result<Bound> {
    let listener = TcpListener::bind(address)?;
    // The standard library asks for a backlog of 128; listening again widens it.
    rustix::net::listen(&listener, BACKLOG)?;
    let address = listener.local_addr()?;
    Ok(Bound::Tcp(listener, address))
}

/// One socket for both families, or one for IPv4 where the machine has no other.
fn all(port: u16) -> io::Result<Bound> {
    match tcp((Ipv6Addr::UNSPECIFIED, port).into()) {
        Err(error) if is_missing(&error) => tcp((Ipv4Addr::UNSPECIFIED, port).into()),
        result => result,
    }
}

/// The loopback addresses, with one port: 127.0.0.1, and ::1 where the machine has it.
fn localhost(port: u16) -> io::Result<Vec<Bound>> {
    let mut tries = if port == 0 { FREE_PORT_TRIES } else { 1 };
    loop {
        let first = tcp((Ipv4Addr::LOCALHOST, port).into())?;
        let Bound::Tcp(_, address) = &first else { return Ok(vec![first]) };
        match tcp((Ipv6Addr::LOCALHOST, address.port()).into()) {
            Ok(second) => return Ok(vec![first, second]),
            Err(error) if is_missing(&error) => return Ok(vec![first]),
            // The kernel chose a port that is free in one family only.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries > 1 => tries -= 1,
            Err(error) => return Err(error),
        }
    }
}

/// Whether the machine has no such address, or no such family.
fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}

/// A socket in the file system. What a node that was killed has left there is replaced.
fn unix(path: &Path, mode: u32) -> io::Result<Bound> {
    if let Ok(metadata) = fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "something else than a socket has this name",
            ));
        }
        if !is_stale(path)? {
            return Err(Errno::ADDRINUSE.into());
        }
        fs::remove_file(path)?;
    }
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The name gets the socket's own mode less the process's umask: never more than asked for, and the umask is left alone. What
    // the umask took away is given back afterwards.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let file = SocketFile::of(path)?;
    if fs::symlink_metadata(path)?.mode() & 0o777 != mode {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(Bound::Unix(UnixListener::from(socket), file))
}

/// Whether nobody listens on a socket that is there.
fn is_stale(path: &Path) -> io::Result<bool> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        // A full queue of connections is somebody's.
        Ok(()) | Err(Errno::AGAIN) => Ok(false),
        Err(Errno::CONNREFUSED) => Ok(true),
        // Of another kind, which connects to nobody's stream: somebody has it.
        Err(Errno::PROTOTYPE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The name of a listening socket, removed when it is dropped, unless something else has it by then.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        // Whatever becomes of the working directory, this is the file.
        let path = std::path::absolute(path)?;
        let metadata = fs::symlink_metadata(&path)?;
        Ok(Self { path, id: (metadata.dev(), metadata.ino()) })
    }

    /// The name.
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

/// Raises the limit on open files to fit `connections`, as far as the system allows. Returns the limit in force.
pub fn raise_open_files(connections: usize) -> u64 {
    let wanted = u64::try_from(connections).unwrap_or(u64::MAX).saturating_add(OTHER_FILES);
    let now = getrlimit(Resource::Nofile);
    let current = now.current.unwrap_or(u64::MAX);
    if current >= wanted {
        return current;
    }
    // A privileged process may raise the hard limit too; others go up to it.
    let hard = now.maximum.unwrap_or(u64::MAX).max(wanted);
    if setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(hard) }).is_ok() {
        return wanted;
    }
    let reachable = now.maximum.unwrap_or(u64::MAX).min(wanted);
    if setrlimit(Resource::Nofile, Rlimit { current: Some(reachable), maximum: now.maximum }).is_ok() {
        return reachable;
    }
    current
}
