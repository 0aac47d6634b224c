//! Contests of two ranks as a table.
#![forbid(unsafe_code)]

use crate::bench::Size;
use crate::bench::ranks::heats::{Heat, Line, OPEN_MPI, STORES_ALONE};
use crate::bench::ranks::place::Place;
use crate::bench::ranks::side::{Aim, Limit, Part};
use crate::bench::report::duration;
use crate::table::Table;

const HEAD: [&str; 7] = ["side", "place", "speed", "ratio", "Open MPI", "against", "aim"];

/// The row of a side at a place, without its name.
fn cells(heat: &Heat, line: &Line, place: Place) -> Option<[String; 6]> {
    let (outcome, ns) = line.medians[place as usize]?;
    let figure = heat.gbps(ns).map_or_else(|| format!("{:.3} µs", ns / 1e3), |gbps| format!("{gbps:.2} GB/s"));
    let open_mpi = heat.times_open_mpi(ns, place);
    let times = |times: Option<f64>| times.map_or(String::new(), |times| format!("{times:.2}x"));
    let [ratio, times, against, aim] = match (&outcome.part, heat.limit_ns(line.against, place)) {
        // Also shows the time, and its ratio to Open MPI, which targets refer to, and to another MPI if that is faster.
        // So the reader sees how much of a target memory leaves.
        (Part::Limit(Limit::Stores), _) => {
            let best = heat.times_mpi("", ns, place).filter(|(name, _)| !name.starts_with(OPEN_MPI));
            let best = best.map_or(String::new(), |(name, times)| format!("{times:.2}x {name}, "));
            [String::new(), times(open_mpi), format!("{}, {best}{}", duration(ns / 1e3), outcome.name), String::new()]
        }
        (Part::Limit(_), _) => [String::new(), String::new(), outcome.name.clone(), String::new()],
        (_, Some(limit)) => {
            let open_mpi = open_mpi.filter(|_| matches!(line.aim, Aim::Ahead { .. }));
            let ratio = limit / ns;
            let verdict = verdict(line.aim, place, Reached { ratio, times: open_mpi, ns });
            let aim = format!("{}{verdict}", aim(line.aim, place));
            [format!("{ratio:.2}"), times(open_mpi), line.against.name().into(), aim]
        }
        (_, None) => [String::new(), String::new(), line.against.name().into(), aim(line.aim, place)],
    };
    Some([place.name().into(), figure, ratio, times, against, aim])
}

/// The result of a side.
struct Reached {
    /// Share of the limit's speed.
    ratio: f64,
    /// How many times as fast as Open MPI, if that is there.
    times: Option<f64>,
    ns: f64,
}

fn verdict(aim: Aim, place: Place, Reached { ratio, times, ns }: Reached) -> &'static str {
    // Missing a target by less than the printed digits show does not count.
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

/// The target at a place.
fn aim(aim: Aim, place: Place) -> String {
    match (aim, place) {
        (Aim::Ratio(ratio), _) => format!("{ratio:.2}"),
        (Aim::Ahead { times, ratio: None }, _) => format!("{times}x"),
        (Aim::Ahead { times, ratio: Some(ratio) }, _) => format!("{times}x, {ratio:.2}"),
        (Aim::Time(near, _), Place::Near | Place::Smt) => format!("{near} µs"),
        (Aim::Time(_, Some(far)), Place::Far) => format!("{far} µs"),
        (Aim::None | Aim::Time(..), _) => String::new(),
    }
}

/// The contests in aligned columns: a title for each, and a row for each side and place. And why there is no MPI if
/// there is none.
pub fn table(heats: &[Heat]) -> String {
    let mut table = Table::new(HEAD, &[0, 1, 5, 6]);
    for heat in heats {
        let (size, kind, over) = (Size(heat.step.bytes), heat.kind.name(), heat.over_words());
        table.title(format!("{}, {size} between {kind}{over}", heat.step.name));
        for line in heat.lines() {
            let mut rows: Vec<_> = Place::ALL.into_iter().filter_map(|place| cells(heat, &line, place)).collect();
            if rows.is_empty() {
                // No sample was good enough.
                rows.push(["-", "-", "", "", "", ""].map(String::from));
            }
            for [place, figure, ratio, times, against, aim] in rows {
                table.row([line.name.clone(), place, figure, ratio, times, against, aim]);
            }
        }
    }
    let mut out = table.to_string();
    if let Some(why) = heats.iter().find_map(|heat| heat.absent.as_ref()) {
        out.push_str(&format!("MPI: {why}\n"));
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
    use crate::table::WIDTH;

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
        let text = table(&[Heat { step, kind: Kind::Threads, ranks: 2, over: None, outcomes, least: 1, absent: None }]);
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines[2], "both ways, 64MiB between threads");
        let shown = "stores alone near 33.55 GB/s 2.25x 4.00 ms, 2.00x MPICH, stores, streamed";
        assert!(lines.iter().any(|line| line == shown) && text.ends_with(STORES_ALONE), "{text}");
    }

    /// The longest names there are, and figures as wide as they get.
    #[test]
    fn tables_fit_a_hundred_columns() {
        let at = |name: &str, part| {
            let mut outcome = Outcome::new(name.into(), part);
            Place::ALL.into_iter().for_each(|place| outcome.add(place, 123_456_789.0));
            outcome
        };
        let racer = |aim, protocol| Part::Racer { against: Limit::HalfEach, aim, protocol };
        let outcomes = vec![
            at("32KiB x 32, streamed twice", Part::Limit(Limit::HalfEach)),
            at("stores, streamed", Part::Limit(Limit::Stores)),
            at("quantise f32 to f8e4m3", racer(Aim::Ahead { times: 2.5, ratio: Some(0.95) }, "direct")),
            at("default", racer(Aim::Time(0.1, Some(0.35)), "direct")),
            at("Open MPI, no CMA", racer(Aim::None, MPI)),
            at("MPICH", racer(Aim::None, MPI)),
        ];
        let (bytes, volume) = (64 << 20, Some(128 << 20));
        let step =
            Step { name: "ping-pong, waits", bytes, hops: 1.0, volume, sides: |_, _| Ok(Vec::new()), guests: None };
        let absent = Some("no MPI is installed that could be compiled for".to_string());
        let text = table(&[Heat { step, kind: Kind::Processes, ranks: 2, over: None, outcomes, least: 1, absent }]);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn a_side_that_was_never_measured_is_there() {
        let outcomes = vec![Outcome::new("sender".into(), Part::Limit(Limit::OneCopy))];
        let step =
            Step { name: "one way", bytes: 8, hops: 1.0, volume: None, sides: |_, _| Ok(Vec::new()), guests: None };
        let text = table(&[Heat { step, kind: Kind::Threads, ranks: 2, over: None, outcomes, least: 1, absent: None }]);
        assert!(text.contains("one-copy limit"), "{text}");
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
