//! Who may log in, and with what.
//!
//! A password is never kept. Of each one remain the SCRAM keys of three hashes ([`wire::sasl::ScramKeys`]), derived once
//! when the password is set, and a keyed digest for PLAIN, ASCII and HTTP logins, so that no login makes a data thread
//! derive anything. The digest's key is drawn when the process starts and never leaves it.
//!
//! All users may do everything; roles come later. A name nobody has is answered like a wrong password, with a salt of its
//! own that stays the same, so that names cannot be guessed one by one.
//!
//! Randomness is an argument: nonces and salts are HMACs over a seed given at the start and a counter.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;
use wire::sasl::{Exchange, Hash, SaslError, ScramKeys, constant_time_eq, scram};

/// Name of the development user, who is accepted on loopback only.
pub const DEVELOPMENT_USER: &str = "Administrator";
/// The development user's password.
pub const DEVELOPMENT_PASSWORD: &str = "password";

/// Longest name of a user, bytes.
pub const NAME_MAX: usize = 128;

const HASHES: [Hash; 3] = [Hash::Sha1, Hash::Sha256, Hash::Sha512];
const SALT_LEN: usize = 16;
/// Characters of a server nonce.
const NONCE_LEN: usize = 24;

/// From where a user may log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// From this machine only.
    Loopback,
    /// From anywhere.
    Anywhere,
}

/// The users of a node.
pub struct Users {
    seed: [u8; 32],
    drawn: AtomicU64,
    users: RwLock<BTreeMap<Arc<str>, User>>,
}

struct User {
    reach: Reach,
    keys: [ScramKeys; 3],
    digest: Vec<u8>,
}

impl Users {
    /// A store without users. `seed` must be random and secret.
    pub fn new(seed: [u8; 32]) -> Self {
        Self { seed, drawn: AtomicU64::new(0), users: RwLock::new(BTreeMap::new()) }
    }

    /// Adds the development user.
    pub fn add_development_user(&self) {
        self.set(DEVELOPMENT_USER, DEVELOPMENT_PASSWORD.as_bytes(), Reach::Loopback);
    }

    /// Adds a user or gives one another password. Takes milliseconds: three key derivations.
    pub fn set(&self, name: &str, password: &[u8], reach: Reach) {
        let keys = HASHES.map(|hash| {
            let mut salt = self.draw(b"salt");
            salt.truncate(SALT_LEN);
            ScramKeys::derive(hash, password, &salt, scram::ITERATIONS)
        });
        let user = User { reach, keys, digest: self.digest(name, password) };
        self.users.write().insert(name.into(), user);
    }

    /// Removes a user; open connections stay. Gives whether there was one.
    pub fn remove(&self, name: &str) -> bool {
        self.users.write().remove(name).is_some()
    }

