//! The HTTP client of commands that ask a running node.

use crate::password::PASSWORD_BYTES_MAX;
use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use clap::Args;
use rustls::crypto::ring;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

/// How long a node may take to answer.
const TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// Which node to ask, and as whom.
#[derive(Debug, Clone, Args)]
pub struct NodeArgs {
    /// The node's HTTP port: HOST:PORT, http://HOST:PORT or https://HOST:PORT
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8091")]
    node: String,
    /// Name of the user to log in as
    #[arg(long, value_name = "NAME", requires = "password_file")]
    user: Option<String>,
    /// File whose first line is the user's password
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
    /// Certificate of the authority that signed the node's, in PEM; needed for https
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// A node, as these options reach it.
pub struct NodeClient {
    agent: Agent,
    base: String,
    authorization: Option<String>,
}

/// An answer of any status.
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: String,
}

impl NodeArgs {
    /// The client.
    pub fn client(&self) -> anyhow::Result<NodeClient> {
        let base = self.node.trim_end_matches('/');
        let base = if base.contains("://") { base.to_owned() } else { format!("http://{base}") };
        ensure!(
            base.starts_with("http://") || base.starts_with("https://"),
            "--node {}: allowed are HOST:PORT, http://HOST:PORT and https://HOST:PORT",
            self.node
        );
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(TIMEOUT));
        if base.starts_with("https://") {
            config = config.tls_config(self.tls()?);
        }
        let authorization = self.authorization()?;
        Ok(NodeClient { agent: config.build().new_agent(), base, authorization })
    }

    fn tls(&self) -> anyhow::Result<TlsConfig> {
        let Some(file) = &self.ca else {
            bail!("--node {}: --ca names the authority that signed the node's certificate", self.node)
        };
        let pem = fs::read(file).with_context(|| format!("--ca {}", file.display()))?;
        let mut certificates = Vec::new();
        for item in parse_pem(&pem) {
            if let PemItem::Certificate(certificate) =
                item.with_context(|| format!("--ca {}", file.display()))?
            {
                certificates.push(certificate);
            }
        }
        ensure!(!certificates.is_empty(), "--ca {}: there is no certificate in it", file.display());
        Ok(TlsConfig::builder()
            .root_certs(RootCerts::from(certificates))
            .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
            .build())
    }

    fn authorization(&self) -> anyhow::Result<Option<String>> {
        let (Some(user), Some(file)) = (&self.user, &self.password_file) else { return Ok(None) };
        let text = fs::read_to_string(file).with_context(|| format!("--password-file {}", file.display()))?;
        let password = text.lines().next().unwrap_or_default();
        ensure!(
            (1..=PASSWORD_BYTES_MAX).contains(&password.len()),
            "--password-file {}: allowed is a file whose first line is a password of 1 to {PASSWORD_BYTES_MAX} bytes",
            file.display()
        );
        let login = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        Ok(Some(format!("Basic {login}")))
    }
}

impl NodeClient {
    /// The address that is asked.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Asks for a path. An error only if there is no answer.
    pub fn get(&self, path: &str) -> anyhow::Result<Answer> {
        let url = format!("{}{path}", self.base);
        let mut request = self.agent.get(&url);
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let mut answer = request.call().with_context(|| url.clone())?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        Ok(Answer { status, body: body.with_context(|| url)? })
    }

    /// Asks for a JSON document.
    pub fn json(&self, path: &str) -> anyhow::Result<Value> {
        let answer = self.get(path)?;
        match answer.status {
            200 => serde_json::from_str(&answer.body).with_context(|| format!("{}{path}", self.base)),
            401 => bail!("{}{path}: a login is needed: --user and --password-file", self.base),
            status => bail!("{}{path}: {status}: {}", self.base, answer.body.trim()),
        }
    }
}
