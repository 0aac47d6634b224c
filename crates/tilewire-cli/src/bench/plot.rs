//! Ratios to a limit as a picture: sizes on a logarithmic axis, a line for each protocol. Plain SVG, without a library.

use super::size::Size;
use std::fmt::Write as _;

/// Size of one panel, and the place of its axes.
const WIDTH: f64 = 470.0;
const HEIGHT: f64 = 326.0;
const LEFT: f64 = 52.0;
const TOP: f64 = 34.0;
const RIGHT: f64 = 18.0;
const BOTTOM: f64 = 100.0;
const COLUMNS: usize = 2;
const HEAD: f64 = 40.0;
/// Distance between marks of the ratio.
const MARK: f64 = 0.25;
/// Sizes closer than this are marked without a label.
const BETWEEN_NAMES: f64 = 40.0;
/// Larger ratios are cut off: how far a limit is beaten does not matter then.
const HIGHEST: f64 = 3.0;
/// Distinguishable for people who are red-green colour-blind. Ours start at the front and the others at the back: they
/// meet in no panel.
const COLOURS: [&str; 9] =
    ["#0072b2", "#d55e00", "#009e73", "#000000", "#8c564b", "#999999", "#56b4e9", "#e69f00", "#cc79a7"];
/// Average width of a letter, rather too wide.
const LETTER: f64 = 6.2;

/// One kind of work at one place.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Its heading.
    pub title: String,
    series: Vec<Series>,
}

#[derive(Clone, Debug, PartialEq)]
struct Series {
    name: String,
    /// True if it is not ours.
    dashed: bool,
    /// Bytes and ratio, by bytes.
    points: Vec<(usize, f64)>,
}

impl Panel {
    /// An empty panel.
    pub fn new(title: String) -> Panel {
        Panel { title, series: Vec::new() }
    }

    /// Adds a point to a line; lines that are not ours are dashed.
    pub fn add(&mut self, name: &str, dashed: bool, bytes: usize, ratio: f64) {
        if !self.series.iter().any(|series| series.name == name) {
            self.series.push(Series { name: name.into(), dashed, points: Vec::new() });
        }
        let series = self.series.iter_mut().find(|series| series.name == name);
        let points = &mut series.expect("added where it was missing").points;
        points.insert(points.partition_point(|&(other, _)| other < bytes), (bytes, ratio));
    }

    /// `names` are those of all panels: one name has one colour, and one place in the legend.
    fn draw(&self, svg: &mut String, names: &[(&str, &str)], x: f64, y: f64) {
        let axes = Axes::of(self, x, y);
        _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"13\" font-weight=\"bold\">{}</text>",
            axes.x0,
            y + 20.0,
            escape(&self.title)
        );
        axes.draw(svg);
        let (mut lx, mut ly) = (axes.x0, axes.y0 + 52.0);
        for (name, colour) in names {
            let Some(series) = self.series.iter().find(|series| series.name == *name) else { continue };
            let dash = if series.dashed { " stroke-dasharray=\"5 4\"" } else { "" };
            let at: Vec<(f64, f64)> = series.points.iter().map(|&(b, r)| (axes.x(b), axes.y(r))).collect();
            let path: Vec<String> = at.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
                path.join(" ")
            );
            for ((x, y), (bytes, ratio)) in at.iter().zip(&series.points) {
                _ = writeln!(
                    svg,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"><title>{}, {}: {ratio:.2}</title></circle>",
                    escape(&series.name),
                    Size(*bytes)
                );
            }
            // The legend, below the axis.
            let room = 45.0 + series.name.chars().count() as f64 * LETTER;
            if lx + room > x + WIDTH + 20.0 {
                (lx, ly) = (axes.x0, ly + 16.0);
            }
            _ = writeln!(
                svg,
                "<line x1=\"{lx:.1}\" y1=\"{ly:.1}\" x2=\"{:.1}\" y2=\"{ly:.1}\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                lx + 20.0,
                lx + 25.0,
                ly + 4.0,
                escape(&series.name)
            );
            lx += room;
        }
    }
}

/// The coordinates of a panel.
struct Axes {
    /// The lower left corner.
    x0: f64,
    y0: f64,
    sizes: Vec<usize>,
    highest: f64,
}

