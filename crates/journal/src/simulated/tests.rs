use super::*;
use crate::write_all_at;

fn path(name: &str) -> PathBuf {
    PathBuf::from("/d").join(name)
}

fn created(disk: &SimulatedDisk, name: &str) -> SimulatedFile {
    let file = disk.open(&path(name), Open::CreateNew).expect("created");
    disk.sync_directory(&path(name)).expect("synced");
    file
}

#[test]
fn a_crash_leaves_what_was_synced() {
    let disk = SimulatedDisk::new();
    let file = created(&disk, "a");
    write_all_at(&file, b"one", 0).expect("written");
    file.sync().expect("synced");
    write_all_at(&file, b"two", 3).expect("written");
    assert_eq!(disk.read(&path("a")).as_deref(), Some(&b"onetwo"[..]));
    disk.crash(Survival::Synced);
    assert_eq!(disk.read(&path("a")).as_deref(), Some(&b"one"[..]));
    assert!(file.sync().is_err(), "files do not outlive a crash");
}

#[test]
fn what_only_a_process_left_in_the_cache_goes_with_the_power() {
    let disk = SimulatedDisk::new();
    let file = created(&disk, "a");
    write_all_at(&file, b"one", 0).expect("written");
    disk.crash(Survival::Cached);
    assert_eq!(disk.read(&path("a")).as_deref(), Some(&b"one"[..]));
    disk.crash(Survival::Synced);
    assert_eq!(disk.read(&path("a")).as_deref(), Some(&b""[..]));
}

#[test]
fn names_need_a_sync_of_their_directory() {
    let disk = SimulatedDisk::new();
    let file = disk.open(&path("a"), Open::CreateNew).expect("created");
    write_all_at(&file, b"one", 0).expect("written");
    file.sync().expect("synced");
    disk.crash(Survival::Synced);
    assert_eq!(disk.names(), Vec::<PathBuf>::new());

    created(&disk, "a");
    disk.rename(&path("a"), &path("b")).expect("renamed");
    disk.crash(Survival::Synced);
    assert_eq!(disk.names(), [path("a")]);
    disk.rename(&path("a"), &path("b")).expect("renamed");
    disk.sync_directory(&path("b")).expect("synced");
    disk.crash(Survival::Synced);
    assert_eq!(disk.names(), [path("b")]);
}

#[test]
fn what_a_failed_sync_was_to_keep_is_lost_for_good() {
    let disk = SimulatedDisk::new();
    let file = created(&disk, "a");
    write_all_at(&file, b"one", 0).expect("written");
    disk.inject(disk.operations(), Fault::Io);
    assert!(file.sync().is_err());
    file.sync().expect("the next one says all is well");
    disk.crash(Survival::Synced);
    assert_eq!(disk.read(&path("a")).as_deref(), Some(&b""[..]));
}

#[test]
fn writes_may_be_short_or_torn() {
    let disk = SimulatedDisk::new();
    let file = created(&disk, "a");
    disk.inject(disk.operations(), Fault::Short(2));
    write_all_at(&file, b"abcd", 0).expect("the rest is written after it");
    disk.inject(disk.operations(), Fault::Torn(1));
    assert!(write_all_at(&file, b"efgh", 4).is_err());
    assert_eq!(disk.read(&path("a")).as_deref(), Some(&b"abcde"[..]));
    disk.inject(disk.operations(), Fault::NoSpace);
    let error = write_all_at(&file, b"x", 5).expect_err("full");
    assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
}

#[test]
fn after_power_off_nothing_works_until_the_crash_is_over() {
    let disk = SimulatedDisk::new();
    let file = created(&disk, "a");
    write_all_at(&file, b"abcd", 0).expect("written");
    disk.inject(disk.operations(), Fault::PowerOff);
    assert!(file.sync().is_err());
    assert!(write_all_at(&file, b"x", 0).is_err());
    assert!(disk.rename(&path("a"), &path("b")).is_err());
    disk.crash(Survival::Some(0));
    assert_eq!(disk.read(&path("a")).as_deref(), Some(&b"ab"[..]), "half of the first unsynced write");
    disk.open(&path("a"), Open::ReadWrite).expect("opened");
}

#[test]
fn a_lock_is_held_once_until_dropped() {
    let disk = SimulatedDisk::new();
    let lock = disk.lock(&path("l")).expect("locked");
    assert!(matches!(disk.lock(&path("l")), Err(LockError::ThisProcess)));
    drop(lock);
    disk.lock(&path("l")).expect("locked");
}
