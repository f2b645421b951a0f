//! TLS of connections that this process makes.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::sign::SingleCertAndKey;

use super::config::{ConfigError, OldestVersion, load_certificates, load_identity, load_roots};

/// A client's TLS.
#[derive(Debug, Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    /// Whether the server's certificate must have the name that it was reached by.
    checks_names: bool,
}

impl ClientTls {
    pub(super) fn new(mut config: ClientConfig, checks_names: bool) -> Self {
        // No keys are kept of what is over.
        config.resumption = Resumption::disabled();
        Self { config: Arc::new(config), checks_names }
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }

    pub(crate) fn checks_names(&self) -> bool {
        self.checks_names
    }
}

/// The files of a client that connects only to servers whose name and certificate are in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    /// Certificates that sign those of the servers, in PEM.
    pub ca: PathBuf,
    /// The client's certificate with its chain, and its key, for servers that ask for them.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The oldest version that is accepted.
    pub oldest_version: OldestVersion,
}

impl ClientFiles {
    fn load(&self) -> Result<ClientTls, ConfigError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(self.oldest_version.versions())
            .map_err(|error| ConfigError::new(&self.ca, error))?
            .with_root_certificates(load_roots(&self.ca)?);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = load_certificates(certificate)?;
                let identity = Arc::new(load_identity(chain, certificate, key, &provider)?);
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity)))
            }
        };
        Ok(ClientTls::new(config, true))
    }
}

/// Such a client's TLS. Reloaded files apply to connections that are made from then on.
#[derive(Debug)]
pub struct OutgoingTls(RwLock<ClientTls>);

impl OutgoingTls {
    /// Reads the files.
    pub fn load(files: &ClientFiles) -> Result<Self, ConfigError> {
        files.load().map(|tls| Self(RwLock::new(tls)))
    }

    /// Does from now on as another does.
    pub fn replace(&self, other: &Self) {
        let tls = other.current();
        *self.0.write() = tls;
    }

    /// Returns what applies to the next connection.
    pub fn current(&self) -> ClientTls {
        self.0.read().clone()
    }
}
