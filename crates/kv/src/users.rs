//! Who may log in, and with what.
//!
//! Passwords are never kept. Of each one, only the SCRAM keys of three hashes ([`wire::sasl::ScramKeys`]) remain,
//! derived once when the password is set, and a keyed digest for PLAIN, ASCII and HTTP logins, so that no login makes a
//! data thread derive anything. The digest's key is drawn when the process starts and never leaves it.
//!
//! All users may do everything; roles come later. An unknown name is answered like a wrong password, after the same
//! work, with salts of its own that stay the same, so that names cannot be guessed one by one. Passwords cannot be
//! guessed quickly either: see [`attempts`].
//!
//! Randomness is an argument: nonces and salts are HMACs over a seed given at the start and a counter.

pub mod attempts;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;
use wire::sasl::{Exchange, Hash, SaslError, ScramKeys, constant_time_eq, scram};

use attempts::Attempts;
pub use attempts::{Caller, LoginFigures, Notice};

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
    attempts: Attempts,
}

struct User {
    reach: Reach,
    keys: [ScramKeys; 3],
    digest: Vec<u8>,
}

impl Users {
    /// Creates a store without users. `seed` must be random and secret.
    pub fn new(seed: [u8; 32]) -> Self {
        Self { seed, drawn: AtomicU64::new(0), users: RwLock::default(), attempts: Attempts::default() }
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

    /// Removes a user; open connections stay. Returns true if there was one.
    pub fn remove(&self, name: &str) -> bool {
        self.users.write().remove(name).is_some()
    }

    /// Returns the names in order.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.users.read().keys().cloned().collect()
    }

    /// Returns true if nobody can log in.
    pub fn is_empty(&self) -> bool {
        self.users.read().is_empty()
    }

