//! The HTTP client of commands that ask a running node, or change something there.
//!
//! A node validates what it is sent. What it refuses is shown in its own words; only the names of form fields are
//! replaced by the options that they came from.

use crate::config::Problem;
use crate::json_document::pretty;
use crate::password;
use crate::terminal::{self, shown};
use anyhow::{Context as _, anyhow, bail, ensure};
use base64::Engine as _;
use clap::Args;
use kv::users::{DEVELOPMENT_PASSWORD, DEVELOPMENT_USER};
use rustls::crypto::ring;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use ureq::http::{Method, Request};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, AsSendBody};

/// How long a node may take to answer a question.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a change may take: the answer comes when it is on disk, and a backup copies all of a bucket.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(6 * 3600);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 256 << 20;
/// Longest message of a node that is shown, characters.
const WORDS_MAX: usize = 2000;

/// Which node to ask, and as whom.
#[derive(Debug, Clone, Args)]
pub struct NodeArgs {
    /// The node's HTTP port: HOST:PORT, http://HOST:PORT or https://HOST:PORT
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8091", help_heading = "Node")]
    node: String,
    /// Name of the user to log in as; without --password-file its password is asked for
    #[arg(long, value_name = "NAME", help_heading = "Node")]
    user: Option<String>,
    /// File whose first line is the user's password
    #[arg(long, value_name = "FILE", requires = "user", help_heading = "Node")]
    password_file: Option<PathBuf>,
    /// Certificate of the authority that signed the node's, in PEM; needed for https
    #[arg(long, value_name = "FILE", help_heading = "Node")]
    ca: Option<PathBuf>,
}

/// A node, as these options reach it.
pub struct NodeClient {
    agent: Agent,
    base: String,
    user: Option<String>,
    authorization: Option<String>,
    read_timeout: Duration,
}

/// An answer of any status.
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: String,
}

/// Form fields, and the options that they come from.
pub type Fields<'a> = &'a [(&'a str, &'a str)];

/// A question to a node, whose answer is printed.
#[derive(Debug, Args)]
pub struct Question {
    /// Print JSON: the node's answer
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodeArgs,
}

/// A change that cannot be undone.
#[derive(Debug, Args)]
pub struct Destruction {
    /// Do not ask for the name
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    node: NodeArgs,
}

impl Question {
    /// Asks for a path and prints the answer, as `text` makes it.
    pub fn print(&self, path: &str, text: fn(&Value) -> String) -> anyhow::Result<()> {
        let document = self.node.client()?.json(path)?;
        crate::print(&if self.json { pretty(&document)? } else { text(&document) })
    }
}

impl Destruction {
    /// The client, if somebody confirms: `what` happens to what has this name, at the node, and `with` it.
    pub fn confirmed(&self, what: &str, with: &str, name: &str) -> anyhow::Result<NodeClient> {
        let client = self.node.client()?;
        terminal::confirm(&format!("{what} at {}{with}", client.base()), name, self.yes)?;
        Ok(client)
    }
}

impl NodeArgs {
    /// The client.
    pub fn client(&self) -> anyhow::Result<NodeClient> {
        let base = self.base()?;
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(CONNECT_TIMEOUT));
        if base.starts_with("https://") {
            config = config.tls_config(self.tls()?);
        } else if self.ca.is_some() {
            return Err(Problem::new(format!("--ca is for https, and --node is {base}")).into());
        }
        let agent = config.build().new_agent();
        let authorization = self.authorization()?;
        Ok(NodeClient { agent, base, user: self.user.clone(), authorization, read_timeout: READ_TIMEOUT })
    }

    /// Scheme, host and port. A password in it would be shown by `ps` and in errors.
    fn base(&self) -> Result<String, Problem> {
        let given = self.node.strip_suffix('/').unwrap_or(&self.node);
        let base = if given.contains("://") { given.to_owned() } else { format!("http://{given}") };
        let address = base.strip_prefix("http://").or_else(|| base.strip_prefix("https://"));
        if address.is_none_or(|address| address.is_empty() || address.contains(['/', '?', '#', '@'])) {
            return Err(Problem::new(
                "--node: allowed are HOST:PORT, http://HOST:PORT and https://HOST:PORT",
            ));
        }
        Ok(base)
    }

    fn tls(&self) -> anyhow::Result<TlsConfig> {
        let Some(file) = &self.ca else {
            let reason =
                format!("--node {}: --ca names the authority that signed the node's certificate", self.node);
            return Err(Problem::new(reason).into());
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
        let Some(user) = &self.user else { return Ok(None) };
        if user.contains(':') {
            return Err(Problem::new("--user: a name has no colon").into());
        }
        let password = match &self.password_file {
            Some(file) => password_in("--password-file", file)?,
            None => terminal::ask_password(&format!("Password of {user}"), "--password-file")?,
        };
        let login = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        Ok(Some(format!("Basic {login}")))
    }
}

