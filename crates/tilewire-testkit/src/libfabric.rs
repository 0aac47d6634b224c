//! libfabric for tests, without root. It is taken from the environment (`TILEWIRE_LIBFABRIC`) or from this machine, or
//! fetched as Debian packages into the build folder.
//!
//! This file uses only the standard library and `skip.rs`, so that tests of any crate can include both.

use crate::skip::skip;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The library's file, or `None` with the reason printed. `TILEWIRE_REQUIRE=libfabric` makes its absence a failure.
pub fn find() -> Option<&'static Path> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match FOUND.get_or_init(search) {
        Ok(path) => Some(path),
        Err(reason) => {
            skip("libfabric", reason);
            None
        }
    }
}

#[allow(dead_code)] // Some of the crates that include this file have one provider alone.
/// The provider to use where a test says `tcp`: this one, or what `TILEWIRE_TEST_NETWORK` names (`.ci/verbs` does).
pub fn in_place_of(provider: &str) -> String {
    match std::env::var("TILEWIRE_TEST_NETWORK") {
        Ok(other) if provider == "tcp" && !other.is_empty() => other,
        _ => provider.to_string(),
    }
}

fn search() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("TILEWIRE_LIBFABRIC").filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    if let Ok(known) = output(Command::new("ldconfig").arg("-p"))
        && known.contains("libfabric.so.1 ")
    {
        return Ok("libfabric.so.1".into());
    }
    // target/PROFILE/deps/PROGRAM
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let build = program.ancestors().nth(3).ok_or("a test lies in the build folder")?.join("tmp");
    let folder = build.join("libfabric");
    let library = folder.join("lib/libfabric.so.1");
    if library.exists() {
        return Ok(library);
    }
    // Test programs run at the same time. Each makes its own folder, and the first one stays.
    let own = build.join(format!("libfabric.{}", std::process::id()));
    let made = fetch(&own);
    if made.is_ok() {
        std::fs::rename(&own, &folder).ok();
    }
    std::fs::remove_dir_all(&own).ok();
    match library.exists() {
        true => Ok(library),
        false => Err(made.err().unwrap_or("the package has no libfabric.so.1".to_string())),
    }
}

/// Fetches the package and its dependencies, and links all of their libraries into the folder `lib`.
fn fetch(folder: &Path) -> Result<(), String> {
    let at = |error: std::io::Error| format!("{}: {error}", folder.display());
    let (packages, root, lib) = (folder.join("packages"), folder.join("root"), folder.join("lib"));
    for folder in [&packages, &root, &lib] {
        std::fs::create_dir_all(folder).map_err(at)?;
    }
    let mut names = vec!["libfabric1".to_string()];
    let mut next = 0;
    while let Some(name) = names.get(next) {
        let needed = output(Command::new("apt-cache").args(["depends", "--no-recommends", "--no-suggests"]).arg(name))?;
        let needed = needed.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        // Only libraries are needed. The C library is on every machine.
        let wanted =
            |name: &&str| (name.starts_with("lib") || name.starts_with("ibverbs")) && !name.starts_with("libc6");
        let new: Vec<String> =
            needed.filter(wanted).filter(|new| names.iter().all(|name| name != new)).map(str::to_string).collect();
        names.extend(new);
        next += 1;
        if next > 50 {
            return Err(format!("libfabric1 needs more than 50 packages: {names:?}"));
        }
    }
    output(Command::new("apt-get").arg("download").args(&names).current_dir(&packages))?;
    for package in std::fs::read_dir(&packages).map_err(at)? {
        output(Command::new("dpkg").arg("-x").arg(package.map_err(at)?.path()).arg(&root))?;
    }
    link(&root, Path::new("../root"), &lib).map_err(at)
}

/// Links `libNAME.so.N` for every file `libNAME.so.N.M` below a folder.
fn link(folder: &Path, seen_from_lib: &Path, lib: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let seen = seen_from_lib.join(&name);
        let Some((stem, version)) = name.to_str().and_then(|name| name.split_once(".so.")) else {
            if kind.is_dir() {
                link(&entry.path(), &seen, lib)?;
            }
            continue;
        };
        let major = version.split('.').next().unwrap_or_default();
        if kind.is_file() {
            std::os::unix::fs::symlink(seen, lib.join(format!("{stem}.so.{major}"))).ok();
        }
    }
    Ok(())
}

/// The output of a program. If it fails, the error is its message.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name} does not start: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{name} fails: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
