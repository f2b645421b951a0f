//! Properties of a binary request that follow from its opcode: one row for each supported opcode.

use kv::requests::Class;
use kv::users::roles::Rights;
use wire::binary::Opcode;

/// On which ports the request's key names a document.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    /// On none: there is no key, or it names a bucket, a group of statistics, or a mechanism.
    None,
    Memcached,
    Couchbase,
    Both,
}

/// What the body after the key is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Body {
    /// Empty, or a part of the query.
    Asked,
    /// The document's value, or parts of it: a long one is received directly into item memory.
    Stored,
}

/// How the existing value is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    /// It is needed, or at least the item is rewritten: if it is only on disk, the request waits for it.
    Needed,
    /// It is not read.
    Unseen,
}

/// Whether a request may require more copies before it is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Durability {
    Never,
    Allowed,
}

/// Whether a request may preserve the expiry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PreserveTtl {
    Never,
    Allowed,
}

/// The scope of the request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// A document, or a query.
    One,
    /// All requests before and after it: it waits for those before it, and those behind it wait for it.
    All,
    /// The session: requests behind it can only be parsed once it has been executed.
    Session,
}

/// Whether it is executed before a required login, on memcached ports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Login {
    After,
    Before,
}

/// Which rights the user needs on the document's collection, on Couchbase ports.
#[derive(Clone, Copy)]
enum Needs {
    /// None here: a query may need some.
    Nothing,
    Read,
    Write,
    ReadWrite,
    /// Reading, system attributes included.
    ReadAll,
    /// Writing, system attributes included.
    WriteAll,
}

impl Needs {
    const fn rights(self) -> Rights {
        match self {
            Self::Nothing => Rights::NONE,
            Self::Read => Rights::READ,
            Self::Write => Rights::WRITE,
            Self::ReadWrite => Rights::READ.and(Rights::WRITE),
            Self::ReadAll => Rights::READ.and(Rights::SYSTEM_ATTRIBUTES),
            Self::WriteAll => Rights::WRITE.and(Rights::SYSTEM_ATTRIBUTES),
        }
    }
}

#[derive(Clone, Copy)]
struct Row {
    key: Key,
    body: Body,
    value: Value,
    durability: Durability,
    preserve_ttl: PreserveTtl,
    scope: Scope,
    login: Login,
    rights: Rights,
    /// See [`is_slow`].
    is_slow: bool,
}

/// An opcode without a row: an error, or a query about no document.
const OTHER: Row = Row {
    key: Key::None,
    body: Body::Asked,
    value: Value::Needed,
    durability: Durability::Never,
    preserve_ttl: PreserveTtl::Never,
    scope: Scope::One,
    login: Login::After,
    rights: Needs::Nothing.rights(),
    is_slow: true,
};

macro_rules! rows {
    ($(
        $name:ident = $key:ident $body:ident $value:ident $durability:ident $preserve_ttl:ident $scope:ident
            $login:ident $needs:ident;
    )*) => {
        const TABLE: [Row; 256] = {
            let mut table = [OTHER; 256];
            $(table[Opcode::$name.0 as usize] = Row {
                key: Key::$key,
                body: Body::$body,
                value: Value::$value,
                durability: Durability::$durability,
                preserve_ttl: PreserveTtl::$preserve_ttl,
                scope: Scope::$scope,
                login: Login::$login,
                rights: Needs::$needs.rights(),
                is_slow: matches!(Key::$key, Key::None) || is_subdocument(Opcode::$name),
            };)*
            let mut quick = [Opcode::NOOP, Opcode::VERSION, Opcode::QUIT, Opcode::QUITQ].as_slice();
            while let [Opcode(code), rest @ ..] = quick {
                table[*code as usize].is_slow = false;
                quick = rest;
            }
            table
        };
        /// Which opcodes have a row.
        #[cfg(test)]
        const LISTED: [bool; 256] = {
            let mut listed = [false; 256];
            $(listed[Opcode::$name.0 as usize] = true;)*
            listed
        };
    };
}

