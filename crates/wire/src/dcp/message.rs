//! The messages of a stream: requests of the producer, which the consumer does not answer.
//!
//! ```text
//!   MUTATION     seqno 8 | revision 8 | flags 4 | expiry 4 | lock time 4 | 0 2 | 0 1              key, value
//!   DELETION     seqno 8 | revision 8 | 0 2, or: seqno 8 | revision 8 | when 4 | 0 1              key, [value]
//!   EXPIRATION   seqno 8 | revision 8 | when 4                                                    key, [value]
//!   PREPARE      seqno 8 | revision 8 | flags 4 | expiry 4 | lock time 4 | 0 1 | deleted 1 | level 1   key, value
//!   COMMIT, ABORT   seqno of the prepare 8 | seqno 8                                              key
//!   SNAPSHOT_MARKER   start 8 | end 8 | kind 4, or: version 1, and the rest is the value
//!   SYSTEM_EVENT   seqno 8 | event 4 | version 1                                                  [name], value
//!   STREAM_END   reason 4        SEQNO_ADVANCED   seqno 8        OSO_SNAPSHOT   1 or 2, 4         NOOP
//! ```
//! Keys are as on the wire: with their collection id where collections were negotiated. The CAS is in the header. A
//! message of a stream that has an id carries it as a frame info.

use arrayvec::ArrayVec;

use crate::binary::{HEADER_LEN, Header, Magic, Opcode, Request};
use crate::couchbase::FrameInfos;

/// Frame info id 2, length 2: the id of a stream.
const STREAM_ID_INFO: u8 = 0x22;
const STREAM_ID_BYTES: usize = 3;
/// Longest extras.
const EXTRAS_MAX: usize = 31;
/// Longest value of a marker.
const MARKER_VALUE_MAX: usize = 52;
/// Room for the longest head.
const HEAD_MAX: usize = HEADER_LEN + STREAM_ID_BYTES + EXTRAS_MAX;

/// What is wrong with a request or a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// Which stream a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The stream's vBucket.
    pub vbucket: u16,
    /// That of the request for the stream.
    pub opaque: u32,
    /// The stream's id, if the connection has several for a vBucket.
    pub stream_id: Option<u16>,
}

/// What a snapshot is made of.
pub mod snapshot_kind {
    /// Of what is in memory.
    pub const MEMORY: u32 = 0x01;
    /// Of what was on disk.
    pub const DISK: u32 = 0x02;
    /// A replica may take its end as a point of consistency.
    pub const CHECKPOINT: u32 = 0x04;
    /// The consumer answers when it has all of it.
    pub const ACKNOWLEDGE: u32 = 0x08;
    /// A key may come more than once.
    pub const MAY_REPEAT_KEYS: u32 = 0x20;
}

/// The form of a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum MarkerForm {
    /// Start, end and kind in the extras.
    #[default]
    V1,
    /// With [`Seqnos::visible`] and [`Seqnos::completed`].
    V2,
    /// With [`Seqnos::purged`] and [`Seqnos::prepared`] as well.
    V22,
}

/// What a marker says beyond its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seqnos {
    /// The highest seqno of a document that clients can see.
    pub visible: u64,
    /// The highest prepare that has ended; meaningful in snapshots from disk.
    pub completed: u64,
    /// Deletions up to here may have been purged.
    pub purged: u64,
    /// The highest prepare; meaningful in snapshots from disk.
    pub prepared: u64,
}

/// SNAPSHOT_MARKER: what follows up to `end` belongs together; between its messages there is no consistent state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marker {
    /// Where it starts.
    pub start: u64,
    /// Its highest seqno.
    pub end: u64,
    /// See [`snapshot_kind`].
    pub kind: u32,
    /// Which of the seqnos it carries.
    pub form: MarkerForm,
    /// The others are 0.
    pub seqnos: Seqnos,
}

