//! Monitors: sessions that are told what changes.
//!
//! ```text
//!   session ──┐                      ┌─ TablePlan (columns, select, filter)
//!   session ──┼─ member ─ Group ─────┼─ TablePlan
//!   session ──┘   id, behind         └─ ...
//!
//!   database, table ─> groups that look at the table
//! ```
//!
//! Monitors that ask for the same thing form one [`Group`]: what a commit means to them is written once, and copied or
//! shared. A member that takes too little of its output is left behind at a commit; it is told all that happened since
//! in one piece when it has caught its breath. What is asked for does not change: a monitor whose conditions change
//! moves to another group.

mod filter;
mod groups;
mod notification;
mod plan;
mod request;

pub(crate) use groups::{GroupId, Groups, Member};
pub(crate) use notification::{Notification, write_initial, write_refiltered};
pub(crate) use plan::{Spec, TablePlan};
pub(crate) use request::{parse_condition_change, parse_requests};

use std::ops::{BitAnd, BitOr, BitOrAssign};

/// Which notifications a monitor gets.
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
    /// What a method of a request asks for.
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
    /// Rows that are there when the monitor starts.
    pub const INITIAL: Self = Self(1);
    /// Rows that come.
    pub const INSERT: Self = Self(2);
    /// Rows that go.
    pub const DELETE: Self = Self(4);
    /// Rows that change.
    pub const MODIFY: Self = Self(8);
    /// All of them.
    pub const ALL: Self = Self(15);

    /// Whether one of `other` is among these.
    #[inline]
    pub fn has(self, other: Self) -> bool {
        self & other != Self::default()
    }

    /// For keys.
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