rows! {
    // opcode          key       body   value  durable preserve scope   login    needs
    GET             = Both      Asked  Needed Never   Never   One     After Read;
    GETQ            = Both      Asked  Needed Never   Never   One     After Read;
    GETK            = Both      Asked  Needed Never   Never   One     After Read;
    GETKQ           = Both      Asked  Needed Never   Never   One     After Read;
    SET             = Both      Stored Unseen Allowed Allowed One     After Write;
    SETQ            = Both      Stored Unseen Allowed Allowed One     After Write;
    ADD             = Both      Stored Unseen Allowed Allowed One     After Write;
    ADDQ            = Both      Stored Unseen Allowed Allowed One     After Write;
    REPLACE         = Both      Stored Unseen Allowed Allowed One     After Write;
    REPLACEQ        = Both      Stored Unseen Allowed Allowed One     After Write;
    APPEND          = Both      Stored Needed Allowed Allowed One     After Write;
    APPENDQ         = Both      Stored Needed Allowed Allowed One     After Write;
    PREPEND         = Both      Stored Needed Allowed Allowed One     After Write;
    PREPENDQ        = Both      Stored Needed Allowed Allowed One     After Write;
    DELETE          = Both      Asked  Unseen Allowed Allowed One     After Write;
    DELETEQ         = Both      Asked  Unseen Allowed Allowed One     After Write;
    INCREMENT       = Both      Asked  Needed Allowed Allowed One     After ReadWrite;
    INCREMENTQ      = Both      Asked  Needed Allowed Allowed One     After ReadWrite;
    DECREMENT       = Both      Asked  Needed Allowed Allowed One     After ReadWrite;
    DECREMENTQ      = Both      Asked  Needed Allowed Allowed One     After ReadWrite;
    TOUCH           = Both      Asked  Needed Never   Allowed One     After Write;
    GAT             = Both      Asked  Needed Never   Allowed One     After ReadWrite;
    GATQ            = Both      Asked  Needed Never   Allowed One     After ReadWrite;
    GATK            = Memcached Asked  Needed Never   Never   One     After ReadWrite;
    GATKQ           = Memcached Asked  Needed Never   Never   One     After ReadWrite;
    GET_REPLICA     = Couchbase Asked  Needed Never   Never   One     After Read;
    GET_EX          = Couchbase Asked  Needed Never   Never   One     After ReadAll;
    GET_EX_REPLICA  = Couchbase Asked  Needed Never   Never   One     After ReadAll;
    GET_LOCKED      = Couchbase Asked  Needed Never   Never   One     After ReadWrite;
    UNLOCK_KEY      = Couchbase Asked  Unseen Never   Never   One     After Write;
    GET_META        = Couchbase Asked  Unseen Never   Never   One     After Read;
    GETQ_META       = Couchbase Asked  Unseen Never   Never   One     After Read;
    SET_WITH_META   = Couchbase Stored Unseen Never   Never   One     After WriteAll;
    SETQ_WITH_META  = Couchbase Stored Unseen Never   Never   One     After WriteAll;
    ADD_WITH_META   = Couchbase Stored Unseen Never   Never   One     After WriteAll;
    ADDQ_WITH_META  = Couchbase Stored Unseen Never   Never   One     After WriteAll;
    DEL_WITH_META   = Couchbase Stored Unseen Never   Never   One     After WriteAll;
    DELQ_WITH_META  = Couchbase Stored Unseen Never   Never   One     After WriteAll;
    MUTATE_WITH_META = Couchbase Stored Unseen Never  Never   One     After WriteAll;
    RETURN_META     = Couchbase Stored Unseen Never   Never   One     After ReadWrite;
    SUBDOC_GET      = Couchbase Asked  Needed Never   Never   One     After Read;
    SUBDOC_EXISTS   = Couchbase Asked  Needed Never   Never   One     After Read;
    SUBDOC_DICT_ADD = Couchbase Stored Needed Allowed Allowed One     After ReadWrite;
    SUBDOC_DICT_UPSERT = Couchbase Stored Needed Allowed Allowed One  After Write;
    SUBDOC_DELETE   = Couchbase Asked  Needed Allowed Allowed One     After ReadWrite;
    SUBDOC_REPLACE  = Couchbase Stored Needed Allowed Allowed One     After ReadWrite;
    SUBDOC_ARRAY_PUSH_LAST = Couchbase Stored Needed Allowed Allowed One After Write;
    SUBDOC_ARRAY_PUSH_FIRST = Couchbase Stored Needed Allowed Allowed One After Write;
    SUBDOC_ARRAY_INSERT = Couchbase Stored Needed Allowed Allowed One After ReadWrite;
    SUBDOC_ARRAY_ADD_UNIQUE = Couchbase Stored Needed Allowed Allowed One After ReadWrite;
    SUBDOC_COUNTER  = Couchbase Asked  Needed Allowed Allowed One     After ReadWrite;
    SUBDOC_MULTI_LOOKUP = Couchbase Asked Needed Never Never  One     After Read;
    SUBDOC_MULTI_MUTATION = Couchbase Stored Needed Allowed Allowed One After Write;
    SUBDOC_GET_COUNT = Couchbase Asked Needed Never   Never   One     After Read;
    SUBDOC_REPLACE_BODY_WITH_XATTR = Couchbase Asked Needed Allowed Allowed One After ReadWrite;
    VERSION         = None      Asked  Needed Never   Never   One     Before Nothing;
    SASL_LIST_MECHS = None      Asked  Needed Never   Never   One     Before Nothing;
    SASL_AUTH       = None      Asked  Needed Never   Never   Session Before Nothing;
    SASL_STEP       = None      Asked  Needed Never   Never   Session Before Nothing;
    HELLO           = None      Asked  Needed Never   Never   Session After Nothing;
    SELECT_BUCKET   = None      Asked  Needed Never   Never   Session After Nothing;
    QUIT            = None      Asked  Needed Never   Never   Session After Nothing;
    QUITQ           = None      Asked  Needed Never   Never   Session After Nothing;
    FLUSH           = None      Asked  Needed Never   Never   All     After Nothing;
    FLUSHQ          = None      Asked  Needed Never   Never   All     After Nothing;
}

