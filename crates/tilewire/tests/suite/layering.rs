//! The architecture as a test: which folder may use which, where `unsafe` may stand, how files are named and how long
//! they may be. ARCHITECTURE.md describes these rules; change both together.
//!
//! The test reads the source text, so it does not build the code that it judges. Every judge is a function from files
//! to faults. The tests at the end plant violations to show that the judges see them.

use std::fmt;
use std::path::Path;

/// A folder of `crates/tilewire/src`, in the order of the data path.
struct Folder {
    name: &'static str,
    /// The folders that its code may name. Documentation may name anything.
    uses: &'static [&'static str],
    /// True if `unsafe` may stand in it. Otherwise its `mod.rs` forbids it.
    is_unsafe: bool,
}

const FOLDERS: &[Folder] = &[
    Folder { name: "ir", uses: &[], is_unsafe: false },
    Folder { name: "tensor", uses: &["ir"], is_unsafe: true },
    Folder { name: "hook", uses: &["ir", "tensor"], is_unsafe: false },
    // Ready-made hooks, in the public language.
    Folder { name: "hooks", uses: &["hook", "ir", "tensor"], is_unsafe: false },
    Folder { name: "vm", uses: &["ir", "tensor"], is_unsafe: true },
    Folder { name: "check", uses: &["ir", "tensor"], is_unsafe: false },
    Folder { name: "ptx", uses: &["ir"], is_unsafe: false },
    Folder { name: "cuda", uses: &["ir", "ptx", "tensor"], is_unsafe: true },
    // Bytes and signals. It must know neither kernels nor GPUs.
    Folder { name: "transport", uses: &["tensor"], is_unsafe: true },
    // Device code in the hook language. Of `transport` it knows the memories of an endpoint and their numbers.
    Folder { name: "schedule", uses: &["hook", "ir", "tensor", "transport"], is_unsafe: false },
    // The transports that users hold. Of `hook` and `schedule` it knows how a kernel is bound to a peer. Of `cuda` it
    // knows devices and their memory.
    Folder { name: "link", uses: &["cuda", "hook", "schedule", "tensor", "transport"], is_unsafe: false },
    // It needs `vm` and `cuda` to prepare and launch. It needs `transport` because a launch that waits for other ranks
    // sleeps on their doorbells, and `vm` and `transport` must not know each other.
    Folder {
        name: "collective",
        uses: &["cuda", "hook", "ir", "link", "schedule", "tensor", "transport", "vm"],
        is_unsafe: false,
    },
    // Collectives for the checker, which must not know them.
    Folder {
        name: "rehearsal",
        uses: &["check", "collective", "hook", "ir", "link", "schedule", "tensor", "transport"],
        is_unsafe: false,
    },
];

/// Files of the root that every folder may use, because they know no folder.
const SHARED: &[&str] = &["processor", "sync"];
/// Files outside of those folders that may have `unsafe` code, each with its reason.
const UNSAFE_FILES: &[(&str, &str)] = &[("processor.rs", "older compilers take the call of an instruction for unsafe")];
/// Modules of `crates/tilewire-testkit` that unit tests of the library may use, because they name no type of the
/// library. Other modules name types of another build of the library. They are for tests outside of it.
const TESTKIT: &[&str] = &["libfabric", "mutations", "random"];
/// A longer file should be two files.
const MAX_LINES: usize = 700;
/// Files that may be longer, each with its reason. There are none, and none are wanted.
const LONG_FILES: &[(&str, &str)] = &[];
/// Names that say nothing about the contents.
const EMPTY_NAMES: &[&str] = &["utils", "util", "common", "helpers", "helper", "misc"];

#[test]
fn folders_use_only_what_they_may() {
    report(files("crates/tilewire/src").iter().flat_map(layering).collect());
}

#[test]
fn unit_tests_use_of_the_testkit_only_what_knows_no_library() {
    report(files("crates/tilewire/src").iter().flat_map(testkit).collect());
}

#[test]
fn unsafe_code_stands_only_where_it_is_argued() {
    report(files("crates/tilewire/src").iter().flat_map(unsafety).collect());
}

#[test]
fn every_folder_says_what_it_is() {
    let all = ["tilewire", "tilewire-cli", "tilewire-fabric", "tilewire-testkit"]
        .map(|name| files(&format!("crates/{name}/src")));
    report(all.iter().flatten().flat_map(module_docs).collect());
}

