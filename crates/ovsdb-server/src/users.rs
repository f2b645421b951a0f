//! `--user`: the user that the server runs as.

use std::fs;

/// A user and group by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub user: u32,
    /// The group.
    pub group: u32,
}

/// Parses `USER[:GROUP]`; without a group, the user's own.
pub fn find(spec: &str) -> Result<Identity, String> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    find_in(spec, &passwd, &groups)
}

fn find_in(spec: &str, passwd: &str, groups: &str) -> Result<Identity, String> {
    let (name, group) = match spec.split_once(':') {
        Some((name, group)) => (name, Some(group).filter(|group| !group.is_empty())),
        None => (spec, None),
    };
    let missing = || format!("(null): user {name} not found, aborting.");
    let number = |field: Option<&str>| field.and_then(|text| text.parse().ok());
    let entry = passwd.lines().find(|line| line.split(':').next() == Some(name)).ok_or_else(missing)?;
    let user = number(entry.split(':').nth(2)).ok_or_else(missing)?;
    let own = number(entry.split(':').nth(3)).ok_or_else(missing)?;
    let group = match group {
        None => own,
        Some(group) => {
            let missing = || format!("(null): group {group} not found, aborting.");
            let entry =
                groups.lines().find(|line| line.split(':').next() == Some(group)).ok_or_else(missing)?;
            number(entry.split(':').nth(2)).ok_or_else(missing)?
        }
    };
    Ok(Identity { user, group })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_found_by_name() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\novs:x:104:106::/:/bin/false\n";
        let groups = "root:x:0:\nhugetlbfs:x:107:ovs\n";
        assert_eq!(find_in("ovs", passwd, groups), Ok(Identity { user: 104, group: 106 }));
        assert_eq!(find_in("ovs:hugetlbfs", passwd, groups), Ok(Identity { user: 104, group: 107 }));
        assert_eq!(find_in("nope", passwd, groups).unwrap_err(), "(null): user nope not found, aborting.");
        assert_eq!(
            find_in("ovs:nope", passwd, groups).unwrap_err(),
            "(null): group nope not found, aborting."
        );
    }
}
