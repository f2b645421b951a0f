//! The plots of a report.

use super::figures::{self, Unit};
use super::results::{Results, VariantResults};
use super::svg::{FAINT, INK, Svg, TEXT, series};
use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::collections::BTreeMap;

/// Width of all plots: of a phone, so that their text can be read there.
const WIDTH: u32 = 420;
const HEIGHT: u32 = 240;
/// Height of a variant's row.
const ROW: u32 = 40;
const AXIS: u32 = 34;
/// Room for the half of an axis' last label.
const RIGHT: u32 = 26;
/// Room above the rows.
const TOP: u32 = 4;
/// Threads that have a colour of their own.
pub const THREADS: usize = 6;
const MIB: f64 = 1024.0 * 1024.0;

type Area<'a> = DrawingArea<Svg<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, Svg<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws one plot.
fn drawn(size: (u32, u32), title: &str, draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut text = String::new();
    {
        let area = Svg::new(&mut text, size, title).into_drawing_area();
        draw(&area)?;
    }
    text.push_str("</svg>\n");
    Ok(text)
}

/// A drawing cannot fail for another reason than a mistake of ours.
fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("drawing a plot: {error}")
}

/// A figure in the unit of its axis.
fn scale(name: &str) -> (f64, &'static str) {
    match figures::known(name).map(|figure| figure.unit) {
        Some(Unit::Bytes) => (1.0 / MIB, "MiB"),
        Some(Unit::Seconds) => (1.0, "s"),
        Some(Unit::Microseconds) => (1.0, "us"),
        _ => (1.0, ""),
    }
}

/// Variants that ran, with their numbers.
pub fn that_ran(results: &Results) -> Vec<(usize, &VariantResults)> {
    results.variants.iter().enumerate().filter(|(_, variant)| !variant.runs.is_empty()).collect()
}

/// A plot with a row for each variant: its name, and below it what `row` draws from the row's top on.
fn rows<T>(
    title: &str,
    unit: &str,
    range: std::ops::Range<f64>,
    rows: &[(&VariantResults, T)],
    draw: impl Fn(&mut Chart<'_, '_>, f64, &VariantResults, &T) -> Result<()>,
) -> Result<String> {
    drawn((WIDTH, TOP + ROW * rows.len() as u32 + AXIS), title, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_left(8)
            .margin_right(RIGHT)
            .margin_top(TOP)
            .x_label_area_size(AXIS)
            .build_cartesian_2d(range, rows.len() as f64..0.0)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .x_labels(5)
            .x_desc(unit)
            .axis_style(INK)
            .bold_line_style(FAINT)
            .light_line_style(TRANSPARENT)
            .label_style(("sans-serif", TEXT, &INK))
            .x_label_formatter(&|value| number(*value))
            .draw()
            .map_err(failed)?;
        for (row, (variant, content)) in rows.iter().enumerate() {
            draw(&mut chart, row as f64, variant, content)?;
            let style = ("sans-serif", TEXT).into_text_style(area).color(&INK);
            area.draw_text(&variant.variant.name, &style, (8, (TOP + ROW * row as u32) as i32))
                .map_err(failed)?;
        }
        Ok(())
    })
}

/// A figure of all variants: a dot for each run, a bar for the median, and a line for the interval of its ratio to the
/// baseline.
pub fn runs(results: &Results, name: &str) -> Result<Option<String>> {
    let (factor, unit) = scale(name);
    let found: Vec<_> = that_ran(results)
        .into_iter()
        .filter_map(|(number, variant)| Some((variant, (number, variant.figures.get(name)?))))
        .collect();
    let Some(base) = results.base().and_then(|base| base.figures.get(name)) else { return Ok(None) };
    let ends = found.iter().flat_map(|(variant, (_, spread))| {
        let interval = variant.comparisons.get(name);
        let interval = interval.map(|found| [found.low * base.median, found.high * base.median]);
        [spread.low, spread.high].into_iter().chain(interval.into_iter().flatten())
    });
    let (low, high) = ends.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    if found.is_empty() || !(low.is_finite() && high.is_finite()) {
        return Ok(None);
    }
    // Ratios can be seen only if the axis begins at 0; where all are close together, the difference matters.
    let low = if low < 0.8 * high { 0.0 } else { low };
    let room = ((high - low) * 0.05).max(high.abs() * 0.002).max(1e-9);
    let range = (low - if low == 0.0 { 0.0 } else { room }) * factor..(high + room) * factor;
    let title = format!("{} of each variant", figures::title(name));
    rows(&title, unit, range, &found, |chart, top, variant, (number, spread)| {
        let color = series(*number);
        let at = |value: f64, down: f64| (value * factor, top + down);
        let dot = |value: &f64| Circle::new(at(*value, 0.72), 3, color.mix(0.5).filled());
        chart.draw_series(spread.samples.iter().map(dot)).map_err(failed)?;
        let median = vec![at(spread.median, 0.5), at(spread.median, 0.94)];
        chart.draw_series([PathElement::new(median, color.stroke_width(3))]).map_err(failed)?;
        if let Some(found) = variant.comparisons.get(name) {
            let ends = vec![at(found.low * base.median, 0.94), at(found.high * base.median, 0.94)];
            chart.draw_series([PathElement::new(ends, color.stroke_width(2))]).map_err(failed)?;
        }
        Ok(())
    })
    .map(Some)
}

/// A number on an axis.
fn number(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = crate::report::short(value);
    let digits =
        if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { &digits };
    format!("{digits}{unit}")
}