    /// Logs in with a plain password: PLAIN, memcached's ASCII login, HTTP. Returns the user's name.
    ///
    /// The same work is done for a wrong password, for an unknown name, and while the caller is blocked.
    pub fn log_in(&self, name: &str, password: &[u8], caller: Caller) -> Option<Arc<str>> {
        let digest = self.digest(name, password);
        let (user, expected) = {
            let users = self.users.read();
            match users.get_key_value(name).filter(|(_, user)| user.admits(caller.loopback)) {
                Some((name, user)) => (Some(Arc::clone(name)), user.digest.clone()),
                None => (None, vec![0; digest.len()]),
            }
        };
        let logged_in = self.attempts.attempt(caller, user.clone(), name, (), || {
            let is_equal = constant_time_eq(&digest, &expected);
            user.filter(|_| is_equal).ok_or(())
        });
        logged_in.ok()
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
            // Made up for everybody, so that it takes as long for a name that exists.
            let salt = self.made_up_salt(hash, name);
            let users = self.users.read();
            match users.get(name).filter(|user| user.admits(from_loopback)) {
                Some(user) => user.keys_of(hash).clone(),
                None => ScramKeys::impossible(hash, &salt, scram::ITERATIONS),
            }
        })
    }

    /// Ends a SCRAM login: the user's name and the signature to send.
    pub fn finish_scram(
        &self,
        exchange: Exchange,
        client_final: &[u8],
        caller: Caller,
    ) -> Result<(Arc<str>, Vec<u8>), SaslError> {
        let named = exchange.user().to_owned();
        // The user may have been removed since the challenge.
        let user = {
            let users = self.users.read();
            let user = users.get_key_value(named.as_str()).filter(|(_, user)| user.admits(caller.loopback));
            user.map(|(name, _)| Arc::clone(name))
        };
        self.attempts.attempt(caller, user.clone(), &named, SaslError::Denied, || {
            let (_, signature) = exchange.finish(client_final)?;
            Ok((user.ok_or(SaslError::Denied)?, signature))
        })
    }

    /// Returns the failed logins since the start.
    pub fn login_figures(&self) -> LoginFigures {
        self.attempts.figures()
    }

    /// Sets who is notified of failed logins (once). It is called on the thread of the login.
    pub fn on_failed_logins(&self, listener: impl Fn(Notice<'_>) + Send + Sync + 'static) {
        self.attempts.set_listener(Box::new(listener));
    }

    fn digest(&self, name: &str, password: &[u8]) -> Vec<u8> {
        Hash::Sha256.hmac(&self.seed, &[b"password\0", name.as_bytes(), b"\0", password])
    }

    /// Returns a salt for an unknown name: different for each hash, as the salts of a user are.
    fn made_up_salt(&self, hash: Hash, name: &str) -> Vec<u8> {
        let purpose: &[u8] = match hash {
            Hash::Sha1 => b"no such user, SHA-1\0",
            Hash::Sha256 => b"no such user, SHA-256\0",
            Hash::Sha512 => b"no such user, SHA-512\0",
        };
        let mut salt = Hash::Sha256.hmac(&self.seed, &[purpose, name.as_bytes()]);
        salt.truncate(SALT_LEN);
        salt
    }

    fn draw(&self, purpose: &[u8]) -> Vec<u8> {
        let count = self.drawn.fetch_add(1, Relaxed);
        Hash::Sha256.hmac(&self.seed, &[b"draw\0", purpose, &count.to_be_bytes()])
    }

    /// Returns a nonce: printable, without a comma.
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

    fn caller(address: &str, mono_us: u64) -> Caller {
        let address: std::net::IpAddr = address.parse().unwrap();
        Caller { address: Some(address), loopback: address.is_loopback(), mono_us }
    }

    fn log_in(users: &Users, name: &str, password: &[u8], from_loopback: bool) -> Option<Arc<str>> {
        let address = if from_loopback { "127.0.0.1" } else { "192.0.2.1" };
        users.log_in(name, password, caller(address, 0))
    }

    #[test]
    fn the_development_user_is_for_loopback_only() {
        let users = users();
        assert_eq!(log_in(&users, "Administrator", b"password", true).as_deref(), Some("Administrator"));
        assert_eq!(log_in(&users, "Administrator", b"password", false), None);
        assert_eq!(log_in(&users, "ann", b"s3cret", false).as_deref(), Some("ann"));
        assert_eq!(log_in(&users, "ann", b"s3cre", true), None);
        assert_eq!(log_in(&users, "bob", b"s3cret", true), None);
    }

    #[test]
    fn a_changed_password_is_another_and_a_removed_user_is_gone() {
        let users = users();
        users.set("ann", b"new", Reach::Anywhere);
        assert_eq!(log_in(&users, "ann", b"s3cret", true), None);
        assert!(log_in(&users, "ann", b"new", true).is_some());
        assert!(users.remove("ann") && !users.remove("ann"));
        assert_eq!(log_in(&users, "ann", b"new", true), None);
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

    #[test]
    fn salts_differ_between_hashes_whether_the_user_exists_or_not() {
        let users = users();
        for name in ["ann", "nobody"] {
            let salts = HASHES.map(|hash| {
                let first = format!("n,,n={name},r=abc");
                let (_, challenge) = users.start_scram(hash, first.as_bytes(), true).unwrap();
                let text = String::from_utf8(challenge).unwrap();
                text.split(',').nth(1).unwrap().to_owned()
            });
            assert!(
                salts[0] != salts[1] && salts[1] != salts[2] && salts[0] != salts[2],
                "{name}: {salts:?}"
            );
        }
    }

    /// Guesses every ten milliseconds for ten seconds.
    fn guess(users: &Users, name: &str, address: &str, from_ms: u64) -> LoginFigures {
        let before = users.login_figures();
        for ms in (from_ms..from_ms + 10_000).step_by(10) {
            assert_eq!(users.log_in(name, b"wrong", caller(address, ms * 1000)), None);
        }
        let after = users.login_figures();
        LoginFigures { failed: after.failed - before.failed, refused: after.refused - before.refused }
    }

    #[test]
    fn guessing_is_slowed_down_and_forgotten_a_minute_later() {
        let users = users();
        // Ten freely, then one after each of the delays of 50, 100, 200, 400, 800, 1600 and 3200 ms.
        assert_eq!(guess(&users, "ann", "192.0.2.1", 0), LoginFigures { failed: 1000, refused: 1000 - 18 });
        assert_eq!(users.log_in("ann", b"s3cret", caller("192.0.2.1", 10_000_000)), None);
        let later_us = 10_000_000 + attempts::DELAY_MAX_US;
        assert!(users.log_in("ann", b"s3cret", caller("192.0.2.1", later_us)).is_some());
        // The login cleared the failures.
        assert_eq!(guess(&users, "ann", "192.0.2.1", 20_000).refused, 1000 - 18);
        assert_eq!(users.log_in("ann", b"wrong", caller("192.0.2.1", 100_000_000)), None);
        assert!(users.log_in("ann", b"s3cret", caller("192.0.2.1", 100_000_000)).is_some());
    }

    #[test]
    fn guessing_locks_out_neither_other_addresses_nor_other_users() {
        let users = users();
        users.set("bob", b"s3cret", Reach::Anywhere);
        guess(&users, "ann", "192.0.2.1", 0);
        let at = |address| caller(address, 10_000_000);
        assert_eq!(users.log_in("ann", b"s3cret", at("192.0.2.1")), None);
        for address in ["192.0.2.2", "127.0.0.1", "2001:db8::1"] {
            assert!(users.log_in("ann", b"s3cret", at(address)).is_some(), "{address}");
        }
        assert!(users.log_in("bob", b"s3cret", at("192.0.2.1")).is_some());
    }

    #[test]
    fn a_networks_addresses_are_one() {
        let users = users();
        for (guesser, same) in [
            ("2001:db8::1", "2001:db8::ffff:2"),
            ("127.0.0.1", "127.9.9.9"),
            ("127.0.0.1", "::1"),
            ("192.0.2.7", "::ffff:192.0.2.7"),
        ] {
            users.set(guesser, b"s3cret", Reach::Anywhere);
            guess(&users, guesser, guesser, 0);
            assert_eq!(users.log_in(guesser, b"s3cret", caller(same, 10_000_000)), None, "{same}");
        }
    }

    #[test]
    fn made_up_names_and_addresses_do_not_fill_the_table() {
        let users = users();
        guess(&users, "ann", "192.0.2.1", 0);
        for number in 0..6000u32 {
            let name = format!("nobody{number}");
            assert_eq!(users.log_in(&name, b"x", caller("192.0.2.1", 10_000_000)), None);
        }
        assert_eq!(users.attempts.entries(), 2);
        for number in 0..6000u32 {
            let [_, b, c, d] = number.to_be_bytes();
            let address = format!("10.{b}.{c}.{d}");
            assert_eq!(users.log_in("ann", b"x", caller(&address, 10_000_000)), None);
        }
        assert_eq!(users.attempts.entries(), attempts::ENTRIES_MAX);
        // The entry with many failures is not pushed out by many with one.
        assert_eq!(users.log_in("ann", b"s3cret", caller("192.0.2.1", 10_000_000)), None);
    }

    #[test]
    fn a_proof_is_an_attempt_like_a_password() {
        let users = users();
        let start = || users.start_scram(Hash::Sha256, b"n,,n=ann,r=abc", false).unwrap().0;
        let exchanges: Vec<Exchange> = (0..100).map(|_| start()).collect();
        for exchange in exchanges {
            assert!(users.finish_scram(exchange, b"c=biws,r=abc,p=AAAA", caller("192.0.2.1", 1)).is_err());
        }
        assert_eq!(users.login_figures(), LoginFigures { failed: 100, refused: 89 });
        assert_eq!(users.log_in("ann", b"s3cret", caller("192.0.2.1", 2)), None);
    }

    #[test]
    fn one_notice_in_ten_seconds_tells_of_all_failures() {
        let users = users();
        let notices = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let heard = Arc::clone(&notices);
        users.on_failed_logins(move |notice| heard.lock().push((notice.failures, notice.user.to_owned())));
        guess(&users, "ann", "192.0.2.1", 1);
        guess(&users, "bob", "192.0.2.1", 10_001);
        assert_eq!(*notices.lock(), [(1, "ann".to_owned()), (1000, "bob".to_owned())]);
    }
}