#[test]
fn the_binding_of_libfabric_knows_nothing_of_tilewire() {
    let all = files("crates/tilewire-fabric/src");
    assert!(!all.is_empty());
    report(all.iter().flat_map(binding).collect());
}

#[test]
fn files_are_short_and_have_names() {
    report(files("crates").iter().flat_map(form).collect());
}

#[test]
fn no_files_of_the_collectives_use_each_other_in_a_circle() {
    report(circles("collective", &files("crates/tilewire/src")));
}

#[test]
fn every_test_file_is_part_of_a_program() {
    report(strays(&files("crates/tilewire/tests")));
}

// ---- the judges ---------------------------------------------------------------------------------------------------

fn layering(file: &File) -> Vec<Fault> {
    let Some(name) = file.folder() else { return Vec::new() };
    let Some(folder) = FOLDERS.iter().find(|f| f.name == name) else {
        let what = format!("folder {name}/ is not in FOLDERS: add it there with the folders it may use");
        return vec![file.fault(1, what)];
    };
    let judge = |(line, target): (usize, String)| {
        if target == name || [folder.uses, SHARED].iter().any(|names| names.contains(&target.as_str())) {
            return None;
        }
        let what = if FOLDERS.iter().any(|f| f.name == target) {
            format!(
                "{name}/ must not know {target}/: move the code to a folder that may, or pass it in as a value (allowed here: {:?})",
                folder.uses
            )
        } else {
            format!("crate::{target} hides the folder it comes from: write crate::FOLDER::{target}")
        };
        Some(file.fault(line, what))
    };
    references(&file.text, file.depth()).into_iter().filter_map(judge).collect()
}

fn testkit(file: &File) -> Vec<Fault> {
    let tokens = tokens(&file.text);
    let named = tokens.windows(4).filter(|w| w[0].text == "tilewire_testkit" && !TESTKIT.contains(&w[3].text.as_str()));
    let what = |name: &str| {
        format!("tilewire_testkit::{name} is for tests outside of the library: a unit test may use only {TESTKIT:?}")
    };
    named.map(|w| file.fault(w[0].line, what(&w[3].text))).collect()
}

fn binding(file: &File) -> Vec<Fault> {
    let tokens = tokens(&file.text);
    let known = tokens.iter().filter(|t| ["tilewire", "tilewire_testkit"].contains(&t.text.as_str()));
    known.map(|t| file.fault(t.line, "a binding crate must not know its user".to_string())).collect()
}

fn unsafety(file: &File) -> Vec<Fault> {
    let folder = file.folder().and_then(|name| FOLDERS.iter().find(|f| f.name == name));
    if folder.is_some_and(|f| f.is_unsafe) || UNSAFE_FILES.iter().any(|(path, _)| *path == file.below()) {
        return Vec::new();
    }
    let tokens = tokens(&file.text);
    let mut faults: Vec<Fault> = tokens
        .iter()
        .filter(|t| t.text == "unsafe")
        .map(|t| {
            let may: Vec<&str> = FOLDERS.iter().filter(|f| f.is_unsafe).map(|f| f.name).collect();
            file.fault(t.line, format!("no unsafe here: it belongs to one of {may:?}, behind a safe interface"))
        })
        .collect();
    let forbid = ["#", "!", "[", "forbid", "(", "unsafe_code", ")", "]"];
    let forbids = tokens.windows(forbid.len()).any(|w| w.iter().map(|t| &t.text).eq(forbid.iter()));
    if folder.is_some() && file.is_folder_head() && !forbids {
        faults.push(file.fault(1, "add #![forbid(unsafe_code)] after the module docs".to_string()));
    }
    faults
}

fn module_docs(file: &File) -> Vec<Fault> {
    let head = file.path.ends_with("/mod.rs") || file.path.ends_with("/lib.rs") || file.path.ends_with("/main.rs");
    if head && !file.text.starts_with("//! ") {
        let what = "begin with module docs (//!): what goes in, what comes out, invariants, what it must not know";
        return vec![file.fault(1, what.to_string())];
    }
    Vec::new()
}

