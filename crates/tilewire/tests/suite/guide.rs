//! The guide's page of error messages has every variant of every error, with words that the code says.

use std::path::{Path, PathBuf};

/// The errors a user meets, and where they are.
const ERRORS: &[(&str, &str)] = &[
    ("BuildError", "hook/error.rs"),
    ("MisuseKind", "hook/error.rs"),
    ("PrepareError", "vm/error.rs"),
    ("LaunchError", "vm/error.rs"),
    ("RunError", "collective/error.rs"),
    ("TransferError", "transport/transfer.rs"),
    ("TransportError", "transport/rendezvous.rs"),
    ("SegmentError", "transport/error.rs"),
    ("LocalBufferError", "transport/local_buffer.rs"),
    ("WorldError", "transport/world.rs"),
    ("BootstrapError", "transport/bootstrap/error.rs"),
    ("CudaError", "cuda/error.rs"),
    ("PtxError", "ptx/error.rs"),
];

/// Messages that another file than the error's writes.
const ELSEWHERE: &str = "transport/descriptors.rs";

#[test]
fn every_error_variant_is_in_the_guide_with_words_of_its_message() {
    let guide = read(&root().join("../../docs/guide/troubleshooting.md"));
    for (name, file) in ERRORS {
        let source = read(&root().join("src").join(file));
        let messages = format!("{}{}", unbroken(&source), unbroken(&read(&root().join("src").join(ELSEWHERE))));
        let rows = rows(&guide, name);
        assert!(!rows.is_empty(), "{name} has no table in the guide");
        for variant in variants(&source, name) {
            let row = rows.iter().find(|row| row[0] == format!("`{variant}`"));
            let row = row.unwrap_or_else(|| panic!("{name}::{variant} is not in the guide's table of {name}"));
            let says = row[1].trim_matches('`');
            for words in says.split('…').map(str::trim).filter(|words| !words.is_empty()) {
                assert!(messages.contains(words), "{name}::{variant}: {file} does not say '{words}'");
            }
        }
    }
}

#[test]
fn variants_and_rows_are_found() {
    let source = "pub enum Odd {\n    /// Doc.\n    One,\n    Two {\n        /// Field.\n        Field: usize,\n    },\n    Three(u8),\n}\n";
    assert_eq!(variants(source, "Odd"), ["One", "Two", "Three"]);
    let guide = "## `Other`\n| `X` | `x` | |\n## All of `Odd`\n| variant | says | do |\n|---|---|---|\n| `One` | `a \\| b` | c |\n";
    assert_eq!(rows(guide, "Odd"), [["variant", "says", "do"], ["---", "---", "---"], ["`One`", "`a | b`", "c"]]);
}

fn root() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text with continued string literals on one line.
fn unbroken(source: &str) -> String {
    let mut text = String::new();
    for part in source.split("\\\n") {
        text.push_str(if text.is_empty() { part } else { part.trim_start() });
    }
    text
}

/// Names of an enum's variants: what stands one level deep.
fn variants(source: &str, name: &str) -> Vec<String> {
    let start = source.find(&format!("pub enum {name} {{\n")).unwrap_or_else(|| panic!("no enum {name}"));
    let body = source[start..].lines().skip(1).take_while(|line| *line != "}");
    let one_deep = body.filter_map(|line| line.strip_prefix("    "));
    let named = one_deep.filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()));
    named.map(|line| line.chars().take_while(|c| c.is_alphanumeric()).collect()).collect()
}

/// The rows of the table below the heading that names an error.
fn rows(guide: &str, name: &str) -> Vec<Vec<String>> {
    let lines = guide.lines().skip_while(|line| !(line.starts_with('#') && line.contains(&format!("`{name}`"))));
    let table = lines.skip(1).take_while(|line| !line.starts_with('#')).filter(|line| line.starts_with('|'));
    let cells = |line: &str| {
        let line = line.replace("\\|", "\u{1}");
        let cells = line.trim_matches('|').split('|').map(|cell| cell.trim().replace('\u{1}', "|"));
        cells.collect::<Vec<String>>()
    };
    table.map(cells).collect()
}
