//! Structured logs by `tracing`, on standard error and in memory, with a level that can change at run time.

use crate::config::{Format, Level, LogSection};
use crate::log_tail::Tail;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, Registry, fmt, reload};

/// The handle that changes the level.
pub struct Logging {
    level: reload::Handle<LevelFilter, Registry>,
    tail: Tail,
}

impl Logging {
    /// Starts logging; call it once per process.
    pub fn start(section: &LogSection) -> anyhow::Result<Self> {
        let (filter, level) = reload::Layer::new(filter(section.level));
        let lines = fmt::layer().with_writer(std::io::stderr);
        let lines = match section.format {
            Format::Text => lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).boxed(),
            Format::Json => lines.json().flatten_event(true).boxed(),
        };
        let tail = Tail::default();
        tracing_subscriber::registry().with(filter).with(lines).with(tail.clone()).try_init()?;
        Ok(Self { level, tail })
    }

    /// Returns the last lines.
    pub fn tail(&self) -> Tail {
        self.tail.clone()
    }

    /// Changes the level.
    pub fn set_level(&self, level: Level) {
        // Fails only when the subscriber is gone, and then nothing logs.
        let _ = self.level.reload(filter(level));
    }
}

fn filter(level: Level) -> LevelFilter {
    match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    }
}
