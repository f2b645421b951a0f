//! PLAIN: `[authorization id] NUL user NUL password`.

use super::SaslError;

/// The parts of a PLAIN message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Plain<'a> {
    /// The user name.
    pub user: &'a str,
    /// The password.
    pub password: &'a [u8],
}

impl<'a> Plain<'a> {
    /// Parses a message. An authorization id other than the user itself is refused: no user may act for another.
    pub fn parse(message: &'a [u8]) -> Result<Self, SaslError> {
        let mut parts = message.split(|byte| *byte == 0);
        let (Some(authorization), Some(user), Some(password), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(SaslError::Malformed);
        };
        let user = std::str::from_utf8(user).map_err(|_| SaslError::Malformed)?;
        if user.is_empty() {
            return Err(SaslError::Malformed);
        }
        if !authorization.is_empty() && authorization != user.as_bytes() {
            return Err(SaslError::Unsupported);
        }
        Ok(Self { user, password })
    }
}

impl std::fmt::Debug for Plain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plain").field("user", &self.user).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn user_and_password() {
        let plain = Plain::parse(b"\0ann\0s3cret").unwrap();
        assert_eq!((plain.user, plain.password), ("ann", &b"s3cret"[..]));
        assert_eq!(Plain::parse(b"ann\0ann\0").unwrap().password, b"");
        assert_eq!(format!("{plain:?}"), "Plain { user: \"ann\", .. }");
    }

    #[test]
    fn other_messages_are_refused() {
        for (message, error) in [
            (&b""[..], SaslError::Malformed),
            (b"ann\0s3cret", SaslError::Malformed),
            (b"\0\0s3cret", SaslError::Malformed),
            (b"\0ann\0s3\0cret", SaslError::Malformed),
            (b"\0\xff\0s3cret", SaslError::Malformed),
            (b"bob\0ann\0s3cret", SaslError::Unsupported),
        ] {
            assert_eq!(Plain::parse(message), Err(error), "{message:?}");
        }
    }

    proptest! {
        #[test]
        fn no_input_panics(message in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Plain::parse(&message);
        }
    }
}