static ROWS: [Row; 256] = TABLE;

#[inline]
fn row(opcode: Opcode) -> &'static Row {
    &ROWS[usize::from(opcode.0)]
}

/// Returns true if the key names a document, on a memcached port.
#[inline]
pub(super) fn has_memcached_key(opcode: Opcode) -> bool {
    matches!(row(opcode).key, Key::Memcached | Key::Both)
}

/// Returns true if the key names a document, on a Couchbase port.
#[inline]
pub(super) fn has_couchbase_key(opcode: Opcode) -> bool {
    matches!(row(opcode).key, Key::Couchbase | Key::Both)
}

/// Returns true if a request without a document may take long, whatever it asks for: it visits much of a bucket, or
/// derives keys from a password.
pub(super) fn takes_long(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::STAT
            | Opcode::SASL_AUTH
            | Opcode::SASL_STEP
            | Opcode::RANGE_SCAN_CREATE
            | Opcode::RANGE_SCAN_CONTINUE
            | Opcode::GET_KEYS
            | Opcode::GET_RANDOM_KEY
            | Opcode::DCP_OPEN
            | Opcode::COLLECTIONS_GET_MANIFEST
    )
}

/// Returns true for requests that add their value to that of a document.
pub(super) fn extends(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::APPEND | Opcode::APPENDQ | Opcode::PREPEND | Opcode::PREPENDQ)
}

/// Returns true for operations at paths in a document.
pub(super) const fn is_subdocument(opcode: Opcode) -> bool {
    matches!(opcode.0, 0xc5..=0xd3)
}

/// Returns true if the body is a value to store.
#[inline]
pub(super) fn stores_body(opcode: Opcode) -> bool {
    row(opcode).body == Body::Stored
}

/// Returns true if a request needs the existing value, or at least rewrites the item.
pub(super) fn needs_value(opcode: Opcode) -> bool {
    row(opcode).value == Value::Needed
}

/// Returns true if a request may carry a durability level.
pub(super) fn may_be_durable(opcode: Opcode) -> bool {
    row(opcode).durability == Durability::Allowed
}

/// Returns true if a request may carry preserve-TTL.
pub(super) fn may_preserve_ttl(opcode: Opcode) -> bool {
    row(opcode).preserve_ttl == PreserveTtl::Allowed
}

/// What a request about a document does, for the record of requests.
pub(super) fn class(opcode: Opcode) -> Class {
    match opcode {
        _ if is_subdocument(opcode) => Class::Subdocument,
        Opcode::DELETE | Opcode::DELETEQ => Class::Delete,
        Opcode::INCREMENT | Opcode::INCREMENTQ | Opcode::DECREMENT | Opcode::DECREMENTQ => Class::Counter,
        Opcode::RETURN_META => Class::Write,
        _ if row(opcode).rights.meet(Rights::READ) => Class::Read,
        _ if row(opcode).rights.meet(Rights::WRITE) => Class::Write,
        _ => Class::Other,
    }
}

/// Returns the rights that a request needs on its document's collection, on a Couchbase port.
#[inline]
pub(super) fn needed_rights(opcode: Opcode) -> Rights {
    row(opcode).rights
}

