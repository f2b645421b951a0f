//! SCRAM, the server's side.
//!
//! ```text
//!   client                                  server
//!   n,,n=user,r=CNONCE               ->                                    Exchange::start
//!                                    <-     r=CNONCE SNONCE,s=salt,i=rounds
//!   c=biws,r=CNONCE SNONCE,p=proof   ->                                    Exchange::finish
//!                                    <-     v=server signature
//! ```
//!
//! The server stores [`ScramKeys`], never a password: the salted password yields a client key, of which only the hash
//! is stored, and a server key. Deriving them costs thousands of hashes and is done once, when a password is set.
//!
//! Bound to the channel (the mechanisms whose names end in `-PLUS`), the header is `p=tls-server-end-point,,`, and `c=`
//! is that and the hash of the server's certificate (RFC 5929), in base64.
//!
//! COMPAT: the nonce of the Couchbase C++ core holds spaces (`0x85 0x40 ...`), so messages are split at commas only.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, Mac};
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};

use super::{SaslError, constant_time_eq};

/// Rounds of PBKDF2 for new keys: the least that RFC 7677 allows, and accepted by all SDKs.
pub const ITERATIONS: u32 = 4096;
/// Longest message that is accepted.
pub(super) const MESSAGE_MAX: usize = 4096;
/// The kind of channel binding, as messages name it.
pub(super) const END_POINT: &str = "tls-server-end-point";

/// What a login knows of the connection that it is on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Channel<'a> {
    /// The hash of the server's certificate; `None` without TLS.
    pub end_point: Option<&'a [u8]>,
    /// The mechanism is bound to it.
    pub is_bound: bool,
}

/// The hash a SCRAM mechanism is built on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hash {
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

macro_rules! hmac_with {
    ($hash:ty, $key:expr, $parts:expr) => {{
        // HMAC takes keys of any length; the error type exists for other MACs.
        let Ok(mut mac) = Hmac::<$hash>::new_from_slice($key) else { return Vec::new() };
        for part in $parts {
            mac.update(part);
        }
        mac.finalize().into_bytes().to_vec()
    }};
}

impl Hash {
    /// HMAC over the concatenation of `parts`.
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        match self {
            Self::Sha1 => hmac_with!(Sha1, key, parts),
            Self::Sha256 => hmac_with!(Sha256, key, parts),
            Self::Sha512 => hmac_with!(Sha512, key, parts),
        }
    }

    fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha1 => Sha1::digest(bytes).to_vec(),
            Self::Sha256 => Sha256::digest(bytes).to_vec(),
            Self::Sha512 => Sha512::digest(bytes).to_vec(),
        }
    }

    fn salted_password(self, password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
        let mut salted = vec![0; self.digest_len()];
        match self {
            Self::Sha1 => pbkdf2::pbkdf2_hmac::<Sha1>(password, salt, iterations, &mut salted),
            Self::Sha256 => pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, iterations, &mut salted),
            Self::Sha512 => pbkdf2::pbkdf2_hmac::<Sha512>(password, salt, iterations, &mut salted),
        }
        salted
    }

    /// Derives what a client knows of its password.
    pub(super) fn client_keys(self, password: &[u8], salt: &[u8], iterations: u32) -> ClientKeys {
        let salted = self.salted_password(password, salt, iterations);
        let client = self.hmac(&salted, &[b"Client Key"]);
        ClientKeys { stored: self.digest(&client), server: self.hmac(&salted, &[b"Server Key"]), client }
    }

    /// All hashes.
    pub const ALL: [Self; 3] = [Self::Sha1, Self::Sha256, Self::Sha512];

    /// The name of the mechanism that is built on it.
    pub const fn mechanism(self) -> &'static str {
        match self {
            Self::Sha1 => "SCRAM-SHA-1",
            Self::Sha256 => "SCRAM-SHA-256",
            Self::Sha512 => "SCRAM-SHA-512",
        }
    }

    /// Length of the hash in bytes.
    pub const fn digest_len(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }
}

