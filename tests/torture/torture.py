#!/usr/bin/env python3
"""Runs workloads that check themselves under random disturbances for an hour: `make torture MINUTES=60 SEED=n`.

Every run is drawn from the seed and its own number: a workload, a trap mode, a page size, a policy, a prefetcher, a
budget, servers, kernel features to switch off, refused system calls, and a disturbance. The run must end within its
time, with an exit code that is documented for its disturbance, and leave nothing behind. Each finding is written with
the command that repeats it. The last line counts runs and findings. The exit code is 1 when there are findings.
"""

import argparse
import ctypes
import json
import multiprocessing
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "harness"))
import cells  # noqa: E402
from cells import CANNOT_RUN, FULL, KERNEL, LOST, NO_START  # noqa: E402

# Exit code of a shared-memory rank that has lost the connection to another rank.
RANK_LOST = 122
# Exit code of a workload when the kernel or Hanare refuses the calls that it tests.
SKIPPED = 77

MODES = ["thread", "sigbus", "sigsegv"]
PAGE_SIZES = ["auto", "4K", "16K", "64K", "256K", "1M", "2M"]
POLICIES = ["auto", "auto", "auto", "simple", "swap-in-history", "random", "fifo", "clock", "nru-swaps", "nru-timer",
            "plru", "lru", "2q", "arc", "lirs", "s3-fifo", "w-tinylfu"]
PREFETCHERS = ["auto", "auto", "none", "streams", "sequential", "prepaging", "cluster", "leap", "markov"]
FEATURES = ["move", "wp", "wp_async", "userfaultfd", "user_mode_only", "kernel_faults", "process_madvise", "thp",
            "pagemap_scan"]
DISTURBANCES = ["none"] * 6 + ["signals", "signals", "stop program", "stop program", "stop server", "kill server",
                               "kill program", "end command", "few files", "little address space", "small cgroup",
                               "busy beside", "scarce servers"]
# Longest time of a run, in seconds. It includes the time in which the run waits for a CPU. Most runs take 0.2 to 5 s.
LIMIT = 120
# Seconds after a run's end in which Hanare's own processes may end. On a busy machine they wait for a CPU.
LINGER = 5.0
# Texts that a workload may print if a limit was set. A call of the workload was refused, or the kernel killed its child
# because memory was short.
REFUSALS = ("Cannot allocate memory", "Too many open files", "Resource temporarily unavailable", "No space left",
            "ended with signal 9")


def main():
    options = read_options()
    if options.case is not None:
        cells.adopt_orphans()
        finding = torture(options, options.case, verbose=True)
        print(finding["what"] if finding else "no finding")
        sys.exit(1 if finding else 0)
    end = time.monotonic() + options.minutes * 60
    results = multiprocessing.Queue()
    workers = [
        multiprocessing.Process(target=work, args=(options, first, end, results)) for first in range(options.jobs)
    ]
    for worker in workers:
        worker.start()
    runs, findings, slow, ended = 0, 0, 0, 0
    while ended < len(workers):
        kind, text = results.get()
        ended += kind == "end"
        runs += kind != "end"
        findings += kind == "finding"
        slow += kind == "slow"
        if text:
            print(text, flush=True)
    print(f"torture, seed {options.seed}: {runs} runs, {slow} over their time and still computing, {findings} findings")
    sys.exit(1 if findings else 0)


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (%(default)s)")
    parser.add_argument("--case", type=int, help="repeat the run of this number")
    parser.add_argument("--hanare", default="target/release/hanare", help="the command under test (%(default)s)")
    parser.add_argument("--workloads", default="target/workloads", help="the built workloads (%(default)s)")
    parser.add_argument("--work", default="target/torture", help="private folders, findings (%(default)s)")
    parser.add_argument("--modes", default=",".join(MODES), help="trap modes to draw from (%(default)s)")
    parser.add_argument("--refuse", action="store_true", help="the build takes HANARE_TEST_REFUSE: draw seeds for it")
    parser.add_argument("--calm", action="store_true",
                        help="no disturbances and small workloads; with --refuse every run has a seed")
    parser.add_argument("--runs", type=int, help="end after so many runs, if not by the minutes before")
    parser.add_argument("--only", help="workloads to draw from, with commas between them")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds a run may take (%(default)s)")
    options = parser.parse_args()
    options.hanare, options.workloads, options.work = map(
        lambda path: str(Path(path).resolve()), (options.hanare, options.workloads, options.work)
    )
    Path(options.work).mkdir(parents=True, exist_ok=True)
    return options


