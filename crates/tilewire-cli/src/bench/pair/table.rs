//! Contests as a table with a column for each place, and as rows of the JSON report.
#![forbid(unsafe_code)]

use super::contest::{Outcome, best};
use super::place::Place;
use super::sendrecv::Case;
use super::side::{Aim, Limit, Part, Pattern};
use super::world::Kind;
use crate::bench::Size;
use crate::bench::report::Row;
use std::fmt::Write as _;

/// One contest that was held.
#[derive(Debug)]
pub struct Heat {
    /// What was done.
    pub case: &'static Case,
    /// By threads or processes.
    pub kind: Kind,
    /// Bytes of a message.
    pub bytes: usize,
    /// What came of it.
    pub outcomes: Vec<Outcome>,
    /// Samples that make a median.
    pub least: usize,
    /// Why Open MPI is not among them.
    pub absent: Option<String>,
}

/// A line of the table: a limit, or what races one.
struct Line<'h> {
    name: String,
    against: Limit,
    aim: Aim,
    /// By place: who it was, and its median.
    medians: [Option<(&'h Outcome, f64)>; 3],
}

impl Heat {
    fn lines(&self) -> Vec<Line<'_>> {
        let mut lines: Vec<Line> = Vec::new();
        for outcome in &self.outcomes {
            match outcome.part {
                Part::Limit(limit) if lines.iter().any(|line| line.name == limit.name()) => {}
                Part::Limit(limit) => lines.push(Line {
                    name: limit.name().into(),
                    against: limit,
                    aim: Aim::None,
                    medians: Place::ALL.map(|place| best(&self.outcomes, limit, place, self.least)),
                }),
                Part::Racer { against, aim, .. } => lines.push(Line {
                    name: outcome.name.clone(),
                    against,
                    aim,
                    medians: Place::ALL.map(|place| Some((outcome, outcome.median_ns(place, self.least)?))),
                }),
            }
        }
        lines
    }

    fn limit_ns(&self, limit: Limit, place: Place) -> Option<f64> {
        best(&self.outcomes, limit, place, self.least).map(|(_, ns)| ns)
    }

    /// Gigabytes a second, both directions together; none where latency is the point.
    fn gbps(&self, ns: f64) -> Option<f64> {
        let bytes = self.bytes * self.case.pattern.directions();
        (self.case.pattern != Pattern::PingPong && bytes > 0).then_some(bytes as f64 / ns)
    }

    fn cell(&self, line: &Line, place: Place) -> String {
        let Some((outcome, ns)) = line.medians[place as usize] else { return "-".into() };
        let figure = self.gbps(ns).map_or_else(|| format!("{:.3} µs", ns / 1e3), |gbps| format!("{gbps:.2} GB/s"));
        match (&outcome.part, self.limit_ns(line.against, place)) {
            (Part::Limit(_), _) => format!("{figure}  {}", outcome.name),
            (_, Some(limit)) => format!("{figure}  {:.2}{}", limit / ns, verdict(line.aim, place, limit / ns, ns)),
            (_, None) => figure,
        }
    }
}

fn verdict(aim: Aim, place: Place, ratio: f64, ns: f64) -> &'static str {
    let met = match (aim, place) {
        (Aim::Ratio(aim), _) => ratio >= aim,
        (Aim::Time(near, _), Place::Near | Place::Smt) => ns <= near * 1e3,
        (Aim::Time(_, Some(far)), Place::Far) => ns <= far * 1e3,
        _ => return "",
    };
    if met { " met" } else { " missed" }
}

fn aim(aim: Aim) -> String {
    match aim {
        Aim::None => String::new(),
        Aim::Ratio(ratio) => format!("{ratio:.2}"),
        Aim::Time(near, None) => format!("{near} µs near"),
        Aim::Time(near, Some(far)) => format!("{near} µs near, {far} far"),
    }
}

/// The contests in aligned columns.
pub fn table(heats: &[Heat]) -> String {
    let mut rows = vec![["case", "ranks", "bytes", "side", "smt", "near", "far", "against", "aim"].map(String::from)];
    for heat in heats {
        let start = [heat.case.name.to_string(), heat.kind.name().into(), Size(heat.bytes).to_string()];
        let [case, kind, bytes] = start;
        let row = |side: &str, [smt, near, far]: [String; 3], against: &str, aim: String| {
            [case.clone(), kind.clone(), bytes.clone(), side.into(), smt, near, far, against.into(), aim]
        };
        for line in heat.lines() {
            let is_limit = line.name == line.against.name();
            let cells = Place::ALL.map(|place| heat.cell(&line, place));
            rows.push(row(&line.name, cells, if is_limit { "" } else { line.against.name() }, aim(line.aim)));
        }
        if let Some(why) = &heat.absent {
            rows.push(row("Open MPI", [why.clone(), String::new(), String::new()], "", String::new()));
        }
    }
    // A place where the ranks never were is left out.
    let empty = |column: usize| rows[1..].iter().all(|row| matches!(row[column].as_str(), "-" | ""));
    let shown: Vec<usize> = (0..9).filter(|&column| !(4..7).contains(&column) || !empty(column)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..9).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        let mut line = String::new();
        shown.iter().for_each(|&column| _ = write!(line, "{:<1$}  ", row[column], widths[column]));
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// The contests as rows of the JSON report: one for each line and place.
pub fn rows(heats: &[Heat]) -> Vec<Row> {
    heats
        .iter()
        .flat_map(|heat| heat.lines().into_iter().flat_map(|line| rows_of(heat, &line)).collect::<Vec<_>>())
        .collect()
}

fn rows_of(heat: &Heat, line: &Line) -> Vec<Row> {
    let row = |place: Place| {
        let (outcome, ns) = line.medians[place as usize]?;
        let limit = best(&heat.outcomes, line.against, place, heat.least);
        Some(Row {
            name: format!("{}: {}", heat.case.name, line.name),
            engine: "cpu",
            transport: match heat.kind {
                Kind::Threads => "shm threads",
                Kind::Processes => "shm processes",
            },
            protocol: match outcome.part {
                Part::Limit(_) => "by hand",
                Part::Racer { protocol, .. } => protocol,
            },
            ranks: 2,
            blocks: 1,
            bytes: heat.bytes,
            place: place.name(),
            median_us: ns / 1e3,
            spread_us: 0.0,
            gbps: heat.gbps(ns),
            limit: limit.map_or("none".into(), |(best, _)| format!("{}: {}", line.against.name(), best.name)),
            ratio: limit.map_or(f64::NAN, |(_, limit)| limit / ns),
            target: if let Aim::Ratio(ratio) = line.aim { ratio } else { 0.0 },
            each: String::new(),
            samples: outcome.count(place),
        })
    };
    Place::ALL.into_iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aims_are_judged_by_ratio_or_by_time() {
        assert_eq!(verdict(Aim::Ratio(0.9), Place::Far, 0.91, 1.0), " met");
        assert_eq!(verdict(Aim::Ratio(0.9), Place::Near, 0.89, 1.0), " missed");
        assert_eq!(verdict(Aim::Time(0.1, Some(0.35)), Place::Near, 0.0, 99.0), " met");
        assert_eq!(verdict(Aim::Time(0.1, Some(0.35)), Place::Far, 0.0, 351.0), " missed");
        assert_eq!(verdict(Aim::Time(0.1, None), Place::Far, 0.0, 1.0), "");
        assert_eq!(verdict(Aim::None, Place::Near, 0.0, 1.0), "");
    }
}
