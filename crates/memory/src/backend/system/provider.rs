//! Which library actually serves `malloc`: the C library, or a preloaded one, recognised by its own symbols.
//!
//! The calls that report each library's version and return its free pages are those of its own interface. They are
//! looked up by name: none of them need exist when Dormouse is linked.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use crate::backend::controls::{Call, Controls};
use crate::backend::report::{Figure, of_mimalloc};

type Property = unsafe extern "C" fn(*const c_char, *mut usize) -> c_int;
type Info = unsafe extern "C" fn(
    *mut usize,
    *mut usize,
    *mut usize,
    *mut usize,
    *mut usize,
    *mut usize,
    *mut usize,
    *mut usize,
);
type Collect = unsafe extern "C" fn(bool);
type Release = unsafe extern "C" fn();

/// `arena.4096` means every arena of jemalloc.
const JEMALLOC_PURGE: &CStr = c"arena.4096.purge";

/// The library and the functions to call.
enum Provider {
    Jemalloc(Controls),
    Mimalloc(Collect, Option<Info>),
    Tcmalloc(Release, Option<Property>),
    /// The C library, or one we do not know.
    Library,
}

/// The library that serves, found once: libraries cannot be preloaded later.
struct Found {
    provider: Provider,
    version: String,
}

fn found() -> &'static Found {
    static FOUND: OnceLock<Found> = OnceLock::new();
    FOUND.get_or_init(find)
}

/// Name and version of the library.
pub(in crate::backend) fn version() -> String {
    found().version.clone()
}

/// Returns all free pages of the process to the system.
pub(super) fn trim() {
    match found().provider {
        Provider::Jemalloc(controls) => {
            let _ = controls.run(JEMALLOC_PURGE);
        }
        // SAFETY: the function has no conditions.
        Provider::Mimalloc(collect, _) => unsafe { collect(true) },
        // SAFETY: as above.
        Provider::Tcmalloc(release, _) => unsafe { release() },
        Provider::Library => {
            #[cfg(target_env = "gnu")]
            // SAFETY: as above.
            unsafe {
                libc::malloc_trim(0);
            }
        }
    }
}

/// The control interface of a preloaded jemalloc.
pub(in crate::backend) fn controls() -> Option<Controls> {
    match found().provider {
        Provider::Jemalloc(controls) => Some(controls),
        _ => None,
    }
}

/// The library's figures of the process's memory, except for a jemalloc, which has its own list.
pub(in crate::backend) fn figures() -> Vec<Figure> {
    match found().provider {
        Provider::Jemalloc(_) => Vec::new(),
        Provider::Mimalloc(_, info) => info.map(mimalloc_figures).unwrap_or_default(),
        Provider::Tcmalloc(_, property) => property.map(tcmalloc_figures).unwrap_or_default(),
        Provider::Library => library_figures(),
    }
}

fn mimalloc_figures(info: Info) -> Vec<Figure> {
    let (mut committed, mut peak) = (0usize, 0usize);
    let none = null_mut();
    // SAFETY: out pointers to locals; those that are null are left out.
    unsafe { info(none, none, none, none, none, &raw mut committed, &raw mut peak, none) };
    of_mimalloc(committed, peak)
}

/// tcmalloc's properties and our names for them.
const TCMALLOC: &[(&CStr, &str, &str)] = &[
    (c"generic.current_allocated_bytes", "allocated_bytes", "Bytes in use by the process"),
    (c"generic.heap_size", "mapped_bytes", "Address space tcmalloc holds"),
    (c"tcmalloc.pageheap_free_bytes", "dirty_bytes", "Free pages not returned to the system"),
    (c"tcmalloc.pageheap_unmapped_bytes", "retained_bytes", "Free pages returned to the system"),
    (c"tcmalloc.current_total_thread_cache_bytes", "thread_cache_bytes", "Bytes in thread caches"),
];