def work(options, first, end, results):
    """A worker process. It makes the runs with the numbers first, first + jobs, first + 2 * jobs and so on."""
    cells.adopt_orphans()
    number = first
    try:
        while time.monotonic() < end and (options.runs is None or number < options.runs):
            finding = torture(options, number)
            kind = "run" if not finding else "slow" if finding["what"].startswith("slow") else "finding"
            results.put((kind, tell(finding, options) if finding else None))
            number += options.jobs
    except Exception as error:  # an error in this script; the other workers' results still count
        results.put(("finding", f"run {number} could not be made: {error!r}"))
    results.put(("end", None))


def tell(finding, options):
    with open(Path(options.work) / "findings.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(finding) + "\n")
    return f"{finding['what']}\n    {finding['command']}\n    again: {finding['again']}"


# ---- the draw of a run ----


class Case:
    """One run. Its settings are drawn from the seed and the run's number."""

    def __init__(self, options, number):
        self.number, self.options = number, options
        r = self.random = random.Random(f"{options.seed}/{number}")
        self.mode = r.choice(options.modes.split(","))
        self.page_size = r.choice(PAGE_SIZES)
        self.policy, self.prefetch = r.choice(POLICIES), r.choice(PREFETCHERS)
        self.disturbance = "none" if options.calm else r.choice(DISTURBANCES)
        self.servers = r.choice(["private"] * 4 + ["private spill", "private tight", "tcp", "tcp", "tcp spill", "two",
                                                 "three", "unix"])
        self.disable = r.sample(FEATURES, r.choice([1, 1, 2])) if r.random() < 0.25 else []
        self.refuse = r.randrange(1, 1 << 31) if options.refuse and (options.calm or r.random() < 0.5) else None
        self.moment = r.choice([0.02, 0.1, 0.3, 1.0]) * r.random()
        self.choose_workload(r)
        if self.name == "calls" and self.disturbance == "signals":
            self.disturbance = "none"  # an interrupted sleep ends early, also without Hanare
        if self.name == "foreign" and self.disable:
            self.arguments[0] = "shares"  # docs/modes.md: without some features, other writes may be lost
        self.choose_budget(r)
        self.far = "all" if self.mode == "thread" and r.random() < 0.3 else "large"
        if self.disable and r.random() < 0.7:
            self.mode = "auto"
        self.seal = r.choice(["auto", "auto", "on"])
        self.tight = f"{max(2, int(self.mb * r.choice([1, 1.5, 2, 3, 5, 8])))}M"

    def choose_workload(self, r):
        names = self.options.only.split(",") if self.options.only else list(WORKLOADS)
        self.name = r.choice(names)
        self.shared = self.name in SHARED
        self.own_servers = not self.shared and self.name != "blocks"
        # A fault costs most where protection is the trap, and even more with huge pages.
        beside = self.mode == "sigbus" and self.disturbance == "busy beside"
        slow = self.options.calm or self.mode == "sigsegv" or beside
        self.mb, self.arguments = WORKLOADS[self.name](r, slow)

    def choose_budget(self, r):
        page = 64 if self.page_size == "auto" else {"K": 1, "M": 1024}[self.page_size[-1]] * int(self.page_size[:-1])
        # With a smaller budget, these programs still give right results, but take minutes over a link.
        least = max(4096 if self.name in ("calls", "syscalls", "mapping") else 1024, 8 * page)
        share = r.choice([10, 25, 25, 50, 50, 75, 90])
        if r.random() < 0.5 and self.mb * 1024 * share // 100 >= least:
            self.local = f"{share}%"
        else:
            self.local = f"{max(least, int(self.mb * 1024 * r.choice([0.1, 0.25, 0.5, 0.9, 1.5])))}K"

    def flags(self, addresses):
        flags = ["--mode", self.mode, "--page-size", self.page_size, "--policy", self.policy, "--prefetch",
                 self.prefetch, "--local", self.local, "--far", self.far, "--seal", self.seal, "--no-warm"]
        for address in addresses:
            flags += ["--server", address]
        if self.servers == "private spill":
            flags += ["--memory", "4M", "--spill", "/var/tmp"]
        if self.servers == "private tight":
            flags += ["--memory", self.tight, "--spill", "none"]
        return flags

    def launch_flags(self):
        r = self.random
        flags = ["-n", str(r.choice([1, 2, 2, 3, 4])), "--protocol", r.choice(["adaptive", "invalidate", "update"]),
                 "--transfer", r.choice(["zero-copy", "message"]), "--home", r.choice(["static", "migrate"]),
                 "--bind", r.choice(["yes", "no"])]
        return flags + r.choice([[], ["--local", r.choice(["256K", "512K", "2M"])]])

    def command(self, place, addresses):
        program = [f"{self.options.workloads}/{self.name}", *(place if a == "FOLDER" else a for a in self.arguments)]
        if self.shared:
            return [self.options.hanare, "launch", *self.launch_flags(), "--", *program]
        if self.name == "blocks":  # it starts far memory itself, without `hanare run`
            return [*program, "--local", self.local]
        return [self.options.hanare, "run", *self.flags(addresses), "--", *program]

    def environment(self, place):
        env = {name: value for name, value in os.environ.items() if not name.startswith("HANARE_")}
        env |= {"TMPDIR": place + "/tmp", "CHECK_TAKES_SIGNALS": "1"}
        # A program that starts far memory itself finds the command for its private server in PATH.
        env["PATH"] = os.path.dirname(self.options.hanare) + ":" + env["PATH"]
        if self.disable:
            env["HANARE_DISABLE"] = ",".join(self.disable)
        if self.refuse is not None:
            env["HANARE_TEST_REFUSE"] = str(self.refuse)
        return env


def kernel(r, slow):
    mb = r.choice([2, 4]) if slow else r.choice([4, 8, 12])
    return mb, [str(mb), str(r.randrange(1, 1 << 30))]


def touch(r, slow):
    mb = r.choice([4, 8]) if slow else r.choice([8, 16, 48])
    order = r.choice([[], ["--random"]])
    return mb, [f"{mb}M", "--passes", str(r.choice([1, 2])), "--seed", str(r.randrange(1 << 30)), *order]


def threads(r, slow):
    mb = 8 if slow else r.choice([8, 16, 32])
    ops, share = 200 if slow else r.choice([600, 3000]), r.choice([[], ["--share"]])
    return mb, ["--threads", str(r.choice([2, 4, 8])), "--size", f"{mb}M", "--ops", str(ops), "--seed",
                str(r.randrange(1 << 30)), *share]


def direct(r, slow):
    kind = r.choice(["pread", "write", "uring", "uring-fixed", "aio", "vmwrite", "vmsplice"])
    return 32, ["FOLDER", "--kind", kind, "--mb", "32", "--seconds", str(r.choice([0.3, 1, 2])), "--block",
                r.choice(["4K", "64K", "256K"]), "--seed", str(r.randrange(1, 1 << 30))]


def foreign(r, slow):
    return 8, [r.choice(["shares", "calls"]), str(r.choice([0.3, 1, 2])), str(r.choice([1024, 2048, 4096]))]


def himeno(r, slow):
    return 4, ["--size", "XS", "--iterations", "2" if slow else r.choice(["3", "4"]), "--verify"]


def genes(r, slow):
    linkage, allocator = r.choice(["average", "centroid"]), r.choice(["malloc", "malloc", "dlm"])
    return 2, ["--genes", "150" if slow else r.choice(["300", "600"]), "--conditions", r.choice(["20", "80"]),
               "--linkage", linkage, "--allocator", allocator, "--seed", str(r.randrange(1, 1 << 30)), "--verify"]


def keyvalue(r, slow):
    mb = 2 if slow else r.choice([4, 12])
    return mb, ["--megabytes", str(mb), "--operations", "3000" if slow else "20000", "--seed",
                str(r.randrange(1, 1 << 30)), "--verify"]


def stream(r, slow):
    mb = r.choice([3, 6]) if slow else r.choice([6, 12, 24])
    return mb, ["--megabytes", str(mb), "--iterations", "3", "--verify"]


def ranks(*arguments):
    """Makes the arguments of a program whose ranks share memory. Callable arguments are drawn for each run."""
    return lambda r, slow: (4, [a(r) if callable(a) else a for a in arguments])


SHARED = {
    "laplace": ranks("-n", "254", "-i", lambda r: str(r.choice([4, 12])), "--verify"),
    "lu": ranks("-n", "256", "--verify"),
    "matmul": ranks("-n", "128", "--verify"),
    "histogram": ranks("-n", "100000", "--verify"),
    "hash": ranks("-n", "1000", "--verify"),
    "litmus": ranks(lambda r: str(r.choice([20, 60]))),
}

# Their children may end with lines of their own.
FORKING = {"forks", "forked", "blend", "foreign"}

WORKLOADS = {name: kernel for name in ("stencil", "fft", "cg", "mg", "is", "sp", "rbtree", "clustering")} | {
    "himeno": himeno,
    "genes": genes,
    "keyvalue": keyvalue,
    "stream": stream,
    "touch": touch,
    "threads": threads,
    "direct": direct,
    "foreign": foreign,
    "uring": lambda r, slow: (24, ["send", "8", "16"]),
    "signals": lambda r, slow: (8, ["8M", "--signals", "300" if slow else "2000"]),
    "heap": lambda r, slow: (16, ["--ops", "20" if slow else "80", "--size", r.choice(["1M", "4M"]), "--seed",
                                  str(r.randrange(1 << 30))]),
    "syscalls": lambda r, slow: (16, ["4M"]),
    "calls": lambda r, slow: (4, []),
    "mapping": lambda r, slow: (16, ["4M"]),
    "reserving": lambda r, slow: (16, ["4M"]),
    "forks": lambda r, slow: (16, ["2M" if slow else "4M", str(r.choice([1, 2, 4]))]),
    "blend": lambda r, slow: (8, ["--ops", "40" if slow else "200", "--size", r.choice(["1M", "4M"]), "--threads",
                                  str(r.choice([1, 2, 4])), "--seed", str(r.randrange(1, 1 << 30))]),
    "forked": lambda r, slow: (8, [r.choice(["stacks", "parted"])]),
    "vector": lambda r, slow: (16, ["2M" if slow else "8M"]),
    "statics": lambda r, slow: (16, ["4M"]),
    "straddle": lambda r, slow: (16, [str(r.choice([1, 2, 4, 8])), "10" if slow else "40"]),
    "blocks": lambda r, slow: (8, ["many", "2M" if slow else "8M"]),
} | SHARED


# ---- running it ----


def torture(options, number, verbose=False):
    """Makes one run. Returns what is wrong with it, or None."""
    case = Case(options, number)
    folder = tempfile.TemporaryDirectory(dir=options.work, prefix=f"run-{number}-")
    with folder as place, Servers(case, place) as servers:
        os.mkdir(place + "/tmp")
        command = case.command(place, servers.addresses)
        disturbance = Disturbance(case, servers)
        outcome = cells.run(
            command, cwd=place, env=case.environment(place), limit=options.limit, disturb=disturbance, linger=LINGER,
            beside=(*servers.pids(), *disturbance.pids()), prepare=disturbance.limits,
        )
        disturbance.over()
        trouble = judge(case, disturbance, outcome) or servers.trouble()
        # A command that is killed, as at its time limit, cannot remove its files.
        trouble = trouble or not outcome.timed_out and not outcome.was_killed and left_in(place + "/tmp", disturbance)
    if verbose:
        print(shlex.join(command), case.disturbance, disturbance.done, case.disable, outcome, sep="\n")
    return describe(case, command, disturbance, outcome, trouble) if trouble else None


def describe(case, command, disturbance, outcome, trouble):
    options = case.options
    env = {name: value for name, value in case.environment("PLACE").items() if name.startswith("HANARE_")}
    words = [f"{name}={value}" for name, value in env.items()] + [shlex.join(command)]
    again = ["tests/torture/torture.py", "--seed", str(options.seed), "--case", str(case.number),
             "--hanare", options.hanare, "--workloads", options.workloads, "--modes", options.modes]
    again += ["--refuse"] if options.refuse else []
    again += ["--calm"] if options.calm else []
    again += ["--limit", str(options.limit)] if options.limit != LIMIT else []
    again += ["--only", options.only] if options.only else []
    return {
        "what": f"{trouble} [run {case.number}: {case.name}, {case.disturbance}]", "command": " ".join(words),
        "again": shlex.join(again), "done": disturbance.done,
        "code": outcome.code, "seconds": round(outcome.seconds, 2),
        "stdout": outcome.stdout[-2000:].decode(errors="replace"), "stderr": outcome.stderr[-4000:],
        "stacks": outcome.stacks[-30000:], "left_behind": outcome.left_behind,
    }


class Servers:
    """The memory servers that are started for a run. A run with a private server has none."""

    def __init__(self, case, place):
        self.case, self.place, self.processes, self.addresses = case, place, [], []

    def __enter__(self):
        kinds = {"tcp": ["tcp"], "tcp spill": ["spill"], "two": ["tcp", "spill"], "three": ["tcp", "tcp", "unix"],
                 "unix": ["unix"]}
        count = kinds.get(self.case.servers, []) if self.case.own_servers else []
        memory = 2 if self.case.disturbance == "scarce servers" else 256
        try:
            for number, kind in enumerate(count):
                self.start(kind, number, memory)
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, kind, number, memory):
        flags = ["--unix", f"{self.place}/s{number}"] if kind == "unix" else ["--listen", "127.0.0.1:0"]
        flags += ["--spill", self.place, "--memory", "4M"] if kind == "spill" else ["--memory", f"{memory}M"]
        said = Path(f"{self.place}/server{number}")
        with open(said, "wb") as out:
            self.processes.append(subprocess.Popen(
                [self.case.options.hanare, "serve", *flags], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            ))
        for _ in range(1000):  # the server's first line names its address
            if said.read_text().endswith("\n"):
                self.addresses.append(said.read_text().splitlines()[0].split()[-1])
                return
            time.sleep(0.01)
        raise RuntimeError(f"a memory server does not start: {said.read_text()}")

    def pids(self):
        return [process.pid for process in self.processes]

    def trouble(self):
        """Returns an error, or None. The servers must still run, except if the disturbance killed one."""
        gone = [p.returncode for p in self.processes if p.poll() is not None]
        return f"a memory server ended with {gone}" if gone and self.case.disturbance != "kill server" else None

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()


