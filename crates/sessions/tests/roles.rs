//! What users may do on Couchbase and memcached ports: every role with every kind of request.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use client::{Client, Frame, frame, store_extras};
use kv::users::kept::{Group, Kept, KeptUser};
use kv::users::roles::{ROLES, Role};

const EACCESS: u16 = 0x24;
const UNKNOWN_COLLECTION: u16 = 0x88;
/// Collections, server durations not.
const FEATURES: [u16; 2] = [0x07, 0x12];

/// Creates a user with these roles, or replaces it. The password is the same as the name.
fn keep(client: &Client, name: &str, roles: &str) {
    let users = client.node.users();
    let mut kept = Kept::clone(&users.kept());
    let user = KeptUser {
        name: String::new(),
        keys: users.derive(name.as_bytes()),
        roles: Role::parse_list(roles).unwrap(),
        groups: Default::default(),
        password_changed_s: 0,
    };
    kept.users.insert(name.into(), user);
    users.set_kept(kept);
}

/// A client of a node whose bucket has the collection `s.c` with the id 10 and `s.d` with the id 11, with a document in
/// each and in the default one.
fn administrator() -> Client {
    let mut client = Client::couchbase();
    client.open_bucket(&FEATURES);
    let bucket = client.node.bucket("default").unwrap();
    bucket
        .change_collections(|manifest| {
            manifest.add_scope("s")?;
            manifest.add_collection("s", "c", 0, false)?;
            manifest.add_collection("s", "d", 0, false)
        })
        .unwrap();
    for collection in [0, 10, 11] {
        assert_eq!(client.ask(set(collection)).status, 0);
    }
    client
}

fn enter(client: &mut Client, name: &str) -> u16 {
    let features: Vec<u8> = FEATURES.iter().flat_map(|feature| feature.to_be_bytes()).collect();
    assert_eq!(client.ask(frame(0x1f).value(&features)).status, 0);
    let plain = format!("\0{name}\0{name}");
    assert_eq!(client.ask(frame(0x21).key(b"PLAIN").value(plain.as_bytes())).status, 0, "{name}");
    client.ask(frame(0x89).key(b"default")).status
}

fn on(opcode: u8, collection: u8) -> Frame {
    let vbucket = (crc32fast::hash(b"k") >> 16) as u16 & 0x3ff;
    frame(opcode).key(&[collection, b'k']).vbucket(vbucket)
}

fn set(collection: u8) -> Frame {
    on(0x01, collection).extras(&store_extras(0, 0)).value(b"{\"n\":1}")
}

/// A sub-document request with one path, into the attributes or not.
fn at_path(opcode: u8, collection: u8, path: &str, is_attribute: bool, value: &str) -> Frame {
    let length = u16::try_from(path.len()).unwrap().to_be_bytes();
    // Extended attributes, and create the path.
    let flags = if is_attribute { 0x05 } else { 0 };
    let flags = if value.is_empty() && is_attribute { 0x04 } else { flags };
    on(opcode, collection).extras(&[length[0], length[1], flags]).value(format!("{path}{value}").as_bytes())
}

fn multi(opcode: u8, collection: u8, inner: u8, path: &str, value: &str) -> Frame {
    let mut body = vec![inner, 0];
    body.extend(u16::try_from(path.len()).unwrap().to_be_bytes());
    if opcode == 0xd1 {
        body.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
    }
    body.extend(path.bytes());
    body.extend(value.bytes());
    on(opcode, collection).value(&body)
}

const READ: &str = "read";
const WRITE: &str = "write";
const BOTH: &str = "read and write";
const READ_SYSTEM: &str = "read system attributes";
const WRITE_SYSTEM: &str = "write system attributes";
const STATISTICS: &str = "statistics";
const BUCKET: &str = "bucket";

