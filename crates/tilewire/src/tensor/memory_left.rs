//! How much memory is left: on the machine, and in every control group (a container's memory limit) of this process.
//!
//! ```text
//!  machine          MemAvailable of /proc/meminfo
//!  group, version 2 memory.max            - memory.current        + what memory.stat says can be reclaimed
//!  group, version 1 memory.limit_in_bytes - memory.usage_in_bytes + the same
//! ```
//! The groups are this process's own and its parents. Beyond any of these limits, Linux kills processes instead of
//! refusing memory. So a large request is first compared with all of them.
//!
//! The pages of a memfd count towards the group of the process that allocates them; the size of `/dev/shm` does not
//! bound them. Cached files count as used, but are evicted before anything is killed. Swap is not counted: swapped-out
//! memory between ranks is useless.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

/// The memory left, as far as the system reports it.
///
/// ```
/// use tilewire::tensor::MemoryLeft;
/// let left = MemoryLeft::now();
/// assert!(left.check(1).is_ok());
/// if left.bytes().is_some() {
///     let shortage = left.check(u64::MAX).unwrap_err();
///     assert!(shortage.left < shortage.needed, "{shortage}");
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryLeft {
    machine: Option<u64>,
    /// The groups that have a limit, from this process's own outwards.
    groups: Vec<Group>,
}

/// A control group with a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    /// The inode number of its folder: the same for all processes, however each names the group.
    id: u64,
    path: PathBuf,
    left: u64,
}

impl MemoryLeft {
    /// The memory left now. Reads a few small files.
    pub fn now() -> MemoryLeft {
        MemoryLeft::under(Path::new("/"))
    }

    /// Reads the files under `root` instead of `/`.
    pub(crate) fn under(root: &Path) -> MemoryLeft {
        let meminfo = std::fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let kib = available.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        MemoryLeft { machine: kib.and_then(|kib| kib.checked_mul(1024)), groups: groups(root) }
    }

    /// Bytes that may still be taken. `None` if the system does not report it.
    pub fn bytes(&self) -> Option<u64> {
        self.machine.into_iter().chain(self.groups.iter().map(|group| group.left)).min()
    }

    /// Checks that `needed` bytes are left, for this process or for others in its control groups.
    pub fn check(&self, needed: u64) -> Result<(), Shortage> {
        self.check_shared(needed, |_| needed)
    }

    /// Like `check`, for processes in several groups: together they take `needed` bytes, and those in one group take
    /// `in_group(id)`.
    pub(crate) fn check_shared(&self, needed: u64, in_group: impl Fn(u64) -> u64) -> Result<(), Shortage> {
        let machine = self.machine.map(|left| Shortage { needed, left, group: None });
        let groups = self.groups.iter().map(|group| Shortage {
            needed: in_group(group.id),
            left: group.left,
            group: Some(group.path.clone()),
        });
        // Report the tightest limit, since that is the one to fix.
        let short = machine.into_iter().chain(groups).filter(|limit| limit.needed > limit.left);
        short.min_by_key(|limit| limit.left).map_or(Ok(()), Err)
    }

    /// The ids of this process's groups that have a limit, innermost first, at most `most`.
    pub(crate) fn group_ids(&self, most: usize) -> Vec<u64> {
        self.groups.iter().map(|group| group.id).take(most).collect()
    }
}

/// More memory is needed than is left.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// Bytes needed.
    pub needed: u64,
    /// Bytes left.
    pub left: u64,
    /// The folder of the control group that is short of memory. `None` if it is the machine.
    pub group: Option<PathBuf>,
}

errors! {
    struct Shortage {
        Shortage { needed, left, group } => { |f|
            write!(f, "{needed} bytes are needed, and {left} are left ")?;
            match group {
                Some(group) => write!(f, "under the memory limit of the control group {}", group.display()),
                None => write!(f, "on this machine"),
            }
        },
    }
}

