//! The chart of a model: rates over the number of rails, as an SVG document.

use std::fmt::Write as _;

use super::{Model, Row};
use crate::units::Rate;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 64.0;

/// A line of the chart. Colours are far apart also for the colour-blind (after Okabe and Ito,
/// "Color Universal Design", 2008).
struct Series {
    name: &'static str,
    colour: &'static str,
    style: &'static str,
    marked: bool,
    of: fn(&Row) -> f64,
}

const SERIES: &[Series] = &[
    Series {
        name: "theoretical: sum of the rails",
        colour: "#888888",
        style: "stroke-dasharray=\"6 5\" stroke-width=\"2\"",
        marked: false,
        of: |row| row.theoretical,
    },
    Series {
        name: "balanced: whole stripes",
        colour: "#d55e00",
        style: "stroke-width=\"2\"",
        marked: true,
        of: |row| row.balanced,
    },
    Series {
        name: "predicted: pieces",
        colour: "#009e73",
        style: "stroke-dasharray=\"2 4\" stroke-width=\"3\"",
        marked: false,
        of: |row| row.predicted,
    },
    Series {
        name: "aggregate: the engine",
        colour: "#0072b2",
        style: "stroke-width=\"2.5\"",
        marked: true,
        of: |row| row.aggregate,
    },
];

/// Where rails and rates lie on the page.
struct Scale {
    rails: usize,
    top: f64,
}

impl Scale {
    fn x(&self, rails: usize) -> f64 {
        let steps = self.rails.saturating_sub(1).max(1);
        let share = if self.rails == 1 { 0.5 } else { count(rails - 1) / count(steps) };
        LEFT + 28.0 + (WIDTH - LEFT - RIGHT - 56.0) * share
    }

    fn y(&self, rate: f64) -> f64 {
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate / self.top
    }
}

#[expect(clippy::cast_precision_loss, reason = "at most 64 rails")]
fn count(rails: usize) -> f64 {
    rails as f64
}

/// A step of 1, 2 or 5 times a power of ten that divides `most` into 4 to 10.
fn step(most: f64) -> f64 {
    let power = 10_f64.powf((most / 5.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
    steps.into_iter().find(|step| most / step <= 8.0).unwrap_or(most)
}

/// The chart of `rows`, which are not empty.
pub(super) fn svg(model: &Model, rows: &[Row]) -> String {
    let rates = rows.iter().flat_map(|row| SERIES.iter().map(|series| (series.of)(row)));
    let most = rates.fold(1.0, f64::max);
    let step = step(most);
    let scale = Scale { rails: rows.len(), top: (most / step).ceil() * step };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"DejaVu Sans, Verdana, sans-serif\" \
         font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    title(&mut svg, model);
    axes(&mut svg, &scale, step);
    for series in SERIES {
        line(&mut svg, &scale, series, rows);
    }
    legend(&mut svg);
    svg.push_str("</svg>\n");
    svg
}

fn text(svg: &mut String, (x, y): (f64, f64), attributes: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{words}</text>");
}

fn title(svg: &mut String, model: &Model) {
    let [object, mut rails] = model.words();
    if rails.chars().count() > 110 {
        rails = format!("{}…", rails.chars().take(109).collect::<String>());
    }
    text(svg, (LEFT, 30.0), "font-size=\"17\" font-weight=\"bold\"", &object);
    text(svg, (LEFT, 51.0), "fill=\"#444444\"", &format!("over {rails}"));
    text(svg, (LEFT, 69.0), "fill=\"#444444\" font-size=\"12\"", "real engine, virtual time");
}

fn axes(svg: &mut String, scale: &Scale, step: f64) {
    let (right, floor) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let mut rate = 0.0;
    while rate <= scale.top * 1.001 {
        let y = scale.y(rate);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>"
        );
        let label = if rate == 0.0 { "0".to_owned() } else { Rate(rate).to_string() };
        text(svg, (LEFT - 8.0, y + 4.5), "text-anchor=\"end\"", &label);
        rate += step;
    }
    let every = scale.rails.div_ceil(16);
    for rails in (1..=scale.rails).filter(|rails| rails.is_multiple_of(every) || every == 1) {
        let at = (scale.x(rails), floor + 20.0);
        text(svg, at, "text-anchor=\"middle\"", &rails.to_string());
    }
    let _ = writeln!(
        svg,
        "<line x1=\"{LEFT}\" y1=\"{floor}\" x2=\"{right}\" y2=\"{floor}\" stroke=\"#333333\"/>"
    );
    text(svg, ((LEFT + right) / 2.0, floor + 44.0), "text-anchor=\"middle\"", "rails");
}

fn line(svg: &mut String, scale: &Scale, series: &Series, rows: &[Row]) {
    let Series { colour, style, marked, of, .. } = series;
    let at = |row: &Row| (scale.x(row.rails), scale.y(of(row)));
    let points: Vec<String> = rows.iter().map(at).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let points = points.join(" ");
    let _ =
        writeln!(svg, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" {style}/>");
    for (x, y) in rows.iter().map(at).filter(|_| *marked || rows.len() == 1) {
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>");
    }
}

fn legend(svg: &mut String) {
    for (index, Series { name, colour, style, .. }) in SERIES.iter().rev().enumerate() {
        let y = TOP + 18.0 + 20.0 * count(index);
        let (from, to) = (LEFT + 16.0, LEFT + 48.0);
        let _ = writeln!(
            svg,
            "<line x1=\"{from}\" y1=\"{y}\" x2=\"{to}\" y2=\"{y}\" stroke=\"{colour}\" {style}/>"
        );
        text(svg, (to + 10.0, y + 4.5), "", name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_few() {
        for most in [1.0, 7.3, 125e6, 1e9, 1.0e9 + 1.0, 64.0 * 12.5e9] {
            let step = step(most);
            let digit = step / 10_f64.powf(step.log10().floor());
            assert!([1.0, 2.0, 5.0].iter().any(|round| (digit - round).abs() < 1e-6), "{step}");
            assert!((2.0..=8.0).contains(&(most / step)), "{most} by {step}");
        }
    }
}
