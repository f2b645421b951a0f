//! TLS settings of a port: certificate and key, who may connect, which versions.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WantsServerCert, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ConfigBuilder, RootCertStore, ServerConfig, SupportedProtocolVersion};

use super::certificate::{end_point, first_expiry, to_pem};

/// Why the files of a configuration cannot be used.
#[derive(Debug)]
pub struct ConfigError {
    file: PathBuf,
    what: String,
}

impl ConfigError {
    pub(super) fn new(file: &Path, what: impl fmt::Display) -> Self {
        Self { file: file.to_owned(), what: what.to_string() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.file.display(), self.what)
    }
}

impl std::error::Error for ConfigError {}

/// Whether clients present certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCertificates {
    /// None are requested.
    #[default]
    None,
    /// A certificate that is presented must be known; clients without one are let in.
    Optional,
    /// A client without a known certificate is refused.
    Required,
}

/// The oldest version that is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OldestVersion {
    /// TLS 1.2, and 1.3.
    #[default]
    Tls12,
    /// TLS 1.3 only.
    Tls13,
}

impl OldestVersion {
    pub(super) fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        static BOTH: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];
        match self {
            Self::Tls12 => &BOTH,
            Self::Tls13 => &BOTH[..1],
        }
    }
}

/// The files and choices of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// The certificate and its chain, in PEM.
    pub certificate: PathBuf,
    /// Its key, in PEM.
    pub key: PathBuf,
    /// Certificates that sign those of clients, in PEM.
    pub client_ca: Option<PathBuf>,
    /// Whether clients present certificates.
    pub client_certificates: ClientCertificates,
    /// The oldest version that is accepted.
    pub oldest_version: OldestVersion,
}

impl ServerFiles {
    fn load(&self) -> Result<Loaded, ConfigError> {
        let provider = Arc::new(ring::default_provider());
        let chain = load_certificates(&self.certificate)?;
        let identity = load_identity(chain, &self.certificate, &self.key, &provider)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(self.oldest_version.versions())
            .map_err(|error| ConfigError::new(&self.certificate, error))?;
        let builder = match (&self.client_ca, self.client_certificates) {
            (Some(file), ClientCertificates::Optional | ClientCertificates::Required) => {
                let roots = Arc::new(load_roots(file)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = match self.client_certificates {
                    ClientCertificates::Required => verifier,
                    _ => verifier.allow_unauthenticated(),
                };
                builder.with_client_cert_verifier(
                    verifier.build().map_err(|error| ConfigError::new(file, error))?,
                )
            }
            _ => builder.with_no_client_auth(),
        };
        Ok(Loaded::new(builder, Arc::new(identity)))
    }
}

impl Loaded {
    pub fn new(builder: ConfigBuilder<ServerConfig, WantsServerCert>, identity: Arc<CertifiedKey>) -> Self {
        let (not_after, chain) = (first_expiry(&identity.cert), identity.cert.clone());
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
        // Nothing is stored for sessions that are over.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let end_point = end_point(chain.first().map(AsRef::as_ref).unwrap_or_default());
        Self { config: Arc::new(config), not_after, chain, end_point }
    }
}

pub(super) fn load_identity(
    chain: Vec<CertificateDer<'static>>,
    certificate: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, ConfigError> {
    let der = PrivateKeyDer::from_pem_file(key).map_err(|error| match error {
        PemError::NoItemsFound => ConfigError::new(key, "there is no private key in it"),
        error => ConfigError::new(key, error),
    })?;
    CertifiedKey::from_der(chain, der, provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            ConfigError::new(key, format!("it is not the key of {}", certificate.display()))
        }
        error => ConfigError::new(key, error),
    })
}

pub(super) fn load_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let certificates = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| ConfigError::new(file, error))?;
    if certificates.is_empty() {
        return Err(ConfigError::new(file, "there is no certificate in it"));
    }
    Ok(certificates)
}

pub(super) fn load_roots(file: &Path) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    for certificate in load_certificates(file)? {
        roots.add(certificate).map_err(|error| ConfigError::new(file, error))?;
    }
    Ok(roots)
}

/// A server's TLS as used by its ports. Reloaded files apply to connections that come from then on.
#[derive(Debug)]
pub struct ServerTls {
    loaded: RwLock<Loaded>,
}

#[derive(Debug)]
pub(super) struct Loaded {
    pub config: Arc<ServerConfig>,
    /// When the first certificate of the chain expires; seconds since 1970.
    pub not_after: Option<i64>,
    /// The certificate and its chain.
    pub chain: Vec<CertificateDer<'static>>,
    /// The certificate's hash; see [`end_point`].
    pub end_point: Arc<[u8]>,
}

impl ServerTls {
    /// Reads the files.
    pub fn load(files: &ServerFiles) -> Result<Self, ConfigError> {
        files.load().map(Self::of)
    }

    pub(super) fn of(loaded: Loaded) -> Self {
        Self { loaded: RwLock::new(loaded) }
    }

    /// Reads the files again, or others. After an error everything is as before.
    pub fn reload(&self, files: &ServerFiles) -> Result<(), ConfigError> {
        let loaded = files.load()?;
        *self.loaded.write() = loaded;
        Ok(())
    }

    /// When the certificate presented to connections, or one of its chain, expires; seconds since 1970.
    pub fn not_after(&self) -> Option<i64> {
        self.loaded.read().not_after
    }

    /// Returns the certificate presented to connections, and its chain, in PEM.
    pub fn chain_pem(&self) -> String {
        self.loaded.read().chain.iter().map(|certificate| to_pem(certificate)).collect()
    }

    /// Returns what a connection that begins now uses, and the hash of the certificate that it is shown.
    pub(crate) fn current(&self) -> (Arc<ServerConfig>, Arc<[u8]>) {
        let loaded = self.loaded.read();
        (Arc::clone(&loaded.config), Arc::clone(&loaded.end_point))
    }
}
