//! Charts of figures, as SVG and as PNG: the same data gives the same bytes. The same code draws both, in units of an SVG pixel; the PNG
//! has [`PNG_SCALE`] times as many pixels, and is drawn larger and scaled down, which smooths its edges.

use super::{Figure, Mark, Paper, Point, Report, Value};
use crate::testbed::LinkRate;
use plotters::{
    backend::{BitMapBackend, DrawingBackend, SVGBackend},
    coord::Shift,
    drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea as _},
    element::{Circle, PathElement, Rectangle},
    style::{
        FontStyle, FontTransform, IntoFont as _, RGBColor, ShapeStyle, TextStyle, register_font,
        text_anchor::{HPos, Pos, VPos},
    },
};
use std::sync::OnceLock;
use weft_types::{Error, Result};

/// Size of an SVG, in pixels.
const WIDTH: u32 = 800;
const HEIGHT: u32 = 500;
/// PNG pixels per SVG pixel.
const PNG_SCALE: u32 = 2;
/// Drawn pixels per PNG pixel.
const SMOOTHING: u32 = 2;

/// Roboto (Apache License 2.0), with the letters of Latin-1 only.
const FONT: &[u8] = include_bytes!("Roboto-Regular.ttf");
const FAMILY: &str = "sans-serif";

const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const FAINT: RGBColor = RGBColor(0x66, 0x66, 0x66);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);
/// A scheme has the same colour in all figures. The colours suit readers with colour blindness (Okabe and Ito's palette); the baseline
/// is grey.
const COLOURS: [(&str, RGBColor); 39] = [
    ("direct", RGBColor(0x77, 0x77, 0x77)),
    ("conventional", RGBColor(0xd5, 0x5e, 0x00)),
    ("ppr", RGBColor(0xe6, 0x9f, 0x00)),
    ("pipeline", RGBColor(0x00, 0x72, 0xb2)),
    ("cyclic", RGBColor(0x00, 0x9e, 0x73)),
    ("conventional, slices of 256 KiB", RGBColor(0x8c, 0x3a, 0x00)),
    ("ppr, helpers at random", RGBColor(0xcc, 0x79, 0xa7)),
    ("pipeline, random path", RGBColor(0x56, 0xb4, 0xe9)),
    ("pipeline, helpers by index", RGBColor(0x56, 0xb4, 0xe9)),
    ("RS, direct", RGBColor(0x56, 0xb4, 0xe9)),
    ("RS, mist", RGBColor(0x00, 0x72, 0xb2)),
    ("MSR, direct", RGBColor(0xe6, 0x9f, 0x00)),
    ("MSR, mist", RGBColor(0xd5, 0x5e, 0x00)),
    ("LRC, direct", RGBColor(0x7f, 0xce, 0xb9)),
    ("LRC, mist", RGBColor(0x00, 0x9e, 0x73)),
    ("HSRC, direct", RGBColor(0xe5, 0xbc, 0xd3)),
    ("HSRC, mist", RGBColor(0xcc, 0x79, 0xa7)),
    ("RS", RGBColor(0x00, 0x72, 0xb2)),
    ("LRC", RGBColor(0x00, 0x9e, 0x73)),
    ("MSR, d = 6", RGBColor(0xf0, 0xe4, 0x42)),
    ("MSR, d = 8", RGBColor(0xe6, 0x9f, 0x00)),
    ("MSR, d = 10", RGBColor(0xd5, 0x5e, 0x00)),
    ("mist, by speed", RGBColor(0x00, 0x72, 0xb2)),
    ("mist, slow last", RGBColor(0xd5, 0x5e, 0x00)),
    ("mist, at random", RGBColor(0xe6, 0x9f, 0x00)),
    ("2 copies, direct", RGBColor(0x56, 0xb4, 0xe9)),
    ("2 copies, mist", RGBColor(0x00, 0x72, 0xb2)),
    ("3 copies, direct", RGBColor(0xe6, 0x9f, 0x00)),
    ("3 copies, mist", RGBColor(0xd5, 0x5e, 0x00)),
    ("star", RGBColor(0xd5, 0x5e, 0x00)),
    ("concurrent star", RGBColor(0xe6, 0x9f, 0x00)),
    ("tree", RGBColor(0xcc, 0x79, 0xa7)),
    ("auto", RGBColor(0x00, 0x9e, 0x73)),
    ("path by tabu search", RGBColor(0x00, 0x9e, 0x73)),
    ("random path", RGBColor(0xe6, 0x9f, 0x00)),
    ("worst path", RGBColor(0xd5, 0x5e, 0x00)),
    ("pipeline, one slice", RGBColor(0x56, 0xb4, 0xe9)),
    ("pipeline, half of the chunk", RGBColor(0x00, 0x9e, 0x73)),
    ("pipeline, a quarter of the chunk", RGBColor(0x56, 0xb4, 0xe9)),
];
/// The colours of schemes without a fixed one.
const COLOUR: RGBColor = RGBColor(0x00, 0x72, 0xb2);
const MIB: f64 = 1048576.0;
/// The legend's name of the least time that the links allow.
const BOUND: &str = "link bound";

