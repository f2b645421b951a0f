//! The state of the screen: which view, how its table is sorted and filtered, and what is known of the node.

use crate::top::sample::{BUCKETS, DATABASES, Reading, Sample, THREADS};
use crate::top::sheet::{Row, Sheet};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::collections::VecDeque;
use std::time::Instant;

/// Operations per second that are kept for the chart.
const HISTORY_MAX: usize = 512;
/// Rows that a page scrolls.
const PAGE_ROWS: isize = 10;

/// What is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// The node's figures and memory.
    Node,
    /// A table; the index of its sheet.
    Table(usize),
}

/// The titles of the views, in the order of their keys.
pub const VIEWS: [(&str, View); 4] = [
    ("Node", View::Node),
    ("Buckets", View::Table(0)),
    ("Threads", View::Table(1)),
    ("Databases", View::Table(2)),
];

/// What keys mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They choose and sort.
    Commands,
    /// They are typed into the filter.
    Filter,
    /// The help is open, and scrolled by so many lines.
    Help(u16),
}

/// The state of the screen.
pub struct App {
    /// The node's address.
    pub base: String,
    /// Index of the view.
    pub view: usize,
    /// What keys mean.
    pub mode: Mode,
    /// The tables.
    pub sheets: [Sheet; 3],
    /// What is known of the node, and since when.
    pub sample: Option<(Sample, Instant)>,
    /// Why there is no newer answer.
    pub lost: Option<String>,
    /// Operations per second, the oldest first.
    pub history: VecDeque<u64>,
    before: Option<Reading>,
}

impl App {
    /// Nothing is known yet.
    pub fn new(base: &str) -> Self {
        Self {
            base: base.to_owned(),
            view: 0,
            mode: Mode::Commands,
            sheets: [BUCKETS, THREADS, DATABASES].map(Sheet::new),
            sample: None,
            lost: None,
            history: VecDeque::new(),
            before: None,
        }
    }

    /// Takes the answers of the node, or why there are none.
    pub fn answered(&mut self, answer: Result<Box<Reading>, String>, now: Instant) {
        match answer {
            Ok(reading) => {
                let sample = Sample::new(&reading, self.before.as_ref());
                if sample.operations.is_finite() {
                    if self.history.len() == HISTORY_MAX {
                        self.history.pop_front();
                    }
                    self.history.push_back(sample.operations as u64);
                }
                self.before = Some(*reading);
                self.sample = Some((sample, now));
                self.lost = None;
            }
            Err(reason) => self.lost = Some(reason),
        }
    }

    /// The view.
    pub fn view(&self) -> View {
        VIEWS.get(self.view).map_or(View::Node, |(_, view)| *view)
    }

    /// The table that is shown, with its rows.
    pub fn table(&self) -> Option<(&Sheet, &[Row])> {
        let View::Table(index) = self.view() else { return None };
        let sample = self.sample.as_ref().map(|(sample, _)| sample);
        let rows = sample.map_or(&[][..], |sample| match index {
            0 => &sample.buckets,
            1 => &sample.threads,
            _ => &sample.databases,
        });
        Some((self.sheets.get(index)?, rows))
    }

    /// The table that is shown.
    pub fn sheet(&mut self) -> Option<&mut Sheet> {
        let View::Table(index) = self.view() else { return None };
        self.sheets.get_mut(index)
    }

    /// Takes a key; returns true if the program is to end.
    pub fn pressed(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return false;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && key.code == KeyCode::Char('c') {
            return true;
        }
        match self.mode {
            Mode::Filter => self.pressed_in_filter(key.code, is_control),
            Mode::Help(lines) => {
                self.mode = match key.code {
                    KeyCode::Down | KeyCode::PageDown => Mode::Help(lines.saturating_add(1)),
                    KeyCode::Up | KeyCode::PageUp => Mode::Help(lines.saturating_sub(1)),
                    _ => Mode::Commands,
                };
            }
            Mode::Commands if is_control => {}
            Mode::Commands => return self.command(key.code),
        }
        false
    }

