//! A batch: what one sync commits.
//!
//! Records are encoded straight into the buffer, after a header of their run that is filled in later. A run ends with
//! its vBucket, at 64 KiB, or when the buffer is written out. A batch that fits the buffer takes one write and one
//! sync.

use super::WriteError;
use super::buffer::Buffer;
use super::commit::{Commit, CopyMark};
use super::format::{MAX_48, Origin, checksum};
use super::record::{Kind, Record};
use super::replay::Apart;
use super::run::{ENTRY_BYTES, RUN_BYTES_MAX, RUN_HEADER_BYTES, Run};
use super::shard::Shard;
use crate::Disk;
use std::io;

/// A batch that is being written. If it is dropped without a commit, it never existed.
///
/// After an error it is unusable: drop it.
#[derive(Debug)]
pub struct Batch<'a, D: Disk> {
    shard: &'a mut Shard<D>,
    buffer: &'a mut Buffer,
    number: u64,
    origin: Origin,
    /// Where the batch begins in the segment.
    start: u64,
    /// Offset in the segment of the buffer's first byte.
    base: u64,
    vbucket: u16,
    run: Option<OpenRun>,
}

/// A run whose header is yet to be filled in.
#[derive(Debug)]
struct OpenRun {
    /// Position of its header in the buffer.
    position: usize,
    first: u64,
    last: u64,
    records: u32,
}

/// What a commit did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// The number of the batch; `None` if nothing was pushed.
    pub batch: Option<u64>,
    /// Its bytes in the file.
    pub bytes: u64,
}

/// A longer list of runs is not kept for the next batch.
const LIST_KEPT: usize = 1024;

impl<'a, D: Disk> Batch<'a, D> {
    pub(super) fn new(shard: &'a mut Shard<D>, buffer: &'a mut Buffer) -> Self {
        buffer.hold();
        let (number, start, origin) = shard.begin_attempt(buffer);
        shard.batch_runs.clear();
        let base = start - buffer.bytes.len() as u64;
        Self { shard, buffer, number, origin, start, base, vbucket: 0, run: None }
    }

    /// Sets the vBucket of the records that follow.
    pub fn begin(&mut self, vbucket: u16) {
        assert!(vbucket < self.shard.identity.vbuckets);
        if vbucket != self.vbucket {
            self.end_run();
            self.vbucket = vbucket;
        }
    }

    /// Returns true if a record of `record_bytes` encoded bytes can be pushed before the buffer is written out.
    #[inline]
    pub fn fits(&self, record_bytes: usize) -> bool {
        record_bytes + RUN_HEADER_BYTES <= self.buffer.free()
    }

    /// Returns true if it can be pushed at all. A longer one needs [`Self::push_long`].
    pub fn fits_buffer(&self, record_bytes: usize) -> bool {
        record_bytes + RUN_HEADER_BYTES <= self.buffer.capacity()
    }

    /// Encodes a record that [`Self::fits`]. No I/O.
    #[inline]
    pub fn push(&mut self, record: &Record<'_>) {
        let record_bytes = record.encoded_bytes();
        assert!(self.fits(record_bytes), "the record must fit the buffer");
        let position = self.buffer.bytes.len();
        if self.run.as_ref().is_some_and(|run| position - run.position + record_bytes > RUN_BYTES_MAX) {
            self.end_run();
        }
        let run = self.run.get_or_insert_with(|| {
            self.buffer.bytes.extend_from_slice(&[0; RUN_HEADER_BYTES]);
            OpenRun { position, first: MAX_48, last: 0, records: 0 }
        });
        if record.kind != Kind::State {
            run.first = run.first.min(record.seqno);
            run.last = run.last.max(record.seqno);
        }
        run.records += 1;
        let offset = self.base + self.buffer.bytes.len() as u64;
        record.encode(&mut self.buffer.bytes, self.origin, offset);
    }

    /// Writes out the buffer, since something does not fit. It is then empty, and what [`Self::fits_buffer`] fits.
    pub fn write_out(&mut self) -> Result<(), WriteError> {
        self.write()?;
        self.buffer.grow();
        Ok(())
    }

    fn write(&mut self) -> Result<(), WriteError> {
        self.end_run();
        if !self.buffer.bytes.is_empty() {
            self.shard.write(&self.buffer.bytes, self.base)?;
            self.base += self.buffer.bytes.len() as u64;
            self.buffer.bytes.clear();
        }
        Ok(())
    }

    /// Writes a record that is longer than the buffer, without copying its value.
    pub fn push_long(&mut self, record: &Record<'_>) -> Result<(), WriteError> {
        self.write()?;
        let length = u32::try_from(RUN_HEADER_BYTES + record.encoded_bytes());
        let length = length.map_err(|_| WriteError::too_long())?;
        let seqno = if record.kind == Kind::State { 0 } else { record.seqno };
        let run = Run::new(self.vbucket, self.base, seqno, seqno, length, 1);
        self.buffer.bytes.extend_from_slice(&run.header(self.origin, self.number));
        let offset = self.base + RUN_HEADER_BYTES as u64;
        record.encode_without_value(&mut self.buffer.bytes, self.origin, offset);
        self.write()?;
        self.shard.write(record.value, self.base)?;
        self.base += record.value.len() as u64;
        self.shard.batch_runs.push(run);
        Ok(())
    }

