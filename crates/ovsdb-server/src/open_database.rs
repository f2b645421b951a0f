//! Opening database files.

use net::ovsdb::{EventLoop, Level, Logger};
use ovsdb::database::{Database, Options};
use ovsdb::error::Error;
use ovsdb::file::{self, Log, Note};
use ovsdb::uuid::Uuid;
use std::path::Path;

/// Opens a file and hosts its database. Notes go to the log, even if it fails.
pub fn open(events: &mut EventLoop, log: &dyn Logger, file: &str, budget_bytes: u64) -> Result<(), Error> {
    let is_open = |name: &String| events.core().log(name).is_some_and(|log| log.name() == file);
    if events.hosted().iter().any(is_open) {
        return Err(Error::new("ovsdb error", format!("{file}: already open")));
    }
    let now_ms = events.now().wall_ms;
    let opened = Log::open(events.disk(), Path::new(file), now_ms, &mut |schema| {
        Database::new(schema, Options { budget_bytes, seed: random_u64() })
    });
    let opened = opened.map_err(|refusal| {
        log_notes(log, &refusal.notes);
        refusal.error
    })?;
    log_notes(log, &opened.notes);
    if opened.database.name().starts_with('_') {
        return Err(Error::new(
            "ovsdb error",
            format!("{}: names beginning with \"_\" are reserved", opened.database.name()),
        ));
    }
    events.add_database(opened.database, opened.log)
}

fn log_notes(log: &dyn Logger, notes: &[Note]) {
    for Note { level, module, text } in notes {
        let level = match level {
            file::Level::Info => Level::Information,
            file::Level::Warn => Level::Warning,
            file::Level::Error => Level::Error,
        };
        log.log(module, level, text);
    }
}

/// Random bytes, fetched from the kernel many at a time.
struct Entropy {
    bytes: [u8; 4096],
    used: usize,
}

impl Entropy {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        if self.used + N > self.bytes.len() {
            let mut filled = 0;
            while let Some(rest) = self.bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                // At boot this waits until the kernel has collected enough; it fails for no other reason than a signal.
                filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty()).unwrap_or(0);
            }
            self.used = 0;
        }
        let mut out = [0; N];
        if let Some(bytes) = self.bytes.get(self.used..self.used + N) {
            out.copy_from_slice(bytes);
        }
        self.used += N;
        out
    }
}

/// A source of random UUIDs.
pub fn random_uuids() -> ovsdb::server::Random {
    let mut entropy = Entropy { bytes: [0; 4096], used: 4096 };
    Box::new(move || Uuid::from_random(entropy.take()))
}

fn random_u64() -> u64 {
    u64::from_le_bytes(Entropy { bytes: [0; 4096], used: 4096 }.take())
}
