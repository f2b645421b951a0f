//! Records that do not fit the reader's buffer: their rows are applied as they come.

use super::{Failure, Replay, no_such_row, replay_error, violates};
use crate::database::{Database, ReplayError, ReplayedRow};
use crate::error::Error;
use crate::file::plain::{self, Plain};
use crate::file::reader::{Reader, Record};
use crate::schema::TableId;
use crate::uuid::Uuid;
use journal::File;
use wire::json::{Kind, Value};

/// Longest row of plain notation that is parsed in place.
const PLAIN_ROW_BYTES: usize = 4096;
/// Rows of plain notation that are parsed before they are applied, while their places in the table are loaded.
const BATCH_ROWS: usize = 64;
/// After this many rows, notes on rows that need no check are dropped: history does not keep such a record.
const SLICE_ROWS: usize = 1 << 15;

/// A parsed row: the end of its cells, and of its text in the reader's window.
pub(super) struct Streamed {
    uuid: Uuid,
    cells_end: usize,
    text_end: usize,
}

impl Replay {
    pub(super) fn apply_large<F: File>(
        &mut self,
        reader: &mut Reader<F>,
        record: &Record,
        database: &mut Database,
    ) -> Result<(), Failure> {
        reader.verify(record).map_err(Failure::Damaged)?;
        database.begin_replayed_commit();
        (self.in_slice, self.noted) = (0, 0);
        match self.stream(reader, record, database) {
            Ok(comment) => {
                database.settle_replayed_commit().map_err(|error| match error {
                    ReplayError::Violation(error) => Failure::Halfway(violates(&error)),
                    error => Failure::Fatal(error.into()),
                })?;
                // What is at the end (white space, or more) shows only at the reader's position.
                reader.seek(record.end());
                self.count(record, comment.as_deref());
                self.end_commit(database, false);
                Ok(())
            }
            Err(failure) => {
                // Text that is not JSON is damage; other errors are in the failure.
                reader.check_syntax(record).map_err(Failure::DamagedHalfway)?;
                Err(failure)
            }
        }
    }

    /// Applies a large record row by row. Returns its comment.
    fn stream<F: File>(
        &mut self,
        reader: &mut Reader<F>,
        record: &Record,
        database: &mut Database,
    ) -> Result<Option<String>, Failure> {
        let mut comment = None;
        let mut is_diff = None;
        let mut seen = Vec::new();
        let mut members = Members::enter(reader)?;
        while let Some(name) = members.next(reader)? {
            if let Some((table, _)) = self.schema.find_table(&name) {
                // Of members with the same name the last counts; nobody writes those, so they are rejected.
                if seen.contains(&table) {
                    let error = Error::syntax_error_anywhere("duplicate table in a large record");
                    return Err(Failure::senseless(&error));
                }
                seen.push(table);
                self.stream_table(reader, record, table, &mut is_diff, database)?;
                continue;
            }
            let value = take_value(reader)?;
            let member = Value::of_checked(&value);
            match (name.as_str(), member.kind()) {
                ("_date", Kind::Integer) => {}
                ("_comment", Kind::String) => comment = member.as_string().map(std::borrow::Cow::into_owned),
                ("_is_diff", Kind::Boolean) => is_diff = Some(member.as_boolean() == Some(true)),
                _ => {
                    let details = format!("No table named {name}.");
                    return Err(Failure::senseless(&Error::new("unknown table", details)));
                }
            }
        }
        Ok(comment)
    }

    fn stream_table<F: File>(
        &mut self,
        reader: &mut Reader<F>,
        record: &Record,
        table: TableId,
        is_diff: &mut Option<bool>,
        database: &mut Database,
    ) -> Result<(), Failure> {
        let mut members = Members::enter(reader)?;
        loop {
            if self.stream_plain_rows(reader, &mut members, table, database)? {
                continue;
            }
            let Some(name) = members.next(reader)? else { break };
            let uuid = Uuid::parse(&name).ok_or_else(|| {
                let details = format!("\"{name}\" is not a valid UUID");
                Failure::senseless(&Error::syntax_error_anywhere(details))
            })?;
            let known = database.row_by_uuid(table, &uuid).is_some();
            if known && is_diff.is_none() {
                *is_diff = Some(find_is_diff(reader, record)?);
            }
            self.cells.clear();
            let text = reader.value().map_err(Failure::Fatal)?.ok_or_else(malformed)?;
            let row = Value::of_checked(text);
            let replayed = if row.is_null() {
                if !known {
                    return Err(Failure::senseless(&no_such_row(&uuid)));
                }
                ReplayedRow::Delete
            } else {
                self.build(table, &uuid, row, *is_diff == Some(true), database)
                    .map_err(|error| Failure::senseless(&error))?;
                ReplayedRow::Cells(&self.cells)
            };
            database
                .apply_replayed(table, &uuid, replayed)
                .map_err(|error| Failure::Fatal(replay_error(error, &uuid)))?;
        }
        Ok(())
    }

