//! TLS settings of a port: certificate and key, who may connect, which versions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs};

use parking_lot::{Mutex, RwLock};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WantsServerCert, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SigningKey, SingleCertAndKey};
use rustls::{ConfigBuilder, RootCertStore, ServerConfig, SupportedProtocolVersion};

use super::certificate::{end_point, first_expiry, lacks_hosts, public_key, to_pem};

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
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
    /// Whether clients present certificates, at ports that do not say otherwise.
    pub client_certificates: ClientCertificates,
    /// The oldest version that is accepted.
    pub oldest_version: OldestVersion,
}

impl ServerFiles {
    /// `asked`: what there are ports for, besides those that do as the files' owner says.
    fn load(&self, asked: &BTreeSet<ClientCertificates>) -> Result<Loaded, ConfigError> {
        let provider = Arc::new(ring::default_provider());
        let chain = load_certificates(&self.certificate)?;
        let identity = Arc::new(load_identity(chain, &self.certificate, &self.key, &provider)?);
        let all = asked.iter().copied().chain([self.client_certificates]);
        let config = |asks| self.config(asks, &provider, &identity).map(|config| (asks, config));
        let configs = all.map(config).collect::<Result<_, _>>()?;
        Ok(Loaded::of(configs, self.client_certificates, &identity))
    }

    fn config(
        &self,
        asks: ClientCertificates,
        provider: &Arc<CryptoProvider>,
        identity: &Arc<CertifiedKey>,
    ) -> Result<Arc<ServerConfig>, ConfigError> {
        let builder = ServerConfig::builder_with_provider(Arc::clone(provider))
            .with_protocol_versions(self.oldest_version.versions())
            .map_err(|error| ConfigError::new(&self.certificate, error))?;
        let builder = match (asks, &self.client_ca) {
            (ClientCertificates::None, _) => builder.with_no_client_auth(),
            (_, None) => {
                let what = "a port asks for client certificates, and there is no tls.client_ca";
                return Err(ConfigError::new(&self.certificate, what));
            }
            (_, Some(file)) => {
                let roots = Arc::new(load_roots(file)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider));
                let verifier = match asks {
                    ClientCertificates::Required => verifier,
                    _ => verifier.allow_unauthenticated(),
                };
                builder.with_client_cert_verifier(
                    verifier.build().map_err(|error| ConfigError::new(file, error))?,
                )
            }
        };
        Ok(config_of(builder, identity))
    }
}

fn config_of(
    builder: ConfigBuilder<ServerConfig, WantsServerCert>,
    identity: &Arc<CertifiedKey>,
) -> Arc<ServerConfig> {
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(identity))));
    // Nothing is stored for sessions that are over.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Arc::new(config)
}

impl Loaded {
    /// One configuration for all ports.
    pub fn new(builder: ConfigBuilder<ServerConfig, WantsServerCert>, identity: &Arc<CertifiedKey>) -> Self {
        let configs = [(ClientCertificates::None, config_of(builder, identity))].into();
        Self::of(configs, ClientCertificates::None, identity)
    }

    fn of(
        configs: BTreeMap<ClientCertificates, Arc<ServerConfig>>,
        asks: ClientCertificates,
        identity: &CertifiedKey,
    ) -> Self {
        let (not_after, chain) = (first_expiry(&identity.cert), identity.cert.clone());
        let end_point = end_point(chain.first().map(AsRef::as_ref).unwrap_or_default());
        Self { configs, asks, not_after, chain, end_point }
    }
}

