//! Listening sockets.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use mio::event::Source;
use mio::net::{TcpListener, UnixListener};
use rustix::fd::OwnedFd;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{PidfdFlags, PidfdGetfdFlags};
use socket2::SockRef;

use crate::stream::{Stream, mark};
use crate::unix::{ShortName, SocketFile, remove_stale};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Unsent bytes of one connection at which the kernel accepts no more, besides what is in flight to the peer. Without a
/// limit it keeps up to 4 MB for a peer that does not read.
const UNSENT_BYTES: u32 = 128 << 10;

/// Where a socket listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A name in the file system.
    Unix(PathBuf),
}

/// A socket that is bound and listening. The name of a Unix socket is removed on drop, if it was created here.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Address,
    _file: Option<SocketFile>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Listens on an address of this machine. Port 0 selects a free one.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        Self::of_tcp(TcpListener::bind(address)?)
    }

    fn of_tcp(socket: TcpListener) -> io::Result<Self> {
        // Best effort: the memory is the kernel's, not this process's.
        let _ = SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT_BYTES);
        // It listens already, with a shorter queue; listening again lengthens it.
        rustix::net::listen(&socket, BACKLOG)?;
        let address = Address::Tcp(socket.local_addr()?);
        Ok(Self { socket: Socket::Tcp(socket), address, _file: None })
    }

    /// Listens under a name in the file system with exactly this mode. A socket left there by a killed process is
    /// replaced; one that is still in use is an error.
    pub fn unix(path: &Path, mode: u32) -> io::Result<Self> {
        remove_stale(path)?;
        let listener = Self::unix_of_mode(path, Mode::from_raw_mode(mode))?;
        // The umask may have removed permissions.
        if fs::symlink_metadata(path)?.mode() & 0o777 != mode {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
        Ok(listener)
    }

    /// Listens under a name in the file system, replacing whatever has that name. Owner and group may connect, as far
    /// as the umask permits.
    pub fn unix_in_place_of(path: &Path) -> io::Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Self::unix_of_mode(path, Mode::RWXU | Mode::RWXG)
    }

    fn unix_of_mode(path: &Path, mode: Mode) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The name gets the mode of the socket, less the umask. (The umask itself is process-wide: other threads create
        // files.)
        rustix::fs::fchmod(&socket, mode)?;
        let name = ShortName::of(path)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(&name.path)?)?;
        let file = SocketFile::of(path)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(Self {
            socket: Socket::Unix(unix_of(socket)),
            address: Address::Unix(file.path().to_owned()),
            _file: Some(file),
        })
    }

    /// Takes over a listening socket that this process has inherited under this descriptor number. Its name belongs to
    /// another process.
    pub fn inherited(number: u32) -> io::Result<Self> {
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
                let socket = unix_of(socket);
                let name = socket.local_addr()?.as_pathname().map(Path::to_owned).unwrap_or_default();
                Ok(Self { socket: Socket::Unix(socket), address: Address::Unix(name), _file: None })
            }
            AddressFamily::INET | AddressFamily::INET6 => {
                let socket = TcpListener::from_std(std::net::TcpListener::from(socket));
                let address = Address::Tcp(socket.local_addr()?);
                Ok(Self { socket: Socket::Tcp(socket), address, _file: None })
            }
            _ => Err(Errno::AFNOSUPPORT.into()),
        }
    }

    /// Where it listens: the requested address with the port that the system chose, or the absolute name.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Its address, if it is a TCP socket.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match self.address {
            Address::Tcp(address) => Some(address),
            Address::Unix(_) => None,
        }
    }

    /// Sets the differentiated services code point for packets of future connections. It has no effect on Unix sockets.
    pub fn set_dscp(&self, dscp: u8) {
        if let Socket::Tcp(socket) = &self.socket {
            mark(socket, dscp);
        }
    }

    /// Accepts the next connection. Also returns the address of its peer if there is one.
    pub fn accept(&self) -> io::Result<(Stream, Option<SocketAddr>)> {
        match &self.socket {
            Socket::Unix(socket) => socket.accept().map(|(stream, _)| (Stream::of_unix(stream), None)),
            Socket::Tcp(socket) => {
                socket.accept().map(|(stream, address)| (Stream::of_tcp(stream), Some(address)))
            }
        }
    }

    fn source(&mut self) -> &mut dyn Source {
        match &mut self.socket {
            Socket::Tcp(socket) => socket,
            Socket::Unix(socket) => socket,
        }
    }
}

fn unix_of(socket: OwnedFd) -> UnixListener {
    UnixListener::from_std(std::os::unix::net::UnixListener::from(socket))
}

crate::source::delegate!(Listener);

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
        }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