/// The first line of a file, a password.
pub fn password_in(option: &str, file: &Path) -> anyhow::Result<String> {
    password::first_line(file).map_err(|what| anyhow!("{option} {}: {what}", file.display()))
}

impl NodeClient {
    /// The address that is asked.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Returns true if it is asked over TLS.
    pub fn is_tls(&self) -> bool {
        self.base.starts_with("https://")
    }

    /// The same login at another node.
    pub fn at(&self, host: &str, port: u64) -> Self {
        let scheme = if self.is_tls() { "https" } else { "http" };
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        Self {
            agent: self.agent.clone(),
            base: format!("{scheme}://{host}:{port}"),
            user: self.user.clone(),
            authorization: self.authorization.clone(),
            read_timeout: self.read_timeout,
        }
    }

    /// The user whose login is sent.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Waits only so long for answers to questions.
    pub fn with_read_timeout(mut self, timeout: Duration) -> Self {
        self.read_timeout = timeout;
        self
    }

    /// Asks for a path. An error only if there is no answer.
    pub fn get(&self, path: &str) -> anyhow::Result<Answer> {
        self.ask(Request::get(self.url(path)).body(()), self.read_timeout)
    }

    /// Asks how the node is: the status, and what is said with it.
    pub fn health(&self) -> anyhow::Result<(u16, Value)> {
        const PATH: &str = "/health/ready";
        let answer = self.get(PATH)?;
        let answer = if answer.status == 401 { self.accepted(PATH, answer, &[])? } else { answer };
        let document = serde_json::from_str(&answer.body)
            .with_context(|| format!("{}: no JSON: is this a Dormouse?", self.url(PATH)))?;
        Ok((answer.status, document))
    }

    /// Asks for a JSON document.
    pub fn json(&self, path: &str) -> anyhow::Result<Value> {
        let answer = self.accepted(path, self.get(path)?, &[])?;
        serde_json::from_str(&answer.body).with_context(|| format!("{}: no JSON", self.url(path)))
    }

    /// Sends a form. Anything but success is an error, in the node's words.
    pub fn send(
        &self,
        method: Method,
        path: &str,
        form: &[(&str, String)],
        fields: Fields<'_>,
    ) -> anyhow::Result<Answer> {
        let request = Request::builder().method(method).uri(self.url(path));
        let request = request.header("Content-Type", "application/x-www-form-urlencoded");
        let pairs = form.iter().map(|(field, value)| format!("{}={}", encoded(field), encoded(value)));
        let answer = self.ask(request.body(pairs.collect::<Vec<_>>().join("&")), CHANGE_TIMEOUT)?;
        self.accepted(path, answer, fields)
    }

    /// Deletes what is at a path.
    pub fn delete(&self, path: &str) -> anyhow::Result<Answer> {
        let answer = self.ask(Request::delete(self.url(path)).body(()), CHANGE_TIMEOUT)?;
        self.accepted(path, answer, &[])
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    fn ask(
        &self,
        request: Result<Request<impl AsSendBody>, ureq::http::Error>,
        timeout: Duration,
    ) -> anyhow::Result<Answer> {
        let mut request = request.with_context(|| format!("--node {}", self.base))?;
        let url = request.uri().to_string();
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert("Authorization", authorization.parse().context("--user")?);
        }
        let request = self.agent.configure_request(request).timeout_global(Some(timeout)).build();
        let mut answer = self.agent.run(request).with_context(|| url.clone())?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        Ok(Answer { status, body: body.with_context(|| url)? })
    }

