"""Runs a command with a bound on its time, and leaves none of its processes behind.

`tests/programs/run.py`, `tests/torture/torture.py` and `benches/programs.py` share this module. A command may start
services and daemons, so this process adopts its descendants (PR_SET_CHILD_SUBREAPER) and ends them all by their process
numbers.
"""

import ctypes
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

PR_SET_CHILD_SUBREAPER = 36
# Most bytes of a command's output that are kept. They are the end of the output.
OUTPUT_MAX = 1 << 20
# Number of checks of a command past its limit, a tenth of a second apart. The command counts as slow, not as hanging,
# if one of its threads runs or waits for a CPU at half of the checks, or if it uses BUSY seconds of CPU time. The CPU
# time counts, too, because a cgroup's quota can keep a computing thread off its CPU for long.
LOOKS = 20
BUSY = 0.05

# Exit codes of `hanare run` that Hanare returns itself. All others are the program's.
LOST, FULL, KERNEL, NO_START, CANNOT_RUN, NOT_FOUND = 120, 121, 123, 125, 126, 127


def adopt_orphans():
    """Makes this process the parent of processes that its commands leave behind."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@dataclass
class Outcome:
    """How a command ended."""

    code: int = 124  # the shell's exit code: 128 + n for signal n
    was_killed: bool = False  # the command itself, by SIGKILL
    stdout: bytes = b""
    stderr: str = ""
    seconds: float = 0.0
    timed_out: bool = False
    busy: bool = False  # whether the command still computed when its time was over
    stacks: str = ""  # the places of the command's threads when its time was over
    left_behind: list = field(default_factory=list)  # processes that outlived the command

    def hanare_lines(self):
        """Returns Hanare's own lines on standard error."""
        return [line for line in self.stderr.splitlines() if line.startswith("hanare: ")]


def stat_fields(pid):
    """Returns the fields of /proc/PID/stat after the name, or None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(") ")[2].split()
    except OSError:
        return None


def descendants(of, but=()):
    """Returns the living descendants of `of`, nearest first. Leaves out the processes `but` and their descendants."""
    children = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        fields = stat_fields(name)
        if fields and lives(fields):
            children.setdefault(int(fields[1]), []).append(int(name))
    found = []
    ahead = [of]
    while ahead:
        below = [pid for pid in children.get(ahead.pop(0), []) if pid not in but]
        found += below
        ahead += below
    return found


def lives(fields):
    """Whether a process with these fields has a thread that has not ended. The state in the fields is that of the first
    thread. In a zombie, other threads may still run."""
    return fields[0] not in "ZX" or int(fields[17]) > 1


def command_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as line:
            return line.read().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    except OSError:
        return "?"


def cpu_seconds(pids):
    ticks = 0
    for pid in pids:
        fields = stat_fields(pid)
        ticks += int(fields[11]) + int(fields[12]) if fields else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def wants_cpu(pids):
    """Whether a thread of these processes runs or waits for a CPU."""
    for pid in pids:
        tasks = f"/proc/{pid}/task"
        try:
            names = os.listdir(tasks)
        except OSError:
            continue
        if any((stat_fields(f"{pid}/task/{name}") or ["?"])[0] == "R" for name in names):
            return True
    return False


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError as error:
        return f"({error.strerror})"


def where_threads_are(pids):
    """Describes each thread: its state, where it waits in the kernel, its system call, and its stack if gdb runs."""
    lines = []
    for pid in pids:
        lines.append(f"process {pid}: {command_of(pid)}")
        tasks = f"/proc/{pid}/task"
        for task in sorted(os.listdir(tasks) if os.path.isdir(tasks) else [], key=int)[:64]:
            at = f"{tasks}/{task}"
            fields = stat_fields(f"{pid}/task/{task}") or ["?"]
            lines.append(
                f"  {task} {read_text(at + '/comm')}: {fields[0]}, {read_text(at + '/wchan')}, "
                f"call {read_text(at + '/syscall')}"
            )
            lines += ["    " + line for line in read_text(at + "/stack").splitlines()[:6]]
        if not command_of(pid).split(" ")[0].endswith("/hanare"):  # system calls are enough for Hanare's own command
            lines += stacks_by_gdb(pid)
    return "\n".join(lines)


def stacks_by_gdb(pid):
    try:
        gdb = subprocess.run(
            ["gdb", "-p", str(pid), "-batch", "-nx", "-ex", "set pagination off", "-ex", "thread apply all bt 12"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    kept = [line for line in gdb.stdout.decode(errors="replace").splitlines() if line.startswith(("#", "Thread"))]
    return ["    " + line[:160] for line in kept[:200]]


def end_all(leader, but=()):
    """Kills the processes below this one, except `but`, until none is left. Gives up after 5 s."""
    for _ in range(500):
        alive = descendants(os.getpid(), but)
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        reap((leader, *but))
        if not alive:
            return
        time.sleep(0.01)


def reap(but):
    """Collects the exit codes of adopted processes, except `but`. The `Popen` of a command waits for the command."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        fields = stat_fields(name)
        if fields and fields[0] == "Z" and int(fields[1]) == os.getpid() and int(name) not in but:
            try:
                os.waitpid(int(name), os.WNOHANG)
            except ChildProcessError:
                pass


