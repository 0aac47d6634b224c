//! The files of machines and containers of every kind, each in its own folder.

use super::*;

/// A machine, simulated by files.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str) -> Machine {
        let root = std::env::temp_dir().join(format!("tilewire-memory-left-{name}-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&root);
        Machine(root).with("proc/meminfo", "MemTotal:  9000000 kB\nMemFree: 100 kB\nMemAvailable:    1000 kB\n")
    }

    fn with(self, path: &str, text: &str) -> Machine {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    /// Mounted as on most machines.
    fn version_2(self, own: &str) -> Machine {
        let mount = "35 31 0:32 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let around = "23 1 0:21 / /proc rw - proc proc rw\n";
        self.with("proc/self/mountinfo", &format!("{around}{mount}")).with("proc/self/cgroup", &format!("0::{own}\n"))
    }

    /// Among other controllers, beside an empty version 2 hierarchy.
    fn version_1(self, mount_root: &str, own: &str) -> Machine {
        let mounts = format!(
            "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
             35 31 0:32 {mount_root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        );
        let own = format!("9:name=systemd:/\n4:memory:{own}\n1:cpu,cpuacct:/elsewhere\n0::/\n");
        self.with("proc/self/mountinfo", &mounts).with("proc/self/cgroup", &own)
    }

    fn left(&self) -> MemoryLeft {
        MemoryLeft::under(&self.0)
    }

    /// The tightest limit, and the folder of its group if it is a group's.
    fn tightest(&self) -> (u64, Option<String>) {
        let Shortage { left, group, .. } = self.left().check(u64::MAX).unwrap_err();
        let folder = |group: PathBuf| group.strip_prefix(&self.0).unwrap().to_string_lossy().into_owned();
        (left, group.map(folder))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn without_control_groups_the_machine_counts() {
    let machine = Machine::new("bare");
    assert_eq!(machine.left().bytes(), Some(1000 * 1024));
    assert_eq!(machine.tightest(), (1000 * 1024, None));
    assert!(machine.left().check(1000 * 1024).is_ok() && machine.left().check(1000 * 1024 + 1).is_err());
}

#[test]
fn where_nobody_says_nothing_is_refused() {
    let nowhere = MemoryLeft::under(Path::new("/nowhere/at/all"));
    assert_eq!((nowhere.bytes(), nowhere.check(u64::MAX)), (None, Ok(())));
}

#[test]
fn a_limit_of_version_2_counts_if_it_is_tighter() {
    let machine = Machine::new("v2").version_2("/job").with("sys/fs/cgroup/job/memory.max", "600000\n");
    let machine = machine.with("sys/fs/cgroup/job/memory.current", "500000\n");
    assert_eq!(machine.tightest(), (100_000, Some("sys/fs/cgroup/job".to_string())));
    let machine = machine.with("sys/fs/cgroup/job/memory.max", "999999999\n");
    assert_eq!(machine.tightest(), (1000 * 1024, None));
}

#[test]
fn cached_files_give_way() {
    let machine = Machine::new("cache").version_2("/job").with("sys/fs/cgroup/job/memory.max", "600000\n");
    let machine = machine.with("sys/fs/cgroup/job/memory.current", "600000\n");
    let stat = "anon 100000\nfile 450000\nshmem 50000\ninactive_file 300000\nactive_file 100000\nslab_reclaimable 7\n";
    let machine = machine.with("sys/fs/cgroup/job/memory.stat", stat);
    assert_eq!(machine.tightest().0, 400_007, "segments (shmem) do not");
}

#[test]
fn max_is_no_limit() {
    let machine = Machine::new("max").version_2("/job").with("sys/fs/cgroup/job/memory.max", "max\n");
    let machine = machine.with("sys/fs/cgroup/job/memory.current", "500000\n");
    assert_eq!(machine.tightest(), (1000 * 1024, None));
}

#[test]
fn the_limit_of_a_parent_counts_too() {
    let machine = Machine::new("nested").version_2("/pod/box/inner");
    let machine = machine.with("sys/fs/cgroup/pod/box/inner/memory.max", "max\n");
    let machine = machine.with("sys/fs/cgroup/pod/box/inner/memory.current", "1\n");
    let machine = machine.with("sys/fs/cgroup/pod/box/memory.max", "900000\n");
    let machine = machine.with("sys/fs/cgroup/pod/box/memory.current", "1000\n");
    let machine = machine.with("sys/fs/cgroup/pod/memory.max", "600000\n");
    let machine = machine.with("sys/fs/cgroup/pod/memory.current", "590000\n");
    assert_eq!(machine.tightest(), (10_000, Some("sys/fs/cgroup/pod".to_string())));
    assert_eq!(machine.left().group_ids(9).len(), 2);
}

#[test]
fn a_container_that_sees_its_own_group_as_the_root_finds_its_limit() {
    let machine = Machine::new("namespace").version_2("/").with("sys/fs/cgroup/memory.max", "600000\n");
    let machine = machine.with("sys/fs/cgroup/memory.current", "100000\n");
    assert_eq!(machine.tightest(), (500_000, Some("sys/fs/cgroup".to_string())));
}

#[test]
fn a_limit_of_version_1_counts() {
    let machine = Machine::new("v1").version_1("/", "/job");
    let machine = machine.with("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "600000\n");
    let machine = machine.with("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "500000\n");
    let stat = "cache 9\ninactive_file 5\ntotal_inactive_file 3000\ntotal_active_file 200\n";
    let machine = machine.with("sys/fs/cgroup/memory/job/memory.stat", stat);
    // The root group of version 1 reports that it has no limit.
    let machine = machine.with("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    let machine = machine.with("sys/fs/cgroup/memory/memory.usage_in_bytes", "700000\n");
    assert_eq!(machine.tightest(), (103_200, Some("sys/fs/cgroup/memory/job".to_string())));
}

/// A container without its own namespace is given its path outside, and has only its own group mounted.
#[test]
fn a_container_that_is_told_its_path_outside_finds_its_limit() {
    for (name, root, own) in [("bind", "/docker/abc", "/docker/abc"), ("odd", "/docker/abc", "/docker/abc/../x")] {
        let machine = Machine::new(name).version_1(root, own);
        let machine = machine.with("sys/fs/cgroup/memory/memory.limit_in_bytes", "600000\n");
        let machine = machine.with("sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n");
        assert_eq!(machine.tightest(), (500_000, Some("sys/fs/cgroup/memory".to_string())));
    }
}

#[test]
fn more_used_than_allowed_leaves_nothing() {
    let machine = Machine::new("over").version_2("/job").with("sys/fs/cgroup/job/memory.max", "4096\n");
    let machine = machine.with("sys/fs/cgroup/job/memory.current", "500000\n");
    assert_eq!(machine.tightest().0, 0);
    assert!(machine.left().check(0).is_ok() && machine.left().check(1).is_err());
}

#[test]
fn a_group_pays_for_its_own_ranks_and_the_machine_for_all() {
    let machine = Machine::new("shared").version_2("/job").with("sys/fs/cgroup/job/memory.max", "600000\n");
    let machine = machine.with("sys/fs/cgroup/job/memory.current", "100000\n");
    let (left, group) = (machine.left(), machine.left().group_ids(9)[0]);
    let in_group = |bytes| move |id| if id == group { bytes } else { 0 };
    assert_eq!(left.check_shared(1_000_000, in_group(500_000)), Ok(()), "other groups take the rest");
    let short = left.check_shared(1_000_000, in_group(500_001)).unwrap_err();
    assert_eq!((short.needed, short.left), (500_001, 500_000));
    let short = left.check_shared(1_100_000, in_group(1)).unwrap_err();
    assert_eq!((short.needed, short.left, short.group), (1_100_000, 1000 * 1024, None));
}

#[test]
fn a_shortage_names_what_is_short() {
    let machine = Machine::new("words").version_2("/job").with("sys/fs/cgroup/job/memory.max", "600000\n");
    let machine = machine.with("sys/fs/cgroup/job/memory.current", "0\n");
    let words = machine.left().check(700_000).unwrap_err().to_string();
    for part in ["700000", "600000", "memory limit", "cgroup/job"] {
        assert!(words.contains(part), "{words}");
    }
}
