//! Where to listen: `IP:PORT`, `localhost:PORT`, `:PORT` or `unix:PATH[,MODE]`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The allowed forms, for messages and help.
pub const FORMS: &str = "IP:PORT such as \"127.0.0.1:11211\" or \"[::1]:0\" (port 0: any free port), \
\"localhost:PORT\", \":PORT\", \
                         \"unix:PATH\" or \"unix:PATH,MODE\" (octal, 700 if left out), or \"none\"";

/// Longest path of a socket: the kernel's `sun_path` without the terminating NUL.
const PATH_BYTES_MAX: usize = 107;
/// Default mode of a socket's file, as in memcached.
const MODE: u32 = 0o700;

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// One TCP address.
    Tcp(SocketAddr),
    /// The loopback addresses of both families.
    Localhost(u16),
    /// All addresses of the machine; without a configured password, those of [`Self::Localhost`].
    All(u16),
    /// A Unix-domain socket.
    Unix {
        /// The path of the socket.
        path: PathBuf,
        /// File mode that decides who may connect, as in `chmod`.
        mode: u32,
    },
}

impl Address {
    /// Parses an address.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix("unix:") {
            let (path, mode) = rest.split_once(',').map_or((rest, None), |(path, mode)| (path, Some(mode)));
            let mode = mode.map_or(Some(MODE), mode_of)?;
            let is_possible =
                (1..=PATH_BYTES_MAX).contains(&path.len()) && !path.ends_with('/') && !path.contains('\0');
            return is_possible.then(|| Self::Unix { path: path.into(), mode });
        }
        if let Some(port) = text.strip_prefix("localhost:") {
            return port_of(port).map(Self::Localhost);
        }
        match text.strip_prefix(':') {
            Some(port) => port_of(port).map(Self::All),
            None => text.parse().map(Self::Tcp).ok(),
        }
    }

    /// Returns true if only this machine can connect while the development user is in force.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Localhost(_) | Self::All(_) | Self::Unix { .. } => true,
        }
    }

    /// Returns true if the node cannot listen on both addresses.
    pub fn collides(&self, other: &Self) -> bool {
        let port = |address: &Self| match address {
            Self::Tcp(address) => Some(address.port()),
            Self::Localhost(port) | Self::All(port) => Some(*port),
            Self::Unix { .. } => None,
        };
        match (self, other) {
            (Self::Unix { path, .. }, Self::Unix { path: other, .. }) => path == other,
            _ => port(self) != Some(0) && self == other,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(formatter),
            Self::Localhost(port) => write!(formatter, "localhost:{port}"),
            Self::All(port) => write!(formatter, ":{port}"),
            Self::Unix { path, mode: MODE } => write!(formatter, "unix:{}", path.display()),
            Self::Unix { path, mode } => write!(formatter, "unix:{},{mode:o}", path.display()),
        }
    }
}

/// Splits a command-line value into an address and a bucket: `unix:PATH,MODE,BUCKET`, `unix:PATH,BUCKET`,
/// `IP:PORT,BUCKET`, and each with `=BUCKET`.
pub fn split_bucket(value: &str) -> (&str, Option<&str>) {
    // No bucket name contains a slash or an equals sign, so the last equals sign counts and one within a path does not.
    if let Some((address, bucket)) = value.rsplit_once('=')
        && !bucket.contains('/')
    {
        return (address, Some(bucket));
    }
    let after_path = if value.starts_with("unix:") { value.find(',') } else { None };
    let skip = after_path.map_or(0, |comma| {
        let mode = value.get(comma + 1..).unwrap_or_default().split(',').next().unwrap_or_default();
        if mode_of(mode).is_some() { comma + 1 + mode.len() } else { comma }
    });
    match value.get(skip..).and_then(|rest| rest.find(',')).map(|comma| skip + comma) {
        Some(comma) => (value.get(..comma).unwrap_or(value), value.get(comma + 1..)),
        None => (value, None),
    }
}

fn port_of(text: &str) -> Option<u16> {
    text.parse().ok().filter(|_| text.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Three octal digits, optionally with a leading zero.
fn mode_of(text: &str) -> Option<u32> {
    let digits = text.strip_prefix('0').unwrap_or(text);
    (digits.len() == 3 && digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit)))
        .then(|| u32::from_str_radix(digits, 8).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, shown) in [
            ("127.0.0.1:11211", "127.0.0.1:11211"),
            ("[::1]:0", "[::1]:0"),
            ("localhost:11211", "localhost:11211"),
            (":11211", ":11211"),
            ("unix:/run/a.sock", "unix:/run/a.sock"),
            ("unix:/run/a.sock,0700", "unix:/run/a.sock"),
            ("unix:a,660", "unix:a,660"),
        ] {
            assert_eq!(
                Address::parse(text).map(|address| address.to_string()).as_deref(),
                Some(shown),
                "{text}"
            );
        }
        let long = format!("unix:/{}", "a".repeat(PATH_BYTES_MAX));
        let wrong = [
            "",
            "localhost",
            "localhost:",
            "localhost:+1",
            ":65536",
            "::1",
            "host:1",
            "unix:",
            "unix:/",
            long.as_str(),
        ];
        for text in wrong.into_iter().chain(["unix:/a,", "unix:/a,888", "unix:/a,7", "unix:/a,660,660"]) {
            assert_eq!(Address::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_bucket_stands_apart_from_the_mode() {
        for (value, address, bucket) in [
            ("127.0.0.1:1", "127.0.0.1:1", None),
            ("127.0.0.1:1,b", "127.0.0.1:1", Some("b")),
            (":1=b", ":1", Some("b")),
            ("unix:/a", "unix:/a", None),
            ("unix:/a,660", "unix:/a,660", None),
            ("unix:/a,b", "unix:/a", Some("b")),
            ("unix:/a,660,b", "unix:/a,660", Some("b")),
            ("unix:/a,660=b", "unix:/a,660", Some("b")),
            ("unix:/a=1/b", "unix:/a=1/b", None),
            ("unix:/a=1/b=c", "unix:/a=1/b", Some("c")),
        ] {
            assert_eq!(split_bucket(value), (address, bucket), "{value}");
        }
    }

    #[test]
    fn the_same_twice_collides() {
        let address = |text| Address::parse(text).expect("an address");
        assert!(address("unix:/a").collides(&address("unix:/a,660")));
        assert!(address("localhost:1").collides(&address("localhost:1")));
        assert!(!address("localhost:0").collides(&address("localhost:0")));
        assert!(!address("127.0.0.1:1").collides(&address("127.0.0.1:2")));
    }
}
