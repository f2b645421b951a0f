//! `_Server`: the database that describes the databases of a server.

use super::databases::SERVER_DATABASE;
use super::{DatabaseId, Log, Now, Server};
use crate::database::{Database, Options};
use crate::error::Error;
use crate::schema::DatabaseSchema;
use crate::transaction::{self, Context, Outcome};
use wire::json::{self, write};

/// The stock server's schema.
const SCHEMA: &str = r#"{"name":"_Server","version":"1.2.0","cksum":"3009684573 744","tables":{"Database":{"columns":{
    "name":{"type":"string"},
    "model":{"type":{"key":{"type":"string","enum":["set",["standalone","clustered","relay"]]}}},
    "connected":{"type":"boolean"},
    "leader":{"type":"boolean"},
    "schema":{"type":{"key":{"type":"string"},"min":0,"max":1}},
    "cid":{"type":{"key":{"type":"uuid"},"min":0,"max":1}},
    "sid":{"type":{"key":{"type":"uuid"},"min":0,"max":1}},
    "index":{"type":{"key":{"type":"integer"},"min":0,"max":1}}}}}}"#;

impl<L: Log> Server<L> {
    pub(super) fn start_server_database(&mut self) -> Result<(), Error> {
        let schema = json::validate(SCHEMA.as_bytes())
            .map_err(|error| Error::internal(error.to_string()))
            .and_then(DatabaseSchema::parse)?;
        let options = Options { budget_bytes: u64::MAX, seed: self.random_seed() };
        let id = self.databases.insert(Database::new(schema, options)?, None);
        self.announce_database(id, Now::default())
    }

    /// A number for purposes that need one that cannot be guessed.
    pub(super) fn random_seed(&mut self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = (self.random)().0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// Adds the row of a database.
    pub(super) fn announce_database(&mut self, id: DatabaseId, now: Now) -> Result<(), Error> {
        let Some(hosted) = self.databases.get(id) else { return Ok(()) };
        let mut text = b"[{\"op\":\"insert\",\"table\":\"Database\",\"row\":{\"name\":".to_vec();
        write::string(&mut text, hosted.database.name());
        text.extend_from_slice(b",\"model\":\"standalone\",\"connected\":true,\"leader\":true,\"schema\":");
        write_schema(&mut text, hosted.database.schema());
        text.extend_from_slice(b"}}]");
        self.change_server_database(&text, now)
    }

    /// Removes the row of a database.
    pub(super) fn renounce_database(&mut self, name: &str, now: Now) {
        let mut text = b"[{\"op\":\"delete\",\"table\":\"Database\",\"where\":[[\"name\",\"==\",".to_vec();
        write::string(&mut text, name);
        text.extend_from_slice(b"]]}]");
        let changed = self.change_server_database(&text, now);
        debug_assert!(changed.is_ok(), "{changed:?}");
    }

    /// Updates the row of a database whose schema has changed.
    pub(super) fn announce_schema(&mut self, id: DatabaseId, now: Now) -> Result<(), Error> {
        let Some(hosted) = self.databases.get(id) else { return Ok(()) };
        let mut text = b"[{\"op\":\"update\",\"table\":\"Database\",\"where\":[[\"name\",\"==\",".to_vec();
        write::string(&mut text, hosted.database.name());
        text.extend_from_slice(b"]],\"row\":{\"schema\":");
        write_schema(&mut text, hosted.database.schema());
        text.extend_from_slice(b"}}]");
        self.change_server_database(&text, now)
    }

    fn change_server_database(&mut self, operations: &[u8], now: Now) -> Result<(), Error> {
        let operations: Vec<_> = json::Value::of_checked(operations).elements().collect();
        let Some(id) = self.databases.find(SERVER_DATABASE) else { return Ok(()) };
        let Some(hosted) = self.databases.get_mut(id) else { return Ok(()) };
        let context = Context { internal: true, ..Context::own() };
        let mut reply = Vec::new();
        let outcome =
            transaction::execute(&mut hosted.database, &operations, &context, &mut *self.random, &mut reply);
        match outcome {
            Outcome::Finished { committed: Some(commit), .. } => {
                self.committed(id, commit, now);
                Ok(())
            }
            _ => Err(Error::internal(String::from_utf8_lossy(&reply).into_owned())),
        }
    }
}

/// The schema as a JSON string of its text.
fn write_schema(out: &mut Vec<u8>, schema: &DatabaseSchema) {
    let mut text = Vec::new();
    schema.write_json(&mut text);
    write::string_bytes(out, &text);
}
