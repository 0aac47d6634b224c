//! What people read, as far as a machine can judge it: the width of comments and documents, documents that stay short,
//! and the parts of every decision record. Every judge is a function from a text to faults, and the tests at the end
//! plant faults to show that the judges see them.

use std::path::{Path, PathBuf};

/// Comments and prose are at most this wide. Code is as wide as rustfmt leaves it, and so are rows of Markdown's tables
/// and what stands between fences.
const WIDTH: usize = 120;
/// Documents that must stay short, with the most bytes they may have.
const SHORT: [(&str, usize); 2] = [("ARCHITECTURE.md", 25_600), ("CHANGELOG.md", 6_000)];
/// The headings of a decision record.
const HEADINGS: [&str; 4] = ["## Context", "## Decision", "## Figures", "## Consequences"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

#[test]
fn comments_and_documents_are_narrow() {
    let mut faults = Vec::new();
    for path in files() {
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let wide = match path.extension().and_then(|ext| ext.to_str()) {
            Some("rs") => wide_comments(&text, "//"),
            Some("md") => wide_prose(&text),
            _ => wide_comments(&text, "#"),
        };
        let path = path.display();
        faults.extend(wide.into_iter().map(|(line, width)| format!("{path}:{line}: {width} columns, at most {WIDTH}")));
    }
    assert!(faults.is_empty(), "break these lines:\n{}", faults.join("\n"));
}

#[test]
fn documents_that_must_stay_short_are_short() {
    for (name, most) in SHORT {
        let bytes = std::fs::metadata(root().join(name)).unwrap().len() as usize;
        assert!(bytes <= most, "{name} has {bytes} bytes, at most {most}: move reasons and history to docs/decisions");
    }
}

#[test]
fn decision_records_have_a_date_figures_and_consequences() {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(root().join("docs/decisions")).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    assert!(entries.len() > 20);
    let number = |path: &Path| path.file_name().unwrap().to_string_lossy()[..4].to_string();
    for path in &entries {
        let missing = missing(&std::fs::read_to_string(path).unwrap(), &number(path));
        assert!(missing.is_empty(), "{}: {missing:?}", path.display());
    }
}

// ---- the judges ---------------------------------------------------------------------------------------------------

/// The numbers and widths of lines that are comments and too wide.
fn wide_comments(text: &str, mark: &str) -> Vec<(usize, usize)> {
    wide(text, |line| line.trim_start().starts_with(mark))
}

/// Lines of Markdown that are too wide. Rows of tables and lines between fences do not count.
fn wide_prose(text: &str) -> Vec<(usize, usize)> {
    let mut is_code = false;
    wide(text, |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence && !line.trim_start().starts_with('|')
    })
}

fn wide(text: &str, mut is_judged: impl FnMut(&str) -> bool) -> Vec<(usize, usize)> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| is_judged(line));
    lines.map(|(number, line)| (number, line.chars().count())).filter(|(_, width)| *width > WIDTH).collect()
}

/// The parts that a decision record lacks.
fn missing(text: &str, number: &str) -> Vec<String> {
    let mut found = Vec::new();
    if !text.starts_with(&format!("# {number}: ")) {
        found.push(format!("the title '# {number}: …'"));
    }
    let date = text.lines().nth(2).unwrap_or_default();
    if !date.starts_with(|c: char| c.is_ascii_digit()) || !MONTHS.iter().any(|month| date.contains(month)) {
        found.push("a date in the third line, as in '18 November 2026'".to_string());
    }
    let lacks = HEADINGS.iter().filter(|heading| !text.lines().any(|line| line == **heading));
    found.extend(lacks.map(|heading| heading.to_string()));
    found
}

// ---- files --------------------------------------------------------------------------------------------------------

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Sources, documents, manifests and scripts of the repository.
fn files() -> Vec<PathBuf> {
    fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                // Skips what was built, and folders that do not belong to the repository.
                if !["target", "shared", ".git"].contains(&name.as_str()) {
                    collect(&path, found);
                }
            } else if [".rs", ".md", ".toml", ".yml"].iter().any(|end| name.ends_with(end))
                || path.parent() == Some(&root().join(".ci")) && !name.ends_with(".baseline")
            {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    collect(&root(), &mut found);
    found.sort();
    assert!(found.len() > 500, "{} files under {}: the test looks in the wrong place", found.len(), root().display());
    found
}

// ---- that the judges see ------------------------------------------------------------------------------------------

#[test]
fn planted_wide_lines_are_seen() {
    let long = "x".repeat(WIDTH);
    assert_eq!(wide_comments(&format!("// short\n    /// {long}\nlet code = \"{long}\";\n"), "//"), [(2, WIDTH + 8)]);
    assert_eq!(wide_comments(&format!("# {long}\nkey = \"{long}\"\n"), "#"), [(1, WIDTH + 2)]);
    assert_eq!(wide_comments(&format!("//{}", "→".repeat(WIDTH - 2)), "//"), [], "columns are characters, not bytes");
    let text = format!("{long}\n{long}x\n| {long} |\n```text\n{long}x\n```\n- {long}\n");
    assert_eq!(wide_prose(&text), [(2, WIDTH + 1), (7, WIDTH + 2)]);
}

#[test]
fn planted_gaps_of_a_record_are_seen() {
    let whole = format!("# 0007: Title\n\n18 November 2026 (abc)\n\n{}\n", HEADINGS.join("\n\nText.\n\n"));
    assert!(missing(&whole, "0007").is_empty());
    assert_eq!(missing(&whole, "0008").len(), 1);
    assert_eq!(missing(&whole.replace("18 November 2026", "2026-11-18"), "0007").len(), 1);
    for heading in HEADINGS {
        assert_eq!(missing(&whole.replace(heading, "## Other"), "0007"), [heading]);
    }
}
