//! Files of the data directory about the node as a whole.
//!
//! ```text
//!   DATA/users.json   users and groups that were created over HTTP; readable by the owner only
//!   DATA/node.json    what an operator has said about the node over HTTP: its name, addresses, memory
//! ```
//! Without a data directory both last as long as the process.

use crate::config::Problem;
use crate::config::reader::cause;
use crate::data_dir::write_private;
use crate::text_file;
use journal::sealed;
use kv::profile::Profile;
use kv::users::kept::Kept;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::io;
use std::path::{Path, PathBuf};

const USERS: &str = "users.json";
const NODE: &str = "node.json";
/// Maximum size of either file.
const BYTES_MAX: u64 = 64 << 20;

/// The files.
pub struct NodeStore {
    data: Option<PathBuf>,
}

impl NodeStore {
    /// The files in a data directory.
    pub fn new(data: Option<&Path>) -> Self {
        Self { data: data.map(Path::to_owned) }
    }

    /// Reads the users and groups.
    pub fn users(&self) -> Result<Kept, Problem> {
        self.read(USERS)
    }

    /// Returns true if there is an administrator among them, or if that is not for this process to know: then it will
    /// not serve this directory.
    pub fn has_administrator(&self) -> Result<bool, Problem> {
        let path = self.data.as_ref().map(|data| data.join(USERS));
        let is_denied = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        if path.is_some_and(|path| std::fs::File::open(path).is_err_and(is_denied)) {
            return Ok(true);
        }
        Ok(self.users()?.has_administrator())
    }

    /// Reads what an operator has said.
    pub fn profile(&self) -> Result<Profile, Problem> {
        self.read(NODE)
    }

    /// Writes the users and groups durably.
    pub fn keep_users(&self, kept: &Kept) -> io::Result<()> {
        self.write(USERS, kept)
    }

    /// Writes what an operator has said durably.
    pub fn keep_profile(&self, profile: &Profile) -> io::Result<()> {
        self.write(NODE, profile)
    }

    fn read<T: DeserializeOwned + Default>(&self, name: &str) -> Result<T, Problem> {
        let Some(data) = &self.data else { return Ok(T::default()) };
        let path = data.join(name);
        let refused = |what: &str| {
            let path = path.display();
            Problem::new(format!("{path}: {what}; allowed: the file as the node wrote it, or none"))
        };
        match text_file::read_regular(&path, BYTES_MAX) {
            Ok(text) => {
                sealed::check(&text).map_err(|broken| refused(&broken.to_string()))?;
                serde_json::from_str::<Map<String, Value>>(&text)
                    .and_then(|mut object| {
                        object.remove(sealed::NAME);
                        serde_json::from_value(Value::Object(object))
                    })
                    .map_err(|error| refused(&error.to_string()))
            }
            // The directory may not be there yet, or be refused later.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(T::default())
            }
            Err(error) => Err(refused(&cause(&error))),
        }
    }

    fn write(&self, name: &str, document: &impl Serialize) -> io::Result<()> {
        let Some(data) = &self.data else { return Ok(()) };
        let text = serde_json::to_string_pretty(document)?;
        if text.len() as u64 >= BYTES_MAX {
            return Err(io::Error::other(format!("{name} would be longer than {} MiB", BYTES_MAX >> 20)));
        }
        write_private(&data.join(name), sealed::seal(text).as_bytes())
    }
}