/// Every kind of request about a collection, and what it needs.
fn requests(collection: u8) -> Vec<(&'static str, &'static str, Frame)> {
    let expiry = 0u32.to_be_bytes();
    let count = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let scan =
        format!("{{\"collection\":\"{collection:x}\",\"range\":{{\"start\":\"AA==\",\"end\":\"/w==\"}}}}");
    let vbucket = (crc32fast::hash(b"k") >> 16) as u16 & 0x3ff;
    let mut observed = vbucket.to_be_bytes().to_vec();
    observed.extend([0, 2, collection, b'k']);
    vec![
        ("GET", READ, on(0x00, collection)),
        ("GETQ", READ, on(0x09, collection)),
        ("GETK", READ, on(0x0c, collection)),
        ("GETKQ", READ, on(0x0d, collection)),
        ("SET", WRITE, set(collection)),
        ("SETQ", WRITE, on(0x11, collection).extras(&store_extras(0, 0)).value(b"{\"n\":1}")),
        ("ADD", WRITE, on(0x02, collection).extras(&store_extras(0, 0))),
        ("REPLACE", WRITE, on(0x03, collection).extras(&store_extras(0, 0)).value(b"{\"n\":1}")),
        ("APPEND", WRITE, on(0x0e, collection)),
        ("PREPEND", WRITE, on(0x0f, collection)),
        ("INCREMENT", BOTH, on(0x05, collection).extras(&count)),
        ("DECREMENT", BOTH, on(0x06, collection).extras(&count)),
        ("TOUCH", WRITE, on(0x1c, collection).extras(&expiry)),
        ("GAT", BOTH, on(0x1d, collection).extras(&expiry)),
        ("GET_EX", READ_SYSTEM, on(0x49, collection)),
        ("UNLOCK_KEY", WRITE, on(0x95, collection)),
        ("GET_META", READ, on(0xa0, collection)),
        ("OBSERVE", READ, frame(0x92).value(&observed)),
        ("SUBDOC_GET", READ, at_path(0xc5, collection, "n", false, "")),
        ("SUBDOC_EXISTS", READ, at_path(0xc6, collection, "n", false, "")),
        ("SUBDOC_GET_COUNT", READ, at_path(0xd2, collection, "", false, "")),
        ("SUBDOC_GET of a user's attribute", READ, at_path(0xc5, collection, "a", true, "")),
        ("SUBDOC_GET of a system attribute", READ_SYSTEM, at_path(0xc5, collection, "_a", true, "")),
        ("SUBDOC_DICT_UPSERT", WRITE, at_path(0xc8, collection, "m", false, "1")),
        ("SUBDOC_DICT_UPSERT of an attribute", WRITE, at_path(0xc8, collection, "a", true, "1")),
        (
            "SUBDOC_DICT_UPSERT of a system attribute",
            WRITE_SYSTEM,
            at_path(0xc8, collection, "_a", true, "1"),
        ),
        ("SUBDOC_DICT_UPSERT below the document", BOTH, at_path(0xc8, collection, "m.x", false, "1")),
        ("SUBDOC_DICT_UPSERT below an attribute", BOTH, at_path(0xc8, collection, "a.x", true, "1")),
        ("SUBDOC_DELETE", BOTH, at_path(0xc9, collection, "m", false, "")),
        ("SUBDOC_REPLACE", BOTH, at_path(0xca, collection, "n", false, "1")),
        ("SUBDOC_ARRAY_PUSH_LAST", WRITE, at_path(0xcb, collection, "", false, "1")),
        ("SUBDOC_ARRAY_PUSH_LAST below the document", BOTH, at_path(0xcb, collection, "n", false, "1")),
        ("SUBDOC_ARRAY_PUSH_FIRST", WRITE, at_path(0xcc, collection, "", false, "1")),
        ("SUBDOC_ARRAY_PUSH_FIRST below the document", BOTH, at_path(0xcc, collection, "n", false, "1")),
        ("SUBDOC_ARRAY_INSERT", BOTH, at_path(0xcd, collection, "[0]", false, "1")),
        ("SUBDOC_REPLACE_BODY_WITH_XATTR", BOTH, at_path(0xd3, collection, "a", true, "")),
        ("SUBDOC_DICT_ADD", BOTH, at_path(0xc7, collection, "o", false, "1")),
        ("SUBDOC_DICT_ADD of an attribute", BOTH, at_path(0xc7, collection, "b", true, "1")),
        ("SUBDOC_ARRAY_ADD_UNIQUE", BOTH, at_path(0xce, collection, "n", false, "1")),
        ("SUBDOC_COUNTER", BOTH, at_path(0xcf, collection, "n", false, "1")),
        ("SUBDOC_MULTI_LOOKUP", READ, multi(0xd0, collection, 0xc5, "n", "")),
        ("SUBDOC_MULTI_MUTATION", WRITE, multi(0xd1, collection, 0xc8, "m", "1")),
        ("SUBDOC_MULTI_MUTATION that counts", BOTH, multi(0xd1, collection, 0xcf, "n", "1")),
        ("SUBDOC_MULTI_MUTATION that replaces", BOTH, multi(0xd1, collection, 0xca, "n", "1")),
        ("SUBDOC_MULTI_MUTATION that deletes", BOTH, multi(0xd1, collection, 0xc9, "n", "")),
        ("SUBDOC_MULTI_MUTATION of the document", WRITE, multi(0xd1, collection, 0x01, "", "{}")),
        ("SUBDOC_MULTI_MUTATION that adds", BOTH, multi(0xd1, collection, 0xc7, "o", "1")),
        ("SUBDOC_MULTI_MUTATION that adds to a set", BOTH, multi(0xd1, collection, 0xce, "n", "1")),
        // It answers with flags and expiry of what was there.
        ("RETURN_META", BOTH, on(0xb2, collection).extras(&[0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0])),
        ("RANGE_SCAN_CREATE", READ, frame(0xda).vbucket(vbucket).value(scan.as_bytes())),
        ("GET_KEYS", READ, on(0xb8, collection)),
        ("GET_RANDOM_KEY", READ, frame(0xb6).extras(&u32::from(collection).to_be_bytes())),
        ("DELETE", WRITE, on(0x04, collection)),
        ("DELETEQ", WRITE, on(0x14, collection)),
        // The last: nobody else can unlock it.
        ("GET_LOCKED", BOTH, on(0x94, collection)),
    ]
}

