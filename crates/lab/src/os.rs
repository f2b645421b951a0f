//! What the lab needs from the operating system and the standard library does not offer: core pinning, CPU clocks of
//! another process, priorities. The only module of this crate with `unsafe`; every call here is a plain system call on
//! values that live on the caller's stack.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// How a server under test is placed: the same for every subject of a run.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// The core its threads may use.
    pub core: usize,
    /// A second core that its threads may use.
    pub further_core: Option<usize>,
    /// Denies its process huge pages, whatever the system's mode is.
    pub without_huge_pages: bool,
    /// Nice value to set; if that is refused, the child keeps the priority it inherits.
    pub nice: i32,
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn set_of(cores: impl IntoIterator<Item = usize>) -> libc::cpu_set_t {
    // SAFETY: cpu_set_t is a plain bit array, for which all zeroes is the empty set; CPU_SET bounds-checks `core`.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        cores.into_iter().for_each(|core| libc::CPU_SET(core, &mut set));
        set
    }
}

/// The cores this process may use, ascending.
pub fn allowed_cores() -> io::Result<Vec<usize>> {
    // SAFETY: the kernel fills at most the size passed along with the pointer to a live local.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        check(libc::sched_getaffinity(0, mem::size_of::<libc::cpu_set_t>(), &mut set))?;
        Ok((0..libc::CPU_SETSIZE as usize).filter(|&core| libc::CPU_ISSET(core, &set)).collect())
    }
}

/// Pins the calling thread to one core.
pub fn pin_thread(core: usize) -> io::Result<()> {
    let set = set_of([core]);
    // SAFETY: `set` outlives the call, and its size is passed along.
    check(unsafe { libc::sched_setaffinity(0, mem::size_of::<libc::cpu_set_t>(), &set) })
}

/// Sets the nice value of the calling thread. Raising the priority needs a privilege, so callers must handle a refusal.
pub fn set_nice(nice: i32) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) })
}

/// Gives the calling thread real-time priority (round robin, lowest level).
pub fn set_realtime() -> io::Result<()> {
    // SAFETY: `sched_param` is plain data, for which zero is valid; the pointer is to a live local.
    unsafe {
        let mut parameter: libc::sched_param = mem::zeroed();
        parameter.sched_priority = 1;
        check(libc::sched_setscheduler(0, libc::SCHED_RR, &parameter))
    }
}

/// Returns the calling thread to ordinary scheduling.
pub fn set_ordinary() -> io::Result<()> {
    // SAFETY: as in `set_realtime`.
    unsafe {
        let parameter: libc::sched_param = mem::zeroed();
        check(libc::sched_setscheduler(0, libc::SCHED_OTHER, &parameter))
    }
}

fn read_clock(clock: libc::clockid_t) -> io::Result<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live local.
    check(unsafe { libc::clock_gettime(clock, &mut time) })?;
    Ok(u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// User and system time of all threads of a process, ended ones included, to the nanosecond (the same sum that
/// `/proc/PID/stat` shows in clock ticks).
pub fn process_cpu_ns(pid: u32) -> io::Result<u64> {
    let mut clock: libc::clockid_t = 0;
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: the pointer is to a live local.
    let error = unsafe { libc::clock_getcpuclockid(pid, &mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    read_clock(clock)
}

/// User and system time of the calling thread.
pub fn thread_cpu_ns() -> io::Result<u64> {
    read_clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Clock ticks per second, the unit of times in `/proc`.
pub fn ticks_per_second() -> u64 {
    // SAFETY: no pointers.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1)
}

/// Size of a memory page in bytes.
pub fn page_bytes() -> u64 {
    // SAFETY: no pointers.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Raises the open file limit as far as allowed and returns it.
pub fn raise_open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both pointers are to a live local.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit))?;
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &limit))?;
    }
    Ok(limit.rlim_cur)
}