    /// The names in order.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.users.read().keys().cloned().collect()
    }

    /// Whether nobody can log in.
    pub fn is_empty(&self) -> bool {
        self.users.read().is_empty()
    }

    /// Checks a password as it is: PLAIN, memcached's ASCII login, HTTP. Gives the user's name.
    pub fn verify(&self, name: &str, password: &[u8], from_loopback: bool) -> Option<Arc<str>> {
        let digest = self.digest(name, password);
        let users = self.users.read();
        let (name, user) = users.get_key_value(name)?;
        (user.admits(from_loopback) && constant_time_eq(&digest, &user.digest)).then(|| Arc::clone(name))
    }

    /// Begins a SCRAM login: the state to keep and the challenge to send.
    pub fn start_scram(
        &self,
        hash: Hash,
        client_first: &[u8],
        from_loopback: bool,
    ) -> Result<(Exchange, Vec<u8>), SaslError> {
        let nonce = self.nonce();
        Exchange::start(client_first, &nonce, |name| {
            let users = self.users.read();
            match users.get(name).filter(|user| user.admits(from_loopback)) {
                Some(user) => user.keys_of(hash).clone(),
                None => ScramKeys::impossible(hash, &self.made_up_salt(name), scram::ITERATIONS),
            }
        })
    }

    /// Ends a SCRAM login: the user's name and the signature to send.
    pub fn finish_scram(
        &self,
        exchange: Exchange,
        client_final: &[u8],
    ) -> Result<(Arc<str>, Vec<u8>), SaslError> {
        let (name, signature) = exchange.finish(client_final)?;
        // The user may have been removed since the challenge.
        let users = self.users.read();
        let (name, _) = users.get_key_value(name.as_str()).ok_or(SaslError::Denied)?;
        Ok((Arc::clone(name), signature))
    }

    fn digest(&self, name: &str, password: &[u8]) -> Vec<u8> {
        Hash::Sha256.hmac(&self.seed, &[b"password\0", name.as_bytes(), b"\0", password])
    }

    fn made_up_salt(&self, name: &str) -> Vec<u8> {
        let mut salt = Hash::Sha256.hmac(&self.seed, &[b"no such user\0", name.as_bytes()]);
        salt.truncate(SALT_LEN);
        salt
    }

    fn draw(&self, purpose: &[u8]) -> Vec<u8> {
        let count = self.drawn.fetch_add(1, Relaxed);
        Hash::Sha256.hmac(&self.seed, &[b"draw\0", purpose, &count.to_be_bytes()])
    }

    /// Printable, without a comma.
    fn nonce(&self) -> String {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        self.draw(b"nonce")
            .iter()
            .take(NONCE_LEN)
            .map(|byte| char::from(ALPHABET[usize::from(byte & 63)]))
            .collect()
    }
}

impl User {
    fn admits(&self, from_loopback: bool) -> bool {
        from_loopback || self.reach == Reach::Anywhere
    }

    fn keys_of(&self, hash: Hash) -> &ScramKeys {
        let [sha1, sha256, sha512] = &self.keys;
        match hash {
            Hash::Sha1 => sha1,
            Hash::Sha256 => sha256,
            Hash::Sha512 => sha512,
        }
    }
}

impl std::fmt::Debug for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Users").field("names", &self.names()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Users {
        let users = Users::new([7; 32]);
        users.add_development_user();
        users.set("ann", b"s3cret", Reach::Anywhere);
        users
    }

    #[test]
    fn the_development_user_is_for_loopback_only() {
        let users = users();
        assert_eq!(users.verify("Administrator", b"password", true).as_deref(), Some("Administrator"));
        assert_eq!(users.verify("Administrator", b"password", false), None);
        assert_eq!(users.verify("ann", b"s3cret", false).as_deref(), Some("ann"));
        assert_eq!(users.verify("ann", b"s3cre", true), None);
        assert_eq!(users.verify("bob", b"s3cret", true), None);
    }

    #[test]
    fn a_changed_password_is_another_and_a_removed_user_is_gone() {
        let users = users();
        users.set("ann", b"new", Reach::Anywhere);
        assert_eq!(users.verify("ann", b"s3cret", true), None);
        assert!(users.verify("ann", b"new", true).is_some());
        assert!(users.remove("ann") && !users.remove("ann"));
        assert_eq!(users.verify("ann", b"new", true), None);
    }

    #[test]
    fn challenges_differ_but_an_unknown_names_salt_stays() {
        let users = users();
        let challenge = |name: &str| {
            let first = format!("n,,n={name},r=abc");
            let (_, challenge) = users.start_scram(Hash::Sha256, first.as_bytes(), true).unwrap();
            let text = String::from_utf8(challenge).unwrap();
            let (nonce, salt) = text.split_once(',').unwrap();
            (nonce.to_owned(), salt.to_owned())
        };
        for name in ["ann", "nobody"] {
            let (first, second) = (challenge(name), challenge(name));
            assert_ne!(first.0, second.0);
            assert_eq!(first.1, second.1);
        }
        assert_ne!(challenge("nobody").1, challenge("nobody2").1);
    }
}