impl Axes {
    fn of(panel: &Panel, x: f64, y: f64) -> Axes {
        let points = || panel.series.iter().flat_map(|series| &series.points);
        let mut sizes: Vec<usize> = points().map(|(bytes, _)| *bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let most = points().map(|(_, ratio)| *ratio).fold(1.0, f64::max).min(HIGHEST);
        let highest = ((most + 0.05) / MARK).ceil() * MARK;
        Axes { x0: x + LEFT, y0: y + HEIGHT - BOTTOM, sizes, highest }
    }

    fn x(&self, bytes: usize) -> f64 {
        let log = |bytes: usize| (bytes.max(1) as f64).log2();
        let (first, last) = (log(self.sizes[0]), log(self.sizes[self.sizes.len() - 1]));
        let share = if last > first { (log(bytes) - first) / (last - first) } else { 0.5 };
        // Points keep a distance from the axes.
        self.x0 + 14.0 + share * (WIDTH - LEFT - RIGHT - 28.0)
    }

    fn y(&self, ratio: f64) -> f64 {
        self.y0 - ratio.clamp(0.0, self.highest) / self.highest * (HEIGHT - TOP - BOTTOM)
    }

    fn draw(&self, svg: &mut String) {
        let (x0, x1) = (self.x0, self.x0 + WIDTH - LEFT - RIGHT);
        let marks = (self.highest / MARK).round() as usize;
        for mark in 0..=marks {
            let ratio = mark as f64 * MARK;
            let (y, limit) = (self.y(ratio), ratio == 1.0);
            let (colour, width) = if limit { ("#444", 1.5) } else { ("#ddd", 1.0) };
            _ = writeln!(
                svg,
                "<line x1=\"{x0:.1}\" y1=\"{y:.1}\" x2=\"{x1:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{ratio:.2}</text>",
                x0 - 6.0,
                y + 4.0
            );
        }
        // From the largest down, since that one must be labelled.
        let mut named = f64::INFINITY;
        for &bytes in self.sizes.iter().rev() {
            let x = self.x(bytes);
            _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#444\"/>",
                self.y0,
                self.y0 + 5.0
            );
            if named - x >= BETWEEN_NAMES {
                named = x;
                _ = writeln!(
                    svg,
                    "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                    self.y0 + 18.0,
                    Size(bytes)
                );
            }
        }
        _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#444\">bytes of a message</text>",
            (x0 + x1) / 2.0,
            self.y0 + 34.0
        );
    }
}

/// The panel with this title; a new one if there is none.
pub fn titled(panels: &mut Vec<Panel>, title: String) -> &mut Panel {
    let at = panels.iter().position(|panel| panel.title == title).unwrap_or_else(|| {
        panels.push(Panel::new(title));
        panels.len() - 1
    });
    &mut panels[at]
}