class Disturbance:
    """Disturbs a run while it runs. It is called repeatedly, and sleeps between disturbances."""

    def __init__(self, case, servers):
        self.case, self.servers, self.done = case, servers, []
        self.random, self.began = random.Random(case.random.random()), time.monotonic()
        self.cgroup, self.beside = None, []
        if case.disturbance == "busy beside":
            # The limit of CPU time ends it if this script is killed.
            busy = ["sh", "-c", f"ulimit -t {LIMIT}; while :; do :; done"]
            self.beside = [subprocess.Popen(busy) for _ in range(2)]
        if case.disturbance == "small cgroup":
            self.cgroup = make_cgroup(case)

    def pids(self):
        return [process.pid for process in self.beside]

    def limits(self):
        """Sets limits for the run. The child calls this before the command starts."""
        if self.case.disturbance == "few files":
            most = self.random.choice([8, 12, 16, 24, 40])
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        if self.case.disturbance == "little address space":
            most = self.random.choice([1 << 28, 1 << 30, 1 << 35, (1 << 38) + (1 << 29)])
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        if self.cgroup:
            Path(self.cgroup, "cgroup.procs").write_text(str(os.getpid()))

    def __call__(self, leader):
        time.sleep(0.005)
        what = self.case.disturbance
        if time.monotonic() - self.began < self.case.moment:
            return
        if what == "signals":
            self.send_signals(leader)
        elif what.startswith("stop") and len(self.done) < 6:
            self.stop_and_go(leader, what)
        elif what.startswith(("kill", "end")) and not self.done:
            self.end(leader, what)

    def program(self, leader):
        """Returns the process number of the program (the command's child that is no server), or None before its start."""
        if self.case.name == "blocks":  # the process of its server has the program's name at first
            return leader
        for pid in cells.descendants(leader):
            if os.path.basename(cells.command_of(pid).split(" ")[0]) == self.case.name:
                return pid
        return None

    def a_server(self, leader):
        private = [pid for pid in cells.descendants(leader) if " serve --private " in cells.command_of(pid)]
        return self.random.choice(self.servers.pids() or private or [None])

    def send_signals(self, leader):
        program = self.program(leader)
        for _ in range(20 if program and takes_signals(program) else 0):
            try:
                tasks = [int(t) for t in os.listdir(f"/proc/{program}/task")]
                own = [t for t in tasks if not cells.read_text(f"/proc/{program}/task/{t}/comm").startswith("hanare")]
                if self.random.random() < 0.5 or not own:
                    os.kill(program, signal.SIGUSR1)
                else:
                    ctypes.CDLL(None).syscall(234, program, self.random.choice(own), int(signal.SIGUSR1))  # tgkill
            except OSError:
                return
        self.done = ["SIGUSR1"]
        time.sleep(0.01)

    def stop_and_go(self, leader, what):
        pid = self.program(leader) if what == "stop program" else self.a_server(leader)
        if pid is None:
            return
        try:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self.random.choice([0.01, 0.1, 0.5, 1.0]))
            os.kill(pid, signal.SIGCONT)
            self.done.append(f"stopped {pid}")
        except OSError:
            pass
        time.sleep(self.random.random() * 0.3)

    def end(self, leader, what):
        pid = {"kill server": self.a_server, "kill program": self.program, "end command": lambda pid: pid}[what](leader)
        number = signal.SIGTERM if what == "end command" else signal.SIGKILL
        if pid is None or (what == "end command" and not self.program(leader)):
            return
        try:
            os.kill(pid, number)
            self.done.append(f"{signal.Signals(number).name} to {cells.command_of(pid)}")
        except OSError:
            pass

    def over(self):
        for process in self.beside:
            process.kill()
            process.wait()
        if self.cgroup:
            for _ in range(50):
                try:
                    os.rmdir(self.cgroup)
                    return
                except OSError:
                    time.sleep(0.02)


