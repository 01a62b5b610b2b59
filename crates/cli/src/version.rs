//! What `hanare -V` and `hanare --version` print: the version, the commit, and how this command was built. `build.rs`
//! finds these facts.

use std::sync::LazyLock;

use hanare_wire::frame::VERSION as WIRE_VERSION;

/// The first 12 digits of the commit. `None` if the command was not built from a repository.
const COMMIT: Option<&str> = option_env!("BUILD_COMMIT");

/// The version and the commit, such as `0.1.0 (5fc8187abcde)`.
pub(crate) static SHORT: LazyLock<String> = LazyLock::new(|| with_commit(COMMIT));

/// The short version, and a line each for the build, its features and its protocol.
pub(crate) static LONG: LazyLock<String> = LazyLock::new(long);

fn with_commit(commit: Option<&str>) -> String {
    let commit = commit.map_or(String::new(), |commit| format!(" ({commit})"));
    format!("{}{commit}", env!("CARGO_PKG_VERSION"))
}

fn long() -> String {
    let built = [env!("BUILD_PROFILE"), env!("BUILD_TARGET"), concat!("rustc ", env!("BUILD_COMPILER"))].join(", ");
    let lines = [
        SHORT.clone(),
        format!("built     {built}"),
        format!("features  {}", features().join(", ")),
        format!("protocol  {WIRE_VERSION}"),
    ];
    lines.join("\n")
}

/// Returns what depends on the target and the profile of the build.
fn features() -> Vec<&'static str> {
    let all = [
        ("thread mode", true),
        ("sigbus mode", true),
        ("sigsegv mode", true),
        ("trapped system calls", cfg!(target_arch = "x86_64")),
        ("assertions", cfg!(debug_assertions)),
    ];
    all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_commit_is_left_out() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(with_commit(None), version);
        assert_eq!(with_commit(Some("5fc8187abcde")), format!("{version} (5fc8187abcde)"));
    }
}
