//! Checks the sizes that users give against the memory that this process may use.

use hanare_sys::memory::Memory;
use thiserror::Error;

use crate::human_size;

/// The error for a size that is larger than the whole memory of the machine or cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{what} {asked} is more than the {total} that {whose}; give less", asked = human_size(*bytes), total = human_size(memory.total_bytes), whose = owner(memory))]
pub struct TooMuch {
    what: String,
    bytes: u64,
    memory: Memory,
}

/// Refuses a size of local memory that is larger than all memory. `what` is the flag or variable that the user gave.
///
/// # Errors
/// Returns [`TooMuch`] if `bytes` is larger than all memory.
pub fn check(what: &str, bytes: u64, memory: &Memory) -> Result<(), TooMuch> {
    if bytes > memory.total_bytes {
        return Err(TooMuch { what: what.to_owned(), bytes, memory: *memory });
    }
    Ok(())
}

/// Returns a warning if `bytes` is more than the memory available now. Such a size may still work.
#[must_use]
pub fn warning(what: &str, bytes: u64, memory: &Memory) -> Option<String> {
    let left = memory.available_bytes;
    let line = || {
        let (bytes, left) = (human_size(bytes), human_size(left));
        format!("{what} {bytes} is more than the {left} of memory available now; the system may swap, or end processes")
    };
    (bytes > left).then(line)
}

fn owner(memory: &Memory) -> &'static str {
    match memory.cgroup_limit_bytes {
        Some(_) => "the memory cgroup allows",
        None => "this machine has",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn beyond_all_memory_is_refused_and_beyond_what_is_left_is_told() {
        let memory = Memory { total_bytes: 24 * GIB, available_bytes: 20 * GIB + GIB / 2, cgroup_limit_bytes: None };
        assert_eq!(check("--local", 22 * GIB, &memory), Ok(()));
        assert_eq!(warning("--local", 20 * GIB, &memory), None);
        let told = warning("--local", 22 * GIB, &memory).unwrap();
        assert!(told.starts_with("--local 22 GiB is more than the 20.5 GiB of memory available now"), "{told}");
        let refused = check("--memory", 100 << 40, &memory).unwrap_err().to_string();
        assert_eq!(refused, "--memory 100 TiB is more than the 24 GiB that this machine has; give less");
        let within = Memory { cgroup_limit_bytes: Some(24 * GIB), ..memory };
        assert!(check("--memory", u64::MAX, &within).unwrap_err().to_string().contains("the memory cgroup allows"));
    }
}
