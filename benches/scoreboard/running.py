"""One timed run of a program: its seconds, a digest of its output, and the peak of its memory.

The time ends with the program, or with the client of a server. Nothing that a run started is left behind.
"""

import hashlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests/harness"))
import cells  # noqa: E402

# Seconds between two looks at the memory of a run.
LOOK_EVERY = 0.05
# Seconds that a server has to end after SIGTERM.
SERVER_ENDS = 30
# Seconds that a program has to end after SIGTERM when its time is over.
GENTLE = 3
CHUNK = 1 << 16
# Flags of mappings that a userfaultfd traps, in /proc/PID/smaps: missing pages, writes, minor faults.
TRAPPED = {"um", "uw", "ui"}


@dataclass
class Run:
    """How a run went."""

    seconds: float = 0.0
    code: int = 0  # the shell's exit code: 128 + n for signal n
    digest: str = ""
    stderr: str = ""
    timed_out: bool = False
    anon_bytes_peak: int = 0  # anonymous memory of the program's processes, all together
    near_bytes_peak: int = 0  # that which is not far memory, if it was asked for

    def last_line(self):
        return (self.stderr.strip().splitlines() or [""])[-1][:300]


def run(command, *, work, env, limit, client=None, enter=None, but=None, near=False):
    """Runs `command` for `limit` seconds at most. With `client`, the command is a server and the client is timed.

    `enter` is called in the child before the command. Memory of processes that run the file `but` is not counted. With
    `near`, each mapping is looked at, which takes too long for a run whose time counts.
    """
    outcome = Run()
    look = (lambda: look_at_mappings(outcome, but)) if near else (lambda: look_at_totals(outcome, but))
    with tempfile.TemporaryFile() as errors:
        started = []
        begin = lambda line, out, prepare=None: started.append(subprocess.Popen(
            line, cwd=work, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True,
            preexec_fn=prepare,
        ))
        began = time.perf_counter()
        try:
            begin(command, subprocess.DEVNULL if client else subprocess.PIPE, enter)
            if client:
                begin(client, subprocess.PIPE)
            watch(started, began + limit, outcome, look)
            outcome.seconds = time.perf_counter() - began
            if client and not outcome.timed_out:
                end_server(started[0], outcome)
        finally:
            cells.end_all(started[0].pid if started else 0)
            for process in started:
                process.wait()
                if process.stdout:
                    process.stdout.close()
        outcome.stderr = cells.tail(errors).decode(errors="replace")
    return outcome


def watch(started, end, outcome, look):
    """Reads the output until the last started process ends, or an earlier one does, or the time is over."""
    timed, digest = started[-1], hashlib.sha256()
    output = timed.stdout.fileno()
    os.set_blocking(output, False)
    ends = {os.pidfd_open(process.pid): process for process in started}
    poll = select.poll()
    for descriptor in (output, *ends):
        poll.register(descriptor, select.POLLIN)
    try:
        look_at, ended = 0.0, None
        while ended is None:
            now = time.perf_counter()
            if now >= end:
                outcome.timed_out = True
                end_gently(started[0])
                break
            if now >= look_at:
                look()
                look_at = time.perf_counter() + LOOK_EVERY
            for descriptor, _ in poll.poll(max(1, int((min(look_at, end) - now) * 1000))):
                ended = ended or ends.get(descriptor)
                if descriptor == output and not drain(output, digest):
                    poll.unregister(output)
        drain(output, digest)
        if ended is not None:
            outcome.code = exit_code(ended) or (0 if ended is timed else 1)
    finally:
        for descriptor in ends:
            os.close(descriptor)
    outcome.digest = digest.hexdigest()[:16]


def drain(output, digest):
    """Reads what there is, and returns whether there may be more."""
    while True:
        try:
            data = os.read(output, CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        digest.update(data)


def exit_code(process):
    code = process.wait()
    return code if code >= 0 else 128 - code


def end_gently(process):
    """Asks a program whose time is over to end, so that `hanare run` writes its figures. The caller kills it later."""
    process.terminate()
    try:
        process.wait(GENTLE)
    except subprocess.TimeoutExpired:
        pass


def end_server(server, outcome):
    """Ends a server as its user would. Its exit code counts if the client's is 0."""
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
    try:
        server.wait(SERVER_ENDS)
    except subprocess.TimeoutExpired:
        outcome.timed_out = True
        return
    outcome.code = outcome.code or exit_code(server)


def look_at_totals(outcome, but):
    outcome.anon_bytes_peak = max(outcome.anon_bytes_peak, sum(map(anonymous_of, programs(but))))


def look_at_mappings(outcome, but):
    outcome.near_bytes_peak = max(outcome.near_bytes_peak, sum(map(near_of, programs(but))))


def programs(but):
    """Returns all processes below this one, without those that run the file `but`."""
    found, ahead = [], children(os.getpid())
    while ahead:
        pid = ahead.pop()
        ahead += children(pid)
        if but is None or executable(pid) != but:
            found.append(pid)
    return found


def children(pid):
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except OSError:
        pass  # the process has ended
    return found


def executable(pid):
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return None


def anonymous_of(pid):
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def near_of(pid):
    """Returns the anonymous memory of the mappings of a process that no userfaultfd traps. In sigsegv mode, far memory is
    shared memory, which is not anonymous."""
    total = anonymous = 0
    try:
        with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("Anonymous:"):
                    anonymous = int(line.split()[1]) * 1024
                elif line.startswith("VmFlags:") and not TRAPPED.intersection(line.split()):
                    total += anonymous
    except OSError:
        pass
    return total
