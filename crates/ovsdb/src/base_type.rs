//! The type of an atom in a column with its constraints: allowed values, range, length, reference.

use crate::atom::{self, Atom, AtomType};
use crate::cell::{self, Checks};
use crate::column_type::ColumnType;
use crate::error::Error;
use crate::members::{Kinds, Members};
use crate::schema::TableId;
use wire::json::{Kind, Number, Value, write};

/// The type of the keys or of the values of a column.
#[derive(Debug, Clone, PartialEq)]
pub struct BaseType {
    /// The type of the atoms.
    pub kind: AtomType,
    /// Which of them are allowed.
    pub constraint: Constraint,
    /// Of a UUID: the table whose rows it refers to.
    pub reference: Option<Reference>,
}

/// Which atoms are allowed.
#[derive(Debug, Clone, PartialEq)]
pub enum Constraint {
    /// All.
    None,
    /// Those of a set: a cell of the type [`ColumnType::enumeration`].
    Enumeration(Box<[u8]>),
    /// Integers in this range, inclusive.
    Integer(i64, i64),
    /// Reals in this range, inclusive.
    Real(f64, f64),
    /// Strings with this range of characters, inclusive.
    Length(u32, u32),
}

/// A reference to a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The table's name.
    pub table: String,
    /// Weak: deleting the row removes the reference from the column. Strong: the row cannot be deleted.
    pub weak: bool,
    /// The table in the schema; [`TableId::NONE`] until the schema is complete.
    pub target: TableId,
}

impl BaseType {
    /// The type without constraints.
    pub fn plain(kind: AtomType) -> Self {
        Self { kind, constraint: Constraint::None, reference: None }
    }

    /// Returns true if the type has a constraint or a reference.
    pub fn has_constraints(&self) -> bool {
        self.constraint != Constraint::None || self.reference.is_some()
    }

    /// The reference, if it is a strong one.
    pub fn strong_reference(&self) -> Option<&Reference> {
        self.reference.as_ref().filter(|reference| !reference.weak)
    }

    /// The reference, if it is a weak one.
    pub fn weak_reference(&self) -> Option<&Reference> {
        self.reference.as_ref().filter(|reference| reference.weak)
    }

    /// Reads a `<base-type>`.
    pub fn parse(value: Value<'_>) -> Result<Self, Error> {
        match value.kind() {
            Kind::String => Ok(Self::plain(parse_kind(value)?)),
            Kind::Object => Self::parse_object(value),
            _ => Err(Error::syntax_error(value, "ovsdb type expected")),
        }
    }

    fn parse_object(value: Value<'_>) -> Result<Self, Error> {
        let mut members = Members::new(value, "ovsdb type");
        let Some(kind) = members.required("type", Kinds::STRING) else {
            return Err(members.finish().err().unwrap_or_else(|| Error::internal("no type")));
        };
        let mut this = Self::plain(parse_kind(kind)?);
        if let Some(enumeration) = members.optional("enum", Kinds::ANY) {
            let kind = ColumnType::enumeration(this.kind);
            let mut packed = Vec::new();
            cell::parse(&kind, enumeration, &mut cell::no_names, Checks::All, &mut packed)?;
            this.constraint = Constraint::Enumeration(packed.into());
        } else {
            this.parse_limits(value, &mut members)?;
        }
        members.finish()?;
        Ok(this)
    }

    fn parse_limits(&mut self, value: Value<'_>, members: &mut Members<'_>) -> Result<(), Error> {
        self.constraint = match self.kind {
            AtomType::Integer => {
                let mut limit = |name| members.optional(name, Kinds::INTEGER).and_then(Value::as_integer);
                let low = limit("minInteger").unwrap_or(i64::MIN);
                let high = limit("maxInteger").unwrap_or(i64::MAX);
                if low > high {
                    return Err(Error::syntax_error(value, "minInteger exceeds maxInteger"));
                }
                if (low, high) == (i64::MIN, i64::MAX) {
                    Constraint::None
                } else {
                    Constraint::Integer(low, high)
                }
            }
            AtomType::Real => {
                let mut limit = |name| members.optional(name, Kinds::NUMBER).map(number);
                let low = limit("minReal").unwrap_or(-f64::MAX);
                let high = limit("maxReal").unwrap_or(f64::MAX);
                if low > high {
                    return Err(Error::syntax_error(value, "minReal exceeds maxReal"));
                }
                if low == -f64::MAX && high == f64::MAX {
                    Constraint::None
                } else {
                    Constraint::Real(low, high)
                }
            }
            AtomType::String => {
                let low = optional_unsigned(members, "minLength")?.unwrap_or(0);
                let high = optional_unsigned(members, "maxLength")?.unwrap_or(u32::MAX);
                if low > high {
                    return Err(Error::syntax_error(value, "minLength exceeds maxLength"));
                }
                if (low, high) == (0, u32::MAX) { Constraint::None } else { Constraint::Length(low, high) }
            }
            AtomType::Uuid => {
                if let Some(table) = members.optional("refTable", Kinds::ID) {
                    let table = table.as_string().unwrap_or_default().into_owned();
                    let weak = parse_weak(value, members)?;
                    self.reference = Some(Reference { table, weak, target: TableId::NONE });
                }
                Constraint::None
            }
            AtomType::Boolean => Constraint::None,
        };
        Ok(())
    }

