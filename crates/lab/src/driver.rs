//! The load: many connections in one thread, one batch of requests in flight per connection; the next batch is sent
//! once the previous one is fully answered.
//!
//! ```text
//! connection   [send batch] -> wait -> [read, check each answer] -> all answered? -> [send batch] ...
//! ```
//!
//! Invariants: every answer is compared with the expected one, so a miss or an error ends the run instead of being
//! counted; `run` returns only when nothing is in flight; nothing is allocated per request. Answers arrive in request
//! order and their lengths are known, so the read that completes a batch leaves nothing in the socket: a further read
//! would only return EAGAIN, and is skipped.

use crate::client::Target;
use crate::os;
use crate::protocol::{Answer, Dialect, describe};
use crate::random::Random;
use crate::unsent::Unsent;
use anyhow::{Context, Result, anyhow, bail, ensure};
use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Read};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use transport::{Handshakes, Stream};

/// Longest silence of the server before a run is aborted.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// Longest latency (from a batch to its last answer) that the histogram resolves.
const LATENCY_MAX_US: u64 = 60_000_000;
/// Bytes read at once from one connection; fits in the L2 cache.
const SCRATCH_BYTES: usize = 256 * 1024;

/// Which items requests go to.
#[derive(Clone, Copy, Debug)]
pub enum Items {
    /// Any of the first n, uniformly.
    Uniform(u32),
    /// Any of the first n, uniformly, but no two connections ever write the same item: while a durable write is
    /// pending, other writes to its key are refused.
    Apart(u32),
    /// Each item from the first number up to but excluding the second, once. Ends the run by itself.
    Sequence(u32, u32),
    /// Each of the first 2^n, once, in pseudo-random order. Ends the run by itself.
    Shuffled(u32),
}

/// A bijection on the numbers below 2^`bits`.
fn shuffle(mut number: u32, bits: u32) -> u32 {
    for factor in [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d] {
        number ^= number >> (bits / 2);
        // Multiplication by an odd factor is a bijection modulo 2^bits; overflow only affects the masked bits.
        number = u32::wrapping_mul(number, factor) & ((1 << bits) - 1);
    }
    number ^ (number >> (bits / 2))
}

/// What to send.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Items chosen.
    pub items: Items,
    /// Fraction of requests that are reads, 0 to 1.
    pub reads: f64,
    /// Requests sent together on a connection.
    pub depth: usize,
}

/// When to stop sending new batches.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After this time.
    Elapsed(Duration),
    /// After at least this many requests (rounded up to whole batches).
    Requests(u64),
    /// When a sequence of items is finished.
    End,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Requests answered correctly.
    pub requests: u64,
    /// From the first byte sent to the last answer.
    pub wall_ns: u64,
    /// CPU time of the load itself.
    pub driver_cpu_ns: u64,
}

struct Connection {
    stream: Stream,
    /// Kind of each request of the batch in flight, `true` for a read.
    batch: Vec<bool>,
    /// Index of the answer expected next.
    next: usize,
    /// Bytes of that answer already seen.
    seen: usize,
    /// Rest of a batch that the socket did not accept.
    unsent: Unsent,
    /// Requests answered since the driver was made.
    answered: u64,
    /// When the batch was sent, if latencies are measured.
    sent_at: Option<Instant>,
}

/// The connections and buffers of a load.
pub struct Driver {
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    dialect: Dialect,
    random: Random,
    scratch: Vec<u8>,
    out: Vec<u8>,
    /// Microseconds from a batch to its last answer, if measured.
    latencies: Option<Histogram<u64>>,
}

/// State of one run.
struct Run {
    plan: Plan,
    read_threshold: u32,
    next_item: u32,
    sent: u64,
    answered: u64,
    /// No batch is sent once this many requests have been sent.
    limit: u64,
    stopping: bool,
}

