//! Servers that the lab knows how to start: their command lines as an experiment file would have them.

use super::file::{Builtin, OwnLoad, Ready, Signal, SubjectSpec, WorkloadSpec};
use crate::child::find_program;
use crate::ovsdb::template::NEW_FILE;
use crate::protocol::Protocol;
use crate::subject::BUCKET;
use crate::{debian, os, programs};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// Memory beyond keys and values that a server is given for each item, and for itself.
const ITEM_BYTES: u64 = 200;
const BASE_BYTES: u64 = 512 << 20;
/// Where Debian keeps PostgreSQL's programs, below a folder for each version.
const POSTGRESQL: &str = "/usr/lib/postgresql";
/// Where Debian keeps the schema of Open vSwitch.
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Completes the description of a built-in server. What the file says itself stays, and its arguments come last.
pub fn complete(spec: &SubjectSpec, workload: &WorkloadSpec, program: Option<&Path>) -> Result<SubjectSpec> {
    let Some(builtin) = spec.builtin else {
        let mut spec = spec.clone();
        spec.command.append(&mut spec.arguments);
        return Ok(spec);
    };
    let mut known = match builtin {
        Builtin::Dormouse => dormouse(program, workload)?,
        Builtin::Memcached => memcached(program, workload)?,
        Builtin::Redis => redis(program, "redis-server", &["redis-server"])?,
        Builtin::Valkey => redis(program, "valkey-server", &["valkey-server"])?,
        Builtin::OvsdbServer => ovsdb_server(program, workload)?,
        Builtin::Postgresql => postgresql(program)?,
    };
    known.command.extend(spec.arguments.iter().cloned());
    known.environment.extend(spec.environment.clone());
    known.files.extend(spec.files.clone());
    known.prepare.extend(spec.prepare.iter().cloned());
    Ok(SubjectSpec {
        builtin: spec.builtin,
        ready: spec.ready.clone().or(known.ready),
        ready_timeout: spec.ready_timeout,
        stop: spec.stop.or(known.stop),
        stop_timeout: spec.stop_timeout,
        user: spec.user.clone().or(known.user),
        version: if spec.version.is_empty() { known.version } else { spec.version.clone() },
        ..known
    })
}

