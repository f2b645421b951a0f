//! Placeholders in command lines, files and environments; the end of what a program said.

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
const SHOWN_BYTES: usize = 2_000;

/// The end of a program's output.
pub fn end_of(output: &[u8]) -> String {
    let end = output.get(output.len().saturating_sub(SHOWN_BYTES)..).unwrap_or_default();
    String::from_utf8_lossy(end).trim().to_owned()
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
}
