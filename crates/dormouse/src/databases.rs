//! The OVSDB databases of a node: one thread runs their event loop, beside the workers.

use crate::config::{Config, OvsdbSection, Problem, TlsSection};
use crate::database_answers::{self, figures};
use console::{DatabaseAnswer, DatabaseFigures, DatabaseQuestion, Refusal};
use kv::Node;
use kv::client_memory::Holder;
use net::ovsdb::{Answer, Command, Core, EventLoop, Host, Level, Logger, Settings, TlsOptions, Waker};
use ovsdb_server::{Rates, open_database};
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use transport::OldestVersion;

/// How long to wait for the figures; after that the previous ones are used.
const FIGURES_WAIT: Duration = Duration::from_millis(500);
/// How long to wait for the end of the thread: a request that has begun is not interrupted.
const END_WAIT: Duration = Duration::from_secs(1);

/// How long to wait for the answer to a question, and for the end of a compaction.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
const COMPACTION_WAIT: Duration = Duration::from_secs(60);
/// Questions that may wait to be answered, and compactions that may be waited for.
const QUESTIONS_MAX: usize = 16;

/// The fraction of the node's memory that clients' requests and replies may take, if none is configured and no database
/// may be larger.
const CLIENTS_SHARE: u64 = 8;

/// How long to wait for the resolution of the listeners' host names.
const NAMES_WAIT: Duration = Duration::from_secs(2);

/// Forwards log lines of the event loop to the node's log.
struct NodeLogger {
    rates: Mutex<Rates>,
    started: Instant,
}

impl NodeLogger {
    fn new() -> Self {
        Self { rates: Mutex::default(), started: Instant::now() }
    }
}

impl Logger for NodeLogger {
    fn log(&self, module: &'static str, level: Level, text: &str) {
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let (passes, dropped) = rates.take(module, level, self.started.elapsed().as_secs());
        drop(rates);
        if let Some(dropped) = dropped {
            tracing::warn!(module, "{dropped}");
        }
        if !passes {
            return;
        }
        match level {
            Level::Emergency | Level::Error => tracing::error!(module, "{text}"),
            Level::Warning => tracing::warn!(module, "{text}"),
            Level::Information => tracing::info!(module, "{text}"),
            Level::Debug => tracing::debug!(module, "{text}"),
        }
    }
}

#[derive(Default)]
struct Shared {
    stopping: AtomicBool,
    figures: Mutex<Figures>,
    answered: Condvar,
    questions: Mutex<VecDeque<Asked>>,
}

/// A question that somebody waits to have answered.
struct Asked {
    question: DatabaseQuestion,
    reply: SyncSender<Result<DatabaseAnswer, Refusal>>,
}

impl Asked {
    /// Whoever asked may have stopped waiting.
    fn answer(self, answer: Result<DatabaseAnswer, Refusal>) {
        let _ = self.reply.try_send(answer);
    }
}

#[derive(Default)]
struct Figures {
    /// Number of requests for the figures, and of requests answered.
    asked: u64,
    answered: u64,
    /// Somebody has waited in vain: nobody waits again before there is an answer.
    is_late: bool,
    databases: Vec<DatabaseFigures>,
}

impl Shared {
    fn figures(&self) -> MutexGuard<'_, Figures> {
        // The figures are replaced as a whole, so they are consistent even after a panic.
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn questions(&self) -> MutexGuard<'_, VecDeque<Asked>> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running databases.
pub struct Databases {
    shared: Arc<Shared>,
    waker: Waker,
    /// What the thread ends with.
    ended: Receiver<io::Result<()>>,
}

/// Access to the databases for other threads.
pub struct Watcher {
    shared: Arc<Shared>,
    waker: Waker,
}

impl Watcher {
    /// The current figures, or slightly older ones if the databases are busy.
    pub fn figures(&self) -> Vec<DatabaseFigures> {
        let mut figures = self.shared.figures();
        figures.asked += 1;
        let wanted = figures.asked;
        self.waker.wake();
        if figures.is_late {
            return figures.databases.clone();
        }
        let waited = self
            .shared
            .answered
            .wait_timeout_while(figures, FIGURES_WAIT, |figures| figures.answered < wanted);
        let (mut figures, _) = waited.unwrap_or_else(PoisonError::into_inner);
        figures.is_late |= figures.answered < wanted;
        figures.databases.clone()
    }

