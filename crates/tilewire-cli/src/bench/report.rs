//! Rows of figures as a table for people, and as JSON and CSV for programs.

use super::interleaved::Timing;
use super::machine::Machine;
use super::size::Size;
use crate::table::Table;
use anyhow::Result;
use serde::{Serialize, Serializer};

/// One measurement beside its limit. The fields are those of the JSON report and the columns of the CSV, in their
/// order.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub engine: &'static str,
    pub transport: &'static str,
    pub protocol: &'static str,
    pub ranks: usize,
    pub blocks: usize,
    /// Bytes of the input side.
    pub bytes: usize,
    /// The place of the ranks: `near`, `far`, or `local` for work in one thread.
    pub place: &'static str,
    #[serde(serialize_with = "rounded")]
    pub median_us: f64,
    /// Input bytes over the median; `None` if bytes do not matter.
    #[serde(serialize_with = "rounded")]
    pub gbps: Option<f64>,
    /// The limit it is compared with.
    pub limit: String,
    /// The limit's time over ours: 1.0 is as fast as the limit.
    #[serde(serialize_with = "rounded")]
    pub ratio: f64,
    pub samples: usize,
    /// The distance between the quartiles, if known.
    #[serde(serialize_with = "rounded")]
    pub spread_us: Option<f64>,
    /// The target ratio, if there is one.
    #[serde(serialize_with = "rounded")]
    pub target: Option<f64>,
    /// The ratio to each competitor, if there are several: a limit that writes around the cache and one that does not
    /// call for different remedies.
    pub each: String,
}

impl Row {
    /// A row of work in one thread of the CPU engine, compared with a limit that took `limit_ns`.
    pub fn local(name: String, bytes: usize, timing: &Timing, limit: String, limit_ns: f64, target: f64) -> Row {
        Row {
            name,
            engine: "cpu",
            transport: "none",
            protocol: "none",
            ranks: 1,
            blocks: 1,
            bytes,
            place: "local",
            median_us: timing.median_ns / 1e3,
            spread_us: Some(timing.spread_ns / 1e3),
            gbps: (bytes > 0).then(|| bytes as f64 / timing.median_ns),
            limit,
            ratio: limit_ns / timing.median_ns,
            target: Some(target),
            each: String::new(),
            samples: timing.samples,
        }
    }
}

/// The rows in aligned columns.
pub fn table(rows: &[Row]) -> String {
    let head = ["name", "bytes", "median", "iqr", "GB/s", "limit", "ratio", "target"];
    let mut table = Table::new(head, &[0, 5, 7]);
    for row in rows {
        let verdict = |target: f64| format!("{target:.2} {}", if row.ratio >= target { "met" } else { "missed" });
        table.row([
            row.name.clone(),
            if row.bytes == 0 { "-".into() } else { Size(row.bytes).to_string() },
            duration(row.median_us),
            row.spread_us.map_or("-".into(), duration),
            row.gbps.map_or("-".into(), |gbps| format!("{gbps:.2}")),
            row.limit.clone(),
            format!("{:.2}", row.ratio),
            row.target.map_or(String::new(), verdict),
        ]);
    }
    table.to_string()
}

/// The report for programs.
#[derive(Serialize)]
struct Report<'r> {
    schema: &'static str,
    machine: &'r Machine,
    rows: &'r [Row],
}

/// The report as one JSON object.
pub fn json(machine: &Machine, rows: &[Row]) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(&Report { schema: "tilewire-bench-1", machine, rows })?;
    text.push(b'\n');
    Ok(text)
}

/// The rows as CSV, with a line of names above them.
pub fn csv(rows: &[Row]) -> Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    rows.iter().try_for_each(|row| writer.serialize(row))?;
    Ok(writer.into_inner()?)
}

/// A figure with four significant digits. A number that is not finite becomes none: JSON cannot represent it.
fn rounded<S: Serializer>(figure: &(impl Copy + Into<Option<f64>>), serializer: S) -> Result<S::Ok, S::Error> {
    let round = |x: f64| format!("{x:.3e}").parse::<f64>().expect("a number was written");
    (*figure).into().filter(|x| x.is_finite()).map(round).serialize(serializer)
}

