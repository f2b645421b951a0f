//! One slab: a run of pages cut into slots of one class, and the notes on it, which lie elsewhere.
//!
//! ```text
//!   slab         slot 0 | slot 1 | ... | slot n-1 | less than a slot          16 to 512 KiB of the tenant's arena
//!   notes        descriptor 64 | bitmap, a bit per slot | owner u16 per slot  a block of the tenant's arena, freed with the slab
//!
//!   slot         free ──reserve──> reserved ──hand out──> in use ──free──> free
//!   bit           0                   1                     1               0
//!   owner                          NOBODY                vBucket
//! ```
//! * Bits are set under the lock of the slabs, for a thread that will hand the slots out. Any thread clears them,
//!   without the lock.
//! * `used` counts the set bits. It is raised after bits are set, and lowered after one is cleared. So while a bit is
//!   set, `used` is above 0 or about to be raised by the lock's holder, and the slab stays.
//! * After lowering `used`, a thread does not touch the notes any more: the slab may be gone. It knows the address of a
//!   slot that was in it, and looks up under the lock what is there now.
//!
//! ORDERING: clearing a bit releases what was done to the slot; seeing it clear acquires it. Lowering `used` is part of
//! one release sequence, so a thread that sees 0 has everything before it. Setting an owner, and clearing a bit,
//! releases the count of the change ([`Gauge::Changes`](crate::Gauge)); a walk over the slabs acquires it.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU16;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};

use std::sync::atomic::Ordering::Relaxed;

use super::class::{self, GRAIN};
use crate::prefetch;

/// The owner of a slot that is not in use.
pub(super) const NOBODY: u16 = u16::MAX;
/// Slots per word of the bitmap.
pub(super) const WORD_SLOTS: usize = 64;

/// Number of lists: a slab is listed by how full it is, in eighths. A full one is in none.
pub(super) const BINS: usize = 8;
/// What `bin` says of a slab that is in no list.
pub(super) mod unlisted {
    /// All slots are used.
    pub(in crate::slab) const FULL: u8 = super::BINS as u8;
    /// It is being emptied.
    pub(in crate::slab) const VICTIM: u8 = FULL + 1;
}

/// A descriptor. It fills a cache line; the bitmap begins with the next one.
#[repr(C, align(64))]
pub(super) struct Slab {
    used: AtomicU32,
    /// Threads with reserved slots that are not handed out yet.
    reservations: AtomicU32,
    base: usize,
    /// Inverse of the slot size: (1 << 32) / bytes, rounded up.
    inverse: u32,
    /// Inverse of the number of slots: (BINS << 16) / slots.
    bin_scale: u32,
    bytes: u32,
    slots: u16,
    class: u16,
    /// Read and changed under the lock alone.
    links: UnsafeCell<Links>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slab>() == 64);
const _: () = assert!(words_for(class::SLAB_USUAL / GRAIN) <= 1 << u8::BITS, "a hint is any of the words");

#[derive(Clone, Copy)]
pub(super) struct Links {
    pub(super) next: Option<SlabPtr>,
    pub(super) previous: Option<SlabPtr>,
    /// The list it is in, or one of [`unlisted`].
    pub(super) bin: u8,
    /// The word that is searched first for a free bit.
    pub(super) hint: u8,
}

/// The address of a slab's notes. Valid while a slot of it is in use or reserved, while it is a victim, and under the
/// lock if it was found there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct SlabPtr(NonNull<Slab>);

// SAFETY: the shared part of a descriptor is atomic, or constant while its slab lives; the rest is used under the lock.
unsafe impl Send for SlabPtr {}

/// Slots of one word that one thread may hand out.
#[derive(Clone, Copy)]
pub(super) struct Reserved {
    /// `None` if nothing is reserved.
    slab: Option<SlabPtr>,
    /// Addresses of the slot of the word's first bit, and of its owner.
    first: usize,
    owners: usize,
    /// Bits of the slots that are left.
    pub(super) mask: u64,
}

impl Reserved {
    /// Reserves nothing.
    pub(super) const NONE: Self = Self { slab: None, first: 0, owners: 0, mask: 0 };

    /// Hands out a slot and returns its address. At least one must be left.
    #[inline]
    pub(super) fn hand_out(&mut self, slot_bytes: usize, owner: u16) -> NonNull<u8> {
        debug_assert!(self.mask != 0 && owner != NOBODY);
        let bit = self.mask.trailing_zeros() as usize;
        let address = self.first + bit * slot_bytes;
        let owner_at = self.owners + bit * size_of::<AtomicU16>();
        // SAFETY: the slot is reserved, so its slab and the notes exist: `owner_at` is its place in them.
        unsafe {
            (*std::ptr::with_exposed_provenance::<AtomicU16>(owner_at)).store(owner, Release);
        }
        self.mask &= self.mask - 1;
        if self.mask == 0
            && let Some(slab) = self.slab.take()
        {
            slab.slab().reservations.fetch_sub(1, Release);
        }
        // SAFETY: slabs do not lie at address zero.
        unsafe { NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(address)) }
    }

    /// Gives up the slots that are left. Returns an address in the slab if its bin may have changed.
    pub(super) fn give_up(&mut self) -> Option<usize> {
        let Self { slab, first, mask, .. } = std::mem::replace(self, Self::NONE);
        let slab = slab?;
        // Read before: afterwards the slab may be gone.
        let (slots, scale) = (u32::from(slab.slab().slots), slab.slab().bin_scale);
        slab.slab().reservations.fetch_sub(1, Release);
        slab.word(slab.slot_of(first) / WORD_SLOTS).fetch_and(!mask, Release);
        let count = mask.count_ones();
        let before = slab.slab().used.fetch_sub(count, AcqRel);
        let moved = bin_of(before, slots, scale) != bin_of(before - count, slots, scale);
        (moved || before == count).then_some(first)
    }
}

