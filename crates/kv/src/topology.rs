//! A vBucket's state and its replication topology, as SET_VBUCKET gives them.

use std::fmt;

/// Most chains: the present one, and during a move the next one.
pub const CHAINS_MAX: usize = 2;
/// Most nodes of a chain: the active and three replicas.
pub const NODES_MAX: usize = 4;
/// Longest name of a node, in bytes.
pub const NAME_MAX: usize = 255;

/// Who serves a vBucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VbState {
    /// This node: reads and writes.
    #[default]
    Active,
    /// Another node; this one keeps a copy.
    Replica,
    /// Nobody yet; this node is about to take over.
    Pending,
    /// This node no longer has any part in it.
    Dead,
}

impl VbState {
    /// Returns the state with this number on the wire.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Active),
            2 => Some(Self::Replica),
            3 => Some(Self::Pending),
            4 => Some(Self::Dead),
            _ => None,
        }
    }

    /// Returns its number on the wire.
    pub const fn number(self) -> u32 {
        match self {
            Self::Active => 1,
            Self::Replica => 2,
            Self::Pending => 3,
            Self::Dead => 4,
        }
    }

    /// Returns the state with this name, as statistics and HTTP write it.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Active, Self::Replica, Self::Pending, Self::Dead]
            .into_iter()
            .find(|state| state.name() == name)
    }

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Replica => "replica",
            Self::Pending => "pending",
            Self::Dead => "dead",
        }
    }
}

/// The nodes of one chain by name; the first is the active. `None` is a vacant place: it counts, and never
/// acknowledges.
pub type Chain = Vec<Option<Box<str>>>;

/// The chains a durable write must satisfy. Without any, the active alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    chains: Vec<Chain>,
}

/// What is wrong with a topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// Not a list of lists of names.
    #[error("the topology must be a list of one or two chains, each a list of node names or null")]
    Shape,
    /// More chains or nodes than allowed, or none.
    #[error("a topology has 1 or 2 chains of 1 to {NODES_MAX} nodes")]
    Length,
    /// The first place of a chain is vacant.
    #[error("a chain's first node must not be null")]
    NoActive,
    /// A name is empty, too long, has control characters, or is twice in a chain.
    #[error(
        "the nodes of a chain must have different names of 1 to {NAME_MAX} bytes without control characters"
    )]
    Name,
}

impl Topology {
    /// Creates a topology from lists of names.
    pub fn new<'a>(
        chains: impl IntoIterator<Item = impl IntoIterator<Item = Option<&'a str>>>,
    ) -> Result<Self, TopologyError> {
        let mut topology = Self::default();
        for names in chains {
            let mut chain = Chain::new();
            for name in names {
                let is_valid = |name: &str| {
                    !name.is_empty()
                        && name.len() <= NAME_MAX
                        // Statistics print names as they are, one per line.
                        && !name.chars().any(char::is_control)
                        && !chain.iter().flatten().any(|other| **other == *name)
                };
                if name.is_some_and(|name| !is_valid(name)) {
                    return Err(TopologyError::Name);
                }
                chain.push(name.map(Into::into));
            }
            match chain.first() {
                Some(Some(_)) if chain.len() <= NODES_MAX => topology.chains.push(chain),
                Some(None) => return Err(TopologyError::NoActive),
                _ => return Err(TopologyError::Length),
            }
        }
        let length = topology.chains.len();
        if (1..=CHAINS_MAX).contains(&length) { Ok(topology) } else { Err(TopologyError::Length) }
    }

    /// Parses JSON: `[["a","b"],["a",null]]`; `null` is the active alone.
    pub fn from_json(json: &serde_json::Value) -> Result<Self, TopologyError> {
        if json.is_null() {
            return Ok(Self::default());
        }
        let chains: Vec<Vec<Option<&str>>> =
            serde::Deserialize::deserialize(json).map_err(|_| TopologyError::Shape)?;
        Self::new(chains)
    }

    /// Returns true if there are other nodes than the active in its chains.
    pub(crate) fn has_others(&self) -> bool {
        self.chains.iter().any(|chain| chain.iter().skip(1).any(Option::is_some))
    }

    /// Returns the chains; none if the active is alone.
    pub fn chains(&self) -> &[Chain] {
        &self.chains
    }
}

/// As JSON; `null` for the active alone.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.chains.is_empty() {
            return f.write_str("null");
        }
        f.write_str(&serde_json::json!(self.chains).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Topology, TopologyError> {
        Topology::from_json(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn json_goes_both_ways() {
        for text in ["null", r#"[["a"]]"#, r#"[["a","b",null]]"#, r#"[["a","b"],["c","a"]]"#] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_topology_is_refused() {
        for (text, error) in [
            ("7", TopologyError::Shape),
            (r#"["a"]"#, TopologyError::Shape),
            ("[]", TopologyError::Length),
            ("[[]]", TopologyError::Length),
            (r#"[["a","b","c","d","e"]]"#, TopologyError::Length),
            (r#"[["a"],["b"],["c"]]"#, TopologyError::Length),
            ("[[null]]", TopologyError::NoActive),
            (r#"[["a","a"]]"#, TopologyError::Name),
            (r#"[[""]]"#, TopologyError::Name),
        ] {
            assert_eq!(read(text), Err(error), "{text}");
        }
    }

    #[test]
    fn states_have_numbers_and_names() {
        for number in 1..=4 {
            let state = VbState::from_number(number).unwrap();
            assert_eq!((state.number(), VbState::from_name(state.name())), (number, Some(state)));
        }
        assert_eq!((VbState::from_number(0), VbState::from_name("x")), (None, None));
    }
}
