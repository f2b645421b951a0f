//! Blocks of whole cache lines: all sizes share the same slabs.
//!
//! ```text
//!   slab, 1024 lines    [block of 5][block of 6][ free 3 ][block of 4][ free 11 ] ...      a bit per line
//!   slabs by address    0 .. n-1           a block goes into the first gap of the first slab that has one large enough
//!   room, a byte each   4  0  11 ..        no block of more lines fits; checked before the slab itself
//! ```
//! Groups of the index grow and split all at about the same time, since keys spread evenly. With a class per size, the
//! slabs of one size would come free, except for a few blocks in each, just when those of the next are needed. Here the
//! room that one size leaves serves the others.
//!
//! Lower slabs are filled first, so the last ones empty when the index shrinks. A thread that moves blocks takes them
//! from beyond the slab at which a dense packing would end ([`Lines::dense_end`]). Notes on slabs of items do not move;
//! they are freed with their slab. So a tenant has separate lines for them, or a few notes would keep many slabs of an
//! index that has shrunk.
//!
//! One lock covers all of it, held for some hundred instructions: a block changes for every seventh item or so.

use std::ptr::NonNull;

use parking_lot::Mutex;

use crate::backend::{Arena, LINE_BYTES};
use crate::slab::class;

/// Larger blocks come from the allocator.
const BLOCK_LINES_MAX: usize = 64;
const SLAB: usize = 64 << 10;
/// The first few slabs are smaller, for small tenants.
const SLAB_SMALL: usize = 16 << 10;
const SMALL_SLABS: usize = 4;
const WORDS: usize = SLAB / LINE_BYTES / 64;
/// Free space in a dense packing, as a fraction of the bytes in use.
const CLOSE_FRACTION: usize = 16;

/// Lines of one tenant, for one purpose. Holds no memory once its last block is freed.
#[derive(Default)]
pub(crate) struct Lines(Mutex<Slabs>);

#[derive(Default)]
struct Slabs {
    /// Sorted by address.
    #[expect(clippy::vec_box, reason = "an insertion in the middle moves pointers, not bitmaps")]
    all: Vec<Box<Slab>>,
    /// For each, in the same order: no block of more lines fits.
    room: Vec<u8>,
}

struct Slab {
    base: usize,
    bytes: usize,
    used: usize,
    /// A bit per line, set where it is used or does not exist.
    taken: [u64; WORDS],
}

/// Where blocks would end in a dense packing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DenseEnd {
    /// Slabs from this address on would be empty, if any.
    pub(crate) address: Option<usize>,
    /// Bytes of those slabs.
    pub(crate) bytes_beyond: u64,
    /// Bytes of all slabs.
    pub(crate) slab_bytes: u64,
}

/// Returns true if a block of `size` bytes is kept here.
#[inline]
pub(crate) const fn has(size: usize) -> bool {
    size.is_multiple_of(LINE_BYTES) && size <= BLOCK_LINES_MAX * LINE_BYTES
}

/// Bytes counted for a block of `size` bytes from [`crate::Tenant::allocate_lines`].
#[inline]
pub fn line_footprint(size: usize) -> usize {
    if has(size) { size } else { crate::footprint(size) }
}

impl Lines {
    /// Allocates a block of `size` bytes, for which [`has`] holds. Returns `None` if the system is out of memory.
    pub(crate) fn allocate(&self, arena: &Arena, size: usize) -> Option<NonNull<u8>> {
        debug_assert!(has(size) && size > 0);
        let lines = size / LINE_BYTES;
        let mut slabs = self.0.lock();
        let address = match slabs.take(lines) {
            Some(address) => address,
            None => {
                slabs.grow(arena)?;
                slabs.take(lines)?
            }
        };
        NonNull::new(std::ptr::with_exposed_provenance_mut(address))
    }

    /// Frees a block.
    ///
    /// # Safety
    /// It came from [`Lines::allocate`] of this tenant with this `size` and arena, and nothing uses it any more.
    pub(crate) unsafe fn free(&self, arena: &Arena, block: NonNull<u8>, size: usize) {
        let empty = self.0.lock().give_back(block.as_ptr().addr(), size / LINE_BYTES);
        if let Some(slab) = empty
            && let Some(base) = NonNull::new(std::ptr::with_exposed_provenance_mut(slab.base))
        {
            // SAFETY: the slab's own pages, none of which are in use; it is in no list any more.
            unsafe { arena.free(None, base, class::usable(slab.bytes)) }
        }
    }