/// A chart: series over evenly spaced places of an axis.
#[derive(Debug)]
pub(crate) struct Chart {
    title: String,
    note: String,
    x_title: String,
    y_title: String,
    mark: Mark,
    places: Vec<String>,
    series: Vec<Series>,
}

#[derive(Debug)]
struct Series {
    name: String,
    colour: RGBColor,
    dots: Vec<Dot>,
}

/// A point of a series.
#[derive(Debug)]
struct Dot {
    /// None: the same at all places.
    place: Option<usize>,
    value: f64,
    /// The least and the greatest value.
    spread: (f64, f64),
    bound: Option<f64>,
}

/// The canvas of a chart, and where its data is drawn.
struct Canvas<'a, DB: DrawingBackend> {
    area: &'a DrawingArea<DB, Shift>,
    /// Canvas pixels per SVG pixel.
    scale: u32,
}

/// The vertical axis.
#[derive(Debug)]
struct Axis {
    is_log: bool,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

/// Left, top, right and bottom of the data area.
const PLOT: (f64, f64, f64, f64) = (72.0, 104.0, 784.0, 440.0);

impl Chart {
    /// The chart of a measured figure.
    pub(crate) fn of(paper: &Paper, figure: &Figure, report: &Report) -> Self {
        let places = figure.places(&report.results);
        // Times have a link bound; amounts of traffic have none.
        let has_bound = figure.value != Value::Moved;
        let dot = |point: &Point| {
            let it = &point.outcome;
            let value = |seconds: f64| match figure.value {
                Value::Seconds => seconds,
                Value::Ratio => it.ratio.unwrap_or(f64::NAN) / it.median_s * seconds,
                Value::Moved => it.bytes_moved as f64 / MIB,
                Value::Rate => point.rate_mib_s.unwrap_or(f64::NAN) * it.median_s / seconds,
            };
            let place = point.x.as_ref().and_then(|x| places.iter().position(|it| it == x));
            let (a, b) = (value(it.min_s), value(it.max_s));
            Dot {
                place,
                value: value(it.median_s),
                spread: (a.min(b), a.max(b)),
                bound: it.bound_s.filter(|_| has_bound).map(value),
            }
        };
        let of_scheme = |scheme: &str| report.results.iter().filter(|point| point.outcome.scheme == scheme).map(dot).collect();
        let series = |scheme: &&str| {
            let colour = COLOURS.iter().find(|(name, _)| name == scheme).map_or(COLOUR, |(_, colour)| *colour);
            Series { name: (*scheme).to_owned(), colour, dots: of_scheme(scheme) }
        };
        let asked = &report.settings;
        let links = asked.testbed.link.filter(|_| asked.testbed.racks == 1);
        let links = links.map(|link: LinkRate| format!(", links of {link}")).unwrap_or_default();
        let quick = if asked.quick { ", quick: do not cite" } else { "" };
        let (runs, block) = (asked.runs, asked.block_size);
        Self {
            title: format!("{} (figure {} of {})", figure.title, figure.name, paper.name),
            note: format!("{} nodes{links}, {} of {block} at most, runs: {runs}{quick}", asked.testbed.nodes, paper.sizes),
            x_title: figure.x.to_owned(),
            y_title: match figure.value {
                Value::Seconds => format!("{}, seconds", paper.time),
                Value::Ratio => format!("{}, relative to conventional rs(12,4)", paper.time),
                Value::Rate => "rebuilt, MiB per second".to_owned(),
                Value::Moved => "sent over all links, MiB".to_owned(),
            },
            mark: figure.mark,
            series: figure.schemes.iter().map(series).filter(|series| !series.dots.is_empty()).collect(),
            places,
        }
    }

