//! SCRAM, the client's side; see [`super::scram`].

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use std::ops::RangeInclusive;

use super::scram::{END_POINT, Hash, ITERATIONS, MESSAGE_MAX};
use super::{Mechanism, SaslError, constant_time_eq};

/// How many rounds a client calculates for a server. With fewer, its proof would tell too much of the password; more
/// would take long.
const ROUNDS: RangeInclusive<u32> = ITERATIONS..=4 * ITERATIONS;
/// Lengths of a salt, in bytes. With a shorter one, proofs could be looked up that were calculated before.
const SALT_LENGTHS: RangeInclusive<usize> = 8..=64;

/// A client's login in progress: the first message is sent.
pub struct ClientExchange {
    hash: Hash,
    first_bare: String,
    nonce: String,
    is_bound: bool,
    /// What the server must have seen: the header, and what the login is bound to.
    binding: Vec<u8>,
}

/// What the server must prove to know.
pub struct Expected(Vec<u8>);

impl ClientExchange {
    /// Begins a login, bound to the server's certificate if there is one (`end_point`: its hash). `nonce` is fresh
    /// randomness, printable and without a comma. Returns also the first message.
    pub fn start(hash: Hash, user: &str, nonce: &str, end_point: Option<&[u8]>) -> (Self, Vec<u8>) {
        let user = user.replace('=', "=3D").replace(',', "=2C");
        let first_bare = format!("n={user},r={nonce}");
        let header = end_point.map_or("n,,".to_owned(), |_| format!("p={END_POINT},,"));
        let message = format!("{header}{first_bare}").into_bytes();
        let binding = [header.as_bytes(), end_point.unwrap_or_default()].concat();
        let (nonce, is_bound) = (nonce.to_owned(), end_point.is_some());
        (Self { hash, first_bare, nonce, is_bound, binding }, message)
    }

    /// Returns the mechanism.
    pub fn mechanism(&self) -> Mechanism {
        if self.is_bound { Mechanism::ScramPlus(self.hash) } else { Mechanism::Scram(self.hash) }
    }

    /// Answers the server's challenge. Takes milliseconds; nothing is derived if the challenge is implausible.
    pub fn prove(self, challenge: &[u8], password: &[u8]) -> Result<(Vec<u8>, Expected), SaslError> {
        if challenge.len() > MESSAGE_MAX {
            return Err(SaslError::Malformed);
        }
        let challenge = std::str::from_utf8(challenge).map_err(|_| SaslError::Malformed)?;
        let mut attributes = challenge.split(',');
        let mut next =
            |name: &str| attributes.next().and_then(|it| it.strip_prefix(name)).ok_or(SaslError::Malformed);
        let (nonce, salt, iterations) = (next("r=")?, next("s=")?, next("i=")?);
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(SaslError::Mismatch);
        }
        let salt = BASE64.decode(salt).map_err(|_| SaslError::Malformed)?;
        let iterations = iterations.parse().ok().filter(|rounds| ROUNDS.contains(rounds));
        if !SALT_LENGTHS.contains(&salt.len()) {
            return Err(SaslError::Implausible);
        }
        let without_proof = format!("c={},r={nonce}", BASE64.encode(&self.binding));
        let signed = format!("{},{challenge},{without_proof}", self.first_bare);
        let keys = self.hash.client_keys(password, &salt, iterations.ok_or(SaslError::Implausible)?);
        let signature = self.hash.hmac(&keys.stored, &[signed.as_bytes()]);
        let proof: Vec<u8> = keys.client.iter().zip(&signature).map(|(a, b)| a ^ b).collect();
        let message = format!("{without_proof},p={}", BASE64.encode(proof)).into_bytes();
        Ok((message, Expected(self.hash.hmac(&keys.server, &[signed.as_bytes()]))))
    }
}

impl Expected {
    /// Returns true if this is the last message of a server that knows the user's keys.
    pub fn is(&self, server_final: &[u8]) -> bool {
        let signature = server_final.strip_prefix(b"v=").and_then(|it| BASE64.decode(it).ok());
        signature.is_some_and(|signature| constant_time_eq(&signature, &self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::scram::{Channel, Exchange, ITERATIONS, ScramKeys};
    use super::*;

    #[test]
    fn both_sides_agree_if_the_password_is_right() {
        let certificates = [None, Some(&b"one"[..]), Some(b"another")];
        let pairs = certificates.map(|client| certificates.map(|server| (client, server))).concat();
        for (hash, (mine, theirs)) in
            Hash::ALL.into_iter().flat_map(|hash| pairs.iter().map(move |pair| (hash, *pair)))
        {
            for (password, is_right) in [(&b"secret"[..], mine == theirs), (b"Secret", false)] {
                let keys = ScramKeys::derive(hash, b"secret", b"salt and", ITERATIONS);
                let (client, first) = ClientExchange::start(hash, "a=b,c", "nonce", mine);
                let channel = Channel { end_point: theirs, is_bound: mine.is_some() };
                let started = Exchange::start(&first, channel, "more", |user| {
                    assert_eq!(user, "a=b,c");
                    keys
                });
                // A login without binding is for callers that ask for no more; a bound one means nothing without TLS.
                let Ok((server, challenge)) = started else {
                    assert!(mine.is_some() && theirs.is_none());
                    continue;
                };
                let is_right = is_right || mine.is_none() && password == b"secret";
                let (proof, expected) = client.prove(&challenge, password).unwrap();
                match server.finish(&proof) {
                    Ok((user, signature)) => {
                        assert!(is_right && expected.is(&signature));
                        assert!(!expected.is(b"v=AAAA") && !expected.is(b""));
                        assert_eq!(user, "a=b,c");
                    }
                    Err(error) => assert!(!is_right, "{error}"),
                }
            }
        }
    }

    #[test]
    fn a_challenge_that_is_none_or_implausible_is_refused() {
        let (malformed, implausible) = (SaslError::Malformed, SaslError::Implausible);
        let long = format!("r=nonce1,s={},i=4096", BASE64.encode([7; 65]));
        let huge = format!("r=nonce1,s={},i=4096", "A".repeat(1 << 20));
        for (challenge, error) in [
            ("", malformed),
            ("r=nonce,s=c2FsdCBhbmQ=,i=4096", SaslError::Mismatch),
            ("r=other,s=c2FsdCBhbmQ=,i=4096", SaslError::Mismatch),
            ("r=nonce1,s=?,i=4096", malformed),
            ("r=nonce1,s=c2FsdCBhbmQ=", malformed),
            ("r=nonce1,s=c2FsdCBhbmQ=,i=0", implausible),
            ("r=nonce1,s=c2FsdCBhbmQ=,i=4095", implausible),
            ("r=nonce1,s=c2FsdCBhbmQ=,i=16385", implausible),
            ("r=nonce1,s=c2FsdCBhbmQ=,i=99999999999", implausible),
            ("r=nonce1,s=,i=4096", implausible),
            ("r=nonce1,s=c2FsdA==,i=4096", implausible),
            (&long, implausible),
            (&huge, malformed),
        ] {
            let (client, _) = ClientExchange::start(Hash::Sha256, "u", "nonce", None);
            assert_eq!(client.prove(challenge.as_bytes(), b"p").err(), Some(error), "{challenge:.60}");
        }
        let (client, _) = ClientExchange::start(Hash::Sha256, "u", "nonce", None);
        assert!(client.prove(b"\xff", b"p").is_err());
    }
}
