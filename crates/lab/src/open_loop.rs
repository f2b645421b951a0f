//! An open-loop client: small requests on a schedule, each timed, whose rate does not depend on how fast they are
//! answered.
//!
//! ```text
//! tick every interval ──> idle connection? ──yes──> GET (or GET and SET in turn), timed from now
//!                              └──no──> queue, timed from its tick: a stall is charged to all it delays
//! ```
//!
//! Invariants: one request in flight per connection; a probe ends on time, and requests still waiting then are recorded
//! with the time they have waited so far, so a server that does not keep up cannot hide it.

use crate::client::Target;
use crate::os;
use crate::protocol::{Dialect, describe};
use crate::random::Random;
use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

const TICK: Token = Token(usize::MAX);
/// Shortest and longest time that the histograms resolve.
const LATENCY_NS: (u64, u64) = (100, 60_000_000_000);

/// Latencies of requests in nanoseconds.
pub struct Times {
    /// Reads.
    pub gets: Histogram<u64>,
    /// Writes.
    pub sets: Histogram<u64>,
}

impl Times {
    /// Empty histograms.
    pub fn new() -> Result<Self> {
        Ok(Self { gets: histogram()?, sets: histogram()? })
    }

    fn record(&mut self, request: Request) {
        let times = if request.is_read { &mut self.gets } else { &mut self.sets };
        times.saturating_record(u64::try_from(request.since.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
}

/// A request that is due.
#[derive(Clone, Copy)]
struct Request {
    /// When it should have been sent.
    since: Instant,
    is_read: bool,
}

/// An empty histogram of nanoseconds.
pub fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(LATENCY_NS.0, LATENCY_NS.1, 3)?)
}

struct Connection {
    stream: TcpStream,
    in_flight: Option<Request>,
    seen: usize,
}

/// Connections that send in turn.
pub struct OpenLoopClient {
    poll: Poll,
    connections: Vec<Connection>,
    idle: VecDeque<usize>,
    dialect: Dialect,
    items: u32,
    /// The part of the requests that are reads.
    reads: f64,
    asked: u64,
    random: Random,
    request: Vec<u8>,
    input: Vec<u8>,
}

impl OpenLoopClient {
    /// Opens the connections; reads go to the first `items` items.
    pub fn new(target: &Target, dialect: Dialect, connections: usize, items: u32) -> Result<Self> {
        let poll = Poll::new()?;
        let connections = (0..connections)
            .map(|index| {
                let stream = target.connect()?;
                stream.set_nonblocking(true)?;
                let mut stream = TcpStream::from_std(stream);
                poll.registry().register(&mut stream, Token(index), Interest::READABLE)?;
                Ok(Connection { stream, in_flight: None, seen: 0 })
            })
            .collect::<Result<Vec<_>>>()?;
        let idle = (0..connections.len()).collect();
        let input = vec![0; dialect.get.answer.length.max(dialect.set.answer.length) + 1];
        Ok(Self {
            poll,
            connections,
            idle,
            dialect,
            items,
            reads: 1.0,
            asked: 0,
            random: Random::new(11),
            request: Vec::new(),
            input,
        })
    }

    /// From now on this part of the requests are reads, evenly spread.
    pub fn set_reads(&mut self, part: f64) {
        self.reads = part;
    }

