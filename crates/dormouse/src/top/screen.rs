//! Draws the state on the terminal.
//!
//! ```text
//!   http://127.0.0.1:8091  ok  up 3 h 5 min          the node, red if it does not answer
//!   1[Node] 2 Buckets  3 Threads  4 Databases        the views
//!   ...                                              figures, or a table
//!   q quit  ? help  ...                              keys, or the filter that is typed
//! ```

use crate::quantity::{UNKNOWN, bytes, duration, percent};
use crate::terminal::{at_left, at_right, fitted, shown, width};
use crate::top::app::{App, Mode, VIEWS};
use crate::top::bar;
use crate::top::sample::{Part, Sample};
use crate::top::sheet::{Row, Sheet};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline};
use std::time::{Duration, Instant};

/// Figures of this age are up to date, beside the interval.
const FRESH: Duration = Duration::from_secs(2);
/// Columns of a figure with its name, at least, and how many stand side by side at most.
const FIGURE_COLUMNS: usize = 20;
const FIGURES_MAX: usize = 4;
/// Columns of a part in the legend of a bar.
const LEGEND_COLUMNS: usize = 40;
/// Lines of the chart, at most.
const CHART_LINES_MAX: u16 = 8;

/// Parts of bars, told apart by fill as well: a terminal may have no colours.
const FILLS: [(&str, Color); 8] = [
    ("█", Color::Blue),
    ("▒", Color::Green),
    ("▓", Color::Magenta),
    ("░", Color::Cyan),
    ("█", Color::Yellow),
    ("▒", Color::LightBlue),
    ("▓", Color::LightGreen),
    ("░", Color::LightMagenta),
];

const HELP: &str = "\
q, Ctrl-C       quit
1 2 3 4         node, buckets, threads, databases
Tab, Shift-Tab  next view, view before (also arrows)
/               filter a table by name: Enter keeps it, Esc clears it
< >             sort by the column before, after
N O H ...       sort by the column that begins with this letter
r               turn the order round
arrows, PgUp, PgDn, Home, End   scroll
?               this help; any other key closes it

Rates are differences of counters between two answers, by the node's clock.
A counter that has fallen was reset and counts from 0. - is unknown.
CPU is in per cent of a core. Queue: items that wait to be written to disk.
The parts of a bar add up to the whole.";

/// Draws all of it. `interval` is the time between two questions.
pub fn draw(frame: &mut Frame<'_>, app: &App, interval: Duration, now: Instant) {
    let area = frame.area();
    let is_stale = app.lost.is_some() || age(app, now).is_none_or(|age| age > interval * 2 + FRESH);
    let [head, trouble, views, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(u16::from(is_stale)),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(headline(app, is_stale), head);
    frame.render_widget(trouble_line(app, now), trouble);
    frame.render_widget(view_line(app, usize::from(area.width)), views);
    match (app.mode, app.table(), &app.sample) {
        (Mode::Help(lines), ..) => frame.render_widget(Paragraph::new(HELP).scroll((lines, 0)), body),
        (_, Some((sheet, rows)), _) => draw_table(frame, body, sheet, rows),
        (_, None, Some((sample, _))) => draw_node(frame, body, app, sample, now),
        (_, None, None) => {}
    }
    frame.render_widget(foot_line(app, usize::from(area.width)), foot);
}

fn age(app: &App, now: Instant) -> Option<Duration> {
    app.sample.as_ref().map(|(_, at)| now.saturating_duration_since(*at))
}

fn red() -> Style {
    Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)
}

fn headline(app: &App, is_stale: bool) -> Line<'_> {
    let Some((sample, _)) = &app.sample else { return Line::styled(shown(&app.base), red()) };
    let style = match (is_stale, sample.is_well) {
        (true, _) => red(),
        (false, true) => Style::new().fg(Color::Green),
        (false, false) => Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD),
    };
    Line::from(vec![
        Span::styled(shown(&app.base), Style::new().add_modifier(Modifier::BOLD)),
        Span::raw("  "),
        Span::styled(sample.health.as_str(), style),
        Span::raw(format!("  up {}", duration(sample.up_s))),
    ])
}

