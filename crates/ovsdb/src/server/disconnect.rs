//! Why a connection must be closed.

use std::fmt;
use wire::jsonrpc::MessageError;

/// Why a client's message ends its connection. Its visible output must still be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disconnect {
    /// Not a JSON-RPC message.
    BadMessage(MessageError),
    /// A reply to a request that was not sent.
    UnexpectedReply,
    /// An error reply to a request that was not sent.
    UnexpectedError,
    /// The session does not exist (any more).
    Closed,
}

impl Disconnect {
    /// The lines the stock server logs about it, as module and text; the level is WARN.
    pub fn log_lines(&self, session: &str) -> Vec<(&'static str, String)> {
        match self {
            Self::BadMessage(_) => vec![
                ("jsonrpc", format!("{session}: {self}")),
                ("reconnect", format!("{session}: connection dropped (Protocol error)")),
            ],
            Self::UnexpectedReply | Self::UnexpectedError => {
                vec![("ovsdb_jsonrpc_server", format!("{session}: {self}"))]
            }
            Self::Closed => Vec::new(),
        }
    }
}

impl fmt::Display for Disconnect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadMessage(why) => write!(formatter, "received bad JSON-RPC message: {why}"),
            Self::UnexpectedReply => formatter.write_str("received unexpected reply message"),
            Self::UnexpectedError => formatter.write_str("received unexpected error message"),
            Self::Closed => formatter.write_str("closed"),
        }
    }
}

impl std::error::Error for Disconnect {}
