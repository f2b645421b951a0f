//! SCRAM, the client's side; see [`super::scram`].

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::scram::Hash;
use super::{SaslError, constant_time_eq};

/// How many rounds a client calculates for a server: with fewer, its proof would tell too much of the password.
const ROUNDS: std::ops::RangeInclusive<u32> = 4_000..=100_000;
/// Without channel binding or another identity, and the same in base64.
const GS2_HEADER: &str = "n,,";
const BINDING: &str = "biws";

/// A client's login in progress: the first message is sent.
pub struct ClientExchange {
    hash: Hash,
    first_bare: String,
    nonce: String,
}

/// What the server must prove to know.
pub struct Expected(Vec<u8>);

impl ClientExchange {
    /// Begins a login. `nonce` is fresh randomness, printable and without a comma. Returns also the first message.
    pub fn start(hash: Hash, user: &str, nonce: &str) -> (Self, Vec<u8>) {
        let user = user.replace('=', "=3D").replace(',', "=2C");
        let first_bare = format!("n={user},r={nonce}");
        let message = format!("{GS2_HEADER}{first_bare}").into_bytes();
        (Self { hash, first_bare, nonce: nonce.to_owned() }, message)
    }

    /// Answers the server's challenge. Takes milliseconds.
    pub fn prove(self, challenge: &[u8], password: &[u8]) -> Result<(Vec<u8>, Expected), SaslError> {
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
        let without_proof = format!("c={BINDING},r={nonce}");
        let signed = format!("{},{challenge},{without_proof}", self.first_bare);
        let keys = self.hash.client_keys(password, &salt, iterations.ok_or(SaslError::Malformed)?);
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
    use super::super::scram::{Exchange, ITERATIONS, ScramKeys};
    use super::*;

    #[test]
    fn both_sides_agree_if_the_password_is_right() {
        for hash in Hash::ALL {
            for (password, is_right) in [(&b"secret"[..], true), (b"Secret", false)] {
                let keys = ScramKeys::derive(hash, b"secret", b"salt", ITERATIONS);
                let (client, first) = ClientExchange::start(hash, "a=b,c", "nonce");
                let (server, challenge) = Exchange::start(&first, "more", |user| {
                    assert_eq!(user, "a=b,c");
                    keys
                })
                .unwrap();
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
    fn a_challenge_that_is_none_is_refused() {
        for challenge in [
            &b""[..],
            b"r=nonce,s=c2FsdA==,i=4096",
            b"r=other,s=c2FsdA==,i=4096",
            b"r=nonce1,s=?,i=4096",
            b"r=nonce1,s=c2FsdA==,i=0",
            b"r=nonce1,s=c2FsdA==,i=99999999",
            b"r=nonce1,s=c2FsdA==",
            b"\xff",
        ] {
            let (client, _) = ClientExchange::start(Hash::Sha256, "u", "nonce");
            assert!(client.prove(challenge, b"p").is_err(), "{challenge:?}");
        }
    }
}
