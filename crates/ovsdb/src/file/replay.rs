//! Puts the records of a log into a database.
//!
//! A record that fits the reader's buffer is understood as a whole before anything of it is applied, so one that makes no
//! sense (a table or column that does not exist, a value of the wrong type, a deleted row that was not there) changes
//! nothing; as the stock server does, it is complained about and passed over. A larger one is applied row by row; if
//! it makes no sense, the caller begins again with a new database and passes over that record.

use super::plain::{self, Plain};
use super::reader::{Reader, Record};
use super::transaction_id;
use crate::cell::{self, Checks, no_names};
use crate::column_type::ColumnType;
use crate::database::{Database, ReplayError, ReplayedRow};
use crate::error::Error;
use crate::row::Row;
use crate::schema::{ColumnId, ColumnRef, DatabaseSchema, TableId, TableSchema};
use crate::uuid::Uuid;
use journal::File;
use std::ops::Range;
use std::sync::Arc;
use wire::json::{Kind, Scanner, Value, validate};

/// Why a record was not applied.
pub(super) enum Failure {
    /// It makes no sense; nothing of it was applied.
    Rejected(Error),
    /// It makes no sense, but something of it was applied.
    Halfway(Error),
    /// The log is damaged here: this and what follows is not part of the database.
    Damaged(Error),
    /// As [`Failure::Damaged`], but something of the record was applied.
    DamagedHalfway(Error),
    /// The database cannot be loaded.
    Fatal(Error),
}

/// Columns that a row names: where in `Replay::parsed` their cells are.
type Given = Option<Range<usize>>;

/// What a record does to a row.
struct Staged {
    table: TableId,
    uuid: Uuid,
    /// Where in `Replay::cells` its cells are; none where it is deleted.
    cells: Option<Range<usize>>,
}

/// The work space of a replay.
pub(super) struct Replay {
    schema: Arc<DatabaseSchema>,
    /// For each column that may have several elements: its type with any number of elements.
    differences: Vec<Vec<Option<ColumnType>>>,
    /// Of each table: the columns in the order in which the last row named them.
    orders: Vec<Vec<ColumnId>>,
    scanner: Scanner,
    given: Vec<Given>,
    parsed: Vec<u8>,
    scratch: Vec<u8>,
    cells: Vec<u8>,
    staged: Vec<Staged>,
    /// The id of the last transaction.
    id: Uuid,
    /// Records so far, the schema not counted.
    records: u64,
}

impl Replay {
    /// `id` is that of the empty database.
    pub(super) fn new(schema: Arc<DatabaseSchema>, id: Uuid) -> Self {
        let transient = |table: &TableSchema| {
            table
                .columns()
                .map(|(_, column)| column.kind.is_composite().then(|| column.kind.transient()))
                .collect()
        };
        let differences = schema.tables().map(|(_, table)| transient(table)).collect();
        let orders = vec![Vec::new(); schema.table_count()];
        Self {
            schema,
            differences,
            orders,
            scanner: plain::scanner(),
            given: Vec::new(),
            parsed: Vec::new(),
            scratch: Vec::new(),
            cells: Vec::new(),
            staged: Vec::new(),
            id,
            records: 0,
        }
    }

    /// The id of the last transaction.
    pub(super) fn id(&self) -> Uuid {
        self.id
    }

    /// Applies the record whose header was just read.
    pub(super) fn apply<F: File>(
        &mut self,
        reader: &mut Reader<F>,
        record: &Record,
        database: &mut Database,
    ) -> Result<(), Failure> {
        if reader.is_small(record) {
            self.apply_small(reader, record, database)
        } else {
            self.apply_large(reader, record, database)
        }
    }

    /// Records so far, the schema not counted.
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// Counts a record without applying it.
    pub(super) fn skip(&mut self, record: &Record) {
        self.id = transaction_id::successor(self.id, &record.checksum);
        self.records += 1;
    }