    /// Appends it as the stock server prints it (members sorted).
    pub fn write_json(&self, out: &mut Vec<u8>) {
        if !self.has_constraints() {
            return write::string(out, self.kind.name());
        }
        out.push(b'{');
        match &self.constraint {
            Constraint::None => {}
            Constraint::Enumeration(packed) => {
                out.extend_from_slice(b"\"enum\":");
                cell::write_json(&ColumnType::enumeration(self.kind), packed, out);
                out.push(b',');
            }
            Constraint::Integer(low, high) => {
                if *high != i64::MAX {
                    member(out, "maxInteger", Atom::Integer(*high));
                }
                if *low != i64::MIN {
                    member(out, "minInteger", Atom::Integer(*low));
                }
            }
            Constraint::Real(low, high) => {
                if *high != f64::MAX {
                    member(out, "maxReal", Atom::Real(*high));
                }
                if *low != -f64::MAX {
                    member(out, "minReal", Atom::Real(*low));
                }
            }
            Constraint::Length(low, high) => {
                if *high != u32::MAX {
                    member(out, "maxLength", Atom::Integer((*high).into()));
                }
                if *low != 0 {
                    member(out, "minLength", Atom::Integer((*low).into()));
                }
            }
        }
        if let Some(reference) = &self.reference {
            member(out, "refTable", Atom::String(&reference.table));
            if reference.weak {
                member(out, "refType", Atom::String("weak"));
            }
        }
        out.extend_from_slice(b"\"type\":");
        write::string(out, self.kind.name());
        out.push(b'}');
    }

    /// Checks an atom of this type against the constraints.
    pub fn check(&self, atom: &Atom<'_>) -> Result<(), Error> {
        match (&self.constraint, *atom) {
            (Constraint::Enumeration(packed), _) => self.check_enumeration(packed, atom),
            (Constraint::Integer(low, high), Atom::Integer(value)) => {
                if (*low..=*high).contains(&value) {
                    return Ok(());
                }
                let known = [(*low != i64::MIN).then_some(*low), (*high != i64::MAX).then_some(*high)];
                Err(outside(atom, known.map(|limit| limit.map(Atom::Integer))))
            }
            (Constraint::Real(low, high), Atom::Real(value)) => {
                if value >= *low && value <= *high {
                    return Ok(());
                }
                let known = [(*low != -f64::MAX).then_some(*low), (*high != f64::MAX).then_some(*high)];
                Err(outside(atom, known.map(|limit| limit.map(Atom::Real))))
            }
            (Constraint::Length(low, high), Atom::String(text)) => check_length(text, *low, *high),
            _ => Ok(()),
        }
    }

    /// As [`Self::check`], for a packed atom.
    #[inline]
    pub(crate) fn check_packed(&self, mut packed: &[u8]) -> Result<(), Error> {
        match &self.constraint {
            Constraint::None => Ok(()),
            Constraint::Enumeration(allowed) if cell::contains_packed(self.kind, allowed, packed) => Ok(()),
            _ => self.check(&atom::take(&mut packed, self.kind)),
        }
    }

    #[inline]
    fn check_enumeration(&self, packed: &[u8], atom: &Atom<'_>) -> Result<(), Error> {
        let kind = ColumnType::enumeration(self.kind);
        if cell::contains_key(&kind, packed, atom) {
            return Ok(());
        }
        let valid = cell::to_text(&kind, packed);
        Err(Error::constraint_violation(format!("{atom} is not one of the allowed values ({valid})")))
    }
}

#[cold]
fn outside(atom: &Atom<'_>, limits: [Option<Atom<'_>>; 2]) -> Error {
    Error::constraint_violation(match limits {
        [Some(low), Some(high)] => format!("{atom} is not in the valid range {low} to {high} (inclusive)"),
        [Some(low), None] => format!("{atom} is less than minimum allowed value {low}"),
        [None, Some(high)] => format!("{atom} is greater than maximum allowed value {high}"),
        [None, None] => format!("{atom} is not allowed"),
    })
}

fn check_length(text: &str, low: u32, high: u32) -> Result<(), Error> {
    let length = text.chars().count();
    if u32::try_from(length).is_ok_and(|length| length < low) {
        return Err(Error::constraint_violation(format!(
            "\"{text}\" length {length} is less than minimum allowed length {low}"
        )));
    }
    if u32::try_from(length).map_or(true, |length| length > high) {
        return Err(Error::constraint_violation(format!(
            "\"{text}\" length {length} is greater than maximum allowed length {high}"
        )));
    }
    Ok(())
}

fn member(out: &mut Vec<u8>, name: &str, atom: Atom<'_>) {
    write::string(out, name);
    out.push(b':');
    atom.write_json(out);
    out.push(b',');
}

fn number(value: Value<'_>) -> f64 {
    match value.cursor().number() {
        Number::Integer(value) => value as f64,
        Number::Real(value) => value,
    }
}

fn parse_kind(value: Value<'_>) -> Result<AtomType, Error> {
    let name = value.as_string().unwrap_or_default();
    AtomType::from_name(&name)
        .ok_or_else(|| Error::syntax_error(value, format!("\"{name}\" is not an atomic-type")))
}

fn parse_weak(json: Value<'_>, members: &mut Members<'_>) -> Result<bool, Error> {
    let Some(kind) = members.optional("refType", Kinds::ID) else { return Ok(false) };
    match kind.as_string().unwrap_or_default().as_ref() {
        "strong" => Ok(false),
        "weak" => Ok(true),
        other => {
            let details = format!("refType must be \"strong\" or \"weak\" (not \"{other}\")");
            Err(Error::syntax_error(json, details))
        }
    }
}

fn optional_unsigned(members: &mut Members<'_>, name: &str) -> Result<Option<u32>, Error> {
    let Some(value) = members.optional(name, Kinds::INTEGER) else { return Ok(None) };
    match value.as_integer().map(u32::try_from) {
        Some(Ok(number)) => Ok(Some(number)),
        _ => {
            let details = format!("{name} out of valid range 0 to {}", u32::MAX);
            Err(Error::syntax_error(value, details))
        }
    }
}
