//! One TLS session, in rustls's states.

use std::fmt;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus, WriteTraffic};
use rustls::{ClientConfig, CommonState, Error, ServerConfig};

/// The session's alerts and handshake records are shorter; the buffer grows if they are not.
const CONTROL_BYTES: usize = 1024;

/// A session.
pub(crate) enum Session {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Session").field(&self.common().protocol_version()).finish()
    }
}

/// What to do once the session can encrypt.
enum Intent<'a> {
    Nothing,
    /// Encrypts the plaintext; `written` is then the length of the ciphertext.
    Encrypt {
        plaintext: &'a [u8],
        ciphertext: &'a mut [u8],
        written: Result<usize, EncryptError>,
    },
    /// Creates the alert that ends the session; `count` is then its length.
    Close {
        alert: &'a mut [u8],
        count: usize,
    },
}

impl Intent<'_> {
    fn fulfil<Data>(&mut self, session: &mut WriteTraffic<'_, Data>) {
        match self {
            Self::Nothing => {}
            Self::Encrypt { plaintext, ciphertext, written } => {
                *written = session.encrypt(plaintext, ciphertext);
            }
            Self::Close { alert, count } => *count = session.queue_close_notify(alert).unwrap_or_default(),
        }
    }
}

/// Where the data goes that a session takes out of ciphertext.
pub(super) struct Taken<'a> {
    pub room: &'a mut [u8],
    pub filled: &'a mut usize,
    /// What does not fit.
    pub plain: &'a mut Vec<u8>,
    /// The session's own records.
    pub outgoing: &'a mut Vec<u8>,
}

impl Taken<'_> {
    fn plaintext(&mut self, bytes: &[u8]) {
        let free = self.room.get_mut(*self.filled..).unwrap_or_default();
        let (fits, rest) = bytes.split_at(bytes.len().min(free.len()));
        if let Some(into) = free.get_mut(..fits.len()) {
            into.copy_from_slice(fits);
        }
        *self.filled += fits.len();
        self.plain.extend_from_slice(rest);
    }
}

/// What a state asks for.
enum Next {
    /// The state after it.
    Another,
    /// More ciphertext.
    Input,
    /// The peer has closed.
    End,
}

impl Session {
    pub(crate) fn server(config: Arc<ServerConfig>) -> Result<Self, Error> {
        UnbufferedServerConnection::new(config).map(Self::Server)
    }

    pub(crate) fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, Error> {
        UnbufferedClientConnection::new(config, name).map(Self::Client)
    }

    fn common(&self) -> &CommonState {
        match self {
            Self::Server(session) => session,
            Self::Client(session) => session,
        }
    }

    pub fn is_handshaking(&self) -> bool {
        self.common().is_handshaking()
    }

    pub fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        self.common().peer_certificates().unwrap_or_default()
    }

    /// Advances by one state and returns how much of `bytes` was used.
    fn step(
        &mut self,
        bytes: &mut [u8],
        taken: &mut Taken<'_>,
        intent: &mut Intent<'_>,
    ) -> (usize, Result<Next, Error>) {
        match self {
            Self::Server(session) => settle(session.process_tls_records(bytes), taken, intent),
            Self::Client(session) => settle(session.process_tls_records(bytes), taken, intent),
        }
    }

    /// Decrypts. Returns how much of `bytes` was used, and whether the peer has closed.
    pub(super) fn receive(
        &mut self,
        bytes: &mut [u8],
        taken: &mut Taken<'_>,
    ) -> (usize, Result<bool, Error>) {
        let (mut start, mut is_ended) = (0, false);
        loop {
            let rest = bytes.get_mut(start..).unwrap_or_default();
            let (used, next) = self.step(rest, taken, &mut Intent::Nothing);
            start += used;
            match next {
                Ok(Next::Another) => {}
                Ok(Next::End) => is_ended = true,
                Ok(Next::Input) => return (start, Ok(is_ended)),
                Err(error) => {
                    // There may be an alert for the peer. Beyond that a failed session must not be asked for anything:
                    // it panics.
                    while self.common().wants_write() {
                        let rest = bytes.get_mut(start..).unwrap_or_default();
                        start += self.step(rest, taken, &mut Intent::Nothing).0;
                    }
                    return (start, Err(error));
                }
            }
        }
    }

    /// Fulfils the intent. What the session itself has to send comes first.
    fn do_when_ready(&mut self, incoming: &mut Vec<u8>, taken: &mut Taken<'_>, intent: &mut Intent<'_>) {
        loop {
            let (used, next) = self.step(incoming, taken, intent);
            incoming.drain(..used.min(incoming.len()));
            if !matches!(next, Ok(Next::Another | Next::End)) {
                return;
            }
        }
    }

    /// Encrypts and returns the length of the ciphertext. `incoming` is the beginning of a record.
    pub(super) fn encrypt(
        &mut self,
        incoming: &mut Vec<u8>,
        plaintext: &[u8],
        ciphertext: &mut [u8],
        taken: &mut Taken<'_>,
    ) -> Result<usize, EncryptError> {
        let mut intent =
            Intent::Encrypt { plaintext, ciphertext, written: Err(EncryptError::EncryptExhausted) };
        self.do_when_ready(incoming, taken, &mut intent);
        match intent {
            Intent::Encrypt { written, .. } => written,
            _ => Ok(0),
        }
    }

    /// Appends the alert that ends the session. Returns false if there is none to send.
    pub fn close(&mut self, incoming: &mut Vec<u8>, outgoing: &mut Vec<u8>) -> bool {
        let (mut filled, mut plain, mut own) = (0, Vec::new(), Vec::new());
        let mut taken = Taken { room: &mut [], filled: &mut filled, plain: &mut plain, outgoing: &mut own };
        let mut alert = [0; CONTROL_BYTES];
        let mut intent = Intent::Close { alert: &mut alert, count: 0 };
        self.do_when_ready(incoming, &mut taken, &mut intent);
        let Intent::Close { count, .. } = intent else { return false };
        outgoing.extend_from_slice(&own);
        outgoing.extend_from_slice(alert.get(..count).unwrap_or_default());
        count > 0
    }
}

