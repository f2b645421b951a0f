//! flush_all while a persistent bucket is still being loaded: it is refused because it could not be made durable, so no
//! acknowledged operation is lost.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use client::{Client, frame, persistent};
use journal::{SimulatedDisk, Survival};
use sessions::Port;

const ETMPFAIL: u16 = 0x86;
const WARMING_UP: &str = "SERVER_ERROR warming up, try again\r\n";
const THERE: &str = "VALUE k 0 1\r\nx\r\nEND\r\n";

fn ask(client: &mut Client, request: &str) -> String {
    String::from_utf8(client.send_raw(request.as_bytes())).unwrap()
}

fn written() -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    let mut client = Client::of(persistent::node(&disk, 4), Port::Memcached);
    assert_eq!(ask(&mut client, "set k 0 0 1\r\nx\r\n"), "STORED\r\n");
    persistent::flush(&client);
    disk
}

/// A started node that has not read anything yet.
fn started(disk: &SimulatedDisk) -> Client {
    Client::of(persistent::node(disk, 4), Port::Memcached)
}

#[test]
fn it_is_refused_in_every_protocol_and_changes_nothing() {
    let disk = written();
    let mut client = started(&disk);
    assert_eq!(ask(&mut client, "flush_all\r\n"), WARMING_UP);
    assert_eq!(ask(&mut client, "flush_all 0\r\n"), WARMING_UP);
    assert_eq!(ask(&mut client, "flush_all 10\r\n"), WARMING_UP);
    assert_eq!(ask(&mut client, "flush_all noreply\r\n"), "");
    let mut binary = client.beside(1);
    assert_eq!(binary.ask(frame(0x08)).status, ETMPFAIL);
    assert_eq!(binary.ask(frame(0x18)).status, ETMPFAIL);
    persistent::flush(&client);
    assert_eq!(ask(&mut client, "get k\r\n"), THERE);
    client.pass_s(20);
    assert_eq!(ask(&mut client, "get k\r\n"), THERE, "the delayed one was refused too");
}

#[test]
fn what_was_acknowledged_survives_a_kill_during_the_warm_up() {
    let disk = written();
    // Acknowledged or not, the node dies before anything is read.
    let acknowledged = ask(&mut started(&disk), "flush_all\r\n") == "OK\r\n";
    disk.crash(Survival::Synced);
    let mut client = started(&disk);
    persistent::flush(&client);
    let expected = if acknowledged { "END\r\n" } else { THERE };
    assert_eq!(ask(&mut client, "get k\r\n"), expected);
    // Once everything is read it is accepted, and durable.
    assert_eq!(ask(&mut client, "flush_all\r\n"), "OK\r\n");
    persistent::flush(&client);
    disk.crash(Survival::Synced);
    let mut client = started(&disk);
    persistent::flush(&client);
    assert_eq!(ask(&mut client, "get k\r\n"), "END\r\n");
}
