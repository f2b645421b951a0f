//! TLS of a process that both listens and connects under one identity, as in Open vSwitch.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CipherSuite, ClientConfig, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion};

use super::certificate::Certificate;
use super::client::ClientTls;
use super::config::{ConfigError, Loaded, ServerTls, load_certificates, load_identity};
use super::verifiers::Peers;

/// The certificates of a PEM file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificates(Vec<CertificateDer<'static>>);

impl Certificates {
    /// Reads them; there is at least one.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        load_certificates(file).map(Self)
    }

    /// The contents of the first one.
    pub fn first(&self) -> Option<Certificate> {
        self.0.first().and_then(|der| Certificate::read(der))
    }

    /// These, followed by others.
    #[must_use]
    pub fn and(mut self, others: &Self) -> Self {
        self.0.extend_from_slice(&others.0);
        self
    }
}

/// A certificate with its chain, and its key.
#[derive(Debug, Clone)]
pub struct Identity(Arc<CertifiedKey>);

impl Identity {
    /// Reads the key of the first certificate.
    pub fn load(chain: Certificates, certificate: &Path, key: &Path) -> Result<Self, ConfigError> {
        load_identity(chain.0, certificate, key, &ring::default_provider()).map(|key| Self(Arc::new(key)))
    }
}

/// Whose certificates are accepted.
#[derive(Debug, Clone)]
pub enum Trust {
    /// Those signed by one of these, and these themselves; peers must present one.
    Authorities(Certificates),
    /// Anyone's; clients are not asked for any.
    Anybody,
    /// Any server's; no client's.
    AnyServer,
}

/// The versions and cipher suites in use.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// TLS 1.2.
    pub tls12: bool,
    /// TLS 1.3.
    pub tls13: bool,
    /// Cipher suites, the best first.
    suites: Vec<SupportedCipherSuite>,
}

impl Default for Choice {
    fn default() -> Self {
        Self { tls12: true, tls13: true, suites: ring::default_provider().cipher_suites }
    }
}

/// The TLS 1.2 cipher suites in OpenSSL's terms: the name, and the keywords that select it.
const TLS12_SUITES: [(CipherSuite, &str, &str); 6] = [
    (
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "aECDSA ECDSA AES AES256 AESGCM SHA384",
    ),
    (
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        "ECDHE-RSA-AES256-GCM-SHA384",
        "aRSA RSA AES AES256 AESGCM SHA384",
    ),
    (
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        "aECDSA ECDSA CHACHA20",
    ),
    (
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        "ECDHE-RSA-CHACHA20-POLY1305",
        "aRSA RSA CHACHA20",
    ),
    (
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "aECDSA ECDSA AES AES128 AESGCM SHA256",
    ),
    (
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        "ECDHE-RSA-AES128-GCM-SHA256",
        "aRSA RSA AES AES128 AESGCM SHA256",
    ),
];
/// The keywords that select all of them.
const ALL_WORDS: [&str; 9] =
    ["ALL", "DEFAULT", "HIGH", "FIPS", "ECDHE", "EECDH", "kECDHE", "kEECDH", "TLSv1.2"];

impl Choice {
    /// Restricts the TLS 1.2 cipher suites to those that a list in OpenSSL's syntax selects. Returns false if it
    /// selects none.
    pub fn choose_ciphers(&mut self, list: &str) -> bool {
        let mut chosen: Vec<usize> = Vec::new();
        let mut banned = [false; TLS12_SUITES.len()];
        for word in list.split([':', ',', ' ', ';']).filter(|word| !word.is_empty()) {
            let (sign, words) = match word.split_at_checked(1) {
                Some((sign @ ("!" | "-" | "+" | "@"), rest)) => (sign, rest),
                _ => ("", word),
            };
            for (place, suite) in TLS12_SUITES.iter().enumerate() {
                if !words.split('+').all(|word| answers_to(suite, word)) {
                    continue;
                }
                let at = chosen.iter().position(|other| *other == place);
                match (sign, at) {
                    ("!", _) => banned[place] = true,
                    ("-", Some(at)) => drop(chosen.remove(at)),
                    ("+", Some(at)) => {
                        chosen.remove(at);
                        chosen.push(place);
                    }
                    ("", None) if !banned[place] => chosen.push(place),
                    _ => {}
                }
            }
            chosen.retain(|place| !banned[*place]);
        }
        let provider = ring::default_provider().cipher_suites;
        let find = |wanted| provider.iter().find(|suite| suite.suite() == wanted).copied();
        let tls12 = chosen.iter().filter_map(|place| find(TLS12_SUITES[*place].0));
        let tls13 = self.suites.iter().copied().filter(|suite| suite.tls13().is_some());
        self.suites = tls13.chain(tls12).collect();
        !chosen.is_empty()
    }

