//! A certificate for the servers that are measured over TLS, and a client that accepts any.

use crate::storage::Scratch;
use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;
use transport::{Certificates, Choice, ClientTls, Identity, PeerTls, Trust};

/// The certificate's files, removed when this is dropped.
#[derive(Debug)]
pub struct Certificate {
    /// The certificate.
    pub file: PathBuf,
    /// Its key.
    pub key_file: PathBuf,
    /// The client's TLS settings.
    pub client: ClientTls,
    _directory: Scratch,
}

impl Certificate {
    /// Creates one for this machine.
    pub fn new() -> Result<Self> {
        let directory = Scratch::new(None)?;
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
        let (file, key_file) = (directory.path.join("node.pem"), directory.path.join("node.key"));
        fs::write(&file, made.cert.pem())?;
        fs::write(&key_file, made.signing_key.serialize_pem())?;
        let identity = Identity::load(Certificates::load(&file)?, &file, &key_file)?;
        let tls =
            PeerTls::new(&identity, &Trust::AnyServer, &Choice::default()).context("TLS of the load")?;
        Ok(Self { file, key_file, client: tls.client, _directory: directory })
    }
}