    /// Asks the databases' thread and waits for its answer.
    pub fn ask(&self, question: DatabaseQuestion) -> Result<DatabaseAnswer, Refusal> {
        let compacts = matches!(question, DatabaseQuestion::Compact { .. });
        let (reply, answer) = mpsc::sync_channel(1);
        let mut questions = self.shared.questions();
        if questions.len() >= QUESTIONS_MAX || self.shared.stopping.load(Relaxed) {
            return Err(busy());
        }
        questions.push_back(Asked { question, reply });
        drop(questions);
        self.waker.wake();
        match answer.recv_timeout(if compacts { COMPACTION_WAIT } else { ANSWER_WAIT }) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) if compacts => Ok(DatabaseAnswer::Compacting),
            Err(_) => Err(busy()),
        }
    }
}

fn busy() -> Refusal {
    Refusal::NotNow { reason: "The databases are busy, or stop. Try again.".into() }
}

/// Uses the node's certificate. Only peers whose certificate `client_ca` has signed are accepted; without a `client_ca`
/// every peer is.
fn tls_options(tls: &TlsSection) -> TlsOptions {
    let text = |path: &PathBuf| path.display().to_string();
    TlsOptions {
        private_key: tls.key.as_ref().map(text),
        certificate: tls.certificate.as_ref().map(text),
        ca_cert: tls.certificate.as_ref().map(|_| tls.client_ca.as_ref().map_or("none".to_owned(), text)),
        protocols: (tls.oldest_version == OldestVersion::Tls13).then(|| "TLSv1.3".to_owned()),
        ..TlsOptions::default()
    }
}

impl Databases {
    /// Opens the databases of the configuration and serves them. `None` if there are none. `memory_bytes` is what
    /// `node` may use.
    pub fn start(config: &Config, memory_bytes: u64, node: &Arc<Node>) -> anyhow::Result<Option<Self>> {
        let sections: Vec<(&PathBuf, &OvsdbSection)> =
            config.databases.iter().filter_map(|section| Some((section.file.as_ref()?, section))).collect();
        if sections.is_empty() {
            return Ok(None);
        }
        let client_bytes = config.limits.ovsdb_clients_bytes.unwrap_or_else(|| {
            let largest = sections.iter().map(|(_, section)| section.memory_bytes).max().unwrap_or_default();
            // A transaction that does not fit a database must be refused by that database, with a reply.
            (memory_bytes / CLIENTS_SHARE).max(largest.saturating_mul(2))
        });
        let client_bytes = usize::try_from(client_bytes).unwrap_or(usize::MAX);
        let limits = ovsdb::server::Limits {
            reply_bytes: client_bytes,
            sessions: config.limits.ovsdb_sessions,
            backlog_bytes: config.limits.output_backlog_bytes,
            ..ovsdb::server::Limits::default()
        };
        let mut core = Core::new(limits, open_database::random_uuids())
            .map_err(|error| Problem::new(error.to_string()))?;
        let told = Arc::clone(node);
        core.when_a_reply_grows(move |bytes| told.set_client_memory(Holder::OvsdbReply, bytes as u64));
        let logger = Arc::new(NodeLogger::new());
        let settings = Settings {
            logger: Arc::clone(&logger) as Arc<dyn Logger>,
            run_directory: config.node.data.clone().unwrap_or_default(),
            messages: wire::jsonrpc::Limits {
                message_bytes: config.limits.ovsdb_message_bytes,
                depth: config.limits.ovsdb_depth,
            },
            backlog_bytes: config.limits.output_backlog_bytes,
            client_bytes,
        };
        let mut events = EventLoop::new(core, settings)?;
        for (file, section) in &sections {
            let name = file.display().to_string();
            open_database::open(&mut events, logger.as_ref(), &name, section.memory_bytes)
                .map_err(|error| Problem::new(format!("ovsdb.file = {name:?}: {error}")))?;
        }
        for remote in sections.iter().flat_map(|(_, section)| &section.remotes) {
            events
                .add_remote(remote)
                .map_err(|error| Problem::new(format!("ovsdb.remotes: \"{remote}\": {error}")))?;
        }
        events.set_tls(tls_options(&config.tls)).map_err(Problem::new)?;
        events.open_remotes();
        events.await_names(NAMES_WAIT);
        let shared = Arc::new(Shared::default());
        let waker = events.waker();
        let mut tenant =
            Tenant { shared: Arc::clone(&shared), node: Arc::clone(node), compacting: Vec::new() };
        let (end, ended) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("dm:ovsdb".into())
            .spawn(move || end.send(events.run(&mut tenant)))?;
        Ok(Some(Self { shared, waker, ended }))
    }