    /// As SVG.
    pub(crate) fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
            self.draw(&Canvas { area: &area, scale: 1 }).map_err(failed)?;
            area.present().map_err(failed)?;
        }
        Ok(svg)
    }

    /// As PNG.
    pub(crate) fn png(&self) -> Result<Vec<u8>> {
        let (width, height) = (WIDTH * PNG_SCALE, HEIGHT * PNG_SCALE);
        let drawn = (width * SMOOTHING, height * SMOOTHING);
        let mut pixels = vec![0; drawn.0 as usize * drawn.1 as usize * 3];
        {
            let area = BitMapBackend::with_buffer(&mut pixels, drawn).into_drawing_area();
            self.draw(&Canvas { area: &area, scale: PNG_SCALE * SMOOTHING }).map_err(failed)?;
            area.present().map_err(failed)?;
        }
        let mut png = Vec::new();
        let mut encoder = png::Encoder::new(&mut png, width, height);
        encoder.set_color(png::ColorType::Rgb);
        let mut writer = encoder.write_header().map_err(Error::fatal)?;
        writer.write_image_data(&smoothed(&pixels, drawn.0 as usize)).map_err(Error::fatal)?;
        writer.finish().map_err(Error::fatal)?;
        Ok(png)
    }

    fn draw<DB: DrawingBackend>(&self, on: &Canvas<'_, DB>) -> Drawn<DB> {
        font()?;
        on.area.fill(&PAPER)?;
        let (left, top, right, bottom) = PLOT;
        on.text(&self.title, 18.0, &INK, (left, 14.0), (HPos::Left, VPos::Top))?;
        on.text(&self.note, 12.0, &FAINT, (left, 40.0), (HPos::Left, VPos::Top))?;
        self.draw_legend(on)?;
        let axis = self.axis();
        for tick in &axis.ticks {
            let y = axis.at(*tick);
            on.line(&[(left, y), (right, y)], &GRID, 1.0)?;
            on.text(&number(*tick), 12.0, &INK, (left - 8.0, y), (HPos::Right, VPos::Center))?;
        }
        on.line(&[(left, bottom), (right, bottom)], &INK, 1.0)?;
        let step = self.step();
        for (at, place) in self.places.iter().enumerate() {
            let x = left + step * (at as f64 + 0.5);
            on.text(place, 12.0, &INK, (x, bottom + 8.0), (HPos::Center, VPos::Top))?;
        }
        on.text(&self.x_title, 13.0, &INK, ((left + right) / 2.0, bottom + 32.0), (HPos::Center, VPos::Top))?;
        on.upright(&self.y_title, 13.0, (18.0, (top + bottom) / 2.0))?;
        for (at, series) in self.series.iter().enumerate() {
            match self.mark {
                Mark::Bars => self.draw_bars(on, &axis, at, series)?,
                Mark::Lines | Mark::LogLines => self.draw_line(on, &axis, at, series)?,
            }
        }
        Ok(())
    }

    fn draw_legend<DB: DrawingBackend>(&self, on: &Canvas<'_, DB>) -> Drawn<DB> {
        let mut widths = Vec::new();
        for series in &self.series {
            widths.push(48.0 + on.width(&series.name, 13.0)?);
        }
        let is_long = PLOT.0 + widths.iter().sum::<f64>() > PLOT.2;
        let (mut x, mut y) = (PLOT.0, if is_long { 68.0 } else { 76.0 });
        let has_bound = self.series.iter().flat_map(|series| &series.dots).any(|dot| dot.bound.is_some());
        for (at, (series, width)) in self.series.iter().zip(&widths).enumerate() {
            // Entries that do not fit into a line wrap to the next.
            if x + width > PLOT.2 {
                (x, y) = (PLOT.0, y + 18.0);
            }
            match self.mark {
                Mark::Bars => on.rectangle((x, y - 5.0), (x + 14.0, y + 5.0), &series.colour)?,
                Mark::Lines | Mark::LogLines => {
                    on.line(&[(x - 4.0, y), (x + 18.0, y)], &series.colour, 2.0)?;
                    if series.dots.iter().any(|dot| dot.place.is_some()) {
                        on.marker(at, (x + 7.0, y), &series.colour)?;
                    }
                }
            }
            on.text(&series.name, 13.0, &INK, (x + 22.0, y), (HPos::Left, VPos::Center))?;
            x += width;
        }
        if has_bound {
            on.line(&[(x, y), (x + 14.0, y)], &INK, 2.0)?;
            on.text(BOUND, 13.0, &INK, (x + 22.0, y), (HPos::Left, VPos::Center))?;
        }
        Ok(())
    }

    fn draw_bars<DB: DrawingBackend>(&self, on: &Canvas<'_, DB>, axis: &Axis, at: usize, series: &Series) -> Drawn<DB> {
        let group = self.step() * 0.76;
        let width = group / self.series.len() as f64;
        for dot in &series.dots {
            // A value that is the same everywhere appears in every group.
            for place in (0..self.places.len()).filter(|it| dot.place.is_none_or(|place| place == *it)) {
                let start = PLOT.0 + self.step() * (place as f64 + 0.5) - group / 2.0;
                let x = start + width * at as f64;
                on.rectangle((x + 1.0, axis.at(dot.value)), (x + width - 1.0, PLOT.3), &series.colour)?;
                on.whisker(x + width / 2.0, axis.at(dot.spread.0), axis.at(dot.spread.1))?;
                if let Some(bound) = dot.bound {
                    on.line(&[(x, axis.at(bound)), (x + width, axis.at(bound))], &INK, 2.0)?;
                }
            }
        }
        Ok(())
    }

    fn draw_line<DB: DrawingBackend>(&self, on: &Canvas<'_, DB>, axis: &Axis, at: usize, series: &Series) -> Drawn<DB> {
        let x = |place: usize| PLOT.0 + self.step() * (place as f64 + 0.5);
        let line: Vec<(f64, f64)> = series.dots.iter().filter_map(|dot| Some((x(dot.place?), axis.at(dot.value)))).collect();
        on.line(&line, &series.colour, 2.0)?;
        for dot in &series.dots {
            let y = axis.at(dot.value);
            match dot.place {
                None => on.line(&[(PLOT.0, y), (PLOT.2, y)], &series.colour, 2.0)?,
                Some(place) => {
                    on.whisker(x(place), axis.at(dot.spread.0), axis.at(dot.spread.1))?;
                    on.marker(at, (x(place), y), &series.colour)?;
                }
            }
            if let Some(bound) = dot.bound {
                let x = dot.place.map_or(PLOT.0 + 8.0, x);
                on.line(&[(x - 8.0, axis.at(bound)), (x + 8.0, axis.at(bound))], &INK, 1.0)?;
            }
        }
        Ok(())
    }

    /// The distance between two places.
    fn step(&self) -> f64 {
        (PLOT.2 - PLOT.0) / self.places.len().max(1) as f64
    }

    fn axis(&self) -> Axis {
        let dots = self.series.iter().flat_map(|series| &series.dots);
        let all = dots.flat_map(|dot| [Some(dot.spread.0), Some(dot.spread.1), dot.bound]).flatten().filter(|it| *it > 0.0);
        let (least, most) = all.fold((f64::INFINITY, 1e-9), |(low, high), it| (f64::min(low, it), f64::max(high, it)));
        match self.mark {
            Mark::LogLines => Axis::log(least.min(most), most),
            Mark::Lines | Mark::Bars => Axis::linear(most),
        }
    }
}

