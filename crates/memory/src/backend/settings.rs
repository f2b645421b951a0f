//! Allocator settings that an operator may change, by jemalloc's own names.
//!
//! ```text
//!                       at boot only (opt.*)                       while it runs
//!   jemalloc, linked    metadata_thp, narenas, cache_oblivious,    background_thread, dirty_decay_ms,
//!   or preloaded        profile                                    muzzy_decay_ms
//!   jemalloc, linked                                               thp, of item memory
//!   others              none: each has its own environment variables
//! ```
//! Values are strings in jemalloc's syntax, so that a requested value, one in force and one for the environment compare
//! as they are.

use std::fmt;

use super::chosen;
use super::controls::{Controls, numbered};
use super::{ControlError, version};

/// One of the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// Huge pages for the allocator's own bookkeeping.
    MetadataThp,
    /// Arenas that threads share, beside those of the tenants.
    Narenas,
    /// Random offsets of large blocks.
    CacheOblivious,
    /// Whether allocations are sampled, for a heap profile.
    Profile,
    /// A thread that returns free pages.
    BackgroundThread,
    /// When dirty pages of the shared arenas are returned.
    DirtyDecayMs,
    /// When their muzzy pages are returned.
    MuzzyDecayMs,
    /// Huge pages for item memory.
    Thp,
}

/// Huge page setting for item memory: the advice for each chunk of a tenant's arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thp {
    /// From the first chunk.
    Always,
    /// Not for a tenant's first chunk of 8 MiB, so that small ones stay small.
    Default,
    /// Nowhere.
    Never,
}

impl Thp {
    /// All names.
    pub const NAMES: &'static [&'static str] = &["always", "default", "never"];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Default => "default",
            Self::Never => "never",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Always, Self::Default, Self::Never].into_iter().find(|thp| thp.name() == name)
    }
}

/// Why a setting could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// The allocator in use does not have it.
    #[error("{0}")]
    Missing(String),
    /// It is not one of the setting's values, or can only be set at boot.
    #[error("not a value that can be set while the process runs")]
    Value,
    /// The allocator refused.
    #[error(transparent)]
    Control(#[from] ControlError),
}

