//! A CAS that a client supplies, or that is found on disk, does not push the clock of CAS values forward.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use client::{Client, Frame, frame, persistent};
use journal::SimulatedDisk;
use sessions::Port;

const AHEAD: &str = "CLIENT_ERROR CAS is too far ahead of the clock\r\n";
/// How far ahead of the clock a supplied CAS may be.
const DRIFT_NS: u64 = 5_000_000_000;
const YEAR_S: u32 = 365 * 86_400;

fn ask(client: &mut Client, request: &str) -> String {
    String::from_utf8(client.send_raw(request.as_bytes())).unwrap()
}

/// The CAS of a document that is stored now.
fn cas_of_store(client: &mut Client, key: &str) -> u64 {
    let answer = ask(client, &format!("ms {key} 1 c\r\nx\r\n"));
    answer.strip_prefix("HD c").and_then(|cas| cas.trim().parse().ok()).unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn one_ahead_of_the_clock_is_refused_and_nothing_changes() {
    let mut client = Client::memcached();
    let stored = cas_of_store(&mut client, "k");
    let now_ns = client.cx.now.unix_ns;
    for named in [now_ns + DRIFT_NS + 1, u64::MAX >> 1, u64::MAX - 5, u64::MAX - 1, u64::MAX] {
        for request in [
            "ms k 1 E{cas}\r\ny\r\n",
            "ms k 1 MR E{cas}\r\ny\r\n",
            "ms k 1 MA E{cas}\r\ny\r\n",
            "ms k 1 MP E{cas}\r\ny\r\n",
            "ms k 1 C{old} E{cas} q\r\ny\r\n",
            "ms new 1 ME E{cas}\r\ny\r\n",
            "ms new 1 MA N0 E{cas}\r\ny\r\n",
            "md k I E{cas}\r\n",
            "md k I T100 E{cas}\r\n",
            "md k x E{cas}\r\n",
            "ma new N0 E{cas}\r\n",
            "mg new N30 E{cas} v\r\n",
        ] {
            let request = request.replace("{cas}", &named.to_string()).replace("{old}", &stored.to_string());
            assert_eq!(ask(&mut client, &request), AHEAD, "{request:?}");
            assert_eq!(
                ask(&mut client, "mg k c t v\r\nmg new v\r\n"),
                format!("VA 1 c{stored} t-1\r\nx\r\nEN\r\n")
            );
        }
    }
    assert!(cas_of_store(&mut client, "other") <= now_ns + DRIFT_NS);
}

#[test]
fn any_other_is_taken_and_the_clock_goes_on_above_it() {
    let mut client = Client::memcached();
    let named = client.cx.now.unix_ns + DRIFT_NS;
    for named in [1, 77, named] {
        assert_eq!(ask(&mut client, &format!("ms k 1 E{named}\r\ny\r\n")), "HD\r\n");
        assert_eq!(ask(&mut client, "mg k c\r\n"), format!("HD c{named}\r\n"));
    }
    let next = cas_of_store(&mut client, "k");
    assert_eq!(next, named + 1);
    // A CAS that the node itself issued is sent back, for example by a proxy, after its clock was set back.
    client.cx.now.unix_ns -= 3600 * 1_000_000_000;
    assert_eq!(ask(&mut client, &format!("ms k 1 E{next}\r\ny\r\n")), "HD\r\n");
}

/// The next start of the same bucket, completely loaded.
fn restarted(disk: &SimulatedDisk, now: kv::Now) -> Client {
    let mut client = Client::of(persistent::node(disk, 1), Port::Memcached);
    client.cx.now = now;
    persistent::flush(&client);
    client
}

#[test]
fn no_restart_brings_the_clock_near_the_highest_cas() {
    let disk = SimulatedDisk::new();
    let mut client = Client::of(persistent::node(&disk, 1), Port::Memcached);
    let mut now = client.cx.now;
    let mut last = 0;
    for start in 0..4 {
        let _ = ask(&mut client, "ms k 1 E18446744073709551610\r\nx\r\n");
        for key in ["a", "b", "c"] {
            let cas = cas_of_store(&mut client, key);
            assert!(cas > last, "start {start}: {cas} after {last}");
            assert!(cas <= now.unix_ns + DRIFT_NS, "start {start}: {cas} at {}", now.unix_ns);
            last = cas;
        }
        persistent::flush(&client);
        now.unix_s += 1;
        now.unix_ns += 1_000_000_000;
        client = restarted(&disk, now);
    }
}

/// A faulty clock puts a CAS on disk that is far from any real time, as did versions that let clients supply any CAS.
#[test]
fn one_on_disk_that_no_clock_shows_is_not_followed() {
    let disk = SimulatedDisk::new();
    let mut client = Client::of(persistent::node(&disk, 1), Port::Memcached);
    let now = client.cx.now;
    client.cx.now.unix_ns = u64::MAX - 2;
    let mut mad = Vec::new();
    for key in ["mad", "mad too", "mad again"].map(|key| key.replace(' ', "-")) {
        mad.push(cas_of_store(&mut client, &key));
    }
    assert_eq!(
        mad,
        [u64::MAX - 2, u64::MAX - 1, u64::MAX - 1],
        "below what readers see of a locked document"
    );
    persistent::flush(&client);
    for start in 1..4 {
        client = restarted(&disk, now);
        assert_eq!(
            ask(&mut client, "mg mad c\r\n"),
            format!("HD c{}\r\n", mad[0]),
            "the document is as it was"
        );
        let cas = cas_of_store(&mut client, "sane");
        assert!((now.unix_ns..now.unix_ns + DRIFT_NS).contains(&cas), "start {start}: {cas}");
        persistent::flush(&client);
    }
}

#[test]
fn a_clock_that_was_set_back_repeats_none() {
    let disk = SimulatedDisk::new();
    let mut client = Client::of(persistent::node(&disk, 1), Port::Memcached);
    let last = cas_of_store(&mut client, "k");
    persistent::flush(&client);
    let mut now = client.cx.now;
    // The second is a clock that has not been set since the machine was switched on.
    for seconds in [YEAR_S, now.unix_s - 2 * YEAR_S] {
        now.unix_s -= seconds;
        now.unix_ns -= u64::from(seconds) * 1_000_000_000;
        client = restarted(&disk, now);
        let next = cas_of_store(&mut client, "k");
        assert!(next > last, "{next} after {last}");
        persistent::flush(&client);
    }
}

/// A version of another cluster.
fn with_meta(opcode: u8, cas: u64) -> Frame {
    let mut extras = [0; 24];
    extras[8..16].copy_from_slice(&9u64.to_be_bytes());
    extras[16..].copy_from_slice(&cas.to_be_bytes());
    let value: &[u8] = if opcode == 0xa8 { b"" } else { b"v" };
    frame(opcode).key(b"k").extras(&extras).value(value)
}

#[test]
fn a_version_of_another_cluster_is_not_ahead_of_the_clock_either() {
    let disk = SimulatedDisk::new();
    let mut client = Client::of(persistent::node(&disk, 1), Port::Couchbase);
    client.open_bucket(&[0x07]);
    let now_ns = client.cx.now.unix_ns;
    let store = |client: &mut Client, key: &[u8]| {
        let answer = client.ask(frame(0x01).key(key).extras(&[0; 8]).value(b"x"));
        assert_eq!(answer.status, 0);
        answer.cas
    };
    let nine_years = u64::from(9 * YEAR_S) * 1_000_000_000;
    for named in [now_ns + DRIFT_NS + 1, now_ns + nine_years, u64::MAX - 1] {
        for opcode in [0xa2, 0xa4, 0xa8] {
            assert_eq!(client.ask(with_meta(opcode, named)).status, 4, "{opcode:#x} {named}");
        }
        let meta = format!("{{\"command\":\"set\",\"cas\":\"{named:#x}\",\"rev_seqno\":\"9\"}}");
        let length = u32::try_from(meta.len()).unwrap().to_be_bytes();
        let request = frame(0x4b).key(b"k").extras(&length).value(format!("v{meta}").as_bytes());
        assert_eq!(client.ask(request).status, 4, "{named}");
    }
    assert_eq!(client.ask(frame(0x00).key(b"k")).status, 1);
    assert!(store(&mut client, b"other") <= now_ns + DRIFT_NS);
    // The clock of another cluster may be a little ahead.
    for (opcode, named) in [(0xa2, now_ns + DRIFT_NS - 1), (0xa8, now_ns + DRIFT_NS)] {
        let answer = client.ask(with_meta(opcode, named));
        assert_eq!((answer.status, answer.cas), (0, named));
        assert!((named + 1..named + 10).contains(&store(&mut client, b"other")));
    }
    persistent::flush(&client);
    let mut client = restarted(&disk, client.cx.now);
    assert!((now_ns..now_ns + 2 * DRIFT_NS).contains(&cas_of_store(&mut client, "other")));
}
