//! Operations as requested: one pass finds the members in any order, and each kind knows which it needs.
//!
//! Errors are made by reading the object again the way the stock server does, so that valid operations do not pay for
//! them.

use std::borrow::Cow;

use crate::error::Error;
use crate::members::{Kinds, Members};
use crate::schema::{DatabaseSchema, TableId, TableSchema};
use wire::json::Value;

/// The kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Insert,
    Select,
    Update,
    Mutate,
    Delete,
    Wait,
    Commit,
    Abort,
    Comment,
    Assert,
}

/// A member of an operation besides `op`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Member {
    Table,
    Where,
    Row,
    Rows,
    Columns,
    Sort,
    Mutations,
    Uuid,
    UuidName,
    Timeout,
    Until,
    Durable,
    Comment,
    Lock,
}

const MEMBERS: usize = Member::Lock as usize + 1;

impl Member {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "table" => Self::Table,
            "where" => Self::Where,
            "row" => Self::Row,
            "rows" => Self::Rows,
            "columns" => Self::Columns,
            "sort" => Self::Sort,
            "mutations" => Self::Mutations,
            "uuid" => Self::Uuid,
            "uuid-name" => Self::UuidName,
            "timeout" => Self::Timeout,
            "until" => Self::Until,
            "durable" => Self::Durable,
            "comment" => Self::Comment,
            "lock" => Self::Lock,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Where => "where",
            Self::Row => "row",
            Self::Rows => "rows",
            Self::Columns => "columns",
            Self::Sort => "sort",
            Self::Mutations => "mutations",
            Self::Uuid => "uuid",
            Self::UuidName => "uuid-name",
            Self::Timeout => "timeout",
            Self::Until => "until",
            Self::Durable => "durable",
            Self::Comment => "comment",
            Self::Lock => "lock",
        }
    }
}

/// A member that a kind of operation accepts.
struct Wanted(Member, Kinds, bool);

const fn must(member: Member, kinds: Kinds) -> Wanted {
    Wanted(member, kinds, true)
}

const fn may(member: Member, kinds: Kinds) -> Wanted {
    Wanted(member, kinds, false)
}

impl Kind {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "insert" => Self::Insert,
            "select" => Self::Select,
            "update" => Self::Update,
            "mutate" => Self::Mutate,
            "delete" => Self::Delete,
            "wait" => Self::Wait,
            "commit" => Self::Commit,
            "abort" => Self::Abort,
            "comment" => Self::Comment,
            "assert" => Self::Assert,
            _ => return None,
        })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Select => "select",
            Self::Update => "update",
            Self::Mutate => "mutate",
            Self::Delete => "delete",
            Self::Wait => "wait",
            Self::Commit => "commit",
            Self::Abort => "abort",
            Self::Comment => "comment",
            Self::Assert => "assert",
        }
    }

    /// Returns true if a read-only session may execute it. COMPAT: `commit` is not one of those.
    pub fn is_read_only(self) -> bool {
        matches!(self, Self::Select | Self::Wait | Self::Abort | Self::Comment | Self::Assert)
    }

    /// Its members, in the order in which the stock server checks them.
    const fn wanted(self) -> &'static [Wanted] {
        use Member::{
            Columns, Comment, Durable, Lock, Mutations, Row, Rows, Sort, Table, Timeout, Until, Uuid,
            UuidName, Where,
        };
        const TABLE: Wanted = must(Table, Kinds::ID);
        const WHERE: Wanted = must(Where, Kinds::ARRAY);
        const COLUMNS: Wanted = may(Columns, Kinds::ARRAY);
        const ROW: Wanted = must(Row, Kinds::OBJECT);
        match self {
            Self::Insert => const { &[TABLE, may(Uuid, Kinds::STRING), may(UuidName, Kinds::ID), ROW] },
            Self::Select => const { &[TABLE, WHERE, COLUMNS, may(Sort, Kinds::ARRAY)] },
            Self::Update => const { &[TABLE, WHERE, ROW] },
            Self::Mutate => const { &[TABLE, WHERE, must(Mutations, Kinds::ARRAY)] },
            Self::Delete => const { &[WHERE, TABLE] },
            Self::Wait => {
                const {
                    &[
                        may(Timeout, Kinds::INTEGER),
                        WHERE,
                        COLUMNS,
                        must(Until, Kinds::STRING),
                        must(Rows, Kinds::ARRAY),
                        TABLE,
                    ]
                }
            }
            Self::Commit => const { &[must(Durable, Kinds::BOOLEAN)] },
            Self::Abort => const { &[] },
            Self::Comment => const { &[must(Comment, Kinds::STRING)] },
            Self::Assert => const { &[must(Lock, Kinds::ID)] },
        }
    }
}

