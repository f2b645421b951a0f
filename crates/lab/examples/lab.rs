//! The experiments as a program of their own: `cargo run --example lab -- lab throughput --without-dormouse`.

use clap::{Parser, Subcommand};

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs an experiment
    Lab(lab::LabArgs),
}

fn main() -> anyhow::Result<()> {
    let Command::Lab(arguments) = Cli::parse().command;
    lab::run(arguments)
}
