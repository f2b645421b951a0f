//! How full the slabs of an arena are.
//!
//! jemalloc serves sizes up to 14 KiB from slabs of one class each. A slab's pages are freed when its last slot is
//! free. New blocks go into the *current* slab of their class, then into the oldest one with room. The free slots of a
//! slab are read without the class's lock: a hint, like everything here.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

use tikv_jemalloc_sys as sys;

use crate::backend::{ClassFigures, Occupancy};

/// A control's name, looked up once.
struct Mib<const N: usize>(Option<[usize; N]>);

impl<const N: usize> Mib<N> {
    fn of(name: &CStr) -> Self {
        let (mut mib, mut length) = ([0; N], N);
        // SAFETY: the out pointer and its length describe `mib`.
        let errno = unsafe { sys::mallctlnametomib(name.as_ptr(), mib.as_mut_ptr(), &raw mut length) };
        Self((errno == 0 && length == N).then_some(mib))
    }

    /// Reads a number, after replacing the words of the name at `places`.
    fn read<T: Copy + Default>(&self, places: &[(usize, usize)]) -> Option<T> {
        let mut mib = self.0?;
        for (place, index) in places {
            *mib.get_mut(*place)? = *index;
        }
        let (mut value, mut length) = (T::default(), size_of::<T>());
        // SAFETY: `mib` has N words; out pointer and length describe `value`; of another size the call fails with
        // EINVAL.
        let errno = unsafe {
            sys::mallctlbymib(
                mib.as_ptr(),
                N,
                (&raw mut value).cast::<c_void>(),
                &raw mut length,
                std::ptr::null_mut(),
                0,
            )
        };
        (errno == 0).then_some(value)
    }

    /// Passes in the words of `question`. Fills `answer`, which has the size the control documents.
    fn ask<Q: Copy, A: Copy>(&self, question: &[Q], answer: &mut [A]) -> bool {
        let Some(mib) = self.0 else { return false };
        let mut length = size_of_val(answer);
        // SAFETY: `mib` has N words; out pointer and length describe `answer`, in pointer and length `question`, which
        // is read only; sizes that do not fit make the call fail with EINVAL.
        let errno = unsafe {
            sys::mallctlbymib(
                mib.as_ptr(),
                N,
                answer.as_mut_ptr().cast::<c_void>(),
                &raw mut length,
                question.as_ptr().cast_mut().cast::<c_void>(),
                size_of_val(question),
            )
        };
        errno == 0
    }
}

struct Controls {
    classes: usize,
    size: Mib<4>,
    slots: Mib<4>,
    taken: Mib<6>,
    slabs: Mib<6>,
    with_room: Mib<6>,
    batch: Mib<3>,
    single: Mib<3>,
}

/// Positions of the arena's number, and of the class's, in the names of figures.
const ARENA: usize = 2;
const CLASS: usize = 4;

fn controls() -> &'static Controls {
    static CONTROLS: OnceLock<Controls> = OnceLock::new();
    CONTROLS.get_or_init(|| Controls {
        classes: super::CONTROLS.read::<u32>(c"arenas.nbins").unwrap_or(0) as usize,
        size: Mib::of(c"arenas.bin.0.size"),
        slots: Mib::of(c"arenas.bin.0.nregs"),
        taken: Mib::of(c"stats.arenas.0.bins.0.curregs"),
        slabs: Mib::of(c"stats.arenas.0.bins.0.curslabs"),
        with_room: Mib::of(c"stats.arenas.0.bins.0.nonfull_slabs"),
        batch: Mib::of(c"experimental.utilization.batch_query"),
        single: Mib::of(c"experimental.utilization.query"),
    })
}

/// The classes of an arena that have slabs, smallest first, as of the last refresh.
pub(super) fn classes(arena: u32) -> Option<Vec<ClassFigures>> {
    let controls = controls();
    let figures = |class: usize| {
        let of_class = [(2, class)];
        let of_arena = [(ARENA, arena as usize), (CLASS, class)];
        Some(ClassFigures {
            size: controls.size.read::<usize>(&of_class)?,
            slots: controls.slots.read::<u32>(&of_class)?,
            taken: controls.taken.read::<usize>(&of_arena)?,
            slabs: controls.slabs.read::<usize>(&of_arena)?,
            with_room: controls.with_room.read::<usize>(&of_arena)?,
        })
    };
    (0..controls.classes).map(figures).collect()
}

/// How full the slabs of these blocks are. A block that has its pages to itself, or is unknown, yields a full slab.
pub(super) fn occupancy(blocks: &[NonNull<u8>], found: &mut [Occupancy]) {
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Answer {
        free: usize,
        slots: usize,
        bytes: usize,
    }
    const AT_ONCE: usize = 64;
    for (blocks, found) in blocks.chunks(AT_ONCE).zip(found.chunks_mut(AT_ONCE)) {
        let mut answers = [Answer::default(); AT_ONCE];
        let answers = &mut answers[..blocks.len()];
        if !controls().batch.ask(blocks, answers) {
            answers.fill(Answer::default());
        }
        for (answer, found) in answers.iter().zip(found) {
            *found = Occupancy {
                free: u32::try_from(answer.free).unwrap_or(0),
                class: answer.bytes.checked_div(answer.slots).unwrap_or(0),
            };
        }
    }
}

/// Returns true if the block lies in the slab from which its class is served next.
pub(super) fn is_in_current_slab(block: NonNull<u8>) -> bool {
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Answer {
        current: usize,
        free: usize,
        slots: usize,
        bytes: usize,
        class_free: usize,
        class_slots: usize,
    }
    let mut answer = [Answer::default()];
    let address = block.as_ptr().addr();
    controls().single.ask(&[block], &mut answer)
        && (answer[0].current..answer[0].current + answer[0].bytes).contains(&address)
}
