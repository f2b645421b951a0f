//! The memory limit of this process' control group (cgroups(7)): of a container, or `MemoryMax=` and `MemoryHigh=` of a
//! systemd unit. The group's ancestors count too.

use std::fs;

/// The smallest limit in bytes; `None` if there is none that this process can see.
pub fn memory_limit() -> Option<u64> {
    let text = |path: &str| fs::read_to_string(path).ok();
    smallest(&text("/proc/self/cgroup")?, &text("/proc/self/mountinfo")?, text)
}

/// `groups` and `mounts` are the texts of `/proc/self/cgroup` and `mountinfo`; `read` returns the text of a file.
fn smallest(groups: &str, mounts: &str, read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let mut limits = Vec::new();
    for Hierarchy { point, path, files } in mounts.lines().filter_map(|line| Hierarchy::of(line, groups)) {
        let mut directory = format!("{point}{path}");
        loop {
            let all = files.iter().filter_map(|file| read(&format!("{directory}/{file}")));
            // "max" is no number.
            limits.extend(all.filter_map(|text| text.trim().parse::<u64>().ok()));
            match directory.rfind('/') {
                Some(end) if directory.len() > point.len() => directory.truncate(end),
                _ => break,
            }
        }
    }
    limits.into_iter().min()
}

/// A mounted hierarchy that may limit memory.
struct Hierarchy<'a> {
    point: &'a str,
    /// This process' group below the mount point: empty, or with a slash in front.
    path: &'a str,
    files: &'static [&'static str],
}

impl<'a> Hierarchy<'a> {
    /// The one of a line of `mountinfo` (proc(5)).
    fn of(mount: &'a str, groups: &'a str) -> Option<Self> {
        let (place, kind) = mount.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, point) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let (controller, files): (&str, &'static [&'static str]) = match (kind.next()?, kind.nth(1)?) {
            ("cgroup2", _) => ("", &["memory.max", "memory.high"]),
            ("cgroup", options) if options.split(',').any(|option| option == "memory") => {
                ("memory", &["memory.limit_in_bytes"])
            }
            _ => return None,
        };
        let of_controller = |line: &'a str| {
            let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|one| one == controller).then_some(group)
        };
        let group = groups.lines().find_map(of_controller)?;
        // A mount may show a part of the hierarchy only, and the group may lie outside of it.
        let path = if root == "/" { group } else { group.strip_prefix(root).unwrap_or_default() };
        let is_inside = path.starts_with('/') && path != "/" && !path.split('/').any(|name| name == "..");
        Some(Self { point, path: if is_inside { path } else { "" }, files })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(groups: &str, mounts: &str, files: &[(&str, &str)]) -> Option<u64> {
        smallest(groups, mounts, |path| {
            files.iter().find(|(name, _)| *name == path).map(|(_, text)| format!("{text}\n"))
        })
    }

    const UNIFIED: &str = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";

    #[test]
    fn a_unit_has_its_limit_or_that_of_its_slice() {
        let group = "0::/system.slice/dormouse.service\n";
        let unit = ("/sys/fs/cgroup/system.slice/dormouse.service/memory.max", "300");
        let high = ("/sys/fs/cgroup/system.slice/dormouse.service/memory.high", "250");
        let slice = ("/sys/fs/cgroup/system.slice/memory.max", "200");
        assert_eq!(limit(group, UNIFIED, &[unit]), Some(300));
        assert_eq!(limit(group, UNIFIED, &[unit, high]), Some(250));
        assert_eq!(limit(group, UNIFIED, &[unit, slice]), Some(200));
        assert_eq!(limit(group, UNIFIED, &[(unit.0, "max")]), None);
        assert_eq!(limit(group, "", &[unit]), None);
    }

    #[test]
    fn a_container_sees_its_group_as_the_root() {
        let root = [("/sys/fs/cgroup/memory.max", "400")];
        assert_eq!(limit("0::/\n", UNIFIED, &root), Some(400));
        assert_eq!(limit("0::/../other\n", UNIFIED, &root), Some(400));
    }

    #[test]
    fn the_first_version_has_a_hierarchy_for_memory() {
        let groups = "9:name=systemd:/a\n4:memory:/docker/1f\n1:cpu,cpuacct:/b\n0::/c\n";
        let own = "35 30 0:31 /docker/1f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
        let whole = "35 30 0:31 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
        let cpu = "36 30 0:32 / /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct";
        let mounted = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "500");
        let below = ("/sys/fs/cgroup/memory/docker/1f/memory.limit_in_bytes", "600");
        assert_eq!(limit(groups, &format!("{cpu}\n{own}\n"), &[mounted, below]), Some(500));
        assert_eq!(limit(groups, whole, &[below, (mounted.0, "9223372036854771712")]), Some(600));
        assert_eq!(limit(groups, cpu, &[mounted]), None);
    }
}