/// An operation with the members that its kind accepts.
pub(super) struct Operation<'a, 's> {
    pub kind: Kind,
    /// The whole object.
    pub json: Value<'a>,
    members: [Option<Value<'a>>; MEMBERS],
    table: Option<(TableId, &'s TableSchema)>,
}

impl<'a, 's> Operation<'a, 's> {
    /// Parses operation `number` of `of`.
    pub fn parse(
        schema: &'s DatabaseSchema,
        json: Value<'a>,
        number: usize,
        of: usize,
    ) -> Result<Self, Error> {
        Self::read(schema, json).ok_or_else(|| syntax_error(schema, json, number, of))
    }

    /// `None` if anything is wrong.
    #[inline]
    fn read(schema: &'s DatabaseSchema, json: Value<'a>) -> Option<Self> {
        let mut cursor = json.cursor();
        if cursor.peek() != b'{' {
            return None;
        }
        let mut members = [None; MEMBERS];
        let mut op = None;
        let mut present: u32 = 0;
        cursor.enter_object();
        while let Some(name) = cursor.next_member() {
            let value = cursor.skip();
            if name == "op" {
                op = Some(value);
                continue;
            }
            let member = Member::from_name(&name)?;
            present |= 1 << member as u32;
            *members.get_mut(member as usize)? = Some(value);
        }
        let kind = Kind::from_name(&op?.as_string()?)?;
        let mut table = None;
        for Wanted(member, kinds, is_required) in kind.wanted() {
            match members.get(*member as usize).copied().flatten() {
                None if *is_required => return None,
                None => {}
                // The name of a table that exists is an id.
                Some(name) if *member == Member::Table => {
                    table = Some(schema.find_table(&name.as_string()?)?)
                }
                Some(value) if !kinds.allow(value) => return None,
                Some(_) => {}
            }
            present &= !(1 << *member as u32);
        }
        (present == 0).then_some(Self { kind, json, members, table })
    }

    /// The table. All kinds that call this have one.
    pub fn table(&self) -> Result<(TableId, &'s TableSchema), Error> {
        self.table.ok_or_else(|| Error::internal("an operation without its table"))
    }

    /// An optional member.
    #[inline]
    pub fn get(&self, member: Member) -> Option<Value<'a>> {
        self.members.get(member as usize).copied().flatten()
    }

    /// A required member.
    pub fn need(&self, member: Member) -> Result<Value<'a>, Error> {
        self.get(member).ok_or_else(|| Error::internal("an operation without a member that it needs"))
    }

    fn text(&self, member: Member) -> Cow<'a, str> {
        self.get(member).and_then(Value::as_string).unwrap_or_default()
    }

    /// For `commit`: whether to wait for the disk.
    pub fn durable(&self) -> bool {
        self.get(Member::Durable).and_then(Value::as_boolean).unwrap_or_default()
    }

    /// For `comment`: its text.
    pub fn comment(&self) -> Cow<'a, str> {
        self.text(Member::Comment)
    }

    /// For `assert`: the lock's name.
    pub fn lock(&self) -> Cow<'a, str> {
        self.text(Member::Lock)
    }

    /// For `wait`: what it waits for.
    pub fn until(&self) -> Cow<'a, str> {
        self.text(Member::Until)
    }
}

/// The error about an operation.
#[cold]
fn syntax_error(schema: &DatabaseSchema, json: Value<'_>, number: usize, of: usize) -> Error {
    let mut members = Members::new(json, format!("ovsdb operation {number} of {of}"));
    if let Some(name) = members.required("op", Kinds::ID).and_then(Value::as_string) {
        match Kind::from_name(&name) {
            None => members.raise(&format!("No operation \"{name}\"")),
            Some(kind) => {
                for Wanted(member, kinds, is_required) in kind.wanted() {
                    let value = match is_required {
                        true => members.required(member.name(), *kinds),
                        false => members.optional(member.name(), *kinds),
                    };
                    if let (Member::Table, Some(name)) = (*member, value.and_then(Value::as_string))
                        && schema.find_table(&name).is_none()
                    {
                        members.raise(&format!("No table named {name}."));
                    }
                }
            }
        }
    }
    match members.finish() {
        Err(error) => error,
        Ok(()) => Error::internal("an operation that was refused without a reason"),
    }
}
