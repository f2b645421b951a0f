//! Who may log in, with what, and what each may do.
//!
//! Passwords are never kept. Of each one, only the SCRAM keys of three hashes ([`wire::sasl::ScramKeys`]) remain,
//! derived once when the password is set, and a keyed digest for PLAIN, ASCII and HTTP logins, so that a login makes no
//! data thread derive anything. The digest's key is drawn when the process starts and never leaves it: users who come
//! from disk have their digest after their first login of that kind, which derives once.
//!
//! A user has [`roles`] of its own and those of its groups. Users of the configuration may do everything. An unknown
//! name is answered like a wrong password, after the same work, with salts of its own that stay the same, so that names
//! cannot be guessed one by one. Passwords cannot be guessed quickly either: see [`attempts`].
//!
//! Randomness is an argument: nonces and salts are HMACs over a seed given at the start and a counter.

pub mod attempts;
pub mod kept;
pub mod roles;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use parking_lot::RwLock;
use wire::sasl::{Channel, Exchange, Hash, SaslError, ScramKeys, constant_time_eq, scram};

use attempts::Attempts;
pub use attempts::{Caller, LoginFigures, Notice};
use kept::{Group, Kept, Keys};
use roles::{Role, Roles};

/// Name of the development user, who is accepted on loopback only.
pub const DEVELOPMENT_USER: &str = "Administrator";
/// The development user's password.
pub const DEVELOPMENT_PASSWORD: &str = "password";

/// Longest name of a user, bytes.
pub const NAME_MAX: usize = 128;
/// What may be the name of a user or group, in words.
pub const NAME: &str = "1 to 128 bytes without control characters, or those that are invisible or change the \
    direction of text, and neither . nor ..";

/// Returns true if a user or group may have this name.
pub fn is_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && !matches!(name, "." | "..")
        && !name.chars().any(|c| c.is_control() || is_invisible(c))
}

/// Characters that are not seen themselves, or make others be seen elsewhere: two names may look the same.
const fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

const SALT_LEN: usize = 16;
/// Whose keys verify a plain password that has no digest yet.
const LOGIN_HASH: Hash = Hash::Sha256;
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
    /// Rises with each change.
    generation: AtomicU64,
    /// Whether a user has no digest yet: then every failed login derives, so that they cannot be told apart.
    derives: AtomicBool,
    /// Whether every port requires a login, whatever it was opened with.
    demands_login: AtomicBool,
    table: RwLock<Table>,
    attempts: Attempts,
}

#[derive(Default)]
struct Table {
    users: BTreeMap<Arc<str>, User>,
    kept: Arc<Kept>,
    /// The roles of groups.
    groups: BTreeMap<String, Arc<[Role]>>,
    /// Users so far.
    count: u64,
}

/// A user at some time. While nothing about it changes it is the same object.
#[derive(Debug, Default)]
pub struct Standing {
    /// Which user it is: another one for a user who is created again under the same name.
    pub id: u64,
    /// All roles.
    pub roles: Roles,
}

struct User {
    reach: Reach,
    keys: Keys,
    digest: Option<Vec<u8>>,
    is_configured: bool,
    standing: Arc<Standing>,
}

/// A user who has just logged in.
#[derive(Debug)]
pub struct LoggedIn {
    /// The name.
    pub name: Arc<str>,
    /// The user as it was when the password was compared.
    pub standing: Arc<Standing>,
}

impl Users {
    /// Creates a store without users. `seed` must be random and secret.
    pub fn new(seed: [u8; 32]) -> Self {
        Self {
            seed,
            drawn: AtomicU64::new(0),
            generation: AtomicU64::new(1),
            derives: AtomicBool::new(false),
            demands_login: AtomicBool::new(false),
            table: RwLock::default(),
            attempts: Attempts::default(),
        }
    }

