//! Monitors: sessions that are notified of changes.
//!
//! ```text
//!   session ──┐                      ┌─ TablePlan (columns, select, filter)
//!   session ──┼─ member ─ Group ─────┼─ TablePlan
//!   session ──┘   id, behind         └─ ...
//!
//!   database, table ─> groups that monitor the table
//! ```
//!
//! Monitors that ask for the same thing form one [`Group`]: what a commit means to them is written once, and copied or
//! shared. A member that reads too little of its output is left behind at a commit; once it has caught up with its
//! output it is sent everything that has happened since, in one piece. What a group asks for does not change: a monitor
//! whose conditions change moves to another group.

mod filter;
mod groups;
mod notification;
mod plan;
mod request;

pub(crate) use groups::{GroupId, Groups, Member, MemberId};
pub(crate) use notification::{Notification, write_initial, write_refiltered};
pub(crate) use plan::{Spec, TablePlan};
pub(crate) use request::{parse_condition_change, parse_requests};

use std::ops::{BitAnd, BitOr, BitOrAssign};

/// Which notifications a monitor receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Version {
    /// `monitor`, `update`: whole rows.
    One,
    /// `monitor_cond`, `update2`: differences.
    Two,
    /// `monitor_cond_since`, `update3`: differences and the transaction's id.
    Three,
}

impl Version {
    /// The version that a request's method asks for.
    pub fn of_request(method: &str) -> Option<Self> {
        match method {
            "monitor" => Some(Self::One),
            "monitor_cond" => Some(Self::Two),
            "monitor_cond_since" => Some(Self::Three),
            _ => None,
        }
    }

    /// The method of its notifications.
    pub fn method(self) -> &'static str {
        match self {
            Self::One => "update",
            Self::Two => "update2",
            Self::Three => "update3",
        }
    }
}

/// A set of kinds of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Select(u8);

impl Select {
    /// Rows that exist when the monitor starts.
    pub const INITIAL: Self = Self(1);
    /// Rows that are inserted.
    pub const INSERT: Self = Self(2);
    /// Rows that are deleted.
    pub const DELETE: Self = Self(4);
    /// Rows that are modified.
    pub const MODIFY: Self = Self(8);
    /// All of them.
    pub const ALL: Self = Self(15);

    /// Returns true if any of `other` is in this set.
    #[inline]
    pub fn has(self, other: Self) -> bool {
        self & other != Self::default()
    }

    /// The set as bits, for keys.
    pub fn bits(self) -> u8 {
        self.0
    }
}

impl BitOr for Select {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Select {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for Select {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}