    /// The answer if it is a success.
    fn accepted(&self, path: &str, answer: Answer, fields: Fields<'_>) -> anyhow::Result<Answer> {
        match (answer.status, &self.user) {
            (200..=299, _) => Ok(answer),
            (401, None) => bail!(
                "{}: a login is needed: --user and --password-file (a node without users of its own knows \
                 {DEVELOPMENT_USER}, whose password is {DEVELOPMENT_PASSWORD:?}, on its own machine)",
                self.url(path)
            ),
            (401, Some(user)) => bail!(
                "{}: the login of {:?} was refused: --user and --password-file must be those of a user of the node",
                self.url(path),
                shown(user)
            ),
            _ => Err(anyhow!("{}: {}", self.url(path), answer.words(fields))),
        }
    }
}

impl Answer {
    /// What a node says when it refuses: `{"errors": {field: reason}}`, `{"message", "permissions"}`, `{"_": reason}`,
    /// a string, or plain text.
    fn words(&self, fields: Fields<'_>) -> String {
        let said = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let option =
            |field: &str| fields.iter().find(|(known, _)| *known == field).map(|(_, option)| *option);
        let reason = |(field, reason): (&String, &Value)| match (field.as_str(), option(field)) {
            ("_", _) => said(reason),
            (_, Some(option)) => format!("{option}: {}", said(reason)),
            (field, None) => format!("{field}: {}", said(reason)),
        };
        let text = match serde_json::from_str(&self.body) {
            Ok(Value::String(text)) => text,
            Ok(Value::Object(document)) => {
                let message = document.get("message").map(said);
                let errors = document.get("errors").and_then(Value::as_object).unwrap_or(&document);
                let permissions = document.get("permissions").and_then(Value::as_array);
                match (message, permissions) {
                    (Some(message), Some(permissions)) => {
                        format!("{message}: {}", permissions.iter().map(said).collect::<Vec<_>>().join(", "))
                    }
                    (Some(message), None) => message,
                    _ => errors.iter().map(reason).collect::<Vec<_>>().join("; "),
                }
            }
            _ => self.body.trim().to_owned(),
        };
        let text = if text.is_empty() { format!("status {}", self.status) } else { text };
        shown(&text.chars().take(WORDS_MAX).collect::<String>())
    }
}

/// The form of a change, which changes something.
pub fn not_empty<T>(form: Vec<T>) -> Result<Vec<T>, Problem> {
    if form.is_empty() {
        Err(Problem::new("there is nothing to change: give an option (see --help)"))
    } else {
        Ok(form)
    }
}

/// A name as a segment of a path, or a part of a form: all but letters, digits, `-`, `_` and `~` is escaped.
pub fn encoded(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_segment_of_a_path() {
        assert_eq!(encoded("a/..?b=c&é %"), "a%2F%2E%2E%3Fb%3Dc%26%C3%A9%20%25");
    }

    #[test]
    fn refusals_are_told_in_the_nodes_words() {
        let words =
            |body: &str| Answer { status: 400, body: body.to_owned() }.words(&[("ramQuota", "--memory")]);
        for (body, expected) in [
            (
                r#"{"errors":{"ramQuota":"too small","name":"bad"},"summaries":{}}"#,
                "name: bad; --memory: too small",
            ),
            (r#"{"errors":{"_":"no"}}"#, "no"),
            (r#"{"_":"Flush is disabled"}"#, "Flush is disabled"),
            (r#"{"message":"Forbidden","permissions":["a!b","c"]}"#, "Forbidden: a!b, c"),
            (r#""Unknown user.""#, "Unknown user."),
            ("not \u{1b}[2J found\r\n", "not \u{fffd}[2J found"),
            ("", "status 400"),
            ("[1]", "[1]"),
        ] {
            assert_eq!(words(body), expected);
        }
    }
}