/// Requests about the bucket.
fn bucket_requests() -> Vec<(&'static str, &'static str, Frame)> {
    vec![
        ("STAT", STATISTICS, frame(0x10)),
        ("STAT of vBuckets", STATISTICS, frame(0x10).key(b"vbucket-details")),
        ("STAT reset", BUCKET, frame(0x10).key(b"reset")),
        ("SET_VBUCKET", BUCKET, frame(0x3d).vbucket(7).extras(&[1])),
        ("DEL_VBUCKET", BUCKET, frame(0x3f).vbucket(7)),
        // The last: the connection is one for streams from then on.
        ("DCP_OPEN", READ_SYSTEM, frame(0x50).key(b"stream").extras(&[0, 0, 0, 0, 0, 0, 0, 1])),
    ]
}

/// What each role allows, where it applies.
fn allowed(role: &str) -> &'static [&'static str] {
    match role {
        "admin" | "backup_admin" => &[READ, WRITE, BOTH, READ_SYSTEM, WRITE_SYSTEM, STATISTICS, BUCKET],
        "bucket_full_access" | "mobile_sync_gateway" | "data_backup" | "replication_target" => {
            &[READ, WRITE, BOTH, READ_SYSTEM, WRITE_SYSTEM, STATISTICS]
        }
        "data_reader" | "views_reader" => &[READ],
        "views_admin" => &[READ, STATISTICS],
        "data_writer" => &[WRITE],
        "data_dcp_reader" => &[READ, READ_SYSTEM],
        "cluster_admin" | "bucket_admin" => &[STATISTICS, BUCKET],
        "data_monitoring" | "ro_admin" | "replication_admin" | "eventing_admin" => &[STATISTICS],
        "ro_security_admin" | "security_admin" | "security_admin_local" | "security_admin_external" => {
            &[STATISTICS]
        }
        "user_admin_local" | "user_admin_external" => &[STATISTICS],
        _ => &[],
    }
}

