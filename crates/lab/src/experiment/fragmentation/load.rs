//! A model of a load's items: writes are derived from it, and values read back are compared with it.

use crate::documents::Documents;
use crate::process;
use crate::random::Random;
use crate::subject::Server;
use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};

/// Interval at which the resident size is sampled.
const LOOK: Duration = Duration::from_millis(20);
/// Items read back at the end of a step.
const VERIFIED: u32 = 2_000;
/// Documents that are read in one batch, to be rewritten.
const READ_DOCUMENTS: usize = 64;
/// Bytes of each object of a document, which is an array: `[`, then each object with its comma or the closing bracket.
const OBJECT_BYTES: usize = 61;
/// Random bytes that values are cut from.
const NOISE_BYTES: usize = 1 << 20;

/// Length of the shortest keys.
pub const KEY_LEAST: u8 = 12;
/// Length of a document's key: `AB_`, 12 digits, `_0`.
pub const DOCUMENT_KEY: u8 = 17;

/// Length of a document of this many objects.
pub fn document_bytes(objects: u32) -> u16 {
    u16::try_from(1 + objects as usize * OBJECT_BYTES).unwrap_or(u16::MAX)
}

/// What values are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// JSON arrays of equal objects.
    Objects,
    /// Random bytes, different for each item.
    Noise,
}

/// One item as it should be. It exists if `key_bytes` is not 0.
#[derive(Clone, Copy, Debug, Default)]
struct Item {
    key_bytes: u8,
    value_bytes: u16,
}

/// A load on one server.
pub struct Load {
    documents: Documents,
    items: Vec<Item>,
    content: Content,
    noise: Vec<u8>,
    /// Random numbers of the load: the same on each server.
    pub random: Random,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Key and value bytes of the existing items.
    pub payload_bytes: u64,
    /// Number of existing items.
    pub count: u32,
    watch: Watch,
}

/// Samples of the server's resident size, one per [`LOOK`] during the load.
struct Watch {
    pid: u32,
    looked: Instant,
    samples: Vec<u64>,
}

impl Watch {
    fn look(&mut self) -> Result<()> {
        if self.looked.elapsed() >= LOOK {
            self.samples.push(process::resident_bytes(self.pid)?);
            self.looked = Instant::now();
        }
        Ok(())
    }
}

impl Load {
    /// An empty load.
    pub fn new(server: &Server, content: Content) -> Result<Self> {
        let mut noise = vec![0; NOISE_BYTES];
        Random::new(3).fill(&mut noise);
        Ok(Self {
            documents: Documents::connect(&server.target)?,
            items: Vec::new(),
            content,
            noise,
            random: Random::new(11),
            key: Vec::new(),
            value: Vec::new(),
            payload_bytes: 0,
            count: 0,
            watch: Watch { pid: server.pid, looked: Instant::now(), samples: Vec::new() },
        })
    }

    /// A random number from `from` to `to`, both inclusive.
    pub fn between(&mut self, from: u32, to: u32) -> u32 {
        from + Random::below(self.random.next(), to - from + 1)
    }

    /// One above the highest item number used so far.
    pub fn numbers(&self) -> u32 {
        self.items.len() as u32
    }

    /// Lengths of an item's key and value; `None` if it does not exist.
    pub fn bytes_of(&self, number: u32) -> Option<(u8, u16)> {
        let item = self.items.get(number as usize).filter(|item| item.key_bytes > 0)?;
        Some((item.key_bytes, item.value_bytes))
    }

    /// Writes an item. If it already exists, it keeps its key.
    pub fn put(&mut self, number: u32, key_bytes: u8, value_bytes: u16) -> Result<()> {
        let lane = self.documents.lane_of(number);
        write_key(number, key_bytes, &mut self.key);
        let source = Source { content: self.content, noise: &self.noise };
        source.write(number, usize::from(value_bytes), &mut self.value);
        let is_sent = self.documents.set(lane, &self.key, &self.value)?;
        self.note(number, Item { key_bytes, value_bytes });
        if is_sent { self.watch.look() } else { Ok(()) }
    }

    /// Deletes an item.
    pub fn remove(&mut self, number: u32) -> Result<()> {
        let (key_bytes, _) = self.bytes_of(number).context("an item is deleted that is not there")?;
        self.remove_key(number, key_bytes)?;
        self.note(number, Item::default());
        Ok(())
    }

    fn remove_key(&mut self, number: u32, key_bytes: u8) -> Result<()> {
        write_key(number, key_bytes, &mut self.key);
        let is_sent = self.documents.delete(self.documents.lane_of(number), &self.key)?;
        if is_sent { self.watch.look() } else { Ok(()) }
    }

    /// Writes an item under a longer key, and deletes it under its old one.
    pub fn rename(&mut self, number: u32, key_bytes: u8) -> Result<()> {
        let (former, value_bytes) = self.bytes_of(number).context("an item is renamed that is not there")?;
        self.put(number, key_bytes, value_bytes)?;
        self.remove_key(number, former)
    }

    fn note(&mut self, number: u32, item: Item) {
        if self.items.len() <= number as usize {
            self.items.resize(number as usize + 1, Item::default());
        }
        let Some(place) = self.items.get_mut(number as usize) else { return };
        let former = std::mem::replace(place, item);
        let bytes = |item: Item| u64::from(item.key_bytes) + u64::from(item.value_bytes);
        self.payload_bytes = self.payload_bytes + bytes(item) - bytes(former);
        self.count += u32::from(item.key_bytes > 0);
        self.count -= u32::from(former.key_bytes > 0);
    }

