//! What a connection to another node asks for until streams can be.

use kv::NodeContext;
use wire::binary::{Asked, Opcode, Status};
use wire::couchbase::Feature;
use wire::dcp::{Open, open};
use wire::sasl::{ClientExchange, Expected, Hash};

use super::super::dcp::REPLICATION;
use super::{BUFFER_BYTES, Link, NOOP_INTERVAL_S, Stop};

const HASH: Hash = Hash::Sha512;

const FEATURES: &[Feature] = &[
    Feature::XATTR,
    Feature::XERROR,
    Feature::SELECT_BUCKET,
    Feature::SNAPPY,
    Feature::JSON,
    Feature::COLLECTIONS,
];

/// How far a connection is.
pub(super) enum Phase {
    New,
    Hello,
    Challenge(ClientExchange),
    Proof(Expected),
    Bucket,
    Open,
    /// So many settings have not been answered.
    Controls(usize),
    Manifest,
    Ready,
}

impl Link {
    /// Asks for the first time.
    pub(super) fn say_hello(&mut self) {
        let value: Vec<u8> = FEATURES.iter().flat_map(|feature| feature.0.to_be_bytes()).collect();
        let agent = format!("dormouse {}", self.node);
        self.ask(Opcode::HELLO, &Asked { key: agent.as_bytes(), value: &value, ..Asked::default() });
        self.phase = Phase::Hello;
    }

    /// Takes the answer to what was asked last, and asks what comes next.
    pub(super) fn go_on(
        &mut self,
        opcode: Opcode,
        status: Status,
        value: &[u8],
        cx: &mut NodeContext,
    ) -> Result<(), Stop> {
        let is_next = match opcode {
            Opcode::SASL_AUTH => status == Status::AUTH_CONTINUE,
            _ => status == Status::SUCCESS,
        };
        if !is_next {
            let text = String::from_utf8_lossy(value.get(..value.len().min(200)).unwrap_or_default());
            return Err(format!("it answers {opcode:?} with {status:?} {text}").into());
        }
        if opcode == Opcode::COLLECTIONS_GET_MANIFEST && matches!(self.phase, Phase::Manifest) {
            // It may have to be taken later: the phase stays until then.
            self.take_manifest(value, cx)?;
        }
        self.phase = match (std::mem::replace(&mut self.phase, Phase::New), opcode) {
            (Phase::Hello, Opcode::HELLO) => {
                if self.replication.user.is_empty() {
                    return Err("no user is configured: see replication.user".to_owned().into());
                }
                let nonce = format!("{:016x}{:016x}", cx.node.nonce(), cx.node.nonce());
                let end_point = self.end_point.as_deref();
                if self.replication.uses_tls && end_point.is_none() {
                    return Err("its certificate is not known".to_owned().into());
                }
                let (exchange, first) =
                    ClientExchange::start(HASH, &self.replication.user, &nonce, end_point);
                let key = exchange.mechanism().name().as_bytes();
                self.ask(Opcode::SASL_AUTH, &Asked { key, value: &first, ..Asked::default() });
                Phase::Challenge(exchange)
            }
            (Phase::Challenge(exchange), Opcode::SASL_AUTH) => {
                let key = exchange.mechanism().name().as_bytes();
                let proved = exchange.prove(value, self.replication.password.as_bytes());
                let (proof, expected) = proved.map_err(|error| format!("login: {error}"))?;
                self.ask(Opcode::SASL_STEP, &Asked { key, value: &proof, ..Asked::default() });
                Phase::Proof(expected)
            }
            (Phase::Proof(expected), Opcode::SASL_STEP) => {
                if !expected.is(value) {
                    return Err("it does not know the user's password".to_owned().into());
                }
                let name = self.copier.bucket().name().to_owned();
                self.ask(Opcode::SELECT_BUCKET, &Asked { key: name.as_bytes(), ..Asked::default() });
                Phase::Bucket
            }
            (Phase::Bucket, Opcode::SELECT_BUCKET) => {
                let name = format!(
                    "{REPLICATION}{}->{}:{}",
                    self.copier.peer(),
                    self.node,
                    self.copier.bucket().name()
                );
                let flags = open::flags::PRODUCER
                    | open::flags::INCLUDE_XATTRS
                    | open::flags::INCLUDE_DELETE_TIMES
                    | open::flags::INCLUDE_DELETED_USER_XATTRS;
                let name = name.get(..name.len().min(open::NAME_MOST)).unwrap_or("replication").as_bytes();
                let extras = Open { flags, name }.extras();
                self.ask(Opcode::DCP_OPEN, &Asked { extras: &extras, key: name, ..Asked::default() });
                Phase::Open
            }
            (Phase::Open, Opcode::DCP_OPEN) => {
                let (interval, buffer) = (NOOP_INTERVAL_S.to_string(), BUFFER_BYTES.to_string());
                let node = self.node.clone();
                let controls = [
                    ("enable_noop", "true"),
                    ("set_noop_interval", &*interval),
                    ("connection_buffer_size", &*buffer),
                    ("enable_expiry_opcode", "true"),
                    ("enable_sync_writes", "true"),
                    ("consumer_name", &*node),
                ];
                for (name, value) in controls {
                    let (key, value) = (name.as_bytes(), value.as_bytes());
                    self.ask(Opcode::DCP_CONTROL, &Asked { key, value, ..Asked::default() });
                }
                Phase::Controls(controls.len())
            }
            (Phase::Controls(1), Opcode::DCP_CONTROL) => {
                self.ask_manifest();
                Phase::Manifest
            }
            (Phase::Controls(left), Opcode::DCP_CONTROL) => Phase::Controls(left - 1),
            (Phase::Manifest, Opcode::COLLECTIONS_GET_MANIFEST) => {
                self.ready_ms = Some(cx.now.mono_ms());
                // From now on news are looked after.
                self.has_news = true;
                Phase::Ready
            }
            _ => return Err(format!("it answers {opcode:?}, which was not asked").into()),
        };
        Ok(())
    }
}
