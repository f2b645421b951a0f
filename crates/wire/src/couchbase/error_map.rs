//! The error map: how a client is to treat each status, even one it was not built for (SDK RFC 0059).
//!
//! Version 2 only allows more attributes than version 1, none of which we use: the versions differ only in their
//! number.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use crate::binary::Status;

/// Highest version of the format that we support.
pub const VERSION_MAX: u16 = 2;
/// Revision of the contents; raise it with every change to the table.
const REVISION: u32 = 2;

/// Status, description, attributes.
type Row = (Status, &'static str, &'static [&'static str]);

const TABLE: &[Row] = &[
    (Status::SUCCESS, "Success", &["success"]),
    (Status::KEY_ENOENT, "Not found", &["item-only"]),
    (Status::KEY_EEXISTS, "Exists already, or its CAS is another", &["item-only"]),
    (Status::E2BIG, "Key or value is too big", &["item-only", "invalid-input"]),
    (Status::EINVAL, "Invalid request", &["internal", "invalid-input"]),
    (Status::NOT_STORED, "Not stored: there is nothing to append or prepend to", &["item-only"]),
    (Status::DELTA_BADVAL, "The value is not a number", &["item-only", "invalid-input"]),
    (Status::NOT_MY_VBUCKET, "This node does not serve the vBucket", &["fetch-config", "invalid-input"]),
    (Status::NO_BUCKET, "No bucket is selected", &["conn-state-invalidated"]),
    (Status::LOCKED, "The document is locked", &["item-locked", "item-only", "retry-now"]),
    (Status::NOT_LOCKED, "The document is not locked", &["item-only"]),
    (Status::AUTH_STALE, "The login has expired", &["conn-state-invalidated", "auth"]),
    (Status::AUTH_ERROR, "Login failed", &["conn-state-invalidated", "auth"]),
    (Status::AUTH_CONTINUE, "The login needs another step", &["special-handling", "auth"]),
    (Status::ERANGE, "A number is out of range", &["invalid-input"]),
    (Status::ROLLBACK, "The consumer must roll back", &["dcp", "special-handling"]),
    (Status::EACCESS, "No access", &["support", "auth"]),
    (Status::UNKNOWN_FRAME_INFO, "The frame info is not known", &["support", "invalid-input"]),
    (Status::UNKNOWN_COMMAND, "The operation is not known", &["support"]),
    (Status::ENOMEM, "Out of memory", &["temp", "retry-later"]),
    (Status::NOT_SUPPORTED, "The operation is not supported", &["support"]),
    (Status::EINTERNAL, "Internal error", &["internal", "conn-state-invalidated"]),
    (Status::EBUSY, "Busy; try again", &["temp", "retry-later"]),
    (Status::ETMPFAIL, "Temporary failure; try again", &["temp", "retry-later"]),
    (Status::XATTR_EINVAL, "The extended attributes are malformed", &["invalid-input"]),
    (Status::UNKNOWN_COLLECTION, "There is no such collection", &["item-only", "fetch-config"]),
    (Status::UNKNOWN_SCOPE, "There is no such scope", &["item-only", "fetch-config"]),
    (
        Status::DURABILITY_INVALID_LEVEL,
        "The bucket cannot give this durability level",
        &["item-only", "invalid-input"],
    ),
    (Status::DURABILITY_IMPOSSIBLE, "Too few nodes for this durability level", &["item-only"]),
    (
        Status::SYNC_WRITE_IN_PROGRESS,
        "A durable write of this document is pending",
        &["item-only", "retry-later"],
    ),
    (Status::SYNC_WRITE_AMBIGUOUS, "The outcome of the durable write is not known", &["item-only"]),
    (
        Status::SYNC_WRITE_RE_COMMIT_IN_PROGRESS,
        "A durable write of this document is committed again",
        &["item-only", "retry-later"],
    ),
    (Status::RANGE_SCAN_CANCELLED, "The scan was cancelled", &["support"]),
    (Status::RANGE_SCAN_MORE, "The scan has more keys", &["success"]),
    (Status::RANGE_SCAN_COMPLETE, "The scan is complete", &["success"]),
    (Status::RANGE_SCAN_VB_UUID_NOT_EQUAL, "The vBucket has another history", &["support"]),
    (Status::SUBDOC_PATH_ENOENT, "There is nothing at the path", &["subdoc"]),
    (Status::SUBDOC_PATH_MISMATCH, "Something on the path is of another type", &["subdoc"]),
    (Status::SUBDOC_PATH_EINVAL, "Not a path, or not one for this operation", &["subdoc", "invalid-input"]),
    (Status::SUBDOC_PATH_E2BIG, "The path is too long", &["subdoc", "invalid-input"]),
    (Status::SUBDOC_DOC_E2DEEP, "The document has too many levels", &["subdoc"]),
    (Status::SUBDOC_VALUE_CANTINSERT, "The value cannot be inserted", &["subdoc", "invalid-input"]),
    (Status::SUBDOC_DOC_NOTJSON, "The document is not JSON", &["subdoc"]),
    (Status::SUBDOC_NUM_ERANGE, "The number is out of range", &["subdoc"]),
    (Status::SUBDOC_DELTA_EINVAL, "The delta is not valid", &["subdoc", "invalid-input"]),
    (Status::SUBDOC_PATH_EEXISTS, "There is something at the path", &["subdoc"]),
    (Status::SUBDOC_VALUE_ETOODEEP, "The value has too many levels", &["subdoc", "invalid-input"]),
    (Status::SUBDOC_INVALID_COMBO, "The operations do not go together", &["subdoc", "invalid-input"]),
    (Status::SUBDOC_MULTI_PATH_FAILURE, "Some of the operations failed", &["subdoc", "special-handling"]),
    (Status::SUBDOC_SUCCESS_DELETED, "Success, on a deleted document", &["success", "subdoc"]),
    (Status::SUBDOC_XATTR_INVALID_FLAG_COMBO, "The flags do not go together", &["subdoc", "invalid-input"]),
    (
        Status::SUBDOC_XATTR_INVALID_KEY_COMBO,
        "The extended attributes do not go together",
        &["subdoc", "invalid-input"],
    ),
    (Status::SUBDOC_XATTR_UNKNOWN_MACRO, "There is no such macro", &["subdoc", "invalid-input"]),
    (Status::SUBDOC_XATTR_UNKNOWN_VATTR, "There is no such virtual attribute", &["subdoc", "invalid-input"]),
    (
        Status::SUBDOC_XATTR_CANT_MODIFY_VATTR,
        "A virtual attribute cannot be changed",
        &["subdoc", "invalid-input"],
    ),
    (
        Status::SUBDOC_MULTI_PATH_FAILURE_DELETED,
        "Some of the operations on a deleted document failed",
        &["subdoc", "special-handling"],
    ),
    (
        Status::SUBDOC_INVALID_XATTR_ORDER,
        "Operations on extended attributes must come first",
        &["subdoc", "invalid-input"],
    ),
    (
        Status::SUBDOC_XATTR_UNKNOWN_VATTR_MACRO,
        "There is no such virtual attribute in the macro",
        &["subdoc", "invalid-input"],
    ),
    (
        Status::SUBDOC_CAN_ONLY_REVIVE_DELETED_DOCUMENTS,
        "Only deleted documents can be revived",
        &["subdoc", "invalid-input"],
    ),
    (
        Status::SUBDOC_DELETED_DOCUMENT_CANT_HAVE_VALUE,
        "A deleted document cannot have a value",
        &["subdoc", "invalid-input"],
    ),
];

/// The map in the highest version not above `version`; `None` for version 0, which never existed. Each is made once:
/// anybody may ask for it, as often as they like.
pub fn in_version(version: u16) -> Option<&'static str> {
    static MAPS: LazyLock<Vec<String>> = LazyLock::new(|| (1..=VERSION_MAX).map(encode).collect());
    let index = usize::from(version.min(VERSION_MAX)).checked_sub(1)?;
    MAPS.get(index).map(String::as_str)
}

fn encode(version: u16) -> String {
    let mut errors = Map::new();
    for (status, description, attrs) in TABLE {
        let name = status.name().unwrap_or("UNKNOWN");
        errors
            .insert(format!("{:x}", status.0), json!({ "name": name, "desc": description, "attrs": attrs }));
    }
    Value::from(Map::from_iter([
        ("version".to_owned(), Value::from(version)),
        ("revision".to_owned(), Value::from(REVISION)),
        ("errors".to_owned(), Value::from(errors)),
    ]))
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_is_json_with_hex_codes() {
        for version in 1..=3 {
            let map: Value = serde_json::from_str(in_version(version).unwrap()).unwrap();
            assert_eq!(map["version"], version.min(VERSION_MAX));
            assert_eq!(map["errors"]["1"]["name"], "KEY_ENOENT");
            assert_eq!(map["errors"]["86"]["attrs"][0], "temp");
            assert_eq!(map["errors"]["0"]["attrs"][0], "success");
        }
        assert_eq!(in_version(0), None);
    }

    #[test]
    fn each_status_has_a_name_and_stands_once() {
        for (i, row) in TABLE.iter().enumerate() {
            assert!(row.0.name().is_some());
            assert!(TABLE[i + 1..].iter().all(|other| other.0 != row.0), "{:?} twice", row.0);
        }
    }
}
