//! Schemas: the tables of a database, their columns, and which tables refer to which.
//!
//! Tables and columns are numbered in the order of their names. `_uuid` and `_version` have no number: they are not
//! stored as columns ([`ColumnRef`]). A parsed schema is complete: every reference names a table that exists.

mod column;
mod table;

pub use column::ColumnSchema;
pub use table::TableSchema;

use crate::error::Error;
use crate::member_order;
use crate::members::{Kinds, Members, is_id};
use std::borrow::Cow;
use std::collections::BTreeMap;
use wire::json::{Value, write};

/// A table of a schema, in the order of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u16);

impl TableId {
    /// No table: a reference before its schema is complete.
    pub const NONE: Self = Self(u16::MAX);

    /// As an index.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A column of a table, in the order of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ColumnId(pub u16);

impl ColumnId {
    /// As an index.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What a column's name may refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ColumnRef {
    /// `_uuid`
    Uuid,
    /// `_version`
    Version,
    /// A column of the schema.
    Column(ColumnId),
}

/// Most tables of a database, and columns of a table.
pub const IDS_MAX: usize = 65_000;

/// The schema of a database.
#[derive(Debug, Clone, PartialEq)]
pub struct DatabaseSchema {
    /// The database's name.
    pub name: String,
    /// `x.y.z`, or empty.
    pub version: String,
    /// The checksum that the schema's file states, or empty. It is not verified.
    pub cksum: String,
    /// In the order of names.
    tables: Vec<TableSchema>,
}

impl DatabaseSchema {
    /// Reads a `<database-schema>`.
    pub fn parse(json: Value<'_>) -> Result<Self, Error> {
        let mut members = Members::new(json, "database schema");
        let name = members.required("name", Kinds::ID);
        let version = members.optional("version", Kinds::STRING);
        let cksum = members.optional("cksum", Kinds::STRING);
        let tables = members.required("tables", Kinds::OBJECT);
        members.finish()?;
        let text = |value: Option<Value<'_>>| -> String {
            value.and_then(Value::as_string).map(Cow::into_owned).unwrap_or_default()
        };
        let version_text = text(version);
        if version.is_some() && !is_version(&version_text) {
            let details = format!("schema version \"{version_text}\" not in format x.y.z");
            return Err(Error::syntax_error(json, details));
        }
        let mut this =
            Self { name: text(name), version: version_text, cksum: text(cksum), tables: Vec::new() };
        for (name, value) in walked_members(tables.unwrap_or(json)) {
            check_name(json, &name)?;
            this.tables.push(TableSchema::parse(value, &name)?);
        }
        this.tables.sort_by(|one, other| one.name.cmp(&other.name));
        if this.tables.len() > IDS_MAX {
            return Err(Error::syntax_error_anywhere("too many tables"));
        }
        if !this.tables.iter().any(|table| table.is_root) {
            this.tables.iter_mut().for_each(|table| table.is_root = true);
        }
        this.resolve_references()?;
        Ok(this)
    }

    fn resolve_references(&mut self) -> Result<(), Error> {
        let ids: BTreeMap<String, (TableId, bool)> =
            self.tables().map(|(id, table)| (table.name.clone(), (id, table.is_root))).collect();
        for column in self.tables.iter_mut().flat_map(|table| table.columns_mut()) {
            let bases = [("key", Some(&mut column.kind.key)), ("value", column.kind.value.as_mut())];
            for (what, base) in bases {
                let Some(reference) = base.and_then(|base| base.reference.as_mut()) else { continue };
                let Some((target, is_root)) = ids.get(&reference.table) else {
                    return Err(Error::syntax_error_anywhere(format!(
                        "column {} {what} refers to undefined table {}",
                        column.name, reference.table
                    )));
                };
                reference.target = *target;
                // The only reference to a row must survive a restart, or the row would not.
                if !reference.weak && !is_root {
                    column.ephemeral = false;
                }
            }
        }
        Ok(())
    }

    /// The tables in the order of their names.
    pub fn tables(&self) -> impl ExactSizeIterator<Item = (TableId, &TableSchema)> + Clone {
        self.tables.iter().enumerate().map(|(index, table)| (TableId(index as u16), table))
    }

    /// Number of tables.
    pub fn table_count(&self) -> usize {
        self.tables.len()
    }

    /// A table.
    #[inline]
    pub fn table(&self, id: TableId) -> &TableSchema {
        &self.tables[id.index()]
    }

    /// The table with this id, which may be from another schema.
    pub fn get_table(&self, id: TableId) -> Option<&TableSchema> {
        self.tables.get(id.index())
    }

    /// The table of that name.
    #[inline]
    pub fn find_table(&self, name: &str) -> Option<(TableId, &TableSchema)> {
        let index = self.tables.binary_search_by(|table| table.name.as_str().cmp(name)).ok()?;
        self.tables.get(index).map(|table| (TableId(index as u16), table))
    }

    /// Appends it as the stock server prints it (members sorted).
    pub fn write_json(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        if !self.cksum.is_empty() {
            out.extend_from_slice(b"\"cksum\":");
            write::string(out, &self.cksum);
            out.push(b',');
        }
        out.extend_from_slice(b"\"name\":");
        write::string(out, &self.name);
        out.extend_from_slice(b",\"tables\":{");
        let all_are_root = self.tables.iter().all(|table| table.is_root);
        for (index, table) in self.tables.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            write::string(out, &table.name);
            out.push(b':');
            table.write_json(all_are_root, out);
        }
        out.push(b'}');
        if !self.version.is_empty() {
            out.extend_from_slice(b",\"version\":");
            write::string(out, &self.version);
        }
        out.push(b'}');
    }
}

/// The members of an object (of those with the same name the last) in the order in which the stock server visits them:
/// the first error is the one it reports.
fn walked_members(object: Value<'_>) -> Vec<(Cow<'_, str>, Value<'_>)> {
    let mut places: BTreeMap<Cow<'_, str>, usize> = BTreeMap::new();
    let mut members: Vec<(Cow<'_, str>, Value<'_>)> = Vec::new();
    for (name, value) in object.members() {
        match places.get(&name).and_then(|place| members.get_mut(*place)) {
            Some(member) => member.1 = value,
            None => {
                places.insert(name.clone(), members.len());
                members.push((name, value));
            }
        }
    }
    let order = member_order::walk(members.iter().map(|(name, _)| name.as_ref()));
    order.into_iter().filter_map(|index| members.get(index).cloned()).collect()
}

fn check_name(json: Value<'_>, name: &str) -> Result<(), Error> {
    if name.starts_with('_') {
        return Err(Error::syntax_error(json, "names beginning with \"_\" are reserved"));
    }
    if !is_id(name) {
        return Err(Error::syntax_error(json, "name must be a valid id"));
    }
    Ok(())
}

/// Returns true if it has the form x.y.z. COMPAT: as in C's `scanf`, a number may have white space and a sign before
/// it.
pub fn is_version(text: &str) -> bool {
    let mut parts = 0;
    text.split('.').all(|part| {
        parts += 1;
        let part = part.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
        let digits = part.strip_prefix(['+', '-']).unwrap_or(part);
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    }) && parts == 3
}

#[cfg(test)]
mod tests;
