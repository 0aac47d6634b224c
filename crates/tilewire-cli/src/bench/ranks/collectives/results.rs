//! Contests of collectives as a table: a title for each, and a row for each protocol and place, beside the limit and
//! the best MPI.
#![forbid(unsafe_code)]

use crate::bench::Size;
use crate::bench::ranks::heats::{BY_HAND, Heat, MPI, STORES_ALONE};
use crate::bench::ranks::place::Place;
use crate::bench::ranks::side::{Aim, Limit};
use crate::bench::report::duration;
use crate::table::Table;

const HEAD: [&str; 9] = ["protocol", "place", "ours", "limit", "ratio", "best MPI", "its time", "times faster", "aim"];

/// The figures that a row compares.
#[derive(Clone, Copy, Debug, Default)]
struct Figures<'h> {
    ours_ns: f64,
    limit_ns: Option<f64>,
    /// The name and time of the best MPI.
    peer: Option<(&'h str, f64)>,
}

impl Figures<'_> {
    fn ratio(&self) -> Option<f64> {
        self.limit_ns.map(|limit| limit / self.ours_ns)
    }

    fn times(&self) -> Option<f64> {
        self.peer.map(|(_, peer)| peer / self.ours_ns)
    }

    /// Says whether the target is reached; empty if there is nothing to compare with. Missing it by less than the
    /// printed digits show does not count.
    fn verdict(&self, aim: Aim) -> &'static str {
        let (times, ratio) = match aim {
            Aim::Ahead { times, ratio } => (Some(times), ratio),
            Aim::Ratio(ratio) => (None, Some(ratio)),
            Aim::None | Aim::Time(..) => return "",
        };
        let reached = |aim: Option<f64>, is: Option<f64>| aim.zip(is).map(|(aim, is)| is >= aim - 0.005);
        match (reached(times, self.times()), reached(ratio, self.ratio())) {
            (None, None) => "",
            (Some(false), _) | (_, Some(false)) => "missed",
            _ => "met",
        }
    }
}

fn aim(aim: Aim) -> String {
    match aim {
        Aim::Ahead { times, ratio: Some(ratio) } => format!("{times}x, {ratio:.2}"),
        Aim::Ahead { times, ratio: None } => format!("{times}x"),
        Aim::Ratio(ratio) => format!("{ratio:.2}"),
        Aim::None | Aim::Time(..) => String::new(),
    }
}

/// The contests in aligned columns, and why there is no MPI if there is none.
pub fn table(heats: &[Heat]) -> String {
    let mut table = Table::new(HEAD, &[0, 1, 5, 8]);
    for heat in heats {
        let (size, over) = (Size(heat.step.bytes), heat.over_words());
        table.title(format!("{}, {size} on {} ranks{over}", heat.step.name, heat.ranks));
        rows_of(heat).into_iter().for_each(|cells| table.row(cells));
    }
    let mut out = table.to_string();
    if heats.iter().any(Heat::has_stores) {
        out.push_str(STORES_ALONE);
    }
    if let Some(why) = heats.iter().find_map(|heat| heat.absent.as_ref()) {
        out.push_str(&format!("MPI: {why}\n"));
    }
    out
}

