//! Requests of sessions other than transactions and monitors, and the forms of replies.

use super::transactions::{write_error, write_id};
use super::{DatabaseId, Log, Now, Server, SessionId};
use crate::error::Error;
use crate::members::is_id;
use crate::monitor::Version;
use crate::server::output::append_shared;
use std::sync::Arc;
use wire::json::{Value, write};
use wire::jsonrpc::Params;

/// The answer to a request: the text of the result.
type Answer = Result<Vec<u8>, Error>;

/// The result of a request that returns nothing.
const DONE: &[u8] = b"{}";

const UNKNOWN_METHOD: &[u8] = b"\"unknown method\"";

const LOCKS_ARE_READ_ONLY: &[u8] = b"\"lock and unlock methods not allowed, DB server is read only.\"";

impl<L: Log> Server<L> {
    /// Answers a request.
    pub(super) fn request(
        &mut self,
        session: SessionId,
        method: &str,
        params: Params<'_>,
        id: Value<'_>,
        now: Now,
    ) {
        let array = params.array();
        match method {
            "transact" => return self.transact(session, params, id, now),
            "echo" => {
                return self.group_answer(session, |out| {
                    out.extend_from_slice(b"{\"id\":");
                    write_id(out, id);
                    out.extend_from_slice(b",\"result\":");
                    write::sorted(out, array);
                    out.extend_from_slice(b",\"error\":null}");
                });
            }
            _ => {}
        }
        self.flush_group();
        self.other_request(session, method, array, id, now);
        if let Some(database) = self.converted.take() {
            self.after_conversion(database, now);
        }
        self.sessions.publish();
    }

    fn other_request(
        &mut self,
        session: SessionId,
        method: &str,
        params: Value<'_>,
        id: Value<'_>,
        now: Now,
    ) {
        let answer = match method {
            "list_dbs" => self.list_databases(),
            "get_schema" => match self.get_schema(params) {
                Ok(text) => return self.reply_shared(session, id, text),
                Err(error) => Err(error),
            },
            "get_server_id" => self.get_server_id(),
            "lock" | "steal" | "unlock" if self.is_read_only(session) => {
                return self.reply_error_text(session, &canonical(id), LOCKS_ARE_READ_ONLY);
            }
            "lock" | "steal" => self.lock(session, params, method),
            "unlock" => self.unlock(session, params),
            "set_db_change_aware" => self.set_database_change_aware(session, params),
            "monitor_cond" | "monitor_cond_since" if self.without_monitor_cond => {
                return self.reply_error_text(session, &canonical(id), UNKNOWN_METHOD);
            }
            "monitor" | "monitor_cond" | "monitor_cond_since" => {
                let Some(version) = Version::of_request(method) else { return };
                match self.monitor(session, params, version, id) {
                    Ok(()) => return,
                    Err(error) => Err(error),
                }
            }
            "monitor_cond_change" => self.change_conditions(session, params),
            "monitor_cancel" => match self.cancel_monitor(session, params) {
                Ok(()) => Ok(DONE.to_vec()),
                Err(text) => return self.reply_error_text(session, &canonical(id), text),
            },
            "convert" => self.convert(session, params, now),
            _ => return self.reply_error_text(session, &canonical(id), UNKNOWN_METHOD),
        };
        match answer {
            Ok(result) => self.reply(session, id, &result),
            Err(error) => self.reply_error(session, id, &error),
        }
    }

    fn is_read_only(&self, session: SessionId) -> bool {
        self.sessions.get(session).is_some_and(|session| session.options.read_only)
    }

    /// The database that a request's params begin with.
    pub(super) fn find_database(&self, params: Value<'_>, method: &str) -> Result<DatabaseId, Error> {
        let Some(name) = params.elements().next().and_then(Value::as_string) else {
            return Err(Error::syntax_error(
                params,
                format!("{method} request params must begin with <db-name>"),
            ));
        };
        self.databases.find(&name).ok_or_else(|| {
            Error::unknown_database(params, format!("{method} request specifies unknown database {name}"))
        })
    }

    fn list_databases(&self) -> Answer {
        let mut text = vec![b'['];
        for name in self.databases.names() {
            if text.len() > 1 {
                text.push(b',');
            }
            write::string(&mut text, name);
        }
        text.push(b']');
        Ok(text)
    }

    fn get_schema(&mut self, params: Value<'_>) -> Result<Arc<Vec<u8>>, Error> {
        let id = self.find_database(params, "get_schema")?;
        let Some(hosted) = self.databases.get_mut(id) else { return Ok(Arc::default()) };
        let schema = hosted.database.schema();
        let text = hosted.schema_text.get_or_insert_with(|| {
            let mut text = Vec::new();
            schema.write_json(&mut text);
            text.shrink_to_fit();
            Arc::new(text)
        });
        Ok(Arc::clone(text))
    }

    fn get_server_id(&self) -> Answer {
        let mut text = vec![b'"'];
        self.id.write(&mut text);
        text.push(b'"');
        Ok(text)
    }

