//! Binds the listeners.

use crate::config::reader::cause;
use crate::config::{Address, Problem};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use transport::Listener;

/// How many kernel-chosen ports are tried until one is free in both families.
const FREE_PORT_TRIES: u32 = 16;

/// Binds the listeners of an address; `key` is the configuration key it comes from. `everywhere` says whether `:PORT`
/// means all addresses.
pub fn bind(key: &str, address: &Address, everywhere: bool) -> Result<Vec<Listener>, Problem> {
    let bound = match address {
        Address::Tcp(address) => Listener::tcp(*address).map(|bound| vec![bound]),
        Address::All(port) if everywhere => all(*port).map(|bound| vec![bound]),
        Address::All(port) | Address::Localhost(port) => localhost(*port),
        Address::Unix { path, mode } => Listener::unix(path, *mode).map(|bound| vec![bound]),
    };
    bound.map_err(|error| {
        let allowed = match address {
            Address::Unix { .. } => "a new name in a directory this process can write",
            _ => "a free address of this machine, or port 0 for any free port",
        };
        Problem::new(format!("{key} = \"{address}\": {}; allowed: {allowed}", cause(&error)))
    })
}

/// One socket for both families, or one for IPv4 if the machine has no IPv6.
fn all(port: u16) -> io::Result<Listener> {
    match Listener::tcp((Ipv6Addr::UNSPECIFIED, port).into()) {
        Err(error) if is_missing(&error) => Listener::tcp((Ipv4Addr::UNSPECIFIED, port).into()),
        result => result,
    }
}

/// The loopback addresses, with the same port: 127.0.0.1, and ::1 if the machine has it.
fn localhost(port: u16) -> io::Result<Vec<Listener>> {
    let mut tries = if port == 0 { FREE_PORT_TRIES } else { 1 };
    loop {
        let first = Listener::tcp((Ipv4Addr::LOCALHOST, port).into())?;
        let Some(address) = first.tcp_address() else { return Ok(vec![first]) };
        match Listener::tcp((Ipv6Addr::LOCALHOST, address.port()).into()) {
            Ok(second) => return Ok(vec![first, second]),
            Err(error) if is_missing(&error) => return Ok(vec![first]),
            // The kernel chose a port that is free in one family only.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries > 1 => tries -= 1,
            Err(error) => return Err(error),
        }
    }
}

/// Returns true if the machine has no such address or address family.
fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}