    /// Where the blocks would end if packed densely into the lowest slabs.
    pub(crate) fn dense_end(&self) -> DenseEnd {
        let slabs = self.0.lock();
        let used: usize = slabs.all.iter().map(|slab| slab.used * LINE_BYTES).sum();
        let mut wanted = used + used / CLOSE_FRACTION;
        let within = slabs.all.iter().take_while(|slab| {
            let goes_on = wanted > 0;
            wanted = wanted.saturating_sub(slab.bytes);
            goes_on
        });
        let beyond = &slabs.all[within.count()..];
        let bytes = |slabs: &[Box<Slab>]| slabs.iter().map(|slab| slab.bytes as u64).sum();
        DenseEnd {
            address: beyond.first().map(|slab| slab.base),
            bytes_beyond: bytes(beyond),
            slab_bytes: bytes(&slabs.all),
        }
    }
}

impl Slabs {
    fn take(&mut self, lines: usize) -> Option<usize> {
        let mut from = 0;
        loop {
            let at = from + self.room.get(from..)?.iter().position(|room| usize::from(*room) >= lines)?;
            let slab = self.all.get_mut(at)?;
            if let Some(first) = slab.find(lines) {
                slab.mark(first, lines, true);
                return Some(slab.base + first * LINE_BYTES);
            }
            self.room[at] = lines as u8 - 1;
            from = at + 1;
        }
    }

    /// Adds a slab. Returns `None` if out of memory.
    fn grow(&mut self, arena: &Arena) -> Option<()> {
        let bytes = if self.all.len() < SMALL_SLABS { SLAB_SMALL } else { SLAB };
        let base = arena.allocate_pages(class::usable(bytes))?.expose_provenance().get();
        let mut slab = Box::new(Slab { base, bytes, used: 0, taken: [u64::MAX; WORDS] });
        let lines = class::usable(bytes) / LINE_BYTES;
        slab.mark(0, lines, false);
        slab.used = 0;
        let at = self.all.partition_point(|other| other.base < base);
        self.all.insert(at, slab);
        self.room.insert(at, BLOCK_LINES_MAX as u8);
        Some(())
    }

    /// Frees the lines at an address. Returns the slab if none of it is used any more.
    fn give_back(&mut self, address: usize, lines: usize) -> Option<Box<Slab>> {
        let at = self.all.partition_point(|slab| slab.base <= address).checked_sub(1);
        let Some((at, slab)) = at.and_then(|at| Some((at, self.all.get_mut(at)?))) else {
            unreachable!("a block outside of all slabs")
        };
        let first = (address - slab.base) / LINE_BYTES;
        debug_assert!(
            (first..first + lines).all(|line| slab.is_taken(line)),
            "freed lines that are already free"
        );
        slab.mark(first, lines, false);
        if slab.used == 0 {
            self.room.remove(at);
            return Some(self.all.remove(at));
        }
        let gap = slab.gap_around(first).min(BLOCK_LINES_MAX) as u8;
        self.room[at] = self.room[at].max(gap);
        None
    }
}

impl Slab {
    fn is_taken(&self, line: usize) -> bool {
        self.taken[line / 64] >> (line % 64) & 1 != 0
    }

    fn mark(&mut self, first: usize, lines: usize, taken: bool) {
        let (mut at, end) = (first, first + lines);
        while at < end {
            let count = (end - at).min(64 - at % 64);
            let bits = u64::MAX >> (64 - count) << (at % 64);
            let word = &mut self.taken[at / 64];
            *word = if taken { *word | bits } else { *word & !bits };
            at += count;
        }
        self.used = if taken { self.used + lines } else { self.used.saturating_sub(lines) };
    }

    /// Returns the first line from `from` on that is taken, or free; the end if there is none.
    fn next(&self, from: usize, taken: bool) -> usize {
        let mut at = from;
        while let Some(word) = self.taken.get(at / 64) {
            let word = (if taken { *word } else { !*word }) >> (at % 64);
            if word != 0 {
                return at + word.trailing_zeros() as usize;
            }
            at = (at / 64 + 1) * 64;
        }
        WORDS * 64
    }

    /// Returns the first gap of `lines` lines.
    fn find(&self, lines: usize) -> Option<usize> {
        let mut end = 0;
        loop {
            let first = self.next(end, false);
            if first == WORDS * 64 {
                return None;
            }
            end = self.next(first, true);
            if end - first >= lines {
                return Some(first);
            }
        }
    }

