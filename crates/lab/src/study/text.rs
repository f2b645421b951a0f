//! Placeholders in command lines, files and environments; the end of what a program said.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// What the placeholders stand for in one run.
#[derive(Debug, Clone)]
pub struct Places<'a> {
    /// `{port}`: a free TCP port on 127.0.0.1.
    pub port: u16,
    /// `{directory}`: a directory of the run's own, empty at its start.
    pub directory: &'a Path,
    /// `{file_directory}`: the directory of the experiment file.
    pub file_directory: &'a Path,
}

impl Places<'_> {
    /// Puts them in. Other braces stay as they are.
    pub fn fill(&self, text: &str) -> String {
        let (directory, file_directory) =
            (self.directory.to_string_lossy(), self.file_directory.to_string_lossy());
        text.replace("{port}", &self.port.to_string())
            .replace("{directory}", &directory)
            .replace("{file_directory}", &file_directory)
    }

    /// The same for each word of a command line.
    pub fn fill_all(&self, words: &[String]) -> Vec<String> {
        words.iter().map(|word| self.fill(word)).collect()
    }
}

/// The end of a program's output that is shown when it fails.
const SHOWN_BYTES: u64 = 2_000;

/// The last bytes of a file as text.
pub fn last(path: &Path, bytes: u64) -> String {
    let read = || {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
        let mut end = Vec::new();
        file.take(bytes).read_to_end(&mut end)?;
        std::io::Result::Ok(end)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// The end of what a program said, without what would control a terminal.
pub fn said(path: &Path) -> String {
    printable(last(path, SHOWN_BYTES).trim())
}

/// Text without control characters but line ends.
pub fn printable(text: &str) -> String {
    let replaced = |c: char| if c.is_control() && c != '\n' { char::REPLACEMENT_CHARACTER } else { c };
    text.replace("\r\n", "\n").replace('\t', " ").chars().map(replaced).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_is_replaced() {
        let places = Places { port: 7, directory: Path::new("/d"), file_directory: Path::new("/f") };
        let filled = places.fill("a{port}{directory}/{x} {file_directory} {\"y\": {}}");
        assert_eq!(filled, "a7/d/{x} /f {\"y\": {}}");
    }

    #[test]
    fn what_programs_say_does_not_control_a_terminal() {
        assert_eq!(printable("a\u{1b}[2J\tb\r\nc\rd"), "a\u{fffd}[2J b\nc\u{fffd}d");
    }
}
