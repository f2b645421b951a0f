//! `dormouse certificate`: creates a private certificate authority and certificates signed by it, to try TLS with.
//!
//! ```text
//!   DIR/ca.pem, ca.key       created once, then reused
//!   DIR/NAME.pem, NAME.key   a node's or a client's certificate; never overwritten
//! ```

use crate::config::key::is_host_name;
use crate::text_file;
use anyhow::{Context as _, Result, bail};
use clap::Args;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

/// How long the authority is valid, in days.
const AUTHORITY_DAYS: i64 = 3650;
/// Certificates are valid from this long ago: other machines' clocks may be behind.
const EARLIER: Duration = Duration::hours(1);
/// Maximum size of the authority's files.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The certificate to create.
#[derive(Debug, Args)]
#[command(
    after_help = "The authority's certificate is ca.pem: clients must trust it. Its key, ca.key, signs further
certificates; whoever has it can impersonate anybody. For anything but a trial, use certificates of an authority that
others already trust.

Examples:
  dormouse certificate
  dormouse serve --tls-certificate node.pem --tls-key node.key --memcached tls:127.0.0.1:11212
  curl --cacert ca.pem https://localhost:18091/health

  dormouse certificate --directory /etc/dormouse --host db1.example --host 10.0.0.5
  dormouse certificate --client ada         a certificate for a client: ada.pem, ada.key"
)]
pub struct Certificate {
    /// Where the files are written; created if missing
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// A name or an IP address under which clients reach the node; may be repeated [default: localhost, 127.0.0.1, ::1
    /// and the name of this machine]
    #[arg(long, value_name = "HOST", conflicts_with = "client")]
    host: Vec<String>,
    /// Make a client's certificate for this user instead of a node's
    #[arg(long, value_name = "NAME")]
    client: Option<String>,
    /// Days for which it is valid
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u16).range(1..=3650))]
    days: u16,
}

/// Creates the files and prints how to use them.
pub fn run(arguments: &Certificate) -> Result<()> {
    let directory = arguments.directory.strip_prefix(".").unwrap_or(&arguments.directory);
    fs::create_dir_all(&arguments.directory)
        .with_context(|| format!("--directory {}", arguments.directory.display()))?;
    if let Some(host) =
        arguments.host.iter().find(|host| host.parse::<IpAddr>().is_err() && !is_host_name(host))
    {
        bail!("--host {host:?}: not allowed; allowed: the name of a host, or an IP address");
    }
    let name = arguments.client.as_deref().unwrap_or("node");
    if name.is_empty() || name == "ca" || name.starts_with('.') || name.contains('/') {
        bail!("--client {name:?}: not allowed; allowed: the name of a file, but for \"ca\"");
    }
    let (file, key_file) = (directory.join(format!("{name}.pem")), directory.join(format!("{name}.key")));
    for file in [&file, &key_file] {
        if file.exists() {
            bail!("{} exists; remove it, or choose another --directory", file.display());
        }
    }
    let authority = authority(directory)?;
    let key = KeyPair::generate()?;
    let certificate = params(arguments, name)?.signed_by(&key, &authority)?;
    write(&key_file, &key.serialize_pem(), 0o600)?;
    write(&file, &certificate.pem(), 0o644)?;
    let ca = directory.join("ca.pem");
    let (file, key_file, ca) = (file.display(), key_file.display(), ca.display());
    let mut text = format!("certificate   {file}\nkey           {key_file}\nsigned by     {ca}\n\n");
    text += &match arguments.client {
        None => format!(
            "dormouse serve --tls-certificate {file} --tls-key {key_file}\ncurl --cacert {ca} \
            https://localhost:18091/health\n"
        ),
        Some(_) => {
            format!("curl --cacert {ca} --cert {file} --key {key_file} https://localhost:18091/health\n")
        }
    };
    crate::print(&text)
}

/// The authority in the directory, created if there is none.
fn authority(directory: &Path) -> Result<Issuer<'static, KeyPair>> {
    let (file, key_file) = (directory.join("ca.pem"), directory.join("ca.key"));
    match (file.exists(), key_file.exists()) {
        (true, true) => {
            let read = |file: &Path| {
                text_file::read(file, FILE_BYTES_MAX).with_context(|| file.display().to_string())
            };
            let key = KeyPair::from_pem(&read(&key_file)?)
                .with_context(|| format!("{}: not a private key", key_file.display()))?;
            return Issuer::from_ca_cert_pem(&read(&file)?, key)
                .with_context(|| format!("{}: not a certificate", file.display()));
        }
        (false, false) => {}
        (is_there, _) => {
            let (there, missing) = if is_there { (&file, &key_file) } else { (&key_file, &file) };
            bail!("{}: it is there, but {} is missing", there.display(), missing.display());
        }
    }
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Dormouse's authority for trials");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    be_valid(&mut params, AUTHORITY_DAYS);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    write(&key_file, &key.serialize_pem(), 0o600)?;
    write(&file, &certificate.pem(), 0o644)?;
    Ok(Issuer::new(params, key))
}

fn params(arguments: &Certificate, name: &str) -> Result<CertificateParams> {
    let mut hosts = arguments.host.clone();
    if arguments.client.is_none() && hosts.is_empty() {
        hosts = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
        hosts.extend(rustix::system::uname().nodename().to_str().map(str::to_owned));
    }
    let common_name = hosts.first().cloned().unwrap_or_else(|| name.to_owned());
    let mut params =
        CertificateParams::new(hosts).context("--host: not allowed; allowed: names and IP addresses")?;
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // A node may also be a client: of the OVSDB servers that it connects to.
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if arguments.client.is_none() {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    be_valid(&mut params, i64::from(arguments.days));
    Ok(params)
}

fn be_valid(params: &mut CertificateParams, days: i64) {
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now - EARLIER, now + Duration::days(days));
}

fn write(file: &Path, text: &str, mode: u32) -> Result<()> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(file);
    opened
        .and_then(|mut opened| opened.write_all(text.as_bytes()))
        .with_context(|| file.display().to_string())
}
