//! Reads a segment that has no footer: which batches it has, and where they end.
//!
//! Commit records decide. A readable one vouches for the place and length of all runs of its batch, so the vBucket of a
//! run with a damaged header is still known. If a commit record is itself damaged, the next one says where its own
//! batch began, and the runs before that place speak for themselves.
//!
//! ```text
//! | run | run | commit 7 | run | #### | commit 8 | run | ######## | run | commit 10 | ####
//!                                 └ commit 8 names      └ commit 10 begins behind  └ torn: nothing after it says
//!                                   its vBucket           it: that was commit 9      that this was ever synced
//! ```
//!
//! Damage in a batch that is known to be synced is reported. A batch that is not known to be synced counts if all of it
//! is there; otherwise it and what follows are a torn tail.
//!
//! That a commit record is all that is missing is certain only if it is known where it ended: the runs before it must
//! then fill the batch. Otherwise some of them may be gone as well.

use super::buffer::{Buffer, Window};
use super::commit::{COMMIT_BYTES, Commit, CopyMark};
use super::damage::{Part, Spoils};
use super::footer::Footer;
use super::format::{COMMIT_MAGIC, Origin, RUN_MAGIC};
use super::header::HEADER_BYTES;
use super::manifest::End;
use super::replay::read_run;
use super::run::{ENTRY_BYTES, RUN_HEADER_BYTES, Run};
use crate::File;
use std::io;

/// A batch that counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchFound {
    pub number: u64,
    pub start: u64,
    /// End of its commit record.
    pub end: u64,
    pub max_cas: u64,
    pub copied: CopyMark,
    pub is_close: bool,
    /// It is known to have been synced.
    pub is_synced: bool,
}

/// Damage, without the name of the file.
#[derive(Debug, Clone)]
pub(super) struct Flaw {
    pub offset: u64,
    pub spoils: Spoils,
    pub part: Part,
}

/// The content of a segment without a footer.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub batches: Vec<BatchFound>,
    /// Their runs, in the order of the file.
    pub runs: Vec<Run>,
    pub flaws: Vec<Flaw>,
    /// End of the last batch, or of the header.
    pub end: u64,
    /// The greatest batch number seen, including batches that do not count.
    pub last_number: u64,
    /// There are whole batches after the last one that counts.
    pub goes_beyond: bool,
}

/// The segment to scan.
pub(super) struct Subject<'a, F> {
    pub file: &'a F,
    pub origin: Origin,
    pub vbuckets: u16,
    /// Number of bytes to scan.
    pub length: u64,
    /// First batch that may be in it, if its header says so.
    pub first_batch: Option<u64>,
    /// The last batch in it that counts, if the next segment or the manifest says so.
    pub bound: Option<u64>,
    /// A batch that must be in it, and where it ends.
    pub end: Option<End>,
    /// What may be lost with a batch whose runs are not known.
    pub spoils: Spoils,
}

impl<F> Subject<'_, F> {
    /// The last batch that must be in it; 0 if none must.
    fn must_have(&self) -> u64 {
        let batch = self.bound.unwrap_or(0).max(self.end.map_or(0, |end| end.batch));
        if self.first_batch.is_none_or(|first| first <= batch) { batch } else { 0 }
    }
}

/// A run with a readable header that no commit record has listed yet.
struct Pending {
    run: Run,
    batch: u64,
    flaw: Option<Flaw>,
}

/// A batch as found, before it is decided whether it counts.
struct Group {
    batch: BatchFound,
    /// The last batch known synced when its commit was written; `None` without a commit.
    synced: Option<u64>,
    runs: Vec<Run>,
    flaws: Vec<Flaw>,
}

struct Walk<'a, F> {
    window: Window<'a, F>,
    /// A record that does not fit the window.
    long: Vec<u8>,
    subject: &'a Subject<'a, F>,
    pending: Vec<Pending>,
    groups: Vec<Group>,
    /// End of the last group.
    end: u64,
}

impl Scan {
    pub fn of<F: File>(subject: &Subject<'_, F>, buffer: &mut Buffer) -> io::Result<Self> {
        let mut walk = Walk {
            window: Window::new(subject.file, buffer, subject.length),
            long: Vec::new(),
            subject,
            pending: Vec::new(),
            groups: Vec::new(),
            end: HEADER_BYTES as u64,
        };
        walk.walk()?;
        walk.end_by_bound();
        Ok(walk.decide())
    }

