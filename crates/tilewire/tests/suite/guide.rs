//! The guide's page of error messages has every variant of every error, with words of its message.

use std::path::{Path, PathBuf};

/// The errors that users meet, each with its file.
const ERRORS: &[(&str, &str)] = &[
    ("BuildError", "hook/error.rs"),
    ("MisuseKind", "hook/error.rs"),
    ("PrepareError", "vm/error.rs"),
    ("LaunchError", "vm/error.rs"),
    ("AccessError", "tensor/access.rs"),
    ("ShapeError", "tensor/grid.rs"),
    ("DlpackError", "tensor/dlpack.rs"),
    ("RebindError", "collective/rebind.rs"),
    ("RunError", "collective/error.rs"),
    ("TransferError", "transport/transfer.rs"),
    ("TransportError", "transport/rendezvous.rs"),
    ("ProxyError", "transport/proxy/error.rs"),
    ("SegmentError", "transport/error.rs"),
    ("LocalBufferError", "transport/local_buffer.rs"),
    ("WorldError", "transport/world.rs"),
    ("BootstrapError", "transport/bootstrap/error.rs"),
    ("NetworkError", "transport/fabric/error.rs"),
    ("CudaError", "cuda/error.rs"),
    ("PtxError", "ptx/error.rs"),
];

/// Messages that are written in another file than their error.
const ELSEWHERE: [&str; 2] = ["transport/descriptors.rs", "transport/status/verdict.rs"];

#[test]
fn every_error_variant_is_in_the_guide_with_words_of_its_message() {
    let guide = read(&root().join("../../docs/guide/troubleshooting.md"));
    for (name, file) in ERRORS {
        let source = read(&root().join("src").join(file));
        let elsewhere = ELSEWHERE.map(|file| unbroken(&read(&root().join("src").join(file))));
        let messages = format!("{}{}", unbroken(&source), elsewhere.concat());
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

#[test]
fn every_environment_variable_is_on_its_page() {
    let page = read(&root().join("../../docs/guide/environment.md"));
    let (mut known, mut read_of_others) = (std::collections::BTreeSet::new(), 0);
    for file in sources(&root().join("..")) {
        let text = read(&file);
        known.extend(variables(&text));
        let is_launcher = file.ends_with("src/transport/launcher.rs");
        let is_source = file.components().any(|part| part.as_os_str() == "src");
        // Names that code looks up in the environment, whoever sets them.
        for line in text.lines().filter(|line| is_launcher || is_source && line.contains("env::var")) {
            for name in line.split('"').skip(1).step_by(2).filter(|name| is_name(name)) {
                assert!(page.contains(&format!("`{name}`")), "{name} of {} is not on the page", file.display());
                read_of_others += usize::from(!name.starts_with("TILEWIRE_"));
            }
        }
    }
    assert!(known.len() > 10 && read_of_others > 15, "{known:?}, {read_of_others}");
    let missing: Vec<_> = known.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not on the page: {missing:?}");
    let stale: Vec<_> = variables(&page).filter(|name| !known.contains(name)).collect();
    assert!(stale.is_empty(), "on the page, and read by nobody: {stale:?}");
}

fn is_name(word: &str) -> bool {
    word.len() > 3 && word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

/// Every `TILEWIRE_…` in a text.
fn variables(text: &str) -> impl Iterator<Item = String> {
    let starts = text.match_indices("TILEWIRE_").map(|(at, _)| &text[at..]);
    let name = |rest: &str| rest.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect::<String>();
    starts.map(name).filter(|name| name.len() > "TILEWIRE_".len()).collect::<Vec<_>>().into_iter()
}

/// All Rust files of all crates.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let rust = files.into_iter().filter(|file| file.extension().is_some_and(|end| end == "rs"));
    rust.chain(folders.iter().flat_map(|folder| sources(folder))).collect()
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

/// The names of an enum's variants, which stand one level deep.
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