impl Driver {
    /// Opens the connections.
    pub fn new(target: &Target, dialect: Dialect, connections: usize, seed: u64) -> Result<Self> {
        let poll = Poll::new()?;
        let handshakes = target.tls.as_ref().map(|_| Handshakes::start()).transpose()?;
        let connections = (0..connections)
            .map(|index| {
                let mut stream = open(target, handshakes.as_ref())?;
                poll.registry().register(
                    &mut stream,
                    Token(index),
                    Interest::READABLE | Interest::WRITABLE,
                )?;
                Ok(Connection {
                    stream,
                    batch: Vec::new(),
                    next: 0,
                    seen: 0,
                    unsent: Unsent::default(),
                    answered: 0,
                    sent_at: None,
                })
            })
            .collect::<Result<Vec<_>>>()
            .context("opening the connections of the load")?;
        Ok(Self {
            poll,
            events: Events::with_capacity(1024),
            connections,
            dialect,
            random: Random::new(seed),
            scratch: vec![0; SCRATCH_BYTES],
            out: Vec::new(),
            latencies: None,
        })
    }

    /// From now on measures how long each batch takes, at the cost of two clock readings per batch.
    pub fn measure_latencies(&mut self) -> Result<()> {
        self.latencies = Some(Histogram::new_with_bounds(1, LATENCY_MAX_US, 3)?);
        Ok(())
    }

    /// Returns the latencies measured since the last call.
    pub fn take_latencies(&mut self) -> Option<Histogram<u64>> {
        let taken = self.latencies.clone();
        self.latencies.iter_mut().for_each(Histogram::reset);
        taken
    }

