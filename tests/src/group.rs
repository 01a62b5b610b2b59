//! A memory cgroup of a test: a program in it is killed if it takes more memory than the limit.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::until;

/// A memory cgroup without processes. It is removed when this value is dropped.
pub struct Group {
    folder: PathBuf,
}

impl Group {
    /// Makes a group whose processes may use at most `limit` bytes together, page tables and file cache included. If
    /// this user cannot make one, prints a line.
    pub fn with_limit(limit: u64) -> Option<Group> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("hanare-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let versions = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        for (root, file) in versions {
            let group = Group { folder: Path::new(root).join(&name) };
            if fs::create_dir(&group.folder).is_ok() && fs::write(group.folder.join(file), limit.to_string()).is_ok() {
                return Some(group);
            }
        }
        println!("skipped: this user cannot make a memory cgroup with a limit");
        None
    }

    /// Makes the process of a command enter the group before it executes its program.
    pub fn holds(&self, command: &mut Command) {
        let entry = self.folder.join("cgroup.procs");
        // SAFETY: the closure opens and writes a file, and allocates at most an error. The tests start programs from
        // threads, but no allocator lock can be held in the child: the C library's fork handlers release it.
        unsafe { command.pre_exec(move || fs::write(&entry, "0")) };
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process may still be on its way out.
        if self.folder.exists() && !std::thread::panicking() {
            until("the memory cgroup is empty", || fs::remove_dir(&self.folder).is_ok());
        }
    }
}
