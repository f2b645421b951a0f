//! The part that a node has in a vBucket: its state, its chains, where it copies from, and the term all of that is of.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::collections::TERM_BITS;
use crate::replication::Replication;
use crate::topology::{NAME_MAX, Topology, VbState};
use crate::users::roles::Rights;

/// Highest term.
pub const TERM_MOST: u64 = (1 << TERM_BITS) - 1;

/// A vBucket's role on this node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Role {
    /// Its state.
    pub state: VbState,
    /// The chains that durable writes must satisfy.
    pub topology: Topology,
    /// Raised with each change of the active. What comes of a lower one than was promised is refused.
    pub term: u64,
    /// The node that a replica, or one that is pending, copies from.
    pub source: Option<Arc<str>>,
    /// Once it has everything, the source dies and this node becomes the active.
    pub takes_over: bool,
}

/// What is to change of a role; `None`: it stays.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RoleChange {
    /// See [`Role`].
    pub state: Option<VbState>,
    /// See [`Role`].
    pub topology: Option<Topology>,
    /// See [`Role`].
    pub term: Option<u64>,
    /// See [`Role`]; `Some(None)`: it copies from nobody.
    pub source: Option<Option<Arc<str>>>,
    /// See [`Role`].
    pub takes_over: Option<bool>,
    /// The name of whoever decides: one term is not accepted from two of them.
    pub by: Option<Arc<str>>,
}

/// Why a role cannot be changed as requested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoleError {
    /// The term is lower than one that was promised.
    #[error("term {asked} is lower than {promised}, which was promised")]
    Term {
        /// The one of the request.
        asked: u64,
        /// The one in force.
        promised: u64,
    },
    /// Somebody else has raised the term, at the same time.
    #[error("term {term} was promised to somebody else: raise it again")]
    Promised {
        /// The term.
        term: u64,
    },
    /// Another node may be the active of the term.
    #[error("another node may be the active of term {term}: use a new one")]
    Used {
        /// The term.
        term: u64,
    },
    /// There is no such term.
    #[error("there is no term above {TERM_MOST}")]
    TermMost,
    /// Only copies have a source.
    #[error("only a vBucket that is replica or pending has a source")]
    Source,
    /// Only whoever is pending takes over.
    #[error("only a vBucket that is pending, and has a source, takes over")]
    TakeOver,
    /// A new copy is replacing the old one. That takes milliseconds.
    #[error("the vBucket's copy is being replaced; try again")]
    Refilling,
}

/// How the present term was promised. Known in memory only: after a restart nobody goes on in a term.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Promise {
    /// Who raised it, if they named themselves.
    by: Option<Arc<str>>,
    /// No node is known here as the active of the term.
    is_open: bool,
}

impl Promise {
    /// Checks that a term has one active and one party that decides. Of two that raise the same term, the second is
    /// refused; and no vBucket becomes active in a term in which another node may be the active.
    pub(crate) fn check(&self, before: &Role, change: &RoleChange) -> Result<(), RoleError> {
        let term = before.term;
        if change.term != Some(term) || term == 0 {
            return Ok(());
        }
        let becomes_active = change.state == Some(VbState::Active) && before.state != VbState::Active;
        match &change.by {
            Some(by) if self.by.as_ref() != Some(by) => Err(RoleError::Promised { term }),
            _ if becomes_active && !self.is_open => Err(RoleError::Used { term }),
            _ => Ok(()),
        }
    }

    /// Returns what becomes of it with a role.
    pub(crate) fn after(self, before: &Role, role: &Role, by: Option<Arc<str>>) -> Self {
        let promise = if role.term > before.term { Self { by, is_open: true } } else { self };
        let copies = matches!(role.state, VbState::Replica | VbState::Pending);
        Self { is_open: promise.is_open && copies && role.source.is_none(), ..promise }
    }
}

impl RoleChange {
    /// Reads a member of a JSON object: `topology`, `term`, `source`, `takeover` or `by`. The error says what is wrong.
    pub fn read(&mut self, name: &str, value: &Value) -> Result<(), String> {
        match name {
            "topology" => {
                self.topology = Some(Topology::from_json(value).map_err(|error| error.to_string())?);
            }
            "term" => {
                let term = value.as_u64().filter(|term| *term <= TERM_MOST);
                self.term =
                    Some(term.ok_or_else(|| format!("The term must be a number from 0 to {TERM_MOST}"))?);
            }
            "source" => {
                let is_name = |name: &&str| {
                    !name.is_empty() && name.len() <= NAME_MAX && !name.chars().any(char::is_control)
                };
                self.source = Some(match value {
                    Value::Null => None,
                    _ => {
                        let name = value.as_str().filter(is_name);
                        Some(name.ok_or("The source must be the name of a node, or null")?.into())
                    }
                });
            }
            "takeover" => {
                self.takes_over = Some(value.as_bool().ok_or("takeover must be true or false")?);
            }
            "by" => {
                let is_name = |name: &&str| !name.is_empty() && name.len() <= NAME_MAX;
                let name = value.as_str().filter(is_name);
                self.by = Some(name.ok_or("by must be a name")?.into());
            }
            other => return Err(format!("The member {other:?} is not known")),
        }
        Ok(())
    }

    /// Reads a JSON object.
    pub fn from_json(document: &Map<String, Value>) -> Result<Self, String> {
        let mut change = Self::default();
        document.iter().try_for_each(|(name, value)| change.read(name, value))?;
        Ok(change)
    }

