//! Options that jemalloc reads before `main` runs, and how they are changed: by starting the program once more.
//!
//! ```text
//!   Environment::take ── is an option of the configuration not in force?
//!       no  ── go on
//!       yes ── exec this program with the options in jemalloc's variable ── Environment::take, again ── go on
//! ```
//! The process keeps its id. What jemalloc reads later wins: the options of the linked program first, then its
//! environment. So an operator who sets the variable overrides the configuration: his options are appended to ours.
//!
//! Our own variable records that this process has been started again, and what the operator's options were. It carries
//! the process's id, so that an inherited one is ignored.

use std::ffi::OsStr;
use std::time::Duration;

use super::chosen;
use super::settings::Setting;

/// Holds `PID` or `PID:OPTIONS`, where OPTIONS are what the operator had set.
pub const AGAIN: &str = "DORMOUSE_ALLOCATOR_STARTED_AGAIN";

/// How long a new thread is given to name itself.
const NAMING_MS: usize = 1000;

/// What the environment says about the allocator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// The operator's own options, in jemalloc's words.
    pub own: Option<String>,
    /// Whether this process has been started again for its options.
    pub again: bool,
}

/// A setting and the value requested for it.
pub type Requested = (Setting, String);

impl Environment {
    /// Reads the environment, and restores it to what it was before this process was started a second time. Call it
    /// before any thread is started; if it is too late for that, nothing is restored.
    pub fn take() -> Self {
        let variable = variable();
        let read = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let Some(note) = read(AGAIN) else {
            return Self { own: variable.and_then(read), again: false };
        };
        let read = Self::understand(&note, std::process::id(), variable.and_then(read));
        if is_alone() {
            restore(AGAIN, None);
            if let Some(variable) = variable.filter(|_| read.again) {
                restore(variable, read.own.as_deref());
            }
        }
        read
    }

    /// `note` is from this process or an ancestor; `set` is what jemalloc has read.
    fn understand(note: &str, process: u32, set: Option<String>) -> Self {
        let (id, own) = note.split_once(':').map_or((note, None), |(id, own)| (id, Some(own.to_owned())));
        if id.parse() == Ok(process) { Self { own, again: true } } else { Self { own: set, again: false } }
    }

    /// Returns true if the operator's own options name a setting.
    pub fn decides(&self, setting: Setting) -> bool {
        let Some(option) = setting.option() else { return false };
        let own = self.own.as_deref().unwrap_or_default();
        own.split(',').any(|pair| pair.split(':').next() == Some(option))
    }

    /// Returns the requested boot options that are not in force and that the operator has not decided.
    pub fn not_in_force(&self, requested: &[Requested]) -> Vec<Requested> {
        let differs = |(setting, value): &&Requested| {
            setting.is_of_boot() && !self.decides(*setting) && setting.at_boot().as_ref() != Some(value)
        };
        requested.iter().filter(differs).cloned().collect()
    }

    /// The variables for a second start, which puts the requested boot options in force.
    pub fn of_second_start(&self, requested: &[Requested]) -> Vec<(&'static str, String)> {
        let Some(variable) = variable() else { return Vec::new() };
        let id = std::process::id();
        let note = self.own.as_ref().map_or_else(|| id.to_string(), |own| format!("{id}:{own}"));
        vec![(variable, options(requested, self.own.as_deref())), (AGAIN, note)]
    }
}

/// The environment variable that the allocator in use reads its options from, if it is a jemalloc.
pub fn variable() -> Option<&'static str> {
    chosen::controls().map(|controls| controls.variable)
}

/// The requested boot options in jemalloc's syntax, followed by the operator's options, which win.
fn options(requested: &[Requested], own: Option<&str>) -> String {
    let requested = requested.iter().filter(|(setting, _)| setting.is_of_boot());
    let pairs = requested.filter_map(|(setting, value)| Some(format!("{}:{value}", setting.option()?)));
    pairs.chain(own.filter(|own| !own.is_empty()).map(str::to_owned)).collect::<Vec<_>>().join(",")
}