impl Axis {
    /// An axis that starts at 0.
    fn linear(most: f64) -> Self {
        let rough = most / 6.0;
        let ten = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|it| it * ten).into_iter().find(|it| *it >= rough).unwrap_or(rough);
        let count = (most * 1.03 / step).ceil() as u32;
        Self {
            is_log: false,
            low: 0.0,
            high: step * f64::from(count),
            ticks: (0..=count).map(|it| f64::from(it) * step).collect(),
        }
    }

    /// An axis between two round numbers.
    fn log(least: f64, most: f64) -> Self {
        let (from, to) = (least.log10().floor() as i32, most.log10().ceil() as i32);
        let round = (from..=to).flat_map(|power| [1.0, 2.0, 5.0].map(|it| it * 10f64.powi(power)));
        let round: Vec<f64> = round.collect();
        let low = round.iter().copied().rfind(|it| *it <= least * 0.95).unwrap_or(least / 2.0);
        let high = round.iter().copied().find(|it| *it >= most * 1.05).unwrap_or(most * 2.0);
        Self { is_log: true, low, high, ticks: round.into_iter().filter(|it| (low..=high).contains(it)).collect() }
    }

    /// The place of a value, from the top of the chart.
    fn at(&self, value: f64) -> f64 {
        let part = match self.is_log {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => value / self.high,
        };
        PLOT.3 - part.clamp(0.0, 1.0) * (PLOT.3 - PLOT.1)
    }
}

type Drawn<DB, T = ()> = std::result::Result<T, DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

