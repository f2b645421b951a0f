//! SASL on a memcached port that requires a login: PLAIN, as memcached offers with `-S`.

use kv::{Meter, NodeContext};
use wire::binary::{Opcode, Reply, Request, Status};
use wire::sasl::{Mechanism, Plain};

use super::super::text::count_login;
use super::super::{Admission, Body, Output, Peer, Refusal, opcodes};
use super::answer_error;

/// Longest SASL message accepted.
const MESSAGE_MAX: usize = 4096;

/// Decides which bodies are accepted before the login.
pub(super) fn admit<'a>(request: &Request<'a>) -> Admission<'a> {
    if opcodes::is_allowed_before_login(request.header.opcode) && request.header.value_len() <= MESSAGE_MAX {
        Admission::Inline
    } else {
        Admission::Refuse(Refusal::NotAllowed)
    }
}

/// Executes a SASL opcode.
pub(super) fn execute(
    peer: &mut Peer,
    request: &Request<'_>,
    body: &Body<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) {
    let header = &request.header;
    if header.opcode == Opcode::SASL_LIST_MECHS {
        if header.body_len != 0 {
            return answer_error(header, Status::EINVAL, out);
        }
        let list = Mechanism::Plain.name();
        out.bytes(Reply::to(header, Status::SUCCESS).head(&[], 0, list.len()).as_bytes());
        out.bytes(list.as_bytes());
        return;
    }
    if request.key.is_empty() || !request.extras.is_empty() {
        return answer_error(header, Status::EINVAL, out);
    }
    let user = match (header.opcode, Mechanism::from_name(request.key), body) {
        (Opcode::SASL_AUTH, Some(Mechanism::Plain), Body::Inline(message)) => Plain::parse(message)
            .ok()
            .and_then(|plain| cx.node.users().log_in(plain.user, plain.password, peer.caller(cx.now))),
        _ => None,
    };
    count_login(peer, Meter::AuthCmds, cx);
    if user.is_some_and(|user| peer.log_in(user, cx)) {
        const TEXT: &[u8] = b"Authenticated";
        out.bytes(Reply::to(header, Status::SUCCESS).head(&[], 0, TEXT.len()).as_bytes());
        out.bytes(TEXT);
    } else {
        count_login(peer, Meter::AuthErrors, cx);
        answer_error(header, Status::AUTH_ERROR, out);
    }
}