    /// Counts a record that is applied. Returns whether clients may be told of it as a change.
    fn count(&mut self, record: &Record, comment: Option<&str>) -> bool {
        let carried = comment.filter(|_| self.records == 0).and_then(transaction_id::of_comment);
        self.id = carried.unwrap_or_else(|| transaction_id::successor(self.id, &record.checksum));
        self.records += 1;
        carried.is_none()
    }

    fn end_commit(&self, database: &mut Database, history: bool) {
        database.end_replayed_commit(self.id, history);
        if !history {
            // The state is found by its id only if some commit that is kept has it.
            database.begin_replayed_commit();
            database.end_replayed_commit(self.id, true);
        }
    }

    fn apply_small<F: File>(
        &mut self,
        reader: &mut Reader<F>,
        record: &Record,
        database: &mut Database,
    ) -> Result<(), Failure> {
        let text = match reader.body(record) {
            Ok(text) => text,
            Err(error) => return Err(Failure::Damaged(error)),
        };
        if let Some(comment) = self.stage_plain(text, database) {
            return self.apply_staged(record, comment.as_deref(), database);
        }
        self.scanner = plain::scanner();
        let value = match validate(text) {
            Ok(value) if value.kind() == Kind::Object => value,
            Ok(_) => return Err(Failure::Damaged(reader.not_an_object(record))),
            Err(error) => {
                let error = error.to_string();
                return Err(Failure::Damaged(reader.not_json(record, &error)));
            }
        };
        let comment = match self.stage(value, database) {
            Ok(comment) => comment,
            Err(error) => {
                self.skip(record);
                return Err(Failure::Rejected(error));
            }
        };
        self.apply_staged(record, comment.as_deref(), database)
    }

    fn apply_staged(
        &mut self,
        record: &Record,
        comment: Option<&str>,
        database: &mut Database,
    ) -> Result<(), Failure> {
        let history = self.count(record, comment);
        database.begin_replayed_commit();
        for staged in &self.staged {
            let row = match &staged.cells {
                Some(range) => ReplayedRow::Cells(self.cells.get(range.clone()).unwrap_or_default()),
                None => ReplayedRow::Delete,
            };
            database
                .apply_replayed(staged.table, &staged.uuid, row)
                .map_err(|error| Failure::Fatal(replay_error(error, &staged.uuid)))?;
        }
        self.end_commit(database, history);
        Ok(())
    }

    /// Understands a record of plain notation. Returns its comment; none where it is not plain, or has anything that is to be
    /// complained about.
    fn stage_plain(&mut self, text: &[u8], database: &Database) -> Option<Option<String>> {
        self.staged.clear();
        self.cells.clear();
        let Self { schema, differences, orders, scanner, given, parsed, scratch, cells, staged, .. } = self;
        let mut text = Plain::new(text, scanner);
        let mut comment = None;
        let mut is_diff = None;
        let mut seen = 0_u64;
        text.take(b"{")?;
        if text.take(b"}\n").is_some() {
            return text.is_at_end().then_some(None);
        }
        loop {
            match text.name()? {
                b"_date" => {
                    text.value()?.as_integer()?;
                }
                b"_is_diff" => {
                    let value = text.value()?.as_boolean()?;
                    if is_diff.is_some_and(|known| known != value) {
                        return None;
                    }
                    is_diff = Some(value);
                }
                b"_comment" => comment = Some(text.value()?.as_string()?.into_owned()),
                name => {
                    let (id, table) = schema.find_table(std::str::from_utf8(name).ok()?)?;
                    // Equal members are not plain.
                    let bit = 1_u64.checked_shl(u32::from(id.0))?;
                    if seen & bit != 0 {
                        return None;
                    }
                    seen |= bit;
                    let (order, differences) = (orders.get_mut(id.index())?, differences.get(id.index())?);
                    text.take(b"{")?;
                    if text.take(b"}").is_none() {
                        loop {
                            let uuid = Uuid::parse_bytes(text.name()?)?;
                            let old = database.row_by_uuid(id, &uuid).map(|(_, row)| row);
                            if text.take(b"null").is_some() {
                                old?;
                                staged.push(Staged { table: id, uuid, cells: None });
                            } else {
                                // It may come after the first row that it concerns.
                                let ahead = || text.contains(b"\"_is_diff\":true");
                                let is_diff = old.is_some() && *is_diff.get_or_insert_with(ahead);
                                given.clear();
                                given.resize(table.column_count(), None);
                                parsed.clear();
                                plain_row(&mut text, table, order, differences, is_diff, given, parsed)?;
                                let start = cells.len();
                                assemble(table, old, is_diff, given, parsed, scratch, cells).ok()?;
                                staged.push(Staged { table: id, uuid, cells: Some(start..cells.len()) });
                            }
                            if !text.goes_on(b'}')? {
                                break;
                            }
                        }
                    }
                }
            }
            if !text.goes_on(b'}')? {
                break;
            }
        }
        text.take(b"\n")?;
        text.is_at_end().then_some(comment)
    }

