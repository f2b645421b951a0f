//! Changes of scopes and collections that come to a node which does not make them.
//!
//! SDKs send them to any node of the map. The node that is the active of vBucket 0 makes them; another one sends the
//! request there, with the login that came with it, and returns the answer. It goes to the HTTP port of a node in
//! `replication.peers`, without TLS. So a request that came with TLS is not sent on, nor is any if replication uses
//! TLS, or the node is on another machine: the change is refused here. What was sent on once is not sent on again.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{ConnectInfo, RawPathParams, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use kv::replication::PeerNode;

use crate::admission::Client;
use crate::buckets::refused;
use crate::work::{Lane, Party};
use crate::{Console, Refusal};

/// Marks a request that another node has sent on.
const SENT_ON: &str = "dormouse-sent-on";
/// Longest request and answer that are sent on.
const BYTES_MAX: usize = 4 << 20;
/// Longer than a change waits for its replicas and those of the one before.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A node that is there accepts within this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Headers that go with a request, and with an answer.
const OF_REQUESTS: [header::HeaderName; 3] = [header::AUTHORIZATION, header::CONTENT_TYPE, header::ACCEPT];
const OF_ANSWERS: [header::HeaderName; 2] = [header::CONTENT_TYPE, header::WWW_AUTHENTICATE];

/// Sends a request to the node that makes the changes, if that is another one that can be reached.
pub async fn to_active(
    State(console): State<Console>,
    ConnectInfo(client): ConnectInfo<Client>,
    party: Party,
    path: RawPathParams,
    request: Request,
    next: Next,
) -> Response {
    if client.uses_tls || request.headers().contains_key(SENT_ON) {
        return next.run(request).await;
    }
    let name = path.iter().find(|(name, _)| *name == "bucket").map(|(_, name)| name);
    let active = name.and_then(|name| console.node.bucket(name)?.collections_are_changed_by());
    let replication = console.node.replication();
    let is_it = |peer: &&PeerNode| active.as_deref() == Some(&*peer.name) && !replication.uses_tls;
    let Some((peer, port)) = replication.peers.iter().find(is_it).and_then(|peer| Some((peer, peer.http?)))
    else {
        return next.run(request).await;
    };
    match send_on(&console, &party, &peer.host, port, request).await {
        Err(refusal) => refused(refusal),
        Ok(Ok(response)) => response,
        Ok(Err(error)) if error.kind() == ErrorKind::PermissionDenied => {
            let text = format!(
                "{:?}, which makes the change, is on another machine: a login is not sent there without TLS\r\n",
                peer.name
            );
            (StatusCode::CONFLICT, text).into_response()
        }
        Ok(Err(_)) => {
            let text =
                format!("{:?}, which makes the change, gives no answer: it may be made\r\n", peer.name);
            (StatusCode::GATEWAY_TIMEOUT, text).into_response()
        }
    }
}

async fn send_on(
    console: &Console,
    party: &Party,
    host: &str,
    port: u16,
    request: Request,
) -> Result<io::Result<Response>, Refusal> {
    let (head, body) = request.into_parts();
    let body = match to_bytes(body, BYTES_MAX).await {
        Ok(body) => body,
        Err(error) => return Ok(Err(io::Error::other(error))),
    };
    let Some(target) = head.uri.path_and_query() else { return Ok(Err(ErrorKind::InvalidInput.into())) };
    let mut text = format!("{} {target} HTTP/1.1\r\nHost: {host}:{port}\r\n", head.method).into_bytes();
    for name in OF_REQUESTS {
        let Some(value) = head.headers.get(&name) else { continue };
        text.extend_from_slice(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    let rest = format!("{SENT_ON}: 1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    text.extend_from_slice(rest.as_bytes());
    text.extend_from_slice(&body);
    let address = (host.to_owned(), port);
    let exchange = move || {
        let mut stream = connect(&address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.write_all(&text)?;
        let mut answer = Vec::new();
        stream.take(BYTES_MAX as u64).read_to_end(&mut answer)?;
        Ok(answer)
    };
    // A thread of its own, while it lasts: it may wait for a name, and for the node.
    let answer: io::Result<Vec<u8>> = console.work(Lane::SentOn, party, "dm:send-on", exchange).await?;
    Ok(answer.and_then(|answer| parse(&answer).ok_or(ErrorKind::InvalidData.into())))
}

/// Connects to the first address of a host that answers, on this machine.
fn connect(address: &(String, u16)) -> io::Result<TcpStream> {
    let mut result = Err(ErrorKind::NotFound.into());
    for address in address.to_socket_addrs()? {
        if !address.ip().to_canonical().is_loopback() {
            return Err(ErrorKind::PermissionDenied.into());
        }
        result = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// Reads an answer of this server, which tells its length.
fn parse(answer: &[u8]) -> Option<Response> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let (head, body) = (std::str::from_utf8(answer.get(..end)?).ok()?, answer.get(end + 4..)?);
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse::<u16>().ok()?;
    let (mut headers, mut length) = (HeaderMap::new(), None);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let (name, value) = (name.to_ascii_lowercase(), value.trim());
        if name == header::CONTENT_LENGTH.as_str() {
            length = value.parse::<usize>().ok();
        }
        if let Some(known) = OF_ANSWERS.into_iter().find(|known| known.as_str() == name) {
            headers.insert(known, HeaderValue::from_str(value).ok()?);
        }
    }
    let body = (length? == body.len()).then(|| Bytes::copy_from_slice(body))?;
    Some((StatusCode::from_u16(status).ok()?, headers, Body::from(body)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_whole_or_not_at_all() {
        let whole =
            b"HTTP/1.1 409 Conflict\r\ncontent-type: application/json\r\nContent-Length: 4\r\n\r\nnull";
        let response = parse(whole).unwrap();
        assert_eq!(response.status(), StatusCode::CONFLICT);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
        for length in 0..whole.len() {
            assert!(parse(&whole[..length]).is_none(), "{length}");
        }
        assert!(parse(b"HTTP/1.1 200 OK\r\n\r\n{}").is_none(), "without a length");
    }
}
