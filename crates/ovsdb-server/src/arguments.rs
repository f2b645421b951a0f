//! Interprets the command line.

use super::options::{CommandLine, Treatment};
use super::vlog::Vlog;
use super::{NAME, directories};
use net::ovsdb::TlsOptions;
use std::path::PathBuf;

/// What the command line asks for.
pub enum Invocation {
    Help,
    Version,
    Serve(Box<Arguments>),
}

/// How to serve.
#[derive(Debug, Clone, Default)]
pub struct Arguments {
    /// Database files.
    pub files: Vec<String>,
    pub remotes: Vec<String>,
    /// A shell command; the server exits when it does.
    pub run: Option<String>,
    /// The control socket; none with `--unixctl=none`.
    pub control: Option<PathBuf>,
    pub detach: bool,
    pub no_chdir: bool,
    pub monitor: bool,
    pub pidfile: Option<PathBuf>,
    pub overwrite_pidfile: bool,
    pub user: Option<String>,
    pub log_file: Option<PathBuf>,
    /// `HOST:PORT` of a log collector.
    pub syslog_target: Option<String>,
    pub limits: ovsdb::server::Limits,
    pub messages: wire::jsonrpc::Limits,
    pub tls: TlsOptions,
    /// Most bytes held for all clients.
    pub client_bytes: Option<usize>,
    /// Options that are accepted without effect, and why.
    pub without_effect: Vec<(&'static str, &'static str)>,
}

impl Arguments {
    /// Interprets a command line. Log levels and patterns take effect at once, and so does the umask.
    pub fn understand(line: CommandLine, log: &Vlog) -> Result<Invocation, String> {
        let run_directory = directories::run();
        let mut this = Self {
            control: Some(run_directory.join(format!("{NAME}.{}.ctl", std::process::id()))),
            ..Self::default()
        };
        let mut no_databases = false;
        for given in line.options {
            match given.treatment {
                Treatment::Served => {}
                Treatment::Accepted(why) => {
                    this.without_effect.push((given.name, why));
                    continue;
                }
                Treatment::Refused(why) => return Err(format!("--{}: {why}", given.name)),
            }
            let value = given.value;
            let text = value.clone().unwrap_or_default();
            match given.name {
                "help" => return Ok(Invocation::Help),
                "version" => return Ok(Invocation::Version),
                "remote" => this.remotes.push(text),
                "run" => this.run = Some(text),
                "unixctl" => this.control = (text != "none").then(|| run_directory.join(text)),
                "no-dbs" => no_databases = true,
                "detach" => this.detach = true,
                "no-chdir" => this.no_chdir = true,
                "monitor" => this.monitor = true,
                "pidfile" => {
                    let name = value.unwrap_or_else(|| format!("{NAME}.pid"));
                    this.pidfile = Some(run_directory.join(name));
                }
                "overwrite-pidfile" => this.overwrite_pidfile = true,
                "user" => this.user = Some(text),
                "limit-message-bytes" => this.messages.message_bytes = number(given.name, &text)?,
                "limit-depth" => this.messages.depth = number(given.name, &text)?.min(this.messages.depth),
                "limit-sessions" => this.limits.sessions = number(given.name, &text)?,
                "limit-backlog-bytes" => this.limits.backlog_bytes = number(given.name, &text)?,
                "syslog-target" => this.syslog_target = Some(text),
                "limit-client-bytes" => {
                    let bytes = number(given.name, &text)?;
                    this.client_bytes = Some(bytes);
                    this.limits.reply_bytes = bytes;
                }
                "private-key" => this.tls.private_key = value,
                "certificate" => this.tls.certificate = value,
                "ca-cert" => (this.tls.ca_cert, this.tls.bootstrap) = (value, false),
                "bootstrap-ca-cert" => (this.tls.ca_cert, this.tls.bootstrap) = (value, true),
                "peer-ca-cert" => this.tls.peer_ca_cert = value,
                "ssl-protocols" => this.tls.protocols = value,
                "ssl-ciphers" => this.tls.ciphers = value,
                "ssl-ciphersuites" => this.tls.ciphersuites = value,
                "ssl-server-name" => this.tls.server_name = value,
                "umask" => set_umask(&text)?,
                "verbose" => {
                    log.set(&text).map_err(|error| format!("processing \"{text}\": {error}"))?;
                }
                "log-file" => {
                    let default = || directories::log().join(format!("{NAME}.log"));
                    this.log_file = Some(value.map_or_else(default, PathBuf::from));
                }
                other => return Err(format!("--{other} is not supported by this server")),
            }
        }
        for file in line.operands {
            // COMPAT: naming a file twice is not an error.
            if !this.files.contains(&file) {
                this.files.push(file);
            }
        }
        if this.files.is_empty() && !no_databases {
            this.files.push(directories::database().join("conf.db").display().to_string());
        }
        Ok(Invocation::Serve(Box::new(this)))
    }
}

