//! `dormouse lab`: executes the program `dormouse-lab`, found beside this one or on the PATH.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = "dormouse-lab";

/// Returns only if there is no such program or it cannot be run.
pub fn run(arguments: &[OsString]) -> anyhow::Result<()> {
    let beside = std::env::current_exe().ok().map(|this| this.with_file_name(PROGRAM));
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(&program).args(arguments).exec();
    if error.kind() == io::ErrorKind::NotFound {
        anyhow::bail!(
            "there is no program {PROGRAM} beside this one or on the PATH; \
             \"cargo build --release --bin {PROGRAM}\" builds it"
        );
    }
    Err(anyhow::Error::new(error).context(program.display().to_string()))
}
