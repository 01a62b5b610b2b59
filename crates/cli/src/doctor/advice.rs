//! Advice on how to get more out of this machine.

use hanare_settings::Mode;
use hanare_sys::features::{DeviceNode, Features, Thp};
use hanare_sys::uffd::UffdAccess;

/// The wanted limit on mappings (`vm.max_map_count`). A run in sigsegv mode probably exceeds a smaller limit.
const MAPPINGS_WANTED: u64 = 1 << 20;
/// The gain of thread mode, in words.
const GAIN: &str = "thread mode, in which small blocks can be far and all system calls work on far memory";
/// Where packages and `make install-rule` put Hanare's udev rule.
const RULES: [&str; 3] =
    ["/usr/lib/udev/rules.d/70-hanare.rules", "/lib/udev/rules.d/70-hanare.rules", "/etc/udev/rules.d/70-hanare.rules"];
/// The errno value EPERM. A userfaultfd for user-mode faults needs no privilege. So EPERM means that a container's
/// seccomp filter forbids the call.
const EPERM: i32 = 1;
/// The permission bits with which a group may open a device for reading and writing.
const GROUP_MAY: u32 = 0o060;

/// Returns one line for each step that the user can take, the most useful step first. `chosen` is the mode that mode
/// `auto` selects.
pub(super) fn advice(features: &Features, chosen: Mode) -> Vec<String> {
    let mut lines = Vec::new();
    if !matches!(features.access, UffdAccess::Syscall | UffdAccess::Device) {
        full_access(features, &mut lines);
    }
    if features.access != UffdAccess::None && !features.move_ {
        lines.push("a kernel from 6.8 on moves pages of 64K and more without copying them (UFFDIO_MOVE)".to_owned());
    }
    if features.access != UffdAccess::None && !features.wp_async {
        lines.push("a kernel from 6.7 on finds written pages without a trap each (write-protect async)".to_owned());
    }
    if features.thp == Thp::Never {
        lines.push(
            "huge pages make 2M pages cheap: as root, echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
                .to_owned(),
        );
    }
    let mappings = features.max_map_count.unwrap_or(u64::MAX);
    if chosen == Mode::Sigsegv && !features.guards && mappings < MAPPINGS_WANTED {
        lines.push(format!("sigsegv mode splits mappings, and keeps fewer pages local where there are few: as root, sysctl vm.max_map_count={MAPPINGS_WANTED}"));
    }
    if chosen == Mode::Thread && features.sigbus {
        lines.push("sigbus mode is faster, and the default where all system calls can be trapped (as root); otherwise it suits programs that make no system calls on their large arrays: --mode sigbus".to_owned());
    }
    lines
}

/// Adds the ways to allow a userfaultfd for faults in the kernel, so that system calls on far pages work. One way is
/// enough.
fn full_access(features: &Features, lines: &mut Vec<String>) {
    match features.device_node {
        DeviceNode::Present { permitted: false, mode, gid, .. } if mode & GROUP_MAY == GROUP_MAY && gid != 0 => {
            let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
            let group = group_name(&groups, gid);
            lines.push(format!(
                "for {GAIN}, join the group {group}, which may open the device: as root, usermod -aG {group} \
                 USER; then log in again"
            ));
        }
        DeviceNode::Present { permitted: false, .. } => {
            let has_rule = RULES.iter().any(|rule| std::path::Path::new(rule).exists());
            lines.push(open_device(has_rule));
        }
        DeviceNode::Present { permitted: true, .. } => {}
        DeviceNode::Absent => lines.push(
            "there is no /dev/userfaultfd: it needs a kernel from 6.1 on; in a container start it with --device /dev/userfaultfd"
                .to_owned(),
        ),
    }
    if features.unprivileged_userfaultfd == Some(0) {
        lines.push("or allow everyone the system call: as root, sysctl vm.unprivileged_userfaultfd=1".to_owned());
        lines.push("or give the program the capability CAP_SYS_PTRACE (as root: setpriv or capsh)".to_owned());
    }
    let refused = features.user_mode_only;
    if let hanare_sys::features::Attempt::Refused(errno) = refused {
        if errno == EPERM {
            lines.push("a filter refuses userfaultfd: in a container allow it in the seccomp profile".to_owned());
        } else {
            lines.push(format!("this kernel or its filter has no userfaultfd ({refused}, errno {errno})"));
        }
    }
}

