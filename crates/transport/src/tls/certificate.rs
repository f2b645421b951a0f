//! Reads certificates.

use std::fmt::Write as _;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use rustls::pki_types::CertificateDer;
use sha1::{Digest as _, Sha1};
use x509_parser::certificate::X509Certificate;
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::X509Name;

/// The contents of a certificate, as far as they are needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The first common name of its subject.
    pub common_name: Option<String>,
    /// Its subject in one line: `/C=US/CN=name`.
    pub subject: String,
    /// Its issuer, likewise.
    pub issuer: String,
    /// From when on it is valid; seconds since 1970.
    pub not_before: i64,
    /// Until when it is valid; seconds since 1970.
    pub not_after: i64,
}

impl Certificate {
    /// Reads a certificate in DER. Returns `None` if it is not one.
    pub fn read(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let common_name = subject.iter_common_name().next();
        Some(Self {
            common_name: common_name.and_then(|name| name.as_str().ok()).map(str::to_owned),
            subject: in_one_line(subject),
            issuer: in_one_line(certificate.issuer()),
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
        })
    }

    /// Returns true if its subject is its issuer.
    pub fn is_self_signed(&self) -> bool {
        self.subject == self.issuer
    }
}

fn in_one_line(name: &X509Name<'_>) -> String {
    let mut line = String::new();
    for attribute in name.iter_attributes() {
        let kind = attribute.attr_type();
        let value = attribute.as_str().unwrap_or_default();
        let _ = match oid2abbrev(kind, oid_registry()) {
            Ok(short) => write!(line, "/{short}={value}"),
            Err(_) => write!(line, "/{kind}={value}"),
        };
    }
    line
}

/// A certificate in PEM.
pub fn to_pem(der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

/// The SHA-1 of a certificate, in the form shown to people: `d2:d3:...`.
pub fn fingerprint(der: &[u8]) -> String {
    let bytes = Sha1::digest(der);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// When the first of these certificates expires; seconds since 1970.
pub(super) fn first_expiry(chain: &[CertificateDer<'_>]) -> Option<i64> {
    chain.iter().filter_map(|der| Certificate::read(der)).map(|certificate| certificate.not_after).min()
}