    /// Writes a record whose value lies in another segment. Returns false, with nothing written of it, if the value
    /// is no longer as it was.
    pub(super) fn push_apart(
        &mut self,
        record: &Record<'_>,
        apart: &Apart,
        from: &D::File,
        piece: &mut Vec<u8>,
    ) -> Result<bool, WriteError> {
        self.write()?;
        let front_bytes = record.encoded_bytes();
        let length = (RUN_HEADER_BYTES + front_bytes) as u64 + u64::from(apart.bytes);
        let length = u32::try_from(length).map_err(|_| WriteError::too_long())?;
        let seqno = if record.kind == Kind::State { 0 } else { record.seqno };
        let run = Run::new(self.vbucket, self.base, seqno, seqno, length, 1);
        let offset = self.base + RUN_HEADER_BYTES as u64;
        let (mut front, mut is_as_it_was) = (Vec::with_capacity(front_bytes), true);
        let sum_of = |mut sum| {
            is_as_it_was = apart.read(from, piece, &mut |bytes| {
                sum = checksum(sum, bytes);
                Ok(())
            })?;
            Ok(sum)
        };
        record.encode_front(apart.bytes, sum_of, &mut front, self.origin, offset).map_err(WriteError::of)?;
        if !is_as_it_was {
            return Ok(false);
        }
        self.buffer.bytes.extend_from_slice(&run.header(self.origin, self.number));
        self.buffer.bytes.extend_from_slice(&front);
        self.write()?;
        let (shard, base) = (&mut *self.shard, &mut self.base);
        let mut failed = Ok(());
        // What is written differs from its checksum if it is not what was read for that.
        let read = apart.read(from, piece, &mut |bytes| {
            failed = shard.write(bytes, *base);
            *base += bytes.len() as u64;
            failed.as_ref().map_err(|_| io::Error::other("not written")).copied()
        });
        failed?;
        if !read.map_err(WriteError::of)? {
            return Err(WriteError::of(io::Error::new(
                io::ErrorKind::InvalidData,
                "a value changed while it was copied",
            )));
        }
        self.shard.batch_runs.push(run);
        Ok(true)
    }

    /// Makes the batch durable: one write if all of it is still in the buffer, and one sync.
    pub fn commit(self, max_cas: u64) -> Result<Committed, WriteError> {
        let mark = self.shard.copy_mark;
        self.commit_copy(max_cas, mark)
    }

    /// Commits what compaction copied.
    pub(super) fn commit_copy(mut self, max_cas: u64, mark: CopyMark) -> Result<Committed, WriteError> {
        self.end_run();
        if self.shard.batch_runs.is_empty() {
            return Ok(Committed { batch: None, bytes: 0 });
        }
        let max_cas = self.shard.max_cas.max(max_cas);
        if self.buffer.free() < super::commit::COMMIT_BYTES {
            self.write_out()?;
        }
        let offset = self.base + self.buffer.bytes.len() as u64;
        let commit = Commit::new(self.number, self.start, max_cas, self.shard.synced_batch, mark, false);
        let head = commit.encode(&self.shard.batch_runs, self.origin, offset);
        self.buffer.bytes.extend_from_slice(&head);
        for index in 0..self.shard.batch_runs.len() {
            if self.buffer.free() < ENTRY_BYTES {
                self.write_out()?;
            }
            if let Some(run) = self.shard.batch_runs.get(index) {
                self.buffer.bytes.extend_from_slice(&run.entry());
            }
        }
        self.write()?;
        self.shard.settle(self.base, false)?;
        self.shard.note_commit();
        self.shard.max_cas = max_cas;
        self.shard.copy_mark = mark;
        if self.shard.batch_runs.len() > LIST_KEPT {
            self.shard.batch_runs = Vec::new();
        }
        Ok(Committed { batch: Some(self.number), bytes: self.base - self.start })
    }

    /// Fills in the header of the run.
    fn end_run(&mut self) {
        let Some(run) = self.run.take() else { return };
        let length = (self.buffer.bytes.len() - run.position) as u32;
        let first = if run.last == 0 { 0 } else { run.first };
        let offset = self.base + run.position as u64;
        let ended = Run::new(self.vbucket, offset, first, run.last, length, run.records);
        let header = ended.header(self.origin, self.number);
        if let Some(place) = self.buffer.bytes.get_mut(run.position..run.position + RUN_HEADER_BYTES) {
            place.copy_from_slice(&header);
        }
        self.shard.batch_runs.push(ended);
    }
}
