//! TLS of remotes: `ssl:` and `pssl:`.
//!
//! ```text
//!   accepted, or connected ──current──> identity, authorities, choices ──Handshakes──> shaken ──take_shaken──> a session
//! ```
//! Nothing watches the files or the columns that name them: whenever a handshake begins they are checked, and read if
//! they have changed. Existing sessions are kept.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use transport::{Certificate, Certificates, Choice, Handshakes, Identity, PeerTls, Stream, TlsError, Trust};

use super::database_remote::{RemoteError, first_string};
use super::event_loop::EventLoop;
use super::logger::{Level, text_of};
use super::remote::{DatabaseRemote, Endpoint};

/// The error of an attempt to use TLS when it is not set up.
pub(super) const NOT_SET_UP: &str = "Protocol not available";
/// The error of a TLS session that could not be established.
const PROTOCOL_ERROR: &str = "Protocol error";

const MODULE: &str = "stream_ssl";
const DATABASE: &str = "db:";

/// The TLS options of the command line. Each is a literal, or `db:DATABASE,TABLE,COLUMN`, the place of the value in a
/// database.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsOptions {
    /// The private key file.
    pub private_key: Option<String>,
    /// The certificate file.
    pub certificate: Option<String>,
    /// The file of the CA certificates that sign peers' certificates; `none` trusts every peer.
    pub ca_cert: Option<String>,
    /// Creates that file from what the first server presents, if it does not exist.
    pub bootstrap: bool,
    /// The file of certificates that peers are sent in addition to this server's.
    pub peer_ca_cert: Option<String>,
    /// The TLS versions that are allowed.
    pub protocols: Option<String>,
    /// The cipher suites of TLS 1.2.
    pub ciphers: Option<String>,
    /// The cipher suites of TLS 1.3.
    pub ciphersuites: Option<String>,
    /// The name of the server to connect to, in place of its host's.
    pub server_name: Option<String>,
}

/// The current values of the options.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Inputs {
    /// The options, with values from the databases in place of references to them.
    options: TlsOptions,
    /// The state of the files when they were checked.
    stamps: Vec<Option<Stamp>>,
}

/// Identifies a version of a file: device, inode number, size, time of the last change.
type Stamp = (u64, u64, u64, i64, i64);

fn stamp(file: &str) -> Option<Stamp> {
    let of = fs::metadata(file).ok()?;
    Some((of.dev(), of.ino(), of.size(), of.mtime(), of.mtime_nsec()))
}

/// What was read from them.
#[derive(Default)]
struct Loaded {
    inputs: Inputs,
    has_key: bool,
    has_certificate: bool,
    trust: Option<Trust>,
    peer: Option<PeerTls>,
}

/// The connection that a handshake belongs to.
pub(super) enum Whose {
    /// Accepted through this remote.
    Accepted { name: String, remote: Box<str> },
    /// An attempt to connect; `bootstraps`: the server's certificate is not verified, but adopted.
    Outgoing { name: Box<str>, attempt: u64, bootstraps: bool },
}

struct Shaken {
    whose: Whose,
    stream: io::Result<Stream>,
}

/// TLS of the loop's remotes.
pub(super) struct Tls {
    options: TlsOptions,
    loaded: Loaded,
    /// Started when first needed.
    handshakes: Option<Handshakes>,
    shaken: Arc<Mutex<Vec<Shaken>>>,
    waker: Arc<mio::Waker>,
}

impl Tls {
    pub fn new(waker: Arc<mio::Waker>) -> Self {
        Self {
            options: TlsOptions::default(),
            loaded: Loaded::default(),
            handshakes: None,
            shaken: Arc::default(),
            waker,
        }
    }

    /// Starts a handshake on another thread; the loop is woken when it is over.
    fn begin(&mut self, stream: Stream, whose: Whose) -> io::Result<()> {
        let handshakes = match &mut self.handshakes {
            Some(handshakes) => handshakes,
            none => none.insert(Handshakes::start()?),
        };
        let (shaken, waker) = (Arc::clone(&self.shaken), Arc::clone(&self.waker));
        handshakes.begin(stream, move |stream| {
            shaken.lock().push(Shaken { whose, stream });
            let _ = waker.wake();
        });
        Ok(())
    }
}

impl EventLoop {
    /// Sets the TLS options and reads the files they name. Fails with a line for each option that points nowhere in the
    /// databases.
    pub fn set_tls(&mut self, options: TlsOptions) -> Result<(), String> {
        self.tls.options = options;
        let (inputs, errors) = self.tls_inputs();
        if !errors.is_empty() {
            return Err(errors.concat());
        }
        self.load_tls(inputs);
        Ok(())
    }

