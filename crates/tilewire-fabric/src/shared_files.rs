//! The file that the shm provider makes in `/dev/shm` for every endpoint, and leaves there if the process ends without
//! closing it.
//!
//! The file is removed when the endpoint is dropped, and when the process ends by itself. A process that is killed by
//! `SIGKILL`, or by a signal without a handler, leaves the file. The endpoints that know its address remove it when
//! they are dropped. [`left_behind`] finds the files that nobody has removed.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

/// The folder of the files.
const FOLDER: &str = "/dev/shm";

/// The files of open endpoints, each with the process that opened it.
static OPEN: Mutex<Vec<(u32, PathBuf)>> = Mutex::new(Vec::new());

/// The file of one endpoint, if the endpoint has one.
pub(crate) struct SharedFile(Option<PathBuf>);

impl SharedFile {
    /// The file of an endpoint with this address. The provider's addresses are texts: `fi_shm`, a colon, two slashes,
    /// and the name of the file.
    pub fn of(address: &[u8]) -> SharedFile {
        let own = of_process(address).filter(|(process, _)| *process == std::process::id());
        let Some((_, path)) = own else { return SharedFile(None) };
        static HOOK: Once = Once::new();
        // SAFETY: the function may be called at any time until the process ends.
        HOOK.call_once(|| _ = unsafe { libc::atexit(at_exit) });
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).push((std::process::id(), path.clone()));
        SharedFile(Some(path))
    }
}

/// Removes the file after the endpoint was closed. Most versions have removed it by then.
impl Drop for SharedFile {
    fn drop(&mut self) {
        let Some(path) = self.0.take() else { return };
        std::fs::remove_file(&path).ok();
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).retain(|(_, open)| *open != path);
    }
}

/// The process and the file of an endpoint with this address, if it has one.
fn of_process(address: &[u8]) -> Option<(u32, PathBuf)> {
    let text = address.split(|&byte| byte == 0).next().and_then(|text| std::str::from_utf8(text).ok())?;
    let name = text.strip_prefix("fi_shm://")?;
    Some((owner(name)?, Path::new(FOLDER).join(name)))
}

/// Removes the file of a peer with this address, if its process no longer exists.
pub(crate) fn remove_of_dead(address: &[u8]) {
    if let Some((process, path)) = of_process(address)
        && !exists(process)
    {
        std::fs::remove_file(path).ok();
    }
}

fn exists(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

/// Removes the files of all open endpoints when the process ends, because endpoints in statics are not dropped.
extern "C" fn at_exit() {
    let Ok(mut open) = OPEN.try_lock() else { return };
    // A forked child has copies of its parent's entries, and must not remove the files.
    let own = open.drain(..).filter(|(process, _)| *process == std::process::id());
    own.for_each(|(_, path)| _ = std::fs::remove_file(path));
}

/// Finds the files of processes that no longer exist. Remove them only if no other container shares `/dev/shm`, because
/// processes of other containers are not visible here.
pub fn left_behind() -> Vec<PathBuf> {
    let Ok(folder) = std::fs::read_dir(FOLDER) else { return Vec::new() };
    let is_left = |path: &PathBuf| {
        let process = path.file_name().and_then(|name| owner(name.to_str()?));
        process.is_some_and(|process| !exists(process))
    };
    folder.filter_map(|file| Some(file.ok()?.path())).filter(is_left).collect()
}

/// The number of the process in a name such as `PID:USER:NUMBER`.
fn owner(name: &str) -> Option<u32> {
    let mut numbers = name.split(':').map(|number| number.parse::<u32>().ok());
    let process = numbers.next()??;
    let rest: Vec<_> = numbers.collect();
    (rest.len() == 2 && rest.iter().all(Option::is_some)).then_some(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_provider_have_an_owner() {
        assert_eq!(owner("4711:0:3"), Some(4711));
        for other in ["4711", "4711:0", "4711:0:x", "sem.x", "4711:0:3:1", ":0:3", "../1:0:0"] {
            assert_eq!(owner(other), None, "{other}");
        }
    }
}
