//! The commands of the control socket.

use super::serving::Process;
use super::{VERSION, figures, open_database};
use net::ovsdb::{Answer, Command, EventLoop, Level, Logger as _};

/// How a command is executed.
type Run = fn(&mut Process, &mut EventLoop, &[String], &Command) -> Result<Answer, String>;

/// A command.
struct Entry {
    name: &'static str,
    /// Its arguments, as `list-commands` shows them; `None`: it is not listed.
    usage: Option<&'static str>,
    arguments_min: usize,
    arguments_max: usize,
    run: Run,
}

const fn entry(
    name: &'static str,
    usage: &'static str,
    arguments_min: usize,
    arguments_max: usize,
    run: Run,
) -> Entry {
    Entry { name, usage: Some(usage), arguments_min, arguments_max, run }
}

const MANY: usize = usize::MAX;
const NO_REPLICATION: &str = "replication is not supported by this server";

/// All commands, by name.
const COMMANDS: &[Entry] = &[
    entry("coverage/read-counter", "COUNTER", 1, 1, |_, events, arguments, _| {
        let total = events.coverage_of(first(arguments)).ok_or("No such counter")?;
        text(total.to_string())
    }),
    entry("coverage/show", "", 0, 0, |_, events, _, _| text(events.coverage())),
    Entry {
        name: "dormouse/figures",
        usage: None,
        arguments_min: 0,
        arguments_max: 0,
        run: |_, events, _, _| text(figures::own(events)),
    },
    entry("exit", "", 0, 0, |_, events, _, _| {
        events.stop();
        text("")
    }),
    entry("list-commands", "", 0, 0, |_, _, _, _| text(list())),
    entry("memory/show", "", 0, 0, |_, events, _, _| text(figures::memory_shown(events.core()))),
    entry("ovsdb-server/add-db", "DB", 1, 1, |process, events, arguments, _| {
        open_database::open(events, process.log.as_ref(), first(arguments), u64::MAX)
            .map_err(|error| error.to_string())?;
        text("")
    }),
    entry("ovsdb-server/add-remote", "REMOTE", 1, 1, |_, events, arguments, _| {
        let remote = first(arguments);
        events.add_remote_later(remote).map_err(|error| format!("\"{remote}\": {error}"))?;
        events.open_remotes();
        text("")
    }),
    entry("ovsdb-server/compact", "", 0, 1, compact),
    entry("ovsdb-server/connect-active-ovsdb-server", "", 0, 0, |_, _, _, _| {
        text("Unable to connect: active server is not specified.\n")
    }),
    entry("ovsdb-server/disable-monitor-cond", "", 0, 0, |_, events, _, _| {
        events.server().disable_monitor_cond();
        events.reconnect("user ran ovsdb-server/disable-monitor-cond");
        text("")
    }),
    entry("ovsdb-server/disconnect-active-ovsdb-server", "", 0, 0, |_, _, _, _| text("")),
    entry("ovsdb-server/get-active-ovsdb-server", "", 0, 0, |_, _, _, _| text("")),
    entry("ovsdb-server/get-db-storage-status", "DB", 1, 1, storage_status),
    entry("ovsdb-server/get-sync-exclude-tables", "", 0, 0, |_, _, _, _| text("")),
    entry("ovsdb-server/list-dbs", "", 0, 0, |_, events, _, _| text(lines(events.core().databases()))),
    entry("ovsdb-server/list-remotes", "", 0, 0, |_, events, _, _| text(lines(events.remotes()))),
    entry("ovsdb-server/memory-trim-on-compaction", "on|off", 1, 1, |process, _, arguments, _| {
        let word = match first(arguments) {
            "on" => "enabled",
            "off" => "disabled",
            _ => return Err("invalid argument".into()),
        };
        // Free memory is returned regardless of this setting.
        let line = format!("memory trimming after compaction {word}.");
        process.log.log("ovsdb_server", Level::Information, &line);
        text("")
    }),
    entry("ovsdb-server/perf-counters-clear", "", 0, 0, |_, _, _, _| text("")),
    entry("ovsdb-server/perf-counters-show", "", 0, 0, |_, _, _, _| {
        text("performance counter is not supported on this platform\n")
    }),
    entry("ovsdb-server/reconnect", "", 0, 0, |_, events, _, _| {
        events.reconnect("user ran ovsdb-server/reconnect");
        text("")
    }),
    entry("ovsdb-server/remove-db", "DB", 1, 1, |_, events, arguments, _| {
        let name = first(arguments);
        if name.starts_with('_') {
            return Err("Cannot remove reserved database.".into());
        }
        if !events.remove_database(name, "by user request") {
            return Err("Failed to find the database.".into());
        }
        text("")
    }),
    entry("ovsdb-server/remove-remote", "REMOTE", 1, 1, |_, events, arguments, _| {
        if events.remove_remote(first(arguments)) { text("") } else { Err("no such remote".into()) }
    }),
    entry("ovsdb-server/set-active-ovsdb-server", "", 1, 1, |_, _, _, _| Err(NO_REPLICATION.into())),
    entry("ovsdb-server/set-active-ovsdb-server-probe-interval", "", 1, 1, |_, _, _, _| {
        Err(NO_REPLICATION.into())
    }),
    Entry {
        // From newer releases: it applies to a relay's source. There is none here, as in a stock server without relays.
        name: "ovsdb-server/set-relay-source-probe-interval",
        usage: None,
        arguments_min: 1,
        arguments_max: 1,
        run: |_, _, arguments, _| match c_integer(first(arguments)) {
            Some(_) => text(""),
            None => Err("Invalid probe interval, integer value expected".into()),
        },
    },
    entry("ovsdb-server/set-sync-exclude-tables", "", 0, 1, |_, _, _, _| Err(NO_REPLICATION.into())),
    entry("ovsdb-server/sync-status", "", 0, 0, |_, _, _, _| text("state: active\n")),
    entry("ovsdb-server/tlog-list", "", 0, 0, |_, events, _, _| text(table_logs(events))),
    entry("ovsdb-server/tlog-set", "DB:TABLE on|off", 2, 2, set_table_log),
    entry("version", "", 0, 0, |_, _, _, _| text(VERSION)),
    entry("vlog/close", "", 0, 0, |process, _, _, _| {
        process.log.close();
        text("")
    }),
    entry("vlog/disable-rate-limit", "[module]...", 0, MANY, |process, _, arguments, _| {
        process.log.limit_rates(arguments, false)?;
        text("")
    }),
    entry("vlog/enable-rate-limit", "[module]...", 0, MANY, |process, _, arguments, _| {
        process.log.limit_rates(arguments, true)?;
        text("")
    }),
    entry("vlog/list", "", 0, 0, |process, _, _, _| text(process.log.list())),
    entry("vlog/list-pattern", "", 0, 0, |process, _, _, _| text(process.log.list_patterns())),
    entry("vlog/reopen", "", 0, 0, |process, _, _, _| {
        process.log.reopen()?;
        text("")
    }),
    entry("vlog/set", "{spec | PATTERN:destination:pattern}", 0, MANY, |process, _, arguments, _| {
        if arguments.is_empty() {
            process.log.set("")?;
        }
        for spec in arguments {
            process.log.set(spec)?;
        }
        text("")
    }),
];

