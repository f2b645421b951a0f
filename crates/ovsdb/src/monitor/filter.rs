//! Which rows of a table a monitor shows: those for which any clause of its `where` is true.

use crate::condition::Condition;
use crate::error::Error;
use crate::row::Row;
use crate::schema::{ColumnRef, TableSchema};
use wire::json::{Value, write};

/// Filters with longer text are not compared: their monitors form groups of one.
const KEY_BYTES_MAX: usize = 1024;

/// A `where` of a monitor that does not match every row.
#[derive(Debug)]
pub(crate) struct Filter {
    condition: Condition,
    columns: Vec<ColumnRef>,
    key: Option<Box<[u8]>>,
}

impl Filter {
    /// Parses a `where`, an array. `None`: every row matches.
    pub fn parse(schema: &TableSchema, json: Value<'_>) -> Result<Option<Self>, Error> {
        let condition = Condition::parse(schema, json, &mut crate::cell::no_names)?;
        if json.elements().next().is_none() {
            return Ok(None);
        }
        let mut columns: Vec<ColumnRef> = condition.columns().collect();
        columns.sort_unstable();
        columns.dedup();
        let key = (json.text().len() <= KEY_BYTES_MAX).then(|| {
            let mut key = Vec::new();
            write::sorted(&mut key, json);
            key.into()
        });
        Ok(Some(Self { condition, columns, key }))
    }

    /// Returns true if it matches a row.
    #[inline]
    pub fn matches(&self, row: Row<'_>) -> bool {
        self.condition.evaluate_any(row)
    }

    /// The columns it reads.
    pub fn columns(&self) -> impl Iterator<Item = ColumnRef> {
        self.columns.iter().copied()
    }

    /// Filters with equal keys match the same rows. `None`: not comparable.
    pub fn key(&self) -> Option<&[u8]> {
        self.key.as_deref()
    }
}