def takes_signals(pid):
    """Whether the process already has a handler for SIGUSR1."""
    for line in cells.read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith("SigCgt:"):
            return int(line.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1
    return False


def make_cgroup(case):
    """Makes a memory cgroup with less memory than the run needs. Returns None if this user may not make a cgroup."""
    root = Path("/sys/fs/cgroup/memory")
    path = root / f"hanare-torture-{os.getpid()}"
    try:
        path.mkdir()
        (path / "memory.limit_in_bytes").write_text(f"{case.mb + case.random.choice([16, 32, 64])}M")
        return str(path)
    except OSError:
        return None


# ---- the judgement of a run ----


def judge(case, disturbance, outcome):
    """Returns what is wrong with the end of a run, or None."""
    several = case.shared or case.name in FORKING or case.disturbance == "few files"
    if outcome.timed_out and several and case.refuse is not None and outcome.hanare_lines():
        return None  # one process ended with a line, and another waits for its message
    if outcome.timed_out:
        return "slow: over its time, and still computing" if outcome.busy else "hang"
    if "panicked at" in outcome.stderr:
        return "panic"
    if outcome.left_behind and "SIGKILL" not in str(disturbance.done):
        return f"left behind: {outcome.left_behind}"
    if outcome.code == 0:
        ok = outcome.stdout.decode(errors="replace").splitlines()[-1:]
        said = ok and ok[0].startswith("ok") or ": verified" in outcome.stderr
        return None if said else f"exit code 0 without `ok`: {ok}"
    if outcome.code == SKIPPED and outcome.stdout.startswith(b"skipped: "):
        return None
    if outcome.code not in allowed(case, disturbance, outcome):
        return f"exit code {outcome.code}; it said: {outcome.stdout[-200:].decode(errors='replace')!r}"
    # A warning at the start, and a refused allocation, are no reasons for the end.
    notices = ("memory available now; the system may swap", "was refused (ENOMEM)")
    lines = sum(not any(notice in line for notice in notices) for line in outcome.hanare_lines())
    if outcome.code in (LOST, FULL, KERNEL, NO_START, CANNOT_RUN) and (lines == 0 or lines > 1 and not several):
        return f"exit code {outcome.code} with {lines} lines of Hanare's"
    return None


def allowed(case, disturbance, outcome):
    """Returns the exit codes, other than 0, that are documented for the disturbances of a run."""
    codes, what = set(), case.disturbance
    text = outcome.stderr + outcome.stdout.decode(errors="replace")
    if disturbance.done and what.startswith("kill server"):
        codes |= {LOST, NO_START}
        # An allocation that the lost server cannot grant.
        codes |= {1} if "Cannot allocate memory" in text else set()
    if disturbance.done and what == "kill program":
        codes |= {128 + signal.SIGKILL}
        codes |= {RANK_LOST} if case.shared else set()
    if disturbance.done and what == "end command":
        codes |= {128 + signal.SIGTERM}
    scarce = what == "scarce servers" or case.servers == "private tight"
    if scarce or what in ("few files", "little address space", "small cgroup"):
        codes |= {LOST, FULL, KERNEL, NO_START} | ({1} if any(refusal in text for refusal in REFUSALS) else set())
    if what == "few files" and "Too many open files" in text:
        codes |= {CANNOT_RUN}
    if what == "small cgroup" or case.refuse is not None:
        codes |= {128 + signal.SIGKILL} if what == "small cgroup" else {LOST, KERNEL, NO_START}
        codes |= {1} if any(refusal in text for refusal in REFUSALS) else set()
    if case.disable:
        codes |= {NO_START} if "mode" in text or "userfaultfd" in text else set()
    if codes & {LOST, FULL, KERNEL, NO_START} and case.name in FORKING and outcome.hanare_lines():
        codes |= {1}  # the parent's code after such an end of a child
    if (scarce or what == "little address space") and "bad_alloc" in text:
        codes |= {128 + signal.SIGABRT}
    if hoarded(text):
        codes |= {KERNEL}
    if "budget" in text:  # a budget too small for the page size or the link refuses the run
        codes |= {NO_START}
    return codes


def hoarded(text):
    """Whether a run ended because registered buffers left almost nothing of the local budget."""
    stand = re.search(r"(\d+) of \d+ units local,.* (\d+) pages held by transfers", text)
    if not stand:
        return False
    local, held = int(stand[1]), int(stand[2])
    # The two pages of the last fault also stay in memory.
    return held * 4 > local * 3 or held + 2 >= local


def left_in(folder, disturbance):
    """Returns an error if a run left files behind, else None. After SIGKILL, a process cannot remove its files."""
    left = sorted(os.listdir(folder))
    return f"left in TMPDIR: {left}" if left and "SIGKILL" not in str(disturbance.done) else None


if __name__ == "__main__":
    main()