/// Returns true if no thread but this one reads the environment: there is none except jemalloc's own. A thread that
/// jemalloc has just started has our name until it has run for a moment, so this waits for that moment.
fn is_alone() -> bool {
    (0..NAMING_MS).any(|_| {
        let alone = other_threads() == Some(0);
        if !alone {
            std::thread::sleep(Duration::from_millis(1));
        }
        alone
    })
}

/// Number of threads other than this one and jemalloc's, by their names.
fn other_threads() -> Option<usize> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    let name = |thread: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(thread.ok()?.path().join("comm")).ok()
    };
    threads.map(name).filter(|name| name.as_deref() != Some("jemalloc_bg_thd\n")).count().checked_sub(1)
}

fn restore(name: impl AsRef<OsStr>, value: Option<&str>) {
    // SAFETY: no other thread can read the environment meanwhile, see `is_alone`.
    unsafe {
        match value {
            Some(value) => std::env::set_var(name, value),
            None => std::env::remove_var(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(own: &str) -> Environment {
        Environment { own: Some(own.to_owned()), again: false }
    }

    #[test]
    fn options_are_jemallocs_words_and_the_operators_come_last() {
        let requested = [
            (Setting::Narenas, "4"),
            (Setting::Profile, "true"),
            (Setting::Thp, "never"),
            (Setting::DirtyDecayMs, "1"),
        ]
        .map(|(setting, value)| (setting, value.to_owned()));
        assert_eq!(options(&requested, None), "narenas:4,prof:true");
        assert_eq!(options(&requested, Some("narenas:8")), "narenas:4,prof:true,narenas:8");
        assert_eq!(options(&[], Some("")), "");
    }

    #[test]
    fn the_operator_decides_what_he_names() {
        let environment = with("narenas:8,prof_leak:true,metadata_thp:auto");
        assert!(environment.decides(Setting::Narenas) && environment.decides(Setting::MetadataThp));
        assert!(!environment.decides(Setting::Profile) && !environment.decides(Setting::CacheOblivious));
        assert!(!Environment::default().decides(Setting::Narenas));
        assert!(!with("thp:never").decides(Setting::Thp), "jemalloc's thp is not that of item memory");
    }

    #[test]
    fn a_note_counts_for_the_process_it_names() {
        let again = |own: Option<&str>| Environment { own: own.map(str::to_owned), again: true };
        let set = || Some("narenas:4,prof:true".to_owned());
        assert_eq!(Environment::understand("17", 17, set()), again(None));
        assert_eq!(Environment::understand("17:prof:true", 17, set()), again(Some("prof:true")));
        for inherited in ["16", "16:a:b", "", "x"] {
            assert_eq!(Environment::understand(inherited, 17, set()), with("narenas:4,prof:true"));
        }
    }

    #[cfg(feature = "alloc-jemalloc")]
    #[test]
    fn a_setting_is_not_in_force_while_another_value_is_in_force() {
        let wanted = |setting: Setting, value: &str| (setting, value.to_owned());
        let requested = [
            wanted(Setting::Narenas, "2"),
            wanted(Setting::CacheOblivious, "true"),
            wanted(Setting::MetadataThp, "always"),
            wanted(Setting::DirtyDecayMs, "1"),
        ];
        assert_eq!(
            Environment::default().not_in_force(&requested),
            [requested[1].clone(), requested[2].clone()]
        );
        assert_eq!(with("cache_oblivious:false").not_in_force(&requested), [requested[2].clone()]);
        assert!(with("cache_oblivious:false,metadata_thp:auto").not_in_force(&requested).is_empty());
        let variables = with("x:y").of_second_start(&requested);
        let id = std::process::id();
        assert_eq!(
            variables,
            [
                ("_RJEM_MALLOC_CONF", "narenas:2,cache_oblivious:true,metadata_thp:always,x:y".to_owned()),
                (AGAIN, format!("{id}:x:y"))
            ]
        );
    }
}
