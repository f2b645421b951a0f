//! TLS between this crate's streams, in an event loop like those of the server, and rustls's own client.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use mio::{Events, Interest, Poll, Token};
use rcgen::{CertificateParams, Issuer, KeyPair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};
use transport::{ClientCertificates, Handshakes, Listener, OldestVersion, ServerFiles, ServerTls, Stream};

const TIME: Duration = Duration::from_secs(30);

/// An authority, and a directory for what it has signed.
struct Authority {
    directory: PathBuf,
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("transport-test-{}-{name}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        fs::write(directory.join("ca.pem"), &pem).unwrap();
        Self { directory, pem, issuer: Issuer::new(params, key) }
    }

    /// Creates the files of a certificate and its key.
    fn sign(&self, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let (file, key_file) = (self.directory.join(name), self.directory.join(format!("{name}.key")));
        fs::write(&file, certificate.pem()).unwrap();
        fs::write(&key_file, key.serialize_pem()).unwrap();
        (file, key_file)
    }

    fn files(&self, client_certificates: ClientCertificates) -> ServerFiles {
        let (certificate, key) = self.sign("server");
        ServerFiles {
            certificate,
            key,
            client_ca: Some(self.directory.join("ca.pem")),
            client_certificates,
            oldest_version: OldestVersion::Tls12,
        }
    }

    fn client(
        &self,
        version: &'static SupportedProtocolVersion,
        identity: Option<&(PathBuf, PathBuf)>,
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_file(certificate).unwrap()],
                    PrivateKeyDer::from_pem_file(key).unwrap(),
                )
                .unwrap(),
        })
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Accepts connections, and echoes each in an event loop of its own until its peer ends. Sends the outcome of each.
fn serve(tls: ServerTls) -> (SocketAddr, Receiver<Result<usize, String>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut listener = Listener::tcp(address).unwrap();
    let (ends, became) = channel();
    std::thread::spawn(move || {
        let handshakes = Handshakes::start().unwrap();
        let mut poll = Poll::new().unwrap();
        let mut events = Events::with_capacity(8);
        poll.registry().register(&mut listener, Token(0), Interest::READABLE).unwrap();
        loop {
            while let Ok((stream, _)) = listener.accept() {
                let ends = ends.clone();
                handshakes.begin(stream.into_tls(&tls).unwrap(), move |stream| match stream {
                    Ok(stream) => {
                        std::thread::spawn(move || {
                            let _ = ends.send(echo(stream).map_err(|error| error.to_string()));
                        });
                    }
                    Err(error) => drop(ends.send(Err(error.to_string()))),
                });
            }
            poll.poll(&mut events, None).unwrap();
        }
    });
    (address, became)
}

