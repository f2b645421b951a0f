//! The schema of a column.

use crate::column_type::ColumnType;
use crate::error::Error;
use crate::members::{Kinds, Members};
use wire::json::Value;

/// The schema of a column.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnSchema {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: ColumnType,
    /// Whether it may change after its row was inserted.
    pub mutable: bool,
    /// Whether it is lost with the process.
    pub ephemeral: bool,
    /// The cell of a row without a value here.
    pub default: Vec<u8>,
}

impl ColumnSchema {
    /// Reads a `<column-schema>`.
    pub(super) fn parse(json: Value<'_>, name: &str) -> Result<Self, Error> {
        let mut members = Members::new(json, format!("schema for column {name}"));
        let mutable = members.optional("mutable", Kinds::BOOLEAN).and_then(Value::as_boolean);
        let ephemeral = members.optional("ephemeral", Kinds::BOOLEAN).and_then(Value::as_boolean);
        let kind = members.required("type", Kinds::STRING.or(Kinds::OBJECT));
        members.finish()?;
        let kind = ColumnType::parse(kind.unwrap_or(json))?;
        let default = kind.default_cell();
        // COMPAT: a weak reference is removed with the row it names, so its column is never immutable.
        let is_weak = [Some(&kind.key), kind.value.as_ref()]
            .into_iter()
            .flatten()
            .any(|base| base.weak_reference().is_some());
        Ok(Self {
            name: name.to_owned(),
            kind,
            mutable: mutable.unwrap_or(true) || is_weak,
            ephemeral: ephemeral.unwrap_or(false),
            default,
        })
    }

    /// Appends it as the stock server prints it (members sorted).
    pub fn write_json(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        if self.ephemeral {
            out.extend_from_slice(b"\"ephemeral\":true,");
        }
        if !self.mutable {
            out.extend_from_slice(b"\"mutable\":false,");
        }
        out.extend_from_slice(b"\"type\":");
        self.kind.write_json(out);
        out.push(b'}');
    }
}