/// Curves over one axis.
fn curves(
    title: &str,
    axes: (&str, &str),
    lines: &[(usize, Vec<(f64, f64)>)],
    x_label: &dyn Fn(&f64) -> String,
    x_labels: usize,
) -> Result<Option<String>> {
    // A single point is no curve.
    if lines.iter().all(|(_, line)| line.len() < 2) {
        return Ok(None);
    }
    let all = || lines.iter().flat_map(|(_, line)| line);
    let right = all().map(|(x, _)| *x).fold(0.0, f64::max);
    let top = all().map(|(_, y)| *y).fold(0.0, f64::max);
    if right <= 0.0 || top <= 0.0 {
        return Ok(None);
    }
    drawn((WIDTH, HEIGHT), title, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(RIGHT)
            .x_label_area_size(AXIS)
            .y_label_area_size(52)
            .build_cartesian_2d(0.0..right, 0.0..top * 1.05)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .x_labels(x_labels)
            .y_labels(5)
            .x_desc(axes.0)
            .y_desc(axes.1)
            .axis_style(INK)
            .bold_line_style(FAINT)
            .light_line_style(TRANSPARENT)
            .label_style(("sans-serif", TEXT, &INK))
            .x_label_formatter(&|value| x_label(value))
            .y_label_formatter(&|value| number(*value))
            .draw()
            .map_err(failed)?;
        for (series_number, line) in lines {
            let style = series(*series_number).stroke_width(2);
            chart.draw_series(LineSeries::new(line.iter().copied(), style)).map_err(failed)?;
        }
        Ok(())
    })
    .map(Some)
}

/// Resident memory over time: of each variant's run that is in the middle.
pub fn resident(results: &Results) -> Result<Option<String>> {
    let mut lines = Vec::new();
    for (number, variant) in that_ran(results) {
        let mut runs: Vec<_> = variant.runs.iter().collect();
        let end =
            |run: &super::record::Run| run.measured.figures.get(figures::RESIDENT).copied().unwrap_or(0.0);
        runs.sort_by(|a, b| end(a).total_cmp(&end(b)));
        if let Some(run) = runs.get(runs.len() / 2) {
            let points = run.measured.resident.iter().map(|(at, bytes)| (*at, *bytes as f64 / MIB));
            lines.push((number, points.collect()));
        }
    }
    curves("Resident memory over time", ("seconds", "MiB"), &lines, &|value| number(*value), 6)
}

/// Latencies: medians over the runs at three percentiles.
pub fn latencies(results: &Results) -> Result<Option<String>> {
    const POINTS: [(&str, &str); 3] =
        [("latency_p50_us", "50 %"), ("latency_p99_us", "99 %"), ("latency_p999_us", "99.9 %")];
    let line = |variant: &VariantResults| -> Vec<(f64, f64)> {
        let found = POINTS.iter().enumerate();
        found
            .filter_map(|(at, (name, _))| Some((at as f64, variant.figures.get(*name)?.median / 1000.0)))
            .collect()
    };
    let lines: Vec<_> =
        that_ran(results).into_iter().map(|(number, variant)| (number, line(variant))).collect();
    let label = |value: &f64| {
        let is_whole = (value - value.round()).abs() < 1e-6;
        let found = POINTS.get(value.round() as usize).filter(|_| is_whole);
        found.map_or(String::new(), |(_, label)| (*label).to_owned())
    };
    curves("Latency by percentile", ("part of the requests", "milliseconds"), &lines, &label, 3)
}

/// The threads that use most CPU time over all variants.
pub fn busiest_threads(results: &Results) -> Vec<String> {
    let mut sums = BTreeMap::<&str, f64>::new();
    for (name, seconds) in
        results.variants.iter().flat_map(|variant| &variant.runs).flat_map(|run| &run.measured.threads)
    {
        *sums.entry(name).or_default() += seconds;
    }
    let mut sums: Vec<_> = sums.into_iter().filter(|(_, seconds)| *seconds > 0.0).collect();
    sums.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    sums.into_iter().take(THREADS).map(|(name, _)| name.to_owned()).collect()
}

/// CPU time by thread, as bars: means over the runs.
pub fn threads(results: &Results) -> Result<Option<String>> {
    let names = busiest_threads(results);
    let found: Vec<_> = that_ran(results)
        .into_iter()
        .map(|(_, variant)| {
            let mean = |name: &String| {
                let all = variant.runs.iter().flat_map(|run| &run.measured.threads);
                let own = all.filter(|(thread, _)| thread == name).map(|(_, seconds)| seconds);
                own.sum::<f64>() / variant.runs.len().max(1) as f64
            };
            (variant, names.iter().map(mean).collect::<Vec<f64>>())
        })
        .collect();
    let most = found.iter().map(|(_, parts)| parts.iter().sum::<f64>()).fold(0.0, f64::max);
    if most <= 0.0 {
        return Ok(None);
    }
    rows("CPU time by thread", "CPU seconds", 0.0..most * 1.02, &found, |chart, top, _, parts| {
        let mut from = 0.0;
        for (color, seconds) in parts.iter().enumerate() {
            let ends = [(from, top + 0.5), (from + seconds, top + 0.9)];
            chart.draw_series([Rectangle::new(ends, series(color).filled())]).map_err(failed)?;
            from += seconds;
        }
        Ok(())
    })
    .map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_on_axes_are_short() {
        let shown = [0.0, 0.05, 0.5, 1.65, 350.0, 4_000.0, 12_000.0, 2_500_000.0].map(number);
        assert_eq!(shown, ["0", "0.05", "0.5", "1.65", "350", "4000", "12k", "2.5M"]);
    }
}
