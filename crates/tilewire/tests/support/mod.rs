//! What the tests share: snapshots kept beside the tests, a short way to write kernels, kernels of every
//! op and of every hook of the library, and random programs.
#![allow(dead_code, unused_imports)] // every test file uses its own part

pub mod code;
pub mod fields;
pub mod hook_samples;
pub mod kernels;
pub mod malformed;
pub mod mutations;
pub mod programs;
pub mod ptx_machine;
pub mod ptxas;
pub mod simulated;
mod strategy;

use std::fmt::Write;
use std::path::PathBuf;

/// Compares `text` with `tests/snapshots/<name>.txt`; `TILEWIRE_BLESS=1` writes the file instead.
#[track_caller]
pub fn assert_snapshot(name: &str, text: &str) {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests", "snapshots", &format!("{name}.txt")].iter().collect();
    if std::env::var_os("TILEWIRE_BLESS").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("make the snapshot folder");
        return std::fs::write(&path, text).expect("write the snapshot");
    }
    let bless = "run the test with TILEWIRE_BLESS=1 to accept what it prints now";
    let Ok(expected) = std::fs::read_to_string(&path) else {
        panic!("no snapshot at {}; {bless}\n{text}", path.display());
    };
    // A checkout may have rewritten line ends.
    let expected = expected.replace("\r\n", "\n");
    assert!(expected == text, "{} differs (- kept, + now); {bless}\n{}", path.display(), diff(&expected, text));
}

/// The lines of two texts side by side: `-` only in the first, `+` only in the second, by longest common subsequence.
pub fn diff(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let mut common = vec![vec![0u32; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = match old[i] == new[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut out) = (0, 0, String::new());
    while i < old.len() || j < new.len() {
        let (mark, line) = if i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j) = (i + 1, j + 1);
            (' ', new[j - 1])
        } else if j == new.len() || i < old.len() && common[i + 1][j] >= common[i][j + 1] {
            i += 1;
            ('-', old[i - 1])
        } else {
            j += 1;
            ('+', new[j - 1])
        };
        writeln!(out, "{mark} {line}").expect("writing to a string");
    }
    out
}
