//! The command line and its help.

use crate::bucket_command::{Backup, BucketCommand};
use crate::certificate::Certificate;
use crate::collection_command::{CollectionCommand, ScopeCommand};
use crate::config::reader::Flags;
use crate::journal_command::JournalCommand;
use crate::status::Status;
use crate::top::Top;
use crate::user_command::{GroupCommand, UserCommand};
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// A memory-first data server for memcached clients, Couchbase SDKs and Open vSwitch.
#[derive(Debug, Parser)]
#[command(name = "dormouse", version = version(), long_version = long_version(), about, long_about = None)]
#[command(arg_required_else_help = true, max_term_width = 110)]
#[command(after_help = "Examples:
  dormouse serve                            a node on loopback with the ephemeral bucket \"default\"
  dormouse config default > node.toml       every setting with its default
  dormouse serve --config node.toml
  dormouse status                           health, memory and buckets of the node on this machine
  dormouse top                              what it is doing, live
  dormouse bucket create orders --memory 4GiB --user ada
  dormouse lab                              the experiments that measure this server and its peers")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// The version and the allocator in use: the loader decides which allocator `malloc` really is.
fn version() -> &'static str {
    static VERSION: LazyLock<String> =
        LazyLock::new(|| format!("{} ({})", env!("CARGO_PKG_VERSION"), memory::backend::version()));
    &VERSION
}

/// The same with what was built, a line each.
fn long_version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let (commit, features) = (env!("DORMOUSE_COMMIT"), env!("DORMOUSE_FEATURES"));
        format!("{}\ncommit    {commit}\nfeatures  {features}", version())
    });
    &VERSION
}

/// Of the commands that change a running node.
const EXIT_CODES: &str = "Exit codes:
  0  it is done
  1  the node could not be asked, or has refused: its reason is printed
  2  a mistake in the command line

Changes need a login, and the rights that docs/users.md names. A node without users of its own
knows the user Administrator, whose password is \"password\", on its own machine. Passwords are
read from a file or asked for.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a node until SIGTERM or SIGINT.
    Serve(Box<Serve>),
    /// Show a running node on one page: health, memory, buckets.
    Status(Status),
    /// Show what a running node is doing, live, on the whole screen.
    Top(Top),
    /// List, show, create, edit, flush and delete the buckets of a running node.
    #[command(after_help = EXIT_CODES)]
    Bucket {
        #[command(subcommand)]
        command: BucketCommand,
    },
    /// List, create and delete the scopes of a bucket.
    #[command(after_help = EXIT_CODES)]
    Scope {
        #[command(subcommand)]
        command: ScopeCommand,
    },
    /// List, create, edit and delete the collections of a bucket.
    #[command(after_help = EXIT_CODES)]
    Collection {
        #[command(subcommand)]
        command: CollectionCommand,
    },
    /// Copy a persistent bucket of a running node while it is served.
    Backup(Backup),
    /// List, show, create, edit and delete the users of a running node, and change passwords.
    #[command(after_help = EXIT_CODES)]
    User {
        #[command(subcommand)]
        command: UserCommand,
    },
    /// List, show, create, edit and delete groups: sets of roles that users share.
    #[command(after_help = EXIT_CODES)]
    Group {
        #[command(subcommand)]
        command: GroupCommand,
    },
    /// Check a configuration file, or print one.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Verify, show, compact and restore the journals of persistent buckets, without a server.
    Journal {
        #[command(subcommand)]
        command: JournalCommand,
    },
    /// Make certificates to try TLS with, and an authority that signs them.
    Certificate(Certificate),
    /// Serve OVSDB databases with the command line of the stock ovsdb-server.
    #[command(name = ovsdb_server::NAME, disable_help_flag = true)]
    OvsdbServer {
        /// The stock server's options and database files; --help lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Print the completions of a shell.
    #[command(after_help = "Examples:
  dormouse completions bash > /etc/bash_completion.d/dormouse
  source <(dormouse completions zsh)
  dormouse completions fish > ~/.config/fish/completions/dormouse.fish")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write a man page for each command into a directory.
    #[command(hide = true)]
    ManPages {
        /// The directory
        directory: PathBuf,
    },
    /// Measure this server and its peers: runs the program dormouse-lab.
    #[command(disable_help_flag = true)]
    Lab {
        /// An experiment and its options; --help lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
}

/// What to do with configurations.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a file, with the flags of `dormouse serve` that go over it: print what would be served, or the first
    /// mistake in one line.
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Box<Check>),
    /// Print a commented TOML file with every key, its default, its unit and what is allowed.
    Default,
    /// Print the reference page (docs/configuration.md).
    #[command(hide = true)]
    Reference,
}

const CHECK_EXAMPLES: &str = "Examples:
  dormouse config check node.toml
  dormouse config check --config /etc/dormouse/dormouse.toml --data /var/lib/dormouse";

/// A file, and the flags that go over it.
#[derive(Debug, Args)]
pub struct Check {
    /// The TOML file, as --config
    #[arg(conflicts_with = "config", required_unless_present = "config")]
    file: Option<PathBuf>,
    #[command(flatten)]
    serve: Serve,
}

impl Check {
    /// The file, and the flags of the server that it is for.
    pub fn parts(&self) -> (Option<&Path>, Flags) {
        (self.file.as_deref().or(self.serve.config.as_deref()), self.serve.flags())
    }
}

