"""The kernel's swap as a peer: a memory cgroup for a run, and zram or a file that swap goes to.

Needs root. What cannot be made here is named in one line and left out. Each object undoes itself in `close`.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

MIB = 1 << 20
SWAP_BYTES = 2048 * MIB
# The highest priority: other swap of the machine is used after this one.
PRIORITY = "32767"
BLOCK, CONTROL = Path("/sys/block"), Path("/sys/class/zram-control")
VERSION_1, VERSION_2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


class Refused(Exception):
    """Why a peer cannot be had here."""


def make_peers(names, work, stack):
    """Returns the peers of these names that can be made here, by name. `stack` closes them at the end."""
    peers = {}
    for name in names:
        try:
            Group.check(stack)
            swap = {"zram": Zram, "file": SwapFile}[name](work, stack)
            swap.on()
            swap.off()
            peers[name] = swap
        except (Refused, OSError) as error:
            print(f"without swap to {name}: {error}", file=sys.stderr)
    return peers


def tool(*line):
    if shutil.which(line[0]) is None:
        raise Refused(f"there is no command {line[0]}")
    done = subprocess.run(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise Refused(f"{' '.join(line)}: {done.stderr.decode(errors='replace').strip()}")


class Group:
    """A memory cgroup for one run, with a limit."""

    folder = None  # of all groups of this process's board

    @staticmethod
    def check(stack):
        """Finds where groups can be made. Raises `Refused` if they cannot."""
        if Group.folder is not None:
            return
        if os.geteuid() != 0:
            raise Refused("a memory cgroup needs root")
        stack.callback(Group.remove)
        if (VERSION_1 / "memory.limit_in_bytes").exists():
            Group.folder = VERSION_1
            return
        controllers = VERSION_2 / "cgroup.controllers"
        if not controllers.exists() or "memory" not in controllers.read_text().split():
            raise Refused("there is no memory cgroup")
        subtree = VERSION_2 / "cgroup.subtree_control"
        if "memory" not in subtree.read_text().split():
            subtree.write_text("+memory")
            stack.callback(subtree.write_text, "-memory")
        Group.folder = VERSION_2

    @staticmethod
    def path():
        return Group.folder / f"hanare-board-{os.getpid()}"

    @staticmethod
    def remove():
        """Removes the group if there is one. Its last process may still be on its way out."""
        for attempt in range(100):
            if Group.folder is None or not Group.path().exists():
                return
            try:
                Group.path().rmdir()
            except OSError:
                if attempt == 99:
                    raise
                time.sleep(0.05)

    def __init__(self, limit):
        path = Group.path()
        path.mkdir()
        self.entry = path / "cgroup.procs"
        first = Group.folder == VERSION_1
        (path / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit))
        self.events = path / ("memory.oom_control" if first else "memory.events")
        self.peak = path / ("memory.max_usage_in_bytes" if first else "memory.peak")

    def __enter__(self):
        return self

    def enter(self):
        """Puts the calling process into the group."""
        self.entry.write_text("0")

    def kills(self):
        """Returns how many processes the kernel killed for lack of memory."""
        lines = (line.split() for line in self.events.read_text().splitlines())
        return sum(int(words[1]) for words in lines if words[0] == "oom_kill")

    def peak_bytes(self):
        return int(self.peak.read_text()) if self.peak.exists() else None

    def __exit__(self, *unused):
        Group.remove()


class Swap:
    """A place for swap, switched on only while a program runs against it."""

    device = None

    def on(self):
        tool("swapon", "-p", PRIORITY, str(self.device))

    def off(self):
        # The kernel's own list is asked, because an interrupt may come at any point.
        listed = (line.split()[0] for line in Path("/proc/swaps").read_text().splitlines()[1:])
        if str(self.device) in listed:
            tool("swapoff", str(self.device))


class Zram(Swap):
    """Swap to a zram device that nobody uses."""

    def __init__(self, work, stack):
        del work
        name, added = find_zram()
        self.block, self.device = BLOCK / name, Path("/dev") / name
        stack.callback(self.close, added)
        (self.block / "disksize").write_text(str(2 * SWAP_BYTES))
        algorithm = (self.block / "comp_algorithm").read_text()
        self.what = f"zram ({algorithm[algorithm.find('[') + 1:algorithm.find(']')]})"
        tool("mkswap", str(self.device))

    def close(self, added):
        self.off()
        (self.block / "reset").write_text("1")
        if added:
            (CONTROL / "hot_remove").write_text(self.block.name.removeprefix("zram"))


def find_zram():
    """Returns an unused zram device, and whether it was added for this board."""
    if not CONTROL.exists() and shutil.which("modprobe"):
        subprocess.run(["modprobe", "zram"], stderr=subprocess.DEVNULL, check=False)
    for block in sorted(BLOCK.glob("zram*")):
        if (block / "initstate").read_text().strip() == "0" and (Path("/dev") / block.name).exists():
            return block.name, False
    if not (CONTROL / "hot_add").exists():
        raise Refused("there is no unused zram device (modprobe zram)")
    return f"zram{(CONTROL / 'hot_add').read_text().strip()}", True


class SwapFile(Swap):
    """Swap to a file in the board's own folder."""

    def __init__(self, work, stack):
        self.device = work / "swap"
        self.what = "a swap file"
        if shutil.disk_usage(work).free < 2 * SWAP_BYTES:
            raise Refused(f"{work} has no room for a swap file of {SWAP_BYTES // MIB} MiB")
        stack.callback(self.close)
        with open(self.device, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            os.posix_fallocate(file.fileno(), 0, SWAP_BYTES)
        tool("mkswap", str(self.device))

    def close(self):
        self.off()
        self.device.unlink(missing_ok=True)
