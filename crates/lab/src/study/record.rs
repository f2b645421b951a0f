//! The runs on disk, as lines of JSON: the experiment first, then each run as it ends. An interrupted experiment goes
//! on where it was.

use super::one::Measured;
use crate::machine::Machine;
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

const FILE: &str = "runs.jsonl";
const FORMAT: u32 = 1;

/// One line.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
enum Line {
    Experiment(Box<Head>),
    Run(Box<Run>),
}

/// What the runs belong to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Head {
    format: u32,
    /// Its name.
    pub name: String,
    /// The text of the experiment file, to run it again.
    pub file: String,
    /// Options that change it.
    pub options: String,
    /// Determines the order of the runs.
    pub seed: u64,
    /// When it began, in seconds since 1970.
    pub started_s: u64,
    /// Version of the lab.
    pub lab: String,
    /// The machine.
    pub machine: Machine,
    /// The variants.
    pub variants: Vec<Variant>,
}

/// A variant as it was started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// Its command line, with the variables that are set.
    pub command: String,
    /// The subject's version.
    pub version: Option<String>,
    /// Its allocator exactly, where the variant names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library: Option<String>,
    /// What this machine lacks for it.
    pub lacks: Option<String>,
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// The variant's name.
    pub variant: String,
    /// Its round, from 0 on.
    pub round: usize,
    /// When it began, in seconds since 1970.
    pub started_s: u64,
    /// How long it took with all that belongs to it.
    pub took_s: f64,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// What it measured.
    #[serde(flatten)]
    pub measured: Measured,
}

impl Head {
    /// The head of a new record.
    pub fn new(
        name: &str,
        file: String,
        options: String,
        seed: u64,
        machine: Machine,
        variants: Vec<Variant>,
    ) -> Self {
        Self {
            format: FORMAT,
            name: name.to_owned(),
            file,
            options,
            seed,
            started_s: now_s(),
            lab: env!("CARGO_PKG_VERSION").to_owned(),
            machine,
            variants,
        }
    }

    /// Returns true if `--quick` was given.
    pub fn is_quick(&self) -> bool {
        self.options == super::QUICK
    }
}

/// The time, in seconds since 1970.
pub fn now_s() -> u64 {
    std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

/// The record of an experiment.
pub struct Record {
    path: PathBuf,
    file: File,
    /// What it is about.
    pub head: Head,
    /// The runs so far.
    pub runs: Vec<Run>,
}

impl Record {
    /// Opens the record in this directory, or begins it. One of another experiment is refused.
    pub fn open(directory: &Path, head: Head) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
        let path = directory.join(FILE);
        let file = OpenOptions::new().create(true).read(true).append(true).open(&path);
        let mut file = file.with_context(|| format!("opening {}", path.display()))?;
        if file.try_lock().is_err() {
            bail!("{} is in use by another lab", path.display());
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(|| format!("reading {}", path.display()))?;
        // A line may have been cut off, the first one too.
        let length = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        file.set_len(length as u64)?;
        let Some(complete) = bytes.get(..length).filter(|lines| !lines.is_empty()) else {
            let mut record = Self { path, file, head: head.clone(), runs: Vec::new() };
            record.write(&Line::Experiment(Box::new(head)))?;
            return Ok(record);
        };
        let text = std::str::from_utf8(complete).with_context(|| format!("reading {}", path.display()))?;
        let (former, runs) = parse(text).with_context(|| format!("reading {}", path.display()))?;
        ensure!(
            former.file == head.file && former.options == head.options && former.seed == head.seed,
            "{} has runs of another experiment, or of another version of its file: name another directory with \
             --results, or begin anew with --fresh",
            path.display()
        );
        let changed = former.variants.iter().zip(&head.variants).find(|(former, now)| former != now);
        if let Some((_, now)) = changed {
            bail!(
                "{} has runs of another {:?}: its program, its command line or what this machine has for it has \
                 changed since; name another directory with --results, or begin anew with --fresh",
                path.display(),
                now.name
            );
        }
        ensure!(
            former.machine.is_like(&head.machine),
            "{} has runs of another machine or kernel: name another directory with --results",
            path.display()
        );
        Ok(Self { path, file, head: former, runs })
    }

    /// Reads a finished record: a directory, or the file in it.
    pub fn read(path: &Path) -> Result<(Head, Vec<Run>)> {
        let path = if path.is_dir() { path.join(FILE) } else { path.to_owned() };
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let length = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let text = std::str::from_utf8(bytes.get(..length).unwrap_or_default());
        parse(text?).with_context(|| format!("reading {}", path.display()))
    }

    /// Removes the record in this directory.
    pub fn remove(directory: &Path) -> Result<()> {
        match fs::remove_file(directory.join(FILE)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", directory.join(FILE).display()))
            }
            _ => Ok(()),
        }
    }

    /// Returns true if this run is there and has not failed.
    pub fn has(&self, variant: &str, round: usize) -> bool {
        self.runs.iter().any(|run| run.variant == variant && run.round == round && run.failed.is_none())
    }

    /// Adds a run.
    pub fn add(&mut self, run: Run) -> Result<()> {
        self.write(&Line::Run(Box::new(run.clone())))?;
        self.runs.push(run);
        Ok(())
    }

    fn write(&mut self, line: &Line) -> Result<()> {
        let text = serde_json::to_string(line)? + "\n";
        self.file.write_all(text.as_bytes()).with_context(|| format!("writing {}", self.path.display()))
    }
}

