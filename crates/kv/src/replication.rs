//! How a node takes part in replication: its name, its login at other nodes, and where they are.

/// What an operator has configured.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Replication {
    /// The node's name in topologies; `None`: the address of its KV port.
    pub node: Option<Box<str>>,
    /// As whom it logs in at other nodes.
    pub user: Box<str>,
    /// That user's password there.
    pub password: Box<str>,
    /// It uses TLS, and nothing but that.
    pub uses_tls: bool,
    /// The other nodes.
    pub peers: Vec<PeerNode>,
}

/// Another node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerNode {
    /// Its name in topologies.
    pub name: Box<str>,
    /// Its host name or address.
    pub host: Box<str>,
    /// Its KV port.
    pub kv: Option<u16>,
    /// Its HTTP port, which cluster maps show.
    pub http: Option<u16>,
    /// Its KV port with TLS.
    pub kv_tls: Option<u16>,
    /// Its HTTP port with TLS, which cluster maps show.
    pub http_tls: Option<u16>,
}

/// Splits `HOST:PORT`; an IPv6 address is in brackets.
pub fn split_address(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    (!host.is_empty()).then_some((host, port.parse().ok()?))
}

impl Replication {
    /// Returns true if a node of this name is configured.
    pub fn has_peer(&self, name: &str) -> bool {
        self.peers.iter().any(|peer| *peer.name == *name)
    }

    /// Returns where a node is: one that is configured, or one whose name is an address.
    pub fn find(&self, name: &str) -> Option<PeerNode> {
        if let Some(peer) = self.peers.iter().find(|peer| *peer.name == *name) {
            return Some(peer.clone());
        }
        let (host, port) = split_address(name).filter(|(_, port)| *port > 0)?;
        Some(PeerNode { name: name.into(), host: host.into(), kv: Some(port), ..PeerNode::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_found_by_its_name_or_is_an_address() {
        let peer = PeerNode {
            name: "n2".into(),
            host: "10.0.0.2".into(),
            kv: Some(11210),
            http: Some(8091),
            ..PeerNode::default()
        };
        let replication = Replication { peers: vec![peer.clone()], ..Replication::default() };
        assert_eq!(replication.find("n2"), Some(peer));
        let found = |name| replication.find(name).map(|peer| (peer.host.to_string(), peer.kv.unwrap_or(0)));
        assert_eq!(found("db-3:11210"), Some(("db-3".to_owned(), 11210)));
        assert_eq!(found("[::1]:7"), Some(("::1".to_owned(), 7)));
        for name in ["n3", ":11210", "db:", "db:0", "db:70000", "db:x"] {
            assert_eq!(found(name), None, "{name}");
        }
    }
}
