//! Commands of an experiment file: run to their end within a time, with all that they start.

use super::text::said;
use super::tree;
use crate::os::{self, User};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(5);

/// Where and how commands run.
pub struct Surroundings {
    /// Their directory.
    pub directory: PathBuf,
    /// Variables that are set.
    pub environment: BTreeMap<String, String>,
    /// The variable by which all that they start is found.
    pub mark: String,
    /// The file of their output.
    pub log: PathBuf,
    /// Their user.
    pub user: Option<User>,
}

impl Surroundings {
    /// A command line as a command. Its processes have the mark, and no allocator that the lab itself was given.
    pub fn command(&self, words: &[String]) -> Result<Command> {
        let (program, arguments) = words.split_first().context("an empty command")?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.directory).env_remove("LD_PRELOAD").envs(&self.environment);
        if let Some((name, value)) = self.mark.split_once('=') {
            command.env(name, value);
        }
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        let log = File::options().create(true).append(true).open(&self.log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        Ok(command)
    }

    /// Runs a command that must succeed within a time. `goes_on` fails if there is no point in waiting for it.
    pub fn run(
        &self,
        words: &[String],
        timeout: Duration,
        mut goes_on: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let deadline = Instant::now() + timeout;
        let mut command = self.command(words)?;
        os::place_on(&mut command, &os::allowed_cores()?, false, 0);
        let mut child = command.spawn().with_context(|| format!("starting {words:?}"))?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            let ended = goes_on();
            if ended.is_err() || Instant::now() > deadline {
                tree::end_marked(&self.mark);
                let _it_may_have_ended = child.kill();
                child.wait()?;
                ended?;
                bail!(
                    "{words:?} has not ended after {} s; it said: {}",
                    timeout.as_secs_f64(),
                    said(&self.log)
                );
            }
            thread::sleep(LOOK);
        };
        ensure!(status.success(), "{words:?} ended with {status}; it said: {}", said(&self.log));
        Ok(())
    }
}