/// What a password yields with a salt.
pub(super) struct ClientKeys {
    pub(super) client: Vec<u8>,
    pub(super) stored: Vec<u8>,
    pub(super) server: Vec<u8>,
}

/// What the server stores of a password for one hash.
#[derive(Clone, PartialEq, Eq)]
pub struct ScramKeys {
    hash: Hash,
    salt: Vec<u8>,
    iterations: u32,
    stored_key: Vec<u8>,
    server_key: Vec<u8>,
}

impl ScramKeys {
    /// Derives the keys of a password. Takes milliseconds: do it when a password is set, not when it is used.
    pub fn derive(hash: Hash, password: &[u8], salt: &[u8], iterations: u32) -> Self {
        let ClientKeys { stored, server, .. } = hash.client_keys(password, salt, iterations.max(1));
        Self { hash, salt: salt.to_vec(), iterations, stored_key: stored, server_key: server }
    }

    /// Keys that no password fits, for a user who does not exist: the exchange runs to its end as for any other.
    pub fn impossible(hash: Hash, salt: &[u8], iterations: u32) -> Self {
        Self {
            hash,
            salt: salt.to_vec(),
            iterations,
            stored_key: Vec::new(),
            server_key: vec![0; hash.digest_len()],
        }
    }

    /// Returns the hash they are of.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// Returns true if the keys come from this password. Takes as long as deriving them.
    pub fn verify(&self, password: &[u8]) -> bool {
        let other = Self::derive(self.hash, password, &self.salt, self.iterations);
        constant_time_eq(&self.stored_key, &other.stored_key)
    }
}

/// As files have them (RFC 5803): `SCRAM-SHA-256$iterations:salt$stored key:server key`, in base64.
impl std::fmt::Display for ScramKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [salt, stored, server] =
            [&self.salt, &self.stored_key, &self.server_key].map(|bytes| BASE64.encode(bytes));
        write!(f, "{}${}:{salt}${stored}:{server}", self.hash.mechanism(), self.iterations)
    }
}

impl std::str::FromStr for ScramKeys {
    type Err = SaslError;

    fn from_str(text: &str) -> Result<Self, SaslError> {
        let parsed = || {
            let mut parts = text.split('$');
            let (mechanism, rounds, keys) = (parts.next()?, parts.next()?, parts.next()?);
            let hash = Hash::ALL.into_iter().find(|hash| hash.mechanism() == mechanism)?;
            let ((iterations, salt), (stored, server)) = (rounds.split_once(':')?, keys.split_once(':')?);
            let decode = |text: &str| BASE64.decode(text).ok();
            let keys = Self {
                hash,
                salt: decode(salt)?,
                iterations: iterations.parse().ok().filter(|rounds| *rounds > 0)?,
                stored_key: decode(stored)?,
                server_key: decode(server)?,
            };
            let lengths = [keys.stored_key.len(), keys.server_key.len()];
            (parts.next().is_none() && lengths == [hash.digest_len(); 2]).then_some(keys)
        };
        parsed().ok_or(SaslError::Malformed)
    }
}

impl std::fmt::Debug for ScramKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScramKeys")
            .field("hash", &self.hash)
            .field("iterations", &self.iterations)
            .finish_non_exhaustive()
    }
}

/// A client's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ClientFirst<'a> {
    gs2_header: &'a [u8],
    bare: &'a [u8],
    user: &'a [u8],
    nonce: &'a [u8],
}