def run(command, *, cwd, env, limit, disturb=None, linger=1.0, beside=(), prepare=None):
    """Runs `command` in a session of its own for `limit` seconds at most, and ends the processes that it left behind. A
    process may run only one command at a time.

    `disturb(pid)` is called repeatedly while the command runs, and may sleep. Processes that are alive `linger` seconds
    after the command's end count as left behind. The processes `beside` are the caller's and are left alone. `prepare`
    runs in the child before the command.
    """
    with tempfile.TemporaryFile(dir=cwd) as out, tempfile.TemporaryFile(dir=cwd) as err:
        began = time.monotonic()
        process = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
            preexec_fn=prepare,
        )
        try:
            outcome = watch(process, began, limit, disturb, beside)
            outcome.left_behind = [] if outcome.timed_out else outlived(process.pid, linger, beside)
        finally:
            end_all(process.pid, beside)
            process.wait()
        outcome.stdout, outcome.stderr = tail(out), tail(err).decode(errors="replace")
    return outcome


def watch(process, began, limit, disturb, beside):
    outcome = Outcome()
    while process.poll() is None:
        left = began + limit - time.monotonic()
        if left <= 0:
            examine(outcome, beside)
            break
        if disturb is None:
            try:
                process.wait(left)
            except subprocess.TimeoutExpired:
                continue
        else:
            disturb(process.pid)
    outcome.seconds = time.monotonic() - began
    if not outcome.timed_out:
        outcome.was_killed = process.returncode == -signal.SIGKILL
        outcome.code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return outcome


def examine(outcome, beside):
    """Records of a command that exceeded its time whether it still computes, and where its threads are."""
    outcome.timed_out = True
    pids = descendants(os.getpid(), beside)
    before, wanted = cpu_seconds(pids), 0
    for _ in range(LOOKS):
        wanted += wants_cpu(pids)
        time.sleep(0.1)
    computes = cpu_seconds(pids) - before >= BUSY or 2 * wanted >= LOOKS
    # A command that has just ended did not hang either.
    outcome.busy = computes or not descendants(os.getpid(), beside)
    outcome.stacks = where_threads_are(pids)


def outlived(leader, linger, beside):
    """Returns the processes of an ended command that are alive `linger` seconds later."""
    end = time.monotonic() + linger
    while True:
        left = [pid for pid in descendants(os.getpid(), beside) if pid != leader]
        if not left or time.monotonic() >= end:
            return [f"{pid} {command_of(pid)}" for pid in left]
        time.sleep(0.02)


def tail(file):
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - OUTPUT_MAX))
    return file.read()