/// The head and the runs of complete lines.
fn parse(text: &str) -> Result<(Head, Vec<Run>)> {
    let (mut head, mut runs) = (None, Vec::new());
    for (number, line) in text.lines().enumerate() {
        match serde_json::from_str(line).with_context(|| format!("line {}", number + 1))? {
            Line::Experiment(found) if head.is_none() => head = Some(*found),
            Line::Experiment(_) => bail!("line {}: a second experiment", number + 1),
            Line::Run(run) => runs.push(*run),
        }
    }
    let head: Head = head.context("its first line is not an experiment's")?;
    ensure!(head.format == FORMAT, "format {}: this lab reads format {FORMAT}", head.format);
    Ok((head, runs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Scratch;

    fn head(file: &str) -> Head {
        Head::new("x", file.to_owned(), String::new(), 1, Machine::read().unwrap(), Vec::new())
    }

    fn run(round: usize, failed: Option<&str>) -> Run {
        let failed = failed.map(str::to_owned);
        Run {
            variant: "a".to_owned(),
            round,
            started_s: 1,
            took_s: 0.5,
            failed,
            measured: Measured::default(),
        }
    }

    #[test]
    fn a_record_goes_on_where_it_was_cut_off() {
        let scratch = Scratch::new(None).unwrap();
        let mut record = Record::open(&scratch.path, head("f")).unwrap();
        record.add(run(0, None)).unwrap();
        record.add(run(1, Some("it died"))).unwrap();
        let path = scratch.path.join(FILE);
        let whole = fs::read_to_string(&path).unwrap();
        // In the middle of a line, and of a character.
        fs::write(&path, [whole.as_bytes(), b"{\"record\":\"run\",\"variant\":\"\xc3"].concat()).unwrap();
        assert!(Record::open(&scratch.path, head("f")).is_err(), "the first one is still open");
        drop(record);
        let mut record = Record::open(&scratch.path, head("f")).unwrap();
        assert!(
            record.has("a", 0) && !record.has("a", 1) && !record.has("a", 2),
            "a failed run is done again"
        );
        record.add(run(1, None)).unwrap();
        let (_, runs) = Record::read(&scratch.path).unwrap();
        assert_eq!(runs.iter().map(|run| run.round).collect::<Vec<_>>(), [0, 1, 1]);
    }

    #[test]
    fn a_record_of_another_experiment_is_kept() {
        let scratch = Scratch::new(None).unwrap();
        fs::write(scratch.path.join(FILE), "{\"record\":\"exp").unwrap();
        drop(Record::open(&scratch.path, head("f")).unwrap());
        let error = Record::open(&scratch.path, head("g")).err().unwrap().to_string();
        assert!(error.contains("runs of another experiment") && error.contains("--fresh"), "{error}");
        Record::remove(&scratch.path).unwrap();
        assert!(Record::open(&scratch.path, head("g")).is_ok());
        fs::write(scratch.path.join(FILE), "x\n").unwrap();
        let error = format!("{:#}", Record::open(&scratch.path, head("g")).err().unwrap());
        assert!(error.contains("line 1"), "{error}");
    }
}
