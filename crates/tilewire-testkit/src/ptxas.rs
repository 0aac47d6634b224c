//! `ptxas`, NVIDIA's assembler of PTX, for tests without a GPU. It is taken from the environment (`TILEWIRE_PTXAS`) or
//! the path, or installed from its Python wheel into the build folder.

use crate::skip::skip;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use tilewire::ptx::Target;

/// The report of `ptxas -v` about an entry.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub registers: u32,
    /// The bytes that did not fit in registers: stored and loaded.
    pub spills: u32,
}

/// The assembler, or `None` with the reason printed. `TILEWIRE_REQUIRE=ptxas` makes its absence a failure.
pub fn find() -> Option<&'static Path> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match FOUND.get_or_init(search) {
        Ok(path) => Some(path),
        Err(reason) => {
            skip("ptxas", reason);
            None
        }
    }
}

fn search() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("TILEWIRE_PTXAS") {
        return Ok(path.into());
    }
    if works(Path::new("ptxas")) {
        return Ok("ptxas".into());
    }
    let folder = scratch().join("ptxas");
    let installed = folder.join("nvidia/cu13/bin/ptxas");
    if works(&installed) {
        return Ok(installed);
    }
    let pip = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"])
        .arg(&folder)
        .arg("nvidia-cuda-nvcc==13.*")
        .output()
        .map_err(|error| format!("python3 does not start: {error}"))?;
    match works(&installed) {
        true => Ok(installed),
        false => Err(format!("pip installs no wheel of it: {}", String::from_utf8_lossy(&pip.stderr).trim())),
    }
}

/// A folder for files of tests in the build folder. It is cargo's `CARGO_TARGET_TMPDIR`, which only integration tests
/// get.
pub(crate) fn scratch() -> PathBuf {
    let program = std::env::current_exe().expect("a running program has a path");
    // target/PROFILE/deps/PROGRAM
    let folder = program.ancestors().nth(3).expect("a test lies in the build folder").join("tmp");
    std::fs::create_dir_all(&folder).expect("make a folder for files of tests");
    folder
}

fn works(path: &Path) -> bool {
    Command::new(path).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Assembles a text. The error is the message of the assembler.
pub fn assemble(text: &str, target: Target) -> Result<Usage, String> {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let file = scratch().join(format!("{}-{number}.ptx", std::process::id()));
    std::fs::write(&file, text).map_err(|error| error.to_string())?;
    let output = Command::new(find().expect("found before"))
        .args(["-v", "-arch", target.name(), "-o", "/dev/null"])
        .arg(&file)
        .output()
        .map_err(|error| error.to_string())?;
    std::fs::remove_file(&file).ok();
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(said);
    }
    Ok(Usage {
        registers: before(&said, " registers").unwrap_or(0),
        spills: before(&said, " bytes spill stores").unwrap_or(0) + before(&said, " bytes spill loads").unwrap_or(0),
    })
}

/// The number that stands before some words.
fn before(text: &str, words: &str) -> Option<u32> {
    let head = &text[..text.find(words)?];
    head.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
