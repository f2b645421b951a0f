//! The rules between keys, which no single key can check.

use super::size::show;
use super::{Address, BucketSection, Config, EvictionChoice, Problem, keys};
use kv::BucketKind;
use kv::replication::PeerNode;
use std::collections::BTreeSet;
use transport::ClientCertificates;

/// Reports the first rule that the configuration breaks; `on_disk` are the buckets in the data directory.
pub fn rules(config: &Config, on_disk: &[String]) -> Result<(), Problem> {
    for (index, bucket) in config.buckets.iter().enumerate() {
        if config.buckets.iter().take(index).any(|earlier| earlier.name == bucket.name) {
            return Err(Problem::new(format!(
                "bucket {:?} is given twice; allowed: each name once",
                bucket.name
            )));
        }
    }
    for bucket in &config.buckets {
        persistence(config, bucket)?;
    }
    for port in &config.memcached {
        let configured = config.buckets.iter().map(|bucket| bucket.name.as_str());
        let known: BTreeSet<&str> = configured.chain(on_disk.iter().map(String::as_str)).collect();
        if port.address.is_some() && !known.contains(port.bucket.as_str()) {
            let known: Vec<&str> = known.into_iter().collect();
            return Err(Problem::new(format!(
                "memcached.bucket = {:?}: there is no such bucket; allowed: {}",
                port.bucket,
                if known.is_empty() {
                    "a bucket given beside it; there is none".into()
                } else {
                    known.join(", ")
                }
            )));
        }
    }
    for (index, database) in config.databases.iter().enumerate() {
        if let Some(file) = &database.file
            && config.databases.iter().take(index).any(|earlier| earlier.file.as_ref() == Some(file))
        {
            return Err(Problem::new(format!(
                "ovsdb.file = {file:?} is given twice; allowed: each file once"
            )));
        }
    }
    tls(config)?;
    let addresses = listeners(config);
    for (index, (key, address)) in addresses.iter().enumerate() {
        if let Some((other, _)) = addresses.iter().take(index).find(|(_, earlier)| earlier.collides(address))
        {
            return Err(Problem::new(format!(
                "{key} = \"{address}\" is also {other}; allowed: each address once"
            )));
        }
    }
    if config.auth.password_file.is_none()
        && config.auth.users_file.is_none()
        && !config.auth.has_kept
        && let Some((key, address)) = addresses.iter().find(|(_, address)| !address.is_local())
    {
        return Err(Problem::new(format!(
            "{key} = \"{address}\" is not a loopback address, and the development password is allowed on \
             loopback only; set auth.password_file (or --user NAME --password-file FILE)"
        )));
    }
    if config.replication.user.is_empty() != config.replication.password_file.is_none() {
        return Err(Problem::new(
            "replication.user and replication.password_file belong together; allowed: both, or neither",
        ));
    }
    if config.auth.password_file.is_none() && config.auth.user != "Administrator" {
        return Err(Problem::new(format!(
            "auth.user = {:?} needs auth.password_file (or --password-file); without one only the development user \
             \"Administrator\" is allowed",
            config.auth.user
        )));
    }
    memory(config)
}

/// A persistent bucket needs a data directory, and each kind has its own eviction policies.
fn persistence(config: &Config, bucket: &BucketSection) -> Result<(), Problem> {
    let is_persistent = bucket.settings.kind == BucketKind::Persistent;
    if is_persistent && config.node.data.is_none() {
        return Err(Problem::new(format!(
            "bucket.kind = \"persistent\" of bucket {:?} needs node.data (or --data DIR), which is \"\"; allowed: a \
            directory, or \
             bucket.kind = \"ephemeral\"",
            bucket.name
        )));
    }
    let least = bucket.settings.least_durability;
    if least.needs_disk() && !is_persistent {
        return Err(Problem::new(format!(
            "bucket.durability_min_level = {:?} of bucket {:?}: not allowed for its kind; allowed: \"none\" or \
             \"majority\"",
            least.name(),
            bucket.name
        )));
    }
    let (word, allowed) = match (bucket.eviction, is_persistent) {
        (EvictionChoice::AutoDelete, true) => ("auto_delete", "\"auto\" or \"value_ejection\""),
        (EvictionChoice::FailNewData, true) => ("fail_new_data", "\"auto\" or \"value_ejection\""),
        (EvictionChoice::ValueEjection, false) => {
            ("value_ejection", "\"auto\", \"auto_delete\" or \"fail_new_data\"")
        }
        _ => return Ok(()),
    };
    Err(Problem::new(format!(
        "bucket.eviction = \"{word}\" of bucket {:?}: not allowed for its kind; allowed: {allowed}",
        bucket.name
    )))
}

