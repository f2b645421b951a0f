//! What the running Debian, or a system like it, knows of packages: which one a file is from, and which ones it offers.

use std::path::Path;
use std::process::{Command, Stdio};

/// An installed package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name, without the architecture.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// The package that a file is from; `None` if it is from none.
pub fn package_of(file: &Path) -> Option<Package> {
    let path = file.to_str()?;
    // Packages may still name the folders that are links into /usr now.
    let owner = [path, path.strip_prefix("/usr").unwrap_or(path)].into_iter().find_map(owner)?;
    let version = said("dpkg-query", &["--show", "--showformat=${Version}", &owner])?;
    let name = owner.split(':').next().unwrap_or(&owner).to_owned();
    Some(Package { name, version })
}

/// The first of these packages that can be installed.
pub fn offered(packages: &[&'static str]) -> Option<&'static str> {
    let is_offered = |name: &str| {
        said("apt-cache", &["show", "--no-all-versions", name]).is_some_and(|text| !text.is_empty())
    };
    packages.iter().copied().find(|name| is_offered(name))
}

/// The command that installs the first of these packages that can be; `None` if none can.
pub fn installation(packages: &[&'static str]) -> Option<String> {
    offered(packages).map(|name| format!("apt install {name}"))
}

/// `NAME:ARCHITECTURE` of the first package that has this path.
fn owner(path: &str) -> Option<String> {
    let text = said("dpkg-query", &["--search", path])?;
    let line = text.lines().find(|line| line.ends_with(path) && !line.starts_with("diversion "))?;
    let (owners, _) = line.split_once(": ")?;
    Some(owners.split(", ").next()?.to_owned())
}

/// What a command prints, if it succeeds.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).env("LC_ALL", "C");
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
