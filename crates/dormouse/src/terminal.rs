//! What commands show on a terminal and ask there: names without control characters, tables, confirmations, passwords.

use crate::config::Problem;
use anyhow::{Context as _, bail};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::{disable_raw_mode, enable_raw_mode};
use std::io::{self, IsTerminal as _, Write as _};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Longest line that is read as an answer, bytes.
const ANSWER_BYTES_MAX: usize = 4096;

/// A text from elsewhere without what controls a terminal or reorders what it shows.
pub fn shown(text: &str) -> String {
    text.chars().map(|c| if is_control(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Controls of terminals, and Unicode's of the direction of writing, with which one name can look like another.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Columns that a text takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// A text in at most so many columns; an ellipsis stands for the rest.
pub fn fitted(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let (mut kept, mut taken) = (String::new(), 0);
    for c in text.chars() {
        taken += c.width().unwrap_or(0);
        if taken >= columns {
            break;
        }
        kept.push(c);
    }
    if columns > 0 {
        kept.push('…');
    }
    kept
}

/// A text at the left of so many columns.
pub fn at_left(text: &str, columns: usize) -> String {
    let text = fitted(text, columns);
    let blanks = columns.saturating_sub(width(&text));
    text + &" ".repeat(blanks)
}

/// A text at the right of so many columns.
pub fn at_right(text: &str, columns: usize) -> String {
    let text = fitted(text, columns);
    " ".repeat(columns.saturating_sub(width(&text))) + &text
}

/// Rows as lines. The first `names` columns are at the left, the others, figures, at the right.
pub fn aligned<const COLUMNS: usize>(rows: &[[String; COLUMNS]], names: usize) -> String {
    let mut widths = [0; COLUMNS];
    for row in rows {
        for (most, cell) in widths.iter_mut().zip(row) {
            *most = (*most).max(width(cell));
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if column < names { at_left(cell, width) } else { at_right(cell, width) }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Returns true if somebody can be asked.
fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Goes on only if `--yes` was given, or the name of what is to be destroyed is typed. `what` says what happens.
pub fn confirm(what: &str, name: &str, is_confirmed: bool) -> anyhow::Result<()> {
    if is_confirmed {
        return Ok(());
    }
    if !can_ask() {
        return Err(Problem::new(format!(
            "this {what}: --yes is needed where there is no terminal to ask on"
        ))
        .into());
    }
    eprint(&format!("This {what}.\nType its name to go on: "))?;
    let mut answer = String::new();
    let mut input = io::Read::take(io::stdin().lock(), ANSWER_BYTES_MAX as u64);
    io::BufRead::read_line(&mut input, &mut answer).context("the answer")?;
    if answer.trim_end_matches(['\r', '\n']) != name {
        bail!("nothing was done: that is not the name {:?}", shown(name));
    }
    Ok(())
}

/// Asks for a password, which is not echoed. `option` names it from a file instead.
pub fn ask_password(prompt: &str, option: &str) -> anyhow::Result<String> {
    if !can_ask() {
        let reason = format!("{option} FILE is needed where there is no terminal to ask for the password");
        return Err(Problem::new(reason).into());
    }
    eprint(&format!("{}: ", shown(prompt)))?;
    enable_raw_mode().context("the terminal")?;
    let read = read_hidden();
    let restored = disable_raw_mode().context("the terminal");
    eprint("\n")?;
    restored?;
    read
}

fn eprint(text: &str) -> anyhow::Result<()> {
    let mut out = io::stderr().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("standard error")
}

/// A line, key by key.
fn read_hidden() -> anyhow::Result<String> {
    let mut line = String::new();
    loop {
        let Event::Key(key) = event::read().context("the terminal")? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match (key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
            // A pasted line end is Ctrl-J.
            (KeyCode::Enter, _) | (KeyCode::Char('j'), true) => return Ok(line),
            (KeyCode::Char('c' | 'd'), true) => bail!("nothing was done: no password was given"),
            (KeyCode::Char('u'), true) => line.clear(),
            (KeyCode::Backspace, _) => {
                line.pop();
            }
            (KeyCode::Char(c), false) if line.len() < ANSWER_BYTES_MAX => line.push(c),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_controls_the_terminal() {
        assert_eq!(shown("a\u{1b}[2J\n\u{202e}b\u{9b}é🐭"), "a\u{fffd}[2J\u{fffd}\u{fffd}b\u{fffd}é🐭");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!((fitted("🐭🐭🐭", 6).as_str(), fitted("🐭🐭🐭", 5).as_str()), ("🐭🐭🐭", "🐭🐭…"));
        assert_eq!((fitted("🐭🐭🐭", 4).as_str(), fitted("abc", 0).as_str()), ("🐭…", ""));
        assert_eq!((at_left("🐭", 4).as_str(), at_right("🐭", 4).as_str()), ("🐭  ", "  🐭"));
        let rows = [["name", "n"], ["🐭🐭🐭", "1"], ["b", "20"]].map(|row| row.map(str::to_owned));
        assert_eq!(aligned(&rows, 1), "name     n\n🐭🐭🐭   1\nb       20\n");
    }
}
