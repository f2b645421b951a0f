//! Conditions: which rows an operation or a monitor selects.
//!
//! A condition is an array of clauses `[column, function, value]` or booleans. Operations select rows for which all
//! clauses hold ([`Condition::evaluate`]), monitors rows for which any holds ([`Condition::evaluate_any`]); an empty
//! condition is always true. The arguments are cells, all in one buffer. Clauses are sorted, so that equal conditions
//! are equal. What a monitor has many clauses for, it looks up by hash ([`Lookup`]).

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::atom;
use crate::cell::{self, Checks};
use crate::column_type::{ColumnType, UNLIMITED};
use crate::error::Error;
use crate::row::{Row, uuid_type};
use crate::schema::{ColumnId, ColumnRef, TableSchema};
use crate::uuid::Uuid;
use wire::json::Value;

/// From this many clauses on they are looked up by hash.
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
    /// If there are many clauses, of which any must hold.
    lookup: Option<Box<Lookup>>,
}

/// Which of many clauses holds. Of those about one number, which are sorted, one decides.
///
/// ```text
///   ==  and _uuid includes   is the cell one of these?
///   includes                 does the cell have the first element of one of these? That clause is tested
///   <  <=                    the one with the greatest argument
///   >  >=                    the one with the least
///   !=                       the first and the last: if their arguments differ, one holds
///   others                   one after the other
/// ```
#[derive(Debug, Clone, Default)]
struct Lookup {
    equal: HashMap<ColumnRef, HashSet<Box<[u8]>>>,
    /// The clauses by column, and by the first element of their arguments.
    includes: HashMap<ColumnId, HashMap<Box<[u8]>, Vec<usize>>>,
    others: Vec<usize>,
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
        if this.clauses.len() >= HASHED_CLAUSES_MIN {
            this.lookup = Some(Box::new(this.lookup(schema)));
        }
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
        self.lookup = None;
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

    fn lookup(&self, schema: &TableSchema) -> Lookup {
        let mut lookup = Lookup::default();
        let is_next_like = |place: usize| {
            let (this, next) = (self.clauses.get(place), self.clauses.get(place + 1));
            let alike = |clause: &Clause| (clause.function, clause.column);
            next.is_some_and(|next| this.map(alike) == Some(alike(next)))
        };
        for (place, clause) in self.clauses.iter().enumerate() {
            let kind = match clause.column {
                ColumnRef::Column(id) => Some(&schema.column(id).kind).filter(|kind| !kind.is_scalar()),
                ColumnRef::Uuid | ColumnRef::Version => None,
            };
            let argument = self.argument(clause);
            let (is_first, is_last) =
                (place.checked_sub(1).is_none_or(|before| !is_next_like(before)), !is_next_like(place));
            let is_other = match (clause.function, clause.column, kind) {
                (Function::Equal, column, _) | (Function::Includes, column, None) => {
                    lookup.equal.entry(column).or_default().insert(argument.into());
                    false
                }
                (Function::Includes, ColumnRef::Column(id), Some(kind)) => {
                    let first = cell::packed(kind, argument).next();
                    if let Some(first) = first {
                        let clauses = lookup.includes.entry(id).or_default();
                        clauses.entry(first.both.into()).or_default().push(place);
                    }
                    // Nothing is in every cell.
                    first.is_none()
                }
                (Function::Less | Function::LessOrEqual, ..) => is_last,
                (Function::Greater | Function::GreaterOrEqual | Function::False | Function::True, ..) => {
                    is_first
                }
                (Function::NotEqual, ..) | (Function::Excludes, _, None) => is_first || is_last,
                (Function::Excludes, ..) | (Function::Includes, ..) => true,
            };
            if is_other {
                lookup.others.push(place);
            }
        }
        lookup
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
        let mut seen = Seen::new(row);
        match &self.lookup {
            Some(lookup) => self.any_of(lookup, &mut seen),
            None => {
                self.clauses.is_empty() || self.clauses.iter().any(|clause| self.holds(clause, &mut seen))
            }
        }
    }