/// A version of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mutation<'a> {
    /// Its seqno.
    pub seqno: u64,
    /// Its revision.
    pub rev: u64,
    /// Its CAS.
    pub cas: u64,
    /// The client's flags.
    pub flags: u32,
    /// When it expires, 0 for never.
    pub expiry: u32,
    /// Until when it is locked.
    pub lock_time: u32,
    /// Bits of the value.
    pub datatype: u8,
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
}

/// A deletion or an expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Deletion<'a> {
    /// Its seqno.
    pub seqno: u64,
    /// The document's revision.
    pub rev: u64,
    /// The document's CAS.
    pub cas: u64,
    /// When it happened, in unix seconds. `None` for a deletion in the form without it.
    pub deleted_s: Option<u32>,
    /// Bits of the value.
    pub datatype: u8,
    /// Its key.
    pub key: &'a [u8],
    /// What is left of the value: extended attributes.
    pub value: &'a [u8],
}

/// A version of a document that has yet to be committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Prepare<'a> {
    /// What the document is to become.
    pub mutation: Mutation<'a>,
    /// It is to be deleted.
    pub is_deletion: bool,
    /// Its durability level, 1 to 3.
    pub level: u8,
}

/// The end of a prepare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct End<'a> {
    /// The prepare's seqno.
    pub prepared: u64,
    /// The seqno of its end.
    pub seqno: u64,
    /// The document's key.
    pub key: &'a [u8],
}

/// What has happened to collections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemEvent<'a> {
    /// Its seqno.
    pub seqno: u64,
    /// The manifest that it leads to.
    pub manifest: u64,
    /// What has happened.
    pub event: Event<'a>,
}

/// An event of a collection or a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// A collection was created.
    CreateCollection {
        /// Its scope.
        scope: u32,
        /// Its id.
        id: u32,
        /// The longest that its documents live, if that is limited.
        max_ttl: Option<u32>,
        /// Its name.
        name: &'a [u8],
    },
    /// A collection was dropped.
    DropCollection {
        /// Its scope.
        scope: u32,
        /// Its id.
        id: u32,
    },
    /// A scope was created.
    CreateScope {
        /// Its id.
        id: u32,
        /// Its name.
        name: &'a [u8],
    },
    /// A scope was dropped.
    DropScope {
        /// Its id.
        id: u32,
    },
}

/// Why a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum EndReason {
    /// Its end is reached.
    Done = 0,
    /// The consumer has closed it.
    Closed = 1,
    /// The vBucket is in another state.
    StateChanged = 2,
    /// The connection is about to be closed.
    Disconnected = 3,
    /// The consumer is too slow.
    TooSlow = 4,
    /// What is on disk could not be read.
    BackfillFailed = 5,
    /// The consumer must roll back.
    Rollback = 6,
    /// The collections of its filter are all gone.
    FilterEmpty = 7,
    /// The user may no longer read them.
    LostPrivileges = 8,
}

impl EndReason {
    fn of(number: u32) -> Option<Self> {
        use EndReason::{
            BackfillFailed, Closed, Disconnected, Done, FilterEmpty, LostPrivileges, Rollback, StateChanged,
            TooSlow,
        };
        [
            Done,
            Closed,
            StateChanged,
            Disconnected,
            TooSlow,
            BackfillFailed,
            Rollback,
            FilterEmpty,
            LostPrivileges,
        ]
        .into_iter()
        .find(|reason| *reason as u32 == number)
    }
}