/// The bin of a slab with `used` slots in use.
#[inline]
fn bin_of(used: u32, slots: u32, scale: u32) -> u8 {
    if used >= slots { unlisted::FULL } else { ((used * scale) >> 16) as u8 }
}

const fn words_for(slots: usize) -> usize {
    slots.div_ceil(WORD_SLOTS)
}

/// Number of slots in a slab of this size and class.
pub(super) fn slots_in(slab: usize, class: usize) -> usize {
    class::usable(slab) / class::bytes_of(class)
}

/// Bytes of the notes on a slab with `slots` slots: whole lines.
pub(super) fn notes_bytes(slots: usize) -> usize {
    let bytes =
        size_of::<Slab>() + words_for(slots) * size_of::<AtomicU64>() + slots * size_of::<AtomicU16>();
    bytes.next_multiple_of(align_of::<Slab>())
}

impl SlabPtr {
    /// Initialises a slab of which nothing is used.
    ///
    /// # Safety
    /// `base` has room for `bytes`. `notes` is aligned to a line and has room for the notes on its slots. Both hold
    /// until the slab is taken apart.
    pub(super) unsafe fn begin(notes: NonNull<u8>, base: NonNull<u8>, bytes: usize, class: usize) -> Self {
        let (slots, slot_bytes) = (slots_in(bytes, class), class::bytes_of(class));
        let this = Self(notes.cast());
        let slab = Slab {
            used: AtomicU32::new(0),
            reservations: AtomicU32::new(0),
            base: base.expose_provenance().get(),
            inverse: ((1u64 << 32).div_ceil(slot_bytes as u64)) as u32,
            bin_scale: ((BINS << 16) / slots) as u32,
            bytes: bytes as u32,
            slots: slots as u16,
            class: class as u16,
            links: UnsafeCell::new(Links { next: None, previous: None, bin: unlisted::FULL, hint: 0 }),
        };
        // SAFETY: by the contract there is room for descriptor, words and owners, one behind the other.
        unsafe {
            this.0.write(slab);
            let words = this.0.add(1).cast::<AtomicU64>();
            for word in 0..words_for(slots) {
                // Bits beyond the last slot are never free.
                let there = slots - word * WORD_SLOTS;
                let beyond = if there >= WORD_SLOTS { 0 } else { u64::MAX << there };
                words.add(word).write(AtomicU64::new(beyond));
            }
            let owners = words.add(words_for(slots)).cast::<AtomicU16>();
            for slot in 0..slots {
                owners.add(slot).write(AtomicU16::new(NOBODY));
            }
        }
        this.0.expose_provenance();
        this
    }

    #[inline]
    fn word<'a>(self, index: usize) -> &'a AtomicU64 {
        debug_assert!(index < self.words());
        // SAFETY: a word per 64 slots follows the descriptor.
        unsafe { self.0.add(1).cast::<AtomicU64>().add(index).as_ref() }
    }

    fn owners(self) -> NonNull<AtomicU16> {
        // SAFETY: the owners follow the words.
        unsafe { self.0.add(1).cast::<AtomicU64>().add(self.words()).cast() }
    }

    fn owner<'a>(self, slot: usize) -> &'a AtomicU16 {
        debug_assert!(slot < self.slots());
        // SAFETY: there is one per slot.
        unsafe { self.owners().add(slot).as_ref() }
    }

    #[inline]
    fn slot_of(self, address: usize) -> usize {
        let slab = self.slab();
        (((address - slab.base) as u64 * u64::from(slab.inverse)) >> 32) as usize
    }

    /// Prefetches what [`SlabPtr::free`] needs: the descriptor and, for most slabs, all of the bitmap.
    #[inline]
    pub(super) fn prefetch(self) {
        prefetch(self.0.as_ptr());
        prefetch(self.0.as_ptr().wrapping_add(1));
    }

    pub(super) fn from_address(address: usize) -> Option<Self> {
        NonNull::new(std::ptr::with_exposed_provenance_mut(address)).map(Self)
    }

    pub(super) fn to_address(self) -> usize {
        self.0.expose_provenance().get()
    }

    #[inline]
    fn slab<'a>(self) -> &'a Slab {
        // SAFETY: as this type's comment says; callers keep to it.
        unsafe { self.0.as_ref() }
    }