/// Flags override the configuration file, which overrides the defaults.
#[derive(Debug, Args)]
#[command(after_help = "Sizes: 4096, 64KiB, 512MiB, 1g (powers of 1024), 64MB (of 1000).
Addresses: IP:PORT; localhost:PORT, in both families; :PORT, all addresses of the machine (those of localhost
while the development user is in force); unix:PATH[,MODE], a socket in the file system, mode 700 unless given;
port 0 takes any free port; \"none\" serves none. The addresses in use are printed, and written to
DIR/endpoints.json when --data is given.

Without a password file or users file the development user Administrator / password is in force, on loopback only,
unless an administrator was created over HTTP (then DIR/users.json has one). With --testcontainers the default addresses
are all of the machine's, and there is neither a development user nor a bucket.

Signals: SIGTERM and SIGINT drain and stop with exit code 0; SIGHUP reads the configuration again.

Examples:
  dormouse serve
  dormouse serve --memory 2GiB --bucket default,ephemeral,1GiB --bucket sessions
  dormouse serve --data /var/lib/dormouse --bucket default,persistent,4GiB
  dormouse serve --bucket default --bucket sessions \\
      --memcached 127.0.0.1:11211=default --memcached 127.0.0.1:11212=sessions
  dormouse serve --bucket cache,1GiB,fail_new_data
  dormouse serve --memcached unix:/run/dormouse/memcached.sock,770 --http localhost:8091
  dormouse serve --kv 0.0.0.0:11210 --user ada --password-file /etc/dormouse/password
  dormouse serve --testcontainers --data /var/lib/dormouse
  dormouse serve --tls-certificate node.pem --tls-key node.key --memcached tls:127.0.0.1:11212
  dormouse serve --memcached 127.0.0.1:0 --kv 127.0.0.1:0 --http 127.0.0.1:0 --data /tmp/node")]
pub struct Serve {
    /// TOML configuration file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory for what the node writes: endpoints.json, persistent buckets; created if missing [default: none]
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// memcached port and its bucket; the prefix "tls:" makes it speak TLS; may be repeated [default: 127.0.0.1:11211,
    /// and the only bucket named or "default"]
    #[arg(long, value_name = "[tls:]ADDR[=BUCKET]")]
    memcached: Vec<String>,
    /// Couchbase KV port [default: 127.0.0.1:11210]
    #[arg(long, value_name = "ADDR")]
    kv: Option<String>,
    /// HTTP port [default: 127.0.0.1:8091]
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// Couchbase KV port with TLS, if there is a certificate [default: 127.0.0.1:11207]
    #[arg(long, value_name = "ADDR")]
    kv_tls_address: Option<String>,
    /// HTTPS port, if there is a certificate [default: 127.0.0.1:18091]
    #[arg(long, value_name = "ADDR")]
    http_tls_address: Option<String>,
    /// Certificate for TLS, in PEM [default: none, and no TLS]
    #[arg(long, value_name = "FILE")]
    tls_certificate: Option<String>,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE")]
    tls_key: Option<String>,
    /// Names by which HTTP clients may address the node, besides IP addresses and localhost; "*": all [default: none]
    #[arg(long, value_name = "NAMES")]
    http_host_names: Option<String>,
    /// Threads that serve the data ports; 0: one per core, at most 8 [default: 0]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    workers: Option<String>,
    /// Resident memory for all buckets together [default: 60 % of the machine's]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    memory: Option<String>,
    /// A bucket; may be repeated. Those of the data directory exist without being named [default:
    /// default,ephemeral,auto, unless the data directory holds a bucket "default"]
    #[arg(long, value_name = crate::config::BUCKET_FLAG)]
    bucket: Vec<String>,
    /// Name of the user
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// File whose first line is the user's password
    #[arg(long, value_name = "FILE")]
    password_file: Option<String>,
    /// Least severe level to log: error, warn, info, debug, trace [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Stand in for Couchbase Server in a test container: listen on all addresses, let everybody manage the node until
    /// an administrator is set, and answer what the modules of testcontainers ask of other services. Not for production
    #[arg(long)]
    testcontainers: bool,
}

impl Serve {
    /// Converts the flags for the configuration reader.
    pub fn flags(&self) -> Flags {
        Flags {
            data: self.data.clone(),
            memcached: self.memcached.clone(),
            kv: self.kv.clone(),
            http: self.http.clone(),
            http_host_names: self.http_host_names.clone(),
            kv_tls: self.kv_tls_address.clone(),
            http_tls: self.http_tls_address.clone(),
            tls_certificate: self.tls_certificate.clone(),
            tls_key: self.tls_key.clone(),
            workers: self.workers.clone(),
            memory: self.memory.clone(),
            bucket: self.bucket.clone(),
            user: self.user.clone(),
            password_file: self.password_file.clone(),
            testcontainers: self.testcontainers,
            log_level: self.log_level.clone(),
        }
    }
}

/// The completions of a shell.
pub fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "dormouse", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Writes a man page for each command that has no page of its own.
pub fn man_pages(directory: &Path) -> io::Result<()> {
    clap_mangen::generate_to(Cli::command(), directory)
}

/// A command-line error in one line: clap's message and its tip, without usage and decoration.
pub fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let kept: Vec<&str> = lines
        .take_while(|line| !line.starts_with("Usage:"))
        .filter(|line| !line.starts_with("For more information"))
        .map(|line| line.trim_start_matches("error: "))
        .collect();
    format!("{} (see --help)", kept.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn mistakes_are_one_line_with_the_tip() {
        let error = Cli::try_parse_from(["dormouse", "serve", "--memcache", "x"]).expect_err("no such flag");
        let line = one_line(&error);
        assert!(!line.contains('\n'));
        assert!(line.contains("'--memcache'") && line.contains("--memcached"), "{line}");
    }
}
