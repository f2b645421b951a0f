//! `dormouse-lab`: the experiments behind every claim about speed, memory and idle cost, run on Dormouse and its peers.
//!
//! ```text
//! experiment ──starts──> subject (child process on one core, one worker)
//!     │                     ^  requests, every answer checked
//!     ├──drives──> driver ──┘  (this process, on another core)
//!     ├──reads───> process (CPU, threads, memory of the child from /proc)
//!     └──fills───> report  (settings, tables, goals met or missed, JSON)
//! ```
//!
//! Servers are reached over their sockets only, so Dormouse and its peers are measured alike. Subjects take turns
//! within a run, several starts each, because two starts of one configuration differ by several per cent. One
//! experiment, `flush`, measures the engine itself in a separate process, because it counts what a flush allocates.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod allocations;
mod allocator;
mod certificate;
mod child;
mod cleanup;
mod client;
mod debian;
mod documents;
mod driver;
mod experiment;
mod floor;
mod look_aside;
mod machine;
mod open_loop;
#[allow(unsafe_code)]
mod os;
mod ovsdb;
mod paper;
mod process;
mod programs;
mod protocol;
mod random;
mod reference;
mod report;
mod statistics;
mod storage;
mod strace;
mod study;
mod subject;
mod trace;
mod unsent;

use anyhow::{Context as _, Result};
use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

// The `flush` experiment counts this allocator's allocations.
#[global_allocator]
static ALLOCATOR: memory::backend::GlobalAllocator = memory::backend::GLOBAL_ALLOCATOR;

/// Measure Dormouse and its peers.
#[derive(Parser, Debug)]
#[command(name = "dormouse-lab", version, max_term_width = 110, arg_required_else_help = true)]
#[command(after_help = "Examples:
  dormouse lab throughput --quick
  dormouse lab throughput --dormouse target/release/dormouse --peers memcached
  dormouse lab ovsdb --quick --cases update1,queue --json figures.json")]
struct Cli {
    /// Show the goals of this project's own server, and whether they are met
    #[arg(long, global = true)]
    goals: bool,
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand, Debug)]
enum Experiment {
    /// Runs an experiment that a file describes: any server, under any allocator, with any load
    Run(study::RunArgs),
    /// Makes the reports of `run` again from its runs
    Report(study::ReportArgs),
    /// Compares two results of `run`: two versions of a server, two machines
    Compare(study::compare::CompareArgs),
    /// Says which variant to run, why, and how to deploy it
    Recommend(study::recommend::RecommendArgs),
    /// E1 to E6 in one go, the tables of the public reports beside the new figures
    Paper(paper::PaperArgs),
    /// E1: operations per second of server CPU, two mixes, three depths
    Throughput(experiment::throughput::ThroughputArgs),
    /// System calls per request, counted by strace
    Syscalls(experiment::syscalls::SyscallsArgs),
    /// E6: bytes of memory per item beyond key and value
    Overhead(experiment::overhead::OverheadArgs),
    /// Hit ratios of caches with equal resident memory: Zipf's law, with scans, with drifting popularity
    HitRatio(experiment::hit_ratio::HitRatioArgs),
    /// E2: memory use after values and keys grow, shrink and are deleted, in both kinds of bucket and both item heaps
    Fragmentation(experiment::fragmentation::FragmentationArgs),
    /// E3: CPU, wake-ups and memory of an idle server; fairness over 10,000 connections
    Idle(experiment::idle::IdleArgs),
    /// E4: memory, CPU and time of one flush of a persistent bucket
    Flush(experiment::flush::FlushArgs),
    /// Time from start until a persistent bucket's data is served, compared with a plain read of its files
    Warmup(experiment::warmup::WarmupArgs),
    /// Tail latency of small reads, alone and beside a stream of 20 MiB values
    Latency(experiment::latency::LatencyArgs),
    /// Change streams and replicas: CPU per item, rates from disk, latencies of durable writes, memory
    Streams(experiment::streams::StreamsArgs),
    /// E5: OVSDB workloads, compared with the stock ovsdb-server under several allocators
    Ovsdb(experiment::ovsdb::OvsdbArgs),
    /// The allocator matrix of E1: metadata_thp x background threads x the system's huge pages
    Allocators(experiment::allocators::AllocatorsArgs),
    /// Prints the completions of a shell (for packages)
    #[command(hide = true)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Writes a man page for each experiment into a directory (for packages)
    #[command(hide = true)]
    ManPages {
        /// The directory
        directory: PathBuf,
    },
    /// One flush, in a process of its own (started by the experiment)
    #[command(hide = true)]
    FlushTrial(experiment::flush::trial::TrialArgs),
    /// The transport's own cost for the OVSDB workloads, as a server (started by the experiment)
    #[command(hide = true)]
    OvsdbFloor {
        /// Unix socket to serve
        socket: PathBuf,
    },
    /// The transport's own cost, as a server (started by the experiments)
    #[command(hide = true)]
    Floor {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long, default_value_t = 256)]
        value_bytes: usize,
        /// File to which every request is appended and synced before its answer
        #[arg(long)]
        journal: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.experiment, cli.goals) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dormouse-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs an experiment and prints its report.
fn run(experiment: Experiment, goals: bool) -> Result<()> {
    let report = match experiment {
        Experiment::Run(arguments) => return study::run(&arguments),
        Experiment::Report(arguments) => return study::report_again(&arguments),
        Experiment::Compare(arguments) => return study::compare::run(&arguments),
        Experiment::Recommend(arguments) => return study::recommend::recommend(&arguments),
        Experiment::Paper(arguments) => return paper::run(&arguments),
        Experiment::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "dormouse-lab", &mut std::io::stdout());
            return Ok(());
        }
        Experiment::ManPages { directory } => {
            return clap_mangen::generate_to(Cli::command(), &directory)
                .with_context(|| directory.display().to_string());
        }
        Experiment::FlushTrial(arguments) => return experiment::flush::trial::run(&arguments),
        Experiment::OvsdbFloor { socket } => return ovsdb::floor::serve(&socket),
        Experiment::Floor { listen, value_bytes, journal } => {
            return floor::serve(listen, value_bytes, journal.as_deref());
        }
        Experiment::Allocators(arguments) if arguments.list => return allocator::print_list(),
        Experiment::Allocators(arguments) => experiment::allocators::run(&arguments),
        Experiment::Throughput(arguments) => experiment::throughput::run(&arguments),
        Experiment::Syscalls(arguments) => experiment::syscalls::run(&arguments),
        Experiment::Overhead(arguments) => experiment::overhead::run(&arguments),
        Experiment::HitRatio(arguments) => experiment::hit_ratio::run(&arguments),
        Experiment::Fragmentation(arguments) => experiment::fragmentation::run(&arguments),
        Experiment::Idle(arguments) => experiment::idle::run(&arguments),
        Experiment::Flush(arguments) => experiment::flush::run(&arguments),
        Experiment::Warmup(arguments) => experiment::warmup::run(&arguments),
        Experiment::Latency(arguments) => experiment::latency::run(&arguments),
        Experiment::Streams(arguments) => experiment::streams::run(&arguments),
        Experiment::Ovsdb(arguments) => experiment::ovsdb::run(&arguments),
    };
    report?.print(goals)
}
