//! Mutations: changes of a column that depend on its value.

use crate::atom::{self, Atom, AtomType};
use crate::base_type::Constraint;
use crate::cell::{self, Checks, Operator};
use crate::column_type::ColumnType;
use crate::condition::{english, mismatch};
use crate::error::Error;
use crate::schema::{ColumnId, ColumnRef, TableSchema};
use crate::uuid::Uuid;
use wire::json::Value;

/// One `[column, mutator, value]`.
#[derive(Debug)]
pub struct Mutation {
    /// The column it changes.
    pub column: ColumnId,
    change: Change,
}

#[derive(Debug)]
enum Change {
    /// Applied to each element, with this argument, packed.
    Arithmetic(Operator, Vec<u8>),
    Insert(Vec<u8>),
    /// Elements of this type, which may be that of the keys alone.
    Delete(Box<ColumnType>, Vec<u8>),
}

impl Mutation {
    /// Parses one.
    pub fn parse(
        schema: &TableSchema,
        json: Value<'_>,
        names: &mut dyn FnMut(&str) -> Option<Uuid>,
    ) -> Result<Self, Error> {
        let malformed = || Error::syntax_error(json, "Parse error in mutation.");
        let mut elements = json.elements();
        let parts = (elements.next(), elements.next(), elements.next(), elements.next());
        let (Some(column), Some(mutator), Some(argument), None) = parts else { return Err(malformed()) };
        let (Some(name), Some(mutator)) = (column.as_string(), mutator.as_string()) else {
            return Err(malformed());
        };
        let immutable = || {
            let details = format!("Cannot mutate immutable column {name} in table {}.", schema.name);
            Error::tagged_syntax_error(json, "constraint violation", details)
        };
        let column = match schema.find_column(&name) {
            Some(ColumnRef::Column(column)) => column,
            Some(_) => return Err(immutable()),
            None => {
                let details = format!("No column {name} in table {}.", schema.name);
                return Err(Error::tagged_syntax_error(json, "unknown column", details));
            }
        };
        let schema_column = schema.column(column);
        if !schema_column.mutable {
            return Err(immutable());
        }
        let kind = &schema_column.kind;
        let mut out = Vec::new();
        let change = if let Some(operator) = Operator::from_name(&mutator) {
            if !has_arithmetic(kind, operator) {
                return Err(mismatch(json, &mutator, &name, kind));
            }
            let mut one = ColumnType::scalar(kind.key.clone());
            one.key.constraint = Constraint::None;
            cell::parse(&one, argument, names, Checks::All, &mut out)?;
            Change::Arithmetic(operator, out)
        } else if mutator == "insert" || mutator == "delete" {
            if kind.is_scalar() {
                return Err(mismatch(json, &mutator, &name, kind));
            }
            if mutator == "insert" {
                let some = ColumnType { n_min: 0, ..kind.clone() };
                cell::parse(&some, argument, names, Checks::All, &mut out)?;
                Change::Insert(out)
            } else {
                let any = kind.transient();
                match cell::parse(&any, argument, names, Checks::All, &mut out) {
                    Ok(()) => Change::Delete(Box::new(any), out),
                    Err(_) if kind.is_map() => {
                        let keys = kind.transient_keys();
                        out.clear();
                        cell::parse(&keys, argument, names, Checks::All, &mut out)?;
                        Change::Delete(Box::new(keys), out)
                    }
                    Err(error) => return Err(error),
                }
            }
        } else {
            return Err(Error::new("unknown mutator", format!("No mutator named {mutator}.")));
        };
        Ok(Self { column, change })
    }

    /// Appends its result for `cell`, a cell of the column's type.
    pub fn apply(&self, kind: &ColumnType, cell: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        let start = out.len();
        match &self.change {
            Change::Arithmetic(operator, argument) => {
                let argument: Atom<'_> = atom::take(&mut argument.as_slice(), kind.key.kind);
                return cell::arithmetic(kind, cell, *operator, &argument, out);
            }
            Change::Insert(argument) => cell::union(kind, cell, argument, out),
            Change::Delete(argument_kind, argument) => {
                cell::subtract(kind, cell, argument_kind, argument, out)
            }
        }
        let result = out.get(start..).unwrap_or_default();
        if cell::has_allowed_length(kind, result) {
            return Ok(());
        }
        let count = cell::len(kind, result);
        Err(Error::constraint_violation(format!("Attempted to store {count} elements in {}.", english(kind))))
    }
}

/// Returns true if a column consists of numbers that the operator works on, and is not a map.
fn has_arithmetic(kind: &ColumnType, operator: Operator) -> bool {
    let is_number = match kind.key.kind {
        AtomType::Integer => true,
        AtomType::Real => operator != Operator::Modulo,
        _ => false,
    };
    is_number && !kind.is_map()
}
