//! Rows as pictures.

use crate::bench::plot::{Panel, titled};
use crate::bench::report::Row;

/// A picture for each kind of work and protocol, with a line for each variant and number of blocks.
///
/// ```text
///   name of a row   one way, two hops, 4 blocks      hook: scale f32, 16 blocks
///                   └ work ┘ └──── line ───┘         work  └────── line ──────┘
/// ```
/// Rows whose size does not matter, such as the host's time for a launch, are not drawn.
pub fn panels(rows: &[Row]) -> Vec<Panel> {
    let mut panels = Vec::new();
    for row in rows.iter().filter(|row| row.gbps.is_some() && row.ratio.is_finite()) {
        let (work, line) = row.name.split_once([',', ':']).unwrap_or((&row.name, "all"));
        let title = format!("{work} on a GPU, {}", row.protocol);
        titled(&mut panels, title).add(line.trim_start(), false, row.bytes, row.ratio);
    }
    panels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plot::svg;

    fn row(name: &str, protocol: &'static str, bytes: usize, ratio: f64) -> Row {
        Row {
            name: name.into(),
            engine: "cuda",
            transport: "nvl",
            protocol,
            ranks: 2,
            blocks: 0,
            bytes,
            place: "device",
            median_us: 2.0,
            spread_us: None,
            gbps: Some(1.0),
            limit: "by hand".into(),
            ratio,
            target: Some(0.97),
            each: String::new(),
            samples: 15,
        }
    }

    /// In the order of a run: the sizes of one number of blocks are not adjacent.
    fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for bytes in [1 << 20, 8 << 20, 64 << 20] {
            for blocks in [4, 16] {
                rows.push(row(&format!("one way, two hops, {blocks} blocks"), "staged", bytes, 0.9));
                rows.push(row(&format!("one way, one hop, {blocks} blocks"), "direct", bytes, 0.8));
            }
        }
        rows.push(row("hook: scale f32, 16 blocks", "staged", 64 << 20, 1.0));
        rows.push(row("hook: transpose bf16, 16 blocks", "staged", 64 << 20, 0.9));
        rows
    }

    #[test]
    fn every_kind_of_work_is_a_picture_and_every_number_of_blocks_a_line() {
        let panels = panels(&rows());
        let titles: Vec<&str> = panels.iter().map(|panel| panel.title.as_str()).collect();
        assert_eq!(titles, ["one way on a GPU, staged", "one way on a GPU, direct", "hook on a GPU, staged"]);
        let text = svg(&panels, "");
        for line in ["two hops, 4 blocks", "two hops, 16 blocks", "one hop, 4 blocks", "scale f32, 16 blocks"] {
            assert_eq!(text.matches(&format!(">{line}</text>")).count(), 1, "{line}");
        }
        assert_eq!(text.matches("<polyline").count(), 6);
        assert_eq!(text.matches("<circle").count(), 14);
        assert!(!text.contains("stroke-dasharray"), "all are ours");
    }

    #[test]
    fn what_has_no_size_is_left_out() {
        let host = Row { gbps: None, ..row("host: a prepared run()", "staged", 1 << 20, 0.7) };
        let unknown = row("one way, two hops, 4 blocks", "staged", 1 << 20, f64::NAN);
        assert_eq!(panels(&[host.clone(), unknown]), []);
        let all = [rows(), vec![host]].concat();
        assert_eq!(panels(&all), panels(&rows()));
    }

    #[test]
    fn a_name_without_a_way_is_a_line_all_the_same() {
        let text = svg(&panels(&[row("gossip", "packet", 64, 0.5)]), "");
        assert!(text.contains("gossip on a GPU, packet") && text.contains(">all</text>"), "{text}");
    }
}