/// The budgets must fit the node's memory. The machine's memory is read only at start.
fn memory(config: &Config) -> Result<(), Problem> {
    let Some(node) = config.node.memory_bytes else { return Ok(()) };
    let sized: u64 =
        config.buckets.iter().filter_map(|bucket| bucket.memory_bytes).fold(0, u64::saturating_add);
    let databases: u64 = config
        .databases
        .iter()
        .filter(|database| database.file.is_some())
        .fold(0, |sum, database| sum.saturating_add(database.memory_bytes));
    let sized = sized.saturating_add(databases);
    let shares = config.buckets.iter().filter(|bucket| bucket.memory_bytes.is_none()).count() as u64;
    let needed = sized.saturating_add(shares.saturating_mul(keys::BUCKET_MEMORY_MIN));
    if needed > node {
        return Err(Problem::new(format!(
            "the buckets{} need {} in all, and node.memory = {}; allowed: budgets that fit, at least {} for each \
             bucket",
            if databases > 0 { " and databases" } else { "" },
            show(needed),
            show(node),
            show(keys::BUCKET_MEMORY_MIN)
        )));
    }
    Ok(())
}

/// A certificate needs its key, and every setting that needs a certificate must have one.
fn tls(config: &Config) -> Result<(), Problem> {
    let tls = &config.tls;
    let needs = |given: &str, needed: &str| {
        Err(Problem::new(format!("{given} needs {needed}, which is \"\"; allowed: both, or neither")))
    };
    match (&tls.certificate, &tls.key) {
        (Some(_), None) => return needs("tls.certificate", "tls.key (or --tls-key FILE)"),
        (None, Some(_)) => return needs("tls.key", "tls.certificate (or --tls-certificate FILE)"),
        _ => {}
    }
    if tls.certificate.is_none() && config.memcached.iter().any(|port| port.tls && port.address.is_some()) {
        return needs("memcached.tls = true", "tls.certificate (or --tls-certificate FILE)");
    }
    let mut remotes = config.databases.iter().flat_map(|section| &section.remotes);
    if tls.certificate.is_none()
        && let Some(remote) = remotes.find(|remote| remote.starts_with("ssl:") || remote.starts_with("pssl:"))
    {
        return needs(&format!("ovsdb.remotes = {remote:?}"), "tls.certificate (or --tls-certificate FILE)");
    }
    if tls.client_certificates != ClientCertificates::None && tls.client_ca.is_none() {
        return needs("tls.client_certificates", "tls.client_ca");
    }
    let ports = config.memcached.iter().map(|port| ("memcached", port.client_certificates));
    let others = [("kv", config.kv.client_certificates), ("http", config.http.client_certificates)];
    let asks =
        |asked: Option<ClientCertificates>| asked.is_some_and(|asked| asked != ClientCertificates::None);
    if tls.client_ca.is_none()
        && let Some((section, _)) = ports.chain(others).find(|(_, asked)| asks(*asked))
    {
        return needs(&format!("{section}.client_certificates"), "tls.client_ca");
    }
    if config.memcached.iter().any(|port| port.client_certificates.is_some() && !port.tls) {
        return Err(Problem::new(
            "memcached.client_certificates is given for a port without TLS; allowed: with memcached.tls = true, or \
             \"tls\"",
        ));
    }
    links(config)
}