/// Returns true if requests behind this one can only be parsed once it has been executed.
#[inline]
pub(super) fn changes_session(opcode: Opcode) -> bool {
    row(opcode).scope == Scope::Session
}

/// Returns true if a request may be the work of a hundred ordinary ones: one about no document, or about what is in it.
#[inline]
pub(super) fn is_slow(opcode: Opcode) -> bool {
    row(opcode).is_slow
}

/// Returns true if a request waits for all requests before it, and those behind it wait for it.
pub(super) fn is_fence(opcode: Opcode) -> bool {
    row(opcode).scope != Scope::One
}

/// Returns true if it may be sent before the login, on a memcached port that requires one.
pub(super) fn is_allowed_before_login(opcode: Opcode) -> bool {
    row(opcode).login == Login::Before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_do_not_contradict_themselves() {
        for opcode in (0..=255).map(Opcode) {
            let row = row(opcode);
            let name = format!("{opcode:?}");
            assert!(row.body == Body::Asked || row.key != Key::None, "{name}: a value is stored under a key");
            assert!(
                row.durability == Durability::Never || row.preserve_ttl == PreserveTtl::Allowed,
                "{name}"
            );
            assert!((row.key == Key::None) == (row.rights == Rights::NONE), "{name}: documents need rights");
            assert!(row.key == Key::None || row.scope == Scope::One, "{name}: about one document");
            assert!(
                row.login == Login::After || row.key == Key::None,
                "{name}: no document before the login"
            );
            // A quiet opcode has the properties of its non-quiet counterpart.
            if let Some(loud) = opcode.name().and_then(|name| name.strip_suffix('Q')) {
                let loud = (0..=255).map(Opcode).find(|other| other.name() == Some(loud));
                if let Some(loud) = loud.filter(|_| opcode.is_quiet()) {
                    let same = (row.key, row.body, row.value, row.durability, row.preserve_ttl, row.scope);
                    let other = super::row(loud);
                    let other = (
                        other.key,
                        other.body,
                        other.value,
                        other.durability,
                        other.preserve_ttl,
                        other.scope,
                    );
                    assert!(same == other, "{name}");
                }
            }
        }
    }

    /// `REWRITE=1` writes the page's table.
    #[test]
    fn the_page_has_the_table() {
        const HEADING: &str = "\n| code | opcode |";
        let mut table = format!(
            "{HEADING} document key | body | old value | durability | preserve TTL | order | before login | rights |\n\
             |---|---|---|---|---|---|---|---|---|---|\n"
        );
        let yes = |holds: bool| if holds { "yes" } else { "" };
        for opcode in (0..=255).map(Opcode) {
            let Some(name) = opcode.name().filter(|_| LISTED[usize::from(opcode.0)]) else { continue };
            let row = row(opcode);
            let key = match row.key {
                Key::None => "",
                Key::Memcached => "memcached",
                Key::Couchbase => "Couchbase",
                Key::Both => "both",
            };
            let body = if row.body == Body::Stored { "stored" } else { "" };
            let value = if row.key != Key::None && row.value == Value::Needed { "needed" } else { "" };
            let order = match row.scope {
                Scope::One => "",
                Scope::All => "fence",
                Scope::Session => "fence, changes the session",
            };
            let (durable, preserves) =
                (row.durability == Durability::Allowed, row.preserve_ttl == PreserveTtl::Allowed);
            let rights = [
                (Rights::READ, "read"),
                (Rights::WRITE, "write"),
                (Rights::SYSTEM_ATTRIBUTES, "system attributes"),
            ];
            let rights = rights.iter().filter(|(rights, _)| row.rights.contain(*rights));
            let rights: Vec<_> = rights.map(|(_, name)| *name).collect();
            let rights = rights.join(", ");
            table += &format!(
                "| 0x{:02x} | {name} | {key} | {body} | {value} | {} | {} | {order} | {} | {rights} |\n",
                opcode.0,
                yes(durable),
                yes(preserves),
                yes(row.login == Login::Before),
            );
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/opcodes.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (intro, _) = page.split_once(HEADING).unwrap();
        let expected = format!("{intro}{table}");
        if std::env::var_os("REWRITE").is_some() {
            std::fs::write(path, expected).unwrap();
        } else {
            assert_eq!(page, expected, "docs/opcodes.md is not what REWRITE=1 writes");
        }
    }
}