/// Asks, and returns whether it was allowed. Quiet requests are followed by one that is not.
fn is_allowed(client: &mut Client, what: &str, request: Frame) -> bool {
    let answers = client.ask_all(&[request, frame(0x0a)]);
    let refused = answers.iter().any(|answer| answer.status == EACCESS);
    assert!(answers.iter().all(|answer| ![0x20, 0x81, 0x83].contains(&answer.status)), "{what}: {answers:?}");
    !refused
}

#[test]
fn each_role_allows_what_it_says_and_nothing_else() {
    for kind in ROLES {
        let mut admin = administrator();
        let role = format!("{}{}", kind.name, if kind.depth as u8 == 0 { "" } else { "[default]" });
        keep(&admin, "eve", &role);
        let allowed = allowed(kind.name);
        let mut client = admin.beside(1);
        let selected = enter(&mut client, "eve");
        let may_select = !allowed.is_empty() || kind.name == "scope_admin";
        assert_eq!(selected, if may_select { 0 } else { EACCESS }, "{role}");
        if !may_select {
            continue;
        }
        for collection in [0, 10] {
            for (what, needs, request) in requests(collection) {
                // Whatever happened to it before.
                assert_eq!(admin.ask(set(collection)).status, 0);
                let may = is_allowed(&mut client, what, request);
                assert_eq!(may, allowed.contains(&needs), "{role}: {what} in collection {collection}");
            }
        }
        for (what, needs, request) in bucket_requests() {
            assert_eq!(is_allowed(&mut client, what, request), allowed.contains(&needs), "{role}: {what}");
        }
    }
}

#[test]
fn roles_for_a_collection_or_scope_end_there() {
    for (roles, places) in [
        ("data_reader[default:s:c],data_writer[default:s:c]", &[10][..]),
        ("data_reader[default:s],data_writer[default:s]", &[10, 11]),
        ("data_reader[default:_default],data_writer[default:_default]", &[0]),
        ("data_reader[default],data_writer[default:s:d]", &[0, 10, 11]),
        ("data_reader[other:s:c],data_writer[default:s:c],data_reader[default:s:c]", &[10]),
    ] {
        let mut admin = administrator();
        keep(&admin, "eve", roles);
        let mut client = admin.beside(1);
        assert_eq!(enter(&mut client, "eve"), 0);
        for collection in [0, 10, 11] {
            for (what, needs, request) in requests(collection) {
                assert_eq!(admin.ask(set(collection)).status, 0);
                let is_here = places.contains(&collection);
                let may_write = is_here && (collection == 11 || !roles.starts_with("data_reader[default],"));
                let expected = match needs {
                    READ => is_here,
                    WRITE | BOTH => may_write,
                    _ => false,
                };
                let may = is_allowed(&mut client, what, request);
                assert_eq!(may, expected, "{roles}: {what} in {collection}");
            }
        }
    }
}

