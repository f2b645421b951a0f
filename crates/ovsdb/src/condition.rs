//! Conditions: which rows an operation or a monitor selects.
//!
//! A condition is an array of clauses `[column, function, value]` or booleans. Operations select rows for which all
//! clauses hold ([`Condition::evaluate`]), monitors rows for which any holds ([`Condition::evaluate_any`]); an empty
//! condition is always true. The arguments are cells, all in one buffer. Clauses are sorted, so that equal conditions
//! are equal. If a condition has many `==` clauses on a column, monitors look them up by hash.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::atom;
use crate::cell::{self, Checks};
use crate::column_type::{ColumnType, UNLIMITED};
use crate::error::Error;
use crate::row::{Row, uuid_type};
use crate::schema::{ColumnRef, TableSchema};
use crate::uuid::Uuid;
use wire::json::Value;

/// From this many `==` clauses on they are looked up by hash.
const HASHED_CLAUSES_MIN: usize = 8;

/// What a clause tests. In the order in which the stock server sorts clauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Function {
    /// `false`
    False,
    /// `==`
    Equal,
    /// `includes`
    Includes,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>=`
    GreaterOrEqual,
    /// `>`
    Greater,
    /// `excludes`
    Excludes,
    /// `!=`
    NotEqual,
    /// `true`
    True,
}

impl Function {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "==" => Self::Equal,
            "!=" => Self::NotEqual,
            "<" => Self::Less,
            "<=" => Self::LessOrEqual,
            ">" => Self::Greater,
            ">=" => Self::GreaterOrEqual,
            "includes" => Self::Includes,
            "excludes" => Self::Excludes,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Clause {
    column: ColumnRef,
    function: Function,
    argument: Range<usize>,
}

/// A row, and the cell that was looked at last: many clauses may be about one column.
struct Seen<'r> {
    row: Row<'r>,
    column: ColumnRef,
    cell: Cow<'r, [u8]>,
}

impl<'r> Seen<'r> {
    #[inline]
    fn new(row: Row<'r>) -> Self {
        Self { row, column: ColumnRef::Uuid, cell: row.any_cell(ColumnRef::Uuid) }
    }

    #[inline]
    fn cell(&mut self, column: ColumnRef) -> &[u8] {
        if self.column != column {
            (self.column, self.cell) = (column, self.row.any_cell(column));
        }
        &self.cell
    }
}

/// Which rows are selected.
#[derive(Debug, Clone, Default)]
pub struct Condition {
    clauses: Vec<Clause>,
    arguments: Vec<u8>,
    /// If there are many clauses, all of them `==`: the arguments by column.
    equal: Option<HashMap<ColumnRef, HashSet<Box<[u8]>>>>,
}

impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        let clauses = |this: &'_ Self| this.clauses.len();
        clauses(self) == clauses(other)
            && self.clauses.iter().zip(&other.clauses).all(|(one, two)| {
                (one.column, one.function) == (two.column, two.function)
                    && self.argument(one) == other.argument(two)
            })
    }
}

impl Eq for Condition {}

impl Condition {
    /// Parses the array of clauses. `names` returns the UUIDs of named ones.
    pub fn parse(
        schema: &TableSchema,
        json: Value<'_>,
        names: &mut dyn FnMut(&str) -> Option<Uuid>,
    ) -> Result<Self, Error> {
        let mut this = Self::default();
        this.read(schema, json, names)?;
        this.hash_equal();
        Ok(this)
    }

    /// As [`Self::parse`], into this condition, for a single use: lookups by hash are not prepared.
    pub(crate) fn read(
        &mut self,
        schema: &TableSchema,
        json: Value<'_>,
        names: &mut dyn FnMut(&str) -> Option<Uuid>,
    ) -> Result<(), Error> {
        self.clauses.clear();
        self.arguments.clear();
        self.equal = None;
        for element in json.elements() {
            self.read_clause(schema, element, names)?;
        }
        if self.clauses.len() > 1 {
            let arguments = &self.arguments;
            let argument = |clause: &Clause| arguments.get(clause.argument.clone()).unwrap_or_default();
            self.clauses.sort_by(|one, other| {
                (one.function, one.column).cmp(&(other.function, other.column)).then_with(|| {
                    let kind = type_of(schema, one.column);
                    cell::compare(&kind, argument(one), argument(other))
                })
            });
        }
        Ok(())
    }

    fn read_clause(
        &mut self,
        schema: &TableSchema,
        json: Value<'_>,
        names: &mut dyn FnMut(&str) -> Option<Uuid>,
    ) -> Result<(), Error> {
        let mut cursor = json.cursor();
        let boolean = match cursor.peek() {
            b't' => Some(Function::True),
            b'f' => Some(Function::False),
            _ => None,
        };
        let start = self.arguments.len();
        if let Some(function) = boolean {
            self.clauses.push(Clause { column: ColumnRef::Uuid, function, argument: start..start });
            return Ok(());
        }
        let mut elements = json.elements();
        let parts = (elements.next(), elements.next(), elements.next(), elements.next());
        let (Some(column), Some(function), Some(argument), None) = parts else { return Err(malformed(json)) };
        let (Some(column), Some(function)) = (column.as_string(), function.as_string()) else {
            return Err(malformed(json));
        };
        let Some(column) = schema.find_column(&column) else {
            let details = format!("No column {column} in table {}.", schema.name);
            return Err(Error::tagged_syntax_error(json, "unknown column", details));
        };
        let Some(parsed) = Function::from_name(&function) else {
            return Err(Error::new("unknown function", format!("No function named {function}.")));
        };
        let mut read =
            |kind: &ColumnType, out: &mut Vec<u8>| cell::parse(kind, argument, names, Checks::All, out);
        match column {
            ColumnRef::Column(id) => {
                let schema_column = schema.column(id);
                let kind = &schema_column.kind;
                match parsed {
                    Function::Less | Function::LessOrEqual | Function::GreaterOrEqual | Function::Greater => {
                        if !is_ordered(kind) {
                            return Err(mismatch(json, &function, &schema_column.name, kind));
                        }
                        // One element must be given; a cell of the optional type can hold it as well.
                        if kind.is_scalar() {
                            read(kind, &mut self.arguments)?;
                        } else {
                            let one = ColumnType { n_min: 1, ..kind.clone() };
                            let before = self.arguments.len();
                            read(&one, &mut self.arguments)?;
                            let atom = self.arguments.split_off(before);
                            cell::put(kind, 1, &atom, &mut self.arguments);
                        }
                    }
                    Function::Excludes if !kind.is_scalar() => {
                        read(
                            &ColumnType { n_min: 0, n_max: UNLIMITED, ..kind.clone() },
                            &mut self.arguments,
                        )?;
                    }
                    Function::Includes if kind.n_min > 0 && !kind.is_scalar() => {
                        read(&ColumnType { n_min: 0, ..kind.clone() }, &mut self.arguments)?;
                    }
                    _ => read(kind, &mut self.arguments)?,
                }
            }
            ColumnRef::Uuid | ColumnRef::Version => {
                let kind = uuid_type();
                if (Function::Less..=Function::Greater).contains(&parsed) {
                    return Err(mismatch(json, &function, schema.column_name(column), &kind));
                }
                read(&kind, &mut self.arguments)?;
            }
        }
        self.clauses.push(Clause { column, function: parsed, argument: start..self.arguments.len() });
        Ok(())
    }

    fn hash_equal(&mut self) {
        let all_equal = self.clauses.iter().all(|clause| clause.function == Function::Equal);
        if self.clauses.len() < HASHED_CLAUSES_MIN || !all_equal {
            return;
        }
        let mut equal: HashMap<ColumnRef, HashSet<Box<[u8]>>> = HashMap::new();
        for clause in &self.clauses {
            equal.entry(clause.column).or_default().insert(self.argument(clause).into());
        }
        self.equal = Some(equal);
    }

    #[inline]
    fn argument(&self, clause: &Clause) -> &[u8] {
        self.arguments.get(clause.argument.clone()).unwrap_or_default()
    }

    /// Returns true if all clauses hold.
    #[inline]
    pub fn evaluate(&self, row: Row<'_>) -> bool {
        let mut seen = Seen::new(row);
        self.clauses.iter().all(|clause| self.holds(clause, &mut seen))
    }

    /// Returns true if any clause holds, or there are none.
    pub fn evaluate_any(&self, row: Row<'_>) -> bool {
        if let Some(equal) = &self.equal {
            return equal.iter().any(|(column, cells)| cells.contains(row.any_cell(*column).as_ref()));
        }
        let mut seen = Seen::new(row);
        self.clauses.is_empty() || self.clauses.iter().any(|clause| self.holds(clause, &mut seen))
    }

    fn holds(&self, clause: &Clause, seen: &mut Seen<'_>) -> bool {
        let argument = self.argument(clause);
        match (clause.function, clause.column) {
            (Function::True, _) => true,
            (Function::False, _) => false,
            (function, ColumnRef::Column(id)) => {
                compare(function, &seen.row.schema().column(id).kind, seen.cell(clause.column), argument)
            }
            (Function::Equal | Function::Includes, column) => seen.cell(column) == argument,
            (_, column) => seen.cell(column) != argument,
        }
    }

    /// Returns true if it holds for every row.
    pub fn is_true(&self) -> bool {
        self.clauses.is_empty()
    }

    /// The columns it reads.
    pub fn columns(&self) -> impl Iterator<Item = ColumnRef> + '_ {
        let clauses = self.clauses.iter();
        clauses
            .filter(|clause| !matches!(clause.function, Function::True | Function::False))
            .map(|clause| clause.column)
    }

    /// Number of clauses.
    pub fn len(&self) -> usize {
        self.clauses.len()
    }

    /// Returns true if there are no clauses.
    pub fn is_empty(&self) -> bool {
        self.clauses.is_empty()
    }

    /// The columns of `==` clauses, and their values.
    pub(crate) fn equalities(&self) -> impl Iterator<Item = (ColumnRef, &[u8])> {
        let equal = self.clauses.iter().filter(|clause| clause.function == Function::Equal);
        equal.map(|clause| (clause.column, self.argument(clause)))
    }
}

fn type_of(schema: &TableSchema, column: ColumnRef) -> ColumnType {
    match column {
        ColumnRef::Column(id) => schema.column(id).kind.clone(),
        ColumnRef::Uuid | ColumnRef::Version => uuid_type(),
    }
}

/// Returns true if a column has at most one number.
fn is_ordered(kind: &ColumnType) -> bool {
    (kind.is_scalar() || kind.is_optional_scalar())
        && matches!(kind.key.kind, atom::AtomType::Integer | atom::AtomType::Real)
}

fn compare(function: Function, kind: &ColumnType, cell: &[u8], argument: &[u8]) -> bool {
    // Only of numbers, of which each has one at most.
    let order = || {
        let ((has_one, one), (has_other, other)) = (cell::body(kind, cell), cell::body(kind, argument));
        (has_one > 0 && has_other > 0).then(|| atom::compare_packed(kind.key.kind, one, other))
    };
    match function {
        Function::True => true,
        Function::False => false,
        Function::Equal => cell == argument,
        Function::NotEqual => cell != argument,
        Function::Less => matches!(order(), Some(Ordering::Less)),
        Function::LessOrEqual => matches!(order(), Some(Ordering::Less | Ordering::Equal)),
        Function::GreaterOrEqual => matches!(order(), Some(Ordering::Greater | Ordering::Equal)),
        Function::Greater => matches!(order(), Some(Ordering::Greater)),
        Function::Includes if kind.is_scalar() => cell == argument,
        Function::Excludes if kind.is_scalar() => cell != argument,
        Function::Includes => cell::includes(kind, cell, argument),
        Function::Excludes => cell::excludes(kind, cell, argument),
    }
}

#[cold]
fn malformed(json: Value<'_>) -> Error {
    Error::syntax_error(json, "Parse error in condition.")
}

/// The error about an operator that a column's type does not support.
#[cold]
pub(crate) fn mismatch(json: Value<'_>, operator: &str, column: &str, kind: &ColumnType) -> Error {
    let kind = english(kind);
    let details = format!(
        "Type mismatch: \"{operator}\" operator may not be applied to column {column} of type {kind}."
    );
    Error::syntax_error(json, details)
}

/// A type in words, as the stock server's messages have it.
pub(crate) fn english(kind: &ColumnType) -> String {
    let key = kind.key.kind.name();
    if kind.is_scalar() {
        return key.to_owned();
    }
    let number = match (kind.n_min, kind.n_max) {
        (0, UNLIMITED) => " of".to_owned(),
        (min, UNLIMITED) => format!(" of {min} or more"),
        (0, max) => format!(" of up to {max}"),
        (min, max) => format!(" of {min} to {max}"),
    };
    match &kind.value {
        Some(value) => format!("map{number} ({key}, {}) pairs", value.kind.name()),
        None => format!("set{number} {key}s"),
    }
}