/// A message of a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// SNAPSHOT_MARKER.
    Marker(Marker),
    /// MUTATION.
    Mutation(Mutation<'a>),
    /// DELETION.
    Deletion(Deletion<'a>),
    /// EXPIRATION: the deletion always says when.
    Expiration(Deletion<'a>),
    /// SYSTEM_EVENT.
    SystemEvent(SystemEvent<'a>),
    /// PREPARE.
    Prepare(Prepare<'a>),
    /// COMMIT.
    Commit(End<'a>),
    /// ABORT.
    Abort(End<'a>),
    /// SEQNO_ADVANCED: up to here there was nothing for this stream.
    SeqnoAdvanced(u64),
    /// OSO_SNAPSHOT: what follows is in no order (true), or was (false).
    OutOfOrder(bool),
    /// SET_VBUCKET_STATE: the number of the state that the consumer's vBucket is to have.
    SetVBucketState(u8),
    /// STREAM_END.
    StreamEnd(EndReason),
    /// NOOP: the consumer answers it.
    Noop,
}

type Extras = ArrayVec<u8, EXTRAS_MAX>;
/// The value of a message that is made for it.
type OwnValue = ArrayVec<u8, MARKER_VALUE_MAX>;

/// Bytes in front of a message's key and value.
pub type Head = ArrayVec<u8, HEAD_MAX>;

fn put<const N: usize>(into: &mut ArrayVec<u8, N>, bytes: &[u8]) {
    let fits = into.try_extend_from_slice(bytes);
    debug_assert!(fits.is_ok(), "there is room for the longest");
}

/// Numbers one after another; zeros past the end.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((head, rest)) => {
                self.0 = rest;
                *head
            }
            None => [0; N],
        }
    }

    fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }
}

impl<'a> Message<'a> {
    /// The seqno of what it tells; of a marker, none.
    pub const fn seqno(&self) -> Option<u64> {
        match self {
            Self::Mutation(mutation) | Self::Prepare(Prepare { mutation, .. }) => Some(mutation.seqno),
            Self::Deletion(deletion) | Self::Expiration(deletion) => Some(deletion.seqno),
            Self::SystemEvent(event) => Some(event.seqno),
            Self::Commit(end) | Self::Abort(end) => Some(end.seqno),
            Self::SeqnoAdvanced(seqno) => Some(*seqno),
            Self::Marker(_)
            | Self::OutOfOrder(_)
            | Self::SetVBucketState(_)
            | Self::StreamEnd(_)
            | Self::Noop => None,
        }
    }

    /// Its opcode.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Marker(_) => Opcode::DCP_SNAPSHOT_MARKER,
            Self::Mutation(_) => Opcode::DCP_MUTATION,
            Self::Deletion(_) => Opcode::DCP_DELETION,
            Self::Expiration(_) => Opcode::DCP_EXPIRATION,
            Self::SystemEvent(_) => Opcode::DCP_SYSTEM_EVENT,
            Self::Prepare(_) => Opcode::DCP_PREPARE,
            Self::Commit(_) => Opcode::DCP_COMMIT,
            Self::Abort(_) => Opcode::DCP_ABORT,
            Self::SeqnoAdvanced(_) => Opcode::DCP_SEQNO_ADVANCED,
            Self::OutOfOrder(_) => Opcode::DCP_OSO_SNAPSHOT,
            Self::SetVBucketState(_) => Opcode::DCP_SET_VBUCKET_STATE,
            Self::StreamEnd(_) => Opcode::DCP_STREAM_END,
            Self::Noop => Opcode::DCP_NOOP,
        }
    }

    /// Its key; empty if it has none.
    pub const fn key(&self) -> &'a [u8] {
        match self {
            Self::Mutation(mutation) | Self::Prepare(Prepare { mutation, .. }) => mutation.key,
            Self::Deletion(deletion) | Self::Expiration(deletion) => deletion.key,
            Self::Commit(end) | Self::Abort(end) => end.key,
            Self::SystemEvent(event) => match event.event {
                Event::CreateCollection { name, .. } | Event::CreateScope { name, .. } => name,
                Event::DropCollection { .. } | Event::DropScope { .. } => &[],
            },
            _ => &[],
        }
    }

    /// The value of its document; empty if it has none.
    pub const fn value(&self) -> &'a [u8] {
        match self {
            Self::Mutation(mutation) | Self::Prepare(Prepare { mutation, .. }) => mutation.value,
            Self::Deletion(deletion) | Self::Expiration(deletion) => deletion.value,
            _ => &[],
        }
    }

    fn cas(&self) -> u64 {
        match self {
            Self::Mutation(mutation) | Self::Prepare(Prepare { mutation, .. }) => mutation.cas,
            Self::Deletion(deletion) | Self::Expiration(deletion) => deletion.cas,
            _ => 0,
        }
    }

    fn datatype(&self) -> u8 {
        match self {
            Self::Mutation(mutation) | Self::Prepare(Prepare { mutation, .. }) => mutation.datatype,
            Self::Deletion(deletion) | Self::Expiration(deletion) => deletion.datatype,
            _ => 0,
        }
    }

    fn extras(&self) -> Extras {
        let mut extras = Extras::new();
        match self {
            Self::Marker(marker) => marker.put_extras(&mut extras),
            Self::Mutation(mutation) => {
                mutation.put_start(&mut extras);
                put(&mut extras, &[0; 3]);
            }
            Self::Prepare(prepare) => {
                prepare.mutation.put_start(&mut extras);
                put(&mut extras, &[0, u8::from(prepare.is_deletion), prepare.level]);
            }
            Self::Deletion(deletion) => {
                deletion.put_start(&mut extras);
                match deletion.deleted_s {
                    Some(deleted_s) => {
                        put(&mut extras, &deleted_s.to_be_bytes());
                        put(&mut extras, &[0]);
                    }
                    None => put(&mut extras, &[0; 2]),
                }
            }
            Self::Expiration(deletion) => {
                deletion.put_start(&mut extras);
                put(&mut extras, &deletion.deleted_s.unwrap_or_default().to_be_bytes());
            }
            Self::Commit(end) | Self::Abort(end) => {
                put(&mut extras, &end.prepared.to_be_bytes());
                put(&mut extras, &end.seqno.to_be_bytes());
            }
            Self::SystemEvent(event) => {
                put(&mut extras, &event.seqno.to_be_bytes());
                put(&mut extras, &event.event.number().to_be_bytes());
                put(&mut extras, &[event.event.version()]);
            }
            Self::SeqnoAdvanced(seqno) => put(&mut extras, &seqno.to_be_bytes()),
            Self::OutOfOrder(begins) => put(&mut extras, &(if *begins { 1u32 } else { 2 }).to_be_bytes()),
            Self::SetVBucketState(state) => put(&mut extras, &[*state]),
            Self::StreamEnd(reason) => put(&mut extras, &(*reason as u32).to_be_bytes()),
            Self::Noop => {}
        }
        extras
    }

    /// The value of a message without a document.
    fn own_value(&self) -> OwnValue {
        let mut value = OwnValue::new();
        match self {
            Self::Marker(marker) => marker.put_value(&mut value),
            Self::SystemEvent(event) => event.put_value(&mut value),
            _ => {}
        }
        value
    }

    /// Its bytes before the key. The key follows, then the value, then [`Message::tail`].
    #[inline]
    pub fn head(&self, place: &Place) -> Head {
        self.head_of(place, &self.extras(), self.own_value().len())
    }

    fn head_of(&self, place: &Place, extras: &[u8], own_value_len: usize) -> Head {
        let (key_len, value_len) = (self.key().len(), self.value().len() + own_value_len);
        let framing_len = if place.stream_id.is_some() { STREAM_ID_BYTES } else { 0 };
        let header = Header {
            magic: if framing_len > 0 { Magic::FLEXIBLE_REQUEST } else { Magic::REQUEST },
            opcode: self.opcode(),
            framing_len: framing_len as u8,
            key_len: key_len as u16,
            extras_len: extras.len() as u8,
            datatype: self.datatype(),
            vbucket: place.vbucket,
            body_len: (framing_len + extras.len() + key_len + value_len) as u32,
            opaque: place.opaque,
            cas: self.cas(),
        };
        let mut head = Head::new();
        put(&mut head, &header.encode());
        if let Some(id) = place.stream_id {
            put(&mut head, &[STREAM_ID_INFO]);
            put(&mut head, &id.to_be_bytes());
        }
        put(&mut head, extras);
        head
    }

    /// Its bytes after key and value: those of a message without a document.
    pub fn tail(&self) -> impl AsRef<[u8]> {
        self.own_value()
    }

    /// All of it.
    pub fn encode(&self, place: &Place, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head(place));
        out.extend_from_slice(self.key());
        out.extend_from_slice(self.value());
        out.extend_from_slice(self.tail().as_ref());
    }

    /// Decodes a message; `None` if the request is not one.
    pub fn decode(request: &Request<'a>, value: &'a [u8]) -> Option<Result<(Place, Self), Malformed>> {
        let header = &request.header;
        let (extras, key) = (request.extras, request.key);
        let message = match header.opcode {
            Opcode::DCP_SNAPSHOT_MARKER => Marker::decode(extras, value).map(Self::Marker),
            Opcode::DCP_MUTATION => Mutation::decode(header, extras, key, value).map(Self::Mutation),
            Opcode::DCP_DELETION => Deletion::decode(header, extras, key, value).map(Self::Deletion),
            Opcode::DCP_EXPIRATION => {
                Deletion::decode_expiration(header, extras, key, value).map(Self::Expiration)
            }
            Opcode::DCP_SYSTEM_EVENT => SystemEvent::decode(extras, key, value).map(Self::SystemEvent),
            Opcode::DCP_PREPARE => Prepare::decode(header, extras, key, value).map(Self::Prepare),
            Opcode::DCP_COMMIT => End::decode(extras, key).map(Self::Commit),
            Opcode::DCP_ABORT => End::decode(extras, key).map(Self::Abort),
            Opcode::DCP_SEQNO_ADVANCED => number(extras).map(Self::SeqnoAdvanced),
            Opcode::DCP_OSO_SNAPSHOT => match extras {
                [0, 0, 0, flag @ (1 | 2)] => Ok(Self::OutOfOrder(*flag == 1)),
                _ => Err(Malformed("The extras of an OSO snapshot must be 1 or 2, in 4 bytes")),
            },
            Opcode::DCP_SET_VBUCKET_STATE => match extras {
                [state @ 1..=4] => Ok(Self::SetVBucketState(*state)),
                _ => Err(Malformed("The extras of a state must be 1 to 4, in a byte")),
            },
            Opcode::DCP_STREAM_END => end_reason(extras).map(Self::StreamEnd),
            Opcode::DCP_NOOP => Ok(Self::Noop),
            _ => return None,
        };
        let stream_id = FrameInfos::parse(request.framing)
            .map(|infos| infos.stream_id)
            .map_err(|_| Malformed("The frame infos are malformed"));
        Some(message.and_then(|message| {
            Ok((Place { vbucket: header.vbucket, opaque: header.opaque, stream_id: stream_id? }, message))
        }))
    }
}