#[test]
fn changes_of_roles_and_collections_hold_from_the_next_request_on() {
    let mut admin = administrator();
    keep(&admin, "eve", "data_reader[default]");
    let mut client = admin.beside(1);
    assert_eq!(enter(&mut client, "eve"), 0);
    assert_eq!(client.ask(set(0)).status, EACCESS);
    keep(&admin, "eve", "data_writer[default:s]");
    assert_eq!((client.ask(set(0)).status, client.ask(set(10)).status), (EACCESS, 0));
    assert_eq!(client.ask(on(0x00, 10)).status, EACCESS);
    // A collection that is made later is in the scope.
    let bucket = admin.node.bucket("default").unwrap();
    assert_eq!(client.ask(set(12)).status, UNKNOWN_COLLECTION, "not there yet");
    bucket.change_collections(|manifest| manifest.add_collection("s", "e", 0, false)).unwrap();
    assert_eq!(client.ask(set(12)).status, 0);
    bucket.change_collections(|manifest| manifest.remove_collection("s", "e")).unwrap();
    assert_eq!(client.ask(set(12)).status, UNKNOWN_COLLECTION, "clients ask for the id again");
    assert_eq!(admin.ask(set(12)).status, UNKNOWN_COLLECTION);
    // Through a group, and then not at all.
    let users = admin.node.users();
    let mut kept = Kept::clone(&users.kept());
    kept.groups.insert(
        "writers".into(),
        Group { roles: Role::parse_list("data_writer[*]").unwrap(), ..Group::default() },
    );
    kept.users.get_mut("eve").unwrap().groups.insert("writers".into());
    users.set_kept(kept.clone());
    assert_eq!(client.ask(set(0)).status, 0);
    kept.users.clear();
    users.set_kept(kept);
    assert_eq!(client.ask(set(0)).status, EACCESS, "the user is gone");
    for opcode in [0x3e, 0x96, 0xba] {
        assert_eq!(client.ask(frame(opcode)).status, EACCESS, "{opcode:#x}");
    }
    assert!(client.ask(frame(0xb5)).json().get("name").is_none(), "a map without the bucket");
    // Who has the name now is somebody else.
    keep(&admin, "eve", "admin");
    assert_eq!(client.ask(set(0)).status, EACCESS);
    assert_eq!(client.ask(frame(0x89).key(b"default")).status, EACCESS);
}

#[test]
fn what_a_user_may_not_see_is_not_shown() {
    let mut admin = administrator();
    keep(&admin, "eve", "data_reader[default:s:c],data_monitoring[default:s:c]");
    let mut client = admin.beside(1);
    assert_eq!(enter(&mut client, "eve"), 0);
    let manifest = client.ask(frame(0xba)).json();
    assert_eq!(manifest["scopes"].as_array().unwrap().len(), 1);
    assert_eq!(manifest["scopes"][0]["collections"][0]["name"], "c");
    assert_eq!(manifest["scopes"][0]["collections"].as_array().unwrap().len(), 1);
    for (name, status) in
        [("s.c", 0), ("s.d", EACCESS), ("s.x", EACCESS), ("_default._default", EACCESS), ("x.y", EACCESS)]
    {
        assert_eq!(client.ask(frame(0xbb).value(name.as_bytes())).status, status, "{name}");
    }
    assert_eq!(client.ask(frame(0xbc).value(b"s")).status, 0);
    assert_eq!(client.ask(frame(0xbc).value(b"_default")).status, EACCESS);
    let names: Vec<String> = client
        .send(&frame(0x10).key(b"collections").bytes())
        .into_iter()
        .filter(|answer| answer.key.ends_with(b":name"))
        .map(|answer| String::from_utf8(answer.body).unwrap())
        .collect();
    assert_eq!(names, ["c"]);
    assert_eq!(client.ask(frame(0x10)).status, EACCESS);
    let bucket = admin.node.bucket("default").unwrap();
    bucket.change_collections(|manifest| manifest.add_scope("secret")).unwrap();
    let scopes = client.send(&frame(0x10).key(b"scopes").bytes());
    assert!(
        !scopes.iter().any(|answer| answer.body == b"secret" || answer.body == b"_default"),
        "{scopes:?}"
    );
    // Names of system attributes.
    assert_eq!(admin.ask(at_path(0xc8, 10, "_sys", true, "1")).status, 0);
    assert_eq!(admin.ask(at_path(0xc8, 10, "own", true, "1")).status, 0);
    assert_eq!(client.ask(at_path(0xc5, 10, "$XTOC", true, "")).body, b"[\"own\"]");
    assert_eq!(admin.ask(at_path(0xc5, 10, "$XTOC", true, "")).body, b"[\"_sys\",\"own\"]");
}

