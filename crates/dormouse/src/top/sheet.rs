//! A table that is sorted by one of its columns, filtered by name and scrolled.

use std::cmp::Ordering;

/// Longest filter, characters.
const FILTER_MAX: usize = 100;

/// A column. The first letter of its title sorts by it.
#[derive(Debug)]
pub struct Column {
    /// Its title.
    pub title: &'static str,
    /// Columns of the terminal that it takes; those of the first are the least.
    pub columns: usize,
    /// Names are at the left and sort upwards, figures at the right and downwards.
    pub is_name: bool,
}

/// A cell of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// What is shown.
    pub text: String,
    /// What figures are sorted by; NaN: there is none.
    pub figure: f64,
}

/// A row: its cells are as many as the columns, and the first is its name.
pub type Row = Vec<Cell>;

/// How a table is looked at.
#[derive(Debug)]
pub struct Sheet {
    /// The columns; the most important first, as narrow terminals show only those that fit.
    pub columns: &'static [Column],
    /// Index of the column that it is sorted by.
    pub sorted_by: usize,
    /// Whether the order is turned round.
    pub is_reversed: bool,
    /// Only rows are shown whose name contains this, in any case.
    pub filter: String,
    /// The first row that is shown.
    pub first: usize,
}

impl Sheet {
    /// A table that is sorted by its second column.
    pub const fn new(columns: &'static [Column]) -> Self {
        Self { columns, sorted_by: 1, is_reversed: false, filter: String::new(), first: 0 }
    }

    /// Sorts by the column whose title begins with the letter; again: the other way round.
    pub fn sort_by_letter(&mut self, letter: char) {
        let column = self.columns.iter().position(|column| column.title.starts_with(letter));
        match column {
            Some(column) if column == self.sorted_by => self.is_reversed = !self.is_reversed,
            Some(column) => (self.sorted_by, self.is_reversed) = (column, false),
            None => {}
        }
    }

    /// Sorts by the next column, or the one before.
    pub fn sort_by_neighbor(&mut self, is_next: bool) {
        let columns = self.columns.len();
        let step = if is_next { 1 } else { columns - 1 };
        (self.sorted_by, self.is_reversed) = ((self.sorted_by + step) % columns, false);
    }

    /// Adds to the filter.
    pub fn filter_more(&mut self, c: char) {
        if self.filter.chars().count() < FILTER_MAX && !c.is_control() {
            self.filter.push(c);
            self.first = 0;
        }
    }

    /// Scrolls by some rows; what is past the end is corrected when it is drawn.
    pub fn scroll(&mut self, rows: isize) {
        self.first = self.first.saturating_add_signed(rows);
    }

    /// The rows in the order in which they are shown, and without those that the filter hides.
    pub fn arranged<'a>(&self, rows: &'a [Row]) -> Vec<&'a Row> {
        let wanted = self.filter.to_lowercase();
        let name = |row: &Row| row.first().map_or_else(String::new, |cell| cell.text.to_lowercase());
        let mut named: Vec<_> = rows.iter().map(|row| (name(row), row)).collect();
        named.retain(|(name, _)| name.contains(&wanted));
        let is_name = self.columns.get(self.sorted_by).is_some_and(|column| column.is_name);
        named.sort_by(|(a_name, a), (b_name, b)| {
            let (a, b) = (a.get(self.sorted_by), b.get(self.sorted_by));
            let figure = |cell: Option<&Cell>| cell.map_or(f64::NAN, |cell| cell.figure);
            let by_column = if is_name {
                self.directed(a.map(|cell| &cell.text).cmp(&b.map(|cell| &cell.text)))
            } else {
                let (a, b) = (figure(a), figure(b));
                // What has no figure is last in either order.
                let known = a.is_nan().cmp(&b.is_nan());
                known.then_with(|| self.directed(b.partial_cmp(&a).unwrap_or(Ordering::Equal)))
            };
            by_column.then_with(|| a_name.cmp(b_name))
        });
        named.into_iter().map(|(_, row)| row).collect()
    }

    fn directed(&self, order: Ordering) -> Ordering {
        if self.is_reversed { order.reverse() } else { order }
    }

    /// The widths of the columns that fit, in order; the first takes what is left over.
    pub fn widths(&self, columns: usize) -> Vec<usize> {
        let mut left = columns;
        let mut widths = Vec::new();
        for column in self.columns {
            if column.columns > left && !widths.is_empty() {
                break;
            }
            left = left.saturating_sub(column.columns);
            widths.push(column.columns);
        }
        if let Some(name) = widths.first_mut() {
            *name = (*name + left).min(columns);
        }
        widths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[
        Column { title: "Name", columns: 10, is_name: true },
        Column { title: "Ops/s", columns: 8, is_name: false },
        Column { title: "Kind", columns: 8, is_name: true },
    ];

    fn rows() -> Vec<Row> {
        let row = |name: &str, figure: f64, kind: &str| {
            [(name, f64::NAN), ("", figure), (kind, f64::NAN)]
                .map(|(text, figure)| Cell { text: text.to_owned(), figure })
                .to_vec()
        };
        vec![row("b", 1.0, "x"), row("A", f64::NAN, "y"), row("c", 20.0, "x"), row("ab", 1.0, "y")]
    }

    fn names(sheet: &Sheet) -> String {
        let rows = rows();
        sheet.arranged(&rows).iter().map(|row| row[0].text.clone()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn figures_are_sorted_downwards_and_names_upwards() {
        let mut sheet = Sheet::new(COLUMNS);
        assert_eq!(names(&sheet), "c ab b A");
        sheet.is_reversed = true;
        assert_eq!(names(&sheet), "ab b c A", "what is unknown stays last");
        sheet.sort_by_letter('K');
        assert_eq!(names(&sheet), "b c A ab");
        sheet.sort_by_letter('K');
        assert_eq!(names(&sheet), "A ab b c");
        sheet.sort_by_letter('Z');
        assert_eq!((sheet.sorted_by, sheet.is_reversed), (2, true));
        sheet.sort_by_neighbor(true);
        assert_eq!(names(&sheet), "A ab b c");
        sheet.sort_by_neighbor(false);
        assert_eq!(sheet.sorted_by, 2);
    }

    #[test]
    fn a_filter_ignores_case_and_is_bounded() {
        let mut sheet = Sheet::new(COLUMNS);
        sheet.filter_more('a');
        assert_eq!(names(&sheet), "ab A");
        (0..1000).for_each(|_| sheet.filter_more('é'));
        assert_eq!((names(&sheet).as_str(), sheet.filter.chars().count()), ("", FILTER_MAX));
    }

    #[test]
    fn columns_that_do_not_fit_are_left_out() {
        let sheet = Sheet::new(COLUMNS);
        assert_eq!(sheet.widths(30), [14, 8, 8]);
        assert_eq!(sheet.widths(25), [17, 8]);
        assert_eq!((sheet.widths(9), sheet.widths(0)), (vec![9], vec![0]));
    }
}
