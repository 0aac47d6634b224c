//! `numpy`, for tests of DLPack: found by Python, or installed from its wheel into the build folder.

use crate::ptxas::scratch;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// What `PYTHONPATH` must be so that Python finds numpy, or `None` with the reason printed. `TILEWIRE_REQUIRE=numpy`
/// makes its absence a failure.
pub fn find() -> Option<&'static Path> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match FOUND.get_or_init(search) {
        Ok(path) => Some(path),
        Err(reason) => {
            skip(reason);
            None
        }
    }
}

/// Says why a test with numpy does not run, or fails if it must.
pub fn skip(reason: &str) {
    crate::skip::skip("numpy", reason);
}

fn search() -> Result<PathBuf, String> {
    let folder = scratch().join("numpy");
    if works(Path::new("")) {
        return Ok(PathBuf::new());
    }
    if works(&folder) {
        return Ok(folder);
    }
    let pip = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"])
        .arg(&folder)
        .arg("numpy")
        .output()
        .map_err(|error| format!("python3 does not start: {error}"))?;
    match works(&folder) {
        true => Ok(folder),
        false => Err(format!("pip installs no wheel of it: {}", String::from_utf8_lossy(&pip.stderr).trim())),
    }
}

/// True if Python imports it with this path.
fn works(path: &Path) -> bool {
    let output = Command::new("python3").args(["-c", "import numpy"]).env("PYTHONPATH", path).output();
    output.is_ok_and(|output| output.status.success())
}