#[test]
fn large_values_are_refused_before_they_are_received() {
    let mut admin = administrator();
    keep(&admin, "eve", "data_reader[default]");
    let mut client = admin.beside(1);
    assert_eq!(enter(&mut client, "eve"), 0);
    let large = set(0).value(&vec![b'x'; 1 << 20]);
    assert_eq!(client.ask(large).status, EACCESS);
    assert_eq!(client.ask(on(0x00, 0)).body, b"{\"n\":1}");
    assert_eq!(admin.ask(on(0x00, 0)).status, 0);
}

#[test]
fn a_scan_is_for_the_user_who_created_it() {
    let mut admin = administrator();
    let mut clients = ["eve", "bob", "eve"].map(|name| {
        keep(&admin, name, "data_reader[default:s:c]");
        let mut client = admin.beside(1);
        assert_eq!(enter(&mut client, name), 0);
        client
    });
    let vbucket = (crc32fast::hash(b"k") >> 16) as u16 & 0x3ff;
    let scan = "{\"collection\":\"a\",\"range\":{\"start\":\"AA==\",\"end\":\"/w==\"}}";
    let mut create = |client: &mut Client| -> [u8; 16] {
        assert_eq!(admin.ask(set(10)).status, 0);
        client.ask(frame(0xda).vbucket(vbucket).value(scan.as_bytes())).body.try_into().unwrap()
    };
    let [eve, bob, again] = &mut clients;
    for goes_on in [true, false] {
        let id = create(eve);
        let proceed = || frame(0xdb).vbucket(vbucket).extras(&[&id[..], &[0; 12]].concat());
        let cancel = || frame(0xdc).vbucket(vbucket).extras(&id);
        assert_eq!((bob.ask(proceed()).status, bob.ask(cancel()).status), (1, 1), "there is none for others");
        // On any connection of the user.
        let expected = if goes_on { 0xa7 } else { 0 };
        assert_eq!(again.ask(if goes_on { proceed() } else { cancel() }).status, expected);
        assert_eq!(eve.ask(cancel()).status, 1);
    }
}

#[test]
fn a_writer_does_not_learn_which_paths_a_document_has() {
    let mut admin = administrator();
    keep(&admin, "eve", "data_writer[default]");
    let mut client = admin.beside(1);
    assert_eq!(enter(&mut client, "eve"), 0);
    let refused = client.ask(at_path(0xca, 0, "n", false, "2"));
    assert_eq!(refused.status, EACCESS);
    // Neither with a CAS that never fits, nor beside an edit that never succeeds.
    let both = |path: &str| {
        let mut body = Vec::new();
        for (opcode, path, value) in [(0xc8, path, "1"), (0xc8, "n.x", "1")] {
            body.extend([opcode, 0]);
            body.extend(u16::try_from(path.len()).unwrap().to_be_bytes());
            body.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
            body.extend(path.bytes().chain(value.bytes()));
        }
        on(0xd1, 0).value(&body)
    };
    for path in ["n", "m", "n.x", "m.x"] {
        for request in [at_path(0xca, 0, path, false, "2"), at_path(0xc9, 0, path, false, ""), both(path)] {
            for cas in [0, 1] {
                let answer = client.ask(request.clone().cas(cas));
                assert_eq!((answer.status, &answer.body), (EACCESS, &refused.body), "{path}");
            }
        }
    }
    assert_eq!(admin.ask(on(0x00, 0)).body, b"{\"n\":1}");
    // What there is no question in is done.
    assert_eq!(client.ask(at_path(0xc8, 0, "n", false, "2")).status, 0);
    assert_eq!(admin.ask(on(0x00, 0)).body, b"{\"n\":2}");
}