fn tcmalloc_figures(property: Property) -> Vec<Figure> {
    TCMALLOC
        .iter()
        .filter_map(|(control, name, help)| {
            let mut value = 0usize;
            // SAFETY: a terminated name and an out pointer to a local.
            let known = unsafe { property(control.as_ptr(), &raw mut value) } != 0;
            known.then_some(Figure { name, help, value: value as u64 })
        })
        .collect()
}

#[cfg(target_env = "gnu")]
fn library_figures() -> Vec<Figure> {
    // SAFETY: it only returns numbers.
    let info = unsafe { libc::mallinfo2() };
    [
        ("allocated_bytes", "Bytes in use by the process", info.uordblks + info.hblkhd),
        ("mapped_bytes", "Memory the library holds from the system", info.arena + info.hblkhd),
        ("free_bytes", "Free blocks, returned or not", info.fordblks),
        ("mapped_singly_bytes", "Blocks that are mappings of their own", info.hblkhd),
    ]
    .into_iter()
    .map(|(name, help, value)| Figure { name, help, value: value as u64 })
    .collect()
}

#[cfg(not(target_env = "gnu"))]
fn library_figures() -> Vec<Figure> {
    Vec::new()
}

/// The address of a symbol in whatever is loaded.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a null-terminated name, looked for in everything that was loaded with the process.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

fn find() -> Found {
    jemalloc()
        .or_else(mimalloc)
        .or_else(tcmalloc)
        .unwrap_or_else(|| Found { provider: Provider::Library, version: library_version() })
}

fn jemalloc() -> Option<Found> {
    // SAFETY: the symbol is a function of this type wherever it exists.
    let controls = unsafe {
        let call: Call = std::mem::transmute(symbol(c"mallctl")?);
        Controls::new(call, "MALLOC_CONF")
    };
    let version = format!("jemalloc {}, preloaded", controls.version());
    Some(Found { provider: Provider::Jemalloc(controls), version })
}

fn mimalloc() -> Option<Found> {
    // SAFETY: the symbols are functions of these types wherever they exist.
    let (version, collect) = unsafe {
        let version: unsafe extern "C" fn() -> c_int = std::mem::transmute(symbol(c"mi_version")?);
        (version(), std::mem::transmute::<*mut c_void, Collect>(symbol(c"mi_collect")?))
    };
    // SAFETY: as above.
    let info =
        symbol(c"mi_process_info").map(|info| unsafe { std::mem::transmute::<*mut c_void, Info>(info) });
    // One digit each until 2.x, since 3.x two for the minor and the patch.
    let grain = if version >= 10_000 { 100 } else { 10 };
    let version = format!(
        "mimalloc {}.{}.{}, preloaded",
        version / (grain * grain),
        version / grain % grain,
        version % grain
    );
    Some(Found { provider: Provider::Mimalloc(collect, info), version })
}

fn tcmalloc() -> Option<Found> {
    // SAFETY: the symbols are functions of these types wherever they exist; the numbers are out parameters that may be
    // null.
    let (version, release) = unsafe {
        let version: unsafe extern "C" fn(*mut c_int, *mut c_int, *mut *const c_char) -> *const c_char =
            std::mem::transmute(symbol(c"tc_version")?);
        let release: Release = std::mem::transmute(symbol(c"MallocExtension_ReleaseFreeMemory")?);
        (version(null_mut(), null_mut(), null_mut()), release)
    };
    // SAFETY: as above.
    let property = symbol(c"MallocExtension_GetNumericProperty")
        .map(|property| unsafe { std::mem::transmute::<*mut c_void, Property>(property) });
    let version = text(version);
    let version = format!("tcmalloc {}, preloaded", version.trim_start_matches("gperftools "));
    Some(Found { provider: Provider::Tcmalloc(release, property), version })
}

#[cfg(target_env = "gnu")]
fn library_version() -> String {
    // SAFETY: it returns a static string.
    format!("glibc {}", text(unsafe { libc::gnu_get_libc_version() }))
}

#[cfg(not(target_env = "gnu"))]
fn library_version() -> String {
    "malloc".to_owned()
}

/// A static C string, or nothing.
fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: callers pass static, terminated strings.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}