    /// `picks` times: picks one of the first `among` documents, reads it, appends an object and writes it.
    pub fn append(&mut self, picks: u32, among: u32) -> Result<()> {
        self.documents.finish()?;
        let lanes = self.documents.lanes();
        let mut reading = vec![Vec::new(); lanes];
        let mut left = picks;
        while left > 0 || reading.iter().any(|numbers| !numbers.is_empty()) {
            for (lane, numbers) in reading.iter_mut().enumerate() {
                if numbers.is_empty() {
                    self.pick(lane, among / lanes as u32, &mut left, numbers)?;
                } else {
                    self.grow(lane, numbers)?;
                    numbers.clear();
                }
                self.watch.look()?;
            }
        }
        self.documents.finish()
    }

    /// Requests distinct documents of a lane.
    fn pick(&mut self, lane: usize, among: u32, left: &mut u32, numbers: &mut Vec<u32>) -> Result<()> {
        ensure!(among > 0, "too few documents");
        for _ in 0..READ_DOCUMENTS.min(*left as usize) {
            let pick = Random::below(self.random.next(), among);
            let number = pick * self.documents.lanes() as u32 + lane as u32;
            if !numbers.contains(&number) {
                write_key(number, DOCUMENT_KEY, &mut self.key);
                self.documents.get(lane, &self.key)?;
                numbers.push(number);
                *left -= 1;
            }
        }
        self.documents.push(lane)
    }

    /// Receives the documents of a lane, and writes each with one more object.
    fn grow(&mut self, lane: usize, numbers: &[u32]) -> Result<()> {
        let source = Source { content: self.content, noise: &self.noise };
        let (items, value, mut read) = (&self.items, &mut self.value, numbers.iter());
        self.documents.collect(lane, |found| {
            let &number = read.next().context("more documents than were asked for")?;
            source.write(number, items.get(number as usize).map_or(0, |item| item.value_bytes.into()), value);
            ensure!(found == value, "document {number} is not as it was written");
            Ok(())
        })?;
        for &number in numbers {
            let (key_bytes, value_bytes) = self.bytes_of(number).context("no such document")?;
            self.put(number, key_bytes, value_bytes + OBJECT_BYTES as u16)?;
        }
        self.documents.push(lane)
    }

    /// Waits for all answers, and reads some items back.
    pub fn finish_step(&mut self) -> Result<()> {
        self.documents.finish()?;
        let mut random = Random::new(5);
        for _ in 0..VERIFIED.min(self.numbers()) {
            let number = Random::below(random.next(), self.numbers());
            let Some((key_bytes, value_bytes)) = self.bytes_of(number) else { continue };
            let lane = self.documents.lane_of(number);
            write_key(number, key_bytes, &mut self.key);
            let source = Source { content: self.content, noise: &self.noise };
            source.write(number, value_bytes.into(), &mut self.value);
            self.documents.get(lane, &self.key)?;
            self.documents.push(lane)?;
            let value = &self.value;
            self.documents.collect(lane, |found| {
                ensure!(found == value, "item {number} is not as it was written");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// 99th percentile of the resident size during the load so far.
    pub fn resident_p99(&self) -> u64 {
        let mut sorted = self.watch.samples.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * 99).div_ceil(100).saturating_sub(1);
        sorted.get(rank).copied().unwrap_or(0)
    }
}

fn write_key(number: u32, bytes: u8, key: &mut Vec<u8>) {
    let digits = usize::from(bytes.saturating_sub(5));
    key.clear();
    key.extend_from_slice(format!("AB_{number:0digits$}_0").as_bytes());
}

/// Where values come from.
#[derive(Clone, Copy)]
struct Source<'a> {
    content: Content,
    noise: &'a [u8],
}

impl Source<'_> {
    /// Writes the value of an item of this length.
    fn write(self, number: u32, bytes: usize, value: &mut Vec<u8>) {
        value.clear();
        match self.content {
            Content::Objects => {
                let object = format!(r#"{{"id":"{number:010}","field":"0123456789","flag":true,"n":123}},"#);
                value.push(b'[');
                (0..bytes / OBJECT_BYTES).for_each(|_| value.extend_from_slice(object.as_bytes()));
                if let Some(last) = value.last_mut() {
                    *last = b']';
                }
            }
            Content::Noise => {
                let at =
                    Random::new(number.into()).next() as usize % (self.noise.len() - usize::from(u16::MAX));
                value.extend_from_slice(self.noise.get(at..at + bytes).unwrap_or_default());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_length_that_is_asked_for() {
        let noise = vec![7; NOISE_BYTES];
        let mut value = Vec::new();
        for objects in [11, 22, 60] {
            let source = Source { content: Content::Objects, noise: &noise };
            source.write(4_999_999, document_bytes(objects).into(), &mut value);
            assert_eq!(value.len(), usize::from(document_bytes(objects)));
            let parsed: Vec<serde_json::Value> = serde_json::from_slice(&value).unwrap();
            assert_eq!(parsed.len(), objects as usize);
        }
        Source { content: Content::Noise, noise: &noise }.write(9, 8192, &mut value);
        assert_eq!(value.len(), 8192);
        assert_eq!((document_bytes(11), document_bytes(22)), (672, 1343));
    }

    #[test]
    fn keys_have_the_length_that_is_asked_for() {
        let mut key = Vec::new();
        for bytes in [KEY_LEAST, DOCUMENT_KEY, 228] {
            write_key(5_000_000, bytes, &mut key);
            assert_eq!(key.len(), usize::from(bytes));
        }
        write_key(7, DOCUMENT_KEY, &mut key);
        assert_eq!(key, b"AB_000000000007_0");
    }
}