fn rows_of(heat: &Heat) -> Vec<[String; 9]> {
    let lines = heat.lines();
    // Stores alone have their own row, after ours; limits stand beside ours.
    let (stores, shown): (Vec<_>, Vec<_>) = lines
        .iter()
        .filter(|line| line.protocol != BY_HAND || line.against == Limit::Stores)
        .partition(|line| line.against == Limit::Stores);
    let (peers, ours): (Vec<_>, Vec<_>) = shown.into_iter().partition(|line| line.protocol == MPI);
    let mut rows = Vec::new();
    for line in ours.into_iter().chain(stores) {
        for place in Place::EVERY {
            let Some((_, ours_ns)) = line.medians[place as usize] else { continue };
            let of_peers = peers.iter().filter_map(|peer| Some((peer.name.as_str(), peer.medians[place as usize]?.1)));
            let peer = of_peers.min_by(|a, b| a.1.total_cmp(&b.1));
            let limit_ns = heat.limit_ns(line.against, place).filter(|_| line.protocol != BY_HAND);
            let figures = Figures { ours_ns, limit_ns, peer };
            let time = |ns: Option<f64>| ns.map_or("-".into(), |ns| duration(ns / 1e3));
            let share = |share: Option<f64>| share.map_or("-".into(), |share| format!("{share:.2}"));
            rows.push([
                line.name.clone(),
                place.name().into(),
                time(Some(ours_ns)),
                time(figures.limit_ns),
                share(figures.ratio()),
                peer.map_or("-".into(), |(name, _)| name.into()),
                time(peer.map(|(_, ns)| ns)),
                share(figures.times()),
                format!("{} {}", aim(line.aim), figures.verdict(line.aim)).trim().into(),
            ]);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::ranks::contest::Outcome;
    use crate::bench::ranks::heats::Step;
    use crate::bench::ranks::side::Part;
    use crate::bench::ranks::world::Kind;
    use crate::table::WIDTH;

    #[test]
    fn aims_are_judged_by_what_there_is_to_compare_with() {
        let figures = Figures { ours_ns: 100.0, limit_ns: Some(90.0), peer: Some(("x", 250.0)) };
        let ahead = |times, ratio| Aim::Ahead { times, ratio };
        assert_eq!(figures.verdict(ahead(2.0, Some(0.85))), "met");
        assert_eq!(figures.verdict(ahead(3.0, Some(0.85))), "missed");
        assert_eq!(figures.verdict(ahead(2.0, Some(0.95))), "missed");
        assert_eq!(figures.verdict(ahead(2.5, None)), "met");
        assert_eq!(figures.verdict(Aim::None), "");
        assert_eq!([0.85, 0.95].map(|ratio| figures.verdict(Aim::Ratio(ratio))), ["met", "missed"]);
        assert_eq!(Figures { limit_ns: None, ..figures }.verdict(Aim::Ratio(0.85)), "");
        let alone = Figures { peer: None, ..figures };
        assert_eq!(alone.verdict(ahead(2.0, Some(0.85))), "met");
        assert_eq!(alone.verdict(ahead(2.0, None)), "");
    }

    #[test]
    fn a_row_has_the_best_peer_of_its_place() {
        let outcome = |name: &str, part, near: f64, far: f64| {
            let mut outcome = Outcome::new(name.into(), part);
            outcome.add(Place::Near, near);
            outcome.add(Place::Far, far);
            outcome
        };
        let against = Limit::Moved;
        let racer = |aim, protocol| Part::Racer { against, aim, protocol };
        let step = Step {
            name: "all_to_all",
            bytes: 65536,
            hops: 1.0,
            volume: None,
            sides: |_, _| Ok(Vec::new()),
            guests: None,
        };
        let outcomes = vec![
            outcome("sender", Part::Limit(against), 1800.0, 4000.0),
            outcome("stores", Part::Limit(Limit::Stores), 1500.0, 3000.0),
            outcome("direct", racer(Aim::Ahead { times: 3.0, ratio: Some(0.85) }, "direct"), 2000.0, 5000.0),
            outcome("A", racer(Aim::None, MPI), 9000.0, 40_000.0),
            outcome("B", racer(Aim::None, MPI), 12_000.0, 30_000.0),
        ];
        let absent = Some("of no use".to_string());
        let heat = Heat { step, kind: Kind::Threads, ranks: 2, over: None, outcomes, least: 1, absent };
        let text = table(&[heat]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[2].join(" "), "all_to_all, 64KiB on 2 ranks");
        let start = ["direct"];
        let near = ["near", "2.00", "µs", "1.80", "µs", "0.90", "A", "9.00", "µs", "4.50", "3x,", "0.85", "met"];
        let far = ["far", "5.00", "µs", "4.00", "µs", "0.80", "B", "30.00", "µs", "6.00", "3x,", "0.85", "missed"];
        assert_eq!(lines[3], [&start[..], &near[..]].concat());
        assert_eq!(lines[4], [&start[..], &far[..]].concat());
        let start = ["stores", "alone"];
        let near = ["near", "1.50", "µs", "-", "-", "A", "9.00", "µs", "6.00"];
        assert_eq!(lines[5], [&start[..], &near[..]].concat());
        assert!(text.contains("stores alone: not ours"));
        assert_eq!(text.lines().last(), Some("MPI: of no use"));
    }

    /// The longest names there are, and figures as wide as they get.
    #[test]
    fn tables_fit_a_hundred_columns() {
        let outcome = |name: &str, part| {
            let mut outcome = Outcome::new(name.into(), part);
            outcome.add(Place::Crowded, 123_456_789.0);
            outcome
        };
        let racer = |aim, protocol| Part::Racer { against: Limit::Transposed, aim, protocol };
        let step = Step {
            name: "all_to_all, transposing",
            bytes: 100 << 20,
            hops: 1.0,
            volume: None,
            sides: |_, _| Ok(Vec::new()),
            guests: None,
        };
        let outcomes = vec![
            outcome("sender", Part::Limit(Limit::Transposed)),
            outcome("stores", Part::Limit(Limit::Stores)),
            outcome("direct", racer(Aim::Ahead { times: 3.0, ratio: Some(0.85) }, "direct")),
            outcome("Open MPI, no CMA", racer(Aim::None, MPI)),
        ];
        let absent = Some("no MPI is installed that could be compiled for".to_string());
        let text = table(&[Heat { step, kind: Kind::Threads, ranks: 16, over: None, outcomes, least: 1, absent }]);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }
}