#[test]
fn a_scan_ends_with_the_right_to_read() {
    let mut admin = administrator();
    keep(&admin, "eve", "data_reader[default:s:c]");
    let mut client = admin.beside(1);
    assert_eq!(enter(&mut client, "eve"), 0);
    let vbucket = (crc32fast::hash(b"k") >> 16) as u16 & 0x3ff;
    let scan = "{\"collection\":\"a\",\"range\":{\"start\":\"AA==\",\"end\":\"/w==\"}}";
    let created = client.ask(frame(0xda).vbucket(vbucket).value(scan.as_bytes()));
    assert_eq!(created.status, 0);
    let id: [u8; 16] = created.body.try_into().unwrap();
    let proceed = || frame(0xdb).vbucket(vbucket).extras(&[&id[..], &[0; 12]].concat());
    keep(&admin, "eve", "data_writer[default:s:c]");
    assert_eq!(client.ask(proceed()).status, EACCESS);
    keep(&admin, "eve", "data_reader[default:s:c]");
    assert_eq!(client.ask(proceed()).status, 0xa7, "complete");
    assert_eq!(admin.ask(proceed()).status, 1);
}

#[test]
fn a_touch_does_not_confirm_an_expiry_to_a_writer() {
    let mut admin = administrator();
    keep(&admin, "eve", "data_writer[default:s:c]");
    keep(&admin, "ann", "data_writer[default:s:c],data_reader[default:s:c]");
    let touch = || on(0x1c, 10).extras(&[0; 4]);
    let before = admin.ask(on(0x00, 10)).cas;
    let (mut eve, mut ann) = (admin.beside(1), admin.beside(1));
    assert_eq!([enter(&mut eve, "eve"), enter(&mut ann, "ann")], [0, 0]);
    assert_eq!(ann.ask(touch()).cas, before, "it stays as it is");
    let touched = eve.ask(touch());
    assert_eq!(touched.status, 0);
    assert!(touched.cas > before);
    assert_eq!(admin.ask(on(0x00, 10)).cas, touched.cas);
}

#[test]
fn one_users_scans_leave_room_for_those_of_others() {
    let mut admin = administrator();
    keep(&admin, "eve", "data_reader[*]");
    let mut eve = admin.beside(1);
    assert_eq!(enter(&mut eve, "eve"), 0);
    let vbucket = (crc32fast::hash(b"k") >> 16) as u16 & 0x3ff;
    let scan = "{\"collection\":\"a\",\"range\":{\"start\":\"AA==\",\"end\":\"/w==\"}}";
    let create = |client: &mut Client| client.ask(frame(0xda).vbucket(vbucket).value(scan.as_bytes())).status;
    let fill = |client: &mut Client| (0..5000).take_while(|_| create(client) == 0).count();
    assert_eq!(fill(&mut eve), 2048);
    assert_eq!(create(&mut eve), 0x85, "EBUSY");
    assert_eq!(fill(&mut admin), 1024);
}

#[test]
fn a_deleted_user_is_told_of_no_map() {
    let admin = administrator();
    keep(&admin, "eve", "data_reader[*]");
    keep(&admin, "ann", "");
    let [mut eve, mut ann] = [(1, "eve"), (2, "ann")].map(|(thread, name)| {
        let mut client = admin.beside(thread);
        assert_eq!(client.ask(frame(0x1f).value(&[0, 0x0b, 0, 0x0c, 0, 0x1f])).status, 0);
        let plain = format!("\0{name}\0{name}");
        assert_eq!(client.ask(frame(0x21).key(b"PLAIN").value(plain.as_bytes())).status, 0, "{name}");
        client
    });
    admin.node.note_map_change();
    assert!(!eve.messages().is_empty() && !ann.messages().is_empty());
    for is_created_again in [false, true] {
        let users = admin.node.users();
        let mut kept = Kept::clone(&users.kept());
        kept.users.remove("eve");
        users.set_kept(kept);
        if is_created_again {
            keep(&admin, "eve", "data_reader[*]");
        }
        admin.node.note_map_change();
        assert_eq!(eve.messages(), b"");
        assert_eq!(eve.ask(frame(0xb5)).status, EACCESS);
        assert!(!ann.messages().is_empty());
        assert_eq!(ann.ask(frame(0xb5)).status, 0);
    }
}