    /// A handle to read the figures with.
    pub fn watcher(&self) -> Watcher {
        Watcher { shared: Arc::clone(&self.shared), waker: self.waker.clone() }
    }

    /// Has the thread end all sessions.
    pub fn begin_stop(&self) {
        self.shared.stopping.store(true, Relaxed);
        self.waker.wake();
    }

    /// Waits for the end of the thread, but not for ever: what has been answered is in the files.
    pub fn stop(self) {
        match self.ended.recv_timeout(END_WAIT) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the OVSDB databases ended with an error"),
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!("the OVSDB databases are still at a request, which is dropped");
            }
            Err(RecvTimeoutError::Disconnected) => {
                tracing::error!("the thread of the OVSDB databases has panicked");
            }
        }
    }
}

/// The event loop's host in a node.
struct Tenant {
    shared: Arc<Shared>,
    node: Arc<Node>,
    compacting: Vec<Awaited>,
}

/// A compaction that somebody waits for: the database, and how many of it had ended before.
struct Awaited {
    database: String,
    ended: u64,
    asked: Asked,
}

impl Tenant {
    fn take_questions(&self) -> VecDeque<Asked> {
        std::mem::take(&mut *self.shared.questions())
    }

    fn answer(&mut self, events: &mut EventLoop, asked: Asked) {
        let answer = database_answers::answer(events, &asked.question);
        match (&asked.question, &answer) {
            (DatabaseQuestion::Compact { database }, Ok(_)) => {
                let database = database.clone();
                self.compact(events, database, asked);
            }
            _ => asked.answer(answer),
        }
    }

    /// As the control command `ovsdb-server/compact`.
    fn compact(&mut self, events: &mut EventLoop, database: String, asked: Asked) {
        if self.compacting.len() >= QUESTIONS_MAX {
            return asked.answer(Err(busy()));
        }
        tracing::info!(module = "ovsdb_server", "compacting {database} database by user request");
        let ended = events.last_compaction(&database).map_or(0, |last| last.number);
        match events.start_compaction(&database, None) {
            Ok(()) => self.compacting.push(Awaited { database, ended, asked }),
            Err(error) => asked.answer(Err(Refusal::Failed { reason: error.to_string() })),
        }
    }

    /// Answers those whose compaction has ended.
    fn end_compactions(&mut self, events: &EventLoop) {
        let has_ended = |awaited: &mut Awaited| {
            let ended = events.last_compaction(&awaited.database).map_or(0, |last| last.number);
            ended > awaited.ended || !events.is_compacting(&awaited.database)
        };
        let ended: Vec<Awaited> = self.compacting.extract_if(.., has_ended).collect();
        for Awaited { database, asked, .. } in ended {
            let report = events.last_compaction(&database).map(database_answers::compaction);
            asked.answer(match report {
                Some(report) => match report.error {
                    Some(reason) => Err(Refusal::Failed { reason }),
                    None => Ok(DatabaseAnswer::Compacted(report)),
                },
                None => Err(console::NO_SUCH_DATABASE),
            });
        }
    }
}

impl Host for Tenant {
    fn command(&mut self, _: &mut EventLoop, _: &Command) -> Answer {
        Answer::Error("there is no control socket in a node".into())
    }

    fn woken(&mut self, events: &mut EventLoop) {
        if self.shared.stopping.load(Relaxed) {
            events.stop();
        }
        let mut shown = self.shared.figures();
        if shown.answered < shown.asked {
            shown.answered = shown.asked;
            shown.is_late = false;
            shown.databases = events.hosted().iter().filter_map(|name| figures(events, name)).collect();
            self.shared.answered.notify_all();
        }
        drop(shown);
        for asked in self.take_questions() {
            self.answer(events, asked);
        }
    }

    fn turn_began(&mut self, mono_us: u64) {
        let turns = self.node.turns();
        turns.begin(turns.other(), mono_us);
    }

    fn turn_ended(&mut self, events: &mut EventLoop) {
        let turns = self.node.turns();
        turns.end(turns.other());
        self.node.set_client_memory(Holder::Ovsdb, events.client_bytes() as u64);
        self.node.set_client_memory(Holder::OvsdbReply, 0);
        if !self.compacting.is_empty() {
            self.end_compactions(events);
        }
    }
}
