//! The library itself: finds and opens it, checks its version, and never closes it.

use crate::error::FabricError;
use crate::signals::Handlers;
use crate::sys;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The oldest version whose layouts are those of `sys.rs`.
pub(crate) const LEAST: (u32, u32) = (1, 11);
/// The newest interface that this crate asks for. A library accepts its own interface version and all older ones.
const NEWEST: (u32, u32) = (1, 17);
/// The interface that has dma-bufs. It is asked for only where memory of devices is to be registered.
pub(crate) const DMA_BUFS: (u32, u32) = (1, 20);
/// The file, as the dynamic linker knows it.
pub const FILE: &str = "libfabric.so.1";
/// The variable that names another file.
pub const VARIABLE: &str = "TILEWIRE_LIBFABRIC";

/// The opened library. Copies are handles of the same library.
#[derive(Clone, Copy)]
pub struct Library(&'static Opened);

pub(crate) struct Opened {
    path: PathBuf,
    version: (u32, u32),
    pub get_info: sys::GetInfo,
    pub free_info: sys::FreeInfo,
    pub dup_info: sys::DupInfo,
    pub fabric: sys::OpenFabric,
    strerror: sys::StrError,
}

/// The libraries opened so far, by name.
static OPENED: Mutex<Vec<(PathBuf, &'static Opened)>> = Mutex::new(Vec::new());

impl Library {
    /// Opens the file that `TILEWIRE_LIBFABRIC` names, or else the `libfabric.so.1` that the dynamic linker finds.
    ///
    /// The library stays open until the process ends, because its providers leave threads and exit handlers behind.
    /// Loading may replace signal handlers; this function restores them.
    ///
    /// # Errors
    /// If the library is absent or too old.
    pub fn open() -> Result<Library, FabricError> {
        let name = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
        Library::open_at(Path::new(&name.unwrap_or(FILE.into())))
    }

    /// Opens a file. If the dynamic linker does not find a library that the file needs, it is looked for in the same
    /// folder.
    ///
    /// # Errors
    /// As for [`open`](Library::open).
    pub fn open_at(path: &Path) -> Result<Library, FabricError> {
        let mut opened = OPENED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((_, library)) = opened.iter().find(|(known, _)| known == path) {
            return Ok(Library(library));
        }
        let library: &'static Opened = Box::leak(Box::new(Opened::new(path)?));
        opened.push((path.to_path_buf(), library));
        Ok(Library(library))
    }

    /// The version of the library: major and minor.
    pub fn version(self) -> (u32, u32) {
        self.0.version
    }

    /// The file that was asked for.
    pub fn path(self) -> &'static Path {
        &self.0.path
    }

    /// The version of the interface that this crate asks the library for.
    pub(crate) fn interface(self) -> u32 {
        let (major, minor) = self.0.version.min(NEWEST);
        sys::version(major, minor)
    }

    /// True if the library can register memory of devices by dma-bufs: from 1.20 on.
    pub fn knows_dma_bufs(self) -> bool {
        self.0.version >= DMA_BUFS
    }

    pub(crate) fn functions(self) -> &'static Opened {
        self.0
    }

    /// The meaning of an error number.
    pub(crate) fn words(self, code: i32) -> String {
        // SAFETY: it takes any number. The text is static, or a buffer of the C library that is read immediately.
        unsafe { text((self.0.strerror)(code)) }
    }

    /// Returns `Ok` if a call returned 0 or more.
    pub(crate) fn check(self, call: &'static str, provider: &str, result: i32) -> Result<(), FabricError> {
        match result {
            0.. => Ok(()),
            code => Err(self.failed(call, provider, code.saturating_neg())),
        }
    }

    /// The error of a call; `code` is positive.
    pub(crate) fn failed(self, call: &'static str, provider: &str, code: i32) -> FabricError {
        FabricError::Call { call, provider: provider.to_string(), code, words: self.words(code) }
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (major, minor) = self.version();
        write!(f, "libfabric {major}.{minor} ({})", self.path().display())
    }
}

impl Opened {
    fn new(path: &Path) -> Result<Opened, FabricError> {
        let handlers = Handlers::keep();
        without_backtraces();
        let handle = open_with_neighbours(path, 0)
            .map_err(|what| FabricError::Absent { name: path.display().to_string(), what })?;
        drop(handlers);
        let library = path.display().to_string();
        let find = |name: &'static CStr| {
            // SAFETY: the handle is open and is never closed.
            let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
            let name = name.to_str().expect("a name in this file");
            if symbol.is_null() { Err(FabricError::Symbol { library: library.clone(), name }) } else { Ok(symbol) }
        };
        // SAFETY: functions of libfabric have had these names and signatures since its first version, and a symbol that
        // is not null is the function. The user says that the file is libfabric.
        let opened = unsafe {
            let version: sys::Version = std::mem::transmute(find(c"fi_version")?);
            let version = version();
            Opened {
                path: path.to_path_buf(),
                version: (version >> 16, version & 0xffff),
                get_info: std::mem::transmute::<*mut c_void, sys::GetInfo>(find(c"fi_getinfo")?),
                free_info: std::mem::transmute::<*mut c_void, sys::FreeInfo>(find(c"fi_freeinfo")?),
                dup_info: std::mem::transmute::<*mut c_void, sys::DupInfo>(find(c"fi_dupinfo")?),
                fabric: std::mem::transmute::<*mut c_void, sys::OpenFabric>(find(c"fi_fabric")?),
                strerror: std::mem::transmute::<*mut c_void, sys::StrError>(find(c"fi_strerror")?),
            }
        };
        match opened.version < LEAST {
            true => Err(FabricError::TooOld { library, version: opened.version }),
            false => Ok(opened),
        }
    }
}

/// The longest chain of libraries in one folder that need each other.
const DEEPEST: usize = 16;

/// Opens a library. If the dynamic linker does not find a library that it needs, and the same folder has one of this
/// name, that one is opened first. The linker then finds it by name among the loaded libraries.
fn open_with_neighbours(path: &Path, depth: usize) -> Result<*mut c_void, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| "a zero byte in the name".to_string())?;
    let mut last = None;
    loop {
        // SAFETY: loading runs the constructors of the library, as the user asks by naming it.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(handle);
        }
        // SAFETY: the message belongs to this thread until its next call of the dynamic linker.
        let what = unsafe { text(libc::dlerror()) };
        let missing = what.split_once(": cannot open shared object file").map(|(name, _)| Path::new(name));
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let neighbour = match (folder, missing) {
            (Some(folder), Some(missing)) if missing.components().count() == 1 => folder.join(missing),
            _ => return Err(what),
        };
        if last.as_ref() == Some(&neighbour) || depth == DEEPEST || !neighbour.exists() {
            return Err(what);
        }
        open_with_neighbours(&neighbour, depth + 1)?;
        last = Some(neighbour);
    }
}

/// Asks PSM not to take over signals when it is loaded. In a process of several threads the variable is not set,
/// because C code in another thread could be reading the environment: the handlers are put back either way.
fn without_backtraces() {
    const NAME: &str = "IPATH_NO_BACKTRACE";
    let threads = std::fs::read_dir("/proc/self/task").map_or(usize::MAX, Iterator::count);
    if threads == 1 && std::env::var_os(NAME).is_none() {
        // SAFETY: this is the only thread of the process, so nobody else reads the environment.
        unsafe { std::env::set_var(NAME, "1") };
    }
}

/// A C string; empty for null.
///
/// # Safety
/// It is null or ends with a zero byte.
pub(crate) unsafe fn text(start: *const std::ffi::c_char) -> String {
    if start.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(start) }.to_string_lossy().into_owned()
}