    /// Length of the gap around a free line.
    fn gap_around(&self, line: usize) -> usize {
        let before = (0..line).rev().take(BLOCK_LINES_MAX).take_while(|line| !self.is_taken(*line)).count();
        before + self.next(line, true) - line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Miri is slow for each access.
    const ROUNDS: usize = if cfg!(miri) { 3 } else { 8 };
    const STEPS_MAX: usize = if cfg!(miri) { 150 } else { 3000 };
    const CASES: u32 = if cfg!(miri) { 4 } else { 32 };

    fn slab_bytes(lines: &Lines) -> usize {
        lines.0.lock().all.iter().map(|slab| slab.bytes).sum()
    }

    #[test]
    fn what_is_there_is_a_slab_of_lines() {
        assert!(has(64) && has(4096) && !has(4160) && !has(96));
        assert_eq!((line_footprint(576), line_footprint(96)), (576, crate::footprint(96)));
    }

    /// Groups of a table that doubles, all in step: sizes that fall out of use make room for new ones.
    #[test]
    fn sizes_that_come_take_the_room_of_sizes_that_go() {
        let (arena, lines) = (Arena::new().unwrap(), Lines::default());
        let mut blocks = Vec::new();
        for round in 0..ROUNDS {
            for size in 4..=8 {
                let before = blocks.len();
                for at in 0..before.max(50) {
                    let block = lines.allocate(&arena, size * LINE_BYTES).unwrap();
                    if at < before {
                        let (old, old_size) = std::mem::replace(&mut blocks[at], (block, size));
                        // SAFETY: it was allocated with this size, and has been replaced.
                        unsafe { lines.free(&arena, old, old_size * LINE_BYTES) }
                    } else {
                        blocks.push((block, size));
                    }
                }
            }
            for at in 0..blocks.len() {
                let halves = [(); 2].map(|()| lines.allocate(&arena, 4 * LINE_BYTES).unwrap());
                let (old, old_size) = std::mem::replace(&mut blocks[at], (halves[0], 4));
                // SAFETY: as above.
                unsafe { lines.free(&arena, old, old_size * LINE_BYTES) }
                blocks.push((halves[1], 4));
            }
            let used: usize = blocks.iter().map(|(_, size)| size * LINE_BYTES).sum();
            let all = slab_bytes(&lines);
            assert!(round < 5 || all * 100 <= used * 112, "{all} bytes for {used} in round {round}");
        }
        for (block, size) in blocks {
            // SAFETY: as above.
            unsafe { lines.free(&arena, block, size * LINE_BYTES) }
        }
        assert_eq!(slab_bytes(&lines), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

        /// Blocks never overlap, whatever is allocated and freed, and nothing is left of them in the end.
        #[test]
        fn blocks_do_not_overlap(steps in proptest::collection::vec((1usize..=64, any::<u16>()), 1..STEPS_MAX)) {
            let (arena, lines) = (Arena::new().unwrap(), Lines::default());
            let mut held = BTreeMap::new();
            for (size, choice) in steps {
                if choice % 2 == 0 || held.is_empty() {
                    let address = lines.allocate(&arena, size * LINE_BYTES).unwrap().as_ptr().addr();
                    prop_assert!(address.is_multiple_of(LINE_BYTES));
                    let below = held.range(..address).next_back();
                    prop_assert!(below.is_none_or(|(at, size)| at + size * LINE_BYTES <= address));
                    let above = held.range(address..).next();
                    prop_assert!(above.is_none_or(|(at, _)| address + size * LINE_BYTES <= *at));
                    held.insert(address, size);
                } else {
                    let at = *held.keys().nth(usize::from(choice) % held.len()).unwrap();
                    let block = NonNull::new(std::ptr::with_exposed_provenance_mut(at)).unwrap();
                    // SAFETY: it was allocated with this size.
                    unsafe { lines.free(&arena, block, held.remove(&at).unwrap() * LINE_BYTES) }
                }
                let used: usize = held.values().sum();
                prop_assert_eq!(lines.0.lock().all.iter().map(|slab| slab.used).sum::<usize>(), used);
                let end = lines.dense_end();
                prop_assert_eq!(end.address.is_none(), end.bytes_beyond == 0);
                prop_assert!(end.slab_bytes - end.bytes_beyond >= (used * LINE_BYTES) as u64);
            }
            for (at, size) in held {
                let block = NonNull::new(std::ptr::with_exposed_provenance_mut(at)).unwrap();
                // SAFETY: as above.
                unsafe { lines.free(&arena, block, size * LINE_BYTES) }
            }
            prop_assert_eq!(slab_bytes(&lines), 0);
        }
    }
}
