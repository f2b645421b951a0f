//! A remote as the stock server writes it: where to listen, where to connect, or where in a database that is stated.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The default port.
pub const PORT: u16 = 6640;

/// A parsed remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remote {
    /// `punix:FILE`
    ListenUnix(PathBuf),
    /// `ptcp:[PORT][:HOST]`, `pssl:[PORT][:HOST]`
    ListenTcp(Endpoint, Security),
    /// `pfd:NUMBER`: a listening socket that the process has inherited under this number.
    ListenInherited(u32),
    /// `unix:FILE`
    ConnectUnix(PathBuf),
    /// `tcp:HOST[:PORT]`, `ssl:HOST[:PORT]`
    ConnectTcp(Endpoint, Security),
    /// `db:DATABASE,TABLE,COLUMN`
    Database(DatabaseRemote),
    /// A remote that is not served: the reason as a log line's module and text, and the system's error for it.
    Unusable {
        /// The module of the stock server's log line.
        module: &'static str,
        /// Its text; empty where the stock server logs nothing.
        text: String,
        /// Whether it would listen.
        listens: bool,
        /// The error that an attempt returns.
        error: &'static str,
    },
}

/// The protocol spoken over TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// JSON-RPC.
    Plain,
    /// JSON-RPC within TLS.
    Tls,
}

/// The address of a TCP socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A complete address.
    Address(SocketAddr),
    /// A host name, which must be resolved first, and a port.
    Host(String, u16),
}

impl Endpoint {
    /// The host: a name, or an address.
    pub fn host(&self) -> String {
        match self {
            Self::Address(address) => address.ip().to_string(),
            Self::Host(host, _) => host.clone(),
        }
    }
}

/// `db:DATABASE,TABLE,COLUMN`: the column contains remotes, or refers to rows that do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DatabaseRemote {
    /// The database's name.
    pub database: String,
    /// The table's name.
    pub table: String,
    /// The column's name.
    pub column: String,
}

/// The error of an attempt to connect to, or listen on, something that is not an address.
pub(super) const NO_FAMILY: &str = "Address family not supported by protocol";

impl Remote {
    /// Parses `text`; relative file names are below `run_directory`. Never fails: a remote that cannot be served
    /// reports that when it is opened, as with the stock server.
    pub fn parse(text: &str, run_directory: &Path) -> Self {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match kind {
            "punix" => Self::ListenUnix(run_directory.join(rest)),
            "pfd" => match rest.parse() {
                Ok(number) => Self::ListenInherited(number),
                Err(_) => {
                    let text = format!("{text}: not the number of an open file");
                    unusable("stream_unix", text, true, "Invalid argument")
                }
            },
            "unix" => Self::ConnectUnix(run_directory.join(rest)),
            "ptcp" | "pssl" => match listening(rest) {
                Ok(address) => Self::ListenTcp(address, security(kind)),
                Err((module, text)) => unusable(module, text, true, NO_FAMILY),
            },
            "tcp" | "ssl" => match connecting(rest) {
                Ok(address) => Self::ConnectTcp(address, security(kind)),
                Err((module, text)) => unusable(module, text, false, NO_FAMILY),
            },
            "db" => match DatabaseRemote::parse(rest) {
                Some(remote) => Self::Database(remote),
                None => unusable("ovsdb_server", format!("\"{text}\": invalid syntax"), false, NO_FAMILY),
            },
            _ => unusable("", String::new(), false, NO_FAMILY),
        }
    }

    /// Returns true if it listens for connections.
    pub fn listens(&self) -> bool {
        match self {
            Self::ListenUnix(_) | Self::ListenTcp(..) | Self::ListenInherited(_) => true,
            Self::Unusable { listens, .. } => *listens,
            _ => false,
        }
    }
}

impl DatabaseRemote {
    /// Parses the part after `db:`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ',').map(str::to_owned);
        let (database, table, column) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self { database, table, column })
    }
}

fn security(kind: &str) -> Security {
    if kind.ends_with("ssl") { Security::Tls } else { Security::Plain }
}

fn unusable(module: &'static str, text: String, listens: bool, error: &'static str) -> Remote {
    Remote::Unusable { module, text, listens, error }
}

