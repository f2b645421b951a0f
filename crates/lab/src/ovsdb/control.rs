//! A blocking session for unmeasured work: filling tables, counting rows, and the server's control socket.

use super::script::{NEW_ROW, new_rows};
use super::splitter::Splitter;
use super::template::{DATABASE, FIRST_ID, Template, UuidText};
use crate::random::Random;
use anyhow::{Context, Result, bail, ensure};
use memchr::memmem;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a single answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
/// Rows inserted in one transaction when a table is filled.
const FILL_ROWS: usize = 1000;

/// A session that sends a request and waits for the reply.
pub struct Control {
    stream: UnixStream,
    splitter: Splitter,
    buffer: Vec<u8>,
}

impl Control {
    /// Connects.
    pub fn new(socket: &Path) -> Result<Self> {
        let stream =
            UnixStream::connect(socket).with_context(|| format!("connecting to {}", socket.display()))?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self { stream, splitter: Splitter::new(usize::MAX), buffer: vec![0; 256 * 1024] })
    }

    /// Sends a request and returns the text of its reply.
    pub fn call(&mut self, request: &[u8]) -> Result<Vec<u8>> {
        self.stream.write_all(request).context("sending a request")?;
        let mut reply = None;
        while reply.is_none() {
            let count = self.stream.read(&mut self.buffer).context("waiting for an answer")?;
            ensure!(count > 0, "the server closed the session");
            self.splitter.feed(self.buffer.get(..count).unwrap_or_default(), |message| {
                if !message.is_notification() {
                    reply = Some(message.head.to_vec());
                }
                Ok(())
            })?;
        }
        reply.context("no reply")
    }

    /// Calls a method and returns its result.
    fn result(&mut self, method: &str, params: &Value) -> Result<Value> {
        let request = json!({ "id": FIRST_ID, "method": method, "params": params });
        let mut reply: Value = serde_json::from_slice(&self.call(request.to_string().as_bytes())?)?;
        match reply.get("error") {
            Some(Value::Null) | None => Ok(reply.get_mut("result").map(Value::take).unwrap_or_default()),
            Some(Value::String(error)) => bail!("{method}: {}", error.trim()),
            Some(error) => bail!("{method}: {error}"),
        }
    }

    /// Fills the table of rows; returns the UUIDs of the rows.
    pub fn fill(&mut self, rows: usize, seed: u64) -> Result<Vec<UuidText>> {
        let mut uuids = Vec::with_capacity(rows);
        let mut random = Random::new(seed);
        let full = Template::inserts(FILL_ROWS);
        let mut request = Vec::new();
        while uuids.len() < rows {
            let missing = rows - uuids.len();
            request.clear();
            if missing >= FILL_ROWS {
                full.write_rows(FIRST_ID, &mut random, &mut request);
            } else {
                Template::inserts(missing).write_rows(FIRST_ID, &mut random, &mut request);
            }
            self.insert(&request, missing.min(FILL_ROWS), &mut uuids).context("filling the table")?;
        }
        Ok(uuids)
    }

    /// Sends a transaction of inserts and collects the UUIDs of its rows.
    pub fn insert(&mut self, request: &[u8], rows: usize, uuids: &mut Vec<UuidText>) -> Result<()> {
        let reply = self.call(request)?;
        let before = uuids.len();
        uuids.extend(new_rows(&reply));
        let shown = reply.get(..300).unwrap_or(&reply);
        ensure!(uuids.len() == before + rows, "insert answered by {}", String::from_utf8_lossy(shown));
        Ok(())
    }

    /// Number of rows of a table.
    pub fn count(&mut self, table: &str) -> Result<usize> {
        let request = format!(
            r#"{{"id":{FIRST_ID},"method":"transact","params":["{DATABASE}",{{"op":"select","table":"{table}","where":[],"columns":["_uuid"]}}]}}"#
        );
        let reply = self.call(request.as_bytes())?;
        Ok(memmem::find_iter(&reply, NEW_ROW).count())
    }

    /// One row of a table, by its UUID.
    pub fn row(&mut self, table: &str, uuid: &UuidText) -> Result<Value> {
        let uuid = String::from_utf8_lossy(uuid);
        let operation = json!({ "op": "select", "table": table, "where": [["_uuid", "==", ["uuid", uuid]]] });
        let mut result = self.result("transact", &json!([DATABASE, operation]))?;
        let row = result.pointer_mut("/0/rows/0").map(Value::take);
        row.with_context(|| format!("no row {uuid} in {table}: {result}"))
    }

    /// Deletes every row of a table in one transaction; returns how many there were.
    pub fn delete_all(&mut self, table: &str) -> Result<u64> {
        let operation = json!({ "op": "delete", "table": table, "where": [] });
        let result = self.result("transact", &json!([DATABASE, operation]))?;
        result.pointer("/0/count").and_then(Value::as_u64).with_context(|| format!("deleting: {result}"))
    }

    /// Returns true if the server serves the database.
    pub fn serves(&mut self) -> Result<bool> {
        Ok(self
            .result("list_dbs", &json!([]))?
            .as_array()
            .is_some_and(|names| names.iter().any(|name| name == DATABASE)))
    }
}

/// Runs a command on a server's control socket; returns its output.
pub fn command(socket: &Path, command: &str) -> Result<String> {
    let result = Control::new(socket)?.result(command, &json!([]))?;
    Ok(result.as_str().unwrap_or_default().to_owned())
}

/// The number after a name in lines of the form `name: number`.
pub fn figure(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_their_whole_name() {
        let text = "compactions: 2\ncompaction_longest_hold_us: 1234\n";
        assert_eq!(figure(text, "compaction_longest_hold_us"), Some(1234.0));
        assert_eq!(figure(text, "compaction"), None);
    }
}
