//! Plots as SVG whose colours are classes: the page's style sheet decides them, for light and dark alike.
//!
//! `plotters` lays out axes and curves, and draws on this backend. Its colours are names here: see [`series`].

use plotters::style::RGBColor;
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
    FontTransform,
};
use std::convert::Infallible;
use std::fmt::Write;

/// Text and axes.
pub const INK: RGBColor = RGBColor(0, 0, 0);
/// Grids.
pub const FAINT: RGBColor = RGBColor(0, 0, 1);
/// Size of the text in pixels.
pub const TEXT: u32 = 12;
/// Colours that the style sheet has.
pub const SERIES: usize = 8;
/// Width of a character, as a part of the text's size, when no font can be asked.
const CHARACTER: f64 = 0.55;

/// The colour of a variant, or of anything else by number.
pub fn series(number: usize) -> RGBColor {
    RGBColor(1, u8::try_from(number % SERIES).unwrap_or(0), 0)
}

fn class(color: BackendColor) -> String {
    match color.rgb {
        (1, number, 0) => format!("s{number}"),
        (0, 0, 1) => "faint".to_owned(),
        _ => "ink".to_owned(),
    }
}

/// Escapes text for HTML and SVG. Control characters become replacement characters: they may not occur there at all.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(character),
            control if control.is_control() => out.push(char::REPLACEMENT_CHARACTER),
            other => out.push(other),
        }
    }
    out
}

/// A drawing in the making.
pub struct Svg<'a> {
    size: (u32, u32),
    out: &'a mut String,
}

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

impl<'a> Svg<'a> {
    /// Begins a drawing of this size, which a screen reader calls by its title.
    pub fn new(out: &'a mut String, size: (u32, u32), title: &str) -> Self {
        let title = escaped(title);
        out.push_str(&format!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{title}\"><title>{title}</title>\n",
            size.0, size.1
        ));
        Self { size, out }
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) -> Drawn {
        // Writing to a string does not fail.
        let _ = self.out.write_fmt(element);
        self.out.push('\n');
        Ok(())
    }
}

fn points(path: impl IntoIterator<Item = BackendCoord>) -> String {
    path.into_iter().map(|(x, y)| format!("{x},{y}")).collect::<Vec<_>>().join(" ")
}

impl DrawingBackend for Svg<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        self.size
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, color: BackendColor) -> Drawn {
        let class = class(color);
        self.add(format_args!("<rect class=\"f {class}\" x=\"{x}\" y=\"{y}\" width=\"1\" height=\"1\"/>"))
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        if style.color().alpha == 0.0 {
            return Ok(());
        }
        let (class, width) = (class(style.color()), style.stroke_width());
        self.add(format_args!(
            "<line class=\"l {class}\" stroke-width=\"{width}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>",
            from.0, from.1, to.0, to.1
        ))
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        (left, top): BackendCoord,
        (right, bottom): BackendCoord,
        style: &S,
        fill: bool,
    ) -> Drawn {
        if style.color().alpha == 0.0 {
            return Ok(());
        }
        let (kind, class) = (if fill { "f" } else { "l" }, class(style.color()));
        let (width, height) = ((right - left).max(0), (bottom - top).max(0));
        self.add(format_args!(
            "<rect class=\"{kind} {class}\" x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\"/>"
        ))
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        if style.color().alpha == 0.0 {
            return Ok(());
        }
        let (class, width, points) = (class(style.color()), style.stroke_width(), points(path));
        self.add(format_args!("<polyline class=\"l {class}\" stroke-width=\"{width}\" points=\"{points}\"/>"))
    }

    fn draw_circle<S: BackendStyle>(
        &mut self,
        (x, y): BackendCoord,
        radius: u32,
        style: &S,
        fill: bool,
    ) -> Drawn {
        let (kind, class) = (if fill { "f" } else { "l" }, class(style.color()));
        let opacity = style.color().alpha;
        self.add(format_args!(
            "<circle class=\"{kind} {class}\" cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" opacity=\"{opacity:.2}\"/>"
        ))
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        let (class, points) = (class(style.color()), points(path));
        self.add(format_args!("<polygon class=\"f {class}\" points=\"{points}\"/>"))
    }

    fn draw_text<T: BackendTextStyle>(&mut self, text: &str, style: &T, (x, y): BackendCoord) -> Drawn {
        if style.color().alpha == 0.0 {
            return Ok(());
        }
        let anchor = match style.anchor().h_pos {
            HPos::Left => "start",
            HPos::Center => "middle",
            HPos::Right => "end",
        };
        // Letters stand on the baseline, which is about four fifths down.
        let size = style.size();
        let down = match style.anchor().v_pos {
            VPos::Top => size * 0.8,
            VPos::Center => size * 0.35,
            VPos::Bottom => -size * 0.2,
        };
        let class = class(style.color());
        let turned = match style.transform() {
            FontTransform::Rotate90 => format!(" transform=\"rotate(90 {x} {y})\""),
            FontTransform::Rotate180 => format!(" transform=\"rotate(180 {x} {y})\""),
            FontTransform::Rotate270 => format!(" transform=\"rotate(270 {x} {y})\""),
            FontTransform::None => String::new(),
        };
        let (y, text) = (f64::from(y) + down, escaped(text));
        self.add(format_args!(
            "<text class=\"f {class}\" x=\"{x}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\"{turned}>\
             {text}</text>"
        ))
    }

    fn estimate_text_size<T: BackendTextStyle>(
        &self,
        text: &str,
        style: &T,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        let width = text.chars().count() as f64 * style.size() * CHARACTER;
        Ok((width.ceil() as u32, style.size().ceil() as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_outside_cannot_leave_their_place() {
        assert_eq!(escaped("<a href='x'>&\"\u{1}é"), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;\u{fffd}é");
        let mut out = String::new();
        let mut svg = Svg::new(&mut out, (10, 10), "a<b");
        svg.draw_line((1, 2), (3, 4), &series(9)).unwrap();
        assert!(out.contains("aria-label=\"a&lt;b\"") && out.contains("class=\"l s1\""), "{out}");
    }
}
