//! A fault as a picture: a line for each party, time from left to right, signals as arrows, conflicting accesses in
//! red.

use super::fault::{Fault, Found};
use std::fmt::Write;

const LEFT: usize = 260;
const TOP: usize = 56;
const ROW: usize = 44;
const COLUMN: usize = 96;

impl Found {
    /// The interleaving that leads to this fault, as a standalone SVG.
    pub fn to_svg(&self) -> String {
        let events = self.fault.events();
        let mut rows: Vec<String> = Vec::new();
        let mut row = |name: String| {
            rows.iter().position(|known| *known == name).unwrap_or_else(|| {
                rows.push(name);
                rows.len() - 1
            })
        };
        let moments: Vec<usize> = self.prefix.iter().map(|moment| row(moment.event.party_name())).collect();
        let ends: Vec<usize> = events.iter().map(|event| row(event.party_name())).collect();
        let x = |column: usize| LEFT + column * COLUMN + COLUMN / 2;
        let y = |row: usize| TOP + row * ROW + ROW / 2;
        let columns = moments.len() + ends.len();
        let (width, height) = (LEFT + columns.max(1) * COLUMN + 20, TOP + rows.len() * ROW + 20);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" font-size=\"11\">\n\
             <defs><marker id=\"tip\" markerWidth=\"8\" markerHeight=\"8\" refX=\"7\" refY=\"4\" orient=\"auto\">\
             <path d=\"M0,0 L8,4 L0,8 z\" fill=\"#357\"/></marker></defs>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        let title = self.fault.to_string();
        _ = writeln!(
            svg,
            "<text x=\"10\" y=\"22\" font-size=\"13\" font-weight=\"bold\">{}</text>",
            first_line(&title)
        );
        for (i, name) in rows.iter().enumerate() {
            let y = y(i);
            _ = writeln!(svg, "<text x=\"10\" y=\"{}\">{}</text>", y + 4, escape(name));
            _ = writeln!(svg, "<line x1=\"{LEFT}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"#ccc\"/>", width - 10);
        }
        for (column, (moment, &row)) in self.prefix.iter().zip(&moments).enumerate() {
            let (x2, y2) = (x(column), y(row));
            if let Some(from) = moment.from {
                let (x1, y1) = (x(from), y(moments[from]));
                _ = writeln!(
                    svg,
                    "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"#357\" marker-end=\"url(#tip)\"/>"
                );
            }
            let line = moment.event.at.as_ref().map_or(String::new(), |at| at.to_string());
            _ = writeln!(
                svg,
                "<circle cx=\"{x2}\" cy=\"{y2}\" r=\"4\" fill=\"#357\"><title>{}</title></circle>\
                 <text x=\"{x2}\" y=\"{}\" text-anchor=\"middle\" font-size=\"9\">{}</text>",
                escape(&line),
                y2 - 8,
                escape(&moment.deed),
            );
        }
        for (i, (event, &row)) in events.iter().zip(&ends).enumerate() {
            // Conflicting accesses happen at the same time, as far as anybody can tell.
            let column = if matches!(self.fault, Fault::Race { .. }) { moments.len() } else { moments.len() + i };
            let (x, y) = (x(column), y(row));
            let line = event.at.as_ref().map_or(String::new(), |at| format!(" at {at}"));
            _ = writeln!(
                svg,
                "<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"#c22\"><title>{}</title></rect>\
                 <text x=\"{}\" y=\"{}\" fill=\"#c22\">{}</text>",
                x - 6,
                y - 6,
                escape(&format!("{event}")),
                x + 10,
                y + 4,
                escape(&short(&format!("{}{line}", event.op))),
            );
        }
        svg + "</svg>\n"
    }
}

fn first_line(text: &str) -> String {
    escape(text.lines().next().unwrap_or_default())
}

fn short(text: &str) -> String {
    if text.chars().count() <= 60 { text.to_string() } else { text.chars().take(59).chain(['…']).collect() }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
