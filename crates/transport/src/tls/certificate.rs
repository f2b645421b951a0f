//! Reads certificates.

use std::fmt::Write as _;
use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use rustls::pki_types::CertificateDer;
use sha1::{Digest as _, Sha1};
use sha2::{Sha256, Sha384, Sha512};
use x509_parser::certificate::X509Certificate;
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::prelude::FromDer as _;
use x509_parser::signature_algorithm::SignatureAlgorithm;
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

/// The hash of a server's certificate to which a login may be bound: `tls-server-end-point` of RFC 5929, section 4.1.
/// The hash function is that of the certificate's signature; SHA-256 in place of MD5 and SHA-1, and where there is none
/// (Ed25519), for which the RFC defines nothing.
///
/// `tls-exporter` (RFC 9266) would bind a login to one connection, also between servers that share a certificate;
/// rustls exports keying material from its buffered connections only.
pub(crate) fn end_point(der: &[u8]) -> Arc<[u8]> {
    const WITH_SHA384: [&str; 3] = ["1.2.840.113549.1.1.12", "1.2.840.10045.4.3.3", "2.16.840.1.101.3.4.2.2"];
    const WITH_SHA512: [&str; 3] = ["1.2.840.113549.1.1.13", "1.2.840.10045.4.3.4", "2.16.840.1.101.3.4.2.3"];
    let certificate = X509Certificate::from_der(der).map(|(_, certificate)| certificate);
    let name = certificate.as_ref().map(|certificate| {
        let algorithm = &certificate.signature_algorithm;
        match SignatureAlgorithm::try_from(algorithm) {
            Ok(SignatureAlgorithm::RSASSA_PSS(pss)) => pss.hash_algorithm_oid().to_id_string(),
            _ => algorithm.algorithm.to_id_string(),
        }
    });
    match name.as_deref() {
        Ok(name) if WITH_SHA384.contains(&name) => Sha384::digest(der).as_slice().into(),
        Ok(name) if WITH_SHA512.contains(&name) => Sha512::digest(der).as_slice().into(),
        _ => Sha256::digest(der).as_slice().into(),
    }
}

/// The public key of a certificate of any version: its SubjectPublicKeyInfo, in DER.
pub(super) fn public_key(der: &[u8]) -> Option<&[u8]> {
    X509Certificate::from_der(der).ok().map(|(_, certificate)| certificate.tbs_certificate.subject_pki.raw)
}

/// Returns true if a certificate has no subjectAltName, as all of version 1.
pub(super) fn lacks_hosts(der: &[u8]) -> bool {
    X509Certificate::from_der(der)
        .is_ok_and(|(_, certificate)| matches!(certificate.subject_alternative_name(), Ok(None)))
}

/// When the first of these certificates expires; seconds since 1970.
pub(super) fn first_expiry(chain: &[CertificateDer<'_>]) -> Option<i64> {
    chain.iter().filter_map(|der| Certificate::read(der)).map(|certificate| certificate.not_after).min()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};

    #[test]
    fn the_end_point_is_hashed_as_the_certificate_was() {
        let signed = |algorithm| {
            let key = KeyPair::generate_for(algorithm).unwrap();
            CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap()
        };
        for (algorithm, bytes) in
            [(&PKCS_ECDSA_P256_SHA256, 32), (&PKCS_ECDSA_P384_SHA384, 48), (&PKCS_ED25519, 32)]
        {
            let (one, other) = (signed(algorithm), signed(algorithm));
            assert_eq!(end_point(one.der()).len(), bytes);
            assert_eq!(end_point(one.der()), end_point(one.der()));
            assert_ne!(end_point(one.der()), end_point(other.der()));
        }
        let one = signed(&PKCS_ECDSA_P256_SHA256);
        assert_eq!(*end_point(one.der()), *Sha256::digest(one.der()));
        assert_eq!(end_point(b"no certificate").len(), 32);
    }
}
