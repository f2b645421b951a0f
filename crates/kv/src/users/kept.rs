//! Users and groups that are kept on disk, as they are written there.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use wire::sasl::{Hash, ScramKeys};

use super::roles::{Rights, Role};

/// All users and groups that are kept.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// Users by name.
    #[serde(default)]
    pub users: BTreeMap<String, KeptUser>,
    /// Groups by name.
    #[serde(default)]
    pub groups: BTreeMap<String, Group>,
    /// The name of the user who was set as the administrator.
    #[serde(default)]
    pub administrator: Option<String>,
    /// Users whose passwords another system would have, by name. Nobody asks one, so they cannot log in: they are
    /// stored and shown.
    #[serde(default)]
    pub external: BTreeMap<String, ExternalUser>,
}

/// A user without a password.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExternalUser {
    /// The full name.
    #[serde(default)]
    pub name: String,
    /// Its own roles.
    #[serde(default)]
    pub roles: Vec<Role>,
    /// Names of its groups.
    #[serde(default)]
    pub groups: BTreeSet<String>,
}

/// A user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptUser {
    /// The full name.
    #[serde(default)]
    pub name: String,
    /// What remains of the password.
    pub keys: Keys,
    /// Its own roles.
    #[serde(default)]
    pub roles: Vec<Role>,
    /// Names of its groups.
    #[serde(default)]
    pub groups: BTreeSet<String>,
    /// When the password was set, s since 1970.
    #[serde(default)]
    pub password_changed_s: u64,
}

/// A group: its members have its roles.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// What it is for.
    #[serde(default)]
    pub description: String,
    /// The name of a group elsewhere; stored and shown.
    #[serde(default)]
    pub ldap_group_ref: String,
    /// Its roles.
    #[serde(default)]
    pub roles: Vec<Role>,
}

impl Kept {
    /// Returns true if somebody may do everything.
    pub fn has_administrator(&self) -> bool {
        self.users.values().any(|user| self.roles_of(user).any(|role| role.kind().rights == Rights::ALL))
    }

    /// Replaces the administrator.
    pub fn set_administrator(&mut self, name: &str, keys: Keys, now_s: u64) {
        if let Some(old) = self.administrator.replace(name.to_owned()) {
            self.users.remove(&old);
        }
        let user = KeptUser {
            name: String::new(),
            keys,
            roles: vec![Role::admin()],
            groups: BTreeSet::new(),
            password_changed_s: now_s,
        };
        self.users.insert(name.to_owned(), user);
    }

    /// Returns the roles of a user and of its groups.
    pub fn roles_of<'a>(&'a self, user: &'a KeptUser) -> impl Iterator<Item = &'a Role> {
        self.roles_with(&user.roles, &user.groups)
    }

    /// Returns roles and those of groups.
    pub fn roles_with<'a>(
        &'a self,
        roles: &'a [Role],
        groups: &'a BTreeSet<String>,
    ) -> impl Iterator<Item = &'a Role> {
        let groups = groups.iter().filter_map(|name| self.groups.get(name));
        roles.iter().chain(groups.flat_map(|group| &group.roles))
    }
}

/// The SCRAM keys of a password, one for each hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "[String; 3]", into = "[String; 3]")]
pub struct Keys(pub(super) [ScramKeys; 3]);

impl Keys {
    /// Returns the keys of a hash.
    pub fn of(&self, hash: Hash) -> &ScramKeys {
        let [sha1, sha256, sha512] = &self.0;
        match hash {
            Hash::Sha1 => sha1,
            Hash::Sha256 => sha256,
            Hash::Sha512 => sha512,
        }
    }
}

impl From<Keys> for [String; 3] {
    fn from(keys: Keys) -> Self {
        keys.0.map(|keys| keys.to_string())
    }
}

impl TryFrom<[String; 3]> for Keys {
    type Error = &'static str;

    fn try_from(texts: [String; 3]) -> Result<Self, Self::Error> {
        let parsed = texts.map(|text| text.parse::<ScramKeys>().ok());
        let [Some(sha1), Some(sha256), Some(sha512)] = parsed else {
            return Err("not the SCRAM keys of a password");
        };
        let keys = [sha1, sha256, sha512];
        match keys.each_ref().map(ScramKeys::hash) == Hash::ALL {
            true => Ok(Self(keys)),
            false => Err("the SCRAM keys must be of SHA-1, SHA-256 and SHA-512"),
        }
    }
}

impl Serialize for Role {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("the role {text:?} is not known")))
    }
}