    /// The footer that the segment has if what was found is all there was.
    pub fn footer(&self, origin: Origin) -> Option<Footer> {
        let last = self.batches.last()?;
        let (mut footer, lines) = Footer::of(&mut self.runs.clone(), origin, self.end);
        footer.last_batch = last.number;
        footer.max_cas = last.max_cas;
        footer.copied = last.copied;
        footer.encode_end(&lines, &mut Vec::new());
        Some(footer)
    }
}

impl<F: File> Walk<'_, F> {
    fn walk(&mut self) -> io::Result<()> {
        let mut offset = HEADER_BYTES as u64;
        while offset < self.subject.length {
            if let Some(end) = self.run_at(offset)? {
                offset = end;
            } else if let Some(end) = self.commit_at(offset)? {
                offset = end;
            } else if let Some(next) = self.next_magic(offset + 1)? {
                offset = next;
            } else {
                break;
            }
        }
        Ok(())
    }

    fn run_at(&mut self, offset: u64) -> io::Result<Option<u64>> {
        let head = self.window.at(offset, RUN_HEADER_BYTES)?;
        let Some((run, batch)) = Run::read_header(head, self.subject.origin, offset) else { return Ok(None) };
        if run.end() > self.subject.length || run.vbucket() >= self.subject.vbuckets {
            return Ok(None);
        }
        let flaw = read_run(&mut self.window, &mut self.long, self.subject.origin, &run, &mut |_| {})?;
        let spoils = Spoils::VBucket(run.vbucket());
        let flaw = flaw.map(|(offset, part)| Flaw { offset, spoils, part });
        self.pending.push(Pending { run, batch, flaw });
        Ok(Some(run.end()))
    }

    fn commit_at(&mut self, offset: u64) -> io::Result<Option<u64>> {
        let origin = self.subject.origin;
        let head = self.window.at(offset, COMMIT_BYTES)?;
        let Some(commit) = Commit::read(head, origin, offset) else { return Ok(None) };
        let end = offset + commit.bytes();
        let list = offset + COMMIT_BYTES as u64;
        let sum = self.window.checksum(origin.seed(offset), list, commit.list_bytes())?;
        let last = self.groups.last().map_or(0, |group| group.batch.number);
        if commit.batch <= last || commit.start < self.end || !sum.is_some_and(|sum| commit.has_list(sum)) {
            return Ok(None);
        }
        if commit.start > self.end {
            let number = commit.batch.saturating_sub(1);
            let seen = self.pending.iter().filter(|pending| pending.run.end() <= commit.start);
            let number = seen.map(|pending| pending.batch).max().unwrap_or(number).min(number);
            // A batch that must be there is not taken for one that follows it.
            let is_missing = last < self.subject.must_have();
            let number = if is_missing { number.min(self.subject.must_have()) } else { number };
            self.orphan(commit.start, number, Part::Batch);
        }
        let mut runs = Vec::with_capacity(commit.runs as usize);
        let mut flaws = Vec::new();
        let mut pending = std::mem::take(&mut self.pending).into_iter().peekable();
        for index in 0..u64::from(commit.runs) {
            let run = Run::read_entry(self.window.at(list + index * ENTRY_BYTES as u64, ENTRY_BYTES)?);
            while pending.next_if(|other| other.run.offset() < run.offset()).is_some() {}
            match pending.next_if(|other| other.run == run && other.batch == commit.batch) {
                Some(found) => flaws.extend(found.flaw),
                None => {
                    let spoils = Spoils::VBucket(run.vbucket());
                    flaws.push(Flaw { offset: run.offset(), spoils, part: Part::Run });
                }
            }
            runs.push(run);
        }
        let batch = BatchFound {
            number: commit.batch,
            start: commit.start,
            end,
            max_cas: commit.max_cas,
            copied: commit.copied,
            is_close: commit.is_close,
            is_synced: false,
        };
        self.groups.push(Group { batch, synced: Some(commit.synced), runs, flaws });
        self.end = end;
        Ok(Some(end))
    }

    /// Makes a batch of what was found between the last commit and `end`, where the one of this number ends. `lost` is
    /// missing unless it is certain that the commit record alone is.
    fn orphan(&mut self, end: u64, number: u64, lost: Part) {
        let taken = self.take_pending(end);
        let runs_end = taken
            .iter()
            .try_fold(self.end, |at, pending| (pending.run.offset() == at).then(|| pending.run.end()));
        let commit_bytes = (COMMIT_BYTES + ENTRY_BYTES * taken.len()) as u64;
        let flaw = match runs_end {
            // Only the commit record is missing.
            Some(offset) if !taken.is_empty() && offset + commit_bytes == end => {
                Flaw { offset, spoils: Spoils::Nothing, part: Part::Commit }
            }
            _ => Flaw { offset: self.end, spoils: self.subject.spoils.clone(), part: lost },
        };
        self.add_orphan(taken, end, number, flaw);
    }

    /// Makes a batch of what was found between the last commit and `end`, and is not all.
    fn lose(&mut self, end: u64, number: u64, part: Part) {
        let taken = self.take_pending(end);
        let flaw = Flaw { offset: self.end, spoils: self.subject.spoils.clone(), part };
        self.add_orphan(taken, end, number, flaw);
    }

    fn take_pending(&mut self, end: u64) -> Vec<Pending> {
        self.pending.extract_if(.., |pending| pending.run.end() <= end).collect()
    }

    fn add_orphan(&mut self, taken: Vec<Pending>, end: u64, number: u64, flaw: Flaw) {
        let runs = taken.iter().map(|pending| pending.run).collect();
        let flaws = taken.into_iter().filter_map(|pending| pending.flaw).chain([flaw]).collect();
        let batch = BatchFound {
            number,
            start: self.end,
            end,
            max_cas: 0,
            copied: CopyMark::default(),
            is_close: false,
            is_synced: false,
        };
        self.groups.push(Group { batch, synced: None, runs, flaws });
        self.end = end;
    }

    /// A batch that must be there may have no readable commit record, and nothing behind it that says so.
    fn end_by_bound(&mut self) {
        let bound = self.subject.must_have();
        if self.groups.last().map_or(0, |group| group.batch.number) >= bound {
            return;
        }
        self.pending.retain(|pending| pending.batch <= bound);
        let (start, length) = (self.end, self.subject.length);
        match self.subject.end.filter(|end| end.batch == bound && end.offset >= start) {
            Some(end) => self.orphan(end.offset, bound, Part::Tail(end.offset)),
            // The runs that are found may be followed by others that are not.
            None => self.lose(length, bound, Part::Batch),
        }
    }

    fn decide(self) -> Scan {
        let in_commits = self.groups.iter().filter_map(|group| group.synced).max().unwrap_or(0);
        let known = in_commits.max(self.subject.end.map_or(0, |end| end.batch));
        let synced = self.subject.bound.unwrap_or(known);
        let mut scan = Scan { end: HEADER_BYTES as u64, ..Scan::default() };
        let pending = self.pending.iter().map(|pending| pending.batch);
        let numbers = self.groups.iter().map(|group| group.batch.number).chain(pending);
        scan.last_number = numbers.max().unwrap_or(0);
        for group in self.groups {
            let is_synced = group.batch.number <= synced;
            // The manifest of a closed shard names the batch before the mark of the clean end.
            let is_beyond = self.subject.bound.is_some() && !group.batch.is_close;
            if !is_synced && (is_beyond || !group.flaws.is_empty()) {
                scan.goes_beyond = is_beyond && group.flaws.is_empty();
                break;
            }
            scan.end = group.batch.end;
            scan.batches.push(BatchFound { is_synced, ..group.batch });
            scan.runs.extend(group.runs);
            scan.flaws.extend(group.flaws);
        }
        scan
    }

    /// Returns the offset of the next magic word at which something may begin.
    fn next_magic(&mut self, mut offset: u64) -> io::Result<Option<u64>> {
        const WORD: usize = RUN_MAGIC.len();
        loop {
            let piece = self.window.at(offset, usize::MAX)?;
            if piece.len() < WORD {
                return Ok(None);
            }
            if let Some(place) =
                piece.windows(WORD).position(|word| word == RUN_MAGIC || word == COMMIT_MAGIC)
            {
                return Ok(Some(offset + place as u64));
            }
            offset += (piece.len() + 1 - WORD) as u64;
        }
    }
}