fn form(file: &File) -> Vec<Fault> {
    let mut faults = Vec::new();
    let empty = file.path.split('/').map(|part| part.trim_end_matches(".rs")).find(|part| EMPTY_NAMES.contains(part));
    if let Some(part) = empty {
        faults.push(file.fault(1, format!("'{part}' names no concept: name the file after what it holds")));
    }
    let lines = file.text.lines().count();
    if lines > MAX_LINES && !LONG_FILES.iter().any(|(path, _)| *path == file.path) {
        let what = format!("{lines} lines, at most {MAX_LINES}: split it by concept, or give a reason in LONG_FILES");
        faults.push(file.fault(MAX_LINES + 1, what));
    }
    faults
}

/// Uses between the files of a folder that form a circle, and uses of names that hide the file they come from. Tests
/// inside files may use anything.
fn circles(folder: &str, files: &[File]) -> Vec<Fault> {
    let files: Vec<&File> =
        files.iter().filter(|file| file.folder() == Some(folder) && !file.is_folder_head()).collect();
    let name =
        |file: &File| file.below().rsplit_once('/').map_or("", |(_, name)| name).trim_end_matches(".rs").to_string();
    let names: Vec<String> = files.iter().map(|file| name(file)).collect();
    let mut faults = Vec::new();
    let mut uses: Vec<Vec<(usize, usize)>> = Vec::new();
    for file in &files {
        let text = file.text.split("#[cfg(test)]").next().unwrap_or_default();
        let text = &text.replace(&format!("crate::{folder}::"), "super::");
        let mut found = Vec::new();
        // The names that a file uses inside its folder: one `super` fewer leads there than to the root.
        for (line, target) in references(text, file.depth() - 1) {
            match names.iter().position(|name| *name == target) {
                Some(to) => found.push((line, to)),
                None if target == folder || FOLDERS.iter().any(|folder| folder.name == target) => {}
                None if SHARED.contains(&target.as_str()) => {}
                None => faults
                    .push(file.fault(line, format!("super::{target} hides its file: write super::FILE::{target}"))),
            }
        }
        uses.push(found);
    }
    let reaches = |from: usize, to: usize| {
        let (mut seen, mut open) = (vec![false; uses.len()], vec![from]);
        while let Some(at) = open.pop() {
            if at == to {
                return true;
            }
            if !std::mem::replace(&mut seen[at], true) {
                open.extend(uses[at].iter().map(|&(_, next)| next));
            }
        }
        false
    };
    for (from, found) in uses.iter().enumerate() {
        for &(line, to) in found {
            if to != from && reaches(to, from) {
                let what = format!(
                    "{0}.rs uses {1}.rs, which uses {0}.rs, by way of others perhaps: move what both need to a file below them",
                    names[from], names[to]
                );
                faults.push(files[from].fault(line, what));
            }
        }
    }
    faults
}

/// Files below `tests/` that no `mod` of the file above them names. They would not even be compiled.
fn strays(files: &[File]) -> Vec<Fault> {
    let judge = |file: &File| {
        let module = file.path.trim_end_matches(".rs").trim_end_matches("/mod").trim_end_matches("/main");
        let (folder, name) = module.rsplit_once('/')?;
        let (_, below) = module.split_once("/tests/")?;
        let is_program = file.path.ends_with("/main.rs") || !file.path.ends_with("/mod.rs");
        if is_program && !below.contains('/') {
            return None;
        }
        let heads = [format!("{folder}/main.rs"), format!("{folder}/mod.rs"), format!("{folder}.rs")];
        let mut heads = files.iter().filter(|head| heads.contains(&head.path));
        let declares = |head: &File| {
            tokens(&head.text).windows(3).any(|w| w[0].text == "mod" && w[1].text == name && w[2].text == ";")
        };
        let what = format!("nothing says `mod {name};`, so its tests never run: declare it in {folder}/");
        (!heads.any(declares)).then(|| file.fault(1, what))
    };
    files.iter().filter_map(judge).collect()
}

// ---- files --------------------------------------------------------------------------------------------------------

/// A source file; the path is relative to the repository.
struct File {
    path: String,
    text: String,
}

struct Fault {
    path: String,
    line: usize,
    what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

impl File {
    /// The path below `src/`.
    fn below(&self) -> &str {
        self.path.split_once("/src/").map_or(&self.path, |(_, below)| below)
    }