    /// Understands a record. Returns its comment.
    fn stage(&mut self, value: Value<'_>, database: &Database) -> Result<Option<String>, Error> {
        self.staged.clear();
        self.cells.clear();
        let mut comment = None;
        let mut is_diff = false;
        // Of equal members the last counts; a table's members may stand before `_is_diff`.
        let mut tables: Vec<(TableId, Value<'_>)> = Vec::new();
        for (name, member) in value.members() {
            if let Some((id, _)) = self.schema.find_table(&name) {
                tables.retain(|(other, _)| *other != id);
                tables.push((id, member));
                continue;
            }
            match (&*name, member.kind()) {
                ("_date", Kind::Integer) => {}
                ("_comment", Kind::String) => comment = member.as_string().map(std::borrow::Cow::into_owned),
                ("_is_diff", Kind::Boolean) => is_diff = member.as_boolean() == Some(true),
                _ => return Err(no_such_table(value, &name)),
            }
        }
        for (table, rows) in tables {
            if rows.kind() != Kind::Object {
                return Err(Error::syntax_error(rows, "object expected"));
            }
            for (name, row) in rows.members() {
                let uuid = row_uuid(&name).ok_or_else(|| not_a_uuid(rows, &name))?;
                let cells = self.stage_row(table, &uuid, row, is_diff, database)?;
                self.staged.push(Staged { table, uuid, cells });
            }
        }
        Ok(comment)
    }

    fn stage_row(
        &mut self,
        table: TableId,
        uuid: &Uuid,
        row: Value<'_>,
        is_diff: bool,
        database: &Database,
    ) -> Result<Option<Range<usize>>, Error> {
        if row.is_null() {
            return match database.row_by_uuid(table, uuid) {
                Some(_) => Ok(None),
                // Unless this very record has it: equal members, of which the last counts.
                None if self.staged.iter().any(|staged| staged.uuid == *uuid) => Ok(None),
                None => Err(no_such_row(uuid)),
            };
        }
        let start = self.cells.len();
        self.build(table, uuid, row, is_diff, database)?;
        Ok(Some(start..self.cells.len()))
    }

    /// Appends to `cells` what the row is after the record.
    fn build(
        &mut self,
        id: TableId,
        uuid: &Uuid,
        row: Value<'_>,
        is_diff: bool,
        database: &Database,
    ) -> Result<(), Error> {
        let Self { schema, differences, given, parsed, scratch, cells, .. } = self;
        let (Some(table), Some(differences)) = (schema.table(id), differences.get(id.index())) else {
            return Err(Error::internal("a table without a schema"));
        };
        if row.kind() != Kind::Object {
            return Err(Error::syntax_error(row, "row must be JSON object"));
        }
        let old = database.row_by_uuid(id, uuid).map(|(_, row)| row);
        let is_diff = is_diff && old.is_some();
        given.clear();
        given.resize(table.column_count(), None);
        parsed.clear();
        for (name, value) in row.members() {
            let column = match table.find_column(&name) {
                Some(ColumnRef::Column(column)) => column,
                Some(ColumnRef::Uuid | ColumnRef::Version) => continue,
                None => {
                    let details = format!("No column {name} in table {}.", table.name);
                    return Err(Error::tagged_syntax_error(row, "unknown column", details));
                }
            };
            let difference = differences.get(column.index()).and_then(Option::as_ref).filter(|_| is_diff);
            let Some(kind) = difference.or_else(|| table.column(column).map(|column| &column.kind)) else {
                continue;
            };
            let start = parsed.len();
            cell::parse(kind, value, &mut no_names, Checks::All, parsed)?;
            if let Some(given) = given.get_mut(column.index()) {
                *given = Some(start..parsed.len());
            }
        }
        assemble(table, old, is_diff, given, parsed, scratch, cells)
    }

    fn apply_large<F: File>(
        &mut self,
        reader: &mut Reader<F>,
        record: &Record,
        database: &mut Database,
    ) -> Result<(), Failure> {
        reader.verify(record).map_err(Failure::Damaged)?;
        database.begin_replayed_commit();
        match self.stream(reader, record, database) {
            Ok(comment) => {
                // What is at the end (white space, or more) shows only in the place where the reader is.
                reader.seek(record.end());
                self.count(record, comment.as_deref());
                self.end_commit(database, false);
                Ok(())
            }
            Err(failure) => {
                // Text that is no JSON is damage; what else is wrong with it, the failure says.
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
                // Of equal members the last counts; nobody writes such, so it is refused.
                if seen.contains(&table) {
                    return Err(Failure::Halfway(Error::syntax_error_anywhere(
                        "duplicate table in a large record",
                    )));
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
                    return Err(Failure::Halfway(Error::new("unknown table", details)));
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
            if self.stream_plain_row(reader, &mut members, table, database)? {
                continue;
            }
            let Some(name) = members.next(reader)? else { break };
            let uuid = row_uuid(&name).ok_or_else(|| {
                Failure::Halfway(Error::syntax_error_anywhere(format!("\"{name}\" is not a valid UUID")))
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
                    return Err(Failure::Halfway(no_such_row(&uuid)));
                }
                ReplayedRow::Delete
            } else {
                self.build(table, &uuid, row, *is_diff == Some(true), database).map_err(Failure::Halfway)?;
                ReplayedRow::Cells(&self.cells)
            };
            database
                .apply_replayed(table, &uuid, replayed)
                .map_err(|error| Failure::Fatal(replay_error(error, &uuid)))?;
        }
        Ok(())
    }

    /// Applies the next row if it is new and of plain notation. Returns whether it was.
    fn stream_plain_row<F: File>(
        &mut self,
        reader: &mut Reader<F>,
        members: &mut Members,
        id: TableId,
        database: &mut Database,
    ) -> Result<bool, Failure> {
        let Self { schema, differences, orders, scanner, given, parsed, scratch, cells, .. } = self;
        let window = reader.window(PLAIN_ROW_BYTES).map_err(Failure::Fatal)?;
        cells.clear();
        let mut row = || -> Option<(Uuid, usize)> {
            let (table, differences) = (schema.table(id)?, differences.get(id.index())?);
            let mut text = Plain::new(window, scanner);
            if !members.first {
                text.take(b",")?;
            }
            let uuid = Uuid::parse_bytes(text.name()?)?;
            if database.row_by_uuid(id, &uuid).is_some() {
                return None;
            }
            given.clear();
            given.resize(table.column_count(), None);
            parsed.clear();
            plain_row(&mut text, table, orders.get_mut(id.index())?, differences, false, given, parsed)?;
            assemble(table, None, false, given, parsed, scratch, cells).ok()?;
            Some((uuid, window.len() - text.length()))
        };
        let Some((uuid, length)) = row() else {
            *scanner = plain::scanner();
            return Ok(false);
        };
        database
            .apply_replayed(id, &uuid, ReplayedRow::Cells(cells))
            .map_err(|error| Failure::Fatal(replay_error(error, &uuid)))?;
        reader.advance(length);
        members.first = false;
        Ok(true)
    }
}

/// A row of plain notation is up to so long, to be taken apart where it is.
const PLAIN_ROW_BYTES: usize = 4096;

/// Takes the columns of a row in plain notation: their cells to `parsed`, where they are to `given`.
fn plain_row(
    text: &mut Plain<'_, '_>,
    table: &TableSchema,
    order: &mut Vec<ColumnId>,
    differences: &[Option<ColumnType>],
    is_diff: bool,
    given: &mut [Given],
    parsed: &mut Vec<u8>,
) -> Option<()> {
    text.take(b"{")?;
    if text.take(b"}").is_some() {
        return Some(());
    }
    let mut place = 0;
    loop {
        let name = text.name()?;
        let guess = order.get(place).copied();
        let guess = guess.filter(|id| table.column(*id).is_some_and(|column| column.name.as_bytes() == name));
        let id = match guess {
            Some(id) => id,
            None => {
                let ColumnRef::Column(id) = table.find_column(std::str::from_utf8(name).ok()?)? else {
                    return None;
                };
                order.truncate(place);
                order.push(id);
                id
            }
        };
        place += 1;
        let difference = differences.get(id.index()).and_then(Option::as_ref).filter(|_| is_diff);
        let kind = difference.or_else(|| table.column(id).map(|column| &column.kind))?;
        let start = parsed.len();
        cell::parse(kind, text.value()?, &mut no_names, Checks::All, parsed).ok()?;
        *given.get_mut(id.index())? = Some(start..parsed.len());
        if !text.goes_on(b'}')? {
            return Some(());
        }
    }
}

/// Appends to `cells` what a row is after a record that gave it these columns.
fn assemble(
    table: &TableSchema,
    old: Option<Row<'_>>,
    is_diff: bool,
    given: &mut [Given],
    parsed: &[u8],
    scratch: &mut Vec<u8>,
    cells: &mut Vec<u8>,
) -> Result<(), Error> {
    let mut old_cells = old.map(|row| row.cells());
    for ((_, column), given) in table.columns().zip(given) {
        let old = old_cells.as_mut().and_then(Iterator::next);
        let given = given.take().and_then(|range| parsed.get(range));
        match (given, old) {
            (None, old) => cells.extend_from_slice(old.unwrap_or(&column.default)),
            (Some(given), Some(old)) if is_diff && column.kind.is_composite() => {
                scratch.clear();
                cell::apply_diff(&column.kind, old, given, scratch)?;
                cells.extend_from_slice(scratch);
            }
            (Some(given), _) => cells.extend_from_slice(given),
        }
    }
    Ok(())
}

/// Where `_is_diff` comes after the first table it concerns: looks ahead, and comes back.
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
            return Err(Failure::Halfway(Error::syntax_error_anywhere("object expected")));
        }
        reader.pass();
        Ok(Self { first: true })
    }

