//! A connected socket, of either family, and a listening one.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{PidfdFlags, PidfdGetfdFlags};

use crate::socket::bound_unsent;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Longest name that the address of a Unix socket holds.
pub(crate) const SOCKET_NAME_MAX: usize = 107;

/// A name that the address of a Unix socket holds: of a long one, the directory is opened and named by its number.
struct ShortName {
    path: PathBuf,
    _directory: Option<File>,
}

impl ShortName {
    fn of(path: &Path) -> io::Result<Self> {
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

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    pub(crate) fn connect_unix(path: &Path) -> io::Result<Self> {
        let name = ShortName::of(path)?;
        UnixStream::connect(&name.path).map(Self::Unix)
    }

    pub(crate) fn connect_tcp(address: SocketAddr, dscp: u8) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        let _ = stream.set_nodelay(true);
        mark(&stream, dscp);
        Ok(Self::Tcp(stream))
    }

    /// Whether a connection that was begun is there: not yet, yes, or why not.
    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        match self {
            Self::Unix(stream) => stream.take_error()?.map_or(Ok(true), Err),
            Self::Tcp(stream) => {
                if let Some(error) = stream.take_error()? {
                    return Err(error);
                }
                match stream.peer_addr() {
                    Ok(_) => Ok(true),
                    Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Whether a probe makes sense: the kernel tells when a local peer is gone.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    pub(crate) fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(room),
            Self::Tcp(stream) => stream.read(room),
        }
    }

    pub(crate) fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        // One piece goes with the cheaper call.
        match (self, slices) {
            (Self::Unix(stream), [only]) => stream.write(only),
            (Self::Tcp(stream), [only]) => stream.write(only),
            (Self::Unix(stream), _) => stream.write_vectored(slices),
            (Self::Tcp(stream), _) => stream.write_vectored(slices),
        }
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Unix(stream) => stream,
            Self::Tcp(stream) => stream,
        }
    }

    pub(crate) fn register(&mut self, poll: &Registry, token: Token, what: Interest) -> io::Result<()> {
        self.source().register(poll, token, what)
    }

    pub(crate) fn reregister(&mut self, poll: &Registry, token: Token, what: Interest) -> io::Result<()> {
        self.source().reregister(poll, token, what)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

/// A listening socket. The name of a Unix one goes when it is dropped, if it was made here.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixListener, Option<PathBuf>),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens on a Unix socket in place of whatever has that name; owner and group may connect, as far as the umask lets them.
    pub(crate) fn unix(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The name gets the mode of the socket, less the umask. (The umask itself is the process's: other threads create files.)
        rustix::fs::fchmod(&socket, Mode::RWXU | Mode::RWXG)?;
        let name = ShortName::of(path)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(&name.path)?)?;
        rustix::net::listen(&socket, BACKLOG)?;
        let listener = std::os::unix::net::UnixListener::from(socket);
        Ok(Self::Unix(UnixListener::from_std(listener), Some(path.to_owned())))
    }

    /// A socket that listens already, which this process has inherited under this number. Its name is somebody else's.
    pub(crate) fn inherited(number: u32) -> io::Result<Self> {
        let number = i32::try_from(number).map_err(|_| io::Error::from(Errno::BADF))?;
        let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
        let socket = rustix::process::pidfd_getfd(own, number, PidfdGetfdFlags::empty())?;
        if rustix::net::sockopt::socket_type(&socket)? != SocketType::STREAM
            || !rustix::net::sockopt::socket_acceptconn(&socket)?
        {
            return Err(Errno::INVAL.into());
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        match rustix::net::sockopt::socket_domain(&socket)? {
            AddressFamily::UNIX => {
                let listener = std::os::unix::net::UnixListener::from(socket);
                Ok(Self::Unix(UnixListener::from_std(listener), None))
            }
            AddressFamily::INET | AddressFamily::INET6 => {
                Ok(Self::Tcp(TcpListener::from_std(std::net::TcpListener::from(socket))))
            }
            _ => Err(Errno::AFNOSUPPORT.into()),
        }
    }

    pub(crate) fn tcp(address: SocketAddr, dscp: u8) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        mark(&listener, dscp);
        bound_unsent(&listener);
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(Self::Tcp(listener))
    }

    /// Marks what connections that come from now on send; Unix sockets have no use for it.
    pub(crate) fn set_dscp(&self, dscp: u8) {
        if let Self::Tcp(listener) = self {
            mark(listener, dscp);
        }
    }

    /// The port that the system chose, of a TCP socket.
    pub(crate) fn port(&self) -> Option<u16> {
        match self {
            Self::Unix(..) => None,
            Self::Tcp(listener) => listener.local_addr().ok().map(|address| address.port()),
        }
    }

    /// The next connection, and the address of its peer where it has one.
    pub(crate) fn accept(&self) -> io::Result<(Stream, Option<SocketAddr>)> {
        match self {
            Self::Unix(listener, _) => listener.accept().map(|(stream, _)| (Stream::Unix(stream), None)),
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept()?;
                let _ = stream.set_nodelay(true);
                Ok((Stream::Tcp(stream), Some(address)))
            }
        }
    }

    pub(crate) fn register(&mut self, poll: &Registry, token: Token) -> io::Result<()> {
        match self {
            Self::Unix(listener, _) => listener.register(poll, token, Interest::READABLE),
            Self::Tcp(listener) => listener.register(poll, token, Interest::READABLE),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, Some(path)) = self {
            // Somebody may have removed it already.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Has a socket's packets carry a differentiated services code point. It is a wish: a system that refuses it serves all the same.
fn mark(socket: &impl AsFd, dscp: u8) {
    if rustix::net::sockopt::set_ip_tos(socket, dscp << 2).is_err() {
        let _ = rustix::net::sockopt::set_ipv6_tclass(socket, u32::from(dscp) << 2);
    }
}

/// An error as the stock server names it: the system's text alone.
pub(crate) fn text_of(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => ovsdb::error::system_text(number),
        None => error.to_string(),
    }
}