/// How to get what is missing: nothing is said of packages that this system does not offer.
fn how_to_get(packages: &[&'static str]) -> String {
    debian::installation(packages).map_or(String::new(), |command| format!(" ({command})"))
}

/// The program given, or the first of these that is installed.
fn program(given: Option<&Path>, name: &str, packages: &[&'static str]) -> Result<String> {
    let found = match given {
        Some(path) if path.components().count() == 1 => find_program(&path.to_string_lossy()),
        Some(path) => path.is_file().then(|| path.to_owned()),
        None => find_program(name),
    };
    let found = found.with_context(|| match given {
        Some(path) => format!("there is no program {}", path.display()),
        None => format!("{name} is not installed{}; `program` names another", how_to_get(packages)),
    })?;
    Ok(found.to_string_lossy().into_owned())
}

fn words(line: &str) -> impl Iterator<Item = String> {
    line.split_whitespace().map(str::to_owned)
}

/// Memory that holds the load's items in any server.
fn budget(workload: &WorkloadSpec) -> u64 {
    let item = workload.key_bytes as u64 + workload.value_bytes as u64 + ITEM_BYTES;
    u64::from(workload.items) * item * 3 / 2 + BASE_BYTES
}

fn dormouse(given: Option<&Path>, workload: &WorkloadSpec) -> Result<SubjectSpec> {
    let program = programs::dormouse(given)?.to_string_lossy().into_owned();
    if workload.builtin == Some(OwnLoad::Ovsdb) {
        return Ok(on_own_database(vec![program, "ovsdb-server".to_owned()]));
    }
    let ports = match workload.builtin {
        Some(OwnLoad::KeyValue(Protocol::Couchbase)) => "--memcached none --kv 127.0.0.1:{port}",
        _ => "--memcached 127.0.0.1:{port} --kv none",
    };
    let bytes = budget(workload);
    let rest = format!(
        "serve {ports} --http none --data {{directory}} --memory {bytes} --bucket {BUCKET},ephemeral,{bytes}"
    );
    Ok(SubjectSpec {
        command: std::iter::once(program.clone()).chain(words(&rest)).collect(),
        version: vec![program, "--version".to_owned()],
        ..SubjectSpec::default()
    })
}

fn memcached(given: Option<&Path>, workload: &WorkloadSpec) -> Result<SubjectSpec> {
    let program = program(given, "memcached", &["memcached"])?;
    let (mebibytes, connections) = (budget(workload) >> 20, workload.connections + 64);
    let rest = format!("-l 127.0.0.1 -p {{port}} -U 0 -m {mebibytes} -c {connections} -u root");
    Ok(SubjectSpec {
        command: std::iter::once(program.clone()).chain(words(&rest)).collect(),
        version: vec![program, "-V".to_owned()],
        ..SubjectSpec::default()
    })
}

fn redis(given: Option<&Path>, name: &str, packages: &[&'static str]) -> Result<SubjectSpec> {
    let program = program(given, name, packages)?;
    let rest =
        words("--bind 127.0.0.1 --port {port} --appendonly no --daemonize no --dir {directory} --save");
    Ok(SubjectSpec {
        command: std::iter::once(program.clone()).chain(rest).chain([String::new()]).collect(),
        version: vec![program, "--version".to_owned()],
        ..SubjectSpec::default()
    })
}

/// Sockets of an OVSDB server.
const OVSDB_REMOTES: &str = "--remote=punix:{directory}/socket --unixctl={directory}/control -vconsole:warn";

fn ovsdb_server(given: Option<&Path>, workload: &WorkloadSpec) -> Result<SubjectSpec> {
    let program = program(given, "ovsdb-server", &["openvswitch-switch"])?;
    if workload.builtin == Some(OwnLoad::Ovsdb) {
        return Ok(on_own_database(vec![program]));
    }
    if !Path::new(SCHEMA).is_file() {
        bail!("there is no {SCHEMA}{}", how_to_get(&["openvswitch-common"]));
    }
    let rest = words(OVSDB_REMOTES).chain(["{directory}/database".to_owned()]);
    Ok(SubjectSpec {
        command: std::iter::once(program.clone()).chain(rest).collect(),
        prepare: vec![words(&format!("ovsdb-tool create {{directory}}/database {SCHEMA}")).collect()],
        ready: Some(Ready::File("{directory}/socket".to_owned())),
        version: vec![program, "--version".to_owned()],
        ..SubjectSpec::default()
    })
}

/// An OVSDB server with the database of the lab's own load.
fn on_own_database(program: Vec<String>) -> SubjectSpec {
    let version = program.iter().cloned().chain(["--version".to_owned()]).collect();
    let rest = words(OVSDB_REMOTES).chain(["{directory}/lab.db".to_owned()]);
    SubjectSpec {
        command: program.into_iter().chain(rest).collect(),
        files: [("lab.db".to_owned(), NEW_FILE.to_owned())].into(),
        ready: Some(Ready::File("{directory}/socket".to_owned())),
        version,
        ..SubjectSpec::default()
    }
}

fn postgresql(given: Option<&Path>) -> Result<SubjectSpec> {
    let programs = match given {
        Some(path) => path.parent().map(Path::to_owned).unwrap_or_default(),
        None => newest_postgresql().with_context(|| {
            let how = how_to_get(&["postgresql"]);
            format!("PostgreSQL is not installed{how}; `program` names a `postgres`")
        })?,
    };
    let path = |name: &str| programs.join(name).to_string_lossy().into_owned();
    let server = given.map_or_else(|| path("postgres"), |given| given.to_string_lossy().into_owned());
    let initdb = words("-D {directory}/data -A trust -U postgres --no-sync");
    let rest = words(
        "-D {directory}/data -p {port} -k {directory} -c listen_addresses=127.0.0.1 -c max_connections=200",
    );
    let ready = words("-q -h 127.0.0.1 -p {port}");
    Ok(SubjectSpec {
        command: std::iter::once(server.clone()).chain(rest).collect(),
        prepare: vec![std::iter::once(path("initdb")).chain(initdb).collect()],
        ready: Some(Ready::Command(std::iter::once(path("pg_isready")).chain(ready).collect())),
        // Ends sessions instead of waiting for them.
        stop: Some(Signal::Int),
        // It refuses to run as root.
        user: os::is_root().then(|| "nobody".to_owned()),
        version: vec![server, "--version".to_owned()],
        ..SubjectSpec::default()
    })
}

fn newest_postgresql() -> Option<PathBuf> {
    let versions = fs::read_dir(POSTGRESQL).ok()?.flatten().filter_map(|entry| {
        let version = entry.file_name().to_str()?.parse::<u32>().ok()?;
        let programs = entry.path().join("bin");
        programs.join("postgres").is_file().then_some((version, programs))
    });
    versions.max().map(|(_, programs)| programs)
}