    /// Returns the rights that the change needs. This node connects to the source and logs in there, and clients
    /// connect to the nodes of a topology with their own logins. So only a full administrator names others than the
    /// configured peers; `own` is this node's name, which a topology may have.
    pub fn needs(&self, own: &str, replication: &Replication) -> Rights {
        let source = self.source.as_ref().and_then(Option::as_deref);
        let chains = self.topology.iter().flat_map(Topology::chains);
        let mut named = chains.flatten().flatten().filter(|name| ***name != *own);
        let has_peer = |name: &str| replication.has_peer(name);
        match source.is_none_or(has_peer) && named.all(|name| has_peer(name)) {
            true => Rights::BUCKET,
            false => Rights::ALL,
        }
    }

    /// Returns what becomes of a role.
    pub(crate) fn of(self, before: &Role) -> Result<Role, RoleError> {
        let term = self.term.unwrap_or(before.term);
        if term < before.term {
            return Err(RoleError::Term { asked: term, promised: before.term });
        }
        if term > TERM_MOST {
            return Err(RoleError::TermMost);
        }
        let state = match before.state {
            // It promises not to be the active of its term any more, and is not made that of the new one.
            VbState::Active if term > before.term => self.state.unwrap_or(VbState::Pending),
            state => self.state.unwrap_or(state),
        };
        let copies = matches!(state, VbState::Replica | VbState::Pending);
        let source = match self.source {
            Some(Some(_)) if !copies => return Err(RoleError::Source),
            Some(source) => source,
            None if copies => before.source.clone(),
            None => None,
        };
        let may_take_over = state == VbState::Pending && source.is_some();
        let takes_over = match self.takes_over {
            Some(true) if !may_take_over => return Err(RoleError::TakeOver),
            Some(takes_over) => takes_over,
            None => before.takes_over && may_take_over,
        };
        Ok(Role {
            state,
            topology: self.topology.unwrap_or_else(|| before.topology.clone()),
            term,
            source,
            takes_over,
        })
    }
}

impl Role {
    /// Returns true if it is pending in this term, and to take over from this node.
    pub(crate) fn is_to_succeed(&self, term: u64, source: &str) -> bool {
        let is_pending = self.state == VbState::Pending && self.term == term;
        is_pending && self.takes_over && self.source.as_deref() == Some(source)
    }

    /// Returns it as a JSON object.
    pub fn to_json(&self) -> Value {
        let topology: Value = serde_json::from_str(&self.topology.to_string()).unwrap_or_default();
        json!({
            "state": self.state.name(),
            "topology": topology,
            "term": self.term,
            "source": self.source.as_deref(),
            "takeover": self.takes_over,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::PeerNode;

    fn change(json: Value) -> Result<RoleChange, String> {
        RoleChange::from_json(json.as_object().unwrap())
    }

    #[test]
    fn what_is_not_named_stays() {
        let mut role = Role::default();
        for (state, json, expected) in [
            (Some(VbState::Replica), json!({ "source": "a", "term": 3 }), ("replica", 3, Some("a"))),
            (None, json!({ "topology": [["a", "b"]] }), ("replica", 3, Some("a"))),
            (Some(VbState::Pending), json!({ "takeover": true }), ("pending", 3, Some("a"))),
            (Some(VbState::Active), json!({ "term": 4 }), ("active", 4, None)),
            (Some(VbState::Replica), json!({}), ("replica", 4, None)),
        ] {
            role = RoleChange { state, ..change(json).unwrap() }.of(&role).unwrap();
            assert_eq!((role.state.name(), role.term, role.source.as_deref()), expected);
            assert_eq!(role.takes_over, role.state == VbState::Pending);
        }
        assert_eq!(role.topology.to_string(), r#"[["a","b"]]"#);
    }

    #[test]
    fn strangers_are_named_by_full_administrators() {
        let peer = PeerNode { name: "b".into(), ..PeerNode::default() };
        let replication = Replication { peers: vec![peer], ..Replication::default() };
        for (json, needed) in [
            (json!({ "term": 3, "source": null, "topology": null }), Rights::BUCKET),
            (json!({ "source": "b", "topology": [["a", "b", null], ["b"]] }), Rights::BUCKET),
            (json!({ "source": "c" }), Rights::ALL),
            // A node has no copies of its own.
            (json!({ "source": "a" }), Rights::ALL),
            (json!({ "source": "b:11210" }), Rights::ALL),
            (json!({ "topology": [["a", "c"]] }), Rights::ALL),
            (json!({ "topology": [["a", "b"], ["c"]] }), Rights::ALL),
            (json!({ "source": "b", "topology": [["10.0.0.7:11210"]] }), Rights::ALL),
        ] {
            assert_eq!(change(json.clone()).unwrap().needs("a", &replication), needed, "{json}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let role = Role { term: 5, ..Role::default() };
        let refused = |state, json| RoleChange { state, ..change(json).unwrap() }.of(&role).unwrap_err();
        assert_eq!(refused(None, json!({ "term": 4 })), RoleError::Term { asked: 4, promised: 5 });
        assert_eq!(refused(None, json!({ "source": "a" })), RoleError::Source);
        let replica = Some(VbState::Replica);
        assert_eq!(refused(replica, json!({ "source": "a", "takeover": true })), RoleError::TakeOver);
        for bad in [
            json!({ "term": -1 }),
            json!({ "term": "1" }),
            json!({ "source": "" }),
            json!({ "source": 7 }),
            json!({ "source": "a\n" }),
            json!({ "takeover": 1 }),
            json!({ "topology": 7 }),
            json!({ "sauce": "a" }),
        ] {
            assert!(change(bad.clone()).is_err(), "{bad}");
        }
    }
}