/// Returns how to open the device to the group of Hanare's udev rule, which may be there already.
fn open_device(has_rule: bool) -> String {
    let rule = "groupadd --system hanare, put KERNEL==\"userfaultfd\", GROUP=\"hanare\", MODE=\"0660\" into \
                /etc/udev/rules.d/70-hanare.rules, ";
    let first = if has_rule { "its rule has not been applied: as root, " } else { "as root, " };
    let rule = if has_rule { "" } else { rule };
    format!(
        "for {GAIN}, open the device to the group hanare; {first}{rule}udevadm control --reload && udevadm trigger \
         --sysname-match=userfaultfd, then usermod -aG hanare USER; then log in again"
    )
}

/// Returns the name of a group in the text of `/etc/group`, or its number.
fn group_name(groups: &str, gid: u32) -> String {
    let number = gid.to_string();
    let named = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = named.into_iter().find(|fields| fields.get(2) == Some(&number.as_str()));
    found.map_or(number.clone(), |fields| fields[0].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare_sys::features::{Attempt, Disabled};

    fn machine(change: impl FnOnce(&mut Features)) -> Vec<String> {
        let mut features = Features::probe(&Disabled::parse(&Disabled::WORDS.join(",")).unwrap());
        features.unprivileged_userfaultfd = Some(0);
        features.device_node = DeviceNode::Present { permitted: false, mode: 0o600, uid: 0, gid: 0 };
        features.user_mode_only = Attempt::Works;
        features.access = UffdAccess::UserModeOnly;
        change(&mut features);
        let chosen = hanare::choose::choose(Mode::Auto, &features, true).unwrap();
        advice(&features, chosen)
    }

    fn has(lines: &[String], word: &str) -> bool {
        lines.iter().any(|line| line.contains(word))
    }

    #[test]
    fn an_unprivileged_user_is_told_all_three_ways() {
        let lines = machine(|_| {});
        for word in ["udev", "vm.unprivileged_userfaultfd=1", "CAP_SYS_PTRACE", "6.8"] {
            assert!(has(&lines, word), "{word} is not in {lines:?}");
        }
        assert!(lines.iter().all(|line| !line.contains('\n')));
    }

    #[test]
    fn a_user_outside_the_group_of_the_device_is_told_to_join_it() {
        let with = |mode, gid| {
            machine(|features| features.device_node = DeviceNode::Present { permitted: false, mode, uid: 0, gid })
        };
        // No group has this number.
        let lines = with(0o660, 4_000_000);
        assert!(has(&lines, "usermod -aG 4000000 USER") && !has(&lines, "70-hanare.rules"), "{lines:?}");
        for (mode, gid) in [(0o660, 0), (0o640, 4_000_000)] {
            assert!(has(&with(mode, gid), "udevadm") && !has(&with(mode, gid), "join the group"), "{mode:o} {gid}");
        }
        let (without, with) = (open_device(false), open_device(true));
        assert!(without.contains("groupadd") && without.contains("70-hanare.rules"), "{without}");
        assert!(
            !with.contains("groupadd") && with.contains("its rule has not been applied: as root, udevadm"),
            "{with}"
        );
        let groups = "root:x:0:\nbroken\nhanare:x:104:alice\n";
        assert_eq!((group_name(groups, 104).as_str(), group_name(groups, 10).as_str()), ("hanare", "10"));
    }

    #[test]
    fn a_filtered_container_is_told_of_seccomp_and_mappings() {
        let lines = machine(|features| {
            features.access = UffdAccess::None;
            features.user_mode_only = Attempt::Refused(EPERM);
            features.device_node = DeviceNode::Absent;
            features.max_map_count = Some(65530);
        });
        for word in ["seccomp", "--device", "vm.max_map_count"] {
            assert!(has(&lines, word), "{word} is not in {lines:?}");
        }
    }

    #[test]
    fn a_machine_that_allows_all_needs_no_privilege() {
        let lines = machine(|features| {
            features.access = UffdAccess::Syscall;
            features.missing = true;
            features.wp = true;
            features.move_ = true;
            features.wp_async = true;
            features.sigbus = true;
            features.thp = Thp::Madvise;
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(has(&lines, "--mode sigbus"));
    }
}
