//! A blocking connection: greets the server, and reads single items back to prove what it stored.

use crate::protocol::{Dialect, Protocol, binary_request, describe, resp_command};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use transport::ClientTls;

/// How long a single answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// base64 of `Administrator:password`.
const LOGIN: &str = "QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==";

const OPCODE_HELLO: u8 = 0x1f;
const OPCODE_SASL_AUTH: u8 = 0x21;
const OPCODE_SELECT_BUCKET: u8 = 0x89;
const FEATURE_SELECT_BUCKET: u16 = 0x08;
const FEATURE_COLLECTIONS: u16 = 0x12;

/// Where and how a load reaches a server.
#[derive(Clone, Debug)]
pub struct Target {
    /// Address of the server.
    pub address: SocketAddr,
    /// Language spoken there.
    pub protocol: Protocol,
    /// Bucket to select (Couchbase only).
    pub bucket: String,
    /// The connection uses TLS. Loads only.
    pub tls: Option<ClientTls>,
}

impl Target {
    /// Opens a connection that is ready for requests.
    pub fn connect(&self) -> Result<TcpStream> {
        self.connect_with(&[])
    }

    /// As [`Self::connect`], requesting further features of the Couchbase protocol, all of which must be granted.
    pub fn connect_with(&self, features: &[u16]) -> Result<TcpStream> {
        let mut stream = TcpStream::connect_timeout(&self.address, ANSWER_TIMEOUT)
            .with_context(|| format!("connecting to {}", self.address))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        if self.protocol == Protocol::Couchbase {
            greet(&mut stream, &self.bucket, features).context("greeting the Couchbase port")?;
        }
        Ok(stream)
    }
}

fn greet(stream: &mut TcpStream, bucket: &str, further: &[u16]) -> Result<()> {
    let features = [FEATURE_SELECT_BUCKET, FEATURE_COLLECTIONS];
    let features: Vec<u8> =
        features.iter().chain(further).flat_map(|feature| feature.to_be_bytes()).collect();
    let granted = binary_call(stream, OPCODE_HELLO, b"dormouse-lab", &features)?;
    ensure!(granted == features, "HELLO granted {granted:02x?}, asked for {features:02x?}");
    binary_call(stream, OPCODE_SASL_AUTH, b"PLAIN", b"\0Administrator\0password")?;
    binary_call(stream, OPCODE_SELECT_BUCKET, bucket.as_bytes(), b"")?;
    Ok(())
}

/// The statistics of a memcached port for one subject (`stats SUBJECT`).
pub fn statistics(address: SocketAddr, subject: &str) -> Result<BTreeMap<String, String>> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(format!("stats {subject}\r\n").as_bytes())?;
    let mut found = BTreeMap::new();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        match line.strip_prefix("STAT ").and_then(|line| line.split_once(' ')) {
            Some((name, value)) => found.insert(name.to_owned(), value.to_owned()),
            None if line == "END" => return Ok(found),
            None => bail!("`stats {subject}` was answered by {line:?}"),
        };
    }
    bail!("`stats {subject}` did not end")
}

