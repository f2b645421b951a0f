//! Which rows of a table a monitor is about: those for which any clause of its `where` is true.

use crate::condition::Condition;
use crate::error::Error;
use crate::row::Row;
use crate::schema::{ColumnRef, TableSchema};
use wire::json::{Value, write};

/// Filters with longer text are not compared: their monitors form groups of one.
const KEY_BYTES_MAX: usize = 1024;

/// A `where` of a monitor that does not let every row pass.
#[derive(Debug)]
pub(crate) struct Filter {
    condition: Condition,
    columns: Vec<ColumnRef>,
    key: Option<Box<[u8]>>,
}

impl Filter {
    /// Reads a `where`, an array. None: every row passes.
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

    /// Whether it lets a row pass.
    #[inline]
    pub fn matches(&self, row: Row<'_>) -> bool {
        self.condition.evaluate_any(row)
    }

    /// The columns it looks at.
    pub fn columns(&self) -> impl Iterator<Item = ColumnRef> {
        self.columns.iter().copied()
    }

    /// Filters of equal keys let the same rows pass. None: nothing is said about equality.
    pub fn key(&self) -> Option<&[u8]> {
        self.key.as_deref()
    }
}
