//! SCRAM logins through a session.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use client::{Answer, Client, frame};
use kv::users::Reach;
use wire::sasl::Hash;

const SASL_AUTH: u8 = 0x21;
const SASL_STEP: u8 = 0x22;
const SELECT_BUCKET: u8 = 0x89;

fn scram(
    client: &mut Client,
    hash: Hash,
    mechanism: &[u8],
    user: &str,
    password: &[u8],
) -> (Answer, Vec<u8>) {
    scram_with(client, hash, mechanism, user, password, |_| {})
}

/// The same; `meanwhile` happens between the challenge and the proof.
fn scram_with(
    client: &mut Client,
    hash: Hash,
    mechanism: &[u8],
    user: &str,
    password: &[u8],
    meanwhile: impl FnOnce(&Client),
) -> (Answer, Vec<u8>) {
    let binding = ("n,,", &b""[..]);
    bound(client, hash, mechanism, (user, password), binding, meanwhile)
        .unwrap_or_else(|answer| panic!("{answer:?}"))
}

/// The same, with the header of a client, and what it takes the channel to be. An error is the answer to its first
/// message.
fn bound(
    client: &mut Client,
    hash: Hash,
    mechanism: &[u8],
    (user, password): (&str, &[u8]),
    (header, end_point): (&str, &[u8]),
    meanwhile: impl FnOnce(&Client),
) -> Result<(Answer, Vec<u8>), Answer> {
    // As the Couchbase C++ core does: a nonce with spaces.
    let bare = format!("n={user},r=0xffffff85 0x40 0x5c");
    let challenge = client.ask(frame(SASL_AUTH).key(mechanism).value(format!("{header}{bare}").as_bytes()));
    if challenge.status != 0x21 {
        return Err(challenge);
    }
    let challenge = String::from_utf8(challenge.body).unwrap();
    let mut parts = challenge.split(',');
    let nonce = parts.next().unwrap();
    let salt = BASE64.decode(parts.next().unwrap().strip_prefix("s=").unwrap()).unwrap();
    assert_eq!(parts.next(), Some("i=4096"));
    let mut salted = vec![0; hash.digest_len()];
    match hash {
        Hash::Sha1 => pbkdf2::pbkdf2_hmac::<sha1::Sha1>(password, &salt, 4096, &mut salted),
        Hash::Sha256 => pbkdf2::pbkdf2_hmac::<sha2::Sha256>(password, &salt, 4096, &mut salted),
        Hash::Sha512 => pbkdf2::pbkdf2_hmac::<sha2::Sha512>(password, &salt, 4096, &mut salted),
    }
    let digest = |bytes: &[u8]| -> Vec<u8> {
        use sha2::Digest as _;
        match hash {
            Hash::Sha1 => sha1::Sha1::digest(bytes).to_vec(),
            Hash::Sha256 => sha2::Sha256::digest(bytes).to_vec(),
            Hash::Sha512 => sha2::Sha512::digest(bytes).to_vec(),
        }
    };
    let client_key = hash.hmac(&salted, &[b"Client Key"]);
    let binding = BASE64.encode([header.as_bytes(), end_point].concat());
    let without_proof = format!("c={binding},{nonce}");
    let signed = format!("{bare},{challenge},{without_proof}");
    let signature = hash.hmac(&digest(&client_key), &[signed.as_bytes()]);
    let proof: Vec<u8> = client_key.iter().zip(&signature).map(|(a, b)| a ^ b).collect();
    let last = format!("{without_proof},p={}", BASE64.encode(proof));
    let server_key = hash.hmac(&salted, &[b"Server Key"]);
    let expected = format!("v={}", BASE64.encode(hash.hmac(&server_key, &[signed.as_bytes()])));
    meanwhile(client);
    Ok((client.ask(frame(SASL_STEP).key(mechanism).value(last.as_bytes())), expected.into_bytes()))
}