fn settle<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    taken: &mut Taken<'_>,
    intent: &mut Intent<'_>,
) -> (usize, Result<Next, Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let next = match state {
        Err(error) => Err(error),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                None => break Ok(Next::Another),
                Some(Ok(record)) => {
                    discard += record.discard;
                    taken.plaintext(record.payload);
                }
                Some(Err(error)) => break Err(error),
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let start = taken.outgoing.len();
            taken.outgoing.resize(start + CONTROL_BYTES, 0);
            let mut count = data.encode(taken.outgoing.get_mut(start..).unwrap_or_default());
            if let Err(EncodeError::InsufficientSize(short)) = &count {
                taken.outgoing.resize(start + short.required_size, 0);
                count = data.encode(taken.outgoing.get_mut(start..).unwrap_or_default());
            }
            taken.outgoing.truncate(start + count.unwrap_or_default());
            Ok(Next::Another)
        }
        // As good as transmitted: it is sent before anything else.
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Ok(Next::Another)
        }
        Ok(ConnectionState::PeerClosed) => Ok(Next::End),
        Ok(ConnectionState::WriteTraffic(mut traffic)) => {
            intent.fulfil(&mut traffic);
            Ok(Next::Input)
        }
        // Early data is not requested.
        Ok(_) => Ok(Next::Input),
    };
    (discard, next)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
    use rustls::{ClientConfig, ClientConnection, RootCertStore};
    use std::io::{Read as _, Write as _};

    fn configs() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der()).into();
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        (Arc::new(server), Arc::new(client))
    }

    /// A small generator: the same numbers in each run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % end.max(1)
        }
    }

    /// Runs a session whose client's bytes come in pieces, damaged as `numbers` says. Returns what the server
    /// decrypted.
    fn exchange(
        configs: &(Arc<ServerConfig>, Arc<ClientConfig>),
        numbers: &mut Numbers,
        damages: bool,
    ) -> Result<Vec<u8>, Error> {
        let mut server = Session::server(Arc::clone(&configs.0)).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::clone(&configs.1), name).unwrap();
        client.writer().write_all(&[b'x'; 40_000]).unwrap();
        let (mut incoming, mut plain, mut outgoing) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..12 {
            let mut sent = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut sent).unwrap();
            }
            for _ in 0..if damages { 1 + numbers.below(2) } else { 0 } {
                let place = numbers.below(sent.len());
                match numbers.below(4) {
                    0 => sent.truncate(place),
                    1 => sent.insert(place, numbers.below(256) as u8),
                    _ => {
                        if let Some(byte) = sent.get_mut(place) {
                            *byte ^= 1 << numbers.below(8);
                        }
                    }
                }
            }
            let mut rest = sent.as_slice();
            while !rest.is_empty() {
                let (piece, others) = rest.split_at(1 + numbers.below(rest.len()));
                rest = others;
                incoming.extend_from_slice(piece);
                let (mut room, mut filled) = ([0; 1000], 0);
                let mut taken = Taken {
                    room: &mut room,
                    filled: &mut filled,
                    plain: &mut plain,
                    outgoing: &mut outgoing,
                };
                let (used, result) = server.receive(&mut incoming, &mut taken);
                result?;
                plain.extend_from_slice(&room[..filled]);
                incoming.drain(..used);
            }
            let mut reply = std::mem::take(&mut outgoing);
            if !server.is_handshaking() {
                let (mut filled, mut ciphertext) = (0, [0; 100]);
                let mut taken =
                    Taken { room: &mut [], filled: &mut filled, plain: &mut plain, outgoing: &mut outgoing };
                let count = server.encrypt(&mut incoming, b"pong", &mut ciphertext, &mut taken).unwrap();
                reply.append(&mut outgoing);
                reply.extend_from_slice(&ciphertext[..count]);
            }
            let mut reply = reply.as_slice();
            while !reply.is_empty() && client.read_tls(&mut reply).is_ok() {
                if client.process_new_packets().is_err() {
                    break;
                }
                let _ = client.reader().read(&mut [0; 100]);
            }
        }
        Ok(plain)
    }

    #[test]
    fn pieces_of_any_size_are_understood() {
        let (configs, mut numbers) = (configs(), Numbers(1));
        for _ in 0..50 {
            let plain = exchange(&configs, &mut numbers, false).unwrap();
            assert!(plain == [b'x'; 40_000], "{}", plain.len());
        }
    }

    #[test]
    fn damaged_text_ends_a_session_and_nothing_else() {
        let (configs, mut numbers) = (configs(), Numbers(2));
        let ended = (0..1000).filter(|_| exchange(&configs, &mut numbers, true).is_err()).count();
        assert!(ended > 500, "{ended}");
    }
}