/// A timer that becomes readable once per interval. It has microsecond resolution; epoll's timeouts count milliseconds.
pub fn interval_timer(interval: Duration) -> io::Result<OwnedFd> {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(interval.as_secs()).map_err(io::Error::other)?,
        tv_nsec: libc::c_long::from(interval.subsec_nanos() as i32),
    };
    let setting = libc::itimerspec { it_interval: time, it_value: time };
    // SAFETY: no pointers; the descriptor is new and has no other owner.
    let timer = unsafe {
        let descriptor = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC);
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(descriptor)
    };
    // SAFETY: `setting` outlives the call; the previous setting is not requested.
    check(unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &setting, std::ptr::null_mut()) })?;
    Ok(timer)
}

/// Drops the pages of an open file from the page cache, except those not yet on disk.
pub fn forget_cached(file: RawFd) -> io::Result<()> {
    // SAFETY: no pointers; a length of 0 means to the end.
    let error = unsafe { libc::posix_fadvise(file, 0, 0, libc::POSIX_FADV_DONTNEED) };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Returns true if this process may do everything.
pub fn is_root() -> bool {
    // SAFETY: no pointers.
    unsafe { libc::geteuid() == 0 }
}

/// A user of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// Its number.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
}

/// Finds a user in `/etc/passwd`.
pub fn find_user(name: &str) -> io::Result<User> {
    let users = std::fs::read_to_string("/etc/passwd")?;
    let found = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_it = fields.next() == Some(name);
        let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        is_it.then_some(User { uid, gid })
    });
    found.ok_or_else(|| io::Error::other(format!("there is no user {name:?} in /etc/passwd")))
}

/// Sends a signal to one process.
pub fn signal(pid: u32, signal: libc::c_int) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: no pointers. `pid` is positive, so no group is addressed.
    check(unsafe { libc::kill(pid, signal) })
}

/// Prepares a command so that its process runs as `placement` says and dies with the lab.
pub fn place(command: &mut Command, placement: Placement) {
    let cores: Vec<usize> = [placement.core].into_iter().chain(placement.further_core).collect();
    place_on(command, &cores, placement.without_huge_pages, placement.nice);
}

/// The same with any number of cores.
pub fn place_on(command: &mut Command, cores: &[usize], without_huge_pages: bool, nice: i32) {
    let set = set_of(cores.iter().copied());
    // SAFETY: between fork and exec only a few async-signal-safe system calls are made, on values copied into the
    // closure; nothing allocates and no lock is taken.
    unsafe {
        command.pre_exec(move || {
            check(libc::sched_setaffinity(0, mem::size_of::<libc::cpu_set_t>(), &set))?;
            if without_huge_pages {
                check(libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0))?;
            }
            let _priority_may_be_refused = libc::setpriority(libc::PRIO_PROCESS, 0, nice);
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))
        });
    }
}

/// Prepares a command so that its process is asked to exit when this thread ends.
pub fn end_with_lab(command: &mut Command) {
    // SAFETY: one async-signal-safe system call between fork and exec.
    unsafe {
        command.pre_exec(|| check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_clock_runs_at_least_as_fast_as_the_thread() {
        let before = process_cpu_ns(std::process::id()).unwrap();
        let thread_before = thread_cpu_ns().unwrap();
        let mut sum = 0u64;
        while thread_cpu_ns().unwrap() - thread_before < 5_000_000 {
            sum = sum.wrapping_mul(31).wrapping_add(1);
        }
        assert!(process_cpu_ns(std::process::id()).unwrap() - before >= 5_000_000, "{sum}");
    }

    #[test]
    fn a_placed_child_may_use_its_core_only_and_no_huge_pages_where_told_so() {
        let core = *allowed_cores().unwrap().last().unwrap();
        let mut command = Command::new("grep");
        command.args(["-E", "^(Cpus_allowed_list|THP_enabled)", "/proc/self/status"]);
        place(&mut command, Placement { core, further_core: None, without_huge_pages: true, nice: 0 });
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words, ["THP_enabled:", "0", "Cpus_allowed_list:", &core.to_string()]);
    }
}
