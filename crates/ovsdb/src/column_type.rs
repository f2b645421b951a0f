//! The type of a column: what its keys and values are and how many there may be.

use crate::atom::{self, AtomType};
use crate::base_type::BaseType;
use crate::error::Error;
use crate::members::{Kinds, Members};
use wire::json::{Kind, Value, write};

/// `max`: no limit.
pub const UNLIMITED: u32 = u32::MAX;

/// The type of a column.
///
/// `n_min` is 0 or 1 and `n_max` at least 1.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnType {
    /// The type of the elements, or of a map's keys.
    pub key: BaseType,
    /// The type of a map's values.
    pub value: Option<BaseType>,
    /// Fewest elements: 0 or 1.
    pub n_min: u32,
    /// Most elements, or [`UNLIMITED`].
    pub n_max: u32,
}

impl ColumnType {
    /// Exactly one atom.
    pub fn scalar(key: BaseType) -> Self {
        Self { key, value: None, n_min: 1, n_max: 1 }
    }

    /// One or more atoms without constraints: the type of an `enum`.
    pub fn enumeration(kind: AtomType) -> Self {
        Self { key: BaseType::plain(kind), value: None, n_min: 1, n_max: UNLIMITED }
    }

    /// Returns true if it is exactly one atom, not a map. Only such cells are packed without a length.
    #[inline]
    pub fn is_scalar(&self) -> bool {
        self.n_max == 1 && self.n_min == 1 && self.value.is_none()
    }

    /// Returns true if it has values.
    #[inline]
    pub fn is_map(&self) -> bool {
        self.value.is_some()
    }

    /// Returns true if it is neither a map nor scalar.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.value.is_none() && !self.is_scalar()
    }

    /// Returns true if it may have one element or none.
    #[inline]
    pub fn is_optional(&self) -> bool {
        self.n_min == 0 && self.n_max == 1
    }

    /// Returns true if it may have one atom or none, and is not a map.
    #[inline]
    pub fn is_optional_scalar(&self) -> bool {
        self.value.is_none() && self.is_optional()
    }

    /// Returns true if it may have more than one element: its changes are then expressed as differences.
    #[inline]
    pub fn is_composite(&self) -> bool {
        self.n_max > 1
    }

    /// The same with any number of elements: the type of a difference or of a mutation's argument. Cells of both types
    /// are packed alike, unless this one is scalar.
    #[must_use]
    pub fn transient(&self) -> Self {
        Self { n_min: 0, n_max: UNLIMITED, ..self.clone() }
    }

    /// Any number of keys of this type.
    #[must_use]
    pub fn transient_keys(&self) -> Self {
        Self { key: self.key.clone(), value: None, n_min: 0, n_max: UNLIMITED }
    }

    /// Key type and value type.
    pub fn base_types(&self) -> impl Iterator<Item = &BaseType> {
        std::iter::once(&self.key).chain(&self.value)
    }

    /// Reads a `<type>`.
    pub fn parse(json: Value<'_>) -> Result<Self, Error> {
        match json.kind() {
            Kind::String => Ok(Self::scalar(BaseType::parse(json)?)),
            Kind::Object => Self::parse_object(json),
            _ => Err(Error::syntax_error(json, "ovsdb type expected")),
        }
    }

    fn parse_object(json: Value<'_>) -> Result<Self, Error> {
        let mut members = Members::new(json, "ovsdb type");
        let key = members.required("key", Kinds::STRING.or(Kinds::OBJECT));
        let value = members.optional("value", Kinds::STRING.or(Kinds::OBJECT));
        let min = members.optional("min", Kinds::INTEGER);
        let max = members.optional("max", Kinds::INTEGER.or(Kinds::STRING));
        members.finish()?;
        let key = BaseType::parse(key.unwrap_or(json))?;
        let value = value.map(BaseType::parse).transpose()?;
        let n_min = min.map_or(Ok(1), parse_number)?;
        let n_max = max.map_or(Ok(1), parse_number)?;
        if n_min > 1 || n_max < 1 {
            return Err(Error::syntax_error(json, "ovsdb type fails constraint checks"));
        }
        Ok(Self { key, value, n_min, n_max })
    }

    /// Appends it as the stock server prints it (members sorted).
    pub fn write_json(&self, out: &mut Vec<u8>) {
        if self.is_scalar() && !self.key.has_constraints() {
            return self.key.write_json(out);
        }
        out.extend_from_slice(b"{\"key\":");
        self.key.write_json(out);
        if self.n_max == UNLIMITED {
            out.extend_from_slice(b",\"max\":\"unlimited\"");
        } else if self.n_max != 1 {
            out.extend_from_slice(b",\"max\":");
            write::unsigned(out, self.n_max.into());
        }
        if self.n_min != 1 {
            out.extend_from_slice(b",\"min\":");
            write::unsigned(out, self.n_min.into());
        }
        if let Some(value) = &self.value {
            out.extend_from_slice(b",\"value\":");
            value.write_json(out);
        }
        out.push(b'}');
    }

    /// The type in the words of the stock server's messages, e.g. `set of up to 5 integers`.
    pub fn to_english(&self) -> String {
        let key = self.key.kind.name();
        if self.is_scalar() {
            return key.to_owned();
        }
        let (n_min, n_max) = (self.n_min, self.n_max);
        let number = match (n_min, n_max) {
            (0, UNLIMITED) => "of".to_owned(),
            (_, UNLIMITED) => format!("of {n_min} or more"),
            (0, _) => format!("of up to {n_max}"),
            _ => format!("of {n_min} to {n_max}"),
        };
        match &self.value {
            None => format!("set {number} {key}s"),
            Some(value) => format!("map {number} ({key}, {}) pairs", value.kind.name()),
        }
    }

    /// The cell of a column without a given value.
    pub fn default_cell(&self) -> Vec<u8> {
        let mut atoms = Vec::new();
        if self.n_min > 0 {
            atom::put(&mut atoms, self.key.kind.default_atom());
            if let Some(value) = &self.value {
                atom::put(&mut atoms, value.kind.default_atom());
            }
        }
        let mut cell = Vec::new();
        crate::cell::put(self, self.n_min as usize, &atoms, &mut cell);
        cell
    }
}

fn parse_number(value: Value<'_>) -> Result<u32, Error> {
    if value.as_string().is_some_and(|text| text == "unlimited") {
        return Ok(UNLIMITED);
    }
    match value.as_integer().map(u32::try_from) {
        Some(Ok(number)) if number != UNLIMITED => Ok(number),
        _ => Err(Error::syntax_error(value, "bad min or max value")),
    }
}