fn number(extras: &[u8]) -> Result<u64, Malformed> {
    <[u8; 8]>::try_from(extras)
        .map(u64::from_be_bytes)
        .map_err(|_| Malformed("The extras must be a seqno, 8 bytes"))
}

fn end_reason(extras: &[u8]) -> Result<EndReason, Malformed> {
    let number = <[u8; 4]>::try_from(extras).ok().map(u32::from_be_bytes);
    number.and_then(EndReason::of).ok_or(Malformed("The extras of an end must be its reason, 4 bytes"))
}

impl Marker {
    fn put_numbers<const N: usize>(&self, into: &mut ArrayVec<u8, N>) {
        put(into, &self.start.to_be_bytes());
        put(into, &self.end.to_be_bytes());
        put(into, &self.kind.to_be_bytes());
    }

    fn put_extras(&self, extras: &mut Extras) {
        match self.form {
            MarkerForm::V1 => self.put_numbers(extras),
            MarkerForm::V2 => put(extras, &[0]),
            MarkerForm::V22 => put(extras, &[2]),
        }
    }

    fn put_value(&self, value: &mut OwnValue) {
        if self.form == MarkerForm::V1 {
            return;
        }
        self.put_numbers(value);
        put(value, &self.seqnos.visible.to_be_bytes());
        put(value, &self.seqnos.completed.to_be_bytes());
        if self.form == MarkerForm::V22 {
            put(value, &self.seqnos.purged.to_be_bytes());
            put(value, &self.seqnos.prepared.to_be_bytes());
        }
    }