    /// The folder of `src/` that contains it.
    fn folder(&self) -> Option<&str> {
        self.below().split_once('/').map(|(folder, _)| folder)
    }

    fn is_folder_head(&self) -> bool {
        self.below().strip_suffix("/mod.rs").is_some_and(|folder| !folder.contains('/'))
    }

    /// The number of `super`s that lead from the file's module to the crate's root.
    fn depth(&self) -> usize {
        let parts = self.below().split('/').count();
        if self.path.ends_with("/mod.rs") || self.folder().is_none() { parts - 1 } else { parts }
    }

    fn fault(&self, line: usize, what: String) -> Fault {
        Fault { path: self.path.clone(), line, what }
    }
}

/// All Rust files below a folder of the repository.
fn files(under: &str) -> Vec<File> {
    fn collect(root: &Path, folder: &Path, found: &mut Vec<File>) {
        let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("cannot read {}: {e}", folder.display()));
        for path in entries.map(|entry| entry.expect("a folder can be listed").path()) {
            if path.is_dir() {
                collect(root, &path, found);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let text = std::fs::read_to_string(&path).expect("source files are text");
                let path = path.strip_prefix(root).expect("below the root").to_string_lossy().replace('\\', "/");
                found.push(File { path, text });
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    collect(&root, &root.join(under), &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "no source under {under}: the test looks in the wrong place");
    found
}

fn report(faults: Vec<Fault>) {
    let text: Vec<String> = faults.iter().map(Fault::to_string).collect();
    assert!(text.is_empty(), "{} faults:\n{}", text.len(), text.join("\n"));
}

// ---- the source text ----------------------------------------------------------------------------------------------

/// A word, or one character of punctuation.
#[derive(Clone, Debug)]
struct Token {
    text: String,
    line: usize,
}

/// The code without comments, strings and characters.
fn tokens(source: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let (mut rest, mut line) = (source, 1);
    while let Some(c) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(string) = raw_string(rest) {
            string
        } else if c == '"' {
            quoted(rest, '"')
        } else if c == '\'' && is_character(rest) {
            quoted(rest, '\'')
        } else if c.is_whitespace() {
            c.len_utf8()
        } else {
            0
        };
        let len = if skipped > 0 { skipped } else { word.max(c.len_utf8()) };
        if skipped == 0 {
            found.push(Token { text: rest[..len].to_string(), line });
        }
        line += rest[..len].matches('\n').count();
        rest = &rest[len..];
    }
    found
}

/// The length of a quoted text, including its quotes.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a raw string (`r"…"`, `r#"…"#`), if one begins here.
fn raw_string(text: &str) -> Option<usize> {
    let body = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let inside = body[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let end = inside.find(&close).map_or(inside.len(), |end| end + close.len());
    Some(text.len() - inside.len() + end)
}

/// True if a quote begins a character rather than a lifetime.
fn is_character(text: &str) -> bool {
    let mut chars = text.chars().skip(1);
    matches!((chars.next(), chars.next()), (Some('\\'), _) | (Some(_), Some('\'')))
}

/// The names that the code uses in the crate's root, with their lines: the `ir` of `crate::ir::Op`, of `use crate::{ir,
/// tensor}` and of `super::super::ir` where two `super`s lead to the root. `depth` is the depth of the file's module.
fn references(source: &str, depth: usize) -> Vec<(usize, String)> {
    let tokens = tokens(source);
    let is = |at: usize, text: &str| tokens.get(at).is_some_and(|t| t.text == text);
    let mut found = Vec::new();
    // The braces that are open now. True for those of an inline module, which adds one `super` to the way to the root.
    let mut open = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let inside = depth + open.iter().filter(|&&module| module).count();
        match tokens[at].text.as_str() {
            "{" => open.push(at >= 2 && is(at - 2, "mod")),
            "}" => _ = open.pop(),
            "crate" | "super" => {
                at = path(&tokens, at, inside, &mut found);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Reads the path or tree of paths at `at`, relative to a module `depth` below the root. Returns the position after it.
fn path(tokens: &[Token], mut at: usize, mut depth: usize, found: &mut Vec<(usize, String)>) -> usize {
    let is = |at: usize, text: &str| tokens.get(at).is_some_and(|t| t.text == text);
    loop {
        let Some(token) = tokens.get(at) else { return at };
        match token.text.as_str() {
            "crate" => depth = 0,
            "super" => depth = depth.saturating_sub(1),
            "self" => {}
            "{" => {
                at += 1;
                while !is(at, "}") && at < tokens.len() {
                    at = path(tokens, at, depth, found);
                    // The rest of the element, and its comma.
                    let mut nested = 0;
                    while at < tokens.len() && (nested > 0 || !is(at, ",") && !is(at, "}")) {
                        nested += is(at, "{") as usize;
                        nested -= is(at, "}") as usize;
                        at += 1;
                    }
                    at += is(at, ",") as usize;
                }
                return at + 1;
            }
            name => {
                if depth == 0 {
                    found.push((token.line, name.to_string()));
                }
                return at + 1;
            }
        }
        at += 1;
        if !is(at, ":") || !is(at + 1, ":") {
            return at;
        }
        at += 2;
    }
}

// ---- that the judges see ------------------------------------------------------------------------------------------

fn planted(path: &str, text: &str) -> File {
    File { path: format!("crates/tilewire/src/{path}"), text: text.to_string() }
}

fn lines(faults: &[Fault]) -> Vec<usize> {
    faults.iter().map(|fault| fault.line).collect()
}

#[test]
fn a_planted_use_of_a_forbidden_folder_is_seen() {
    for (path, text) in [
        ("ir/op.rs", "use crate::tensor::Arg;"),
        ("ir/op.rs", "fn f() { crate::vm::g() }"),
        ("ir/op.rs", "use crate::{ir::Op, vm};"),
        ("ir/op.rs", "use super::super::hook;"),
        ("ir/op.rs", "use super::{Op, super::hook::Value};"),
        ("ir/mod.rs", "use super::check;"),
        ("ir/simplify/fold.rs", "use super::super::super::vm::Level;"),
        ("ir/op.rs", "mod tests { use super::super::super::vm; }"),
        ("tensor/mod.rs", "use crate::hook::Traced;"),
        ("hook/mod.rs", "pub use crate::vm::Prepared;"),
        ("vm/launch.rs", "use crate::hook::Traced;"),
        ("vm/launch.rs", "use crate::Prepared;"),
        ("check/run.rs", "use crate::vm::Prepared;"),
        ("transport/bootstrap/wire.rs", "use crate::ir::Type;"),
        ("transport/world.rs", "use crate::vm::Prepared;"),
        ("collective/map.rs", "use crate::check;"),
        ("gpu/mod.rs", "//! A folder nobody has placed."),
    ] {
        let faults = layering(&planted(path, text));
        assert_eq!(lines(&faults), [1], "{path}: {text}");
    }
}

#[test]
fn what_is_allowed_is_not_reported() {
    for (path, text) in [
        ("ir/op.rs", "use crate::ir::{Type, Value};\nuse super::types::Type;"),
        ("ir/simplify/fold.rs", "use super::super::op::Op;"),
        ("ir/op.rs", "mod tests { use super::super::types; } mod vm;"),
        ("ir/op.rs", "//! [`crate::vm`] runs it.\n/* crate::vm */ const S: &str = \"crate::vm \\\" crate::vm\";"),
        ("ir/op.rs", "const R: &str = r#\"crate::vm \" \"#; fn f<'a>(_: &'a u8) -> char { '\"' }"),
        ("hook/mod.rs", "pub(crate) use crate::{ir::{self, scalar::Element}, tensor::Arg};"),
        ("vm/lower/mod.rs", "pub(super) fn f() {} use super::code; use crate::tensor;"),
        ("collective/map.rs", "use super::RunError; use crate::vm::Prepared;"),
        ("lib.rs", "pub use vm::Level; pub use crate::hook::kernel;"),
    ] {
        let faults = layering(&planted(path, text));
        assert!(faults.is_empty(), "{path}: {}", faults[0]);
    }
}

#[test]
fn planted_circles_of_files_are_seen() {
    let file = |name: &str, text: &str| planted(&format!("collective/{name}.rs"), text);
    let head = planted("collective/mod.rs", "mod a; mod b; mod c; pub use a::A;");
    let chain = [
        file("a", "use super::b::B; use super::c;\nuse crate::ir::Op; use crate::collective::b;"),
        file("b", "use super::c::{C, D};"),
        file("c", "fn f() {}\n#[cfg(test)]\nmod tests { use super::super::a::A; }"),
        planted("other/a.rs", "use super::b;"),
        planted("other/b.rs", "use super::a;"),
    ];
    assert!(circles("collective", &chain).is_empty());
    let places = |text: &str, more: [File; 3]| {
        let all: Vec<File> =
            more.into_iter().chain([file("c", text), planted("collective/mod.rs", &head.text)]).collect();
        circles("collective", &all).iter().map(|fault| (fault.path.clone(), fault.line)).collect::<Vec<_>>()
    };
    let others = || [file("a", "use super::b::B;"), file("b", "\nuse super::c::C;"), file("d", "")];
    let path = |name: &str| format!("crates/tilewire/src/collective/{name}.rs");
    assert_eq!(places("fn f() {}", others()), []);
    // A circle through a third file, by a path in the code, and by a path from the root.
    for text in ["\n\nuse super::a::A;", "\n\nfn f() { super::a::g() }", "\n\nuse crate::collective::a::A;"] {
        assert_eq!(places(text, others()), [(path("a"), 1), (path("b"), 2), (path("c"), 3)], "{text}");
    }
    assert_eq!(places("use super::{d::D, A};", others()), [(path("c"), 1)], "a name that hides its file");
}

#[test]
fn planted_unsafe_code_is_seen() {
    let forbids = "//! Docs.\n#![forbid(unsafe_code)]\n";
    assert!(unsafety(&planted("hook/mod.rs", forbids)).is_empty());
    assert!(unsafety(&planted("vm/pool.rs", "unsafe impl Send for X {}")).is_empty());
    assert_eq!(lines(&unsafety(&planted("hook/mod.rs", "//! unsafe in words only"))), [1]);
    assert_eq!(lines(&unsafety(&planted("hook/mod.rs", "//! #![forbid(unsafe_code)]\nmod a;"))), [1]);
    let seen = unsafety(&planted("ir/op.rs", "fn f() {\n    unsafe { g() }\n}"));
    assert_eq!(lines(&seen), [2]);
    let names = |folder: &Folder| seen[0].what.contains(&format!("{:?}", folder.name));
    assert!(FOLDERS.iter().all(|folder| names(folder) == folder.is_unsafe), "{}", seen[0]);
    assert_eq!(lines(&unsafety(&planted("lib.rs", "unsafe fn f() {}"))), [1]);
    assert!(unsafety(&planted("processor.rs", "unsafe fn f() {}")).is_empty());
    assert_eq!(lines(&unsafety(&planted("ir/processor.rs", "unsafe fn f() {}"))), [1]);
}

#[test]
fn planted_faults_of_form_are_seen() {
    assert!(form(&planted("ir/op.rs", "")).is_empty());
    assert_eq!(form(&planted("vm/utils.rs", "")).len(), 1);
    assert_eq!(form(&planted("vm/common/mod.rs", "")).len(), 1);
    assert_eq!(lines(&form(&planted("vm/long.rs", &"\n".repeat(MAX_LINES + 1)))), [MAX_LINES + 1]);
    assert_eq!(lines(&module_docs(&planted("vm/mod.rs", "mod a;"))), [1]);
    assert!(module_docs(&planted("vm/mod.rs", "//! Docs.\nmod a;")).is_empty());
}

#[test]
fn a_planted_test_file_that_nothing_names_is_seen() {
    let file = |path: &str, text: &str| File { path: format!("crates/tilewire/tests/{path}"), text: text.to_string() };
    let mut all = vec![
        file("alone.rs", ""),
        file("suite/main.rs", "mod guide; mod checker; // mod stray;"),
        file("suite/guide.rs", "mod rows;"),
        file("suite/guide/rows.rs", ""),
        file("suite/checker/mod.rs", "mod bugs;"),
        file("suite/checker/bugs.rs", ""),
    ];
    assert!(strays(&all).is_empty());
    let planted =
        ["suite/stray.rs", "suite/guide/stray.rs", "suite/stray/mod.rs", "suite/checker/stray.rs", "gone/stray.rs"];
    all.extend(planted.map(|path| file(path, "")));
    let seen: Vec<String> = strays(&all).into_iter().map(|fault| fault.path).collect();
    assert_eq!(seen, planted.map(|path| format!("crates/tilewire/tests/{path}")));
}