fn number(name: &str, text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("--{name}: {text}: not a positive number"))
}

fn set_umask(text: &str) -> Result<(), String> {
    let bits = u32::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o777);
    let bits = bits.ok_or_else(|| format!("--umask: {text}: not an octal number up to 777"))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(bits));
    Ok(())
}

/// The text of `--help`.
pub fn help() -> String {
    let (run, log) = (directories::run(), directories::log());
    let (run, log) = (run.display(), log.display());
    let database = directories::database();
    let database = database.join("conf.db");
    let database = database.display();
    format!(
        "{NAME}: Open vSwitch database server (Dormouse)
usage: {NAME} [OPTIONS] [DATABASE...]
where each DATABASE is a database file in ovsdb format.
The default DATABASE, if none is given, is
{database}.

JSON-RPC options (may be specified any number of times):
  --remote=REMOTE         connect or listen to REMOTE

Active JSON-RPC connection methods:
  tcp:HOST:PORT           PORT at remote HOST
  ssl:HOST:PORT           SSL PORT at remote HOST
  unix:FILE               Unix domain socket named FILE
Passive JSON-RPC connection methods:
  ptcp:PORT[:HOST]        listen to TCP PORT on HOST
  pssl:PORT[:HOST]        listen for SSL on PORT on HOST
  punix:FILE              listen on Unix domain socket FILE
  pfd:NUMBER              use the listening socket that is open as NUMBER
  db:DB,TABLE,COLUMN      the remotes that a database names

Daemon options:
  --detach                run in background as daemon
  --monitor               creates a process to monitor this daemon
  --user=username[:group] changes the effective daemon user:group
  --umask=MODE            sets the file mode creation mask
  --no-chdir              do not chdir to '/'
  --pidfile[=FILE]        create pidfile (default: {run}/{NAME}.pid)
  --overwrite-pidfile     with --pidfile, start even if already running

Logging options:
  -vSPEC, --verbose=SPEC  set logging levels
  -v, --verbose           set maximum verbosity level
  --log-file[=FILE]       enable logging to specified FILE
                          (default: {log}/{NAME}.log)
  --syslog-target=HOST:PORT  also send messages for the system log to
                          HOST:PORT via UDP

SSL options (each value may be db:DB,TABLE,COLUMN, its place in a database):
  -p, --private-key=FILE  file with private key
  -c, --certificate=FILE  file with certificate for private key
  -C, --ca-cert=FILE      file with peer CA certificate; none trusts every peer
  --bootstrap-ca-cert=FILE  file with peer CA certificate to read or create
  --peer-ca-cert=FILE     file with peer CA certificate to send
  --ssl-protocols=PROTOS  list of SSL protocols to enable: TLSv1.2, TLSv1.3
  --ssl-ciphers=CIPHERS   list of SSL ciphers to enable
  --ssl-ciphersuites=SUITES  list of SSL ciphersuites to enable
  --ssl-server-name=NAME  server name for TLS Server Name Indication (SNI)

Other options:
  --run COMMAND           run COMMAND as subprocess then exit
  --unixctl=SOCKET        override default control socket name
  --no-dbs                do not open a default database
  -h, --help              display this help message
  -V, --version           display version information

Limits (specific to this server):
  --limit-message-bytes=N  longest message
  --limit-depth=N          deepest nesting in a message, at most 1000
  --limit-sessions=N       concurrent clients
  --limit-backlog-bytes=N  unread output at which a client's monitors fall behind
  --limit-client-bytes=N   most memory for requests and replies of all clients

The options --active and --disable-file-column-diff of the stock server are
accepted with a line in the log; those for replication, replay files and
configuration files are refused.
"
    )
}