    /// The current values of the options, and their errors, line by line.
    fn tls_inputs(&self) -> (Inputs, Vec<String>) {
        let mut errors = Vec::new();
        let mut read = |option: &Option<String>| {
            let text = option.as_deref()?;
            let Some(rest) = text.strip_prefix(DATABASE) else { return Some(text.to_owned()) };
            let found = DatabaseRemote::parse(rest).ok_or(RemoteError::Syntax).and_then(|remote| {
                let database = self.server.database(&remote.database);
                first_string(database.ok_or_else(|| RemoteError::Database(remote.database.clone()))?, &remote)
            });
            found.unwrap_or_else(|error| {
                errors.push(format!("\"{text}\": {error}\n"));
                None
            })
        };
        let given = &self.tls.options;
        let options = TlsOptions {
            private_key: read(&given.private_key),
            certificate: read(&given.certificate),
            ca_cert: read(&given.ca_cert),
            bootstrap: given.bootstrap,
            peer_ca_cert: read(&given.peer_ca_cert),
            protocols: read(&given.protocols),
            ciphers: read(&given.ciphers),
            ciphersuites: read(&given.ciphersuites),
            server_name: read(&given.server_name),
        };
        let files = [&options.private_key, &options.certificate, &options.ca_cert, &options.peer_ca_cert];
        let stamps = files.iter().map(|file| file.as_deref().and_then(stamp)).collect();
        (Inputs { options, stamps }, errors)
    }

    /// Reads what has changed since the last time.
    fn refresh_tls(&mut self) {
        let (inputs, errors) = self.tls_inputs();
        if inputs != self.tls.loaded.inputs {
            for error in errors {
                self.log("ovsdb_server", Level::Warning, error.trim_end());
            }
            self.load_tls(inputs);
        }
    }

    fn load_tls(&mut self, inputs: Inputs) {
        let mut loaded = Loaded::default();
        let mut identity = None;
        let options = &inputs.options;
        if let (Some(certificate), Some(key)) = (&options.certificate, &options.private_key) {
            identity = self.load_identity(certificate, key, options, &mut loaded);
        }
        loaded.trust = options.ca_cert.as_deref().and_then(|file| self.load_trust(file));
        let choice = self.choice_of(options);
        if let (Some(identity), Some(trust)) = (&identity, &loaded.trust) {
            match PeerTls::new(identity, trust, &choice) {
                Ok(peer) => loaded.peer = Some(peer),
                Err(error) => self.log(MODULE, Level::Error, &format!("no usable TLS settings: {error}")),
            }
        }
        self.tls.loaded = Loaded { inputs, ..loaded };
    }

    fn load_identity(
        &self,
        certificate: &str,
        key: &str,
        options: &TlsOptions,
        loaded: &mut Loaded,
    ) -> Option<Identity> {
        let (file, key_file) = (Path::new(certificate), Path::new(key));
        let failed = |what: &str, why: &dyn std::fmt::Display| {
            self.log(MODULE, Level::Error, &format!("{what}: {why}"));
        };
        let mut chain = match Certificates::load(file) {
            Ok(chain) => chain,
            Err(error) => {
                failed("SSL_use_certificate_file", &error);
                if let Err(error) = fs::File::open(key_file) {
                    failed("SSL_use_PrivateKey_file", &format_args!("{key}: {}", text_of(&error)));
                }
                return None;
            }
        };
        loaded.has_certificate = true;
        if let Some(file) = &options.peer_ca_cert {
            match Certificates::load(Path::new(file)) {
                Ok(more) => chain = chain.and(&more),
                Err(error) => failed("failed to load the CA certificates for peers", &error),
            }
        }
        match Identity::load(chain, file, key_file) {
            Ok(identity) => {
                loaded.has_key = true;
                Some(identity)
            }
            Err(error) => {
                failed("SSL_use_PrivateKey_file", &error);
                None
            }
        }
    }

    fn load_trust(&self, file: &str) -> Option<Trust> {
        if file == "none" {
            let text = "Peer certificate validation disabled (this is a security risk)";
            self.log(MODULE, Level::Warning, text);
            return Some(Trust::Anybody);
        }
        if self.tls.options.bootstrap && !Path::new(file).exists() {
            return Some(Trust::AnyServer);
        }
        match Certificates::load(Path::new(file)) {
            Ok(certificates) => Some(Trust::Authorities(certificates)),
            Err(error) => {
                let text = format!("failed to load client certificates from {error}");
                self.log(MODULE, Level::Error, &text);
                None
            }
        }
    }