/// Each of the other nodes must have the port that this one connects to.
fn links(config: &Config) -> Result<(), Problem> {
    let is_encrypted = config.replication.ca.is_some();
    let lacks = |peer: &&PeerNode| if is_encrypted { peer.kv_tls.is_none() } else { peer.kv.is_none() };
    let Some(peer) = config.replication.peers.iter().find(lacks) else { return Ok(()) };
    let what = match is_encrypted {
        true => {
            "with TLS, which replication.ca asks for; allowed: NAME=HOST:KV/HTTP,KV/HTTP, with TLS after the comma"
        }
        false => "without TLS; allowed: one before the comma, or replication.ca, for connections with TLS",
    };
    Err(Problem::new(format!("replication.peers: {:?} has no KV port {what}", peer.name)))
}

/// All addresses to listen on, with their keys.
pub fn listeners(config: &Config) -> Vec<(&'static str, &Address)> {
    let memcached = config.memcached.iter().map(|port| ("memcached.address", port.address.as_ref()));
    let plain = [("kv.address", config.kv.address.as_ref()), ("http.address", config.http.address.as_ref())];
    let encrypted = [
        ("kv.tls_address", config.kv.tls_address.as_ref()),
        ("http.tls_address", config.http.tls_address.as_ref()),
    ];
    let has_tls = config.tls.certificate.is_some();
    memcached
        .chain(plain)
        .chain(encrypted.into_iter().filter(|_| has_tls))
        .filter_map(|(key, address)| Some((key, address?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::reader::{Flags, load};

    fn problem(flags: Flags) -> String {
        load(None, &flags).expect_err("a broken rule").to_string()
    }

    #[test]
    fn every_rule_names_what_breaks_it() {
        let none = Flags::default;
        let twice = problem(Flags { bucket: vec!["default".into(), "default".into()], ..none() });
        assert_eq!(twice, "bucket \"default\" is given twice; allowed: each name once");
        let open = problem(Flags { kv: Some("0.0.0.0:0".into()), ..none() });
        assert!(open.starts_with("kv.address = \"0.0.0.0:0\" is not a loopback address"), "{open}");
        let same = problem(Flags {
            kv: Some("127.0.0.1:7000".into()),
            http: Some("127.0.0.1:7000".into()),
            ..none()
        });
        assert!(same.starts_with("http.address = \"127.0.0.1:7000\" is also kv.address"), "{same}");
        let no_key = problem(Flags { tls_certificate: Some("node.pem".into()), ..none() });
        assert!(no_key.starts_with("tls.certificate needs tls.key (or --tls-key FILE)"), "{no_key}");
        let bare = problem(Flags { memcached: vec!["tls:127.0.0.1:0".into()], ..none() });
        assert!(bare.starts_with("memcached.tls = true needs tls.certificate"), "{bare}");
        for (text, start) in [
            ("[http]\nclient_certificates = \"required\"", "http.client_certificates needs tls.client_ca"),
            (
                "[tls]\nclient_ca = \"ca.pem\"\n[[memcached]]\nclient_certificates = \"optional\"",
                "memcached.client_certificates is given for a port without TLS",
            ),
        ] {
            let path = std::env::temp_dir().join(format!("check-{}.toml", std::process::id()));
            std::fs::write(&path, text).expect("a file");
            let line = load(Some(&path), &none()).expect_err("a broken rule").to_string();
            std::fs::remove_file(&path).expect("a file");
            assert!(line.starts_with(start), "{line}");
        }
        let user = problem(Flags { user: Some("joe".into()), ..none() });
        assert!(user.starts_with("auth.user = \"joe\" needs auth.password_file"), "{user}");
        let large = problem(Flags {
            memory: Some("64MiB".into()),
            bucket: vec!["default,60MiB".into(), "a".into()],
            ..none()
        });
        assert!(large.starts_with("the buckets need 68MiB in all, and node.memory = 64MiB"), "{large}");
    }

    #[test]
    fn a_password_file_opens_other_addresses() {
        let flags =
            Flags { kv: Some("0.0.0.0:0".into()), password_file: Some("secret".into()), ..Flags::default() };
        assert!(load(None, &flags).is_ok());
    }
}