#[test]
fn memcached_ports_are_for_users_who_may_do_what_the_protocols_can() {
    let client = Client::memcached_with_login();
    for (name, roles, may) in [
        ("app", "bucket_full_access[*]", true),
        ("root", "admin", true),
        // They could read statistics and empty the bucket.
        ("both", "data_reader[default],data_writer[default]", false),
        ("one", "bucket_full_access[other],data_reader[default:_default]", false),
        ("reader", "data_reader[*]", false),
        ("other", "bucket_full_access[other]", false),
        ("none", "", false),
    ] {
        keep(&client, name, roles);
        let mut text = client.beside(1);
        let token = format!("{name} {name}");
        let answer = text.send_raw(format!("set a 0 0 {}\r\n{token}\r\n", token.len()).as_bytes());
        assert_eq!(answer == b"STORED\r\n", may, "{name}: {}", String::from_utf8_lossy(&answer));
        assert_eq!(text.send_raw(b"get k\r\n") == b"END\r\n", may, "{name}");
        let mut binary = client.beside(2);
        let plain = format!("\0{name}\0{name}");
        let answer = binary.ask(frame(0x21).key(b"PLAIN").value(plain.as_bytes()));
        assert_eq!(answer.status == 0, may, "{name}");
        let limit = text.send_raw(b"cache_memlimit 100\r\n");
        assert_eq!(limit == b"OK\r\n", name == "root", "{name}: {}", String::from_utf8_lossy(&limit));
        // Who loses the rights is logged out.
        keep(&client, name, "");
        assert_eq!(text.send_raw(b"get k\r\n"), b"CLIENT_ERROR unauthenticated\r\n", "{name}");
    }
}

#[test]
fn a_list_of_keys_ends_with_the_right_to_read_it() {
    let client = Client::memcached_with_login();
    keep(&client, "app", "bucket_full_access[default]");
    let mut text = client.beside(1);
    assert_eq!(text.send_raw(b"set a 0 0 7\r\napp app\r\n"), b"STORED\r\n");
    for number in 0..2000 {
        assert_eq!(text.send_raw(format!("set k{number} 0 0 1\r\nx\r\n").as_bytes()), b"STORED\r\n");
    }
    let listed = text.send_raw(b"lru_crawler metadump all\r\n");
    assert!(listed.ends_with(b"END\r\n"), "the whole list");
    keep(&client, "app", "");
    let refused = text.send_raw(b"lru_crawler metadump all\r\n");
    assert!(refused.starts_with(b"CLIENT_ERROR"), "{}", String::from_utf8_lossy(&refused));
}

#[test]
fn who_is_deleted_between_password_and_login_gets_nothing() {
    let mut admin = administrator();
    keep(&admin, "eve", "admin");
    let users = admin.node.users();
    let now = admin.cx.now;
    let caller = kv::users::Caller { address: None, loopback: true, connection: 0, mono_us: now.mono_us };
    let before = users.log_in("eve", b"eve", caller).expect("the password is right").standing;
    users.set_kept(Kept::default());
    assert!(users.standing("eve").is_none());
    keep(&admin, "eve", "admin");
    assert_ne!(users.standing("eve").unwrap().id, before.id);
    assert_eq!(admin.ask(on(0x00, 0)).status, 0);
}
