//! Compaction: the live records of a segment are written once more, after everything else, and the segment is unlinked.
//!
//! ```text
//! Choose ──> Survey ──> Check ──> Copy ──> Unlink ──> Choose
//!   sample     what is    is an     a batch   after the copies
//!   segments   live, and  older     per step  are synced; then
//!              which ends record              the directory is
//!              are old?   elsewhere?          synced
//! ```
//!
//! * It is unknown where the old versions of a key lie, so no segment has an account of its dead bytes. Victims are
//!   chosen by asking about a few runs of each.
//! * A record is dropped if the engine says that it is dead. A tombstone or an abort that the engine no longer knows
//!   about is dropped if no other segment holds an older record of its key that it still has to hide. To find out, all
//!   runs of its vBucket that reach back far enough are read. If a segment cannot be searched, all of them are kept.
//! * A key that is changed more often than it is flushed has a newer version in memory at any time, so the engine never
//!   knows which of its records on disk is the newest. Of those in one segment all but the newest are dropped.
//! * A segment is surveyed from front to back. The runs with anything live are then copied in the order of vBucket and
//!   seqno, so that small runs become long ones. What is dead stays dead, so no other run need be read again. Each
//!   commit record says how far the copying has come: after a crash it resumes there, and nothing is copied twice.
//! * A segment that was left after a failure goes first. The header after it says what counts in it.
//! * So does one of which only a header, a table or a commit record is damaged: no record is lost, and
//!   the copy is whole.

use super::WriteError;
use super::buffer::{Buffer, Window};
use super::commit::CopyMark;
use super::damage::{Damage, Part, Spoils};
use super::record::{Kind, Record};
use super::replay::{Apart, scan_run};
use super::run::{RUN_BYTES_MAX, Run};
use super::segment::Segment;
use super::shard::Shard;
use crate::Disk;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

/// The engine's verdict on a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is to be kept. Also the verdict on a tombstone or an abort that nothing newer has replaced: it may be dropped
    /// when it has nothing to hide.
    Live,
    /// It is to be kept, even as an old tombstone or abort with nothing to hide.
    Kept,
    /// A newer record of the key is in memory only, and the engine does not know which one on disk would take its
    /// place: of several such documents and tombstones of a key the newest is kept.
    LiveIfNewest,
    /// It may be dropped: a newer record of the key (of the vBucket, for a state) is *synced* and takes its place at a
    /// replay, or the vBucket's synced state says that it no longer counts. A newer one that is only in memory is not
    /// enough.
    Dead,
}

/// The goal of compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aim {
    /// Approximate size if nothing were superfluous.
    pub live_bytes: u64,
    /// Nothing has been written for a while: there is time to leave little for the next start to read.
    pub at_rest: bool,
}

impl Aim {
    /// The aim while batches are written.
    pub fn at_work(live_bytes: u64) -> Self {
        Self { live_bytes, at_rest: false }
    }

    /// The size that is small enough.
    fn enough(self, segment_bytes: u64) -> u64 {
        let Self { live_bytes, at_rest } = self;
        let (superfluous, slack) = if at_rest {
            (live_bytes / SUPERFLUOUS_AT_REST, segment_bytes / SLACK_AT_REST)
        } else {
            (live_bytes, SLACK_SEGMENTS.saturating_mul(segment_bytes))
        };
        live_bytes.saturating_add(superfluous).saturating_add(slack)
    }
}

/// What a step did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// There is nothing worth doing.
    Idle,
    /// Something was done, and there is more to do.
    More,
    /// A segment has been removed.
    Finished {
        /// Its length.
        freed_bytes: u64,
    },
    /// A segment could be removed, but a copy of the shard is being made.
    Held,
    /// A segment is damaged. It is left as it is from now on.
    Damaged(Damage),
}

