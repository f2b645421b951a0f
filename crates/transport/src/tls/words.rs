//! TLS failures in OpenSSL's words, which people search logs for.

use std::io;

use rustls::{AlertDescription, Error, InvalidMessage, PeerIncompatible};

use super::TlsError;

/// What OpenSSL says about such a failure.
pub fn in_words_of_openssl(error: &io::Error) -> String {
    let say = |number: u32, text: &str| format!("error:{:08X}:SSL routines::{text}", 0x0a00_0000 + number);
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return say(294, "unexpected eof while reading");
    }
    let Some(TlsError { error, .. }) = TlsError::of(error) else { return error.to_string() };
    match error {
        Error::InvalidCertificate(why) => {
            // The reason is worth knowing.
            format!("{} ({why:?})", say(134, "certificate verify failed"))
        }
        Error::NoCertificatesPresented => say(199, "peer did not return a certificate"),
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) => say(267, "wrong version number"),
        Error::InvalidMessage(_)
        | Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. } => say(244, "unexpected message"),
        Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon) => say(193, "no shared cipher"),
        Error::PeerIncompatible(
            PeerIncompatible::SupportedVersionsExtensionRequired
            // A TLS 1.1 client says nothing about signatures.
            | PeerIncompatible::SignatureAlgorithmsExtensionRequired
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig,
        ) => say(258, "unsupported protocol"),
        Error::AlertReceived(alert) => say(1000 + u32::from(u8::from(*alert)), &alert_text(*alert)),
        other => other.to_string(),
    }
}

/// An alert as OpenSSL names it.
fn alert_text(alert: AlertDescription) -> String {
    let (since, text) = match alert {
        AlertDescription::UnexpectedMessage => ("sslv3", "unexpected message"),
        AlertDescription::BadRecordMac => ("sslv3", "bad record mac"),
        AlertDescription::HandshakeFailure => ("sslv3", "handshake failure"),
        AlertDescription::BadCertificate => ("sslv3", "bad certificate"),
        AlertDescription::UnsupportedCertificate => ("sslv3", "unsupported certificate"),
        AlertDescription::CertificateRevoked => ("sslv3", "certificate revoked"),
        AlertDescription::CertificateExpired => ("sslv3", "certificate expired"),
        AlertDescription::CertificateUnknown => ("sslv3", "certificate unknown"),
        AlertDescription::IllegalParameter => ("sslv3", "illegal parameter"),
        AlertDescription::UnknownCA => ("tlsv1", "unknown ca"),
        AlertDescription::AccessDenied => ("tlsv1", "access denied"),
        AlertDescription::DecodeError => ("tlsv1", "decode error"),
        AlertDescription::DecryptError => ("tlsv1", "decrypt error"),
        AlertDescription::ProtocolVersion => ("tlsv1", "protocol version"),
        AlertDescription::InsufficientSecurity => ("tlsv1", "insufficient security"),
        AlertDescription::InternalError => ("tlsv1", "internal error"),
        AlertDescription::CertificateRequired => ("tlsv13", "certificate required"),
        other => return format!("alert {}", u8::from(other)),
    };
    format!("{since} alert {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_have_the_numbers_of_openssl() {
        let alert = |alert| {
            let error = rustls::Error::AlertReceived(alert);
            let error = TlsError { error, begins_with: None };
            in_words_of_openssl(&io::Error::new(io::ErrorKind::InvalidData, error))
        };
        let unknown_ca = "error:0A000418:SSL routines::tlsv1 alert unknown ca";
        assert_eq!(alert(AlertDescription::UnknownCA), unknown_ca);
        let required = "error:0A00045C:SSL routines::tlsv13 alert certificate required";
        assert_eq!(alert(AlertDescription::CertificateRequired), required);
    }
}
