//! The control socket: JSON-RPC requests whose arguments are strings, answered with a text.
//!
//! The [`Host`] executes a connection's commands one after another, outside of the loop, each at the end of a turn.

use std::path::Path;

use wire::json::write;
use wire::jsonrpc::Message;

use super::connection::Role;
use super::coverage::Event;
use super::event_loop::{EventLoop, Host, Slot};
use super::logger::Level;
use super::logger::text_of;
use mio::{Interest, Token};
use transport::Listener;

/// Identifies a command whose answer is outstanding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    pub(super) slot: usize,
    pub(super) serial: u64,
}

/// A command.
#[derive(Debug, Clone)]
pub struct Command {
    /// Its name.
    pub name: String,
    /// Its arguments; `None` for those that are not strings.
    pub arguments: Vec<Option<String>>,
    /// For an answer that comes later.
    pub ticket: Ticket,
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Success; the text may be empty.
    Text(String),
    /// Failure.
    Error(String),
    /// This many parts are answered later ([`EventLoop::start_compaction`]); the texts of those that fail are sent
    /// together.
    Later(usize),
}

/// A command that is answered later: the outstanding parts, the texts so far, and the request's id.
#[derive(Debug)]
pub(super) struct Outstanding {
    ticket: Ticket,
    parts: usize,
    errors: String,
    id: Vec<u8>,
}

impl EventLoop {
    /// Listens for commands. Fails with the system's error text.
    pub fn open_control(&mut self, path: &Path) -> Result<(), String> {
        self.count(Event::ListenerOpened);
        let slot = self.new_slot();
        let opened = Listener::unix_in_place_of(path).and_then(|mut listener| {
            self.poll.registry().register(&mut listener, Token(slot), Interest::READABLE)?;
            Ok(listener)
        });
        match opened {
            Ok(listener) => {
                self.put(slot, Slot::Listener(listener, None));
                Ok(())
            }
            Err(error) => {
                self.free_slot(slot);
                let error = text_of(&error);
                self.log_not_bound(path, &error);
                Err(error)
            }
        }
    }

    pub(super) fn execute(&mut self, host: &mut dyn Host, ticket: Ticket, text: &[u8]) {
        let (method, params, id) = match Message::parse(text) {
            Ok(Message::Request { method, params, id }) => (method, params, id),
            Ok(other) => {
                let kind = match other {
                    Message::Notification { .. } => "notification",
                    Message::Reply { .. } => "reply",
                    _ => "error",
                };
                return self.reject(ticket, "unixctl", &format!("received unexpected {kind} message"));
            }
            Err(error) => {
                return self.reject(ticket, "jsonrpc", &format!("received bad JSON-RPC message: {error}"));
            }
        };
        self.count(Event::CommandReceived);
        let arguments = params
            .array()
            .elements()
            .map(|argument| argument.as_string().map(|text| text.into_owned()))
            .collect();
        let command = Command { name: method.into_owned(), arguments, ticket };
        let id = id.text().to_vec();
        match host.command(self, &command) {
            Answer::Text(text) => self.answer(ticket, &id, &Ok(text)),
            Answer::Error(text) => self.answer(ticket, &id, &Err(text)),
            Answer::Later(0) => self.answer(ticket, &id, &Ok(String::new())),
            Answer::Later(parts) => {
                self.remotes.outstanding.push(Outstanding { ticket, parts, errors: String::new(), id });
            }
        }
    }

    /// Notes that one part of a command that is answered later has ended.
    pub(super) fn answer_part(&mut self, ticket: Ticket, error: Option<String>) {
        let outstanding = &mut self.remotes.outstanding;
        let Some(at) = outstanding.iter().position(|other| other.ticket == ticket) else { return };
        let Some(entry) = outstanding.get_mut(at) else { return };
        if let Some(error) = error {
            entry.errors.push_str(&error);
            entry.errors.push('\n');
        }
        entry.parts = entry.parts.saturating_sub(1);
        if entry.parts == 0 {
            let entry = outstanding.swap_remove(at);
            let result = if entry.errors.is_empty() { Ok(String::new()) } else { Err(entry.errors) };
            self.answer(ticket, &entry.id, &result);
        }
    }

    fn answer(&mut self, ticket: Ticket, id: &[u8], result: &Result<String, String>) {
        self.count(Event::CommandReplied);
        let Some(Slot::Connection(connection)) = self.slots.get_mut(ticket.slot) else { return };
        if connection.serial != ticket.serial {
            return;
        }
        let Role::Control(control) = &mut connection.role else { return };
        let (member, text) = match result {
            Ok(text) => (&b",\"result\":"[..], text),
            Err(text) => (&b",\"error\":"[..], text),
        };
        let mut line = text.clone();
        if !line.is_empty() && !line.ends_with('\n') {
            line.push('\n');
        }
        control.output.extend_from_slice(b"{\"id\":");
        control.output.extend_from_slice(id);
        control.output.extend_from_slice(member);
        write::string(&mut control.output, &line);
        control.output.extend_from_slice(if result.is_ok() { b",\"error\":null}" } else { b"}" });
        control.busy = false;
        if !control.waiting.is_empty() {
            control.busy = true;
            let next = control.waiting.remove(0);
            self.commands.push_back((ticket, next));
        }
        self.send(ticket.slot);
    }

    /// Ends a control connection that sent an invalid message.
    fn reject(&mut self, ticket: Ticket, module: &'static str, why: &str) {
        if let Some(Slot::Connection(connection)) = self.slots.get(ticket.slot)
            && connection.serial == ticket.serial
        {
            let text = format!("{}: {why}", connection.name);
            self.log(module, Level::Warning, &text);
            self.close_slot(ticket.slot);
        }
    }
}