    fn command(&mut self, code: KeyCode) -> bool {
        match code {
            KeyCode::Char('q') => return true,
            KeyCode::Char('?') => self.mode = Mode::Help(0),
            KeyCode::Char(digit @ '1'..='4') => self.view = digit as usize - '1' as usize,
            KeyCode::Tab | KeyCode::Right => self.view = (self.view + 1) % VIEWS.len(),
            KeyCode::BackTab | KeyCode::Left => self.view = (self.view + VIEWS.len() - 1) % VIEWS.len(),
            KeyCode::Char('/') if self.sheet().is_some() => self.mode = Mode::Filter,
            _ => {
                if let Some(sheet) = self.sheet() {
                    command_of_table(sheet, code);
                }
            }
        }
        false
    }

    fn pressed_in_filter(&mut self, code: KeyCode, is_control: bool) {
        let Some(sheet) = self.sheet() else { return };
        match code {
            KeyCode::Esc => {
                sheet.filter.clear();
                self.mode = Mode::Commands;
            }
            KeyCode::Enter => self.mode = Mode::Commands,
            KeyCode::Backspace => {
                sheet.filter.pop();
            }
            KeyCode::Char('u') if is_control => sheet.filter.clear(),
            KeyCode::Char(c) if !is_control => sheet.filter_more(c),
            _ => {}
        }
    }
}

fn command_of_table(sheet: &mut Sheet, code: KeyCode) {
    match code {
        KeyCode::Char('<') => sheet.sort_by_neighbor(false),
        KeyCode::Char('>') => sheet.sort_by_neighbor(true),
        KeyCode::Char('r') => sheet.is_reversed = !sheet.is_reversed,
        KeyCode::Char(letter @ 'A'..='Z') => sheet.sort_by_letter(letter),
        KeyCode::Esc => sheet.filter.clear(),
        KeyCode::Down => sheet.scroll(1),
        KeyCode::Up => sheet.scroll(-1),
        KeyCode::PageDown => sheet.scroll(PAGE_ROWS),
        KeyCode::PageUp => sheet.scroll(-PAGE_ROWS),
        KeyCode::Home => sheet.first = 0,
        KeyCode::End => sheet.first = usize::MAX,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(app: &mut App, keys: &str) -> bool {
        keys.chars().any(|c| {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\t' => KeyCode::Tab,
                '\u{8}' => KeyCode::Backspace,
                '\u{1b}' => KeyCode::Esc,
                c => KeyCode::Char(c),
            };
            app.pressed(KeyEvent::new(code, KeyModifiers::NONE))
        })
    }

    #[test]
    fn keys_choose_views_and_quit() {
        let mut app = App::new("x");
        assert!(!press(&mut app, "3"));
        assert_eq!(app.view(), View::Table(1));
        assert!(!press(&mut app, "\t\t"));
        assert_eq!(app.view(), View::Node);
        assert!(!press(&mut app, "?q"), "a key closes the help");
        assert_eq!(app.mode, Mode::Commands);
        assert!(press(&mut app, "q"));
        assert!(app.pressed(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }

    #[test]
    fn letters_are_text_in_the_filter() {
        let mut app = App::new("x");
        press(&mut app, "/2/q?R\u{8}");
        assert_eq!(
            (app.mode, app.sheets[0].filter.as_str()),
            (Mode::Filter, "q?"),
            "the node has nothing to filter"
        );
        press(&mut app, "\nIr");
        assert_eq!(
            (app.sheets[0].filter.as_str(), app.sheets[0].sorted_by, app.sheets[0].is_reversed),
            ("q?", 3, true)
        );
        press(&mut app, "/x\u{1b}");
        assert_eq!((app.mode, app.sheets[0].filter.as_str()), (Mode::Commands, ""));
    }
}