    fn decode(extras: &[u8], value: &[u8]) -> Result<Self, Malformed> {
        let (form, numbers) = match (extras, value.len()) {
            (extras, 0) if extras.len() == 20 => (MarkerForm::V1, extras),
            ([0], 36) => (MarkerForm::V2, value),
            // With a time, which nobody here uses.
            ([1], 44) => (MarkerForm::V2, value),
            ([2], 52) => (MarkerForm::V22, value),
            _ => return Err(Malformed("A marker must be of version 1, 2.0, 2.1 or 2.2")),
        };
        let mut numbers = Numbers(numbers);
        let mut marker = Self {
            start: numbers.u64(),
            end: numbers.u64(),
            kind: numbers.u32(),
            form,
            seqnos: Seqnos::default(),
        };
        if form >= MarkerForm::V2 {
            (marker.seqnos.visible, marker.seqnos.completed) = (numbers.u64(), numbers.u64());
        }
        if form == MarkerForm::V22 {
            (marker.seqnos.purged, marker.seqnos.prepared) = (numbers.u64(), numbers.u64());
        }
        if marker.start > marker.end {
            return Err(Malformed("A snapshot must not end before it starts"));
        }
        Ok(marker)
    }
}

impl<'a> Mutation<'a> {
    fn put_start(&self, extras: &mut Extras) {
        put(extras, &self.seqno.to_be_bytes());
        put(extras, &self.rev.to_be_bytes());
        put(extras, &self.flags.to_be_bytes());
        put(extras, &self.expiry.to_be_bytes());
        put(extras, &self.lock_time.to_be_bytes());
    }