/// Segments of slack before compaction is worthwhile.
const SLACK_SEGMENTS: u64 = 2;
/// At rest the slack is a segment's length divided by this; and the live bytes, divided by the second, may be
/// superfluous.
const SLACK_AT_REST: u64 = 8;
const SUPERFLUOUS_AT_REST: u64 = 4;
/// Segments sampled each time a victim is chosen, and runs of each.
const SAMPLED_SEGMENTS: usize = 8;
const SAMPLED_RUNS: usize = 4;
/// Number of adjacent runs that are sampled together: several records of a key are found in neighbours.
const NEIGHBOURS: usize = 2;
/// At rest there is time, and no later batch corrects a wrong estimate.
const SAMPLED_RUNS_AT_REST: usize = 64;
/// A segment with more live bytes than this, in thousandths, is not worth copying.
const LIVE_MAX: u64 = 900;
/// Memory for the keys of tombstones that may be dropped, and for those of records of which the newest stays. Further
/// ones wait for another time.
const KEYS_BYTES_MAX: usize = 1 << 20;
/// Approximate bytes that one takes beside its key.
const KEY_BYTES: usize = 64;

/// What compaction is doing.
#[derive(Debug)]
pub(super) struct Compaction<D: Disk> {
    phase: Phase<D>,
    samples: BTreeMap<u64, Sample>,
    /// Of these, how much was ends that have to stay, which the engine does not count.
    ends_thousandths: u64,
    /// Old ends that the engine keeps, as they were met.
    old_kept: OldKept,
    /// A directory failed to sync: an unlinked segment may come back, and with it what a tombstone hides.
    keeps_tombstones: bool,
}

impl<D: Disk> Default for Compaction<D> {
    fn default() -> Self {
        Self {
            phase: Phase::Choose,
            samples: BTreeMap::new(),
            ends_thousandths: 0,
            old_kept: BTreeMap::new(),
            keeps_tombstones: false,
        }
    }
}

/// How much of a segment was live.
#[derive(Debug, Clone, Copy)]
struct Sample {
    live_thousandths: u64,
    /// The part of it that was tombstones too young to go.
    ends_thousandths: u64,
    /// The last batch at the time of sampling.
    batch: u64,
}

/// By vBucket and key.
type Keyed<T> = HashMap<(u16, Vec<u8>), T>;
/// Highest seqnos by vBucket.
type OldKept = BTreeMap<u16, u64>;
/// The seqno of a tombstone or abort, and what it hides.
type Candidates = Keyed<(u64, Kind)>;

#[derive(Debug)]
enum Phase<D: Disk> {
    Choose,
    Survey { victim: Victim<D>, next: usize, candidates: Candidates, bytes: usize },
    Check { victim: Victim<D>, others: Vec<(Arc<Segment<D>>, Run)>, candidates: Candidates },
    Copy { victim: Victim<D>, next: usize, purged: Candidates },
    Unlink(Victim<D>),
}

#[derive(Debug)]
struct Victim<D: Disk> {
    segment: Arc<Segment<D>>,
    /// During the survey in file order, then by vBucket, first seqno and offset.
    runs: Vec<Surveyed>,
    /// Number of them, in the latter order, that were copied before.
    copied: usize,
    newest: Newest,
}

/// The highest seqno seen of each key whose records are [`Verdict::LiveIfNewest`].
#[derive(Debug, Default)]
struct Newest {
    seqnos: Keyed<u64>,
    /// Memory they take.
    bytes: usize,
}

impl Newest {
    /// Notes a record. Returns true if there was another of its key.
    fn note(&mut self, vbucket: u16, record: &Record<'_>) -> bool {
        let key = (vbucket, record.key.to_vec());
        if let Some(seqno) = self.seqnos.get_mut(&key) {
            *seqno = record.seqno.max(*seqno);
            return true;
        }
        if self.bytes <= KEYS_BYTES_MAX {
            self.bytes += KEY_BYTES + record.key.len();
            self.seqnos.insert(key, record.seqno);
        }
        false
    }

    /// Returns true if a newer one was noted.
    fn is_older(&self, key: &(u16, Vec<u8>), record: &Record<'_>) -> bool {
        self.seqnos.get(key).is_some_and(|newest| record.seqno < *newest)
    }
}

