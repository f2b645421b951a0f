//! A row as stated in a request: cells of some columns.

use crate::cell::{self, Checks};
use crate::error::Error;
use crate::member_order;
use crate::row::{self, Row, uuid_type};
use crate::schema::{ColumnId, ColumnRef, TableSchema};
use crate::uuid::Uuid;
use wire::json::Value;

/// Cells of some columns of a table.
#[derive(Default)]
pub(super) struct ParsedRow {
    bytes: Vec<u8>,
    /// For each column of the table, where its cell is.
    spans: Vec<Option<(u32, u32)>>,
    uuid: Option<Uuid>,
    version: Option<Uuid>,
}

impl ParsedRow {
    /// Parses an object. The values are checked.
    pub fn read(
        &mut self,
        schema: &TableSchema,
        json: Value<'_>,
        names: &mut dyn FnMut(&str) -> Option<Uuid>,
    ) -> Result<(), Error> {
        let mut cursor = json.cursor();
        if cursor.peek() != b'{' {
            return Err(Error::syntax_error(json, "row must be JSON object"));
        }
        self.clear(schema);
        cursor.enter_object();
        while let Some(name) = cursor.next_member() {
            let value = cursor.skip();
            if self.read_column(schema, json, &name, value, names).is_err() {
                return self.read_again(schema, json, names);
            }
        }
        Ok(())
    }

    /// Parses an object in which a member is wrong: which error is reported depends on an order, and a later member
    /// with the same name may be right.
    #[cold]
    fn read_again(
        &mut self,
        schema: &TableSchema,
        json: Value<'_>,
        names: &mut dyn FnMut(&str) -> Option<Uuid>,
    ) -> Result<(), Error> {
        self.clear(schema);
        for (name, value) in stock_order(json) {
            self.read_column(schema, json, &name, value, names)?;
        }
        Ok(())
    }

    fn clear(&mut self, schema: &TableSchema) {
        self.bytes.clear();
        self.spans.clear();
        self.spans.resize(schema.column_count(), None);
        self.uuid = None;
        self.version = None;
    }

    fn read_column(
        &mut self,
        schema: &TableSchema,
        json: Value<'_>,
        name: &str,
        value: Value<'_>,
        names: &mut dyn FnMut(&str) -> Option<Uuid>,
    ) -> Result<(), Error> {
        let start = self.bytes.len();
        match schema.find_column(name) {
            Some(ColumnRef::Column(id)) => {
                let column = schema.column(id);
                cell::parse(&column.kind, value, names, Checks::All, &mut self.bytes)?;
                if let Some(span) = self.spans.get_mut(id.index()) {
                    *span = Some((start as u32, self.bytes.len() as u32));
                }
            }
            Some(column) => {
                cell::parse(&uuid_type(), value, names, Checks::All, &mut self.bytes)?;
                let uuid = self.bytes.get(start..).and_then(|bytes| bytes.try_into().ok()).map(Uuid);
                match column {
                    ColumnRef::Uuid => self.uuid = uuid,
                    _ => self.version = uuid,
                }
            }
            None => {
                let details = format!("No column {name} in table {}.", schema.name);
                return Err(Error::tagged_syntax_error(json, "unknown column", details));
            }
        }
        Ok(())
    }

    /// A column's cell, if it is stated.
    #[inline]
    pub fn cell(&self, column: ColumnId) -> Option<&[u8]> {
        let (start, end) = (*self.spans.get(column.index())?)?;
        self.bytes.get(start as usize..end as usize)
    }

    /// The first stated column, in the stock server's order, that cannot be changed.
    pub fn first_immutable(&self, schema: &TableSchema, json: Value<'_>) -> Option<String> {
        let stated =
            schema.columns().filter(|(id, _)| self.spans.get(id.index()).is_some_and(Option::is_some));
        if self.uuid.is_none() && self.version.is_none() && stated.clone().all(|(_, column)| column.mutable) {
            return None;
        }
        let is_immutable = |name: &str| match schema.find_column(name) {
            Some(ColumnRef::Column(id)) => !schema.column(id).mutable,
            _ => true,
        };
        stock_order(json).into_iter().map(|(name, _)| name).find(|name| is_immutable(name))
    }

    /// Appends the cell of any column: what is stated, or its default.
    pub fn append(&self, schema: &TableSchema, column: ColumnRef, out: &mut Vec<u8>) {
        match column {
            ColumnRef::Uuid => out.extend_from_slice(&self.uuid.unwrap_or_default().0),
            ColumnRef::Version => out.extend_from_slice(&self.version.unwrap_or_default().0),
            ColumnRef::Column(id) => {
                out.extend_from_slice(self.cell(id).unwrap_or(&schema.column(id).default));
            }
        }
    }

    /// Makes a new row from it.
    pub fn insert_into(&self, schema: &TableSchema, uuid: Uuid, version: u64, out: &mut Vec<u8>) {
        row::start(out, uuid, version);
        for (id, column) in schema.columns() {
            out.extend_from_slice(self.cell(id).unwrap_or(&column.default));
        }
    }

    /// Makes the row that `old` becomes. Returns `false` if it is the same.
    pub fn update(&self, old: Row<'_>, version: u64, out: &mut Vec<u8>) -> bool {
        row::start(out, old.uuid(), version);
        let mut differs = false;
        for (cell, span) in old.cells().zip(&self.spans) {
            let new = span.and_then(|(start, end)| self.bytes.get(start as usize..end as usize));
            differs |= new.is_some_and(|new| new != cell);
            out.extend_from_slice(new.unwrap_or(cell));
        }
        differs
    }

    pub fn give_back(&mut self, most_bytes: usize) {
        if self.bytes.capacity() > most_bytes {
            self.bytes = Vec::new();
        }
    }
}

/// The members of an object (of those with the same name the last) in the order in which the stock server visits them.
fn stock_order(json: Value<'_>) -> Vec<(String, Value<'_>)> {
    let mut members: Vec<(String, Value<'_>)> = Vec::new();
    for (name, value) in json.members() {
        match members.iter_mut().find(|(other, _)| *other == name) {
            Some(member) => member.1 = value,
            None => members.push((name.into_owned(), value)),
        }
    }
    let names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
    member_order::walk(names.iter().copied())
        .into_iter()
        .filter_map(|place| members.get(place).cloned())
        .collect()
}
