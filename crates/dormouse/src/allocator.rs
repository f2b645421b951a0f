//! `[allocator]`: boot options, applied by re-executing the program; run-time options; heap profiles.
//!
//! Only boot options that the configuration gives are applied; the allocator keeps its own values for the rest.
//! `memory::backend::boot` describes the second start and why an operator's own environment takes precedence.

use crate::config::{AllocatorSection, Config, keys};
use console::Refusal;
use memory::backend::boot::{self, Environment, Requested};
use memory::backend::settings::{Setting, SettingError, dump_profile};
use std::fmt::Display;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// The allocator settings that the process was started with.
pub struct Allocator {
    environment: Environment,
    /// Messages to log once logging has started.
    notes: Vec<String>,
}

impl Allocator {
    /// Ensures that the configuration's boot options are in force. If they are not, re-executes this program, but only
    /// once. Call it before any thread, socket or lock exists.
    pub fn start(config: &Config) -> Self {
        let environment = Environment::take();
        let requested = given(config);
        let ignored = environment.not_in_force(&requested);
        let mut notes = Vec::new();
        if !ignored.is_empty() && !environment.again {
            notes.push(format!("this program could not be re-executed: {}", again(&environment, &requested)));
        }
        for (setting, value) in ignored {
            notes.push(format!(
                "allocator.{setting} = {value}: {} stays in effect",
                setting.at_boot().unwrap_or_default()
            ));
        }
        Self { environment, notes }
    }

    /// Logs what happened at the start.
    pub fn report(&mut self) {
        if self.environment.again {
            tracing::info!("re-executed to apply the allocator's boot options");
        }
        for note in self.notes.drain(..) {
            tracing::warn!("{note}");
        }
    }

    /// Applies the settings that can change at run time. Settings that are not given return to their values at boot.
    pub fn apply(&self, config: &Config) {
        let given = given(config);
        let variable = boot::variable().unwrap_or_default();
        for setting in Setting::ALL.iter().copied().filter(|setting| setting.missing().is_none()) {
            let requested = given.iter().find(|(name, _)| *name == setting).map(|(_, value)| value.clone());
            if self.environment.decides(setting) {
                if let Some(value) = requested.filter(|value| setting.in_force().as_ref() != Some(value)) {
                    tracing::warn!("allocator.{setting} = {value}: {variable} takes precedence");
                }
                continue;
            }
            if setting.is_of_boot() {
                continue;
            }
            let value = requested.or_else(|| setting.at_boot()).unwrap_or_default();
            if setting.in_force().as_ref() != Some(&value)
                && let Err(error) = setting.apply(&value)
            {
                tracing::warn!("allocator.{setting} = {value}: {error}");
            }
        }
    }
}

/// The settings that the configuration gives.
fn given(config: &Config) -> Vec<Requested> {
    let is_given = |setting: &Setting| config.given.contains_key(&format!("allocator.{setting}"));
    let requested = |setting: Setting| (setting, config.allocator.value(setting).to_owned());
    Setting::ALL.iter().copied().filter(is_given).map(requested).collect()
}

/// Re-executes this program. Returns only on failure.
fn again(environment: &Environment, requested: &[Requested]) -> io::Error {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "dormouse".into());
    // The kernel names the process after the executed file, so execute the file itself and not the link in /proc. The
    // link is the fallback if the file has been replaced meanwhile.
    let program = std::env::current_exe().ok().filter(|path| is_this_program(path));
    let mut command = Command::new(program.as_deref().unwrap_or(Path::new("/proc/self/exe")));
    command.arg0(name).args(arguments).envs(environment.of_second_start(requested)).exec()
}

fn is_this_program(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let file = |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    file(path).is_some_and(|found| Some(found) == file(Path::new("/proc/self/exe")))
}

