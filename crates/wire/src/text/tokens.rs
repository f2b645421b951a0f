//! The words of a line.

/// Iterates over the words of a line, which are separated by one or more spaces (tabs are part of a word).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tokens<'a> {
    rest: &'a [u8],
}

impl<'a> Tokens<'a> {
    /// The words of `line`, which ends before its `\r\n`.
    #[inline]
    pub(crate) const fn new(line: &'a [u8]) -> Self {
        Self { rest: line }
    }

    /// What is left, without leading spaces.
    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        skip_spaces(self.rest)
    }

    /// The last word left, if there is one.
    #[inline]
    pub(crate) fn last_word(&self) -> &'a [u8] {
        let mut rest = self.rest;
        while let [before @ .., b' '] = rest {
            rest = before;
        }
        let start = memchr::memrchr(b' ', rest).map_or(0, |space| space + 1);
        rest.get(start..).unwrap_or_default()
    }

    /// Number of words left.
    pub(crate) fn remaining(&self) -> usize {
        (*self).count()
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = skip_spaces(self.rest);
        if rest.is_empty() {
            self.rest = rest;
            return None;
        }
        let end = memchr::memchr(b' ', rest).unwrap_or(rest.len());
        let (token, rest) = rest.split_at(end);
        self.rest = rest;
        Some(token)
    }
}

#[inline]
fn skip_spaces(mut bytes: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] = bytes {
        bytes = rest;
    }
    bytes
}
