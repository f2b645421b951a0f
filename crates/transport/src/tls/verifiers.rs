//! Which peers are trusted if only their authority is known: Open vSwitch does not check host names.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};

use super::certificate::Certificate;

/// What a peer's certificate is checked against. That the peer has its key is checked in any case.
#[derive(Debug)]
pub(super) struct Peers {
    authorities: Option<Authorities>,
    algorithms: WebPkiSupportedAlgorithms,
}

#[derive(Debug)]
struct Authorities {
    certificates: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
}

impl Peers {
    /// Trusts certificates signed by one of these, and these themselves.
    pub fn signed_by(
        certificates: Vec<CertificateDer<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, VerifierBuilderError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates.iter().cloned());
        let roots = Arc::new(roots);
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider));
        let authorities = Authorities { certificates, roots, clients: builder.build()? };
        Ok(Self { authorities: Some(authorities), algorithms: provider.signature_verification_algorithms })
    }

    /// Knows no authority: every server is trusted, and no client.
    pub fn unknown(provider: &CryptoProvider) -> Self {
        Self { authorities: None, algorithms: provider.signature_verification_algorithms }
    }
}

impl Authorities {
    /// Returns true for a certificate that is trusted for its own sake and valid now. A chain of one certificate has no
    /// other root.
    fn include(&self, certificate: &CertificateDer<'_>, now: UnixTime) -> Result<bool, Error> {
        if !self.certificates.iter().any(|known| known.as_ref() == certificate.as_ref()) {
            return Ok(false);
        }
        let contents = Certificate::read(certificate).ok_or(CertificateError::BadEncoding)?;
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now > contents.not_after {
            return Err(CertificateError::Expired.into());
        }
        if now < contents.not_before {
            return Err(CertificateError::NotValidYet.into());
        }
        Ok(true)
    }
}

/// Common to both kinds of verifiers: a peer that presents a certificate must have its key.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, certificate, signature, &self.algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, certificate, signature, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}

impl ClientCertVerifier for Peers {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.authorities.as_ref().map_or(&[], |authorities| authorities.clients.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let authorities = self.authorities.as_ref().ok_or(CertificateError::UnknownIssuer)?;
        if authorities.include(end_entity, now)? {
            return Ok(ClientCertVerified::assertion());
        }
        authorities.clients.verify_client_cert(end_entity, intermediates, now)
    }

    signatures!();
}

impl ServerCertVerifier for Peers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(authorities) = &self.authorities
            && !authorities.include(end_entity, now)?
        {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let (roots, algorithms) = (&authorities.roots, self.algorithms.all);
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    signatures!();
}