    /// Requests answered on each connection so far.
    pub fn answered_per_connection(&self) -> impl Iterator<Item = u64> + '_ {
        self.connections.iter().map(|connection| connection.answered)
    }

    /// Sends a load and waits until all of it is answered. `progress` is called periodically with the number of
    /// requests answered so far.
    pub fn run(&mut self, plan: Plan, until: Until, mut progress: impl FnMut(u64)) -> Result<Outcome> {
        ensure!(plan.depth > 0, "an empty batch");
        let mut run = Run {
            plan,
            read_threshold: (plan.reads.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32,
            next_item: if let Items::Sequence(first, _) = plan.items { first } else { 0 },
            sent: 0,
            answered: 0,
            limit: if let Until::Requests(limit) = until { limit } else { u64::MAX },
            stopping: false,
        };
        let cpu_before = os::thread_cpu_ns()?;
        let start = Instant::now();
        let mut last_answer = start;
        let mut in_flight = 0;
        for index in 0..self.connections.len() {
            in_flight += usize::from(self.send_batch(index, &mut run)?);
        }
        let mut wakes = 0u32;
        while in_flight > 0 {
            self.poll
                .poll(&mut self.events, Some(SILENCE_MAX))
                .or_else(|error| if error.kind() == ErrorKind::Interrupted { Ok(()) } else { Err(error) })?;
            let now = Instant::now();
            if let Until::Elapsed(limit) = until {
                run.stopping |= now - start >= limit;
            }
            let answered_before = run.answered;
            let tokens: Events = std::mem::replace(&mut self.events, Events::with_capacity(0));
            let handled = tokens.iter().try_for_each(|event| {
                if self.ready(event.token().0, event.is_readable(), &mut run)? {
                    in_flight -= 1;
                }
                anyhow::Ok(())
            });
            self.events = tokens;
            handled?;
            if run.answered > answered_before {
                last_answer = now;
            } else if now - last_answer > SILENCE_MAX {
                bail!("no answer for {} s with {in_flight} connections waiting", SILENCE_MAX.as_secs());
            }
            wakes = wakes.wrapping_add(1);
            if wakes.is_multiple_of(4096) {
                progress(run.answered);
            }
        }
        let wall_ns = u64::try_from(start.elapsed().as_nanos())?;
        progress(run.answered);
        Ok(Outcome { requests: run.answered, wall_ns, driver_cpu_ns: os::thread_cpu_ns()? - cpu_before })
    }

    /// Handles one event; returns true if the connection became idle (nothing in flight and nothing new sent).
    fn ready(&mut self, index: usize, readable: bool, run: &mut Run) -> Result<bool> {
        let connection = self.connections.get_mut(index).context("event for an unknown connection")?;
        if !connection.unsent.is_empty() {
            connection.send(&[])?;
        }
        if !readable || connection.batch.is_empty() {
            return Ok(false);
        }
        loop {
            let count = match connection.stream.read(&mut self.scratch) {
                Ok(0) => bail!("the server closed connection {index}"),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(anyhow!(error).context(format!("reading connection {index}"))),
            };
            let input = self.scratch.get(..count).unwrap_or_default();
            let answered = connection.check(&self.dialect, input)?;
            run.answered += answered;
            connection.answered += answered;
            if connection.next == connection.batch.len() {
                if let (Some(latencies), Some(sent_at)) = (&mut self.latencies, connection.sent_at) {
                    latencies.saturating_record(u64::try_from(sent_at.elapsed().as_micros())?);
                }
                return Ok(!self.send_batch(index, run)?);
            }
            // A partly filled buffer means that the socket is drained: the next byte raises a new event.
            if count < self.scratch.len() {
                return Ok(false);
            }
        }
    }

    /// Sends the next batch of a connection; returns `false` if none is left.
    fn send_batch(&mut self, index: usize, run: &mut Run) -> Result<bool> {
        let connections = u32::try_from(self.connections.len())?;
        let connection = self.connections.get_mut(index).context("unknown connection")?;
        connection.batch.clear();
        connection.next = 0;
        connection.seen = 0;
        if run.stopping || run.sent >= run.limit {
            return Ok(false);
        }
        self.out.clear();
        for _ in 0..run.plan.depth {
            let draw = self.random.next();
            let item = match run.plan.items {
                Items::Uniform(items) => Random::below(draw, items),
                Items::Apart(items) => {
                    Random::below(draw, (items / connections).max(1)) * connections + u32::try_from(index)?
                }
                Items::Sequence(_, end) if run.next_item >= end => break,
                Items::Shuffled(bits) if run.next_item >= 1 << bits => break,
                Items::Shuffled(bits) => {
                    run.next_item += 1;
                    shuffle(run.next_item - 1, bits)
                }
                Items::Sequence(..) => {
                    run.next_item += 1;
                    run.next_item - 1
                }
            };
            let read = (draw as u32) < run.read_threshold;
            let template = if read { &self.dialect.get } else { &self.dialect.set };
            template.write(item, &mut self.out);
            connection.batch.push(read);
        }
        if connection.batch.is_empty() {
            return Ok(false);
        }
        run.sent += connection.batch.len() as u64;
        connection.sent_at = self.latencies.as_ref().map(|_| Instant::now());
        connection.send(&self.out)?;
        Ok(true)
    }
}

/// A connection that is ready for requests.
fn open(target: &Target, handshakes: Option<&Handshakes>) -> Result<Stream> {
    let stream = Stream::adopt(target.connect()?)?;
    let (Some(tls), Some(handshakes)) = (&target.tls, handshakes) else { return Ok(stream) };
    let (done, shaken) = channel();
    // The receiver is gone only if this thread is.
    handshakes.begin(stream.into_tls_client(tls, "localhost")?, move |stream| drop(done.send(stream)));
    shaken.recv()?.context("TLS handshake")
}