#[test]
fn a_login_is_bound_to_the_certificate() {
    const HEADER: &str = "p=tls-server-end-point,,";
    let user = ("Administrator", &b"password"[..]);
    for (end_point, names) in [
        (None, "SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN"),
        (
            Some(&b"ours"[..]),
            "SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN SCRAM-SHA512-PLUS SCRAM-SHA256-PLUS",
        ),
    ] {
        let mut client = Client::couchbase();
        client.session.peer.end_point = end_point.map(Into::into);
        assert_eq!(client.ask(frame(0x20)).body, names.as_bytes());
        for (hash, plain, plus) in [
            (Hash::Sha512, &b"SCRAM-SHA512"[..], &b"SCRAM-SHA512-PLUS"[..]),
            (Hash::Sha256, b"SCRAM-SHA256", b"SCRAM-SHA256-PLUS"),
        ] {
            let mut status =
                |mechanism, binding| match bound(&mut client, hash, mechanism, user, binding, |_| {}) {
                    Ok((answer, expected)) => {
                        assert!(answer.status != 0 || answer.body == expected);
                        answer.status
                    }
                    Err(answer) => answer.status,
                };
            let has_tls = end_point.is_some();
            assert_eq!(status(plus, (HEADER, b"ours")), if has_tls { 0 } else { 0x20 });
            // Somebody in between has shown another certificate.
            assert_eq!(status(plus, (HEADER, b"theirs")), 0x20);
            assert_eq!(status(plus, (HEADER, b"")), 0x20);
            assert_eq!(status(plus, ("n,,", b"")), 0x20);
            assert_eq!(status(plain, (HEADER, b"ours")), 0x20);
            assert_eq!(status(plain, ("n,,", b"")), 0);
            assert_eq!(status(plain, ("y,,", b"")), if has_tls { 0x20 } else { 0 }, "it could be bound");
        }
    }
}

#[test]
fn a_proof_is_worth_nothing_once_the_password_was_set_again() {
    let mut client = Client::couchbase();
    let again = |client: &Client| client.node.users().set("Administrator", b"password", Reach::Anywhere);
    let (answer, _) =
        scram_with(&mut client, Hash::Sha256, b"SCRAM-SHA256", "Administrator", b"password", again);
    assert_eq!(answer.status, 0x20);
    let (answer, _) = scram(&mut client, Hash::Sha256, b"SCRAM-SHA256", "Administrator", b"password");
    assert_eq!(answer.status, 0);
    let gone = |client: &Client| assert!(client.node.users().remove("Administrator"));
    let (answer, _) =
        scram_with(&mut client, Hash::Sha256, b"SCRAM-SHA256", "Administrator", b"password", gone);
    assert_eq!(answer.status, 0x20);
}

#[test]
fn scram_logs_in_with_each_hash() {
    for (hash, mechanism) in
        [(Hash::Sha512, &b"SCRAM-SHA512"[..]), (Hash::Sha256, b"SCRAM-SHA256"), (Hash::Sha1, b"SCRAM-SHA1")]
    {
        let mut client = Client::couchbase();
        let (answer, expected) = scram(&mut client, hash, mechanism, "Administrator", b"password");
        assert_eq!((answer.status, answer.body), (0, expected));
        assert_eq!(client.ask(frame(SELECT_BUCKET).key(b"default")).status, 0);
    }
}

#[test]
fn a_wrong_password_and_an_unknown_user_look_alike() {
    for (user, password) in [("Administrator", &b"wrong"[..]), ("nobody", b"password")] {
        let mut client = Client::couchbase();
        let (answer, _) = scram(&mut client, Hash::Sha512, b"SCRAM-SHA512", user, password);
        assert_eq!((answer.status, answer.body.as_slice()), (0x20, &b""[..]));
        assert_eq!(client.ask(frame(SELECT_BUCKET).key(b"default")).status, 0x24);
    }
    let mut client = Client::couchbase();
    assert_eq!(client.ask(frame(SASL_STEP).key(b"SCRAM-SHA512").value(b"c=biws,r=x,p=x")).status, 0x20);
    assert_eq!(client.ask(frame(SASL_AUTH).key(b"OAUTHBEARER").value(b"x")).status, 0x20);
}
