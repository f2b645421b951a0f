//! Status codes of answers, with the texts memcached sends in error bodies.

/// The outcome of an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Status(pub u16);

crate::codes::codes! {
    Status;
    SUCCESS = 0x00;
    KEY_ENOENT = 0x01;
    KEY_EEXISTS = 0x02;
    E2BIG = 0x03;
    EINVAL = 0x04;
    NOT_STORED = 0x05;
    DELTA_BADVAL = 0x06;
    NOT_MY_VBUCKET = 0x07;
    NO_BUCKET = 0x08;
    LOCKED = 0x09;
    NOT_LOCKED = 0x0e;
    AUTH_STALE = 0x1f;
    AUTH_ERROR = 0x20;
    AUTH_CONTINUE = 0x21;
    ERANGE = 0x22;
    ROLLBACK = 0x23;
    EACCESS = 0x24;
    UNKNOWN_FRAME_INFO = 0x80;
    UNKNOWN_COMMAND = 0x81;
    ENOMEM = 0x82;
    NOT_SUPPORTED = 0x83;
    EINTERNAL = 0x84;
    EBUSY = 0x85;
    ETMPFAIL = 0x86;
    XATTR_EINVAL = 0x87;
    UNKNOWN_COLLECTION = 0x88;
    UNKNOWN_SCOPE = 0x8c;
    DCP_STREAMID_INVALID = 0x8d;
    DURABILITY_INVALID_LEVEL = 0xa0;
    DURABILITY_IMPOSSIBLE = 0xa1;
    SYNC_WRITE_IN_PROGRESS = 0xa2;
    SYNC_WRITE_AMBIGUOUS = 0xa3;
    SYNC_WRITE_RE_COMMIT_IN_PROGRESS = 0xa4;
    RANGE_SCAN_CANCELLED = 0xa5;
    RANGE_SCAN_MORE = 0xa6;
    RANGE_SCAN_COMPLETE = 0xa7;
    RANGE_SCAN_VB_UUID_NOT_EQUAL = 0xa8;
    SUBDOC_PATH_ENOENT = 0xc0;
    SUBDOC_PATH_MISMATCH = 0xc1;
    SUBDOC_PATH_EINVAL = 0xc2;
    SUBDOC_PATH_E2BIG = 0xc3;
    SUBDOC_DOC_E2DEEP = 0xc4;
    SUBDOC_VALUE_CANTINSERT = 0xc5;
    SUBDOC_DOC_NOTJSON = 0xc6;
    SUBDOC_NUM_ERANGE = 0xc7;
    SUBDOC_DELTA_EINVAL = 0xc8;
    SUBDOC_PATH_EEXISTS = 0xc9;
    SUBDOC_VALUE_ETOODEEP = 0xca;
    SUBDOC_INVALID_COMBO = 0xcb;
    SUBDOC_MULTI_PATH_FAILURE = 0xcc;
    SUBDOC_SUCCESS_DELETED = 0xcd;
    SUBDOC_XATTR_INVALID_FLAG_COMBO = 0xce;
    SUBDOC_XATTR_INVALID_KEY_COMBO = 0xcf;
    SUBDOC_XATTR_UNKNOWN_MACRO = 0xd0;
    SUBDOC_XATTR_UNKNOWN_VATTR = 0xd1;
    SUBDOC_XATTR_CANT_MODIFY_VATTR = 0xd2;
    SUBDOC_MULTI_PATH_FAILURE_DELETED = 0xd3;
    SUBDOC_INVALID_XATTR_ORDER = 0xd4;
    SUBDOC_XATTR_UNKNOWN_VATTR_MACRO = 0xd5;
    SUBDOC_CAN_ONLY_REVIVE_DELETED_DOCUMENTS = 0xd6;
    SUBDOC_DELETED_DOCUMENT_CANT_HAVE_VALUE = 0xd7;
}

impl Status {
    /// The body memcached sends with an error.
    pub const fn memcached_text(self) -> &'static str {
        match self {
            Self::KEY_ENOENT => "Not found",
            Self::KEY_EEXISTS => "Data exists for key.",
            Self::E2BIG => "Too large.",
            Self::EINVAL => "Invalid arguments",
            Self::NOT_STORED => "Not stored.",
            Self::DELTA_BADVAL => "Non-numeric server-side value for incr or decr",
            Self::AUTH_ERROR => "Auth failure.",
            Self::UNKNOWN_COMMAND => "Unknown command",
            Self::ENOMEM => "Out of memory",
            _ => "",
        }
    }
}

impl std::fmt::Debug for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Status({:#06x})", self.0),
        }
    }
}