    /// Sends one request per interval for the given time.
    pub fn probe(&mut self, interval: Duration, length: Duration) -> Result<Times> {
        let mut times = Times::new()?;
        let mut timer = File::from(os::interval_timer(interval)?);
        self.poll.registry().register(&mut SourceFd(&timer.as_raw_fd()), TICK, Interest::READABLE)?;
        let mut events = Events::with_capacity(256);
        let mut waiting: VecDeque<Request> = VecDeque::new();
        let start = Instant::now();
        while start.elapsed() < length {
            if let Err(error) = self.poll.poll(&mut events, None)
                && error.kind() != ErrorKind::Interrupted
            {
                return Err(error.into());
            }
            for event in &events {
                if event.token() == TICK {
                    let mut ticks = [0; 8];
                    timer.read_exact(&mut ticks)?;
                    let since = Instant::now();
                    for _ in 0..u64::from_ne_bytes(ticks) {
                        let reads = |asked: u64| (asked as f64 * self.reads).floor();
                        let is_read = reads(self.asked + 1) > reads(self.asked);
                        waiting.push_back(Request { since, is_read });
                        self.asked += 1;
                    }
                } else {
                    self.answered(event.token().0, &mut times)?;
                }
            }
            while !waiting.is_empty()
                && let Some(index) = self.idle.pop_front()
            {
                let request = waiting.pop_front().context("nothing waits")?;
                self.ask(index, request)?;
            }
        }
        self.poll.registry().deregister(&mut SourceFd(&timer.as_raw_fd()))?;
        for request in waiting {
            times.record(request);
        }
        self.drain(&mut events, &mut times)?;
        Ok(times)
    }

    /// Receives the outstanding answers, so that the next probe begins with idle connections.
    fn drain(&mut self, events: &mut Events, times: &mut Times) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.idle.len() < self.connections.len() {
            if Instant::now() > deadline {
                bail!("small requests are unanswered after 30 s");
            }
            self.poll.poll(events, Some(Duration::from_secs(1)))?;
            for event in &*events {
                self.answered(event.token().0, times)?;
            }
        }
        Ok(())
    }

    fn ask(&mut self, index: usize, request: Request) -> Result<()> {
        let connection = self.connections.get_mut(index).context("unknown connection")?;
        self.request.clear();
        let template = if request.is_read { &self.dialect.get } else { &self.dialect.set };
        template.write(Random::below(self.random.next(), self.items), &mut self.request);
        connection.in_flight = Some(request);
        connection.stream.write_all(&self.request).context("sending a small request")
    }

    fn answered(&mut self, index: usize, times: &mut Times) -> Result<()> {
        let connection = self.connections.get_mut(index).context("unknown connection")?;
        let Some(request) = connection.in_flight else { return Ok(()) };
        let answer = if request.is_read { &self.dialect.get.answer } else { &self.dialect.set.answer };
        let count = match connection.stream.read(self.input.get_mut(connection.seen..).unwrap_or_default()) {
            Ok(0) => bail!("the server closed a connection of small requests"),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let got = self.input.get(connection.seen..connection.seen + count).unwrap_or_default();
        let due = answer.prefix.get(connection.seen..).unwrap_or_default();
        let known = due.len().min(count);
        connection.seen += count;
        if got.get(..known) != due.get(..known) || connection.seen > answer.length {
            bail!("a small request was answered by {}", describe(got));
        }
        if connection.seen == answer.length {
            times.record(request);
            connection.in_flight = None;
            connection.seen = 0;
            self.idle.push_back(index);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Protocol, Shape};
    use std::net::TcpListener;

    /// Answers reads, but stalls once for the given time.
    fn slow_server(stall: Duration) -> Target {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 256];
            let mut asked = 0;
            while let Ok(1..) = stream.read(&mut buffer) {
                asked += 1;
                if asked == 10 {
                    std::thread::sleep(stall);
                }
                stream.write_all(b"VALUE 0000000001 0 3\r\nabc\r\nEND\r\n").unwrap();
            }
        });
        Target { address, protocol: Protocol::MemcachedText, bucket: String::new(), tls: None }
    }

    #[test]
    fn a_stall_is_charged_to_every_request_it_delays() {
        let target = slow_server(Duration::from_millis(200));
        let shape = Shape { key_bytes: 10, value_bytes: 3 };
        let dialect = Dialect::new(Protocol::MemcachedText, shape, 1).unwrap();
        let mut client = OpenLoopClient::new(&target, dialect, 1, 10).unwrap();
        let times = client.probe(Duration::from_millis(2), Duration::from_millis(500)).unwrap().gets;
        let delayed = times.count_between(20_000_000, u64::MAX);
        assert!(delayed >= 60, "{delayed} of {}", times.len());
        assert!(times.max() >= 190_000_000);
        assert_eq!(client.idle.len(), 1);
    }
}
