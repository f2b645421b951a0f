//! Operation codes: those of the memcached binary protocol, and those Couchbase KV adds.

/// The operation a frame asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opcode(pub u8);

crate::codes::codes! {
    Opcode;
    GET = 0x00;
    SET = 0x01;
    ADD = 0x02;
    REPLACE = 0x03;
    DELETE = 0x04;
    INCREMENT = 0x05;
    DECREMENT = 0x06;
    QUIT = 0x07;
    FLUSH = 0x08;
    GETQ = 0x09;
    NOOP = 0x0a;
    VERSION = 0x0b;
    GETK = 0x0c;
    GETKQ = 0x0d;
    APPEND = 0x0e;
    PREPEND = 0x0f;
    STAT = 0x10;
    SETQ = 0x11;
    ADDQ = 0x12;
    REPLACEQ = 0x13;
    DELETEQ = 0x14;
    INCREMENTQ = 0x15;
    DECREMENTQ = 0x16;
    QUITQ = 0x17;
    FLUSHQ = 0x18;
    APPENDQ = 0x19;
    PREPENDQ = 0x1a;
    VERBOSITY = 0x1b;
    TOUCH = 0x1c;
    GAT = 0x1d;
    GATQ = 0x1e;
    HELLO = 0x1f;
    SASL_LIST_MECHS = 0x20;
    SASL_AUTH = 0x21;
    SASL_STEP = 0x22;
    // COMPAT: memcached uses 0x23 and 0x24 for GATK and GATKQ; Couchbase uses the same codes for IOCTL_GET and
    // IOCTL_SET.
    GATK = 0x23;
    GATKQ = 0x24;
    CONFIG_VALIDATE = 0x25;
    CONFIG_RELOAD = 0x26;
    AUDIT_PUT = 0x27;
    AUDIT_CONFIG_RELOAD = 0x28;
    SHUTDOWN = 0x29;
    SET_BUCKET_THROTTLE_PROPERTIES = 0x2a;
    SET_NODE_THROTTLE_PROPERTIES = 0x2b;
    SET_ACTIVE_ENCRYPTION_KEYS = 0x2d;
    PRUNE_ENCRYPTION_KEYS = 0x2e;
    SET_AUTH_TOKEN = 0x2f;
    SET_VBUCKET = 0x3d;
    GET_VBUCKET = 0x3e;
    DEL_VBUCKET = 0x3f;
    GET_ALL_VB_SEQNOS = 0x48;
    GET_EX = 0x49;
    GET_EX_REPLICA = 0x4a;
    MUTATE_WITH_META = 0x4b;
    DCP_OPEN = 0x50;
    DCP_ADD_STREAM = 0x51;
    DCP_CLOSE_STREAM = 0x52;
    DCP_STREAM_REQ = 0x53;
    DCP_GET_FAILOVER_LOG = 0x54;
    DCP_STREAM_END = 0x55;
    DCP_SNAPSHOT_MARKER = 0x56;
    DCP_MUTATION = 0x57;
    DCP_DELETION = 0x58;
    DCP_EXPIRATION = 0x59;
    DCP_SET_VBUCKET_STATE = 0x5b;
    DCP_NOOP = 0x5c;
    DCP_BUFFER_ACKNOWLEDGEMENT = 0x5d;
    DCP_CONTROL = 0x5e;
    DCP_SYSTEM_EVENT = 0x5f;
    DCP_PREPARE = 0x60;
    DCP_SEQNO_ACKNOWLEDGED = 0x61;
    DCP_COMMIT = 0x62;
    DCP_ABORT = 0x63;
    DCP_SEQNO_ADVANCED = 0x64;
    DCP_OSO_SNAPSHOT = 0x65;
    DCP_CACHED_VALUE = 0x66;
    DCP_CACHE_TRANSFER_END = 0x67;
    STOP_PERSISTENCE = 0x80;
    START_PERSISTENCE = 0x81;
    SET_PARAM = 0x82;
    GET_REPLICA = 0x83;
    SET_CHRONICLE_AUTH_TOKEN = 0x84;
    CREATE_BUCKET = 0x85;
    DELETE_BUCKET = 0x86;
    LIST_BUCKETS = 0x87;
    SELECT_BUCKET = 0x89;
    PAUSE_BUCKET = 0x8a;
    RESUME_BUCKET = 0x8b;
    VALIDATE_BUCKET_CONFIG = 0x8c;
    OBSERVE_SEQNO = 0x91;
    OBSERVE = 0x92;
    EVICT_KEY = 0x93;
    GET_LOCKED = 0x94;
    UNLOCK_KEY = 0x95;
    GET_FAILOVER_LOG = 0x96;
    GET_META = 0xa0;
    GETQ_META = 0xa1;
    SET_WITH_META = 0xa2;
    SETQ_WITH_META = 0xa3;
    ADD_WITH_META = 0xa4;
    ADDQ_WITH_META = 0xa5;
    DEL_WITH_META = 0xa8;
    DELQ_WITH_META = 0xa9;
    ENABLE_TRAFFIC = 0xad;
    DISABLE_TRAFFIC = 0xae;
    IFCONFIG = 0xaf;
    RETURN_META = 0xb2;
    COMPACT_DB = 0xb3;
    SET_CLUSTER_CONFIG = 0xb4;
    GET_CLUSTER_CONFIG = 0xb5;
    GET_RANDOM_KEY = 0xb6;
    SEQNO_PERSISTENCE = 0xb7;
    GET_KEYS = 0xb8;
    COLLECTIONS_SET_MANIFEST = 0xb9;
    COLLECTIONS_GET_MANIFEST = 0xba;
    COLLECTIONS_GET_ID = 0xbb;
    COLLECTIONS_GET_SCOPE_ID = 0xbc;
    SUBDOC_GET = 0xc5;
    SUBDOC_EXISTS = 0xc6;
    SUBDOC_DICT_ADD = 0xc7;
    SUBDOC_DICT_UPSERT = 0xc8;
    SUBDOC_DELETE = 0xc9;
    SUBDOC_REPLACE = 0xca;
    SUBDOC_ARRAY_PUSH_LAST = 0xcb;
    SUBDOC_ARRAY_PUSH_FIRST = 0xcc;
    SUBDOC_ARRAY_INSERT = 0xcd;
    SUBDOC_ARRAY_ADD_UNIQUE = 0xce;
    SUBDOC_COUNTER = 0xcf;
    SUBDOC_MULTI_LOOKUP = 0xd0;
    SUBDOC_MULTI_MUTATION = 0xd1;
    SUBDOC_GET_COUNT = 0xd2;
    SUBDOC_REPLACE_BODY_WITH_XATTR = 0xd3;
    RANGE_SCAN_CREATE = 0xda;
    RANGE_SCAN_CONTINUE = 0xdb;
    RANGE_SCAN_CANCEL = 0xdc;
    PREPARE_SNAPSHOT = 0xe0;
    RELEASE_SNAPSHOT = 0xe1;
    DOWNLOAD_SNAPSHOT = 0xe2;
    GET_FILE_FRAGMENT = 0xe3;
    ISASL_REFRESH = 0xf1;
    GET_CMD_TIMER = 0xf3;
    SET_CTRL_TOKEN = 0xf4;
    GET_CTRL_TOKEN = 0xf5;
    UPDATE_EXTERNAL_USER_PERMISSIONS = 0xf6;
    RBAC_REFRESH = 0xf7;
    AUTH_PROVIDER = 0xf8;
    DROP_PRIVILEGE = 0xfb;
    ADJUST_TIMEOFDAY = 0xfc;
    EWOULDBLOCK_CTL = 0xfd;
    GET_ERROR_MAP = 0xfe;
}

impl Opcode {
    /// Returns true for quiet operations: success is not answered, or, for reads, a miss is not.
    #[inline]
    pub const fn is_quiet(self) -> bool {
        matches!(self.0, 0x09 | 0x0d | 0x11..=0x1a | 0x1e | 0x24 | 0xa1 | 0xa3 | 0xa5 | 0xa9)
    }
}

impl std::fmt::Debug for Opcode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Opcode({:#04x})", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_opcodes_are_those_whose_names_say_so() {
        for code in 0..=255 {
            let opcode = Opcode(code);
            let by_name = opcode.name().is_some_and(|name| {
                (name.ends_with('Q') || name == "GETQ_META" || name.ends_with("Q_WITH_META"))
                    && !matches!(opcode, Opcode::DCP_STREAM_REQ)
            });
            assert_eq!(opcode.is_quiet(), by_name, "{opcode:?}");
        }
    }
}
