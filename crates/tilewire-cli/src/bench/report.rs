//! Rows of figures as a table for people and as JSON for programs.

use super::interleaved::Timing;
use super::machine::Machine;
use super::size::Size;
use std::fmt::Write as _;

/// One measured thing beside its limit. The fields are those of the JSON contract, in its order; `spread_us`,
/// `target` and `each` are for the table only.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: String,
    pub engine: &'static str,
    pub transport: &'static str,
    pub protocol: &'static str,
    pub ranks: usize,
    pub blocks: usize,
    /// Bytes of the input side.
    pub bytes: usize,
    /// Where the ranks sat: `near`, `far`, or `local` for work in one thread.
    pub place: &'static str,
    pub median_us: f64,
    pub spread_us: f64,
    /// Input bytes over the median; none where bytes are not the point.
    pub gbps: Option<f64>,
    /// What it is compared with.
    pub limit: String,
    /// The limit's time over ours: 1.0 is as fast as the limit.
    pub ratio: f64,
    /// The ratio aimed at.
    pub target: f64,
    /// The ratio to each thing it raced, where there are several; a limit that writes around the cache and one that does
    /// not call for different remedies.
    pub each: String,
    pub samples: usize,
}

impl Row {
    /// A row of work in one thread of the CPU engine, compared with something that took `limit_ns`.
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
            spread_us: timing.spread_ns / 1e3,
            gbps: (bytes > 0).then(|| bytes as f64 / timing.median_ns),
            limit,
            ratio: limit_ns / timing.median_ns,
            target,
            each: String::new(),
            samples: timing.samples,
        }
    }
}

/// The rows in aligned columns: words to the left, figures to the right.
pub fn table(rows: &[Row]) -> String {
    let mut cells =
        vec![["name", "bytes", "median", "iqr", "GB/s", "limit", "ratio", "target", "ratio to each"].map(String::from)];
    cells.extend(rows.iter().map(|row| {
        [
            row.name.clone(),
            if row.bytes == 0 { "-".into() } else { Size(row.bytes).to_string() },
            duration(row.median_us),
            duration(row.spread_us),
            row.gbps.map_or("-".into(), |gbps| format!("{gbps:.2}")),
            row.limit.clone(),
            format!("{:.2}", row.ratio),
            format!("{:.2} {}", row.target, if row.ratio >= row.target { "met   " } else { "missed" }),
            row.each.clone(),
        ]
    }));
    aligned(&cells, &[0, 5, 8])
}

/// Cells in columns: those that hold words to the left, figures to the right.
pub fn aligned<const N: usize>(cells: &[[String; N]], words: &[usize]) -> String {
    let widths: [usize; N] = std::array::from_fn(|k| cells.iter().map(|row| row[k].chars().count()).max().unwrap_or(0));
    let mut out = String::new();
    for row in cells {
        let mut line = String::new();
        for (k, (cell, width)) in row.iter().zip(widths).enumerate() {
            let left = words.contains(&k);
            _ = if left { write!(line, "{cell:<width$}  ") } else { write!(line, "{cell:>width$}  ") };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// The report as one JSON object: `schema`, `machine`, `rows`.
pub fn json(machine: &Machine, rows: &[Row]) -> String {
    let caches: Vec<String> = machine.caches.iter().map(|(name, size)| pair(name, text(size))).collect();
    let machine = object(&[
        ("cpu", text(&machine.cpu)),
        ("cores", machine.cores.to_string()),
        ("level", text(machine.level)),
        ("caches", format!("{{{}}}", caches.join(", "))),
    ]);
    let rows: Vec<String> = rows.iter().map(|row| format!("    {}", row_object(row))).collect();
    let rows = if rows.is_empty() { "[]".into() } else { format!("[\n{}\n  ]", rows.join(",\n")) };
    format!("{{\n  \"schema\": \"tilewire-bench-1\",\n  \"machine\": {machine},\n  \"rows\": {rows}\n}}\n")
}

fn row_object(row: &Row) -> String {
    object(&[
        ("name", text(&row.name)),
        ("engine", text(row.engine)),
        ("transport", text(row.transport)),
        ("protocol", text(row.protocol)),
        ("ranks", row.ranks.to_string()),
        ("blocks", row.blocks.to_string()),
        ("bytes", row.bytes.to_string()),
        ("place", text(row.place)),
        ("median_us", number(row.median_us)),
        ("gbps", row.gbps.map_or("null".into(), number)),
        ("limit", text(&row.limit)),
        ("ratio", number(row.ratio)),
        ("samples", row.samples.to_string()),
    ])
}

fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(key, value)| pair(key, value.clone())).collect();
    format!("{{{}}}", fields.join(", "))
}

fn pair(key: &str, value: String) -> String {
    format!("{}: {value}", text(key))
}

/// Four significant digits; JSON has no word for what is not finite.
fn number(x: f64) -> String {
    if !x.is_finite() {
        return "null".into();
    }
    let digits = if x == 0.0 { 0 } else { 3 - x.abs().log10().floor() as i32 };
    format!("{x:.*}", digits.clamp(0, 12) as usize)
}

fn text(s: &str) -> String {
    let mut out = String::from('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if u32::from(c) < 0x20 => _ = write!(out, "\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A time with a fitting unit.
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

    fn row(name: &str, bytes: usize, median_ns: f64) -> Row {
        let timing = Timing { name: "x", median_ns, spread_ns: 1.0, samples: 25 };
        Row::local(name.into(), bytes, &timing, "memcpy".into(), 500.0, 0.9)
    }

    #[test]
    fn columns_are_aligned_and_durations_have_fitting_units() {
        let table = table(&[row("copy", 65536, 1000.0), row("empty launch", 0, 6.5)]);
        assert_eq!(
            table,
            "name          bytes   median     iqr   GB/s  limit   ratio       target  ratio to each\n\
             copy          64KiB  1.00 µs  1.0 ns  65.54  memcpy   0.50  0.90 missed\n\
             empty launch      -   6.5 ns  1.0 ns      -  memcpy  76.92  0.90 met\n"
        );
    }

    #[test]
    fn json_follows_the_contract() {
        let caches = vec![("L2".to_string(), "1280K".to_string())];
        let machine = Machine { cpu: "A \"quoted\"\tcpu\\".into(), cores: 2, level: "avx2", caches };
        assert_eq!(
            json(&machine, &[row("copy", 65536, 1000.0)]),
            "{\n  \"schema\": \"tilewire-bench-1\",\n  \"machine\": {\"cpu\": \"A \\\"quoted\\\"\\u0009cpu\\\\\", \
             \"cores\": 2, \"level\": \"avx2\", \"caches\": {\"L2\": \"1280K\"}},\n  \"rows\": [\n    {\"name\": \"copy\", \
             \"engine\": \"cpu\", \"transport\": \"none\", \"protocol\": \"none\", \"ranks\": 1, \"blocks\": 1, \
             \"bytes\": 65536, \"place\": \"local\", \"median_us\": 1.000, \"gbps\": 65.54, \"limit\": \"memcpy\", \
             \"ratio\": 0.5000, \"samples\": 25}\n  ]\n}\n"
        );
        assert!(json(&Machine::default(), &[]).contains("\"rows\": []"));
        assert_eq!(number(f64::NAN), "null");
    }
}
