//! `wait`

use std::collections::HashSet;

use super::operation::{Member, Operation};
use super::select::columns;
use super::{ParsedRow, Stop, Transaction};
use crate::error::Error;

impl Transaction<'_, '_> {
    pub(super) fn wait(&mut self, operation: &Operation<'_, '_>) -> Result<(), Stop> {
        let (table, schema) = operation.table()?;
        let condition = self.take_condition(schema, operation.need(Member::Where)?)?;
        let columns = columns(schema, operation.get(Member::Columns))?;
        let timeout_ms = match operation.get(Member::Timeout) {
            Some(json) => {
                let timeout_ms = u64::try_from(json.as_integer().unwrap_or_default())
                    .map_err(|_| Error::syntax_error(json, "timeout must be nonnegative"))?;
                self.timeout_ms = Some(self.timeout_ms.map_or(timeout_ms, |other| other.min(timeout_ms)));
                Some(timeout_ms)
            }
            None => None,
        };
        let wants_equal = match operation.until().as_ref() {
            "==" => true,
            "!=" => false,
            _ => {
                let until = operation.need(Member::Until)?;
                return Err(Error::syntax_error(until, "\"until\" must be \"==\" or \"!=\"").into());
            }
        };
        let mut expected: HashSet<Vec<u8>> = HashSet::new();
        let mut parsed = ParsedRow::default();
        for json in operation.need(Member::Rows)?.elements() {
            let names = &mut self.names;
            parsed.read(schema, json, &mut |name| names.resolve(name))?;
            let mut key = Vec::new();
            columns.iter().for_each(|column| parsed.append(schema, *column, &mut key));
            expected.insert(key);
        }
        let mut actual: HashSet<Vec<u8>> = HashSet::new();
        let candidates = self.candidates(table, schema, &condition);
        self.note_shown(&condition, &columns);
        let mut is_equal = true;
        for row in candidates {
            let Some(this) = self.changes.database.row(table, row) else { continue };
            let row = self.shown.row(table, row, this);
            if !condition.evaluate(row) {
                continue;
            }
            let mut key = Vec::new();
            columns.iter().for_each(|column| key.extend_from_slice(&row.any_cell(*column)));
            if !expected.contains(&key) {
                is_equal = false;
                break;
            }
            actual.insert(key);
        }
        // All actual rows are expected: the sets are equal if their sizes are.
        is_equal &= actual.len() == expected.len();
        self.put_condition(condition);
        if is_equal == wants_equal {
            return Ok(());
        }
        let elapsed_ms = self.context.elapsed_ms;
        match timeout_ms {
            Some(timeout_ms) if elapsed_ms >= timeout_ms => {
                let details = match elapsed_ms {
                    0 => "\"where\" clause test failed".to_owned(),
                    _ => format!("\"wait\" timed out after {elapsed_ms} ms"),
                };
                Err(Error::new("timed out", details).into())
            }
            _ => Err(Stop::Wait),
        }
    }
}
