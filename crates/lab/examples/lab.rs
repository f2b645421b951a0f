//! The experiments as a program of their own: `cargo run --example lab -- lab throughput --without-dormouse`.

use clap::{Parser, Subcommand};

// Of the experiments, `flush` counts what the allocator hands out.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

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