impl Connection {
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.unsent.send(&mut self.stream, bytes).context("sending a batch")
    }

    /// Compares received bytes with the expected answers; returns how many answers they completed.
    fn check(&mut self, dialect: &Dialect, mut input: &[u8]) -> Result<u64> {
        let mut completed = 0;
        while !input.is_empty() {
            let Some(&read) = self.batch.get(self.next) else {
                bail!("{} bytes more than expected: {}", input.len(), describe(input));
            };
            let answer: &Answer = if read { &dialect.get.answer } else { &dialect.set.answer };
            if self.seen < answer.prefix.len() {
                let due = answer.prefix.get(self.seen..).unwrap_or_default();
                let known = due.len().min(input.len());
                if input.get(..known) != due.get(..known) {
                    let kind = if read { "GET" } else { "SET" };
                    bail!("a {kind} was answered by {}", describe(input));
                }
            }
            let taken = (answer.length - self.seen).min(input.len());
            input = input.get(taken..).unwrap_or_default();
            self.seen += taken;
            if self.seen == answer.length {
                self.next += 1;
                self.seen = 0;
                completed += 1;
            }
        }
        Ok(completed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Protocol, Shape};
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream as StdStream};

    const SHAPE: Shape = Shape { key_bytes: 10, value_bytes: 3 };

    fn target(listener: &TcpListener) -> Target {
        Target {
            address: listener.local_addr().unwrap(),
            protocol: Protocol::MemcachedText,
            bucket: String::new(),
            tls: None,
        }
    }

    /// Answers every complete line with `answer`, in pieces of `piece` bytes.
    fn serve_gets(mut stream: StdStream, answer: &'static [u8], piece: usize) {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            for _ in buffer[..count].iter().filter(|&&byte| byte == b'\n') {
                for piece in answer.chunks(piece) {
                    if stream.write_all(piece).is_err() {
                        return;
                    }
                }
            }
        }
    }

    fn run_gets(answer: &'static [u8], piece: usize) -> Result<(Outcome, Vec<u64>)> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dialect = Dialect::new(Protocol::MemcachedText, SHAPE, 1).unwrap();
        let target = target(&listener);
        let servers = std::thread::spawn(move || {
            for _ in 0..2 {
                let (stream, _) = listener.accept().unwrap();
                std::thread::spawn(move || serve_gets(stream, answer, piece));
            }
        });
        let mut driver = Driver::new(&target, dialect, 2, 1)?;
        servers.join().unwrap();
        let plan = Plan { items: Items::Uniform(100), reads: 1.0, depth: 4 };
        let outcome = driver.run(plan, Until::Requests(40), |_| {})?;
        Ok((outcome, driver.answered_per_connection().collect()))
    }

    #[test]
    fn answers_in_pieces_are_counted_once() {
        let (outcome, per_connection) = run_gets(b"VALUE 0000000001 0 3\r\nabc\r\nEND\r\n", 1).unwrap();
        assert!((40..=48).contains(&outcome.requests), "{}", outcome.requests);
        assert_eq!(per_connection.iter().sum::<u64>(), outcome.requests);
        assert!(outcome.driver_cpu_ns <= outcome.wall_ns + 20_000_000);
    }

    #[test]
    fn shuffled_numbers_are_all_there_once_and_in_no_order() {
        for bits in [4, 11] {
            let shuffled: Vec<u32> = (0..1 << bits).map(|number| shuffle(number, bits)).collect();
            let mut sorted = shuffled.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..1 << bits).collect::<Vec<u32>>());
            if bits == 11 {
                // Half of the adjacent pairs lie in the same half of the range.
                let same = shuffled.windows(2).filter(|pair| pair[0] >> 10 == pair[1] >> 10).count();
                assert!((800..1250).contains(&same), "{same}");
            }
        }
    }

    #[test]
    fn a_miss_ends_the_run() {
        let error = run_gets(b"END\r\n", 1).unwrap_err().to_string();
        assert!(error.contains("GET was answered by"), "{error}");
    }

    #[test]
    fn an_answer_too_many_ends_the_run() {
        let double = b"VALUE 0000000001 0 3\r\nabc\r\nEND\r\nVALUE 0000000001 0 3\r\nabc\r\nEND\r\n";
        assert!(run_gets(double, 1000).is_err());
    }
}
