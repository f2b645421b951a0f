//! `dormouse journal dump`.

use super::{Shard, shards};
use journal::RealDisk;
use journal::log::{Buffer, Dumped, Kind, Record, dump};
use std::io::{self, BufWriter, Write};
use std::path::Path;

pub fn run(directory: &Path, values: bool) -> anyhow::Result<()> {
    let (disk, mut buffer) = (RealDisk::default(), Buffer::default());
    let mut out = BufWriter::new(io::stdout().lock());
    let mut written = Ok(());
    for Shard { directory: shard, has_begun } in shards(directory)? {
        dump(&disk, &shard, &mut buffer, has_begun, &mut |dumped| {
            if written.is_ok() {
                written = line(&mut out, &dumped, values);
            }
        })?;
    }
    match written.and_then(|()| out.flush()) {
        // `dump DIR | head`: the reader has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

fn line(out: &mut impl Write, dumped: &Dumped<'_>, values: bool) -> io::Result<()> {
    match dumped {
        Dumped::Manifest { segments, .. } => writeln!(out, "manifest: {segments} segments"),
        Dumped::Segment { path, bytes, is_sealed, torn_bytes, .. } => {
            let state = if *is_sealed { "sealed" } else { "open" };
            write!(out, "segment {} {bytes} {state}", path.display())?;
            if *torn_bytes > 0 {
                write!(out, ", {torn_bytes} bytes of an unfinished batch at the end")?;
            }
            writeln!(out)
        }
        Dumped::Batch { number, offset, end, max_cas, is_close } => {
            let close = if *is_close { ", a clean stop" } else { "" };
            writeln!(out, "batch {number} at {offset} to {end} highest CAS {max_cas}{close}")
        }
        Dumped::Run { vbucket, offset, records, .. } => {
            writeln!(out, "run vBucket {vbucket} at {offset}, {records} records")
        }
        Dumped::Record(vbucket, record) => show(out, *vbucket, record, values),
        Dumped::Damage(damage) => writeln!(out, "DAMAGE {damage}"),
        _ => Ok(()),
    }
}

fn show(out: &mut impl Write, vbucket: u16, record: &Record<'_>, values: bool) -> io::Result<()> {
    let kind = match record.kind {
        Kind::Document => "document",
        Kind::Tombstone => "tombstone",
        Kind::Prepare => "prepare",
        Kind::PrepareDelete => "prepare-delete",
        Kind::Abort => "abort",
        Kind::State => "state",
    };
    let Record { seqno, cas, rev, expiry, flags, datatype, .. } = record;
    write!(
        out,
        "{kind} vb={vbucket} seqno={seqno} cas={cas} rev={rev} expiry={expiry} flags={flags} datatype={datatype} \
        key=\"{}\" value={} bytes",
        record.key.escape_ascii(),
        record.value.len()
    )?;
    if values {
        write!(out, " \"{}\"", record.value.escape_ascii())?;
    }
    writeln!(out)
}