/// A time with a suitable unit.
pub fn duration(us: f64) -> String {
    match us {
        us if us < 1.0 => format!("{:.1} ns", us * 1e3),
        us if us < 1e3 => format!("{us:.2} µs"),
        us => format!("{:.2} ms", us / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::WIDTH;
    use serde_json::{Value, json as value};

    fn row(name: &str, bytes: usize, median_ns: f64) -> Row {
        let timing = Timing { name: "x", median_ns, spread_ns: 1.0, samples: 25 };
        Row::local(name.into(), bytes, &timing, "memcpy".into(), 500.0, 0.9)
    }

    #[test]
    fn columns_are_aligned_and_durations_have_fitting_units() {
        let table = table(&[row("copy", 65536, 1000.0), row("empty launch", 0, 6.5)]);
        assert_eq!(
            table,
            "name          bytes   median     iqr   GB/s  limit   ratio  target\n\
             copy          64KiB  1.00 µs  1.0 ns  65.54  memcpy   0.50  0.90 missed\n\
             empty launch      -   6.5 ns  1.0 ns      -  memcpy  76.92  0.90 met\n"
        );
    }

    /// The longest names that kernels and GPUs have, and figures as wide as they get.
    #[test]
    fn tables_fit_a_hundred_columns() {
        let gpu = Row {
            name: "all-to-all of 4 ranks, 16 blocks each, own chunks not counted".into(),
            limit: "two hops, 64 KiB, nothing beside".into(),
            median_us: 3_251_391.0,
            ratio: 123.456,
            spread_us: None,
            ..row("", 100 << 20, 1.0)
        };
        let kernel = Row {
            limit: "down, streamed".into(),
            each: "cached 1.00, ".repeat(9),
            ..row("quantise f8e4m3", 64 << 20, 3e9)
        };
        for rows in [vec![gpu.clone()], vec![kernel.clone()], vec![gpu, kernel]] {
            let table = table(&rows);
            assert!(table.lines().all(|line| line.chars().count() <= WIDTH), "{table}");
        }
    }

    #[test]
    fn json_follows_the_contract() {
        let caches = [("L2".to_string(), "1280K".to_string())].into();
        let machine = Machine { cpu: "A \"quoted\"\tcpu\\".into(), cores: 2, level: "avx2", caches };
        let text = String::from_utf8(json(&machine, &[row("copy", 65536, 1000.0)]).unwrap()).unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap(),
            value!({
                "schema": "tilewire-bench-1",
                "machine": {"cpu": "A \"quoted\"\tcpu\\", "cores": 2, "level": "avx2", "caches": {"L2": "1280K"}},
                "rows": [{
                    "name": "copy", "engine": "cpu", "transport": "none", "protocol": "none", "ranks": 1, "blocks": 1,
                    "bytes": 65536, "place": "local", "median_us": 1.0, "gbps": 65.54, "limit": "memcpy", "ratio": 0.5,
                    "samples": 25, "spread_us": 0.001, "target": 0.9, "each": ""
                }]
            })
        );
        let unknown = Row { ratio: f64::NAN, gbps: None, ..row("copy", 1, 1.0) };
        let text = String::from_utf8(json(&Machine::default(), &[unknown]).unwrap()).unwrap();
        assert!(text.contains("\"ratio\": null") && text.contains("\"gbps\": null"), "{text}");
        let text = String::from_utf8(json(&Machine::default(), &[]).unwrap()).unwrap();
        assert!(text.contains("\"rows\": []"), "{text}");
    }

    #[test]
    fn csv_has_the_fields_of_json_as_columns() {
        let limited = Row { limit: "by hand, \"cached\"".into(), ratio: f64::NAN, ..row("copy", 65536, 1000.0) };
        let text = String::from_utf8(csv(&[limited]).unwrap()).unwrap();
        assert_eq!(
            text,
            "name,engine,transport,protocol,ranks,blocks,bytes,place,median_us,gbps,limit,ratio,samples,spread_us,target,each\n\
             copy,cpu,none,none,1,1,65536,local,1.0,65.54,\"by hand, \"\"cached\"\"\",,25,0.001,0.9,\n"
        );
    }
}