/// Changes settings of the running process: all of them or, if one is refused by name, none.
pub fn set(fields: &[(String, String)]) -> Result<(), Refusal> {
    let mut section = AllocatorSection::default();
    let mut changes = Vec::new();
    for (field, value) in fields {
        let setting = Setting::from_name(field);
        let known = setting.zip(keys::ALLOCATOR.key(field)).filter(|(_, key)| key.reload);
        let Some((setting, key)) = known else {
            let names: Vec<&str> =
                keys::ALLOCATOR.keys.iter().filter(|key| key.reload).map(|key| key.name).collect();
            let why = if setting.is_some() { "needs a restart" } else { "is no setting" };
            return Err(invalid("_", format!("Field {field:?} {why}. Allowed: {}.", names.join(", "))));
        };
        if let Some(why) = setting.missing() {
            return Err(invalid(key.name, format!("{why}.")));
        }
        if key.kind.store(&mut section, crate::config::key::Raw::Text(value)).is_err() {
            let allowed = key.kind.allowed();
            return Err(invalid(key.name, format!("{value:?}: not allowed; allowed: {allowed}.")));
        }
        changes.push((setting, key.name));
    }
    for (setting, field) in changes {
        let value = section.value(setting);
        setting.apply(value).map_err(|error| refusal(field, &error))?;
        tracing::info!(value, "allocator.{setting} set over HTTP; a reload restores the file's value");
    }
    Ok(())
}

/// Writes a heap profile into a directory and returns the file's path.
pub fn write_profile(directory: &Path) -> Result<PathBuf, Refusal> {
    let time_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
    let file = directory.join(format!("heap-{time_ms}.prof"));
    let failed = |error: &dyn Display| Refusal::Failed { reason: format!("{}: {error}", file.display()) };
    // The allocator does not report why it could not create the file or write all of it.
    File::create_new(&file).map_err(|error| failed(&error))?;
    let dumped = dump_profile(&file).map_err(|error| match error {
        SettingError::Control(_) => failed(&"the allocator could not write it; is there room on the disk?"),
        _ => refusal("profile", &error),
    });
    if dumped.is_err() {
        let _ = fs::remove_file(&file);
    }
    dumped?;
    tracing::info!(file = %file.display(), "heap profile written");
    Ok(file)
}

fn invalid(field: &'static str, reason: String) -> Refusal {
    Refusal::Invalid { field, reason }
}

fn refusal(field: &'static str, error: &SettingError) -> Refusal {
    match error {
        SettingError::Missing(why) => invalid(field, format!("Not possible: {why}.")),
        SettingError::Value => invalid(field, format!("{error}.")),
        SettingError::Control(error) => Refusal::Failed { reason: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::reader::{Flags, defaults, load};

    #[test]
    fn what_is_not_given_is_no_wish() {
        let config = load(None, &Flags::default()).expect("valid");
        assert!(given(&config).is_empty());
    }

    #[test]
    fn unknown_fields_and_boot_options_are_refused_before_anything_changes() {
        let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        for (fields, words) in [
            (vec![field("narenas", "4")], "\"narenas\" needs a restart"),
            (vec![field("arenas", "4")], "\"arenas\" is no setting"),
        ] {
            let Err(Refusal::Invalid { reason, .. }) = set(&fields) else {
                panic!("{fields:?} was accepted")
            };
            assert!(reason.contains(words), "{reason}");
        }
    }

    #[cfg(feature = "alloc-jemalloc")]
    #[test]
    fn the_table_has_the_defaults_that_are_in_force() {
        for setting in Setting::ALL.iter().filter(|setting| setting.missing().is_none()) {
            let in_table = defaults().allocator.value(*setting).to_owned();
            assert_eq!(setting.at_boot(), Some(in_table), "{setting}");
        }
    }

    #[cfg(not(feature = "alloc-jemalloc"))]
    #[test]
    fn the_default_file_gives_none_of_what_is_not_there() {
        let page = crate::config::page::default_toml();
        assert!(page.contains("\n# narenas = 2\n") && !page.contains("\nnarenas"), "{page}");
        assert_eq!(defaults().allocator.value(Setting::Narenas), "2");
    }
}
