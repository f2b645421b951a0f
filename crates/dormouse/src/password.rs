//! The user in force: the development user, or one with a password from a file.

use crate::config::reader::cause;
use crate::config::{AuthSection, Problem};
use crate::text_file;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

/// Password of the development user, accepted on loopback only.
const DEVELOPMENT_PASSWORD: &str = "password";
/// Longest password.
const PASSWORD_BYTES_MAX: usize = 1024;
/// Longest file with a password.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// A user as the configuration gives it.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The name.
    pub user: String,
    /// The password.
    pub password: String,
    /// Whether this is the development user.
    pub development: bool,
}

/// Mode bits that let others read the file, or let the group or others change it.
const OTHERS_MODE: u32 = 0o026;

/// Logs a warning if others may read or change the password file. It is no error: secrets that are mounted into containers are
/// often readable, and nobody else is there.
pub fn warn_of_readers(auth: &AuthSection) {
    let Some(path) = &auth.password_file else { return };
    let Ok(metadata) = fs::metadata(path) else { return };
    let mode = metadata.permissions().mode() & 0o777;
    if mode & OTHERS_MODE != 0 {
        let mode = format!("{mode:04o}");
        tracing::warn!(file = %path.display(), mode, "the password file can be read or changed by others; chmod 600 keeps them out");
    }
}

/// Reads the password file, if there is one.
pub fn login(auth: &AuthSection) -> Result<Login, Problem> {
    let Some(path) = &auth.password_file else {
        return Ok(Login {
            user: auth.user.clone(),
            password: DEVELOPMENT_PASSWORD.into(),
            development: true,
        });
    };
    let refused = |what: &str| {
        Problem::new(format!(
            "auth.password_file = {path:?}: {what}; allowed: a file whose first line is a password of 1 to {PASSWORD_BYTES_MAX} bytes"
        ))
    };
    let text = text_file::read(path, FILE_BYTES_MAX).map_err(|error| refused(&cause(&error)))?;
    match text.lines().next() {
        Some(line) if (1..=PASSWORD_BYTES_MAX).contains(&line.len()) => {
            Ok(Login { user: auth.user.clone(), password: line.to_owned(), development: false })
        }
        Some(line) if line.len() > PASSWORD_BYTES_MAX => Err(refused("the first line is too long")),
        _ => Err(refused("the first line is empty")),
    }
}
