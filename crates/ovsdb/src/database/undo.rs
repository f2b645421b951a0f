//! Undoing commits whose write to the log failed.

use super::Database;
use crate::history::{CommitId, Entry};

impl Database {
    /// Restores the database to its state after `commit`. Later commits must all be kept: see [`Self::hold_from`].
    pub fn undo_since(&mut self, commit: CommitId) {
        while self.history.last() > commit {
            let entries = self.history.take_last();
            assert!(entries.is_some(), "a commit that may have to be undone is gone");
            self.undo(entries.unwrap_or_default());
        }
    }

    fn undo(&mut self, entries: Vec<Entry>) {
        // What the commit added to other rows' counts and lists is removed first, while the rows that it refers to
        // exist; what it removed from them is restored last.
        let schema = std::sync::Arc::clone(&self.schema);
        self.count_strong_references(&entries, -1);
        let mut undone = Vec::new();
        for Entry { old, row, table: table_id, fate } in entries {
            let (table, table_schema) = (&mut self.tables[table_id], schema.table(table_id));
            let new = match old {
                Some(old) if table.record(row).is_some() => {
                    table.replace(table_schema, &mut self.records, row, old)
                }
                Some(old) => {
                    // Its place in the index was freed when it was removed, so there is memory for it.
                    if let Err(error) = table.restore(table_schema, &mut self.records, row, old) {
                        self.note_damage(&error);
                    }
                    None
                }
                None => table.take(table_schema, &mut self.records, row),
            };
            undone.push(Entry { old: new, row, table: table_id, fate });
        }
        self.count_strong_references(&undone, 1);
        self.note_weak_references(&undone);
        if let Err(error) = self.note_unique(&undone) {
            self.note_damage(&error);
        }
        for Entry { old, row, table, .. } in undone {
            if let Some(record) = old {
                self.records.free(record);
            }
            let table = &mut self.tables[table];
            if table.record(row).is_none() {
                table.counts.remove(&row);
                table.release(row);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::database::Options;
    use crate::schema::DatabaseSchema;
    use crate::transaction::{self, Context};
    use crate::uuid::Uuid;
    use wire::json::Value;

    const SCHEMA: &str = r#"{"name":"D","version":"1.0.0","tables":{"T":{"isRoot":true,"columns":{"n":{"type":"integer"}},"indexes":[["n"]]}}}"#;

    fn execute(database: &mut Database, operations: &str) -> String {
        let (mut reply, mut number) = (Vec::new(), 0_u8);
        let mut random = || {
            number += 1;
            Uuid([number; 16])
        };
        let operations: Vec<Value<'_>> =
            Value::of_checked(operations.as_bytes()).elements().skip(1).collect();
        transaction::execute(database, &operations, &Context::own(), &mut random, &mut reply);
        String::from_utf8(reply).unwrap()
    }

    fn damaged() -> Database {
        let schema = DatabaseSchema::parse(Value::of_checked(SCHEMA.as_bytes())).unwrap();
        let mut database = Database::new(schema, Options { budget_bytes: 64 << 20, seed: 1 }).unwrap();
        execute(
            &mut database,
            r#"["D",{"op":"insert","table":"T","row":{"n":1}},{"op":"insert","table":"T","row":{"n":2}}]"#,
        );
        database.tables[crate::schema::TableId(0)].cannot_restore = true;
        database
    }

    fn is_read_only(database: &mut Database) {
        let damage = database.damage().unwrap().to_string();
        assert!(damage.contains("database D is read-only until the server is started again"), "{damage}");
        assert_eq!(database.take_damage().map(ToString::to_string), Some(damage));
        assert_eq!(database.take_damage(), None, "it is told once");
        for operation in [
            r#"{"op":"insert","table":"T","row":{"n":9}}"#,
            r#"{"op":"update","table":"T","where":[],"row":{"n":9}}"#,
            r#"{"op":"delete","table":"T","where":[]}"#,
        ] {
            let reply = execute(database, &format!(r#"["D",{operation}]"#));
            assert!(reply.contains("read-only until the server is started again"), "{reply}");
        }
        let reply = execute(database, r#"["D",{"op":"select","table":"T","where":[],"columns":["n"]}]"#);
        assert!(reply.starts_with(r#"[{"rows":["#), "{reply}");
    }

    #[test]
    fn a_transaction_that_cannot_be_undone_makes_the_database_read_only() {
        let mut database = damaged();
        let reply = execute(
            &mut database,
            r#"["D",{"op":"delete","table":"T","where":[["n","==",1]]},{"op":"abort"}]"#,
        );
        assert!(reply.contains("aborted by request"), "{reply}");
        is_read_only(&mut database);
    }

    #[test]
    fn a_commit_that_cannot_be_undone_makes_the_database_read_only() {
        let mut database = damaged();
        let before = database.commit_number();
        database.hold_from(Some(before));
        execute(&mut database, r#"["D",{"op":"delete","table":"T","where":[["n","==",1]]}]"#);
        assert_eq!(database.damage(), None);
        database.undo_since(before);
        is_read_only(&mut database);
    }
}
