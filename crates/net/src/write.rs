//! Writing to sockets that do not block.

use std::io::{self, IoSlice, Write};

use arrayvec::ArrayVec;

/// Maximum number of slices in one write.
const SLICES_MAX: usize = 64;

/// What one write did.
pub(crate) struct Written {
    /// Bytes the socket took.
    pub(crate) taken: usize,
    /// Bytes it was offered; if it took less, it is full.
    pub(crate) offered: usize,
}

/// Writes bytes in one call; returns how many the socket took.
#[inline]
pub(crate) fn write_bytes(socket: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
    attempt(bytes.len(), || socket.write(bytes))
}

/// Writes as many of the slices as one call takes, and at most `bytes_max` bytes of them.
pub(crate) fn write_slices<'a>(
    socket: &mut impl Write,
    slices: impl Iterator<Item = &'a [u8]>,
    bytes_max: usize,
) -> io::Result<Written> {
    let mut offered = 0;
    let slices: ArrayVec<IoSlice<'_>, SLICES_MAX> = slices
        .take(SLICES_MAX)
        .map_while(|bytes| {
            let bytes = bytes.get(..bytes_max - offered).unwrap_or(bytes);
            offered += bytes.len();
            (!bytes.is_empty()).then(|| IoSlice::new(bytes))
        })
        .collect();
    let taken = attempt(offered, || socket.write_vectored(&slices))?;
    Ok(Written { taken, offered })
}

/// One write, which takes nothing if the socket is full.
fn attempt(offered: usize, mut write: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match write() {
            Ok(0) if offered > 0 => return Err(io::ErrorKind::WriteZero.into()),
            Ok(taken) => return Ok(taken),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