/// One section of Redis' `INFO`.
pub fn redis_information(address: SocketAddr, section: &str) -> Result<BTreeMap<String, String>> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(&resp_command(&[b"INFO", section.as_bytes()]))?;
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    reader.read_line(&mut head)?;
    let length = head.trim_end().strip_prefix('$').and_then(|digits| digits.parse::<u64>().ok());
    let length = length.with_context(|| format!("`INFO {section}` was answered by {head:?}"))?;
    let mut text = String::new();
    reader.take(length).read_to_string(&mut text)?;
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    Ok(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// One of these statistics as a number.
pub fn figure(statistics: &BTreeMap<String, String>, name: &str) -> Result<u64> {
    let value = statistics.get(name).with_context(|| format!("the server has no figure {name}"))?;
    value.parse().with_context(|| format!("{name} is {value:?}"))
}

/// Changes a bucket over HTTP, with a form such as `defragmenter=off`.
pub fn change_bucket(console: SocketAddr, bucket: &str, form: &str) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&console, ANSWER_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let request = format!(
        "POST /pools/default/buckets/{bucket} HTTP/1.1\r\nHost: {console}\r\nConnection: close\r\nAuthorization: Basic \
        {LOGIN}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
        form.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 200 "), "`{form}` was answered by {:?}", answer.trim());
    Ok(())
}

/// Sends one binary request; returns the body of its successful answer.
fn binary_call(stream: &mut TcpStream, opcode: u8, key: &[u8], value: &[u8]) -> Result<Vec<u8>> {
    exchange(stream, &binary_request(opcode, &[], key, value))
}

/// Sends one binary frame; returns the body of its successful answer.
pub fn exchange(stream: &mut TcpStream, frame: &[u8]) -> Result<Vec<u8>> {
    stream.write_all(frame)?;
    let mut header = [0; 24];
    stream.read_exact(&mut header)?;
    let [_, _, _, _, _, _, status_high, status_low, a, b, c, d, ..] = header;
    let mut body = vec![0; u32::from_be_bytes([a, b, c, d]).min(1 << 20) as usize];
    stream.read_exact(&mut body)?;
    if (status_high, status_low) != (0, 0) {
        bail!("{}: {}", describe(&header), body.escape_ascii());
    }
    Ok(body)
}

/// A connection that sends one request at a time.
pub struct Client {
    stream: TcpStream,
    dialect: Dialect,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Client {
    /// Connects.
    pub fn new(target: &Target, dialect: Dialect) -> Result<Self> {
        Ok(Self { stream: target.connect()?, dialect, request: Vec::new(), answer: Vec::new() })
    }

    /// Writes item `index`.
    pub fn set(&mut self, index: u32) -> Result<()> {
        self.request.clear();
        self.dialect.set.write(index, &mut self.request);
        self.exchange(true)
    }

    /// Reads item `index` and compares every byte of its value.
    pub fn verify(&mut self, index: u32) -> Result<()> {
        self.get(index)?;
        let value_at = self.dialect.get.answer.value_at;
        let value = self.answer.get(value_at..value_at + self.dialect.shape.value_bytes).unwrap_or_default();
        ensure!(value == self.dialect.value_of(index), "item {index} does not hold the value written");
        Ok(())
    }

    /// Reads item `index`, checking status and length only.
    pub fn get(&mut self, index: u32) -> Result<()> {
        self.request.clear();
        self.dialect.get.write(index, &mut self.request);
        self.exchange(false)
    }

    fn exchange(&mut self, set: bool) -> Result<()> {
        let answer = if set { &self.dialect.set.answer } else { &self.dialect.get.answer };
        self.stream.write_all(&self.request)?;
        self.answer.resize(answer.length, 0);
        let mut read = 0;
        while read < answer.length {
            let count = self.stream.read(self.answer.get_mut(read..).unwrap_or_default())?;
            ensure!(count > 0, "the server closed the connection");
            read += count;
            let known = read.min(answer.prefix.len());
            if self.answer.get(..known) != answer.prefix.get(..known) {
                bail!("unexpected {}", describe(self.answer.get(..read).unwrap_or_default()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Shape;
    use std::net::TcpListener;

    fn frame(stream: &mut TcpStream) -> ([u8; 24], Vec<u8>) {
        let mut header = [0; 24];
        stream.read_exact(&mut header).unwrap();
        let mut body = vec![0; u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize];
        stream.read_exact(&mut body).unwrap();
        (header, body)
    }

    fn answer(stream: &mut TcpStream, opcode: u8, status: u8, extras: u8, body: &[u8]) {
        let mut frame = vec![0x81, opcode, 0, 0, extras, 0, 0, status];
        frame.extend_from_slice(&(body.len() as u32).to_be_bytes());
        frame.resize(24, 0);
        stream.write_all(&[&frame, body].concat()).unwrap();
    }

    /// A server that completes the handshake, then answers one read with four bytes of flags and `value`.
    fn serve_one_read(granted: &'static [u8], value: Vec<u8>) -> Target {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (hello, _) = frame(&mut stream);
            assert_eq!(hello[1], OPCODE_HELLO);
            answer(&mut stream, OPCODE_HELLO, 0, 0, granted);
            let (login, body) = frame(&mut stream);
            assert_eq!((login[1], &body[..6]), (OPCODE_SASL_AUTH, &b"PLAIN\0"[..]));
            answer(&mut stream, OPCODE_SASL_AUTH, 0, 0, b"");
            let (select, body) = frame(&mut stream);
            assert_eq!((select[1], &*body), (OPCODE_SELECT_BUCKET, &b"default"[..]));
            answer(&mut stream, OPCODE_SELECT_BUCKET, 0, 0, b"");
            let (get, _) = frame(&mut stream);
            answer(&mut stream, get[1], 0, 4, &[&[0; 4], &*value].concat());
        });
        Target { address, protocol: Protocol::Couchbase, bucket: "default".to_owned(), tls: None }
    }

    fn dialect() -> Dialect {
        Dialect::new(Protocol::Couchbase, Shape { key_bytes: 10, value_bytes: 32 }, 5).unwrap()
    }

    const GRANTED: &[u8] = &[0, 0x08, 0, 0x12];

    #[test]
    fn a_couchbase_port_is_greeted_and_a_value_compared() {
        let target = serve_one_read(GRANTED, dialect().value_of(3));
        Client::new(&target, dialect()).unwrap().verify(3).unwrap();
    }

    #[test]
    fn another_value_than_was_written_is_an_error() {
        let target = serve_one_read(GRANTED, dialect().value_of(4));
        let error = Client::new(&target, dialect()).unwrap().verify(3).unwrap_err().to_string();
        assert!(error.contains("does not hold the value written"), "{error}");
    }

    #[test]
    fn a_refused_feature_is_an_error() {
        let target = serve_one_read(&[0, 0x08], Vec::new());
        let error = format!("{:#}", target.connect().unwrap_err());
        assert!(error.contains("HELLO granted"), "{error}");
    }
}