    fn choice_of(&self, options: &TlsOptions) -> Choice {
        let mut choice = Choice::default();
        if let Some(list) = &options.protocols {
            match versions_of(list) {
                Ok(Versions { tls12, tls13, too_old }) => {
                    for version in too_old {
                        let text = format!("{version}: this version is not spoken any more");
                        self.log(MODULE, Level::Warning, &text);
                    }
                    (choice.tls12, choice.tls13) = (tls12, tls13);
                }
                Err(word) => {
                    self.log(MODULE, Level::Error, &format!("{word}: SSL protocol not recognized"));
                }
            }
        }
        let no_match = |what: &str| {
            let text = format!("{what}: error:0A0000B9:SSL routines::no cipher match");
            self.log(MODULE, Level::Error, &text);
        };
        if let Some(list) = &options.ciphers
            && !choice.choose_ciphers(list)
        {
            no_match("SSL_CTX_set_cipher_list");
        }
        if let Some(list) = &options.ciphersuites
            && !choice.choose_suites(list)
        {
            no_match("SSL_CTX_set_ciphersuites");
        }
        choice
    }

    /// Returns true if TLS is set up now. If `loud`, logs what is missing.
    pub(super) fn can_use_tls(&mut self, loud: bool) -> bool {
        self.refresh_tls();
        let loaded = &self.tls.loaded;
        if loaded.peer.is_some() || !loud {
            return loaded.peer.is_some();
        }
        let wanted = [
            (loaded.has_key, "Private key"),
            (loaded.has_certificate, "Certificate"),
            (loaded.trust.is_some(), "CA certificate"),
        ];
        for (_, what) in wanted.iter().filter(|(is_there, _)| !is_there) {
            self.log(MODULE, Level::Error, &format!("{what} must be configured to use SSL"));
        }
        false
    }

    /// Starts a handshake with a peer that was accepted through a remote; `listener` is its name in logs.
    pub(super) fn accept_tls(&mut self, stream: Stream, name: String, remote: Box<str>, listener: &str) {
        self.can_use_tls(true);
        let begun = match &self.tls.loaded.peer {
            Some(tls) => stream.into_tls(&tls.server),
            None => Err(io::Error::other(NOT_SET_UP)),
        };
        let whose = Whose::Accepted { name, remote };
        if let Err(error) = begun.and_then(|stream| self.tls.begin(stream, whose)) {
            let text = format!("{listener}: accept failed: {}", text_of(&error));
            self.log("ovsdb_jsonrpc_server", Level::Warning, &text);
        }
    }

    /// Starts a handshake with the server of a connection attempt.
    pub(super) fn connect_tls(
        &mut self,
        stream: Stream,
        name: &str,
        endpoint: &Endpoint,
        attempt: u64,
    ) -> io::Result<()> {
        self.refresh_tls();
        let loaded = &self.tls.loaded;
        let tls = loaded.peer.as_ref().ok_or_else(|| io::Error::other(NOT_SET_UP))?;
        let host = endpoint.host();
        let server = loaded.inputs.options.server_name.as_deref().unwrap_or(&host);
        let stream = stream.into_tls_client(&tls.client, server)?;
        // The trusted certificates may have changed when the handshake is over.
        let bootstraps = matches!(loaded.trust, Some(Trust::AnyServer));
        self.tls.begin(stream, Whose::Outgoing { name: name.into(), attempt, bootstraps })
    }

    /// Continues with the connections whose handshakes are over.
    pub(super) fn take_shaken(&mut self) {
        if self.tls.handshakes.is_none() {
            return;
        }
        let shaken = std::mem::take(&mut *self.tls.shaken.lock());
        for Shaken { whose, stream } in shaken {
            match whose {
                Whose::Accepted { name, remote } => self.accepted_tls(name, remote, stream),
                Whose::Outgoing { name, attempt, bootstraps } => {
                    if self.outgoing.get(&name).is_some_and(|outgoing| outgoing.awaits(attempt)) {
                        self.connected_tls(&name, bootstraps, stream);
                    }
                }
            }
        }
    }

    fn accepted_tls(&mut self, name: String, remote: Box<str>, stream: io::Result<Stream>) {
        // The remote may be gone by now.
        if !self.remotes.in_force.contains_key(&remote) {
            return;
        }
        match stream {
            Ok(stream) => {
                let options = self.options_of(&remote);
                self.add_session(stream, name, remote, &options);
            }
            Err(error) => {
                self.log_tls_failure("SSL_accept", &name, &error);
                self.log("jsonrpc", Level::Warning, &format!("{name}: receive error: {PROTOCOL_ERROR}"));
                let text = format!("{name}: connection dropped ({PROTOCOL_ERROR})");
                self.log("reconnect", Level::Warning, &text);
            }
        }
    }

