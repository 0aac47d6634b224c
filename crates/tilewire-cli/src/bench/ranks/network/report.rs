//! Contests over a network as a table, as rows of the JSON report, and as pictures.

use super::Contest;
use super::pairs::{Entrant, Score};
use super::rival::{Aim, Rival};
use crate::bench::Size;
use crate::bench::plot::{Panel, titled};
use crate::bench::report::{Row, duration};
use crate::table::{Table, hanging};

const HEAD: [&str; 7] = ["ours", "its speed", "against", "that one's", "ratio", "pairs", "aim"];

/// One of our sides beside one rival.
struct Line<'c> {
    ours: &'static str,
    own: &'c Score,
    rival: Rival,
    score: &'c Score,
    ratio: Option<f64>,
    pairs: usize,
    aim: Aim,
}

impl Contest {
    fn lines(&self) -> Vec<Line<'_>> {
        let ours = self.scores.iter().filter_map(|score| match score.entrant {
            Entrant::Ours(name) => Some((name, score)),
            Entrant::Rival(_) => None,
        });
        let line = |(ours, own)| {
            self.scores.iter().filter_map(move |score| {
                let Entrant::Rival(rival) = score.entrant else { return None };
                let (ratio, pairs) = Score::share_of(own, score);
                let aim = rival.aim(ours, self.kind, self.bytes, &self.provider);
                Some(Line { ours, own, rival, score, ratio, pairs, aim })
            })
        };
        ours.flat_map(line).collect()
    }

    fn title(&self) -> String {
        format!("{}, {} among {} processes over {}", self.kind.name(), Size(self.bytes), self.ranks, self.provider)
    }

    fn gbps(&self, ns: f64) -> Option<f64> {
        self.kind.volume(self.bytes, self.ranks).map(|volume| volume as f64 / ns)
    }

    fn figure(&self, ns: Option<f64>) -> String {
        let Some(ns) = ns else { return "-".to_string() };
        self.gbps(ns).map_or_else(|| duration(ns / 1e3), |gbps| format!("{gbps:.2} GB/s"))
    }
}

/// The contests in aligned columns.
pub fn table(contests: &[Contest]) -> String {
    let mut table = Table::new(HEAD, &[0, 2, 6]);
    for contest in contests {
        table.title(contest.title());
        for Line { ours, own, rival, score, ratio, pairs, aim } in contest.lines() {
            let aim = match &score.skipped {
                Some(_) => SKIPPED.to_string(),
                None => aim.verdict(ratio),
            };
            table.row([
                ours.to_string(),
                contest.figure(own.median_ns()),
                rival.name().to_string(),
                contest.figure(score.median_ns()),
                ratio.map_or("-".to_string(), |ratio| format!("{ratio:.2}")),
                pairs.to_string(),
                aim,
            ]);
        }
    }
    let reasons: String = skipped(contests).into_iter().map(|reason| reason + "\n").collect();
    format!("{table}{FOOTNOTE}{reasons}")
}

const SKIPPED: &str = "skipped";

/// Why rows are without figures, each reason once.
fn skipped(contests: &[Contest]) -> Vec<String> {
    let mut reasons = Vec::new();
    for score in contests.iter().flat_map(|contest| &contest.scores) {
        let (Entrant::Rival(rival), Some(why)) = (score.entrant, &score.skipped) else { continue };
        let reason = hanging(&format!("{}: ", rival.name()), &format!("{SKIPPED}: {why}"));
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    reasons
}

const FOOTNOTE: &str = "\
ratio: the median, over pairs of samples of one round, of the other's time divided by ours.
1.0 is as fast, and more is faster.
";

/// The contests as rows of the JSON report: one for each of ours and each rival.
pub fn rows(contests: &[Contest]) -> Vec<Row> {
    let of_contest = |contest: &Contest| contest.lines().iter().map(|line| row(contest, line)).collect::<Vec<_>>();
    contests.iter().flat_map(of_contest).collect()
}

fn row(contest: &Contest, line: &Line) -> Row {
    let (ours_ns, rival_ns) = (line.own.median_ns(), line.score.median_ns());
    let limit = match &line.score.skipped {
        Some(why) => format!("{}: skipped: {why}", line.rival.name()),
        None => line.rival.name().to_string(),
    };
    Row {
        name: format!("{} over {}: {}", contest.kind.name(), contest.provider, line.ours),
        engine: "cpu",
        transport: "fabric",
        protocol: line.ours,
        ranks: contest.ranks,
        blocks: 1,
        bytes: contest.bytes,
        place: "network",
        median_us: ours_ns.map_or(f64::NAN, |ns| ns / 1e3),
        spread_us: None,
        gbps: ours_ns.and_then(|ns| contest.gbps(ns)),
        limit,
        ratio: line.ratio.unwrap_or(f64::NAN),
        target: line.aim.share(),
        each: rival_ns.map_or(String::new(), |ns| format!("its median {}", duration(ns / 1e3))),
        samples: line.pairs,
    }
}

/// The contests as pictures: one for each kind of work and rival, a line for each of our sides.
pub fn panels(contests: &[Contest]) -> Vec<Panel> {
    let mut panels: Vec<Panel> = Vec::new();
    for contest in contests {
        for line in contest.lines() {
            let Some(ratio) = line.ratio else { continue };
            let (kind, ranks, provider) = (contest.kind.name(), contest.ranks, &contest.provider);
            let title = format!("{kind}, {ranks} processes over {provider}, against {}", line.rival.name());
            titled(&mut panels, title).add(line.ours, false, contest.bytes, ratio);
        }
    }
    panels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::ranks::network::Kind;
    use crate::table::WIDTH;

    fn contest() -> Contest {
        let score = |entrant, ns: f64| Score { ns: vec![Some(ns); 7], ..Score::new(entrant) };
        let scores = vec![
            score(Entrant::Ours("direct"), 200_000.0),
            score(Entrant::Ours("staged"), 300_000.0),
            score(Entrant::Rival(Rival::Plain), 190_000.0),
            Score {
                skipped: Some("not installed".into()),
                ns: vec![None; 7],
                ..Score::new(Entrant::Rival(Rival::MpiTcp))
            },
        ];
        Contest { kind: Kind::Stream, bytes: 1 << 20, ranks: 2, provider: "tcp;ofi_rxm".into(), scores }
    }

    #[test]
    fn every_side_has_a_row_for_every_rival_and_one_that_is_missing_says_why() {
        let text = table(&[contest()]);
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        for must in [
            "one way, 1MiB among 2 processes over tcp;ofi_rxm",
            "direct 5.24 GB/s fi_writedata, 8 under way 5.52 GB/s 0.95 7 0.90, met",
            "staged 3.50 GB/s fi_writedata, 8 under way 5.52 GB/s 0.63 7 0.65, missed",
            "direct 5.24 GB/s Open MPI, TCP - - 0 skipped",
            "Open MPI, TCP: skipped: not installed",
        ] {
            assert!(lines.iter().any(|line| line == must), "no '{must}' in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn rows_have_the_ratio_and_its_aim() {
        let rows = rows(&[contest()]);
        assert_eq!(rows.len(), 4);
        assert_eq!((rows[0].ratio, rows[0].target, rows[0].samples), (0.95, Some(0.9), 7));
        assert_eq!(rows[1].limit, "Open MPI, TCP: skipped: not installed");
        assert!(rows[1].ratio.is_nan());
        assert_eq!(panels(&[contest()]).len(), 1);
    }
}