/// Reads until a read is short, as the server's loops do, and waits for events otherwise.
fn echo(mut stream: Stream) -> io::Result<usize> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(8);
    poll.registry().register(&mut stream, Token(0), Interest::READABLE | Interest::WRITABLE)?;
    let (mut room, mut unsent) = (vec![0; 50_000], Vec::new());
    let (mut readable, mut echoed) = (true, 0);
    loop {
        while readable && unsent.len() < 200_000 {
            match stream.read(&mut room) {
                Ok(0) => return Ok(echoed),
                Ok(count) => {
                    unsent.extend_from_slice(&room[..count]);
                    readable = count == room.len() || stream.has_more();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => readable = false,
                Err(error) => return Err(error),
            }
        }
        while !unsent.is_empty() {
            let (one, two) = unsent.split_at(unsent.len() / 3);
            let (two, three) = two.split_at(two.len().min(100));
            let slices = [one, two, three].map(io::IoSlice::new);
            match stream.write_vectored(&slices) {
                Ok(count) => {
                    echoed += count;
                    let offered = unsent.len();
                    unsent.drain(..count);
                    if count < offered {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if readable && unsent.len() < 200_000 {
            continue;
        }
        poll.poll(&mut events, Some(TIME))?;
        readable |= events.iter().any(|event| event.is_readable());
    }
}

/// Two ports of one server: what each asks of clients is its own, the certificate is common.
#[test]
fn a_port_asks_for_certificates_in_its_own_way() {
    let authority = Authority::new("ports");
    let known = authority.sign("client");
    let files = authority.files(ClientCertificates::None);
    let shared = ServerTls::load(&files).unwrap();
    let strict = shared.asking(ClientCertificates::Required, &files).unwrap();
    let renewed = authority.files(ClientCertificates::None);
    shared.reload(&renewed).unwrap();
    let without = ServerFiles { client_ca: None, ..renewed };
    let refused = shared.reload(&without).unwrap_err().to_string();
    assert!(
        refused.ends_with("a port asks for client certificates, and there is no tls.client_ca"),
        "{refused}"
    );
    assert_eq!(shared.chain_pem(), strict.chain_pem());
    let (open, _became) = serve(shared);
    let (closed, _became) = serve(strict);
    for (address, expected) in [(open, [true, true]), (closed, [false, true])] {
        let served = [None, Some(&known)].map(|identity| {
            let stream = connect(address, authority.client(&rustls::version::TLS12, identity));
            stream.is_ok_and(|mut stream| {
                stream.write_all(b"hello").is_ok() && stream.read_exact(&mut [0; 5]).is_ok()
            })
        });
        assert_eq!(served, expected);
    }
}

#[test]
fn a_key_is_read_whatever_its_label_says() {
    let authority = Authority::new("labels");
    let files = authority.files(ClientCertificates::None);
    let pem = fs::read_to_string(&files.key).unwrap();
    for label in ["RSA PRIVATE KEY", "EC PRIVATE KEY", "PRIVATE KEY"] {
        fs::write(&files.key, pem.replace("PRIVATE KEY", label)).unwrap();
        assert!(ServerTls::load(&files).is_ok(), "{label}");
    }
    for (text, expected) in [
        (
            pem.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"),
            "the key in it has a passphrase; remove that: openssl pkey -in ",
        ),
        (
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n".to_owned(),
            "the key in it cannot be used; allowed: RSA of 2048 bits",
        ),
    ] {
        fs::write(&files.key, text).unwrap();
        let error = ServerTls::load(&files).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: {expected}", files.key.display())), "{error}");
    }
    fs::write(&files.key, pem).unwrap();
    fs::write(&files.certificate, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    let error = ServerTls::load(&files).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("{}: its first certificate cannot be read", files.certificate.display())),
        "{error}"
    );
}

fn connect(
    address: SocketAddr,
    config: Arc<ClientConfig>,
) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(TIME))?;
    socket.set_nodelay(true)?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(config, name).unwrap(), socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

#[test]
fn what_is_sent_comes_back_in_both_versions() {
    let authority = Authority::new("echo");
    let (address, became) = serve(ServerTls::load(&authority.files(ClientCertificates::None)).unwrap());
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut stream = connect(address, authority.client(version, None)).unwrap();
        let mut sent = 0;
        for size in [1, 2, 16_383, 16_384, 16_385, 50_000, 100_000] {
            let bytes: Vec<u8> = (0..size).map(|at| (at * 7 + size) as u8).collect();
            stream.write_all(&bytes).unwrap();
            let mut back = vec![0; size];
            stream.read_exact(&mut back).unwrap();
            assert!(back == bytes, "{size}");
            sent += size;
        }
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        // The end is seen, and answered, although the socket is not closed.
        assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0);
        assert_eq!(became.recv_timeout(TIME).unwrap(), Ok(sent));
    }
}