impl<DB: DrawingBackend> Canvas<'_, DB> {
    fn px(&self, at: (f64, f64)) -> (i32, i32) {
        let px = |it: f64| (it * f64::from(self.scale)).round() as i32;
        (px(at.0), px(at.1))
    }

    fn line(&self, points: &[(f64, f64)], colour: &RGBColor, width: f64) -> Drawn<DB> {
        let style = ShapeStyle { color: (*colour).into(), filled: false, stroke_width: self.px((width, 0.0)).0 as u32 };
        self.area.draw(&PathElement::new(points.iter().map(|at| self.px(*at)).collect::<Vec<_>>(), style))
    }

    fn rectangle(&self, from: (f64, f64), to: (f64, f64), colour: &RGBColor) -> Drawn<DB> {
        let style = ShapeStyle { color: (*colour).into(), filled: true, stroke_width: 0 };
        self.area.draw(&Rectangle::new([self.px(from), self.px(to)], style))
    }

    /// A dot or a square, so lines can be told apart without their colours.
    fn marker(&self, at: usize, centre: (f64, f64), colour: &RGBColor) -> Drawn<DB> {
        if at.is_multiple_of(2) {
            return self.rectangle((centre.0 - 4.0, centre.1 - 4.0), (centre.0 + 4.0, centre.1 + 4.0), colour);
        }
        let style = ShapeStyle { color: (*colour).into(), filled: true, stroke_width: 0 };
        self.area.draw(&Circle::new(self.px(centre), self.px((4.5, 0.0)).0, style))
    }

    /// The range of the values, if it is large enough to be visible.
    fn whisker(&self, x: f64, low: f64, high: f64) -> Drawn<DB> {
        if (low - high).abs() < 3.0 {
            return Ok(());
        }
        self.line(&[(x, low), (x, high)], &INK, 1.0)?;
        self.line(&[(x - 3.0, low), (x + 3.0, low)], &INK, 1.0)?;
        self.line(&[(x - 3.0, high), (x + 3.0, high)], &INK, 1.0)
    }

    fn style(&self, size: f64, colour: &RGBColor) -> TextStyle<'static> {
        let font = (FAMILY, size * f64::from(self.scale)).into_font();
        TextStyle { font, color: plotters::style::Color::to_backend_color(colour), pos: Pos::default() }
    }

    fn text(&self, text: &str, size: f64, colour: &RGBColor, at: (f64, f64), pos: (HPos, VPos)) -> Drawn<DB> {
        self.area.draw_text(text, &self.style(size, colour).pos(Pos::new(pos.0, pos.1)), self.px(at))
    }

    /// Upright text, centred there.
    fn upright(&self, text: &str, size: f64, at: (f64, f64)) -> Drawn<DB> {
        let style = self.style(size, &INK).transform(FontTransform::Rotate270).pos(Pos::new(HPos::Center, VPos::Top));
        self.area.draw_text(text, &style, self.px(at))
    }

    fn width(&self, text: &str, size: f64) -> Drawn<DB, f64> {
        let (width, _) = self.area.estimate_text_size(text, &self.style(size, &INK))?;
        Ok(f64::from(width) / f64::from(self.scale))
    }
}

/// Registers the font, once.
fn font<E: std::error::Error + Send + Sync>() -> std::result::Result<(), DrawingAreaErrorKind<E>> {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    match KNOWN.get_or_init(|| register_font(FAMILY, FontStyle::Normal, FONT).is_ok()) {
        true => Ok(()),
        false => Err(DrawingAreaErrorKind::LayoutError),
    }
}

/// As short as is readable: `0.05`, `20`.
fn number(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Averages squares of [`SMOOTHING`] pixels, in rows of `width` pixels.
fn smoothed(pixels: &[u8], width: usize) -> Vec<u8> {
    let (square, row) = (SMOOTHING as usize, width * 3);
    let mut out = Vec::with_capacity(pixels.len() / square / square);
    for rows in pixels.chunks_exact(row * square) {
        for x in (0..width).step_by(square) {
            for channel in 0..3 {
                let of_square = (0..square).flat_map(|dy| (0..square).map(move |dx| dy * row + (x + dx) * 3 + channel));
                let sum: u32 = of_square.map(|at| u32::from(rows[at])).sum();
                out.push((sum / (SMOOTHING * SMOOTHING)) as u8);
            }
        }
    }
    out
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::fatal(format!("cannot draw: {error}"))
}

#[cfg(test)]
mod tests {
    use super::{super::PAPERS, *};
    use crate::reproduce::cpu_figures;
    use std::collections::BTreeSet;

    #[test]
    fn the_schemes_of_a_figure_have_colours_of_their_own() {
        for figure in PAPERS.into_iter().chain([&cpu_figures::PAPER]).flat_map(|paper| paper.figures) {
            let colour = |scheme: &&str| COLOURS.iter().find(|(name, _)| name == scheme).map(|(_, it)| (it.0, it.1, it.2));
            let colours: BTreeSet<_> = figure.schemes.iter().map(colour).collect();
            assert!(figure.schemes.len() == 1 || colours.len() == figure.schemes.len(), "figure {}: {colours:?}", figure.name);
        }
    }
}
