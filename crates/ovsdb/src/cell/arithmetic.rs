//! Arithmetic on all elements of a cell of numbers, as `mutate` does it.

use super::atoms;
use super::sort::Builder;
use crate::atom::Atom;
use crate::column_type::ColumnType;
use crate::error::Error;

/// An arithmetic mutator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `+=`
    Add,
    /// `-=`
    Subtract,
    /// `*=`
    Multiply,
    /// `/=`
    Divide,
    /// `%=`, for integers only.
    Modulo,
}

impl Operator {
    /// The mutator's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "+=",
            Self::Subtract => "-=",
            Self::Multiply => "*=",
            Self::Divide => "/=",
            Self::Modulo => "%=",
        }
    }

    /// The operator of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Add, Self::Subtract, Self::Multiply, Self::Divide, Self::Modulo]
            .into_iter()
            .find(|operator| operator.name() == name)
    }

    /// COMPAT: where stock 3.1.0 wraps or crashes (a negative integer times 0), this is exact or out of range.
    fn integer(self, one: i64, other: i64) -> Result<i64, Error> {
        let result = match self {
            Self::Add => one.checked_add(other),
            Self::Subtract => one.checked_sub(other),
            Self::Multiply => multiply(one, other),
            Self::Divide | Self::Modulo if other == 0 => return Err(division_by_zero()),
            Self::Divide => one.checked_div(other),
            Self::Modulo => one.checked_rem(other),
        };
        result.ok_or_else(|| self.out_of_range())
    }

    fn real(self, one: f64, other: f64) -> Result<f64, Error> {
        let result = match self {
            Self::Add => one + other,
            Self::Subtract => one - other,
            Self::Multiply => one * other,
            Self::Divide | Self::Modulo if other == 0.0 => return Err(division_by_zero()),
            Self::Divide => one / other,
            Self::Modulo => one % other,
        };
        if result.is_finite() { Ok(result) } else { Err(self.out_of_range()) }
    }

    #[cold]
    fn out_of_range(self) -> Error {
        Error::range_error(format!("Result of \"{}\" operation is out of range.", self.name()))
    }
}

/// COMPAT: the stock server's bounds reject some products that would fit. Of two positive integers: when the first is
/// at least the greatest integer divided by the second, e.g. `1 * 2^62`. Of two negative ones: when the square of the
/// second does not fit, whatever the first is.
fn multiply(one: i64, other: i64) -> Option<i64> {
    let is_refused = match (one.signum(), other.signum()) {
        (1, 1) => one >= i64::MAX / other,
        (-1, -1) => other.checked_mul(other).is_none(),
        _ => false,
    };
    if is_refused { None } else { one.checked_mul(other) }
}

#[cold]
fn division_by_zero() -> Error {
    Error::domain_error("Division by zero.")
}

/// Appends the cell with `operator argument` applied to each element (of a column of integers or reals, not a map) and
/// checks the results. After an error `out` is unchanged.
pub fn arithmetic(
    kind: &ColumnType,
    cell: &[u8],
    operator: Operator,
    argument: &Atom<'_>,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let mut results = Vec::with_capacity(super::len(kind, cell));
    for (element, _) in atoms(kind, cell) {
        results.push(match (element, argument) {
            (Atom::Integer(one), Atom::Integer(other)) => Atom::Integer(operator.integer(one, *other)?),
            (Atom::Real(one), Atom::Real(other)) => Atom::Real(operator.real(one, *other)?),
            _ => return Err(Error::internal("arithmetic on other than numbers")),
        });
    }
    for result in &results {
        kind.key.check(result)?;
    }
    let mut builder = Builder::new(kind, out);
    for result in results {
        builder.push(out, result, None);
    }
    builder.finish(out).map_err(|_| {
        let name = operator.name();
        Error::constraint_violation(format!("Result of \"{name}\" operation contains duplicates."))
    })
}