    /// Adds the development user.
    pub fn add_development_user(&self) {
        self.set(DEVELOPMENT_USER, DEVELOPMENT_PASSWORD.as_bytes(), Reach::Loopback);
    }

    /// Adds a user of the configuration, who may do everything, or gives one another password. Takes milliseconds:
    /// three key derivations.
    pub fn set(&self, name: &str, password: &[u8], reach: Reach) {
        let (keys, digest) = (self.derive(password), self.digest(name, password));
        self.change(|table| {
            let old = table.users.get(name).filter(|old| old.is_configured);
            let standing = old.map(|old| Arc::clone(&old.standing));
            let standing = standing.unwrap_or_else(|| {
                Arc::new(Standing { id: table.next_id(), roles: Roles::new([[Role::admin()].into()]) })
            });
            let user = User { reach, keys, digest: Some(digest), is_configured: true, standing };
            table.users.insert(name.into(), user);
        });
    }

    /// Derives the keys of a password, with fresh salts. Takes milliseconds.
    pub fn derive(&self, password: &[u8]) -> Keys {
        Keys(Hash::ALL.map(|hash| {
            let mut salt = self.draw(b"salt");
            salt.truncate(SALT_LEN);
            ScramKeys::derive(hash, password, &salt, scram::ITERATIONS)
        }))
    }

    /// Removes a user of the configuration. Returns true if there was one.
    pub fn remove(&self, name: &str) -> bool {
        self.change(|table| {
            let is_there = table.users.get(name).is_some_and(|user| user.is_configured);
            if is_there {
                table.users.remove(name);
                // A kept user of that name is no longer hidden.
                let kept = Arc::clone(&table.kept);
                table.set_kept(kept);
            }
            is_there
        })
    }

    /// Returns the users and groups that are kept on disk.
    pub fn kept(&self) -> Arc<Kept> {
        Arc::clone(&self.table.read().kept)
    }

    /// Replaces the users and groups that are kept on disk. A user of the configuration hides one of the same name.
    pub fn set_kept(&self, kept: Kept) {
        self.change(|table| table.set_kept(Arc::new(kept)));
    }

    fn change<R>(&self, f: impl FnOnce(&mut Table) -> R) -> R {
        let mut table = self.table.write();
        let result = f(&mut table);
        self.derives.store(table.lacks_digests(), Relaxed);
        // ORDERING: who sees the new generation sees the change; the lock does the rest.
        self.generation.fetch_add(1, Release);
        result
    }

    /// Makes every port require a login, for open connections too.
    pub fn demand_login(&self) {
        self.demands_login.store(true, Relaxed);
        self.change(|_| ());
    }

    /// Returns true if every port requires a login.
    pub fn is_login_demanded(&self) -> bool {
        self.demands_login.load(Relaxed)
    }