    /// The next member's name; its value is then next.
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
        // White space before the value goes.
        reader.token().map_err(Failure::Fatal)?;
        Ok(Some(name))
    }
}

fn take_value<F: File>(reader: &mut Reader<F>) -> Result<Vec<u8>, Failure> {
    Ok(reader.value().map_err(Failure::Fatal)?.ok_or_else(malformed)?.to_vec())
}

#[cold]
fn malformed() -> Failure {
    Failure::Halfway(Error::syntax_error_anywhere("malformed record"))
}

fn row_uuid(name: &str) -> Option<Uuid> {
    Uuid::parse(name)
}

#[cold]
fn not_a_uuid(rows: Value<'_>, name: &str) -> Error {
    Error::syntax_error(rows, format!("\"{name}\" is not a valid UUID"))
}

#[cold]
fn no_such_table(record: Value<'_>, name: &str) -> Error {
    Error::tagged_syntax_error(record, "unknown table", format!("No table named {name}."))
}

#[cold]
fn no_such_row(uuid: &Uuid) -> Error {
    Error::syntax_error_anywhere(format!("transaction deletes row {uuid} that does not exist"))
}

#[cold]
fn replay_error(error: ReplayError, uuid: &Uuid) -> Error {
    match error {
        ReplayError::NoSuchRow => no_such_row(uuid),
        ReplayError::Memory(error) => error,
    }
}
