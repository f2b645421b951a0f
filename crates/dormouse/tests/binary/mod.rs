//! The binary under test as a child process, and scratch directories. Each test binary uses part of it.
#![allow(dead_code, clippy::expect_used)]

pub mod ovsdb;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A server must start serving, and exit, within this time.
const PATIENCE: Duration = Duration::from_secs(20);

/// The binary with these arguments.
pub fn dormouse(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A scratch directory that is removed on drop.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("dormouse-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a scratch directory");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file and returns its path.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running node on kernel-chosen ports.
pub struct Server {
    child: Child,
    scratch: Rc<Scratch>,
    endpoints: serde_json::Value,
}

impl Server {
    /// Starts `dormouse serve` with little memory and these further arguments.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_in(Scratch::new(), arguments)
    }

    /// Restarts a node, which has ended, on its data.
    pub fn again(self, arguments: &[&str]) -> Self {
        Self::start_in(Rc::clone(&self.scratch), arguments)
    }

    pub fn start_in(scratch: impl Into<Rc<Scratch>>, arguments: &[&str]) -> Self {
        let scratch = scratch.into();
        let data = scratch.path().join("data").display().to_string();
        Self::start_with(scratch, &data, &[&["--memcached", "127.0.0.1:0"][..], arguments].concat())
    }

    /// Starts it on the caller's data directory.
    pub fn start_at(data: &str, arguments: &[&str]) -> Self {
        Self::start_at_ports(data, &[&["--memcached", "127.0.0.1:0"][..], arguments].concat())
    }

    /// As [`Self::start_at`], but the arguments say which memcached ports it has.
    pub fn start_at_ports(data: &str, arguments: &[&str]) -> Self {
        Self::start_with(Rc::new(Scratch::new()), data, arguments)
    }

    fn start_with(scratch: Rc<Scratch>, data: &str, arguments: &[&str]) -> Self {
        let mut command = dormouse(&["serve", "--data", data]);
        command.args(["--workers", "1"]).args(arguments);
        for port in ["--kv", "--http"].iter().filter(|port| !arguments.contains(port)) {
            command.args([*port, "127.0.0.1:0"]);
        }
        let log = |name: &str| fs::File::create(scratch.path().join(name)).expect("a log file");
        command.stdout(log("stdout")).stderr(log("stderr"));
        let mut child = command.spawn().expect("the binary starts");
        let started = Instant::now();
        let endpoints = loop {
            if let Ok(text) = fs::read_to_string(Path::new(data).join("endpoints.json"))
                && let Ok(endpoints) = serde_json::from_str::<serde_json::Value>(&text)
                && endpoints["pid"] == child.id()
            {
                break endpoints;
            }
            if let Some(status) = child.try_wait().expect("the child is ours") {
                panic!(
                    "ended with {status}: {}",
                    fs::read_to_string(scratch.path().join("stderr")).unwrap_or_default()
                );
            }
            assert!(started.elapsed() < PATIENCE, "does not serve");
            std::thread::sleep(Duration::from_millis(5));
        };
        Self { child, scratch, endpoints }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn endpoints(&self) -> &serde_json::Value {
        &self.endpoints
    }

    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// What it has printed and logged so far.
    pub fn output(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.scratch.path().join(name)).unwrap_or_default();
        read("stdout") + &read("stderr")
    }

    /// The names of the server's threads.
    pub fn threads(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it runs");
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.map(|name| name.trim().to_owned()).collect()
    }

    /// Waits until `holds` returns true.
    pub fn wait_until(&self, holds: &dyn Fn() -> bool, what: &str) {
        let started = Instant::now();
        while !holds() {
            assert!(started.elapsed() < PATIENCE, "{what} did not come:\n{}", self.output());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the output contains `words`.
    pub fn wait_for_output(&self, words: &str) {
        let started = Instant::now();
        while !self.output().contains(words) {
            assert!(started.elapsed() < PATIENCE, "{words:?} did not come:\n{}", self.output());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn memcached(&self) -> TcpStream {
        connect(self.endpoints["memcached"][0]["address"].as_str())
    }

    pub fn kv(&self) -> TcpStream {
        connect(self.endpoints["kv"][0].as_str())
    }

    pub fn http_connection(&self) -> TcpStream {
        connect(self.endpoints["http"][0].as_str())
    }

    /// Sends one HTTP request; returns the status and the body.
    pub fn http(&self, method: &str, path: &str, login: Option<&str>, body: &str) -> (u16, String) {
        let login = login.map(|login| format!("Authorization: Basic {login}\r\n")).unwrap_or_default();
        self.http_with(method, path, &format!("Host: 127.0.0.1\r\n{login}"), body)
    }

    /// Sends one HTTP request with these headers; returns the status and the body.
    pub fn http_with(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = self.http_connection();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nConnection: close\r\n{headers}\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        (status, body.to_owned())
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args(["-s", name, &self.pid().to_string()]).status().expect("kill runs");
        assert!(status.success());
    }

    /// Waits for it to exit.
    pub fn wait(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the child is ours") {
                return status;
            }
            assert!(started.elapsed() < PATIENCE, "does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(address: Option<&str>) -> TcpStream {
    let address: SocketAddr = address.expect("an address").parse().expect("an address");
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Sends bytes and reads until the answer ends with `end`.
pub fn exchange(stream: &mut TcpStream, request: &[u8], end: &str) -> String {
    stream.write_all(request).expect("sent");
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while !answer.ends_with(end.as_bytes()) {
        let read = stream.read(&mut buffer).expect("an answer");
        assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(buffer.get(..read).unwrap_or_default());
    }
    String::from_utf8(answer).expect("UTF-8")
}