    /// Rises with each change of users, groups and roles.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Returns the names in order.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.table.read().users.keys().cloned().collect()
    }

    /// Returns the names of the configuration's users in order.
    pub fn configured_names(&self) -> Vec<Arc<str>> {
        let table = self.table.read();
        table.users.iter().filter(|(_, user)| user.is_configured).map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Returns true if this user is one of the configuration's.
    pub fn is_configured(&self, name: &str) -> bool {
        self.table.read().users.get(name).is_some_and(|user| user.is_configured)
    }

    /// Returns a user with all its roles; `None` if it is gone.
    pub fn standing(&self, name: &str) -> Option<Arc<Standing>> {
        self.table.read().users.get(name).map(|user| Arc::clone(&user.standing))
    }

    /// Logs in with a plain password: PLAIN, memcached's ASCII login, HTTP.
    ///
    /// The same work is done for a wrong password and for an unknown name. Of a caller who is refused nothing is
    /// derived.
    pub fn log_in(&self, name: &str, password: &[u8], caller: Caller) -> Option<LoggedIn> {
        let digest = self.digest(name, password);
        let (user, expected, keys) = {
            let table = self.table.read();
            match table.users.get_key_value(name).filter(|(_, user)| user.admits(caller.loopback)) {
                Some((name, user)) => {
                    let keys = user.digest.is_none().then(|| user.keys.of(LOGIN_HASH).clone());
                    (Some(user.logged_in(name)), user.digest.clone(), keys)
                }
                None => (None, Some(vec![0; digest.len()]), None),
            }
        };
        let known = user.as_ref().map(|user| Arc::clone(&user.name));
        let mut is_right = constant_time_eq(&digest, &expected.unwrap_or_default());
        // Not while the table of attempts is held, and not for those who are refused anyway.
        if !is_right && self.derives.load(Relaxed) && !self.attempts.is_refused(caller, known.clone()) {
            let salt = self.made_up_salt(LOGIN_HASH, name);
            let made_up = ScramKeys::impossible(LOGIN_HASH, &salt, scram::ITERATIONS);
            is_right = keys.as_ref().unwrap_or(&made_up).verify(password);
        }
        let logged_in =
            self.attempts.attempt(caller, known, name, (), || user.filter(|_| is_right).ok_or(()));
        let user = logged_in.ok()?;
        if keys.is_some() {
            self.note_digest(&user.name, keys, digest);
        }
        Some(user)
    }

    /// Stores the digest of a password that fits these keys, if they are still the user's.
    fn note_digest(&self, name: &str, keys: Option<ScramKeys>, digest: Vec<u8>) {
        let mut table = self.table.write();
        if let (Some(user), Some(keys)) = (table.users.get_mut(name), keys)
            && *user.keys.of(LOGIN_HASH) == keys
        {
            user.digest = Some(digest);
        }
        self.derives.store(table.lacks_digests(), Relaxed);
    }

    /// Begins a SCRAM login: the state to keep and the challenge to send.
    pub fn start_scram(
        &self,
        hash: Hash,
        channel: Channel<'_>,
        client_first: &[u8],
        from_loopback: bool,
    ) -> Result<(Exchange, Vec<u8>), SaslError> {
        let nonce = self.nonce();
        Exchange::start(client_first, channel, &nonce, |name| {
            // Made up for everybody, so that it takes as long for a name that exists.
            let salt = self.made_up_salt(hash, name);
            let table = self.table.read();
            match table.users.get(name).filter(|user| user.admits(from_loopback)) {
                Some(user) => user.keys.of(hash).clone(),
                None => ScramKeys::impossible(hash, &salt, scram::ITERATIONS),
            }
        })
    }

    /// Ends a SCRAM login: the user and the signature to send.
    pub fn finish_scram(
        &self,
        exchange: Exchange,
        client_final: &[u8],
        caller: Caller,
    ) -> Result<(LoggedIn, Vec<u8>), SaslError> {
        let named = exchange.user().to_owned();
        // Since the challenge the user may have been removed, created again, or got another password.
        let user = {
            let table = self.table.read();
            let user = table.users.get_key_value(named.as_str());
            let is_same = |user: &User| user.keys.of(exchange.keys().hash()) == exchange.keys();
            let user = user.filter(|(_, user)| user.admits(caller.loopback) && is_same(user));
            user.map(|(name, user)| user.logged_in(name))
        };
        let known = user.as_ref().map(|user| Arc::clone(&user.name));
        self.attempts.attempt(caller, known, &named, SaslError::Denied, || {
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
    fn logged_in(&self, name: &Arc<str>) -> LoggedIn {
        LoggedIn { name: Arc::clone(name), standing: Arc::clone(&self.standing) }
    }

    fn admits(&self, from_loopback: bool) -> bool {
        from_loopback || self.reach == Reach::Anywhere
    }
}

impl Table {
    fn lacks_digests(&self) -> bool {
        self.users.values().any(|user| user.digest.is_none())
    }

    fn next_id(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Replaces the kept users. What has not changed about one stays: its digest, and its standing.
    fn set_kept(&mut self, kept: Arc<Kept>) {
        let shared = |(name, group): (&String, &Group)| {
            let old = self.groups.get(name).filter(|old| ***old == *group.roles);
            (name.clone(), old.map_or_else(|| group.roles.as_slice().into(), Arc::clone))
        };
        self.groups = kept.groups.iter().map(shared).collect();
        let mut before = std::mem::take(&mut self.users);
        for (name, user) in &kept.users {
            if before.get(name.as_str()).is_some_and(|old| old.is_configured) {
                continue;
            }
            let old = before.remove_entry(name.as_str());
            let groups = user.groups.iter().filter_map(|group| self.groups.get(group)).cloned();
            let roles = Roles::new(std::iter::once(user.roles.as_slice().into()).chain(groups));
            let (id, same) = match &old {
                Some((_, old)) => {
                    (old.standing.id, Some(&old.standing).filter(|standing| standing.roles == roles))
                }
                None => (self.next_id(), None),
            };
            let standing = same.map_or_else(|| Arc::new(Standing { id, roles }), Arc::clone);
            let (known_name, digest) = match old {
                Some((known_name, old)) => (known_name, old.digest.filter(|_| old.keys == user.keys)),
                None => (name.as_str().into(), None),
            };
            let keys = user.keys.clone();
            let user = User { reach: Reach::Anywhere, keys, digest, is_configured: false, standing };
            self.users.insert(known_name, user);
        }
        self.users.extend(before.into_iter().filter(|(_, user)| user.is_configured));
        self.kept = kept;
    }
}

impl std::fmt::Debug for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Users").field("names", &self.names()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::roles::Rights;
    use super::*;

    fn users() -> Users {
        let users = Users::new([7; 32]);
        users.add_development_user();
        users.set("ann", b"s3cret", Reach::Anywhere);
        users
    }

    fn caller(address: &str, mono_us: u64) -> Caller {
        let address: std::net::IpAddr = address.parse().unwrap();
        Caller { address: Some(address), loopback: address.is_loopback(), connection: 0, mono_us }
    }

    #[test]
    fn names_are_what_they_look_like() {
        for good in
            ["ann", "ann@realm", "...", ".ann", "\u{440}\u{443}", "\u{5d0}\u{5d1}", "a b", &"x".repeat(128)]
        {
            assert!(is_name(good), "{good:?}");
        }
        let long = "x".repeat(129);
        for bad in
            ["", ".", "..", "a\nb", "a\u{7f}", "a\u{85}", "nna\u{202e}", "\u{2066}ann", "ann\u{200b}", &long]
        {
            assert!(!is_name(bad), "{bad:?}");
        }
    }

    fn named(user: Option<LoggedIn>) -> Option<Arc<str>> {
        user.map(|user| user.name)
    }

    fn log_in(users: &Users, name: &str, password: &[u8], from_loopback: bool) -> Option<Arc<str>> {
        let address = if from_loopback { "127.0.0.1" } else { "192.0.2.1" };
        users.log_in(name, password, caller(address, 0)).map(|user| user.name)
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
            let (_, challenge) =
                users.start_scram(Hash::Sha256, Channel::default(), first.as_bytes(), true).unwrap();
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
            let salts = Hash::ALL.map(|hash| {
                let first = format!("n,,n={name},r=abc");
                let (_, challenge) =
                    users.start_scram(hash, Channel::default(), first.as_bytes(), true).unwrap();
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
            assert_eq!(named(users.log_in(name, b"wrong", caller(address, ms * 1000))), None);
        }
        let after = users.login_figures();
        LoginFigures { failed: after.failed - before.failed, refused: after.refused - before.refused }
    }

    #[test]
    fn guessing_is_slowed_down_and_forgotten_a_minute_later() {
        let users = users();
        // Ten freely, then one after each of the delays of 50, 100, 200, 400, 800, 1600 and 3200 ms.
        assert_eq!(guess(&users, "ann", "192.0.2.1", 0), LoginFigures { failed: 1000, refused: 1000 - 18 });
        assert_eq!(named(users.log_in("ann", b"s3cret", caller("192.0.2.1", 10_000_000))), None);
        let later_us = 10_000_000 + attempts::DELAY_MAX_US;
        assert!(users.log_in("ann", b"s3cret", caller("192.0.2.1", later_us)).is_some());
        // The login cleared the failures.
        assert_eq!(guess(&users, "ann", "192.0.2.1", 20_000).refused, 1000 - 18);
        assert_eq!(named(users.log_in("ann", b"wrong", caller("192.0.2.1", 100_000_000))), None);
        assert!(users.log_in("ann", b"s3cret", caller("192.0.2.1", 100_000_000)).is_some());
    }

    #[test]
    fn guessing_locks_out_neither_other_addresses_nor_other_users() {
        let users = users();
        users.set("bob", b"s3cret", Reach::Anywhere);
        guess(&users, "ann", "192.0.2.1", 0);
        let at = |address| caller(address, 10_000_000);
        assert_eq!(named(users.log_in("ann", b"s3cret", at("192.0.2.1"))), None);
        for address in ["192.0.2.2", "127.0.0.1", "2001:db8::1"] {
            assert!(users.log_in("ann", b"s3cret", at(address)).is_some(), "{address}");
        }
        assert!(users.log_in("bob", b"s3cret", at("192.0.2.1")).is_some());
    }

    #[test]
    fn guessing_keeps_out_no_other_connection_of_the_network() {
        let users = users();
        let at = |connection, ms: u64| Caller { connection, ..caller("192.0.2.1", ms * 1000) };
        for ms in 0..60_000 {
            for guesser in [1, 2] {
                assert_eq!(named(users.log_in("ann", b"wrong", at(guesser, ms))), None);
            }
            if ms % 100 == 99 {
                assert!(users.log_in("ann", b"s3cret", at(1000 + ms, ms)).is_some(), "after {ms} ms");
            }
        }
        let LoginFigures { failed, refused } = users.login_figures();
        // Ten freely, after each delay of up to 4 s one, and the other connection's first.
        assert!((25..=35).contains(&(failed - refused)), "{}", failed - refused);
    }

    #[test]
    fn a_connection_for_each_guess_gains_one_in_a_second() {
        let users = users();
        for ms in 0..60_000 {
            let at = Caller { connection: ms, ..caller("192.0.2.1", ms * 1000) };
            assert_eq!(named(users.log_in("ann", b"wrong", at)), None);
        }
        let LoginFigures { failed, refused } = users.login_figures();
        assert!((60 + 25..=60 + 38).contains(&(failed - refused)), "{}", failed - refused);
        assert!(users.attempts.connections() <= 4096);
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
            assert_eq!(named(users.log_in(guesser, b"s3cret", caller(same, 10_000_000))), None, "{same}");
        }
    }

    #[test]
    fn made_up_names_and_addresses_do_not_fill_the_table() {
        let users = users();
        guess(&users, "ann", "192.0.2.1", 0);
        for number in 0..6000u32 {
            let name = format!("nobody{number}");
            assert_eq!(named(users.log_in(&name, b"x", caller("192.0.2.1", 10_000_000))), None);
        }
        assert_eq!(users.attempts.entries(), 2);
        for number in 0..6000u32 {
            let [_, b, c, d] = number.to_be_bytes();
            let address = format!("10.{b}.{c}.{d}");
            assert_eq!(named(users.log_in("ann", b"x", caller(&address, 10_000_000))), None);
        }
        assert_eq!(users.attempts.entries(), attempts::ENTRIES_MAX);
        // The entry with many failures is not pushed out by many with one.
        assert_eq!(named(users.log_in("ann", b"s3cret", caller("192.0.2.1", 10_000_000))), None);
    }

    #[test]
    fn a_proof_is_an_attempt_like_a_password() {
        let users = users();
        let start =
            || users.start_scram(Hash::Sha256, Channel::default(), b"n,,n=ann,r=abc", false).unwrap().0;
        let exchanges: Vec<Exchange> = (0..100).map(|_| start()).collect();
        for exchange in exchanges {
            assert!(users.finish_scram(exchange, b"c=biws,r=abc,p=AAAA", caller("192.0.2.1", 1)).is_err());
        }
        assert_eq!(users.login_figures(), LoginFigures { failed: 100, refused: 89 });
        assert_eq!(named(users.log_in("ann", b"s3cret", caller("192.0.2.1", 2))), None);
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

    /// A store that was read from what another one wrote.
    fn read_again(users: &Users) -> Users {
        let text = serde_json::to_string(&*users.kept()).unwrap();
        let other = Users::new([8; 32]);
        other.set_kept(serde_json::from_str(&text).unwrap());
        other
    }

    fn keep(users: &Users, name: &str, password: &[u8], list: &str) {
        let mut kept = Kept::clone(&users.kept());
        let user = kept::KeptUser {
            name: String::new(),
            keys: users.derive(password),
            roles: Role::parse_list(list).unwrap(),
            groups: Default::default(),
            password_changed_s: 1,
        };
        kept.users.insert(name.into(), user);
        users.set_kept(kept);
    }

    #[test]
    fn kept_users_log_in_after_a_restart_with_any_mechanism() {
        let users = Users::new([7; 32]);
        keep(&users, "eve", b"s3cret", "data_reader[b]");
        keep(&users, "bob", b"s3cret", "admin");
        let users = read_again(&users);
        for _ in 0..2 {
            assert!(log_in(&users, "eve", b"s3cret", false).is_some());
            assert!(log_in(&users, "eve", b"s3cre", false).is_none());
            assert!(log_in(&users, "nobody", b"s3cret", false).is_none());
        }
        assert!(users.derives.load(Relaxed), "bob has not logged in yet");
        assert!(log_in(&users, "bob", b"s3cret", false).is_some());
        assert!(!users.derives.load(Relaxed));
        let roles = |name| users.standing(name).unwrap().roles.clone();
        assert_eq!(roles("eve").on(&["b"]), Rights::READ | Rights::SEE);
        let standing = users.standing("eve").unwrap();
        // Another change keeps the digests.
        keep(&users, "bob", b"other", "admin");
        assert!(users.table.read().users["eve"].digest.is_some());
        assert!(Arc::ptr_eq(&standing, &users.standing("eve").unwrap()), "nothing about eve has changed");
        let bob = users.standing("bob").unwrap().id;
        keep(&users, "bob", b"other", "data_reader[b]");
        assert_eq!(users.standing("bob").unwrap().id, bob, "with other roles");
        let mut kept = Kept::clone(&users.kept());
        kept.users.remove("bob");
        users.set_kept(kept);
        keep(&users, "bob", b"other", "data_reader[b]");
        assert_ne!(users.standing("bob").unwrap().id, bob, "another bob");
        assert!(log_in(&users, "bob", b"s3cret", false).is_none());
        assert!(log_in(&users, "bob", b"other", false).is_some());
    }

    #[test]
    fn a_configured_user_hides_a_kept_one() {
        let users = users();
        keep(&users, "ann", b"kept", "data_reader[b]");
        assert!(log_in(&users, "ann", b"kept", false).is_none());
        let roles = |name| users.standing(name).unwrap().roles.clone();
        assert!(roles("ann").on_node().contain(Rights::ALL));
        let before = users.generation();
        assert!(users.remove("ann") && !users.remove("ann"));
        assert!(users.generation() > before);
        assert!(log_in(&users, "ann", b"kept", false).is_some());
        assert_eq!(roles("ann").on(&["b"]), Rights::READ | Rights::SEE);
        assert!(users.standing("gone").is_none());
    }
}
