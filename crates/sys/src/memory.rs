//! Finds out how much memory this process may use. A memory cgroup may allow less than the machine has.

use crate::raw::Errno;
use std::fs;
use std::path::{Path, PathBuf};

/// The reasons why the memory size is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The file could not be read.
    #[error("cannot read {path}: {errno}; is /proc mounted?")]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
    /// A line of the file is missing or malformed.
    #[error("{path} has no usable line {field:?}")]
    Field {
        /// The path of the file.
        path: PathBuf,
        /// The name of the line.
        field: &'static str,
    },
}

/// The machine is short of memory if less than the total divided by this number is available, ...
const SHORT_PART: u64 = 10;
/// ... and all processes waited for memory for this share of the last 10 s.
const SHORT_WAITS_PERCENT: f32 = 10.0;

/// The memory of the machine that this process may use, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The machine's memory, or the cgroup's limit if the limit is lower.
    pub total_bytes: u64,
    /// The memory that can be used without swapping: MemAvailable, or the rest of the cgroup's limit if that rest is
    /// smaller.
    pub available_bytes: u64,
    /// The cgroup's limit. `None` if the limit is not below the machine's memory.
    pub cgroup_limit_bytes: Option<u64>,
}

impl Memory {
    /// Reads the present values.
    ///
    /// # Errors
    /// [`MemoryError`] if `/proc/meminfo` cannot be read or parsed. Missing cgroup files mean that there is no limit.
    pub fn now() -> Result<Self, MemoryError> {
        Self::under(Path::new("/"))
    }

    /// Checks whether the machine is short of memory: processes wait for memory for a good part of their time, and little
    /// is available. Returns false if the kernel does not tell how long processes wait.
    #[must_use]
    pub fn is_short(&self) -> bool {
        let text = fs::read_to_string("/proc/pressure/memory").unwrap_or_default();
        self.available_bytes < self.total_bytes / SHORT_PART && waits_percent(&text) >= SHORT_WAITS_PERCENT
    }

    /// Reads the files below the directory `root`, which is `/` except in tests.
    fn under(root: &Path) -> Result<Self, MemoryError> {
        let path = root.join("proc/meminfo");
        let text = fs::read_to_string(&path).map_err(|error| MemoryError::Read {
            path: path.clone(),
            errno: Errno(error.raw_os_error().unwrap_or(libc::EIO)),
        })?;
        let line = |field| {
            meminfo_kib(&text, field)
                .and_then(|kib: u64| kib.checked_mul(1024))
                .ok_or_else(|| MemoryError::Field { path: path.clone(), field })
        };
        let machine =
            Self { total_bytes: line("MemTotal")?, available_bytes: line("MemAvailable")?, cgroup_limit_bytes: None };
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        Ok(groups.lines().fold(machine, |memory, line| memory.within(root, line)))
    }

    /// Applies the limits of the cgroup that one line of `/proc/self/cgroup` names, and the limits of its parent
    /// cgroups.
    fn within(self, root: &Path, line: &str) -> Self {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
            return self;
        };
        let (mount, files) = if controllers.is_empty() {
            ("sys/fs/cgroup", &VERSION_2)
        } else if controllers.split(',').any(|name| name == "memory") {
            ("sys/fs/cgroup/memory", &VERSION_1)
        } else {
            return self;
        };
        let top = root.join(mount);
        // In a container, `line` may contain the cgroup's path on the host, which does not exist in the container. In
        // this case, the top directory is the container's own cgroup, and its limits apply.
        let group = top.join(group.trim_start_matches('/'));
        group
            .ancestors()
            .take_while(|directory| directory.starts_with(&top))
            .fold(self, |memory, directory| memory.narrowed(directory, files))
    }

    fn narrowed(self, group: &Path, files: &Files) -> Self {
        let number = |name| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
        let Some(limit) = number(files.limit).filter(|limit| *limit < self.total_bytes) else {
            return self;
        };
        let used = number(files.used).unwrap_or(0);
        // File pages that were not used recently count as available, because the kernel frees them when memory is
        // needed.
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let reclaimable =
            stat.lines().find_map(|line| line.strip_prefix(files.inactive)?.trim().parse::<u64>().ok()).unwrap_or(0);
        let left = limit.saturating_sub(used.saturating_sub(reclaimable));
        Self { total_bytes: limit, available_bytes: self.available_bytes.min(left), cgroup_limit_bytes: Some(limit) }
    }
}