    fn set_database_change_aware(&mut self, session: SessionId, params: Value<'_>) -> Answer {
        let mut elements = params.elements();
        let (Some(Some(aware)), None) = (elements.next().map(Value::as_boolean), elements.next()) else {
            let details = "set_db_change_aware: true or false parameter expected";
            return Err(Error::syntax_error(params, details));
        };
        if let Some(session) = self.sessions.get_mut(session) {
            session.database_change_aware = aware;
        }
        Ok(DONE.to_vec())
    }

    /// `lock` and `steal`
    fn lock(&mut self, id: SessionId, params: Value<'_>, method: &str) -> Answer {
        let name = lock_name(params, method)?;
        let Some(session) = self.sessions.get_mut(id) else { return Ok(Vec::new()) };
        if session.locks.iter().any(|lock| **lock == *name) {
            let details = format!("must issue \"unlock\" before new \"{method}\"");
            return Err(Error::syntax_error(params, details));
        }
        if session.locks.len() >= self.limits.locks_per_session {
            return Err(Error::resources_exhausted("too many locks"));
        }
        session.locks.push(name.as_str().into());
        session.kept_bytes += name.len();
        let mut locked = true;
        if method == "steal" {
            if let Some(victim) = self.locks.steal(&name, id) {
                self.notify_lock("stolen", &name, victim);
            }
        } else {
            locked = self.locks.lock(&name, id);
        }
        Ok(if locked { b"{\"locked\":true}".to_vec() } else { b"{\"locked\":false}".to_vec() })
    }

    fn unlock(&mut self, id: SessionId, params: Value<'_>) -> Answer {
        let name = lock_name(params, "unlock")?;
        let session = self.sessions.get_mut(id);
        let place =
            session.as_ref().and_then(|session| session.locks.iter().position(|lock| **lock == *name));
        let (Some(session), Some(place)) = (session, place) else {
            return Err(Error::syntax_error(params, "unlock: \"unlock\" without \"lock\" or \"steal\""));
        };
        session.locks.remove(place);
        session.kept_bytes = session.kept_bytes.saturating_sub(name.len());
        if let Some(owner) = self.locks.unlock(&name, id) {
            self.notify_lock("locked", &name, owner);
        }
        Ok(DONE.to_vec())
    }

    /// Notifies a session that it has got or lost a lock.
    pub(super) fn notify_lock(&mut self, method: &str, name: &str, session: SessionId) {
        let mut text = Vec::new();
        write::string(&mut text, name);
        self.notify_session(session, method, &text);
    }

    /// A notification with one parameter.
    pub(super) fn notify_session(&mut self, session: SessionId, method: &str, param: &[u8]) {
        let Some(output) = self.sessions.output(session) else { return };
        output.append(format!("{{\"id\":null,\"method\":\"{method}\",\"params\":[").as_bytes());
        output.append(param);
        output.append(b"]}");
    }

    /// The reply to a request that succeeded.
    pub(super) fn reply(&mut self, session: SessionId, id: Value<'_>, result: &[u8]) {
        let Some(output) = self.sessions.output(session) else { return };
        output.write(|out| {
            out.extend_from_slice(b"{\"id\":");
            write_id(out, id);
            out.extend_from_slice(b",\"result\":");
            out.extend_from_slice(result);
            out.extend_from_slice(b",\"error\":null}");
        });
    }

    /// As [`Self::reply`], with a result that others are sent as well.
    fn reply_shared(&mut self, session: SessionId, id: Value<'_>, result: Arc<Vec<u8>>) {
        let Some(output) = self.sessions.output(session) else { return };
        output.write(|out| {
            out.extend_from_slice(b"{\"id\":");
            write_id(out, id);
            out.extend_from_slice(b",\"result\":");
        });
        append_shared(output, result);
        output.append(b",\"error\":null}");
    }

    /// The reply to a request that failed.
    pub(super) fn reply_error(&mut self, session: SessionId, id: Value<'_>, error: &Error) {
        let Some(output) = self.sessions.output(session) else { return };
        output.write(|out| write_error(out, id, error));
    }

    /// The reply to a request that failed with an error that is only a text.
    pub(super) fn reply_error_text(&mut self, session: SessionId, id: &[u8], error: &[u8]) {
        let Some(output) = self.sessions.output(session) else { return };
        output.append(b"{\"id\":");
        output.append(id);
        output.append(b",\"error\":");
        output.append(error);
        output.append(b"}");
    }
}

fn canonical(id: Value<'_>) -> Vec<u8> {
    let mut text = Vec::new();
    write_id(&mut text, id);
    text
}

/// The name of the lock a request is about.
fn lock_name(params: Value<'_>, method: &str) -> Result<String, Error> {
    let mut elements = params.elements();
    match (elements.next().and_then(Value::as_string), elements.next()) {
        (Some(name), None) if is_id(&name) => Ok(name.into_owned()),
        _ => Err(Error::syntax_error(params, format!("{method} request params must be <id>"))),
    }
}
