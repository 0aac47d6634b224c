//! Links of the documents lead somewhere: every relative link of a Markdown file names a file of the repository, and
//! every decision that source or text names by its number exists.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

#[test]
fn links_of_documents_lead_to_files() {
    let root = root();
    let exists = |path: &Path| root.join(path).exists();
    let faults: Vec<String> =
        files(&root, &["md"]).iter().flat_map(|(path, text)| dead_links(path, text, &exists)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn decisions_that_are_named_exist() {
    let root = root();
    let known: BTreeSet<String> = std::fs::read_dir(root.join("docs/decisions"))
        .expect("the decisions")
        .map(|entry| entry.expect("a folder can be listed").file_name().to_string_lossy().into_owned())
        .collect();
    let all = files(&root, &["md", "rs", "toml", "py"]);
    let faults: Vec<String> = all.iter().flat_map(|(path, text)| unknown_decisions(path, text, &known)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // A number names one decision.
    let numbers: BTreeSet<&str> = known.iter().filter_map(|name| name.get(..4)).collect();
    assert_eq!(numbers.len(), known.len(), "two decisions have one number: {known:?}");
}

/// The relative links of a Markdown file that name nothing.
fn dead_links(path: &Path, text: &str, exists: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (at, _) in line.match_indices("](") {
            let Some((target, _)) = line[at + 2..].split_once(')') else { continue };
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.contains(' ') || target.starts_with("mailto:") {
                continue;
            }
            let there = plain(&path.parent().unwrap_or(Path::new("")).join(target));
            if !exists(&there) {
                faults.push(format!("{}:{}: nothing is at {target}", path.display(), number + 1));
            }
        }
    }
    faults
}

/// The places where a text names `decisions/NNNN`, perhaps with more of the file's name, and there is no such file.
fn unknown_decisions(path: &Path, text: &str, known: &BTreeSet<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (at, folder) in line.match_indices("decisions/") {
            let name: String = line[at + folder.len()..]
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'))
                .collect();
            let name = name.trim_end_matches('.');
            let is_number = name.len() >= 4 && name.bytes().take(4).all(|byte| byte.is_ascii_digit());
            if is_number && !known.iter().any(|file| file == name || file.starts_with(&format!("{name}-"))) {
                faults.push(format!("{}:{}: there is no decision {name}", path.display(), number + 1));
            }
        }
    }
    faults
}

/// The path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => _ = plain.pop(),
            part => plain.push(part),
        }
    }
    plain
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files with these endings, with their paths in the repository: those of its root, of `docs` and of `crates`.
fn files(root: &Path, endings: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = vec![root.join("docs"), root.join("crates")];
    let mut take = |path: &Path| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        if ending.is_some_and(|ending| endings.contains(&ending)) {
            let text = std::fs::read_to_string(path).expect("a text");
            found.push((path.strip_prefix(root).expect("below the root").to_path_buf(), text));
        }
    };
    let list = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("cannot read {}: {e}", folder.display()));
        entries.map(|entry| entry.expect("a folder can be listed").path()).collect()
    };
    list(root).iter().filter(|path| path.is_file()).for_each(|path| take(path));
    while let Some(folder) = open.pop() {
        for path in list(&folder) {
            if path.is_dir() { open.push(path) } else { take(&path) }
        }
    }
    assert!(found.len() > 10, "the test looks in the wrong place");
    found
}

#[test]
fn planted_links_that_lead_nowhere_are_seen() {
    let exists = |path: &Path| path == Path::new("docs/guide/gpus.md") || path == Path::new("README.md");
    let text = "[a](gpus.md#windows), [b](../../README.md) and [c](https://example.org/x).\n[d](gpu.md)\n[e](#here)";
    let faults = dead_links(Path::new("docs/guide/hooks.md"), text, &exists);
    assert_eq!(faults, ["docs/guide/hooks.md:2: nothing is at gpu.md"]);
    let known = BTreeSet::from(["0030-rows.md".to_string()]);
    // Planted in pieces, so that this file names none itself.
    let [ours, folder] = ["see docs/", "decisions/"];
    let texts = ["0030.", "0030-rows.md)", "0031-streams.md", "0033", "NNNN-title.md", ""];
    let texts: Vec<String> = texts.iter().map(|name| format!("{ours}{folder}{name}")).collect();
    let faults = unknown_decisions(Path::new("x.rs"), &texts.join("\n"), &known);
    assert_eq!(faults, ["x.rs:3: there is no decision 0031-streams.md", "x.rs:4: there is no decision 0033"]);
}