#[derive(Debug)]
struct Surveyed {
    run: Run,
    has_live: bool,
}

/// Asks the engine for its verdict.
type Judge<'a> = &'a mut dyn FnMut(u16, &Record<'_>) -> Verdict;

impl<D: Disk> Shard<D> {
    /// Returns true if there is enough to gain.
    pub fn wants_compaction(&self, aim: Aim) -> bool {
        if self.keeps_files {
            return false;
        }
        let is_idle = matches!(self.compaction.phase, Phase::Choose);
        let enough = aim.enough(self.options.segment_bytes);
        !is_idle || self.figures().bytes > enough || self.left().is_some() || self.begun().is_some()
    }

    /// The size as a multiple of what is small enough, which includes tombstones that have to stay.
    pub fn times_enough(&self, aim: Aim) -> u64 {
        let bytes = self.figures().bytes;
        let live_bytes = aim.live_bytes + bytes / 1000 * self.compaction.ends_thousandths;
        bytes / Aim { live_bytes, ..aim }.enough(self.options.segment_bytes).max(1)
    }

    /// Takes the seqnos up to which the engine keeps tombstones and aborts that are old enough to be purged, by
    /// vBucket.
    pub fn take_old_kept(&mut self) -> BTreeMap<u16, u64> {
        std::mem::take(&mut self.compaction.old_kept)
    }

    /// Does a part of the work: reads and writes about `budget_bytes`. Tombstones older than `purge_before_unix_s` may
    /// be purged.
    pub fn compact_step(
        &mut self,
        buffer: &mut Buffer,
        budget_bytes: usize,
        judge: Judge<'_>,
        aim: Aim,
        purge_before_unix_s: u32,
    ) -> Result<Step, WriteError> {
        let mut compaction = std::mem::take(&mut self.compaction);
        let result = self.compact(&mut compaction, buffer, budget_bytes, judge, aim, purge_before_unix_s);
        self.compaction = compaction;
        result
    }

    fn compact(
        &mut self,
        compaction: &mut Compaction<D>,
        buffer: &mut Buffer,
        budget_bytes: usize,
        judge: Judge<'_>,
        aim: Aim,
        purge_before: u32,
    ) -> Result<Step, WriteError> {
        let mut budget = Budget { bytes: budget_bytes, is_started: false };
        let done = match &mut compaction.phase {
            Phase::Choose => {
                let wanted = self.wants_compaction(aim);
                let Compaction { samples, old_kept, .. } = compaction;
                let victim = self.choose((samples, old_kept), wanted, aim, purge_before, judge);
                compaction.ends_thousandths = ends_thousandths(&compaction.samples);
                match victim {
                    Ok(Some(victim)) => {
                        compaction.phase =
                            Phase::Survey { victim, next: 0, candidates: Candidates::new(), bytes: 0 };
                        Ok(Step::More)
                    }
                    Ok(None) if wanted && aim.at_rest && self.has_much_active() => {
                        self.seal_early(buffer)?;
                        Ok(Step::More)
                    }
                    Ok(None) => Ok(Step::Idle),
                    Err(damage) => Err(damage),
                }
            }
            Phase::Survey { victim, next, candidates, bytes } => {
                let keeps = compaction.keeps_tombstones || self.has_unsearchable(victim.segment.number());
                let old_kept = &mut compaction.old_kept;
                let mut ends = Ends { candidates, bytes, old_kept, purge_before, keeps };
                victim.survey(next, &mut budget, &mut ends, judge).map(|()| Step::More)
            }
            Phase::Check { others, candidates, .. } => {
                let mut reading = Reading::new();
                while let Some((segment, run)) = others.last()
                    && budget.allows(run)
                {
                    check(&mut reading, segment, run, candidates);
                    others.pop();
                }
                Ok(Step::More)
            }
            Phase::Copy { victim, next, purged } => {
                return match self.copy(victim, next, purged, &mut budget, buffer, judge)? {
                    Ok(()) => {
                        compaction.phase = std::mem::replace(&mut compaction.phase, Phase::Choose).next(self);
                        Ok(Step::More)
                    }
                    Err(damage) => {
                        compaction.phase = Phase::Choose;
                        Ok(Step::Damaged(damage))
                    }
                };
            }
            Phase::Unlink(victim) => {
                let segment = victim.segment.clone();
                let step = self.unlink(&segment, &mut compaction.keeps_tombstones)?;
                if step != Step::Held {
                    compaction.samples.remove(&segment.number());
                    compaction.phase = Phase::Choose;
                }
                return Ok(step);
            }
        };
        match done {
            Ok(step) => {
                compaction.phase = std::mem::replace(&mut compaction.phase, Phase::Choose).next(self);
                Ok(step)
            }
            Err(damage) => {
                compaction.phase = Phase::Choose;
                Ok(Step::Damaged(damage))
            }
        }
    }

    /// The segments that may be compacted, oldest first.
    ///
    /// Excludes a damaged one, and the one after a damaged one that is not sealed: its header says how far that one
    /// goes.
    fn eligible(&self) -> Vec<Arc<Segment<D>>> {
        let active = self.active.as_ref().map(|active| active.segment.number());
        let segments = self.catalogue.segments();
        let mut is_bound = false;
        let mut eligible = Vec::new();
        for segment in segments.iter() {
            let damaged = segment.state().damaged;
            if Some(segment.number()) != active && !damaged && !is_bound {
                eligible.push(segment.clone());
            }
            is_bound = damaged && !segment.is_sealed();
        }
        eligible
    }

    /// Returns true if superfluous data may be in the active segment.
    fn has_much_active(&self) -> bool {
        let end = self.active.as_ref().map_or(0, |active| active.end);
        end > self.options.segment_bytes / SLACK_AT_REST
    }

    /// Returns a segment that was left after a failure, or is worn.
    fn left(&self) -> Option<Arc<Segment<D>>> {
        self.eligible().into_iter().find(|segment| !segment.is_sealed() || segment.state().worn)
    }

    /// Returns a segment of which a part was copied before the process ended.
    fn begun(&self) -> Option<Arc<Segment<D>>> {
        self.eligible().into_iter().find(|segment| segment.number() == self.copy_mark.segment)
    }

    /// Returns true if a segment other than the victim may hold what its table does not list.
    fn has_unsearchable(&self, victim: u64) -> bool {
        let active = self.active.as_ref().map(|active| active.segment.number());
        self.catalogue.segments().iter().any(|segment| {
            let is_open = Some(segment.number()) != active && !segment.is_sealed();
            segment.number() != victim && (is_open || segment.state().damaged)
        })
    }

    fn choose(
        &self,
        (samples, old_kept): (&mut BTreeMap<u64, Sample>, &mut OldKept),
        wanted: bool,
        aim: Aim,
        purge_before: u32,
        judge: Judge<'_>,
    ) -> Result<Option<Victim<D>>, Damage> {
        if self.keeps_files {
            return Ok(None);
        }
        if let Some(segment) = self.left().or_else(|| self.begun()) {
            return Victim::new(segment, self.copy_mark).map(Some);
        }
        if !wanted {
            return Ok(None);
        }
        let eligible = self.eligible();
        samples.retain(|number, _| eligible.iter().any(|segment| segment.number() == *number));
        let mut by_age: Vec<&Arc<Segment<D>>> = eligible.iter().collect();
        by_age.sort_by_key(|segment| samples.get(&segment.number()).map_or(0, |sample| sample.batch));
        let runs = if aim.at_rest { SAMPLED_RUNS_AT_REST } else { SAMPLED_RUNS };
        for segment in by_age.into_iter().take(SAMPLED_SEGMENTS) {
            let sample = sample(segment, runs, (purge_before, &mut *old_kept), self.last_batch, judge)?;
            samples.insert(segment.number(), sample);
        }
        let share = |segment: &&Arc<Segment<D>>| {
            samples.get(&segment.number()).map_or(u64::MAX, |sample| sample.live_thousandths)
        };
        match eligible.iter().min_by_key(share) {
            Some(segment) if share(&segment) <= LIVE_MAX => {
                Victim::new(segment.clone(), self.copy_mark).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Copies some runs, as one batch.
    fn copy(
        &mut self,
        victim: &Victim<D>,
        next: &mut usize,
        purged: &Candidates,
        budget: &mut Budget,
        buffer: &mut Buffer,
        judge: Judge<'_>,
    ) -> Result<Result<(), Damage>, WriteError> {
        let mut reached = *next;
        let (mut reading, mut piece) = (Reading::new(), Vec::new());
        let max_cas = self.max_cas;
        let mut batch = self.batch(buffer)?;
        while let Some(Surveyed { run, has_live }) = victim.runs.get(reached) {
            if !has_live {
                reached += 1;
                continue;
            }
            if !budget.allows(run) {
                break;
            }
            let (mut failed, mut changed) = (Ok(()), None);
            let mut key = (run.vbucket(), Vec::new());
            batch.begin(run.vbucket());
            let read = reading.records(&victim.segment, run, &mut |record, apart| {
                if failed.is_err() || changed.is_some() {
                    return;
                }
                key.1.clear();
                key.1.extend_from_slice(record.key);
                let goes = goes_with(purged, &key, record)
                    || match judge(run.vbucket(), record) {
                        Verdict::Live | Verdict::Kept => false,
                        Verdict::LiveIfNewest => victim.newest.is_older(&key, record),
                        Verdict::Dead => true,
                    };
                if goes {
                    return;
                }
                if let Some(apart) = apart {
                    let pushed = victim
                        .segment
                        .file()
                        .map_err(WriteError::of)
                        .and_then(|from| batch.push_apart(record, &apart, from, &mut piece));
                    match pushed {
                        Ok(true) => {}
                        Ok(false) => changed = Some(apart.at),
                        Err(error) => failed = Err(error),
                    }
                    return;
                }
                let length = record.encoded_bytes();
                if !batch.fits_buffer(length) {
                    failed = batch.push_long(record);
                    return;
                }
                if !batch.fits(length) {
                    failed = batch.write_out();
                }
                if failed.is_ok() {
                    batch.push(record);
                }
            });
            failed?;
            if let Err(damage) = read {
                return Ok(Err(damage));
            }
            if let Some(offset) = changed {
                let (path, spoils) = (victim.segment.path.clone(), Spoils::VBucket(run.vbucket()));
                return Ok(Err(Damage { path, offset, spoils, part: Part::Record }));
            }
            reached += 1;
        }
        let mark = CopyMark { segment: victim.segment.number(), runs: reached as u32 };
        batch.commit_copy(max_cas, mark)?;
        *next = reached;
        Ok(Ok(()))
    }

    fn unlink(&mut self, segment: &Segment<D>, keeps_tombstones: &mut bool) -> Result<Step, WriteError> {
        let catalogue = self.catalogue.clone();
        let holds = catalogue.holds.lock();
        if *holds > 0 {
            return Ok(Step::Held);
        }
        self.begin()?;
        self.sync_active()?;
        self.remove_junk()?;
        let freed_bytes = segment.state().length;
        // ORDERING: first the manifest stops naming the file, then the file is removed.
        let mut manifest = self.manifest.clone();
        manifest.remove(segment.number());
        self.write_manifest(manifest)?;
        self.catalogue.remove(segment.number());
        match self.disk.remove(&segment.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(WriteError::Poisoned(error)),
            _ => {}
        }
        // ORDERING: before the next victim's tombstones are judged, what they may hide must be gone for good.
        if let Err(error) = self.disk.sync_directory(&segment.path) {
            *keeps_tombstones = true;
            return Err(WriteError::Poisoned(error));
        }
        Ok(Step::Finished { freed_bytes })
    }
}

impl<D: Disk> Shard<D> {
    /// Removes files without a batch that counts, permanently.
    pub(super) fn remove_junk(&mut self) -> Result<(), WriteError> {
        for path in &self.junk {
            match self.disk.remove(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(WriteError::Poisoned(error));
                }
                _ => {}
            }
        }
        if let Some(path) = self.junk.last() {
            self.disk.sync_directory(path).map_err(WriteError::Poisoned)?;
            self.junk.clear();
        }
        Ok(())
    }
}

impl<D: Disk> Phase<D> {
    /// The next phase, if this one has nothing left to do.
    fn next(self, shard: &Shard<D>) -> Self {
        match self {
            Self::Survey { mut victim, next, candidates, .. } if next >= victim.runs.len() => {
                victim.runs.sort_unstable_by_key(|surveyed| surveyed.run.place_in_table());
                let others = shard.runs_older_than(&candidates, victim.segment.number());
                Self::Check { victim, others, candidates }.next(shard)
            }
            Self::Check { victim, others, candidates } if others.is_empty() || candidates.is_empty() => {
                let next = victim.copied;
                Self::Copy { victim, next, purged: candidates }.next(shard)
            }
            Self::Copy { victim, next, .. } if next >= victim.runs.len() => Self::Unlink(victim),
            other => other,
        }
    }
}

impl<D: Disk> Shard<D> {
    /// The runs of other segments that may hold something older than a candidate.
    fn runs_older_than(&self, candidates: &Candidates, victim: u64) -> Vec<(Arc<Segment<D>>, Run)> {
        let mut newest: BTreeMap<u16, u64> = BTreeMap::new();
        for ((vbucket, _), (seqno, _)) in candidates {
            let newest = newest.entry(*vbucket).or_insert(0);
            *newest = (*newest).max(*seqno);
        }
        let mut found = Vec::new();
        for segment in self.catalogue.segments().iter().filter(|segment| segment.number() != victim) {
            for (vbucket, seqno) in &newest {
                match segment.runs_before(*vbucket, *seqno) {
                    Ok(Some(runs)) => found.extend(runs.into_iter().map(|run| (segment.clone(), run))),
                    // What cannot be read is tried again, and found unreadable, when its turn comes.
                    _ => found.push((segment.clone(), Run::new(*vbucket, 0, 0, 0, 0, 0))),
                }
            }
        }
        found
    }
}

/// What a survey records about tombstones and aborts.
struct Ends<'a> {
    candidates: &'a mut Candidates,
    /// Memory the candidates take.
    bytes: &'a mut usize,
    old_kept: &'a mut OldKept,
    purge_before: u32,
    /// All of them stay.
    keeps: bool,
}

impl Ends<'_> {
    fn note(&mut self, vbucket: u16, record: &Record<'_>, verdict: Verdict) {
        note_old_kept(self.old_kept, vbucket, record, verdict, self.purge_before);
        if verdict == Verdict::Kept {
            return;
        }
        let is_old = record.kind == Kind::Abort || record.expiry < self.purge_before;
        if self.keeps || !is_purgeable(record.kind) || !is_old || *self.bytes > KEYS_BYTES_MAX {
            return;
        }
        *self.bytes += KEY_BYTES + record.key.len();
        let candidate = self.candidates.entry((vbucket, record.key.to_vec()));
        let newest = candidate.or_insert((record.seqno, record.kind));
        if newest.0 < record.seqno {
            *newest = (record.seqno, record.kind);
        }
    }
}

impl<D: Disk> Victim<D> {
    fn new(segment: Arc<Segment<D>>, mark: CopyMark) -> Result<Self, Damage> {
        let runs = runs_of(&segment, Segment::runs)?;
        let copied = if mark.segment == segment.number() { mark.runs as usize } else { 0 };
        let copied = copied.min(runs.len());
        let runs = runs.into_iter().map(|run| Surveyed { run, has_live: false }).collect();
        Ok(Self { segment, runs, copied, newest: Newest::default() })
    }

    /// Surveys some runs.
    fn survey(
        &mut self,
        next: &mut usize,
        budget: &mut Budget,
        ends: &mut Ends<'_>,
        judge: Judge<'_>,
    ) -> Result<(), Damage> {
        let (mut reading, end) = (Reading::new(), self.segment.state().end);
        let mut passage = reading.passage(&self.segment, end);
        while let Some(Surveyed { run, has_live }) = self.runs.get_mut(*next)
            && budget.allows(run)
        {
            passage.records(run, &mut |record, _| {
                let verdict = judge(run.vbucket(), record);
                ends.note(run.vbucket(), record, verdict);
                match verdict {
                    Verdict::Live | Verdict::Kept => *has_live = true,
                    Verdict::LiveIfNewest => {
                        *has_live = true;
                        self.newest.note(run.vbucket(), record);
                    }
                    Verdict::Dead => {}
                }
            })?;
            *next += 1;
        }
        Ok(())
    }
}

/// The table of a segment that is not active.
fn runs_of<D: Disk>(
    segment: &Segment<D>,
    read: impl Fn(&Segment<D>) -> io::Result<Option<Vec<Run>>>,
) -> Result<Vec<Run>, Damage> {
    let Ok(Some(runs)) = read(segment) else {
        segment.state_mut().damaged = true;
        let (path, offset) = (segment.path.clone(), segment.state().end);
        return Err(Damage { path, offset, spoils: Spoils::Nothing, part: Part::Footer });
    };
    Ok(runs)
}

/// Notes a tombstone or an abort that is old enough, and kept by the engine all the same.
fn note_old_kept(
    old_kept: &mut OldKept,
    vbucket: u16,
    record: &Record<'_>,
    verdict: Verdict,
    purge_before: u32,
) {
    if verdict == Verdict::Kept && is_purgeable(record.kind) && record.expiry < purge_before {
        let seqno = old_kept.entry(vbucket).or_default();
        *seqno = record.seqno.max(*seqno);
    }
}

fn is_purgeable(kind: Kind) -> bool {
    matches!(kind, Kind::Tombstone | Kind::Abort)
}

/// Returns true if an end of kind `hider` keeps a record of kind `hidden` from coming back at a replay.
fn hides(hider: Kind, hidden: Kind) -> bool {
    match hidden {
        Kind::Document => hider == Kind::Tombstone,
        Kind::Prepare | Kind::PrepareDelete => true,
        // An older end without what it ended hides nothing, and has no effect if it comes back.
        Kind::Tombstone | Kind::Abort | Kind::State => false,
    }
}

/// Returns true if the record is an end that is purged, or one that such an end hides. The engine may still call the
/// latter live where it cannot know better, and without its end it would come back.
fn goes_with(purged: &Candidates, key: &(u16, Vec<u8>), record: &Record<'_>) -> bool {
    purged.get(key).is_some_and(|(seqno, kind)| {
        record.seqno == *seqno && is_purgeable(record.kind)
            || record.seqno < *seqno && hides(*kind, record.kind)
    })
}

/// Removes the candidates that have to stay because this run holds what they hide, or cannot be read.
fn check<D: Disk>(reading: &mut Reading, segment: &Segment<D>, run: &Run, candidates: &mut Candidates) {
    let mut key = (run.vbucket(), Vec::new());
    let read = reading.records(segment, run, &mut |record, _| {
        key.1.clear();
        key.1.extend_from_slice(record.key);
        if candidates
            .get(&key)
            .is_some_and(|(seqno, hider)| record.seqno < *seqno && hides(*hider, record.kind))
        {
            candidates.remove(&key);
        }
    });
    if read.is_err() {
        candidates.retain(|(vbucket, _), _| *vbucket != run.vbucket());
    }
}

/// Estimates how much of a segment is live, from a few runs.
fn sample<D: Disk>(
    segment: &Arc<Segment<D>>,
    sampled: usize,
    (purge_before, old_kept): (u32, &mut OldKept),
    batch: u64,
    judge: Judge<'_>,
) -> Result<Sample, Damage> {
    let runs = runs_of(segment, Segment::runs_in_any_order)?;
    let (mut live, mut ends, mut all) = (0_u64, 0_u64, 0_u64);
    let mut reading = Reading::new();
    let step = runs.len().div_ceil(sampled).max(NEIGHBOURS);
    for runs in runs.chunks(step) {
        let mut newest = Newest::default();
        for run in runs.iter().take(NEIGHBOURS) {
            reading.records(segment, run, &mut |record, apart| {
                let length = record.encoded_bytes() as u64 + apart.map_or(0, |apart| u64::from(apart.bytes));
                all += length;
                let verdict = judge(run.vbucket(), record);
                let is_live = match verdict {
                    Verdict::Live | Verdict::Kept => true,
                    Verdict::LiveIfNewest => !newest.note(run.vbucket(), record),
                    Verdict::Dead => false,
                };
                live += if is_live { length } else { 0 };
                let is_young = record.kind == Kind::Tombstone && record.expiry >= purge_before;
                note_old_kept(old_kept, run.vbucket(), record, verdict, purge_before);
                let stays = verdict == Verdict::Kept || is_young && verdict == Verdict::Live;
                ends += if stays { length } else { 0 };
            })?;
        }
    }
    let thousandths = |part: u64| part * 1000 / all.max(1);
    Ok(Sample { live_thousandths: thousandths(live), ends_thousandths: thousandths(ends), batch })
}

/// The average over all samples.
fn ends_thousandths(samples: &BTreeMap<u64, Sample>) -> u64 {
    let sum: u64 = samples.values().map(|sample| sample.ends_thousandths).sum();
    sum / (samples.len() as u64).max(1)
}

/// What a step may still read. The first run is read in any case.
struct Budget {
    bytes: usize,
    is_started: bool,
}

impl Budget {
    fn allows(&mut self, run: &Run) -> bool {
        let allows = !self.is_started || self.bytes >= run.bytes as usize;
        self.is_started = true;
        if allows {
            self.bytes = self.bytes.saturating_sub(run.bytes as usize);
        }
        allows
    }
}

/// The buffer that runs are read through. A record that is longer stays on disk.
#[derive(Debug)]
struct Reading {
    buffer: Buffer,
}

impl Reading {
    fn new() -> Self {
        Self { buffer: Buffer::new(RUN_BYTES_MAX) }
    }

    /// The segment up to `end`, to be read from front to back.
    fn passage<'a, D: Disk>(&'a mut self, segment: &'a Segment<D>, end: u64) -> Passage<'a, D> {
        let window = segment.file().map(|file| Window::new(file, &mut self.buffer, end));
        Passage { segment, window }
    }

    /// Passes the records of a run to `show`. If the run is damaged, the segment is marked as such.
    fn records<D: Disk>(
        &mut self,
        segment: &Segment<D>,
        run: &Run,
        show: &mut dyn FnMut(&Record<'_>, Option<Apart>),
    ) -> Result<(), Damage> {
        self.passage(segment, run.end()).records(run, show)
    }
}

/// A part of a segment that is being read.
struct Passage<'a, D: Disk> {
    segment: &'a Segment<D>,
    window: io::Result<Window<'a, D::File>>,
}

impl<D: Disk> Passage<'_, D> {
    fn records(&mut self, run: &Run, show: &mut dyn FnMut(&Record<'_>, Option<Apart>)) -> Result<(), Damage> {
        let flaw = match &mut self.window {
            Ok(window) => scan_run(window, self.segment.origin, run, show),
            Err(_) => Ok(Some((run.offset(), Part::Run))),
        };
        let flaw = flaw.unwrap_or(Some((run.offset(), Part::Run)));
        let Some((offset, part)) = flaw else { return Ok(()) };
        self.segment.state_mut().damaged = true;
        let path = self.segment.path.clone();
        Err(Damage { path, offset, spoils: Spoils::VBucket(run.vbucket()), part })
    }
}