    fn any_of(&self, lookup: &Lookup, seen: &mut Seen<'_>) -> bool {
        let row = seen.row;
        let mut holds =
            |place: &usize| self.clauses.get(*place).is_some_and(|clause| self.holds(clause, seen));
        lookup.equal.iter().any(|(column, cells)| cells.contains(row.any_cell(*column).as_ref()))
            || lookup.includes.iter().any(|(id, clauses)| {
                let kind = &row.schema().column(*id).kind;
                let mut elements = cell::packed(kind, row.cell(*id));
                elements.any(|element| clauses.get(element.both).into_iter().flatten().any(&mut holds))
            })
            || lookup.others.iter().any(holds)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row;
    use crate::schema::DatabaseSchema;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use wire::json::validate;

    const SCHEMA: &str = r#"{"name":"D","tables":{"T":{"columns":{
        "b":{"type":"boolean"},
        "i":{"type":"integer"},
        "m":{"type":{"key":"integer","value":"integer","min":0,"max":"unlimited"}},
        "o":{"type":{"key":"integer","min":0,"max":1}},
        "s":{"type":{"key":"integer","min":0,"max":"unlimited"}}}}}}"#;

    fn read<T>(text: &str, f: impl FnOnce(Value<'_>) -> T) -> T {
        f(validate(text.as_bytes()).expect("JSON"))
    }

    /// A value of a column, made from a few bits.
    fn value(column: &str, bits: u8, other: u8) -> String {
        let set = |numbers: &[u8]| {
            let mut numbers = numbers.to_vec();
            numbers.dedup();
            format!("[\"set\",{numbers:?}]")
        };
        match (column, bits % 4) {
            ("b", _) => bits.is_multiple_of(2).to_string(),
            ("i", _) => (other % 8).to_string(),
            ("_uuid", _) => format!("[\"uuid\",\"00000000-0000-0000-0000-00000000000{}\"]", other % 4),
            ("m", 0) => "[\"map\",[]]".to_owned(),
            ("m", 1) => format!("[\"map\",[[{},{}]]]", other % 4, bits / 8 % 2),
            ("m", _) => format!("[\"map\",[[{},{}],[9,9]]]", other % 4, bits / 8 % 2),
            ("o" | "s", 0) => set(&[]),
            ("o" | "s", 1) => set(&[other % 8]),
            ("o", _) => set(&[other % 3]),
            (_, 2) => set(&[other % 4, 9]),
            _ => set(&[other % 3, other % 3 + bits / 64, 9]),
        }
    }

    proptest! {
        /// What is looked up is what any of the clauses says.
        #[test]
        fn lookups_decide_as_the_clauses_do(
            clauses in vec((0..7_usize, 0..8_usize, any::<(u8, u8)>()), 8..40),
            // Few functions and columns at a time: else one of the clauses nearly always holds.
            functions in vec(0..8_usize, 1..3),
            of in vec(0..7_usize, 1..3),
            rows in vec(any::<[(u8, u8); 6]>(), 1..20),
        ) {
            let schema = read(SCHEMA, DatabaseSchema::parse).expect("a schema");
            let (_, table) = schema.find_table("T").expect("the table");
            let columns = ["b", "i", "m", "o", "s", "_uuid"];
            let texts = clauses.iter().filter_map(|(column, function, (bits, other))| {
                let Some(column) = columns.get(of[column % of.len()]) else { return Some("false".to_owned()) };
                let function = functions[function % functions.len()];
                let function = ["==", "!=", "<", "<=", ">", ">=", "includes", "excludes"][function];
                let is_ordered = function.starts_with(['<', '>']);
                // Nothing is in every cell: seldom, for the same reason.
                let bits = if function == "includes" && bits % 64 != 0 { bits | 1 } else { *bits };
                let given = if is_ordered { (other % 8).to_string() } else { value(column, bits, *other) };
                (!is_ordered || matches!(*column, "i" | "o")).then(|| format!("[\"{column}\",\"{function}\",{given}]"))
            });
            let text = format!("[{}]", texts.collect::<Vec<_>>().join(","));
            let condition = read(&text, |json| Condition::parse(table, json, &mut cell::no_names));
            let condition = condition.expect("a condition");
            prop_assert_eq!(condition.lookup.is_some(), condition.clauses.len() >= HASHED_CLAUSES_MIN);
            let plain = Condition { lookup: None, ..condition.clone() };
            for bits in rows {
                let mut bytes = Vec::new();
                let uuid = value("_uuid", 0, bits[5].1);
                let uuid = Uuid::parse(&uuid[9..45]).expect("a UUID");
                row::start(&mut bytes, uuid, 1);
                for ((_, column), (bits, other)) in table.columns().zip(bits) {
                    let text = value(&column.name, bits, other);
                    let parsed = read(&format!("[{text}]"), |json| {
                        let value = json.elements().next().expect("a value");
                        cell::parse(&column.kind, value, &mut cell::no_names, Checks::All, &mut bytes)
                    });
                    prop_assert!(parsed.is_ok(), "{}", text);
                }
                let row = Row::new(table, &bytes, 0);
                prop_assert_eq!(condition.evaluate_any(row), plain.evaluate_any(row), "{} {:?}", text, row);
            }
        }
    }
}
