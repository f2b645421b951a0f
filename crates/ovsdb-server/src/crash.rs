//! SIGSEGV and SIGBUS end the process at once, no matter who sends them, so that `--monitor` restarts it.
//!
//! The runtime catches both, to distinguish a stack overflow from other faults. For all others it restores the default
//! action and returns: a real fault then recurs and ends the process, but a signal sent by a process does not, and only
//! the next one would. So this sends the first one itself. (A stack overflow ends the process by the same signal,
//! without the runtime's line.)

use rustix::process::{Signal, getpid, kill_process};

/// Where the kernel lists the signals that a process catches: a mask in hexadecimal.
const CAUGHT: &str = "SigCgt:";

/// Restores the default action of fault signals by sending each to this process once. Must be called at the start.
pub fn by_default() {
    for signal in [Signal::SEGV, Signal::BUS] {
        // If it is not caught, sending it would end this process.
        if is_caught(signal) {
            let _ = kill_process(getpid(), signal);
        }
    }
}

fn is_caught(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(CAUGHT));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    let bit = u32::try_from(signal.as_raw() - 1).unwrap_or(u32::MAX);
    mask.checked_shr(bit).is_some_and(|rest| rest & 1 == 1)
}