/// All panels, two in a row; if there is nothing to draw, the reason.
pub fn svg(panels: &[Panel], undrawn: &str) -> String {
    let drawn: Vec<&Panel> = panels.iter().filter(|panel| !panel.series.is_empty()).collect();
    let rows = drawn.len().div_ceil(COLUMNS).max(1);
    // Ours first, so that they have the same colours whatever they are compared with.
    let mut names: Vec<(&str, &str)> = Vec::new();
    for dashed in [false, true] {
        let before = names.len();
        for series in drawn.iter().flat_map(|panel| &panel.series).filter(|series| series.dashed == dashed) {
            if !names.iter().any(|(name, _)| *name == series.name) {
                let k = (names.len() - before) % COLOURS.len();
                names.push((&series.name, COLOURS[if dashed { COLOURS.len() - 1 - k } else { k }]));
            }
        }
    }
    let (width, height) = (COLUMNS as f64 * WIDTH, HEAD + rows as f64 * HEIGHT);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fcfcfa\"/>\n\
         <text x=\"20\" y=\"26\" font-size=\"16\" font-weight=\"bold\">tilewire bench: speed as a share of the hand-written limit \
         (1.00)</text>\n"
    );
    if drawn.is_empty() {
        _ = writeln!(svg, "<text x=\"20\" y=\"60\">{}</text>", escape(undrawn));
    }
    for (k, panel) in drawn.into_iter().enumerate() {
        panel.draw(&mut svg, &names, (k % COLUMNS) as f64 * WIDTH, HEAD + (k / COLUMNS) as f64 * HEIGHT);
    }
    svg + "</svg>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel() -> Panel {
        let mut panel = Panel::new("all_to_all <2>".into());
        for (bytes, ratio) in [(1 << 20, 0.9), (8, 0.5), (64 << 10, 7.0)] {
            panel.add("direct", false, bytes, ratio);
        }
        panel.add("Open MPI", true, 8, 0.25);
        panel
    }

    #[test]
    fn sizes_are_ordered_and_logarithmic_and_higher_is_better() {
        let panel = panel();
        assert_eq!(panel.series[0].points.iter().map(|p| p.0).collect::<Vec<_>>(), [8, 64 << 10, 1 << 20]);
        let axes = Axes::of(&panel, 0.0, 0.0);
        let (a, b, c) = (axes.x(8), axes.x(64 << 10), axes.x(1 << 20));
        assert!(((b - a) / (c - a) - 13.0 / 17.0).abs() < 1e-9);
        assert!(axes.y(0.9) < axes.y(0.5));
        assert_eq!(axes.y(7.0), axes.y(axes.highest));
        assert_eq!(axes.y(0.0), axes.y0);
    }

    #[test]
    fn one_size_stands_in_the_middle() {
        let mut panel = Panel::new("one".into());
        panel.add("x", false, 8, 1.0);
        let axes = Axes::of(&panel, 0.0, 0.0);
        assert!((axes.x(8) - (LEFT + (WIDTH - LEFT - RIGHT) / 2.0)).abs() < 1e-9);
    }

    #[test]
    fn a_title_has_one_panel() {
        let mut panels = Vec::new();
        for (title, bytes) in [("a", 8), ("b", 8), ("a", 16)] {
            titled(&mut panels, title.into()).add("x", false, bytes, 1.0);
        }
        assert_eq!(panels.iter().map(|panel| panel.series[0].points.len()).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn a_name_has_one_colour_in_all_panels_and_ours_come_first() {
        let mut other = Panel::new("other".into());
        other.add("Open MPI", true, 8, 0.5);
        other.add("staged", false, 8, 0.5);
        other.add("direct", false, 8, 0.5);
        let text = svg(&[panel(), other], "");
        for (name, colour) in [("direct", 0), ("staged", 1), ("Open MPI", 8)] {
            let lines: Vec<&str> = text.lines().filter(|line| line.contains(&format!(">{name}</text>"))).collect();
            assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(COLOURS[colour])), "{name}: {lines:?}");
        }
        let last = |name: &str| text.rfind(&format!(">{name}</text>")).unwrap();
        assert!(last("direct") < last("staged") && last("staged") < last("Open MPI"));
    }

    #[test]
    fn names_of_sizes_do_not_lie_over_each_other() {
        let mut panel = Panel::new("many".into());
        (3..=26).for_each(|log| panel.add("staged", false, 1 << log, 0.5));
        let text = svg(&[panel], "");
        assert!(text.contains(">64MiB</text>"));
        let named = text.matches("B</text>").count();
        assert!((4..=10).contains(&named), "{named}");
    }

    #[test]
    fn a_plot_has_axes_lines_and_a_legend() {
        let text = svg(&[panel(), Panel::new("empty".into())], "too busy");
        for part in [
            "all_to_all &lt;2&gt;",
            ">64KiB<",
            ">1.00<",
            ">direct<",
            ">Open MPI<",
            "stroke-dasharray",
            "bytes of a message",
        ] {
            assert!(text.contains(part), "no '{part}' in\n{text}");
        }
        assert_eq!(text.matches("<polyline").count(), 2);
        assert_eq!(text.matches("<circle").count(), 4);
        assert!(!text.contains("empty") && !text.contains("NaN"));
        assert!(text.starts_with("<svg xmlns=") && text.ends_with("</svg>\n"));
        assert!(!text.contains("too busy") && svg(&[], "too busy").contains(">too busy<"));
    }
}
