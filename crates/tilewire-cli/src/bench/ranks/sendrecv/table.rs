//! Contests of two ranks as a table with a column for each place.
#![forbid(unsafe_code)]

use crate::bench::Size;
use crate::bench::ranks::heats::{Heat, Line, OPEN_MPI, STORES_ALONE};
use crate::bench::ranks::place::Place;
use crate::bench::ranks::side::{Aim, Limit, Part};
use crate::bench::report::duration;
use std::fmt::Write as _;

fn cell(heat: &Heat, line: &Line, place: Place) -> String {
    let Some((outcome, ns)) = line.medians[place as usize] else { return "-".into() };
    let figure = heat.gbps(ns).map_or_else(|| format!("{:.3} µs", ns / 1e3), |gbps| format!("{gbps:.2} GB/s"));
    match (&outcome.part, heat.limit_ns(line.against, place)) {
        // The time as well, and what it is to Open MPI, which aims are about, and to another MPI that is faster: so one
        // sees what of an aim memory leaves.
        (Part::Limit(Limit::Stores), _) => {
            let open = heat.times_open_mpi(ns, place).map(|times| (OPEN_MPI.to_string(), times));
            let best = heat.times_mpi("", ns, place).filter(|(name, _)| !name.starts_with(OPEN_MPI));
            let times = open.into_iter().chain(best).map(|(name, times)| format!(", {times:.2}x {name}"));
            format!("{figure}, {}{}  {}", duration(ns / 1e3), times.collect::<String>(), outcome.name)
        }
        (Part::Limit(_), _) => format!("{figure}  {}", outcome.name),
        (_, Some(limit)) => {
            let times = heat.times_open_mpi(ns, place).filter(|_| matches!(line.aim, Aim::Ahead { .. }));
            let shown = times.map_or(String::new(), |times| format!(", {times:.2}x"));
            let ratio = limit / ns;
            format!("{figure}  {ratio:.2}{shown}{}", verdict(line.aim, place, Reached { ratio, times, ns }))
        }
        (_, None) => figure,
    }
}

/// How far a side came.
struct Reached {
    /// Share of the limit's speed.
    ratio: f64,
    /// How many times as fast as Open MPI, where that is there.
    times: Option<f64>,
    ns: f64,
}

fn verdict(aim: Aim, place: Place, Reached { ratio, times, ns }: Reached) -> &'static str {
    // What misses by less than the figures show does not miss.
    let reaches = |is: f64, aim: f64| is >= aim - 0.005;
    let met = match (aim, place) {
        (Aim::Ratio(aim), _) => ratio >= aim,
        (Aim::Ahead { times: aim, ratio: share }, _) => {
            times.is_none_or(|times| reaches(times, aim)) && share.is_none_or(|share| reaches(ratio, share))
        }
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
        Aim::Ahead { times, ratio: None } => format!("{times}x Open MPI"),
        Aim::Ahead { times, ratio: Some(ratio) } => format!("{ratio:.2}, {times}x Open MPI"),
        Aim::Time(near, Some(far)) => format!("{near} µs near, {far} far"),
    }
}

/// The contests in aligned columns.
pub fn table(heats: &[Heat]) -> String {
    let mut rows = vec![["case", "ranks", "bytes", "side", "smt", "near", "far", "against", "aim"].map(String::from)];
    for heat in heats {
        let start = [heat.step.name.to_string(), heat.kind.name().into(), Size(heat.step.bytes).to_string()];
        let [case, kind, bytes] = start;
        let row = |side: &str, [smt, near, far]: [String; 3], against: &str, aim: String| {
            [case.clone(), kind.clone(), bytes.clone(), side.into(), smt, near, far, against.into(), aim]
        };
        for line in heat.lines() {
            let is_limit = line.name == line.against.name();
            let cells = Place::ALL.map(|place| cell(heat, &line, place));
            rows.push(row(&line.name, cells, if is_limit { "" } else { line.against.name() }, aim(line.aim)));
        }
        if let Some(why) = &heat.absent {
            rows.push(row("MPI", [why.clone(), String::new(), String::new()], "", String::new()));
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
    if heats.iter().any(Heat::has_stores) {
        out.push_str(STORES_ALONE);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::ranks::contest::Outcome;
    use crate::bench::ranks::heats::{MPI, Step};
    use crate::bench::ranks::world::Kind;

    #[test]
    fn stores_alone_are_told_by_time_and_against_the_best_of_mpi() {
        let near = |name: &str, part, ns| {
            let mut outcome = Outcome::new(name.into(), part);
            outcome.add(Place::Near, ns);
            outcome
        };
        let racer = |protocol| Part::Racer { against: Limit::OneCopy, aim: Aim::None, protocol };
        let outcomes = vec![
            near("sender", Part::Limit(Limit::OneCopy), 5e6),
            near("stores, streamed", Part::Limit(Limit::Stores), 4e6),
            near("direct", racer("direct"), 5e6),
            near("Open MPI, CMA", racer(MPI), 9e6),
            near("MPICH", racer(MPI), 8e6),
        ];
        let (bytes, volume) = (64 << 20, Some(128 << 20));
        let step = Step { name: "both ways", bytes, hops: 1.0, volume, sides: |_, _| Ok(Vec::new()), guests: None };
        let text = table(&[Heat { step, kind: Kind::Threads, ranks: 2, outcomes, least: 1, absent: None }]);
        let shown = "stores alone    33.55 GB/s, 4.00 ms, 2.25x Open MPI, 2.00x MPICH  stores, streamed";
        assert!(text.contains(shown) && text.ends_with(STORES_ALONE), "{text}");
    }

    #[test]
    fn aims_are_judged_by_ratio_or_by_time() {
        let at = |ratio, ns| Reached { ratio, times: None, ns };
        assert_eq!(verdict(Aim::Ratio(0.9), Place::Far, at(0.91, 1.0)), " met");
        assert_eq!(verdict(Aim::Ratio(0.9), Place::Near, at(0.89, 1.0)), " missed");
        assert_eq!(verdict(Aim::Time(0.1, Some(0.35)), Place::Near, at(0.0, 99.0)), " met");
        assert_eq!(verdict(Aim::Time(0.1, Some(0.35)), Place::Far, at(0.0, 351.0)), " missed");
        assert_eq!(verdict(Aim::Time(0.1, None), Place::Far, at(0.0, 1.0)), "");
        assert_eq!(verdict(Aim::None, Place::Near, at(0.0, 1.0)), "");
        let ahead = Aim::Ahead { times: 2.0, ratio: Some(0.9) };
        assert_eq!(verdict(ahead, Place::Near, at(0.91, 1.0)), " met");
        assert_eq!(verdict(ahead, Place::Near, Reached { times: Some(1.9), ..at(0.91, 1.0) }), " missed");
        assert_eq!(verdict(ahead, Place::Near, Reached { times: Some(2.1), ..at(0.89, 1.0) }), " missed");
        assert_eq!(verdict(ahead, Place::Near, Reached { times: Some(2.1), ..at(0.91, 1.0) }), " met");
    }
}