impl Setting {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::MetadataThp,
        Self::Narenas,
        Self::CacheOblivious,
        Self::Profile,
        Self::BackgroundThread,
        Self::DirtyDecayMs,
        Self::MuzzyDecayMs,
        Self::Thp,
    ];

    /// Its name: in the configuration, and in jemalloc's options except for `profile` and `thp`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MetadataThp => "metadata_thp",
            Self::Narenas => "narenas",
            Self::CacheOblivious => "cache_oblivious",
            Self::Profile => "profile",
            Self::BackgroundThread => "background_thread",
            Self::DirtyDecayMs => "dirty_decay_ms",
            Self::MuzzyDecayMs => "muzzy_decay_ms",
            Self::Thp => "thp",
        }
    }

    /// Returns the setting with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|setting| setting.name() == name)
    }

    /// jemalloc's own name for it among the options it reads when the process starts. jemalloc's `thp` is something
    /// else: ours applies to chunks that jemalloc does not map.
    pub const fn option(self) -> Option<&'static str> {
        match self {
            Self::Profile => Some("prof"),
            Self::Thp => None,
            other => Some(other.name()),
        }
    }

    /// Returns true if it is fixed when the process starts.
    pub const fn is_of_boot(self) -> bool {
        matches!(self, Self::MetadataThp | Self::Narenas | Self::CacheOblivious | Self::Profile)
    }

    /// Why the allocator in use does not have it; `None` if it does.
    pub fn missing(self) -> Option<String> {
        let Some(controls) = chosen::controls() else {
            return Some(format!("{} has no such setting", version()));
        };
        match self {
            Self::Thp if chosen::thp().is_none() => {
                Some(format!("item memory lies where {} puts it", version()))
            }
            Self::Profile if !controls.read(c"config.prof").unwrap_or(false) => {
                let feature =
                    if cfg!(feature = "alloc-jemalloc") { ", the feature heap-profile" } else { "" };
                Some(format!("{} is built without profiling{feature}", version()))
            }
            _ => None,
        }
    }

    /// Its value in force.
    pub fn in_force(self) -> Option<String> {
        match self {
            Self::Thp => chosen::thp().map(|thp| thp.name().to_owned()),
            Self::BackgroundThread => text(chosen::controls()?.read::<bool>(c"background_thread")),
            Self::DirtyDecayMs => text(chosen::controls()?.read::<isize>(c"arenas.dirty_decay_ms")),
            Self::MuzzyDecayMs => text(chosen::controls()?.read::<isize>(c"arenas.muzzy_decay_ms")),
            _ => self.at_boot(),
        }
    }

    /// Its value when the process started, after everything that jemalloc reads.
    pub fn at_boot(self) -> Option<String> {
        let controls = chosen::controls()?;
        match self {
            Self::MetadataThp => controls.read_text(c"opt.metadata_thp").ok(),
            Self::Narenas => text(controls.read::<u32>(c"opt.narenas")),
            Self::CacheOblivious => text(controls.read::<bool>(c"opt.cache_oblivious")),
            Self::Profile => text(controls.read::<bool>(c"opt.prof")),
            Self::BackgroundThread => text(controls.read::<bool>(c"opt.background_thread")),
            Self::DirtyDecayMs => text(controls.read::<isize>(c"opt.dirty_decay_ms")),
            Self::MuzzyDecayMs => text(controls.read::<isize>(c"opt.muzzy_decay_ms")),
            Self::Thp => chosen::thp().map(|_| Thp::Default.name().to_owned()),
        }
    }

    /// Changes it while the process runs. Decay is that of the shared arenas: those of tenants do not decay
    /// (`docs/decisions/0003`).
    pub fn apply(self, value: &str) -> Result<(), SettingError> {
        if let Some(why) = self.missing() {
            return Err(SettingError::Missing(why));
        }
        let Some(controls) = chosen::controls() else { return Err(SettingError::Value) };
        match self {
            Self::Thp => chosen::set_thp(Thp::from_name(value).ok_or(SettingError::Value)?),
            Self::BackgroundThread => {
                controls
                    .write(c"background_thread", value.parse::<bool>().map_err(|_| SettingError::Value)?)?;
            }
            Self::DirtyDecayMs | Self::MuzzyDecayMs => {
                let decay_ms = value.parse::<isize>().map_err(|_| SettingError::Value)?;
                // First for arenas that do not exist yet, then for those that do.
                let name = if self == Self::DirtyDecayMs {
                    c"arenas.dirty_decay_ms"
                } else {
                    c"arenas.muzzy_decay_ms"
                };
                controls.write(name, decay_ms)?;
                for arena in 0..controls.read::<u32>(c"opt.narenas")? {
                    if controls.read(&numbered("arena", arena, "initialized")).unwrap_or(false) {
                        controls.write(&numbered("arena", arena, self.name()), decay_ms)?;
                    }
                }
            }
            _ => return Err(SettingError::Value),
        }
        Ok(())
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn text<T: ToString>(read: Result<T, ControlError>) -> Option<String> {
    read.ok().map(|value| value.to_string())
}

/// Writes the sampled profile to a file, in jemalloc's format.
pub fn dump_profile(file: &std::path::Path) -> Result<(), SettingError> {
    use std::os::unix::ffi::OsStrExt as _;
    let sampling = |controls: &Controls| controls.read(c"opt.prof").unwrap_or(false);
    let Some(controls) = chosen::controls().filter(sampling) else {
        let why = Setting::Profile.missing().unwrap_or_else(|| "allocator.profile = false".to_owned());
        return Err(SettingError::Missing(why));
    };
    let file = std::ffi::CString::new(file.as_os_str().as_bytes()).map_err(|_| SettingError::Value)?;
    Ok(controls.write_text(c"prof.dump", &file)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for setting in Setting::ALL {
            assert_eq!(Setting::from_name(setting.name()), Some(*setting));
        }
        assert_eq!(Setting::from_name("prof"), None);
    }

    #[cfg(feature = "alloc-mimalloc")]
    #[test]
    fn what_is_not_there_is_refused_by_the_allocators_name() {
        for setting in Setting::ALL {
            let why = setting.missing().unwrap();
            assert!(why.contains("mimalloc 3"), "{why}");
            assert!(matches!(setting.apply("1"), Err(SettingError::Missing(_))));
            assert_eq!(setting.in_force(), None);
        }
    }
}