    /// Applies the next rows as long as they are new and in plain notation. Returns whether there was one.
    fn stream_plain_rows<F: File>(
        &mut self,
        reader: &mut Reader<F>,
        members: &mut Members,
        id: TableId,
        database: &mut Database,
    ) -> Result<bool, Failure> {
        let Self { schema, differences, orders, scanner, parts, cells, streamed, .. } = self;
        let window = reader.window(PLAIN_ROW_BYTES).map_err(Failure::Fatal)?;
        cells.clear();
        streamed.clear();
        let (table, differences, order) =
            (schema.table(id), &differences[id.index()], &mut orders[id.index()]);
        let mut next = |here: usize, is_first: bool| -> Option<Streamed> {
            let mut text = Plain::new(window.get(here..)?, scanner);
            if !is_first {
                text.take_byte(b',')?;
            }
            let uuid = text.uuid_name()?;
            database.prefetch_row(id, &uuid);
            order.new_row(&mut text, table, differences, parts, cells)?;
            Some(Streamed { uuid, cells_end: cells.len(), text_end: window.len() - text.length() })
        };
        while streamed.len() < BATCH_ROWS {
            let here = streamed.last().map_or(0, |row| row.text_end);
            match next(here, members.first && streamed.is_empty()) {
                Some(row) => streamed.push(row),
                None => {
                    // It may be within an array.
                    *scanner = plain::scanner();
                    break;
                }
            }
        }
        let (mut start, mut taken) = (0, 0);
        for Streamed { uuid, cells_end, text_end } in streamed.iter() {
            let row = cells.get(start..*cells_end).unwrap_or_default();
            let is_new = database.insert_replayed(id, uuid, row);
            if !is_new.map_err(|error| Failure::Fatal(replay_error(error, uuid)))? {
                break;
            }
            (start, taken) = (*cells_end, *text_end);
            self.in_slice += 1;
        }
        if taken == 0 {
            return Ok(false);
        }
        reader.advance(taken);
        members.first = false;
        if self.in_slice >= SLICE_ROWS {
            self.in_slice = 0;
            self.noted = database.forget_replayed(self.noted);
        }
        self.foresee(reader, database);
        Ok(true)
    }
}

/// Handles an `_is_diff` that follows the first table it concerns: looks ahead, and returns.
fn find_is_diff<F: File>(reader: &mut Reader<F>, record: &Record) -> Result<bool, Failure> {
    let here = reader.position();
    reader.seek(record.body);
    let mut found = false;
    let mut members = Members::enter(reader)?;
    while let Some(name) = members.next(reader)? {
        if reader.token().map_err(Failure::Fatal)? == b'{' {
            let mut rows = Members::enter(reader)?;
            while rows.next(reader)?.is_some() {
                reader.value().map_err(Failure::Fatal)?.ok_or_else(malformed)?;
            }
        } else {
            let value = take_value(reader)?;
            found =
                if name == "_is_diff" { Value::of_checked(&value).as_boolean() == Some(true) } else { found };
        }
    }
    reader.seek(here);
    Ok(found)
}

/// Walks over the members of an object in the reader.
struct Members {
    first: bool,
}

impl Members {
    fn enter<F: File>(reader: &mut Reader<F>) -> Result<Self, Failure> {
        if reader.token().map_err(Failure::Fatal)? != b'{' {
            return Err(Failure::senseless(&Error::syntax_error_anywhere("object expected")));
        }
        reader.pass();
        Ok(Self { first: true })
    }

    /// The next member's name; the reader is then at its value.
    fn next<F: File>(&mut self, reader: &mut Reader<F>) -> Result<Option<String>, Failure> {
        match reader.token().map_err(Failure::Fatal)? {
            b'}' => {
                reader.pass();
                return Ok(None);
            }
            b',' if !self.first => reader.pass(),
            _ if self.first => {}
            _ => return Err(malformed()),
        }
        self.first = false;
        if reader.token().map_err(Failure::Fatal)? != b'"' {
            return Err(malformed());
        }
        let name = {
            let text = reader.value().map_err(Failure::Fatal)?.ok_or_else(malformed)?;
            Value::of_checked(text).as_string().ok_or_else(malformed)?.into_owned()
        };
        if reader.token().map_err(Failure::Fatal)? != b':' {
            return Err(malformed());
        }
        reader.pass();
        // Skips white space before the value.
        reader.token().map_err(Failure::Fatal)?;
        Ok(Some(name))
    }
}

fn take_value<F: File>(reader: &mut Reader<F>) -> Result<Vec<u8>, Failure> {
    Ok(reader.value().map_err(Failure::Fatal)?.ok_or_else(malformed)?.to_vec())
}

#[cold]
fn malformed() -> Failure {
    Failure::senseless(&Error::syntax_error_anywhere("malformed record"))
}
