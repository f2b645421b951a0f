//! What is damaged, where, and whom it spoils.

use std::fmt;
use std::path::PathBuf;

/// Something in a segment that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The segment.
    pub path: PathBuf,
    /// Where in the segment.
    pub offset: u64,
    /// What cannot be served as if nothing had happened.
    pub spoils: Spoils,
    /// What is not readable.
    pub part: Part,
}

/// What damage spoils.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spoils {
    /// No record is lost.
    Nothing,
    /// Records of this vBucket.
    VBucket(u16),
    /// Records of nobody knows which vBuckets.
    Everything,
}

/// A part of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Its first bytes.
    Header,
    /// A run's header.
    Run,
    /// A record.
    Record,
    /// A commit record.
    Commit,
    /// More of a batch than a commit record.
    Batch,
    /// The tables at the end of a sealed segment.
    Footer,
}

impl fmt::Display for Damage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = match self.part {
            Part::Header => "segment header",
            Part::Run => "header of a run",
            Part::Record => "record",
            Part::Commit => "commit record",
            Part::Batch => "batch",
            Part::Footer => "footer",
        };
        write!(formatter, "{}: damaged {part} at offset {}: ", self.path.display(), self.offset)?;
        match self.spoils {
            Spoils::Nothing => formatter.write_str("no record is lost"),
            Spoils::VBucket(vbucket) => write!(formatter, "vBucket {vbucket} is not whole"),
            Spoils::Everything => formatter.write_str("any vBucket of the shard may not be whole"),
        }
    }
}