    /// Reads what a mutation and a prepare begin with.
    fn read_start(header: &Header, numbers: &mut Numbers<'_>, key: &'a [u8], value: &'a [u8]) -> Self {
        Self {
            seqno: numbers.u64(),
            rev: numbers.u64(),
            flags: numbers.u32(),
            expiry: numbers.u32(),
            lock_time: numbers.u32(),
            cas: header.cas,
            datatype: header.datatype,
            key,
            value,
        }
    }

    fn decode(header: &Header, extras: &[u8], key: &'a [u8], value: &'a [u8]) -> Result<Self, Malformed> {
        if extras.len() != EXTRAS_MAX || key.is_empty() {
            return Err(Malformed("A mutation must have extras of 31 bytes and a key"));
        }
        let mut numbers = Numbers(extras);
        let mutation = Self::read_start(header, &mut numbers, key, value);
        if numbers.u16() != 0 {
            return Err(Malformed("Extended metadata were not asked for"));
        }
        Ok(mutation)
    }
}

impl<'a> Deletion<'a> {
    fn put_start(&self, extras: &mut Extras) {
        put(extras, &self.seqno.to_be_bytes());
        put(extras, &self.rev.to_be_bytes());
    }

    fn of(header: &Header, numbers: &mut Numbers<'_>, key: &'a [u8], value: &'a [u8]) -> Self {
        let (seqno, rev) = (numbers.u64(), numbers.u64());
        Self { seqno, rev, cas: header.cas, deleted_s: None, datatype: header.datatype, key, value }
    }

    fn decode(header: &Header, extras: &[u8], key: &'a [u8], value: &'a [u8]) -> Result<Self, Malformed> {
        let mut numbers = Numbers(extras);
        let deletion = Self::of(header, &mut numbers, key, value);
        match extras.len() {
            _ if key.is_empty() => Err(Malformed("A deletion must have a key")),
            18 if numbers.u16() != 0 => Err(Malformed("Extended metadata were not asked for")),
            18 => Ok(deletion),
            21 => Ok(Self { deleted_s: Some(numbers.u32()), ..deletion }),
            _ => Err(Malformed("The extras of a deletion must be 18 or 21 bytes")),
        }
    }