/// There is not enough memory for a tensor.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoMemory {
    /// Bytes requested. `usize::MAX` if the count overflows.
    pub bytes: usize,
    /// The shortage, if that is why the allocation was not attempted.
    pub shortage: Option<Shortage>,
}

errors! {
    struct NoMemory {
        NoMemory { bytes, shortage } => { |f|
            write!(f, "no memory for a tensor of {bytes} bytes")?;
            shortage.iter().try_for_each(|shortage| write!(f, " ({shortage})"))?;
            write!(f, ": use a smaller one, or raise the memory limit of this process")
        },
    }
}

/// The file names of a control group version, and the reclaimable entries of its `memory.stat`.
struct Version {
    /// The type of its file system.
    file_system: &'static str,
    limit: &'static str,
    used: &'static str,
    reclaimable: &'static [&'static str],
}

const VERSIONS: [Version; 2] = [
    Version {
        file_system: "cgroup2",
        limit: "memory.max",
        used: "memory.current",
        reclaimable: &["inactive_file", "active_file", "slab_reclaimable"],
    },
    Version {
        file_system: "cgroup",
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        // These totals include the groups below.
        reclaimable: &["total_inactive_file", "total_active_file"],
    },
];

/// All groups of this process that have a limit.
fn groups(root: &Path) -> Vec<Group> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let (own, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let mut found = Vec::new();
    for version in &VERSIONS {
        let Some((mount_root, mount_point)) = mounts.lines().find_map(|line| mounted(line, version)) else { continue };
        let Some(path) = own.lines().find_map(|line| path_of(line, version)) else { continue };
        // The mount may show only part of the hierarchy. A container may see its own group as the root and still be
        // given its path outside.
        let inside = Path::new(path).strip_prefix(mount_root).unwrap_or(Path::new(""));
        let inside = inside.strip_prefix("/").unwrap_or(inside);
        let top = root.join(mount_point.trim_start_matches('/'));
        for folder in inside.ancestors().map(|part| if part == Path::new("") { top.clone() } else { top.join(part) }) {
            found.extend(group(folder, version));
        }
    }
    found
}

/// The root and the mount point of this version, from a line of `/proc/self/mountinfo`.
fn mounted<'l>(line: &'l str, version: &Version) -> Option<(&'l str, &'l str)> {
    let (places, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let (file_system, options) = (kind.next()?, kind.nth(1)?);
    // In version 1 every controller has its own mount.
    let is_memory = file_system != "cgroup" || options.split(',').any(|option| option == "memory");
    let mut places = places.split(' ').skip(3);
    (file_system == version.file_system && is_memory).then_some((places.next()?, places.next()?))
}

/// The path of this process's group, from a line of `/proc/self/cgroup`: `0::/path` in version 2, `4:memory:/path` in
/// version 1.
fn path_of<'l>(line: &'l str, version: &Version) -> Option<&'l str> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let is_own = match version.file_system {
        "cgroup2" => number == "0" && controllers.is_empty(),
        _ => controllers.split(',').any(|controller| controller == "memory"),
    };
    is_own.then_some(path)
}

/// The memory a group has left. `None` if it has no limit.
fn group(folder: PathBuf, version: &Version) -> Option<Group> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let number = |text: String| text.trim().parse::<u64>().ok();
    // No limit is "max" in version 2, which is not a number, and the largest multiple of a page in version 1.
    let limit = read(version.limit).and_then(number).filter(|&limit| limit < 1 << 60)?;
    let used = read(version.used).and_then(number)?;
    let stat = read("memory.stat").unwrap_or_default();
    let reclaimable = stat.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        version.reclaimable.contains(&name).then(|| bytes.trim().parse::<u64>().ok())?
    });
    let used = used.saturating_sub(reclaimable.fold(0, u64::saturating_add));
    Some(Group { id: number_of(&folder), left: limit.saturating_sub(used), path: folder })
}

#[cfg(unix)]
fn number_of(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(folder).map_or(0, |folder| folder.ino())
}

#[cfg(not(unix))]
fn number_of(_: &Path) -> u64 {
    0
}

#[cfg(test)]
mod tests;
