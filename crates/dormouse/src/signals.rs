//! Signals, and the `shutdown` command: the main thread sleeps in the kernel until one of them arrives.

use std::io;
use std::sync::Arc;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

/// A request to the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalRequest {
    /// Drain and stop; the text names the source of the request.
    Stop(&'static str),
    /// Read the configuration again.
    Reload,
}

/// The signals that this process handles, from the creation of this value on.
pub struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    command: Arc<Notify>,
}

impl Signals {
    /// Handles SIGTERM, SIGINT and SIGHUP from now on.
    pub fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let _entered = runtime.enter();
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let hangup = signal(SignalKind::hangup())?;
        drop(_entered);
        Ok(Self { runtime, terminate, interrupt, hangup, command: Arc::new(Notify::new()) })
    }

    /// A handle with which another thread asks the process to stop.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.command))
    }

    /// Sleeps until there is a request.
    pub fn next(&mut self) -> SignalRequest {
        let Self { runtime, terminate, interrupt, hangup, command } = self;
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => SignalRequest::Stop("SIGTERM"),
                _ = interrupt.recv() => SignalRequest::Stop("SIGINT"),
                _ = hangup.recv() => SignalRequest::Reload,
                () = command.notified() => SignalRequest::Stop("shutdown command"),
            }
        })
    }
}

/// Asks the process to stop.
#[derive(Clone)]
pub struct Stopper(Arc<Notify>);

impl Stopper {
    /// Asks the process to stop; further calls have no effect.
    pub fn stop(&self) {
        self.0.notify_one();
    }
}
