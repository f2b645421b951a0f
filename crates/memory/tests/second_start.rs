//! A program that restarts itself for a boot option: the option is in force, the process is the same, and its
//! environment is as the operator set it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use memory::backend::boot::{AGAIN, Environment, variable};
use memory::backend::settings::Setting;

const OWN: &str = "lg_tcache_max:14";
/// The process id of the first start.
const FIRST: &str = "DORMOUSE_TEST_FIRST";

fn main() {
    let variable = variable().expect("a jemalloc");
    let requested = [(Setting::Narenas, "3".to_owned()), (Setting::CacheOblivious, "false".to_owned())];
    let this = || Command::new(std::env::current_exe().expect("this program"));
    let Ok(first) = std::env::var(FIRST) else {
        // The first of all only passes the operator's environment to a child.
        let child = this().env(variable, OWN).env(FIRST, "").status().expect("it runs");
        assert!(child.success(), "{child}");
        return;
    };
    let environment = Environment::take();
    assert_eq!(environment.own.as_deref(), Some(OWN));
    if first.is_empty() {
        assert!(!environment.again);
        assert_eq!(environment.not_in_force(&requested), requested[..1]);
        let id = std::process::id().to_string();
        let error = this().envs(environment.of_second_start(&requested)).env(FIRST, id).exec();
        panic!("{error}");
    }
    assert_eq!(first, std::process::id().to_string());
    assert!(environment.again && environment.not_in_force(&requested).is_empty());
    assert_eq!(Setting::Narenas.at_boot().as_deref(), Some("3"));
    assert_eq!(std::env::var(variable).as_deref(), Ok(OWN));
    assert!(std::env::var_os(AGAIN).is_none());
}