pub(super) fn load_identity(
    chain: Vec<CertificateDer<'static>>,
    certificate: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, ConfigError> {
    // rustls reads no certificate of version 1, which servers may show all the same.
    let certified = chain.first().and_then(|der| public_key(der));
    let certified = certified.ok_or_else(|| {
        ConfigError::new(certificate, "its first certificate cannot be read; allowed: X.509, in PEM")
    })?;
    let signer = load_key(key, provider)?;
    if signer.public_key().is_some_and(|own| own.as_ref() != certified) {
        return Err(ConfigError::new(key, format!("it is not the key of {}", certificate.display())));
    }
    Ok(CertifiedKey::new(chain, signer))
}

/// The key of a PEM file, whatever its label says of its form.
fn load_key(file: &Path, provider: &CryptoProvider) -> Result<Arc<dyn SigningKey>, ConfigError> {
    let der = PrivateKeyDer::from_pem_file(file).map_err(|error| match error {
        _ if fs::read_to_string(file).is_ok_and(|text| text.contains("ENCRYPTED")) => ConfigError::new(
            file,
            format!(
                "the key in it has a passphrase; remove that: openssl pkey -in {} -out FILE",
                file.display()
            ),
        ),
        PemError::NoItemsFound => ConfigError::new(file, "there is no private key in it"),
        error => ConfigError::new(file, error),
    })?;
    let copy = der.clone_key();
    let load = |der| provider.key_provider.load_private_key(der);
    // COMPAT: tools put PKCS #8 between the lines of PKCS #1 (`RSA PRIVATE KEY`), and OpenSSL reads that.
    let relabelled = || {
        let bytes = || copy.secret_der().to_vec();
        let forms = [
            PrivateKeyDer::Pkcs8(bytes().into()),
            PrivateKeyDer::Pkcs1(bytes().into()),
            PrivateKeyDer::Sec1(bytes().into()),
        ];
        forms.into_iter().find_map(|der| load(der).ok())
    };
    load(der).or_else(|error| relabelled().ok_or(error)).map_err(|_| {
        ConfigError::new(
            file,
            "the key in it cannot be used; allowed: RSA of 2048 bits and more, ECDSA on P-256 or P-384, Ed25519",
        )
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
    shared: Arc<Shared>,
    /// Whether clients of this port present certificates, if not as the files' owner says.
    asks: Option<ClientCertificates>,
}

/// What all ports use.
#[derive(Debug)]
struct Shared {
    loaded: RwLock<Loaded>,
    /// What ports ask for of their own.
    asked: Mutex<BTreeSet<ClientCertificates>>,
}

#[derive(Debug)]
pub(super) struct Loaded {
    /// By whether clients present certificates.
    configs: BTreeMap<ClientCertificates, Arc<ServerConfig>>,
    /// Whether they do where a port says nothing.
    asks: ClientCertificates,
    /// When the first certificate of the chain expires; seconds since 1970.
    not_after: Option<i64>,
    /// The certificate and its chain.
    chain: Vec<CertificateDer<'static>>,
    /// The certificate's hash; see [`end_point`].
    end_point: Arc<[u8]>,
}

impl ServerTls {
    /// Reads the files.
    pub fn load(files: &ServerFiles) -> Result<Self, ConfigError> {
        files.load(&BTreeSet::new()).map(Self::of)
    }

    pub(super) fn of(loaded: Loaded) -> Self {
        let shared = Shared { loaded: RwLock::new(loaded), asked: Mutex::default() };
        Self { shared: Arc::new(shared), asks: None }
    }

    /// The TLS of a port that asks for client certificates in its own way, whatever the files' owner says from now on.
    /// A reload of either applies to both.
    pub fn asking(&self, asks: ClientCertificates, files: &ServerFiles) -> Result<Self, ConfigError> {
        self.shared.asked.lock().insert(asks);
        self.reload(files)?;
        Ok(Self { shared: Arc::clone(&self.shared), asks: Some(asks) })
    }

    /// Reads the files again, or others. After an error everything is as before.
    pub fn reload(&self, files: &ServerFiles) -> Result<(), ConfigError> {
        let loaded = files.load(&self.shared.asked.lock())?;
        *self.shared.loaded.write() = loaded;
        Ok(())
    }

    /// When the certificate presented to connections, or one of its chain, expires; seconds since 1970.
    pub fn not_after(&self) -> Option<i64> {
        self.shared.loaded.read().not_after
    }

    /// Returns the certificate presented to connections, and its chain, in PEM.
    pub fn chain_pem(&self) -> String {
        self.shared.loaded.read().chain.iter().map(|certificate| to_pem(certificate)).collect()
    }

    /// Returns true if the certificate presented to connections names no host, so that most clients refuse it.
    pub fn lacks_hosts(&self) -> bool {
        self.shared.loaded.read().chain.first().is_some_and(|der| lacks_hosts(der))
    }

    /// Returns what a connection that begins now uses, and the hash of the certificate that it is shown.
    pub(crate) fn current(&self) -> Option<(Arc<ServerConfig>, Arc<[u8]>)> {
        let loaded = self.shared.loaded.read();
        let config = loaded.configs.get(&self.asks.unwrap_or(loaded.asks))?;
        Some((Arc::clone(config), Arc::clone(&loaded.end_point)))
    }
}
