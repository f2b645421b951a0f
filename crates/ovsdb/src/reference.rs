//! References between rows: which columns refer to which tables, and tables beside the rows that track this for each
//! row.
//!
//! * A strong reference counts: `Table::counts` has the number of references to each row that is referred to, without
//!   those of a row to itself. A row of a table that is not root is deleted with its last reference; a row that is
//!   referred to must not be deleted.
//! * A weak reference is removed with its row. To find it, `Table::sources` lists for each row the rows that may refer
//!   to it, if there are any. A row stays in the list when its reference is removed (it is only counted as stale); the
//!   list is swept when half of it is stale, so that adding and removing cost little, however many rows refer to one.

use std::hash::{BuildHasherDefault, Hasher};

use crate::atom::Atom;
use crate::cell;
use crate::row::RowId;
use crate::schema::{ColumnId, ColumnSchema, DatabaseSchema, TableId, TableSchema};
use crate::uuid::Uuid;

/// A column with references, and where its keys and values refer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Referring {
    pub column: ColumnId,
    pub key: Option<TableId>,
    pub value: Option<TableId>,
}

/// What must be tracked in one table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    /// Columns with strong references.
    pub strong: Vec<Referring>,
    /// Columns with weak ones.
    pub weak: Vec<Referring>,
    /// Whether weak references point to this table.
    pub is_weak_target: bool,
    /// Whether its rows are deleted when no strong reference points to them.
    pub is_collected: bool,
    /// Whether none of this applies, and there are no indexes.
    pub is_plain: bool,
}

impl Plan {
    /// The plans of all tables.
    pub fn of(schema: &DatabaseSchema) -> Vec<Self> {
        Self::of_columns(schema, |_| true)
    }

    /// The plans of all tables without their ephemeral columns.
    pub fn lasting(schema: &DatabaseSchema) -> Vec<Self> {
        Self::of_columns(schema, |column| !column.ephemeral)
    }

    /// The plans of all tables as if there were only their ephemeral columns.
    pub fn ephemeral(schema: &DatabaseSchema) -> Vec<Self> {
        Self::of_columns(schema, |column| column.ephemeral)
    }

    fn of_columns(schema: &DatabaseSchema, wanted: impl Fn(&ColumnSchema) -> bool) -> Vec<Self> {
        let mut plans: Vec<Self> = schema.tables().map(|(_, table)| Self::of_table(table, &wanted)).collect();
        for target in targets(&plans, |plan| &plan.weak) {
            if let Some(plan) = plans.get_mut(target.index()) {
                (plan.is_weak_target, plan.is_plain) = (true, false);
            }
        }
        for target in targets(&plans, |plan| &plan.strong) {
            if let Some(plan) = plans.get_mut(target.index()) {
                plan.is_plain = false;
            }
        }
        plans
    }

    fn of_table(schema: &TableSchema, wanted: &impl Fn(&ColumnSchema) -> bool) -> Self {
        let columns = |weak: bool| {
            let target = move |base: &crate::base_type::BaseType| {
                base.reference
                    .as_ref()
                    .filter(|reference| reference.weak == weak)
                    .map(|reference| reference.target)
            };
            schema.columns().filter(|(_, column)| wanted(column)).filter_map(move |(id, column)| {
                let key = target(&column.kind.key);
                let value = column.kind.value.as_ref().and_then(target);
                (key.is_some() || value.is_some()).then_some(Referring { column: id, key, value })
            })
        };
        let (strong, weak): (Vec<_>, Vec<_>) = (columns(false).collect(), columns(true).collect());
        let is_plain = strong.is_empty() && weak.is_empty() && schema.is_root && schema.indexes.is_empty();
        Self { strong, weak, is_weak_target: false, is_collected: !schema.is_root, is_plain }
    }
}

/// The tables that some columns of the plans refer to, one for each of their keys and values.
fn targets<'a>(plans: &'a [Plan], columns: impl Fn(&'a Plan) -> &'a Vec<Referring>) -> Vec<TableId> {
    plans.iter().flat_map(columns).flat_map(|column| [column.key, column.value]).flatten().collect()
}

impl Referring {
    /// Calls `each` with every reference of a cell of the column: the table it refers to, and the row's UUID.
    pub fn each(&self, schema: &TableSchema, cell: &[u8], mut each: impl FnMut(TableId, Uuid)) {
        for (key, value) in cell::atoms(&schema.column(self.column).kind, cell) {
            if let (Some(table), Atom::Uuid(uuid)) = (self.key, key) {
                each(table, uuid);
            }
            if let (Some(table), Some(Atom::Uuid(uuid))) = (self.value, value) {
                each(table, uuid);
            }
        }
    }

    /// The references of a cell, keys before values.
    pub fn list(&self, schema: &TableSchema, cell: &[u8]) -> Vec<(TableId, Uuid)> {
        let mut list = Vec::new();
        for part in [Self { value: None, ..*self }, Self { key: None, ..*self }] {
            if part.key.is_some() || part.value.is_some() {
                part.each(schema, cell, |table, uuid| list.push((table, uuid)));
            }
        }
        list
    }

    /// The references that only one of two cells has: first those of the old one, then those of the new one.
    pub fn difference(&self, schema: &TableSchema, old: &[u8], new: &[u8]) -> Difference {
        if old == new {
            return (Vec::new(), Vec::new());
        }
        let (mut old, mut new) = (self.list(schema, old), self.list(schema, new));
        if old.len().min(new.len()) > 1 {
            // Those in keys are ascending already.
            let (mut before, mut after) = (old.clone(), new.clone());
            before.sort_unstable();
            after.sort_unstable();
            old.retain(|reference| after.binary_search(reference).is_err());
            new.retain(|reference| before.binary_search(reference).is_err());
        }
        (old, new)
    }
}

/// References that were removed, and those that were added: the target table and the row's UUID.
pub(crate) type Difference = (Vec<(TableId, Uuid)>, Vec<(TableId, Uuid)>);

/// Rows that may refer weakly to one row.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    pub rows: Vec<(TableId, RowId)>,
    pub stale: u32,
}

impl Sources {
    /// Returns true if it is time to check which of the rows still refer.
    pub fn wants_sweep(&self) -> bool {
        self.stale > 16 && self.stale as usize * 2 > self.rows.len()
    }
}

/// Hashes row ids. They are our own numbers: they need spreading, but no secret.
#[derive(Default)]
pub(crate) struct IdSpreader(u64);

pub(crate) type IdHasher = BuildHasherDefault<IdSpreader>;

impl Hasher for IdSpreader {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u32(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0.rotate_left(32) ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}