fn text(text: impl Into<String>) -> Result<Answer, String> {
    Ok(Answer::Text(text.into()))
}

fn first(arguments: &[String]) -> &str {
    arguments.first().map_or("", String::as_str)
}

fn lines<'a>(items: impl Iterator<Item = &'a str>) -> String {
    items.map(|item| format!("{item}\n")).collect()
}

/// Executes a command, if it exists.
pub(super) fn execute(process: &mut Process, events: &mut EventLoop, command: &Command) -> Answer {
    let name = &command.name;
    let Some(entry) = COMMANDS.iter().find(|entry| entry.name == name) else {
        return Answer::Error(format!(
            "\"{name}\" is not a valid command (use \"list-commands\" to see a list of valid commands)"
        ));
    };
    let count = command.arguments.len();
    if count < entry.arguments_min {
        return Answer::Error(format!(
            "\"{name}\" command requires at least {} arguments",
            entry.arguments_min
        ));
    }
    if count > entry.arguments_max {
        return Answer::Error(format!("\"{name}\" command takes at most {} arguments", entry.arguments_max));
    }
    let Some(arguments) = command.arguments.iter().cloned().collect::<Option<Vec<String>>>() else {
        return Answer::Error(format!("\"{name}\" command has non-string argument"));
    };
    (entry.run)(process, events, &arguments, command).unwrap_or_else(Answer::Error)
}