fn trouble_line(app: &App, now: Instant) -> Line<'static> {
    let age = age(app, now).map_or("there are no figures".to_owned(), |age| {
        format!("figures are {} old", duration(age.as_secs()))
    });
    // The address is in the line above.
    let reason = app.lost.as_deref().map(|reason| shown(reason.strip_prefix(&app.base).unwrap_or(reason)));
    let reason = reason.unwrap_or("waiting for an answer".to_owned());
    Line::styled(format!("NO ANSWER: {age}; {reason}"), red())
}

fn view_line(app: &App, columns: usize) -> Line<'static> {
    let titles = VIEWS.iter().enumerate().map(|(index, (title, _))| {
        if index == app.view {
            Span::styled(format!("{}[{title}]", index + 1), Modifier::REVERSED)
        } else {
            Span::raw(format!("{} {title} ", index + 1))
        }
    });
    let titles: Vec<_> = titles.collect();
    let needed: usize = titles.iter().map(Span::width).sum();
    let gap = if needed + titles.len() <= columns { " " } else { "" };
    titles.into_iter().flat_map(|title| [title, Span::raw(gap)]).collect::<Vec<_>>().into()
}

fn foot_line(app: &App, columns: usize) -> Line<'static> {
    let style = Style::new().add_modifier(Modifier::DIM);
    let Some((sheet, rows)) = app.table() else {
        return Line::styled("q quit  ? help  Tab next view", style);
    };
    if app.mode == Mode::Filter {
        return Line::raw(format!("/{}▏", fitted(&shown(&sheet.filter), columns.saturating_sub(2))));
    }
    let hints = "q quit  ? help  / filter  < > sort  r reverse";
    if sheet.filter.is_empty() {
        return Line::styled(hints, style);
    }
    let shown_rows = sheet.arranged(rows).len();
    Line::raw(format!("/{}  {shown_rows} of {}  Esc shows all", shown(&sheet.filter), rows.len()))
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, sheet: &Sheet, rows: &[Row]) {
    let widths = sheet.widths(usize::from(area.width));
    let titles = sheet.columns.iter().zip(&widths).enumerate().map(|(index, (column, columns))| {
        let (arrow, style) = match (index == sheet.sorted_by, sheet.is_reversed == column.is_name) {
            (false, _) => ("", Style::new().add_modifier(Modifier::UNDERLINED)),
            (true, true) => ("▾", Style::new().add_modifier(Modifier::REVERSED)),
            (true, false) => ("▴", Style::new().add_modifier(Modifier::REVERSED)),
        };
        Span::styled(placed(&format!("{}{arrow}", column.title), *columns, column.is_name, index == 0), style)
    });
    let mut lines = vec![titles.collect::<Vec<_>>().into()];
    let arranged = sheet.arranged(rows);
    let room = usize::from(area.height).saturating_sub(lines.len());
    // Past the end there is nothing to see.
    let first = sheet.first.min(arranged.len().saturating_sub(room));
    for row in arranged.iter().skip(first).take(room) {
        let cells = row.iter().zip(sheet.columns).zip(&widths).enumerate();
        let text = cells.map(|(index, ((cell, column), columns))| {
            placed(&cell.text, *columns, column.is_name, index == 0)
        });
        lines.push(text.collect::<String>().into());
    }
    if arranged.is_empty() {
        lines.push(if rows.is_empty() { "There are none." } else { "No name matches the filter." }.into());
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// A cell with the gap to its neighbour.
fn placed(text: &str, columns: usize, is_name: bool, is_first: bool) -> String {
    let room = columns.saturating_sub(1);
    match (is_name, is_first) {
        (true, true) => at_left(text, room) + if columns > 0 { " " } else { "" },
        (true, false) => " ".to_owned() + &at_left(text, room),
        (false, _) => at_right(text, columns.min(room + 1)),
    }
}

fn draw_node(frame: &mut Frame<'_>, area: Rect, app: &App, sample: &Sample, now: Instant) {
    let columns = usize::from(area.width);
    let mut lines = figure_lines(sample, columns);
    lines.push(Line::default());
    let memory_age = now.saturating_duration_since(sample.memory_at).as_secs();
    let read = if memory_age > 30 { format!("; read {} ago", duration(memory_age)) } else { String::new() };
    let (resident, limit) = (bytes(sample.resident_bytes), bytes(sample.limit_bytes));
    lines.push(heading(format!("Resident memory {resident}; buckets may use {limit}{read}")));
    lines.extend(bar_lines(&sample.parts, columns));
    if !sample.bucket_parts.is_empty() {
        lines.push(Line::default());
        lines.push(heading(format!("Of this, in buckets {}", bytes(sum_of(&sample.bucket_parts)))));
        lines.extend(bar_lines(&sample.bucket_parts, columns));
    }
    let height = u16::try_from(lines.len()).unwrap_or(u16::MAX).min(area.height);
    let [text, _, title, chart] = Layout::vertical([
        Constraint::Length(height),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Max(CHART_LINES_MAX),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(lines), text);
    if chart.height > 0 && area.height > height.saturating_add(2) {
        let history: Vec<u64> = app.history.iter().rev().take(columns).rev().copied().collect();
        let most =
            history.iter().max().map_or(UNKNOWN.to_owned(), |most| crate::quantity::rate(*most as f64));
        frame.render_widget(heading(format!("Operations per second, at most {most}")), title);
        frame.render_widget(Sparkline::default().data(history).style(Style::new().fg(Color::Green)), chart);
    }
}

fn heading(text: String) -> Line<'static> {
    Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
}

/// Names and figures, as many side by side as fit; a figure is never cut before its name.
fn figure_lines(sample: &Sample, columns: usize) -> Vec<Line<'static>> {
    let side_by_side = (columns / FIGURE_COLUMNS).clamp(1, FIGURES_MAX);
    let room = columns / side_by_side;
    let text = |(name, value): &(&str, String)| {
        let name_columns = room.saturating_sub(width(value) + 3);
        [Span::raw(at_left(name, name_columns) + " "), Span::styled(value.clone() + "  ", Modifier::BOLD)]
    };
    sample
        .figures
        .chunks(side_by_side)
        .map(|row| row.iter().flat_map(text).collect::<Vec<_>>().into())
        .collect()
}

/// A node may say anything.
fn sum_of(parts: &[Part]) -> u64 {
    parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
}

/// A bar over all columns, and what its parts are.
fn bar_lines(parts: &[Part], columns: usize) -> Vec<Line<'static>> {
    let sizes: Vec<u64> = parts.iter().map(|part| part.bytes).collect();
    let whole = sum_of(parts);
    let fills = || FILLS.iter().cycle();
    let pieces = bar::columns_of(&sizes, columns).into_iter().zip(fills());
    let bar = pieces.map(|(columns, (fill, color))| Span::styled(fill.repeat(columns), *color));
    let mut lines: Vec<Line<'static>> = vec![bar.collect::<Vec<_>>().into()];
    let side_by_side = (columns / LEGEND_COLUMNS).max(1);
    let room = columns / side_by_side;
    let legend: Vec<_> = parts.iter().zip(fills()).collect();
    for row in legend.chunks(side_by_side) {
        let spans = row.iter().flat_map(|(part, (fill, color))| {
            let figures = format!("{:>10}{:>9}  ", bytes(part.bytes), percent(part.bytes, whole));
            let name = at_left(&part.name, room.saturating_sub(width(&figures) + 2));
            [Span::styled(*fill, *color), Span::raw(format!(" {name}{figures}"))]
        });
        lines.push(spans.collect::<Vec<_>>().into());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::sample::Reading;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use serde_json::{Value, json};

    fn reading(uptime_ms: u64, now: Instant) -> Box<Reading> {
        let name = |index: u64| match index {
            0 => "🐭".repeat(50),
            1 => "\u{1b}[2J\u{202e}evil".to_owned(),
            2 => "n".repeat(250),
            _ => format!("bucket{index}"),
        };
        let of_bucket = |index: u64| {
            json!({"name": name(index), "bytes": 10 << index,
                "about": {"kind": "ephemeral", "budgetBytes": 1, "items": 2},
                "parts": [{"name": "index", "bytes": 10 << index}]})
        };
        let figures =
            |index: u64| (name(index), json!({"cmd_get": uptime_ms * index, "budget_bytes": 1_u64 << 40}));
        let buckets: Vec<Value> = (0..30).map(of_bucket).collect();
        let sum: u64 = (0..30).map(|index| 10 << index).sum();
        Box::new(Reading {
            health: json!({"status": "damaged", "reasons": ["damaged\u{7}"]}),
            figures: json!({"uptimeMs": uptime_ms, "cpuNs": 1, "node": {"connections": 3},
                "buckets": (0..30).map(figures).collect::<serde_json::Map<_, _>>(),
                "threads": [{"id": 1, "name": "\n"}]}),
            memory: json!({"residentBytes": sum, "limitBytes": u64::MAX, "parts": [
                {"name": "buckets", "bytes": sum, "parts": buckets},
                {"name": "databases", "bytes": 0, "parts": buckets}]}),
            memory_at: now,
        })
    }

    fn screen(app: &App, columns: u16, rows: u16, now: Instant) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| draw(frame, app, Duration::from_secs(2), now)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |row: u16| (0..columns).map(|column| buffer[(column, row)].symbol()).collect();
        (0..rows).map(line).collect()
    }

    #[test]
    fn every_view_fits_every_terminal() {
        let now = Instant::now();
        let mut app = App::new("http://x:1\u{1b}[2J");
        for step in 0..4 {
            for view in 0..VIEWS.len() {
                app.view = view;
                for mode in [Mode::Commands, Mode::Filter, Mode::Help(0), Mode::Help(u16::MAX)] {
                    app.mode = mode;
                    for (columns, rows) in [(1, 1), (2, 3), (5, 2), (40, 10), (80, 24), (300, 100)] {
                        let text = screen(&app, columns, rows, now).concat();
                        assert!(!text.contains(char::is_control) && !text.contains('\u{202e}'), "{text:?}");
                    }
                }
            }
            match step {
                0 => app.answered(Err("no\u{1b} answer".to_owned()), now),
                1 => app.answered(Ok(reading(1000, now)), now),
                _ => app.answered(Ok(reading(3000, now)), now),
            }
        }
    }

    #[test]
    fn tables_are_scrolled_to_their_end_and_no_further() {
        let now = Instant::now();
        let mut app = App::new("x");
        app.answered(Ok(reading(1000, now)), now);
        app.answered(Ok(reading(2000, now)), now);
        app.view = 1;
        let lines = screen(&app, 100, 30, now);
        assert!(lines[3].starts_with("bucket29 ") && lines[2].contains("Ops/s▾"), "{lines:#?}");
        app.pressed(KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
        let lines = screen(&app, 100, 10, now);
        assert!(lines[8].starts_with(&"🐭".repeat(2)[..4]) && lines[3].starts_with("bucket5"), "{lines:#?}");
    }

    #[test]
    fn the_age_of_old_figures_is_shown() {
        let now = Instant::now();
        let mut app = App::new("x");
        app.answered(Ok(reading(1000, now)), now);
        assert!(!screen(&app, 80, 10, now + Duration::from_secs(6)).concat().contains("NO ANSWER"));
        let later = now + Duration::from_secs(70);
        assert!(screen(&app, 80, 10, later)[1].contains("NO ANSWER: figures are 1 min old; waiting"));
        app.answered(Err("refused".to_owned()), now);
        assert!(screen(&app, 80, 10, now)[1].contains("NO ANSWER: figures are 0 s old; refused"));
    }
}