    /// Its links.
    ///
    /// # Safety
    /// The lock is held, and links returned before are not used any more.
    pub(super) unsafe fn links<'a>(self) -> &'a mut Links {
        // SAFETY: by the contract.
        unsafe { &mut *self.slab().links.get() }
    }

    pub(super) fn base(self) -> usize {
        self.slab().base
    }

    pub(super) fn bytes(self) -> usize {
        self.slab().bytes as usize
    }

    pub(super) fn class(self) -> usize {
        usize::from(self.slab().class)
    }

    pub(super) fn slots(self) -> usize {
        usize::from(self.slab().slots)
    }

    pub(super) fn used(self) -> usize {
        self.slab().used.load(Acquire) as usize
    }

    /// Number of free slots.
    pub(super) fn room(self) -> usize {
        self.slots().saturating_sub(self.used())
    }

    /// Returns true if a thread may still hand out slots of it.
    pub(super) fn is_reserved(self) -> bool {
        self.slab().reservations.load(Acquire) > 0
    }

    /// Its notes, to be freed.
    pub(super) fn notes(self) -> NonNull<u8> {
        self.0.cast()
    }

    /// The list it belongs in, by its slots in use.
    pub(super) fn proper_bin(self) -> u8 {
        let slab = self.slab();
        bin_of(slab.used.load(Acquire), u32::from(slab.slots), slab.bin_scale)
    }

    /// Frees the slot at an address. Returns true if the slab's bin may have changed.
    #[inline]
    pub(super) fn free(self, address: usize) -> bool {
        let slab = self.slab();
        // Read before: afterwards the slab may be gone.
        let (slots, scale) = (u32::from(slab.slots), slab.bin_scale);
        let slot = self.slot_of(address);
        debug_assert_eq!(slab.base + slot * class::bytes_of(self.class()), address);
        let bit = 1u64 << (slot % WORD_SLOTS);
        let word = self.word(slot / WORD_SLOTS).fetch_and(!bit, Release);
        debug_assert!(word & bit != 0, "freed a slot that is already free");
        let before = slab.used.fetch_sub(1, AcqRel);
        debug_assert!(before > 0);
        before == 1 || bin_of(before, slots, scale) != bin_of(before - 1, slots, scale)
    }

    /// Reserves up to `most` slots of one word. Under the lock; there is a free one.
    pub(super) fn reserve(self, most: usize) -> Reserved {
        let slab = self.slab();
        let words = words_for(usize::from(slab.slots));
        // SAFETY: the lock is held; no other links of this slab are in use here.
        let hint = usize::from(unsafe { self.links() }.hint);
        for at in (hint..words).chain(0..hint.min(words)) {
            let mut free = !self.word(at).load(Acquire);
            if free == 0 {
                continue;
            }
            while free.count_ones() as usize > most {
                free &= !(1 << (63 - free.leading_zeros()));
            }
            let mut bits = free;
            while bits != 0 {
                self.owner(at * WORD_SLOTS + bits.trailing_zeros() as usize).store(NOBODY, Relaxed);
                bits &= bits - 1;
            }
            self.word(at).fetch_or(free, AcqRel);
            slab.reservations.fetch_add(1, Release);
            slab.used.fetch_add(free.count_ones(), AcqRel);
            // SAFETY: as above.
            unsafe { self.links() }.hint = at as u8;
            let first = at * WORD_SLOTS;
            let owners = self.owners().addr().get() + first * size_of::<AtomicU16>();
            return Reserved {
                slab: Some(self),
                first: slab.base + first * class::bytes_of(self.class()),
                owners,
                mask: free,
            };
        }
        unreachable!("a listed slab has a free slot")
    }

    /// Slots of a word that are in use, as address and owner. Read without the lock of any owner: a hint.
    pub(super) fn occupied(self, word: usize) -> impl Iterator<Item = (usize, u16)> {
        let slab = self.slab();
        let last = usize::from(slab.slots).saturating_sub(word * WORD_SLOTS).min(WORD_SLOTS);
        let bits = self.word(word).load(Acquire);
        let bytes = class::bytes_of(self.class());
        (0..last).filter(move |bit| bits >> bit & 1 != 0).filter_map(move |bit| {
            let slot = word * WORD_SLOTS + bit;
            let owner = self.owner(slot).load(Acquire);
            (owner != NOBODY).then_some((slab.base + slot * bytes, owner))
        })
    }

    pub(super) fn words(self) -> usize {
        words_for(self.slots())
    }

    /// Returns true if the slot at an address is this owner's now. Definite under the owner's lock.
    pub(super) fn is_of(self, address: usize, owner: u16) -> bool {
        self.owner_of(address) == Some(owner)
    }

    /// The owner of the slot that begins at an address, if it is in use.
    pub(super) fn owner_of(self, address: usize) -> Option<u16> {
        let slot = self.slot_of(address);
        let begins = self.slab().base + slot * class::bytes_of(self.class()) == address;
        let word = self.word(slot / WORD_SLOTS).load(Acquire);
        let owner = self.owner(slot).load(Relaxed);
        (begins && word >> (slot % WORD_SLOTS) & 1 != 0 && owner != NOBODY).then_some(owner)
    }
}