/// Returns the share of the last 10 s in which all processes waited for memory, in percent, from the text of
/// `/proc/pressure/memory`. 0 if it is not there.
fn waits_percent(text: &str) -> f32 {
    let line = text.lines().find_map(|line| line.strip_prefix("full avg10="));
    line.and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or(0.0)
}

/// The names of the files in one version of cgroups.
struct Files {
    limit: &'static str,
    used: &'static str,
    inactive: &'static str,
}

const VERSION_2: Files = Files { limit: "memory.max", used: "memory.current", inactive: "inactive_file " };
const VERSION_1: Files =
    Files { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", inactive: "total_inactive_file " };

fn meminfo_kib(text: &str, field: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Creates a file tree like that of a machine with 1000 MiB of memory, of which 600 MiB are available.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let meminfo = "MemTotal:        1024000 kB\nMemFree: 1 kB\nMemAvailable:     614400 kB\n";
        for (name, text) in [("proc/meminfo", meminfo)].iter().chain(files) {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn without_cgroups_the_machine_counts() {
        let root = machine(&[]);
        let memory = Memory::under(root.path()).unwrap();
        assert_eq!(memory.total_bytes, 1000 * MIB);
        assert_eq!(memory.available_bytes, 600 * MIB);
        assert_eq!(memory.cgroup_limit_bytes, None);
    }

    #[test]
    fn the_lowest_limit_of_all_ancestors_counts() {
        let root = machine(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.max", "209715200\n"),
            ("sys/fs/cgroup/a/memory.current", "157286400\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 52428800\nactive_file 1\n"),
        ]);
        let memory = Memory::under(root.path()).unwrap();
        assert_eq!(memory.total_bytes, 200 * MIB);
        assert_eq!(memory.available_bytes, 100 * MIB);
        assert_eq!(memory.cgroup_limit_bytes, Some(200 * MIB));
    }

    #[test]
    fn version_1_and_limits_above_the_machine() {
        let line = "4:cpu,cpuacct:/x\n9:memory:/x\n";
        let root = machine(&[
            ("proc/self/cgroup", line),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "104857600\n"),
            ("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "41943040\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        let memory = Memory::under(root.path()).unwrap();
        assert_eq!(memory.total_bytes, 100 * MIB);
        assert_eq!(memory.available_bytes, 60 * MIB);
    }

    #[test]
    fn a_meminfo_without_the_line_names_it() {
        let root = machine(&[]);
        fs::write(root.path().join("proc/meminfo"), "MemTotal: 5 kB\n").unwrap();
        let error = Memory::under(root.path()).unwrap_err();
        assert!(error.to_string().contains("MemAvailable"), "{error}");
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = Memory::now().unwrap();
        assert!(memory.total_bytes > 16 * MIB);
        assert!(memory.available_bytes <= memory.total_bytes);
    }

    #[test]
    fn waits_are_read_from_the_line_of_all_processes() {
        let text = "some avg10=9.50 avg60=1.00 avg300=0.10 total=5\nfull avg10=7.11 avg60=12.47 avg300=18.62 total=4\n";
        assert!((waits_percent(text) - 7.11).abs() < 0.001);
        for text in ["", "some avg10=9.50 avg60=1.00", "full avg10=soon avg60=1"] {
            assert!(waits_percent(text).abs() < 0.001, "{text}");
        }
    }
}
