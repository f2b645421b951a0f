//! The `dormouse` binary: command line, configuration, wiring. Everything else is in the crates it uses.
#![forbid(unsafe_code)]

mod allocator;
mod banner;
mod bucket_command;
mod bucket_options;
mod bucket_store;
mod budgets;
mod certificate;
mod cli;
mod collection_command;
mod config;
mod control;
mod control_group;
mod data_dir;
mod database_answers;
mod databases;
mod journal_command;
mod json_document;
mod lab;
mod listen;
mod log_tail;
mod logging;
mod machine;
mod node_client;
mod node_store;
mod password;
mod promotion;
mod quantity;
mod reload;
mod serve;
mod signals;
mod status;
mod terminal;
mod text_file;
mod top;
mod user_command;

use anyhow::Context as _;
use clap::Parser;
use clap::error::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: memory::backend::GlobalAllocator = memory::backend::GLOBAL_ALLOCATOR;

/// Exit code for a mistake in the command line or the configuration.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    // Called by the stock server's name, or with it as the subcommand.
    let mut arguments = std::env::args_os().peekable();
    let is_ovsdb_server = arguments.next().is_some_and(|name| ovsdb_server::is_name(&name));
    if is_ovsdb_server || arguments.next_if(|command| command == ovsdb_server::NAME).is_some() {
        return ovsdb_server::run(arguments);
    }
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(message) => return without_command(&message),
    };
    match cli.command {
        cli::Command::Serve(arguments) => outcome(serve::run(&arguments)),
        cli::Command::Config { command } => outcome(config_command(&command)),
        cli::Command::Certificate(arguments) => outcome(certificate::run(&arguments)),
        cli::Command::Journal { command } => outcome(journal_command::run(&command)),
        cli::Command::Status(arguments) => {
            status::run(&arguments).unwrap_or_else(|error| outcome(Err(error)))
        }
        cli::Command::Completions { shell } => outcome(print(&cli::completions(shell))),
        cli::Command::ManPages { directory } => {
            outcome(cli::man_pages(&directory).with_context(|| directory.display().to_string()))
        }
        cli::Command::Top(arguments) => outcome(top::run(&arguments)),
        cli::Command::Bucket { command } => outcome(bucket_command::run(&command)),
        cli::Command::Scope { command } => outcome(collection_command::run_scope(&command)),
        cli::Command::Collection { command } => outcome(collection_command::run_collection(&command)),
        cli::Command::Backup(arguments) => outcome(bucket_command::backup(&arguments)),
        cli::Command::User { command } => outcome(user_command::run(&command)),
        cli::Command::Group { command } => outcome(user_command::run_group(&command)),
        cli::Command::OvsdbServer { .. } => ExitCode::from(EXIT_USAGE),
        cli::Command::Lab { arguments } => outcome(lab::run(&arguments)),
    }
}

/// Help and version go to standard output; a mistake is one line on standard error.
fn without_command(message: &clap::Error) -> ExitCode {
    let is_help = message.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if message.use_stderr() && !is_help {
        print_error(cli::one_line(message));
    } else {
        let _ = message.print();
    }
    if message.use_stderr() { ExitCode::from(EXIT_USAGE) } else { ExitCode::SUCCESS }
}

fn config_command(command: &cli::ConfigCommand) -> anyhow::Result<()> {
    match command {
        cli::ConfigCommand::Default => print(&config::page::default_toml()),
        cli::ConfigCommand::Reference => print(&config::page::reference_markdown()),
        cli::ConfigCommand::Check(check) => {
            let (file, flags) = check.parts();
            let config = config::reader::load(file, &flags)?;
            if let Some(warning) = budgets::excess(config.node.memory_bytes, machine::memory_bytes()) {
                print_error(format_args!("warning: {warning}"));
            }
            let file = file.unwrap_or_else(|| Path::new("")).display();
            print(&format!("{file}: {}\n", config::page::summary(&config)))
        }
    }
}

fn outcome(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(format_args!("{error:#}"));
            if error.is::<config::Problem>() { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
        }
    }
}

/// Prints one line on standard error; write errors are ignored.
fn print_error(what: impl std::fmt::Display) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "dormouse: {what}");
}

/// Prints text on standard output; a closed pipe is not an error.
fn print(text: &str) -> anyhow::Result<()> {
    use std::io::{ErrorKind, Write as _};
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(()),
    }
}