impl<'a> ClientFirst<'a> {
    fn parse(message: &'a [u8], channel: Channel<'_>) -> Result<Self, SaslError> {
        if message.len() > MESSAGE_MAX {
            return Err(SaslError::Malformed);
        }
        let mut commas = message.iter().enumerate().filter(|(_, byte)| **byte == b',').map(|(at, _)| at);
        let (Some(first), Some(second)) = (commas.next(), commas.next()) else {
            return Err(SaslError::Malformed);
        };
        let (gs2_header, bare) = message.split_at_checked(second + 1).ok_or(SaslError::Malformed)?;
        let is_bound = match gs2_header.get(..first) {
            Some(b"n") => false,
            // It could, and has been told that this side cannot.
            Some(b"y") if channel.end_point.is_some() => return Err(SaslError::Mismatch),
            Some(b"y") => false,
            Some([b'p', b'=', kind @ ..]) if kind == END_POINT.as_bytes() => true,
            Some([b'p', b'=', ..]) => return Err(SaslError::Unsupported),
            _ => return Err(SaslError::Malformed),
        };
        if is_bound != channel.is_bound {
            return Err(SaslError::Unsupported);
        }
        // An authorization id (a=...) would mean acting for another user.
        if first + 1 != second {
            return Err(SaslError::Unsupported);
        }
        let mut attributes = bare.split(|byte| *byte == b',');
        let user = match attributes.next() {
            Some([b'n', b'=', user @ ..]) if !user.is_empty() => user,
            Some([b'm', b'=', ..]) => return Err(SaslError::Unsupported),
            _ => return Err(SaslError::Malformed),
        };
        let nonce = match attributes.next() {
            Some([b'r', b'=', nonce @ ..]) if !nonce.is_empty() => nonce,
            _ => return Err(SaslError::Malformed),
        };
        Ok(Self { gs2_header, bare, user, nonce })
    }
}

/// A user's name with `=2C` and `=3D` resolved.
fn unescape(name: &[u8]) -> Result<String, SaslError> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match (byte, tail) {
            (b'=', [b'2', b'C', tail @ ..]) => {
                plain.push(b',');
                rest = tail;
            }
            (b'=', [b'3', b'D', tail @ ..]) => {
                plain.push(b'=');
                rest = tail;
            }
            (b'=', _) => return Err(SaslError::Malformed),
            _ => plain.push(byte),
        }
    }
    String::from_utf8(plain).map_err(|_| SaslError::Malformed)
}

/// A login in progress: the server has sent its challenge and waits for the proof.
#[derive(Debug)]
pub struct Exchange {
    keys: ScramKeys,
    user: String,
    /// What the client must repeat: its header, and what it is bound to.
    binding: Vec<u8>,
    /// Client-first-bare and server-first, the beginning of the message both sides sign.
    signed: Vec<u8>,
    nonce: Vec<u8>,
}

impl Exchange {
    /// Takes the client's first message and returns the challenge. `keys_of` finds the user's keys (or makes up
    /// [`ScramKeys::impossible`]); `server_nonce` is fresh randomness, printable and without a comma.
    pub fn start(
        client_first: &[u8],
        channel: Channel<'_>,
        server_nonce: &str,
        keys_of: impl FnOnce(&str) -> ScramKeys,
    ) -> Result<(Self, Vec<u8>), SaslError> {
        let first = ClientFirst::parse(client_first, channel)?;
        let end_point = match (channel.is_bound, channel.end_point) {
            (false, _) => &[][..],
            (true, Some(end_point)) => end_point,
            (true, None) => return Err(SaslError::Unsupported),
        };
        let user = unescape(first.user)?;
        let keys = keys_of(&user);
        let nonce = [first.nonce, server_nonce.as_bytes()].concat();
        let mut challenge = b"r=".to_vec();
        challenge.extend(&nonce);
        challenge.extend(format!(",s={},i={}", BASE64.encode(&keys.salt), keys.iterations).as_bytes());
        let mut signed = first.bare.to_vec();
        signed.push(b',');
        signed.extend(&challenge);
        let binding = [first.gs2_header, end_point].concat();
        Ok((Self { keys, user, binding, signed, nonce }, challenge))
    }

    /// The keys that the proof is checked with.
    pub fn keys(&self) -> &ScramKeys {
        &self.keys
    }