type Complaint = (&'static str, String);

fn bad_port(text: &str, port: &str) -> Complaint {
    ("socket_util", format!("{text}: bad port number \"{port}\""))
}

fn port(text: &str, port: &str) -> Result<u16, Complaint> {
    port.parse().map_err(|_| bad_port(text, port))
}

fn at(host: &str, port: u16) -> Endpoint {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    // COMPAT: an address may have a zone (fe80::1%eth0), which the resolver understands.
    match bare.parse() {
        Ok(address) => Endpoint::Address(SocketAddr::new(address, port)),
        Err(_) => Endpoint::Host(bare.to_owned(), port),
    }
}

/// The two parts around the colon that is not in brackets. More than one such colon is ambiguous.
fn halves(text: &str) -> Result<(&str, Option<&str>), Complaint> {
    let mut is_in_brackets = false;
    let mut colons = text.bytes().enumerate().filter(|(_, byte)| {
        match byte {
            b'[' => is_in_brackets = true,
            b']' => is_in_brackets = false,
            b':' => return !is_in_brackets,
            _ => {}
        }
        false
    });
    match (colons.next(), colons.next()) {
        (None, _) => Ok((text, None)),
        (Some((place, _)), None) => {
            Ok((text.get(..place).unwrap_or_default(), Some(text.get(place + 1..).unwrap_or_default())))
        }
        _ => Err(("socket_util", format!("{text}: port must be specified"))),
    }
}

/// `[PORT][:HOST]`; an IPv6 address in brackets.
fn listening(text: &str) -> Result<Endpoint, Complaint> {
    let (number, host) = halves(text)?;
    let number = if number.is_empty() { PORT } else { port(text, number)? };
    match host.unwrap_or_default() {
        "" => Ok(Endpoint::Address(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), number))),
        host => Ok(at(host, number)),
    }
}

/// `HOST[:PORT]`; an IPv6 address in brackets.
fn connecting(text: &str) -> Result<Endpoint, Complaint> {
    let (host, number) = halves(text)?;
    if host.is_empty() {
        return Err(("socket_util", format!("{text}: host must be specified")));
    }
    let number = match number.unwrap_or_default() {
        "" => PORT,
        number => port(text, number)?,
    };
    Ok(at(host, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Remote {
        Remote::parse(text, Path::new("/run"))
    }

    #[test]
    fn remotes_are_understood() {
        assert_eq!(parse("punix:/a/b"), Remote::ListenUnix("/a/b".into()));
        assert_eq!(parse("unix:b"), Remote::ConnectUnix("/run/b".into()));
        let listen = |text: &str| match parse(text) {
            Remote::ListenTcp(Endpoint::Address(address), Security::Plain) => address.to_string(),
            Remote::ListenTcp(Endpoint::Address(address), Security::Tls) => format!("TLS {address}"),
            Remote::ListenTcp(Endpoint::Host(host, port), Security::Plain) => format!("{host} at {port}"),
            other => format!("{other:?}"),
        };
        assert_eq!(listen("ptcp:"), "0.0.0.0:6640");
        assert_eq!(listen("ptcp"), "0.0.0.0:6640");
        assert_eq!(listen("ptcp:1234"), "0.0.0.0:1234");
        assert_eq!(listen("ptcp:1234:127.0.0.1"), "127.0.0.1:1234");
        assert_eq!(listen("ptcp:0:[::1]"), "[::1]:0");
        assert_eq!(listen("ptcp:0:localhost"), "localhost at 0");
        assert_eq!(listen("pssl:"), "TLS 0.0.0.0:6640");
        let plain = Security::Plain;
        let address = |text: &str| Remote::ConnectTcp(Endpoint::Address(text.parse().unwrap()), plain);
        assert_eq!(parse("tcp:127.0.0.1"), address("127.0.0.1:6640"));
        assert_eq!(parse("tcp:[::1]:5"), address("[::1]:5"));
        assert_eq!(parse("tcp:[::1]"), address("[::1]:6640"));
        let host = |security| Remote::ConnectTcp(Endpoint::Host("a.b".into(), 5), security);
        assert_eq!(parse("tcp:a.b:5"), host(plain));
        assert_eq!(parse("tcp:[a.b]:5"), host(plain));
        assert_eq!(parse("ssl:a.b:5"), host(Security::Tls));
        let Remote::Database(remote) = parse("db:a,b,c") else { panic!("a database remote") };
        assert_eq!((&*remote.database, &*remote.table, &*remote.column), ("a", "b", "c"));
    }

    #[test]
    fn what_cannot_be_served_says_why() {
        let why = |text: &str| match parse(text) {
            Remote::Unusable { module, text, listens, .. } => format!("{module}|{text}|{listens}"),
            other => format!("{other:?}"),
        };
        assert_eq!(why("ptcp:99999"), "socket_util|99999: bad port number \"99999\"|true");
        assert_eq!(why("ptcp:0:::1"), "socket_util|0:::1: port must be specified|true");
        assert_eq!(why("tcp:::1:5"), "socket_util|::1:5: port must be specified|false");
        assert_eq!(why("tcp::5"), "socket_util|:5: host must be specified|false");
        assert_eq!(why("foo:bar"), "||false");
        assert_eq!(parse("pfd:3"), Remote::ListenInherited(3));
        assert_eq!(why("pfd:-1"), "stream_unix|pfd:-1: not the number of an open file|true");
        assert_eq!(why("pssl:x"), "socket_util|x: bad port number \"x\"|true");
    }
}