    fn decode_expiration(
        header: &Header,
        extras: &[u8],
        key: &'a [u8],
        value: &'a [u8],
    ) -> Result<Self, Malformed> {
        if extras.len() != 20 || key.is_empty() {
            return Err(Malformed("An expiration must have extras of 20 bytes and a key"));
        }
        let mut numbers = Numbers(extras);
        let deletion = Self::of(header, &mut numbers, key, value);
        Ok(Self { deleted_s: Some(numbers.u32()), ..deletion })
    }
}

impl<'a> Prepare<'a> {
    fn decode(header: &Header, extras: &[u8], key: &'a [u8], value: &'a [u8]) -> Result<Self, Malformed> {
        if extras.len() != EXTRAS_MAX || key.is_empty() {
            return Err(Malformed("A prepare must have extras of 31 bytes and a key"));
        }
        let mut numbers = Numbers(extras);
        let mutation = Mutation::read_start(header, &mut numbers, key, value);
        let _nru = numbers.u8();
        let (is_deletion, level) = (numbers.u8() != 0, numbers.u8());
        match level {
            1..=3 => Ok(Self { mutation, is_deletion, level }),
            _ => Err(Malformed("The level of a prepare must be 1, 2 or 3")),
        }
    }
}

impl<'a> End<'a> {
    fn decode(extras: &[u8], key: &'a [u8]) -> Result<Self, Malformed> {
        if extras.len() != 16 || key.is_empty() {
            return Err(Malformed("The end of a prepare must have extras of 16 bytes and a key"));
        }
        let mut numbers = Numbers(extras);
        Ok(Self { prepared: numbers.u64(), seqno: numbers.u64(), key })
    }
}

impl Event<'_> {
    const fn number(&self) -> u32 {
        match self {
            Self::CreateCollection { .. } => 0,
            Self::DropCollection { .. } => 1,
            Self::CreateScope { .. } => 3,
            Self::DropScope { .. } => 4,
        }
    }

    const fn version(&self) -> u8 {
        match self {
            Self::CreateCollection { max_ttl: Some(_), .. } => 1,
            _ => 0,
        }
    }
}

impl<'a> SystemEvent<'a> {
    fn put_value(&self, value: &mut OwnValue) {
        put(value, &self.manifest.to_be_bytes());
        match self.event {
            Event::CreateCollection { scope, id, max_ttl, .. } => {
                put(value, &scope.to_be_bytes());
                put(value, &id.to_be_bytes());
                if let Some(max_ttl) = max_ttl {
                    put(value, &max_ttl.to_be_bytes());
                }
            }
            Event::DropCollection { scope, id } => {
                put(value, &scope.to_be_bytes());
                put(value, &id.to_be_bytes());
            }
            Event::CreateScope { id, .. } | Event::DropScope { id } => put(value, &id.to_be_bytes()),
        }
    }

    fn decode(extras: &[u8], key: &'a [u8], value: &'a [u8]) -> Result<Self, Malformed> {
        if extras.len() != 13 {
            return Err(Malformed("The extras of a system event must be 13 bytes"));
        }
        let mut numbers = Numbers(extras);
        let (seqno, event, version) = (numbers.u64(), numbers.u32(), numbers.u8());
        let mut numbers = Numbers(value);
        let manifest = numbers.u64();
        let event = match (event, version, value.len()) {
            (0, 0, 16) | (0, 1, 20) => {
                let (scope, id) = (numbers.u32(), numbers.u32());
                Event::CreateCollection {
                    scope,
                    id,
                    max_ttl: (version == 1).then(|| numbers.u32()),
                    name: key,
                }
            }
            (1, 0, 16) => Event::DropCollection { scope: numbers.u32(), id: numbers.u32() },
            (3, 0, 12) => Event::CreateScope { id: numbers.u32(), name: key },
            (4, 0, 12) => Event::DropScope { id: numbers.u32() },
            _ => {
                return Err(Malformed(
                    "The system event, its version or the length of its value is not known",
                ));
            }
        };
        Ok(Self { seqno, manifest, event })
    }
}

#[cfg(test)]
mod tests;