#[test]
fn a_peer_that_takes_nothing_for_a_while_gets_everything_once() {
    let authority = Authority::new("slow");
    let (address, became) = serve(ServerTls::load(&authority.files(ClientCertificates::None)).unwrap());
    let stream = connect(address, authority.client(&rustls::version::TLS13, None)).unwrap();
    let size = 20_000_000;
    let bytes: Vec<u8> = (0..size).map(|at: u32| (at ^ at >> 8) as u8).collect();
    let (conn, sock) = stream.into_parts();
    let mut writer = StreamOwned::new(conn, sock);
    // Both directions at once, alternating: the client writes until nothing moves any more, then reads.
    let (mut written, mut back) = (0, Vec::new());
    let mut room = vec![0; 100_000];
    writer.sock.set_nonblocking(true).unwrap();
    while back.len() < bytes.len() {
        let mut moved = false;
        while written < bytes.len() {
            match writer.write(&bytes[written..bytes.len().min(written + 30_000)]) {
                Ok(count) => (written, moved) = (written + count, true),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        for _ in 0..7 {
            match writer.read(&mut room) {
                Ok(count) => {
                    assert_ne!(count, 0);
                    back.extend_from_slice(&room[..count]);
                    moved = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        if !moved {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(back == bytes);
    // Closing the socket alone is an end as well.
    drop(writer);
    assert_eq!(became.recv_timeout(TIME).unwrap(), Ok(bytes.len()));
}

#[test]
fn certificates_of_clients_are_asked_for_as_configured() {
    let (authority, other) = (Authority::new("known"), Authority::new("unknown"));
    let (known, unknown) = (authority.sign("client"), other.sign("client"));
    let attempt = |address, identity| {
        let mut stream = connect(address, authority.client(&rustls::version::TLS13, identity))?;
        stream.write_all(b"hello")?;
        let mut back = [0; 5];
        stream.read_exact(&mut back)
    };
    for (asked, expected) in [
        (ClientCertificates::None, [true, true, true]),
        (ClientCertificates::Optional, [true, true, false]),
        (ClientCertificates::Required, [false, true, false]),
    ] {
        let (address, _became) = serve(ServerTls::load(&authority.files(asked)).unwrap());
        let got = [None, Some(&known), Some(&unknown)].map(|identity| attempt(address, identity).is_ok());
        assert_eq!(got, expected, "{asked:?}");
    }
}

#[test]
fn whoever_speaks_no_tls_is_told_and_closed() {
    let authority = Authority::new("plain");
    let (address, became) = serve(ServerTls::load(&authority.files(ClientCertificates::None)).unwrap());
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(TIME)).unwrap();
    socket.write_all(b"version\r\n").unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    // An alert.
    assert_eq!(answer.first(), Some(&21));
    let error = became.recv_timeout(TIME).unwrap().unwrap_err();
    assert!(error.contains("corrupt message"), "{error}");
}

#[test]
fn many_that_never_finish_keep_nobody_out() {
    let authority = Authority::new("loris");
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(u64::MAX).min(8192).max(limit.current.unwrap_or(u64::MAX));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum }).unwrap();
    let (address, _became) = serve(ServerTls::load(&authority.files(ClientCertificates::None)).unwrap());
    let mut idle = Vec::new();
    for _ in 0..1100 {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(&[22, 3, 1, 2]).unwrap();
        idle.push(socket);
    }
    let mut stream = connect(address, authority.client(&rustls::version::TLS13, None)).unwrap();
    stream.write_all(b"here").unwrap();
    let mut back = [0; 4];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"here");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let authority = Authority::new("files");
    let files = authority.files(ClientCertificates::Required);
    let tls = ServerTls::load(&files).unwrap();
    let (_, other_key) = authority.sign("other");
    let complaint = |change: &dyn Fn(&mut ServerFiles)| {
        let mut changed = files.clone();
        change(&mut changed);
        tls.reload(&changed).unwrap_err().to_string()
    };
    assert!(complaint(&|files| files.certificate = "/nonexistent".into()).starts_with("/nonexistent: "));
    let wrong_key = complaint(&|files| files.key = other_key.clone());
    assert!(
        wrong_key.contains("other.key: it is not the key of ") && wrong_key.ends_with("server"),
        "{wrong_key}"
    );
    let no_key = complaint(&|files| files.key = files.certificate.clone());
    assert!(no_key.ends_with("server: there is no private key in it"), "{no_key}");
    let no_certificate = complaint(&|files| files.client_ca = Some(files.key.clone()));
    assert!(no_certificate.ends_with("server.key: there is no certificate in it"), "{no_certificate}");
}