    /// Restricts the TLS 1.3 cipher suites to those named, separated by colons. Returns false, and changes nothing, if
    /// one of them does not exist.
    pub fn choose_suites(&mut self, list: &str) -> bool {
        let provider = ring::default_provider().cipher_suites;
        let find = |name: &str| {
            provider.iter().find(|suite| name_of(**suite) == name && suite.tls13().is_some()).copied()
        };
        let names = list.split(':').filter(|name| !name.is_empty());
        let Some(chosen) = names.map(find).collect::<Option<Vec<_>>>() else { return false };
        let tls12 = self.suites.iter().copied().filter(|suite| suite.tls13().is_none());
        self.suites = chosen.into_iter().chain(tls12).collect();
        true
    }

    fn provider(&self) -> CryptoProvider {
        CryptoProvider { cipher_suites: self.suites.clone(), ..ring::default_provider() }
    }

    /// The remaining versions, without those that have no cipher suite.
    fn versions(&self) -> Vec<&'static SupportedProtocolVersion> {
        let has = |is_13: bool| self.suites.iter().any(|suite| suite.tls13().is_some() == is_13);
        let mut versions = Vec::new();
        if self.tls13 && has(true) {
            versions.push(&rustls::version::TLS13);
        }
        if self.tls12 && has(false) {
            versions.push(&rustls::version::TLS12);
        }
        versions
    }
}

fn answers_to(suite: &(CipherSuite, &str, &str), word: &str) -> bool {
    let (_, name, words) = suite;
    *name == word || ALL_WORDS.contains(&word) || words.split(' ').any(|other| other == word)
}

/// A suite's name as in the standard and OpenSSL; rustls adds a mark to those of TLS 1.3.
fn name_of(suite: SupportedCipherSuite) -> String {
    format!("{:?}", suite.suite()).replace("TLS13_", "TLS_")
}

/// Both sides' TLS under one identity.
#[derive(Debug)]
pub struct PeerTls {
    /// For incoming connections.
    pub server: ServerTls,
    /// For outgoing connections.
    pub client: ClientTls,
}

impl PeerTls {
    /// Fails if nothing of what was chosen is supported.
    pub fn new(identity: &Identity, trust: &Trust, choice: &Choice) -> Result<Self, rustls::Error> {
        let provider = Arc::new(choice.provider());
        let versions = choice.versions();
        let peers = Arc::new(match trust {
            Trust::Authorities(certificates) => Peers::signed_by(certificates.0.clone(), &provider)
                .map_err(|error| rustls::Error::General(error.to_string()))?,
            Trust::Anybody | Trust::AnyServer => Peers::unknown(&provider),
        });
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_protocol_versions(&versions)?;
        let builder = match trust {
            Trust::Anybody => builder.with_no_client_auth(),
            Trust::Authorities(_) | Trust::AnyServer => {
                builder.with_client_cert_verifier(Arc::clone(&peers) as Arc<_>)
            }
        };
        let server = ServerTls::of(Loaded::new(builder, &identity.0));
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&versions)?;
        let builder = builder.dangerous().with_custom_certificate_verifier(peers);
        let client =
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&identity.0))));
        Ok(Self { server, client: ClientTls::new(client, false) })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn ciphers(list: &str) -> Vec<&'static str> {
        let mut choice = Choice::default();
        let is_any = choice.choose_ciphers(list);
        let name = |suite: &SupportedCipherSuite| {
            TLS12_SUITES.iter().find(|(other, ..)| *other == suite.suite()).map(|(_, name, _)| *name)
        };
        let names: Vec<_> = choice.suites.iter().filter_map(name).collect();
        assert_eq!(is_any, !names.is_empty());
        assert_eq!(choice.suites.len(), names.len() + 3, "those of TLS 1.3 stay");
        names
    }

    #[test]
    fn lists_of_ciphers_are_those_of_openssl() {
        assert_eq!(ciphers("HIGH:!aNULL:!MD5").len(), 6);
        assert_eq!(ciphers("DEFAULT:@SECLEVEL=2").len(), 6);
        assert_eq!(ciphers("ECDHE-RSA-AES128-GCM-SHA256"), ["ECDHE-RSA-AES128-GCM-SHA256"]);
        assert_eq!(
            ciphers("CHACHA20:ECDHE+AESGCM+aRSA:!ECDSA"),
            ["ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256"]
        );
        assert_eq!(
            ciphers("ALL:-AES:+ECDSA"),
            ["ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-ECDSA-CHACHA20-POLY1305"]
        );
        assert_eq!(ciphers("!ECDSA:ALL:-AES"), ["ECDHE-RSA-CHACHA20-POLY1305"]);
        assert!(ciphers("NO-SUCH-CIPHER").is_empty());
        assert!(ciphers("").is_empty());
    }

    #[test]
    fn suites_of_tls_1_3_are_named_one_by_one() {
        let mut choice = Choice::default();
        assert!(!choice.choose_suites("TLS_AES_128_GCM_SHA256:TLS_NO_SUCH"));
        assert_eq!(choice, Choice::default());
        assert!(choice.choose_suites("TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256"));
        let names: Vec<String> = choice.suites.iter().take(2).map(|suite| name_of(*suite)).collect();
        assert_eq!(names, ["TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"]);
        assert_eq!(choice.suites.len(), 2 + 6);
        assert_eq!(choice.versions().len(), 2);
        assert!(choice.choose_suites("") && choice.versions().len() == 1);
    }
}
