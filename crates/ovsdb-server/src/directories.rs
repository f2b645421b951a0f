//! Where the stock server keeps things, unless the environment says otherwise.

use std::path::PathBuf;

fn from_environment(variable: &str, default: &str) -> PathBuf {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map_or_else(|| default.into(), PathBuf::from)
}

/// Sockets and process ids.
pub fn run() -> PathBuf {
    from_environment("OVS_RUNDIR", "/var/run/openvswitch")
}

/// Logs.
pub fn log() -> PathBuf {
    from_environment("OVS_LOGDIR", "/var/log/openvswitch")
}

/// Databases.
pub fn database() -> PathBuf {
    match std::env::var_os("OVS_DBDIR").filter(|value| !value.is_empty()) {
        Some(directory) => directory.into(),
        None => from_environment("OVS_SYSCONFDIR", "/etc").join("openvswitch"),
    }
}
