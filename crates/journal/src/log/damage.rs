//! What is damaged, where, and which vBuckets it affects.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Something in a shard that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The segment, or the manifest.
    pub path: PathBuf,
    /// Offset in the file.
    pub offset: u64,
    /// What cannot be served as if nothing had happened.
    pub spoils: Spoils,
    /// What is not readable.
    pub part: Part,
}

/// What damage spoils.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spoils {
    /// No record is lost.
    Nothing,
    /// Records of this vBucket.
    VBucket(u16),
    /// Records of these vBuckets, in ascending order.
    VBuckets(Arc<[u16]>),
    /// Records of unknown vBuckets.
    Everything,
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A segment's first bytes.
    Header,
    /// A run's header.
    Run,
    /// A record.
    Record,
    /// A commit record.
    Commit,
    /// More of a batch than a commit record.
    Batch,
    /// Everything up to this offset, which is known to have been synced.
    Tail(u64),
    /// The tables at the end of a sealed segment.
    Footer,
    /// The manifest, or one of the two copies in it.
    Manifest,
    /// The manifest is from before what is known to be synced.
    OldManifest,
    /// A file that must exist does not.
    Missing,
    /// The file is the segment of this number under another name.
    Misnamed(u64),
    /// The file is not the segment that was written under this name.
    Replaced,
    /// The file was written to more than once, and the manifest does not name it: one of the two is out of date.
    Unnamed,
}

impl Part {
    /// Returns true if files are missing or mixed up, rather than bytes in them.
    pub(super) fn is_of_files(self) -> bool {
        matches!(
            self,
            Self::Missing
                | Self::Misnamed(_)
                | Self::Replaced
                | Self::Unnamed
                | Self::OldManifest
                | Self::Tail(_)
        )
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: ", self.path.display())?;
        let mut say = |what| self.write_line(formatter, what);
        let part = match self.part {
            Part::Missing => return say(format_args!("the file is missing")),
            Part::Misnamed(number) => {
                return say(format_args!("the file holds segment {number}, not the one of its name"));
            }
            Part::Replaced => {
                return say(format_args!("the file is not the segment that was written under this name"));
            }
            Part::Unnamed => {
                return say(format_args!(
                    "the manifest does not name this segment: one of the two is out of date"
                ));
            }
            Part::OldManifest => {
                return say(format_args!("the manifest is older than what was synced after it"));
            }
            Part::Tail(end) => {
                let from = self.offset;
                return say(format_args!("what was synced from offset {from} to {end} is not there"));
            }
            Part::Header => "segment header",
            Part::Run => "header of a run",
            Part::Record => "record",
            Part::Commit => "commit record",
            Part::Batch => "batch",
            Part::Footer => "footer",
            Part::Manifest => "manifest",
        };
        self.write_line(formatter, format_args!("damaged {part} at offset {}", self.offset))
    }
}

impl Damage {
    fn write_line(&self, formatter: &mut fmt::Formatter<'_>, what: fmt::Arguments<'_>) -> fmt::Result {
        write!(formatter, "{what}: ")?;
        match &self.spoils {
            Spoils::Nothing => formatter.write_str("no record is lost"),
            Spoils::VBucket(vbucket) => write!(formatter, "vBucket {vbucket} is not whole"),
            Spoils::VBuckets(vbuckets) => {
                formatter.write_str("not whole: vBuckets ")?;
                write_ranges(formatter, vbuckets)
            }
            Spoils::Everything => formatter.write_str("any vBucket of the shard may not be whole"),
        }
    }
}

/// Writes `0-3, 7` for 0, 1, 2, 3, 7.
fn write_ranges(formatter: &mut fmt::Formatter<'_>, vbuckets: &[u16]) -> fmt::Result {
    let mut separator = "";
    for range in vbuckets.chunk_by(|a, b| a + 1 == *b) {
        let (Some(first), Some(last)) = (range.first(), range.last()) else { continue };
        write!(formatter, "{separator}{first}")?;
        if first != last {
            write!(formatter, "-{last}")?;
        }
        separator = ", ";
    }
    Ok(())
}