    fn connected_tls(&mut self, name: &str, bootstraps: bool, stream: io::Result<Stream>) {
        match stream {
            Ok(stream) if bootstraps => {
                self.bootstrap(&stream);
                self.attempt_failed(name, PROTOCOL_ERROR);
            }
            Ok(stream) => self.connected(name, stream),
            Err(error) => {
                self.log_tls_failure("SSL_connect", name, &error);
                self.attempt_failed(name, PROTOCOL_ERROR);
            }
        }
    }

    /// Logs why a TLS session failed.
    pub(super) fn log_tls_failure(&self, doing: &str, name: &str, error: &io::Error) {
        self.log(MODULE, Level::Warning, &format!("{doing}: {}", transport::in_words_of_openssl(error)));
        if TlsError::of(error).is_some_and(|failure| failure.begins_with == Some(b'{')) {
            let text = format!("{name}: received JSON-RPC data on SSL channel");
            self.log(MODULE, Level::Warning, &text);
        }
    }

    /// From now on trusts the CA that a server presented. This connection was not verified, so it is made again.
    fn bootstrap(&mut self, stream: &Stream) {
        let Some(file) = self.tls.loaded.inputs.options.ca_cert.clone() else { return };
        let cannot = |why: &str| {
            self.log(MODULE, Level::Error, &format!("could not bootstrap CA cert: {why}"));
        };
        let Some(der) = stream.peer_certificates().next_back() else {
            return cannot("no certificate presented by peer");
        };
        let Some(certificate) = Certificate::read(der) else {
            return cannot("the certificate presented by peer cannot be read");
        };
        if !certificate.is_self_signed() {
            cannot(&format!(
                "the last certificate presented by peer is not self-signed ({})",
                certificate.subject
            ));
            return self.log(
                MODULE,
                Level::Error,
                "the server must also send its CA certificate (--peer-ca-cert)",
            );
        }
        let written = fs::OpenOptions::new().write(true).create_new(true).mode(0o444).open(&file).and_then(
            |mut opened| {
                opened.write_all(transport::to_pem(der).as_bytes())?;
                opened.sync_all()
            },
        );
        match written {
            Ok(()) => {
                let text = format!("successfully bootstrapped CA cert to {file}");
                self.log(MODULE, Level::Information, &text);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let text = format!("reading CA cert {file} created by another process");
                return self.log(MODULE, Level::Information, &text);
            }
            Err(error) => return cannot(&format!("creating {file} failed: {}", text_of(&error))),
        }
        let (subject, fingerprint) = (&certificate.subject, transport::fingerprint(der));
        let text = format!("Trusting CA cert from {file} ({subject}) (fingerprint {fingerprint})");
        self.log(MODULE, Level::Information, &text);
        self.log(MODULE, Level::Information, "killing successful connection to retry using CA cert");
    }
}

/// The TLS versions that a list allows.
#[derive(Debug, Default, PartialEq, Eq)]
struct Versions {
    tls12: bool,
    tls13: bool,
    /// Versions in the list that are not supported.
    too_old: Vec<String>,
}

/// Parses a list such as `TLSv1.2,TLSv1.3` or `TLSv1.2+`. Fails with the word that is not a version.
fn versions_of(list: &str) -> Result<Versions, &str> {
    let mut versions = Versions::default();
    for word in list.split([' ', ',', '\t']).filter(|word| !word.is_empty()) {
        let (name, and_newer) = match word.strip_suffix('+') {
            Some(name) => (name, true),
            None => (word, false),
        };
        match name {
            "TLSv1" | "TLSv1.1" => versions.too_old.push(name.to_owned()),
            "TLSv1.2" => versions.tls12 = true,
            "TLSv1.3" => versions.tls13 = true,
            _ => return Err(word),
        }
        if and_newer {
            versions.tls12 |= name != "TLSv1.3";
            versions.tls13 = true;
        }
    }
    Ok(versions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_versions() {
        let of =
            |list| versions_of(list).map(|Versions { tls12, tls13, too_old }| (tls12, tls13, too_old.len()));
        assert_eq!(of("TLSv1.2"), Ok((true, false, 0)));
        assert_eq!(of("TLSv1.1, TLSv1.2,TLSv1.3"), Ok((true, true, 1)));
        assert_eq!(of("TLSv1+"), Ok((true, true, 1)));
        assert_eq!(of("TLSv1.2+"), Ok((true, true, 0)));
        assert_eq!(of("TLSv1.3+"), Ok((false, true, 0)));
        assert_eq!(of("TLSv1.2,SSLv3"), Err("SSLv3"));
    }
}
