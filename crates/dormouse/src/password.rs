//! The users in force: the development user, or those with passwords from files.

use crate::config::reader::cause;
use crate::config::{AuthSection, Problem};
use crate::text_file;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Password of the development user, accepted on loopback only.
const DEVELOPMENT_PASSWORD: &str = "password";
/// Longest password.
pub const PASSWORD_BYTES_MAX: usize = 1024;
/// Maximum size of a password file.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Maximum number of users in a file: each takes milliseconds at the start.
const USERS_MAX: usize = 1000;
/// Maximum size of a users file.
const USERS_FILE_BYTES_MAX: u64 = 2 << 20;

/// Where the users come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Nowhere: there is the development user.
    Development,
    /// From the files of the configuration.
    Files,
    /// From the data directory alone: they were created over HTTP, or are going to be.
    Kept,
}

/// The users from the configuration.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The name.
    pub user: String,
    /// The password.
    pub password: String,
    /// Where it comes from; with [`Source::Kept`] there is none.
    pub source: Source,
    /// Further users: names and passwords.
    pub others: Vec<(String, String)>,
}

impl Login {
    /// Returns true if the development user is in force.
    pub fn is_development(&self) -> bool {
        self.source == Source::Development
    }

    /// Returns all users with their passwords.
    pub fn users(&self) -> impl Iterator<Item = (&str, &str)> {
        let first = (self.source != Source::Kept).then_some((self.user.as_str(), self.password.as_str()));
        first.into_iter().chain(self.others.iter().map(|(user, password)| (user.as_str(), password.as_str())))
    }
}

/// Mode bits that let others read the file, or let the group or others write it.
const OTHERS_MODE: u32 = 0o026;

/// Logs a warning if others may read or change a file with passwords. This is not an error: secrets that are mounted
/// into containers are often readable, and no other user exists there.
pub fn warn_of_readers(auth: &AuthSection) {
    for path in [&auth.password_file, &auth.users_file].into_iter().flatten() {
        let Ok(metadata) = fs::metadata(path) else { continue };
        let mode = metadata.permissions().mode() & 0o777;
        if mode & OTHERS_MODE == 0 {
            continue;
        }
        let mode = format!("{mode:04o}");
        tracing::warn!(file = %path.display(), mode, "the password file can be read or changed by others; chmod 600 \
            keeps them out");
    }
}

/// Reads the password file and the users file, if there are any.
pub fn login(auth: &AuthSection) -> Result<Login, Problem> {
    let mut others = users(auth)?;
    let Some(path) = &auth.password_file else {
        if others.is_empty() && auth.has_kept {
            return Ok(Login { user: String::new(), password: String::new(), source: Source::Kept, others });
        }
        if others.is_empty() {
            let (user, password) = (auth.user.clone(), DEVELOPMENT_PASSWORD.into());
            return Ok(Login { user, password, source: Source::Development, others });
        }
        let (user, password) = others.remove(0);
        return Ok(Login { user, password, source: Source::Files, others });
    };
    let refused = |what: String| Problem::new(format!("auth.password_file = {path:?}: {what}"));
    let password = first_line(path).map_err(refused)?;
    others.retain(|(user, _)| *user != auth.user);
    Ok(Login { user: auth.user.clone(), password, source: Source::Files, others })
}

/// The first line of a file, a password; or what is wrong, and what is allowed.
pub fn first_line(path: &Path) -> Result<String, String> {
    let allowed =
        format!("allowed: a file whose first line is a password of 1 to {PASSWORD_BYTES_MAX} bytes");
    let text =
        text_file::read(path, FILE_BYTES_MAX).map_err(|error| format!("{}; {allowed}", cause(&error)))?;
    match text.lines().next().unwrap_or_default() {
        "" => Err(format!("the first line is empty; {allowed}")),
        line if line.len() > PASSWORD_BYTES_MAX => Err(format!("the first line is too long; {allowed}")),
        line => Ok(line.to_owned()),
    }
}

/// Reads the users file. The last line for a name counts.
fn users(auth: &AuthSection) -> Result<Vec<(String, String)>, Problem> {
    let Some(path) = &auth.users_file else { return Ok(Vec::new()) };
    let refused = |what: &str| {
        Problem::new(format!(
            "auth.users_file = {path:?}: {what}; allowed: a file with a line user:password for each of 1 to \
            {USERS_MAX} users"
        ))
    };
    let text = text_file::read(path, USERS_FILE_BYTES_MAX).map_err(|error| refused(&cause(&error)))?;
    let mut users: Vec<(String, String)> = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let (user, password) = match line.split_once(':') {
            Some((user, password))
                if kv::users::is_name(user)
                    && !user.contains(char::is_whitespace)
                    && (1..=PASSWORD_BYTES_MAX).contains(&password.len()) =>
            {
                (user.to_owned(), password.to_owned())
            }
            Some((user, _)) if !kv::users::is_name(user) => {
                return Err(refused(&format!("line {}: a name must have {}", index + 1, kv::users::NAME)));
            }
            _ => return Err(refused(&format!("line {} is not user:password", index + 1))),
        };
        users.retain(|(other, _)| *other != user);
        users.push((user, password));
        if users.len() > USERS_MAX {
            return Err(refused("there are too many users in it"));
        }
    }
    if users.is_empty() { Err(refused("there is no user in it")) } else { Ok(users) }
}