fn list() -> String {
    let mut text = String::from("The available commands are:\n");
    for Entry { name, usage, .. } in COMMANDS {
        if let Some(usage) = usage {
            text.push_str(&format!("  {name:<23} {usage}\n"));
        }
    }
    text
}

fn compact(
    process: &mut Process,
    events: &mut EventLoop,
    arguments: &[String],
    command: &Command,
) -> Result<Answer, String> {
    let names = match arguments.first() {
        None => events.hosted().to_vec(),
        Some(name) if events.core().database(name).is_none() => return Err("no database by that name".into()),
        Some(name) if name.starts_with('_') => return Err("cannot compact built-in databases".into()),
        Some(name) => vec![name.clone()],
    };
    let (mut begun, mut errors) = (0, String::new());
    for name in &names {
        let line = format!("compacting {name} database by user request");
        process.log.log("ovsdb_server", Level::Information, &line);
        match events.start_compaction(name, Some(command.ticket)) {
            Ok(()) => begun += 1,
            Err(error) => errors.push_str(&format!("{error}\n")),
        }
    }
    // Compactions that have started continue, and nobody waits for them.
    if errors.is_empty() { Ok(Answer::Later(begun)) } else { Err(errors) }
}

fn storage_status(
    _: &mut Process,
    events: &mut EventLoop,
    arguments: &[String],
    _: &Command,
) -> Result<Answer, String> {
    let name = first(arguments);
    let database = events.core().database(name).ok_or("Failed to find the database.")?;
    match events.core().log(name).and_then(|log| log.poisoned()).or(database.damage()) {
        None => text("status: ok\n"),
        Some(error) => text(format!("status: {error}\n")),
    }
}

fn table_logs(events: &EventLoop) -> String {
    let mut text = String::from("database        table                       logging\n");
    text.push_str("--------        -----                       -------\n");
    for name in events.core().databases() {
        let Some(database) = events.core().database(name) else { continue };
        text.push_str(&format!("{name:<16} \n"));
        for (id, table) in database.schema().tables() {
            let word = if events.core().is_table_logged(name, id) { "ON" } else { "OFF" };
            text.push_str(&format!("                {:<27} {word}\n", table.name));
        }
    }
    text
}

fn set_table_log(
    _: &mut Process,
    events: &mut EventLoop,
    arguments: &[String],
    _: &Command,
) -> Result<Answer, String> {
    let parts =
        first(arguments).split_once(':').filter(|(name, table)| !name.is_empty() && !table.is_empty());
    let (name, table) = parts.ok_or("invalid DB:TABLE argument")?;
    let database = events.core().database(name).ok_or("no such database")?;
    database.schema().find_table(table).ok_or("no such table")?;
    let logged = match arguments.get(1).map(|word| word.to_ascii_lowercase()).as_deref() {
        Some("off") => false,
        Some("on") => true,
        _ => return Err("invalid command argument".into()),
    };
    events.server().log_table(name, table, logged);
    text("")
}

/// Parses a number as C's `int`.
fn c_integer(text: &str) -> Option<i32> {
    text.strip_prefix('+').filter(|rest| !rest.starts_with('-')).unwrap_or(text).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_in_order() {
        assert!(COMMANDS.is_sorted_by_key(|entry| entry.name));
        let list = list();
        assert!(
            list.contains("\n  coverage/read-counter   COUNTER\n  coverage/show           \n  exit"),
            "{list}"
        );
        assert!(!list.contains("dormouse/"));
    }
}