    /// The user whom the client claims to be.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Checks the client's proof. On success returns the user's name and the server's signature to send.
    pub fn finish(self, client_final: &[u8]) -> Result<(String, Vec<u8>), SaslError> {
        if client_final.len() > MESSAGE_MAX {
            return Err(SaslError::Malformed);
        }
        let proof_at = client_final.windows(3).rposition(|w| w == b",p=").ok_or(SaslError::Malformed)?;
        let (without_proof, proof) = client_final.split_at_checked(proof_at).ok_or(SaslError::Malformed)?;
        let proof = BASE64.decode(proof.get(3..).unwrap_or_default()).map_err(|_| SaslError::Malformed)?;
        let mut attributes = without_proof.split(|byte| *byte == b',');
        let binding = match attributes.next() {
            Some([b'c', b'=', binding @ ..]) => BASE64.decode(binding).map_err(|_| SaslError::Malformed)?,
            _ => return Err(SaslError::Malformed),
        };
        let nonce = match attributes.next() {
            Some([b'r', b'=', nonce @ ..]) => nonce,
            _ => return Err(SaslError::Malformed),
        };
        if binding != self.binding || !constant_time_eq(nonce, &self.nonce) {
            return Err(SaslError::Mismatch);
        }
        let hash = self.keys.hash;
        let parts: [&[u8]; 3] = [&self.signed, b",", without_proof];
        let client_signature = hash.hmac(&self.keys.stored_key, &parts);
        if proof.len() != client_signature.len() {
            return Err(SaslError::Denied);
        }
        let client_key: Vec<u8> = proof.iter().zip(&client_signature).map(|(a, b)| a ^ b).collect();
        if !constant_time_eq(&hash.digest(&client_key), &self.keys.stored_key) {
            return Err(SaslError::Denied);
        }
        let signature = hash.hmac(&self.keys.server_key, &parts);
        Ok((self.user, format!("v={}", BASE64.encode(signature)).into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNBOUND: Channel<'_> = Channel { end_point: None, is_bound: false };
    const SHA512_STORED_KEY: &str =
        "/0HobAjy5SWocoXto9Y01mm66KtsLls+Ca0AFKaR+rnrJlVwYv+XjuAR2bI+a4dDffNmz3zUyHR9+Sd9Bn/TMA==";
    const SHA512_SERVER_KEY: &str =
        "oghwiUlz2cdgskC3qVBg8eY1ErXyG4HxXs/plsFjtkjRr0Ey6qLmOz6JtGuxWSvu5fU2wuEAWVRSHPNyeBmWKQ==";

    struct Vector {
        hash: Hash,
        salt: &'static str,
        server_nonce: &'static str,
        client_first: &'static str,
        server_first: &'static str,
        client_final: &'static str,
        server_final: &'static str,
    }

    /// RFC 5802 section 5 and RFC 7677 section 3: user "user", password "pencil".
    const VECTORS: [Vector; 2] = [
        Vector {
            hash: Hash::Sha1,
            salt: "QSXCR+Q6sek8bf92",
            server_nonce: "3rfcNHYJY1ZVvWVs7j",
            client_first: "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
            server_first: "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
            client_final: "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
            server_final: "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
        },
        Vector {
            hash: Hash::Sha256,
            salt: "W22ZaJ0SNY7soEsUEjb6gQ==",
            server_nonce: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
            client_first: "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
            server_first: "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            client_final: "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                           p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            server_final: "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        },
    ];

    fn keys(vector: &Vector, password: &str) -> ScramKeys {
        ScramKeys::derive(vector.hash, password.as_bytes(), &BASE64.decode(vector.salt).unwrap(), 4096)
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        for hash in Hash::ALL {
            let keys = ScramKeys::derive(hash, b"pencil", b"salt", 4096);
            let text = keys.to_string();
            assert_eq!(text.parse(), Ok(keys), "{text}");
            for wrong in [
                "",
                "$",
                &text[..text.len() - 5],
                &text.replace("4096", "0"),
                &format!("{text}$"),
                &text[1..],
            ] {
                assert_eq!(wrong.parse::<ScramKeys>(), Err(SaslError::Malformed), "{wrong}");
            }
        }
    }

    #[test]
    fn the_rfcs_own_exchanges() {
        for vector in &VECTORS {
            let (exchange, challenge) =
                Exchange::start(vector.client_first.as_bytes(), UNBOUND, vector.server_nonce, |user| {
                    assert_eq!(user, "user");
                    keys(vector, "pencil")
                })
                .unwrap();
            assert_eq!(challenge, vector.server_first.as_bytes());
            let (user, answer) = exchange.finish(vector.client_final.as_bytes()).unwrap();
            assert_eq!((user.as_str(), answer.as_slice()), ("user", vector.server_final.as_bytes()));
        }
    }

    #[test]
    fn a_wrong_password_or_user_is_denied_at_the_end() {
        for vector in &VECTORS {
            let salt = BASE64.decode(vector.salt).unwrap();
            for keys in [keys(vector, "pencils"), ScramKeys::impossible(vector.hash, &salt, 4096)] {
                let (exchange, challenge) =
                    Exchange::start(vector.client_first.as_bytes(), UNBOUND, vector.server_nonce, |_| keys)
                        .unwrap();
                assert_eq!(challenge, vector.server_first.as_bytes());
                assert_eq!(exchange.finish(vector.client_final.as_bytes()), Err(SaslError::Denied));
            }
        }
    }

    /// A client of our own, for cases without vectors in the RFCs.
    fn client_final(hash: Hash, password: &[u8], first_bare: &str, challenge: &str) -> String {
        let mut parts = challenge.split(',');
        let nonce = parts.next().unwrap();
        let salt = BASE64.decode(parts.next().unwrap().strip_prefix("s=").unwrap()).unwrap();
        let rounds = parts.next().unwrap().strip_prefix("i=").unwrap().parse().unwrap();
        let salted = hash.salted_password(password, &salt, rounds);
        let client_key = hash.hmac(&salted, &[b"Client Key"]);
        let without_proof = format!("c=biws,{nonce}");
        let signed = format!("{first_bare},{challenge},{without_proof}");
        let signature = hash.hmac(&hash.digest(&client_key), &[signed.as_bytes()]);
        let proof: Vec<u8> = client_key.iter().zip(&signature).map(|(a, b)| a ^ b).collect();
        format!("{without_proof},p={}", BASE64.encode(proof))
    }

    #[test]
    fn sha512_with_a_nonce_of_spaces_and_an_escaped_name() {
        let bare = "n=a=2Cb=3Dc,r=0xffffff85 0x40 0x5c";
        let keys = ScramKeys::derive(Hash::Sha512, b"pa,ss", b"salt", 8);
        let (exchange, challenge) =
            Exchange::start(format!("n,,{bare}").as_bytes(), UNBOUND, "server", |user| {
                assert_eq!(user, "a,b=c");
                keys.clone()
            })
            .unwrap();
        let challenge = String::from_utf8(challenge).unwrap();
        assert!(challenge.starts_with("r=0xffffff85 0x40 0x5cserver,s=c2FsdA==,i=8"));
        let answer = client_final(Hash::Sha512, b"pa,ss", bare, &challenge);
        assert_eq!(exchange.finish(answer.as_bytes()).unwrap().0, "a,b=c");
    }

    /// Python: `hashlib.pbkdf2_hmac('sha512', b'pencil', b'salt', 4096)` and two HMACs.
    #[test]
    fn sha512_keys_agree_with_another_implementation() {
        let keys = ScramKeys::derive(Hash::Sha512, b"pencil", b"salt", 4096);
        assert_eq!(BASE64.encode(&keys.stored_key), SHA512_STORED_KEY);
        assert_eq!(BASE64.encode(&keys.server_key), SHA512_SERVER_KEY);
        assert!(keys.verify(b"pencil") && !keys.verify(b"pencil ") && !keys.verify(b""));
    }

    #[test]
    fn malformed_and_unsupported_first_messages() {
        for (message, error) in [
            ("", SaslError::Malformed),
            ("n,,", SaslError::Malformed),
            ("n,,n=,r=x", SaslError::Malformed),
            ("n,,n=u", SaslError::Malformed),
            ("n,,n=u,r=", SaslError::Malformed),
            ("x,,n=u,r=x", SaslError::Malformed),
            ("n,,n=u=zz,r=x", SaslError::Malformed),
            ("n,a=b,n=u,r=x", SaslError::Unsupported),
            ("p=tls-unique,,n=u,r=x", SaslError::Unsupported),
            ("n,,m=ext,n=u,r=x", SaslError::Unsupported),
        ] {
            let result = Exchange::start(message.as_bytes(), UNBOUND, "s", |_| {
                ScramKeys::impossible(Hash::Sha1, b"", 1)
            });
            assert_eq!(result.err(), Some(error), "{message}");
        }
    }

    #[test]
    fn the_header_is_what_channel_and_mechanism_allow() {
        let start = |header: &str, end_point: Option<&'static [u8]>, is_bound| {
            let message = format!("{header},,n=u,r=x");
            let keys = |_: &str| ScramKeys::impossible(Hash::Sha1, b"", 1);
            Exchange::start(message.as_bytes(), Channel { end_point, is_bound }, "s", keys).err()
        };
        let (tls, plain) = (Some(&b"hash"[..]), None);
        let bound = "p=tls-server-end-point";
        for (header, end_point, is_bound, error) in [
            ("n", plain, false, None),
            ("y", plain, false, None),
            ("n", tls, false, None),
            // Somebody in between has hidden that it can be bound.
            ("y", tls, false, Some(SaslError::Mismatch)),
            (bound, tls, true, None),
            (bound, tls, false, Some(SaslError::Unsupported)),
            (bound, plain, true, Some(SaslError::Unsupported)),
            (bound, plain, false, Some(SaslError::Unsupported)),
            ("n", tls, true, Some(SaslError::Unsupported)),
            ("p=tls-unique", tls, true, Some(SaslError::Unsupported)),
            ("p=tls-exporter", tls, true, Some(SaslError::Unsupported)),
            ("p=", tls, true, Some(SaslError::Unsupported)),
        ] {
            assert_eq!(start(header, end_point, is_bound), error, "{header} {end_point:?} {is_bound}");
        }
    }

    #[test]
    fn a_final_message_of_another_exchange_does_not_match() {
        let vector = &VECTORS[0];
        for (client_final, error) in [
            ("", SaslError::Malformed),
            ("c=biws,r=x", SaslError::Malformed),
            ("c=biws,r=x,p=!", SaslError::Malformed),
            ("r=x,c=biws,p=AAAA", SaslError::Malformed),
            ("c=biws,r=x,p=AAAA", SaslError::Mismatch),
            ("c=eSws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=AAAA", SaslError::Mismatch),
            ("c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=AAAA", SaslError::Denied),
        ] {
            let (exchange, _) =
                Exchange::start(vector.client_first.as_bytes(), UNBOUND, vector.server_nonce, |_| {
                    keys(vector, "pencil")
                })
                .unwrap();
            assert_eq!(exchange.finish(client_final.as_bytes()).err(), Some(error), "{client_final}");
        }
    }

    proptest! {
        #[test]
        fn no_input_panics(
            first in proptest::collection::vec(any::<u8>(), 0..80),
            last in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let keys = |_: &str| ScramKeys::impossible(Hash::Sha256, b"salt", 1);
            if let Ok((exchange, _)) = Exchange::start(&first, UNBOUND, "s", keys) {
                let _ = exchange.finish(&last);
            }
            let (exchange, _) = Exchange::start(b"n,,n=u,r=x", UNBOUND, "s", keys).unwrap();
            prop_assert!(exchange.finish(&last).is_err());
        }
    }
}
