//! A running `ovsdb-server` of this binary, and a client that speaks just enough JSON-RPC.
#![allow(dead_code, clippy::expect_used)]

use super::{Scratch, dormouse};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Everything that a test waits for happens within this time, unless the machine is frozen.
const PATIENCE: Duration = Duration::from_secs(120);

/// The file of an empty database "Test" with one table "T", as the stock tool creates it.
pub const DATABASE: &str = include_str!("../testdata/test.db");

/// A directory with a database in it.
pub fn scratch() -> Scratch {
    let scratch = Scratch::new();
    scratch.file("test.db", DATABASE);
    scratch
}

/// `ovsdb-server` with these arguments and its files in `scratch`; `@` stands for that directory.
pub fn command(scratch: &Scratch, arguments: &[&str]) -> Command {
    let directory = scratch.path().display().to_string();
    let mut command = dormouse(&["ovsdb-server"]);
    command.args(arguments.iter().map(|argument| argument.replace('@', &directory)));
    command.env("OVS_RUNDIR", &directory).env("OVS_LOGDIR", &directory).env("OVS_DBDIR", &directory);
    command
}

/// Runs it until it exits.
pub fn run(scratch: &Scratch, arguments: &[&str]) -> Output {
    command(scratch, arguments).output().expect("the binary runs")
}

/// Runs it and returns its exit code and standard error, with the directory as `@`.
pub fn error_of(scratch: &Scratch, arguments: &[&str]) -> (Option<i32>, String) {
    let output = run(scratch, arguments);
    let text = String::from_utf8_lossy(&output.stderr).replace(&scratch.path().display().to_string(), "@");
    (output.status.code(), text)
}

/// Starts it detached, with a control socket `ctl`, a socket `sock`, a pidfile `pid` and a log file `log`.
pub fn detached<'a>(scratch: &'a Scratch, arguments: &[&str]) -> Detached<'a> {
    let mut all = vec![
        "--detach",
        "--no-chdir",
        "--pidfile=@/pid",
        "--log-file=@/log",
        "--unixctl=@/ctl",
        "--remote=punix:@/sock",
        "-vconsole:off",
    ];
    all.extend(arguments);
    let output = command(scratch, &all).stdin(Stdio::null()).output().expect("the binary runs");
    assert!(output.status.success(), "{output:?}");
    Detached { scratch }
}

/// A detached server, killed on drop.
pub struct Detached<'a> {
    scratch: &'a Scratch,
}

impl Detached<'_> {
    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.scratch.path().join(name)
    }

    pub fn pid(&self) -> u32 {
        fs::read_to_string(self.path("pid")).expect("a pidfile").trim().parse().expect("a number")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Connects a client.
    pub fn client(&self) -> Client {
        Client::connect(&self.path("sock"))
    }

    /// Runs a command over the control socket.
    pub fn control(&self, command: &str, arguments: &[&str]) -> Result<String, String> {
        control(&self.path("ctl"), command, arguments)
    }

    pub fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().expect("kill runs").success());
    }
}

impl Drop for Detached<'_> {
    fn drop(&mut self) {
        if let Ok(pid) = fs::read_to_string(self.path("pid")) {
            let _ = Command::new("kill").args(["-s", "KILL", pid.trim()]).status();
        }
    }
}

/// Runs a command over a control socket.
pub fn control(socket: &Path, command: &str, arguments: &[&str]) -> Result<String, String> {
    let mut client = Client::connect(socket);
    client.send(&json!({ "id": 0, "method": command, "params": arguments }));
    let answer = client.receive();
    match answer.get("result").and_then(Value::as_str) {
        Some(text) => Ok(text.to_owned()),
        None => Err(answer["error"].as_str().expect("an error").to_owned()),
    }
}

/// Waits until something holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A client on a Unix socket.
pub struct Client {
    pub stream: UnixStream,
    received: Vec<u8>,
}

impl Client {
    pub fn connect(path: &Path) -> Self {
        Self::of(UnixStream::connect(path).expect("the server listens"))
    }

    pub fn of(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self { stream, received: Vec::new() }
    }

    pub fn send(&mut self, message: &Value) {
        self.stream.write_all(message.to_string().as_bytes()).expect("sent");
    }

    /// The next message.
    pub fn receive(&mut self) -> Value {
        loop {
            let mut values = serde_json::Deserializer::from_slice(&self.received).into_iter::<Value>();
            if let Some(Ok(value)) = values.next() {
                let used = values.byte_offset();
                self.received.drain(..used);
                return value;
            }
            let mut bytes = [0; 65536];
            let count = self.stream.read(&mut bytes).expect("a message");
            assert!(count > 0, "closed after {:?}", String::from_utf8_lossy(&self.received));
            self.received.extend_from_slice(&bytes[..count]);
        }
    }

    /// Sends a request and returns its result.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.send(&json!({ "id": 1, "method": method, "params": params }));
        self.receive()["result"].take()
    }

    /// Returns true if the server has closed the connection; data received before is skipped.
    pub fn is_closed(&mut self) -> bool {
        let mut bytes = [0; 4096];
        while self.stream.read(&mut bytes).is_ok_and(|count| count > 0) {}
        true
    }
}
